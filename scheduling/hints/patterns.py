"""Regular expressions of Dag authors on inputs, matched by RE2 in time linear in the text, whatever the pattern. Pure.

Python's own engine can backtrack exponentially and would block the whole process meanwhile. Importing RE2 takes ten
milliseconds, so it is only imported where there is a pattern.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from lading.scheduling.hints.places import MOST_TARGETS, Target
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.printable import json_beginning, shortened
from lading.scheduling.text.units import UnitError

# The largest number of patterns of a task for all of its targets, and of searches in the inputs of one job: a chunk of
# a scatter has the inputs of many.
MOST_PATTERNS = 100
MOST_SEARCHES = 20_000
VALID = (
    'valid: inputs with regular expressions, by target: {"hpc/long": {"sample": "^big_"}}, or a list of such '
    "tables, one of which has to match"
)
SYNTAX = (
    "valid is the syntax of RE2 (https://github.com/google/re2/wiki/Syntax): that of Python without references to "
    r"groups (\1, (?P=name)), looking ahead or behind ((?=, (?!, (?<=, (?<!), atomic groups and possessive "
    r"repetitions, and with \z for \Z"
)

# (Input, pattern) pairs, all of which have to match.
Table: TypeAlias = tuple[tuple[str, str], ...]
# By target, tables of which one has to match.
Matching: TypeAlias = tuple[tuple[str, tuple[Table, ...]], ...]


def parse_matching(value: object) -> Matching:
    """The inputs that a job must have for each target.

    :raises UnitError: it is not such a table, or RE2 does not accept a pattern
    """
    if not isinstance(value, Mapping) or not 0 < len(value) <= MOST_TARGETS:
        raise UnitError(f"{shortened(value)} is not a table of patterns; {VALID}")
    matching = {}
    number = 0
    for target, written in value.items():
        tables = written if isinstance(written, (list, tuple)) else [written]
        for inputs in tables or [None]:
            if not isinstance(inputs, Mapping) or not inputs:
                raise UnitError(f"{shortened(target)} = {shortened(written)} has no inputs; {VALID}")
            if (number := number + len(inputs)) > MOST_PATTERNS:
                raise UnitError(f"there are too many patterns; valid: at most {MOST_PATTERNS} for all targets together")
        matching[str(Target.parse(target))] = tuple(
            tuple((_name(name), _pattern(name, each)) for name, each in inputs.items()) for inputs in tables
        )
    return tuple(matching.items())


def as_written(matching: Matching) -> dict[str, Any]:
    return {
        target: dict(tables[0]) if len(tables) == 1 else [dict(table) for table in tables]
        for target, tables in matching
    }


def input_names(matching: Matching) -> Iterator[tuple[str, str]]:
    """The inputs that have patterns, each with its target."""
    return ((name, target) for target, tables in matching for table in tables for name, _ in table)


def searches(matching: Matching) -> int:
    """The largest number of searches in the inputs of a job."""
    return sum(len(table) for _, tables in matching for table in tables)


def matching_targets(targets: tuple[str, ...], matching: Matching, inputs: Mapping[str, object]) -> tuple[str, ...]:
    """The targets that a job can go to: those without tables, and those with a table whose patterns are all found in
    its inputs.

    The tables of a site apply to its queues and instance types that have none of their own.

    :param inputs: by name; nothing is found in a missing input
    """
    tables, texts = dict(matching), {name: _text(value) for name, value in inputs.items()}

    def is_found(name: str, pattern: str) -> bool:
        return name in texts and _compiled(pattern).search(texts[name]) is not None

    def matches(its_own: Sequence[Table]) -> bool:
        return any(all(is_found(*each) for each in table) for table in its_own)

    its_own = {target: next((tables[name] for name in tables if covers(name, target)), None) for target in targets}
    its_own |= {target: tables[target] for target in targets if target in tables}
    return tuple(target for target, found in its_own.items() if found is None or matches(found))


def covers(name: str, target: str) -> bool:
    """Whether the patterns of one target apply to another one: the same target, or a part of it."""
    said, part = Target.parse(name), Target.parse(target)
    return name == target or (said.within is None and is_named(part.site, said.site))


def _text(value: object) -> bytes:
    text = value if isinstance(value, str) else json_beginning(value, 250, str)
    return text[:250].encode(errors="replace")


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > 250:
        raise UnitError(f"{shortened(name)} is not the name of an input; {VALID}")
    return name


def _pattern(name: object, text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= 250:
        raise UnitError(
            f"{shortened(text)}, of input {shortened(name)}, is not a regular expression of 1 to 250 characters"
        )
    try:
        _compiled(text)
    except ValueError as error:
        raise UnitError(
            f"{shortened(text)}, of input {shortened(name)}, is not a regular expression that RE2 accepts: {error}; "
            f"{SYNTAX}"
        ) from None
    return text


@lru_cache(maxsize=128)
def _compiled(pattern: str) -> Any:
    """The compiled pattern.

    :raises ValueError: RE2 does not accept it; the message names the part that it rejects
    """
    import re2

    options = re2.Options()
    options.log_errors = False  # RE2 would write them to stderr
    options.max_mem = 1 << 18  # bytes
    options.never_capture = True
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        what = error.args[0]
        raise ValueError(what.decode(errors="replace") if isinstance(what, bytes) else str(what)) from None
