"""When jobs that wait for the same room start, predicted from shares and lengths. Pure.

Room is given to one job at a time in the order of :mod:`lading.scheduling.shares.fair_order`: to the share with the
smallest use relative to its weight, after shares that have less than is kept for them. All room counts as one large
machine, and the next job waits until it fits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from lading.scheduling.shares.table import Share, Shares
from lading.scheduling.shares.usage import Mean
from lading.scheduling.site_names import is_named
from lading.scheduling.unfinished import typical_length

# Lines are compared this often at most, which takes a fraction of a second; later jobs are assumed to start at the same
# rate.
MOST_COMPARED = 100_000
# Sums of cpus differ by less.
TOLERANCE = 1e-6


class ShareLine(NamedTuple):
    """The waiting jobs of one share that are served together.

    :param level: lines with a smaller one start first, whatever their shares have
    """

    level: tuple[bool, int, int]
    share: str


class Alike(NamedTuple):
    """Equal jobs that follow one another in a line.

    :param cpus: of one of them
    :param seconds: how long one runs on average
    :param spread: the standard deviation of the logarithm of their lengths; 0: all run equally long
    """

    jobs: int
    cpus: float
    seconds: float
    spread: float = 0.0


class Running(NamedTuple):
    """Running jobs of a share that finish together.

    :param cpus: of all of them
    :param left: seconds until they are expected to finish
    """

    share: str
    cpus: float
    left: float


class QueueAhead:
    """The predicted starts of waiting jobs.

    :param lines: the jobs of each, first to last
    :param cpus: of the whole room
    :param lately: what each share has used lately; empty: past use does not count
    :param site: the site whose room it is; None: all sites together
    :param given_ahead: how many cpus the jobs request that are given to sites before there is room for them
    """

    def __init__(
        self,
        lines: Mapping[ShareLine, Sequence[Alike]],
        running: Sequence[Running],
        cpus: float,
        shares: Shares,
        lately: Mapping[str, Mean],
        site: str | None = None,
        given_ahead: float = 0.0,
    ) -> None:
        self.starts: dict[ShareLine, list[tuple[float, int]]] = {line: [] for line in lines}
        """Seconds from now, and how many jobs start before it."""
        self.count, self.last = 0, 0.0
        room = _Room({line.share for line in lines}, running, cpus, shares, lately, site)
        self._run({line: _jobs(its, cpus) for line, its in lines.items()}, room, given_ahead)

    def _run(self, lines: dict[ShareLine, list[_Jobs]], room: _Room, given_ahead: float) -> None:
        # By level, the last one first: only lines of the first level can be given a job.
        waiting: list[list[ShareLine]] = []
        for line in sorted((line for line, its in lines.items() if its), key=lambda line: line.level, reverse=True):
            if waiting and waiting[-1][0].level == line.level:
                waiting[-1].append(line)
            else:
                waiting.append([line])
        given = dict.fromkeys(lines, 0)

        def key(line: ShareLine) -> tuple[bool, float, str]:
            return *room.key(line.share, lines[line][-1].cpus), line.share

        compared = 0
        while (waiting or room.ahead) and compared < MOST_COMPARED:
            while waiting:
                first = waiting[-1]
                compared += len(first)
                line = min(first, key=key) if len(first) > 1 else first[0]
                jobs = lines[line][-1]
                is_given = not line.level[0]
                if not is_given and room.cpus_ahead + jobs.cpus > room.free + given_ahead + TOLERANCE:
                    break
                room.give(line, jobs.cpus, typical_length(jobs.seconds, jobs.spread, given[line]))
                given[line] += 1
                jobs.left -= 1
                if not jobs.left:
                    lines[line].pop()
                    if not lines[line]:
                        first.remove(line)
                        if not first:
                            waiting.pop()
            if room.has_next:
                self.starts[room.start()].append((room.now, self.count))
                self.count, self.last = self.count + 1, room.now
            else:
                compared += room.advance()

    def start(self, line: ShareLine, before: float) -> tuple[float, float]:
        """Return the seconds until a job starts, and how many jobs start before it.

        :param before: how many jobs of its line start before it
        """
        starts = self.starts.get(line, [])
        if (at := int(before + 0.5)) < len(starts):
            return starts[at]
        # Beyond the simulated jobs.
        further = at - len(starts)
        rate = self.count / self.last if self.last > 0 else 0.0
        return self.last + (further / rate if rate else 0.0), self.count + further


@dataclass(slots=True)
class _Jobs:
    """Equal jobs, to be counted down."""

    left: int
    cpus: float
    seconds: float
    spread: float


def _jobs(alike: Sequence[Alike], cpus: float) -> list[_Jobs]:
    """Return jobs, last ones first."""
    found = []
    for each in reversed(alike):
        # A job that needs more cpus than are known counts as using all of them for longer.
        size = max(1.0, each.cpus / cpus)
        found.append(_Jobs(each.jobs, each.cpus / size, each.seconds * size, each.spread))
    return found


class _Room:
    """The room as time passes: what runs, what follows, and what each share has.

    :ivar now: seconds
    :ivar free: cpus on which nothing runs
    :ivar ahead: line, cpus and seconds of the jobs that are given and have not started
    :ivar cpus_ahead: of these together
    """

    def __init__(
        self,
        names: Set[str],
        running: Sequence[Running],
        cpus: float,
        shares: Shares,
        lately: Mapping[str, Mean],
        site: str | None,
    ) -> None:
        names = names | {each.share for each in running}
        self.cpus, self.half_life = cpus, shares.half_life
        table = {name: shares.get(name) for name in names}
        self.weights = {name: share.weight for name, share in table.items()}
        self.kept = {name: _kept(share, site) for name, share in table.items()}
        self.used = dict.fromkeys(names, 0.0)
        self.ends: list[tuple[float, str, float]] = []
        for each in running:
            self.used[each.share] += each.cpus
            self.ends.append((each.left, each.share, each.cpus))
        heapq.heapify(self.ends)
        # A share has what it uses and what is given ahead.
        self.had = dict(self.used)
        self.now, self.free = 0.0, cpus - sum(self.used.values())
        self.ahead, self.cpus_ahead = deque[tuple[ShareLine, float, float]](), 0.0
        # A share without measurements counts as unused for as long as the others have been measured.
        unused = Mean(0.0, max((mean.weight for mean in lately.values()), default=0.0))
        self.means = {name: lately.get(name, unused) for name in names if lately}
        self.parts = {name: mean.part for name, mean in self.means.items()}

    def key(self, share: str, need: float) -> tuple[bool, float]:
        """Return what decides which share is given the next job: the smallest is."""
        # As in the order of placing, what is given ahead does not use up what is kept for a share.
        can_run = self.cpus / max(self.cpus, self.cpus - self.free + self.cpus_ahead)
        is_kept = self.had[share] * can_run + need <= self.kept[share] + TOLERANCE
        part = self.parts.get(share, 0.0) + (self.had[share] + need / 2) / self.cpus
        return not is_kept, part / self.weights[share]

    @property
    def has_next(self) -> bool:
        """Whether the next job fits."""
        return bool(self.ahead) and self.ahead[0][1] <= self.free + TOLERANCE

    def give(self, line: ShareLine, need: float, seconds: float) -> None:
        self.ahead.append((line, need, seconds))
        self.had[line.share] += need
        self.cpus_ahead += need

    def start(self) -> ShareLine:
        """Start the next job, and return its line."""
        line, need, seconds = self.ahead.popleft()
        self.used[line.share] += need
        self.free -= need
        self.cpus_ahead -= need
        heapq.heappush(self.ends, (self.now + seconds, line.share, need))
        return line

    def advance(self) -> int:
        """Let the next jobs finish; return how many shares were looked at."""
        before, (self.now, name, cpus) = self.now, heapq.heappop(self.ends)
        for share, mean in self.means.items():
            self.means[share] = mean.after(self.now - before, min(1.0, self.used[share] / self.cpus), self.half_life)
            self.parts[share] = self.means[share].part
        self.used[name] -= cpus
        self.had[name] -= cpus
        self.free += cpus
        return len(self.means)


def _kept(share: Share, site: str | None) -> float:
    """Return how many cpus of the room are kept for a share."""
    return sum(
        each.amounts["cpus"]
        for each in share.kept
        if "cpus" in each.amounts and (each.site is None or site is None or is_named(site, each.site))
    )
