"""Usage: what tries of a task have used, as sums and histograms that can be kept for long and added up. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field

# Buckets of a histogram for each doubling: a value is known to 2 %.
STEPS = 32
# What is smaller is in the lowest bucket.
LEAST = 2.0**-10
# Of shorter tries nearly all is start-up, and says nothing of how many cpus the work keeps busy.
SHORTEST_SECONDS = 10.0
# Those whose names end in _bounds are of tries that might have needed more.
HISTOGRAMS = ("memory", "memory_bounds", "cpus", "time", "time_bounds", "wait")
SUMS = ("tries", "short", "hours", "cpu_hours", "gib_hours")

Histogram = Counter[int]


@dataclass(frozen=True, slots=True)
class Use:
    """What one try asked for and used. Memory is MiB.

    :param seconds: how long it ran
    :param peak_memory: None: it is not known
    :param cpu_seconds: None: it is not known
    :param cause: why it failed; None: it did not
    :param waited: seconds until it began
    """

    cpus: float
    memory: int
    seconds: float
    peak_memory: int | None = None
    cpu_seconds: float | None = None
    cause: str | None = None
    waited: float = 0.0


@dataclass(slots=True)
class Usage:
    """What a number of tries have used.

    :param tries: how many
    :param short: how many of them had too little memory or time
    :param hours: that they ran
    :param cpu_hours: that they asked for while they ran
    :param gib_hours: the same of memory
    :param seen: a histogram of each of :data:`HISTOGRAMS`
    """

    tries: int = 0
    short: int = 0
    hours: float = 0.0
    cpu_hours: float = 0.0
    gib_hours: float = 0.0
    seen: dict[str, Histogram] = field(default_factory=lambda: {name: Counter() for name in HISTOGRAMS})

    def add(self, use: Use) -> None:
        """Add one try.

        What it has used is known if it ended well. One that ran out of memory needed more than all that it had, one
        that failed otherwise might have: what is known of it is a bound.
        """
        hours = use.seconds / 3600
        self.tries += 1
        self.short += use.cause in ("out_of_memory", "time_limit")
        self.hours += hours
        self.cpu_hours += use.cpus * hours
        self.gib_hours += use.memory / 1024 * hours
        bounds = "" if use.cause is None else "_bounds"
        if use.cause == "out_of_memory":
            self._count("memory_bounds", max(use.memory, use.peak_memory or 0))
        elif use.peak_memory is not None:
            self._count(f"memory{bounds}", use.peak_memory)
        if use.cause is None and use.cpu_seconds is not None and use.seconds >= SHORTEST_SECONDS:
            self._count("cpus", use.cpu_seconds / use.seconds)
        self._count(f"time{bounds}", use.seconds)
        self._count("wait", use.waited)

    def _count(self, name: str, value: float) -> None:
        self.seen[name][bucket(value)] += 1

    def merge(self, other: Usage) -> None:
        """Add the tries of another one."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in HISTOGRAMS:
            self.seen[name] += other.seen[name]

    def dump(self) -> str:
        """It as JSON, without what is empty."""
        sums = {name: getattr(self, name) for name in SUMS}
        return json.dumps({**sums, "seen": {name: histogram for name, histogram in self.seen.items() if histogram}})

    @classmethod
    def load(cls, text: str) -> Usage:
        """What :meth:`dump` has written."""
        found = json.loads(text)
        seen = found.pop("seen")
        return cls(
            **found,
            seen={name: Counter({int(k): n for k, n in seen.get(name, {}).items()}) for name in HISTOGRAMS},
        )


def bucket(value: float) -> int:
    """The number of the bucket of a value: the least whose upper edge is not below it."""
    return math.ceil(STEPS * math.log2(max(value, LEAST)) - 1e-6)


def upper_edge(number: int) -> float:
    """The largest value of a bucket."""
    return float(2.0 ** (number / STEPS))


def size_class(input_size: int | None) -> int:
    """The class of tries with inputs of so many bytes, each four times the one before; -1: that is not known."""
    return -1 if input_size is None else (input_size.bit_length() + 1) // 2


def largest_input(number: int) -> int | None:
    """The bytes below which the inputs of a class are; None: they are not known."""
    return None if number < 0 else int(4**number)
