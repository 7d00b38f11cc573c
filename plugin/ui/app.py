"""The application in Airflow's API server: the data of the page as JSON, and the page's own files.

It only reads the store and contacts no site: requests to sites are stored for the controller. Every route with data
asks Airflow whether its user may read it; the page's files contain no data.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator, BaseModel, Field
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.types import Receive, Scope, Send
from tenacity import Retrying

from lading.executors import request_rows
from lading.executors.orchestrator import airflow_run_requests
from lading.executors.request_rows import RequestKind
from lading.executors.store import JobRow, State
from lading.executors.store.leases import controller_now
from lading.plugin.ui.access import (
    ActsDep,
    EditsRunsDep,
    SightDep,
    audited,
    in_sight,
    may_act,
    may_edit_run,
    may_look,
    may_see_dag,
    patience,
    well_named,
)
from lading.plugin.ui.queries.advice import Advice, Savings, advice, savings
from lading.plugin.ui.queries.bill import BillPage, Split, bill_page
from lading.plugin.ui.queries.chart import ChartMachine, PackingChart, machines, packing
from lading.plugin.ui.queries.explorer import JobChoice, JobPage, Order, SortKey, csv_rows, find_jobs
from lading.plugin.ui.queries.failures import FailureGroups, count_failed_tasks, failures
from lading.plugin.ui.queries.gantt import RunGantt, gantt
from lading.plugin.ui.queries.live_runs import LiveRunList, live_runs
from lading.plugin.ui.queries.now import (
    DagStarts,
    Summary,
    WaitGroups,
    budgets_out_of_sight,
    starts_by_dag,
    summary,
    waits,
)
from lading.plugin.ui.queries.queue_waits import WaitsBySize, queue_waits
from lading.plugin.ui.queries.runs import (
    MOST_RUNS,
    MOST_TRIES,
    RunOutlook,
    RunPage,
    RunSort,
    RunSummary,
    TryPage,
    outlook,
    run,
    runs,
    tries,
)
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.starts import StartAccuracy, start_accuracy
from lading.scheduling.accounting.periods import SECONDS_PER_DAY, Period
from lading.scheduling.hints.finish_by import parse_finish_by
from lading.scheduling.model.plan import MOST_HURRY
from lading.scheduling.text.units import UnitError

log = logging.getLogger(__name__)

STATIC = Path(__file__).with_name("static")
# The longest time range of a bill, and of a bill by day, in seconds.
LONGEST_BILL, LONGEST_DAILY_BILL = 3660 * 86400.0, 400 * 86400.0
# PostgreSQL cannot store the character U+0000 in text.
NAME = r"^[^\x00]*$"

Time = Annotated[float, Query(ge=0, le=32_503_680_000.0, allow_inf_nan=False)]  # until the year 3000
Name = Annotated[str, Query(min_length=1, max_length=250, pattern=NAME)]
# At most this many values of one parameter are accepted.
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=250, pattern=NAME)]] | None, Query(max_length=50)]
# The ``after`` of the previous page. For tries: when its last job was queued, and its token. For jobs: when the first
# page was requested, the value its last job was sorted by, and its token.
AfterTry = Annotated[str, Query(max_length=100, pattern=rf"^[0-9]{{1,12}}(\.[0-9]+)?:{NAME[1:]}")]
# Any such number is finite.
NUMBER = r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-][0-9]{1,2})?"
After = Annotated[str, Query(max_length=500, pattern=rf"^{NUMBER}:{NUMBER}:{NAME[1:]}")]
Limit = Annotated[int, Query(ge=1, le=MOST_TRIES)]


Answer = TypeVar("Answer")
HurryWord = Literal["cheap", "balanced", "fast"]


def checked_end(text: str) -> str:
    """Return the time by which a run must finish unchanged if it is valid.

    :raises UnitError: it is invalid
    """
    parse_finish_by(text, is_of_one_run=True)
    return text


class ErrorDetail(BaseModel):
    """Why a request was refused or has failed."""

    detail: str


class RequestBody(BaseModel):
    """A request of a user to the controller."""

    kind: RequestKind
    target: str = Field(min_length=1, max_length=320, pattern=NAME)
    """The site to pause or resume, the ``site/instance`` to drain or terminate, the id of the job to wake, or the name
    of the budget to lift or restore."""


class HurryBody(BaseModel):
    """How a live run is to be hurried. Replaces earlier requests; if both fields are null, the Dag's settings apply."""

    hurry: Annotated[float, Field(ge=0, le=MOST_HURRY, allow_inf_nan=False)] | HurryWord | None = None
    """How much finishing early is worth, as in the hint ``hurry``."""
    finish_by: Annotated[str, Field(min_length=1, max_length=40, pattern=NAME), AfterValidator(checked_end)] | None = (
        None
    )
    """A maximum duration (``2h``), a time of day in the Dag's time zone (``06:00``), or a time in ISO 8601."""


class OperatorRequest(BaseModel):
    """A user's request and its outcome."""

    id: int
    kind: RequestKind
    target: str
    by: str
    at: float
    done_at: float | None
    outcome: str | None


REFUSED: dict[int | str, dict[str, Any]] = {
    status.HTTP_401_UNAUTHORIZED: {"model": ErrorDetail, "description": "No user is logged in"},
    status.HTTP_403_FORBIDDEN: {"model": ErrorDetail, "description": "The user is not allowed to see or do this"},
    status.HTTP_503_SERVICE_UNAVAILABLE: {"model": ErrorDetail, "description": "The database is locked or unreachable"},
}
NOT_ASKED: dict[int | str, dict[str, Any]] = {
    status.HTTP_400_BAD_REQUEST: {"model": ErrorDetail, "description": "The body is not JSON"},
    status.HTTP_404_NOT_FOUND: {"model": ErrorDetail, "description": "The target does not exist"},
}

CSV: dict[int | str, dict[str, Any]] = {
    status.HTTP_200_OK: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "One row per job"},
    status.HTTP_429_TOO_MANY_REQUESTS: {"model": ErrorDetail, "description": "Another export by this user is running"},
}

NO_RUN: dict[int | str, dict[str, Any]] = {
    status.HTTP_400_BAD_REQUEST: {"model": ErrorDetail, "description": "The body is not JSON"},
    status.HTTP_404_NOT_FOUND: {"model": ErrorDetail, "description": "No live run has this id"},
}

NOT_SEEN: dict[int | str, dict[str, Any]] = {
    status.HTTP_404_NOT_FOUND: {
        "model": ErrorDetail,
        "description": "No such Dag exists that the user can read",
    },
}

looks = APIRouter(dependencies=[may_look], responses=REFUSED)
acts = APIRouter(dependencies=[may_look, may_act, audited], responses=REFUSED)
of_dags = APIRouter(dependencies=[well_named, may_look, may_see_dag, in_sight], responses={**REFUSED, **NOT_SEEN})

of_runs = APIRouter(
    dependencies=[well_named, may_look, may_see_dag, in_sight, may_edit_run, audited],
    responses={**REFUSED, **NOT_SEEN},
)


@looks.get("/summary")
def get_summary(session: SessionDep, sight: SightDep, may_act: ActsDep) -> Summary:
    """The present state: sites, running and waiting jobs, machines and what they cost now."""
    now = controller_now(session)
    failed_tasks = count_failed_tasks(session, now - SECONDS_PER_DAY)
    return summary(session, sight, now).model_copy(update={"may_act": may_act, "failed_tasks": failed_tasks})


@looks.get("/waits")
def get_waits(session: SessionDep, sight: SightDep) -> WaitGroups:
    """Why jobs wait, grouped by reason code, site and limit, largest group first."""
    return waits(session, sight, controller_now(session))


@looks.get("/waits/dags")
def get_waits_dags(
    session: SessionDep, sight: SightDep, key: Name, site: Name | None = None, limit: Name | None = None
) -> list[DagStarts]:
    """When the first and the last job of each Dag in a group of waiting jobs are expected to start, for the Dags with
    the most jobs. The parameters are those of the group.
    """
    return starts_by_dag(session, sight, controller_now(session), key, site, limit)


@looks.get("/machines")
def get_machines(session: SessionDep, since: Time, until: Time) -> list[ChartMachine]:
    """The machines, allocations and instances that existed within a window."""
    check_window(since, until)
    return machines(session, since, until)


@looks.get("/packing", response_model=PackingChart)
def get_packing(session: SessionDep, sight: SightDep, since: Time, until: Time, cursor: Time | None = None) -> Response:
    """What ran where within a window, or only the changes since the cursor of an earlier answer."""
    check_window(since, until)
    found = packing(session, sight, since, until, time.time(), cursor)
    # Serialized here: FastAPI would validate thousands of rectangles a second time.
    return Response(found.model_dump_json(), media_type="application/json")


@looks.get("/failures")
def get_failures(session: SessionDep, sight: SightDep, since: Time) -> FailureGroups:
    """Why jobs have failed since a time, grouped by cause, largest group first, with what tasks should request."""
    return failures(session, sight, since, controller_now(session))


@looks.get("/queue-waits")
def get_queue_waits(session: SessionDep) -> WaitsBySize:
    """How long batch jobs, allocations and instances waited before they started, by site, queue and size."""
    return queue_waits(session)


@looks.get("/starts")
def get_starts(session: SessionDep, since: Time) -> list[StartAccuracy]:
    """How often jobs that started since a time did so within the interval first predicted for them."""
    return start_accuracy(session, since)


@looks.get("/live-runs")
def get_live_runs(session: SessionDep, sight: SightDep) -> LiveRunList:
    """The runs with unfinished jobs: when they are expected to end, how many of their jobs wait and run, and their cost
    so far. Only runs of Dags you can read.
    """
    return live_runs(session, sight, controller_now(session))


@looks.get("/bill")
def get_bill(
    session: SessionDep, sight: SightDep, since: Time, until: Time, by: Period = Period.DAY, split: Split = "dag"
) -> BillPage:
    """The bill by day, week or month in UTC, and by Dag, task, run, site or team. Costs are split into used, requested
    but unused, idle and booting. Dags you cannot read are combined into one row.
    """
    if not since < until <= since + LONGEST_BILL or (by is Period.DAY and until > since + LONGEST_DAILY_BILL):
        message = (
            f"the bill from {since} to {until} by {by.value} is invalid: since must be before until, by at most 400 "
            "days for a bill by day and ten years otherwise"
        )
        raise refused_value(("query", "until"), message, until)
    return bill_page(session, sight, since, until, by, split, controller_now(session))


@looks.get("/savings")
def get_savings(session: SessionDep, sight: SightDep, dag_id: Name | None = None) -> Savings:
    """What tasks, of one Dag or of all, would save per month if they requested only what they need, largest savings
    first.
    """
    if dag_id is not None and not sight.sees(dag_id):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "Forbidden")
    return savings(session, sight, controller_now(session), dag_id)


def chosen(
    q: Annotated[str | None, Query(min_length=1, max_length=200, pattern=NAME)] = None,
    dag_id: Names = None,
    team: Names = None,
    run_id: Name | None = None,
    task_id: Name | None = None,
    site: Names = None,
    location: Name | None = None,
    state: Annotated[list[State] | None, Query(max_length=50)] = None,
    cause: Names = None,
    reason_code: Names = None,
    reason_limit: Name | None = None,
    reason_site: Name | None = None,
    queued_since: Time | None = None,
    queued_until: Time | None = None,
    ended_since: Time | None = None,
) -> JobChoice:
    return JobChoice(
        q=q,
        dag_id=dag_id or (),
        team=team or (),
        run_id=run_id,
        task_id=task_id,
        site=site or (),
        location=location,
        state=[each.value for each in state or ()],
        cause=cause or (),
        reason_code=reason_code or (),
        reason_limit=reason_limit,
        reason_site=reason_site,
        since=queued_since,
        until=queued_until,
        ended_since=ended_since,
    )


ChoiceDep = Annotated[JobChoice, Depends(chosen)]


def check_choice(choice: JobChoice, sight: Sight) -> None:
    """Answer 403 if a filter names a Dag that the user cannot read."""
    if not all(sight.sees(dag_id) for dag_id in choice.dag_id):
        raise HTTPException(status.HTTP_403_FORBIDDEN, "Forbidden")


@looks.get("/jobs")
def get_jobs(
    session: SessionDep,
    sight: SightDep,
    choice: ChoiceDep,
    sort: SortKey = "queued",
    order: Order = "desc",
    limit: Limit = 50,
    after: After | None = None,
) -> JobPage:
    """A page of the jobs that match the filters. Jobs of Dags you cannot read show only their size, and only if no
    filters other than times are set. Sorted by ``starts``, only waiting jobs are listed, those without an expected
    start last.
    """
    check_choice(choice, sight)
    return find_jobs(session, sight, choice, controller_now(session), sort, order, limit, after)


@looks.get("/jobs.csv", response_class=StreamingResponse, responses=CSV)
def get_jobs_csv(session: SessionDep, user: GetUserDep, sight: SightDep, choice: ChoiceDep) -> StreamingResponse:
    """All jobs that match the filters and whose Dags you can read, as CSV, newest first; one export at a time."""
    check_choice(choice, sight)

    # The export opens its own sessions, because the session of the request is closed before the answer is complete.
    rows = csv_rows(partial(create_session, scoped=False), sight, choice, controller_now(session))
    headers = {"Content-Disposition": 'attachment; filename="lading_jobs.csv"'}
    return Export(user.get_id(), rows, headers)


@looks.get("/requests")
def get_requests(session: SessionDep, sight: SightDep) -> list[OperatorRequest]:
    """All open requests, and the last ones of the last 24 hours with their outcomes, newest first. Budgets you cannot
    see are left out.
    """
    rows = request_rows.latest(session, time.time() - 86400, 20)
    unseen = budgets_out_of_sight(session, sight)
    return [
        OperatorRequest.model_validate(row, from_attributes=True)
        for row in rows
        if row.kind not in request_rows.OF_BUDGETS or row.target not in unseen
    ]


@acts.post("/requests", status_code=status.HTTP_202_ACCEPTED, responses=NOT_ASKED)
def post_request(session: SessionDep, user: GetUserDep, asked: RequestBody) -> OperatorRequest:
    """Tell the controller to pause or resume a site, drain or terminate an instance, wake a job, or lift or restore a
    budget.
    """

    def noted() -> OperatorRequest:
        row = request_rows.ask(session, asked.kind, asked.target, user.get_name())
        answer = OperatorRequest.model_validate(row, from_attributes=True)
        session.commit()
        return answer

    return stored(session, noted)


def stored(session: Session, store_it: Callable[[], Answer]) -> Answer:
    """Store a request, retrying while the database is locked. Answer 404 if its target does not exist."""
    try:
        return Retrying(**patience(session))(store_it)
    except LookupError as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND, str(error)) from None


@of_dags.get("/dags/{dag_id}/runs")
def get_runs(
    session: SessionDep,
    dag_id: str,
    limit: Annotated[int, Query(ge=1, le=MOST_RUNS)] = 25,
    sort: RunSort = "began",
) -> RunPage:
    """Duration and cost of the runs of a Dag, newest or most expensive first."""
    return runs(session, dag_id, controller_now(session), limit, sort)


@of_dags.get("/dags/{dag_id}/advice")
def get_advice(session: SessionDep, dag_id: str) -> Advice:
    """What the tasks of a Dag should request, based on what their tries used."""
    return advice(session, dag_id)


@of_dags.get("/dags/{dag_id}/runs/{run_id}")
def get_run(session: SessionDep, dag_id: str, run_id: str, may_edit: EditsRunsDep) -> RunSummary:
    """The duration and cost of a run, a lower bound of its duration, and its longest waits."""
    return run(session, dag_id, run_id, controller_now(session)).model_copy(update={"may_edit": may_edit})


@of_dags.get("/dags/{dag_id}/runs/{run_id}/gantt")
def get_gantt(session: SessionDep, dag_id: str, run_id: str) -> RunGantt:
    """The tasks of a run over time: when they waited and ran, when pending ones are expected, and the critical path."""
    return gantt(session, dag_id, run_id, controller_now(session))


@of_runs.post("/dags/{dag_id}/runs/{run_id}/hurry", responses=NO_RUN)
def post_hurry(session: SessionDep, user: GetUserDep, dag_id: str, run_id: str, asked: HurryBody) -> RunOutlook:
    """Set how much finishing a live run early is worth and when it must finish, or withdraw both settings."""

    def noted() -> RunOutlook:
        airflow_run_requests.ask(session, dag_id, run_id, asked.hurry, asked.finish_by, user.get_name())
        answer = outlook(session, dag_id, run_id)
        assert answer is not None
        session.commit()
        return answer

    try:
        return stored(session, noted)
    except UnitError as error:
        raise refused_value(("body", "finish_by"), str(error), asked.finish_by) from None


@of_dags.get("/dags/{dag_id}/runs/{run_id}/tasks/{task_id}")
def get_tries(
    session: SessionDep,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: Annotated[int | None, Query(ge=-1, le=2**31 - 1)] = None,
    limit: Limit = 100,
    after: AfterTry | None = None,
) -> TryPage:
    """The tries of a task in a run, newest first: where each ran and why, and its phases."""
    conditions: list[Any] = [JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.task_id == task_id]
    if map_index is not None:
        conditions.append(JobRow.map_index == map_index)
    return tries(session, Sight(frozenset({dag_id})), controller_now(session), conditions, limit, after)


def check_window(since: float, until: float) -> None:
    if not since < until <= since + 31 * 86400.0:
        message = f"the window from {since} to {until} is invalid: since must be before until, by at most 31 days"
        raise refused_value(("query", "until"), message, until)


def refused_value(where: tuple[str, str], message: str, value: object) -> RequestValidationError:
    """Make a validation error in the format of FastAPI's own."""
    return RequestValidationError([{"type": "value_error", "loc": where, "msg": message, "input": value}])


def database_is_away(request: Request, error: Exception) -> JSONResponse:
    """Answer 503 instead of "Internal Server Error". The database's message can name hosts, so it is only logged."""
    log.warning("%s could not be answered: %s", request.url.path, getattr(error, "orig", error))
    message = (
        "Airflow's database is locked or unreachable; nothing was changed. Retry; the API server's log has details."
    )
    return JSONResponse({"detail": message}, status.HTTP_503_SERVICE_UNAVAILABLE)


async def say_what_is_wrong(request: Request, error: Exception) -> Response:
    """Answer as FastAPI does, but in ASCII: input can contain lone surrogates, which UTF-8 cannot encode."""
    assert isinstance(error, RequestValidationError)
    text = json.dumps({"detail": jsonable_encoder(error.errors())})
    return Response(text, status.HTTP_422_UNPROCESSABLE_CONTENT, media_type="application/json")


class Export(StreamingResponse):
    """A streamed file. Each user gets one at a time, and all exports together use a bounded fraction of a processor.

    :cvar running: users with an export in this process
    """

    running: ClassVar[set[str]] = set()

    def __init__(self, user: str, parts: Iterator[str], headers: dict[str, str]) -> None:
        super().__init__(self._paced(parts), media_type="text/csv", headers=headers)
        self.user = user
        self._rest = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.user in self.running:
            message = "another export of yours is running or was aborted a moment ago; try again once it has finished"
            await JSONResponse({"detail": message}, status.HTTP_429_TOO_MANY_REQUESTS)(scope, receive, send)
            return
        self.running.add(self.user)
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Keep the user listed for the pause that is due, so that aborting and restarting does not skip it.
            asyncio.get_running_loop().call_later(self._rest, self.running.discard, self.user)

    async def _paced(self, parts: Iterator[str]) -> AsyncIterator[str]:
        while (found := await run_in_threadpool(_timed, parts)) is not None:
            part, seconds = found
            # All exports of this process together use at most a quarter of a processor.
            self._rest = seconds * (len(self.running) / 0.25 - 1)
            yield part
            await asyncio.sleep(self._rest)
        self._rest = 0.0


def _timed(parts: Iterator[str]) -> tuple[str, float] | None:
    """Return the next part and the processor seconds it took; None after the last part."""
    began = time.thread_time()
    part = next(parts, None)
    return None if part is None else (part, time.thread_time() - began)


class PageFiles(StaticFiles):
    """The page's own files. Their names do not change between releases, so browsers must revalidate them."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        answer = super().file_response(*given, **more)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def create_app() -> FastAPI:
    """Create the application that Airflow mounts at ``/lading``."""
    app = FastAPI(
        title="Lading",
        description="What runs where, why jobs wait, and what it costs. Times are seconds since the epoch, memory is "
        "MiB, money USD.",
        # FastAPI's documentation pages load third-party scripts into Airflow's origin, without login.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(looks)
    app.include_router(of_dags)
    app.include_router(acts)
    app.include_router(of_runs)
    app.add_exception_handler(OperationalError, database_is_away)
    app.add_exception_handler(RequestValidationError, say_what_is_wrong)
    # Some hosts map .js to another type, with which browsers refuse to run a module.
    mimetypes.add_type("text/javascript", ".js")
    app.mount("/static", PageFiles(directory=STATIC), name="static")
    return app
