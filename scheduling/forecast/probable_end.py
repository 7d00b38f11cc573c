"""When runs have probably ended, where lengths of steps are uncertain. Pure; times are epoch seconds.

A run has ended when the last of its steps has. Of a hundred that take as long as each other but for chance, by
log-normal lengths, the last one takes much longer than most. That is no reason for more machines, since it takes as
long on each; what counts is by how much later the last one ends if some of them begin later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.prediction import EXACT

# A step takes longer by so many standard deviations of its logarithm at most.
MOST_DEVIATIONS = 3.0
# An end is known well enough when it is between two times of which the later one is as much later at most, as a part of
# what is beyond the planned end, and seconds.
NEAR, MOMENT = 0.01, 0.5
HALF, TINY = math.log(0.5), 1e-300


class ProbableEnds:
    """The ends of runs by the starts of their steps.

    What runs is reckoned to end when it is planned to, as it does whatever else is planned.

    :param forecast: with the medians of lengths
    :param rests: seconds of the longest way from the start of each step to the end of its run
    """

    def __init__(self, forecast: Forecast, rests: Mapping[str, float]) -> None:
        self.runs: dict[str | None, list[tuple[str, float, float, float]]] = {}
        for name, step in forecast.steps.items():
            if step.spread > EXACT and step.measured and step.begun is None:
                behind = max((rests[child] for child in forecast.children[name]), default=step.rest)
                self.runs.setdefault(step.job.run, []).append((name, step.seconds, step.spread, behind))

    def of(self, run: str | None, starts: Mapping[str, float], planned: float) -> float:
        """When a run has ended half of the time, and not before it is planned to.

        :param starts: when each step begins
        :param planned: when it ends if each step takes as long as planned
        """
        uncertain, latest = [], planned
        for name, seconds, spread, behind in self.runs.get(run, ()):
            if name in starts:
                most = starts[name] + behind + seconds * math.exp(MOST_DEVIATIONS * spread)
                if most > planned:
                    uncertain.append((starts[name] + behind, seconds, spread * math.sqrt(2)))
                    latest = max(latest, most)
        soonest = planned
        while latest - soonest > max(MOMENT, NEAR * (latest - planned)):
            end, chance = (soonest + latest) / 2, 0.0
            for begin, seconds, spread in uncertain:
                if end > begin:
                    chance += math.log(max(TINY, math.erfc(-math.log((end - begin) / seconds) / spread) / 2))
                else:
                    chance = -math.inf
                if chance < HALF:
                    soonest = end
                    break
            else:
                latest = end
        return latest
