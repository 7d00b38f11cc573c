"""What a controller keeps of a site from tick to tick: what has been missing, what machines have, and recent ends.

A kernel keeps memory for itself, how much depends on the type and the image. Where a launch counted on more than there
is, the job that it was for would never start there, and one machine after the other would be launched. So what was seen
at a boot replaces the specification of the type from then on.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from lading.executors.store import Change
from lading.hooks.site import LocationState, Observation
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.resources import Resources

# Those that have run for longer, or whose end is old news, say nothing about the next tick, seconds.
SHORT = 5.0


@dataclass(slots=True)
class MissingSince:
    """What is missing now, and since when."""

    since: dict[str, float] = field(default_factory=dict)

    def update(self, missing: Iterable[str], unasked: Container[str] = ()) -> dict[str, float]:
        """For each token that is missing now: for how many seconds it has been. The others are forgotten.

        :param unasked: those of which nothing could be learnt now, which changes nothing for them
        """
        now = time.monotonic()
        kept = {token: at for token, at in self.since.items() if token in unasked}
        found = {token: self.since.get(token, now) for token in missing}
        self.since = kept | found
        return {token: now - at for token, at in found.items()}

    def seconds(self) -> dict[str, float]:
        """For how many seconds what was missing at the last look has been."""
        now = time.monotonic()
        return {token: now - at for token, at in self.since.items()}


class MeasuredSizes:
    """What jobs have of machines of a site.

    :param known: by instance type and image
    """

    def __init__(self, known: Mapping[tuple[str, str], Resources]) -> None:
        self.known = dict(known)
        self._names: set[str] = set()

    def learn(self, observation: Observation) -> dict[tuple[str, str], Resources]:
        """Look at the machines that have come up; returns what was not known of them.

        One that has booted from another image than is launched now says nothing of that.
        """
        market = observation.market
        if not isinstance(market, MachineMarket):
            return {}
        up = {each.name: each for each in observation.locations if each.state == LocationState.UP}
        self._names &= up.keys()
        came = {}
        for name, seen in up.items():
            it, image = seen.location, market.images.get(seen.location.arch or "", "")
            if name not in self._names and seen.image in (None, image.partition(" ")[0]):
                self._names.add(name)
                came[str(it.instance_type), image] = it.capacity
        news = {key: size for key, size in came.items() if self.known.get(key) != size}
        self.known |= news
        return news


@dataclass(slots=True)
class Throughput:
    """The last ends of short jobs at the locations of one site.

    :param seconds: a location is given what it can run in so many seconds
    """

    seconds: float
    ends: deque[tuple[float, str, float, float]] = field(default_factory=deque)

    def note(self, ended: Iterable[tuple[str, float, float]]) -> None:
        """Short jobs have ended now: the location of each, and when it began and ended by the clock there."""
        now = time.monotonic()
        self.ends.extend((now, *job) for job in ended)

    def prefetchable(self) -> Counter[str]:
        """How many jobs may be prefetched to each location, by its name.

        The rate is that of the time in which short jobs ran there. Measured by the clock, a location that has run out
        of jobs would seem slow, would be given few, and would run out of them again.
        """
        horizon = time.monotonic() - self.seconds
        while self.ends and self.ends[0][0] < horizon:
            self.ends.popleft()
        spans: dict[str, list[tuple[float, float]]] = {}
        for _, location, began, ended in self.ends:
            spans.setdefault(location, []).append((began, ended))
        return Counter({location: round(self._within(there)) for location, there in spans.items()})

    def _within(self, spans: Sequence[tuple[float, float]]) -> float:
        """How many jobs like these end within the seconds. A few ends say little: one counts as no more than itself."""
        busy = _busy_seconds(spans)
        times = min(len(spans), self.seconds / busy) if busy > 0 else 1.0
        return len(spans) * max(1.0, times)


def _busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """For how long at least one of these jobs ran."""
    busy, until = 0.0, -inf
    for began, ended in sorted(spans):
        busy += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return busy


def short(changes: Iterable[Change], now: float) -> dict[str, tuple[float, float]]:
    """When the short jobs began that have just succeeded, and when they ended, by token.

    What fails at once says nothing of the others.

    :param now: epoch seconds
    """
    spans = {}
    for change in changes:
        began, ended = change.values.get("started_at"), change.values.get("ended_at")
        if began is None or ended is None or change.values.get("cause") is not None:
            continue
        if ended - began < SHORT and now - ended < SHORT:
            spans[change.token] = began, ended
    return spans
