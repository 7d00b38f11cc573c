"""What other clocks say, by ours. They are never compared with ours: what they date is brought to our own first.

How far another clock is ahead of ours is measured when it answers: what it says then lies between our asking and our
hearing of it. A clock that cannot be asked, as that of a node of a cluster, is known by what it has dated: a file that
was not there at one look and is at the next was written between the two. All times are seconds since the epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

# Clocks that differ by less are taken to agree: so long may an answer be under way, seconds.
SAME_TIME = 2.0
# So late may a file be seen after it was written, by another host's cache of the folder, seconds.
SECONDS_UNTIL_SEEN = 60.0
# The times of an event.
TIMES = "at", "started_at"


def seconds_ahead(said: float, asked_at: float, answered_at: float, known: float = 0.0) -> float:
    """Seconds by which another clock is ahead of ours; what is known of it where it agrees with that.

    :param said: what it said
    :param asked_at: when it was asked, by our clock; ``answered_at`` likewise
    """
    ahead = said - (asked_at + answered_at) / 2
    return ahead if abs(ahead - known) > SAME_TIME + (answered_at - asked_at) / 2 else known


def least_ahead(said: float, earliest: float, latest: float) -> float:
    """Seconds by which another clock is ahead of ours, at least, that has said this between two times of ours."""
    return said - min(max(said, earliest), latest)


def by_our_clock(event: Mapping[str, Any], ahead: float) -> dict[str, Any]:
    """An event that was dated by a clock which is so far ahead of ours."""
    there = {name: event[name] for name in TIMES if event.get(name) is not None}
    return {**event, **{name: max(0.0, at - ahead) for name, at in there.items()}}


def to_epoch(at: float | None) -> float:
    """When it was by our clock.

    :param at: on the monotonic clock; None: that is not known, so it is minus infinity
    """
    return -math.inf if at is None else time.time() - (time.monotonic() - at)


def between(event: Mapping[str, Any], earliest: float, latest: float) -> dict[str, Any]:
    """An event that happened between two times of ours; that which it is the end of took as long as its clock says."""
    at = event.get("at")
    if at is None:
        return dict(event)
    return by_our_clock(event, least_ahead(at, earliest, latest))
