"""Allocations by a plan of all upcoming work: what can be launched, what is requested, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import Planner
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market, kind
from lading.scheduling.packing.problem import pose
from lading.scheduling.plan import Objective
from lading.scheduling.provisioning import Provision, decide
from lading.scheduling.provisioning.allocation_plan import (
    MOST_PARTS,
    SECONDS_PAID,
    allocation_plan,
    as_machine,
    as_machines,
    needed_soon,
    parts,
)
from lading.scheduling.provisioning.allocations import SECONDS_UNTIL_PLANNED
from lading.scheduling.provisioning.coming_work import SECONDS_TO_BEGIN, UNKNOWN_SPREAD, ComingWork, sure_steps
from lading.scheduling.provisioning.launch import AllocationPlan, Launch
from lading.scheduling.reasons import because
from lading.scheduling.resources import Resources

NOW, WAIT = 100_000.0, 600.0
KIND = kind(None, {})
MARKET = Market(
    Resources(16, 32000), overhead=384, seconds=14000, unlimited=7000, most=4, idle_seconds=300, queue_seconds=WAIT
)


def step(name: str, *parents: str, seconds: float = 1000, cpus: float = 1, **known: Any) -> WorkflowStep:
    job = PlannedJob(name, Resources(cpus, 1000), time=2 * seconds, instance_type=KIND, run="r", queued_at=NOW - 100)
    return WorkflowStep(job, seconds, parents, **known)


def planned(
    *steps: WorkflowStep,
    waiting: tuple[str, ...],
    live: tuple[Location, ...] = (),
    market: Market = MARKET,
    not_ahead: frozenset[str] = frozenset(),
) -> Provision:
    """What is decided by a plan for these steps.

    :param not_ahead: the runs of which a budget is spent
    """
    coming = ComingWork(
        Forecast({each.job.name: each for each in steps}, {"r": NOW}),
        {name: name for name in waiting},
        known=frozenset(["r"]),
        foreseen=frozenset(each.name for each in live),
        begins_in=0.0,
        not_ahead=not_ahead,
    )
    there = [as_machine(each, NOW - 50.0, None if each.booting else NOW - 50.0, WAIT, NOW) for each in live]
    on_sale = as_machines(market, {KIND: WAIT})
    problem = pose([], there, on_sale.catalogue, on_sale.limits, Objective(), NOW, None)
    planner = Planner(WAIT, on_sale.hurry, most_boot_paid=SECONDS_PAID)
    actions = planner.decide(coming.forecast, waiting, there, problem, now=NOW)
    assert planner.schedule is not None
    plan = allocation_plan(
        actions,
        frozenset(waiting) - actions.refused.keys(),
        coming.forecast,
        coming.tokens,
        planner.schedule.starts,
        sure_steps(coming, market, NOW),
        needed_soon(actions, there, {KIND: WAIT}, NOW),
        market,
        coming.margin,
    )
    jobs = [coming.forecast.steps[name].job for name in waiting]
    return decide(jobs, live, market, now=NOW, coming=replace(coming, plan=plan))


def test_a_node_is_parted_so_that_its_parts_fill_it() -> None:
    found = parts(MARKET)
    assert [each.cpus for each in found.values()] == [16, 8, 4]
    assert all(each.memory + MARKET.overhead <= 32384 * each.cpus / 16 + 1 for each in found.values())
    assert [each.cpus for each in parts(replace(MARKET, whole=True)).values()] == [16]
    assert [each.cpus for each in parts(replace(MARKET, capacity=Resources(1, 1000))).values()] == [1]
    gpus = parts(replace(MARKET, capacity=Resources(8, 32000, gpus=2)))
    assert [(each.cpus, each.gpus) for each in gpus.values()] == [(8, 2), (4, 1), (2, 1), (8, 0), (4, 0), (2, 0)]


@given(st.integers(1, 256), st.integers(1, 10**6), st.integers(0, 4))
def test_no_part_is_larger_than_the_node(cpus: int, memory: int, gpus: int) -> None:
    market = replace(MARKET, capacity=Resources(cpus, memory, gpus=gpus), overhead=0)
    for each in parts(market).values():
        assert each.fits(market.capacity)
        assert each.cpus >= cpus / MOST_PARTS
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
    coming = ComingWork(Forecast({}), plan=AllocationPlan((launch,), frozenset(["a"])))
    again = coming.without_launches()
    assert again.plan == AllocationPlan((), frozenset(["a"]))
    assert again.without_launches() is again
    assert decide([step("a").job], (), MARKET, now=NOW, coming=again).launches == ()


def test_small_allocations_do_not_make_way_for_what_has_a_place_in_the_plan() -> None:
    small, job = parts(MARKET)["4 cpus, 0 gpus"], step("w", cpus=4).job
    live = [
        Location(f"x{number}", small, Resources(4, 1000), KIND, ends_at=NOW + 14000, jobs=1)
        for number in range(MARKET.most)
    ]
    wide = [replace(job, name=f"w{number}", queued_at=NOW - 100) for number in range(4)]
    for planned_jobs, number in ((frozenset(each.name for each in wide), 0), (frozenset[str](), 1)):
        coming = ComingWork(Forecast({}), known=frozenset(["r"]), plan=AllocationPlan((), planned_jobs))
        assert len(decide(wide, live, MARKET, now=NOW, coming=coming).releases) == number


def test_what_has_just_come_waits_for_the_next_plan_but_not_for_long() -> None:
    job = step("a").job
    coming = ComingWork(Forecast({}), known=frozenset(["r"]), plan=AllocationPlan())
    for waited, number in ((1.0, 0), (SECONDS_UNTIL_PLANNED, 1)):
        found = decide([replace(job, queued_at=NOW - waited)], (), MARKET, now=NOW, coming=coming)
        assert len(found.launches) == number
    strange = replace(job, queued_at=NOW - 5.0, run="s")
    assert len(decide([strange], (), MARKET, now=NOW, coming=coming).launches) == 1


def test_what_no_plan_has_gets_no_more_than_it_needs_itself() -> None:
    job = step("w").job
    waiting = [replace(job, name=f"w{number}", queued_at=NOW - 100) for number in range(15)]
    strange = replace(job, name="s", run=None, queued_at=NOW - 100)
    coming = ComingWork(
        Forecast({}), known=frozenset(["r"]), plan=AllocationPlan((), frozenset(each.name for each in waiting))
    )
    [launch] = decide([*waiting, strange], (), MARKET, now=NOW, coming=coming).launches
    assert (launch.jobs, launch.capacity.cpus) == (("s",), 1)


def test_nothing_more_is_asked_for_what_is_prefetched_by_a_plan() -> None:
    small, first = parts(MARKET)["4 cpus, 0 gpus"], step("w", cpus=4).job
    for prefetched, number in ((frozenset("p"), 0), (frozenset("q"), 1)):
        its = replace(first, name="p")
        there = Location("x", small, Resources(8, 2000), KIND, ends_at=NOW + 14000, jobs=2, prefetched=(its,))
        coming = ComingWork(Forecast({}), known=frozenset(["r"]), plan=AllocationPlan(prefetched=prefetched))
        assert len(decide((), (there,), MARKET, now=NOW, coming=coming).launches) == number


@pytest.mark.parametrize(("waited", "expected"), [(0.0, WAIT), (599.0, WAIT), (600.0, 900.0), (1000.0, 1350.0)])
def test_one_that_waits_longer_than_others_is_expected_later(waited: float, expected: float) -> None:
    in_queue = Location("x", Resources(4, 1000), instance_type=KIND, booting=True)
    assert as_machine(in_queue, NOW - waited, None, WAIT, NOW).ready_at == NOW - waited + expected
