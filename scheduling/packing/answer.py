"""The result of packing: how many jobs of each shape each machine gets. Individual jobs are assigned later."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lading.scheduling.model.reasons import Reason
from lading.scheduling.packing.problem import Bin, Problem, Room, Vector


@dataclass(slots=True, eq=False)
class MachineGroup:
    """``size`` machines with equal contents: one existing room (``size`` 1), or bins to launch.

    :param free: what is left on each machine
    :param fills: (shape, jobs per machine, position of the first job among the shape's members)
    """

    bin: Bin | None
    room: Room | None
    size: int
    free: Vector
    fills: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Packing:
    """Machine groups, oldest first, and the jobs left over: (shape, first position, count, reason)."""

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
        """USD per hour of the launched machines."""
        return math.fsum(group.bin.price * group.size for group in self.groups if group.bin)

    def objective(self, problem: Problem) -> float:
        return self.cost + self.launches * problem.objective.per_launch


def take(free: Vector, need: Vector, times: int) -> Vector:
    return (
        free[0] - need[0] * times,
        free[1] - need[1] * times,
        free[2] - need[2] * times,
        free[3] - need[3] * times,
    )
