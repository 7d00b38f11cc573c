"""Allocations by what is to come: for how long they are asked for, which idle ones are kept, which end. Pure.

What live runs still have to do is played forward over the allocations that are there and those that are asked for, by
the longest rest of each run first and each step where it begins soonest. What has room by that sooner than another one
would come out of its queue waits for it. A walltime covers what begins in an allocation by that; and an idle allocation
stays while something is to begin there sooner than another one would come out of its queue. How much is asked for, how
large and how far ahead, a plan says (:mod:`lading.scheduling.provisioning.allocation_plan`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.forecast.fleet_work import FleetWork
from lading.scheduling.forecast.fleets import FleetRun
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import rounded_up
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market, queue_of
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.packing.problem import pose
from lading.scheduling.plan import InstanceLimits, Objective
from lading.scheduling.provisioning.launch import AllocationPlan, Launch
from lading.scheduling.reasons import Reason, because

# From the start of an allocation to that of its jobs it may take so long at least, and as long as it is not known how
# long it takes, seconds.
SECONDS_TO_BEGIN, NOT_MEASURED = 120.0, 900.0
# It may take so many times as long as it has taken at most.
SLOWER = 1.25
# From the end of a job to the start of one that waits for it, Airflow's share included, it may take so long, seconds.
SECONDS_BETWEEN_STEPS = 5.0
# Where the logarithm of a length has at least so large a standard deviation, nothing is known of what comes behind it.
UNKNOWN_SPREAD = 1.0
# Jobs find room in another order than is planned: by any order all is done in less than twice the least time (Graham,
# "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17, 1969).
OTHER_ORDER = 2.0
# What needs something is asked for ahead where the steps before it end by at most this part of the wait sooner or later
# than expected, but for those whose hints say so.
CERTAIN = 0.1
# A walltime is whole minutes, seconds.
MINUTE = 60.0
# So many looks at an allocation for a step are made in one decision: what comes last is left out.
MOST_LOOKS = 10_000


@dataclass(frozen=True, slots=True)
class ComingWork:
    """What is to come at a site of allocations.

    :param forecast: what live runs still have to do there
    :param tokens: the names of its steps by the tokens of the jobs that wait
    :param known: the runs of which it is known what comes after their jobs
    :param foreseen: the allocations in which only jobs of such runs have been
    :param is_blind: whether it is not known of another live run, so that none ends before ``idle_seconds`` have passed
    :param site: its name; ``waits``: for how long allocations have waited in their queues
    :param not_ahead: the runs for which nothing is asked for before their jobs wait, for a budget of theirs is spent
    :param plan: what a plan of all that asks for; None: there is none
    :param begins_in: seconds from the start of an allocation to that of its jobs, at most; None: none was measured
    """

    forecast: Forecast
    tokens: Mapping[str, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    foreseen: frozenset[str] = frozenset()
    is_blind: bool = False
    site: str = ""
    waits: QueueWaits = field(default_factory=QueueWaits)
    begins_in: float | None = None
    not_ahead: frozenset[str] = frozenset()
    plan: AllocationPlan | None = None

    @property
    def margin(self) -> float:
        """By how many seconds a walltime is longer than what its jobs may take."""
        return NOT_MEASURED if self.begins_in is None else max(SECONDS_TO_BEGIN, SLOWER * self.begins_in)

    def wait(self, kind: str, cpus: float, market: Market) -> float:
        """Seconds that an allocation is expected to wait in its queue: as those before it, else by the sites file."""
        known = self.waits.expected(self.site, queue_of(kind), cpus)
        return market.queue_seconds if known is None else known

    def without_launches(self) -> ComingWork:
        """The same a moment later, when what its plan has asked for is there."""
        if self.plan is None or not self.plan.launches:
            return self
        return replace(self, plan=replace(self.plan, launches=()))

    def within_reach(self, locations: int, now: float) -> Forecast:
        """The steps that are looked at."""
        return self.forecast.nearest(max(1, MOST_LOOKS // max(1, locations)), now)


def timed(
    launches: Sequence[Launch], live: Sequence[Location], coming: ComingWork, market: Market, now: float
) -> tuple[Launch, ...]:
    """The launches with walltimes that cover what is to begin in them, none longer than it was.

    Where something else waits than jobs of runs that are known to their end, or lengths are not known, it stays as it
    was. A length is taken for as long as it probably is at most, and an allocation for one that starts at once.

    :param live: what is there or asked for
    """
    if not launches:
        return ()
    forecast = coming.within_reach(len(live) + len(launches), now)
    cautious = at_most(forecast, market)
    asked = [
        Location(f"launch {number}", each.capacity, instance_type=each.kind, ends_at=now + each.seconds - coming.margin)
        for number, each in enumerate(launches)
    ]
    schedule = play(cautious, [*as_played(live, coming, market, now), *asked], now)
    machines = {each.location.name: each for each in schedule.machines if each.location is not None}
    unsure, soonest = after_unknown(forecast), cautious.soonest(now)
    latest = {name: soonest[name] + OTHER_ORDER * (start - soonest[name]) for name, start in schedule.starts.items()}
    found = []
    for launch, location in zip(launches, asked, strict=True):
        wait = coming.wait(launch.kind, launch.capacity.cpus, market)
        seconds, idle = launch.seconds, max(market.idle_seconds, wait)
        steps = served(machines[location.name], schedule, wait)
        if not _are_known(launch, coming):
            found.append(launch)
            continue
        if not _is_unsure(steps, schedule, forecast, unsure):
            seconds = min(seconds, walltime([*steps, *_steps(launch, coming)], latest, forecast, now, coming.margin))
        found.append(replace(launch, seconds=seconds, idle_seconds=idle))
    return tuple(found)


def needed(
    launches: Sequence[Launch], live: Sequence[Location], coming: ComingWork, market: Market, now: float
) -> tuple[tuple[Launch, ...], dict[str, Reason]]:
    """The launches without those whose jobs begin in what is there before a new allocation would come out of its queue.

    :param live: what is there or asked for
    :returns: with what the jobs of the others wait for, by their names
    """
    if not (launches and live):
        return tuple(launches), {}
    forecast = coming.within_reach(len(live), now)
    unsure, cautious = after_unknown(forecast), at_most(forecast, market)
    schedule = play(cautious, as_played(live, coming, market, now), now)
    kept, awaits = [], dict[str, Reason]()
    for launch in launches:
        until = now + coming.wait(launch.kind, launch.capacity.cpus, market)
        steps = {job: coming.tokens.get(job, job) for job in launch.jobs}
        is_in_time = _are_known(launch, coming) and all(
            name not in unsure and schedule.starts.get(name, math.inf) <= until for name in steps.values()
        )
        if not is_in_time:
            kept.append(launch)
            continue
        for job, name in steps.items():
            home = schedule.homes[name].location
            assert home is not None  # nothing is launched in it
            awaits[job] = because("room_soon", location=home.name, seconds=rounded_up(schedule.starts[name] - now))
    return tuple(kept), awaits


def at_most(forecast: Forecast, market: Market) -> Forecast:
    """The same where each step takes as long as it probably does at most."""
    return replace(forecast, steps={name: _at_most(step, market.unlimited) for name, step in forecast.steps.items()})


def is_sure(name: str, step: WorkflowStep, unsure: Collection[str], doubts: Mapping[str, float], wait: float) -> bool:
    """Whether it is certain enough when a step begins for something to be asked for before it has come."""
    return name not in unsure and bool(step.ahead or doubts[name] <= CERTAIN * wait)


def sure_steps(coming: ComingWork, market: Market, now: float) -> frozenset[str]:
    """The steps that are still to come and for which may be asked before they have come."""
    forecast, runs = coming.forecast, coming.known - coming.not_ahead
    unsure, doubts = after_unknown(forecast), doubted(forecast, now)
    come, found = {*coming.tokens.values()}, set()
    for name, step in forecast.steps.items():
        if step.begun is not None or step.elsewhere or name in come or step.job.run not in runs or step.ahead is False:
            continue
        wait = coming.wait(str(step.job.instance_type), step.job.resources.cpus, market)
        if is_sure(name, step, unsure, doubts, wait):
            found.add(name)
    return frozenset(found)


def doubted(forecast: Forecast, now: float) -> dict[str, float]:
    """By how many seconds the steps before each one may end sooner or later than expected."""
    expected, found = as_expected(forecast).steps, dict[str, float]()
    for name in forecast.order:
        before = [each for each in forecast.steps[name].parents if each in forecast.steps]
        doubts = (found[each] + expected[each].left(now) * forecast.steps[each].spread for each in before)
        found[name] = max(doubts, default=0.0)
    return found


def as_expected(forecast: Forecast) -> Forecast:
    """The same where what is at work ends when it should: of what is asked for ahead it is counted by itself how much
    sooner or later that may be."""
    steps = {
        name: replace(step, spread=0.0) if step.begun is not None else step for name, step in forecast.steps.items()
    }
    return replace(forecast, steps=steps)


def walltime(steps: Sequence[str], latest: Mapping[str, float], forecast: Forecast, now: float, margin: float) -> float:
    """Seconds that an allocation needs which begins now, for its steps to begin and reach their limits in it.

    :param latest: when steps begin at the latest, epoch seconds; those that are left out begin at once
    :param margin: seconds until the first of them begins
    """
    ends = (
        max(0.0, latest.get(name, now) - now) + (forecast.steps[name].job.time or 0.0)
        for name in steps
        if name in forecast.steps
    )
    return math.ceil((max(ends, default=0.0) + margin) / MINUTE) * MINUTE


def served(machine: PlannedMachine, schedule: Schedule, most_idle: float) -> list[str]:
    """The steps that begin in an allocation before it has been idle for so long that it ends, in their order.

    :param most_idle: seconds
    """
    found: list[str] = []
    busy_until = machine.since
    for name in sorted(machine.steps, key=lambda name: (schedule.starts[name], name)):
        if schedule.starts[name] - busy_until > most_idle:
            break
        found.append(name)
        busy_until = max(busy_until, schedule.until[name])
    return found


def after_unknown(forecast: Forecast) -> frozenset[str]:
    """The steps of which it is not known when they begin, for the length of one before them is not known."""
    found: set[str] = set()
    for name in forecast.order:
        before = [each for each in forecast.steps[name].parents if each in forecast.steps]
        if any(each in found or forecast.steps[each].spread >= UNKNOWN_SPREAD for each in before):
            found.add(name)
    return frozenset(found)


def _is_unsure(steps: Sequence[str], schedule: Schedule, forecast: Forecast, unsure: Collection[str]) -> bool:
    """Whether it is not known when the last of the steps of an allocation begins there."""
    last = max((schedule.starts[name] for name in steps), default=0.0)
    return any(
        name in unsure or (forecast.steps[name].spread >= UNKNOWN_SPREAD and schedule.starts[name] < last)
        for name in steps
    )


def _are_known(launch: Launch, coming: ComingWork) -> bool:
    """Whether all jobs for which is launched are of runs of which is known what comes after them."""
    steps = _steps(launch, coming)
    return len(steps) == len(launch.jobs) and all(coming.forecast.steps[name].job.run in coming.known for name in steps)


def _steps(launch: Launch, coming: ComingWork) -> list[str]:
    """The steps for which is launched, as far as the jobs have any."""
    names = (coming.tokens.get(job, job) for job in launch.jobs)
    return [name for name in names if name in coming.forecast.steps]


def _at_most(step: WorkflowStep, unlimited: float) -> WorkflowStep:
    """A step that takes as long as it probably does at most.

    :param unlimited: what jobs without a limit of their own say that they take at least
    """
    if not step.seconds:
        return step  # it is the end of others
    seconds, limit = step.seconds * math.exp(step.spread), step.job.time
    if limit is not None and limit != unlimited:
        seconds = max(step.seconds, min(seconds, limit))
    return replace(step, seconds=seconds + SECONDS_BETWEEN_STEPS)


def first_needs(live: Sequence[Location], coming: ComingWork, market: Market, now: float) -> Mapping[str, float]:
    """When the next step that does not run yet begins in each allocation, epoch seconds; those that none needs are left
    out."""
    there = as_played(live, coming, market, now)
    forecast = coming.within_reach(len(there), now)
    schedule = play(forecast, there, now)
    needs = {each.location.name: each.needed(schedule, forecast) for each in schedule.machines if each.location}
    return {name: begin for name, begin in needs.items() if begin < math.inf}


def ended(
    live: Sequence[Location], spare: Collection[str], coming: ComingWork, market: Market, now: float
) -> tuple[dict[str, Reason], frozenset[str]]:
    """The idle allocations that end, each with the reason, and those that are kept for what is to come.

    :param spare: those in which nothing that waits has a place
    """
    idle = [each for each in live if each.name in spare and each.empty and not each.draining]
    if not idle:
        return {}, frozenset()
    needs, ends = first_needs(live, coming, market, now), dict[str, Reason]()
    kept = set()
    number = sum(not each.draining for each in live)
    # Of what lies beyond it is not known which allocations it needs.
    is_cut = len(coming.within_reach(number, now).steps) < len(coming.forecast.steps)
    for each in idle:
        comes_in = needs.get(each.name, math.inf) - now
        if each.booting:
            if comes_in < math.inf:
                kept.add(each.name)
        elif comes_in <= coming.wait(str(each.instance_type), each.capacity.cpus, market):
            kept.add(each.name)
        elif each.name in coming.foreseen and not coming.is_blind and not is_cut:
            is_never = comes_in == math.inf
            ends[each.name] = (
                because("not_needed") if is_never else because("allocation_not_needed_for", seconds=comes_in)
            )
        elif each.idle_since is not None and now - each.idle_since > market.idle_seconds:
            ends[each.name] = because("idle", seconds=now - each.idle_since)
    return ends, frozenset(kept)


def as_played(live: Sequence[Location], coming: ComingWork, market: Market, now: float) -> list[Location]:
    """The allocations that take jobs, or will: one in its queue is expected to wait there for as long as others."""
    found = []
    for each in live:
        if each.draining:
            continue
        wait = coming.wait(str(each.instance_type), each.capacity.cpus, market) if each.booting else 0.0
        ends_at = None if each.ends_at is None else each.ends_at + wait
        found.append(replace(each, usd_per_hour=0.0, ready_at=now + wait if wait else None, ends_at=ends_at))
    return found


def play(forecast: Forecast, locations: Sequence[Location], now: float) -> Schedule:
    """When everything begins if no further allocation is asked for, each step where it begins soonest."""
    problem = pose([], locations, None, InstanceLimits(), Objective(), now, None)
    return FleetRun(FleetWork(forecast, locations, problem, 0.0, now), None).schedule()
