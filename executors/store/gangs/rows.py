"""Queries on gangs and holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, or_, select, update

from lading.executors.store import LIVE, JobRow, State, chunks, groups, queue, queued
from lading.executors.store.fair_queue import FairTurns, GangTurn
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.scheduling.gangs.gang import Stage
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

COLUMNS = (
    *queued.COLUMNS, JobRow.gang, JobRow.gang_terms, JobRow.state, JobRow.site, JobRow.location, JobRow.placed_at,
    JobRow.sizing, JobRow.cancel, JobRow.stage,
)  # fmt: skip
WITHOUT_SYNC = {"synchronize_session": False}


@dataclass(frozen=True, slots=True)
class GangMember:
    """A live job of a gang.

    :param job: as placement sees it
    :param gang: the token of its gang
    :param key: its task and its map index
    :param is_ready: whether it waits and its request is final
    :param stage: what is stored about the files staged to where it runs; None: none are staged
    :param held: the budget that keeps it from starting; None: none does
    """

    job: WaitingJob
    gang: str
    terms: str
    dag_id: str
    run_id: str
    key: tuple[str, int]
    state: str
    site: str | None
    location: str | None
    placed_at: float | None
    is_ready: bool
    is_cancelled: bool
    stage: str | None = None
    held: Reason | None = None

    @property
    def token(self) -> str:
        return self.job.name

    def partition(self, *, is_partial: bool) -> str:
        """Return the name of its partition: its task, or the job itself if members are scheduled individually."""
        task, map_index = self.key
        return f"{task}[{map_index}]" if is_partial and map_index >= 0 else task

    @property
    def is_at_work(self) -> bool:
        return self.state in groups.AT_WORK


@dataclass(frozen=True, slots=True)
class EndedMember:
    """A job of a gang that failed or was cancelled.

    :param began_at: when it was placed, or when it ended if it never was; epoch seconds by the controller's clock,
        because those of sites may differ
    """

    gang: str
    task_id: str
    began_at: float
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class GangRecords:
    members: Sequence[GangMember]
    gangs: Mapping[str, GangRow]
    holds: Sequence[HoldRow]
    ended: Sequence[EndedMember]


@dataclass(frozen=True, slots=True)
class GangChanges:
    """The changes of gangs and holds to record in a tick.

    :param saved: new or updated gangs
    :param gone: the tokens of gangs that are over
    :param new_holds: holds requested for the first time
    :param gone_holds: the tokens of holds that are over
    :param again: the tokens of holds that are requested again
    """

    saved: Sequence[GangRow] = ()
    gone: Collection[str] = ()
    new_holds: Sequence[HoldRow] = ()
    gone_holds: Collection[str] = ()
    again: Sequence[str] = ()


def any_gang(session: Session) -> bool:
    return session.scalar(select(GangRow.token).limit(1)) is not None


def asleep(session: Session) -> list[str]:
    """Return the jobs of gangs that sleep until their next attempt."""
    return [*session.scalars(select(JobRow.token).where(JobRow.state == State.ATTEMPTED))]


def load(
    session: Session,
    *,
    by_dag: bool,
    database_ahead: float = 0.0,
    fair: FairTurns | None = None,
    rests: Mapping[str, float] = queue.NO_RESTS,
) -> GangRecords:
    """Read all stored data on gangs, detached from the session.

    :param by_dag: whether some site accepts only certain Dags
    :param database_ahead: seconds by which the database's clock, which dates the queueing of jobs, is ahead of this
        host's
    :param fair: the budgets and shares of the jobs; None: none are declared
    :param rests: the longest remaining path of each job's run, which orders jobs of equal priority; by token, in
        seconds
    """
    query = select(*COLUMNS).where(JobRow.gang.is_not(None), JobRow.state.in_(LIVE)).order_by(*groups.ORDER)
    members = [
        GangMember(
            _as_waiting(row, by_dag, database_ahead, fair, rests),
            row.gang,
            row.gang_terms or "{}",
            str(row.dag_id),
            str(row.run_id),
            (str(row.task_id), row.map_index),
            row.state,
            row.site,
            row.location,
            row.placed_at,
            row.state in (State.QUEUED, State.ATTEMPTED) and row.sizing is None and row.cancel is None,
            row.cancel is not None,
            row.stage,
            None if fair is None else fair.terms(row).held,
        )
        for row in session.execute(query)
    ]
    gangs = {row.token: row for row in session.scalars(select(GangRow))}
    holds = session.scalars(select(HoldRow).order_by(HoldRow.created_at, HoldRow.token)).all()
    started = [row.token for row in gangs.values() if row.started_at is not None]
    columns = JobRow.gang, JobRow.task_id, JobRow.placed_at, JobRow.ended_at, JobRow.reason
    ended = [
        EndedMember(row.gang, str(row.task_id), row.placed_at or row.ended_at or 0.0, row.reason)
        for chunk in chunks(started)
        for row in session.execute(
            select(*columns).where(
                JobRow.gang.in_(chunk),
                # Airflow itself decided about a job that was cancelled with exit code 0.
                or_(
                    JobRow.state == State.FAILED,
                    and_(JobRow.state == State.CANCELLED, JobRow.exit_code.is_distinct_from(0)),
                ),
            )
        )
    ]
    session.expunge_all()
    return GangRecords(members, gangs, holds, ended)


def turns(known: GangRecords) -> list[GangTurn]:
    """Return the gangs that wait for their turn: none of their members runs, holds room or is held by a budget."""
    by_gang: dict[str, list[GangMember]] = {}
    for each in known.members:
        by_gang.setdefault(each.gang, []).append(each)
    holding = {row.gang for row in known.holds}
    found = []
    for token, members in by_gang.items():
        if token in holding or any(each.is_at_work or each.held is not None for each in members):
            continue
        first, jobs = members[0].job, [each.job for each in members]
        need = (
            max(job.resources.cpus for job in jobs),
            float(max(job.resources.memory for job in jobs)),
            max(job.resources.gpus for job in jobs),
        )
        found.append(GangTurn(token, first.share or "", need, first.priority, first.queued_at, first.rest, first.site))
    return found


def _as_waiting(
    row: Any, by_dag: bool, database_ahead: float, fair: FairTurns | None, rests: Mapping[str, float]
) -> WaitingJob:
    job = queue.as_waiting(row, by_dag, database_ahead=database_ahead, rests=rests)
    if fair is None:
        return job
    terms = fair.terms(row)
    return replace(
        job, share=terms.share, budgets=terms.budgets, hour_budgets=terms.hour_budgets, hours=fair.hours(row)
    )


def apply(session: Session, changes: GangChanges, now: float) -> None:
    """Store the decisions about gangs and holds, before any site is contacted.

    :param now: epoch seconds
    """
    for row in changes.saved:
        session.merge(row)
    for table, tokens in ((GangRow, changes.gone), (HoldRow, changes.gone_holds)):
        for chunk in chunks(sorted(tokens)):
            session.execute(delete(table).where(table.token.in_(chunk)))
    session.add_all(changes.new_holds)
    for chunk in chunks(changes.again):
        query = update(HoldRow).where(HoldRow.token.in_(chunk)).values(asked_at=now)
        session.execute(query, execution_options=WITHOUT_SYNC)


def store_answers(session: Session, site: str, answers: Iterable[tuple[str, str, Reason | None]]) -> None:
    """Store a site's answers about its own holds.

    :param answers: the token, the new state and the reason of each
    """
    for token, state, reason in answers:
        # A lost hold stays lost, because an older answer may arrive again.
        before = HoldRow.state == "asked" if state == "held" else HoldRow.state.in_(("asked", "held"))
        query = update(HoldRow).where(HoldRow.token == token, HoldRow.site == site, before)
        session.execute(query.values(state=state, reason=reason), execution_options=WITHOUT_SYNC)


def wake_with(session: Session, token: str) -> bool:
    """Make the gang of a job due for its next attempt now; return whether it was asleep."""
    row = session.scalar(select(GangRow).join(JobRow, JobRow.gang == GangRow.token).where(JobRow.token == token))
    if row is None or row.stage != Stage.ATTEMPTED:
        return False
    row.wake_at = 0.0  # in the past by any clock
    return True


def held_for(session: Session) -> dict[str, str]:
    """Return where room is held for jobs, as ``site/location``, by the token of the job."""
    query = select(HoldRow.job, HoldRow.site, HoldRow.location).where(HoldRow.state == "held")
    return {job: f"{site}/{location}" for job, site, location in session.execute(query)}


def held_by(session: Session) -> Sequence[Any]:
    """Return the room held for waiting jobs.

    The rows have the reason, Dag and site of the jobs, the name of their gang, the site and location of the room, the
    number of jobs, and their cpus.
    """
    who = JobRow.reason, JobRow.dag_id, JobRow.site, GangRow.name, HoldRow.site, HoldRow.location
    query = select(*who, func.count(), func.sum(HoldRow.cpus)).join(JobRow, JobRow.token == HoldRow.job)
    query = query.outerjoin(GangRow, GangRow.token == HoldRow.gang)
    waits = JobRow.state.in_((State.QUEUED, State.ATTEMPTED))
    return session.execute(query.where(HoldRow.state == "held", waits).group_by(*who)).all()


def wake(session: Session, dag_id: str, run_id: str | None = None, name: str | None = None) -> int:
    """Make the sleeping gangs of a Dag due for their next attempt now; return how many there are.

    :param run_id: only gangs of this run; None: of all runs
    :param name: only the gang of this name, or the gangs of this task; None: all
    """
    query = select(GangRow).where(GangRow.dag_id == dag_id, GangRow.stage == Stage.ATTEMPTED)
    if run_id is not None:
        query = query.where(GangRow.run_id == run_id)
    if name is not None:
        its_jobs = select(JobRow.gang).where(JobRow.dag_id == dag_id, JobRow.task_id == name, JobRow.gang.is_not(None))
        query = query.where(or_(GangRow.name == name, GangRow.token.in_(its_jobs)))
    rows = session.scalars(query).all()
    for row in rows:
        row.wake_at = 0.0  # in the past by any clock
    return len(rows)
