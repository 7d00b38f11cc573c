"""Converts times of other clocks to ours. They are never compared with ours before that.

How far another clock is ahead is measured when it answers: its time lies between our request and our receipt of the
answer. The clock of a machine that cannot be asked, such as a cluster's node, is bounded by the files that it dates: a
file that was absent at one look and present at the next was written between the two. All times are seconds since the
epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

# Clocks that differ by less count as equal, because an answer can be under way for as long, seconds.
SAME_TIME = 2.0
# The longest delay, in seconds, after which another host's cache shows a file that was written.
SECONDS_UNTIL_SEEN = 60.0
# The fields of an event that are times.
TIMES = "at", "started_at"


def seconds_ahead(said: float, asked_at: float, answered_at: float, known: float = 0.0) -> float:
    """Return the seconds by which another clock is ahead of ours; ``known`` if the measurement agrees with it.

    :param said: the time that it reported
    :param asked_at: when it was asked, by our clock; so is ``answered_at``
    :param known: the previous measurement, seconds
    """
    ahead = said - (asked_at + answered_at) / 2
    return ahead if abs(ahead - known) > SAME_TIME + (answered_at - asked_at) / 2 else known


def least_ahead(said: float, earliest: float, latest: float) -> float:
    """Return the smallest lead, in seconds, that another clock must have to show ``said`` between two times of ours."""
    return said - min(max(said, earliest), latest)


def by_our_clock(event: Mapping[str, Any], ahead: float) -> dict[str, Any]:
    """Return an event with its times converted from a clock that is ``ahead`` seconds ahead of ours."""
    there = {name: event[name] for name in TIMES if event.get(name) is not None}
    return {**event, **{name: max(0.0, at - ahead) for name, at in there.items()}}


def to_epoch(at: float | None) -> float:
    """Convert a time of the monotonic clock to seconds since the epoch.

    :param at: None: unknown, which gives minus infinity
    """
    return -math.inf if at is None else time.time() - (time.monotonic() - at)


def between(event: Mapping[str, Any], earliest: float, latest: float) -> dict[str, Any]:
    """Return an event that happened between two times of ours; durations are kept."""
    at = event.get("at")
    if at is None:
        return dict(event)
    return by_our_clock(event, least_ahead(at, earliest, latest))
