"""When a job that waits will start: one interval, and where it is from. Pure; epoch seconds and seconds.

A plan of what is to come goes first, for it says what Lading itself is about to do; then what the batch system says of
its own queue; then how fast those before it go; else the waits of earlier tries, of which those count that were longer
than this job has waited already. Of a job that is held by something that time alone does not end none is expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lading.scheduling.reason_codes import CODES
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
# The latest start by a plan or by those before it is as many times as far as the earliest, or so many seconds later.
WIDEST, NARROWEST_SECONDS = 3.0, 60.0
# Reasons that hold a job until somebody, or a new period, changes something: none is promised a start. Of what passes
# by itself one is expected as of other jobs: a token is renewed and a write tried again (stale_token, cannot_write,
# cannot_start), one location of several answers again (location_state, location_note), what jobs were promised or
# machines cost is freed as they end (budget_promised, budget_rate, max_usd_rate), and turns of shares and weights only
# order jobs (share_turn, share_by_weight).
HOLDING = frozenset(
    (
        # Nobody places jobs.
        "no_controller", "no_controller_service",
        # An operator has paused the site.
        "paused",
        # The site, or what is to run there, is out of reach, or it has nothing that takes jobs.
        "site_trouble", "site_silent", "unreachable", "batch_unasked", "api_unreachable", "agent_not_brought",
        "no_market", "no_locations", "aws_silent",
        # A plugin fails until its author mends it.
        "policy_failed", "policy_misnames", "plugin_failed",
        # What may be spent is spent.
        "max_usd", "budget_spent", "budget_spent_cpu_hours",
        # What is kept for its share is in use, or what is free is kept for another one.
        "share_bound", "share_closed", "gang_share",
        # The image has to be changed.
        "no_driver",
        # A batch job that cannot start as things are, in a queue where others do.
        "batch_never",
        # Nothing can run it as it is.
        *(code.key for code in CODES.values() if code.kind == "never"),
    )
)  # fmt: skip


class StartSource(str, Enum):
    """What an expected start rests on."""

    FORECAST = "forecast"
    """Lading's own plan of what is to come."""
    BATCH_SYSTEM = "batch_system"
    """What the batch system expects of its own queue."""
    BACKLOG = "backlog"
    """How many jobs wait before it, and how many end in an hour at full load."""
    PAST_WAITS = "past_waits"
    """How long earlier tries have waited."""


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """From when to when a job is expected to start.

    :param since: epoch seconds; so for ``at`` and ``until``
    :param at: about when
    :param text: what that rests on
    """

    since: float
    at: float
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


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is before a job that waits.

    :param jobs: that wait for the same and start before it
    :param per_second: how many finish there in a second at full load; None: too few have
    :param whose: what finishes them, with its verb, as text: "site hpc finishes"
    :param is_shared: whether they are in the queue of a batch system, where jobs of others come between them
    :param seconds: until it starts, by how long these jobs run; None: they run for as long as those that have finished
    """

    jobs: float
    per_second: float | None
    whose: str
    is_shared: bool = False
    seconds: float | None = None


def held_because(code: str | None) -> str | None:
    """What holds a job that waits for as long as nobody changes it, as text; None: nothing does.

    :param code: of the reason for which it waits
    """
    return CODES[code].title if code in HOLDING else None


class Finished(NamedTuple):
    """A job that has finished.

    :param at: when, epoch seconds
    :param seconds: for which it ran
    """

    at: float
    cpus: float
    seconds: float


class Rate(NamedTuple):
    """How fast jobs finish while others wait.

    :param jobs: per second
    :param seconds: for which one runs on average
    :param cpus: that they use on average
    """

    jobs: float
    seconds: float
    cpus: float


def rate_at_full_load(waits: Iterable[tuple[float, float]], finished: Iterable[Finished], since: float) -> Rate | None:
    """Return how fast jobs finish while others wait; None: too few have.

    Each job that finishes makes room for another. Starts say nothing: machines that come up start many at once.

    :param waits: from when to when jobs have waited
    :param since: earlier waits and jobs do not count
    """
    full: list[list[float]] = []
    for begin, end in sorted((max(begin, since), end) for begin, end in waits if end > since):
        if full and begin <= full[-1][1]:
            full[-1][1] = max(full[-1][1], end)
        else:
            full.append([begin, end])
    seconds = sum(end - begin for begin, end in full)
    its = [job for job in finished if any(begin <= job.at <= end for begin, end in full)]
    if len(its) < FEWEST_WAITS or seconds <= 0:
        return None
    mean, work = sum(job.seconds for job in its) / len(its), sum(job.cpus * job.seconds for job in its)
    return Rate(len(its) / seconds, mean, work / seconds)


def expected_start(
    now: float,
    queued_at: float,
    planned: float | None = None,
    native: float | None = None,
    past: Sequence[KnownWaits] = (),
    backlog: Backlog | None = None,
) -> ExpectedStart | None:
    """When a job that waits will start; None: nothing says it.

    :param planned: when the plan of its site has it begin; None: no plan has it
    :param native: when the batch system expects it to; None: it does not say
    :param past: the waits of earlier tries, of what is most like it first
    :param backlog: what is before it; None: that is not known
    """
    if planned is not None:
        early = max(PLAN_EARLY_SECONDS, PLAN_EARLY_PART * (planned - now))
        return around(now, planned, StartSource.FORECAST, "the plan of its site", early)
    if native is not None and is_still_expected(now, native):
        text = "what the batch system expects if the jobs before it take as long as they may"
        return around(now, native, StartSource.BATCH_SYSTEM, text, EARLY_PART * (native - now))
    by_backlog = (
        None if backlog is None or backlog.per_second is None else after_backlog(now, backlog, backlog.per_second)
    )
    if backlog is not None:
        is_long = backlog.jobs + 1 >= FEWEST_WAITS
        # Of the next few of a shared queue earlier waits say more; of a long queue of Lading's own they say nothing.
        if by_backlog is not None and (is_long or not backlog.is_shared):
            return by_backlog
        if is_long and not backlog.is_shared:
            return None
    for known in past:
        if (found := after_waits(now, queued_at, known)) is not None:
            return found
    return by_backlog


def is_still_expected(now: float, native: float | None) -> bool:
    """Whether what a batch system expects is of use: where it has passed, it has not looked at the job again."""
    return native is not None and native >= now - LATE_SECONDS


def after_backlog(now: float, backlog: Backlog, per_second: float) -> ExpectedStart:
    """The interval around the time at which those before a job, and one more, have ended."""
    left = (backlog.jobs + 1) / per_second if backlog.seconds is None else backlog.seconds
    first, last = left / math.sqrt(WIDEST), left * math.sqrt(WIDEST)
    if last - first < NARROWEST_SECONDS:
        first = max(0.0, left - NARROWEST_SECONDS / 2)
        last = first + NARROWEST_SECONDS
    per_hour = per_second * 3600
    ends = f"{per_hour:,.0f}" if per_hour >= 100 else f"{per_hour:.3g}"
    text = f"{backlog.jobs:,.0f} jobs before it, and {backlog.whose} {ends} per hour"
    return ExpectedStart(now + first, now + left, now + last, StartSource.BACKLOG, text)


def around(now: float, at: float, source: StartSource, text: str, early: float = 0.0) -> ExpectedStart:
    """The interval of what is expected at one time.

    :param early: by how many seconds it may be earlier
    """
    left = max(at - now, 0.0)
    first = max(0.0, left - max(0.0, early))
    last = left + LATE_SECONDS + LATE_PART * left
    if source is StartSource.FORECAST:
        last = min(last, max(WIDEST * first, first + NARROWEST_SECONDS))
    return ExpectedStart(now + first, now + left, now + last, source, text)


def after_waits(now: float, queued_at: float, past: KnownWaits) -> ExpectedStart | None:
    """The interval in which most of the tries began that had waited for as long as this job has; None: too few had."""
    waited = max(0.0, now - queued_at)
    longer = sorted(each for each in past.seconds if each >= waited)
    if len(longer) < FEWEST_WAITS:
        return None
    outside = len(longer) // ONE_OF
    first, middle, last = longer[outside], longer[len(longer) // 2], longer[-1 - outside]
    which = f"{len(longer)} of {len(past.seconds)}" if len(longer) < len(past.seconds) else f"{len(longer)}"
    so_far = (
        f": those that waited for {format_time(round(waited))} or longer" if len(longer) < len(past.seconds) else ""
    )
    text = f"{which} earlier tries of {past.whose}{so_far}"
    return ExpectedStart(queued_at + first, queued_at + middle, queued_at + last, StartSource.PAST_WAITS, text)
