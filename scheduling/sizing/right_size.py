"""Right sizes: the memory, cpus and time that the next try of a task should request. Pure.

The hint ``auto``, the advice on the page and the line to paste are all computed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from lading.scheduling.model.prediction import SHORTEST_SAMPLED
from lading.scheduling.sizing.envelope import FittedNeed, Point, fit
from lading.scheduling.sizing.usage import Usage, Use
from lading.scheduling.text.units import format_count, format_memory, format_time

# With fewer tries there is no advice.
FEWEST_TRIES = 3
# Differences below this are noise of interpreters and libraries, MiB; requests of small tasks can exceed their needs by
# this.
SMALL_MEMORY = 16.0
# The margin for peaks that were sampled so rarely that a short one may have been missed.
SAMPLED_MARGIN = 0.05
# More tries are allowed to fall short of cpus, which only slows them down. A hundredth of a cpu is the meter's noise.
MOST_SLOWED = 0.05
CPU_NOISE = 0.02
# The margin for slower machines and for neighbours.
TIME_MARGIN = 0.2
SMALLEST_CPUS = 0.25
SMALLEST_MEMORY = 8
SMALLEST_TIME = 60
# The minimum by which a task without a hint is packed: a task that mostly waits can still start and finish on the
# machine, and has an interpreter of its own.
SMALLEST_PACKED_CPUS = 0.02
SMALLEST_PACKED_MEMORY = 32
# Such a task is packed by its usage once this many tries have shown it.
FEWEST_TO_PACK = 2


# The cause of tries that had too little of a resource.
SHORT = {"memory": "out_of_memory", "time": "time_limit"}


@dataclass(frozen=True, slots=True)
class Size:
    """The amount that 95 % of the tries with enough of it used at most (``most``), and the amount that the next try
    should request regardless of its inputs (``nearly_all``); None: unknown.
    """

    most: float | None
    nearly_all: float | None


@dataclass(frozen=True, slots=True)
class RightSize:
    """The advice for one task.

    :param tries: how many tries it is based on
    :param short: how many of them had too little memory or time
    :param short_of: what the last of these had too little of: ``memory``, ``time``
    :param waited: seconds within which 95 % of them started; None: there are no tries
    :param saved_cpu_hours: how much less these tries would have requested with the advice; negative: more
    :param saved_gib_hours: the same for memory
    :param line: the line to paste; None: there is no advice
    :param wasted: for the last tries, the GiB-hours that they requested but did not use, plus everything of those that
        ran out of memory; None: no peak is known
    :param wasted_by_line: the same with the requests of the line
    """

    tries: int
    short: int
    memory: Size
    cpus: Size
    time: Size
    short_of: tuple[str, ...] = ()
    waited: float | None = None
    saved_cpu_hours: float = 0.0
    saved_gib_hours: float = 0.0
    line: str | None = None
    wasted: float | None = None
    wasted_by_line: float | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The fitted needs of a task's tries, over the size of their inputs; None: unknown.

    :param tries: how many are known
    :param mean_cpus: the average number of busy cpus, including tries that consist almost only of start-up
    :param by_length: whether the size of inputs is the number of elements in their lists, because they name no files
    """

    tries: int
    memory: FittedNeed | None
    cpus: FittedNeed | None
    time: FittedNeed | None
    mean_cpus: FittedNeed | None = None
    by_length: bool = False

    def amount(self, name: str, input_size: float | None) -> float | None:
        """The request for a try, rounded: MiB of ``memory``, ``cpus``, or seconds of ``time``.

        :param input_size: as in :class:`Use`
        """
        envelope: FittedNeed | None = getattr(self, name)
        return None if envelope is None else ROUNDED[name](envelope.at(measure(input_size, by_length=self.by_length)))

    def packed(self, name: str, input_size: float | None, default: float) -> float | None:
        """What a try without a hint for ``memory`` or ``cpus`` is packed by; None: too little is known.

        :param input_size: bytes; None: unknown
        :param default: what it is packed by otherwise; can be below the usual minimum
        """
        envelope: FittedNeed | None = getattr(self, name)
        size = measure(input_size, by_length=self.by_length)
        if envelope is not None and envelope.tries >= FEWEST_TO_PACK:
            return float(PACKED[name](envelope.at(size), default))
        # Short tries can show that a task waits, but not that its work needs more: their usage is that of the start-up.
        brief = self.mean_cpus if name == "cpus" else None
        if brief is None or brief.tries < FEWEST_TO_PACK:
            return None
        return min(default, float(PACKED[name](brief.at(size), default)))


NOTHING_KNOWN = Sizes(0, None, None, None)


def measure(input_size: float | None, *, by_length: bool) -> float | None:
    """The size of inputs, in bytes or in elements of lists; None: unknown in that unit.

    :param input_size: as in :class:`Use`
    """
    if input_size is None or (input_size and (input_size < 0) != by_length):
        return None
    return abs(input_size)


def sizes(usage: Usage) -> Sizes:
    """Fit the need of the next try to the usage of earlier tries and to the size of their inputs."""
    sample, number = usage.sample, usage.tries
    by_length = next((use.input_size < 0 for use in reversed(sample) if use.input_size), False)

    def point(use: Use, value: float, seconds: float | None = None) -> Point:
        return Point(measure(use.input_size, by_length=by_length), value, use.seconds if seconds is None else seconds)

    measured = [(use, use.peak_memory) for use in sample if use.cause is None and use.peak_memory is not None]
    memory = [(use, peak) for use, peak in measured if use.seconds >= SHORTEST_SAMPLED or not use.is_sampled]
    too_little = [point(use, bound) for use in sample if (bound := use.memory_bound)]
    if memory:
        # Short tries may have needed more than was sampled, so they only raise the fit.
        too_little += [point(use, peak) for use, peak in measured if use.seconds < SHORTEST_SAMPLED and use.is_sampled]
    cpus = [(use, use.busy_cpus) for use in sample if use.busy_cpus is not None]
    mean_cpus = [(use, use.mean_cpus) for use in sample if use.mean_cpus is not None]
    time = [(use, use.seconds) for use in sample if use.cause is None]
    too_short = [point(use, use.seconds, 1.0) for use in sample if use.cause is not None]
    sampled = 1 + SAMPLED_MARGIN * any(use.is_sampled for use, _ in memory)
    return Sizes(
        number,
        fit([point(use, sampled * peak) for use, peak in memory], number, bounds=too_little, small=SMALL_MEMORY),
        fit([point(use, busy or 0.0) for use, busy in cpus], number, most_short=MOST_SLOWED),
        fit([point(use, seconds * (1 + TIME_MARGIN), 1.0) for use, seconds in time], number, bounds=too_short),
        None
        if len(cpus) >= FEWEST_TO_PACK
        else fit([point(use, mean or 0.0) for use, mean in mean_cpus], number, most_short=MOST_SLOWED),
        by_length,
    )


def _steps(amount: float, step: float, least: float) -> float:
    return max(least, math.ceil(amount / step - 1e-9) * step)


def _relative_steps(amount: float, steps: int, least: float) -> float:
    """Round up to one of ``steps`` steps between two powers of two. Few different amounts keep jobs equal, and equal
    jobs are planned together."""
    return _steps(amount, 2.0 ** math.floor(math.log2(max(amount, least))) / steps, least)


def _mib(amount: float, least: float) -> int:
    return math.ceil(_relative_steps(amount, 128, least))  # steps of 64 MiB from 8 GiB on


# How amounts are rounded up.
ROUNDED: dict[str, Any] = {
    "memory": lambda mib: _mib(mib, SMALLEST_MEMORY),
    "cpus": lambda cpus: _steps(cpus / (1 + CPU_NOISE), SMALLEST_CPUS, SMALLEST_CPUS),
    "time": lambda seconds: int(_steps(seconds, SMALLEST_TIME, SMALLEST_TIME)),
}
# The same for tasks without hints, whose default can be below the minimum.
PACKED: dict[str, Any] = {
    "memory": lambda mib, default: _mib(mib, min(SMALLEST_PACKED_MEMORY, default)),
    "cpus": lambda cpus, default: _relative_steps(cpus / (1 + CPU_NOISE), 8, min(SMALLEST_PACKED_CPUS, default)),
}


def advised_sizes(usage: Usage) -> Sizes:
    """Fit the need of a task as :func:`sizes` does, with as much memory as a repetition gets if no try used as much as
    those had that ran out of it.

    What these had is only a lower bound, so slightly more may not be enough either.
    """
    fitted = sizes(usage)
    failed = [(use.memory_bound or 0, use.input_size) for use in usage.sample if use.cause == "out_of_memory"]
    too_little, input_size = max(failed, key=itemgetter(0), default=(0, None))
    if fitted.memory is None or not too_little or too_little < fitted.memory.largest:
        return fitted
    size = measure(input_size, by_length=fitted.by_length)
    return replace(fitted, memory=fitted.memory.raised(size, fitted.memory.after(too_little)))


def right_size(usage: Usage) -> RightSize:
    """Return what the next try of a task should request, and what that would have saved."""
    fitted, sample = advised_sizes(usage), usage.sample
    if usage.tries < FEWEST_TRIES:
        fitted = Sizes(usage.tries, None, None, None)
    fine = [use for use in sample if use.cause is None]
    values: dict[str, Sequence[float]] = {
        "memory": [use.peak_memory for use in fine if use.peak_memory is not None],
        "cpus": [use.busy_cpus for use in fine if use.busy_cpus is not None],
        "time": [use.seconds for use in fine],
    }
    return RightSize(
        tries=usage.tries,
        short=usage.short,
        short_of=tuple(name for name, cause in SHORT.items() if any(use.cause == cause for use in sample)),
        waited=quantile([use.waited for use in sample], 0.95),
        saved_cpu_hours=_saved(usage.cpu_hours, sample, fitted, "cpus"),
        saved_gib_hours=_saved(usage.gib_hours, sample, fitted, "memory"),
        line=line(fitted),
        wasted=_wasted(sample),
        wasted_by_line=None if fitted.memory is None else _wasted(sample, fitted),
        **{name: _size(fitted, name, each) for name, each in values.items()},
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is at least as large as this share of the values; None: there are none."""
    return sorted(values)[math.ceil(share * len(values) - 1e-6) - 1] if values else None


def _size(fitted: Sizes, name: str, values: Sequence[float]) -> Size:
    nearly_all = fitted.amount(name, None)
    if nearly_all is None:
        return Size(None, None)
    most = quantile(values, 0.95)
    return Size(nearly_all if most is None else min(ROUNDED[name](most), nearly_all), nearly_all)


def _saved(hours: float, sample: Sequence[Use], fitted: Sizes, name: str) -> float:
    """How many of these hours would not have been requested, extrapolated from the sample."""
    if getattr(fitted, name) is None:
        return 0.0
    asked = sum(float(getattr(use, name)) * use.seconds for use in sample)
    advised = sum((fitted.amount(name, use.input_size) or 0.0) * use.seconds for use in sample)
    return hours * (1 - advised / asked) if asked else 0.0


def _wasted(sample: Sequence[Use], fitted: Sizes | None = None) -> float | None:
    """The GiB-hours that tries waste; a try that falls short wastes everything it had.

    :param fitted: the requests to assume; None: the actual ones
    """
    found = 0.0
    ended = [use for use in sample if use.cause is None and use.peak_memory is not None]
    for use in ended:
        memory, needed = float(use.memory), use.peak_memory or 0
        if fitted is not None and fitted.memory is not None:
            memory = fitted.amount("memory", use.input_size) or 0.0
            if memory < needed:
                found += memory * use.seconds
                memory = fitted.memory.after(memory)
        found += max(0.0, memory - needed) * use.seconds
    if fitted is None:
        found += sum(use.memory * use.seconds for use in sample if use.cause == "out_of_memory")
    return found / 1024 / 3600 if ended else None


def line(fitted: Sizes) -> str | None:
    """The hints for the next try, as a Dag author writes them; None: nothing is known."""
    hints = []
    if fitted.cpus is not None:
        hints.append(f"cpus={format_count(ROUNDED['cpus'](fitted.cpus.constant))}")
    if fitted.memory is not None:
        hints.append(f'memory="{_memory(fitted.memory, by_length=fitted.by_length)}"')
    if fitted.time is not None:
        hints.append(f'time="{format_time(ROUNDED["time"](fitted.time.constant))}"')
    return f"executor_config=resources({', '.join(hints)})" if hints else None


def _memory(envelope: FittedNeed, *, by_length: bool) -> str:
    """The hint ``memory``; an expression if the size of inputs explains the need."""
    if not envelope.slope:
        return format_memory(ROUNDED["memory"](envelope.constant))
    # The slope is MiB per byte, and input_size in an expression is in bytes. The factor is rounded up at its third
    # digit.
    slope = envelope.slope * (1 if by_length else 2**20)
    digits = 2 - math.floor(math.log10(slope))
    factor = math.ceil(slope * 10**digits) / 10**digits
    base = math.ceil(envelope.base)
    sign = "+" if base >= 0 else "-"
    rising = "MiB * input_length" if by_length else "* input_size"
    text = f"{factor:.{max(digits, 0)}f} {rising} {sign} {format_memory(abs(base))}"
    return f"max({text}, {format_memory(ROUNDED['memory'](envelope.least))})" if base < 0 else text
