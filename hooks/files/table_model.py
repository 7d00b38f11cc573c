"""Tables that people write in TOML, as models: what no field of any of them can mean is refused in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lading.scheduling.gpus import parse_type
from lading.scheduling.hints.native import is_one_line
from lading.scheduling.hints.values import parse_hurry
from lading.scheduling.machine_traits import (
    parse_arch,
    parse_capacity_type,
    parse_features,
    parse_os,
    parse_properties,
    parse_wanted_arch,
)
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import cut, printable, shortened
from lading.scheduling.text.units import parse_count, parse_memory, parse_time

# Every database keeps it in its plain integer.
LARGEST = 2**31 - 1
# What keys are called now that had other names before the first release; None: they are no keys any more, since no one
# needed to set them, and what was their default holds.
FORMER_KEYS: Mapping[str, str | None] = {
    "absence_deadline": "lost_after",
    "arch": "default_arch",
    "boot": "boot_script",
    "boot_seconds": "expected_boot_time",
    "keep_failed": "keep_failed_scratch",
    "max_wait": "jwt_lifetime",
    "never_deadline": "cancel_unrunnable_after",
    "poll_longest": "max_poll_interval",
    "poll_shortest": None,
    "power_off": None,
    "ready": "readiness_probe",
    "rest": "locality_fallback",
    "retry_delay": "placement_interval",
    "root_device": None,
    "sync_limit": "max_bundle_size",
    "takes_unnamed": "accept_untargeted",
    "usd_per_gib_month": None,
}
# PATH_MAX of Linux, in bytes.
LONGEST_PATH = 4096


class TableModel(BaseModel):
    """A table whose keys are its fields.

    TOML has ``true``, ``inf`` and ``nan`` where a number is expected, and characters that no command line and no file
    name can have: all of them are errors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _sensible(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and not _takes_bool(annotation):
            raise ValueError("neither true nor false is valid here")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a finite number is expected")
            if abs(value) > LARGEST:
                raise ValueError(f"it is too large; valid: at most {LARGEST:,}")
        if isinstance(value, str) and (strange := unspeakable(value)):
            raise ValueError(f"it has the character {strange!r}; leave it out")
        return value


def describe_former_key(key: str, keys: Collection[str] = ()) -> str | None:
    """What to do about a key that a table could have before the first release; None: it could not.

    :param keys: those that the table can have; empty: they are not known
    """
    if key not in FORMER_KEYS or key in keys:
        return None
    if (name := FORMER_KEYS[key]) is None:
        return f"{key} is no longer a key, and what was its default holds; remove it"
    return f"{key} is now called {name}; rename it" if name in keys or not keys else None


def errors_of(error: ValidationError) -> list[Any]:
    """Pydantic's findings, without those that only follow from others, as that of a list whose only table is wrong."""
    found = error.errors()
    inner = {fault["loc"][:length] for fault in found for length in range(1, len(fault["loc"]))}
    return [fault for fault in found if fault["loc"] not in inner]


def table_of(fault: Any, model: type[BaseModel]) -> type[BaseModel]:
    """The table in which one of pydantic's findings is: that of the model, or one within it."""
    for part in fault["loc"][:-1]:
        if part in model.model_fields:
            model = next(_models(model.model_fields[part].annotation), model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that an annotation names on any level."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def describe_fault(fault: Any, keys: Collection[str] = ()) -> str:
    """One of pydantic's findings as a sentence.

    :param keys: those that the table can have; empty: they are not listed where a key is unknown
    """
    place = cut(printable(".".join(str(part) for part in fault["loc"])))
    if fault["type"] == "extra_forbidden":
        if (former := describe_former_key(place, keys)) is not None:
            return former
        written = str(fault["loc"][-1])
        return f"{place} is unknown; the keys are: {nearest_first(written, keys)}" if keys else f"{place!r} is unknown"
    if fault["type"] == "missing":  # what pydantic calls its input is the whole table
        return f"{place} is missing; it must be given"
    said = fault["msg"].removeprefix("Value error, ")
    return f"{place} = {shortened(fault['input'])}: {said}" if place else said


Model = TypeVar("Model", bound=TableModel)
Made = TypeVar("Made")


def each_of(name: str, tables: object, model: type[Model], make: Callable[[Model], Made]) -> list[Made]:
    """What a list of tables says, ``[[name]]`` in the file, in its order.

    :param model: of one of them
    :param make: converts it; raises ValueError where it is not valid
    :raises ValueError: a value is not valid; the message names it and the number of the table
    """
    if not isinstance(tables, list):
        raise ValueError(f"{name} is no list of tables; write [[{name}]] above each")
    found: list[Made] = []
    faults: list[str] = []
    for number, table in enumerate(tables, start=1):
        try:
            if not isinstance(table, dict):
                raise ValueError("it is no table")
            found.append(make(model(**table)))
        except ValidationError as error:
            faults += [
                f"[[{name}]] {number}: {describe_fault(each, table_of(each, model).model_fields)}"
                for each in errors_of(error)
            ]
        except ValueError as error:
            faults.append(f"[[{name}]] {number}: {error}")
    if faults:
        raise ValueError("; ".join(faults))
    return found


def _list_of_texts(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError("a list of texts is expected")
    return value


def _seconds(value: Any) -> float:
    # A number may be a fraction of a second, which parse_time rounds up.
    seconds = parse_time(value)
    return float(seconds if isinstance(value, str) else value)


# What stands in a table with a unit, or as a plain number: MiB, of which an amount may be 0, seconds and counts.
Memory = Annotated[int, BeforeValidator(parse_memory)]
Amount = Annotated[int, BeforeValidator(partial(parse_memory, zero=True))]
Duration = Annotated[int, BeforeValidator(parse_time)]
DurationOrZero = Annotated[int, BeforeValidator(lambda value: 0 if str(value).strip() == "0" else parse_time(value))]
Count = Annotated[float, BeforeValidator(parse_count)]
CountOrZero = Annotated[float, BeforeValidator(partial(parse_count, zero=True))]
# USD per hour.
Price = Annotated[float, Field(gt=0)]
Hurry = Annotated[float, BeforeValidator(parse_hurry)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_list_of_texts)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
# What distinguishes machines.
Arch = Annotated[str, BeforeValidator(parse_arch)]
WantedArch = Annotated[str, BeforeValidator(parse_wanted_arch)]
Os = Annotated[str, BeforeValidator(parse_os)]
CapacityType = Annotated[str, BeforeValidator(parse_capacity_type)]
GPUType = Annotated[str, BeforeValidator(parse_type)]
Features = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(sorted(parse_features(value))))]
Properties = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(sorted(parse_properties(value))))]


def _takes_bool(annotation: Any) -> bool:
    """Whether an annotation names ``bool`` on any level."""
    return annotation is bool or any(map(_takes_bool, get_args(annotation)))


def unspeakable(text: str, *, lines: bool = True) -> str | None:
    """The first control character in a text but tabs and, where there may be lines, line ends; None: there is none."""
    plain = "\t\n" if lines else "\t"
    return next((each for each in text if (each < " " and each not in plain) or "\x7f" <= each < "\xa0"), None)


def directive_value(value: Any) -> Any:
    """The value of a native directive, as it is.

    :raises ValueError: it is a number that is not finite, or text of several lines
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number is expected")
    if isinstance(value, str) and not is_one_line(value):
        raise ValueError("one line of text is expected")
    return value


def remote_path(text: str, *, below_home: bool = False) -> str:
    """The path of a file or folder at a site, without a slash at its end.

    :param below_home: whether it may begin with ``~/``
    :raises ValueError: it is relative, has several lines, goes up, is the root or the home itself, or is too long
    """
    begins = ("/", "~/") if below_home else ("/",)
    valid = " or ".join(f"{begin}..." for begin in begins)
    if not text.startswith(begins) or unspeakable(text, lines=False):
        raise ValueError(f"an absolute path is expected, since nodes have other working directories; valid: {valid}")
    names = [name for name in text.removeprefix("~").split("/") if name not in ("", ".")]
    if not names or ".." in names:
        raise ValueError(f"a path below that is expected, without '..'; valid: {valid}")
    if (length := len(text.encode(errors="surrogateescape"))) > LONGEST_PATH:
        raise ValueError(f"it has {length:,} bytes; valid: at most {LONGEST_PATH:,}")
    return text.rstrip("/")
