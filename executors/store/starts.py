"""When jobs that wait are expected to start: by plans, by batch systems, by those before them, by earlier waits.
Page, API and commands all say what is found out here.

It is found out when somebody looks. What is shown first of a job is kept, so that it can be measured how often that
came true.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Integer, bindparam, case, cast, func, select, update

from lading.executors.store.jobs import QUEUED, chunks
from lading.executors.store.leases import database_ahead
from lading.executors.store.tables import JobRow, SiteRow, State
from lading.scheduling.insight.starts import (
    Backlog,
    ExpectedStart,
    KnownWaits,
    StartSource,
    expected_start,
    held_because,
    rate_at_full_load,
)
from lading.scheduling.reason_codes import CODES

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.scheduling.reasons import Reason

WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# So many of the last tries of a task, of so many tasks at a time, and of the last batch jobs of a site are looked at.
MOST_TRIES, MOST_TASKS, MOST_OF_SITE = 50, 100, 200
SECONDS_OF_SITE = 7 * 86400.0
# How many end in an hour is found out by the last hour; where too few have, by the last day.
SECONDS_OF_RATE = (3600.0, 86400.0)
# The codes of limits that a Dag sets to its own jobs.
LIMITED = tuple(code.key for code in CODES.values() if code.kind == "max_instances")
# Those that were queued within so many seconds are counted together.
SECONDS_TOGETHER = 60.0
WAITED = JobRow.started_at - QUEUED
COLUMNS = (
    JobRow.token, JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.site, JobRow.site_hint, JobRow.state,
    JobRow.priority, JobRow.queued_at, JobRow.planned_start, JobRow.native_start, JobRow.reason, JobRow.reason_code,
    JobRow.said_at,
)  # fmt: skip
# What starts at once needs no forecast, seconds.
SECONDS_UNTIL_SAID = 30.0
# A plan is stored again where it differs by so many seconds, and by this part of what is left.
LEAST_MOVE, PART_OF_MOVE = 10.0, 0.1


@dataclass(frozen=True, slots=True)
class NoStart:
    """Why no start of a job that waits is expected until somebody, or a new period, changes something.

    :param text: what holds it
    """

    text: str


def expected_starts(session: Session, jobs: Iterable[Any], now: float) -> dict[str, ExpectedStart | NoStart]:
    """When those of these jobs will start that wait, or what holds them, by token, as far as anything says it.

    :param jobs: with their :data:`COLUMNS`
    :param now: epoch seconds, by the clock of the controller
    """
    waiting = [job for job in jobs if job.state in WAITING]
    if not waiting:
        return {}
    held = HeldJobs(session)
    found: dict[str, ExpectedStart | NoStart] = {}
    for job in waiting:
        if (text := held.by(job)) is not None:
            found[job.token] = NoStart(text)
    free = [job for job in waiting if job.token not in found]
    unsaid = [job for job in free if job.planned_start is None]
    tasks = waits_of_tasks(session, {(job.dag_id, job.task_id) for job in unsaid if job.dag_id and job.task_id})
    sites = waits_of_sites(session, {job.site for job in unsaid if job.site is not None}, now)
    ahead = database_ahead(session)
    backlogs = Backlogs(session, held, now) if any(job.native_start is None for job in unsaid) else None
    for job in free:
        past = []
        if known := tasks.get((job.dag_id or "", job.task_id or "")):
            past.append(KnownWaits(known, f"task {job.task_id}"))
        if job.site is not None and (known := sites.get(job.site)):
            past.append(KnownWaits(known, f"site {job.site}"))
        before = None if backlogs is None or job.planned_start is not None else backlogs.before(job)
        start = expected_start(now, job.queued_at - ahead, job.planned_start, job.native_start, past, before)
        if start is not None:
            found[job.token] = start
    return found


class HeldJobs:
    """What holds jobs that wait, as their reasons and their sites say."""

    def __init__(self, session: Session) -> None:
        rows = session.execute(select(SiteRow.name, SiteRow.paused_by, SiteRow.trouble))
        self.sites = {
            name: "paused" if paused else "site_silent" if trouble else None for name, paused, trouble in rows
        }

    def by(self, job: Any) -> str | None:
        """What holds a job, as text; None: nothing does."""
        if (text := held_because(job.reason_code)) is not None:
            return text
        code = self.sites.get(site_of(job) or "")
        # What a paused site has been given starts all the same.
        return None if code == "paused" and job.state == State.PLACED else held_because(code)


def site_of(job: Any) -> str | None:
    """The site that a job was given to, or waits for; None: any."""
    found: str | None = job.site or (None if job.reason is None else job.reason.site) or job.site_hint
    return found


# Of what jobs wait for the same: a site (None: any), a task of a Dag, or a run.
Place = tuple[str, str | None, str | None]


def place_of(job: Any) -> Place:
    """What a job waits for: room at a site, or the end of others of its task or run, whose number is limited."""
    if job.reason_code not in LIMITED:
        return "site", site_of(job), None
    is_of_run = job.reason_code.startswith("run_")
    return ("run", job.dag_id, job.run_id) if is_of_run else ("task", job.dag_id, job.task_id)


class Backlogs:
    """The jobs that wait for the same, in the order in which they start, and how fast that goes."""

    def __init__(self, session: Session, held: HeldJobs, now: float) -> None:
        self.session, self.now = session, now
        is_limited = JobRow.reason_code.in_(LIMITED)
        # Of most jobs it is nothing whose they are: many thousands are few rows.
        columns = (
            JobRow.site, JobRow.site_hint, JobRow.state, JobRow.priority, JobRow.reason, JobRow.reason_code,
            case((is_limited, JobRow.dag_id)).label("dag_id"), case((is_limited, JobRow.run_id)).label("run_id"),
            case((is_limited, JobRow.task_id)).label("task_id"),
            cast(JobRow.queued_at / SECONDS_TOGETHER, Integer).label("since"),
        )  # fmt: skip
        amounts = JobRow.queued_at, JobRow.planned_start, JobRow.native_start
        each = select(*columns, *amounts).where(JobRow.state.in_(WAITING)).subquery()
        together = [each.c[column.key] for column in columns]
        query = select(
            *together,
            func.count().label("jobs"),
            func.min(each.c.queued_at).label("oldest"),
            func.max(each.c.queued_at).label("queued_at"),
            *(
                # Of the last of them; None: not all have one.
                case((func.count() == func.count(column), func.max(column))).label(column.key)
                for column in (each.c.planned_start, each.c.native_start)
            ),
        )
        self.held, self.ahead = held, database_ahead(session)
        self.rows: Sequence[Any] = session.execute(query.group_by(*together)).all()
        self.waiting: dict[Place, dict[tuple[bool, int, int], int]] = {}
        self.oldest: dict[Place, float] = {}
        for row in self.rows:
            if held.by(row) is not None:
                continue
            place = place_of(row)
            turns = self.waiting.setdefault(place, {})
            turn = (row.state != State.PLACED, -row.priority, row.since)
            turns[turn] = turns.get(turn, 0) + row.jobs
            oldest = row.oldest - self.ahead
            self.oldest[place] = min(oldest, self.oldest.get(place, oldest))
        self.sums: dict[Place, tuple[list[tuple[bool, int, int]], list[int]]] = {}
        for place, turns in self.waiting.items():
            order, sums = sorted(turns), [0]
            for turn in order:
                sums.append(sums[-1] + turns[turn])
            self.sums[place] = order, sums
        self.rates: dict[Place, float | None] = {}

    def before(self, job: Any) -> Backlog:
        """What is before a job."""
        place = place_of(job)
        order, sums = self.sums.get(place, ([], [0]))
        turn = (job.state != State.PLACED, -job.priority, job.queued_at / SECONDS_TOGETHER)
        at = bisect_left(order, turn)
        # Of those that were queued with it as many are before it as behind it.
        at_once = at - 1 if at and order[at - 1][:2] == turn[:2] and turn[2] - order[at - 1][2] < 1 else at
        before = (sums[at_once] + sums[at_once + 1] - 1) / 2 if at_once < len(order) else sums[-1]
        return Backlog(before, self.rate(place), place_text(place), is_shared=job.state == State.PLACED)

    def last_start(self, why: Collection[tuple[Reason | None, str | None]]) -> ExpectedStart | NoStart | None:
        """When the last jobs are expected to start that wait for these reasons at these sites; None: of some nothing
        says it.
        """
        last: ExpectedStart | None = None
        for row in self.rows:
            if (row.reason, row.site) not in why:
                continue
            if (text := self.held.by(row)) is not None:
                return NoStart(text)
            is_known = row.planned_start is not None or row.native_start is not None
            before = None if is_known else self.before(row)
            oldest = row.oldest - self.ahead
            start = expected_start(self.now, oldest, row.planned_start, row.native_start, backlog=before)
            if start is None:
                return None
            last = start if last is None or start.at > last.at else last
        return last

    def rate(self, place: Place) -> float | None:
        """How many of those that wait for the same end in a second at full load."""
        if place not in self.rates:
            found = (self._rate(place, seconds) for seconds in SECONDS_OF_RATE)
            self.rates[place] = next((rate for rate in found if rate is not None), None)
        return self.rates[place]

    def _rate(self, place: Place, seconds: float) -> float | None:
        sort, first, second = place
        there: dict[str, Sequence[Any]] = {
            "site": () if first is None else (JobRow.site == first,),
            "task": (JobRow.dag_id == first, JobRow.task_id == second),
            "run": (JobRow.dag_id == first, JobRow.run_id == second),
        }
        since = self.now - seconds
        ends = select(JobRow.ended_at).where(*there[sort], JobRow.ended_at >= since, JobRow.started_at.is_not(None))
        ended = [at for at in self.session.scalars(ends.order_by(JobRow.ended_at.desc()).limit(MOST_OF_SITE)) if at]
        if len(ended) == MOST_OF_SITE:
            since = ended[-1]
        begun = select(QUEUED, JobRow.started_at).where(*there[sort], JobRow.started_at >= since)
        begun = begun.where(WAITED >= SECONDS_UNTIL_SAID).order_by(JobRow.started_at.desc()).limit(5 * MOST_OF_SITE)
        waits = [(queued, started) for queued, started in self.session.execute(begun) if started is not None]
        if place in self.oldest:
            waits.append((self.oldest[place], self.now))
        return rate_at_full_load(waits, ended, since)


def place_text(place: Place) -> str:
    """For what jobs wait, as text."""
    sort, first, second = place
    if sort == "site":
        return "at all sites" if first is None else f"at site {first}"
    return f"of task {second}" if sort == "task" else "of its run"


def waits_of_tasks(session: Session, tasks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    """How long the last tries of tasks have waited, seconds, by Dag and task; of :data:`MOST_TASKS` of them at most."""
    found = {}
    for dag_id, task_id in sorted(tasks)[:MOST_TASKS]:
        ended = (JobRow.dag_id == dag_id, JobRow.task_id == task_id, JobRow.ended_at.is_not(None))
        last = select(WAITED).where(*ended).order_by(JobRow.ended_at.desc()).limit(MOST_TRIES)
        found[dag_id, task_id] = [max(0.0, seconds) for seconds in session.scalars(last) if seconds is not None]
    return found


def waits_of_sites(session: Session, sites: Iterable[str], now: float) -> dict[str, list[float]]:
    """How long the batch jobs at sites that began last have waited since they were queued, seconds, by site."""
    found = {}
    for site in sorted(sites):
        # The index of starts has the sites.
        begun = (JobRow.site == site, JobRow.started_at >= now - SECONDS_OF_SITE)
        last = select(WAITED, JobRow.submitted_at).where(*begun).order_by(JobRow.started_at.desc()).limit(MOST_OF_SITE)
        rows = session.execute(last)
        found[site] = [max(0.0, seconds or 0.0) for seconds, submitted in rows if submitted is not None]
    return found


def note_plans(
    session: Session, planned: Mapping[str, float], before: Mapping[str, float], now: float
) -> dict[str, float]:
    """Store when waiting jobs are planned to start, where that has changed.

    :param planned: by token, epoch seconds
    :param before: what is stored
    :returns: what is stored now, which a plan that slips a little each time must not follow
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
    """When waiting jobs are planned to start, as an earlier controller may have stored it; by token."""
    waiting = JobRow.state.in_(WAITING), JobRow.planned_start.is_not(None)
    query = select(JobRow.token, JobRow.planned_start).where(*waiting)
    return {token: at for token, at in session.execute(query) if at is not None}


def show_starts(session: Session, jobs: Iterable[Any], now: float) -> dict[str, ExpectedStart | NoStart]:
    """The same for somebody who looks: what is shown first of a job is kept.

    :param jobs: with their :data:`COLUMNS`
    :param now: epoch seconds, by the clock of the controller
    """
    jobs = list(jobs)
    found = expected_starts(session, jobs, now)
    since = now + database_ahead(session) - SECONDS_UNTIL_SAID if found else now
    expected = {token: start for token, start in found.items() if isinstance(start, ExpectedStart)}
    new = [job.token for job in jobs if job.token in expected and job.said_at is None and job.queued_at < since]
    rows = []
    for chunk in chunks(new):
        # One that the controller changes now is kept the next time: who only looks waits for nobody.
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
    """How often what was said of starts came true.

    :param said: of how many jobs that have started something was said
    :param within: how many of them started within the interval that was said first
    """

    source: StartSource
    said: int
    within: int


def accuracy(session: Session, since: float) -> list[Accuracy]:
    """How often what was said came true of jobs that have started since a time, by what it rested on."""
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
