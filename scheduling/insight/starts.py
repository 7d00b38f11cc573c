"""When a job that waits will start: one interval, and where it is from. Pure; epoch seconds and seconds.

A plan of what is to come goes first, for it says what Lading itself is about to do; then what the batch system says of
its own queue; else the waits of earlier tries, of which those count that were longer than this job has waited already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lading.scheduling.text.units import format_time

# Fewer waits say nothing.
FEWEST_WAITS = 5
# An interval has eight of ten of what it rests on: one of so many is below it, and as many are above.
ONE_OF = 10
# What a plan, or a batch system, expects is late by a part of what is left, and by so many seconds in any case: it
# looks again at intervals, and a job takes a while to be sent and to begin.
LATE_PART, LATE_SECONDS = 0.5, 60.0
# A batch system reckons with the limits of the jobs before it, which mostly end earlier: so much of what is left may
# not have to be waited for.
EARLY_PART = 0.75
# What runs before a job by a plan may end earlier than expected, as lengths are not known exactly: by a part of what is
# left, and by so many seconds in any case.
PLAN_EARLY_PART, PLAN_EARLY_SECONDS = 0.25, 10.0


class StartSource(str, Enum):
    """What an expected start rests on."""

    FORECAST = "forecast"
    """Lading's own plan of what is to come."""
    BATCH_SYSTEM = "batch_system"
    """What the batch system expects of its own queue."""
    PAST_WAITS = "past_waits"
    """How long earlier tries have waited."""


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """From when to when a job is expected to start.

    :param since: epoch seconds; so for ``until``
    :param text: what that rests on
    """

    since: float
    until: float
    source: StartSource
    text: str


@dataclass(frozen=True, slots=True)
class KnownWaits:
    """The waits of earlier tries.

    :param seconds: that they waited, in any order
    :param whose: of what they are tries, as text
    """

    seconds: Sequence[float]
    whose: str


def expected_start(
    now: float,
    queued_at: float,
    planned: float | None = None,
    native: float | None = None,
    past: Sequence[KnownWaits] = (),
) -> ExpectedStart | None:
    """When a job that waits will start; None: nothing says it.

    :param planned: when the plan of its site has it begin; None: no plan has it
    :param native: when the batch system expects it to; None: it does not say
    :param past: the waits of earlier tries, of what is most like it first
    """
    if planned is not None:
        early = max(PLAN_EARLY_SECONDS, PLAN_EARLY_PART * (planned - now))
        return around(now, planned, StartSource.FORECAST, "the plan of its site", early)
    # What a batch system has expected and has not come is of no use: it has not looked at the job again.
    if native is not None and native >= now - LATE_SECONDS:
        text = "what the batch system expects if the jobs before it take as long as they may"
        return around(now, native, StartSource.BATCH_SYSTEM, text, EARLY_PART * (native - now))
    for known in past:
        if (found := after_waits(now, queued_at, known)) is not None:
            return found
    return None


def around(now: float, at: float, source: StartSource, text: str, early: float = 0.0) -> ExpectedStart:
    """The interval of what is expected at one time.

    :param early: by how many seconds it may be earlier
    """
    left = max(at - now, 0.0)
    since = now + max(0.0, left - max(0.0, early))
    return ExpectedStart(since, now + left + LATE_SECONDS + LATE_PART * left, source, text)


def after_waits(now: float, queued_at: float, past: KnownWaits) -> ExpectedStart | None:
    """The interval in which most of the tries began that had waited for as long as this job has; None: too few had."""
    waited = max(0.0, now - queued_at)
    longer = sorted(each for each in past.seconds if each >= waited)
    if len(longer) < FEWEST_WAITS:
        return None
    outside = len(longer) // ONE_OF
    first, last = longer[outside], longer[-1 - outside]
    which = f"{len(longer)} of {len(past.seconds)}" if len(longer) < len(past.seconds) else f"{len(longer)}"
    so_far = (
        f": those that waited for {format_time(round(waited))} or longer" if len(longer) < len(past.seconds) else ""
    )
    text = f"{which} earlier tries of {past.whose}{so_far}"
    return ExpectedStart(queued_at + first, queued_at + last, StartSource.PAST_WAITS, text)
