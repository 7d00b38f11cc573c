"""Base of the models of TOML tables that people write: values that no field accepts are rejected in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lading.scheduling.hints.native import is_one_line
from lading.scheduling.hints.values import parse_hurry
from lading.scheduling.model.gpus import parse_type
from lading.scheduling.model.machine_traits import (
    parse_arch,
    parse_capacity_type,
    parse_features,
    parse_os,
    parse_properties,
    parse_wanted_arch,
)
from lading.scheduling.text.nearest import listed
from lading.scheduling.text.printable import cut, printable, shortened
from lading.scheduling.text.units import parse_count, parse_memory, parse_time

# The largest value that a plain integer column holds in every database.
LARGEST = 2**31 - 1
# Keys that were renamed before the first release, with their new names; None: the key was removed, because nobody had
# to set it, and its default applies.
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
# Linux's PATH_MAX, in bytes.
LONGEST_PATH = 4096


class TableModel(BaseModel):
    """A table whose keys are its fields.

    TOML allows ``true``, ``inf`` and ``nan`` where a number is expected, and characters that no command line or file
    name can contain. All of them are errors.
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
            raise ValueError(f"it has the character {strange!r}; remove it")
        return value


def describe_former_key(key: str, keys: Collection[str] = ()) -> str | None:
    """Say what to do about a key from before the first release; None if it is not one.

    :param keys: the valid keys of the table; empty: unknown
    """
    if key not in FORMER_KEYS or key in keys:
        return None
    if (name := FORMER_KEYS[key]) is None:
        return f"{key} is no longer a key; its former default applies, so remove it"
    return f"{key} is now called {name}; rename it" if name in keys or not keys else None


def errors_of(error: ValidationError) -> list[Any]:
    """Return pydantic's errors without those that only follow from an error further inside."""
    found = error.errors()
    inner = {fault["loc"][:length] for fault in found for length in range(1, len(fault["loc"]))}
    return [fault for fault in found if fault["loc"] not in inner]


def table_of(fault: Any, model: type[BaseModel]) -> type[BaseModel]:
    """Return the model of the table that contains the error: the given model, or one nested in it."""
    for part in fault["loc"][:-1]:
        if part in model.model_fields:
            model = next(_models(model.model_fields[part].annotation), model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def describe_fault(fault: Any, keys: Collection[str] = ()) -> str:
    """Describe one of pydantic's errors in a sentence.

    :param keys: the valid keys of the table, listed if a key is unknown; empty: not listed
    """
    place = cut(printable(".".join(str(part) for part in fault["loc"])))
    if fault["type"] == "extra_forbidden":
        if (former := describe_former_key(place, keys)) is not None:
            return former
        written = str(fault["loc"][-1])
        return f"{place} is unknown{listed('the keys are', written, keys)}" if keys else f"{place!r} is unknown"
    if fault["type"] == "missing":  # pydantic reports the whole table as the input
        return f"{place} is missing; it must be given"
    said = fault["msg"].removeprefix("Value error, ")
    return f"{place} = {shortened(fault['input'])}: {said}" if place else said


Model = TypeVar("Model", bound=TableModel)
Made = TypeVar("Made")


def each_of(name: str, tables: object, model: type[Model], make: Callable[[Model], Made]) -> list[Made]:
    """Read the tables of a list, ``[[name]]`` in the file, in order.

    :param model: the model of one table
    :param make: converts a table; raises ValueError for an invalid one
    :raises ValueError: tables are invalid; the message names each invalid value and the number of its table
    """
    if not isinstance(tables, list):
        raise ValueError(f"{name} is not a list of tables; write [[{name}]] above each")
    found: list[Made] = []
    faults: list[str] = []
    for number, table in enumerate(tables, start=1):
        try:
            if not isinstance(table, dict):
                raise ValueError("it is not a table")
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
    # A number can be a fraction of a second, which parse_time would round up.
    seconds = parse_time(value)
    return float(seconds if isinstance(value, str) else value)


# Values with a unit, or plain numbers: memory and disk in MiB, durations in seconds, and counts.
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
# Traits of machines.
Arch = Annotated[str, BeforeValidator(parse_arch)]
WantedArch = Annotated[str, BeforeValidator(parse_wanted_arch)]
Os = Annotated[str, BeforeValidator(parse_os)]
CapacityType = Annotated[str, BeforeValidator(parse_capacity_type)]
GPUType = Annotated[str, BeforeValidator(parse_type)]
Features = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(sorted(parse_features(value))))]
Properties = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(sorted(parse_properties(value))))]


def _takes_bool(annotation: Any) -> bool:
    return annotation is bool or any(map(_takes_bool, get_args(annotation)))


def unspeakable(text: str, *, lines: bool = True) -> str | None:
    """Return the first control character of a text, except tabs and, with ``lines``, line feeds; None if there is
    none."""
    plain = "\t\n" if lines else "\t"
    return next((each for each in text if (each < " " and each not in plain) or "\x7f" <= each < "\xa0"), None)


def directive_value(value: Any) -> Any:
    """Check the value of a native directive and return it unchanged.

    :raises ValueError: it is a number that is not finite, or text of several lines
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number is expected")
    if isinstance(value, str) and not is_one_line(value):
        raise ValueError("one line of text is expected")
    return value


def remote_path(text: str, *, below_home: bool = False) -> str:
    """Check the path of a file or folder at a site, and return it without a trailing slash.

    :param below_home: whether it can begin with ``~/``
    :raises ValueError: it is relative, has several lines or a ``..``, is the root or the home itself, or is too long
    """
    begins = ("/", "~/") if below_home else ("/",)
    valid = " or ".join(f"{begin}..." for begin in begins)
    if not text.startswith(begins) or unspeakable(text, lines=False):
        raise ValueError(f"an absolute path is expected, since nodes have other working directories; valid: {valid}")
    names = [name for name in text.removeprefix("~").split("/") if name not in ("", ".")]
    if not names or ".." in names:
        raise ValueError(f"a path with at least one name and without '..' is expected; valid: {valid}")
    if (length := len(text.encode(errors="surrogateescape"))) > LONGEST_PATH:
        raise ValueError(f"it has {length:,} bytes; valid: at most {LONGEST_PATH:,}")
    return text.rstrip("/")
