"""What is to be done at one moment, and the fleets by which it can be: steps that are alike are one class. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.job import Wish
from lading.scheduling.location import Location, MachineKind
from lading.scheduling.packing.problem import Bin, Problem, Vector, fits, vector

# So many times as long as expected a step takes at most where it is reckoned when it should begin, and none like it has
# ended: of those of others, or of nothing, no spread is known.
MOST_TIMES = 2.0
# No run takes less than this, seconds.
LEAST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines of one type, and others only for what does not fit it; or of many.

    :param bin: what is launched; None: for each step that which is cheapest for it, and it begins where the bill grows
        least
    :param size: so many machines at most, those that are there included, but where nothing else fits a step
    :param stretch: a machine more is launched only for a step without which its run would end later than after so many
        times its critical path; 0: for each step that waits
    :param copies: of many types: for each step that which is cheapest for so many like it
    """

    bin: Bin | None
    size: float = math.inf
    stretch: float = 0.0
    copies: int = 1


@dataclass(frozen=True, slots=True)
class StepClass:
    """What steps have in common that suit the same machines and count for the same limits.

    :param lasts: seconds for which a machine that ends has to stay for them
    :param slots: the limits of steps at work that they count for, with how many slots each of them takes
    :param labels: the limits of machines that they count for
    """

    need: Vector
    wish: Wish
    elsewhere: bool
    lasts: float
    slots: tuple[tuple[tuple[str, str], int], ...]
    labels: tuple[tuple[str, str], ...]


class FleetWork:
    """What is to be done at one moment, prepared for all fleets.

    :param forecast: what is to be done
    :param locations: the machines that are there or boot, and take jobs
    :param problem: what can be launched, within which limits
    :param boot: seconds from a launch to the first job; ``boots``: the same of instance types that take other ones
    :param now: epoch seconds
    :param most_boot_paid: of a boot so many seconds cost money at most
    :ivar classes: see :class:`StepClass`
    """

    def __init__(
        self,
        forecast: Forecast,
        locations: Sequence[Location],
        problem: Problem,
        boot: float,
        now: float,
        boots: Mapping[str, float] = {},
        most_boot_paid: float = math.inf,
    ) -> None:
        self.forecast, self.locations, self.problem, self.now = forecast, locations, problem, now
        self.boot, self.boots, self.most_boot_paid = boot, boots, most_boot_paid
        self.rests = forecast.rests(now)
        self.longest_rests = self._longest_rests()
        self.limits = limits = problem.limits
        self.most = {("run", name): most for name, most in forecast.most_at_once.items()}
        self.most |= {("pool", name): most for name, most in forecast.pools.items()}
        self.most_machines = {("task", name): most for name, most in limits.tasks.items()}
        self.most_machines |= {("run", name): most for name, most in limits.runs.items()}
        steps = forecast.steps
        self.has_ends = any(each.ends_at is not None for each in locations)
        self.names: list[str] = list(forecast.by_rest(self.rests))
        self.begun = [name for name, step in steps.items() if step.begun is not None]
        number = {name: place for place, name in enumerate(self.names)}
        self.classes: list[StepClass] = []
        self.class_of: list[int] = []
        self.seconds: list[float] = []
        self.bucket_of: list[int] = []
        self.bucket_seconds: list[float] = []
        self.bucket_latest: list[float] = []
        """Of each group of equal steps the seconds before the end of its run at which it should begin."""
        self.bucket_run: list[str | None] = []
        self.runs: list[str | None] = [steps[name].job.run for name in self.names]
        of_run = Counter(step.job.run for step in steps.values())
        self.missing: list[int] = []
        numbers: dict[StepClass, int] = {}
        by_key: dict[object, int] = {}
        for name in self.names:
            step = steps[name]
            where = numbers.setdefault(its_class := self.class_like(step), len(self.classes))
            if where == len(self.classes):
                self.classes.append(its_class)
            self.class_of.append(where)
            self.seconds.append(step.seconds)
            # Jobs that are runs by themselves go together, too, those first that came first.
            its_run = step.job.run if of_run[step.job.run] > 1 else self.longest_rests[name]
            # Where shares go in turn, equal steps of one would take all that there may be before another's, so they go
            # in parts, each as large as all before it.
            part = name in forecast.turns and (number[name] + 1).bit_length()
            like = where, step.seconds, self.rests[name], step.job.priority, its_run, part
            bucket = by_key.setdefault(like, len(self.bucket_seconds))
            if bucket == len(self.bucket_seconds):
                self.bucket_seconds.append(step.seconds)
                self.bucket_latest.append(self.longest_rests[name])
                self.bucket_run.append(step.job.run)
            self.bucket_of.append(bucket)
            self.missing.append(sum(each in steps for each in step.parents))
        children = forecast.children
        self.children = [[number[each] for each in children[name]] for name in self.names]
        self.children_of_begun = {
            name: [number[each] for each in children[name] if each in number] for name in self.begun
        }
        self.critical = longest_of_runs(forecast, self.rests)
        """Seconds of the longest way from now to the end of each run."""
        self._menus: dict[Fleet, Sequence[Bin | None]] = {}
        self._suits: dict[tuple[Vector, MachineKind], list[bool]] = {}

    def class_like(self, step: WorkflowStep) -> StepClass:
        """That of a step."""
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
        )

    def suits(self, capacity: Vector, kind: MachineKind) -> list[bool]:
        """Of each class whether it can ever run on such a machine."""
        key = capacity, kind
        if key not in self._suits:
            self._suits[key] = [
                not each.elsewhere and fits(each.need, capacity) and kind.grants(each.wish) for each in self.classes
            ]
        return self._suits[key]

    def menu(self, fleet: Fleet | None) -> Sequence[Bin | None]:
        """What is launched for each class by a fleet; None: nothing.

        Where a step does not fit that, it is the cheapest that it fits.
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
        """Epoch seconds until which each run should have ended, so many times as long as its critical path.

        It may take one boot, also where it could begin on what others have: room may come free by then.
        """
        began = self.forecast.began
        return {
            run: max(self.now, (began.get(run or "", self.now) if self.locations else self.now) + self.boot)
            + seconds * stretch
            for run, seconds in self.critical.items()
        }

    def cheapest(self, its_class: StepClass, number: int = 1) -> Bin | None:
        """The cheapest that can be launched for so many steps of a class; None: they need none, or fit none."""
        if its_class.elsewhere:
            return None
        able = self.problem.bins_granting(its_class.wish).bins
        n0, n1, n2, n3 = its_class.need
        need = n0 * number, n1 * number, n2 * number, n3 * number
        return next((each for each in able if fits(need, each.capacity)), None)

    def boot_of(self, kind: str | None) -> float:
        """Seconds from a launch of an instance type to its first job."""
        return self.boots.get(kind or "", self.boot)

    def _longest_rests(self) -> dict[str, float]:
        """The rests where each step takes as long as it probably does at most: so long before the end one should begin.

        Else a step whose length is not known would wait for as long as if it were, and its run would end later wherever
        it takes longer than expected.
        """
        if not any(step.spread for step in self.forecast.steps.values()):
            return self.rests
        steps = dict(self.forecast.steps)
        for name, step in self.forecast.steps.items():
            if step.begun is None:
                times = math.exp(step.spread)
                seconds = step.seconds * (times if step.measured else min(MOST_TIMES, times))
                steps[name] = replace(step, seconds=seconds)
        return replace(self.forecast, steps=steps).rests(self.now)

    def free(self) -> dict[str, Vector]:
        """What the steps can use of each machine, by its name: all but what is held there, and what jobs have that are
        no steps, of which it is not known when they end."""
        steps: dict[str, list[Vector]] = {each.name: [] for each in self.locations}
        for name in self.begun:
            step = self.forecast.steps[name]
            if step.location in steps:
                steps[step.location].append(vector(step.job.resources))
        found = {}
        for location in self.locations:
            mine = tuple(map(sum, zip((0, 0, 0, 0), *steps[location.name], strict=True)))
            others = (max(0, used - own) for used, own in zip(vector(location.used), mine, strict=True))
            cpus, memory, disk, gpus = map(int.__sub__, vector(location.capacity), others)
            found[location.name] = cpus, memory, disk, gpus
        return found


def offers(work: FleetWork, most_cpus: float) -> list[Bin]:
    """What fleets are made of: of what can be launched that some step fits all of which none is better.

    What no step asks for, such as GPUs, makes none better.
    """
    asked = [i for i in range(4) if any(each.need[i] for each in work.classes)]
    found: list[tuple[Bin, list[int], Sequence[bool]]] = []
    for each in work.problem.bins:  # the cheapest first
        room, suits = [each.capacity[i] for i in asked], work.suits(each.capacity, each.kind)
        is_worse = any(
            all(more >= mine for more, mine in zip(other, room, strict=True))
            and all(it or not mine for it, mine in zip(its, suits, strict=True))
            for _, other, its in found
        )
        if each.type.capacity.cpus <= most_cpus and any(suits) and not is_worse:
            found.append((each, room, suits))
    return [each for each, _, _ in found]


def longest_of_runs(forecast: Forecast, rests: Mapping[str, float]) -> dict[str | None, float]:
    """The seconds of the longest rest of each run."""
    longest: dict[str | None, float] = {}
    for name, step in forecast.steps.items():
        longest[step.job.run] = max(rests[name], longest.get(step.job.run, LEAST_SECONDS))
    return longest
