"""What holds for planning under every policy: constraints, reasons, starvation, ends, scale-in."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.plan import InstanceLimits, Placement
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import placements, plan
from lading.scheduling.provisioning.scale_in import ScaleIn
from tests.reasons import told
from tests.services.packing import AMOUNTS, catalogue, check, contents

POLICIES = pytest.mark.parametrize("policy", ["greedy", "priced"])
ONE = catalogue(one=(4, 8, 1.0))


def test_the_placements_alone_are_those_of_the_plan() -> None:
    there = [Location("small", Resources(4, 8)), Location("large", Resources(16, 64), Resources(2, 8), ends_at=100.0)]
    jobs = [
        PlannedJob(f"job{n}", Resources(1 + n % 3, 1 + n % 5), time=float(20 * n), queued_at=float(-n))
        for n in range(12)
    ]
    found = placements(jobs, there, now=0.0)
    assert found == plan(jobs, there, now=0.0).placements
    assert {each.location for each in found} == {"small", "large"}


@POLICIES
def test_instances_of_a_task_are_limited(policy: str) -> None:
    jobs = [PlannedJob("align", Resources(4, 1), 8, task="align"), PlannedJob("other", Resources(4, 1))]
    result = plan(jobs, (), ONE, InstanceLimits(tasks={"align": 5}), policy)
    assert [(wait.job, wait.count, told(wait.reason)) for wait in told(result.waits)] == [
        ("align", 3, "waits: 5 of 5 instances of `align` are busy or booting")
    ]
    assert len(result.launches) == 6


@POLICIES
def test_instances_that_are_there_count_for_their_tasks_and_runs(policy: str) -> None:
    there = [Location("i", Resources(4, 8), Resources(3, 0), "one", runs=frozenset(["r1"]))]
    jobs = [PlannedJob("x", Resources(1, 1), 3, run="r1")]
    result = plan(jobs, there, ONE, InstanceLimits(runs={"r1": 1}), policy)
    assert result.placements == (Placement("x", "i", 1),)
    assert told(result.waits[0].reason) == "waits: 1 of 1 instances of `r1` are busy or booting"


@POLICIES
def test_instances_of_the_site_are_limited(policy: str) -> None:
    there = [Location("i", Resources(4, 8), Resources(4, 0), "one")]
    result = plan([PlannedJob("x", Resources(4, 1), 3)], there, ONE, InstanceLimits(instances=2), policy)
    assert len(result.launches) == 1
    assert told(result.waits[0].reason) == "waits: 2 of 2 instances of the site are busy or booting"


@POLICIES
def test_disk_gpus_architecture_and_features(policy: str) -> None:
    cheap = InstanceType("cheap", Resources(8, 32), (Offering(0.1),))
    goods = Catalogue(
        {
            kind.name: kind
            for kind in [
                cheap,
                replace(cheap, name="disk", capacity=Resources(8, 32, 100), offerings=(Offering(0.2),)),
                replace(cheap, name="gpu", capacity=Resources(8, 32, 0, 1), offerings=(Offering(0.9),)),
                replace(cheap, name="arm", arch="arm64", offerings=(Offering(0.05),)),
                replace(cheap, name="fast", features=frozenset(["nvme", "efa"]), offerings=(Offering(0.3),)),
            ]
        }
    )
    jobs = [
        PlannedJob("disk", Resources(1, 1, 60), arch="x86_64"),
        PlannedJob("gpu", Resources(1, 1, 0, 0.5), 2, arch="x86_64"),
        PlannedJob("arm", Resources(1, 1), arch="arm64"),
        PlannedJob("plain", Resources(7, 32), arch="x86_64"),
        PlannedJob("fast", Resources(1, 1), arch="x86_64", features=frozenset(["efa"])),
    ]
    result = plan(jobs, (), goods, policy=policy)
    check(result, jobs, (), goods)
    kinds = {name: kind for _, kind, held in contents(result) for name in held}
    assert kinds == {"disk": "disk", "gpu": "gpu", "arm": "arm", "plain": "cheap", "fast": "fast"}
    alone = plan([PlannedJob("any", Resources(1, 8), arch="any")], (), goods, policy=policy)
    assert [kind for _, kind, _ in contents(alone)] == ["arm"], "the cheapest"


@POLICIES
def test_capacity_types_zones_and_missing_capacity(policy: str) -> None:
    offerings = (Offering(1.0), Offering(0.3, SPOT, "a", unavailable_until=100.0), Offering(0.4, SPOT, "b"))
    goods = Catalogue({"one": InstanceType("one", Resources(4, 8), offerings)})
    job = PlannedJob("x", Resources(4, 8))

    def bought(job: PlannedJob, now: float) -> list[tuple[str, str | None]]:
        return [
            (launch.capacity_type, launch.zone) for launch in plan([job], (), goods, policy=policy, now=now).launches
        ]

    assert bought(job, 50) == [("spot", "b")]
    assert bought(job, 100) == [("spot", "a")]
    assert bought(replace(job, capacity_type="on-demand"), 50) == [("on-demand", None)]


def test_a_job_waits_for_missing_capacity_with_the_time() -> None:
    goods = Catalogue({"one": InstanceType("one", Resources(4, 8), (Offering(1.0, unavailable_until=1e9),))})
    (wait,) = plan([PlannedJob("x", Resources(4, 8))], (), goods).waits
    assert (
        told(wait.reason) == "waits: no capacity for one, which is not requested again before 2001-09-09 01:46:40 UTC"
    )


def test_what_can_never_run_is_refused_with_the_closest_machine() -> None:
    goods = catalogue(one=(4, 8, 1.0), two=(8, 16, 2.0))
    (refusal,) = plan([PlannedJob("x", Resources(9, 20))], (), goods).refusals
    assert told(refusal.reason) == (
        "is too large for every machine; the closest is two: 9 cpus needed but 8 cpus available, "
        "20 MiB memory needed but 16 MiB memory available"
    )
    (refusal,) = plan([PlannedJob("x", Resources(1, 1), arch="arm64")], (), goods).refusals
    assert told(refusal.reason) == "fits no machine: none is arm64; available: one (x86_64), two (x86_64)"
    (refusal,) = plan([PlannedJob("x", Resources(1, 1))]).refusals
    assert told(refusal.reason) == "has no place to run: there is no location and no instance type"


def test_without_a_catalogue_jobs_go_by_priority_then_arrival() -> None:
    there = [Location("host", Resources(2, 8))]
    jobs = [
        PlannedJob("late", Resources(1, 1), queued_at=3),
        PlannedJob("early", Resources(1, 1), queued_at=1),
        PlannedJob("urgent", Resources(1, 1), queued_at=9, priority=5),
    ]
    result = plan(jobs, there)
    assert [placement.job for placement in result.placements] == ["urgent", "early"]
    assert [(wait.job, told(wait.reason)) for wait in told(result.waits)] == [("late", "waits: host is busy")]
    assert (result.cost, result.bound, result.gap) == (0, 0, 0)


def test_a_job_that_is_overtaken_for_too_long_keeps_its_room() -> None:
    there = [Location("a", Resources(8, 8), Resources(7, 0)), Location("b", Resources(8, 8), Resources(4, 0))]
    jobs = [PlannedJob("large", Resources(6, 1), queued_at=0), PlannedJob("small", Resources(1, 1), 9, queued_at=50)]
    patient = plan(jobs, there, now=60, patience=60)
    assert sum(p.count for p in patient.placements if p.job == "small") == 5
    impatient = plan(jobs, there, now=61, patience=60)
    assert [(p.job, p.location, p.count) for p in impatient.placements] == [("small", "a", 1)]
    assert told(impatient.waits[0].reason) == "waits: it is next on b, where room is kept free for it"


@given(st.lists(AMOUNTS, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_every_job_starts_in_the_end(amounts: list[Resources], chance: random.Random) -> None:
    """Small jobs keep coming and take what is free; the jobs that were there first all start nevertheless."""
    capacity = Resources(8, 32)
    waiting = [PlannedJob(f"j{i}", amount, queued_at=0) for i, amount in enumerate(amounts)]
    held: dict[str, list[PlannedJob]] = {"a": [], "b": []}
    for tick in range(1, 400):
        waiting += [PlannedJob(f"s{tick}-{i}", Resources(1, 4), queued_at=tick) for i in range(8)]
        held = {name: [job for job in there if chance.random() < 0.7] for name, there in held.items()}
        locations = [
            Location(name, capacity, sum((job.resources for job in on), Resources())) for name, on in held.items()
        ]
        result = plan(waiting, locations, now=tick, patience=5)
        check(result, waiting, locations, ONE)
        by_name = {job.name: job for job in waiting}
        for placement in result.placements:
            held[placement.location].append(by_name[placement.job])
        started = {placement.job for placement in result.placements}
        waiting = [job for job in waiting if job.name not in started]
        if not any(job.name.startswith("j") for job in waiting):
            return
    raise AssertionError(f"still waiting: {[job for job in waiting if job.name.startswith('j')]}")


@POLICIES
def test_short_jobs_fill_the_tail_of_what_ends(policy: str) -> None:
    there = [
        Location("stays", Resources(4, 8), Resources(2, 0), "one"),
        Location("ends", Resources(4, 8), Resources(), "one", ends_at=1000.0),
    ]
    jobs = [
        PlannedJob("short", Resources(2, 1), time=500.0),
        PlannedJob("long", Resources(2, 1), time=5000.0),
        PlannedJob("unknown", Resources(2, 1)),
    ]
    result = plan(jobs, there, ONE, policy=policy, now=100.0)
    where = {placement.job: placement.location for placement in result.placements}
    assert where["short"] == "ends"
    assert "ends" not in (where["long"], where["unknown"])
    (wait,) = told(plan([jobs[2]], there[1:], now=100.0).waits)
    assert told(wait.reason) == "waits: a job of unknown length would outlast ends"


def test_a_draining_location_takes_no_job() -> None:
    there = [Location("old", Resources(4, 8), Resources(), "one", draining=True)]
    result = plan([PlannedJob("x", Resources(1, 1))], there, ONE)
    assert [placement.location for placement in result.placements] == ["new-1"]
    assert [(release.location, told(release.reason)) for release in result.releases] == [
        ("old", "it is drained and empty")
    ]


def test_new_names_are_new() -> None:
    there = [Location("new-1", Resources(4, 8), Resources(4, 0), "one")]
    assert [launch.name for launch in plan([PlannedJob("x", Resources(1, 1))], there, ONE).launches] == ["new--1"]


@pytest.mark.parametrize(
    ("rules", "launched", "idle_since", "now", "released"),
    [
        (ScaleIn(), 0, 10, 10, True),
        (ScaleIn(idle_seconds=300), 0, 10, 200, False),
        (ScaleIn(idle_seconds=300), 0, 10, 310, True),
        (ScaleIn(idle_seconds=300, billing_seconds=3600), 0, 10, 3000, False),  # the hour is paid for
        (ScaleIn(idle_seconds=300, billing_seconds=3600), 0, 10, 3541, True),
        (ScaleIn(idle_seconds=300, billing_seconds=3600), 0, 10, 3600, False),
        (ScaleIn(idle_seconds=300, billing_seconds=3600), 0, 3599, 7145, True),
        (ScaleIn(min_instances=1), 0, 10, 10, False),
    ],
)
def test_when_empty_instances_are_released(
    rules: ScaleIn, launched: float, idle_since: float, now: float, released: bool
) -> None:
    there = [Location("i", Resources(4, 8), Resources(), "one", launched_at=launched, idle_since=idle_since)]
    assert bool(plan([], there, ONE, now=now, scale_in=rules).releases) == released


def test_the_dearest_are_released_first_and_the_warm_ones_stay() -> None:
    there = [
        Location(name, Resources(4, 8), Resources(), "one", usd_per_hour=usd)
        for name, usd in zip("abc", (1, 3, 2), strict=True)
    ]
    assert [r.location for r in plan([], there, ONE, scale_in=ScaleIn(min_instances=1)).releases] == ["b", "c"]


def test_an_unknown_policy_or_effort_is_an_error() -> None:
    with pytest.raises(ValueError, match="policy 'best' is not one of greedy, priced"):
        plan([], policy="best")
    with pytest.raises(ValueError, match="effort 'hard' is not one of fast, best"):
        plan([], effort="hard")


def test_importing_the_planner_does_not_import_numpy() -> None:
    code = (
        "import sys; import lading.scheduling, lading.scheduling.provisioning.planner;"
        "import lading.plugin.offline.simulation.simulator;"
        "import lading.plugin.offline.command;"
        "print([m for m in ('numpy', 'highspy', 'airflow', 'rich') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
