"""The plan for waiting jobs outside any forecast: each is planned as a run of one step. Pure.

These are members of gangs, jobs that come from another site because it is full, and all jobs of a site whose forecast
has failed. If limits make jobs wait, the policy ``greedy`` decides: it takes them by priority and gives each a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lading.scheduling.forecast.choice import choose
from lading.scheduling.forecast.fleet_work import Fleet, FleetWork
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import SOON, Planner, as_launch
from lading.scheduling.forecast.schedule import PlannedMachine
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits, Objective, Placement, Plan, PlannedLaunch, Wait
from lading.scheduling.model.prediction import Prediction, predicted
from lading.scheduling.packing.problem import pose
from lading.scheduling.provisioning.planner import plan


def plan_waiting(
    jobs: Sequence[PlannedJob],
    there: Sequence[Location],
    market: MachineMarket,
    limits: InstanceLimits,
    *,
    now: float,
) -> Plan:
    """Return where jobs go, which machines are launched for them now, and what the others wait for.

    :param there: the machines that take jobs or boot, oldest first
    :param limits: those of the market and of groups of jobs, less what is already used
    :param now: epoch seconds
    """
    by_greedy = plan(jobs, there, market.catalogue, limits, now=now, bound=False)
    are_limited = any(job.task in limits.tasks or job.run in limits.runs for job in jobs)
    if are_limited or by_greedy.waits or not by_greedy.placements:
        return by_greedy
    refused = {each.job for each in by_greedy.refusals}
    owners: dict[str, str] = {}
    steps = {step.job.name: step for step in at_work(there)}
    for job in jobs:
        for number in range(job.count if job.name not in refused else 0):
            name = f"{job.name} {number}" if number else job.name
            owners[name] = job.name
            steps[name] = as_step(replace(job, name=name, run=name, count=1), predicted(job))
    forecast = Forecast(steps, {job.name: job.queued_at for job in jobs})
    problem = pose([], there, market.catalogue, limits, Objective(), now, None)
    medians = forecast.by_those_at_work(now)
    work = FleetWork(medians, there, problem, market.boot_seconds, now, market.boots)
    planner = Planner(market.boot_seconds, market.hurry)
    # For more jobs, fleets are not compared but the usually best one is used, because a tick waits for this.
    fleet = choose(work, market.hurry) if len(owners) <= 200 else Fleet(None)
    planner.adopt(fleet, forecast)
    planner.follow(work)
    schedule = planner.schedule
    if schedule is None or not schedule.homes.keys() >= owners.keys():
        return by_greedy  # unlike the fleet, it found a place for every job within the limits
    actions = planner.act(forecast, list(owners), problem, now)
    reasons = {each.job: each.reason for each in actions.waits}
    launches: dict[int, PlannedLaunch] = {}
    placed, waiting = Counter[tuple[str, str]](), dict[str, Wait]()
    for name, owner in owners.items():
        home = schedule.homes[name]
        if schedule.starts[name] > first_start(home, now) + SOON:
            wait = waiting.get(owner, Wait(owner, 0, reasons[name]))
            waiting[owner] = replace(wait, count=wait.count + 1)
        elif home.location is not None:
            placed[owner, home.location.name] += 1
        else:
            launch = launches.setdefault(id(home), as_launch(f"new-{len(launches)}", home))
            placed[owner, launch.name] += 1
    usd = math.fsum(each.usd_per_hour for each in launches.values())
    return replace(
        by_greedy,
        policy=FORECAST,
        placements=tuple(Placement(*where, count) for where, count in placed.items()),
        launches=tuple(launches.values()),
        filled=(),
        waits=tuple(waiting.values()),
        cost=usd,
        objective=usd,
    )


def first_start(machine: PlannedMachine, now: float) -> float:
    """Return when a machine takes its first jobs if it is launched now, epoch seconds."""
    if machine.location is None:
        return now + machine.boot
    return max(now, machine.location.ready_at or now)


def at_work(there: Iterable[Location]) -> Iterable[WorkflowStep]:
    """Yield the steps running on machines, with their predicted lengths."""
    for location in there:
        for number, each in enumerate(location.running_jobs):
            name = f"{location.name} at work {number}"
            step = as_step(PlannedJob(name, each.resources, run=name), each.expected)
            yield replace(step, begun=each.begun, location=location.name)


def as_step(job: PlannedJob, expected: Prediction) -> WorkflowStep:
    return WorkflowStep(job, max(1.0, expected.seconds), spread=expected.spread, measured=expected.number)
