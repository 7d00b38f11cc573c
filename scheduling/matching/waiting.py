"""The waiting jobs, as placement and provisioning see them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeVar

from lading.scheduling.model.job import LAYOUT, NATIVE, PlannedJob
from lading.scheduling.model.reasons import Reason

T = TypeVar("T")

# The kinds of hints, by whether a job has options of a batch system and a layout.
HINTS = {
    (native, layout): frozenset([NATIVE] * native + [LAYOUT] * layout)
    for native in (False, True)
    for layout in (False, True)
}


class Apart(NamedTuple):
    """A gang whose members each need a location of their own.

    :param gang: its token
    :param taken: the locations at the site in question that already have members, by name
    """

    gang: str
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob(PlannedJob):
    """A queued job; its name is the token.

    :param site: the only site that it can go to; None: every site that accepts jobs without one
    :param reason: the stored reason why it waits
    :param memory_limit: MiB above which it is killed; None: the site's limit, if it has one
    :param targets: the places that it can use, see :mod:`lading.scheduling.matching.stops`; None: it names none
    :param soft: the requests that it can do without, see :class:`lading.scheduling.matching.rules.Soft`; None: nothing
    :param dag_of_shape: its Dag, if some site does not accept every Dag; otherwise None
    :param team_of_shape: the team of that Dag
    :param may_overtake: whether jobs that should start before it may not have been considered
    :param hidden: how many jobs of its shape behind it were not considered; it is the last one that was
    :param max_instances: on how many machines jobs of its ``task`` can run at once; None: any number
    :param run_max_instances: on how many machines jobs of its ``run`` can run at once; None: any number
    :param apart: the gang whose members never share a location; None: they can, or it has no gang
    """

    site: str | None = None
    reason: Reason | None = None
    memory_limit: int | None = None
    targets: str | None = None
    soft: str | None = None
    dag_of_shape: str | None = None
    team_of_shape: str | None = None
    may_overtake: bool = False
    hidden: int = 0
    max_instances: int | None = None
    run_max_instances: int | None = None
    apart: Apart | None = None

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """The key of jobs that are decided alike, with the same parts as in ``executors.store.shapes``."""
        asked = self.resources
        return (
            self.dag_of_shape,
            self.team_of_shape,
            asked.cpus,
            asked.memory,
            asked.disk,
            asked.gpus,
            self.memory_limit,
            self.time,
            self.site,
            self.instance_type,
            self.arch,
            self.os,
            ",".join(sorted(self.features)) if self.features else None,
            self.capacity_type,
            self.queue,
            self.native,
            self.targets,
            self.soft,
            self.nodes if LAYOUT in self.hints else None,
        )

    @property
    def rank(self) -> tuple[int, float, float, float, str]:
        """Its position among the waiting jobs."""
        return -self.priority, self.turn, -self.rest, self.queued_at, self.name


# The shape of a job as a key that takes half the time to compute.
key = attrgetter(
    *(
        "dag_of_shape",
        "team_of_shape",
        "resources.cpus",
        "resources.memory",
        "resources.disk",
        "resources.gpus",
        "memory_limit",
        "time",
        "site",
    ),
    *("instance_type", "arch", "os", "features", "capacity_type", "queue", "native", "targets", "soft", "hints"),
    "nodes",
)


def once_per_shape(decide: Callable[[WaitingJob], T]) -> Callable[[WaitingJob], T]:
    """Cache a decision, so that it is only computed once for thousands of equal jobs."""
    made: dict[Hashable, T] = {}

    def decided(job: WaitingJob) -> T:
        shape = key(job)
        try:
            return made[shape]
        except KeyError:
            return made.setdefault(shape, decide(job))

    return decided
