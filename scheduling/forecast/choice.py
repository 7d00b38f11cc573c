"""Which schedule is taken: of several that are made by different terms the best trade of money for time. Pure.

``hurry`` says what time is worth: a schedule is the better one whose USD times the length of each run to the power of
``hurry`` is less. At 1, ten per cent longer for ten per cent less is a draw; at 0 only money counts. Each run may have
a ``hurry`` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.schedule import Builder, PlannedStart, Schedule, ScheduleTerms
from lading.scheduling.location import Location
from lading.scheduling.packing.problem import Bin, Problem, fits

# A run should end after its critical path times one of these; the longer ones where money counts more than time.
STRETCHES = (1.0, 1.02, 1.05)
LONG_STRETCHES = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, math.inf)
# A second beyond is worth so many times what it is worth by ``hurry``: insertion sees one step at a time.
WORTHS = (1.0, 100.0)
# At a hurry of 1 what a run ends later than by this part counts as so many times as late.
LATE, LATE_COUNTS = 0.04, 20.0
# Which part of those that run as long as a step until now has ended when it is reckoned to end early.
EARLY = 0.25
# By what a run takes longer than until it shall have ended counts as so many times as long.
OVERDUE_COUNTS = 100.0
# No run takes less than this, seconds.
LEAST_SECONDS = 0.1
# Larger machines than needed pay by steps to come; each doubling counts as so much dearer as lengths are uncertain.
DOUBT = 0.05
# How many machines a run is given on which its steps begin as soon as they can, instead of where they cost the least.
FLEETS = (1, 2, 3, 4, 5, 6, 8, 10, 12)
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
    """

    schedule: Schedule
    way: Way
    score: float
    ends: Mapping[str, float] = field(default_factory=dict)


def choose(
    forecast: Forecast,
    locations: Sequence[Location],
    problem: Problem,
    *,
    boot: float,
    boots: Mapping[str, float] = {},
    hurry: float = 1.0,
    spent: float = 0.0,
    ways: Sequence[Way] = (),
    now: float,
    pause: Callable[[], None] = lambda: None,
    most_boot_paid: float = math.inf,
) -> ChosenSchedule:
    """The best schedule of those by all ways.

    :param problem: what can be launched
    :param boot: seconds from a launch to the first job; ``boots``: the same of instance types that take other ones
    :param hurry: what time is worth to runs to which the forecast says nothing else
    :param spent: USD that the live runs have cost until now
    :param ways: only these are tried; none: all
    :param now: epoch seconds
    :param pause: called again and again; other threads may want to run
    :param most_boot_paid: of a boot so many seconds cost money at most
    """
    forecast = forecast.by_those_at_work(now)
    builder = Builder(forecast, locations, boot, problem.limits.instances, now, pause, boots, most_boot_paid)
    critical = longest_of_runs(forecast, builder.rests)
    # What is at work may end sooner than expected, and nothing else should have waited by then as if it did not.
    soonest_critical = longest_of_runs(forecast, forecast.rests(now, EARLY))
    hurries = {run: forecast.hurries.get(run or "", hurry) for run in critical}
    least = least_usd(forecast, problem, builder)
    worth = {run: max(hurries[run], 0.01) * least[run] / seconds for run, seconds in critical.items()}
    # A run may take one boot, also where it could begin on what others have: room may come free by then.
    boots_until = {run: forecast.began.get(run or "", now) + boot if locations else now + boot for run in critical}
    waits = {run: max(0.0, until - now) for run, until in boots_until.items()}
    soonest = {run: now + waits[run] + seconds for run, seconds in critical.items()}
    is_patience_of_use = bool(locations) and any(waits.values())
    spread = math.fsum(each.spread for each in forecast.steps.values()) / max(1, len(forecast.steps))
    busy = len({step.location for step in forecast.steps.values() if step.begun is not None})
    menus: dict[tuple[float, bool], Mapping[str, Bin | None]] = {}
    best: ChosenSchedule | None = None
    # The last one is for where none of the others can be: what they go by is not on sale any more.
    for way in (*(ways or all_ways(problem, min(hurries.values(), default=hurry))), LAST_RESORT):
        if way is LAST_RESORT and best is not None:
            break
        menu = way.least_cpus, way.by_work
        if menu not in menus:
            menus[menu] = launchable(forecast, problem, builder, *menu)
        if way.by_work and menus[menu] == menus.get((way.least_cpus, False)):
            continue
        if way.before is not None and not are_on_sale(way.before, problem):
            continue
        if (way.patient and not is_patience_of_use) or 0 < MOST_LEFT * way.fleet < busy:
            continue
        terms = ScheduleTerms(
            {
                run: min(
                    now + (waits[run] if way.patient or not locations else 0.0) + seconds * way.stretch,
                    max(soonest[run], forecast.finish_by.get(run or "", math.inf)),
                )
                for run, seconds in soonest_critical.items()
            },
            {run: usd * way.worth for run, usd in worth.items()},
            menus[menu],
            way.fleet,
            way.before,
        )
        schedule = builder.build(terms)
        found = score(schedule, forecast, soonest, least, hurries, spent, boot, now)
        found += DOUBT * spread * math.log2(max(1.0, way.least_cpus))
        if best is None or found < best.score - 1e-12:
            best = ChosenSchedule(schedule, replace(way, before=None), found)
    assert best is not None
    return replace(best, ends=expected_ends(best.schedule, forecast))


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


def all_ways(problem: Problem, hurry: float) -> list[Way]:
    sizes = sorted({each.type.capacity.cpus for each in problem.bins if each.type.capacity.cpus <= 64})
    stretches = STRETCHES if hurry >= 1 else STRETCHES + LONG_STRETCHES
    menus = [(least, by_work) for least in (0.0, *sizes[1:]) for by_work in (False, True)]
    by_cost = [
        Way(*menu, stretch, worth, patient)
        for menu in menus
        for patient in (False, True)
        for worth in WORTHS
        for stretch in stretches
    ]
    return by_cost + [Way(*menu, fleet=size) for menu in menus for size in FLEETS]


def launchable(
    forecast: Forecast, problem: Problem, builder: Builder, least_cpus: float, by_work: bool = False
) -> dict[str, Bin | None]:
    """What each step would be launched on: the cheapest with so many cpus at least, or the cheapest at all."""
    bins: dict[str, Bin | None] = {}
    work, longest = [0.0, 0.0, 0.0, 0.0], 0.0
    for name, step in forecast.steps.items():
        longest = max(longest, step.left(builder.now))
        for i, amount in enumerate(builder.needs[name]):
            work[i] += amount * step.left(builder.now)

    def usd(candidate: Bin) -> float:
        """What all the work costs on it, as if machines could be cut into fractions, but for the first one, which is
        there for a boot and the longest step: else the largest would always cost the least, whose volume is as large
        as that of a small one."""
        shares = (w / have if have else math.inf for w, have in zip(work, candidate.capacity, strict=True) if w)
        boot = min(builder.boot_of(candidate.type.name), builder.most_boot_paid)
        return candidate.price * max(boot + longest, 0.0, *shares)

    known: dict[object, Bin | None] = {}
    for name, step in forecast.steps.items():
        if step.elsewhere:
            bins[name] = None
            continue
        key = builder.needs[name], step.job.wish
        if key not in known:
            large = [each for each in problem.bins_granting(step.job.wish).bins if fits(key[0], each.capacity)]
            larger = [each for each in large if each.type.capacity.cpus >= least_cpus] or large[:1]
            known[key] = min(larger, key=usd) if by_work and larger else next(iter(larger), None)
        bins[name] = known[key]
    return bins


def least_usd(forecast: Forecast, problem: Problem, builder: Builder) -> dict[str | None, float]:
    """USD of what each run has to do, by the share of the cheapest machine that each step takes."""
    usd_by_run: dict[str | None, float] = {}
    bins = launchable(forecast, problem, builder, 0.0)
    for name, step in forecast.steps.items():
        usd = 1e-9
        if (it := bins[name]) is not None:
            need = builder.needs[name]
            share = max(need[i] / it.capacity[i] for i in range(4) if it.capacity[i])
            usd = max(usd, share * it.price / 3600 * step.left(builder.now))
        usd_by_run[step.job.run] = usd_by_run.get(step.job.run, 0.0) + usd
    return usd_by_run


def score(
    schedule: Schedule,
    forecast: Forecast,
    soonest_ends: Mapping[str | None, float],
    least: Mapping[str | None, float],
    hurries: Mapping[str | None, float],
    spent: float,
    boot: float,
    now: float,
) -> float:
    """The logarithm of USD times the lengths of runs to the power of their ``hurry``, each by its part of the work.

    It is more where a run ends later than it shall.
    """
    whole = sum(least.values())
    length = 0.0
    for run, end in schedule.ends.items():
        begun = forecast.began.get(run or "", now)
        seconds, soonest = max(1.0, end - begun), max(1.0, soonest_ends[run] - begun)
        late = seconds / (soonest + LATE / max(hurries[run], 1e-9) * max(1.0, soonest - boot))
        worth = math.log(seconds) + LATE_COUNTS * math.log(max(1.0, late))
        length += hurries[run] * least[run] / whole * worth
        if (until := forecast.finish_by.get(run or "", math.inf)) < end:
            length += OVERDUE_COUNTS * math.log(seconds / max(1.0, until - begun))
    return math.log(max(1e-9, spent + schedule.usd)) + length


def nearby(way: Way) -> tuple[Way, ...]:
    """A way, and those beside it that are tried as long as nothing but time has passed.

    The same on the smallest machines is among them: what large ones were good for may be over.
    """
    its = replace(way, patient=False, fleet=0)
    stretched = [replace(its, stretch=each) for each in STRETCHES]
    sizes = {way.fleet, way.fleet - 1, way.fleet + 1, way.fleet // 2} if way.fleet else ()
    fleets = [Way(way.least_cpus, way.by_work, fleet=size) for size in sorted(sizes) if size > 0]
    smallest = replace(its, least_cpus=0.0, by_work=False)
    return tuple(
        dict.fromkeys((replace(way, patient=False), *stretched, smallest, *fleets, replace(its, patient=True)))
    )
