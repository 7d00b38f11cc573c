"""A schedule: when each step starts, and on which machine. Pure; times are epoch seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.model.location import Location
from lading.scheduling.packing.problem import Bin


@dataclass(slots=True)
class PlannedMachine:
    """A machine of a schedule.

    :param boot: seconds from its launch to its first job
    :param since: from when on it accepts steps, epoch seconds
    :param location: the existing machine; None: it is to be launched
    :param bin: what is to be launched
    :param launched: whether the launch was requested
    :param withheld: whether it was requested but not launched, because a budget or a limit is used up
    :param released: whether its location was released
    :param closes: when it must be gone, because another machine is launched in its place or because its location ends,
        epoch seconds
    :param steps: the steps planned on it, in the order of planning
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
        """When the next unstarted step starts on it, epoch seconds; infinite if there is none."""
        steps = (name for name in self.steps if name in forecast.steps and forecast.steps[name].begun is None)
        return min((schedule.starts[name] for name in steps), default=math.inf)


@dataclass(slots=True)
class Schedule:
    """When and where every step is planned.

    :param starts: when each step starts or has started, epoch seconds; a step that fits nothing is omitted
    :param until: when each step finishes, epoch seconds
    :param homes: the machine of each step that is not running yet
    :param usd: the remaining cost
    :param ends: when each run ends, epoch seconds
    """

    machines: list[PlannedMachine]
    starts: dict[str, float] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    homes: dict[str, PlannedMachine] = field(default_factory=dict)
    usd: float = 0.0
    ends: dict[str | None, float] = field(default_factory=dict)

    def expected_ends(self, forecast: Forecast) -> dict[str, float]:
        """When each run is expected to end, epoch seconds; runs with a step that fits nothing are omitted."""
        ends: dict[str, float] = {}
        for name, step in forecast.steps.items():
            if (run := step.job.run) is not None:
                ends[run] = max(ends.get(run, 0.0), self.until.get(name, math.inf))
        return {run: end for run, end in ends.items() if end < math.inf}
