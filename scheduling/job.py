"""A job as planning knows it, and what it asks of a machine. Time is seconds, memory and disk MiB."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from lading.scheduling.machine_traits import ANY_ARCH
from lading.scheduling.prediction import Prediction
from lading.scheduling.resources import Resources

NOTHING = Resources()
# What only some locations understand of a job's hints: those of a batch system (queue, native directives), and how
# the processes of one job lie on several nodes (nodes, ppn, threads).
NATIVE = "native"
LAYOUT = "layout"


class Wish(NamedTuple):
    """What a job asks of a machine besides amounts; the fields are those of :class:`PlannedJob`."""

    arch: str | None
    features: frozenset[str]
    instance_type: str | None
    capacity_type: str | None
    hints: frozenset[str]
    os: str | None = None
    types: frozenset[str] | None = None


class Budget(NamedTuple):
    """What the jobs of a run, or those that the sites file names together, may cost, USD.

    :param name: unique
    :param most: all of it
    :param spent: what they have cost until now
    :param per_hour: what those at work cost
    :param until: when as much may be spent again, epoch seconds; None: it is that of a run
    """

    name: str
    most: float
    spent: float
    per_hour: float
    until: float | None = None

    @property
    def said_spent(self) -> float:
        """What is said to be spent, by the hundredth: what still runs spends more each time it is summed up, and
        thousands of waiting jobs would be given another reason."""
        return by_hundredth(self.spent, self.most)


class HourBudget(NamedTuple):
    """What the jobs that the sites file names together may use, cpu-hours.

    :param name: unique
    :param most: all of it
    :param spent: what they have used until now
    :param promised: what those that sites were given will still use
    :param until: when as much may be used again, epoch seconds
    """

    name: str
    most: float
    spent: float
    promised: float
    until: float


def by_hundredth(part: float, whole: float) -> float:
    """A part of something, rounded to the hundredth of all of it."""
    return round(part / whole, 2) * whole


# What a job asks of a machine, amounts and all, as a key that is quickly made for thousands of jobs.
ASKED = (
    *("resources.cpus", "resources.memory", "resources.disk", "resources.gpus", "arch", "features"),
    *("instance_type", "capacity_type", "hints", "os", "types"),
)
asks: Callable[[PlannedJob], tuple[Hashable, ...]] = attrgetter(*ASKED)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job that waits for a place, or ``count`` equal ones.

    :param name: identifies it in the plan (in the engine: its token); unique among the jobs of a plan
    :param priority: higher ones are placed first
    :param queued_at: epoch seconds of its arrival
    :param turn: its place where jobs of several shares go in turn: of one priority a lower one goes first; 0: they do
        not
    :param share: the name of its share; None: that is not asked
    :param rest: seconds of the longest way from its start to the end of its run: where nothing is bought, of jobs of
        one priority a longer one goes first, and 0, where they go by arrival, last
    :param time: seconds that it runs at most or is known to run; None: unknown
    :param arch: the only architecture that it runs on; None: any, or the default of its site where that has several
    :param features: features that its location must have
    :param os: the only operating system that it runs on; None: any
    :param instance_type: the only type that it may use; ``types``: those of which it may use any, None: all
    :param capacity_type: ``on-demand`` or ``spot``; None: whichever is cheaper
    :param hints: which sorts of hints it has that only some locations understand: :data:`NATIVE`, :data:`LAYOUT`
    :param task: the step it belongs to, for ``Limits.tasks``; ``run``: the Dag run, for ``Limits.runs``
    :param nodes: the machines of a batch job of its own, which such a job counts as for these limits; a place suits it
        that can give so many
    :param budgets: what its run, and others together with it, may cost
    :param hour_budgets: what others together with it may use of cpus
    :param hours: the cpu-hours that it will use, as far as that can be foreseen; asked where it has such a budget
    :param expected: how long it will run; None: ``time``, or nothing is known
    :param queue: of a batch system, that it is to wait in; None: that of its site
    :param native: its native directives, as JSON
    :param dag_id: the task instance that it runs, with ``run_id``, ``task_id`` and ``map_index`` (-1: it is not
        mapped); None: it runs none, as a callback does
    :param team: Airflow's team of the Dag; None: it has none
    :param input_values: the values of its inputs, as JSON; None: no plugin asks for them, or they are not known

    Whose job it is, and its inputs, are what plugins may go by; Lading decides about all jobs in the same way that are
    alike in all else.
    """

    name: str
    resources: Resources
    count: int = 1
    priority: int = 0
    queued_at: float = 0.0
    time: float | None = None
    arch: str | None = None
    features: frozenset[str] = frozenset()
    instance_type: str | None = None
    capacity_type: str | None = None
    hints: frozenset[str] = frozenset()
    task: str | None = None
    run: str | None = None
    os: str | None = None
    nodes: int = 1
    expected: Prediction | None = None
    types: frozenset[str] | None = None
    budgets: tuple[Budget, ...] = ()
    hour_budgets: tuple[HourBudget, ...] = ()
    hours: float = 0.0
    queue: str | None = None
    native: str | None = None
    dag_id: str | None = field(default=None, compare=False)
    team: str | None = field(default=None, compare=False)
    run_id: str | None = field(default=None, compare=False)
    task_id: str | None = field(default=None, compare=False)
    map_index: int = field(default=-1, compare=False)
    input_values: str | None = field(default=None, compare=False)
    rest: float = field(default=0.0, compare=False)
    turn: float = field(default=0.0, compare=False)
    share: str | None = field(default=None, compare=False)

    @property
    def inputs(self) -> tuple[Mapping[str, Any], ...]:
        """The values of its inputs by their names: one mapping, of a chunk of a scatter one for each element; empty:
        they are not known.
        """
        return () if self.input_values is None else tuple(json.loads(self.input_values))

    @property
    def wish(self) -> Wish:
        """What it asks of a machine besides amounts."""
        arch = None if self.arch == ANY_ARCH else self.arch
        return Wish(arch, self.features, self.instance_type, self.capacity_type, self.hints, self.os, self.types)
