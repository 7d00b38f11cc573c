"""What others have written: each type takes what it says, and an error names the place and what is expected there."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from lading.hooks.files.json_model import JsonModel, Longest, Matching, ReadWith, Text, Within, checked
from lading.scheduling.model.light_dataclasses import dataclass, field
from lading.scheduling.text.nesting import parse_json


def _upper(found: Any) -> str:
    if found != "loud":
        raise ValueError("it is not loud")
    return "LOUD"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner(JsonModel):
    cpus: Annotated[int | float, Within(0, 10)] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer(JsonModel):
    """One field of each type."""

    event: Literal["a", "b"]
    count: Annotated[int, Within(-1, 2**31)] | None
    at: Annotated[float, Within(0)] = 0.0
    amount: int | float = 0
    name: Annotated[str, Longest(3), Matching(re.compile("[a-zé]*"))] = ""
    plain: str = ""
    text: Text = ""
    flag: bool = False
    inner: Inner = field(default_factory=Inner)
    several: list[Inner] = field(default_factory=list)
    shares: Annotated[dict[str, Annotated[float, Within(0, 1)]], Longest(2)] = field(default_factory=dict)
    own: Annotated[str, ReadWith(_upper)] = ""


LEAST: dict[str, Any] = {"event": "a", "count": None}


def test_what_is_left_out_is_left_out_and_what_is_not_known_is_a_newer_writers() -> None:
    assert checked(Outer, LEAST | {"mood": {}}) == LEAST
    assert Outer(**checked(Outer, LEAST)).inner == Inner()


def test_values_are_read() -> None:
    found = LEAST | {"count": 5, "at": 3, "amount": 7, "name": "zoé", "text": "a\udc80", "flag": True, "own": "loud"}
    found |= {"inner": {"cpus": 0.5}, "several": [{}, {"cpus": 2}], "shares": {"0": 1}}
    read = checked(Outer, found)
    assert read == found | {"inner": Inner(cpus=0.5), "several": [Inner(), Inner(cpus=2)], "own": "LOUD"}
    assert [type(read["at"]), type(read["amount"]), type(read["shares"]["0"])] == [float, int, float]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "it: a JSON object is expected, not a list"),
        ({"event": "a"}, "count: it is missing"),
        (LEAST | {"event": "c"}, "event: 'c' is not valid; valid: 'a', 'b'"),
        (LEAST | {"event": ["a"]}, "event: ['a'] is not valid; valid: 'a', 'b'"),
        (LEAST | {"count": True}, "count: a whole number from -1 to 2147483648 is expected, not True"),
        (LEAST | {"count": 1.0}, "count: a whole number from -1 to 2147483648 is expected, not 1.0"),
        (LEAST | {"count": "1"}, "count: a whole number from -1 to 2147483648 is expected, not '1'"),
        (LEAST | {"at": -1}, "at: a number of 0 or more is expected, not -1"),
        (LEAST | {"at": math.nan}, "at: a number of 0 or more is expected, not nan"),
        (LEAST | {"at": math.inf}, "at: a number of 0 or more is expected, not inf"),
        (LEAST | {"at": 10**400}, "at: a number of 0 or more is expected, not 1000"),
        (LEAST | {"amount": -math.inf}, "amount: a number is expected, not -inf"),
        (LEAST | {"name": 5}, "name: text is expected, not a number"),
        (LEAST | {"name": "abcd"}, "name: it has 4 characters; at most 3 are allowed"),
        (LEAST | {"name": "a\n"}, r"name: 'a\n' does not have the expected form"),
        (LEAST | {"plain": "a\udc80"}, "plain: 'utf-8' codec can't encode"),
        (LEAST | {"text": None}, "text: text is expected, not null"),
        (LEAST | {"flag": 1}, "flag: true or false is expected, not 1"),
        (LEAST | {"inner": {"cpus": 11}}, "inner.cpus: a number from 0 to 10 is expected, not 11"),
        (LEAST | {"several": {}}, "several: a list is expected, not an object"),
        (LEAST | {"several": [{}, {"cpus": "2"}]}, "several.1.cpus: a number from 0 to 10 is expected, not '2'"),
        (LEAST | {"shares": {"a b": 2}}, "shares.'a b': a number from 0 to 1 is expected, not 2"),
        (LEAST | {"shares": {"a": 0, "b": 0, "c": 0}}, "shares: it has 3 entries; at most 2 are allowed"),
        (LEAST | {"shares": []}, "shares: a JSON object is expected, not a list"),
        (LEAST | {"own": "low"}, "own: it is not loud"),
    ],
    ids=repr,
)
def test_an_error_names_the_place_and_what_is_expected(found: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        checked(Outer, found)


def test_a_type_that_is_no_json_is_an_error_of_the_program() -> None:
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Odd(JsonModel):
        things: set  # type: ignore[type-arg]

    with pytest.raises(TypeError, match="not a type that can be read from JSON"):
        checked(Odd, {})


# The same in pydantic, which many know: strict, without infinities.
@with_config(ConfigDict(strict=True, allow_inf_nan=False))
class Same(TypedDict, total=False):
    whole: Annotated[int, Field(ge=0, le=9)] | None
    real: Annotated[float, Field(ge=-1)]
    number: int | float
    name: Annotated[str, Field(max_length=2)]
    flag: bool
    reals: list[float]
    flags: dict[str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ours(JsonModel):
    whole: Annotated[int, Within(0, 9)] | None = None
    real: Annotated[float, Within(-1)] = 0.0
    number: int | float = 0
    name: Annotated[str, Longest(2)] = ""
    flag: bool = False
    reals: list[float] = field(default_factory=list)
    flags: dict[str, bool] = field(default_factory=dict)


SCALARS = st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=3)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=2), SCALARS, max_size=3)
PYDANTIC = TypeAdapter(Same)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(Ours.__dataclass_fields__, VALUES)))
def test_what_pydantic_takes_when_it_is_strict_is_taken_and_nothing_else(found: dict[str, Any]) -> None:
    try:
        expected: Any = PYDANTIC.validate_python(found)
    except ValidationError:
        expected = None
    try:
        read = checked(Ours, parse_json(json.dumps(found).encode()))
    except ValueError:
        read = None
    assert read == expected
