"""Resources: what a job requests and what a location has.

Inside Lading, memory and disk are always whole MiB (2**20 bytes); cpus and gpus can be fractional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lading.scheduling.model.light_dataclasses import as_dict, dataclass

# Sums of fractions like 0.1 drift by some 1e-16 each; a machine must not look full because of that.
TOLERANCE = 1e-6
# The environment variable that tells a job its number of cpus.
CPUS_VARIABLE = "LADING_CPUS"
# The environment variable that tells a batch job its number of nodes.
NODES_VARIABLE = "LADING_NODES"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the processes of one batch job are laid out on nodes, as MPI starts them.

    :param nodes: how many nodes
    :param ppn: processes per node
    :param threads: cpus per process
    :param least_nodes: the smallest number of nodes that suffices, if the batch system can choose; None: exactly
        ``nodes``
    """

    nodes: int = 1
    ppn: int = 1
    threads: int = 1
    least_nodes: int | None = None

    @property
    def processes(self) -> int:
        """Processes of the whole job."""
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
        """The sum of this and the others; fast for thousands of them."""
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
        return (
            self.cpus <= room.cpus + TOLERANCE
            and self.memory <= room.memory
            and self.disk <= room.disk
            and self.gpus <= room.gpus + TOLERANCE
        )

    def shortfall(self, room: Resources) -> tuple[int, float]:
        """How far ``room`` falls short: the number of resources that are insufficient, and the sum of the missing
        fractions."""
        names = self.lacking(room)
        return len(names), sum(1 - getattr(room, name) / getattr(self, name) for name in names)

    def copies(self, room: Resources) -> float:
        """How many times this fits into ``room``; infinite if this is nothing."""
        if not self.fits(room):
            return 0
        cpus = (room.cpus + TOLERANCE) / self.cpus if self.cpus > 0 else math.inf
        memory = room.memory / self.memory if self.memory > 0 else math.inf
        disk = room.disk / self.disk if self.disk > 0 else math.inf
        gpus = (room.gpus + TOLERANCE) / self.gpus if self.gpus > 0 else math.inf
        least = min(cpus, memory, disk, gpus)
        return least if least == math.inf else math.floor(least)

    def lacking(self, room: Resources) -> list[str]:
        """The names of the resources that are insufficient in ``room``, in the order of the fields."""
        return [name for name, amount in as_dict(self).items() if amount > getattr(room, name) + TOLERANCE]


# The assumed capacity of a machine that has never answered: so large that no job is refused before it answers.
NOT_KNOWN = Resources(cpus=1e6, memory=2**31 - 1, disk=2**31 - 1, gpus=1e6)


def cpus_of_one(cpus: float, parallelism: int, most: float) -> float:
    """The cpus of a task that requests none, so that a machine runs as many tasks at once as Airflow allows.

    Memory limits the number separately: a machine with less memory than that many tasks need runs fewer.

    :param cpus: the cpus of the machine
    :param parallelism: how many tasks Airflow runs at once; 0: unlimited
    :param most: the upper limit of the result, for machines with enough cpus
    """
    if parallelism < 1 or cpus <= 0:
        return most
    # Rounded down: otherwise the last task would not fit.
    return max(min(most, math.floor(cpus / parallelism * 10_000) / 10_000), 0.0001)


def format_resources(resources: Resources) -> str:
    """Format resources as text, ``"4 cpus, 16 GiB memory"``, without those that are 0 or unknown."""
    from lading.scheduling.text.units import format_count, format_memory  # imported late: batch jobs show no amounts

    if resources == NOT_KNOWN:
        return "an unknown amount"
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
