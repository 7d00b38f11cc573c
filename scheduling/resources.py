"""Resources: what a job asks for and what a location has.

Everywhere inside Lading memory and disk are whole MiB (2**20 bytes), cpus and gpus may be fractional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from lading.scheduling.text.units import format_count, format_memory

# Sums of fractions like 0.1 drift by some 1e-16 each; a machine must not look full because of that.
TOLERANCE = 1e-6
# The environment variable with the number of cpus by which a job is packed.
CPUS_VARIABLE = "LADING_CPUS"
# The one with the number of nodes of a batch job.
NODES_VARIABLE = "LADING_NODES"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the processes of one batch job lie on nodes, as MPI starts them.

    :param nodes: how many machines
    :param ppn: processes on each
    :param threads: cpus of each process
    :param least_nodes: how many of the nodes will do, where the batch system may choose; None: it gets all
    """

    nodes: int = 1
    ppn: int = 1
    threads: int = 1
    least_nodes: int | None = None

    @property
    def processes(self) -> int:
        """Of the whole job."""
        return self.nodes * self.ppn

    @property
    def cpus_per_node(self) -> int:
        return self.ppn * self.threads


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each resource, of a job or of a location.

    :param cpus: processors; 0.25 is a quarter of one
    :param memory: MiB
    :param disk: MiB of scratch space
    :param gpus: GPUs; 0.5 is half of one
    """

    cpus: float = 0.0
    memory: int = 0
    disk: int = 0
    gpus: float = 0.0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpus + other.cpus, self.memory + other.memory, self.disk + other.disk, self.gpus + other.gpus
        )

    def with_all(self, others: Sequence[Resources]) -> Resources:
        """The sum of this and others, of which there may be thousands."""
        return Resources(
            sum((each.cpus for each in others), self.cpus),
            sum((each.memory for each in others), self.memory),
            sum((each.disk for each in others), self.disk),
            sum((each.gpus for each in others), self.gpus),
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpus - other.cpus, self.memory - other.memory, self.disk - other.disk, self.gpus - other.gpus
        )

    def __mul__(self, count: int) -> Resources:
        return Resources(self.cpus * count, self.memory * count, self.disk * count, self.gpus * count)

    def fits(self, room: Resources) -> bool:
        """Whether this much goes into ``room``."""
        return (
            self.cpus <= room.cpus + TOLERANCE
            and self.memory <= room.memory
            and self.disk <= room.disk
            and self.gpus <= room.gpus + TOLERANCE
        )

    def shortfall(self, room: Resources) -> tuple[int, float]:
        """How far ``room`` is from enough: of how many resources it has too little, and the shares that are missing."""
        names = self.lacking(room)
        return len(names), sum(1 - getattr(room, name) / getattr(self, name) for name in names)

    def copies(self, room: Resources) -> float:
        """How many times this much goes into ``room``; infinite where this is nothing."""
        if not self.fits(room):
            return 0
        cpus = (room.cpus + TOLERANCE) / self.cpus if self.cpus > 0 else math.inf
        memory = room.memory / self.memory if self.memory > 0 else math.inf
        disk = room.disk / self.disk if self.disk > 0 else math.inf
        gpus = (room.gpus + TOLERANCE) / self.gpus if self.gpus > 0 else math.inf
        least = min(cpus, memory, disk, gpus)
        return least if least == math.inf else math.floor(least)

    def lacking(self, room: Resources) -> list[str]:
        """The names of the resources of which ``room`` has too little, in the order of the fields."""
        return [
            field.name for field in fields(self) if getattr(self, field.name) > getattr(room, field.name) + TOLERANCE
        ]


# What a machine is taken to have that has never answered: nothing that may fit is refused before it has.
NOT_KNOWN = Resources(cpus=1e6, memory=2**31 - 1, disk=2**31 - 1, gpus=1e6)


def cpus_of_one(cpus: float, parallelism: int, most: float) -> float:
    """The cpus by which a task is packed that says nothing, so that a machine runs as many at once as Airflow allows.

    Memory is a limit of its own: it decides where a machine has less of that than as many tasks are packed by.

    :param cpus: that tasks can fill
    :param parallelism: how many tasks Airflow lets run at once; 0: any number
    :param most: that it is at most, as on a machine with enough cpus
    """
    if parallelism < 1 or cpus <= 0:
        return most
    # Rounded down, or the last one would not fit.
    return max(min(most, math.floor(cpus / parallelism * 10_000) / 10_000), 0.0001)


def format_resources(resources: Resources) -> str:
    """Return an amount of each resource as text: ``"4 cpus, 16 GiB memory"``; what is 0 or not known is left out."""
    if resources == NOT_KNOWN:
        return "what is not known"
    parts = []
    if 0 != resources.cpus != NOT_KNOWN.cpus:
        parts.append(f"{format_count(resources.cpus)} {'cpu' if resources.cpus == 1 else 'cpus'}")
    if 0 != resources.memory != NOT_KNOWN.memory:
        parts.append(f"{format_memory(resources.memory)} memory")
    if 0 != resources.disk != NOT_KNOWN.disk:
        parts.append(f"{format_memory(resources.disk)} disk")
    if 0 != resources.gpus != NOT_KNOWN.gpus:
        parts.append(f"{format_count(resources.gpus)} {'gpu' if resources.gpus == 1 else 'gpus'}")
    return ", ".join(parts) or "nothing"
