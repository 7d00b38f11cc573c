"""The market of a site: what can be launched there, and what a job needs of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median

from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import NATIVE, PlannedJob
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from lading.scheduling.model.reason_text import MOST_KINDS
from lading.scheduling.model.reasons import Reason, because, combined
from lading.scheduling.model.resources import Resources

# How many machines are launched at most to learn what an image has.
MOST_TO_LEARN = 2
# How many boots are needed to use the median of a site, and that of a type.
BOOTS_OF_SITE, BOOTS_OF_TYPE = 3, 5


@dataclass(frozen=True, slots=True)
class Market:
    """The allocations that can be launched at a batch cluster.

    :param capacity: what jobs can use of a whole node, without the agent's own memory
    :param overhead: MiB that the agent needs in each allocation
    :param seconds: how long an allocation lasts for jobs
    :param unlimited: how many seconds a job without a time limit is guaranteed
    :param most: the largest number of allocations at a time
    :param whole: whether only whole nodes are allocated
    :param idle_seconds: how long an allocation that is no longer needed is kept in the queue
    :param held: why nothing is launched now; None: launches are allowed
    :param memory_limit: the memory limit of jobs without one, MiB; None: their request
    :param time_limit: the time limit of jobs without one, seconds; None: they are guaranteed ``unlimited``
    :param grace: seconds that a job has beyond its limit to finish cleanly
    :param queue_seconds: how long an allocation is expected to wait in the queue, until that has been measured
    :param hurry: the value of finishing a run early, in cpu-hours (:mod:`lading.scheduling.forecast.choice`)
    """

    capacity: Resources
    overhead: int
    seconds: float
    unlimited: float
    most: int
    whole: bool = False
    idle_seconds: float = 0.0
    held: Reason | None = None
    memory_limit: int | None = None
    time_limit: float | None = None
    grace: float = 0.0
    queue_seconds: float = 0.0
    hurry: float = 1.0


@dataclass(frozen=True, slots=True)
class MachineMarket:
    """The machines that can be launched at a site, billed by time.

    :param catalogue: their types, with the capacity for jobs, and where each is offered at which price
    :param limits: how many instances are allowed at once: in total, by type, in USD per hour, and in vCPUs
    :param policy: the policy that launches them: ``forecast``, or one of
        ``lading.scheduling.provisioning.planner.POLICIES``
    :param idle_seconds: how long an empty machine is kept
    :param min_instances: how many machines are never released, busy ones included
    :param boot_seconds: the time from an order until the first job starts, as far as known
    :param boots: the same for instance types that have booted often enough, by name
    :param held: why nothing is launched now; None: launches are allowed
    :param images: what machines boot from, by architecture; after a space, anything else that determines what they have
    :param without_gpus: images whose machines with GPUs have shown none
    :param learning: types with GPUs for which no machine with the image has been seen: only a few are launched until
        then
    :param hurry: for ``forecast``: the value of time of runs that do not state it
        (``lading.scheduling.forecast.choice``)
    """

    catalogue: Catalogue
    limits: InstanceLimits = InstanceLimits()  # noqa: RUF009 (frozen)
    policy: str = FORECAST
    idle_seconds: float = 60.0
    min_instances: int = 0
    boot_seconds: float = 60.0
    held: Reason | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    without_gpus: frozenset[str] = frozenset()
    learning: frozenset[str] = frozenset()
    hurry: float = 1.0
    boots: Mapping[str, float] = field(default_factory=dict)

    def boot_of(self, kind: str | None) -> float:
        """Seconds from the order of an instance type until its first job starts."""
        return self.boots.get(kind or "", self.boot_seconds)

    def booting_as(self, measured: Sequence[tuple[str, float]]) -> MachineMarket:
        """The market with measured boot times in place of the default.

        :param measured: instance types and seconds of the last boots at the site
        """
        by_type: dict[str, list[float]] = {}
        for kind, seconds in measured:
            by_type.setdefault(kind, []).append(seconds)
        if len(measured) < BOOTS_OF_SITE:
            return self
        boots = {kind: median(some) for kind, some in by_type.items() if len(some) >= BOOTS_OF_TYPE}
        return replace(self, boot_seconds=median(each for _, each in measured), boots=boots)

    def sized(self, known: Mapping[tuple[str, str], Resources]) -> MachineMarket:
        """The market with the measured capacities of machines in place of their specifications.

        What is missing depends on the image more than on the type: a driver, or a file system on a disk. So types that
        have never been launched are assumed to lack the same as measured types. Otherwise a job would try ever more
        expensive types in vain.

        :param known: measured capacities, by instance type and image
        """
        types = dict(self.catalogue.types)
        learning, lacking = set(), set()
        for arch, image in self.images.items():
            its = {name for name, kind in types.items() if kind.arch == arch}
            measured = {name: known[name, image] for name in its if (name, image) in known}
            specified = {name: types[name].capacity for name in its}
            new = specified.keys() - measured.keys()
            types |= {name: replace(types[name], capacity=size) for name, size in measured.items()}
            no_gpus = _is_lacked([size.gpus for name, size in measured.items() if specified[name].gpus])
            of_disk = {name for name in measured if specified[name].disk}
            # A disk with less than half of its specified size is not the specified disk: nothing has mounted that.
            short = [measured[name].disk for name in of_disk if measured[name].disk < 0.5 * specified[name].disk]
            by_size = {specified[name].disk: measured[name].disk for name in sorted(of_disk)}
            if no_gpus:
                lacking.add(image)
            if no_gpus is None:
                learning |= {name for name in new if specified[name].gpus}
            for name in new:
                size = specified[name]
                disk = min(size.disk, by_size.get(size.disk, size.disk))
                if (short and len(short) == len(of_disk)) or len(short) >= MOST_TO_LEARN:
                    disk = min(disk, max(short))
                size = replace(size, disk=disk, gpus=0.0 if no_gpus else size.gpus)
                if size != specified[name]:
                    types[name] = replace(types[name], capacity=size)
        found = replace(self, without_gpus=frozenset(lacking), learning=frozenset(learning))
        return found if types == self.catalogue.types else replace(found, catalogue=Catalogue(types))

    def why_not(self, job: PlannedJob, reason: Reason) -> Reason:
        """Why a job fits nothing that can be launched, and what would change that.

        :param reason: the planner's reason
        """
        if not job.resources.gpus or not self.without_gpus:
            return reason
        images = sorted(each.partition(" ")[0] for each in self.without_gpus)
        return combined([because("no_driver", images=images[: MOST_KINDS + 1]), reason])

    @property
    def capacity(self) -> Resources:
        """The largest amount of each resource that any type has."""
        all_of_them = [each.capacity for each in self.catalogue.types.values()]
        return Resources(
            max((each.cpus for each in all_of_them), default=0.0),
            max((each.memory for each in all_of_them), default=0),
            max((each.disk for each in all_of_them), default=0),
            max((each.gpus for each in all_of_them), default=0.0),
        )


def _is_lacked(amounts: Sequence[float]) -> bool | None:
    """Whether a specified resource is missing, given its measured amounts; None: nothing was measured."""
    if not amounts:
        return None
    missing = sum(not each for each in amounts)
    return missing == len(amounts) or missing >= MOST_TO_LEARN


def need(job: WaitingJob, market: Market | MachineMarket) -> PlannedJob:
    """What a job needs on a launched location.

    On a machine, these are its requests; in an allocation, also memory for its supervisor, and its maximum time.

    All allocations differ only in size. Whether the site has the architecture, the system, the features and the
    capacity type that the job requests was checked when the job came to the site.
    """
    if isinstance(market, MachineMarket):
        return job
    memory = max(job.resources.memory, job.memory_limit or market.memory_limit or 0) + market.overhead
    limit = job.time or market.time_limit
    return PlannedJob(
        job.name,
        replace(job.resources, memory=min(memory, max(market.capacity.memory, job.resources.memory))),
        priority=job.priority,
        queued_at=job.queued_at,
        rest=job.rest,
        turn=job.turn,
        share=job.share,
        time=market.unlimited if limit is None else limit + market.grace,
        instance_type=_kind(job.queue, job.native),
        hints=job.hints - {NATIVE},  # the kind includes them
        task=job.task,
        run=job.run,
        expected=job.expected,
        budgets=job.budgets,
        hour_budgets=job.hour_budgets,
        hours=job.hours,
        dag_id=job.dag_id,
        run_id=job.run_id,
        task_id=job.task_id,
        map_index=job.map_index,
        input_values=job.input_values,
    )


@lru_cache(maxsize=1024)
def _kind(queue: str | None, native: str | None) -> str:
    """The same for directives as JSON, cached because thousands of jobs share them."""
    return kind(queue, json.loads(native or "{}"))


def kind(queue: str | None, native: Mapping[str, str | bool]) -> str:
    """The kind of allocations that a job can use: those with its directives."""
    return json.dumps([queue, sorted(native.items())])


def queue_of(kind: str) -> str | None:
    """The queue of a kind of allocations; None: it names none, or it is a kind of machines."""
    try:
        queue, _ = json.loads(kind)
    except (ValueError, TypeError):
        return None
    return None if queue is None else str(queue)


def readable_kind(kind: str) -> str | None:
    """A kind of allocations for people; None: it has no directives."""
    try:
        queue, native = json.loads(kind)
        native = [(str(key), value) for key, value in native]
    except (ValueError, TypeError):
        return kind or None  # an instance type
    parts = [f"queue {queue}"] if queue else []
    return ", ".join([*parts, *(key if value is True else f"{key}={value}" for key, value in native)]) or None
