"""The jobs that wait, as placement and provisioning see them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeVar

from lading.scheduling.job import LAYOUT, NATIVE, PlannedJob
from lading.scheduling.reasons import Reason

T = TypeVar("T")

# The sorts of hints of a job that has options of a batch system, and one that has a layout.
HINTS = {
    (native, layout): frozenset([NATIVE] * native + [LAYOUT] * layout)
    for native in (False, True)
    for layout in (False, True)
}


class Apart(NamedTuple):
    """A gang that is spread over locations.

    :param gang: its token
    :param taken: the locations at the site in question that members have already, by their names
    """

    gang: str
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob(PlannedJob):
    """A queued job; its name is the token.

    :param site: the only one that it may go to; None: each that takes jobs which name none
    :param reason: why it waits, as far as that has been stored
    :param memory_limit: MiB above which it is ended; None: the site's limit, if it has one
    :param targets: the places of which it may use any, see :mod:`lading.scheduling.matching.stops`; None: it names none
    :param soft: what it asks for and can do without, see :class:`lading.scheduling.matching.rules.Soft`; None: nothing
    :param dag_of_shape: its Dag, and ``team_of_shape`` the team of that, where some site does not take every one; None:
        each does, or it belongs to none
    :param may_overtake: whether jobs that should start before it may not have been looked at
    :param hidden: how many of its shape come behind it that were not looked at; it is the last one that was
    :param max_instances: on how many machines jobs of its ``task`` may be at once; None: any number
    :param run_max_instances: on how many those of its ``run`` may
    :param apart: the gang no two members of which share a location; None: its members may, or it has none
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
        """What jobs have in common that are decided about in the same way, as ``executors.store.shapes`` has it."""
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
        """Its place among the jobs that wait."""
        return -self.priority, self.turn, -self.rest, self.queued_at, self.name


# What makes the shape of a job, as a key that is made in half the time.
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
    """A decision that thousands of jobs share which are alike."""
    made: dict[Hashable, T] = {}

    def decided(job: WaitingJob) -> T:
        shape = key(job)
        try:
            return made[shape]
        except KeyError:
            return made.setdefault(shape, decide(job))

    return decided
