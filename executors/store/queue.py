"""The queue as placement and dispatch need it: the waiting jobs, and those given to sites."""

from __future__ import annotations

import heapq
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, or_, select

from lading.executors import store
from lading.executors.store import JobRow, State, fair_queue, groups, shapes
from lading.executors.store.durations import Durations
from lading.executors.store.fair_queue import FairTurns, TenantTerms
from lading.executors.store.queued import COLUMNS, QueueColumns, QueuedJobs
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.scheduling.matching.groups import run_name, task_name
from lading.scheduling.matching.waiting import HINTS, WaitingJob
from lading.scheduling.model.job import Budget
from lading.scheduling.model.job import PlannedJob as Planned
from lading.scheduling.model.location import AssignedJob, Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# How many waiting jobs one tick considers in their order, and how many more behind those, some of each shape, so that
# no shape hides another.
MOST_JOBS_PER_TICK = 1000
NO_FEATURES: frozenset[str] = frozenset()
NO_RESTS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GivenJob:
    """A job that was given to a site and has not ended.

    :param terms: the rules of its tenant; None: not needed
    :param hours: the cpu-hours it is predicted to use from now on, if a budget limits them
    :param gang: the name of its gang; None: it starts alone
    :param is_script: whether it is the run of a job script, which the triggerer submits
    """

    job: WaitingJob
    state: str
    location: str | None
    placed_at: float | None
    expires_at: float | None
    cancel: Reason | None
    started_at: float | None = None
    terms: TenantTerms | None = None
    hours: float = 0.0
    gang: str | None = None
    is_script: bool = False

    @property
    def token(self) -> str:
        return self.job.name


def waiting(
    session: Session,
    turn: int = 0,
    *,
    by_dag: bool = False,
    durations: Durations | None = None,
    database_ahead: float = 0.0,
    rests: Mapping[str, float] = NO_RESTS,
    fair: FairTurns | None = None,
    queued: QueuedJobs | None = None,
) -> list[WaitingJob]:
    """Return the jobs to place, in the order in which they should start; of a limited group, only as many as can start.

    :param turn: selects the shapes to consider if there are too many for one tick
    :param by_dag: whether some site accepts only certain Dags
    :param durations: predicts how long jobs run; None: no decision depends on that
    :param database_ahead: seconds by which the database's clock, which dates the queueing of jobs, is ahead of this
        host's
    :param rests: the longest remaining path of each job's run, which orders jobs of equal priority; by token, in
        seconds; empty: they are ordered by arrival
    :param fair: how shares take turns; None: they do not
    :param queued: the waiting jobs; None: read them
    """
    queued = queued or QueuedJobs().read(session)
    build = partial(
        as_waiting, by_dag=by_dag, durations=durations, database_ahead=database_ahead, rests=rests, fair=fair
    )
    with_limit = groups.may_start(session, queued, MOST_JOBS_PER_TICK, rests)
    are_more = False
    if fair is not None:
        rows, are_more = fair_queue.first(queued, MOST_JOBS_PER_TICK, fair, rests)
        have_limit = {row.token for row in with_limit}
        in_order = fair.put_in_order([*rows, *with_limit], rests)
        with_limit = [row for row in in_order if row.token in have_limit]
        others = in_order if not have_limit else [row for row in in_order if row.token not in have_limit]
        jobs = [build(row) for row in others[:MOST_JOBS_PER_TICK]]
    else:
        jobs = [build(row) for row in first_by_rest(queued, rests)]
    limited = with_budgets(with_limit, build, session)
    # Some of the jobs found first have been placed since then, so there may be fewer.
    if len(jobs) == MOST_JOBS_PER_TICK or (are_more and jobs):
        end = jobs[-1].rank
        jobs = with_all_shapes(queued, jobs, turn, by_dag, build, fair)
        limited = [replace(job, may_overtake=job.rank > end) for job in limited]
    return sorted(jobs + limited, key=lambda job: job.rank)


def first_by_rest(queued: QueuedJobs, rests: Mapping[str, float]) -> list[QueueColumns]:
    """Return the first jobs without a limit, ordered by priority and the longest remaining path of their run."""
    lanes = queued.lanes.values()
    if not rests:
        return queued.first(lanes, MOST_JOBS_PER_TICK)
    ranks = (rank for lane in lanes for rank in lane.ranks)
    order = ((rank.level, -rests.get(rank.token, 0.0), rank.queued_at, rank.token) for rank in ranks)
    return queued.rows(token for *_, token in heapq.nsmallest(MOST_JOBS_PER_TICK, order))


def with_budgets(rows: Sequence[Any], build: Callable[[Any], WaitingJob], session: Session) -> list[WaitingJob]:
    if all(row.max_usd is None for row in rows):
        return [build(row) for row in rows]
    runs = ((str(row.dag_id), str(row.run_id)) for row in rows if row.max_usd is not None)
    costs = groups.costs(session, runs, time.time())
    jobs = []
    for row in rows:
        spent, per_hour = costs.get((row.dag_id, row.run_id), (0.0, 0.0))
        job = build(row)
        budget = Budget(run_name(row.dag_id, row.run_id), row.max_usd, spent, per_hour) if row.max_usd else None
        jobs.append(job if budget is None else replace(job, budgets=(budget, *job.budgets)))
    return jobs


def with_all_shapes(
    queued: QueuedJobs,
    first: Sequence[WaitingJob],
    turn: int,
    by_dag: bool,
    build: Callable[..., WaitingJob],
    fair: FairTurns | None = None,
) -> list[WaitingJob]:
    """Return the first waiting jobs and some of each shape behind them, with marks where jobs were left out."""
    totals, seen = shapes.totals(queued, by_dag), Counter(job.shape for job in first)
    most = max(1, MOST_JOBS_PER_TICK // max(1, len(totals)))
    wanted = {shape: min(total, most) for shape, total in totals.items()}
    jobs = list(first)
    if any(seen[shape] < number for shape, number in wanted.items()):
        pages, begun, end = -(-len(totals) // MOST_JOBS_PER_TICK), time.monotonic(), first[-1].rank

        def behind(rows: Iterable[QueueColumns]) -> list[WaitingJob]:
            made = [build(row, may_overtake=True) for row in rows if fair is None or fair.terms(row).held is None]
            return [job for job in made if job.rank > end]

        known = None if fair is None or pages > 1 else fair.first.others
        found = None
        if known is not None and known.tokens is not None and begun < known.ends_at:
            names = {job.name for job in first}
            found = behind(queued.rows(token for token in known.tokens if token not in names))
            counts = seen + Counter(job.shape for job in found)
            if begun >= known.due_at and any(2 * counts[shape] < number for shape, number in wanted.items()):
                found = None
        if found is None:
            found = behind(shapes.of_each(queued, by_dag, most, MOST_JOBS_PER_TICK, turn % pages))
            if known is not None:
                found = as_many_of_each(found, seen, most)
                # They are searched for again after a pause if too few of a shape are left, and after 30 s in any case.
                known.note([job.name for job in found], begun, 30.0)
        jobs += found
    seen = Counter(job.shape for job in jobs)
    last = {job.shape: index for index, job in enumerate(jobs)}
    for shape, index in last.items():
        if seen[shape] < totals.get(shape, 0):
            jobs[index] = replace(jobs[index], hidden=totals[shape] - seen[shape])
    return jobs


def as_many_of_each(jobs: Iterable[WaitingJob], seen: Mapping[Any, int], most: int) -> list[WaitingJob]:
    """Return the first of the jobs, up to a number for each shape.

    :param seen: how many jobs of each shape are considered already
    :param most: how many of each shape are to be considered
    """
    counts, found = Counter(seen), []
    for job in jobs:
        if counts[job.shape] < most:
            counts[job.shape] += 1
            found.append(job)
    return found


def as_waiting(
    row: Any,
    by_dag: bool,
    durations: Durations | None = None,
    database_ahead: float = 0.0,
    rests: Mapping[str, float] = NO_RESTS,
    fair: FairTurns | None = None,
    may_overtake: bool = False,
) -> WaitingJob:
    """Build a waiting job from a row of the query for jobs that can be placed.

    :param by_dag: whether some site accepts only certain Dags
    :param durations: predicts how long the job runs; None: no decision depends on that
    :param database_ahead: seconds by which the database's clock, which dates the queueing of jobs, is ahead of this
        host's
    :param rests: the longest remaining path of each job's run, by token, in seconds
    :param fair: how shares take turns; None: they do not
    :param may_overtake: whether jobs that should start before this one may have been left out
    """
    queue = row.queue or row.queue_hint
    terms = None if fair is None else fair.terms(row)
    return WaitingJob(
        name=row.token,
        resources=Resources(row.cpus, row.memory, row.disk, row.gpus),
        priority=row.priority if fair is None else fair.priority(row),
        queued_at=row.queued_at - database_ahead,
        turn=0.0 if fair is None else fair.turn(row.token),
        share=None if terms is None else terms.share,
        budgets=() if terms is None else terms.budgets,
        hour_budgets=() if terms is None else terms.hour_budgets,
        hours=0.0 if fair is None else fair.hours(row),
        rest=rests.get(row.token, 0.0) if rests else 0.0,
        time=row.time_limit,
        instance_type=row.instance_type,
        hints=HINTS[queue is not None or row.native_hint is not None, row.nodes is not None],
        site=row.site_hint,
        reason=row.reason,
        memory_limit=row.memory_limit,
        queue=queue,
        native=row.native_hint,
        targets=row.targets,
        soft=row.soft,
        may_overtake=may_overtake,
        dag_of_shape=row.dag_id if by_dag else None,
        team_of_shape=row.team if by_dag else None,
        dag_id=row.dag_id,
        team=row.team,
        run_id=row.run_id,
        task_id=row.task_id,
        map_index=row.map_index,
        input_values=row.input_values,
        arch=row.arch,
        os=row.os,
        features=frozenset(row.features.split(",")) if row.features else NO_FEATURES,
        capacity_type=row.capacity_type,
        task=None if row.max_instances is None else task_name(row.dag_id, row.run_id, row.task_id),
        run=None if row.run_max_instances is None else run_name(row.dag_id, row.run_id),
        nodes=row.nodes or 1,
        max_instances=row.max_instances,
        run_max_instances=row.run_max_instances,
        expected=None if durations is None else durations.predict(row),
    )


def _gang(terms: str | None) -> str | None:
    """Return the name of a job's gang; None: it starts alone, or its terms are invalid, which is reported elsewhere."""
    try:
        name: str | None = json.loads(terms or "{}").get("name")
    except (ValueError, AttributeError):
        return None
    return name


def given(
    session: Session,
    site: str,
    durations: Durations | None = None,
    database_ahead: float = 0.0,
    terms: Callable[[Any], TenantTerms] | None = None,
    hours: Callable[[Any], float] = lambda row: 0.0,
) -> list[GivenJob]:
    """Return the jobs that were given to a site and have not ended.

    :param durations: predicts how long jobs run; None: no decision depends on that
    :param database_ahead: seconds by which the database's clock, which dates the queueing of jobs, is ahead of this
        host's
    :param terms: returns the rules of a row's tenant; None: they are not needed
    :param hours: returns the cpu-hours that a row's job is predicted to use from now on
    """
    columns = JobRow.state, JobRow.location, JobRow.placed_at, JobRow.expires_at, JobRow.cancel, JobRow.started_at
    at_work = JobRow.site == site, JobRow.state.in_(groups.AT_WORK)
    return [
        GivenJob(
            as_waiting(QueueColumns._make(row[: len(QueueColumns._fields)]), False, durations, database_ahead),
            row.state,
            row.location,
            row.placed_at,
            row.expires_at,
            row.cancel,
            row.started_at,
            None if terms is None else terms(row),
            hours(row),
            _gang(row.gang_terms),
            row.kind == JOB_SCRIPT,
        )
        for row in session.execute(select(*COLUMNS, *columns, JobRow.gang_terms).where(*at_work))
    ]


def cancellations(session: Session) -> dict[str, dict[str, dict[str, Reason]]]:
    """Return why jobs given to sites are being cancelled, by site, location and token."""
    asked = JobRow.state.in_(groups.AT_WORK), JobRow.cancel.is_not(None)
    found: dict[str, dict[str, dict[str, Reason]]] = {}
    for site, location, token, reason in session.execute(
        select(JobRow.site, JobRow.location, JobRow.token, JobRow.cancel).where(*asked)
    ):
        if site is not None and location is not None and reason is not None:
            found.setdefault(site, {}).setdefault(location, {})[token] = reason
    return found


def places(session: Session, tokens: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the sites and locations of those of these jobs that were given to one, by token."""
    query = select(JobRow.token, JobRow.site, JobRow.location).where(JobRow.location.is_not(None))
    return {
        token: (str(site), str(location))
        for chunk in store.chunks(tokens)
        for token, site, location in session.execute(query.where(JobRow.token.in_(chunk)))
    }


def on_machines(session: Session, waiting: Iterable[WaitingJob]) -> list[tuple[WaitingJob, str, str]]:
    """Return the jobs given to sites whose group has a limit on machines and has waiting jobs.

    :returns: each job with its site and location
    """
    runs = {job.run_id for job in waiting if job.task is not None or job.run is not None}
    found = []
    for chunk in store.chunks(sorted(filter(None, runs))):
        at_work = (JobRow.run_id.in_(chunk), JobRow.state.in_(groups.AT_WORK), groups.OF_MACHINES)
        rows = session.execute(select(*COLUMNS, JobRow.site, JobRow.location).where(*at_work))
        found += [(as_waiting(row, False), str(row.site), str(row.location)) for row in rows]
    return found


def busy(session: Session, site: str) -> set[str]:
    """Return the locations of a site that have jobs."""
    query = select(JobRow.location).where(JobRow.site == site, JobRow.state.in_(groups.AT_WORK)).distinct()
    return {name for name in session.scalars(query) if name is not None}


def to_send(session: Session, tokens: Sequence[str]) -> list[JobRow]:
    """Return the rows of placed jobs; those that have ended meanwhile are left out.

    A job script that runs is sent, too, so that its site follows it again after a restart of the controller.
    """
    is_followed = and_(JobRow.state == State.RUNNING, JobRow.kind == JOB_SCRIPT)
    can_be_sent = or_(JobRow.state == State.PLACED, is_followed)
    return [
        job
        for chunk in store.chunks(tokens)
        for job in session.scalars(select(JobRow).where(JobRow.token.in_(chunk), can_be_sent))
    ]


def by_location(jobs: Iterable[GivenJob]) -> dict[str | None, list[GivenJob]]:
    found: dict[str | None, list[GivenJob]] = {}
    for job in jobs:
        found.setdefault(job.location, []).append(job)
    return found


def loaded(
    location: Location,
    here: Sequence[GivenJob],
    prefetchable: int,
    need: Callable[[WaitingJob], Planned] = lambda job: job,
) -> Location:
    """Return a location with the jobs that were given to it, regardless of what its site reports.

    :param here: the jobs given to it
    :param prefetchable: how many jobs can be prefetched to it because its jobs are short
    :param need: returns the resources that a job takes there
    """
    is_queue = location.max_jobs is not None
    jobs, prefetchable = (len(here), 0) if is_queue else (0, prefetchable)
    bare = replace(
        location,
        used=Resources(),
        prefetched=(),
        tasks=frozenset(),
        runs=frozenset(),
        prefetchable=prefetchable,
        jobs=jobs,
        running_jobs=(),
    )
    if not here:
        return bare
    location = bare.with_labels([each.job for each in here])
    if is_queue:
        return location
    begun = [(each.started_at, need(each.job)) for each in here if each.state == State.RUNNING]
    running = [job.resources for _, job in begun]
    # If durations matter, every running job has a predicted one.
    known = tuple(AssignedJob(at, job.expected, job.resources) for at, job in begun if at is not None and job.expected)
    prefetched = [need(each.job) for each in here if each.state == State.PLACED]
    used = sum(running, Resources())
    location = replace(location, used=used, jobs=len(running), running_jobs=known)
    return location.given(prefetched)
