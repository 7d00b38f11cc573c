"""How a hint's value is parsed: a value, a range, or an expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from lading.scheduling.hints import gang_hints, places
from lading.scheduling.hints.expressions import NAMES, Expression, ExpressionError, Kind
from lading.scheduling.hints.finish_by import parse_finish_by
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.hints.native import parse_native, parse_queue
from lading.scheduling.hints.patterns import parse_matching
from lading.scheduling.hints.places import parse_container
from lading.scheduling.model import machine_traits
from lading.scheduling.model.plan import HURRIES, MOST_HURRY
from lading.scheduling.text.nearest import nearest
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError, parse_count, parse_memory, parse_time

# The names under which the tasks of a Dag get its limits, which limit them together.
OF_THE_RUN = {"max_instances": "run_max_instances", "max_jobs": "run_max_jobs"}
# The bounds of max_usd, USD.
LEAST_USD, MOST_USD = 0.01, 1e9
# A share is charged at least what its jobs request, so a request cannot be next to nothing.
LEAST_CPUS = 0.01


class Range(NamedTuple):
    least: float
    wish: float


def parse_value(name: str, value: object) -> Any:
    """The value of a hint, an expression for it, or a range.

    :raises ValueError: it is none of them
    """
    if name in RANGES and isinstance(value, (list, tuple)):
        return _range(name, value)
    try:
        return PARSERS[name](value)
    except UnitError as error:
        if not isinstance(value, str) or name not in _KINDS:
            raise
        try:
            expression = Expression.parse(value, _KINDS[name])
        except ExpressionError as reason:
            if _looks_like_an_expression(value):
                raise reason from error
            raise error from None
        if expression.is_lone_word:
            raise
        if expression.inputs or any(map(expression.uses, NAMES)):
            return expression
        try:
            number = expression.evaluate(_NoFacts())
            return parse_cpus(number) if name == "cpus" and number > 0 else checked(name, number)
        except TooFewCpus:
            raise
        except UnitError:
            raise error from None


def _range(name: str, value: Sequence[object]) -> Range:
    """Two amounts: the minimum and the preferred one; neither can be an expression or ``auto``."""
    if len(value) != 2:
        raise UnitError(f"{shortened(value)} is not a range; valid: two amounts, the minimum and the preferred one")
    least, wish = map(PARSERS[name], value)
    if not least <= wish:
        raise UnitError(f"{shortened(value)} is not a range; valid: first the minimum, then the preferred amount")
    return Range(least, wish)


def checked(name: str, number: float) -> Any:
    """The result of an expression as the value of its hint. A result below 1 MiB or 1 s (input files can be small or
    empty), or below the minimum of cpus, is rounded up."""
    if name == "cpus":
        return parse_cpus(max(number, LEAST_CPUS) if number > 0 else number)
    smallest = 1 if name in ("memory", "time") and 0 <= number < 1 else number
    return PARSERS[name](smallest)


class TooFewCpus(UnitError):
    """Fewer cpus than a job can request."""


def parse_cpus(value: object) -> float:
    """:raises UnitError: it is not a number of cpus, or below the minimum"""
    cpus = parse_count(value)
    if cpus < LEAST_CPUS:
        raise TooFewCpus(f"{shortened(value)} is too few cpus; valid: {LEAST_CPUS:g} or more, such as 0.25")
    return cpus


def _looks_like_an_expression(text: str) -> bool:
    return any(sign in text for sign in "*/+()[]<>") or any(name in text for name in NAMES)


class _NoFacts:
    attempt = map_index = input_size = input_length = 0
    runtime = 0.0

    def value(self, name: str) -> object:
        raise ExpressionError(f"there is no input {name}")

    def size(self, name: str) -> int:
        raise ExpressionError(f"there is no input {name}")


def _whole(value: object, of: str = "jobs", or_else: str = "", least: int = 1) -> int:
    text = value.strip() if isinstance(value, str) else str(value) if _is_small(value) else ""
    if not text.isdecimal() or not int(text[:9]) >= least or len(text) > 9:
        raise UnitError(
            f"{shortened(value)} is not a number of {of}; valid: a whole number of at least {least}{or_else}"
        )
    return int(text)


def _is_small(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _usd(value: object) -> float:
    try:
        usd = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        usd = math.nan
    if not LEAST_USD <= usd <= MOST_USD:
        raise UnitError(f"{shortened(value)} is not a sum of USD; valid: a number from {LEAST_USD:g} to {MOST_USD:g}")
    return usd


def parse_hurry(value: object) -> float:
    """The value of finishing a run early (:mod:`lading.scheduling.forecast.choice`).

    :raises UnitError: it is neither a number from 0 to ``MOST_HURRY`` nor one of the words for some values
    """
    if isinstance(value, str) and value.strip() in HURRIES:
        return HURRIES[value.strip()]
    try:
        found = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not 0 <= found <= MOST_HURRY:
        raise UnitError(
            f"{shortened(value)} is not a value of hurry; valid: 0 to {MOST_HURRY:g}, or one of {', '.join(HURRIES)}"
        )
    return found


# All hints, in the order in which messages list them, each with its parser.
PARSERS: dict[str, Callable[[object], Any]] = {
    "cpus": parse_cpus,
    "memory": parse_memory,
    "disk": partial(parse_memory, zero=True),
    "gpus": partial(parse_count, zero=True),
    "time": parse_time,
    "site": places.parse_site,
    "targets": places.parse_targets,
    "filters": places.parse_filters,
    "matching": parse_matching,
    "instance_type": places.parse_instance_type,
    "arch": machine_traits.parse_wanted_arch,
    "os": machine_traits.parse_os,
    "features": machine_traits.parse_features,
    "properties": machine_traits.parse_properties,
    "preferred": machine_traits.parse_features,
    "capacity_type": machine_traits.parse_capacity_type,
    "container": parse_container,
    "stage": places.parse_stage,
    "max_instances": partial(_whole, of="machines"),
    "max_jobs": _whole,
    "max_usd": _usd,
    "hurry": parse_hurry,
    "finish_by": parse_finish_by,
    "infrastructure_retries": partial(_whole, of="tries", least=0),
    "queue": parse_queue,
    "native": parse_native,
    "nodes": partial(_whole, of="nodes", or_else=", or two of them as a range: (2, 8)"),
    "ppn": partial(_whole, of="processes on a node"),
    "threads": partial(_whole, of="threads of a process"),
    "run_max_instances": partial(_whole, of="machines"),
    "run_max_jobs": _whole,
    "gang": gang_hints.parse_gang,
    "partial": gang_hints.parse_flag,
    "spread": gang_hints.parse_flag,
    "on_failure": gang_hints.parse_on_failure,
    "attempts": AttemptSchedule.parse,
    gang_hints.TASKS: gang_hints.parse_tasks,
    gang_hints.LIMITS: gang_hints.parse_limits,
    "ahead": gang_hints.parse_flag,
}
# The hints that can be expressions, and the kinds of their results.
_KINDS: dict[str, Kind] = {"cpus": "count", "memory": "memory", "disk": "memory", "gpus": "count", "time": "time"}

# The hints that can be ranges.
RANGES = ("cpus", "memory", "disk", "gpus", "nodes")

# Hints that authors do not write themselves; they write the run's limits as hints of the Dag.
UNWRITTEN = (*OF_THE_RUN.values(), gang_hints.TASKS, gang_hints.LIMITS)
HINT_NAMES = tuple(name for name in PARSERS if name not in UNWRITTEN)


def no_such_hints(names: Sequence[object]) -> str:
    """The message for names that are not hints; if there are many, only the first are listed."""
    shown, closest = [], []
    for name in names[:5]:
        plain = isinstance(name, str) and name.isidentifier() and len(name) <= places.LONGEST_NAME
        shown.append(str(name) if plain else shortened(name))
        closest += nearest(name, HINT_NAMES) if isinstance(name, str) else []
    suggestion = f"; did you mean {' or '.join(dict.fromkeys(closest))}? Valid" if closest else ", valid"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    what = "hint {}: there is no such hint" if len(names) == 1 else "hints {}: there are no such hints"
    return f"{what.format(', '.join(shown) + more)}{suggestion}: {', '.join(HINT_NAMES)}"
