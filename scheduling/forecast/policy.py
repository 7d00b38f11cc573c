"""What is done now, by the schedule of all that is still to come: jobs that begin, launches, releases, waits. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lading.scheduling.forecast.choice import Choice, Way, choose
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.schedule import Machine, Schedule
from lading.scheduling.location import Location
from lading.scheduling.packing.problem import Problem, Shape, refusal, vector
from lading.scheduling.plan import Launch, Placement, Release, Wait

# What is planned this soon is done now, seconds.
SOON = 0.5


@dataclass(frozen=True, slots=True)
class Actions:
    """What is to be done now.

    :param placements: jobs that begin now on machines that are up
    :param launches: machines that have to boot now, to be up when their first step can begin
    :param releases: empty machines that nothing needs before another one would have booted
    :param waits: the jobs that do not begin, each with the reason
    :param refused: steps that nothing which is there or can be launched ever holds, each with the reason
    :param look: epoch seconds at which there is something to do next even if nothing has happened; None: there is not
    """

    placements: tuple[Placement, ...]
    launches: tuple[Launch, ...]
    releases: tuple[Release, ...]
    waits: tuple[Wait, ...]
    refused: Mapping[str, str]
    look: float | None


def decide(
    forecast: Forecast,
    waiting: Sequence[str],
    locations: Sequence[Location],
    problem: Problem,
    *,
    boot: float,
    hurry: float = 1.0,
    spent: float = 0.0,
    ways: Sequence[Way] = (),
    now: float,
) -> tuple[Actions, Choice]:
    """Decide what is done now.

    :param waiting: the names of the steps that may begin
    :param locations: the machines that take jobs, oldest first
    """
    choice = choose(forecast, locations, problem, boot=boot, hurry=hurry, spent=spent, ways=ways, now=now)
    return act(choice.schedule, waiting, problem, forecast, boot, now), choice


def act(
    schedule: Schedule, waiting: Sequence[str], problem: Problem, forecast: Forecast, boot: float, now: float
) -> Actions:
    """What a schedule asks for now."""
    placements, waits, looks = [], [], []
    refused = {}
    for name in waiting:
        home = schedule.homes.get(name)
        if home is None:
            job = forecast.steps[name].job
            refused[name] = refusal(problem, job, Shape(vector(job.resources), job.wish, None, None, None))
            continue
        begin, location = schedule.starts[name], home.location
        if location is not None and begin <= now + SOON and (location.ready_at or now) <= now:
            placements.append(Placement(name, location.name))
        else:
            waits.append(Wait(name, 1, why(home, begin, now)))
            looks.append(begin)
    launches, releases = [], []
    for number, machine in enumerate(schedule.machines):
        first = min((schedule.starts[name] for name in machine.steps), default=math.inf)
        if machine.location is None:
            it = machine.bin
            if it is not None and first - boot <= now + SOON:
                launches.append(
                    Launch(f"new-{number}", it.type.name, it.offering.capacity_type, it.offering.zone, it.price)
                )
            else:
                looks.append(first - boot)
        elif machine.location.empty and (machine.location.ready_at or now) <= now:
            if first > now + boot:
                reason = (
                    "nothing is expected to need it"
                    if first == math.inf
                    else (f"nothing is expected to need it for {first - now:.0f} s, and another one boots sooner")
                )
                releases.append(Release(machine.location.name, reason))
            else:
                looks.append(first)
    look = min((each for each in looks if now + SOON < each < math.inf), default=None)
    return Actions(tuple(placements), tuple(launches), tuple(releases), tuple(waits), refused, look)


def why(home: Machine, begin: float, now: float) -> str:
    """Why a step does not begin now."""
    soon = f"in about {max(1, round(begin - now))} s"
    if home.location is None:
        return f"a machine is launched for it that is up {soon}"
    if home.location.ready_at is not None and home.location.ready_at > now:
        return f"{home.location.name} boots, on which it begins {soon}"
    return f"there is room on {home.location.name} {soon}: its run does not end later by that, or costs less"
