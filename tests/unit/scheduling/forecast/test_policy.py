"""What is done now: jobs begin, machines are launched and released, and a plan holds as long as all goes as planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import SLACK, Actions, Planner, act, find_prefetches
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import pose
from tests.reasons import clauses
from tests.services.packing import catalogue
from tests.services.planned import planned_actions

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
PROBLEM = pose([], [], GOODS, InstanceLimits(), Objective(), 0.0, None)
BOOT = 60.0


def step(name: str, seconds: float, *parents: str, cpus: float = 2) -> WorkflowStep:
    return WorkflowStep(PlannedJob(name, Resources(cpus, 1), run="r"), seconds, parents)


class Workflow:
    """Steps, machines and a planner for them."""

    def __init__(self, *steps: WorkflowStep, locations: tuple[str, ...] = ()) -> None:
        self.steps = {each.job.name: each for each in steps}
        self.locations = [self.location(each) for each in locations]
        self.planner = Planner(BOOT)

    @staticmethod
    def location(name: str, ready_at: float | None = None) -> Location:
        return Location(
            name, Resources(2, 4096), instance_type="small", usd_per_hour=0.36, ready_at=ready_at, idle_since=0.0
        )

    def decide(self, now: float) -> Actions:
        waiting = [
            name
            for name, each in self.steps.items()
            if each.begun is None and not self.steps.keys() & set(each.parents)
        ]
        return planned_actions(
            self.planner, Forecast(self.steps, {"r": 0.0}), waiting, self.locations, PROBLEM, now=now
        )

    def begin(self, name: str, location: str, now: float) -> None:
        its = self.steps[name]
        self.steps[name] = replace(its, begun=now, location=location)
        self.locations = [
            replace(each, used=its.job.resources, jobs=1, idle_since=None) if each.name == location else each
            for each in self.locations
        ]

    def end(self, name: str) -> None:
        its = self.steps.pop(name)
        self.locations = [
            replace(each, used=Resources(), jobs=0, idle_since=0.0) if each.name == its.location else each
            for each in self.locations
        ]


def test_a_machine_boots_while_its_step_waits_for_another() -> None:
    """It is paid for while it boots in any case, so it boots before what it is for can begin."""
    here = Workflow(step("a", 100), step("b", 50, "a"), step("c", 50, "a"), locations=("up",))
    actions = here.decide(0.0)
    assert [(each.job, each.location) for each in actions.placements] == [("a", "up")]
    assert actions.launches == ()
    assert actions.look == pytest.approx(100 - BOOT)
    here.begin("a", "up", 0.0)
    actions = here.decide(40.0)
    assert [each.instance_type for each in actions.launches] == ["small"]
    assert here.planner.plans == 1


def test_a_run_that_begins_awaits_what_comes_free_within_a_boot() -> None:
    """It takes no longer by that than on a machine of its own."""
    busy = WorkflowStep(PlannedJob("x", Resources(2, 1), run="q"), 100.0, begun=0.0, location="up")
    up = replace(Workflow.location("up"), used=busy.job.resources, jobs=1, idle_since=None)

    def launches(free_in: float, began: float) -> int:
        steps = {"x": replace(busy, seconds=free_in), "a": step("a", 300)}
        forecast = Forecast(steps, {"q": 0.0, "r": began})
        return len(planned_actions(Planner(BOOT), forecast, ["a"], [up], PROBLEM, now=0.0).launches)

    assert launches(50.0, began=0.0) == 0
    assert launches(200.0, began=0.0) == 1


def test_a_plan_holds_until_something_goes_another_way() -> None:
    here = Workflow(step("a", 100), step("b", 50, "a"), locations=("up",))
    here.decide(0.0)
    here.begin("a", "up", 0.0)
    here.decide(50.0)
    assert here.decide(100.0 + SLACK).placements == ()
    assert here.planner.plans == 1
    here.decide(101.0 + SLACK)  # a runs for longer
    assert here.planner.plans == 2
    here.end("a")
    actions = here.decide(150.0)  # and has ended
    assert here.planner.plans == 3
    assert [each.job for each in actions.placements] == ["b"]
    here.begin("b", "up", 150.0)
    here.steps["new"] = step("new", 10)
    here.decide(151.0)
    assert here.planner.plans == 4
    here.locations.append(here.location("another"))
    here.decide(152.0)
    assert here.planner.plans == 5
    here.locations = []
    here.decide(153.0)
    assert here.planner.plans == 6


def at_one_machine(used: float, *, seconds: float = 50.0, **starts: float) -> tuple[Schedule, Forecast]:
    """Steps of two cpus that begin at times on a machine of two, of which so many are in use."""
    there = replace(Workflow.location("up"), used=Resources(used, 0))
    machine = PlannedMachine(BOOT, 0.0, there)
    steps = {name: step(name, seconds) for name in starts}
    machine.steps = list(steps)
    until = {name: start + seconds for name, start in starts.items()}
    return Schedule([machine], starts, until, dict.fromkeys(starts, machine)), Forecast(steps)


def test_what_is_overdue_is_looked_at_when_the_plan_holds_no_more() -> None:
    """At the moment until which it holds nothing would follow, and nothing would be looked at again."""
    here = Workflow(step("a", 100), step("b", 50, "a"), locations=("up",))
    here.decide(0.0)
    here.begin("a", "up", 0.0)
    look = here.decide(50.0).look
    assert look is not None
    here.decide(look)
    assert here.planner.plans == 2


@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0])
def test_a_machine_boots_for_a_step_only_if_it_will_probably_begin_by_then(spread: float) -> None:
    """Of jobs with such a spread that have taken 940 s half take another quarter of an hour at least."""
    first = replace(step("a", 1000.0), spread=spread)
    here = Workflow(first, step("b", 500.0, "a"), step("c", 500.0, "a"), locations=("up",))
    look = here.decide(0.0).look
    assert look is not None
    assert look == pytest.approx(1000.0 - BOOT)
    here.begin("a", "up", 0.0)
    launches, now = 0, look
    while now < 1000.0:
        actions = here.decide(now)
        launches += len(actions.launches)
        now = actions.look or 1000.0
        if launches:
            break
    assert (launches, here.planner.plans) == ((0, 2) if spread == 1.0 else (1, 1 if spread == 0.0 else 2))


@pytest.mark.parametrize(
    ("spread", "measured", "ahead", "expected"),
    [(1.2, 0, None, 0), (1.2, 1, None, 1), (0.0, 0, None, 1), (1.2, 0, True, 1), (0.0, 0, False, 0)],
)
def test_nothing_boots_ahead_for_a_task_of_which_none_has_ended_unless_its_hint_says_so(
    spread: float, measured: int, ahead: bool | None, expected: int
) -> None:
    """It may take a second, and another one of it then needs no machine of its own."""
    second = replace(step("b", 500.0, "a", cpus=4), spread=spread, measured=measured, ahead=ahead)
    here = Workflow(step("a", 100.0), second, locations=("up",))
    here.decide(0.0)
    here.begin("a", "up", 0.0)
    assert len(here.decide(50.0).launches) == expected
    if not expected:
        here.end("a")
        assert len(here.decide(100.0).launches) == 1, "now it waits"


def test_what_a_machine_was_launched_for_has_it_though_others_may_come_first() -> None:
    """Else it would wait for another one that is launched, at each new plan, and be the last that has room."""
    unknown = [replace(step(name, 400.0, "first"), spread=1.2) for name in "abcdefgh"]
    waiting = replace(step("z", 400.0), spread=1.2)
    here = Workflow(replace(step("first", 50.0), spread=1.2), *unknown, waiting, locations=("up",))
    here.begin("first", "up", 0.0)
    here.locations.append(here.location("new", ready_at=BOOT))
    assert here.decide(30.0).launches == ()
    here.planner.schedule = None  # something has gone another way
    assert [(each.job, each.location) for each in here.decide(BOOT).placements] == [("z", "new")]


def test_what_should_have_begun_and_has_no_room_is_looked_at_again() -> None:
    """Else it would wait until something ends, and be planned anew only then."""
    schedule, forecast = at_one_machine(2, a=10.0)
    actions = act(schedule, ["a"], PROBLEM, forecast, 10.0)
    assert [each.job for each in actions.waits] == ["a"]
    assert actions.look is not None
    assert 10 + SLACK < actions.look <= 10 + SLACK + 1, "as soon as the plan holds no longer"


def test_room_goes_to_what_is_to_begin_first() -> None:
    schedule, forecast = at_one_machine(0, late=10.3, early=10.0)
    actions = act(schedule, ["late", "early"], PROBLEM, forecast, 10.0)
    assert [each.job for each in actions.placements] == ["early"]
    assert [each.job for each in actions.waits] == ["late"]


def behind(forecast: Forecast, seconds: float, begun: float = 5.0) -> Forecast:
    """What is to come where a step that takes so long runs on the machine."""
    runs = replace(step("runs", seconds), begun=begun, location="up")
    return Forecast({**forecast.steps, "runs": runs})


def test_what_is_short_and_next_on_a_machine_may_go_there_before_there_is_room() -> None:
    """Its agent begins that as soon as something ends; a look of the controller would come a second later."""
    starts = {"next": 11.0, "soon": 10.0 + SLACK, "later": 10.5 + SLACK}
    schedule, forecast = at_one_machine(2, seconds=10, **starts)
    here = behind(forecast, 10)
    assert find_prefetches(schedule, here, starts, 10.0, 10.0 + SLACK) == {"next": "up", "soon": "up"}
    assert find_prefetches(schedule, here, {"soon"}, 11.0, 11.0 + SLACK) == {}, "the next one is still to come"
    assert find_prefetches(schedule, here, {"soon"}, 11.0, 11.0 + SLACK, withheld={"next"}) == {"soon": "up"}
    assert find_prefetches(schedule, forecast, starts, 10.0, 10.0 + SLACK) == {}, (
        "nothing runs there that is about to end"
    )
    assert find_prefetches(schedule, behind(forecast, 11), starts, 10.0, 10.0 + SLACK) == {}, (
        "it loses little behind a long one"
    )
    assert find_prefetches(schedule, behind(forecast, 1), starts, 10.0, 10.0 + SLACK) == {}, (
        "which takes longer than expected"
    )
    assert find_prefetches(schedule, behind(forecast, 1), starts, 10.0, 10.0 + 6.0).keys() == starts.keys(), (
        "its end may not have been read yet where a site takes long to answer"
    )
    long, others = at_one_machine(2, seconds=11, **starts)
    assert find_prefetches(long, behind(others, 10), starts, 10.0, 10.0 + SLACK) == {}, (
        "a more urgent one may come before its turn"
    )
    for known in ({"spread": 0.1, "measured": 1}, {"seconds": 1.0, "spread": 0.5}):
        unsure = {name: replace(each, **known) for name, each in here.steps.items()}
        assert find_prefetches(schedule, Forecast(unsure), starts, 10.0, 10.0 + SLACK) == {}, (
            "it may as well be a long one"
        )
    schedule.machines[0].released = True
    assert find_prefetches(schedule, here, starts, 10.0, 10.0 + SLACK) == {}


def test_what_begins_now_and_is_short_may_have_ended_before_there_is_another_look() -> None:
    schedule, forecast = at_one_machine(0, seconds=0.1, first=10.0, second=10.1, third=10.2, late=12.1)
    assert find_prefetches(schedule, forecast, forecast.steps, 10.0, 10.0 + SLACK).keys() == {
        "first",
        "second",
        "third",
    }


@pytest.mark.parametrize(("seconds", "is_waiting"), [(10.0, False), (300.0, False), (300.0, True)])
def test_nothing_is_prefetched_that_could_take_the_room_of_what_is_to_begin_before(
    seconds: float, is_waiting: bool
) -> None:
    """It would begin on a cpu that has just come free, a moment before that comes for which this was to be kept."""
    schedule, forecast = at_one_machine(2, seconds=10, first=10.5, critical=10.6, second=10.7)
    here = behind(forecast, 10)
    steps = {**here.steps, "critical": replace(here.steps["critical"], seconds=seconds)}
    waiting = {"first", "second", *(("critical",) if is_waiting else ())}
    assert find_prefetches(schedule, Forecast(steps), waiting, 10.0, 10.0 + SLACK) == {"first": "up"}


def test_what_takes_a_moment_itself_keeps_nothing_from_a_machine() -> None:
    schedule, forecast = at_one_machine(2, seconds=10, coming=10.5, second=10.7)
    here = behind(forecast, 10)
    steps = {**here.steps, "coming": replace(here.steps["coming"], seconds=0.1)}
    assert find_prefetches(schedule, Forecast(steps), {"second"}, 10.0, 10.0 + SLACK) == {"second": "up"}


def test_a_fleet_is_chosen_beside_the_last_one_as_long_as_nothing_has_come() -> None:
    here = Workflow(step("a", 100), step("b", 50, "a"), locations=("up",))
    assert here.planner.fleets(Forecast(here.steps)) == [], "there was none"
    here.decide(0.0)
    tried = here.planner.fleets(Forecast(here.steps, {"r": 0.0}))
    assert tried[0] == here.planner.fleet
    here.steps["new"] = step("new", 10)
    assert here.planner.fleets(Forecast(here.steps, {"r": 0.0})) == []


def test_a_machine_that_nothing_needs_before_another_would_have_booted_goes() -> None:
    here = Workflow(step("a", 300), step("b", 50, "a", cpus=2), locations=("first", "second", "third"))
    actions = here.decide(0.0)
    place = actions.placements[0].location
    assert {each.location for each in actions.releases} == {"first", "second", "third"} - {place}
    assert {clauses(each.reason) for each in actions.releases} == {"no job is expected to need it"}


def test_what_waits_says_for_what() -> None:
    here = Workflow(step("long", 600), step("a", 20), step("b", 20), step("c", 20), locations=("first", "second"))
    actions = here.decide(0.0)
    assert len(actions.placements) == 2
    reasons = sorted(clauses(each.reason) for each in clauses(actions.waits))
    assert reasons == [
        (
            "second will have room in about 20 s: waiting for that room does not delay the run, or is cheaper "
            "than a new machine"
        ),
        (
            "second will have room in about 40 s: waiting for that room does not delay the run, or is cheaper "
            "than a new machine"
        ),
    ]
    here = Workflow(step("a", 20))
    [wait] = clauses(here.decide(0.0).waits)
    assert clauses(wait.reason) == "a machine is being launched for it, and will be ready in about 60 s"
    here.locations = [here.location("boots", ready_at=60.0)]
    [wait] = clauses(here.decide(10.0).waits)
    assert clauses(wait.reason) == "boots is booting, and will be ready for it in about 50 s"
    assert here.planner.plans == 1  # it is the one that was launched


def test_what_fits_nothing_is_refused() -> None:
    assert "large" in clauses(Workflow(step("huge", 10, cpus=64)).decide(0.0).refused["huge"])


def test_what_fits_nothing_and_has_begun_after_all_is_planned() -> None:
    here = Workflow(step("huge", 100, cpus=99), step("a", 100), step("b", 50, "huge"), locations=("up",))
    assert here.decide(0.0).refused.keys() == {"huge"}
    here.begin("huge", "elsewhere", 1.0)
    assert here.decide(1.0).refused == {}
    assert here.planner.schedule is not None
    assert here.planner.schedule.until["huge"] == pytest.approx(101.0)


def test_nothing_is_placed_where_something_still_runs() -> None:
    """A step that ends by a second later than planned holds up the one behind it, and no plan is made for that."""
    here = Workflow(step("a", 100), step("b", 100), locations=("up",))
    here.planner.hurry = 0.0
    here.decide(0.0)
    here.begin("a", "up", 0.0)
    assert here.decide(100.0).placements == ()
    here.end("a")
    assert [each.job for each in here.decide(101.0).placements] == ["b"]
    assert here.planner.plans == 1
