"""Users' requests for live runs, checked against Airflow's runs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from airflow.models.dagrun import DagRun
from airflow.utils.state import DagRunState
from sqlalchemy import exists, select

from lading.executors.starts.expected_starts import WAITING
from lading.executors.store.leases import DatabaseNow
from lading.executors.store.run_rows import (
    RunForecastRow,
    RunKey,
    RunRequest,
    RunRequestRow,
    RunTerms,
    as_request,
    outdate,
)
from lading.executors.store.tables import JobRow
from lading.scheduling.hints.finish_by import parse_finish_by
from lading.scheduling.hints.values import parse_hurry
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# The time zone in which a local time is reached last.
LAST_ZONE = timezone(-timedelta(hours=12))
LIVE = (DagRunState.QUEUED, DagRunState.RUNNING)


def ask(session: Session, dag_id: str, run_id: str, hurry: object, finish_by: object, by: str) -> RunRequestRow | None:
    """Store a user's request for a live run, replacing any earlier one.

    :param hurry: a number or a word, as in the hint; None: as the Dag says
    :param finish_by: a duration, a time of day or a moment; None: as the Dag says
    :returns: None if both are None, so that the request is withdrawn
    :raises LookupError: there is no such live run
    :raises ValueError: a value is invalid, or the moment is in the past
    """
    request = RunRequest(
        None if hurry is None else parse_hurry(hurry),
        None if finish_by is None else parse_finish_by(finish_by, is_of_one_run=True),
    )
    moment = None if request.finish_by is None else request.finish_by.moment
    # Without an offset it is in the Dag's time zone, so it is surely in the past only if it is so in the last zone.
    if moment is not None and moment.replace(tzinfo=moment.tzinfo or LAST_ZONE) <= datetime.now(timezone.utc):
        raise UnitError(f"{shortened(finish_by)} is in the past; valid: a moment in the future")
    if not is_live(session, dag_id, run_id):
        raise LookupError(
            f"Dag {shortened(dag_id)} has no live run {shortened(run_id)}; valid: the id of a queued or running run"
        )
    row = session.get(RunRequestRow, (dag_id, run_id))
    if row is not None and as_request(row) != request:  # the forecast was made for the old request
        outdate(session, (dag_id, run_id))
    if request == RunRequest():
        if row is not None:
            session.delete(row)
            session.flush()
        return None
    if row is None:
        row = RunRequestRow(dag_id=dag_id, run_id=run_id)
        session.add(row)
    row.hurry, row.finish_by = request.hurry, None if request.finish_by is None else str(request.finish_by)
    row.by, row.at = by[:250], DatabaseNow()
    session.flush()
    session.refresh(row)
    return row


def is_live(session: Session, dag_id: str, run_id: str) -> bool:
    if not (dag_id.isprintable() and run_id.isprintable()):  # databases reject NUL and lone surrogates
        return False
    query = select(DagRun.run_id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id, DagRun.state.in_(LIVE))
    return session.scalar(query) is not None


def terms(session: Session, dag_id: str, run_id: str | None = None) -> dict[str, RunTerms]:
    """Return the requests and forecasts of a Dag's live runs, by run id; runs without either are left out.

    :param run_id: only this run, even if it has neither; None: all
    """
    mine = [DagRun.dag_id == dag_id, DagRun.state.in_(LIVE), *([] if run_id is None else [DagRun.run_id == run_id])]
    of_request = (DagRun.dag_id == RunRequestRow.dag_id) & (DagRun.run_id == RunRequestRow.run_id)
    of_forecast = (DagRun.dag_id == RunForecastRow.dag_id) & (DagRun.run_id == RunForecastRow.run_id)
    its = JobRow.dag_id == DagRun.dag_id, JobRow.run_id == DagRun.run_id
    planned = exists().where(*its, JobRow.state.in_(WAITING), JobRow.planned_start.is_not(None))
    query = select(DagRun.run_id, RunRequestRow, RunForecastRow, planned).where(*mine).order_by(DagRun.id)
    rows = session.execute(query.outerjoin(RunRequestRow, of_request).outerjoin(RunForecastRow, of_forecast))
    return {
        run: RunTerms(request, forecast, has_planned_jobs)
        for run, request, forecast, has_planned_jobs in rows
        if run_id or request or forecast
    }


def asked(session: Session) -> dict[RunKey, RunRequest]:
    """Return the requests for runs that have not ended."""
    mine = (DagRun.dag_id == RunRequestRow.dag_id) & (DagRun.run_id == RunRequestRow.run_id)
    rows = session.scalars(select(RunRequestRow).join(DagRun, mine).where(DagRun.state.in_(LIVE)))
    return {(row.dag_id, row.run_id): as_request(row) for row in rows}
