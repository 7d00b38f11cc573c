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

from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.packing.problem import Bin, Vector, fits, offered, vector

# The fleet sizes that are tried.
SIZES = (1, 2, 3, 4, 6, 8, 12)
# How many steps without room can be overtaken by steps behind them.
MOST_PASSED = 40
# The factor over its critical path that a user accepts for a run.
SLACK = 1.25
# Keeps bounds below the costs and times that they bound, despite rounding.
CERTAIN = 1 - 1e-9


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
    rests = workflow.rests(0.0)
    critical_path = max(rests.values(), default=0.0)
    in_time: EqualMachines | None = None
    cheapest: EqualMachines | None = None
    for machine_type in able_types(workflow, catalogue):
        busy = least_busy(workflow, machine_type)
        least_usd = machine_type.price / 3600 * (boot + busy) * CERTAIN if busy else 0.0
        for size in SIZES:
            may_be_in_time = busy / size * CERTAIN <= SLACK * critical_path
            most_usd = in_time if may_be_in_time else cheapest
            if most_usd is not None and least_usd > most_usd.usd:
                continue
            fleet = run(workflow, rests, machine_type, boot, size)
            if cheapest is None or fleet < cheapest:
                cheapest = fleet
            if fleet.seconds <= SLACK * critical_path and (in_time is None or fleet < in_time):
                in_time = fleet
            if fleet.machines < size:
                break
    return CheapestFleets(critical_path, in_time, cheapest)


def fleets(
    workflow: Forecast, catalogue: Catalogue, boot: float, sizes: Sequence[int] = SIZES
) -> Iterator[EqualMachines]:
    """Yield a fleet of each size for each type that holds every step, until a machine stays unused."""
    rests = workflow.rests(0.0)
    for machine_type in able_types(workflow, catalogue):
        for size in sizes:
            fleet = run(workflow, rests, machine_type, boot, size)
            yield fleet
            if fleet.machines < size:
                break


def able_types(workflow: Forecast, catalogue: Catalogue) -> Iterator[Bin]:
    """Yield the types that hold every step, the cheapest first; of those with equal capacities only the cheapest."""
    needs = {vector(step.job.resources) for step in workflow.steps.values()}
    wishes = {step.job.wish for step in workflow.steps.values()}
    known: set[Vector] = set()
    for machine_type in offered(catalogue, 0.0)[0].bins:
        is_able = all(fits(need, machine_type.capacity) for need in needs) and all(
            map(machine_type.kind.grants, wishes)
        )
        if machine_type.capacity not in known and is_able:
            known.add(machine_type.capacity)
            yield machine_type


def least_busy(workflow: Forecast, machine_type: Bin) -> float:
    """Return for how many seconds machines of a type must be busy in total, however many there are."""
    amounts = [0.0] * 4
    for step in workflow.steps.values():
        for i, need in enumerate(vector(step.job.resources)):
            amounts[i] += need * step.seconds
    return max(amount / have for amount, have in zip(amounts, machine_type.capacity, strict=True) if have)


def run(workflow: Forecast, rests: Mapping[str, float], machine_type: Bin, boot: float, size: int) -> EqualMachines:
    """Run the workflow on at most ``size`` machines.

    :param rests: see :meth:`Forecast.rests`
    """
    steps, children = workflow.steps, workflow.children
    needs = {name: vector(step.job.resources) for name, step in steps.items()}
    different = len(set(needs.values()))
    machines = [RentedMachine(machine_type.price / 3600, boot) for _ in range(size)]
    free: list[Vector] = [machine_type.capacity] * size
    missing = {name: len(step.parents) for name, step in steps.items()}
    ready = [(-rests[name], name) for name, number in missing.items() if not number]
    heapq.heapify(ready)
    # The steps that had no room when they were next, in their order, and the needs for which no machine has room.
    passed: list[tuple[float, str]] = []
    without_room = set[Vector]()
    ends: list[tuple[float, str, int]] = []
    now = 0.0
    while ready or passed or ends:
        place = 0
        while place <= MOST_PASSED and len(without_room) < different:
            if ready and (place == len(passed) or ready[0] < passed[place]):
                passed.insert(place, heapq.heappop(ready))
            elif place == len(passed):
                break
            _, name = passed[place]
            need = needs[name]
            number = None
            if need not in without_room:
                number = next((i for i, room in enumerate(free) if fits(need, room)), None)
            if number is None:
                without_room.add(need)
                place += 1
                continue
            del passed[place]
            free[number] = plus(free[number], need, -1)
            machines[number].add(now, now + steps[name].seconds)
            heapq.heappush(ends, (now + steps[name].seconds, name, number))
        now, ended, number = heapq.heappop(ends)
        free[number] = room = plus(free[number], needs[ended], 1)
        without_room = {need for need in without_room if not fits(need, room)}
        for child in children[ended]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (-rests[child], child))
    used = [machine for machine in machines if machine.busy]
    return EqualMachines(sum(machine.usd() for machine in used), machine_type.type.name, len(used), now)


def plus(room: Vector, need: Vector, sign: int) -> Vector:
    return room[0] + sign * need[0], room[1] + sign * need[1], room[2] + sign * need[2], room[3] + sign * need[3]
