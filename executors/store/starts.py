"""When jobs that wait are expected to start: by plans, by batch systems, by how long earlier tries have waited.

It is found out when somebody looks. What is shown first of a job is kept, so that it can be measured how often that
came true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import bindparam, case, func, select, update

from lading.executors.store.jobs import QUEUED, chunks
from lading.executors.store.leases import database_ahead
from lading.executors.store.tables import JobRow, State
from lading.scheduling.insight.starts import ExpectedStart, KnownWaits, StartSource, expected_start

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# Of jobs that cannot start as things are: none is promised a start.
NEVER = ("batch_never",)
# So many of the last tries of a task, of so many tasks at a time, and of the last batch jobs of a site are looked at.
MOST_TRIES, MOST_TASKS, MOST_OF_SITE = 50, 100, 200
SECONDS_OF_SITE = 7 * 86400.0
WAITED = JobRow.started_at - QUEUED
COLUMNS = (
    JobRow.token, JobRow.dag_id, JobRow.task_id, JobRow.site, JobRow.state, JobRow.queued_at, JobRow.planned_start,
    JobRow.native_start, JobRow.reason_code, JobRow.said_at,
)  # fmt: skip
# What starts at once needs no forecast, seconds.
SECONDS_UNTIL_SAID = 30.0
# A plan is stored again where it differs by so many seconds, and by this part of what is left.
LEAST_MOVE, PART_OF_MOVE = 10.0, 0.1


def expected_starts(session: Session, jobs: Iterable[Any], now: float) -> dict[str, ExpectedStart]:
    """When those of these jobs will start that wait, by token, as far as anything says it.

    :param jobs: with their :data:`COLUMNS`
    :param now: epoch seconds, by the clock of the controller
    """
    waiting = [job for job in jobs if job.state in WAITING and job.reason_code not in NEVER]
    unsaid = [job for job in waiting if job.planned_start is None]
    tasks = waits_of_tasks(session, {(job.dag_id, job.task_id) for job in unsaid if job.dag_id and job.task_id})
    sites = waits_of_sites(session, {job.site for job in unsaid if job.site is not None}, now)
    ahead = database_ahead(session) if waiting else 0.0
    found = {}
    for job in waiting:
        past = []
        if known := tasks.get((job.dag_id or "", job.task_id or "")):
            past.append(KnownWaits(known, f"task {job.task_id}"))
        if job.site is not None and (known := sites.get(job.site)):
            past.append(KnownWaits(known, f"site {job.site}"))
        start = expected_start(now, job.queued_at - ahead, job.planned_start, job.native_start, past)
        if start is not None:
            found[job.token] = start
    return found


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


def show_starts(session: Session, jobs: Iterable[Any], now: float) -> dict[str, ExpectedStart]:
    """The same for somebody who looks: what is shown first of a job is kept.

    :param jobs: with their :data:`COLUMNS`
    :param now: epoch seconds, by the clock of the controller
    """
    jobs = list(jobs)
    found = expected_starts(session, jobs, now)
    since = now + database_ahead(session) - SECONDS_UNTIL_SAID if found else now
    new = [job.token for job in jobs if job.token in found and job.said_at is None and job.queued_at < since]
    rows = []
    for chunk in chunks(new):
        # One that the controller changes now is kept the next time: who only looks waits for nobody.
        free = select(JobRow.token).where(JobRow.token.in_(chunk), JobRow.said_at.is_(None))
        for token in session.scalars(free.with_for_update(skip_locked=True)):
            start = found[token]
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
