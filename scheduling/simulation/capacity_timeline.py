"""What a simulation had over time: machines up, cpus paid for, cpus used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lading.scheduling.packing.problem import UNIT
from lading.scheduling.simulation.simulated_machines import SimulatedMachine


class AverageAmounts(NamedTuple):
    """What there is, on average over a span of time."""

    machines: float
    paid: float
    used: float


@dataclass(slots=True)
class CapacityTimeline:
    """From when until when there was what.

    :param spans: begin and end in seconds, machines, cpus paid for and cpus used in between
    """

    spans: list[tuple[float, float, AverageAmounts]] = field(default_factory=list)

    def paid(self, machine: SimulatedMachine, until: float) -> None:
        """A machine was there from its launch until it was released."""
        self.spans.append((machine.launched_at, until, AverageAmounts(1.0, machine.capacity[0] / UNIT, 0.0)))

    def used(self, begin: float, until: float, cpus: float) -> None:
        """A job ran."""
        self.spans.append((begin, until, AverageAmounts(0.0, 0.0, cpus)))

    def means(self, number: int) -> tuple[Sequence[float], list[AverageAmounts]]:
        """The borders of so many equal parts of the time, and what there was in each."""
        if not self.spans:
            return (0.0, 1.0), [AverageAmounts(0.0, 0.0, 0.0)]
        begin, end = min(span[0] for span in self.spans), max(span[1] for span in self.spans)
        step = max(end - begin, 1e-9) / number
        borders = [begin + i * step for i in range(number + 1)]
        # What begins and ends within a part counts for as much of it, so totals are right whatever the number.
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
