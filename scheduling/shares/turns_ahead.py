"""How long shares that wait for the same room take to get through their jobs. Pure.

The room is divided as :mod:`lading.scheduling.shares.fair_order` divides it, but without jobs: each share works off what
it has waiting at a rate, which changes when another share has nothing left. Amounts of work are in any unit, such as
cpu-seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from lading.scheduling.shares.table import Share, Shares
from lading.scheduling.site_names import is_named

# Halvings after which a level at which shares are filled is exact enough.
HALVINGS = 50
# Work that is less than this part of all is none.
LEAST_PART = 1e-9


@dataclass(slots=True)
class TurnsAhead:
    """When shares get through their work.

    :param shares: all of them
    :param waiting: the work that each share has waiting
    :param per_second: the work that all of them get done in a second while they wait
    :param lately: the mean part of all there is that each has used lately, 0 to 1
    :param site: the name of the site whose room it is; None: that of all sites
    :param cpus: what the room has
    :ivar done: by share, the seconds at which its rate changes, and the work that it has done by then
    """

    shares: Shares
    waiting: Mapping[str, float]
    per_second: float
    lately: Mapping[str, float] = field(default_factory=dict)
    site: str | None = None
    cpus: float = 0.0
    done: dict[str, tuple[list[float], list[float]]] = field(init=False)

    def __post_init__(self) -> None:
        left = {name: work for name, work in self.waiting.items() if work > 0}
        least = LEAST_PART * sum(left.values())
        self.done = {name: ([0.0], [0.0]) for name in self.waiting}
        now = 0.0
        while left:
            parts = self.parts(left)
            # A share that is given nothing now waits until another one has finished.
            step = min(left[name] / (parts[name] * self.per_second) for name in left if parts[name] > 0)
            now += step
            for name in [*left]:
                times, amounts = self.done[name]
                finished = min(left[name], step * parts[name] * self.per_second)
                times.append(now)
                amounts.append(amounts[-1] + finished)
                left[name] -= finished
                if left[name] <= least:
                    del left[name]

    def parts(self, names: Mapping[str, float]) -> dict[str, float]:
        """The part of the room that each share has while these wait, 0 to 1; they sum up to 1."""
        shares = {name: self.shares.get(name) for name in names}
        kept = {name: self._kept(share) for name, share in shares.items()}
        if (sum_kept := sum(kept.values())) >= 1:
            return {name: part / sum_kept for name, part in kept.items()}
        lately = {name: self.lately.get(name, 0.0) for name in names}

        def at(level: float) -> dict[str, float]:
            return {name: max(kept[name], level * share.weight - lately[name], 0.0) for name, share in shares.items()}

        low, high = 0.0, max((1 + lately[name]) / share.weight for name, share in shares.items())
        for _ in range(HALVINGS):
            level = (low + high) / 2
            low, high = (level, high) if sum(at(level).values()) < 1 else (low, level)
        found = at(high)
        whole = sum(found.values())
        return {name: part / whole for name, part in found.items()}

    def _kept(self, share: Share) -> float:
        """The part of the room that is kept for a share."""
        of_cpus = [
            each.amounts["cpus"]
            for each in share.kept
            if "cpus" in each.amounts and (each.site is None or self.site is None or is_named(self.site, each.site))
        ]
        return min(1.0, sum(of_cpus) / self.cpus) if self.cpus > 0 else 0.0

    def seconds_until(self, share: str, work: float) -> float:
        """When a share has done so much of its work, seconds from now."""
        times, amounts = self.done.get(share, ([0.0], [0.0]))
        at = bisect_left(amounts, work)
        if at == 0:
            return 0.0
        if at == len(amounts):
            return times[-1] + (work - amounts[-1]) / self.per_second
        part = (work - amounts[at - 1]) / (amounts[at] - amounts[at - 1])
        return times[at - 1] + part * (times[at] - times[at - 1])

    def work_until(self, share: str, seconds: float) -> float:
        """The work that a share has done after so many seconds."""
        times, amounts = self.done.get(share, ([0.0], [0.0]))
        at = bisect_left(times, seconds)
        if at in (0, len(times)):
            return amounts[0 if at == 0 else -1]
        part = (seconds - times[at - 1]) / (times[at] - times[at - 1])
        return amounts[at - 1] + part * (amounts[at] - amounts[at - 1])
