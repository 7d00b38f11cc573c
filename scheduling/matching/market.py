"""The market of a site: what can be launched there, and what a job takes of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.job import NATIVE, PlannedJob
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.plan import FORECAST, InstanceLimits
from lading.scheduling.reasons import MOST_KINDS, Reason, because, combined
from lading.scheduling.resources import Resources

# The most machines bought to learn what an image has.
MOST_TO_LEARN = 2
# A disk of which less than this part is there is not the one that was specified: nothing has mounted that.
SHARE = 0.5
# From how many boots on the median of a site counts, and from how many of a type that of the type.
BOOTS_OF_SITE, BOOTS_OF_TYPE = 3, 5


@dataclass(frozen=True, slots=True)
class Market:
    """The allocations that can be launched at a batch cluster.

    :param capacity: what jobs can use of a whole node, the agent's own memory taken off
    :param overhead: MiB that the agent needs in each allocation
    :param seconds: that an allocation has for jobs
    :param unlimited: seconds that a job without a time limit should have at least
    :param most: allocations at a time
    :param whole: whether there are whole nodes only
    :param idle_seconds: for which one is kept that waits in its queue and is not needed any more
    :param held: why nothing is launched now; None: it may be
    :param memory_limit: MiB that a job without a limit may use; None: what it asks for
    :param time_limit: seconds that a job without a limit may take; None: ``unlimited`` are kept for it
    :param grace: seconds that a job has beyond its limit to come to its end
    :param queue_seconds: for which an allocation is expected to wait in its queue, until it is known of others
    :param hurry: what the early end of a run is worth in cpu-hours (:mod:`lading.scheduling.forecast.choice`)
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
    """The machines that can be bought at a site, by the hour.

    :param catalogue: their types, with what jobs can use of each and where it can be had at which price
    :param limits: how many instances there may be at once, of a type, for how many USD per hour, of how many vCPUs
    :param policy: by which they are bought: ``forecast``, or one of
        ``lading.scheduling.provisioning.planner.POLICIES``
    :param idle_seconds: for which an empty one is kept
    :param min_instances: so many are not released, busy ones included
    :param boot_seconds: from an order until the first job starts, as far as it is known; ``boots``: the same of
        instance types of which enough have booted, by their names
    :param held: why nothing is launched now; None: it may be
    :param images: what machines boot from, by their architecture; after a space what else decides what they have
    :param without_gpus: images of which machines with GPUs have shown none
    :param learning: types with GPUs of which no machine of the image was ever seen: few are bought before that
    :param hurry: by ``forecast``: what time is worth to runs that do not say it (``lading.scheduling.forecast.choice``)
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
        """Seconds from an order of an instance type until its first job starts."""
        return self.boots.get(kind or "", self.boot_seconds)

    def booting_as(self, measured: Sequence[tuple[str, float]]) -> MachineMarket:
        """The same with what boots have taken lately in the place of the first guess.

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
        """The same with what machines really have in the place of their specification.

        What is not there depends on the image more than on the type: a driver, a file system on a disk. So what a type
        was found to lack, types that were never launched are taken to lack, too. A job would climb the price list else.

        :param known: by instance type and image
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
            short = [measured[name].disk for name in of_disk if measured[name].disk < SHARE * specified[name].disk]
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
        """Why a job fits nothing that can be bought, and what would change it.

        :param reason: of the planner
        """
        if not job.resources.gpus or not self.without_gpus:
            return reason
        images = sorted(each.partition(" ")[0] for each in self.without_gpus)
        return combined([because("no_driver", images=images[: MOST_KINDS + 1]), reason])

    @property
    def capacity(self) -> Resources:
        """The most that any of them has of each resource."""
        all_of_them = [each.capacity for each in self.catalogue.types.values()]
        return Resources(
            max((each.cpus for each in all_of_them), default=0.0),
            max((each.memory for each in all_of_them), default=0),
            max((each.disk for each in all_of_them), default=0),
            max((each.gpus for each in all_of_them), default=0.0),
        )


def _is_lacked(amounts: Sequence[float]) -> bool | None:
    """Whether what was specified and measured as these amounts is not there; None: nothing was measured."""
    if not amounts:
        return None
    missing = sum(not each for each in amounts)
    return missing == len(amounts) or missing >= MOST_TO_LEARN


def need(job: WaitingJob, market: Market | MachineMarket) -> PlannedJob:
    """What a job takes of what is launched: of a machine what it asks for; of an allocation also the memory of its
    supervisor, and the time that it may take.

    All allocations are alike but for their size. Whether it is of the architecture, the system, the features and
    the capacity type that the job asks for was seen when the job came to the site.
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
        hints=job.hints - {NATIVE},  # its kind says it
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
    """The same of directives as JSON; thousands of jobs have the same."""
    return kind(queue, json.loads(native or "{}"))


def kind(queue: str | None, native: Mapping[str, str | bool]) -> str:
    """Which allocations a job may use: those with its directives."""
    return json.dumps([queue, sorted(native.items())])


def queue_of(kind: str) -> str | None:
    """The queue of a kind of allocations; None: they name none, or it is a kind of machines."""
    try:
        queue, _ = json.loads(kind)
    except (ValueError, TypeError):
        return None
    return None if queue is None else str(queue)


def readable_kind(kind: str) -> str | None:
    """A kind of allocations as people read it; None: it has no directives."""
    try:
        queue, native = json.loads(kind)
        native = [(str(key), value) for key, value in native]
    except (ValueError, TypeError):
        return kind or None  # no word of ours
    parts = [f"queue {queue}"] if queue else []
    return ", ".join([*parts, *(key if value is True else f"{key}={value}" for key, value in native)]) or None
