"""Right sizes: the memory, cpus and time that would have sufficed for most tries of a task. Pure.

What a try has used is known of those that ended well. One that ran out of memory needed more than it had, one that was
ended by its time limit longer, and one that failed otherwise might have: such observations are censored, and count as
what they are, lower bounds (Kaplan and Meier, Nonparametric estimation from incomplete observations, 1958).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lading.scheduling.units import format_count, format_memory, format_time

# With fewer tries nothing is advised.
FEWEST_TRIES = 20
# What most tries used is a bound from below: of a job without a limit memory is looked at every five seconds, and the
# next inputs are others. So much is added.
HEADROOM = 1.2
# Of shorter tries nearly all is start-up, and says nothing of how many cpus the work keeps busy.
SHORTEST_SECONDS = 10.0
SMALLEST_CPUS = 0.25
SMALLEST_MEMORY = 64
SMALLEST_TIME = 60


@dataclass(frozen=True, slots=True)
class Use:
    """What one try asked for and used. Memory is MiB.

    :param seconds: how long it ran
    :param peak_memory: None: it is not known
    :param cpu_seconds: None: it is not known
    :param cause: why it failed; None: it did not
    """

    cpus: float
    memory: int
    seconds: float
    peak_memory: int | None = None
    cpu_seconds: float | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation.

    :param value: what was seen
    :param is_bound: whether what was needed may have been more
    """

    value: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """What would have sufficed for a share of the tries, headroom included; None: that is not known.

    :param most: for 95 of a hundred
    :param nearly_all: for 99 of a hundred
    """

    most: float | None
    nearly_all: float | None


@dataclass(frozen=True, slots=True)
class RightSize:
    """The advice for one task.

    :param tries: on how many it rests
    :param short: how many of them had too little memory or time
    :param saved_cpu_hours: what asking for what suffices for 99 of a hundred would have asked less in these tries;
        negative: it asks for more
    :param saved_gib_hours: the same of memory
    :param line: to paste; None: nothing can be advised
    """

    tries: int
    short: int
    memory: Size
    cpus: Size
    time: Size
    saved_cpu_hours: float = 0.0
    saved_gib_hours: float = 0.0
    line: str | None = None


def quantile(seen: Sequence[Seen], share: float) -> float | None:
    """The least value that suffices for a share of all, by the estimate of Kaplan and Meier.

    Without bounds it is the ordinary quantile: of n values the one at position ceil(share × n).

    :returns: None: no value that was seen suffices
    """
    left, survive = len(seen), 1.0
    for each in sorted(seen, key=lambda each: (each.value, each.is_bound)):
        if not each.is_bound:
            survive *= 1 - 1 / left
            if survive <= 1 - share + 1e-9:
                return each.value
        left -= 1
    return None


def right_size(uses: Sequence[Use]) -> RightSize:
    """What would have sufficed for the tries of a task."""
    short = sum(use.cause in ("out_of_memory", "time_limit") for use in uses)
    memory = size(memory_seen(uses), SMALLEST_MEMORY, HEADROOM)
    cpus = size(cpus_seen(uses), SMALLEST_CPUS, 1.0)
    time = size(time_seen(uses), SMALLEST_TIME, HEADROOM)
    hours = [use.seconds / 3600 for use in uses]
    saved_cpus = saved_memory = 0.0
    if cpus.nearly_all is not None:
        wanted = cpus.nearly_all
        saved_cpus = sum((use.cpus - wanted) * hour for use, hour in zip(uses, hours, strict=True))
    if memory.nearly_all is not None:
        wanted = memory.nearly_all
        saved_memory = sum((use.memory - wanted) / 1024 * hour for use, hour in zip(uses, hours, strict=True))
    return RightSize(len(uses), short, memory, cpus, time, saved_cpus, saved_memory, line(memory, cpus, time))


def memory_seen(uses: Sequence[Use]) -> list[Seen]:
    """What memory tries used; one that ran out needed more than all that it had."""
    found = []
    for use in uses:
        if use.cause == "out_of_memory":
            found.append(Seen(max(use.memory, use.peak_memory or 0), is_bound=True))
        elif use.peak_memory is not None:
            found.append(Seen(use.peak_memory, is_bound=use.cause is not None))
    return found


def cpus_seen(uses: Sequence[Use]) -> list[Seen]:
    """How many cpus tries kept busy on average, of those that ended well and ran for long enough to tell."""
    return [
        Seen(use.cpu_seconds / use.seconds)
        for use in uses
        if use.cause is None and use.cpu_seconds is not None and use.seconds >= SHORTEST_SECONDS
    ]


def time_seen(uses: Sequence[Use]) -> list[Seen]:
    """How long tries ran."""
    return [Seen(use.seconds, is_bound=use.cause is not None) for use in uses]


def size(seen: Sequence[Seen], step: float, headroom: float) -> Size:
    """What suffices, rounded up to whole steps."""
    if len(seen) < FEWEST_TRIES:
        return Size(None, None)

    def with_headroom(share: float) -> float | None:
        value = quantile(seen, share)
        return None if value is None else max(step, math.ceil(value * headroom / step - 1e-9) * step)

    return Size(with_headroom(0.95), with_headroom(0.99))


def line(memory: Size, cpus: Size, time: Size) -> str | None:
    """The hints that suffice for 99 of a hundred tries, as a Dag author writes them; None: nothing is known."""
    hints = []
    if cpus.nearly_all is not None:
        hints.append(f"cpus={format_count(cpus.nearly_all)}")
    if memory.nearly_all is not None:
        hints.append(f'memory="{format_memory(int(memory.nearly_all))}"')
    if time.nearly_all is not None:
        hints.append(f'time="{format_time(time.nearly_all)}"')
    return f"executor_config=resources({', '.join(hints)})" if hints else None
