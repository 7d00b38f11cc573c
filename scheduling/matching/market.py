"""The market of a site: what can be launched there, and what a job takes of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.job import NATIVE, Job
from lading.scheduling.matching.waiting import Waiting
from lading.scheduling.plan import Limits
from lading.scheduling.resources import Resources


@dataclass(frozen=True, slots=True)
class Market:
    """The allocations that can be launched at a batch cluster.

    :param capacity: what jobs can use of a whole node, the agent's own memory taken off
    :param overhead: MiB that the agent needs in each allocation
    :param seconds: that an allocation has for jobs
    :param unlimited: seconds that a job without a time limit shall have at least
    :param most: allocations at a time
    :param whole: whether there are whole nodes only
    :param idle_seconds: for which one is kept that waits in its queue and is not needed any more
    :param held: why nothing is launched now, in words; None: it may be
    :param memory_limit: MiB that a job without a limit may use; None: what it asks for
    :param time_limit: seconds that a job without a limit may take; None: ``unlimited`` are kept for it
    :param grace: seconds that a job has beyond its limit to come to its end
    """

    capacity: Resources
    overhead: int
    seconds: float
    unlimited: float
    most: int
    whole: bool = False
    idle_seconds: float = 0.0
    held: str | None = None
    memory_limit: int | None = None
    time_limit: float | None = None
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineMarket:
    """The machines that can be bought at a site, by the hour.

    :param catalogue: their types, with what jobs can use of each and where it can be had at which price
    :param limits: how many instances there may be at once, of a type, for how many USD per hour, of how many vCPUs
    :param policy: by which they are bought; a key of ``lading.scheduling.planner.POLICIES``
    :param idle_seconds: for which an empty one is kept
    :param min_instances: so many are not released, busy ones included
    :param boot_seconds: from an order until the first job starts, as far as it is known
    :param held: why nothing is launched now, in words; None: it may be
    :param images: what machines boot from, by their architecture
    """

    catalogue: Catalogue
    limits: Limits = Limits()  # noqa: RUF009 (frozen)
    policy: str = "hours"
    idle_seconds: float = 60.0
    min_instances: int = 0
    boot_seconds: float = 60.0
    held: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)

    def sized(self, known: Mapping[tuple[str, str], Resources]) -> MachineMarket:
        """The same with what machines really have in the place of their specification.

        :param known: by instance type and image
        """
        types = self.catalogue.types
        seen = {
            name: replace(types[name], capacity=size)
            for (name, image), size in known.items()
            if name in types and image == self.images.get(types[name].arch)
        }
        return replace(self, catalogue=Catalogue({**types, **seen})) if seen else self

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


def need(job: Waiting, market: Market | MachineMarket) -> Job:
    """What a job takes of what is launched: of a machine what it asks for; of an allocation also the memory of its
    supervisor, and the time that it may take.

    All allocations are alike but for their size. Whether it is of the architecture, the system, the features and
    the capacity type that the job asks for was seen when the job came to the site.
    """
    if isinstance(market, MachineMarket):
        return job
    memory = max(job.resources.memory, job.memory_limit or market.memory_limit or 0) + market.overhead
    limit = job.time or market.time_limit
    return Job(
        job.name,
        replace(job.resources, memory=min(memory, max(market.capacity.memory, job.resources.memory))),
        priority=job.priority,
        queued_at=job.queued_at,
        time=market.unlimited if limit is None else limit + market.grace,
        instance_type=_kind(job.queue, job.native),
        hints=job.hints - {NATIVE},  # its kind says it
        task=job.task,
        run=job.run,
        expected=job.expected,
        budget=job.budget,
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


def kind_in_words(kind: str) -> str | None:
    """A kind of allocations as people read it; None: it has no directives."""
    try:
        queue, native = json.loads(kind)
        native = [(str(key), value) for key, value in native]
    except (ValueError, TypeError):
        return kind or None  # no word of ours
    words = [f"queue {queue}"] if queue else []
    return ", ".join([*words, *(key if value is True else f"{key}={value}" for key, value in native)]) or None
