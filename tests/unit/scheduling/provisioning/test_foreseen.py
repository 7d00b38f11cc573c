"""What a forecast's plan launches, keeps and releases, within the limits of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lading.scheduling.forecast.policy import Actions
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import Budget, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits, Objective, Placement, PlannedLaunch, Release, Wait
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import pose
from lading.scheduling.provisioning import Provision, decide
from lading.scheduling.provisioning.foreseen import ForeseenActions, affordable
from lading.scheduling.provisioning.machines import as_planned
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
MARKET = MachineMarket(GOODS, policy=FORECAST, idle_seconds=120.0, boot_seconds=60.0)
NOW = 1000.0
SOON = because("room_soon", location="up", seconds=40)
GOES = because("not_needed")


def machine(name: str, **known: Any) -> Location:
    return Location(
        name,
        Resources(2, 4096),
        instance_type="small",
        usd_per_hour=0.36,
        launched_at=0.0,
        **{"idle_since": NOW, **known},
    )


def job(name: str, **known: Any) -> PlannedJob:
    return PlannedJob(name, Resources(2, 1024), queued_at=NOW - 100, **known)


def ahead(
    launches: Sequence[tuple[str, ...]] = (),
    releases: Sequence[str] = (),
    placed: Sequence[tuple[str, str]] = (),
    waits: Sequence[str] = (),
    needed: Sequence[str] = (),
    is_of_now: bool = True,
    **known: Any,
) -> ForeseenActions:
    """A plan; each launch is a small machine for these steps."""
    names = [f"new-{number}" for number in range(len(launches))]
    actions = Actions(
        tuple(Placement(*each) for each in placed),
        tuple(PlannedLaunch(name, "small", "on-demand", None, 0.36) for name in names),
        tuple(Release(name, GOES) for name in releases),
        tuple(Wait(name, 1, SOON) for name in waits),
        {},
        None,
        dict(zip(names, launches, strict=True)),
        dict.fromkeys(needed, NOW + 30),
    )
    planned = frozenset([*(name for name, _ in placed), *waits, *(each for some in launches for each in some)])
    return ForeseenActions(actions, is_of_now, **{"planned": planned, **known})


def decided(jobs: Sequence[PlannedJob], live: Sequence[Location], plan: ForeseenActions, **market: Any) -> Provision:
    return decide(jobs, live, replace(MARKET, **market), None, InstanceLimits(), now=NOW, foreseen=plan)


def test_what_the_plan_launches_is_launched_also_for_what_is_to_come() -> None:
    found = decided([job("a")], [], ahead([("a",), ("to come",)]))
    assert [(each.kind, each.jobs) for each in found.launches] == [("small", ("a",)), ("small", ("to come",))]


def test_what_is_launched_ahead_says_which_step_begins_first_there() -> None:
    begins = {"b": NOW + 90, "c": NOW + 60, "d": NOW + 70}
    found = decided([job("a")], [], ahead([("b", "c"), ("a", "d")], begins=begins))
    assert len(found.launches) == 2
    assert found.ahead == {"c": NOW + 60}, "for the other one a job waits"


def test_what_is_not_needed_goes_at_once_and_what_is_needed_stays() -> None:
    found = decided([], [machine("up"), machine("spare")], ahead(releases=["spare"], needed=["up"]))
    assert found.releases == {"spare": GOES}
    assert found.spare == {"spare"}


def test_a_plan_that_is_not_of_now_releases_nothing() -> None:
    live = [machine("up"), machine("spare")]
    assert decided([], live, ahead(releases=["up", "spare"], is_of_now=False)).releases == {}


def test_idle_seconds_bound_what_no_plan_says_anything_of() -> None:
    live = [machine("idle", idle_since=NOW - 500), machine("needed", idle_since=NOW - 500)]
    found = decided([], live, ahead(needed=["needed"], is_of_now=False))
    assert found.releases.keys() == {"idle"}


def test_idle_seconds_bound_what_is_needed_later_than_another_one_would_boot() -> None:
    """Where something is held up no plan releases anything."""
    plan = ahead(needed=["soon", "late"])
    plan.actions.needed["late"] = NOW + 8 * 3600  # type: ignore[index]
    found = decided([], [machine(name, idle_since=NOW - 500) for name in ("soon", "late")], plan)
    assert found.releases.keys() == {"late"}
    assert decided([], [machine("late")], plan).releases == {}


def test_min_instances_stay_and_the_youngest_go() -> None:
    live = [machine("old"), machine("young")]
    found = decided([], live, ahead(releases=["old", "young"]), min_instances=1)
    assert found.releases.keys() == {"young"}


def test_what_has_other_jobs_stays_though_the_plan_lets_it_go() -> None:
    """A job that is not in the plan is to begin there."""
    found = decided([job("other")], [machine("up")], ahead(releases=["up"]))
    assert (found.releases, found.launches) == ({}, ())


def test_what_has_been_given_a_job_in_this_tick_stays() -> None:
    given = machine("up").given([job("other")])
    assert decided([], [given], ahead(releases=["up"])).releases == {}


def test_a_job_that_waits_for_room_says_for_which() -> None:
    found = decided([job("a")], [machine("up")], ahead(waits=["a"], needed=["up"]))
    assert (found.awaits, found.waits, found.launches) == ({"a": SOON}, {}, ())


@pytest.mark.parametrize(
    "limits",
    [
        InstanceLimits(instances=1),
        InstanceLimits(types={"small": 1}),
        InstanceLimits(usd_per_hour=0.4),
        InstanceLimits(vcpus={"standard on-demand": 3}),
    ],
)
def test_no_more_is_launched_than_there_may_be(limits: InstanceLimits) -> None:
    """What is left over is decided about without the plan, and has the reason of that."""
    busy = machine("busy", used=Resources(2, 4096), jobs=1, idle_since=None)
    found = decided([job("a")], [busy], ahead([("a",)]), limits=limits)
    assert not any(each.kind == "small" for each in found.launches)
    assert found.waits.keys() | {name for each in found.launches for name in each.jobs} == {"a"}


def test_nothing_is_launched_while_launches_are_held() -> None:
    held = free_text("the quota is used up")
    found = decided([job("a")], [], ahead([("a",)]), held=held)
    assert (found.launches, found.waits) == ((), {"a": held})


def test_a_run_has_no_more_than_it_can_pay_for() -> None:
    spent = Budget("r", 1.0, 1.0, 0.0)
    found = decided([job("a", budgets=(spent,))], [], ahead([("a",), ("b",)], budgets={"b": (spent,)}))
    assert found.launches == ()
    assert found.waits["a"].code == "max_usd"


def test_for_a_run_with_a_budget_of_which_nothing_waits_nothing_is_asked_ahead() -> None:
    found = decided([], [], ahead([("b",)], not_ahead=frozenset(["b"])))
    assert found.launches == ()


def test_jobs_that_are_not_in_the_plan_are_planned_by_themselves() -> None:
    found = decided([job("a"), job("b")], [], ahead([("a",)]))
    assert [each.jobs for each in found.launches] == [("a",), ("b",)]


def test_for_a_job_whose_plan_is_being_made_nothing_is_bought_otherwise() -> None:
    found = decided([job("a")], [], ahead(pending=frozenset(["a"])))
    assert (found.launches, found.waits) == ((), {})


def test_of_a_machine_that_boots_it_is_known_when_it_is_up() -> None:
    ordered = Location("m", Resources(2, 4096), instance_type="small", booting=True, ready_at=NOW + 60)
    seen = as_planned(ordered, MARKET, NOW + 5)
    assert (seen.ready_at, seen.arch) == (NOW + 60, "x86_64")
    late = as_planned(ordered, MARKET, NOW + 61)
    assert late.ready_at == NOW + 60 + 10.0
    assert as_planned(replace(ordered, ready_at=None), MARKET, NOW).ready_at == NOW + 10.0


@pytest.mark.parametrize("boot", [1.0, 5.0, 9.0, 10.0, 60.0])
@pytest.mark.parametrize("late", [0.0, 0.1, 4.9, 5.0, 7.3, 600.0])
def test_an_overdue_machine_is_expected_no_later_than_a_new_one_of_its_kind(boot: float, late: float) -> None:
    market = replace(MARKET, boot_seconds=300.0, boots={"small": boot})
    ordered = Location("m", Resources(2, 4096), instance_type="small", booting=True, ready_at=NOW)
    seen = as_planned(ordered, market, NOW + late)
    assert seen.ready_at is not None
    assert NOW + late < seen.ready_at <= NOW + late + boot


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        (InstanceLimits(), ["small", "large"]),
        (InstanceLimits(types={"small": 1}), ["large"]),
        (InstanceLimits(types={"small": 2}), ["small", "large"]),
        (InstanceLimits(usd_per_hour=0.36 + 1.43), ["small"]),
        (InstanceLimits(vcpus={"standard on-demand": 4}), ["small"]),
        (InstanceLimits(vcpus={"standard on-demand": 3}), []),
    ],
)
def test_no_type_is_planned_of_which_the_limits_allow_no_more(limits: InstanceLimits, names: list[str]) -> None:
    bins = pose([], [], GOODS, limits, Objective(), NOW, None).bins
    assert [each.type.name for each in affordable(bins, [machine("there")], limits)] == names
