"""The objects of a simulation: launched machines, and queues of waiting jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import AssignedJob, Location
from lading.scheduling.model.plan import PlannedLaunch
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import UNIT, Vector, vector


@dataclass(slots=True, eq=False)
class SimulatedMachine:
    """A launched instance: what is on it, and since when it is paid for."""

    launch: PlannedLaunch
    name: str
    capacity: Vector
    resources: Resources
    arch: str
    features: frozenset[str]
    launched_at: float
    ready_at: float
    used: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    jobs: dict[int, int] = field(default_factory=dict)  # job: shape
    running: dict[int, AssignedJob] = field(default_factory=dict)  # job: its start, and its predicted length
    idle_since: float | None = None
    promised: frozenset[str] = frozenset()  # the waiting jobs for which it boots
    location: Location | None = None  # as the planner sees it; None: outdated, rebuilt on demand

    def put(self, sign: int, need: Vector) -> None:
        for i in range(4):
            self.used[i] += sign * need[i]
        self.location = None

    def takes(self, least: Vector) -> bool:
        return all(have - used >= need for have, used, need in zip(self.capacity, self.used, least, strict=True))

    def note(self, idle_since: float | None, promised: frozenset[str]) -> None:
        if (idle_since, promised) != (self.idle_since, self.promised):
            self.idle_since, self.promised, self.location = idle_since, promised, None

    def seen(self, queues: Sequence[Queue], now: float) -> Location:
        if self.location is None or self.location.booting != (self.ready_at > now):
            cpus, memory, disk, gpus = self.used
            self.location = Location(
                name=self.name,
                capacity=self.resources,
                used=Resources(cpus / UNIT, memory, disk, gpus / UNIT),
                instance_type=self.launch.instance_type,
                capacity_type=self.launch.capacity_type,
                usd_per_hour=self.launch.usd_per_hour,
                arch=self.arch,
                features=self.features,
                launched_at=self.launched_at,
                idle_since=self.idle_since,
                tasks=frozenset(queues[shape].job.task or "" for shape in self.jobs.values()),
                runs=frozenset(queues[shape].job.run or "" for shape in self.jobs.values()),
                running_jobs=tuple(self.running.values()),
                ready_at=self.ready_at,
                booting=self.ready_at > now,
                jobs=len(self.jobs),
                promised=self.promised,
            )
        return self.location


@dataclass(slots=True)
class Queue:
    """The waiting jobs of one shape, in the order of their arrival.

    :param first: the name of the first of them
    """

    job: PlannedJob
    first: str
    need: Vector
    waiting: deque[int] = field(default_factory=deque)
    refused: bool = False
    hours: float = 0.0  # of all its jobs that ran
    levels: tuple[tuple[Hashable, str], ...] = ()  # keys into the history of durations, the most specific first
    asked_last: PlannedJob | None = None

    def ask(self, resources: Resources) -> None:
        """Change what its jobs request from now on."""
        self.job, self.need = replace(self.job, resources=resources), vector(resources)
        self.__post_init__()

    def asked(self, queued_at: float, expected: Prediction) -> PlannedJob:
        """Return what one of its jobs requests, the same object as before if nothing has changed."""
        its = self.asked_last
        if its is None or (its.resources, its.queued_at, its.expected) != (self.job.resources, queued_at, expected):
            its = self.asked_last = replace(self.job, queued_at=queued_at, expected=expected)
        return its

    def __post_init__(self) -> None:
        if self.job.task is not None:
            task, size = self.job.task, self.job.resources
            self.levels = ((task, size), f"{task} of this size"), (task, task)
