"""Ranking: in which order a job that names no place goes to the sites that can run it. Pure.

The first is the one where it is most likely to start soon. Of machines it is known whether they have room, and the
order of the sites file says which are filled first; how soon a batch system starts a job is not. So sites that stand
one after the other in the file and are such are ordered: by how long jobs of their size have waited there, where enough
is known of that, else by the share of their nodes that is idle.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lading.scheduling.job import PlannedJob

# How many waits have to be known before one is predicted from them, and the share of them that was no longer.
FEWEST_WAITS = 20
QUANTILE = 0.75


@dataclass(frozen=True, slots=True)
class Match:
    """A site that can run a job.

    :param site: its name
    :param available: how many of its nodes have no jobs; None: it is not known
    :param total: how many nodes it has; None: it is not known
    :param wait: seconds that three of four jobs of that size have waited there at most; None: too few are known
    :param is_first: whether a job waits there before it goes to the next site (``burst_after``)
    """

    site: str
    available: int | None = None
    total: int | None = None
    wait: float | None = None
    is_first: bool = False

    @property
    def share(self) -> float | None:
        """The share of its nodes that is idle; None: it is not known."""
        return None if self.available is None or not self.total else self.available / self.total


# What a plugin says: from a job and its matches, in the order of the sites file, to the same in the order in which it
# goes to them; None: Lading decides.
Rank: TypeAlias = Callable[[PlannedJob, Sequence[Match]], Sequence[Match] | None]


def by_probability(job: PlannedJob, matches: Sequence[Match]) -> Sequence[Match]:
    """The matches, those first at which a job is more likely to start soon."""
    return [each for some in _comparable(matches) for each in _ordered(some)]


def _ordered(matches: Sequence[Match]) -> Sequence[Match]:
    if all(each.wait is not None for each in matches):
        return sorted(matches, key=lambda each: (each.wait, -(each.share or 0.0)))
    return sorted(matches, key=lambda each: each.share or 0.0, reverse=True)


def _comparable(matches: Sequence[Match]) -> Iterator[list[Match]]:
    """The matches in their order, those together that stand side by side and can be ordered."""
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
    """For how long jobs have waited in queues, by site, queue and size.

    The shortest come first, for thousands of jobs may ask what is to be expected.
    """

    seconds: dict[tuple[object, ...], list[float]] = field(default_factory=dict)

    def add(self, site: str, queue: str | None, cpus: float, seconds: float) -> None:
        """Note the wait of a job.

        :param cpus: of all its nodes together
        """
        for key in ((site, queue, size(cpus)), (site, queue)):
            insort(self.seconds.setdefault(key, []), seconds)

    def expected(self, site: str, queue: str | None, cpus: float) -> float | None:
        """Seconds that three of four jobs have waited at most: those of about its size, else of the queue.

        None: of neither enough are known.
        """
        for key in ((site, queue, size(cpus)), (site, queue)):
            if len(known := self.seconds.get(key, ())) >= FEWEST_WAITS:
                return known[math.ceil(QUANTILE * len(known)) - 1]
        return None


def size(cpus: float) -> int:
    """The class of a job's size: jobs of one are at most twice as large as the others."""
    return math.ceil(math.log2(max(cpus, 1.0)))
