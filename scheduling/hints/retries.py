"""Retries that learn: the requests of a try after one that ran out of memory or time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lading.scheduling.hints.hints import JobLimits
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.units import format_count, format_memory, format_time

# The causes that are not the job's fault and use up none of its retries.
INFRASTRUCTURE = frozenset({"node_failure", "preempted"})
# The reason codes of tries that Lading's memory limit killed; a machine can also run out of memory without a limit.
OVER_LIMIT = frozenset({"over_memory", "container_out_of_memory"})


@dataclass(frozen=True, slots=True)
class EarlierTry:
    """An earlier try of the same job.

    :param number: 1 for the first
    :param cause: why it failed; None: it did not
    :param memory: MiB that it had: its limit, or without one its request or its usage
    :param seconds: that it had: its limit, or without one how long it ran
    """

    number: int
    cause: str | None
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors by which a try requests more.

    :param memory: after ``out_of_memory``
    :param time: after ``time_limit``
    """

    memory: float = 2.0
    time: float = 2.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """The requests of a job after its earlier tries.

    :param resources: its requests
    :param limits: the limits at which it is killed
    :param changes: what has changed and why, one sentence each
    :param least_memory: the minimum if its memory is a range, MiB; None: it is not
    """

    resources: Resources
    limits: JobLimits
    changes: tuple[str, ...] = ()
    least_memory: int | None = None


def learn(
    resources: Resources,
    limits: JobLimits,
    tries: Sequence[EarlierTry],
    factors: Factors,
    largest_memory: int | None,
    least_memory: int | None = None,
) -> Lesson:
    """Return the requests of a job after earlier tries.

    A hint that grows by itself, such as ``"2 GiB * attempt"``, is not multiplied in addition.

    :param resources: the requests of its hints
    :param limits: the limits of its hints
    :param largest_memory: MiB of the largest location that it can run at; None: unknown
    :param least_memory: the minimum if its memory is a range, MiB; None: it is not
    """
    parts = []
    short = [each for each in tries if each.cause == "out_of_memory"]
    if short:
        most = max(short, key=lambda each: each.memory)
        wanted = math.ceil(most.memory * factors.memory)
        if largest_memory is not None:
            wanted = min(wanted, max(largest_memory, resources.memory))
        if wanted > resources.memory:
            resources = replace(resources, memory=wanted)
            limits = replace(limits, memory=wanted)
            in_full = wanted == math.ceil(most.memory * factors.memory)
            parts.append(
                f"requests {format_memory(wanted)} of memory{_times(factors.memory, in_full)}: try {most.number} "
                f"ran out of {format_memory(most.memory)}"
            )
        elif least_memory is not None and wanted > least_memory:
            parts.append(
                f"requests at least {format_memory(wanted)} of memory: try {most.number} ran out of "
                f"{format_memory(most.memory)}"
            )
        if least_memory is not None:
            least_memory = max(least_memory, wanted)
    late = [each for each in tries if each.cause == "time_limit"]
    if late:
        most = max(late, key=lambda each: each.seconds)
        seconds = math.ceil(most.seconds * factors.time)
        if seconds > (limits.time or 0):
            limits = replace(limits, time=seconds)
            parts.append(
                f"requests {format_time(seconds)}{_times(factors.time, True)}: try {most.number} did not finish "
                f"within {format_time(most.seconds)}"
            )
    return Lesson(resources, limits, tuple(parts), least_memory)


def _times(factor: float, in_full: bool) -> str:
    return f", {format_count(factor)} times as much" if in_full else ", all that is available"
