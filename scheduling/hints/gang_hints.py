"""The hints of jobs that start together: their gang, the effect of a failure, and how often room is searched. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError, parse_time

ON_FAILURE = ("cancel", "leave")
# Set by the task policy: the tasks of the gang, each with the tasks of the gang that come before it.
TASKS = "gang_tasks"
# Set by the task policy: for each task of the gang with a limit on concurrent jobs, its smallest limit by name and
# number.
LIMITS = "gang_limits"

# Attempts at 0, 15, 30, 60 and 120 minutes.
PAUSES = (900, 900, 1800, 3600)


def parse_gang(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 250 or not value.isprintable():
        raise UnitError(f"{shortened(value)} is not a name; valid: a word of up to 250 characters")
    return value.strip()


def parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise UnitError(f"{shortened(value)} is not valid; valid: True or False")
    return value


def parse_on_failure(value: object) -> str:
    if value not in ON_FAILURE:
        raise UnitError(f"{shortened(value)} is not valid; valid: {' or '.join(ON_FAILURE)}")
    return str(value)


def parse_tasks(value: object) -> Mapping[str, tuple[str, ...]]:
    """:raises UnitError: it is not what the task policy writes"""
    if not isinstance(value, Mapping) or not all(isinstance(each, (list, tuple)) for each in value.values()):
        raise UnitError(f"{shortened(value)} is set by Lading itself; leave it out")
    return {str(task): tuple(map(str, after)) for task, after in value.items()}


def parse_limits(value: object) -> Mapping[str, tuple[str, int]]:
    """:raises UnitError: it is not what the task policy writes"""
    limits = value.values() if isinstance(value, Mapping) else [None]
    if not all(isinstance(each, (list, tuple)) and len(each) == 2 and type(each[1]) is int for each in limits):
        raise UnitError(f"{shortened(value)} is set by Lading itself; leave it out")
    return {str(task): (str(name), most) for task, (name, most) in dict(value).items()}  # type: ignore[call-overload]


def misplaced(values: Mapping[str, Any]) -> Iterator[str]:
    """The errors in combinations of hints about starting together."""
    if "gang" not in values:
        for name in ("partial", "spread", "on_failure"):
            if name in values:
                yield f"hint {name}: it only applies to a gang; add the hint gang"
    if "gang" in values or "attempts" in values:
        for name in ("max_jobs", "max_instances", "run_max_jobs", "run_max_instances", "nodes", "ppn", "threads"):
            if name in values:
                whose = name.removeprefix("run_") + (" of the Dag" if name.startswith("run_") else "")
                yield (
                    f"hint {whose}: it cannot be combined with the hints gang and attempts, which find room "
                    "for jobs in another way"
                )


@dataclass(frozen=True, slots=True)
class AttemptSchedule:
    """How often something is tried, and when.

    :param pauses: seconds between one attempt and the next; the last pause is repeated if ``count`` requires it
    :param count: the number of attempts; the last failure is final
    :param timeout: seconds for one attempt, including the machines launched for it
    """

    pauses: tuple[int, ...] = PAUSES
    count: int = len(PAUSES) + 1
    timeout: int = 600

    def pause(self, attempt: int) -> int | None:
        """Seconds between an attempt (1 is the first) and the next; None if it was the last."""
        if attempt >= self.count:
            return None
        return self.pauses[min(attempt, len(self.pauses)) - 1]

    @classmethod
    def parse(cls, value: object) -> AttemptSchedule:
        """The schedule as people write it: a number, or ``{"pauses": ["15m", "1h"], "count": 3, "timeout": "10m"}``.

        If only the pauses are given, there is an attempt before and after each.

        :raises UnitError: the value is not valid
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            return cls(count=_count(value))
        if unknown := sorted(str(name) for name in value if name not in ("pauses", "count", "timeout")):
            raise UnitError(f"there is no {shortened(unknown[0])}; valid: pauses, count, timeout")
        pauses: tuple[int, ...] = PAUSES
        if "pauses" in value:
            written = value["pauses"]
            if not isinstance(written, (list, tuple)) or not 0 < len(written) < 1000:
                valid = 'a list of times, such as ["15m", "1h"], of 999 at most'
                raise UnitError(f"pauses is {shortened(written)}; valid: {valid}")
            pauses = tuple(map(parse_time, written))
        count = _count(value["count"]) if "count" in value else len(pauses) + 1
        return cls(pauses, count, parse_time(value["timeout"]) if "timeout" in value else 600)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AttemptSchedule:
        found = json.loads(text)
        return cls(**{**found, "pauses": tuple(found["pauses"])})


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
        raise UnitError(
            f"{shortened(value)} is not a number of attempts; valid: 1 to 1000, "
            'or {"pauses": ["15m", "1h"], "count": 3, "timeout": "10m"}'
        )
    return value
