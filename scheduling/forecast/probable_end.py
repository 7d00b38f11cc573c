"""When runs have probably ended, where lengths of steps are uncertain. Pure; times are epoch seconds.

A run has ended when the last of its steps has. Of a hundred that take as long as each other but for chance, by
log-normal lengths, the last one takes much longer than most. That is no reason for more machines, since it takes as
long on each; what counts is by how much later the last one ends if some of them begin later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.prediction import EXACT

# A step takes longer by so many standard deviations of its logarithm at most.
MOST_DEVIATIONS = 3.0
# An end is known well enough when it is between two times of which the later one is as much later at most, as a part of
# what is beyond the planned end, and seconds.
NEAR, MOMENT = 0.01, 0.5
HALF, TINY = math.log(0.5), 1e-300


class ProbableEnds:
    """The ends of runs, and of what machines do, by the starts of steps.

    What runs is reckoned to end when it is planned to, as it does whatever else is planned.

    :param forecast: with the medians of lengths
    :param rests: seconds of the longest way from the start of each step to the end of its run
    """

    def __init__(self, forecast: Forecast, rests: Mapping[str, float]) -> None:
        self.steps: dict[str, Uncertain] = {}
        self.runs: dict[str | None, dict[str, Uncertain]] = {}
        for name, step in forecast.steps.items():
            if step.spread > EXACT and step.measured and step.begun is None:
                self.steps[name] = its = Uncertain(step.seconds, step.spread)
                self.runs.setdefault(step.job.run, {})[name] = its._replace(behind=forecast.behind(name, rests))

    def of_run(self, run: str | None, starts: Mapping[str, float], planned: float) -> float:
        """When a run has ended half of the time, and not before it is planned to.

        :param starts: when each step begins
        :param planned: when it ends if each step takes as long as planned
        """
        return probable_end(self.runs.get(run, {}), starts, planned)

    def of_machine(self, steps: Iterable[str], starts: Mapping[str, float], planned: float) -> float:
        """The same for the last of the steps of a machine."""
        return probable_end({name: self.steps[name] for name in steps if name in self.steps}, starts, planned)


class Uncertain(NamedTuple):
    """The length of a step.

    :param seconds: the median; ``spread``: the standard deviation of its logarithm
    :param behind: seconds of the longest way behind it
    """

    seconds: float
    spread: float
    behind: float = 0.0


def probable_end(steps: Mapping[str, Uncertain], starts: Mapping[str, float], planned: float) -> float:
    """When the last of these has ended half of the time, and not before it is planned to."""
    late, latest = [], planned
    for name, (seconds, spread, behind) in steps.items():
        if name in starts:
            most = starts[name] + behind + seconds * math.exp(MOST_DEVIATIONS * spread)
            if most > planned:
                late.append((starts[name] + behind, seconds, spread * math.sqrt(2)))
                latest = max(latest, most)
    soonest = planned
    while latest - soonest > max(MOMENT, NEAR * (latest - planned)):
        end, chance = (soonest + latest) / 2, 0.0
        if not soonest < end < latest:
            break  # there is no floating-point number between the two
        for begin, seconds, scale in late:
            part = math.erfc(-math.log((end - begin) / seconds) / scale) / 2 if end > begin else 0.0
            chance += math.log(max(TINY, part))
            if chance < HALF:
                soonest = end
                break
        else:
            latest = end
    return latest
