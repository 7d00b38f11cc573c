"""For whose jobs machines are launched where there may be no more of them, and several shares wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import machines
from tests.services.packing import catalogue

TYPES = catalogue(small=(2, 4096, 0.1), big=(8, 32768, 0.5))
SIZES = {"small": Resources(2, 4000), "big": Resources(8, 30000)}


def job(name: str, share: str, turn: float, size: str = "small", priority: int = 0, at: float = 0.0) -> PlannedJob:
    return PlannedJob(name, SIZES[size], priority=priority, queued_at=at, time=3600.0, turn=turn, share=share)


def launched_for(jobs: list[PlannedJob], most: int, policy: str = "forecast") -> set[str]:
    limits = InstanceLimits(instances=most)
    market = MachineMarket(TYPES, policy=policy, idle_seconds=60.0, boot_seconds=60.0, limits=limits)
    launches, _ = machines.bought(machines.planned(jobs, [], [], market, InstanceLimits(), 100.0), market)
    return {name for launch in launches for name in launch.jobs}


@pytest.mark.parametrize("policy", ["forecast", "greedy"])
def test_no_share_has_all_machines_because_its_jobs_cost_more(policy: str) -> None:
    jobs = [job(f"a{n}", "a", 2.0 * n, "big") for n in range(6)]
    jobs += [job(f"b{n}", "b", 2.0 * n + 1, "small", at=10.0) for n in range(6)]
    assert launched_for(jobs, 3, policy) == {"a0", "b0", "a1"}
    of_one = [replace(each, share="a") for each in jobs]
    assert launched_for(of_one, 3, policy) == {"a0", "a1", "a2"}, "within a share the plan goes by price"


def test_a_priority_that_counts_comes_before_all_turns() -> None:
    jobs = [job(f"a{n}", "a", 2.0 * n) for n in range(4)]
    jobs += [job(f"b{n}", "b", 2.0 * n + 1, priority=5) for n in range(2)]
    assert launched_for(jobs, 3) == {"b0", "b1", "a0"}


def test_what_the_first_leave_is_used_by_others() -> None:
    """No machine has a GPU: who waits for one keeps none of those that there may be."""
    first = replace(job("g", "g", 0.0), resources=Resources(2, 4000, 0, 1))
    jobs = [first, *(job(f"a{n}", "a", 1.0 + n) for n in range(3)), job("b0", "b", 9.0)]
    assert launched_for(jobs, 4) == {"a0", "a1", "a2", "b0"}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=20), st.integers(1, 6), st.randoms())
def test_machines_are_launched_for_those_whose_turn_comes_first(shares: list[str], most: int, chance: object) -> None:
    jobs = [job(f"{share}{n:02}", share, float(n), "big", at=float(-n)) for n, share in enumerate(shares)]
    chance.shuffle(jobs)  # type: ignore[attr-defined]
    found = launched_for(jobs, most)
    assert len(found) == min(most, len(jobs))
    if len(set(shares)) > 1:
        assert {int(name[1:]) for name in found} == set(range(len(found)))
