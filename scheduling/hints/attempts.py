"""Attempts: how often a gang is tried, and how long it sleeps in between. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError, parse_time

# Tried at 0, 15, 30, 60 and 120 minutes: after 15 minutes twice, after 30 once, after an hour once.
PAUSES = (900, 900, 1800, 3600)
TIMEOUT = 600
MOST_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class AttemptSchedule:
    """How often something is tried, and when.

    :param pauses: seconds between an attempt and the next; the last one is repeated where ``count`` says so
    :param count: of attempts; after the last one it fails
    :param timeout: seconds that one attempt may take, what is launched for it included
    """

    pauses: tuple[int, ...] = PAUSES
    count: int = len(PAUSES) + 1
    timeout: int = TIMEOUT

    def pause(self, attempt: int) -> int | None:
        """Seconds after an attempt (1 is the first) until the next; None: it was the last."""
        if attempt >= self.count:
            return None
        return self.pauses[min(attempt, len(self.pauses)) - 1]

    @classmethod
    def parse(cls, value: object) -> AttemptSchedule:
        """As people write them: a number, or ``{"pauses": ["15m", "1h"], "count": 3, "timeout": "10m"}``.

        Where only the pauses are given, there is an attempt before and after each.

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
            if not isinstance(written, (list, tuple)) or not 0 < len(written) < MOST_ATTEMPTS:
                valid = f'a list of times, such as ["15m", "1h"], of {MOST_ATTEMPTS - 1} at most'
                raise UnitError(f"pauses is {shortened(written)}; valid: {valid}")
            pauses = tuple(map(parse_time, written))
        count = _count(value["count"]) if "count" in value else len(pauses) + 1
        return cls(pauses, count, parse_time(value["timeout"]) if "timeout" in value else TIMEOUT)

    def to_json(self) -> str:
        """As a row of the store has it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AttemptSchedule:
        found = json.loads(text)
        return cls(**{**found, "pauses": tuple(found["pauses"])})


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise UnitError(
            f"{shortened(value)} is not a number of attempts; valid: 1 to {MOST_ATTEMPTS}, "
            'or {"pauses": ["15m", "1h"], "count": 3, "timeout": "10m"}'
        )
    return value
