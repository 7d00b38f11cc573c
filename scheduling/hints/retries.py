"""Retries that learn: what a try asks for after one that had too little memory or too little time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lading.scheduling.hints.hints import JobLimits
from lading.scheduling.resources import Resources
from lading.scheduling.text.units import format_count, format_memory, format_time

# The causes that a job cannot help: they use up none of its tries.
INFRASTRUCTURE = frozenset({"node_failure", "preempted"})
# The codes of the reasons of tries that a limit of Lading's has ended; the memory of a machine may run out without one.
OVER_LIMIT = frozenset({"over_memory", "container_out_of_memory"})


@dataclass(frozen=True, slots=True)
class EarlierTry:
    """An earlier try of the same job.

    :param number: 1 for the first
    :param cause: why it failed; None: it didn't
    :param memory: MiB that it had: its limit where there was one, else what it was packed by or has used
    :param seconds: that it had: its limit where there was one, else how long it ran
    """

    number: int
    cause: str | None
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Factors:
    """By how much a try asks for more.

    :param memory: after ``out_of_memory``
    :param time: after ``time_limit``
    """

    memory: float = 2.0
    time: float = 2.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a job asks for, having learnt.

    :param resources: what to pack it by
    :param limits: what ends it
    :param changes: what has changed and why, one sentence each
    :param least_memory: MiB that will do, where its memory is a range; None: it is none
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
    """Return what a job asks for after earlier tries.

    A hint that asks for more by itself, such as ``"2 GiB * attempt"``, stays as it is.

    :param resources: what its hints ask for
    :param limits: what its hints set
    :param largest_memory: MiB of the largest location that it may run at; None: not known
    :param least_memory: MiB that will do, where its memory is a range; None: it is none
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
                f"asks for {format_memory(wanted)} of memory{_times(factors.memory, in_full)}: "
                f"try {most.number} ran out of {format_memory(most.memory)}"
            )
        elif least_memory is not None and wanted > least_memory:
            parts.append(
                f"asks for no less than {format_memory(wanted)} of memory: "
                f"try {most.number} ran out of {format_memory(most.memory)}"
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
                f"asks for {format_time(seconds)}{_times(factors.time, True)}: "
                f"try {most.number} did not end within {format_time(most.seconds)}"
            )
    return Lesson(resources, limits, tuple(parts), least_memory)


def _times(factor: float, in_full: bool) -> str:
    return f", {format_count(factor)} times as much" if in_full else ", all that there is"
