"""When each step begins and on which machine: what a plan is. Pure; times are epoch seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.location import Location
from lading.scheduling.packing.problem import Bin


@dataclass(slots=True)
class PlannedMachine:
    """A machine of a schedule.

    :param boot: seconds from its launch to its first job
    :param since: epoch seconds from which on it takes steps
    :param location: the machine that is there; None: it is to be launched
    :param bin: what is to be launched; ``launched``: it was asked for; ``withheld``: and was not launched, as a budget
        or a limit is used up
    :param released: its location was released
    :param closes: epoch seconds at which it has to be gone, for another one to be launched within the limit, or as it
        ends then
    :param steps: what begins on it, in the order in which it was planned
    """

    boot: float
    since: float
    location: Location | None = None
    bin: Bin | None = None
    steps: list[str] = field(default_factory=list)
    launched: bool = False
    withheld: bool = False
    released: bool = False
    closes: float = math.inf

    def needed(self, schedule: Schedule, forecast: Forecast) -> float:
        """When the next step begins on it that has not begun, epoch seconds; infinite: none does."""
        steps = (name for name in self.steps if name in forecast.steps and forecast.steps[name].begun is None)
        return min((schedule.starts[name] for name in steps), default=math.inf)


@dataclass(slots=True)
class Schedule:
    """When and where everything is planned.

    :param starts: epoch seconds at which each step begins, or has begun; one that fits nothing is left out
    :param until: when each step ends, epoch seconds
    :param homes: the machine of each step that does not run yet
    :param usd: what is still to be paid
    :param ends: when each run ends, epoch seconds
    """

    machines: list[PlannedMachine]
    starts: dict[str, float] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    homes: dict[str, PlannedMachine] = field(default_factory=dict)
    usd: float = 0.0
    ends: dict[str | None, float] = field(default_factory=dict)

    def expected_ends(self, forecast: Forecast) -> dict[str, float]:
        """When each run is expected to end, epoch seconds; one with a step that fits nothing is left out."""
        ends: dict[str, float] = {}
        for name, step in forecast.steps.items():
            if (run := step.job.run) is not None:
                ends[run] = max(ends.get(run, 0.0), self.until.get(name, math.inf) + step.rest)
        return {run: end for run, end in ends.items() if end < math.inf}
