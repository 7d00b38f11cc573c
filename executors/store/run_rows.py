"""What users request of a live run, and what is forecast of it: two tables, and the queries on them."""

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

# What is forecast is stored anew where it differs by so many seconds, and by this part of what is left.
SECONDS_OF_CHANGE, PART_OF_CHANGE = 5.0, 0.01
# When a forecast was made that is of before what is asked of its run now.
OUTDATED = -1.0
# A Dag and one of its runs, by their ids.
RunKey = tuple[str, str]


class RunRequestRow(Base):
    """How one live run is hurried, in the place of what its Dag and its sites say; written where it is requested."""

    __tablename__ = "lading_run_request"

    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    run_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # What the end of the run is worth; None: what its Dag says.
    hurry: Mapped[float | None] = mapped_column(Double)
    # When it shall have ended, as text (see lading.scheduling.hints.finish_by); None: when its Dag says.
    finish_by: Mapped[str | None] = mapped_column(String(40))
    by: Mapped[str] = mapped_column(String(250))
    # Seconds since the epoch, by the database's clock.
    at: Mapped[float] = mapped_column(Double)


class RunForecastRow(Base):
    """What the controller goes by for a live run, and what it expects. Times are seconds since the epoch."""

    __tablename__ = "lading_run_forecast"

    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    run_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # None: what each site says.
    hurry: Mapped[float | None] = mapped_column(Double)
    # When it shall have ended; None: at any time.
    finish_by: Mapped[float | None] = mapped_column(Double)
    # When it is planned to end; None: no plan says it.
    ends_at: Mapped[float | None] = mapped_column(Double)
    # When it was made; OUTDATED: before what is asked of the run now, so that nothing of it holds any more.
    at: Mapped[float] = mapped_column(Double)

    @property
    def trouble(self) -> str | None:
        """Why it does not end when it shall; None: it does, as far as is known."""
        if self.finish_by is None or self.ends_at is None or self.ends_at <= self.finish_by:
            return None
        earliest = format_moment(self.ends_at)
        return f"cannot end by {format_moment(self.finish_by)}: about {earliest} at the earliest"


class RunRequest(NamedTuple):
    """What is asked of a run; None: what its Dag says."""

    hurry: float | None = None
    finish_by: FinishBy | None = None


class RunForecast(NamedTuple):
    """What is forecast of a run, see :class:`RunForecastRow`."""

    hurry: float | None = None
    finish_by: float | None = None
    ends_at: float | None = None

    def differs(self, other: RunForecast, now: float) -> bool:
        """Whether it is something else than what was stored, and not only a moment later."""
        if self[:2] != other[:2] or self.ends_at is None or other.ends_at is None:
            return self != other
        is_late = [None not in each[1:] and each.ends_at > each.finish_by for each in (self, other)]  # type: ignore[operator]
        least = max(SECONDS_OF_CHANGE, PART_OF_CHANGE * (self.ends_at - now))
        return is_late[0] != is_late[1] or abs(self.ends_at - other.ends_at) > least


class RunTerms(NamedTuple):
    """What a live run goes by.

    :param request: what is asked of it; None: nothing
    :param forecast: what is forecast of it; None: no site buys machines for it by a forecast, or none was made yet
    """

    request: RunRequestRow | None
    forecast: RunForecastRow | None

    @property
    def is_unheard(self) -> bool:
        """Whether the forecast is of before the request."""
        request, forecast = self.request, self.forecast
        if forecast is not None and forecast.at == OUTDATED:
            return True
        if request is None or forecast is None:
            return False
        is_of_other_hurry = request.hurry is not None and request.hurry != forecast.hurry
        return is_of_other_hurry or (request.finish_by is not None and forecast.finish_by is None)

    def lines(self) -> Iterator[str]:
        """The same as text, a line for each of them."""
        request, forecast = self.request, self.forecast
        by = "" if request is None else f", as {request.by} has asked"
        hurry = None if request is None else request.hurry
        if hurry is not None:
            yield f"hurry {hurry:g}{by}"
        elif forecast is not None and forecast.at != OUTDATED:
            yield "hurry of the site" if forecast.hurry is None else f"hurry {forecast.hurry:g}, as its Dag says"
        if request is not None and request.finish_by is not None:
            yield f"finish_by {request.finish_by}{by}"
        if forecast is None:
            yield "nothing is planned for it: only sites that buy machines by a forecast go by that"
        elif self.is_unheard and request is None:
            yield "what was asked is withdrawn: it is planned without that within seconds"
        elif self.is_unheard:
            yield "it is planned by that within seconds"
        elif forecast.trouble is not None:
            yield forecast.trouble
        elif forecast.ends_at is not None:
            until = "" if forecast.finish_by is None else f", and shall by {format_moment(forecast.finish_by)}"
            yield f"planned to end at about {format_moment(forecast.ends_at)}{until}"
        elif forecast.finish_by is not None:
            yield f"shall end by {format_moment(forecast.finish_by)}; when it will is not known"


def as_request(row: RunRequestRow) -> RunRequest:
    finish_by = None if row.finish_by is None else parse_finish_by(row.finish_by, is_of_one_run=True)
    return RunRequest(row.hurry, finish_by)


def outdate(session: Session, run: RunKey) -> None:
    """Forget what is forecast of a run of which something else is asked now, until it is forecast anew."""
    nothing = {"hurry": None, "finish_by": None, "ends_at": None, "at": OUTDATED}
    mine = RunForecastRow.dag_id == run[0], RunForecastRow.run_id == run[1]
    session.execute(update(RunForecastRow).where(*mine).values(**nothing))


def note(session: Session, forecasts: Mapping[RunKey, RunForecast]) -> None:
    """Store what is forecast of the live runs, where it has changed, and forget it of all others."""
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
    """Delete what was asked before a time of runs of which no job is known any more, seconds since the epoch."""
    its_jobs: Any = (JobRow.dag_id == RunRequestRow.dag_id) & (JobRow.run_id == RunRequestRow.run_id)
    session.execute(
        delete(RunRequestRow).where(RunRequestRow.at < before, ~exists().where(its_jobs)),
        execution_options={"synchronize_session": False},
    )
