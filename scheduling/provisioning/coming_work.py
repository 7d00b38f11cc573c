"""Allocations and upcoming work: their walltimes, which idle ones are kept, and which end. Pure.

The remaining work of live runs is simulated on the running and requested allocations, each run by its longest rest
first and each step where it can start soonest. A step that finds room there sooner than a new allocation would leave
its queue waits for that room. A walltime covers the steps that start in the allocation in this simulation. An idle
allocation stays if a step will start there sooner than a new allocation would leave its queue. How many allocations are
requested, how large and how far ahead, is decided by a plan (:mod:`lading.scheduling.provisioning.allocation_plan`).
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

# Seconds allowed from the start of an allocation to that of its jobs: at least, and until it has been measured.
SECONDS_TO_BEGIN, NOT_MEASURED = 120.0, 900.0
# Allowed factor over the longest measured time from the start of an allocation to that of its jobs.
SLOWER = 1.25
# Seconds allowed from the end of a job to the start of a job that waits for it, including Airflow's share.
SECONDS_BETWEEN_STEPS = 5.0
# If the logarithm of a length has at least this standard deviation, the starts of later steps count as unknown.
UNKNOWN_SPREAD = 1.0
# Jobs find room in another order than planned; any order takes less than twice the minimum time (Graham, "Bounds on
# multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17, 1969).
OTHER_ORDER = 2.0
# Room for a step is requested ahead if the end of the steps before it is uncertain by at most this fraction of the
# queue wait. A hint of the step overrides this.
CERTAIN = 0.1
# Walltimes are rounded up to whole minutes.
MINUTE = 60.0
# Limit on the pairs of step and allocation examined in one decision; the last steps are left out.
MOST_LOOKS = 10_000


@dataclass(frozen=True, slots=True)
class ComingWork:
    """The upcoming work at a site of allocations.

    :param forecast: what live runs still have to do there
    :param tokens: step names by the tokens of waiting jobs
    :param known: the runs whose later jobs are predicted
    :param foreseen: the allocations in which only jobs of such runs have been
    :param is_blind: whether some live run is not predicted, so that no allocation ends before ``idle_seconds`` have
        passed
    :param site: its name; ``waits``: how long allocations have waited in their queues
    :param not_ahead: the runs for which nothing is requested before their jobs wait, because a budget of theirs is
        spent
    :param plan: what a plan of all this work requests; None: there is none
    :param begins_in: longest measured time from the start of an allocation to that of its jobs, seconds; None: not
        measured
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
        """How many seconds a walltime exceeds the time limits of its jobs."""
        return NOT_MEASURED if self.begins_in is None else max(SECONDS_TO_BEGIN, SLOWER * self.begins_in)

    def wait(self, kind: str, cpus: float, market: Market) -> float:
        """Return the expected queue wait in seconds: measured on earlier allocations, or else from the sites file."""
        known = self.waits.expected(self.site, queue_of(kind), cpus)
        return market.queue_seconds if known is None else known

    def without_launches(self) -> ComingWork:
        """Return the work after its plan's launches have been made."""
        if self.plan is None or not self.plan.launches:
            return self
        return replace(self, plan=replace(self.plan, launches=()))

    def within_reach(self, locations: int, now: float) -> Forecast:
        """Return the steps that are examined, see :data:`MOST_LOOKS`."""
        return self.forecast.nearest(max(1, MOST_LOOKS // max(1, locations)), now)


def timed(
    launches: Sequence[Launch], live: Sequence[Location], coming: ComingWork, market: Market, now: float
) -> tuple[Launch, ...]:
    """Return the launches with walltimes that cover the steps that will start in them; none gets longer.

    A launch keeps its walltime if it includes jobs of runs that are not predicted, or if lengths are unknown. A length
    counts with its probable maximum, and an allocation as if it started at once.

    :param live: running or requested allocations
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
    """Drop the launches whose jobs will start in live allocations before a new one would leave its queue.

    :param live: running or requested allocations
    :returns: also what the jobs of the omitted launches wait for, by job name
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
            assert home is not None  # the simulated schedule launches nothing
            awaits[job] = because("room_soon", location=home.name, seconds=rounded_up(schedule.starts[name] - now))
    return tuple(kept), awaits


def at_most(forecast: Forecast, market: Market) -> Forecast:
    """Return the forecast with the probable maximum length of each step."""
    return replace(forecast, steps={name: _at_most(step, market.unlimited) for name, step in forecast.steps.items()})


def is_sure(name: str, step: WorkflowStep, unsure: Collection[str], doubts: Mapping[str, float], wait: float) -> bool:
    """Return whether the start of a step is certain enough to request room ahead."""
    return name not in unsure and bool(step.ahead or doubts[name] <= CERTAIN * wait)


def sure_steps(coming: ComingWork, market: Market, now: float) -> frozenset[str]:
    """Return the upcoming steps for which room can be requested before their jobs are queued."""
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
    """Return by how many seconds the predecessors of each step can finish earlier or later than expected."""
    expected, found = as_expected(forecast).steps, dict[str, float]()
    for name in forecast.order:
        before = [each for each in forecast.steps[name].parents if each in forecast.steps]
        doubts = (found[each] + expected[each].left(now) * forecast.steps[each].spread for each in before)
        found[name] = max(doubts, default=0.0)
    return found


def as_expected(forecast: Forecast) -> Forecast:
    """Return the forecast in which running steps finish when expected. For requests ahead, the uncertainty of running
    steps is calculated separately.
    """
    steps = {
        name: replace(step, spread=0.0) if step.begun is not None else step for name, step in forecast.steps.items()
    }
    return replace(forecast, steps=steps)


def walltime(steps: Sequence[str], latest: Mapping[str, float], forecast: Forecast, now: float, margin: float) -> float:
    """Return the seconds that an allocation starting now needs until all its steps reach their time limits.

    :param latest: latest starts of steps, epoch seconds; missing ones start at once
    :param margin: seconds until the first of them starts
    """
    ends = (
        max(0.0, latest.get(name, now) - now) + (forecast.steps[name].job.time or 0.0)
        for name in steps
        if name in forecast.steps
    )
    return math.ceil((max(ends, default=0.0) + margin) / MINUTE) * MINUTE


def served(machine: PlannedMachine, schedule: Schedule, most_idle: float) -> list[str]:
    """Return the steps that start in an allocation before it ends for being idle, in their order.

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
    """Return the steps whose start is unknown because the length of a predecessor is unknown."""
    found: set[str] = set()
    for name in forecast.order:
        before = [each for each in forecast.steps[name].parents if each in forecast.steps]
        if any(each in found or forecast.steps[each].spread >= UNKNOWN_SPREAD for each in before):
            found.add(name)
    return frozenset(found)


def _is_unsure(steps: Sequence[str], schedule: Schedule, forecast: Forecast, unsure: Collection[str]) -> bool:
    """Return whether the start of an allocation's last step is unknown."""
    last = max((schedule.starts[name] for name in steps), default=0.0)
    return any(
        name in unsure or (forecast.steps[name].spread >= UNKNOWN_SPREAD and schedule.starts[name] < last)
        for name in steps
    )


def _are_known(launch: Launch, coming: ComingWork) -> bool:
    """Return whether all jobs of a launch belong to runs whose later jobs are predicted."""
    steps = _steps(launch, coming)
    return len(steps) == len(launch.jobs) and all(coming.forecast.steps[name].job.run in coming.known for name in steps)


def _steps(launch: Launch, coming: ComingWork) -> list[str]:
    names = (coming.tokens.get(job, job) for job in launch.jobs)
    return [name for name in names if name in coming.forecast.steps]


def _at_most(step: WorkflowStep, unlimited: float) -> WorkflowStep:
    """Return a step with its probable maximum length.

    :param unlimited: the ``time`` given to jobs without a limit of their own, which is not a limit
    """
    if not step.seconds:
        return step  # it only marks the end of other steps
    seconds, limit = step.seconds * math.exp(step.spread), step.job.time
    if limit is not None and limit != unlimited:
        seconds = max(step.seconds, min(seconds, limit))
    return replace(step, seconds=seconds + SECONDS_BETWEEN_STEPS)


def first_needs(live: Sequence[Location], coming: ComingWork, market: Market, now: float) -> Mapping[str, float]:
    """Return when the next step that is not running starts in each allocation, epoch seconds. Allocations that no step
    needs are left out.
    """
    there = as_played(live, coming, market, now)
    forecast = coming.within_reach(len(there), now)
    schedule = play(forecast, there, now)
    needs = {each.location.name: each.needed(schedule, forecast) for each in schedule.machines if each.location}
    return {name: begin for name, begin in needs.items() if begin < math.inf}


def ended(
    live: Sequence[Location], spare: Collection[str], coming: ComingWork, market: Market, now: float
) -> tuple[dict[str, Reason], frozenset[str]]:
    """Return the idle allocations that end, each with the reason, and those that are kept for upcoming work.

    :param spare: those in which no waiting job has a place
    """
    idle = [each for each in live if each.name in spare and each.empty and not each.draining]
    if not idle:
        return {}, frozenset()
    needs, ends = first_needs(live, coming, market, now), dict[str, Reason]()
    kept = set()
    number = sum(not each.draining for each in live)
    # Whether steps were left out: these could need any of the allocations.
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
    """Return the allocations that take jobs, now or later, with the expected queue wait for those in their queues."""
    found = []
    for each in live:
        if each.draining:
            continue
        wait = coming.wait(str(each.instance_type), each.capacity.cpus, market) if each.booting else 0.0
        ends_at = None if each.ends_at is None else each.ends_at + wait
        found.append(replace(each, usd_per_hour=0.0, ready_at=now + wait if wait else None, ends_at=ends_at))
    return found


def play(forecast: Forecast, locations: Sequence[Location], now: float) -> Schedule:
    """Return the schedule if no further allocation is requested, with each step where it starts soonest."""
    problem = pose([], locations, None, InstanceLimits(), Objective(), now, None)
    return FleetRun(FleetWork(forecast, locations, problem, 0.0, now), None).schedule()
