"""Models of JSON that other processes or people wrote; every value is checked when it is read.

A model is a dataclass of :mod:`lading.scheduling.model.light_dataclasses` whose type hints declare what an object can
contain: text, numbers, ``bool``, ``None``, ``Literal``, lists, dicts, other models, and ``Annotated`` with
:class:`Within`, :class:`Matching`, :class:`Longest` and :class:`ReadWith`. Only the standard library is used, because
machines that run commands have nothing but Python, and because two different checkers on the two sides could disagree.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lading.scheduling.model.light_dataclasses import dataclass, defaults
from lading.scheduling.text.printable import shortened

Reader = Callable[[Any], Any]
M = TypeVar("M", bound="JsonModel")

# The largest finite float.
LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of a number, both inclusive; None: unbounded."""

    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Matching:
    """The pattern that a whole text must match."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Longest:
    """The maximum number of characters of a text, or of entries of a dict."""

    length: int


@dataclass(frozen=True, slots=True)
class ReadWith:
    """A function that converts the JSON value; it raises ValueError for an invalid one."""

    read: Reader


def _text(found: Any) -> str:
    # Lone surrogates are allowed only here, because output that is not UTF-8 is decoded to them.
    if not isinstance(found, str):
        raise ValueError(f"text is expected, not {_kind(found)}")
    return found


Text = Annotated[str, ReadWith(_text)]


class JsonModel:
    """Base of models that other processes write and this one reads. Unknown keys are ignored, for newer writers.

    Types are strict: a number is not text, a ``bool`` is not a number, and numbers are finite. A whole number is
    accepted as a float.
    """

    __slots__ = ()


class _Wrong(ValueError):
    """An error in a nested value, with the path to it."""

    def __init__(self, where: object, error: ValueError) -> None:
        self.where: str = f"{where}.{error.where}" if isinstance(error, _Wrong) else str(where)
        self.why: str = error.why if isinstance(error, _Wrong) else str(error)
        super().__init__(f"{self.where}: {self.why}")


def checked(model: type[JsonModel], found: object) -> dict[str, Any]:
    """Return the fields of an object after checking them against the model; absent fields stay absent.

    :raises ValueError: it does not match the model; the message gives the path and what is expected
    """
    read = _read_fields(model)
    try:
        return read(found)
    except _Wrong as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"it: {error}") from None
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"it cannot be interpreted: {error}") from None


# Cached by model, because type hints are slow to resolve.
_field_readers: dict[type[JsonModel], Callable[[object], dict[str, Any]]] = {}


def _read_fields(model: type[JsonModel]) -> Callable[[object], dict[str, Any]]:
    if model not in _field_readers:
        _field_readers[model] = _fields_of(model)
    return _field_readers[model]


def _fields_of(model: Any) -> Callable[[object], dict[str, Any]]:
    hints = get_type_hints(model, include_extras=True)
    omitted = defaults(model)
    readers = [(name, _reader(hint), name not in omitted) for name, hint in hints.items()]

    def read(found: object) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise ValueError(f"a JSON object is expected, not {_kind(found)}")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, reader, is_needed in readers:
                if name in found:
                    values[name] = reader(found[name])
                elif is_needed:
                    raise ValueError("it is missing")
        except ValueError as error:
            raise _Wrong(name, error) from None
        return values

    return read


def _reader(kind: Any) -> Reader:
    limits: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *given = get_args(kind)
        limits = tuple(given)
    if (own := _limit(limits, ReadWith)) is not None:
        return own.read
    inner = get_args(kind)
    options = inner if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options:
        return _optional(_reader(Union[tuple(each for each in options if each is not type(None))]))  # noqa: UP007
    if set(options) <= {int, float}:
        return _numbers(frozenset(options), _limit(limits, Within))
    makers: dict[Any, Callable[[], Reader]] = {
        str: lambda: _texts(_limit(limits, Longest), _limit(limits, Matching)),
        bool: lambda: _bool,
        Literal: lambda: _literal(inner),
        list: lambda: _list(_reader(*inner)),
        dict: lambda: _dict(_reader(inner[0]), _reader(inner[1]), _limit(limits, Longest)),
    }
    if (make := makers.get(get_origin(kind) or kind)) is not None:
        return make()
    if isinstance(kind, type) and issubclass(kind, JsonModel):
        return _model(kind)
    raise TypeError(f"{kind} is not a type that can be read from JSON")


L = TypeVar("L")


def _limit(limits: tuple[Any, ...], sort: type[L]) -> L | None:
    return next((each for each in limits if isinstance(each, sort)), None)


def _optional(reader: Reader) -> Reader:
    def read(found: Any) -> Any:
        return None if found is None else reader(found)

    return read


def _numbers(kinds: frozenset[type], bounds: Within | None) -> Reader:
    least, most = (None, None) if bounds is None else (bounds.least, bounds.most)
    lowest = -LARGEST if least is None else least
    highest = LARGEST if most is None else most
    expected = "a whole number" if kinds == {int} else "a number"
    if least is not None and most is not None:
        expected += f" from {least:.15g} to {most:.15g}"
    elif least is not None or most is not None:
        expected += f" of {least:.15g} or more" if least is not None else f" of {most:.15g} or less"
    is_float = kinds == {float}
    # Compared by exact type, because a bool is an int.
    valid = {int, float} if float in kinds else {int}

    def read(found: Any) -> Any:
        if type(found) in valid and lowest <= found <= highest:
            return float(found) if is_float else found
        raise ValueError(f"{expected} is expected, not {shortened(found)}")

    return read


def _texts(longest: Longest | None, matching: Matching | None) -> Reader:
    most = None if longest is None else longest.length
    fullmatch = None if matching is None else matching.pattern.fullmatch

    def read(found: Any) -> str:
        text = _text(found)
        if not text.isascii():
            text.encode()  # UnicodeEncodeError is a ValueError
        if most is not None and len(text) > most:
            raise ValueError(f"it has {len(text)} characters; at most {most} are allowed")
        if fullmatch is not None and fullmatch(text) is None:
            raise ValueError(f"{shortened(text)} does not have the expected form")
        return text

    return read


def _bool(found: Any) -> bool:
    if found is not True and found is not False:
        raise ValueError(f"true or false is expected, not {shortened(found)}")
    return bool(found)


def _literal(values: tuple[Any, ...]) -> Reader:
    def read(found: Any) -> Any:
        if isinstance(found, str) and found in values:
            return found
        raise ValueError(f"{shortened(found)} is not valid; valid: {', '.join(map(repr, values))}")

    return read


def _list(reader: Reader) -> Reader:
    def read(found: Any) -> list[Any]:
        if not isinstance(found, list):
            raise ValueError(f"a list is expected, not {_kind(found)}")
        values: list[Any] = []
        try:
            for each in found:
                values.append(reader(each))  # noqa: PERF401
        except ValueError as error:
            raise _Wrong(len(values), error) from None
        return values

    return read


def _dict(key_reader: Reader, reader: Reader, longest: Longest | None) -> Reader:
    most = None if longest is None else longest.length

    def read(found: Any) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise ValueError(f"a JSON object is expected, not {_kind(found)}")
        if most is not None and len(found) > most:
            raise ValueError(f"it has {len(found)} entries; at most {most} are allowed")
        values: dict[str, Any] = {}
        key = None
        try:
            for key, each in found.items():
                values[key_reader(key)] = reader(each)
        except ValueError as error:
            raise _Wrong(shortened(key), error) from None
        return values

    return read


def _model(model: type[M]) -> Callable[[Any], M]:
    read_fields = _read_fields(model)

    def read(found: Any) -> M:
        return model(**read_fields(found))

    return read


def _kind(found: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(found), "null" if found is None else type(found).__name__)
