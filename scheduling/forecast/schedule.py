"""When each step begins and on which machine, so that little money and time is spent: one schedule by insertion. Pure.

Steps are planned by the longest rest of their run, parents first, each where it costs the least: in room that is paid
anyway, behind what a machine does, or on a new machine of the cheapest type. A step may wait for room as long as the
rest of its run is in time; each second beyond is paid with what the time of its run is worth. It is the insertion of
HEFT (Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing",
IEEE TPDS 13, 2002), with money in the place of the earliest end and latest starts as in IC-PCP (Abrishami,
Naghibzadeh, Epema, "Deadline-constrained workflow scheduling algorithms for infrastructure as a service clouds", Future
Generation Computer Systems 29, 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.timeline import MachineTimeline
from lading.scheduling.job import Wish
from lading.scheduling.location import Location, MachineKind
from lading.scheduling.packing.problem import Bin, Vector, fits, vector

# So many times as long as expected a step takes at most where it is reckoned when it should begin, and none like it has
# ended: of those of others, or of nothing, no spread is known.
MOST_TIMES = 2.0
# What costs so many times as much at most costs as much.
ALIKE = 1 + 1e-9


class Slots:
    """How many steps may be at work at a time: of each run, and by the slots of each of Airflow's pools."""

    def __init__(self, forecast: Forecast, now: float) -> None:
        def limited(most: Mapping[str, int]) -> dict[str | None, MachineTimeline]:
            return {name: MachineTimeline((number, 0, 0, 0), 0.0, 0.0, now) for name, number in most.items()}

        self.runs, self.pools = limited(forecast.most_at_once), limited(forecast.pools)
        self.any = bool(self.runs or self.pools)

    def earliest(self, step: WorkflowStep, since: float) -> float:
        """The first time from ``since`` on at which a step may be at work; one that takes more slots than its pool has
        is not held up by that."""
        if not self.any:
            return since
        limits = [each for each in self._limits(step) if fits(each[1], each[0].capacity)] if step.seconds else []
        at, before = since, -math.inf
        while limits and at != before:
            before = at
            for slots, amount in limits:
                at = slots.earliest(at, step.seconds, amount)
        return at

    def add(self, step: WorkflowStep, begin: float, seconds: float) -> None:
        """A step is at work then."""
        for slots, amount in self._limits(step):
            slots.add(begin, seconds, amount)

    def _limits(self, step: WorkflowStep) -> list[tuple[MachineTimeline, Vector]]:
        of_run, of_pool = self.runs.get(step.job.run), self.pools.get(step.pool)
        run: list[tuple[MachineTimeline, Vector]] = [] if of_run is None else [(of_run, (1, 0, 0, 0))]
        return run if of_pool is None else [*run, (of_pool, (step.pool_slots, 0, 0, 0))]


@dataclass(slots=True)
class PlannedMachine:
    """A machine of a schedule.

    :param location: the machine that is there; None: it is to be launched
    :param bin: what is to be launched; ``launched``: it was asked for; ``withheld``: and was not launched, as a budget
        or a limit is used up
    :param released: its location was released
    :param kind: the number of what it is, for :class:`Builder`
    :param closes: epoch seconds at which it has to be gone, for another one to be launched within the limit, or as it
        ends then
    :param steps: what begins on it, in the order in which it was planned
    """

    timeline: MachineTimeline
    location: Location | None = None
    bin: Bin | None = None
    steps: list[str] = field(default_factory=list)
    launched: bool = False
    withheld: bool = False
    released: bool = False
    closes: float = math.inf
    kind: int = 0

    @property
    def boot(self) -> float:
        """Seconds from its launch to its first job."""
        return self.timeline.boot

    def needed(self, schedule: Schedule, forecast: Forecast) -> float:
        """When the next step begins on it that has not begun, epoch seconds; infinite: none does."""
        steps = (name for name in self.steps if name in forecast.steps and forecast.steps[name].begun is None)
        return min((schedule.starts[name] for name in steps), default=math.inf)


@dataclass(slots=True)
class Schedule:
    """When and where everything is planned.

    :param starts: epoch seconds at which each step begins, or has begun; one that fits nothing is left out
    :param until: when each step ends, epoch seconds
    :param homes: the machine of each step that does not run yet
    :param usd: what is still to be paid
    :param ends: when each run ends, epoch seconds
    :param fleet: the machines in the order in which they are filled by :attr:`ScheduleTerms.fleet`
    :param launched: those to be launched by :attr:`ScheduleTerms.before`, by their numbers there
    """

    machines: list[PlannedMachine]
    starts: dict[str, float] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    homes: dict[str, PlannedMachine] = field(default_factory=dict)
    usd: float = 0.0
    ends: dict[str | None, float] = field(default_factory=dict)
    fleet: list[PlannedMachine] = field(default_factory=list)
    launched: dict[int, PlannedMachine] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """When and where a step was to begin by the last schedule.

    :param start: epoch seconds
    :param location: the name of its machine; None: it was to be launched
    :param number: of that machine among those of the schedule; None: it needs none
    :param bin: what was to be launched
    """

    start: float
    location: str | None = None
    number: int | None = None
    bin: Bin | None = None


@dataclass(frozen=True, slots=True)
class ScheduleTerms:
    """What a schedule is made by.

    :param deadlines: epoch seconds until which each run should have ended
    :param usd_per_second: what each second is worth by which it ends later
    :param bins: what each step would be launched on; None: it fits nothing that can be launched
    :param fleet: so many machines at most, the ones that are there included, where nothing else fits a step; each step
        begins as soon as it can, on the first of them; 0: any number, and each step begins where that costs the least
    :param before: the last schedule, by the names of steps before which no other ones have to end: each begins in the
        same order on the same machine, as soon as it can; None: there was none
    """

    deadlines: Mapping[str | None, float]
    usd_per_second: Mapping[str | None, float]
    bins: Mapping[str, Bin | None]
    fleet: int = 0
    before: Mapping[str, PlannedStart] | None = None


class Builder:
    """Makes schedules for one moment.

    :param forecast: what is to be done
    :param locations: the machines that are there or boot, and take jobs
    :param boot: seconds from a launch to the first job; ``boots``: the same of instance types that take other ones
    :param most: how many machines there may be at a time; None: as many as it takes
    :param now: epoch seconds
    :param pause: called between two steps; other threads may want to run
    :param most_boot_paid: of a boot so many seconds cost money at most
    """

    def __init__(
        self,
        forecast: Forecast,
        locations: Sequence[Location],
        boot: float,
        most: int | None,
        now: float,
        pause: Callable[[], None] = lambda: None,
        boots: Mapping[str, float] = {},
        most_boot_paid: float = math.inf,
    ) -> None:
        self.forecast, self.locations, self.boot, self.most, self.now = forecast, locations, boot, most, now
        self.pause, self.boots, self.most_boot_paid = pause, boots, most_boot_paid
        self.rests = forecast.rests(now)
        self.order = tuple(forecast.by_rest(self.rests))
        self.longest_rests = self._longest_rests()
        self.needs = {name: vector(step.job.resources) for name, step in forecast.steps.items()}
        self._numbers: dict[MachineKind | Wish, int] = {}
        self._grants: dict[tuple[int, int], bool] = {}
        self._wishes = {name: self._number(step.job.wish) for name, step in forecast.steps.items()}
        self._free = self._without_strangers()
        self._slots = Slots(forecast, now)

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

    def _without_strangers(self) -> dict[str, Vector]:
        """What the steps can use of each machine, by its name: all but what is held there, and what jobs have that are
        no steps, of which it is not known when they end."""
        steps: dict[str, list[Vector]] = {each.name: [] for each in self.locations}
        for name, step in self.forecast.steps.items():
            if step.begun is not None and step.location in steps:
                steps[step.location].append(self.needs[name])
        found = {}
        for location in self.locations:
            mine = tuple(map(sum, zip((0, 0, 0, 0), *steps[location.name], strict=True)))
            others = (max(0, used - own) for used, own in zip(vector(location.used), mine, strict=True))
            cpus, memory, disk, gpus = map(int.__sub__, vector(location.capacity), others)
            found[location.name] = cpus, memory, disk, gpus
        return found

    def build(self, terms: ScheduleTerms) -> Schedule:
        """The schedule by these terms."""
        steps = self.forecast.steps
        schedule = Schedule([self.there(each) for each in self.locations])
        by_name = {each.location.name: each for each in schedule.machines if each.location is not None}
        ends = schedule.until
        self._slots = Slots(self.forecast, self.now)
        begun = [(name, step, step.begun) for name, step in steps.items() if step.begun is not None]
        # The longest first: each then divides the first part of a timeline alone.
        for name, step, since in sorted(begun, key=lambda known: -known[1].left(self.now)):
            schedule.starts[name], ends[name] = since, self.now + step.left(self.now)
            home = by_name.get(step.location or "")
            if home is not None:
                home.timeline.add(home.timeline.since, step.left(self.now), self.needs[name])
            self._slots.add(step, self.now, step.left(self.now))
        # Those stay first that have to stay for the longest in any case.
        schedule.fleet = sorted(schedule.machines, key=lambda machine: -machine.timeline.busy[-1][1])
        for name in self.order if terms.before is None else self._order_of(terms.before):
            self.pause()
            self._place(name, schedule, terms)
        for name, end in ends.items():
            run = steps[name].job.run
            schedule.ends[run] = max(end, schedule.ends.get(run, self.now))
        schedule.usd = sum(each.timeline.usd() for each in schedule.machines)
        return schedule

    def boot_of(self, kind: str | None) -> float:
        """Seconds from a launch of an instance type to its first job."""
        return self.boots.get(kind or "", self.boot)

    def there(self, location: Location) -> PlannedMachine:
        up = max(self.now, location.ready_at or self.now)
        price = location.usd_per_hour / 3600
        capacity = self._free[location.name]
        timeline = MachineTimeline(capacity, price, self.boot_of(location.instance_type), up, is_there=True)
        closes = math.inf if location.ends_at is None else location.ends_at
        return PlannedMachine(timeline, location, closes=closes, kind=self._number(location.kind))

    def _place(self, name: str, schedule: Schedule, terms: ScheduleTerms) -> None:
        step, need, ends = self.forecast.steps[name], self.needs[name], schedule.until
        before = [each for each in step.parents if each in self.forecast.steps]
        if any(each not in ends for each in before):
            return  # what it waits for fits nothing
        ready = max((ends[each] for each in before), default=self.now)
        if step.elsewhere:
            best, home = (0.0, self._slots.earliest(step, step.start(ready))), None
        else:
            find = self._soonest if terms.fleet else self._cheapest
            if terms.before is not None and name in terms.before:
                find = self._as_before
            best, home = find(name, ready, schedule, terms)
            if home is None:
                return
            home.timeline.add(best[1], step.seconds, need)
            home.steps.append(name)
            schedule.homes[name] = home
        schedule.starts[name], ends[name] = best[1], best[1] + step.seconds
        if step.seconds:
            self._slots.add(step, best[1], step.seconds)

    def _cheapest(
        self, name: str, ready: float, schedule: Schedule, terms: ScheduleTerms
    ) -> tuple[tuple[float, float], PlannedMachine | None]:
        """Where a step costs the least: what it costs there, USD, and when it begins; and the machine, which may be one
        more; None: it fits nothing."""
        step, need = self.forecast.steps[name], self.needs[name]
        latest = max(ready, terms.deadlines[step.job.run] - self.longest_rests[name])
        ready = self._slots.earliest(step, ready)  # no machine has its turn sooner
        worth, seconds = terms.usd_per_second[step.job.run], step.seconds
        best, home = (math.inf, math.inf), None
        for machine in schedule.machines:
            if not self._suits(machine, name):
                continue
            if (begin := self._begin(machine, step, ready, need)) == math.inf:
                continue
            late = max(0.0, begin - latest) * worth
            if late <= best[0]:
                key = machine.timeline.more(begin, seconds) + late, begin
                if key < best:
                    best, home = key, machine
        if (launched := terms.bins[name]) is not None:
            boot = self.boot_of(launched.type.name)
            begin = self._opening(max(ready, self.now + boot), seconds, schedule, boot)
            while begin < (turn := self._slots.earliest(step, begin)):
                begin = self._opening(turn, seconds, schedule, boot)
            late = max(0.0, begin - latest) * worth
            paid = min(boot, self.most_boot_paid) + seconds
            key = paid * launched.price / 3600 + late, begin
            # What is there and would be released until then is left to what can begin on it sooner.
            is_there = home is not None and home.location is not None
            if key < best or (is_there and key[0] <= best[0] * ALIKE and key[1] <= best[1]):
                best = key
                home = self._open(launched, begin, seconds, schedule)
        return best, home

    def _soonest(
        self, name: str, ready: float, schedule: Schedule, terms: ScheduleTerms
    ) -> tuple[tuple[float, float], PlannedMachine | None]:
        """Where a step begins the soonest in a fleet; see :meth:`_cheapest`."""
        step, need = self.forecast.steps[name], self.needs[name]
        ready, seconds = self._slots.earliest(step, ready), step.seconds
        soonest, home = math.inf, None
        for number, machine in enumerate(schedule.fleet):
            if number >= terms.fleet and home is not None:
                break
            if self._suits(machine, name) and (begin := self._begin(machine, step, ready, need)) < soonest:
                soonest, home = begin, machine
                if begin <= ready:
                    break
        launched = terms.bins[name]
        if launched is not None and soonest > ready and (home is None or len(schedule.fleet) < terms.fleet):
            boot = self.boot_of(launched.type.name)
            begin = self._opening(max(ready, self.now + boot), seconds, schedule, boot)
            while begin < (turn := self._slots.earliest(step, begin)):
                begin = self._opening(turn, seconds, schedule, boot)
            if begin < soonest:
                soonest, home = begin, self._open(launched, begin, seconds, schedule)
                schedule.fleet.append(home)
        return (0.0, soonest), home

    def _as_before(
        self, name: str, ready: float, schedule: Schedule, terms: ScheduleTerms
    ) -> tuple[tuple[float, float], PlannedMachine | None]:
        """Where a step was to begin by the last schedule, now as soon as it can there; see :meth:`_cheapest`."""
        step, need, before = self.forecast.steps[name], self.needs[name], terms.before
        assert before is not None
        last, soonest, home = before[name], math.inf, None
        if last.location is not None:
            home = next((each for each in schedule.machines if self._is_called(each, last.location)), None)
        elif last.number is not None:
            home = schedule.launched.get(last.number)
        if home is not None and self._suits(home, name):
            soonest = self._begin(home, step, self._slots.earliest(step, ready), need)
        elif home is None and last.bin is not None and last.number is not None and self._is_for(last.bin, name):
            boot = self.boot_of(last.bin.type.name)
            soonest = self._opening(max(ready, self.now + boot), step.seconds, schedule, boot)
            while soonest < (turn := self._slots.earliest(step, soonest)):
                soonest = self._opening(turn, step.seconds, schedule, boot)
            if soonest < math.inf:
                home = self._open(last.bin, soonest, step.seconds, schedule)
                schedule.launched[last.number] = home
                schedule.fleet.append(home)
        return ((0.0, soonest), home) if soonest < math.inf else self._cheapest(name, ready, schedule, terms)

    def _is_for(self, launched: Bin, name: str) -> bool:
        """Whether what is launched can ever run a step, which may ask for more than when it was planned."""
        grants = launched.kind.grants(self.forecast.steps[name].job.wish)
        return grants and fits(self.needs[name], launched.capacity)

    @staticmethod
    def _is_called(machine: PlannedMachine, name: str) -> bool:
        return machine.location is not None and machine.location.name == name

    def _begin(self, machine: PlannedMachine, step: WorkflowStep, ready: float, need: Vector) -> float:
        """When a step begins on a machine at the soonest; infinite: that has to be gone before it has ended."""
        seconds = step.seconds
        begin = machine.timeline.earliest(ready, seconds, need)
        while begin < (turn := self._slots.earliest(step, begin)):
            begin = machine.timeline.earliest(turn, seconds, need)
        ends = machine.location is not None and machine.location.ends_at is not None
        # What ends by itself takes only what reaches its limit before.
        lasts = max(seconds, step.job.time or 0.0) if ends else seconds
        return begin if begin + lasts <= machine.closes else math.inf

    def _number(self, what: MachineKind | Wish) -> int:
        """Kinds and wishes by number: they are compared for each machine and step."""
        return self._numbers.setdefault(what, len(self._numbers))

    def _suits(self, machine: PlannedMachine, name: str) -> bool:
        """Whether a machine can ever run a step."""
        if not fits(self.needs[name], machine.timeline.capacity):
            return False
        key = machine.kind, self._wishes[name]
        if key not in self._grants:
            what = machine.location or machine.bin
            self._grants[key] = what is not None and what.kind.grants(self.forecast.steps[name].job.wish)
        return self._grants[key]

    def _opening(self, begin: float, seconds: float, schedule: Schedule, boot: float) -> float:
        """When there may be a machine more at the earliest."""
        if self.most is None or len(schedule.machines) < self.most:
            return begin
        spans = [self._span(each) for each in schedule.machines]
        for at in sorted({begin, *(end + boot for _, end in spans if end + boot > begin)}):
            if sum(since < at + seconds and until > at - boot for since, until in spans) < self.most:
                return at
        return math.inf

    def _open(self, launched: Bin, begin: float, seconds: float, schedule: Schedule) -> PlannedMachine:
        """One more machine, for which others make way where there may be no more."""
        boot = self.boot_of(launched.type.name)
        since, closes = self.now + boot, math.inf
        if self.most is not None and len(schedule.machines) >= self.most:
            since = begin
            for machine in schedule.machines:
                first, last = self._span(machine)
                if last <= begin - boot:
                    machine.closes = min(machine.closes, begin - boot)
                elif first >= begin + seconds:
                    # It comes later, and neither may reach into the time of the other.
                    machine.timeline.since = max(machine.timeline.since, machine.timeline.busy[0][0])
                    closes = min(closes, first)
        timeline = MachineTimeline(
            launched.capacity, launched.price / 3600, boot, since, most_boot_paid=self.most_boot_paid
        )
        home = PlannedMachine(timeline, bin=launched, closes=closes, kind=self._number(launched.kind))
        schedule.machines.append(home)
        return home

    def _order_of(self, before: Mapping[str, PlannedStart]) -> Sequence[str]:
        """The steps that do not run in the order of the last schedule, parents first, and behind them what has come."""
        turns: dict[str, float] = {}
        for name in self.order:
            # Steps of which few may be at work at a time wait for other ones than before.
            parents = (turns.get(each, -math.inf) for each in self.forecast.steps[name].parents)
            turns[name] = max(before[name].start if name in before else math.inf, *parents, -math.inf)
        return sorted(self.order, key=turns.__getitem__)

    def _span(self, machine: PlannedMachine) -> tuple[float, float]:
        """From when to when there is a machine, boot included."""
        busy = machine.timeline.busy
        return busy[0][0] - (0.0 if machine.location else machine.timeline.boot), busy[-1][1]
