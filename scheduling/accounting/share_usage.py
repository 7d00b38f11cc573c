"""What shares use now, and what they have used lately: a mean that decays with a half-life. Pure.

SLURM's fair share counts use in the same way. Here the measure is the dominant share (Ghodsi et al., Dominant resource
fairness, NSDI 2011): the largest fraction of the total, 0 to 1, that a share has of any resource.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.accounting.share_table import NONE_USED, OTHERS, Share, ShareAmounts, Shares
from lading.scheduling.model.site_names import is_named


class Mean(NamedTuple):
    """A mean of the fraction used, weighted towards recent use.

    :param used: weighted sum of the fractions
    :param weight: sum of the weights; approaches 1 as the measured time grows
    """

    used: float = 0.0
    weight: float = 0.0

    def after(self, seconds: float, part: float, half_life: float) -> Mean:
        """Return the mean after ``seconds`` more at this use."""
        kept = 0.5 ** (max(0.0, seconds) / half_life)
        return Mean(self.used * kept + part * (1 - kept), self.weight * kept + (1 - kept))

    @property
    def part(self) -> float:
        """The mean, 0 to 1; 0 without measurements."""
        return self.used / self.weight if self.weight > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The present use of all shares.

    :param total: everything there is; fractions refer to it
    :param used: by share and site, what its jobs have been given now
    :param lately: by share, the mean fraction used lately, 0 to 1; empty: past use does not count
    """

    total: ShareAmounts = NONE_USED
    used: Mapping[str, Mapping[str, ShareAmounts]] = field(default_factory=dict)
    lately: Mapping[str, float] = field(default_factory=dict)

    def used_by(self, share: str, site: str | None = None) -> ShareAmounts:
        """Return what a share uses at a site, including all its accounts; None: at all sites."""
        there = [used for name, used in self.used.get(share, {}).items() if site is None or is_named(name, site)]
        return ShareAmounts(*map(sum, zip(*there, strict=True))) if there else NONE_USED

    def part_of(self, share: str) -> float:
        """Return the share's present dominant share, 0 to 1."""
        used = self.used_by(share)
        parts = [have / all_of_it for have, all_of_it in zip(used[:3], self.total[:3], strict=True) if all_of_it > 0]
        return min(1.0, max(parts, default=0.0))


class UseHistory:
    """What shares have used lately.

    :param half_life: seconds after which past use counts half
    :param means: the stored means, by share
    :param at: when they were stored, epoch seconds; None: nothing is stored
    """

    def __init__(self, half_life: float, means: Mapping[str, Mean] | None = None, at: float | None = None) -> None:
        self.half_life = half_life
        self.means: dict[str, Mean] = dict(means or {})
        self.at = at
        self._parts: dict[str, float] = {}

    def note(self, parts: Mapping[str, float], now: float) -> None:
        """Record the fraction of the total that each share uses from now on.

        The fractions recorded before held until now. Time in which no controller ran counts as no use.
        """
        seconds = 0.0 if self.at is None else now - self.at
        for name in {*self.means, *self._parts, *parts}:
            self.means[name] = self._mean(name).after(seconds, self._parts.get(name, 0.0), self.half_life)
        self._parts, self.at = dict(parts), now

    def add(self, name: str, seconds: float) -> None:
        """Record additional use of a share.

        :param seconds: the use, as the time for which it equals everything there is
        """
        mean = self._mean(name)
        self.means[name] = mean._replace(used=mean.used + seconds * math.log(2) / self.half_life)

    def forget(self, least: float) -> None:
        """Forget shares that use nothing now and whose mean is below ``least``."""
        gone = [name for name, mean in self.means.items() if mean.part < least and not self._parts.get(name)]
        for name in gone:
            del self.means[name]

    def _mean(self, name: str) -> Mean:
        """Return a share's mean. A new share counts as unused for as long as the others have been measured."""
        return self.means.get(name) or Mean(0.0, max((each.weight for each in self.means.values()), default=0.0))

    @property
    def lately(self) -> dict[str, float]:
        """The mean fraction of each share, 0 to 1."""
        return {name: mean.part for name, mean in self.means.items()}


def entitled(shares: Shares, names: Iterable[str]) -> dict[str, float]:
    """Return each share's part by weight, 0 to 1: of those of the table, and of these names."""
    every = {each.name: each for each in shares.table}
    every |= {name: Share(name) for name in names if name not in every and (not shares.table or name == OTHERS)}
    whole = sum(each.weight for each in every.values())
    return {name: each.weight / whole for name, each in every.items()} if whole else {}


class Guarantee(NamedTuple):
    """An amount that is kept for a share, and how much of that resource its jobs use.

    :param site: there; None: over all sites together
    :param what: a field of :class:`ShareAmounts`
    """

    site: str | None
    what: str
    kept: float
    used: float


class ShareStanding(NamedTuple):
    """What a share has. Parts are of all there is, 0 to 1.

    :param entitled: by its weight
    :param used: its dominant share now
    :param lately: its mean part lately; None: that does not count
    """

    share: Share
    entitled: float
    used: float
    lately: float | None
    guarantees: tuple[Guarantee, ...]


def share_standings(shares: Shares, standing: Standing) -> list[ShareStanding]:
    """What each share of the table has, and ``others`` where it has jobs."""
    parts = entitled(shares, standing.used)
    return [
        ShareStanding(
            share := shares.get(name),
            part,
            standing.part_of(name),
            standing.lately.get(name, 0.0) if standing.lately else None,
            tuple(
                Guarantee(kept.site, what, amount, getattr(standing.used_by(name, kept.site), what))
                for kept in share.kept
                for what, amount in kept.amounts.items()
            ),
        )
        for name, part in parts.items()
    ]
