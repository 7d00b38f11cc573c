"""The policy ``hours``: the least expected bill when the last job has ended."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.traces import UNKNOWN, poisson
from lading.scheduling.catalogue import Catalogue, bundled
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import AssignedJob, Location
from lading.scheduling.machine_hours.scenarios import remaining
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.plan import InstanceLimits, Objective, Plan
from lading.scheduling.prediction import Prediction
from lading.scheduling.provisioning.machines import planned
from lading.scheduling.provisioning.planner import Policy, hours_at_once, hours_of_many, plan
from lading.scheduling.resources import Resources
from lading.scheduling.simulation.report import Report
from lading.scheduling.simulation.simulator import simulate
from lading.scheduling.simulation.trace import Arrival
from tests.reasons import told
from tests.services.examples import part
from tests.services.packing import catalogue, check, contents, problems

PAIR = catalogue(one=(1, 8, 1.0), pair=(2, 16, 2.0))
FREE = Resources(1, 8)


def busy(name: str, seconds: float) -> Location:
    """A machine of two, half of it taken for so long."""
    running = (AssignedJob(0.0, Prediction(seconds)),)
    return Location(name, PAIR.types["pair"].capacity, FREE, "pair", usd_per_hour=2.0, running_jobs=running)


@part(0.1)
@given(problems(), st.sampled_from(["alone", "hours"]), st.sampled_from([0.0, 0.5]))
def test_it_obeys_the_rules(
    problem: tuple[list[PlannedJob], list[Location], Catalogue], policy: str, per_instance: float
) -> None:
    jobs, locations, goods = problem
    result = plan(jobs, locations, goods, policy=policy, objective=Objective(per_instance))
    check(result, jobs, locations, goods)
    assert not told(result.waits)
    assert result == plan(jobs, locations, goods, policy=policy, objective=Objective(per_instance))


def test_a_job_for_a_machine_that_is_there_alone_is_packed_with_others(recwarn: pytest.WarningsRecorder) -> None:
    """Nothing that can be launched grants what it asks for, so it has no worth."""
    old = Location("old", Resources(2, 16), Resources(0, 0), "old", arch="aarch64", launched_at=0.0)
    jobs = [PlannedJob(f"j{i}", FREE, time=100.0 + i) for i in range(8)]
    jobs.append(PlannedJob("arm", FREE, time=50.0, arch="aarch64"))
    found = plan(jobs, [old], PAIR, policy="hours")
    check(found, jobs, [old], PAIR)
    assert {each.job: each.location for each in found.placements}["arm"] == "old"
    assert [str(each.message) for each in recwarn] == []


@part(0.06)
@given(problems(), st.integers(0, 6), st.sampled_from(["alone", "hours"]))
def test_limits_hold(problem: tuple[list[PlannedJob], list[Location], Catalogue], most: int, policy: str) -> None:
    jobs, locations, goods = problem
    result = plan(jobs, locations, goods, InstanceLimits(instances=most), policy)
    check(result, jobs, locations, goods)
    assert not result.launches or len(result.launches) + len(locations) <= most
    greedy = plan(jobs, locations, goods, InstanceLimits(instances=most))
    assert sum(wait.count for wait in told(result.waits)) <= sum(wait.count for wait in told(greedy.waits))


@part(0.1)
@given(
    problems(),
    st.integers(1, 6) | st.none(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([hours_of_many, hours_at_once]),
)
def test_many_jobs_obey_the_rules(
    problem: tuple[list[PlannedJob], list[Location], Catalogue], most: int | None, per_instance: float, policy: Policy
) -> None:
    jobs, locations, goods = problem

    def packed() -> Plan:
        limits, objective = InstanceLimits(instances=most), Objective(per_instance)
        return plan(jobs, locations, goods, limits, "hours", objective=objective, policies={"hours": policy})

    result = packed()
    check(result, jobs, locations, goods)
    assert most is None or not result.launches or len(result.launches) + len(locations) <= most
    assert most is not None or not told(result.waits)
    assert result == packed()


def test_many_jobs_share_machines_with_those_of_similar_length() -> None:
    """Of each shape some are short and some long; what runs for long takes short ones besides."""
    goods = catalogue(one=(1, 8, 1.0), four=(4, 32, 3.6))
    jobs = [
        PlannedJob(f"{'long' if i % 2 else 'short'}-{i}", FREE, time=9e4 if i % 2 else 60.0 + i % 3) for i in range(800)
    ]
    there = [busy("m", 1e5)]
    result = plan(jobs, there, goods, policy="hours", policies={"hours": hours_of_many})
    check(result, jobs, there, goods)
    assert result.why.startswith("similar lengths together has won: expected USD until the last job ends: ")
    for name, _, held in contents(result):
        assert len({job.split("-")[0] for job in held}) == 1, name
    assert sum(launch.instance_type == "four" for launch in result.launches) >= 198


def test_jobs_that_have_come_at_once_are_packed_one_by_one_when_no_more_come(modern: Catalogue) -> None:
    """While some may come it is done by classes, which is quick, and so it is where they have waited for long."""
    chance = random.Random(4)
    jobs = [
        PlannedJob(
            f"j{i}", Resources(chance.choice([1, 2, 4]), chance.choice([2, 4, 16]) * 1024), time=chance.uniform(60, 9e3)
        )
        for i in range(150)
    ]
    found = {now: planned(jobs, (), (), MachineMarket(modern), InstanceLimits(), now).plan for now in (1.0, 3.0, 31.0)}
    assert ["windows" in plan.why for plan in found.values()] == [False, True, False]
    check(found[3.0], jobs, (), modern)
    assert not told(found[3.0].waits)
    assert until_the_end(found[3.0], jobs) < 0.998 * until_the_end(found[1.0], jobs)


def until_the_end(result: Plan, jobs: list[PlannedJob]) -> float:
    """USD for all that a plan launches, from the boot of a minute until the last job of each machine has ended."""
    seconds = {job.name: job.time or 0.0 for job in jobs}
    ends: dict[str, float] = {}
    for each in result.placements:
        ends[each.location] = max(ends.get(each.location, 0.0), seconds[each.job])
    return sum(each.usd_per_hour * (60 + ends[each.name]) / 3600 for each in result.launches)


def test_a_job_goes_where_it_keeps_nothing_up_for_longer() -> None:
    there = [busy("short", 600.0), busy("long", 7_200.0)]
    result = plan([PlannedJob("a", FREE, time=3_600.0)], there, PAIR, policy="hours")
    assert [placed.location for placed in result.placements] == ["long"]


def test_a_long_job_gets_a_small_machine_rather_than_the_rest_of_a_large_one() -> None:
    result = plan([PlannedJob("a", FREE, time=36_000.0)], [busy("short", 600.0)], PAIR, policy="hours")
    assert [launch.instance_type for launch in result.launches] == ["one"]
    assert result.why.startswith(("least growth has won", "one instance per job has won"))


def test_a_job_waits_for_room_that_comes_soon_and_is_cheaper_than_a_new_machine() -> None:
    def there(seconds: float) -> Location:
        running = (AssignedJob(0.0, Prediction(seconds), FREE), AssignedJob(0.0, Prediction(9_000.0), FREE))
        size = PAIR.types["pair"].capacity
        return Location("m", size, size, "pair", usd_per_hour=2.0, running_jobs=running)

    soon = plan([PlannedJob("a", FREE, time=600.0)], [there(50.0)], PAIR, policy="hours")
    assert [told(wait.reason) for wait in told(soon.waits)] == [
        "waits: m is expected to have room in 50 s, cheaper than a new one"
    ]
    assert not soon.launches
    for job, seconds in (
        (PlannedJob("a", FREE, time=600.0), 980.0),
        (PlannedJob("a", FREE, time=600.0, queued_at=-920.0), 50.0),
    ):
        assert plan([job], [there(seconds)], PAIR, policy="hours").launches  # that would be too late
    # What a new machine costs for a short job is less than the wait is worth.
    assert told(plan([PlannedJob("a", FREE, time=600.0)], [there(250.0)], PAIR, policy="hours").waits)
    assert plan([PlannedJob("a", FREE, time=10.0)], [there(250.0)], PAIR, policy="hours").launches


def test_a_job_whose_length_is_an_estimate_waits_for_longer() -> None:
    size = PAIR.types["pair"].capacity
    running = (AssignedJob(0.0, Prediction(700.0), FREE), AssignedJob(0.0, Prediction(9_000.0), FREE))
    there = Location("m", size, size, "pair", usd_per_hour=2.0, running_jobs=running)
    for spread, waits in (0.0, 0), (0.5, 1):
        result = plan([PlannedJob("a", FREE, expected=Prediction(600.0, spread))], [there], PAIR, policy="hours")
        assert len(told(result.waits)) == waits
        assert len(result.launches) == 1 - waits


def test_where_jobs_keep_coming_room_for_the_next_one_is_bought_as_well() -> None:
    """A fifth more for twice the machine, not two fifths; but it is only worth that while more jobs run than wait."""
    size = Resources(1, 8)
    full = [
        Location(
            f"m{i}", size, size, "one", usd_per_hour=1.0, running_jobs=(AssignedJob(0.0, Prediction(9_000.0), size),)
        )
        for i in range(9)
    ]
    for there, price, launched in (full, 1.2, "roomy"), (full, 1.4, "one"), ((), 1.2, "one"):
        goods = catalogue(one=(1, 8, 1.0), roomy=(2, 16, price))
        result = plan([PlannedJob("a", FREE, time=3_600.0)], there, goods, policy="hours")
        assert [launch.instance_type for launch in result.launches] == [launched]


def test_where_jobs_come_often_room_is_bought_for_a_short_job_too() -> None:
    """Twenty jobs run that have come one after the other, or all at once: then no next one is expected soon."""
    goods = catalogue(one=(1, 8, 1.0), roomy=(2, 16, 1.2))
    size = goods.types["one"].capacity
    for apart, launched in (10.0, "roomy"), (0.0, "one"):
        there = [
            Location(
                f"m{i}",
                size,
                size,
                "one",
                usd_per_hour=1.0,
                running_jobs=(AssignedJob(i * apart, Prediction(9e3), size),),
            )
            for i in range(20)
        ]
        result = plan([PlannedJob("a", FREE, time=400.0)], there, goods, policy="hours", now=300.0)
        assert [launch.instance_type for launch in result.launches] == [launched]


def test_room_that_suits_later_jobs_is_left_to_them() -> None:
    """Both machines are up for long anyway; on one of them memory is used up, so its cpu is worth nothing to others."""
    goods = catalogue(pair=(2, 16, 2.0))

    def there(name: str, memory: int) -> Location:
        used = Resources(1, memory)
        running = (AssignedJob(0.0, Prediction(9_000.0), used),)
        return Location(
            name, goods.types["pair"].capacity, used, "pair", usd_per_hour=2.0, running_jobs=running, launched_at=0.0
        )

    result = plan(
        [PlannedJob("a", Resources(1, 1), time=3_600.0)],
        [there("roomy", 1), there("used up", 15)],
        goods,
        policy="hours",
    )
    assert [placed.location for placed in result.placements] == ["used up"]


def test_jobs_that_end_together_share_a_machine() -> None:
    goods = catalogue(pair=(2, 16, 2.0))
    jobs = [PlannedJob(f"{name}{i}", FREE, time=time) for i in range(4) for name, time in [("s", 60.0), ("l", 9e4)]]
    for _, _, held in contents(plan(jobs, (), goods, policy="hours")):
        assert len({name[0] for name in held}) == 1


def test_whole_periods_that_are_paid_are_used() -> None:
    """What is left of a paid hour costs nothing, so a job takes it rather than the machine that is up for longer."""
    idle = Location("idle", PAIR.types["pair"].capacity, instance_type="pair", usd_per_hour=2.0, launched_at=0.0)
    job = [PlannedJob("a", FREE, time=1_000.0)]
    by_hour = plan(job, [idle], PAIR, policy="hours", now=600.0, objective=Objective(billing_seconds=3_600.0))
    assert [placed.location for placed in by_hour.placements] == ["idle"]
    by_second = plan(job, [idle], PAIR, policy="hours", now=600.0)
    assert [launch.instance_type for launch in by_second.launches] == ["one"]


def test_scenarios_have_the_mean_of_what_they_stand_for() -> None:
    known = remaining([Prediction(100.0)], [40.0], [0], exact=False)
    assert known.min() == known.max() == 60
    wide = remaining([Prediction(100.0, 0.5)] * 50, [0.0] * 50, range(50), exact=False)
    assert wide.mean() == pytest.approx(113.3, rel=0.03)  # 100 exp(0.5 ** 2 / 2)
    old = remaining([Prediction(100.0, 0.5)], [1e6], [0], exact=False)
    assert (old > 0).all()
    bounded = remaining([Prediction(100.0, 0.5, most=120.0)], [50.0], [0], exact=False)
    assert bounded.max() <= 70


@pytest.fixture(scope="module")
def modern() -> Catalogue:
    return bundled().select(["c7i.*", "m7i.*", "r7i.*"], ["*.metal*"])


def a_day(error: float | None) -> list[Arrival]:
    return poisson(300, error, seed=11)


@pytest.fixture(scope="module")
def without_times(modern: Catalogue) -> tuple[Report, Report]:
    """What the day costs by the policies ``alone`` and ``greedy``, which ask for no times."""
    alone, greedy = (simulate(a_day(UNKNOWN), modern, policy=policy) for policy in ("alone", "greedy"))
    return alone, greedy


@pytest.mark.parametrize(("error", "most"), [(0.0, 0.97), (0.5, 0.99), (UNKNOWN, 1.005)])
def test_packing_pays_over_a_day(
    modern: Catalogue, without_times: tuple[Report, Report], error: float | None, most: float
) -> None:
    """Less than one instance per job costs, by how much depends on what is known; and no longer waits."""
    hours, (alone, greedy) = simulate(a_day(error), modern, policy="hours"), without_times
    assert hours.cost <= most * alone.cost
    assert hours.cost < greedy.cost
    assert hours.wait_mean <= 1.1 * alone.wait_mean


def test_a_burst_is_packed_by_length(modern: Catalogue) -> None:
    chance = random.Random(3)
    jobs = [
        PlannedJob(
            f"j{i}", Resources(chance.choice([1, 2, 4]), chance.choice([2, 4, 16]) * 1024), time=60.0 * 2**i, arch=None
        )
        for i in (chance.uniform(0, 7) for _ in range(150))
    ]
    result = plan(jobs, (), modern, policy="hours")
    check(result, jobs, (), modern)
    assert "has won: expected USD until the last job ends: " in result.why


@pytest.mark.parametrize(("usd", "new"), [(0.7, False), (0.4, True)])
def test_what_is_there_is_filled_where_a_new_machine_would_cost_its_minute(usd: float, new: bool) -> None:
    """For 40 s a machine that is there costs 40 s, and a new one 60 s of its price."""
    old = Location("old", FREE, Resources(0, 0), "old", usd_per_hour=1.0, launched_at=-1000.0)
    job = PlannedJob("j", FREE, time=40.0, expected=Prediction(40.0))
    found = plan(
        [job], [old], catalogue(one=(1, 8, usd)), policy="hours", now=0.0, objective=Objective(boot_seconds=0.0)
    )
    assert bool(found.launches) == new
