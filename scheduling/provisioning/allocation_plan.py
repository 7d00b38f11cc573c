"""Allocations by a plan of all upcoming work: how large they are, how many, and when they are requested. Pure.

The plan is the one by which machines are bought. A part of a node is a machine, its cpu-hours are its USD, and its
queue wait is its boot, which costs nothing. So work that is not on the critical path of its run shares small
allocations, and a wide phase gets more allocations for as long as it lasts. A walltime covers the steps that are
planned in its allocation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import Actions
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import NOTHING
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.unfinished import seconds_left
from lading.scheduling.packing.problem import fits, vector
from lading.scheduling.provisioning.launch import SECONDS_TO_BEGIN, AllocationPlan, Launch

# The cost of a GPU in cpus, and a surcharge for each allocation, so that of equally expensive choices the one with the
# fewest and largest allocations is requested.
CPUS_PER_GPU, CPUS_PER_ALLOCATION = 1.0, 0.1
# Seconds that an allocation is paid for before its first job starts and after its last job finishes.
SECONDS_PAID = 60.0
# Seconds allowed from the start of an allocation to that of its jobs until that has been measured, and the allowed
# factor over the longest measured time.
NOT_MEASURED, SLOWER = 900.0, 1.25
# Seconds allowed from the end of a job to the start of a job that waits for it, including Airflow's share.
SECONDS_BETWEEN_STEPS = 5.0
# If the logarithm of a length has at least this standard deviation, the starts of later steps count as unknown.
UNKNOWN_SPREAD = 1.0
# Walltimes are rounded up to whole minutes.
MINUTE = 60.0


def parts(market: Market) -> dict[str, Resources]:
    """Return the possible sizes of allocations by name: a node, a half and a quarter, with GPUs and without."""
    whole, numbers = market.capacity, [1]
    # In smaller parts of a node, jobs that arrive out of order wait for a long time.
    while not market.whole and whole.cpus >= 2 * numbers[-1] and numbers[-1] < 4:
        numbers.append(2 * numbers[-1])
    some = [part_of(market, number) for number in numbers]
    if whole.gpus:
        some += [replace(each, gpus=0.0) for each in some if not market.whole]
    return {size_of(each): each for each in some}


def part_of(market: Market, number: int) -> Resources:
    """Return one of ``number`` equal parts of a node."""
    whole = market.capacity
    if number == 1:
        return whole
    return Resources(
        math.ceil(whole.cpus / number),
        math.ceil((whole.memory + market.overhead) / number) - market.overhead,
        math.ceil(whole.disk / number),
        math.ceil(whole.gpus / number),
    )


def shaped(packed: Resources, market: Market) -> Resources:
    """Return the smallest part of a node (all, a half, a quarter, ..., at least one cpu) that holds ``packed``."""
    if market.whole:
        return market.capacity
    part = _part(market, 1, packed)
    parts = 2
    # Compares with the planner's exact integers; otherwise the allocation could turn out too small for its jobs.
    while market.capacity.cpus >= parts and fits(vector(packed), vector(smaller := _part(market, parts, packed))):
        part, parts = smaller, parts * 2
    return part


def _part(market: Market, number: int, packed: Resources) -> Resources:
    part = part_of(market, number)
    return part if packed.gpus else replace(part, gpus=0.0)


def size_of(part: Resources) -> str:
    """Return the name of a size, which identifies kinds of allocations in a plan."""
    return f"{part.cpus:g} cpus, {part.gpus:g} gpus"


def usd_of(part: Resources) -> float:
    """Return the cost of an hour in cpus, which the plan uses as USD."""
    return part.cpus + CPUS_PER_GPU * part.gpus + CPUS_PER_ALLOCATION


def as_machines(market: Market, waits: Mapping[str, float]) -> MachineMarket:
    """Represent the allocations that can be launched as a market of machines.

    :param waits: the kinds of allocations that are needed, and their expected queue waits in seconds
    """
    types = {
        f"{kind} {size}": InstanceType(kind, part, (Offering(usd_of(part), capacity_type=size),))
        for kind in waits
        for size, part in parts(market).items()
    }
    return MachineMarket(
        Catalogue(types),
        InstanceLimits(instances=market.most),
        boot_seconds=market.queue_seconds,
        boots=waits,
        held=market.held,
        hurry=market.hurry,
    )


def as_machine(allocation: Location, seen_at: float, up_at: float | None, wait: float, now: float) -> Location:
    """Represent a running or queued allocation as a machine.

    :param seen_at: when it was first seen, epoch seconds; ``up_at``: when it was first up, None: not yet
    :param wait: the expected queue wait, seconds
    """
    ready_at = None
    if allocation.booting:
        passed = wait
        while seen_at + passed <= now:
            # An allocation that has waited longer than expected is expected at 1.5 times the last
            # estimate, again and again.
            passed = max(1.5 * passed, passed + 1.0)
        ready_at = seen_at + passed
    return replace(
        allocation,
        capacity_type=size_of(allocation.capacity),
        usd_per_hour=usd_of(allocation.capacity),
        launched_at=now if up_at is None else up_at,
        ready_at=ready_at,
    )


def margin(begins_in: float | None) -> float:
    """Return how many seconds a walltime exceeds the time limits of its jobs.

    :param begins_in: longest measured time from the start of an allocation to that of its jobs; None: not measured
    """
    return NOT_MEASURED if begins_in is None else max(SECONDS_TO_BEGIN, SLOWER * begins_in)


def allocation_plan(
    actions: Actions,
    planned: Collection[str],
    forecast: Forecast,
    tokens: Mapping[str, str],
    begins: Mapping[str, float],
    sure: Collection[str],
    there: Sequence[Location],
    waits: Mapping[str, float],
    market: Market,
    margin: float,
    now: float,
) -> AllocationPlan:
    """Turn the actions of a plan into an :class:`AllocationPlan`.

    :param planned: the waiting jobs that have a place in the plan, or for which it is being made
    :param tokens: step names by the tokens of waiting jobs
    :param begins: planned starts of steps, epoch seconds; empty: there is no plan any more
    :param sure: upcoming steps for which something can be launched ahead
    :param there: the running and queued allocations
    :param waits: the expected queue wait of each kind of allocation, seconds
    :param margin: how many seconds a walltime exceeds the time limits of its jobs
    :param now: epoch seconds
    """
    sizes, launches = parts(market), []
    for machine in actions.launches:
        names = actions.launched_for[machine.name]
        waiting = tuple(name for name in names if name in tokens)
        coming = {name: begins.get(name, math.inf) for name in names if name in sure}
        first = min(coming.values(), default=math.inf)
        if not (jobs := waiting or tuple(sorted(name for name, begin in coming.items() if begin == first))):
            continue
        steps = [tokens.get(name, name) for name in names]
        limits = (forecast.steps[tokens.get(name, name)].job.time or 0.0 for name in jobs)
        seconds = max(market.seconds, max(limits) + margin)
        # If all its jobs fit together into a smaller part, that part suffices in any order.
        least = shaped(sum((forecast.steps[name].job.resources for name in steps), NOTHING), market)
        capacity = min(sizes[machine.capacity_type], least, key=usd_of)
        idle_seconds = max(market.idle_seconds, waits[machine.instance_type])
        launches.append(Launch(machine.instance_type, capacity, seconds, jobs, idle_seconds=idle_seconds))
    return AllocationPlan(
        timed(launches, forecast, tokens, begins, waits, market, margin, now),
        frozenset(planned),
        needed(actions, there, waits, now),
        {each.location: each.reason for each in actions.releases},
        {each.job: each.reason for each in actions.waits if each.reason.code == "room_soon"},
        {name: begins[name] for launch in launches for name in launch.jobs if name not in tokens and name in begins},
        {token: begins[name] for token, name in tokens.items() if name in begins},
        margin=margin,
    )


def needed(actions: Actions, there: Sequence[Location], waits: Mapping[str, float], now: float) -> frozenset[str]:
    """Return the queued allocations that a plan needs, and the running ones that it needs sooner than a new one would
    leave its queue.
    """
    return frozenset(
        each.name
        for each in there
        if (begin := actions.needed.get(each.name)) is not None
        if each.booting or begin <= now + waits[str(each.instance_type)]
    ).union(each.location for each in actions.placements)


def timed(
    launches: Sequence[Launch],
    forecast: Forecast,
    tokens: Mapping[str, str],
    begins: Mapping[str, float],
    waits: Mapping[str, float],
    market: Market,
    margin: float,
    now: float,
) -> tuple[Launch, ...]:
    """Return the launches with walltimes that cover the steps that can start in them; none gets longer.

    These are all steps that fit, because jobs start wherever there is room. A launch keeps its walltime if lengths are
    unknown. A length counts with its probable maximum, and an allocation as if it started at once.
    """
    if not (launches and begins):
        return tuple(launches)
    unsure, cautious = after_unknown(forecast), at_most(forecast, market)
    soonest, latest = forecast.soonest(now), cautious.soonest(now)
    upcoming = [
        each for name, each in forecast.steps.items() if each.begun is None and not each.elsewhere and name in begins
    ]

    @cache
    def seconds(kind: str, capacity: Resources, most_seconds: float) -> float:
        """Return what an allocation needs until the steps that can start in it reach their limits."""
        wait = waits[kind]
        fitting = (each for each in upcoming if each.job.instance_type == kind and each.job.resources.fits(capacity))
        steps = served([each.job.name for each in fitting], begins, forecast, wait, now + wait)
        if _is_unsure(steps, begins, forecast, unsure):
            return math.inf
        usual, most = (sum(each.steps[name].seconds for name in steps) for each in (forecast, cautious))
        slower = most / usual if usual else 1.0
        longest = 0.0
        for name in steps:
            begin, limit = begins[name] - wait - now, forecast.steps[name].job.time or 0.0
            if begin + limit + margin <= most_seconds:
                # How long it waits for room, once the allocation is up.
                # Jobs find room in another order than planned; any order takes less than twice the
                # minimum time (Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on
                # Applied Mathematics 17, 1969).
                waited = 2.0 * slower * max(0.0, begin - (soonest[name] - now))
                longest = max(longest, latest[name] - now + waited + limit)
        return longest

    found = []
    for launch in launches:
        limits = (forecast.steps[tokens.get(job, job)].job.time or 0.0 for job in launch.jobs)
        longest = max(seconds(launch.kind, launch.capacity, launch.seconds), *limits)
        walltime = math.ceil((longest + margin) / MINUTE) * MINUTE if longest < math.inf else math.inf
        found.append(replace(launch, seconds=min(launch.seconds, walltime)))
    return tuple(found)


def served(
    steps: Sequence[str], begins: Mapping[str, float], forecast: Forecast, most_idle: float, up_at: float
) -> list[str]:
    """Return the steps that start in an allocation before it ends for being idle, in their order.

    :param most_idle: seconds
    :param up_at: when it is up, epoch seconds
    """
    found: list[str] = []
    busy_until = up_at
    for name in sorted(steps, key=lambda name: (begins.get(name, math.inf), name)):
        begin = begins.get(name, math.inf)
        if begin - busy_until > most_idle:
            break
        found.append(name)
        busy_until = max(busy_until, begin + forecast.steps[name].seconds)
    return found


def _is_unsure(steps: Sequence[str], begins: Mapping[str, float], forecast: Forecast, unsure: Collection[str]) -> bool:
    """Return whether the start of an allocation's last step is unknown."""
    last = max((begins[name] for name in steps), default=0.0)
    return any(
        name in unsure or (forecast.steps[name].spread >= UNKNOWN_SPREAD and begins[name] < last) for name in steps
    )


def at_most(forecast: Forecast, market: Market) -> Forecast:
    """Return the forecast with the probable maximum length of each step."""
    return forecast.with_lengths({name: _at_most(step, market.unlimited) for name, step in forecast.steps.items()})


def _at_most(step: WorkflowStep, unlimited: float) -> float:
    """Return the probable maximum length of a step, seconds.

    :param unlimited: the ``time`` given to jobs without a limit of their own, which is not a limit
    """
    if not step.seconds:
        return 0.0  # it only marks the end of other steps
    seconds, limit = step.seconds * math.exp(step.spread), step.job.time
    if limit is not None and limit != unlimited:
        seconds = max(step.seconds, min(seconds, limit))
    return seconds + SECONDS_BETWEEN_STEPS


def sure_steps(
    forecast: Forecast, come: Collection[str], runs: Collection[str], waits: Mapping[str, float], now: float
) -> frozenset[str]:
    """Return the upcoming steps for which room can be requested before their jobs are queued, because their hints say
    so or their start is certain enough.

    :param come: the steps whose jobs wait
    :param runs: those for which room can be requested ahead
    :param waits: the expected queue wait of each kind of allocation, seconds
    """
    unsure, doubts = after_unknown(forecast), doubted(forecast, now)
    # Room for a step is requested ahead if the end of the steps before it is uncertain by at most a tenth of the queue
    # wait. A hint of the step overrides this.
    return frozenset(
        name
        for name, step in forecast.steps.items()
        if step.begun is None and not step.elsewhere and name not in come and step.job.run in runs
        if step.ahead is not False and name not in unsure
        if step.ahead or doubts[name] <= 0.1 * waits[str(step.job.instance_type)]
    )


def doubted(forecast: Forecast, now: float) -> dict[str, float]:
    """Return by how many seconds the predecessors of each step can finish earlier or later than expected."""
    found = dict[str, float]()
    for name in forecast.order:
        doubts = []
        for each in forecast.steps[name].parents:
            if (step := forecast.steps.get(each)) is not None:
                # A running step counts as if it finished when expected: the rest of its uncertainty is its spread.
                left = step.seconds if step.begun is None else seconds_left(now - step.begun, step.seconds, 0.0)
                doubts.append(found[each] + left * step.spread)
        found[name] = max(doubts, default=0.0)
    return found


def after_unknown(forecast: Forecast) -> frozenset[str]:
    """Return the steps whose start is unknown because the length of a predecessor is unknown."""
    found: set[str] = set()
    for name in forecast.order:
        before = [each for each in forecast.steps[name].parents if each in forecast.steps]
        if any(each in found or forecast.steps[each].spread >= UNKNOWN_SPREAD for each in before):
            found.add(name)
    return frozenset(found)
