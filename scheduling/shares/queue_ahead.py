"""When jobs that wait for the same room start, predicted from shares and lengths. Pure.

Room is given to one job at a time in the order of :mod:`lading.scheduling.shares.fair_order`: to the share with the
smallest use relative to its weight, after shares that have less than is kept for them. All room counts as one large
machine, and the next job waits until it fits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
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
        self.cpus, self.given_ahead = cpus, given_ahead
        self.starts: dict[ShareLine, list[tuple[float, int]]] = {line: [] for line in lines}
        """Seconds from now, and how many jobs start before it."""
        self.count, self.last = 0, 0.0
        self._run({line: _jobs(its, cpus) for line, its in lines.items()}, running, shares, lately, site)

    def _run(
        self,
        lines: dict[ShareLine, list[list[float]]],
        running: Sequence[Running],
        shares: Shares,
        lately: Mapping[str, Mean],
        site: str | None,
    ) -> None:
        names = {line.share for line in lines} | {each.share for each in running}
        # In addition to what runs, shares have what sites have been given ahead.
        used, had = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        table = {name: shares.get(name) for name in names}
        kept = {name: _kept(share, site) for name, share in table.items()}
        ends: list[tuple[float, str, float]] = []
        for each in running:
            used[each.share] += each.cpus
            had[each.share] += each.cpus
            ends.append((each.left, each.share, each.cpus))
        heapq.heapify(ends)
        now, free = 0.0, self.cpus - sum(used.values())
        ahead, cpus_ahead = deque[tuple[ShareLine, float, float]](), 0.0
        waiting = {line for line, its in lines.items() if its}
        taken = dict.fromkeys(lines, 0)
        # A share without measurements counts as unused for as long as the others have been measured.
        unused = Mean(0.0, max((mean.weight for mean in lately.values()), default=0.0))
        means = {name: lately.get(name, unused) for name in names if lately}
        parts = {name: mean.part for name, mean in means.items()}

        def key(line: ShareLine) -> tuple[tuple[bool, int, int], bool, float, str]:
            name, need = line.share, lines[line][-1][1]
            # What is given ahead does not use up what is kept for a share, as in the order of placing.
            can_run = self.cpus / max(self.cpus, self.cpus - free + cpus_ahead)
            is_kept = had[name] * can_run + need <= kept[name] + TOLERANCE
            part = parts.get(name, 0.0) + (had[name] + need / 2) / self.cpus
            return line.level, not is_kept, part / table[name].weight, name

        compared = 0
        while (waiting or ahead) and compared < MOST_COMPARED:
            while waiting:
                compared += len(waiting)
                line = min(waiting, key=key)
                alike = lines[line][-1]
                _, need, seconds, spread = alike
                is_given = not line.level[0]
                if not is_given and cpus_ahead - free + need > self.given_ahead + TOLERANCE:
                    break
                ahead.append((line, need, typical_length(seconds, spread, taken[line])))
                taken[line] += 1
                had[line.share] += need
                cpus_ahead += need
                alike[0] -= 1
                if not alike[0]:
                    lines[line].pop()
                    if not lines[line]:
                        waiting.remove(line)
            if not ahead or free + TOLERANCE < ahead[0][1]:
                before, (now, name, cpus) = now, heapq.heappop(ends)
                for share, mean in means.items():
                    means[share] = mean.after(now - before, min(1.0, used[share] / self.cpus), shares.half_life)
                    parts[share] = means[share].part
                compared += len(means)
                used[name] -= cpus
                had[name] -= cpus
                free += cpus
                continue
            line, need, seconds = ahead.popleft()
            self.starts[line].append((now, self.count))
            self.count, self.last = self.count + 1, now
            used[line.share] += need
            free -= need
            cpus_ahead -= need
            heapq.heappush(ends, (now + seconds, line.share, need))

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


def _jobs(alike: Sequence[Alike], cpus: float) -> list[list[float]]:
    """Return (jobs, cpus, seconds, spread) as lists, last ones first, to be counted down."""
    found = []
    for each in reversed(alike):
        # A job that needs more cpus than are known counts as using all of them for longer.
        size = max(1.0, each.cpus / cpus)
        found.append([each.jobs, each.cpus / size, each.seconds * size, each.spread])
    return found


def _kept(share: Share, site: str | None) -> float:
    """Return how many cpus of the room are kept for a share."""
    return sum(
        each.amounts["cpus"]
        for each in share.kept
        if "cpus" in each.amounts and (each.site is None or site is None or is_named(site, each.site))
    )
