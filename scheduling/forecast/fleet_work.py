"""The work of one moment, prepared for comparing fleets: similar steps are grouped in classes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lading.scheduling.forecast.draws import draws
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.model.job import Wish
from lading.scheduling.model.location import Location, MachineKind
from lading.scheduling.packing.problem import Bin, Problem, Vector, fits, vector

# The largest factor by which a step is assumed to exceed its expected length, when its latest start is computed and no
# step like it has finished: the spread of other tasks says nothing about it.
MOST_TIMES = 2.0
# If lengths are uncertain, they are sampled in several cases: from 2 to 16, with this many lengths in all cases. With
# more steps than that, only the means count.
LEAST_CASES, MOST_CASES, SAMPLED_LENGTHS = 2, 16, 2_000
# The shortest length of a run, seconds.
LEAST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines of one type, plus others for the steps that do not fit it; or machines of several types.

    :param bin: what is launched; None: for each step whatever is cheapest for it, and a step starts where it adds least
        to the bill
    :param size: the largest number of machines, existing ones included, except for steps that fit nothing else
    :param stretch: another machine is launched only for a step without which its run would take longer than its
        critical path times this; 0: for every step that waits
    :param copies: with several types, what is launched for a step is the cheapest for this many steps like it
    """

    bin: Bin | None
    size: float = math.inf
    stretch: float = 0.0
    copies: int = 1


class StepClass(NamedTuple):
    """The common properties of steps that suit the same machines and count against the same limits.

    :param lasts: how long a machine with an end must stay for them, seconds
    :param slots: the limits of active steps that they count against, and the slots that each takes
    :param labels: the limits of machines that they count against
    :param at_once: see :class:`WorkflowStep`
    """

    need: Vector
    wish: Wish
    elsewhere: bool
    lasts: float
    slots: tuple[tuple[tuple[str, str], int], ...]
    labels: tuple[tuple[str, str], ...]
    at_once: bool = False


class BegunStep(NamedTuple):
    """A step that has started, as every fleet sees it.

    :param left: its expected remaining seconds
    :param children: the numbers of the unstarted steps that wait for it
    """

    name: str
    run: str | None
    location: str | None
    its_class: StepClass
    left: float
    children: Sequence[int]


class ExistingMachine(NamedTuple):
    """An existing machine, as every fleet sees it.

    :param free: the room that started steps, held room and jobs that are not steps leave free
    :param suits: for each class of steps, whether it can ever run there
    :param up: from when on it accepts steps, epoch seconds
    :param until: when the last of its started steps should finish, epoch seconds; 0: it has none
    :param running: how many steps have started there
    :param shared: whether it has held room, or jobs that are not steps
    """

    location: Location
    free: Vector
    suits: Sequence[bool]
    boot: float
    up: float
    until: float
    running: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Draw:
    """The lengths of steps in one of several cases.

    :param seconds: for the steps in :attr:`FleetWork.names`
    :param left: the remaining seconds of steps that have started, by name
    """

    seconds: Sequence[float]
    left: Mapping[str, float]


class FleetWork:
    """The work of one moment, prepared for all fleets.

    :param medians: the work, with median lengths
    :param locations: the existing machines, up or booting, that accept jobs
    :param problem: what can be launched, and the limits
    :param boot: seconds from a launch to the first job
    :param boots: the same for instance types that differ
    :param now: epoch seconds
    :param most_boot_paid: how many seconds of a boot are billed at most
    :ivar forecast: the work with mean lengths
    :ivar classes: see :class:`StepClass`
    :ivar names: the unstarted steps in the order in which they get machines
    :ivar begun: the started steps
    :ivar left: their expected remaining seconds, by name
    :ivar there: the existing machines
    :ivar critical: the longest path from now to the end of each run, seconds
    :ivar cases: in which fleets are compared; empty if all lengths are known, or if there are too many steps
    """

    def __init__(
        self,
        medians: Forecast,
        locations: Sequence[Location],
        problem: Problem,
        boot: float,
        now: float,
        boots: Mapping[str, float] = {},
        most_boot_paid: float = math.inf,
    ) -> None:
        forecast = medians.by_means()
        self.forecast, self.locations, self.problem, self.now = forecast, locations, problem, now
        self.boot, self.boots, self.most_boot_paid = boot, boots, most_boot_paid
        self.left = {name: step.left(now) for name, step in forecast.steps.items() if step.begun is not None}
        self.rests = forecast.rests(now, self.left)
        self.longest_rests = self._longest_rests()
        self.limits = limits = problem.limits
        self.most = {("run", name): most for name, most in forecast.most_at_once.items()}
        self.most |= {("pool", name): most for name, most in forecast.pools.items()}
        self.most_machines = {("task", name): most for name, most in limits.tasks.items()}
        self.most_machines |= {("run", name): most for name, most in limits.runs.items()}
        steps = forecast.steps
        self.has_ends = any(each.ends_at is not None for each in locations)
        number_of_cases = min(MOST_CASES, max(LEAST_CASES, SAMPLED_LENGTHS // max(1, len(steps))))
        cases = draws(medians, now, number_of_cases) if len(steps) <= SAMPLED_LENGTHS else []
        self.names: list[str] = list(forecast.by_rest(self._expected_rests(cases)))
        number = {name: place for place, name in enumerate(self.names)}
        self.class_by_step = {name: self._class_like(step) for name, step in steps.items()}
        self.classes: list[StepClass] = []
        self.class_of: list[int] = []
        self.seconds: list[float] = []
        self.bucket_of: list[int] = []
        self.bucket_seconds: list[float] = []
        self.bucket_latest: list[float] = []
        """For each group of equal steps, how many seconds before the end of its run it should start."""
        self.bucket_run: list[str | None] = []
        self.runs: list[str | None] = [steps[name].job.run for name in self.names]
        self.missing = [sum(each in steps for each in steps[name].parents) for name in self.names]
        self._group_steps(number)
        self.children = [[number[each] for each in forecast.children[name]] for name in self.names]
        self.begun = self._begun_steps(number)
        self.cases = [self._draw(case) for case in cases]
        self.critical = longest_of_runs(forecast, self.rests)
        self._menus: dict[Fleet, Sequence[Bin | None]] = {}
        self._suits: dict[tuple[Vector, MachineKind], list[bool]] = {}
        self.there = self._existing_machines()

    def _group_steps(self, number: Mapping[str, int]) -> None:
        """Sort the unstarted steps into classes and groups of equal steps.

        :param number: the places of unstarted steps in ``names``
        """
        steps, turns = self.forecast.steps, self.forecast.turns
        of_run = Counter(step.job.run for step in steps.values())
        numbers: dict[StepClass, int] = {}
        by_key: dict[object, int] = {}
        for name in self.names:
            step = steps[name]
            where = numbers.setdefault(its_class := self.class_by_step[name], len(self.classes))
            if where == len(self.classes):
                self.classes.append(its_class)
            self.class_of.append(where)
            self.seconds.append(step.seconds)
            # Jobs that are runs of their own are grouped as well, oldest first.
            its_run = step.job.run if of_run[step.job.run] > 1 else self.longest_rests[name]
            # Where shares take turns, all equal steps of one share would otherwise go before those of another. So they
            # are split into parts, each as large as all parts before it.
            part = name in turns and (number[name] + 1).bit_length()
            like = where, step.seconds, self.rests[name], step.job.priority, its_run, part
            bucket = by_key.setdefault(like, len(self.bucket_seconds))
            if bucket == len(self.bucket_seconds):
                self.bucket_seconds.append(step.seconds)
                self.bucket_latest.append(self.longest_rests[name])
                self.bucket_run.append(step.job.run)
            self.bucket_of.append(bucket)

    def _draw(self, case: Mapping[str, float]) -> Draw:
        steps = self.forecast.steps
        return Draw(
            [case.get(name, steps[name].seconds) for name in self.names],
            {each.name: case.get(each.name, each.left) for each in self.begun},
        )

    def _class_like(self, step: WorkflowStep) -> StepClass:
        run, pool = ("run", step.job.run or ""), ("pool", step.pool or "")
        slots = [(run, 1)] if run in self.most and step.seconds else []
        if step.seconds and step.pool_slots <= self.most.get(pool, -1):
            slots.append((pool, step.pool_slots))
        labels = [("task", step.job.task or ""), ("run", step.job.run or "")]
        lasts = max(step.seconds, step.job.time or 0.0) if self.has_ends else 0.0
        return StepClass(
            vector(step.job.resources),
            step.job.wish,
            step.elsewhere,
            lasts,
            tuple(slots),
            () if step.elsewhere else tuple(each for each in labels if each in self.most_machines),
            step.at_once,
        )

    def suits(self, capacity: Vector, kind: MachineKind) -> list[bool]:
        """For each class, whether it can ever run on such a machine."""
        key = capacity, kind
        if key not in self._suits:
            self._suits[key] = [
                not each.elsewhere and fits(each.need, capacity) and kind.grants(each.wish) for each in self.classes
            ]
        return self._suits[key]

    def menu(self, fleet: Fleet | None) -> Sequence[Bin | None]:
        """What a fleet launches for each class; None: nothing.

        A class that does not fit the fleet's type gets the cheapest type that it fits.
        """
        if fleet is None:
            return [None] * len(self.classes)
        key = replace(fleet, size=0, stretch=0.0)
        if key not in self._menus:
            preferred = fleet.bin
            if preferred is None:
                self._menus[key] = [self.cheapest(each, fleet.copies) or self.cheapest(each) for each in self.classes]
            else:
                suits = self.suits(preferred.capacity, preferred.kind)
                self._menus[key] = [
                    preferred if suits[number] else self.cheapest(each) for number, each in enumerate(self.classes)
                ]
        return self._menus[key]

    def deadlines(self, stretch: float) -> dict[str | None, float]:
        """When each run should end, epoch seconds: after its critical path times ``stretch``.

        One boot is allowed in addition, even if the run could start on machines of other runs: room may become free by
        then.
        """
        began = self.forecast.began
        return {
            run: max(self.now, (began.get(run or "", self.now) if self.locations else self.now) + self.boot)
            + seconds * stretch
            for run, seconds in self.critical.items()
        }

    def cheapest(self, its_class: StepClass, number: int = 1) -> Bin | None:
        """The cheapest launch for ``number`` steps of a class; None if they need no machine or fit none."""
        if its_class.elsewhere:
            return None
        able = self.problem.on_sale.granting(its_class.wish)
        n0, n1, n2, n3 = its_class.need
        need = n0 * number, n1 * number, n2 * number, n3 * number
        return able.cheapest(need)

    def boot_of(self, kind: str | None) -> float:
        """Seconds from the launch of an instance type to its first job."""
        return self.boots.get(kind or "", self.boot)

    def _expected_rests(self, cases: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """The mean remaining paths.

        The longest of several uncertain paths is longer on average than each of them, so a short step with many such
        paths behind it starts early. Equal steps have equal paths.
        """
        if not cases:
            return self.rests
        forecast, behind = self.forecast, dict[object, list[float]]()

        def key(name: str) -> object:
            step = forecast.steps[name]
            return step.job.run, step.seconds, self.rests[name]

        some = [name for name, after in forecast.children.items() if after and forecast.steps[name].begun is None]
        for case in cases:
            rests = forecast.rests(self.now, case)
            for name in some:
                behind.setdefault(key(name), []).append(forecast.behind(name, rests))
        means = {its: math.fsum(each) / len(each) for its, each in behind.items()}
        return self.rests | {name: forecast.steps[name].seconds + means[key(name)] for name in some}

    def _longest_rests(self) -> dict[str, float]:
        """The remaining paths if each step takes as long as it probably does at most: this early a step should start.

        Otherwise a step of uncertain length would start as late as one of known length, and its run would end late
        whenever it takes longer than expected.
        """
        if not any(step.spread for step in self.forecast.steps.values()):
            return self.rests
        lengths = dict(self.left)
        for name, step in self.forecast.steps.items():
            if step.begun is None:
                times = math.exp(step.spread)
                lengths[name] = step.seconds * (times if step.measured else min(MOST_TIMES, times))
        return self.forecast.rests(self.now, lengths)

    def _begun_steps(self, number: Mapping[str, int]) -> list[BegunStep]:
        """The started steps.

        :param number: the places of unstarted steps in ``names``
        """
        steps, children = self.forecast.steps, self.forecast.children
        return [
            BegunStep(
                name,
                step.job.run,
                step.location,
                self.class_by_step[name],
                self.left[name],
                [number[each] for each in children[name] if each in number],
            )
            for name, step in steps.items()
            if step.begun is not None
        ]

    def _existing_machines(self) -> list[ExistingMachine]:
        on: dict[str, list[BegunStep]] = {each.name: [] for each in self.locations}
        for step in self.begun:
            if step.location in on:
                on[step.location].append(step)
        found = []
        for location in self.locations:
            mine = on[location.name]
            whole, used = vector(location.capacity), vector(location.used)
            own = [sum(step.its_class.need[i] for step in mine) for i in range(4)]
            # When held room becomes free, and when jobs that are not steps end, is unknown.
            others = [max(0, used[i] - own[i]) for i in range(4)]
            for_steps = whole[0] - others[0], whole[1] - others[1], whole[2] - others[2], whole[3] - others[3]
            found.append(
                ExistingMachine(
                    location,
                    (for_steps[0] - own[0], for_steps[1] - own[1], for_steps[2] - own[2], for_steps[3] - own[3]),
                    self.suits(for_steps, location.kind),
                    self.boot_of(location.instance_type),
                    max(self.now, location.ready_at or self.now),
                    max((self.now + step.left for step in mine), default=0.0),
                    len(mine),
                    any(others),
                )
            )
        return found


def offers(work: FleetWork, most_cpus: float) -> list[Bin]:
    """The candidates for fleets: launches that some step fits and that no other launch dominates.

    Resources that no step requests, such as GPUs, do not count.
    """
    asked = [i for i in range(4) if any(each.need[i] for each in work.classes)]
    found: list[tuple[Bin, list[int], Sequence[bool]]] = []
    for each in work.problem.bins:  # the cheapest first
        room, suits = [each.capacity[i] for i in asked], work.suits(each.capacity, each.kind)
        if each.type.capacity.cpus > most_cpus or not any(suits):
            continue
        is_worse = any(
            all(more >= mine for more, mine in zip(other, room, strict=True))
            and all(it or not mine for it, mine in zip(its, suits, strict=True))
            for _, other, its in found
        )
        if not is_worse:
            found.append((each, room, suits))
    return [each for each, _, _ in found]


def longest_of_runs(forecast: Forecast, rests: Mapping[str, float]) -> dict[str | None, float]:
    """The longest remaining path of each run, seconds."""
    longest: dict[str | None, float] = {}
    for name, step in forecast.steps.items():
        longest[step.job.run] = max(rests[name], longest.get(step.job.run, LEAST_SECONDS))
    return longest
