"""What is done now, by the schedule of all that is still to come: jobs that begin, launches, releases, waits. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lading.scheduling.forecast.choice import Way, choose, nearby
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.location import Location
from lading.scheduling.packing.problem import Problem, Shape, Vector, fits, refusal, vector
from lading.scheduling.plan import Placement, PlannedLaunch, Release, Wait
from lading.scheduling.reasons import Reason, because

# What is planned this soon is done now, seconds.
SOON = 0.5
# A plan holds as long as nothing begins or ends so much sooner or later, seconds.
SLACK = 2.0
# After so many plans by the last way all ways are tried again, as when a run begins: what is to come is another shape.
PLANS_BY_ONE_WAY = 25


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
    launches: tuple[PlannedLaunch, ...]
    releases: tuple[Release, ...]
    waits: tuple[Wait, ...]
    refused: Mapping[str, Reason]
    look: float | None


class Planner:
    """Decides what is done now. It plans again only where something has gone another way than planned.

    :param boot: seconds from a launch to the first job
    :param hurry: what time is worth (:mod:`lading.scheduling.forecast.choice`)
    :ivar plans: how often it has planned
    """

    def __init__(self, boot: float, hurry: float = 1.0) -> None:
        self.boot, self.hurry, self.plans = boot, hurry, 0
        self.way: Way | None = None
        self.schedule: Schedule | None = None
        self.planned: frozenset[str] = frozenset()
        self.open: frozenset[str] = frozenset()

    def decide(
        self,
        forecast: Forecast,
        waiting: Sequence[str],
        locations: Sequence[Location],
        problem: Problem,
        *,
        spent: float = 0.0,
        now: float,
    ) -> Actions:
        """What is done now.

        :param waiting: the names of the steps that may begin
        :param locations: the machines that take jobs or boot, oldest first
        :param problem: what can be launched
        :param spent: USD that the runs have cost until now
        :param now: epoch seconds
        """
        schedule = self.schedule
        if schedule is None or not self._holds(schedule, forecast, locations, now):
            is_alike = self.planned >= forecast.steps.keys() and self.plans % PLANS_BY_ONE_WAY
            ways = nearby(self.way) if self.way is not None and is_alike else ()
            choice = choose(
                forecast, locations, problem, boot=self.boot, hurry=self.hurry, spent=spent, ways=ways, now=now
            )
            self.way, schedule = choice.way, choice.schedule
            self.planned = frozenset(forecast.steps)
            self.plans += 1
        self.open = frozenset(forecast.steps)
        actions = act(schedule, waiting, problem, forecast, self.boot, now)
        # What is to begin later on a machine that is released now has no place in this schedule.
        is_whole = not any(
            machine.released and machine.needed(schedule, forecast) < math.inf for machine in schedule.machines
        )
        self.schedule = schedule if is_whole else None
        return actions

    def _holds(self, schedule: Schedule, forecast: Forecast, locations: Sequence[Location], now: float) -> bool:
        """Whether all has gone as planned since it was made."""
        starts, until = schedule.starts, schedule.until
        if not find_machines(schedule, locations, now):
            return False
        for name, step in forecast.steps.items():
            if name not in starts:
                if name not in self.planned:
                    return False  # of those that were planned it fits nothing
            elif step.begun is None:
                if starts[name] + SLACK < now:
                    return False
            elif abs(step.begun - starts[name]) > SLACK or until[name] + SLACK < now:
                return False
        ended = [name for name in self.open - forecast.steps.keys() if name in starts]
        return all(abs(until[name] - now) <= SLACK for name in ended)


def find_machines(schedule: Schedule, locations: Sequence[Location], now: float) -> bool:
    """Whether those machines are there that a schedule goes by, and no others, which it knows as they are now then."""
    there = {each.name: each for each in locations}
    for machine in schedule.machines:
        if machine.location is not None and not machine.released:
            location = there.pop(machine.location.name, None)
            if location is None or (location.ready_at or now) - (machine.location.ready_at or now) > SLACK:
                return False
            machine.location = location
    for machine in schedule.machines:
        if machine.location is None and machine.launched and machine.bin is not None:
            kind = machine.bin.type.name, machine.bin.offering.capacity_type
            launched = (each for each in there.values() if (each.instance_type, each.capacity_type) == kind)
            if (location := next(launched, None)) is None:
                return False
            machine.location = there.pop(location.name)
    return not there


class FreeRoom:
    """What is free on a machine while jobs get places."""

    def __init__(self, location: Location) -> None:
        self.capacity, self.used = vector(location.capacity), vector(location.used)

    def take(self, need: Vector) -> bool:
        """Whether there is so much, which is taken then."""
        used = self.used
        wanted = used[0] + need[0], used[1] + need[1], used[2] + need[2], used[3] + need[3]
        if not fits(wanted, self.capacity):
            return False
        self.used = wanted
        return True


def act(
    schedule: Schedule, waiting: Sequence[str], problem: Problem, forecast: Forecast, boot: float, now: float
) -> Actions:
    """What a schedule asks for now."""
    placements, waits = [], []
    looks = [schedule.until[name] + SLACK for name, step in forecast.steps.items() if step.begun is not None]
    refused = {}
    free = {each.location.name: FreeRoom(each.location) for each in schedule.machines if each.location is not None}
    for name in waiting:
        home = schedule.homes.get(name)
        if home is None:
            job = forecast.steps[name].job
            refused[name] = refusal(problem, job, Shape(vector(job.resources), job.wish, None, None, None))
            continue
        begin, location = schedule.starts[name], home.location
        is_time = location is not None and begin <= now + SOON and (location.ready_at or now) <= now
        if location is not None and is_time and free[location.name].take(vector(forecast.steps[name].job.resources)):
            placements.append(Placement(name, location.name))
        else:
            waits.append(Wait(name, 1, why(home, begin, now)))
            looks.append(begin)
    launches, releases = [], []
    for number, machine in enumerate(schedule.machines):
        if machine.released:
            continue
        first = machine.needed(schedule, forecast)
        if machine.location is None:
            it = machine.bin
            if it is not None and first - boot <= now + SOON:
                machine.launched = True
                launches.append(
                    PlannedLaunch(f"new-{number}", it.type.name, it.offering.capacity_type, it.offering.zone, it.price)
                )
            else:
                looks.append(first - boot)
        elif machine.location.empty and (machine.location.ready_at or now) <= now:
            if first > now + boot:
                reason = because("not_needed") if first == math.inf else because("not_needed_for", seconds=first - now)
                machine.released = True
                releases.append(Release(machine.location.name, reason))
            else:
                looks.append(first)
    look = min((each for each in looks if now + SOON < each < math.inf), default=None)
    return Actions(tuple(placements), tuple(launches), tuple(releases), tuple(waits), refused, look)


def why(home: PlannedMachine, begin: float, now: float) -> Reason:
    """Why a step does not begin now."""
    seconds = max(1, round(begin - now))
    if home.location is None:
        return because("machine_launched", seconds=seconds)
    boots = home.location.ready_at is not None and home.location.ready_at > now
    return because("machine_boots" if boots else "room_soon", location=home.location.name, seconds=seconds)
