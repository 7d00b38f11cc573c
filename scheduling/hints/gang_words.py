"""The words for jobs that start together: the name of their gang, and what becomes of it when a member fails. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

LONGEST_NAME = 250
ON_FAILURE = ("cancel", "leave")
# What the Dag's tasks say together: the tasks of the gang, each with those of them that come before it.
TASKS = "gang_tasks"
# What Airflow lets run of its tasks at the same time: the smallest limit of each that has one, and how many that are.
LIMITS = "gang_limits"
# The tasks that come right before a task whose Dag asks ahead.
AFTER = "ahead_after"


def parse_gang(value: object) -> str:
    """:raises UnitError: it is no name"""
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME or not value.isprintable():
        raise UnitError(f"{shortened(value)} is not a name; valid: a word of up to {LONGEST_NAME} characters")
    return value.strip()


def parse_flag(value: object) -> bool:
    """:raises UnitError: it is neither True nor False"""
    if not isinstance(value, bool):
        raise UnitError(f"{shortened(value)} is not valid; valid: True or False")
    return value


def parse_on_failure(value: object) -> str:
    """:raises UnitError: it is none of the words"""
    if value not in ON_FAILURE:
        raise UnitError(f"{shortened(value)} is not valid; valid: {' or '.join(ON_FAILURE)}")
    return str(value)


def parse_tasks(value: object) -> Mapping[str, tuple[str, ...]]:
    """:raises UnitError: it is not what the task policy writes"""
    if not isinstance(value, Mapping) or not all(isinstance(each, (list, tuple)) for each in value.values()):
        raise UnitError(f"{shortened(value)} is not written by hand; leave it out")
    return {str(task): tuple(map(str, after)) for task, after in value.items()}


def parse_limits(value: object) -> Mapping[str, tuple[str, int]]:
    """:raises UnitError: it is not what the task policy writes"""
    limits = value.values() if isinstance(value, Mapping) else [None]
    if not all(isinstance(each, (list, tuple)) and len(each) == 2 and type(each[1]) is int for each in limits):
        raise UnitError(f"{shortened(value)} is not written by hand; leave it out")
    return {str(task): (str(name), most) for task, (name, most) in dict(value).items()}  # type: ignore[call-overload]


def parse_after(value: object) -> tuple[str, ...]:
    """:raises UnitError: it is not what the task policy writes"""
    if not isinstance(value, (list, tuple)):
        raise UnitError(f"{shortened(value)} is not written by hand; leave it out")
    return tuple(map(str, value))


def misplaced(values: Mapping[str, Any]) -> Iterator[str]:
    """Why hints do not go together with each other where jobs start together."""
    if "gang" not in values:
        for name in ("partial", "spread", "on_failure"):
            if name in values:
                yield f"hint {name}: it says something of a gang; give the hint gang as well"
    if "gang" in values or "attempts" in values:
        for name in ("max_jobs", "max_instances", "run_max_jobs", "run_max_instances", "nodes", "ppn", "threads"):
            if name in values:
                whose = name.removeprefix("run_") + (" of the Dag" if name.startswith("run_") else "")
                yield f"hint {whose}: it does not go with gang or attempts, by which jobs find room in another way"
