"""When jobs that wait will start, and how often that came true, as the page says it; times are epoch seconds."""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy.orm import Session

from lading.executors.store.starts import NoStart, accuracy
from lading.scheduling.insight.starts import ExpectedStart, StartSource


class StartEstimate(BaseModel):
    """From when to when a job that waits is expected to start, or why no start is expected."""

    since: float | None
    """Epoch seconds; so for ``until``. None: it is held by something that time alone does not end."""
    until: float | None
    source: StartSource | None
    """None: likewise."""
    text: str
    """What it rests on, as a part of a sentence; of one that is held, by what."""


class StartAccuracy(BaseModel):
    """How often jobs have started within the interval that was said of them first."""

    source: StartSource
    said: int
    """Of how many jobs that have started it was said."""
    within: int
    """How many of them started within it."""


def as_estimate(start: ExpectedStart | NoStart | None) -> StartEstimate | None:
    """The model of an expected start."""
    if start is None:
        return None
    if isinstance(start, NoStart):
        return StartEstimate(since=None, until=None, source=None, text=start.text)
    return StartEstimate(since=start.since, until=start.until, source=start.source, text=start.text)


def start_accuracy(session: Session, since: float) -> list[StartAccuracy]:
    """How often that was so of jobs that have started since a time, by what it rested on."""
    return [StartAccuracy(**each._asdict()) for each in accuracy(session, since)]
