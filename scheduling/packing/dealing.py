"""Assign names and jobs to the machines of a packing, lazily.

A million jobs make a few hundred groups of machines with equal contents, but half a million placements, so placements
are generated only when they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TypeVar, overload

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import FilledMachines, Placement, PlannedLaunch
from lading.scheduling.packing.answer import MachineGroup, Packing
from lading.scheduling.packing.problem import Problem

T = TypeVar("T")
COUNT = attrgetter("count")


class LazySequence(Sequence[T]):
    """A sequence that regenerates the same items each time it is read."""

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[T]:
        return iter(self.make())

    def __len__(self) -> int:
        return sum(1 for _ in self.make())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return tuple(self.make())[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class ShapeJobs:
    """The jobs of one shape in placement order, each repeated as often as its count."""

    def __init__(self, jobs: list[PlannedJob]) -> None:
        self.jobs = jobs
        self.ends: list[int] = list(accumulate(map(COUNT, jobs)))

    def between(self, start: int, count: int) -> Iterator[tuple[str, int]]:
        """Yield name and count of the ``count`` jobs from position ``start``."""
        i = bisect_right(self.ends, start)
        while count > 0:
            here = min(count, self.ends[i] - start)
            yield self.jobs[i].name, here
            start, count, i = start + here, count - here, i + 1

    def same(self, start: int, count: int) -> bool:
        """Return whether ``count`` jobs from position ``start`` have one name."""
        return start + count <= self.ends[bisect_right(self.ends, start)]


class NamedMachines:
    def __init__(self, problem: Problem, packing: Packing) -> None:
        self.packing = packing
        dealt = {shape for group in packing.groups for shape, _, _ in group.fills}
        self.members = {shape: ShapeJobs(problem.members[shape]) for shape in dealt}
        taken = [room.location.name for room in problem.rooms]
        self.prefix = "new-"
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix += "-"

    def launches(self) -> Iterator[PlannedLaunch]:
        number = 0
        for group in self.packing.groups:
            if group.bin is None:
                continue
            offering = group.bin.offering
            for _ in range(group.size):
                number += 1
                yield PlannedLaunch(
                    f"{self.prefix}{number}",
                    group.bin.type.name,
                    offering.capacity_type,
                    offering.zone,
                    offering.usd_per_hour,
                )

    def placements(self) -> Iterator[Placement]:
        launched = 0
        for group in self.packing.groups:
            for i in range(group.size):
                if group.room is not None:
                    name = group.room.location.name
                else:
                    launched += 1
                    name = f"{self.prefix}{launched}"
                for job, count in self.contents(group, i):
                    yield Placement(job, name, count)

    def filled(self) -> Iterator[FilledMachines]:
        for group in self.packing.groups:
            alike = all(self.members[shape].same(start, each * group.size) for shape, each, start in group.fills)
            for i in range(1 if alike else group.size):
                number = group.size if alike else 1
                if group.room is not None:
                    there = group.room.location
                    name, kind, price = there.name, there.instance_type or "", there.usd_per_hour
                elif group.bin is not None:
                    name, kind, price = "", group.bin.type.name, group.bin.offering.usd_per_hour
                jobs: dict[str, int] = {}
                for job, count in self.contents(group, i):
                    jobs[job] = jobs.get(job, 0) + count
                yield FilledMachines(name or None, kind, price, tuple(jobs.items()), number)

    def contents(self, group: MachineGroup, i: int) -> Iterator[tuple[str, int]]:
        for shape, each, start in group.fills:
            yield from self.members[shape].between(start + i * each, each)
