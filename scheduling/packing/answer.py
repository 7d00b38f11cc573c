"""A packing: which shapes go together on which bins and rooms. What a policy answers, before names are dealt out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lading.scheduling.packing.problem import Bin, Problem, Room, Vector
from lading.scheduling.reasons import Reason


@dataclass(slots=True, eq=False)
class MachineGroup:
    """``size`` machines that are filled alike: a room that is there (``size`` 1) or bins to launch.

    :param free: what is left on each
    :param fills: what was put in: (shape, how many per machine, the first job's position among the shape's members)
    """

    bin: Bin | None
    room: Room | None
    size: int
    free: Vector
    fills: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Packing:
    """Groups in the order of their age, and what was left over: (shape, first position, how many, reason)."""

    groups: list[MachineGroup]
    left: list[tuple[int, int, int, Reason]]

    @property
    def launches(self) -> int:
        return sum(group.size for group in self.groups if group.bin)

    @property
    def waiting(self) -> int:
        return sum(count for _, _, count, _ in self.left)

    @property
    def cost(self) -> float:
        """USD per hour of what is launched."""
        return math.fsum(group.bin.price * group.size for group in self.groups if group.bin)

    def objective(self, problem: Problem) -> float:
        return self.cost + self.launches * problem.objective.per_launch


def take(free: Vector, need: Vector, times: int) -> Vector:
    """What is left of ``free`` after ``times`` jobs."""
    return (
        free[0] - need[0] * times,
        free[1] - need[1] * times,
        free[2] - need[2] * times,
        free[3] - need[3] * times,
    )
