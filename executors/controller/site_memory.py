"""What a controller remembers about a site between ticks: missing items, measured machine sizes, recent short jobs.

The kernel reserves some memory, depending on the instance type and the image. If a launch counted on more than the
machine then has, its job would never start there, and one machine after another would be launched for it. Therefore
sizes measured after a boot replace those of the type's specification.
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
from lading.scheduling.model.resources import Resources

# A job is short if it ran for less than this, in seconds. Longer jobs, and jobs that finished longer ago, tell nothing
# about how many jobs a location will need before the next tick.
SHORT = 5.0


@dataclass(slots=True)
class MissingSince:
    since: dict[str, float] = field(default_factory=dict)

    def update(self, missing: Iterable[str], unasked: Container[str] = ()) -> dict[str, float]:
        """Return for how many seconds each of these tokens has been missing, and forget all others.

        :param unasked: tokens whose location did not answer, which keep their times
        """
        now = time.monotonic()
        kept = {token: at for token, at in self.since.items() if token in unasked}
        found = {token: self.since.get(token, now) for token in missing}
        self.since = kept | found
        return {token: now - at for token, at in found.items()}

    def seconds(self) -> dict[str, float]:
        now = time.monotonic()
        return {token: now - at for token, at in self.since.items()}


class MeasuredSizes:
    """The measured sizes of a site's machines: what they really have for jobs.

    :param known: by instance type and image
    """

    def __init__(self, known: Mapping[tuple[str, str], Resources]) -> None:
        self.known = dict(known)
        self._names: set[str] = set()

    def learn(self, observation: Observation) -> dict[tuple[str, str], Resources]:
        """Measure the machines that have come up; returns the sizes that are new or have changed.

        Machines that booted from another image than the current one are ignored, as their sizes may differ.
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
    """The rate at which the locations of one site finish short jobs.

    :param seconds: a location gets the number of jobs that it can run in this time
    """

    seconds: float
    ends: deque[tuple[float, str, float, float]] = field(default_factory=deque)

    def note(self, ended: Iterable[tuple[str, float, float]]) -> None:
        """Note short jobs that have finished: their location, start and end by the clock of that machine."""
        now = time.monotonic()
        self.ends.extend((now, *job) for job in ended)

    def prefetchable(self) -> Counter[str]:
        """Return how many jobs can be prefetched to each location, by its name.

        The rate counts only the time in which short jobs ran. By wall-clock time, a location that ran out of jobs
        would seem slow, get few jobs, and run out of them again.
        """
        horizon = time.monotonic() - self.seconds
        while self.ends and self.ends[0][0] < horizon:
            self.ends.popleft()
        spans: dict[str, list[tuple[float, float]]] = {}
        for _, location, began, ended in self.ends:
            spans.setdefault(location, []).append((began, ended))
        return Counter({location: round(self._within(there)) for location, there in spans.items()})

    def _within(self, spans: Sequence[tuple[float, float]]) -> float:
        """Return how many jobs like these finish within ``seconds``; a single job is not extrapolated."""
        busy = _busy_seconds(spans)
        times = min(len(spans), self.seconds / busy) if busy > 0 else 1.0
        return len(spans) * max(1.0, times)


def _busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return for how long at least one of these jobs was running."""
    busy, until = 0.0, -inf
    for began, ended in sorted(spans):
        busy += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return busy


def short(changes: Iterable[Change], now: float) -> dict[str, tuple[float, float]]:
    """Return start and end of the short jobs that have just succeeded, by token.

    Jobs that fail at once tell nothing about the run times of others.

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
