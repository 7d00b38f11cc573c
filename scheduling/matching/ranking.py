"""Ranking: the order in which a job that names no place tries the sites that can run it. Pure.

The first is the one where the job will most likely start soon. For machines it is known whether they have room, and the
order of the sites file determines which are filled first. How soon a batch system starts a job is not known. So batch
sites that are adjacent in the file are ordered: by how long jobs of this size have waited there if enough waits are
known, otherwise by their share of idle nodes.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lading.scheduling.model.job import PlannedJob

# How many waits are needed for a prediction, and the quantile that is predicted.
FEWEST_WAITS = 20


@dataclass(frozen=True, slots=True)
class Match:
    """A site that can run a job.

    :param site: its name
    :param available: how many of its nodes have no jobs; None: unknown
    :param total: how many nodes it has; None: unknown
    :param wait: seconds within which three of four jobs of this size started there; None: too few waits are known
    :param is_first: whether a job waits there before it can move to the next site (``burst_after``)
    """

    site: str
    available: int | None = None
    total: int | None = None
    wait: float | None = None
    is_first: bool = False

    @property
    def share(self) -> float | None:
        """The share of its nodes that is idle; None: unknown."""
        return None if self.available is None or not self.total else self.available / self.total


# A plugin's ranking: takes a job and its matches in the order of the sites file, and returns them in the order in which
# they are tried; None: Lading decides.
Rank: TypeAlias = Callable[[PlannedJob, Sequence[Match]], Sequence[Match] | None]


def by_probability(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match]:
    """The matches, those where the job will most likely start soon first."""
    return [each for some in _comparable(matches) for each in _ordered(some)]


def _ordered(matches: Sequence[Match]) -> Sequence[Match]:
    if all(each.wait is not None for each in matches):
        return sorted(matches, key=lambda each: (each.wait, -(each.share or 0.0)))
    return sorted(matches, key=lambda each: each.share or 0.0, reverse=True)


def _comparable(matches: Sequence[Match]) -> Iterator[list[Match]]:
    """The matches in their order, grouped so that adjacent ones that can be ordered are together."""
    some: list[Match] = []
    for match in matches:
        is_known = match.share is not None and not match.is_first
        if some and not (is_known and some[-1].share is not None and not some[-1].is_first):
            yield some
            some = []
        some.append(match)
    if some:
        yield some


@dataclass(slots=True)
class QueueWaits:
    """How long jobs have waited in queues, by site, queue and size.

    The lists are sorted, because thousands of jobs can ask for a prediction.
    """

    seconds: dict[tuple[object, ...], list[float]] = field(default_factory=dict)

    def add(self, site: str, queue: str | None, cpus: float, seconds: float) -> None:
        """Record the wait of a job.

        :param cpus: the total of all its nodes
        """
        for key in ((site, queue, size(cpus)), (site, queue)):
            insort(self.seconds.setdefault(key, []), seconds)

    def expected(self, site: str, queue: str | None, cpus: float) -> float | None:
        """Seconds within which three of four jobs started: those of about its size, or all of the queue.

        None if too few waits of either are known.
        """
        for key in ((site, queue, size(cpus)), (site, queue)):
            if len(known := self.seconds.get(key, ())) >= FEWEST_WAITS:
                return known[math.ceil(0.75 * len(known)) - 1]
        return None


def size(cpus: float) -> int:
    """The size class of a job: within one class, cpus differ by a factor of two at most."""
    return math.ceil(math.log2(max(cpus, 1.0)))
