"""When waiting jobs are expected to start, and how accurate that was; times are seconds since the epoch."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy.orm import Session

from lading.executors.starts.expected_starts import NoStart, accuracy
from lading.scheduling.starts.expected_starts import ExpectedStart, StartSource


class StartEstimate(BaseModel):
    """The interval in which a waiting job is expected to start, or why no start is expected."""

    since: float | None
    """Seconds since the epoch, like ``at`` and ``until``. None: the job is held by something that waiting alone does
    not end."""
    at: float | None
    """The most likely start, within the interval."""
    until: float | None
    source: StartSource | None
    """None: the job is held."""
    text: str
    """What the estimate is based on, as part of a sentence; for a held job, what holds it."""


class StartAccuracy(BaseModel):
    """How often jobs started within the interval first predicted for them."""

    source: StartSource
    said: int
    """Number of started jobs that had a predicted interval."""
    within: int
    """Number of them that started within it."""


def as_estimate(start: ExpectedStart | NoStart | None) -> StartEstimate | None:
    """Convert an expected start into its model."""
    if start is None:
        return None
    if isinstance(start, NoStart):
        return StartEstimate(since=None, at=None, until=None, source=None, text=start.text)
    return StartEstimate(since=start.since, at=start.at, until=start.until, source=start.source, text=start.text)


def start_accuracy(session: Session, since: float) -> list[StartAccuracy]:
    """Count the jobs that started since a time, and those that did within the interval, by source of the estimate."""
    return [StartAccuracy(**each._asdict()) for each in accuracy(session, since)]
