"""Right sizes: the memory, cpus and time that would have sufficed for most tries of a task. Pure.

What a try has used is known of those that ended well. One that ran out of memory needed more than it had, one that was
ended by its time limit longer, and one that failed otherwise might have: such observations are censored, and count as
what they are, lower bounds (Kaplan and Meier, Nonparametric estimation from incomplete observations, 1958).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lading.scheduling.insight.usage import STEPS, Histogram, Usage, upper_edge
from lading.scheduling.text.units import format_count, format_memory, format_time

# With fewer tries nothing is advised.
FEWEST_TRIES = 20
# What most tries used is a bound from below: of a job without a limit memory is looked at every five seconds, and the
# next inputs are others. So much is added.
HEADROOM = 1.2
# No job is ended for its use of cpus, so it is the lower edge of a bucket that counts: 1.5 stays 1.5.
CPU_HEADROOM = 2 ** (-1 / STEPS)
SMALLEST_CPUS = 0.25
SMALLEST_MEMORY = 64
SMALLEST_TIME = 60


@dataclass(frozen=True, slots=True)
class Size:
    """What would have sufficed for 95 of a hundred tries (``most``) and for 99 (``nearly_all``), headroom included.

    None: that is not known.
    """

    most: float | None
    nearly_all: float | None


@dataclass(frozen=True, slots=True)
class RightSize:
    """The advice for one task.

    :param tries: on how many it rests
    :param short: how many of them had too little memory or time
    :param waited: seconds within which 95 of a hundred began; None: there are no tries
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
    waited: float | None = None
    saved_cpu_hours: float = 0.0
    saved_gib_hours: float = 0.0
    line: str | None = None


def quantile(values: Histogram, bounds: Histogram, share: float) -> float | None:
    """The least value that suffices for a share of all, by the estimate of Kaplan and Meier.

    Without bounds it is the ordinary quantile: of n values the one at position ceil(share × n).

    :param values: what was needed
    :param bounds: what was not enough, or might not have been
    :returns: the upper edge of its bucket; None: no value that was seen suffices
    """
    left, survive = values.total() + bounds.total(), 1.0
    for number in sorted(values.keys() | bounds.keys()):
        if values[number]:
            survive *= 1 - values[number] / left
            if survive <= 1 - share + 1e-9:
                return upper_edge(number)
        left -= values[number] + bounds[number]
    return None


def right_size(usage: Usage) -> RightSize:
    """What would have sufficed for the tries of a task."""
    seen = usage.seen
    memory = size(seen["memory"], seen["memory_bounds"], SMALLEST_MEMORY, HEADROOM)
    cpus = size(seen["cpus"], Histogram(), SMALLEST_CPUS, CPU_HEADROOM)
    time = size(seen["time"], seen["time_bounds"], SMALLEST_TIME, HEADROOM)
    return RightSize(
        tries=usage.tries,
        short=usage.short,
        memory=memory,
        cpus=cpus,
        time=time,
        waited=quantile(seen["wait"], Histogram(), 0.95),
        saved_cpu_hours=0.0 if cpus.nearly_all is None else usage.cpu_hours - cpus.nearly_all * usage.hours,
        saved_gib_hours=0.0 if memory.nearly_all is None else usage.gib_hours - memory.nearly_all / 1024 * usage.hours,
        line=line(memory, cpus, time),
    )


def size(values: Histogram, bounds: Histogram, step: float, headroom: float) -> Size:
    """What suffices, rounded up to whole steps."""
    if values.total() + bounds.total() < FEWEST_TRIES:
        return Size(None, None)

    def with_headroom(share: float) -> float | None:
        value = quantile(values, bounds, share)
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
