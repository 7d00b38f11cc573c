"""What to do now, according to the schedule of all upcoming work: starts, launches, releases, waits. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from lading.scheduling.forecast.choice import beside, on_sale
from lading.scheduling.forecast.fleet_work import Fleet, FleetWork
from lading.scheduling.forecast.fleets import FleetRun
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import Placement, PlannedLaunch, Release, Wait
from lading.scheduling.model.prediction import is_surely_short
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.packing.problem import Problem, Shape, Vector, fits, refusal, vector

# Whatever is planned within this time is done now, seconds.
SOON = 0.5
# A plan holds as long as no start or end deviates from it by more than this, seconds.
SLACK = 2.0
# Times in reasons are rounded up to one of these, or to a multiple of the last, seconds.
ABOUT = (5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 240, 300, 600)
# After this many plans with neighbours of the last fleet, all fleets are tried again, as when a run starts: the
# upcoming work may have another shape by then.
PLANS_BESIDE_ONE_FLEET = 25


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do now.

    :param placements: jobs that start now on machines that are up
    :param launches: machines that have to boot now to be up when their first step can start
    :param releases: empty machines that are not needed before a new one could have booted
    :param waits: the jobs that do not start, each with the reason
    :param refused: steps that fit no existing machine and nothing that can be launched, each with the reason
    :param look: when there is something to do next even if nothing happens, epoch seconds; None: never
    :param launched_for: the steps planned on each launch, by its name
    :param needed: when the next step starts on each existing machine, epoch seconds, by its name; machines that are not
        needed any more are omitted
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
    """Decides what to do now, based on the fleet that was chosen last.

    The fleet and the current state determine when and where every step starts. The schedule is recomputed only when
    something deviates from it.

    :param boot: seconds from a launch to the first job
    :param hurry: the value of time (:mod:`lading.scheduling.forecast.choice`)
    :ivar plans: how often a fleet was chosen
    :ivar fleet: the fleet that was chosen last; None: nothing is launched
    :ivar chosen_for: the steps for which it was chosen
    :ivar not_ahead: the steps for which machines are launched only once they wait, and which do not wait yet
    """

    def __init__(self, boot: float, hurry: float = 1.0) -> None:
        self.boot, self.hurry, self.plans = boot, hurry, 0
        self.fleet: Fleet | None = None
        self.chosen_for: frozenset[str] = frozenset()
        self.schedule: Schedule | None = None
        self.machines = 0
        """The number of machines in the last schedule."""
        self.worth: Mapping[str, tuple[float | None, float | None]] = {}
        self.open: frozenset[str] = frozenset()
        self.not_ahead: frozenset[str] = frozenset()

    def fleets(self, forecast: Forecast) -> list[Fleet]:
        """The neighbours of the last fleet, if they are the only candidates because all new jobs are runs of their own;
        empty: try all."""
        if self.fleet is None or not self.plans % PLANS_BESIDE_ONE_FLEET or not self._is_worth_the_same(forecast):
            return []
        of_run = Counter(step.job.run for step in forecast.steps.values())
        new = (step for name, step in forecast.steps.items() if name not in self.chosen_for)
        return [] if any(of_run[step.job.run] > 1 for step in new) else beside(self.fleet, self.machines)

    def is_chosen_for(self, forecast: Forecast) -> bool:
        """Whether the fleet was chosen for all these steps, with the same values of time and deadlines."""
        return self.chosen_for >= forecast.steps.keys() and self._is_worth_the_same(forecast)

    def _is_worth_the_same(self, forecast: Forecast) -> bool:
        return all(self.worth.get(run, its) == its for run, its in worth(forecast).items())

    def adopt(self, fleet: Fleet | None, forecast: Forecast) -> None:
        """Use a fleet from now on.

        :param forecast: the forecast for which it was chosen
        """
        self.schedule = None
        self.fleet, self.chosen_for, self.worth = fleet, frozenset(forecast.steps), worth(forecast)
        self.plans += 1

    def follow(self, work: FleetWork) -> None:
        """Compute the schedule for the fleet, as far as it is on sale."""
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
        """What the schedule demands now; it must hold (:meth:`holds`).

        :param kept: the machines that stay in any case
        """
        schedule = self.schedule
        assert schedule is not None
        self.open = frozenset(forecast.steps)
        actions = act(schedule, waiting, problem, forecast, now, kept, self.not_ahead)
        # Steps that were to start later on a machine released now have no place in this schedule.
        is_whole = not any(
            machine.released and machine.needed(schedule, forecast) < math.inf for machine in schedule.machines
        )
        self.schedule = schedule if is_whole else None
        return actions

    def holds(self, forecast: Forecast, locations: Sequence[Location], problem: Problem, now: float) -> bool:
        """Whether there is a schedule and everything has gone as planned since it was made.

        A launch that a budget or a limit does not allow is requested again in each tick; until it is allowed, the steps
        planned on its machine and behind them can be overdue.

        :param problem: what can be launched
        """
        if self.schedule is None or not find_machines(self.schedule, locations, problem, now):
            return False
        starts, until, withheld = self.schedule.starts, self.schedule.until, self.withheld(forecast)
        for name, step in forecast.steps.items():
            if not step.seconds:
                continue  # it only marks the end of others
            if name not in starts:
                # Steps known to the schedule but missing from it fit nothing, unless they have started after all.
                if name not in self.open or step.begun is not None:
                    return False
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
        """Whether a machine is due to be launched now for a step that is now expected to start later than planned.

        A running step is planned to finish at the median. One that has run for that long takes longer than the median,
        so its end is no nearer than before; a machine would wait for it, be released, and be launched again.
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
    return {run: (forecast.hurries.get(run), forecast.finish_by.get(run)) for run in forecast.began}


def find_machines(schedule: Schedule, locations: Sequence[Location], problem: Problem, now: float) -> bool:
    """Check that the machines match the schedule, and refresh the schedule's view of them.

    A requested machine that does not exist was withheld, if it can still be launched, and is requested again.
    """
    there = {each.name: each for each in locations}
    for machine in schedule.machines:
        if machine.location is not None and not machine.released:
            location = there.pop(machine.location.name, None)
            if location is None or abs((location.ready_at or now) - (machine.location.ready_at or now)) > SLACK:
                return False
            machine.location = location
    asked = [each for each in schedule.machines if each.location is None and each.launched and each.bin is not None]
    # Some launches of a kind may be withheld: match each machine first to the steps for which it was launched.
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
    """The first location that matches what a machine was launched as, or None.

    :param are_promised: whether the location must have been launched for steps of the machine
    """
    assert machine.bin is not None
    kind = machine.bin.type.name, machine.bin.offering.capacity_type
    for each in there.values():
        is_of_kind = (each.instance_type, each.capacity_type) == kind
        if is_of_kind and not (are_promised and each.promised.isdisjoint(machine.steps)):
            return each
    return None


def find_withheld(schedule: Schedule, forecast: Forecast) -> AbstractSet[str]:
    """The steps that are planned on withheld machines, and all steps that wait for them."""
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
    def __init__(self, location: Location) -> None:
        self.capacity, self.used = vector(location.capacity), vector(location.used)

    def take(self, need: Vector) -> bool:
        """Take this much room. Returns False if there is not enough."""
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
    """What a schedule demands now.

    :param kept: the machines that stay in any case
    :param not_ahead: see :class:`Planner`
    """
    placements, waits = [], []
    looks = [schedule.until[name] + SLACK + SOON for name, step in forecast.steps.items() if step.begun is not None]
    refused = {}
    reasons: dict[tuple[int, int], Reason] = {}  # many steps wait for the same machine
    free = {each.location.name: FreeRoom(each.location) for each in schedule.machines if each.location is not None}
    # Rounding of ticks could give one step's room to another that starts a moment later, so go by start.
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
            key = id(home), rounded_up(begin - now)
            if key not in reasons:
                reasons[key] = wait_reason(home, key[1], now)
            waits.append(Wait(name, 1, reasons[key]))
            # A step that should have started is planned again if it still has no room by then.
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
    """The existing machines to which waiting steps are sent shortly before there is room, by step.

    An agent starts a job it has as soon as there is room, so short steps lose no time in transit where other short ones
    finish. But it may start such a step earlier than planned, in room that becomes free for a step it does not have:
    one that is not queued yet, or a long one that waits elsewhere. So no step is sent that starts after such a step, or
    after ``until``.

    :param now: epoch seconds
    :param until: by when something seen now takes effect at the site, epoch seconds
    :param withheld: steps that wait for a launch that is not allowed now
    """
    steps = forecast.steps
    known = ((name, step) for name, step in steps.items() if step.is_measured)
    short = {name for name, step in known if is_surely_short(step.seconds, step.spread)}
    # Behind long steps it would gain little, and if their ends are unknown it could wait there for long.
    at_work = [steps[name] for name in short if steps[name].begun is not None]
    # For as long as the site takes to answer, its end may be unknown here.
    turning = {step.location for step in at_work if now <= (step.begun or 0.0) + step.seconds + (until - now)}
    found = {}
    for machine in schedule.machines:
        if machine.location is None or machine.released:
            continue
        names = (name for name in machine.steps if name in steps and steps[name].begun is None)
        begins = {name: schedule.starts[name] for name in names if name not in withheld}
        going = {name: start for name, start in begins.items() if name in waiting and name in short}
        # A step that starts there now may have finished by the next look.
        if machine.location.name in turning or any(start <= now + SOON for start in going.values()):
            others = (start for name, start in begins.items() if name not in going and steps[name].seconds > SOON)
            last = min([until, *others])
            found.update({name: machine.location.name for name, start in going.items() if start <= last})
    return found


def may_be_launched(machine: PlannedMachine, forecast: Forecast, not_ahead: Collection[str]) -> bool:
    """Whether a machine is for a step that waits, or for which machines are launched ahead.

    A machine that is due but must not be launched yet stays planned; otherwise each tick would make a new plan until
    then.
    """
    return not not_ahead or any(name in forecast.steps and name not in not_ahead for name in machine.steps)


def to_launch_and_release(
    schedule: Schedule, forecast: Forecast, now: float, kept: Collection[str], not_ahead: Collection[str]
) -> tuple[dict[str, PlannedMachine], list[Release], dict[str, float], list[float]]:
    """What to launch and release now.

    :returns: the machines to launch, by name; the releases; when each existing machine is needed; and when to check all
        of this again, epoch seconds
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
    """Seconds for a reason, coarsely: a reason that changes every second would be stored as often."""
    return next((each for each in ABOUT if seconds <= each), round(math.ceil(seconds / ABOUT[-1]) * ABOUT[-1]))


def wait_reason(home: PlannedMachine, seconds: int, now: float) -> Reason:
    if home.location is None:
        return because("machine_launched", seconds=seconds)
    boots = home.location.ready_at is not None and home.location.ready_at > now
    return because("machine_boots" if boots else "room_soon", location=home.location.name, seconds=seconds)
