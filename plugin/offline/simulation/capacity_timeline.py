"""The capacity of a simulation over time: machines up, cpus paid for, cpus used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lading.plugin.offline.simulation.simulated_machines import SimulatedMachine
from lading.scheduling.packing.problem import UNIT


class AverageAmounts(NamedTuple):
    machines: float
    paid: float
    used: float


@dataclass(slots=True)
class CapacityTimeline:
    """Collects spans of time with their amounts.

    :param spans: begin and end in seconds, with the machines, cpus paid for and cpus used in between
    """

    spans: list[tuple[float, float, AverageAmounts]] = field(default_factory=list)

    def paid(self, machine: SimulatedMachine, until: float) -> None:
        """Add a machine, from its launch until its release."""
        self.spans.append((machine.launched_at, until, AverageAmounts(1.0, machine.capacity[0] / UNIT, 0.0)))

    def used(self, begin: float, until: float, cpus: float) -> None:
        self.spans.append((begin, until, AverageAmounts(0.0, 0.0, cpus)))

    def means(self, number: int) -> tuple[Sequence[float], list[AverageAmounts]]:
        """Divide the time into ``number`` equal parts; return their borders, and the averages within each."""
        if not self.spans:
            return (0.0, 1.0), [AverageAmounts(0.0, 0.0, 0.0)]
        begin, end = min(span[0] for span in self.spans), max(span[1] for span in self.spans)
        step = max(end - begin, 1e-9) / number
        borders = [begin + i * step for i in range(number + 1)]
        # A span counts in proportion to its overlap with a part, so totals do not depend on the number of parts.
        changes: dict[float, list[float]] = {border: [0.0, 0.0, 0.0] for border in borders}
        for start, stop, amounts in self.spans:
            for time, sign in ((start, 1.0), (stop, -1.0)):
                change = changes.setdefault(time, [0.0, 0.0, 0.0])
                for i in range(3):
                    change[i] += sign * amounts[i]
        sums = [[0.0, 0.0, 0.0] for _ in range(number)]
        level = [0.0, 0.0, 0.0]
        for time, following in pairwise(sorted(changes)):
            level = [have + more for have, more in zip(level, changes[time], strict=True)]
            part = min(number - 1, int((time - begin) / step + 1e-9))
            for i in range(3):
                sums[part][i] += level[i] * (following - time)
        return borders, [AverageAmounts(*(amount / step for amount in each)) for each in sums]
