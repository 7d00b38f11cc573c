"""A job as planning sees it, and its requirements on machines. Times are seconds, memory and disk MiB."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from lading.scheduling.model.machine_traits import ANY_ARCH
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources

NOTHING = Resources()
# The kinds of hints that only some locations support: those for a batch system (queue, native directives), and the
# layout of one job's processes on several nodes (nodes, ppn, threads).
NATIVE = "native"
LAYOUT = "layout"


class Wish(NamedTuple):
    """A job's requirements on a machine other than amounts; the fields are those of :class:`PlannedJob`."""

    arch: str | None
    features: frozenset[str]
    instance_type: str | None
    capacity_type: str | None
    hints: frozenset[str]
    os: str | None = None
    types: frozenset[str] | None = None


class Budget(NamedTuple):
    """What the jobs of a run, or the jobs of a budget in the sites file, are allowed to cost, USD.

    :param name: unique
    :param most: the whole budget
    :param spent: spent so far
    :param per_hour: what its jobs and machines cost now, USD per hour
    :param until: when the next period starts, epoch seconds; None: a run's budget, which has no periods
    """

    name: str
    most: float
    spent: float
    per_hour: float
    until: float | None = None

    @property
    def said_spent(self) -> float:
        """The spent amount as shown in reasons, in steps of a hundredth of the budget.

        Running machines spend more at each tick, which would otherwise change the reason of thousands of waiting jobs.
        """
        return by_hundredth(self.spent, self.most)


class HourBudget(NamedTuple):
    """What the jobs of a budget in the sites file are allowed to use, cpu-hours.

    :param name: unique
    :param most: the whole budget
    :param spent: used so far
    :param promised: what the jobs that were given to sites are still expected to use
    :param until: when the next period starts, epoch seconds
    """

    name: str
    most: float
    spent: float
    promised: float
    until: float


def by_hundredth(part: float, whole: float) -> float:
    """A part of an amount, rounded to hundredths of the whole amount."""
    return round(part / whole, 2) * whole


# A job's requirements, amounts included, as a key that is cheap to compute for thousands of jobs.
ASKED = (
    *("resources.cpus", "resources.memory", "resources.disk", "resources.gpus", "arch", "features"),
    *("instance_type", "capacity_type", "hints", "os", "types"),
)
asks: Callable[[PlannedJob], tuple[Hashable, ...]] = attrgetter(*ASKED)


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A waiting job, or ``count`` equal ones.

    :param name: unique among the jobs of a plan; in the engine, the job's token
    :param priority: jobs with a higher priority are placed first
    :param queued_at: when it was queued, epoch seconds
    :param turn: its position where shares take turns: among jobs of one priority the lowest goes first; 0: shares do
        not take turns
    :param share: the name of its share; None: shares do not matter here
    :param rest: the longest remaining path of its run, seconds: where no machines are launched, the job with the
        longest goes first among jobs of one priority; 0, where jobs go by arrival, goes last
    :param time: its time limit, or its exact length where that is known, seconds; None: unknown
    :param arch: the only architecture that it runs on; None: any, or the default of a site with several
    :param features: features that its location must have
    :param os: the only operating system that it runs on; None: any
    :param instance_type: the only instance type that it accepts
    :param types: the instance types that it accepts; None: all
    :param capacity_type: ``on-demand`` or ``spot``; None: whichever is cheaper
    :param hints: the kinds of hints it has that only some locations support: :data:`NATIVE`, :data:`LAYOUT`
    :param task: the task that it belongs to, for ``Limits.tasks``
    :param run: the Dag run that it belongs to, for ``Limits.runs``
    :param nodes: the number of nodes of a batch job of its own, which these limits count as that many machines; the
        job's location must be able to provide them
    :param budgets: the USD budgets that it counts against
    :param hour_budgets: the cpu-hour budgets that it counts against
    :param hours: the cpu-hours that it is expected to use; only set if it has such a budget
    :param expected: its predicted length; None: ``time``, or unknown
    :param queue: the queue of a batch system that it names; None: the default queue of its site
    :param native: its native directives, as JSON
    :param dag_id: the task instance that it runs, with ``run_id``, ``task_id`` and ``map_index`` (-1: not mapped);
        None: it runs none, such as a callback
    :param team: Airflow's team of the Dag; None: it has none
    :param input_values: the values of its inputs, as JSON; None: no plugin needs them, or they are unknown

    The Dag, the team and the inputs are for plugins. Lading itself treats jobs alike that differ in nothing else.
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
        """The values of its inputs by name: one mapping, or one for each element of a scattered chunk; empty if
        unknown."""
        return () if self.input_values is None else tuple(json.loads(self.input_values))

    @property
    def wish(self) -> Wish:
        arch = None if self.arch == ANY_ARCH else self.arch
        return Wish(arch, self.features, self.instance_type, self.capacity_type, self.hints, self.os, self.types)
