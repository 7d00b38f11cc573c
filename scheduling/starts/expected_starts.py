"""When a waiting job will start: one interval, and its source. Pure; epoch seconds and seconds.

The plan for upcoming work has precedence, because it states what Lading itself is going to do. Then come the batch
system's estimate for its own queue, the rate at which the jobs ahead finish, and finally the waits of earlier tries, of
which only those count that exceed the time the job has already waited. There is no estimate for a job that is held by
something that does not pass with time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lading.scheduling.model.reason_codes import CODES
from lading.scheduling.text.units import format_time

# The smallest number of waits that allow an estimate.
FEWEST_WAITS = 5
# An interval covers eight of ten cases: one in this many lies below it, and as many above.
ONE_OF = 10
# A start expected by a plan or a batch system can be late by a fraction of the remaining time, and by some seconds in
# any case: both only look at intervals, and a job takes a while to be sent and to start.
LATE_PART, LATE_SECONDS = 0.5, 60.0
# A batch system assumes that the jobs ahead use their whole time limits, but most finish earlier: this fraction of the
# remaining time may not be needed.
EARLY_PART = 0.75
# Jobs ahead in a plan can finish earlier than expected, because lengths are uncertain: by a fraction of the remaining
# time, and by some seconds in any case.
PLAN_EARLY_PART, PLAN_EARLY_SECONDS = 0.25, 10.0
# The latest start by a plan or a backlog is at most this many times as far away as the earliest, or this many seconds
# later.
WIDEST, NARROWEST_SECONDS = 3.0, 60.0
# Reasons that hold a job until somebody, or a new budget period, changes something: there is no estimate for its start.
# Other reasons pass by themselves, so the usual estimate applies: a token is renewed and a write retried (stale_token,
# cannot_write, cannot_start), one of several locations answers again (location_state, location_note), promised budget
# and machine costs are freed as jobs finish (budget_promised, budget_rate, max_usd_rate), and turns of shares only
# order jobs (share_turn). Those of HOLDING_SITES are about one site.
HOLDING_SITES = frozenset(
    (
        # An operator has paused the site.
        "paused",
        # The site or its agent is unreachable, or has nothing that accepts jobs.
        "site_trouble", "site_silent", "unreachable", "batch_unasked", "api_unreachable", "agent_not_brought",
        "no_market", "no_locations", "aws_silent",
        # The image has to be changed.
        "no_driver",
        # The policy of the site fails until its author fixes it.
        "policy_failed", "policy_misnames",
        # A batch job that cannot start unless something changes, in a queue where others do.
        "batch_never",
    )
)  # fmt: skip
HOLDING = HOLDING_SITES | frozenset(
    (
        # No controller places jobs.
        "no_controller", "no_controller_service",
        # A plugin fails until its author fixes it.
        "plugin_failed",
        # The budget is spent.
        "max_usd", "budget_spent", "budget_spent_cpu_hours",
        # Its share is fully used, or the free room is reserved for another share.
        "share_bound", "share_by_weight", "share_closed", "gang_share",
        # Nothing can ever run it.
        *(code.key for code in CODES.values() if code.kind == "never"),
    )
)  # fmt: skip


class StartSource(str, Enum):
    """What an expected start is based on."""

    FORECAST = "forecast"
    """Lading's own plan for upcoming work."""
    BATCH_SYSTEM = "batch_system"
    """The batch system's estimate for its own queue."""
    BACKLOG = "backlog"
    """The jobs ahead, and the rate at which jobs finish at full load."""
    PAST_WAITS = "past_waits"
    """The waits of earlier tries."""


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """The interval in which a job is expected to start.

    :param since: the earliest start, epoch seconds
    :param at: the most likely start, epoch seconds
    :param until: the latest start, epoch seconds
    :param text: what the estimate is based on
    """

    since: float
    at: float
    until: float
    source: StartSource
    text: str


@dataclass(frozen=True, slots=True)
class KnownWaits:
    """The waits of earlier tries.

    :param seconds: how long they waited, in any order
    :param whose: what they are tries of, as text
    """

    seconds: Sequence[float]
    whose: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs ahead of a waiting job.

    :param jobs: how many wait for the same room and start before it
    :param per_second: how many finish there per second at full load; None: too few have
    :param where: they wait, as text: "at site hpc"
    :param is_shared: whether they are in the queue of a batch system, where jobs of other users come in between
    :param seconds: until the job starts; None: as long as ``jobs`` and one more take at this rate
    :param draws: the same if lengths and upcoming jobs are drawn at random; empty: nothing was drawn
    """

    jobs: float
    per_second: float | None
    where: str
    is_shared: bool = False
    seconds: float | None = None
    draws: Sequence[float] = ()


def held_because(code: str | None, limit: str | None, site: str | None) -> str | None:
    """What holds a waiting job until somebody changes it, as text with the name of that budget, share or site; None:
    nothing does.

    :param code: the code of its reason
    :param limit: the limit that its reason names
    :param site: the site that it was given to or waits for
    """
    return cause_text(code, limit, site if code in HOLDING_SITES else None) if code in HOLDING else None


def cause_text(code: str, limit: str | None, site: str | None) -> str:
    """Return why a job waits, as text: the title of its reason, and the limit or else the site that it names."""
    name = limit or site
    return f"{CODES[code].title}: {name}" if name else CODES[code].title


class FinishedJob(NamedTuple):
    """A job that has finished.

    :param at: when, epoch seconds
    :param seconds: how long it ran
    """

    at: float
    cpus: float
    seconds: float


class Rate(NamedTuple):
    """How fast jobs finish while others wait.

    :param jobs: how many per second
    :param seconds: how long one runs on average
    :param cpus: how many they use together on average
    """

    jobs: float
    seconds: float
    cpus: float


def rate_at_full_load(
    waits: Iterable[tuple[float, float]], finished: Iterable[FinishedJob], since: float
) -> Rate | None:
    """Return how fast jobs finish while others wait; None: too few have.

    Each job that finishes makes room for another. Starts say nothing: machines that come up start many at once.

    :param waits: (from, until) of jobs that waited
    :param since: anything earlier is ignored
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
    """When a waiting job will start; None: there is no basis for an estimate.

    :param planned: the start in the plan of its site; None: it is not planned
    :param native: the start that the batch system expects; None: it gives none
    :param past: the waits of earlier tries, most similar first
    :param backlog: the jobs ahead; None: unknown
    """
    if planned is not None and is_still_expected(now, planned):
        early = max(PLAN_EARLY_SECONDS, PLAN_EARLY_PART * (planned - now))
        return around(now, planned, StartSource.FORECAST, "Lading's plan", early)
    if native is not None and is_still_expected(now, native):
        text = "the batch system's estimate if the jobs ahead use their whole time limits"
        return around(now, native, StartSource.BATCH_SYSTEM, text, EARLY_PART * (native - now))
    by_backlog = (
        None if backlog is None or backlog.per_second is None else after_backlog(now, backlog, backlog.per_second)
    )
    if backlog is not None:
        is_long = backlog.jobs + 1 >= FEWEST_WAITS
        # For the next few jobs of a shared queue, earlier waits are more informative; for a long queue of Lading's own
        # they are useless.
        if by_backlog is not None and (is_long or not backlog.is_shared):
            return by_backlog
        if is_long and not backlog.is_shared:
            return None
    for known in past:
        if (found := after_waits(now, queued_at, known)) is not None:
            return found
    return by_backlog


def end_interval(now: float, at: float) -> tuple[float, float]:
    """Return the earliest and the latest expected end of a run, as for the starts of jobs in a backlog.

    :param at: the most likely end
    """
    left = max(at - now, 0.0)
    return now + left / math.sqrt(WIDEST), now + max(left * math.sqrt(WIDEST), left + NARROWEST_SECONDS / 2)


def is_still_expected(now: float, start: float | None) -> bool:
    """Whether the start in a plan, or the one that a batch system expects, is usable.

    If it has passed, neither has looked at the job again.
    """
    return start is not None and start >= now - LATE_SECONDS


def after_backlog(now: float, backlog: Backlog, per_second: float) -> ExpectedStart:
    """The interval around the time at which the jobs ahead have made room."""
    left = (backlog.jobs + 1) / per_second if backlog.seconds is None else backlog.seconds
    if backlog.draws:
        first, last = likely_interval(backlog.draws)
    else:
        first = left / math.sqrt(WIDEST)
        last = WIDEST * first
        if last - first < NARROWEST_SECONDS:
            first = max(0.0, left - NARROWEST_SECONDS / 2)
            last = first + NARROWEST_SECONDS
    likely = min(max(left, first), last)
    # Jobs times pace is the start by typical lengths; a start that the draws have moved rests on them.
    basis = _pace(backlog, left) if likely == left else "the start allows for jobs queued later and for varying lengths"
    text = "; ".join(filter(None, (_jobs_ahead(backlog), basis)))
    return ExpectedStart(now + first, now + likely, now + last, StartSource.BACKLOG, text)


def likely_interval(draws: Sequence[float]) -> tuple[float, float]:
    """Return the interval that contains the most draws, centred on them. Its end is :data:`WIDEST` times as far away as
    its beginning, or :data:`NARROWEST_SECONDS` later.

    :param draws: seconds until the start, at least one
    """
    draws = sorted(draws)
    ends = (bisect_right(draws, max(WIDEST * first, first + NARROWEST_SECONDS)) for first in draws)
    # Of intervals with equally many, the first one counts.
    _, begin, end = max((end - begin, -begin, end) for begin, end in enumerate(ends))
    first, last = draws[-begin], draws[end - 1]
    if first + last < 2 * NARROWEST_SECONDS:
        first = max(0.0, (first + last - NARROWEST_SECONDS) / 2)
        return first, first + NARROWEST_SECONDS
    first = math.sqrt(first * last / WIDEST)
    return first, WIDEST * first


def _jobs_ahead(backlog: Backlog) -> str:
    jobs = round(backlog.jobs)
    return f"{f'{jobs:,}' if jobs else 'no'} {'job' if jobs <= 1 else 'jobs'} ahead of it {backlog.where}"


def _pace(backlog: Backlog, seconds: float) -> str | None:
    """Describe how fast the jobs ahead start, which a job follows in that many seconds; None: there are too few."""
    jobs = round(backlog.jobs)
    if jobs <= 1:
        return None
    between = seconds / (jobs + 1)
    if between < 1:
        return f"about {1 / max(between, 0.001):,.0f} start per second"
    return f"about one start every {format_time(round(between))}"


def around(now: float, at: float, source: StartSource, text: str, early: float = 0.0) -> ExpectedStart:
    """The interval around an expected time.

    :param early: by how many seconds the start can be earlier
    """
    left = max(at - now, 0.0)
    first = max(0.0, left - max(0.0, early))
    last = left + LATE_SECONDS + LATE_PART * left
    if source is StartSource.FORECAST:
        last = min(last, max(WIDEST * first, first + NARROWEST_SECONDS))
    return ExpectedStart(now + first, now + left, now + last, source, text)


def after_waits(now: float, queued_at: float, past: KnownWaits) -> ExpectedStart | None:
    """The interval in which most of the tries that waited at least as long as this job started; None: too few did."""
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
    text = f"the waits of {which} earlier tries of {past.whose}{so_far}"
    return ExpectedStart(queued_at + first, queued_at + middle, queued_at + last, StartSource.PAST_WAITS, text)
