"""Schedules: what must hold for each, whatever is to be done, and the choice between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lading.scheduling.forecast.choice import beside, choose, is_hopeless, sizes_between
from lading.scheduling.forecast.draws import draws, quantiles
from lading.scheduling.forecast.fleet_work import Fleet, FleetWork, offers
from lading.scheduling.forecast.fleets import FleetRun
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import Problem, Vector, fits, pose, vector
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
BOOT, NOW = 60.0, 1000.0
ONE = Resources(1, 512)


def posed(most: int | None = None) -> Problem:
    return pose([], [], GOODS, InstanceLimits(instances=most), Objective(), NOW, None)


def to_do(forecast: Forecast, locations: Sequence[Location] = (), problem: Problem | None = None) -> FleetWork:
    return FleetWork(forecast, locations, problem or posed(), BOOT, NOW)


def planned(
    forecast: Forecast,
    locations: Sequence[Location] = (),
    problem: Problem | None = None,
    hurry: float = 1.0,
    fleets: Sequence[Fleet] = (),
) -> Schedule:
    """The schedule by the best fleet of all, or of those given."""
    work = to_do(forecast.by_those_at_work(NOW), locations, problem)
    return FleetRun(work, choose(work, hurry, fleets=fleets)).schedule()


def there(name: str, cpus: float = 2, **more: object) -> Location:
    return Location(name, Resources(cpus, 4 * 1024), instance_type="small", usd_per_hour=0.36, **more)  # type: ignore[arg-type]


@st.composite
def forecasts(draw: st.DrawFn) -> Forecast:
    steps: dict[str, WorkflowStep] = {}
    for number in range(draw(st.integers(1, 10))):
        parents = draw(st.lists(st.sampled_from(sorted(steps)), max_size=3, unique=True)) if steps else []
        parents = [each for each in parents if steps[each].begun is None or draw(st.booleans())]
        job = PlannedJob(
            f"{number}", Resources(draw(st.sampled_from([1, 2, 8])), 1024), run=draw(st.sampled_from("xy"))
        )
        steps[job.name] = WorkflowStep(job, draw(st.sampled_from([0.5, 7.0, 90.0, 400.0])), tuple(parents))
    return Forecast(steps, {"x": NOW - 100})


def with_a_gap() -> Forecast:
    """The third machine begins later, so that a fourth one has time before it."""
    needs = [
        ("0", 2, 0.5, ()),
        ("1", 1, 400.0, ()),
        ("2", 1, 90.0, ()),
        ("3", 8, 90.0, ("0",)),
        ("4", 8, 400.0, ("2",)),
        ("5", 1, 0.5, ()),
        ("6", 2, 90.0, ()),
        ("7", 1, 0.5, ("1",)),
        ("8", 2, 400.0, ()),
    ]
    steps = {
        name: WorkflowStep(PlannedJob(name, Resources(cpus, 1024), run="y" if name in "067" else "x"), seconds, parents)
        for name, cpus, seconds, parents in needs
    }
    return Forecast(steps, {"x": NOW - 100})


@example(with_a_gap(), 0.0, 3, False)
@given(forecasts(), st.sampled_from([0.0, 0.5, 1.0, 10.0]), st.sampled_from([None, 1, 3]), st.booleans())
def test_what_holds_for_every_schedule(forecast: Forecast, hurry: float, most: int | None, is_up: bool) -> None:
    locations = [there("up", 8), there("boots", 8, ready_at=NOW + 20)][: 2 if is_up else 0]
    most = None if most is None else most + len(locations)
    schedule = planned(forecast, locations, posed(most), hurry=hurry)
    assert schedule.starts.keys() == forecast.steps.keys()
    for name, step in forecast.steps.items():
        assert schedule.until[name] == schedule.starts[name] + step.seconds
        assert all(schedule.until[parent] <= schedule.starts[name] for parent in step.parents)
    for machine in schedule.machines:
        up = NOW if machine.location is not None else NOW + BOOT
        assert all(
            schedule.starts[name] >= max(up, getattr(machine.location, "ready_at", None) or up)
            for name in machine.steps
        )
    assert sorted(name for machine in schedule.machines for name in machine.steps) == sorted(forecast.steps)
    for machine in schedule.machines:
        for at in (schedule.starts[name] for name in machine.steps):
            at_work = [name for name in machine.steps if schedule.starts[name] <= at < schedule.until[name]]
            used = sum((forecast.steps[name].job.resources for name in at_work), Resources())
            assert fits(vector(used), capacity(machine))
    assert schedule.usd == pytest.approx(sum(usd(machine, schedule) for machine in schedule.machines))
    if most is not None:
        spans = [
            (busy(machine, schedule)[0][0] - (0.0 if machine.location else BOOT), busy(machine, schedule)[-1][1])
            for machine in schedule.machines
            if machine.steps
        ]
        assert all(sum(begin <= at < end for begin, end in spans) <= most for at, _ in spans)


@given(forecasts(), st.integers(0, 3), st.integers(0, 4), st.sampled_from([1, None]))
def test_a_simulation_is_valid_for_the_fleets_that_it_reaches(
    forecast: Forecast, small: int, begun: int, most: int | None
) -> None:
    locations = [there(f"m{number}", ready_at=NOW + 20 * number) for number in range(small)] + [there("large", 8)]
    steps = dict(forecast.steps)
    for name, step in [*steps.items()][:begun]:
        if not step.parents:
            steps[name] = replace(step, begun=NOW - 5.0, location="large", job=replace(step.job, resources=ONE))
    locations[-1] = replace(locations[-1], used=ONE * sum(step.begun is not None for step in steps.values()))
    problem = posed(None if most is None else most + len(locations))
    work = to_do(replace(forecast, steps=steps), locations, problem)
    some = [Fleet(problem.bins[0], size, stretch) for size in (1, 2, 3, 5, math.inf) for stretch in (0.0, 1.0, 3.0)]
    runs = [FleetRun(work, fleet) for fleet in some]
    for run in runs:
        for fleet, other in zip(some, runs, strict=True):
            if run.reach.covers(fleet.size, work.deadlines(fleet.stretch) if fleet.stretch else None):
                assert (other.usd, other.ends, other.starts, other.homes) == (run.usd, run.ends, run.starts, run.homes)
                assert (other.count, len(other.machines)) == (run.count, len(run.machines))
                assert (other.is_whole, other.is_limited) == (run.is_whole, run.is_limited)


def test_a_fleet_is_simulated_once_if_neither_size_nor_stretch_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[Fleet | None] = []

    class Noted(FleetRun):
        def __init__(self, work: FleetWork, fleet: Fleet | None, *more: Any) -> None:
            simulated.append(fleet)
            super().__init__(work, fleet, *more)

    monkeypatch.setattr("lading.scheduling.forecast.choice.FleetRun", Noted)
    offer = posed().bins[0]
    some = beside(Fleet(offer), 2)
    work = to_do(run_of(one("a", 100.0), one("b", 100.0, "a")), [there("up"), there("other")])
    assert choose(work, fleets=some) == Fleet(offer)
    assert simulated == [Fleet(offer)]
    simulated.clear()
    work = to_do(run_of(*(one(f"{number}", 1000.0) for number in range(4))))
    choose(work, fleets=some)
    assert simulated == [fleet for fleet in some if fleet.size < 4 or fleet == some[0]]


def capacity(machine: PlannedMachine) -> Vector:
    if machine.location is not None:
        return vector(machine.location.capacity)
    assert machine.bin is not None
    return machine.bin.capacity


def busy(machine: PlannedMachine, schedule: Schedule) -> list[tuple[float, float]]:
    """From when to when a machine has steps, apart from each other."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((schedule.starts[name], schedule.until[name]) for name in machine.steps):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def usd(machine: PlannedMachine, schedule: Schedule) -> float:
    """What it costs to keep it through gaps no longer than a boot, and to release it in longer ones."""
    its = busy(machine, schedule)
    if machine.location is None:
        assert machine.bin is not None
        price, paid = machine.bin.price, BOOT
    else:
        price, paid = machine.location.usd_per_hour, 0.0
        its = [(machine.since, machine.since), *its]
    paid += sum(end - begin for begin, end in its)
    paid += sum(min(after[0] - before[1], BOOT) for before, after in pairwise(its))
    return paid * price / 3600


def test_hurry_is_what_time_is_worth() -> None:
    """Eight jobs of a quarter of an hour: the more machines, the sooner, for a boot more each."""
    forecast = Forecast(
        {f"{number}": WorkflowStep(PlannedJob(f"{number}", Resources(2, 1)), 900.0) for number in range(8)}
    )
    ends, usd = [], []
    for hurry in (0.0, 1.0, 10.0):
        found = planned(forecast, hurry=hurry)
        ends.append(found.ends[None] - NOW)
        usd.append(found.usd)
    assert ends[0] == pytest.approx(8 * 900 + BOOT)  # one machine
    assert ends[1:] == [900 + BOOT] * 2
    assert usd[0] < usd[1] == pytest.approx(usd[2])


def test_a_step_that_can_wait_for_nothing_waits() -> None:
    """Beside a long one a short one runs first on the machine that is there, and the other short one after it."""
    steps = {
        "long": WorkflowStep(PlannedJob("long", Resources(2, 1)), 600.0),
        **{f"short{number}": WorkflowStep(PlannedJob(f"short{number}", Resources(2, 1)), 100.0) for number in range(3)},
    }
    schedule = planned(Forecast(steps), [there("up"), there("too")], posed())
    assert len(schedule.machines) == 2
    assert len({id(schedule.homes[f"short{number}"]) for number in range(3)}) == 1
    assert schedule.ends[None] == NOW + 600


def test_a_run_may_go_on_so_many_machines_on_which_its_steps_begin_as_soon_as_they_can() -> None:
    """Each step where it costs the least is planned into the gaps of a large machine; two small ones are full."""
    chain = {
        f"c{number}": WorkflowStep(
            PlannedJob(f"c{number}", Resources(2, 1)), 100.0, (f"c{number - 1}",) if number else ()
        )
        for number in range(6)
    }
    rest = {f"r{number}": WorkflowStep(PlannedJob(f"r{number}", Resources(1, 1)), 50.0) for number in range(22)}
    forecast = Forecast({**chain, **rest})
    small = posed().bins[0]
    for size in (1, 2, 3):
        schedule = planned(forecast, fleets=[Fleet(small, size)])
        assert len(schedule.machines) == size
        assert schedule.starts.keys() == forecast.steps.keys()
    assert planned(forecast).usd <= 2 * (600 + BOOT) * 0.36 / 3600 + 1e-9
    one, other = there("one"), there("other")
    runs = WorkflowStep(PlannedJob("runs", Resources(1, 1)), 900.0, begun=NOW - 1, location="other")
    few = Forecast({"runs": runs, "r0": rest["r0"], "r1": rest["r1"]})
    homes = planned(few, [one, other], fleets=[Fleet(small, 1)]).homes
    assert {home.location for home in homes.values()} == {other}, "on the one that stays in any case"


@pytest.mark.parametrize("fleet", [{"size": 1}, {"stretch": 10.0}], ids=["a small fleet", "a slow run"])
def test_what_starts_at_once_has_room_however_few_machines_are_planned(fleet: dict[str, float]) -> None:
    [offer] = (each for each in offers(to_do(run_of(one("a", 10))), 4) if each.type.name == "small")

    def starts(**known: object) -> list[float]:
        steps = [one(f"m{number}", 100.0, "a", **known) for number in range(3)]
        schedule = FleetRun(to_do(run_of(one("a", 1000.0), *steps)), Fleet(offer, **fleet)).schedule()
        return [schedule.starts[each.job.name] - schedule.until["a"] for each in steps]

    assert starts(at_once=True) == [0.0] * 3
    assert starts() == [0.0, 100.0, 200.0]


def test_there_is_a_schedule_where_a_fleet_is_too_small_or_off_sale() -> None:
    at_work = {
        f"{n}": WorkflowStep(PlannedJob(f"{n}", Resources(2, 1)), 600.0, begun=NOW - 1, location=f"m{n}")
        for n in range(4)
    }
    forecast = Forecast({**at_work, "x": WorkflowStep(PlannedJob("x", Resources(2, 1)), 600.0)})
    machines = [there(f"m{n}") for n in range(4)]
    gone = replace(posed().bins[0], type=replace(posed().bins[0].type, name="gone"))
    for fleet in (Fleet(posed().bins[0], 1), Fleet(gone, 3)):
        schedule = planned(forecast, machines, fleets=[fleet])
        assert schedule.starts.keys() == forecast.steps.keys()


def test_what_costs_nothing_has_a_schedule() -> None:
    """Such as what asks for nothing, or where the price is 0."""
    for goods, need in ((GOODS, Resources(0, 0)), (catalogue(free=(2, 4096, 0.0)), Resources(1, 1))):
        problem = pose([], [], goods, InstanceLimits(), Objective(), NOW, None)
        forecast = Forecast({"x": WorkflowStep(PlannedJob("x", need), 600.0)})
        assert planned(forecast, [], problem).starts.keys() == {"x"}


def test_what_fits_nothing_has_no_place_nor_what_waits_for_it() -> None:
    steps = {
        "huge": WorkflowStep(PlannedJob("huge", Resources(64, 1)), 10.0),
        "after": WorkflowStep(PlannedJob("after", Resources(1, 1)), 10.0, ("huge",)),
        "other": WorkflowStep(PlannedJob("other", Resources(1, 1)), 10.0),
    }
    schedule = planned(Forecast(steps), [], posed())
    assert schedule.starts.keys() == {"other"}


@pytest.mark.parametrize("most", [1, 3, None])
def test_the_type_is_chosen_for_all_that_is_to_come(most: int | None) -> None:
    """The cheapest large machine has too little memory to fill its cpus with these jobs; a dearer one is full."""
    goods = catalogue(small=(4, 8, 0.17), lean=(64, 128, 2.5), even=(64, 256, 2.75), rich=(64, 512, 4.0))
    steps = [WorkflowStep(PlannedJob(f"s{i}", Resources(3, 8), run="r"), 900.0) for i in range(20)]
    problem = pose([], [], goods, InstanceLimits(instances=most), Objective(), 0.0, None)
    schedule = planned(Forecast({each.job.name: each for each in steps}), problem=problem)
    assert [each.bin.type.name for each in schedule.machines if each.bin is not None] == ["even"]
    assert schedule.ends == {"r": NOW + 960.0}


def run_of(*steps: WorkflowStep, **known: object) -> Forecast:
    return Forecast({each.job.name: each for each in steps}, {"r": NOW}, **known)  # type: ignore[arg-type]


def one(name: str, seconds: float, *parents: str, cpus: float = 2, **known: object) -> WorkflowStep:
    return WorkflowStep(PlannedJob(name, Resources(cpus, 1), run="r"), seconds, parents, **known)  # type: ignore[arg-type]


def test_what_runs_elsewhere_takes_time_and_no_machine() -> None:
    forecast = run_of(one("a", 100, elsewhere=True), one("b", 10, "a"))
    found = planned(forecast, [], posed())
    assert (found.starts["a"], found.starts["b"]) == (NOW, NOW + 100)
    assert [machine.steps for machine in found.machines] == [["b"]]
    assert found.usd == pytest.approx((BOOT + 10) * 0.0001)


def test_no_more_of_a_run_are_at_work_than_may_be() -> None:
    steps = [one(f"s{number}", 10) for number in range(6)]
    free = planned(run_of(*steps), [there("m", 64)], posed(0))
    assert max(free.starts.values()) == NOW
    bound = planned(run_of(*steps, most_at_once={"r": 2}), [there("m", 64)], posed(0))
    assert sorted(bound.starts.values()) == [NOW, NOW, NOW + 10, NOW + 10, NOW + 20, NOW + 20]


def test_what_others_have_on_a_machine_is_not_planned_with() -> None:
    machine = there("m", 4, used=Resources(2, 1024), jobs=1)
    found = planned(run_of(one("a", 10), one("b", 10)), [machine], posed(0))
    assert sorted(found.starts.values()) == [NOW, NOW + 10], "one after the other beside it"
    its_own = planned(run_of(one("runs", 5, begun=NOW, location="m"), one("a", 10)), [machine], posed(0))
    assert its_own.starts["a"] == NOW


def test_a_run_may_be_in_a_hurry_of_its_own() -> None:
    steps = [one(f"s{number}", 200) for number in range(4)]
    cheap = planned(run_of(*steps, hurries={"r": 0.0}), [], posed(), hurry=10.0)
    fast = planned(run_of(*steps, hurries={"r": 10.0}), [], posed(), hurry=0.0)
    assert cheap.usd < fast.usd
    assert fast.ends["r"] == NOW + BOOT + 200 < cheap.ends["r"]


def test_a_run_ends_by_when_it_shall_and_is_as_cheap_as_it_can_be_by_then() -> None:
    steps = [one(f"s{number}", 200) for number in range(4)]
    ends = {}
    for seconds in (math.inf, 700.0, 300.0, 10.0):
        forecast = run_of(*steps, finish_by={"r": NOW + seconds} if seconds < math.inf else {})
        found = planned(forecast, [], posed(), hurry=0.0)
        ends[seconds] = found.ends["r"] - NOW, found.usd
    assert ends[math.inf][0] == BOOT + 800
    assert BOOT + 200 < ends[700.0][0] <= 700
    assert ends[300.0][0] == ends[10.0][0] == BOOT + 200, "as little late as possible"
    assert ends[math.inf][1] < ends[700.0][1] < ends[300.0][1]


def test_no_more_steps_are_at_work_than_their_pool_has_slots_for() -> None:
    """One that takes more slots than there are is not held up by that: Airflow reports what is wrong with it."""
    sizes = {"a": 1, "b": 2, "c": 1, "much": 9}
    steps = {
        name: WorkflowStep(PlannedJob(name, Resources(1, 1024), run=name), 50.0, pool="p", pool_slots=size)
        for name, size in sizes.items()
    }
    steps["free"] = WorkflowStep(PlannedJob("free", Resources(1, 1024)), 50.0, pool="q")
    schedule = planned(Forecast(steps, pools={"p": 2}), [], posed(), hurry=10.0)
    for at in {schedule.starts[name] for name in sizes}:
        assert sum(sizes[name] for name in "abc" if schedule.starts[name] <= at < schedule.until[name]) <= 2
    assert schedule.starts["much"] == schedule.starts["free"] == NOW + BOOT
    assert max(schedule.until.values()) == NOW + BOOT + 100


def test_where_there_are_few_machines_priority_counts_before_the_rest_of_the_run() -> None:
    def last(priority: int) -> str:
        steps = {
            "short": WorkflowStep(PlannedJob("short", Resources(8, 1024), run="x", priority=priority), 50.0),
            "long": WorkflowStep(PlannedJob("long", Resources(8, 1024), run="y", priority=1), 400.0),
        }
        found = planned(Forecast(steps), [], posed(most=1), hurry=10.0)
        return max(found.starts, key=found.starts.__getitem__)

    assert (last(1), last(2)) == ("short", "long")


def test_the_best_number_of_machines_lies_between_those_that_are_tried_first() -> None:
    """Twice 60 steps that fill a machine each go in three waves on 20 machines."""
    steps: dict[str, WorkflowStep] = {}

    def add(name: str, seconds: float, parents: tuple[str, ...] = ()) -> str:
        steps[name] = WorkflowStep(PlannedJob(name, Resources(2, 1), run="x"), seconds, parents)
        return name

    join = add("join", 10.0, tuple(add(f"first{number}", 40.0) for number in range(60)))
    add("last", 400.0, tuple(add(f"second{number}", 40.0, (join,)) for number in range(60)))
    fleets = [Fleet(each, size) for each in posed().bins for size in range(1, 61)]
    found, *others = planned(Forecast(steps)), *(planned(Forecast(steps), fleets=[fleet]) for fleet in fleets)
    assert usd_seconds(found) <= min(map(usd_seconds, others)) * (1 + 1e-9)


def test_beside_a_fleet_are_those_that_are_a_little_smaller_or_larger() -> None:
    small = posed().bins[0]
    tried = beside(Fleet(small, 4), 3)
    assert tried[0] == Fleet(small, 4)
    assert {each.size for each in tried if not each.stretch} == {4, 3, 2, 1, 6}
    assert len(set(tried)) == len(tried)
    assert any(each.stretch for each in tried)


def test_sizes_of_fleets_are_halved_until_there_are_none_between() -> None:
    assert sizes_between(8, {0, 4, 6, 8, 12}) == [7, 10]
    assert sizes_between(8, {6, 7, 8, 9, 12}) == []
    assert sizes_between(24, {16, 24}) == [20, 36]
    assert sizes_between(1, {1, 2}) == []


def usd_seconds(schedule: Schedule) -> float:
    """USD times the seconds of its run."""
    return schedule.usd * (schedule.ends["x"] - NOW)


def wide(number: int, seconds: float = 300.0) -> Forecast:
    jobs = [PlannedJob(f"{each}", Resources(1, 1024), run="x", task="t") for each in range(number)]
    return Forecast({job.name: WorkflowStep(job, seconds, alike="t") for job in jobs}, {"x": NOW})


def test_the_more_a_run_is_in_a_hurry_the_more_it_costs_and_the_sooner_it_ends() -> None:
    """And there is a choice: most settings are not like another one."""
    found = []
    for hurry in (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0):
        schedule = planned(wide(60, 15.0), [], posed(), hurry=hurry)
        found.append((round(schedule.usd, 6), round(schedule.ends["x"] - NOW, 3)))
    assert all(after[0] >= before[0] and after[1] <= before[1] for before, after in pairwise(found))
    assert len(set(found)) >= 6


def test_ten_per_cent_longer_for_more_than_ten_per_cent_less_is_taken() -> None:
    """Nothing but USD times seconds counts, however late a run ends by that: a machine that boots for a minute for each
    job of four seconds costs more than the time is worth."""
    found = planned(wide(100, 4.0))
    fleets = [Fleet(each, size) for each in posed().bins for size in (1, 2, 3, 5, 10, 25, 50)]
    others = [planned(wide(100, 4.0), fleets=[fleet]) for fleet in fleets]
    assert usd_seconds(found) <= min(map(usd_seconds, others)) * (1 + 1e-9)
    assert found.ends["x"] > NOW + (BOOT + 4) * 1.2, "as later machines cost more than they save"


def test_limits_bound_what_a_fleet_has_at_a_time() -> None:
    """Of a task, of a run, of a type, of a quota and of money, beside the number of all."""
    for limits, most in (
        (InstanceLimits(tasks={"t": 3}), 3),
        (InstanceLimits(runs={"x": 2}), 2),
        (InstanceLimits(types={"small": 2, "large": 0}), 2),
        (InstanceLimits(vcpus={"standard on-demand": 6}), 3),
        (InstanceLimits(usd_per_hour=4 * 0.36), 4),
    ):
        problem = pose([], [], GOODS, limits, Objective(), NOW, None)
        found = planned(wide(40), [], problem, hurry=10.0)
        assert found.starts.keys() == wide(40).steps.keys()
        kinds = [each.bin.type.name for each in found.machines if each.bin is not None]
        is_by_number = limits.tasks or limits.runs
        assert sum(4 if kind == "large" and not is_by_number else 1 for kind in kinds) <= most


def test_what_no_step_asks_for_makes_no_fleet() -> None:
    """Machines with GPUs are dearer, and of no use to steps without."""
    plain, with_gpus = PlannedJob("a", Resources(1, 1024)), PlannedJob("g", Resources(1, 1024, gpus=1))
    gpu = InstanceType("gpu", Resources(2, 4096, gpus=1), (Offering(0.9),))
    goods = Catalogue({**GOODS.types, "gpu": gpu})

    def names(*jobs: PlannedJob) -> list[str]:
        forecast = Forecast({job.name: WorkflowStep(job, 60.0) for job in jobs})
        problem = pose([], [], goods, InstanceLimits(), Objective(), NOW, None)
        work = to_do(forecast, problem=problem)
        return [each.type.name for each in offers(work, 64)]

    assert names(plain) == ["small", "large"]
    assert names(plain, with_gpus) == ["small", "gpu", "large"]


def test_equal_steps_go_together() -> None:
    """A plan of thousands of equal steps takes about as many looks as there are machines."""
    forecast = wide(5000)
    run = FleetRun(to_do(forecast), Fleet(posed().bins[0], 50))
    assert run.is_whole
    assert run.ends == {"x": NOW + BOOT + 50 * 300.0}
    assert run.count <= 50 * 50 + 1, "one event for each machine and wave"


def test_where_lengths_are_uncertain_cases_are_compared_and_are_the_same_again() -> None:
    steps = {
        name: replace(step, spread=0.6, measured=20, begun=NOW - 100 if name == "3" else None)
        for name, step in wide(12).steps.items()
    }
    forecast = Forecast(steps, {"x": NOW})
    cases, again = draws(forecast, NOW, 4), draws(forecast, NOW, 4)
    assert cases == again
    lengths = sorted(seconds for case in cases for name, seconds in case.items() if name != "3")
    assert 200 < lengths[len(lengths) // 2] < 450
    assert lengths[-1] > 2 * 300 > 300 / 2 > lengths[0]
    assert all(case["3"] > 0 for case in cases)
    without = {name: step for name, step in steps.items() if name != "7"}
    assert len(draws(Forecast(without), NOW, 4)[0]) == 11
    assert draws(wide(12), NOW, 4) == [], "all is known"


@pytest.mark.parametrize("number", [5, 40, 100])
def test_each_case_has_short_and_long_steps(number: int) -> None:
    """Names that differ by a digit have quantiles that have nothing to do with each other."""
    cases: dict[int, list[float]] = {}
    for _, case, part in quantiles([str(each) for each in range(number)], 4):
        cases.setdefault(case, []).append(part)
    for parts in cases.values():
        assert sorted(int(part * number) for part in parts) == list(range(number)), "one step in each equal part"
    every = sorted(part for parts in cases.values() for part in parts)
    assert every == pytest.approx([(each + 0.5) / (4 * number) for each in range(4 * number)])


def test_a_task_of_different_jobs_is_not_drawn_with_its_whole_spread() -> None:
    """If half of its jobs take a second and half an hour, none takes a day."""
    steps = {name: replace(step, spread=3.0, measured=20) for name, step in wide(12).steps.items()}
    forecast = Forecast(steps, {"x": NOW})
    longest = max(seconds for case in draws(forecast, NOW, 4) for seconds in case.values())
    assert longest < 300 * math.exp(3)


def test_few_measurements_are_not_extrapolated_to_very_long_steps() -> None:
    for measured, most in ((1, 2.0), (4, 4.0), (100, 20.0)):
        steps = {name: replace(step, spread=1.0, measured=measured) for name, step in wide(12).steps.items()}
        cases = draws(Forecast(steps), NOW, 4)
        shared = math.exp(1.15 / math.sqrt(measured))  # of all steps in the worst of four cases
        assert max(seconds for case in cases for seconds in case.values()) < most * shared * 300


def test_a_short_step_before_many_uncertain_paths_goes_before_the_start_of_one_of_them() -> None:
    """The longest of ten paths of 100 s takes longer than one of 110 s."""
    steps = {"split": one("split", 1.0), "first": one("first", 10.0), "last": one("last", 100.0, "first", spread=0.8)}
    steps |= {name: one(name, 100.0, "split", spread=0.8) for name in map(str, range(10))}
    steps = {
        name: replace(step, alike=name if step.spread == 0.0 else "long", measured=9) for name, step in steps.items()
    }
    work = to_do(Forecast(steps, {"x": NOW}))
    assert work.names[:2] == ["split", "first"]
    assert len({work.bucket_of[work.names.index(name)] for name in map(str, range(10))}) == 1, "equal steps are a group"
    known = to_do(Forecast({name: replace(step, spread=0.0) for name, step in steps.items()}, {"x": NOW}))
    assert known.names[:2] == ["first", "split"]


def test_a_fleet_is_tried_in_further_cases_until_it_is_clearly_worse_than_the_best() -> None:
    assert not is_hopeless([])
    assert not is_hopeless([0.05])
    assert is_hopeless([0.2])
    assert is_hopeless([0.05] * 4), "always as much worse"
    assert not is_hopeless([0.3, -0.2, 0.3, -0.2]), "the cases differ by more than the fleets"


def alone(number: int, seconds: float, cpus: float = 1, **more: object) -> dict[str, WorkflowStep]:
    """Equal jobs that are runs by themselves."""
    names = [f"{cpus:g} {seconds:g} {each}" for each in range(number)]
    return {name: WorkflowStep(PlannedJob(name, Resources(cpus, 1024), run=name), seconds, **more) for name in names}  # type: ignore[arg-type]


def test_equal_jobs_that_are_runs_by_themselves_are_planned_as_one_group() -> None:
    """What a plan costs grows with groups and machines: two thousand jobs are one of them."""
    work = to_do(Forecast(alone(2_000, 100.0)))
    assert len(work.bucket_seconds) == 1
    run = FleetRun(work, Fleet(None))
    assert run.count < 2_000
    assert set(run.ends.values()) == {NOW + BOOT + 100}
    assert len(run.ends) == 2_000


def test_those_that_came_first_begin_first() -> None:
    steps = alone(4, 100.0, cpus=8)
    began = {name: NOW - place for place, name in enumerate(steps)}
    schedule = planned(Forecast(steps, began), problem=posed(1))
    assert sorted(schedule.starts, key=schedule.starts.__getitem__) == list(reversed(steps))


@pytest.mark.parametrize(("seconds", "kinds"), [(3600.0, ["small"]), (90.0, [])])
def test_a_job_begins_where_the_bill_grows_least(seconds: float, kinds: list[str]) -> None:
    """A long one keeps no large machine that would be free soon; one that ends before that has its room for nothing."""
    busy = WorkflowStep(PlannedJob("busy", Resources(6, 1024), run="busy"), 100.0, begun=NOW, location="there")
    machine = Location("there", Resources(8, 16384), busy.job.resources, "large", usd_per_hour=1.44)
    schedule = planned(Forecast({"busy": busy, **alone(1, seconds)}), [machine])
    assert [each.bin.type.name for each in schedule.machines if each.bin is not None] == kinds


def test_each_job_has_the_machine_that_is_cheapest_for_it() -> None:
    schedule = planned(Forecast({**alone(3, 3600.0, cpus=2), **alone(1, 3600.0, cpus=8)}))
    assert sorted(each.bin.type.name for each in schedule.machines if each.bin) == ["large", "small", "small", "small"]


def test_a_full_machine_of_other_jobs_makes_way_for_nothing() -> None:
    """It is not known when they end."""
    full = Location("full", Resources(2, 4096), Resources(2, 4096), "small", usd_per_hour=0.36)
    assert not [each for each in planned(Forecast(alone(1, 100.0)), [full], posed(1)).machines if each.bin]


def test_where_there_may_be_one_machine_jobs_that_are_runs_by_themselves_share_a_large_one() -> None:
    steps = alone(16, 3600.0)
    assert [each.bin.type.name for each in planned(Forecast(steps), problem=posed(1)).machines if each.bin] == ["large"]
