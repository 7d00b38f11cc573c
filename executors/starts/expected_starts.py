"""The expected starts of waiting jobs, as shown by the page, the API and the commands.

They follow from plans, batch systems, the jobs ahead, and earlier waits, and are computed on demand. The first estimate
shown for a job is stored, to measure how often estimates come true.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import Integer, and_, bindparam, case, cast, func, not_, null, or_, select, union_all, update

from lading.executors.accounting import share_rows
from lading.executors.store.jobs import QUEUED, chunks
from lading.executors.store.leases import database_ahead
from lading.executors.store.tables import JobRow, SiteRow, State
from lading.scheduling.accounting.budgets import Unit
from lading.scheduling.accounting.who import Tenant, Who
from lading.scheduling.model.prediction import ASSUMED_SPREAD, WEIGHT_WITHIN_A_RUN
from lading.scheduling.model.reason_codes import CODES
from lading.scheduling.model.unfinished import MOST_SPREAD_OF_ONE_KIND, censored_shift, even_quantile, seconds_left
from lading.scheduling.starts.expected_starts import (
    LATE_SECONDS,
    Backlog,
    ExpectedStart,
    FinishedJob,
    KnownWaits,
    Rate,
    StartSource,
    expected_start,
    held_because,
    is_still_expected,
    rate_at_full_load,
)
from lading.scheduling.starts.queue_ahead import (
    LONGEST_DRAWN,
    MOST_BEFORE_DRAWN,
    Alike,
    DrawnStarts,
    ExpectedArrival,
    QueueAhead,
    Running,
    ShareLine,
)
from lading.scheduling.text.units import format_moment

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session

    from lading.scheduling.accounting.share_table import Shares
    from lading.scheduling.accounting.share_usage import Mean
    from lading.scheduling.model.reasons import Reason

WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# Limits on what is read: the last tries of a task, the tasks at a time, the last jobs of a site.
MOST_TRIES, MOST_TASKS, MOST_OF_SITE = 50, 100, 200
SECONDS_OF_SITE = 7 * 86400.0
# Only the sites and limits for which most jobs wait are considered, because each run may have a limit of its own.
MOST_PLACES = 3
# Rates are measured over the last hour, or over the last day or week if too few jobs ended since.
SECONDS_OF_RATE = (3600.0, 86400.0, 7 * 86400.0)
# The codes of limits that a Dag sets for its own jobs.
LIMITED = tuple(code.key for code in CODES.values() if code.kind == "max_instances")
# The length of a task is known once this many of its jobs have finished. There is no estimate for a job while the jobs
# of such tasks have less than this part of the cpus of all jobs that run or were queued before it.
KNOWN_TRIES, LEAST_KNOWN = 3, 0.5
# Jobs that sites got, or that started, within this many seconds are counted together.
SECONDS_TOGETHER = 60.0
# Waiting jobs queued within this many seconds are counted together: tasks of a run are queued at the same moment, and
# with a minute, two runs could be taken for one that was queued evenly.
SECONDS_OF_A_BURST = 5.0
WAITED = JobRow.started_at - QUEUED
# Over all nodes of a job.
CPUS = JobRow.cpus * func.coalesce(JobRow.nodes, 1)
# The shortest length that counts, seconds.
LEAST_SECONDS = 0.001
# Running jobs that are counted together are split into at most this many parts, which do not finish together.
MOST_PARTS = 20
# Jobs are expected to be queued as often as lately: in this many seconds, but at most this many jobs are read.
SECONDS_OF_ARRIVALS, MOST_ARRIVALS = 3 * 3600.0, 1000
COLUMNS = (
    JobRow.token, JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.site, JobRow.site_hint, JobRow.state,
    JobRow.priority, JobRow.queued_at, JobRow.planned_start, JobRow.native_start, JobRow.reason, JobRow.reason_code,
    JobRow.reason_limit, JobRow.said_at, JobRow.team, JobRow.dag_owner, JobRow.dag_tags,
    JobRow.native_id, JobRow.placed_at,
)  # fmt: skip
# What decides to which declared share a job of a Dag belongs.
TENANT: Mapping[str, Any] = {"team": JobRow.team, "dag_owner": JobRow.dag_owner, "dag_tags": JobRow.dag_tags}
# Which of several jobs to estimate.
End = Literal["first", "last"]
# Jobs that start within this many seconds need no estimate.
SECONDS_UNTIL_SAID = 30.0
# A planned start is stored again if it moves by this many seconds and by this part of the remaining time.
LEAST_MOVE, PART_OF_MOVE = 10.0, 0.1


@dataclass(frozen=True, slots=True)
class NoStart:
    """A waiting job is held until somebody, or a new period, changes something, so it has no expected start.

    :param text: what holds it
    """

    text: str


def expected_starts(
    session: Session, jobs: Iterable[Any], now: float, *, is_drawn: bool = True
) -> dict[str, ExpectedStart | NoStart]:
    """Return when waiting jobs will start, or what holds them, by token, as far as there is an estimate.

    :param jobs: with their :data:`COLUMNS`; those that do not wait are ignored
    :param now: epoch seconds, by the controller's clock
    :param is_drawn: see :meth:`Outlook.start`
    """
    waiting = [job for job in jobs if job.state in WAITING]
    if not waiting:
        return {}
    outlook = Outlook(session, now, waiting)
    found = {job.token: outlook.start(job, is_drawn=is_drawn) for job in waiting}
    return {token: start for token, start in found.items() if start is not None}


class Outlook:
    """Estimates when jobs start: a single job, the jobs of a run, or the last job of a group.

    :param jobs: the jobs to estimate; None: any
    """

    def __init__(self, session: Session, now: float, jobs: Sequence[Any] | None = None) -> None:
        self.session, self.now, self.jobs = session, now, jobs
        self.held, self.ahead = HeldJobs(session), database_ahead(session)
        self.tasks: dict[tuple[str, str], list[float]] = {}
        self.sites: dict[str, list[float]] = {}
        self.learn(jobs or ())

    @cached_property
    def backlogs(self) -> Backlogs:
        asked = None if self.jobs is None else [job for job in self.jobs if self.is_unsaid(job)]
        return Backlogs(self.session, self.held, self.now, asked)

    def is_unsaid(self, job: Any) -> bool:
        """Whether neither a plan nor a batch system predicts the start of a job."""
        return not any(is_still_expected(self.now, start) for start in (job.planned_start, job.native_start))

    def learn(self, jobs: Iterable[Any]) -> None:
        """Read how long earlier tries like these jobs waited."""
        unsaid = [job for job in jobs if self.is_unsaid(job) and self.held.by(job) is None]
        tasks = {(job.dag_id, job.task_id) for job in unsaid if job.dag_id and job.task_id} - self.tasks.keys()
        self.tasks |= waits_of_tasks(self.session, tasks)
        sites = {job.site for job in unsaid if job.site is not None} - self.sites.keys()
        self.sites |= waits_of_sites(self.session, sites, self.now)

    def start(
        self, job: Any, *, end: End | None = None, by_task: bool = True, is_drawn: bool = True
    ) -> ExpectedStart | NoStart | None:
        """Return when a waiting job will start, or what holds it; None: there is no estimate.

        :param end: estimate the first or the last of the jobs counted together with it; None: the job itself
        :param by_task: whether earlier tries of its task may be used; the estimate then names the task
        :param is_drawn: whether the interval matters; otherwise only the most likely start does
        """
        if (text := self.held.by(job)) is not None:
            return NoStart(text)
        past = []
        if by_task and (known := self.tasks.get((job.dag_id or "", job.task_id or ""))):
            past.append(KnownWaits(known, f"task {job.task_id}"))
        if job.site is not None and (known := self.sites.get(job.site)):
            past.append(KnownWaits(known, f"site {job.site}"))
        before = self.backlogs.before(job, end=end, is_drawn=is_drawn) if self.is_unsaid(job) else None
        queued_at = job.queued_at - self.ahead
        start = expected_start(self.now, queued_at, job.planned_start, job.native_start, past, before)
        return None if start is None else self.within_budgets(job, start)

    @cached_property
    def budgets(self) -> list[tuple[share_rows.BudgetRow, Who]]:
        """The budgets that are expected to be used up in their present period, the first one first, and whose jobs
        count."""
        ending = [row for row in share_rows.budgets(self.session) if row.spent_at is not None and not row.is_lifted]
        return [(row, Who.parse(row.who)) for row in sorted(ending, key=lambda row: row.spent_at or 0.0)]

    def within_budgets(self, job: Any, start: ExpectedStart) -> ExpectedStart | NoStart:
        """Return an expected start, or, if a budget for cpu-hours is used up by then, what holds the job.

        Once a budget for money is used up, a job can still start on a running machine, so its start only says so.
        """
        if not self.budgets:
            return start
        tenant, text = Tenant.from_columns(job.team, job.dag_id, job.dag_owner, job.dag_tags), start.text
        for row, who in self.budgets:
            if row.spent_at is None or not row.spent_at <= start.at < row.until or not who.meets(tenant):
                continue
            is_spent = row.spent_at <= self.now
            used_up = "is used up" if is_spent else f"is expected to be used up at {format_moment(row.spent_at)}"
            if row.unit == Unit.CPU_HOURS.value:
                return NoStart(f"Budget {row.name} {used_up}, and resets at {format_moment(row.until)}")
            if job.state != State.PLACED and text == start.text:
                machines = f"no machines are launched for it {'' if is_spent else 'from then '}until"
                text = f"{text}; budget {row.name} {used_up}: {machines} {format_moment(row.until)}"
        return replace(start, text=text)

    def known_starts(self, row: Any, end: End = "last") -> list[ExpectedStart | NoStart]:
        """Return the first or the latest starts that plans and batch systems predict for jobs counted together."""
        is_last = end == "last"
        found = (
            expected_start(self.now, row.queued_at, row.last_planned if is_last else row.first_planned),
            expected_start(self.now, row.queued_at, native=row.last_native if is_last else row.first_native),
        )
        return [self.within_budgets(row, start) for start in found if start is not None]

    def last_start(self, why: Collection[Why], dags: Collection[str]) -> ExpectedStart | NoStart | None:
        """Return when the last job that waits for these reasons will start; None if any of them has no estimate.

        :param dags: the Dags whose task names may appear in the estimate
        """
        return self.start_at("last", [row for row in self.backlogs.rows if why_of(row.reason, row) in why], dags)

    def starts_by_dag(
        self, why: Collection[Why], dags: Collection[str]
    ) -> dict[str, tuple[ExpectedStart | NoStart | None, ExpectedStart | NoStart | None]]:
        """Return when the first and the last job of each of these Dags will start, of those that wait for these
        reasons."""
        rows: dict[str, list[Any]] = {dag_id: [] for dag_id in dags}
        for row in self.backlogs.rows:
            if row.dag_id in rows and why_of(row.reason, row) in why:
                rows[row.dag_id].append(row)
        return {
            dag_id: (self.start_at("first", its, (dag_id,)), self.start_at("last", its, (dag_id,)))
            for dag_id, its in rows.items()
        }

    def start_at(self, end: End, rows: Sequence[Any], dags: Collection[str]) -> ExpectedStart | NoStart | None:
        """Return when the first or the last of these jobs will start; None: there is no estimate for it.

        :param rows: of the backlog
        :param dags: see :meth:`last_start`
        """
        held = Counter[str]()
        for row in rows:
            if (text := self.held.by(row)) is not None:
                held[text] += row.jobs
        # Jobs that are held start after all others.
        if held and (end == "last" or held.total() == sum(row.jobs for row in rows)):
            return NoStart(commonest(held)[0])
        rows = [row for row in rows if self.held.by(row) is None]
        known = [start for row in rows for start in self.known_starts(row, end)]
        found = [start for start in known if isinstance(start, ExpectedStart)]
        late = [start for start in known if isinstance(start, NoStart)]
        if late and end == "last":
            return late[0]
        for one in self._rows_at(end, [row for row in rows if row.unsaid]):
            job = self._job_at(end, one)
            if job is None:  # it has started since the jobs were counted
                continue
            self.learn([job])
            start = self.start(job, end=end, by_task=job.dag_id in dags)
            if isinstance(start, ExpectedStart):
                found.append(start)
            elif end == "last":
                return start
            elif start is not None:
                late.append(start)
        if not found and late:
            return late[0]
        return (max if end == "last" else min)(found, key=lambda each: each.at, default=None)

    def _rows_at(self, end: End, rows: Iterable[Any]) -> Iterable[Any]:
        """Yield the rows whose jobs start first or last, at the places for which most jobs wait.

        If the rate at a place is unknown, the row queued first or last represents all. A row whose start cannot be
        predicted is yielded in addition to the first or last of the others.
        """
        best = max if end == "last" else min
        places: dict[Place, list[Any]] = {}
        for row in rows:
            places.setdefault(place_of(row), []).append(row)
        for place in sorted(places, key=lambda each: (-unsaid_jobs(places[each]), str(each)))[:MOST_PLACES]:
            if self.backlogs.rate(place) is None:
                yield best(places[place], key=turn_of)
                continue
            # Neither the size of a line nor the time of queueing tells which job starts first or last: shares have
            # weights, and a site starts jobs in the order in which it got them.
            ends: dict[bool, tuple[float, tuple[bool, int, float], Any]] = {}
            for row in places[place]:
                seconds = self.backlogs.before(row, end=end).seconds
                found = seconds or 0.0, turn_of(row), row
                is_known = seconds is not None
                ends[is_known] = best(ends.get(is_known, found), found, key=itemgetter(0, 1))
            for _, _, row in ends.values():
                yield row

    def _job_at(self, end: End, row: Any) -> Any:
        """Return the first or the last of the jobs counted together whose start is not predicted by a plan or batch
        system."""
        query = select(*COLUMNS).where(
            JobRow.state == row.state, JobRow.priority == row.priority,
            JobRow.queued_at.between(row.oldest, row.queued_at), unsaid_at(self.now),
            *(getattr(JobRow, name).is_not_distinct_from(getattr(row, name)) for name in ("reason_code", "site")),
            *(JobRow.reason == reason for reason in (row.reason,) if reason is not None),
            *(
                getattr(JobRow, name).is_not_distinct_from(getattr(row, name))
                for name in ("dag_id", "task_id", *(("run_id",) if row.reason_code in LIMITED else ()))
            ),
        )  # fmt: skip
        order = JobRow.queued_at, JobRow.token
        query = query.order_by(*(each.desc() for each in order) if end == "last" else order)
        return self.session.execute(query.limit(1)).first()


def unsaid_jobs(rows: Iterable[Any]) -> int:
    return sum(row.unsaid for row in rows)


def commonest(held: Counter[str]) -> tuple[str, int]:
    return max(held.items(), key=lambda each: (each[1], each[0]))


class HeldJobs:
    """What holds waiting jobs, according to their reasons and their sites."""

    def __init__(self, session: Session) -> None:
        rows = session.execute(select(SiteRow.name, SiteRow.paused_by, SiteRow.trouble))
        self.sites = {
            name: "paused" if paused else "site_silent" if trouble else None for name, paused, trouble in rows
        }

    def by(self, job: Any) -> str | None:
        site = site_of(job)
        if (text := held_because(job.reason_code, job.reason_limit, site)) is not None:
            return text
        code = self.sites.get(site or "")
        # Jobs that a paused site has already been given still start.
        return None if code == "paused" and job.state == State.PLACED else held_because(code, None, site)


def site_of(job: Any) -> str | None:
    """Return the site that a job was given to or waits for; None: any."""
    found: str | None = job.site or (None if job.reason is None else job.reason.site) or job.site_hint
    return found


# What a job waits for: ("site", site or None for any, None), ("task", Dag, task) or ("run", Dag, run).
Place = tuple[str, str | None, str | None]
ANY_SITE: Place = ("site", None, None)
# Why a job waits, as far as it matters for its start: the code and limit of its reason, and the Dag that sets the
# limit, or the site.
Why = tuple[str | None, str | None, str | None]


def place_of(job: Any) -> Place:
    """Return what a job waits for: room at a site, or room within a limit of its task or run."""
    if job.reason_code not in LIMITED:
        return "site", site_of(job), None
    is_of_run = job.reason_code.startswith("run_")
    return ("run", job.dag_id, job.run_id) if is_of_run else ("task", job.dag_id, job.task_id)


def why_of(reason: Reason | None, job: Any) -> Why:
    """Return why a job waits; a limit that a Dag sets is distinct from that of any other Dag.

    :param job: a row with ``reason_code``, ``reason_limit``, ``dag_id`` and ``site``
    """
    if job.reason_code in LIMITED:
        return job.reason_code, job.reason_limit, job.dag_id
    return job.reason_code, job.reason_limit, job.site or (None if reason is None else reason.site)


def turn_of(row: Any) -> tuple[bool, int, float]:
    """Return the sort key for the order in which jobs start."""
    return row.state != State.PLACED, -row.priority, row.queued_at


def unsaid_at(now: float) -> ColumnElement[bool]:
    """Return the condition for jobs whose start is not predicted by a plan or batch system."""
    return and_(*(is_passed(start, now) for start in (JobRow.planned_start, JobRow.native_start)))


def is_passed(start: Any, now: float) -> ColumnElement[bool]:
    """Return the condition that there is no predicted start, or that it is not usable any more (see
    :func:`is_still_expected`).

    :param start: the column of the start
    """
    return or_(start.is_(None), start < now - LATE_SECONDS)


def together(session: Session, now: float, whose: Mapping[str, Any], *conditions: Any) -> Sequence[Any]:
    """Return the waiting jobs, counted together if they were queued within a few seconds and start alike.

    :param whose: the columns of Dag, run and task by which they are also told apart
    """
    columns = (
        JobRow.site, JobRow.site_hint, JobRow.state, JobRow.priority, JobRow.reason_code, JobRow.reason_limit,
        # Only needed for its site; grouping by its amounts as well would split the jobs into many groups.
        case((JobRow.site.is_(None), JobRow.reason)).label("reason"),
        *(column.label(name) for name, column in whose.items()),
        # Some databases truncate and some round; either way, jobs of about that time share a value.
        cast(JobRow.queued_at / SECONDS_OF_A_BURST, Integer).label("since"),
        case((JobRow.state == State.PLACED, cast(JobRow.placed_at / SECONDS_TOGETHER, Integer))).label("placed"),
    )  # fmt: skip
    is_unsaid, is_planned = unsaid_at(now), not_(is_passed(JobRow.planned_start, now))
    amounts = (
        JobRow.queued_at,
        JobRow.native_id,
        JobRow.placed_at,
        case((is_planned, JobRow.planned_start)).label("planned_start"),
        case((not_(is_planned), JobRow.native_start)).label("native_start"),
        case((is_unsaid, 1), else_=0).label("unsaid"),
        CPUS.label("cpus"),
    )
    each = select(*columns, *amounts).where(JobRow.state.in_(WAITING), *conditions).subquery()
    alike = [each.c[column.key] for column in columns]
    query = select(
        *alike,
        func.count().label("jobs"),
        func.min(each.c.queued_at).label("oldest"),
        func.max(each.c.queued_at).label("queued_at"),
        func.min(each.c.planned_start).label("first_planned"),
        func.max(each.c.planned_start).label("last_planned"),
        func.min(each.c.native_start).label("first_native"),
        func.max(each.c.native_start).label("last_native"),
        func.max(each.c.native_id).label("native_id"),
        func.min(each.c.placed_at).label("placed_at"),
        func.sum(each.c.unsaid).label("unsaid"),
        func.sum(each.c.cpus).label("cpus"),
        # The group stands for its jobs without a predicted start.
        null().label("planned_start"),
        null().label("native_start"),
    )
    return session.execute(query.group_by(*alike)).all()


class Length(NamedTuple):
    """How long jobs of a task run.

    :param mean: seconds
    :param spread: the standard deviation of the logarithm
    :param tries: of how many finished ones
    """

    mean: float
    spread: float
    tries: int

    @property
    def median(self) -> float:
        return self.mean / math.exp(self.spread**2 / 2)

    @property
    def doubt(self) -> float:
        """The standard error of the logarithm of the mean."""
        return self.spread / math.sqrt(self.tries)

    def with_running(self, passed: Iterable[float]) -> Length:
        """Return the length that also takes into account for how many seconds others run already."""
        median = self.median
        logarithms = [math.log(max(each, LEAST_SECONDS) / median) for each in passed]
        return self._replace(mean=self.mean * math.exp(censored_shift(logarithms, self.tries, self.spread)))


@dataclass(slots=True)
class Turn:
    """Jobs of a line that were queued within a few seconds.

    :param oldest: when the first of them was queued
    :param newest: when the last of them was queued
    :param cpus: the cpus that all of them request
    :param seconds: how long all of them together are expected to run
    :param spread: the sum of the spreads of their lengths
    :param task: one of their tasks, whose mean has the standard error ``doubt`` (of its logarithm)
    """

    jobs: int
    oldest: float
    newest: float
    cpus: float = 0.0
    seconds: float = 0.0
    spread: float = 0.0
    task: tuple[str, str] | None = None
    doubt: float = 0.0

    @property
    def alike(self) -> Alike:
        return Alike(
            self.jobs, self.cpus / self.jobs, self.seconds / self.jobs, self.spread / self.jobs, self.task, self.doubt
        )

    def before(self, queued_at: float) -> float:
        """Return how many of them start before one, as if they had been queued at equal intervals."""
        if self.newest > self.oldest:
            return (self.jobs - 1) * (queued_at - self.oldest) / (self.newest - self.oldest)
        return (self.jobs - 1) / 2


class BacklogLines:
    """The jobs that wait for the same thing, in the order in which they start.

    :param running: the jobs there that have to finish first
    :param cpus: how many there are
    :param given_ahead: see :class:`QueueAhead`
    :param lengths: when jobs were queued, their cpus, and whether the length of their task is known; of those that run
        as well
    :param arrivals: returns what was queued lately, and in how many seconds
    """

    def __init__(
        self,
        turns: Mapping[tuple[ShareLine, int, int], Turn],
        running: Sequence[Running],
        cpus: float,
        shares: Shares,
        lately: Mapping[str, Mean],
        site: str | None,
        given_ahead: float,
        lengths: Sequence[tuple[float, float, bool]],
        arrivals: Callable[[], tuple[Sequence[ExpectedArrival], float]],
    ) -> None:
        lengths = sorted(lengths)
        self.queued = [queued for queued, _, _ in lengths]
        self.cpus = [*accumulate(cpus for _, cpus, _ in lengths)]
        self.cpus_known = [*accumulate(cpus * is_known for _, cpus, is_known in lengths)]
        self.order: dict[ShareLine, list[tuple[tuple[int, float], Turn]]] = {}
        for (line, priority, _), turn in turns.items():
            self.order.setdefault(line, []).append(((priority, turn.oldest), turn))
        self.sums: dict[ShareLine, list[int]] = {}
        alike: dict[ShareLine, list[Alike]] = {}
        for line, its in self.order.items():
            its.sort(key=lambda each: each[0])
            self.sums[line] = [0, *accumulate(turn.jobs for _, turn in its)]
            alike[line] = [turn.alike for _, turn in its]
        self.ahead = QueueAhead(alike, running, cpus, shares, lately, site, given_ahead)
        self.arrivals = arrivals

    @cached_property
    def drawn(self) -> DrawnStarts:
        return DrawnStarts(self.ahead, *self.arrivals())

    def before(
        self, line: ShareLine, key: tuple[int, float], queued_at: float, *, end: End | None, is_drawn: bool
    ) -> tuple[float, float, Sequence[float]]:
        """Return how many jobs start before one, after how many seconds it starts, and after how many in each draw.

        :param end: see :meth:`Outlook.start`
        :param is_drawn: whether to draw anything
        """
        order, sums = self.order.get(line, []), self.sums.get(line, [0])
        at = bisect_right(order, key, key=lambda each: each[0])
        before = float(sums[at])
        if at and order[at - 1][0][0] == key[0] and queued_at <= (with_it := order[at - 1][1]).newest:
            if end is None and with_it.newest > with_it.oldest and queued_at == with_it.newest:
                end = "last"
            among = {"first": 0.0, "last": with_it.jobs - 1.0, None: with_it.before(queued_at)}
            before = sums[at - 1] + among[end]
        seconds, jobs = self.ahead.start(line, before)
        is_near = seconds <= LONGEST_DRAWN and jobs <= MOST_BEFORE_DRAWN
        return jobs, seconds, self.drawn.seconds(line, before) if is_drawn and is_near else ()

    def known(self, queued_at: float) -> float:
        """Return which part of the cpus of the jobs that run or were queued before a job is used by jobs of tasks whose
        length is known."""
        at = bisect_right(self.queued, queued_at) - 1
        return self.cpus_known[at] / self.cpus[at] if at >= 0 and self.cpus[at] else 1.0


class Backlogs:
    """The jobs waiting for the same thing, in the order in which they start, and the rate at which they start.

    :param asked: the only jobs to estimate; None: any
    """

    def __init__(self, session: Session, held: HeldJobs, now: float, asked: Sequence[Any] | None = None) -> None:
        self.session, self.now = session, now
        self.shares, self.lately = share_rows.stored_shares(session)
        is_limited = JobRow.reason_code.in_(LIMITED)
        # The run is NULL unless a limit applies, so thousands of jobs become a few rows.
        names: dict[str, Any] = {
            "dag_id": JobRow.dag_id,
            "run_id": case((is_limited, JobRow.run_id)),
            "task_id": JobRow.task_id,
        }
        if self.shares.table or share_rows.budgets(session):
            names |= TENANT
        conditions: list[Any] = []
        if asked is not None and all(job.reason_code in LIMITED for job in asked):
            conditions = [is_limited, JobRow.dag_id.in_({job.dag_id for job in asked})]
        self.rows = together(session, now, names, *conditions)
        ahead = self.database_ahead = database_ahead(session)
        self.read = set(main_tasks(self.rows))
        self.lengths = known_lengths(session, self.rows)
        self.waiting: dict[Place, list[Any]] = {}
        self.oldest: dict[Place, float] = {}
        for row in self.rows:
            if held.by(row) is not None:
                continue
            place = place_of(row)
            self.waiting.setdefault(place, []).append(row)
            oldest = row.oldest - ahead
            self.oldest[place] = min(oldest, self.oldest.get(place, oldest))
        first: dict[int, float] = {}
        for row in self.rows:
            if row.state == State.PLACED and row.placed_at is not None:
                first[row.placed] = min(row.placed_at, first.get(row.placed, row.placed_at))
        self.placed = sorted(first.values())
        self.rates: dict[Place, Rate | None] = {}
        self.lines: dict[Place, BacklogLines] = {}
        self.turns: dict[Place, tuple[Sequence[tuple[bool, int, float]], Sequence[int]]] = {}

    def share_of(self, job: Any) -> str:
        its = (
            (job.team, job.dag_id, job.dag_owner, job.dag_tags) if self.shares.table else (None, job.dag_id, None, None)
        )
        return self.shares.share_of(Tenant.from_columns(*its))

    def line_of(self, job: Any) -> ShareLine:
        # Where several shares are declared the priority counts within each.
        level = 0 if self.shares.table else -job.priority
        # The limits of a Dag hold for all of its jobs alike.
        share = self.share_of(job) if place_of(job)[0] == "site" else ""
        is_placed = job.state == State.PLACED
        # A site starts jobs in the order in which it got them; jobs of the same minute are ordered by their shares.
        given = bisect_right(self.placed, job.placed_at) if is_placed and job.placed_at is not None else 0
        return ShareLine((not is_placed, level, given), share)

    def lines_of(self, place: Place, rate: Rate) -> BacklogLines:
        """Return the jobs that wait for a place."""
        if place not in self.lines:
            running = self._running(place)
            unread = [each for each in running if task_of(each) not in self.lengths]
            self.lengths |= known_lengths(self.session, unread)
            self.read |= set(main_tasks(unread))
            is_site = place[0] == "site"
            lengths = self._lengths(running, rate)
            turns: dict[tuple[ShareLine, int, int], Turn] = {}
            ahead = [(-math.inf, each.cpus, self._is_known(each)) for each in running]
            for row, jobs in self._contenders(place):
                ahead.append((row.oldest, row.cpus * jobs / row.jobs, self._is_known(row)))
                key = self.line_of(row), -row.priority, row.since
                turn = turns.setdefault(key, Turn(0, row.oldest, row.queued_at))
                turn.jobs += jobs
                turn.cpus += row.cpus * jobs / row.jobs
                turn.seconds += jobs * (length := lengths[task_of(row)]).mean
                turn.spread += jobs * length.spread
                turn.task, turn.doubt = task_of(row), length.doubt
                turn.oldest, turn.newest = min(turn.oldest, row.oldest), max(turn.newest, row.queued_at)
            at_work, number = [], Counter[tuple[str, str]]()
            for each in running:
                length, share = lengths[task_of(each)], self.share_of(each) if is_site else ""
                parts = min(each.jobs, MOST_PARTS)
                for _ in range(parts):
                    quantile = even_quantile(number[task_of(each)])
                    left = seconds_left(self._elapsed(each), length.median, length.spread, quantile)
                    its = self._elapsed(each), length.median, length.spread, task_of(each), length.doubt
                    at_work.append(Running(share, each.cpus / parts, left, *its))
                    number[task_of(each)] += 1
            cpus = sum(each.cpus for each in at_work)
            if not cpus:
                # Jobs keep finishing at the measured rate: cpus are rounded up to whole jobs, and lengths stretched.
                jobs = sum(turn.jobs for turn in turns.values())
                unit = sum(turn.cpus for turn in turns.values()) / max(1, jobs) or 1.0
                cpus = unit * math.ceil(rate.cpus / unit)
                stretch = cpus / rate.cpus
                for turn in turns.values():
                    turn.seconds *= stretch
                apart = rate.seconds * stretch / MOST_PARTS
                at_work = [Running("", cpus / MOST_PARTS, apart * (number + 0.5)) for number in range(MOST_PARTS)]
            site = place[1] if is_site else None
            # A site is given as much again as it can run. A limit of a Dag gives nothing ahead.
            given_ahead = cpus if is_site else 0.0
            self.lines[place] = BacklogLines(
                turns, at_work, cpus, self.shares, self.lately, site, given_ahead, ahead,
                # What is queued within a limit of a Dag waits behind its own jobs.
                lambda: self.arrivals(site, lengths) if is_site else ((), 0.0),
            )  # fmt: skip
        return self.lines[place]

    def arrivals(
        self, site: str | None, lengths: Mapping[tuple[str, str], Length]
    ) -> tuple[Sequence[ExpectedArrival], float]:
        """Return the jobs that were queued lately, and in how many seconds.

        :param site: the site that they can wait for; None: any
        :param lengths: for how long jobs of each task are expected to run
        """
        names = ["dag_id", "task_id", "priority", *(TENANT if self.shares.table else ())]
        for_site = JobRow.site_hint.is_(None) | (JobRow.site_hint == site)
        there = () if site is None else (or_(JobRow.site == site, and_(JobRow.site.is_(None), for_site)),)
        now = self.now + self.database_ahead
        begin = now - SECONDS_OF_ARRIVALS
        last = select(*(getattr(JobRow, name) for name in names), JobRow.queued_at, CPUS.label("cpus"))
        last = last.where(JobRow.queued_at >= begin, *there).order_by(JobRow.queued_at.desc()).limit(MOST_ARRIVALS)
        each = last.subquery().c
        whose = [each[name] for name in names]
        sums = func.count().label("jobs"), func.sum(each.cpus).label("cpus"), func.min(each.queued_at).label("oldest")
        bursts = select(*whose, *sums).group_by(*whose, cast(each.queued_at / SECONDS_OF_A_BURST, Integer))
        rows = self.session.execute(bursts).all()
        is_first = self.session.scalar(select(JobRow.token).where(JobRow.queued_at < begin).limit(1)) is None
        if rows and (is_first or sum(row.jobs for row in rows) >= MOST_ARRIVALS):
            # The period begins with the first jobs, so they were not queued within it.
            begin = min(row.oldest for row in rows)
            rows = [row for row in rows if row.oldest > begin + SECONDS_OF_A_BURST]
        self.lengths |= known_lengths(self.session, [row for row in rows if task_of(row) not in self.lengths])
        found = []
        for row in rows:
            length = self.lengths.get(task_of(row), lengths[task_of(row)])
            line = ShareLine((True, 0 if self.shares.table else -row.priority, 0), self.share_of(row))
            seconds = length.mean, length.spread, task_of(row), length.doubt
            found.append(ExpectedArrival(line, Alike(row.jobs, float(row.cpus) / row.jobs, *seconds)))
        return found, now - begin

    def _is_known(self, row: Any) -> bool:
        """Whether the length of a row's task is known; of tasks whose tries are not read, it is assumed to be."""
        task = task_of(row)
        return task not in self.read or (task in self.lengths and self.lengths[task].tries >= KNOWN_TRIES)

    def _contenders(self, place: Place) -> Iterable[tuple[Any, int]]:
        """Yield the waiting jobs that can take the room of a place, and how many of each row.

        A job that waits for any site contends with the jobs that wait for one of them, and with those already placed.
        """
        yield from ((row, row.jobs) for row in self.waiting.get(place, []))
        if place == ANY_SITE:
            pinned = (rows for other, rows in self.waiting.items() if other[0] == "site" and other != ANY_SITE)
            yield from ((row, row.jobs) for rows in pinned for row in rows)
        elif place[0] == "site":
            part = self.cpus_at_work.get(place[1], 0.0) / max(1.0, sum(self.cpus_at_work.values()))
            yield from ((row, jobs) for row in self.waiting.get(ANY_SITE, []) if (jobs := round(part * row.jobs)))

    def _turns(self, place: Place) -> tuple[Sequence[tuple[bool, int, float]], Sequence[int]]:
        """Return the turns of the jobs that can take the room of a place, in order, and how many jobs precede each."""
        if place not in self.turns:
            found = sorted((turn_of(row), jobs) for row, jobs in self._contenders(place))
            self.turns[place] = [turn for turn, _ in found], [0, *accumulate(jobs for _, jobs in found)]
        return self.turns[place]

    @cached_property
    def cpus_at_work(self) -> dict[str | None, float]:
        """How many cpus the running jobs of each site use."""
        query = select(JobRow.site, func.sum(CPUS)).where(JobRow.state == State.RUNNING).group_by(JobRow.site)
        return {site: float(cpus) for site, cpus in self.session.execute(query)}

    def before(self, job: Any, *, end: End | None = None, is_drawn: bool = False) -> Backlog:
        """Return the backlog ahead of a job.

        :param end: see :meth:`Outlook.start`
        :param is_drawn: whether to draw when it starts, which takes longer
        """
        place = place_of(job)
        # The queue of an agent, unlike that of a batch system, has no jobs of others.
        rate, is_shared = self.rate(place), job.state == State.PLACED and job.native_id is not None
        if rate is None or not rate.cpus:
            turns, sums = self._turns(place)
            ahead = sums[bisect_right(turns, turn_of(job))]
            return Backlog(max(0, ahead - 1), None, place_text(place), is_shared)
        lines = self.lines_of(place, rate)
        key = -job.priority, job.queued_at
        jobs, seconds, draws = lines.before(self.line_of(job), key, job.queued_at, end=end, is_drawn=is_drawn)
        if lines.known(job.queued_at) < LEAST_KNOWN:
            return Backlog(jobs, None, place_text(place), is_shared)
        return Backlog(jobs, rate.jobs, place_text(place), is_shared, seconds, draws)

    def rate(self, place: Place) -> Rate | None:
        """Return how fast jobs finish there at full load; None: unknown."""
        if place not in self.rates:
            found = (self._rate(place, seconds) for seconds in SECONDS_OF_RATE)
            self.rates[place] = next((rate for rate in found if rate is not None), None)
        return self.rates[place]

    def _elapsed(self, running: Any) -> float:
        return max(0.0, self.now + self.database_ahead - float(running.started_at))

    def _lengths(self, running: Sequence[Any], rate: Rate) -> Mapping[tuple[str, str], Length]:
        """Return for how long jobs of each task are expected to run.

        The first jobs of a task to finish are its shortest: while few have, those that run count as well. A task of
        which none has finished is expected to take as long as other jobs do.
        """
        passed: dict[tuple[str, str], list[float]] = defaultdict(list)
        for each in running:
            passed[task_of(each)] += each.jobs * [self._elapsed(each)]
        unknown = Length(rate.seconds, MOST_SPREAD_OF_ONE_KIND, 1)
        lengths = defaultdict(lambda: unknown, self.lengths)
        for task, seconds in passed.items():
            if (known := lengths[task]).tries < MOST_TRIES:
                lengths[task] = known.with_running(seconds)
        return lengths

    def _running(self, place: Place) -> Sequence[Any]:
        """Return the jobs that run there; those of a task that started within the same minute are counted together."""
        names = [JobRow.dag_id, JobRow.task_id, JobRow.priority, cast(JobRow.started_at / SECONDS_TOGETHER, Integer)]
        names += TENANT.values() if self.shares.table else []
        amounts = (
            func.sum(CPUS).label("cpus"),
            func.avg(JobRow.started_at).label("started_at"),
            func.count().label("jobs"),
        )
        there = JobRow.state == State.RUNNING, JobRow.started_at.is_not(None), *jobs_at(place)
        return self.session.execute(select(*names, *amounts).where(*there).group_by(*names)).all()

    def _rate(self, place: Place, seconds: float) -> Rate | None:
        there = jobs_at(place)
        since = self.now - seconds
        columns = JobRow.ended_at, CPUS, JobRow.ended_at - JobRow.started_at
        ends = select(*columns).where(*there, JobRow.ended_at >= since, JobRow.started_at.is_not(None))
        last = self.session.execute(ends.order_by(JobRow.ended_at.desc()).limit(MOST_OF_SITE)).all()
        finished = [FinishedJob(at or 0.0, cpus, max(seconds or 0.0, LEAST_SECONDS)) for at, cpus, seconds in last]
        if len(finished) == MOST_OF_SITE:
            since = finished[-1].at
        begun = select(QUEUED, JobRow.started_at).where(*there, JobRow.started_at >= since)
        begun = begun.where(WAITED >= SECONDS_UNTIL_SAID).order_by(JobRow.started_at.desc()).limit(5 * MOST_OF_SITE)
        waits = [(queued, started) for queued, started in self.session.execute(begun) if started is not None]
        if place in self.oldest:
            waits.append((self.oldest[place], self.now))
        return rate_at_full_load(waits, finished, since)


def jobs_at(place: Place) -> tuple[ColumnElement[bool], ...]:
    """Return the condition for the jobs that have to finish before others can start there."""
    sort, first, second = place
    if sort == "site":
        return () if first is None else (JobRow.site == first,)
    of_task = JobRow.task_id if sort == "task" else JobRow.run_id
    return JobRow.dag_id == first, of_task == second


def task_of(row: Any) -> tuple[str, str]:
    return row.dag_id or "", row.task_id or ""


def main_tasks(rows: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the :data:`MOST_TASKS` tasks with most jobs in these rows."""
    jobs = Counter[tuple[str, str]]()
    for row in rows:
        if all(task := task_of(row)):
            jobs[task] += row.jobs
    return [task for task, _ in jobs.most_common(MOST_TASKS)]


def known_lengths(session: Session, rows: Iterable[Any]) -> dict[tuple[str, str], Length]:
    """Return how long the last tries of the main tasks in these rows ran."""
    tasks = main_tasks(rows)
    if not tasks:
        return {}
    seconds = (JobRow.ended_at - JobRow.started_at).label("seconds")
    names = JobRow.dag_id.label("dag_id"), JobRow.task_id.label("task_id")
    each = [
        select(
            select(*names, seconds)
            .where(
                JobRow.dag_id == dag_id,
                JobRow.task_id == task_id,
                JobRow.ended_at.is_not(None),
                JobRow.state == State.SUCCEEDED,
            )
            .order_by(JobRow.ended_at.desc())
            .limit(MOST_TRIES)
            .subquery()
        )
        for dag_id, task_id in tasks
    ]
    tries = union_all(*each).subquery()
    whose = tries.c.dag_id, tries.c.task_id
    means = func.avg(tries.c.seconds), func.avg(tries.c.seconds * tries.c.seconds)
    found = {}
    for dag_id, task_id, mean, square, jobs in session.execute(select(*whose, *means, func.count()).group_by(*whose)):
        if mean is not None and mean > 0:
            # Of log-normal values.
            variance = math.log(max(1.0, square / mean**2))
            assumed = WEIGHT_WITHIN_A_RUN * ASSUMED_SPREAD**2
            spread = math.sqrt((jobs * variance + assumed) / (jobs + WEIGHT_WITHIN_A_RUN))
            found[dag_id, task_id] = Length(mean, min(MOST_SPREAD_OF_ONE_KIND, spread), jobs)
    return found


def place_text(place: Place) -> str:
    """Return where the jobs ahead wait, as text."""
    sort, first, second = place
    if sort == "site":
        return "at all sites" if first is None else f"at site {first}"
    return f"in task {second}" if sort == "task" else "in its run"


def waits_of_tasks(session: Session, tasks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    """Return how long the last tries of at most :data:`MOST_TASKS` tasks waited, in seconds, by Dag and task."""
    found = {}
    for dag_id, task_id in sorted(tasks)[:MOST_TASKS]:
        ended = (JobRow.dag_id == dag_id, JobRow.task_id == task_id, JobRow.ended_at.is_not(None))
        last = select(WAITED).where(*ended).order_by(JobRow.ended_at.desc()).limit(MOST_TRIES)
        found[dag_id, task_id] = [max(0.0, seconds) for seconds in session.scalars(last) if seconds is not None]
    return found


def waits_of_sites(session: Session, sites: Iterable[str], now: float) -> dict[str, list[float]]:
    """Return how long the latest batch jobs of each site waited from queueing to start, in seconds."""
    found = {}
    for site in sorted(sites):
        # With the site in its condition, the query is served by the index of starts alone.
        begun = (JobRow.site == site, JobRow.started_at >= now - SECONDS_OF_SITE)
        last = select(WAITED, JobRow.submitted_at).where(*begun).order_by(JobRow.started_at.desc()).limit(MOST_OF_SITE)
        rows = session.execute(last)
        found[site] = [max(0.0, seconds or 0.0) for seconds, submitted in rows if submitted is not None]
    return found


def note_plans(
    session: Session, planned: Mapping[str, float], before: Mapping[str, float], now: float
) -> dict[str, float]:
    """Store the planned starts of waiting jobs that have moved.

    :param planned: by token, epoch seconds
    :param before: what is stored
    :returns: what is stored now; a plan that slips a little each time is compared with this, not with the last plan
    """
    changed: dict[str, float | None] = dict.fromkeys(before.keys() - planned.keys())
    for token, at in planned.items():
        last = before.get(token)
        if last is None or abs(at - last) > max(LEAST_MOVE, PART_OF_MOVE * abs(last - now)):
            changed[token] = at
    if changed:
        job = JobRow.__table__
        statement = update(job).where(job.c.token == bindparam("its_token"))
        statement = statement.values(planned_start=bindparam("at"), changed_at=job.c.changed_at)
        session.connection().execute(statement, [{"its_token": token, "at": at} for token, at in changed.items()])
    return {token: at for token, at in {**before, **changed}.items() if at is not None}


def stored_plans(session: Session) -> dict[str, float]:
    """Return the stored planned starts of waiting jobs by token; an earlier controller may have stored them."""
    waiting = JobRow.state.in_(WAITING), JobRow.planned_start.is_not(None)
    query = select(JobRow.token, JobRow.planned_start).where(*waiting)
    return {token: at for token, at in session.execute(query) if at is not None}


def show_starts(session: Session, jobs: Iterable[Any], now: float) -> dict[str, ExpectedStart | NoStart]:
    """Return expected starts to show to a user; the first estimate shown for a job is stored.

    :param jobs: with their :data:`COLUMNS`
    :param now: epoch seconds, by the controller's clock
    """
    jobs = list(jobs)
    found = expected_starts(session, jobs, now)
    since = now + database_ahead(session) - SECONDS_UNTIL_SAID if found else now
    expected = {token: start for token, start in found.items() if isinstance(start, ExpectedStart)}
    new = [job.token for job in jobs if job.token in expected and job.said_at is None and job.queued_at < since]
    rows = []
    for chunk in chunks(new):
        # A row that the controller is changing is skipped until next time, so that viewing never waits for a lock.
        free = select(JobRow.token).where(JobRow.token.in_(chunk), JobRow.said_at.is_(None))
        for token in session.scalars(free.with_for_update(skip_locked=True)):
            start = expected[token]
            said = {"since": start.since, "until": start.until, "source": start.source.value}
            rows.append({"its_token": token, "now": now, **said})
    if rows:
        table = JobRow.__table__
        names = {"said_at": "now", "said_since": "since", "said_until": "until", "said_source": "source"}
        values: dict[str, Any] = {name: bindparam(parameter) for name, parameter in names.items()}
        statement = update(table).where(table.c.token == bindparam("its_token"))
        session.connection().execute(statement.values(changed_at=table.c.changed_at, **values), rows)
    return found


class Accuracy(NamedTuple):
    """How often estimates of starts came true.

    :param said: the number of started jobs that had an estimate
    :param within: how many of those started within the first estimated interval
    """

    source: StartSource
    said: int
    within: int


def accuracy(session: Session, since: float) -> list[Accuracy]:
    """Return how often the estimates for jobs started since a time came true, by source."""
    within = case((JobRow.started_at.between(JobRow.said_since, JobRow.said_until), 1), else_=0)
    query = select(JobRow.said_source, func.count(), func.sum(within)).where(
        JobRow.started_at >= since, JobRow.said_since.is_not(None)
    )
    rows: Sequence[Any] = session.execute(query.group_by(JobRow.said_source)).all()
    known = {each.value for each in StartSource}
    return sorted(
        (Accuracy(StartSource(source), said, int(right)) for source, said, right in rows if source in known),
        key=lambda each: each.source.value,
    )
