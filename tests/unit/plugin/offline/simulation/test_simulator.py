"""The simulator: a trace by hand, and what must hold for any."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.scale_in import ScaleIn
from tests.reasons import told
from tests.services.examples import part
from tests.services.packing import catalogue

ONE = catalogue(one=(4, 8, 3.6))  # 0.001 USD a second
BY_THE_SECOND = ScaleIn(idle_seconds=0)


def arrival(name: str, cpus: float, at: float, duration: float, count: int = 1) -> Arrival:
    return Arrival(PlannedJob(name, Resources(cpus, 1), count), at, duration)


def test_a_trace_by_hand() -> None:
    """Two jobs share an instance, which boots for 60 s; a third comes when it is gone.

    Each instance is launched in the tick after the jobs have come, for more could follow.
    """
    trace = [arrival("a", 2, 0, 100), arrival("b", 2, 0, 40), arrival("c", 4, 1000, 50)]
    conditions = Conditions(boot_seconds=60, tick_seconds=10)
    report = simulate(trace, ONE, policy="greedy", scale_in=BY_THE_SECOND, conditions=conditions)
    assert (report.jobs, report.unplaced, report.launches, report.peak_instances) == (3, 0, 2, 1)
    assert report.makespan == 1120
    assert (report.wait_mean, report.wait_max) == (70, 70)
    assert report.instance_hours == pytest.approx((160 + 110) / 3600)
    assert report.cost == pytest.approx(0.27)
    # 2 * 100 + 2 * 40 + 4 * 50 cpu seconds at a quarter of 0.001 USD
    assert report.bound == pytest.approx(0.12)
    assert report.gap == pytest.approx(0.27 / 0.12 - 1)
    assert report.cpu_utilisation == pytest.approx(480 / (4 * 270))


def test_what_is_decided_and_what_has_ended_takes_time_to_come_about() -> None:
    """Its boot ends at 70; it begins at 80, ends at 180, which is known at 190, and its machine is there until 200."""
    conditions = Conditions(boot_seconds=60, lag_seconds=10, tick_seconds=10)
    report = simulate([arrival("a", 4, 0, 100)], ONE, policy="greedy", scale_in=BY_THE_SECOND, conditions=conditions)
    assert (report.wait_max, report.makespan) == (80, 180)
    assert report.cost == pytest.approx(0.001 * 190)


def test_thousands_of_plans_may_pass_before_a_job_has_its_machine() -> None:
    report = simulate([arrival("a", 4, 0, 100)], ONE, policy="greedy", conditions=Conditions(tick_seconds=0.001))
    assert report.plans > 1000
    assert report.unplaced == 0


def test_nothing_is_launched_before_the_first_search_is_over() -> None:
    """Then a job that came meanwhile has its place in the plan, too."""
    trace = [arrival("a", 4, 0, 100), arrival("b", 4, 2, 100)]
    report = simulate(trace, ONE, conditions=Conditions(plan_seconds=5))
    assert (report.launches, report.wait_max, report.makespan) == (2, 5 + 60, 5 + 60 + 100)
    assert simulate(trace, ONE).makespan == 2 + 60 + 100


def test_an_idle_instance_is_used_again() -> None:
    trace = [arrival("a", 4, 0, 100), arrival("b", 4, 250, 100)]
    conditions = Conditions(tick_seconds=10)
    report = simulate(trace, ONE, policy="greedy", scale_in=ScaleIn(idle_seconds=120), conditions=conditions)
    assert report.launches == 1
    assert report.wait_max == 70
    assert report.cost == pytest.approx(0.001 * (340 + 120))


def test_a_job_of_no_run_is_one_by_itself_in_a_forecast() -> None:
    """So that of many equal ones none waits for those that have come before it, but begins on a machine of its own."""
    report = simulate([arrival("a", 4, 0, 100, 3), arrival("b", 4, 50, 100)], ONE)
    assert (report.policy, report.launches, report.wait_max) == ("forecast", 4, 60)


def test_machines_that_are_kept_in_any_case_stay_in_a_forecast() -> None:
    trace = [arrival("a", 4, 0, 100), arrival("b", 4, 5000, 100)]
    kept = simulate(trace, ONE, scale_in=ScaleIn(min_instances=1))
    assert (kept.launches, simulate(trace, ONE).launches) == (1, 2)


def test_whole_periods_are_paid() -> None:
    rules = ScaleIn(billing_seconds=3600)
    report = simulate([arrival("a", 1, 0, 10)], ONE, scale_in=rules, conditions=Conditions(tick_seconds=10))
    assert report.cost == pytest.approx(3.6)
    assert report.instance_hours == 1


def test_limits_make_jobs_wait_and_none_is_lost() -> None:
    report = simulate(
        [arrival("a", 4, 0, 100, 10)], ONE, InstanceLimits(instances=2), conditions=Conditions(tick_seconds=5)
    )
    assert (report.unplaced, report.peak_instances, report.launches) == (0, 2, 2)
    assert report.makespan == 60 + 5 * 100
    stuck = simulate([arrival("a", 4, 0, 100, 10)], ONE, InstanceLimits(instances=0))
    assert (stuck.unplaced, stuck.cost, stuck.gap) == (10, 0, None)


def test_missing_capacity_is_waited_for() -> None:
    conditions = Conditions(capacity_errors=0.5, unavailable_seconds=100, tick_seconds=10, seed=4)
    report = simulate([arrival(f"a{i}", 4, 0, 100) for i in range(20)], ONE, conditions=conditions)
    assert report.capacity_errors > 0
    assert report.unplaced == 0
    assert report.wait_max >= 160


def test_reclaimed_jobs_begin_anew() -> None:
    goods = Catalogue({"one": InstanceType("one", Resources(4, 8), (Offering(1.0, "spot"),))})
    conditions = Conditions(reclaims_per_hour=6, seed=1)
    report = simulate([arrival("a", 1, 0, 600, 40)], goods, conditions=conditions)
    assert report.reclaims > 0
    assert report.restarts > 0
    assert report.unplaced == 0


def test_a_job_that_nothing_fits_is_named() -> None:
    report = simulate([arrival("huge", 99, 0, 1), arrival("a", 1, 0, 1)], ONE)
    assert [name for name, _ in told(report.refusals)] == ["huge"]
    assert report.unplaced == 1


@part(0.15)
@given(st.integers(0, 10**6), st.sampled_from(["greedy", "priced"]), st.sampled_from([0.0, 0.3]))
def test_what_holds_for_any_trace(seed: int, policy: str, errors: float) -> None:
    chance = random.Random(seed)
    goods = catalogue(small=(2, 4, 0.1), wide=(8, 8, 0.3), large=(16, 64, 1.0))
    trace = [
        Arrival(
            PlannedJob(f"j{i}", Resources(chance.choice([0.5, 1, 3, 7]), chance.randint(1, 20)), chance.randint(1, 3)),
            chance.uniform(0, 2000),
            chance.uniform(0, 500),
        )
        for i in range(chance.randint(1, 12))
    ]
    conditions = Conditions(capacity_errors=errors, seed=seed)
    report = simulate(trace, goods, InstanceLimits(instances=4), policy, conditions=conditions)
    assert report.unplaced == 0
    assert report.peak_instances <= 4
    assert report.bound <= report.cost * (1 + 1e-9)
    assert 0 <= report.cpu_utilisation <= 1
    assert 0 <= report.memory_utilisation <= 1
    assert report.makespan >= max(a.arrival + a.duration for a in trace) - min(a.arrival for a in trace)
    assert report == simulate(trace, goods, InstanceLimits(instances=4), policy, conditions=conditions)


def test_a_machine_that_lives_for_seconds_costs_a_minute() -> None:
    conditions = Conditions(boot_seconds=0, tick_seconds=1)
    report = simulate([arrival("a", 4, 0, 5)], ONE, scale_in=BY_THE_SECOND, conditions=conditions)
    assert report.cost == pytest.approx(0.06)
