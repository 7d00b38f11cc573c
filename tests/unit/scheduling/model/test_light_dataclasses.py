"""The dataclasses of batch jobs are like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from lading.scheduling.model import light_dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """A dataclass."""

    a: int
    b: str = "b"
    c: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def twice(self) -> int:
        return 2 * self.a


@light_dataclasses.dataclass(frozen=True, slots=True)
class Light:
    """A light dataclass."""

    a: int
    b: str = "b"
    c: Mapping[str, int] = light_dataclasses.field(default_factory=dict)

    @property
    def twice(self) -> int:
        return 2 * self.a


@light_dataclasses.dataclass(kw_only=True, slots=True)
class Changing:
    one: int = 1

    def __post_init__(self) -> None:
        self.one += 1


# How each class of both kinds is made in a test.
KINDS: list[Any] = [Plain, Light]


def outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize(
    "use",
    [
        lambda kind: dataclasses.asdict(kind(1, c={"x": 1})),
        lambda kind: light_dataclasses.as_dict(kind(1, c={"x": 1})),
        lambda kind: dataclasses.astuple(dataclasses.replace(kind(1), b="x")),
        lambda kind: dataclasses.astuple(light_dataclasses.replace(kind(1), b="x")),
        lambda kind: [(each.name, each.type, each.default, each.default_factory) for each in dataclasses.fields(kind)],
        lambda kind: (dataclasses.is_dataclass(kind), kind.__match_args__, kind.__slots__, kind.__doc__ is None),
        lambda kind: repr(kind(1)).partition("(")[2],
        lambda kind: (kind(1) == kind(1), kind(1) == kind(2), kind(1) == (1, "b", {}), kind(1) != kind(1, "c")),
        lambda kind: (kind(1, c=()).twice, hash(kind(1, c=())) == hash(kind(1, c=()))),
        lambda kind: hash(kind(1)),
        lambda kind: kind(1).c is kind(1).c,
        lambda kind: kind(),
        lambda kind: kind(1, d=2),
        lambda kind: setattr(kind(1), "a", 2),
        lambda kind: delattr(kind(1), "a"),
        lambda kind: kind(1).nothing,
        lambda kind: pickle.loads(pickle.dumps(kind(1, c={"x": 1}))) == kind(1, c={"x": 1}),
        lambda kind: copy.deepcopy(kind(1, c={"x": 1})) == kind(1, c={"x": 1}),
    ],
)
def test_a_light_dataclass_does_what_a_dataclass_does(use: Any) -> None:
    plain, light = [outcome(lambda kind=kind: use(kind)) for kind in KINDS]
    assert light == plain


def test_a_changeable_one_has_no_hash() -> None:
    made = Changing(one=2)
    assert made.one == 3
    made.one = 5
    assert made == Changing(one=4)
    assert outcome(lambda: hash(made)) is TypeError
    assert outcome(lambda: Changing(2)) is TypeError  # type: ignore[misc]
    assert list(light_dataclasses.defaults(Changing)) == ["one"]


def test_a_mutable_default_is_refused() -> None:
    body = {"__annotations__": {"things": "list[str]"}, "things": []}
    with pytest.raises(ValueError, match="all Bag would share the default of things"):
        light_dataclasses.dataclass(slots=True)(type("Bag", (), body))
