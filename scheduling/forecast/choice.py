"""The choice of a fleet: of all candidates, the one with the best trade-off between money and time. Pure.

``hurry`` is the value of time. A fleet is better if its USD times the length of each run to the power of ``hurry`` is
smaller. At 1, ten per cent more time for ten per cent less money is a draw; at 0 only money counts. Each run can have
its own ``hurry``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling.forecast.fleet_work import Fleet, FleetWork, StepClass, offers
from lading.scheduling.forecast.fleets import FleetRun, Reach
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.packing.problem import Bin, Problem

# Another machine is launched only for a step without which its run would take longer than its critical path times one
# of these. The long stretches are not tried near the last fleet.
STRETCHES = (1.0, 1.02, 1.05)
LONG_STRETCHES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, math.inf)
# The largest machines of fleets, in cpus, and the numbers of machines that are tried for each instance type, besides
# fractions of the number that starts all steps at once.
MOST_CPUS = 64
FEW_SIZES = (1, 2, 3, 4, 6, 8)
# Fleets of several types: each step gets the cheapest type for itself, with these stretches, or for several steps like
# it.
MIXED = (
    *(Fleet(None, stretch=each) for each in (0.0, 1.0, 1.05, 1.25)),
    *(Fleet(None, copies=each) for each in (2, 4, 8)),
)
# The search ends after this many simulated events, but not before this many fleets.
MOST_EVENTS, LEAST_FLEETS = 25_000, 8
# A fleet replaces the current one only if its score, a logarithm, is lower by this. A smaller difference is within the
# error of so few cases, and machines would be released and launched again in turn.
LEAST_GAIN = 0.01
# A fleet is not simulated in further cases once it is worse than the best by this many standard errors, where the first
# case counts with this error (Maron and Moore, "Hoeffding races", Advances in Neural Information Processing Systems 6,
# 1994).
HOPELESS, ERROR_OF_ONE_CASE = 2.0, 0.05
# The score of a fleet without a place for some step that could have one.
NOT_WHOLE = 1e9
# The weight of the time by which a run misses its ``finish_by``.
OVERDUE_COUNTS = 100.0


def choose(
    work: FleetWork,
    hurry: float = 1.0,
    spent: float = 0.0,
    fleets: Sequence[Fleet] = (),
    pause: Callable[[], None] = lambda: None,
) -> Fleet | None:
    """Return the best fleet, or None if no launch helps any step.

    :param work: the work with mean lengths
    :param hurry: the value of time for runs whose ``hurry`` the forecast does not set
    :param spent: USD that the live runs have cost so far
    :param fleets: only these are tried, if they are on sale, the current one first; if empty, a few sizes of each
        instance type, and more sizes near the best one
    :param pause: called regularly, so that other threads can run
    """
    candidates = [its for fleet in fleets if (its := on_sale(fleet, work.problem)) is not None]
    if not work.names:
        return next(iter(candidates), None)  # nothing is left to start, so all fleets are equal
    search = FleetSearch(work, hurry, spent, pause)
    for fleet in candidates:
        search.try_one(fleet, LEAST_GAIN)
    if search.best is None:
        search.try_all()
    return None if search.best is None else search.best[1]


def on_sale(fleet: Fleet, problem: Problem) -> Fleet | None:
    """The same fleet with what is on sale now, at current prices; None if its instance type is not."""
    its_bin = fleet.bin
    if its_bin is None:
        return fleet if problem.bins else None

    def kind(each: Bin) -> tuple[str, str, str | None]:
        return each.type.name, each.offering.capacity_type, each.offering.zone

    alike = [each for each in problem.bins if kind(each)[:2] == kind(its_bin)[:2]]
    its = next((each for each in alike if kind(each) == kind(its_bin)), next(iter(alike), None))
    return None if its is None else replace(fleet, bin=its)


@dataclass(frozen=True, slots=True)
class TriedFleet:
    """A fleet that was simulated in all cases.

    :param events: the simulated events
    :param machines: how many machines it has in the case that needs most of them
    :param reaches: of its cases
    """

    fleet: Fleet
    events: int
    machines: int
    reaches: Sequence[Reach]


class FleetSearch:
    """The search for the best fleet; see :func:`choose`.

    :ivar best: (score, fleet); None until one has been tried
    """

    def __init__(self, work: FleetWork, hurry: float, spent: float, pause: Callable[[], None]) -> None:
        self.work, self.spent, self.pause = work, spent, pause
        self.best: tuple[float, Fleet] | None = None
        self.best_scores: Sequence[float] = ()
        """Of the best fleet in each case."""
        steps = work.forecast.steps
        self.hurries = {run: work.forecast.hurries.get(run or "", hurry) for run in work.critical}
        self.least = least_usd(work)
        self.bounds: dict[int, Callable[[float], float]] = {}
        self.todo: list[tuple[float, int, Fleet]] = []
        self.late: list[tuple[float, int, Fleet]] = []
        self.peak: float | None = None
        self.tried: dict[int, set[int]] = {}
        self.simulated: list[TriedFleet] = []
        self.is_limited = False
        self.are_alone = all(number == 1 for number in Counter(step.job.run for step in steps.values()).values())
        self.events = self.runs = 0
        is_idle = any(step.elsewhere or step.begun is not None for step in steps.values())
        self.boot = 0.0 if work.locations or is_idle else min([work.boot, *work.boots.values()])
        self.sums = [[0.0] * 4 for _ in work.classes]
        for number, its_class in enumerate(work.class_of):
            for i, amount in enumerate(work.classes[its_class].need):
                self.sums[its_class][i] += amount * work.seconds[number]

    def score(self, usd: float, ends: Mapping[str | None, float]) -> float:
        """The score of paying this much from now on and of runs that end at these times; the lowest is best."""
        return score(self.spent + usd, ends, self.work.forecast, self.least, self.hurries, self.work.now)

    def add(self, offer: Bin) -> None:
        work = self.work
        menu = work.menu(Fleet(offer))
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
        usd = 0.0 if work.locations else sum(volumes[key] * its.price / 3600 for key, (its, _) in by_bin.items())
        is_alone = len(by_bin) == 1 and not work.locations
        boot = min(work.boot_of(offer.type.name), work.most_boot_paid)

        def bound(size: float) -> float:
            ends = {run: work.now + self.boot + seconds for run, seconds in work.critical.items()}
            if is_alone and len(ends) == 1 and size < math.inf:
                ends = {run: max(end, work.now + self.boot + volumes[id(offer)] / size) for run, end in ends.items()}
            boots = boot * offer.price / 3600 * (size if is_alone and size < math.inf else 0.0)
            return self.score(usd + boots, ends)

        self.bounds[id(offer)] = bound
        if self.best is not None and bound(math.inf) >= self.best[0]:
            return
        if self.peak is None:
            # The number of machines that lets all steps start at once.
            self.peak = self.try_one(Fleet(offer)) * offer.capacity[0]
        most = max(1, math.ceil(self.peak / max(1, offer.capacity[0])))
        numbers = sorted({*FEW_SIZES, *(most // 2**each for each in range(12))})
        self.tried[id(offer)] = {each for each in numbers if 1 <= each < most} | {most}
        fleets = [Fleet(offer, each) for each in numbers if 1 <= each < most] + [Fleet(offer)]
        self.todo += [(bound(each.size), len(self.todo) + number, each) for number, each in enumerate(fleets)]
        late = [Fleet(offer, stretch=each) for each in (*STRETCHES, *LONG_STRETCHES)]
        self.late += [(bound(math.inf), len(self.late) + number, each) for number, each in enumerate(late)]

    def try_all(self) -> None:
        """Try fleets of every instance type, the most promising first."""
        some = offers(self.work, MOST_CPUS)
        if self.are_alone:
            # Independent jobs need not finish together: unless limits force them to share machines, no single type is
            # best for all.
            self._try_mixed(some)
            if not self.is_limited:
                return
        for offer in some:
            self.add(offer)
        self._try_some(self.todo)
        while self.best is not None and self.best[1].bin is not None and self.best[1].size < math.inf:
            fleet = self.best[1]
            tried = self.tried[id(fleet.bin)]
            between = sizes_between(int(fleet.size), tried)
            tried.update(between)
            if not between:
                break
            for size in between:
                if self.bounds[id(fleet.bin)](size) < self.best[0]:
                    self.try_one(replace(fleet, size=size))
        if not self.are_alone:
            self._try_mixed(some)
        self._try_some(self.late)

    def _try_mixed(self, some: Sequence[Bin]) -> None:
        for fleet in MIXED if some else ():
            if self.best is None or self.events <= MOST_EVENTS:
                self.try_one(fleet)

    def _try_some(self, fleets: Sequence[tuple[float, int, Fleet]]) -> None:
        for bound, _, fleet in sorted(fleets, key=lambda each: each[:2]):
            if self._is_enough() or (self.best is not None and bound >= self.best[0]):
                break
            self.try_one(fleet)

    def _is_enough(self) -> bool:
        return self.events > MOST_EVENTS and self.runs >= LEAST_FLEETS

    def try_one(self, fleet: Fleet, least_gain: float = 1e-12) -> int:
        """Try a fleet and keep it if it is the best. Returns how many machines it has in the case that needs most.

        :param least_gain: by how much its score must be lower than that of the best one
        """
        its = self._alike(fleet)
        if its is None:
            runs, scores = self._simulate(fleet)
            self.is_limited |= any(each.is_limited for each in runs)
            events = sum(each.count + len(each.machines) for each in runs)
            machines = max(len(each.machines) for each in runs)
            its = TriedFleet(fleet, events, machines, [each.reach for each in runs])
            self.simulated.append(its)
            found = math.fsum(scores) / len(scores) if len(runs) == max(1, len(self.work.cases)) else math.inf
            if self.best is None or found < self.best[0] - least_gain:
                self.best, self.best_scores = (found, fleet), scores
        # The search ends after as many events as if each fleet were simulated.
        self.events += its.events
        self.runs += 1
        return its.machines

    def _simulate(self, fleet: Fleet) -> tuple[list[FleetRun], list[float]]:
        """Simulate a fleet in all cases, or until it is clear that it is not the best. Returns the score of each."""
        runs, scores = list[FleetRun](), list[float]()
        for case in self.work.cases or (None,):
            run = FleetRun(self.work, fleet, case, self.pause)
            runs.append(run)
            scores.append(self.score(run.usd, run.ends) if run.is_whole else NOT_WHOLE)
            if is_hopeless([mine - best for mine, best in zip(scores, self.best_scores, strict=False)]):
                break
        return runs, scores

    def _alike(self, fleet: Fleet) -> TriedFleet | None:
        """A fleet whose simulation has shown that this one would do the same; None: there is none."""
        deadlines = self.work.deadlines(fleet.stretch) if fleet.stretch else None
        for its in self.simulated:
            is_of_kind = its.fleet.bin is fleet.bin and its.fleet.copies == fleet.copies
            if is_of_kind and all(each.covers(fleet.size, deadlines) for each in its.reaches):
                return its
        return None


def is_hopeless(differences: Sequence[float]) -> bool:
    """Whether a fleet will hardly turn out to be better than another one.

    :param differences: by how much its score is higher, in each case so far
    """
    number = len(differences)
    if not number:
        return False
    mean = math.fsum(differences) / number
    squares = math.fsum((each - mean) ** 2 for each in differences)
    return mean > HOPELESS * math.sqrt(squares + ERROR_OF_ONE_CASE**2) / number


def sizes_between(size: int, tried: Collection[int]) -> list[int]:
    """The fleet sizes half-way between ``size`` and the next smaller and larger sizes tried so far."""
    smaller = max((each for each in tried if each < size), default=0)
    larger = min((each for each in tried if each > size), default=2 * size)
    return [each for each in ((smaller + size) // 2, (size + larger) // 2) if smaller < each < larger and each != size]


def least_usd(work: FleetWork) -> dict[str | None, float]:
    """USD of the remaining work of each run, if each step only pays its share of the cheapest machine that suits it."""
    usd_by_run: dict[str | None, float] = {}
    of_class: dict[StepClass, tuple[float, Bin | None]] = {}
    for name, step in work.forecast.steps.items():
        its_class = work.class_by_step[name]
        if its_class not in of_class:
            cheapest = work.cheapest(its_class)
            shares = [] if cheapest is None else zip(its_class.need, cheapest.capacity, strict=True)
            of_class[its_class] = max((need / have for need, have in shares if have), default=0.0), cheapest
        share, cheapest = of_class[its_class]
        usd = 0.0 if cheapest is None else share * cheapest.price / 3600 * work.left.get(name, step.seconds)
        usd_by_run[step.job.run] = usd_by_run.get(step.job.run, 0.0) + max(1e-9, usd)
    return usd_by_run


def score(
    usd: float,
    ends: Mapping[str | None, float],
    forecast: Forecast,
    least: Mapping[str | None, float],
    hurries: Mapping[str | None, float],
    now: float,
) -> float:
    """The logarithm of USD times the lengths of runs to the power of their ``hurry``, weighted by their parts of the
    work.

    Runs that miss their ``finish_by`` add a penalty.
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


def beside(fleet: Fleet, machines: int) -> list[Fleet]:
    """A fleet and its neighbours, which are the only candidates while all new jobs are runs of their own.

    :param machines: the number of machines in the last plan
    """
    if fleet.bin is None:
        return [*dict.fromkeys((fleet, *MIXED))]
    sizes = [each for each in (machines, machines - 1, machines + 1, machines // 2, 2 * machines) if each > 0]
    sized = (Fleet(fleet.bin, each) for each in sizes)
    return [*dict.fromkeys((fleet, *sized, *(Fleet(fleet.bin, stretch=each) for each in STRETCHES)))]
