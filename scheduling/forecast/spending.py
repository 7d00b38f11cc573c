"""What machines have cost while runs were live, which counts beside what a plan costs from now on. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from lading.scheduling.forecast.forecast import Forecast


class Spending:
    """The machines that are there, and those that have gone as long as a run of their time is live.

    On a site that is always busy all that was ever paid would make what is decided now ever less important.
    """

    def __init__(self) -> None:
        self.there: dict[str, tuple[float, float]] = {}
        """Since when each is paid for, epoch seconds, and its price, USD per hour."""
        self.gone: list[tuple[float, float, float]] = []
        """From when to when, and for how many USD per hour."""

    def see(self, machines: Mapping[str, tuple[float, float]], now: float) -> None:
        """Take note of the machines that are there; what has gone has cost what it cost when it was seen last.

        :param machines: since when each is paid for, epoch seconds, and its price, USD per hour, by its name
        :param now: epoch seconds
        """
        for name in self.there.keys() - machines.keys():
            since, usd_per_hour = self.there[name]
            self.gone.append((since, now, usd_per_hour))
        self.there = dict(machines)

    def usd(self, forecast: Forecast, now: float) -> float:
        """USD that the machines have cost since the first of the live runs has begun.

        :param now: epoch seconds; it never goes back
        """
        runs = {step.job.run for step in forecast.steps.values()}
        first = min((forecast.began.get(run or "", now) for run in runs), default=now)
        self.gone = [each for each in self.gone if each[1] > first]
        there: Iterable[tuple[float, float, float]] = ((since, now, usd) for since, usd in self.there.values())
        paid = (max(0.0, until - max(first, since)) / 3600 * usd for since, until, usd in (*self.gone, *there))
        return math.fsum(paid)
