"""Users' requests for live runs, and the forecasts of those runs: two tables, and the queries on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Double, String, delete, exists, select, update
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.tables import Base, JobRow, StringID
from lading.scheduling.hints.finish_by import FinishBy, parse_finish_by
from lading.scheduling.text.units import format_moment

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A forecast is stored again if it differs by this many seconds and by this part of the remaining time.
SECONDS_OF_CHANGE, PART_OF_CHANGE = 5.0, 0.01
# The `at` of a forecast that was made before the current request for its run.
OUTDATED = -1.0
WHO_PLANS = 'only sites with policy = "forecast" and sites with allocations plan ahead'
# The ids of a Dag and of one of its runs.
RunKey = tuple[str, str]


class RunRequestRow(Base):
    """A user's request to hurry one live run, which overrides its Dag and its sites."""

    __tablename__ = "lading_run_request"

    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    run_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # How much finishing early is worth; NULL: as its Dag says.
    hurry: Mapped[float | None] = mapped_column(Double)
    # The deadline as text (see lading.scheduling.hints.finish_by); NULL: as its Dag says.
    finish_by: Mapped[str | None] = mapped_column(String(40))
    by: Mapped[str] = mapped_column(String(250))
    # Seconds since the epoch, by the database's clock.
    at: Mapped[float] = mapped_column(Double)


class RunForecastRow(Base):
    """The terms that the controller applies to a live run, and its forecast. Times are epoch seconds."""

    __tablename__ = "lading_run_forecast"

    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    run_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # NULL: as each site says.
    hurry: Mapped[float | None] = mapped_column(Double)
    # The deadline; NULL: none.
    finish_by: Mapped[float | None] = mapped_column(Double)
    # When it is planned to finish; NULL: no plan covers it.
    ends_at: Mapped[float | None] = mapped_column(Double)
    # When the forecast was made; OUTDATED: before the current request, so all other columns are invalid.
    at: Mapped[float] = mapped_column(Double)

    @property
    def trouble(self) -> str | None:
        """Return why the run misses its deadline; None: it does not, or that is unknown."""
        if self.finish_by is None or self.ends_at is None or self.ends_at <= self.finish_by:
            return None
        earliest = format_moment(self.ends_at)
        return f"cannot end by {format_moment(self.finish_by)}: about {earliest} at the earliest"


class RunRequest(NamedTuple):
    """A user's request for a run; None: as its Dag says."""

    hurry: float | None = None
    finish_by: FinishBy | None = None


class RunForecast(NamedTuple):
    """The forecast of a run, see :class:`RunForecastRow`."""

    hurry: float | None = None
    finish_by: float | None = None
    ends_at: float | None = None

    def differs(self, other: RunForecast, now: float) -> bool:
        """Whether the difference to the stored forecast is large enough to store it again."""
        if self[:2] != other[:2] or self.ends_at is None or other.ends_at is None:
            return self != other
        is_late = [None not in each[1:] and each.ends_at > each.finish_by for each in (self, other)]  # type: ignore[operator]
        least = max(SECONDS_OF_CHANGE, PART_OF_CHANGE * (self.ends_at - now))
        return is_late[0] != is_late[1] or abs(self.ends_at - other.ends_at) > least


class RunTerms(NamedTuple):
    """The request and the forecast of a live run.

    :param request: None: there is none
    :param forecast: None: no site plans ahead, or no forecast was made yet
    :param has_planned_jobs: whether Lading's plan says when any of its waiting jobs starts
    """

    request: RunRequestRow | None
    forecast: RunForecastRow | None
    has_planned_jobs: bool = False

    @property
    def is_planned(self) -> bool:
        return self.forecast is not None or self.has_planned_jobs

    @property
    def is_unheard(self) -> bool:
        """Whether the forecast was made before the request."""
        request, forecast = self.request, self.forecast
        if forecast is not None and forecast.at == OUTDATED:
            return True
        if request is None or forecast is None:
            return False
        is_of_other_hurry = request.hurry is not None and request.hurry != forecast.hurry
        return is_of_other_hurry or (request.finish_by is not None and forecast.finish_by is None)

    def lines(self) -> Iterator[str]:
        request, forecast = self.request, self.forecast
        by = "" if request is None else f", requested by {request.by}"
        hurry = None if request is None else request.hurry
        if hurry is not None:
            yield f"hurry {hurry:g}{by}"
        elif forecast is not None and forecast.at != OUTDATED:
            yield (
                "hurry as set for each site" if forecast.hurry is None else f"hurry {forecast.hurry:g}, as its Dag says"
            )
        if request is not None and request.finish_by is not None:
            yield f"finish_by {request.finish_by}{by}"
        if not self.is_planned:
            yield f"it is not in Lading's plan: {WHO_PLANS}"
        elif forecast is None:
            yield "Lading's plan includes only some of its jobs"
        elif self.is_unheard and request is None:
            yield "the request was withdrawn: a plan without it is made within seconds"
        elif self.is_unheard:
            yield "a plan that follows the request is made within seconds"
        elif forecast.trouble is not None:
            yield forecast.trouble
        elif forecast.ends_at is not None:
            until = "" if forecast.finish_by is None else f", due by {format_moment(forecast.finish_by)}"
            yield f"planned to finish at about {format_moment(forecast.ends_at)}{until}"
        elif forecast.finish_by is not None:
            yield f"due by {format_moment(forecast.finish_by)}; when it will finish is not planned yet"


def as_request(row: RunRequestRow) -> RunRequest:
    finish_by = None if row.finish_by is None else parse_finish_by(row.finish_by, is_of_one_run=True)
    return RunRequest(row.hurry, finish_by)


def outdate(session: Session, run: RunKey) -> None:
    """Invalidate the forecast of a run whose request has changed, until the next one is made."""
    nothing = {"hurry": None, "finish_by": None, "ends_at": None, "at": OUTDATED}
    mine = RunForecastRow.dag_id == run[0], RunForecastRow.run_id == run[1]
    session.execute(update(RunForecastRow).where(*mine).values(**nothing))


def note(session: Session, forecasts: Mapping[RunKey, RunForecast]) -> None:
    """Store the forecasts of live runs that have changed, and delete those of all other runs."""
    now = time.time()
    rows = {(row.dag_id, row.run_id): row for row in session.scalars(select(RunForecastRow))}
    for run, row in rows.items():
        if run not in forecasts:
            session.delete(row)
    for (dag_id, run_id), forecast in forecasts.items():
        known = rows.get((dag_id, run_id))
        if known is None:
            session.add(RunForecastRow(dag_id=dag_id, run_id=run_id, at=now, **forecast._asdict()))
        elif known.at == OUTDATED or forecast.differs(RunForecast(known.hurry, known.finish_by, known.ends_at), now):
            known.hurry, known.finish_by, known.ends_at = forecast
            known.at = now
    session.flush()


def forget(session: Session, before: float) -> None:
    """Delete requests made before a time (epoch seconds) for runs without stored jobs."""
    its_jobs: Any = (JobRow.dag_id == RunRequestRow.dag_id) & (JobRow.run_id == RunRequestRow.run_id)
    session.execute(
        delete(RunRequestRow).where(RunRequestRow.at < before, ~exists().where(its_jobs)),
        execution_options={"synchronize_session": False},
    )
