"""The cost of machines while runs were live, which is added to the future cost of a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lading.scheduling.forecast.forecast import Forecast


class Spending:
    """The existing machines, and released ones as long as a run that overlapped them is live.

    On a site that is always busy, counting everything ever paid would make current decisions count less and less.
    """

    def __init__(self) -> None:
        self.there: dict[str, tuple[float, float]] = {}
        """By name, since when each is billed (epoch seconds), and its price (USD per hour)."""
        self.gone: list[tuple[float, float, float]] = []
        """(Billed since, billed until, USD per hour)."""

    def see(self, machines: Mapping[str, tuple[float, float]], now: float) -> None:
        """Note the existing machines; a machine that is gone is charged until it was last seen.

        :param machines: by name, since when each is billed (epoch seconds), and its price (USD per hour)
        :param now: epoch seconds
        """
        for name in self.there.keys() - machines.keys():
            since, usd_per_hour = self.there[name]
            self.gone.append((since, now, usd_per_hour))
        self.there = dict(machines)

    def usd(self, forecast: Forecast, now: float) -> float:
        """USD that machines have cost since the first of the live runs started.

        :param now: epoch seconds; must never go back
        """
        runs = {step.job.run for step in forecast.steps.values()}
        first = min((forecast.began.get(run or "", now) for run in runs), default=now)
        self.gone = [each for each in self.gone if each[1] > first]
        there: Iterable[tuple[float, float, float]] = ((since, now, usd) for since, usd in self.there.values())
        paid = (max(0.0, until - max(first, since)) / 3600 * usd for since, until, usd in (*self.gone, *there))
        return math.fsum(paid)
