"""Allocations by a plan of all upcoming work: what can be launched, what is requested, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import Planner
from lading.scheduling.matching.market import Market, kind
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import Objective
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import pose
from lading.scheduling.provisioning import SECONDS_TO_BEGIN, Provision, decide
from lading.scheduling.provisioning.allocation_plan import (
    MINUTE,
    NOT_MEASURED,
    SECONDS_BETWEEN_STEPS,
    SECONDS_PAID,
    SLOWER,
    UNKNOWN_SPREAD,
    allocation_plan,
    as_machine,
    as_machines,
    margin,
    parts,
    sure_steps,
)
from lading.scheduling.provisioning.launch import AllocationPlan, Launch
from tests.services.planned import planned_actions

NOW, WAIT = 100_000.0, 600.0
KIND = kind(None, {})
MARKET = Market(
    Resources(16, 32000), overhead=384, seconds=14000, unlimited=7000, most=4, idle_seconds=300, queue_seconds=WAIT
)


def step(
    name: str, *parents: str, seconds: float = 1000, cpus: float = 1, time: float | None = None, **known: Any
) -> WorkflowStep:
    run, limit = known.pop("run", "r"), 2 * seconds if time is None else time
    job = PlannedJob(name, Resources(cpus, 1000), time=limit, instance_type=KIND, run=run, queued_at=NOW - 100)
    return WorkflowStep(job, seconds, parents, **known)


def planned(
    *steps: WorkflowStep,
    waiting: tuple[str, ...],
    live: tuple[Location, ...] = (),
    market: Market = MARKET,
    not_ahead: frozenset[str] = frozenset(),
    wait: float = WAIT,
    begins_in: float | None = 0.0,
    kept: tuple[str, ...] = (),
) -> Provision:
    """What is decided by a plan for these steps.

    :param not_ahead: the runs of which a budget is spent
    :param wait: how long an allocation waits in its queue
    :param begins_in: how long allocations have taken to begin
    :param kept: the allocations that the plan does not release
    """
    forecast, waits = Forecast({each.job.name: each for each in steps}, {"r": NOW}), {KIND: wait}
    there = [as_machine(each, NOW - 50.0, None if each.booting else NOW - 50.0, wait, NOW) for each in live]
    on_sale = as_machines(market, waits)
    problem = pose([], there, on_sale.catalogue, on_sale.limits, Objective(), NOW, None)
    planner = Planner(wait, on_sale.hurry)
    actions = planned_actions(
        planner, forecast, waiting, there, problem, now=NOW, kept=kept, most_boot_paid=SECONDS_PAID
    )
    plan = allocation_plan(
        actions,
        frozenset(waiting) - actions.refused.keys(),
        forecast,
        {name: name for name in waiting},
        {} if planner.schedule is None else planner.schedule.starts,
        sure_steps(forecast, waiting, {"r"} - not_ahead, waits, NOW),
        there,
        waits,
        market,
        margin(begins_in),
        NOW,
    )
    jobs = [forecast.steps[name].job for name in waiting]
    return decide(jobs, live, market, now=NOW, foreseen=replace(plan, known=frozenset(["r"])))


def test_a_node_is_parted_so_that_its_parts_fill_it() -> None:
    found = parts(MARKET)
    assert [each.cpus for each in found.values()] == [16, 8, 4]
    assert all(each.memory + MARKET.overhead <= 32384 * each.cpus / 16 + 1 for each in found.values())
    assert [each.cpus for each in parts(replace(MARKET, whole=True)).values()] == [16]
    assert [each.cpus for each in parts(replace(MARKET, capacity=Resources(1, 1000))).values()] == [1]
    gpus = parts(replace(MARKET, capacity=Resources(8, 32000, gpus=2)))
    assert [(each.cpus, each.gpus) for each in gpus.values()] == [(8, 2), (4, 1), (2, 1), (8, 0), (4, 0), (2, 0)]


def test_steps_that_have_always_ended_at_once_have_a_walltime() -> None:
    provision = planned(step("a", seconds=0, time=60), waiting=("a",))
    [launch] = provision.launches
    assert launch.jobs == ("a",)
    assert 60 <= launch.seconds <= MARKET.seconds


@given(st.integers(1, 256), st.integers(1, 10**6), st.integers(0, 4))
def test_no_part_is_larger_than_the_node(cpus: int, memory: int, gpus: int) -> None:
    market = replace(MARKET, capacity=Resources(cpus, memory, gpus=gpus), overhead=0)
    for each in parts(market).values():
        assert each.fits(market.capacity)
        assert each.cpus >= cpus / 4
        assert each.cpus >= 1


def test_what_is_beside_the_longest_way_shares_a_small_allocation() -> None:
    """Sixteen jobs of one cpu would fill a node; they have the time of the long one to go one after the other."""
    side = [step(f"s{number}", seconds=100) for number in range(15)]
    long = step("long", seconds=2000)
    names = ("long", *(each.job.name for each in side))
    [launch] = planned(long, *side, waiting=names).launches
    assert launch.capacity.cpus == 4
    assert set(launch.jobs) == set(names)
    assert [
        each.capacity.cpus for each in decide([long.job, *(each.job for each in side)], (), MARKET, now=NOW).launches
    ] == [16]


def test_what_is_wide_for_long_has_a_node() -> None:
    wide = [step(f"w{number}", seconds=2000) for number in range(16)]
    found = planned(*wide, waiting=tuple(each.job.name for each in wide))
    assert sum(each.capacity.cpus for each in found.launches) == 16


def test_what_is_to_come_is_asked_for_so_much_sooner_as_others_wait() -> None:
    first = step("a", seconds=500, cpus=4, begun=NOW, location="x")
    there = Location("x", parts(MARKET)["4 cpus, 0 gpus"], first.job.resources, KIND, ends_at=NOW + 14000, jobs=1)
    found = planned(first, step("b", "a", cpus=8), waiting=(), live=(there,))
    [launch] = found.launches
    assert (launch.jobs, launch.capacity.cpus, found.ahead) == (("b",), 8, {"b": NOW + WAIT})
    assert 500 + 2000 + SECONDS_TO_BEGIN <= launch.seconds < MARKET.seconds, "it may be there at once"
    assert launch.idle_seconds == WAIT
    at_once = planned(first, step("b", "a", cpus=8), waiting=(), live=(there,), market=replace(MARKET, most=1))
    assert at_once.launches == ()
    unsure = replace(first, spread=0.5)
    assert planned(unsure, step("b", "a", cpus=8), waiting=(), live=(there,)).launches == ()
    of_spent = planned(first, step("b", "a", cpus=8), waiting=(), live=(there,), not_ahead=frozenset(["r"]))
    assert of_spent.launches == ()
    has_come = planned(step("b", cpus=8), waiting=("b",), not_ahead=frozenset(["r"]))
    assert len(has_come.launches) == 1, "what that may cost is decided elsewhere"
    later = replace(first, seconds=5000.0)
    assert planned(later, step("b", "a", cpus=8), waiting=(), live=(there,)).launches == ()


def test_what_is_not_certain_is_asked_for_ahead_where_its_hint_says_so() -> None:
    there = Location("x", parts(MARKET)["4 cpus, 0 gpus"], Resources(4, 1000), KIND, ends_at=NOW + 14000, jobs=1)

    def asked(spread: float, hint: bool | None) -> int:
        first = step("a", seconds=500, cpus=4, begun=NOW, location="x", spread=spread)
        return len(planned(first, step("b", "a", cpus=8, ahead=hint), waiting=(), live=(there,)).launches)

    assert [asked(0.1, hint) for hint in (None, True, False)] == [1, 1, 0]
    assert [asked(0.9, hint) for hint in (None, True, False)] == [0, 1, 0]
    assert asked(UNKNOWN_SPREAD, True) == 0, "nothing is known of its start"


def test_an_idle_allocation_that_the_plan_does_not_need_goes() -> None:
    busy = step("a", seconds=5000, cpus=4, begun=NOW, location="x")
    capacity = parts(MARKET)["4 cpus, 0 gpus"]
    x = Location("x", capacity, busy.job.resources, KIND, ends_at=NOW + 14000, jobs=1)
    y = Location("y", capacity, instance_type=KIND, ends_at=NOW + 14000, idle_since=NOW)
    found = planned(busy, step("b", "a"), waiting=(), live=(x, y))
    assert list(found.releases) == ["y"]
    assert found.launches == ()


def test_what_all_fits_into_less_at_once_has_no_more() -> None:
    [alone] = planned(step("a"), waiting=("a",)).launches
    assert alone.capacity.cpus == 1
    two = planned(step("a"), step("b", "a"), waiting=("a",)).launches
    assert sum(each.capacity.cpus for each in two) == 2


def test_hurry_says_whether_what_could_wait_does() -> None:
    """Eight jobs one after the other in four cpus take twice as long, and as many cpu-hours as in eight."""
    wide = [step(f"w{number}", seconds=2000, cpus=2) for number in range(8)]
    names = tuple(each.job.name for each in wide)

    def cpus(hurry: float) -> float:
        found = planned(*wide, waiting=names, market=replace(MARKET, hurry=hurry))
        return sum(each.capacity.cpus for each in found.launches)

    assert cpus(0.0) <= cpus(1.0) <= cpus(10.0) == 16


def test_fewer_allocations_are_asked_for_where_cpu_hours_are_the_same() -> None:
    wide = [step(f"w{number}", seconds=2000) for number in range(16)]
    assert len(planned(*wide, waiting=tuple(each.job.name for each in wide)).launches) == 1


def test_no_more_is_launched_than_there_may_be_and_nothing_where_nothing_may() -> None:
    wide = [step(f"w{number}", cpus=16) for number in range(9)]
    names = tuple(each.job.name for each in wide)
    assert 1 <= len(planned(*wide, waiting=names).launches) <= MARKET.most
    assert planned(*wide, waiting=names, market=replace(MARKET, held=because("stopped"))).launches == ()


def test_a_moment_later_it_is_not_launched_again() -> None:
    launch = Launch(KIND, Resources(4, 1000), 3600.0, ("a",))
    again = AllocationPlan((launch,), frozenset(["a"])).without_launches()
    assert again == AllocationPlan((), frozenset(["a"]))
    assert again.without_launches() is again
    assert decide([step("a").job], (), MARKET, now=NOW, foreseen=again).launches == ()


def test_small_allocations_do_not_make_way_for_what_has_a_place_in_the_plan() -> None:
    small, job = parts(MARKET)["4 cpus, 0 gpus"], step("w", cpus=4).job
    live = [
        Location(f"x{number}", small, Resources(4, 1000), KIND, ends_at=NOW + 14000, jobs=1)
        for number in range(MARKET.most)
    ]
    wide = [replace(job, name=f"w{number}", queued_at=NOW - 100) for number in range(4)]
    for planned_jobs, number in ((frozenset(each.name for each in wide), 0), (frozenset[str](), 1)):
        plan = AllocationPlan((), planned_jobs, known=frozenset(["r"]))
        assert len(decide(wide, live, MARKET, now=NOW, foreseen=plan).releases) == number


def test_what_has_just_come_waits_for_the_next_plan_but_not_for_long() -> None:
    job = step("a").job
    plan = AllocationPlan(known=frozenset(["r"]))
    for waited, number in ((1.0, 0), (10.0, 1)):
        found = decide([replace(job, queued_at=NOW - waited)], (), MARKET, now=NOW, foreseen=plan)
        assert len(found.launches) == number
    strange = replace(job, queued_at=NOW - 5.0, run="s")
    assert len(decide([strange], (), MARKET, now=NOW, foreseen=plan).launches) == 1


def test_what_no_plan_has_gets_no_more_than_it_needs_itself() -> None:
    job = step("w").job
    waiting = [replace(job, name=f"w{number}", queued_at=NOW - 100) for number in range(15)]
    strange = replace(job, name="s", run=None, queued_at=NOW - 100)
    plan = AllocationPlan((), frozenset(each.name for each in waiting), known=frozenset(["r"]))
    [launch] = decide([*waiting, strange], (), MARKET, now=NOW, foreseen=plan).launches
    assert (launch.jobs, launch.capacity.cpus) == (("s",), 1)


def test_nothing_more_is_asked_for_what_is_prefetched_by_a_plan() -> None:
    small, first = parts(MARKET)["4 cpus, 0 gpus"], step("w", cpus=4).job
    for prefetched, number in ((frozenset("p"), 0), (frozenset("q"), 1)):
        its = replace(first, name="p")
        there = Location("x", small, Resources(8, 2000), KIND, ends_at=NOW + 14000, jobs=2, prefetched=(its,))
        plan = AllocationPlan(prefetched=prefetched, known=frozenset(["r"]))
        assert len(decide((), (there,), MARKET, now=NOW, foreseen=plan).launches) == number


@pytest.mark.parametrize(("waited", "expected"), [(0.0, WAIT), (599.0, WAIT), (600.0, 900.0), (1000.0, 1350.0)])
def test_one_that_waits_longer_than_others_is_expected_later(waited: float, expected: float) -> None:
    in_queue = Location("x", Resources(4, 1000), instance_type=KIND, booting=True)
    assert as_machine(in_queue, NOW - waited, None, WAIT, NOW).ready_at == NOW - waited + expected


def minutes(seconds: float) -> float:
    return math.ceil(seconds / MINUTE) * MINUTE


def short(name: str, *parents: str, time: float = 200, **known: Any) -> WorkflowStep:
    return step(name, *parents, **{"seconds": 100, "cpus": 4, "time": time, **known})


def walltime(*steps: WorkflowStep, **known: Any) -> float:
    """What is requested for the step ``a``, which waits."""
    [launch] = planned(*steps, waiting=("a",), **known).launches
    return launch.seconds


def test_a_walltime_covers_what_comes_after_and_no_more() -> None:
    chain = [short("a"), short("b", "a"), short("c", "b", time=500)]
    [launch] = planned(*chain, waiting=("a",)).launches
    assert launch.seconds == minutes(SECONDS_TO_BEGIN + 2 * (100 + SECONDS_BETWEEN_STEPS) + 500)
    assert launch.idle_seconds == WAIT, "for as long as another one would wait"
    [today] = decide([chain[0].job], (), MARKET, now=NOW).launches
    assert (today.seconds, today.idle_seconds) == (14000, None)


def test_what_has_no_limit_has_as_much_as_it_is_promised() -> None:
    chain = short("a", time=MARKET.unlimited), short("b", "a", time=MARKET.unlimited)
    assert walltime(*chain) == minutes(SECONDS_TO_BEGIN + 100 + SECONDS_BETWEEN_STEPS + 7000)


def test_uncertain_lengths_count_as_longer_but_not_beyond_their_limits() -> None:
    def seconds(**known: Any) -> float:
        return walltime(short("a", **known), short("b", "a"))

    assert seconds(spread=0.5) == minutes(SECONDS_TO_BEGIN + 100 * math.exp(0.5) + SECONDS_BETWEEN_STEPS + 200)
    assert seconds(spread=0.9, time=110) == minutes(SECONDS_TO_BEGIN + 110 + SECONDS_BETWEEN_STEPS + 200)


@pytest.mark.parametrize(
    "steps",
    [
        (short("a", spread=UNKNOWN_SPREAD), short("b", "a")),
        (short("a"), short("x", seconds=500, spread=1.2, elsewhere=True), short("b", "a", "x")),
    ],
    ids=["its own length", "a length elsewhere"],
)
def test_where_lengths_are_unknown_a_walltime_is_as_without_a_forecast(steps: tuple[WorkflowStep, ...]) -> None:
    assert walltime(*steps) == 14000


def test_lengths_behind_which_nothing_comes_need_not_be_known() -> None:
    assert walltime(short("a"), short("b", "a", spread=1.2)) < 1000


def test_no_walltime_is_longer_than_the_site_has_it() -> None:
    after = (short(str(number), str(number - 1), seconds=2000, time=2500) for number in range(2, 20))
    chain = [short("a"), short("1", "a", seconds=2000, time=2500), *after]
    expected = minutes(SECONDS_TO_BEGIN + 105 + 5 * 2005 + 2500)
    assert walltime(*chain) == expected, "the next one would not end there"
    assert walltime(short("a", time=20000), short("b", "a", time=20000)) == 20000 + SECONDS_TO_BEGIN


def test_what_runs_elsewhere_first_counts_and_what_comes_after_a_long_pause_does_not() -> None:
    """The allocation would have ended before: another one is asked for then."""
    near = short("a"), short("x", "a", seconds=300, elsewhere=True), short("b", "x")
    far = short("a"), short("x", "a", seconds=3000, elsewhere=True), short("b", "x")
    assert walltime(*near) == minutes(SECONDS_TO_BEGIN + 100 + 300 + 2 * SECONDS_BETWEEN_STEPS + 200)
    assert walltime(*far) == minutes(SECONDS_TO_BEGIN + 200)


def test_a_walltime_covers_what_nodes_have_taken_to_begin() -> None:
    assert walltime(short("a"), begins_in=None) == minutes(NOT_MEASURED + 200)
    assert walltime(short("a"), begins_in=400.0) == minutes(SLOWER * 400 + 200)
    assert walltime(short("a", time=20000), begins_in=400.0) == 20000 + SLOWER * 400


def idle(name: str = "x", seconds: float = 1.0, **known: Any) -> Location:
    """An allocation that has been idle for so long."""
    known = {"ends_at": NOW + 14000, **known}
    return Location(name, Resources(8, 16000), instance_type=KIND, idle_since=NOW - seconds, **known)


def test_an_idle_allocation_stays_while_something_comes_sooner_than_another_one() -> None:
    def ends(comes_in: float, **known: Any) -> list[tuple[str, dict[str, Any]]]:
        first = short("x", seconds=comes_in, begun=NOW, elsewhere=True)
        found = planned(first, short("b", "x"), waiting=(), live=(idle(seconds=400),), **known)
        return [(reason.code, dict(reason.params)) for reason in found.releases.values()]

    assert ends(500) == []
    assert ends(700) == [("not_needed_for", {"seconds": 700})]
    assert ends(700, kept=("x",)) == [("idle", {"seconds": 400})], "jobs of which nothing is known were there"
    assert ends(700, wait=3600.0) == [], "it is known that others wait for longer"


def test_what_nothing_needs_ends_at_once_but_where_something_may_come_that_is_not_known() -> None:
    def ends(seconds: float, **known: Any) -> list[str]:
        found = planned(waiting=(), live=(idle(seconds=seconds),), **known)
        return [each.code for each in found.releases.values()]

    assert ends(1) == ["not_needed"]
    assert ends(1, kept=("x",)) == []
    assert decide((), (idle(),), MARKET, now=NOW).releases == {}, "it ends by itself"
    assert ends(301, kept=("x",)) == ["idle"]


def test_of_two_idle_ones_that_stays_which_is_needed() -> None:
    first, second = idle("a", 0.0), idle("b", 0.0)
    soon = short("x", seconds=10, begun=NOW, elsewhere=True), short("s", "x")
    assert len(planned(*soon, waiting=(), live=(first, second)).releases) == 1
    ending = replace(first, ends_at=NOW + 100)
    found = planned(*soon, waiting=(), live=(ending, second))
    assert found.releases.keys() == {"a"}, "it is over before the step could reach its limit"


def test_what_waits_in_its_queue_stays_for_what_is_to_come() -> None:
    queued = idle(seconds=301, booting=True)
    coming = short("x", seconds=10, begun=NOW, elsewhere=True), short("s", "x")
    assert planned(*coming, waiting=(), live=(queued,)).releases == {}
    assert [each.code for each in planned(waiting=(), live=(queued,)).releases.values()] == ["not_wanted"]


def test_busy_allocations_never_end() -> None:
    busy = Location("x", Resources(8, 16000), Resources(1, 100), KIND, ends_at=NOW + 14000, jobs=1)
    assert planned(waiting=(), live=(busy,)).releases == {}


def busy(left: float = 500, **known: Any) -> WorkflowStep:
    """What fills the allocation ``x`` for so long."""
    return short("filling", seconds=left + 100, begun=NOW - 100, location="x", cpus=8, **known)


FULL = Location("x", Resources(8, 16000), Resources(8, 1000), KIND, ends_at=NOW + 14000, jobs=1)


def test_nothing_is_asked_for_that_has_room_sooner_than_a_new_allocation_would_come() -> None:
    found = planned(busy(500), short("b", cpus=8), waiting=("b",), live=(FULL,))
    assert found.launches == ()
    assert str(found.awaits["b"]) == (
        "waits: x will have room in about 600 s: waiting for that room does not delay the run, or is cheaper "
        "than a new machine"
    )


@st.composite
def works(draw: st.DrawFn) -> tuple[list[WorkflowStep], tuple[str, ...]]:
    """A workflow, and which of its steps wait."""
    steps, waiting = [], list[str]()
    for number in range(draw(st.integers(1, 8))):
        parents = [str(each) for each in range(number) if draw(st.booleans())]
        known = {
            "seconds": draw(st.sampled_from([1.0, 60.0, 3000.0])),
            "time": draw(st.sampled_from([60.0, 3000.0, MARKET.unlimited, 20000.0])),
            "cpus": draw(st.sampled_from([1, 3, 8])),
            "spread": draw(st.sampled_from([0.0, 0.4, 1.2])),
            "elsewhere": bool(parents) and draw(st.booleans()),
        }
        steps.append(short(str(number), *parents, **known))
        if not parents:
            waiting.append(str(number))
    return steps, tuple(waiting)


@settings(max_examples=60, deadline=None)
@given(works(), st.integers(0, 3))
def test_a_walltime_covers_the_limits_of_its_jobs_and_is_no_longer_than_without_a_forecast(
    drawn: tuple[list[WorkflowStep], tuple[str, ...]], number: int
) -> None:
    steps, waiting = drawn
    live = tuple(replace(FULL, name=f"busy{each}") for each in range(number))
    limits = {each.job.name: each.job.time or 0.0 for each in steps}
    for launch in planned(*steps, waiting=waiting, live=live).launches:
        longest = max(limits[name] for name in launch.jobs)
        assert longest + SECONDS_TO_BEGIN <= launch.seconds <= max(MARKET.seconds, longest + SECONDS_TO_BEGIN)


@settings(max_examples=60, deadline=None)
@given(works(), st.lists(st.floats(0, 10_000), max_size=3))
def test_without_a_run_that_is_known_everything_is_as_without_a_plan(
    drawn: tuple[list[WorkflowStep], tuple[str, ...]], ends: list[float]
) -> None:
    steps, waiting = drawn
    live = [idle(f"l{each}", 10, ends_at=NOW + left) for each, left in enumerate(ends)]
    jobs = [each.job for each in steps if each.job.name in waiting]
    assert decide(jobs, live, MARKET, now=NOW, foreseen=AllocationPlan()) == decide(jobs, live, MARKET, now=NOW)
