"""The runs with unfinished jobs: when they are expected to end, how many of their jobs wait and run, and their cost.

Times are seconds since the epoch, money USD. None means unknown.
"""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lading.executors.accounting.bills import bill_of_runs
from lading.executors.store import LIVE, JobRow, State
from lading.executors.store.jobs import QUEUED
from lading.plugin.ui.queries.bill import as_amounts
from lading.plugin.ui.queries.gantt import ExpectedSpan, Predictor, end_fields, run_times, sums_of
from lading.plugin.ui.queries.runs import RunTotals, columns, totals
from lading.plugin.ui.queries.sight import Sight

# Predicting the end of a run takes several queries.
MOST_RUNS = 20


class LiveRun(RunTotals):
    """A run with unfinished jobs."""

    dag_id: str
    running: int
    waiting: int
    expected_end: float | None
    """None: unknown, or some of its jobs are held."""
    expected_end_span: ExpectedSpan | None
    """The earliest and the latest expected end; None as above."""
    expected_end_basis: str | None
    """What the expected end is based on, as part of a sentence; None as above."""
    end_unknown: str | None
    """Why its end is unknown, as text; None: it is known."""


class LiveRunList(BaseModel):
    """The runs with unfinished jobs, newest first."""

    now: float
    runs: list[LiveRun]
    """At most :data:`MOST_RUNS`."""
    runs_left_out: int


def live_runs(session: Session, sight: Sight, now: float) -> LiveRunList:
    """Return the runs with unfinished jobs whose Dags the user can see."""
    is_running = func.sum(case((JobRow.state == State.RUNNING, 1), else_=0))
    mine = (JobRow.state.in_(LIVE), JobRow.dag_id.is_not(None), JobRow.run_id.is_not(None), sight.condition())
    each = select(JobRow.dag_id, JobRow.run_id, func.count().label("live"), is_running.label("running")).where(*mine)
    live = each.group_by(JobRow.dag_id, JobRow.run_id).subquery().c
    its = (JobRow.dag_id == live.dag_id) & (JobRow.run_id == live.run_id)
    # Finished jobs count as well, because they tell when a run began.
    columns = live.dag_id, live.run_id, live.live, live.running
    query = select(*columns, func.min(QUEUED).label("began")).join(JobRow, its).group_by(*columns)
    found = sorted(session.execute(query), key=lambda row: (-row.began, row.dag_id, row.run_id))
    predictor = Predictor(session, now, is_for_many=True)
    runs = [
        live_run(predictor, str(dag_id), str(run_id), int(live), int(running))
        for dag_id, run_id, live, running, _ in found[:MOST_RUNS]
    ]
    return LiveRunList(now=now, runs=runs, runs_left_out=len(found[MOST_RUNS:]))


def live_run(predictor: Predictor, dag_id: str, run_id: str, live: int, running: int) -> LiveRun:
    """
    :param live: the number of its unfinished jobs
    """
    session, now = predictor.session, predictor.now
    jobs = select(*columns(now)).where(JobRow.dag_id == dag_id, JobRow.run_id == run_id)
    times = run_times(predictor, dag_id, run_id, sums_of(session, dag_id, run_id, now))
    return LiveRun(
        dag_id=dag_id,
        run_id=run_id,
        running=running,
        waiting=live - running,
        end_unknown=times.end_unknown,
        billed=as_amounts(bill_of_runs(session, dag_id, [run_id])[run_id]),
        **totals(session.execute(jobs).one()),
        **end_fields(times, now),
    )
