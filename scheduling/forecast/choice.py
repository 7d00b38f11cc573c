"""Which schedule is taken: of several that are made by different terms the best trade of money for time. Pure.

``hurry`` says what time is worth: a schedule is the better one whose USD times the length of each run to the power of
``hurry`` is less. At 1, ten per cent longer for ten per cent less is a draw; at 0 only money counts. Each run may have
a ``hurry`` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.forecast.fleets import Draw, Fleet, FleetMachine, FleetRun, FleetWork, draws, offers
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.probable_end import ProbableEnds
from lading.scheduling.forecast.schedule import Builder, PlannedStart, Schedule, ScheduleTerms
from lading.scheduling.job import Wish
from lading.scheduling.location import Location
from lading.scheduling.packing.problem import Bin, Problem, Vector, fits
from lading.scheduling.plan import InstanceLimits
from lading.scheduling.prediction import EXACT

# A run should end after its critical path times one of these; the longer ones are not tried again in each plan.
STRETCHES = (1.0, 1.02, 1.05)
LONG_STRETCHES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, math.inf)
# Fleets are of machines with so many cpus at most; of each type so many are tried, and parts of as many as it takes.
MOST_CPUS = 64
FEW_SIZES = (1, 2, 3, 4, 6, 8)
# Fleets are tried until so many events have been gone through, but so many fleets at least.
MOST_EVENTS, LEAST_FLEETS = 25_000, 8
# Where lengths are not known fleets are compared in so many cases of as many steps at most.
CASES = ((500, 4), (2_000, 2))
# The score of a schedule in which steps have no place that could have one.
NOT_WHOLE = 1e9
# So many looks at machines for steps are taken for ways by cost, so many ways at least where each takes fewer; and so
# many with the ways by which the last plan goes on.
MOST_LOOKS, LEAST_WAYS, MOST_LOOKS_OF_ALL = 400_000, 4, 2_000_000
# So many steps on machines take a look more for each other one.
STEPS_PER_LOOK = 10
# A second beyond is worth so many times what it is worth by ``hurry``: insertion sees one step at a time.
WORTHS = (1.0, 100.0)
# Which part of those that run as long as a step until now has ended when it is reckoned to end early.
EARLY = 0.25
# By what a run takes longer than until it shall have ended counts as so many times as long.
OVERDUE_COUNTS = 100.0
# No run takes less than this, seconds.
LEAST_SECONDS = 0.1
# Larger machines than needed pay by steps to come; each doubling counts as so much dearer as lengths are uncertain.
DOUBT = 0.05
# Where more than so many times as many are at work it is not tried.
MOST_LEFT = 2


@dataclass(frozen=True, slots=True)
class Way:
    """The terms of a schedule, but for the moment.

    :param least_cpus: new machines have so many cpus at least: steps to come may share them
    :param by_work: of these the type on which all that is to come takes the least money is launched; else the cheapest
    :param patient: whether a run that has just begun may take a boot longer, also where it could begin on what is there
    :param fleet: see :class:`~lading.scheduling.forecast.schedule.ScheduleTerms`, as ``before``
    """

    least_cpus: float = 0.0
    by_work: bool = False
    stretch: float = 1.0
    worth: float = 1.0
    patient: bool = False
    fleet: int = 0
    before: Mapping[str, PlannedStart] | None = field(default=None, compare=False)


LAST_RESORT = Way()


@dataclass(frozen=True, slots=True)
class ChosenSchedule:
    """A schedule, and what it was made by.

    :param ends: when each run is expected to end, epoch seconds; one with a step that fits nothing is left out
    :param goes_on: whether it goes on as the last one
    """

    schedule: Schedule
    way: Way | Fleet
    score: float
    ends: Mapping[str, float] = field(default_factory=dict)
    goes_on: bool = False


def choose(
    forecast: Forecast,
    locations: Sequence[Location],
    problem: Problem,
    *,
    boot: float,
    boots: Mapping[str, float] = {},
    hurry: float = 1.0,
    spent: float = 0.0,
    ways: Sequence[Way | Fleet] = (),
    more: Sequence[Way] = (),
    now: float,
    pause: Callable[[], None] = lambda: None,
    most_boot_paid: float = math.inf,
) -> ChosenSchedule:
    """The best schedule of those by fleets, and by ways beside them.

    :param problem: what can be launched
    :param boot: seconds from a launch to the first job; ``boots``: the same of instance types that take other ones
    :param hurry: what time is worth to runs to which the forecast says nothing else
    :param spent: USD that the live runs have cost until now
    :param ways: only these are tried; none: all, and ``more``
    :param now: epoch seconds
    :param pause: called again and again; other threads may want to run
    :param most_boot_paid: of a boot so many seconds cost money at most
    """
    search = Search(forecast, locations, problem, boot, boots, hurry, spent, now, pause, most_boot_paid)
    if ways:
        search.consider_fleets([each for each in ways if isinstance(each, Fleet)])
        some = [each for each in ways if isinstance(each, Way)]
    else:
        search.consider_fleets()
        some = [*more, *search.ways_beside_fleets()]
    for way in some:
        search.consider(way)
    if search.best is None:
        # For where none of the others can be: what they go by is not on sale any more.
        search.consider(LAST_RESORT)
    assert search.best is not None
    return replace(search.best, ends=expected_ends(search.best.schedule, search.forecast))


class Search:
    """The best schedule of those that were tried, for one moment; see :func:`choose`.

    :ivar best: None as long as none could be made
    """

    def __init__(
        self,
        forecast: Forecast,
        locations: Sequence[Location],
        problem: Problem,
        boot: float,
        boots: Mapping[str, float],
        hurry: float,
        spent: float,
        now: float,
        pause: Callable[[], None],
        most_boot_paid: float,
    ) -> None:
        most = problem.limits.instances
        self.medians = medians = forecast.by_those_at_work(now)
        self.forecast = forecast = medians.by_means()
        # Ways know no limits but the number of machines, and where lengths are not known what is planned in detail is
        # not what will be.
        self.is_for_fleets = problem.limits != InstanceLimits(most) or any(
            step.spread > EXACT for step in forecast.steps.values()
        )
        self.problem, self.boot, self.spent, self.now = problem, boot, spent, now
        self.builder = Builder(forecast, locations, boot, most, now, pause, boots, most_boot_paid)
        self.menus = Menus(forecast, problem, self.builder)
        critical = longest_of_runs(forecast, self.builder.rests)
        # What is at work may end sooner than expected, and nothing else should have waited by then as if it did not.
        self.soonest_critical = longest_of_runs(forecast, forecast.rests(now, EARLY))
        self.hurries = {run: forecast.hurries.get(run or "", hurry) for run in critical}
        self.least = least_usd(forecast, self.menus, self.builder)
        self.worth = {
            run: max(self.hurries[run], 0.01) * self.least[run] / seconds for run, seconds in critical.items()
        }
        # A run may take one boot, also where it could begin on what others have: room may come free by then.
        boots_until = {run: forecast.began.get(run or "", now) + boot if locations else now + boot for run in critical}
        self.waits = {run: max(0.0, until - now) for run, until in boots_until.items()}
        self.soonest = {run: now + self.waits[run] + seconds for run, seconds in critical.items()}
        self.ends = ProbableEnds(medians, self.builder.rests)
        if self.ends.runs:
            first = forecast.soonest(now)
            for run, soonest in self.soonest.items():
                starts = {name: first[name] + self.waits[run] for name in self.ends.runs.get(run, ())}
                self.soonest[run] = self.ends.of_run(run, starts, soonest)
        self.are_there_any = bool(locations)
        self.is_patience_of_use = bool(locations) and any(self.waits.values())
        self.spread = math.fsum(each.spread for each in forecast.steps.values()) / max(1, len(forecast.steps))
        self.busy = len({step.location for step in forecast.steps.values() if step.begun is not None})
        self.best: ChosenSchedule | None = None
        self.looks = 0
        self._best_fleet: tuple[float, Way] | None = None
        self._tried: set[tuple[int, Way]] = set()
        self._used: dict[int, int] = {}  # by menus: how many machines of a fleet, where one was left over

    def consider(self, way: Way) -> None:
        """Take the schedule by a way if it is the best one; one that was made by another way already is not made."""
        if way.before is not None and not are_on_sale(way.before, self.problem):
            return
        if self.is_for_fleets and self.best is not None and isinstance(self.best.way, Fleet):
            return
        if (way.patient and not self.is_patience_of_use) or 0 < MOST_LEFT * way.fleet < self.busy:
            return
        looks = self._looks(way)
        if self.best is not None and self.looks + looks > MOST_LOOKS_OF_ALL:
            return
        self.looks += looks
        bins = self.menus.bins(way.least_cpus, way.by_work)
        if way.before is None:
            like = id(bins), replace(way, least_cpus=0.0, by_work=False)
            if like in self._tried or way.fleet > self._used.get(id(bins), way.fleet):
                return
            self._tried.add(like)
        schedule = self.builder.build(self._terms(way, bins))
        doubt = DOUBT * self.spread * math.log2(max(1.0, self.menus.cpus(way.least_cpus, way.by_work)))
        best = self.best.score if self.best is not None else math.inf
        best_fleet = self._best_fleet[0] if self._best_fleet is not None else math.inf
        # No run ends sooner than planned or costs less: what is not good enough then need not be reckoned with.
        found = self._score(schedule, schedule.ends) + doubt
        if self.ends.runs and found < max(best, best_fleet if way.fleet else -math.inf):
            ends = {run: self.ends.of_run(run, schedule.starts, end) for run, end in schedule.ends.items()}
            found = self._score(schedule, ends, self._more_usd(schedule)) + doubt
        # Also what costs more than can be reckoned is a plan, where there is none yet.
        if self.best is None or found < best - 1e-12:
            self.best = ChosenSchedule(schedule, replace(way, before=None), found, goes_on=way.before is not None)
        if way.fleet and way.before is None:
            if len(schedule.fleet) < way.fleet:
                self._used[id(bins)] = len(schedule.fleet)
            if found < best_fleet - 1e-12:
                self._best_fleet = found, way

    def consider_fleets(self, fleets: Sequence[Fleet] | None = None) -> None:
        """Take the schedule by a fleet if it is the best one.

        :param fleets: these are tried; None: of each type a few sizes, and more beside the best one
        """
        if fleets is not None and not fleets:
            return
        trial = FleetTrial(self, FleetWork(self.builder, self.problem, self.builder.pause))
        trial.run(fleets)
        if trial.best is not None:
            score, fleet = trial.best
            if self.best is None or score < self.best.score:
                self.best = ChosenSchedule(trial.made(fleet, keeps=True).schedule(), fleet, score)

    def _looks(self, way: Way) -> int:
        """How many looks at machines a schedule takes, about."""
        steps = len(self.forecast.steps)
        if way.before is not None and not way.fleet:
            return steps
        machines = 1 if self.best is None else len(self.best.schedule.machines)
        return steps * (max(machines, len(self.builder.locations)) + steps // STEPS_PER_LOOK)

    def ways_beside_fleets(self) -> list[Way]:
        """Ways by cost on machines like those of the best fleet, and on the smallest."""
        best = self.best.way if self.best is not None else LAST_RESORT
        cpus = best.bin.type.capacity.cpus if isinstance(best, Fleet) else best.least_cpus
        machines = len(self.best.schedule.machines) if self.best is not None else 1
        menus = [*dict.fromkeys(((cpus, False), (0.0, False), (cpus, True), (2 * cpus, False)))]
        fleets = [
            Way(*menu, fleet=size)
            for menu in menus[:2]
            for size in sorted({machines, machines - 1, machines + 1, machines // 2})
            if size > 0
        ]
        by_cost = [
            Way(*menu, stretch, worth, patient)
            for menu in menus
            for stretch in (*STRETCHES, *LONG_STRETCHES)
            for worth in WORTHS
            for patient in (False, True)
        ]
        ways = fleets + by_cost
        looks = max(1, self._looks(LAST_RESORT))
        most = max(LEAST_WAYS if looks < MOST_LOOKS else 0, MOST_LOOKS // looks)
        return ways if len(ways) <= most else ways[:: math.ceil(len(ways) / most)] if most else []

    def _more_usd(self, schedule: Schedule) -> float:
        """USD that machines cost beyond what is planned, since the last of their steps probably ends later."""
        more = 0.0
        for machine in schedule.machines:
            if machine.steps:
                planned = machine.timeline.busy[-1][1]
                end = self.ends.of_machine(machine.steps, schedule.starts, planned)
                more += (end - planned) * machine.timeline.usd_per_second
        return more

    def _score(self, schedule: Schedule, ends: Mapping[str | None, float], more_usd: float = 0.0) -> float:
        return self.score(schedule.usd + more_usd, ends)

    def score(self, usd: float, ends: Mapping[str | None, float]) -> float:
        """How good it is to pay so much from now on and to have runs end then; the least is the best."""
        return score(self.spent + usd, ends, self.forecast, self.least, self.hurries, self.now)

    def _terms(self, way: Way, bins: Mapping[str, Bin | None]) -> ScheduleTerms:
        deadlines = {}
        for run, seconds in self.soonest_critical.items():
            wait = self.waits[run] if way.patient or not self.are_there_any else 0.0
            latest = max(self.soonest[run], self.forecast.finish_by.get(run or "", math.inf))
            deadlines[run] = min(self.now + wait + seconds * way.stretch, latest)
        worth = {run: usd * way.worth for run, usd in self.worth.items()}
        return ScheduleTerms(deadlines, worth, bins, way.fleet, way.before)


class FleetTrial:
    """The fleets that are tried, and which of them is the best."""

    def __init__(self, search: Search, work: FleetWork) -> None:
        self.search, self.work = search, work
        self.best: tuple[float, Fleet] | None = None
        self.menus: dict[int, Sequence[Bin | None]] = {}
        self.bounds: dict[int, Callable[[float], float]] = {}
        self.todo: list[tuple[float, int, Fleet]] = []
        self.late: list[tuple[float, int, Fleet]] = []
        self.peak: float | None = None
        self.tried: dict[int, set[int]] = {}
        self.events = self.runs = 0
        most = next((number for steps_at_most, number in CASES if len(work.names) <= steps_at_most), 0)
        self.cases = draws(work, search.medians, most) if most else []
        builder, steps = search.builder, search.forecast.steps
        self.critical = longest_of_runs(search.forecast, builder.rests)
        is_idle = any(step.elsewhere or step.begun is not None for step in steps.values())
        self.boot = 0.0 if builder.locations or is_idle else min([search.boot, *builder.boots.values()])
        self.sums = [[0.0] * 4 for _ in work.classes]
        for number, its_class in enumerate(work.class_of):
            for i, amount in enumerate(work.classes[its_class].need):
                self.sums[its_class][i] += amount * work.seconds[number]

    def add(self, offer: Bin) -> None:
        """Try fleets of a type, too."""
        search, builder = self.search, self.search.builder
        menu = self.menus[id(offer)] = self.work.menu(offer)
        by_bin: dict[int, tuple[Bin, list[float]]] = {}
        for number, its in enumerate(menu):
            if its is not None:
                _, sums = by_bin.setdefault(id(its), (its, [0.0] * 4))
                for i in range(4):
                    sums[i] += self.sums[number][i]
        volumes = {
            key: max(sums[i] / its.capacity[i] for i in range(4) if its.capacity[i])
            for key, (its, sums) in by_bin.items()
        }
        usd = 0.0 if builder.locations else sum(volumes[key] * its.price / 3600 for key, (its, _) in by_bin.items())
        is_alone = len(by_bin) == 1 and not builder.locations
        boot = min(builder.boot_of(offer.type.name), builder.most_boot_paid)

        def bound(size: float) -> float:
            ends = {run: search.now + self.boot + seconds for run, seconds in self.critical.items()}
            if is_alone and len(ends) == 1 and size < math.inf:
                ends = {run: max(end, search.now + self.boot + volumes[id(offer)] / size) for run, end in ends.items()}
            boots = boot * offer.price / 3600 * (size if is_alone and size < math.inf else 0.0)
            return search.score(usd + boots, ends)

        self.bounds[id(offer)] = bound
        if self.best is not None and bound(math.inf) >= self.best[0]:
            return
        if self.peak is None:
            # As many machines as it takes for all to begin at once.
            self.peak = len(self.try_one(Fleet(offer))) * offer.capacity[0]
        most = max(1, math.ceil(self.peak / max(1, offer.capacity[0])))
        numbers = sorted({*FEW_SIZES, *(most // 2**each for each in range(12))})
        self.tried[id(offer)] = {each for each in numbers if 1 <= each < most} | {most}
        fleets = [Fleet(offer, each) for each in numbers if 1 <= each < most] + [Fleet(offer)]
        self.todo += [(bound(each.size), len(self.todo) + number, each) for number, each in enumerate(fleets)]
        late = [Fleet(offer, stretch=each) for each in (*STRETCHES, *LONG_STRETCHES)]
        self.late += [(bound(math.inf), len(self.late) + number, each) for number, each in enumerate(late)]

    def run(self, fleets: Sequence[Fleet] | None) -> None:
        """Try fleets, those first that may be the best ones; see :meth:`Search.consider_fleets`."""
        if fleets is not None:
            on_sale = {(each.type.name, each.offering.capacity_type): each for each in self.work.problem.bins}
            for fleet in fleets:
                if (its := on_sale.get((fleet.bin.type.name, fleet.bin.offering.capacity_type))) is not None:
                    self.menus[id(its)] = self.work.menu(its)
                    self.try_one(replace(fleet, bin=its))
            return
        for offer in offers(self.work, MOST_CPUS):
            self.add(offer)
        self._try_some(self.todo)
        while self.best is not None and self.best[1].size < math.inf:
            fleet = self.best[1]
            tried = self.tried[id(fleet.bin)]
            between = sizes_between(int(fleet.size), tried)
            tried.update(between)
            if not between:
                break
            for size in between:
                if self.bounds[id(fleet.bin)](size) < self.best[0]:
                    self.try_one(replace(fleet, size=size))
        self._try_some(self.late)

    def _try_some(self, fleets: Sequence[tuple[float, int, Fleet]]) -> None:
        for bound, _, fleet in sorted(fleets, key=lambda each: each[:2]):
            if self._is_enough() or (self.best is not None and bound >= self.best[0]):
                break
            self.try_one(fleet)

    def _is_enough(self) -> bool:
        return self.events > MOST_EVENTS and self.runs >= LEAST_FLEETS

    def made(self, fleet: Fleet, draw: Draw | None = None, *, keeps: bool = False) -> FleetRun:
        deadlines = {
            run: self.search.now + self.search.waits[run] + seconds * fleet.stretch
            for run, seconds in self.critical.items()
            if fleet.stretch
        }
        return FleetRun(self.work, fleet, self.menus[id(fleet.bin)], deadlines, draw, keeps=keeps)

    def try_one(self, fleet: Fleet) -> list[FleetMachine]:
        runs = [self.made(fleet, case) for case in self.cases or (None,)]
        self.events += sum(each.count + len(each.machines) for each in runs)
        self.runs += 1
        found = NOT_WHOLE
        if all(each.is_whole for each in runs):
            found = math.fsum(self.search.score(each.usd, each.ends) for each in runs) / len(runs)
        if self.best is None or found < self.best[0] - 1e-12:
            self.best = found, fleet
        return max((each.machines for each in runs), key=len)


def sizes_between(size: int, tried: Collection[int]) -> list[int]:
    """Sizes of a fleet half-way from the best one to the next smaller and larger ones that were tried."""
    smaller = max((each for each in tried if each < size), default=0)
    larger = min((each for each in tried if each > size), default=2 * size)
    return [each for each in ((smaller + size) // 2, (size + larger) // 2) if smaller < each < larger and each != size]


def longest_of_runs(forecast: Forecast, rests: Mapping[str, float]) -> dict[str | None, float]:
    """The seconds of the longest rest of each run."""
    longest: dict[str | None, float] = {}
    for name, step in forecast.steps.items():
        longest[step.job.run] = max(rests[name], longest.get(step.job.run, LEAST_SECONDS))
    return longest


def are_on_sale(before: Mapping[str, PlannedStart], problem: Problem) -> bool:
    """Whether all can still be launched that was to be."""
    planned = {id(its.bin): its.bin for its in before.values() if its.bin is not None}
    return all(each in problem.bins for each in planned.values())


def expected_ends(schedule: Schedule, forecast: Forecast) -> dict[str, float]:
    """When each run is expected to end by a schedule, see :class:`ChosenSchedule`."""
    ends: dict[str, float] = {}
    for name, step in forecast.steps.items():
        if (run := step.job.run) is not None:
            ends[run] = max(ends.get(run, 0.0), schedule.until.get(name, math.inf) + step.rest)
    return {run: end for run, end in ends.items() if end < math.inf}


class Menus:
    """What each step would be launched on, by the terms of :class:`Way`.

    :param problem: what can be launched
    """

    def __init__(self, forecast: Forecast, problem: Problem, builder: Builder) -> None:
        self.forecast, self.problem, self.builder = forecast, problem, builder
        self._known: dict[tuple[float, bool], Mapping[str, Bin | None]] = {}
        self._cpus: dict[float, float] = {}
        self._able: dict[object, list[Bin]] = {}
        self._usd: dict[int, float] = {}
        # Amounts times seconds; seconds of the steps of equal needs; seconds of the longest one.
        self._work, self._alike, self._longest = [0.0, 0.0, 0.0, 0.0], dict[Vector, float](), 0.0
        for name, step in forecast.steps.items():
            left, need = step.left(builder.now), builder.needs[name]
            self._longest = max(self._longest, left)
            if not step.elsewhere:
                self._alike[need] = self._alike.get(need, 0.0) + left
            for i, amount in enumerate(need):
                self._work[i] += amount * left

    def bins(self, least_cpus: float, by_work: bool = False) -> Mapping[str, Bin | None]:
        """What each step is launched on: the cheapest with so many cpus at least, or the cheapest at all; None: it fits
        nothing."""
        if (least_cpus, by_work) not in self._known:
            found: dict[str, Bin | None] = {}
            of_equal: dict[object, Bin | None] = {}
            for name, step in self.forecast.steps.items():
                if step.elsewhere:
                    found[name] = None
                    continue
                key = self.builder.needs[name], step.job.wish
                if key not in of_equal:
                    able = self._that_hold(*key)
                    larger = [each for each in able if each.type.capacity.cpus >= least_cpus] or able[:1]
                    of_equal[key] = (
                        min(larger, key=self._usd_of_all) if by_work and larger else next(iter(larger), None)
                    )
                found[name] = of_equal[key]
            # What is the same by other terms is the same object.
            same = (each for each in self._known.values() if each == found)
            self._known[least_cpus, by_work] = next(same, found)
        return self._known[least_cpus, by_work]

    def cpus(self, least_cpus: float, by_work: bool = False) -> float:
        """How many cpus new machines have where that is more than it takes; 0: they have no more anywhere."""
        if not by_work:
            return least_cpus
        if least_cpus not in self._cpus:
            pairs = zip(self.bins(0.0).values(), self.bins(least_cpus, by_work).values(), strict=True)
            both = ((small.type.capacity.cpus, its.type.capacity.cpus) for small, its in pairs if small and its)
            self._cpus[least_cpus] = max((cpus for least, cpus in both if cpus > least), default=0.0)
        return max(least_cpus, self._cpus[least_cpus])

    def _that_hold(self, need: Vector, wish: Wish) -> list[Bin]:
        """What can be launched for a step, the cheapest first."""
        key = need, wish
        if key not in self._able:
            self._able[key] = [each for each in self.problem.bins_granting(wish).bins if fits(need, each.capacity)]
        return self._able[key]

    def _usd_of_all(self, candidate: Bin) -> float:
        """What all the work costs on it: between what it would cost if machines could be cut into fractions, and if
        each held steps of equal needs alone. A memory of which a step takes a bit more than half holds one of them.

        The first one is there for a boot and the longest step: else the largest would always cost the least, whose
        volume is as large as that of a small one.
        """
        if (known := self._usd.get(id(candidate))) is not None:
            return known
        capacity = candidate.capacity
        shares = (w / have if have else math.inf for w, have in zip(self._work, capacity, strict=True) if w)
        whole = 0.0
        for need, seconds in self._alike.items():
            at_once = min((have // amount for have, amount in zip(capacity, need, strict=True) if amount), default=1)
            whole += seconds / max(1, at_once)
        boot = min(self.builder.boot_of(candidate.type.name), self.builder.most_boot_paid)
        first = boot + self._longest
        usd = candidate.price * (max(first, 0.0, *shares) + max(first, whole))
        self._usd[id(candidate)] = usd
        return usd


def least_usd(forecast: Forecast, menus: Menus, builder: Builder) -> dict[str | None, float]:
    """USD of what each run has to do, by the share of the cheapest machine that each step takes."""
    usd_by_run: dict[str | None, float] = {}
    bins = menus.bins(0.0)
    for name, step in forecast.steps.items():
        usd = 1e-9
        if (it := bins[name]) is not None:
            need = builder.needs[name]
            share = max(need[i] / it.capacity[i] for i in range(4) if it.capacity[i])
            usd = max(usd, share * it.price / 3600 * step.left(builder.now))
        usd_by_run[step.job.run] = usd_by_run.get(step.job.run, 0.0) + usd
    return usd_by_run


def score(
    usd: float,
    ends: Mapping[str | None, float],
    forecast: Forecast,
    least: Mapping[str | None, float],
    hurries: Mapping[str | None, float],
    now: float,
) -> float:
    """The logarithm of USD times the lengths of runs to the power of their ``hurry``, each by its part of the work.

    It is more where a run ends later than it shall.
    """
    whole = sum(least.values())
    length = 0.0
    for run, end in ends.items():
        begun = forecast.began.get(run or "", now)
        seconds = max(1.0, end - begun)
        length += hurries[run] * least[run] / whole * math.log(seconds)
        if (until := forecast.finish_by.get(run or "", math.inf)) < end:
            length += OVERDUE_COUNTS * math.log(seconds / max(1.0, until - begun))
    return math.log(max(1e-9, usd)) + length


def nearby(way: Way | Fleet, machines: int) -> tuple[Way | Fleet, ...]:
    """A way or a fleet, and those beside it that are tried as long as nothing but time has passed.

    The same on the smallest machines is among them: what large ones were good for may be over.

    :param machines: how many there are by the last schedule
    """
    sizes = [each for each in (machines, machines - 1, machines + 1, machines // 2, 2 * machines) if each > 0]
    fleets: list[Fleet] = []
    if isinstance(way, Fleet):
        fleets = [way, *(Fleet(way.bin, each) for each in sizes), *(Fleet(way.bin, stretch=each) for each in STRETCHES)]
        way = Way(way.bin.type.capacity.cpus)
    its = replace(way, patient=False, fleet=0)
    stretched = [replace(its, stretch=each) for each in STRETCHES]
    smallest = replace(its, least_cpus=0.0, by_work=False)
    numbers = sorted({way.fleet, way.fleet - 1, way.fleet + 1, way.fleet // 2}) if way.fleet else ()
    more = [Way(way.least_cpus, way.by_work, fleet=size) for size in numbers if size > 0]
    some = replace(way, patient=False), *stretched, smallest, *more, replace(its, patient=True)
    return (*dict.fromkeys(fleets), *dict.fromkeys(some))
