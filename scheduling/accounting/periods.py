"""Calendar periods in UTC: days, weeks that start on Monday, months. Pure; epoch seconds."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from enum import Enum
from itertools import pairwise

SECONDS_PER_DAY = 86400


class Period(str, Enum):
    """The calendar period that costs are summed by."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


def begin(at: float, period: Period) -> datetime:
    """The start of the period that contains a time."""
    day = datetime.fromtimestamp(at, timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    if period is Period.WEEK:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period is Period.MONTH else day


def following(start: datetime, period: Period) -> datetime:
    if period is Period.MONTH:
        return (start + timedelta(days=32)).replace(day=1)
    return start + timedelta(days=7 if period is Period.WEEK else 1)


def periods(since: float, until: float, period: Period) -> list[tuple[float, float]]:
    """The periods that overlap a time range, oldest first, each from its start to the start of the next."""
    edges = [begin(since, period)]
    while edges[-1].timestamp() < until:
        edges.append(following(edges[-1], period))
    return [(one.timestamp(), other.timestamp()) for one, other in pairwise(edges)]
