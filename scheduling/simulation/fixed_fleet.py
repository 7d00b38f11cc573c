"""What a workflow costs on a fleet of equal machines if all lengths are known: what a careful user could rent. Pure.

Steps start in the order of the longest rest of their run, each on the first machine with room, so that the first
machines are densely filled. A machine is paid from one boot time before its first step to the end of its last one; gaps
longer than a boot cost only another boot.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.packing.problem import Bin, Vector, fits, offered, vector

# The fleet sizes that are tried.
SIZES = (1, 2, 3, 4, 6, 8, 12)
# How many steps without room can be overtaken by steps behind them.
MOST_PASSED = 40
# The factor over its critical path that a user accepts for a run.
SLACK = 1.25


@dataclass(frozen=True, slots=True, order=True)
class EqualMachines:
    """A fleet of equal machines with the cost and length of a run on it; ordered by cost.

    :param usd: cost of the run
    :param machines: how many of them are used
    :param seconds: from the first step to the end of the last one, without the boot
    """

    usd: float
    instance_type: str
    machines: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheapestFleets:
    """The cheapest fleets for a workflow.

    :param critical_path: seconds of the longest path through the workflow
    :param in_time: the cheapest fleet whose run takes at most :data:`SLACK` times the critical path; None: there is
        none
    :param cheapest: of all fleets; None: a step fits no machine
    """

    critical_path: float
    in_time: EqualMachines | None
    cheapest: EqualMachines | None


@dataclass(slots=True)
class RentedMachine:
    """A machine, and the separate periods in which steps run on it, in order."""

    usd_per_second: float
    boot: float
    busy: list[tuple[float, float]] = field(default_factory=list)

    def add(self, begin: float, end: float) -> None:
        """Run a step, which starts no sooner than those before it."""
        if self.busy and begin <= self.busy[-1][1]:
            self.busy[-1] = self.busy[-1][0], max(end, self.busy[-1][1])
        else:
            self.busy.append((begin, end))

    def usd(self) -> float:
        gaps = sum(min(after[0] - before[1], self.boot) for before, after in pairwise(self.busy))
        busy = sum(end - begin for begin, end in self.busy)
        return (self.boot + busy + gaps if self.busy else 0.0) * self.usd_per_second


def reference(workflow: Forecast, catalogue: Catalogue, boot: float) -> CheapestFleets:
    """Return the cheapest fleets of one type on which a workflow runs.

    :param workflow: steps of which none runs yet
    :param boot: seconds from a launch to the first step
    """
    critical_path = max(workflow.rests(0.0).values(), default=0.0)
    all_fleets = list(fleets(workflow, catalogue, boot))
    in_time = (each for each in all_fleets if each.seconds <= SLACK * critical_path)
    return CheapestFleets(critical_path, min(in_time, default=None), min(all_fleets, default=None))


def fleets(
    workflow: Forecast, catalogue: Catalogue, boot: float, sizes: Sequence[int] = SIZES
) -> Iterator[EqualMachines]:
    """Yield a fleet of each size for each type that holds every step, until a machine stays unused."""
    needs = {name: vector(step.job.resources) for name, step in workflow.steps.items()}
    wishes = {step.job.wish for step in workflow.steps.values()}
    known: set[Vector] = set()
    for machine_type in offered(catalogue, 0.0)[0]:  # the cheapest first
        is_able = all(fits(need, machine_type.capacity) for need in needs.values()) and all(
            map(machine_type.kind.grants, wishes)
        )
        if machine_type.capacity in known or not is_able:
            continue
        known.add(machine_type.capacity)
        for size in sizes:
            machines, seconds = run(workflow, needs, machine_type, boot, size)
            used = [machine for machine in machines if machine.busy]
            yield EqualMachines(sum(machine.usd() for machine in used), machine_type.type.name, len(used), seconds)
            if len(used) < size:
                break


def run(
    workflow: Forecast, needs: Mapping[str, Vector], machine_type: Bin, boot: float, size: int
) -> tuple[list[RentedMachine], float]:
    """Run the workflow on ``size`` machines; return the machines, and the seconds it takes."""
    rests = workflow.rests(0.0)
    machines = [RentedMachine(machine_type.price / 3600, boot) for _ in range(size)]
    free = [list(machine_type.capacity) for _ in range(size)]
    missing = {name: len(step.parents) for name, step in workflow.steps.items()}
    ready = [(-rests[name], name) for name, number in missing.items() if not number]
    heapq.heapify(ready)
    ends: list[tuple[float, str, int]] = []
    now = 0.0
    while ready or ends:
        passed: list[tuple[float, str]] = []
        while ready and len(passed) <= MOST_PASSED:
            key, name = heapq.heappop(ready)
            number = next((i for i in range(size) if fits(needs[name], tuple(free[i]))), None)  # type: ignore[arg-type]
            if number is None:
                passed.append((key, name))
                continue
            free[number] = [have - need for have, need in zip(free[number], needs[name], strict=True)]
            machines[number].add(now, now + workflow.steps[name].seconds)
            heapq.heappush(ends, (now + workflow.steps[name].seconds, name, number))
        for some in passed:
            heapq.heappush(ready, some)
        now, ended, number = heapq.heappop(ends)
        free[number] = [have + need for have, need in zip(free[number], needs[ended], strict=True)]
        for child in workflow.children[ended]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (-rests[child], child))
    return machines, now
