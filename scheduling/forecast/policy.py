"""What is done now, by the schedule of all that is still to come: jobs that begin, launches, releases, waits. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from lading.scheduling.forecast.choice import beside, choose, on_sale
from lading.scheduling.forecast.fleet_work import Fleet, FleetWork
from lading.scheduling.forecast.fleets import FleetRun
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.location import Location
from lading.scheduling.packing.problem import Problem, Shape, Vector, fits, refusal, vector
from lading.scheduling.plan import Placement, PlannedLaunch, Release, Wait
from lading.scheduling.prediction import is_surely_short
from lading.scheduling.reasons import Reason, because

# What is planned this soon is done now, seconds.
SOON = 0.5
# A plan holds as long as nothing begins or ends so much sooner or later, seconds.
SLACK = 2.0
# Times that are said are one of these, or several times the last one, seconds.
ABOUT = (5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 240, 300, 600)
# After so many plans beside the last fleet all are tried again, as when a run begins: what is to come is another shape.
PLANS_BESIDE_ONE_FLEET = 25


@dataclass(frozen=True, slots=True)
class Actions:
    """What is to be done now.

    :param placements: jobs that begin now on machines that are up
    :param launches: machines that have to boot now, to be up when their first step can begin
    :param releases: empty machines that nothing needs before another one would have booted
    :param waits: the jobs that do not begin, each with the reason
    :param refused: steps that nothing which is there or can be launched ever holds, each with the reason
    :param look: epoch seconds at which there is something to do next even if nothing has happened; None: there is not
    :param launched_for: the steps that are planned on each launch, by its name
    :param needed: when the next step begins on each machine that is there, epoch seconds, by its name; one that no
        further step needs is left out
    """

    placements: tuple[Placement, ...]
    launches: tuple[PlannedLaunch, ...]
    releases: tuple[Release, ...]
    waits: tuple[Wait, ...]
    refused: Mapping[str, Reason]
    look: float | None
    launched_for: Mapping[str, tuple[str, ...]]
    needed: Mapping[str, float]


class Planner:
    """Decides what is done now, by the fleet that was chosen last.

    When and where everything begins follows from what is there, and from the fleet, at any time. Only where something
    has gone another way than planned that is found out anew.

    :param boot: seconds from a launch to the first job
    :param hurry: what time is worth (:mod:`lading.scheduling.forecast.choice`)
    :param most_boot_paid: of a boot so many seconds cost money at most
    :ivar plans: how often a fleet was chosen
    :ivar fleet: the one that was chosen last; None: nothing is launched
    :ivar chosen_for: the steps for which it was chosen
    :ivar not_ahead: the steps for which nothing is launched before they wait, and which do not yet
    """

    def __init__(self, boot: float, hurry: float = 1.0, *, most_boot_paid: float = math.inf) -> None:
        self.boot, self.hurry, self.most_boot_paid, self.plans = boot, hurry, most_boot_paid, 0
        self.fleet: Fleet | None = None
        self.chosen_for: frozenset[str] = frozenset()
        self.schedule: Schedule | None = None
        self.machines = 0
        """How many machines the last schedule has."""
        self.worth: Mapping[str, tuple[float | None, float | None]] = {}
        self.open: frozenset[str] = frozenset()
        self.not_ahead: frozenset[str] = frozenset()

    def decide(
        self,
        forecast: Forecast,
        waiting: Sequence[str],
        locations: Sequence[Location],
        problem: Problem,
        *,
        spent: float = 0.0,
        kept: Collection[str] = (),
        now: float,
    ) -> Actions:
        """What is done now.

        :param waiting: the names of the steps that may begin
        :param locations: the machines that take jobs or boot, oldest first
        :param problem: what can be launched
        :param spent: USD that the live runs have cost until now
        :param kept: the names of machines that stay in any case
        :param now: epoch seconds
        """
        if not (self.is_chosen_for(forecast) and self.holds(forecast, locations, problem, now)):
            medians = forecast.by_those_at_work(now)
            work = FleetWork(medians.by_means(), locations, problem, self.boot, now, most_boot_paid=self.most_boot_paid)
            self.adopt(choose(work, medians, self.hurry, spent, self.fleets(forecast)), forecast)
            self.follow(work)
        self.not_ahead = forecast.launched_when_waiting().difference(waiting)
        return self.act(forecast, waiting, problem, now, kept)

    def fleets(self, forecast: Forecast) -> list[Fleet]:
        """Those beside the last one, which are tried as long as nothing has come but jobs that are runs by themselves;
        none: all are."""
        if self.fleet is None or not self.plans % PLANS_BESIDE_ONE_FLEET or not self._is_worth_the_same(forecast):
            return []
        of_run = Counter(step.job.run for step in forecast.steps.values())
        new = (step for name, step in forecast.steps.items() if name not in self.chosen_for)
        return [] if any(of_run[step.job.run] > 1 for step in new) else beside(self.fleet, self.machines)

    def is_chosen_for(self, forecast: Forecast) -> bool:
        """Whether the fleet was chosen for all these steps, and the ends of their runs are worth what they were."""
        return self.chosen_for >= forecast.steps.keys() and self._is_worth_the_same(forecast)

    def _is_worth_the_same(self, forecast: Forecast) -> bool:
        return all(self.worth.get(run, its) == its for run, its in worth(forecast).items())

    def adopt(self, fleet: Fleet | None, forecast: Forecast) -> None:
        """Go by a fleet from now on.

        :param forecast: for which it was chosen
        """
        self.schedule = None
        self.fleet, self.chosen_for, self.worth = fleet, frozenset(forecast.steps), worth(forecast)
        self.plans += 1

    def follow(self, work: FleetWork) -> None:
        """Find out when and where everything begins now by the fleet, of which as much is launched as is on sale."""
        fleet = None if self.fleet is None else on_sale(self.fleet, work.problem)
        self.schedule = FleetRun(work, fleet).schedule()
        self.machines = len(self.schedule.machines)
        self.open = frozenset(work.forecast.steps)

    def act(
        self,
        forecast: Forecast,
        waiting: Sequence[str],
        problem: Problem,
        now: float,
        kept: Collection[str] = (),
    ) -> Actions:
        """What the schedule asks for now, which must hold (:meth:`holds`).

        :param kept: the names of machines that stay in any case
        """
        schedule = self.schedule
        assert schedule is not None
        self.open = frozenset(forecast.steps)
        actions = act(schedule, waiting, problem, forecast, now, kept, self.not_ahead)
        # What is to begin later on a machine that is released now has no place in this schedule.
        is_whole = not any(
            machine.released and machine.needed(schedule, forecast) < math.inf for machine in schedule.machines
        )
        self.schedule = schedule if is_whole else None
        return actions

    def holds(self, forecast: Forecast, locations: Sequence[Location], problem: Problem, now: float) -> bool:
        """Whether there is a schedule, and all has gone as planned since it was made.

        A launch that a budget or a limit does not allow is asked for again and again, and what is planned on its
        machine, and behind that, may be overdue until then.

        :param problem: what can be launched
        """
        if self.schedule is None or not find_machines(self.schedule, locations, problem, now):
            return False
        starts, until, withheld = self.schedule.starts, self.schedule.until, self.withheld(forecast)
        for name, step in forecast.steps.items():
            if not step.seconds:
                continue  # it is the end of others
            if name not in starts:
                if name not in self.open:
                    return False  # of those that were planned it fits nothing
            elif step.begun is None:
                if starts[name] + SLACK < now and name not in withheld:
                    return False
            elif abs(step.begun - starts[name]) > SLACK or until[name] + SLACK < now:
                return False
        ended = [name for name in self.open - forecast.steps.keys() if until.get(name, now) > starts.get(name, now)]
        return all(abs(until[name] - now) <= SLACK for name in ended) and not self._would_launch_too_soon(forecast, now)

    def withheld(self, forecast: Forecast) -> AbstractSet[str]:
        """The steps that wait for launches which a budget or a limit does not allow now."""
        return frozenset() if self.schedule is None else find_withheld(self.schedule, forecast)

    def _would_launch_too_soon(self, forecast: Forecast, now: float) -> bool:
        """Whether a machine is to be launched now for a step that is expected to begin later than planned.

        What runs is planned to end when half of the steps like it have. One that has run for as long as that takes
        longer than those, so its end is no nearer than before; a machine would wait for it, be released and launched
        again.
        """
        assert self.schedule is not None
        starts, due = self.schedule.starts, dict[str, float]()
        for machine in self.schedule.machines:
            is_to_come = machine.location is None and machine.bin is not None
            if is_to_come and not (machine.launched or machine.withheld):
                first = machine.needed(self.schedule, forecast)
                if first - machine.boot <= now + SOON and may_be_launched(machine, forecast, self.not_ahead):
                    due.update(
                        {name: first for name in machine.steps if name in forecast.steps and starts[name] == first}
                    )
        if not due:
            return False
        soonest = forecast.by_those_at_work(now).soonest(now)
        return any(soonest[name] > first + SLACK for name, first in due.items())


def worth(forecast: Forecast) -> dict[str, tuple[float | None, float | None]]:
    """What the end of each run is worth, and when it shall have ended."""
    return {run: (forecast.hurries.get(run), forecast.finish_by.get(run)) for run in forecast.began}


def find_machines(schedule: Schedule, locations: Sequence[Location], problem: Problem, now: float) -> bool:
    """Whether exactly the machines are there that a schedule goes by. It has them as they are now after that.

    What it has asked for and is not there was withheld, if it can still be launched, and is asked for again.
    """
    there = {each.name: each for each in locations}
    for machine in schedule.machines:
        if machine.location is not None and not machine.released:
            location = there.pop(machine.location.name, None)
            if location is None or abs((location.ready_at or now) - (machine.location.ready_at or now)) > SLACK:
                return False
            machine.location = location
    asked = [each for each in schedule.machines if each.location is None and each.launched and each.bin is not None]
    # Some of a kind may be withheld: those that are there are first of all for the steps for which they were launched.
    for are_promised in (True, False):
        for machine in asked:
            if machine.location is None and (its := find_launched(machine, there, are_promised=are_promised)):
                machine.location = there.pop(its.name)
    for machine in asked:
        if machine.location is None and machine.bin not in problem.bins:
            return False
        machine.launched, machine.withheld = machine.location is not None, machine.location is None
    return not there


def find_launched(machine: PlannedMachine, there: Mapping[str, Location], *, are_promised: bool) -> Location | None:
    """The first location that is what a machine is launched as; None: there is none.

    :param are_promised: whether it has to be one that was launched for steps of the machine
    """
    assert machine.bin is not None
    kind = machine.bin.type.name, machine.bin.offering.capacity_type
    for each in there.values():
        is_of_kind = (each.instance_type, each.capacity_type) == kind
        if is_of_kind and not (are_promised and each.promised.isdisjoint(machine.steps)):
            return each
    return None


def find_withheld(schedule: Schedule, forecast: Forecast) -> AbstractSet[str]:
    """The steps that are planned on machines that were withheld, and all that wait for them."""
    further = [
        name for machine in schedule.machines if machine.withheld and not machine.location for name in machine.steps
    ]
    found: set[str] = set()
    while further:
        if (name := further.pop()) not in found and name in forecast.steps:
            found.add(name)
            further += forecast.children[name]
    return found


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
    schedule: Schedule,
    waiting: Sequence[str],
    problem: Problem,
    forecast: Forecast,
    now: float,
    kept: Collection[str] = (),
    not_ahead: Collection[str] = (),
) -> Actions:
    """What a schedule asks for now.

    :param kept: the names of machines that stay in any case
    :param not_ahead: see :class:`Planner`
    """
    placements, waits = [], []
    looks = [schedule.until[name] + SLACK + SOON for name, step in forecast.steps.items() if step.begun is not None]
    refused = {}
    free = {each.location.name: FreeRoom(each.location) for each in schedule.machines if each.location is not None}
    # Rounds of ticks, or of a controller, may give the room of one to another that is to begin a moment later.
    for name in sorted(waiting, key=lambda name: schedule.starts.get(name, math.inf)):
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
            waits.append(Wait(name, 1, wait_reason(home, begin, now)))
            # What should have begun and has no room yet is planned anew if it still has none.
            looks.append(begin if begin > now + SOON else begin + SLACK + SOON)
    launches, releases, needed, more = to_launch_and_release(schedule, forecast, now, kept, not_ahead)
    looks += more
    look = min((each for each in looks if now + SOON < each < math.inf), default=None)
    steps = {
        name: tuple(each for each in machine.steps if each in forecast.steps) for name, machine in launches.items()
    }
    planned = tuple(as_launch(name, machine) for name, machine in launches.items())
    return Actions(tuple(placements), planned, tuple(releases), tuple(waits), refused, look, steps, needed)


def find_prefetches(
    schedule: Schedule,
    forecast: Forecast,
    waiting: Collection[str],
    now: float,
    until: float,
    withheld: Collection[str] = (),
) -> dict[str, str]:
    """The machines that are there to which waiting steps go a moment before there is room, by the names of the steps.

    An agent begins what it has as soon as there is room, so short steps lose no time on their way where short ones end.
    But it may begin one sooner than planned, on what has just come free for another one that it does not have: one that
    is still to come, or a long one, which waits for its turn elsewhere. So none goes there that is to begin after such
    a step, or after ``until``.

    :param now: epoch seconds, as is ``until``
    :param withheld: steps that wait for a launch which is not allowed now
    """
    steps = forecast.steps
    known = ((name, step) for name, step in steps.items() if step.is_measured)
    short = {name for name, step in known if is_surely_short(step.seconds, step.spread)}
    # Behind long ones it would gain little, and where their ends are not known it may wait there for long.
    at_work = [steps[name] for name in short if steps[name].begun is not None]
    turning = {step.location for step in at_work if now <= (step.begun or 0.0) + step.seconds + SLACK}
    found = {}
    for machine in schedule.machines:
        if machine.location is None or machine.released:
            continue
        names = (name for name in machine.steps if name in steps and steps[name].begun is None)
        begins = {name: schedule.starts[name] for name in names if name not in withheld}
        going = {name: start for name, start in begins.items() if name in waiting and name in short}
        # What begins there now may have ended when there is another look.
        if machine.location.name in turning or any(start <= now + SOON for start in going.values()):
            others = (start for name, start in begins.items() if name not in going and steps[name].seconds > SOON)
            last = min([until, *others])
            found.update({name: machine.location.name for name, start in going.items() if start <= last})
    return found


def may_be_launched(machine: PlannedMachine, forecast: Forecast, not_ahead: Collection[str]) -> bool:
    """Whether a machine is for a step that waits, or for which is launched before it does.

    One that is due and may not be launched stays planned, else there would be another plan in each tick until then.
    """
    return not not_ahead or any(name in forecast.steps and name not in not_ahead for name in machine.steps)


def to_launch_and_release(
    schedule: Schedule, forecast: Forecast, now: float, kept: Collection[str], not_ahead: Collection[str]
) -> tuple[dict[str, PlannedMachine], list[Release], dict[str, float], list[float]]:
    """What is launched and released now.

    :returns: the machines that have to boot, by names for them; the releases; when each of those that are there is
        needed; and when to look at all of this again, epoch seconds
    """
    launches: dict[str, PlannedMachine] = {}
    releases: list[Release] = []
    needed: dict[str, float] = {}
    looks: list[float] = []
    for number, machine in enumerate(schedule.machines):
        if machine.released:
            continue
        first = machine.needed(schedule, forecast)
        if machine.location is None:
            is_due = machine.bin is not None and first - machine.boot <= now + SOON
            if is_due and may_be_launched(machine, forecast, not_ahead):
                machine.launched = True
                launches[f"new-{number}"] = machine
            else:
                looks.append(first - machine.boot)
            continue
        if first < math.inf:
            needed[machine.location.name] = first
        if machine.location.empty and (machine.location.ready_at or now) <= now:
            if first > now + machine.boot and machine.location.name not in kept:
                reason = because("not_needed") if first == math.inf else because("not_needed_for", seconds=first - now)
                machine.released = True
                releases.append(Release(machine.location.name, reason))
            else:
                looks.append(first)
    return launches, releases, needed, looks


def as_launch(name: str, machine: PlannedMachine) -> PlannedLaunch:
    assert machine.bin is not None
    offering = machine.bin.offering
    return PlannedLaunch(name, machine.bin.type.name, offering.capacity_type, offering.zone, machine.bin.price)


def rounded_up(seconds: float) -> int:
    """Seconds as they are said: coarse, for a reason that is another one in each second is stored as often."""
    return next((each for each in ABOUT if seconds <= each), round(math.ceil(seconds / ABOUT[-1]) * ABOUT[-1]))


def wait_reason(home: PlannedMachine, begin: float, now: float) -> Reason:
    """Why a step does not begin now."""
    seconds = rounded_up(begin - now)
    if home.location is None:
        return because("machine_launched", seconds=seconds)
    boots = home.location.ready_at is not None and home.location.ready_at > now
    return because("machine_boots" if boots else "room_soon", location=home.location.name, seconds=seconds)
