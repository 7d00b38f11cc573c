"""Where jobs begin at a site whose machines are bought by machine-hours: none waits in vain while there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lading.scheduling.forecast.policy import Actions
from lading.scheduling.job import Budget
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.hours import BOOTS, PATIENCE
from lading.scheduling.placing.placement import assign
from lading.scheduling.plan import InstanceLimits, Placement, Plan
from lading.scheduling.provisioning import machines
from lading.scheduling.provisioning.foreseen import ForeseenActions
from lading.scheduling.resources import Resources
from tests.reasons import told
from tests.services.packing import catalogue

NOW = 100_000.0
BOOT = 60.0
TYPES = catalogue(small=(1, 4000, 0.1), large=(16, 64000, 1.6))
IDLE = Location(
    "there",
    TYPES.types["large"].capacity,
    instance_type="large",
    usd_per_hour=1.6,
    launched_at=NOW - 500,
    idle_since=NOW,
)


def job(name: str = "job", **values: Any) -> WaitingJob:
    """A long one, for which a small machine is cheaper than the large one that is idle."""
    known = {"queued_at": NOW - 10, "time": 3600.0, "resources": Resources(1, 1000)}
    return WaitingJob(name=name, **{**known, **values})


def tick(*jobs: WaitingJob, there: tuple[Location, ...] = (IDLE,), **market: Any) -> Assignment:
    """What is decided for jobs none of which has come just now."""
    goods = MachineMarket(TYPES, boot_seconds=BOOT, **market)
    waited = {each.name: NOW - each.queued_at for each in jobs}
    up = [each for each in there if not each.booting]
    site = SiteView(name="cloud", locations=up, launched=there, market=goods, policy="hours", turned_away=waited)
    return assign(jobs, [site], now=NOW)


def bought(found: Assignment) -> list[tuple[str, ...]]:
    """The jobs of each machine that is launched."""
    return [each.jobs for each in found.provisions["cloud"].launches]


def test_what_costs_less_is_bought_though_there_is_room() -> None:
    found = tick(job())
    assert (found.placed, bought(found)) == ({}, [("job",)])


def test_what_begins_and_what_is_bought_follow_from_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once in a tick and passed on, and nothing of it is left for the next tick."""
    made, plan = [], machines.plan

    def counted(*of: Any, **more: Any) -> Plan:
        made.append(of)
        return plan(*of, **more)

    monkeypatch.setattr(machines, "plan", counted)
    assert bought(tick(job())) == [("job",)]
    assert len(made) == 1
    tick(job())
    assert len(made) == 2


@pytest.mark.parametrize(
    "its",
    [
        {"budgets": (Budget("run", 5.0, 5.0, 0.0),)},
        {"budgets": (Budget("run", 5.0, 3.0, 1.95),)},
        {"queued_at": NOW - PATIENCE - BOOTS * BOOT - 1},
    ],
    ids=["all is spent", "no more pays for an hour", "what was ordered was refused again and again"],
)
def test_a_job_for_which_nothing_is_bought_goes_where_there_is_room(its: dict[str, Any]) -> None:
    found = tick(job(**its))
    assert found.placed == {"job": ("cloud", "there")}
    assert bought(found) == []
    assert "there" not in found.provisions["cloud"].spare


def test_one_whose_run_cannot_pay_takes_no_room_of_others() -> None:
    whole = job("other", resources=Resources(16, 1000))
    found = tick(whole, job(budgets=(Budget("run", 5.0, 5.0, 0.0),)))
    assert found.placed == {"other": ("cloud", "there")}
    assert "max_usd" in told(found.provisions["cloud"].waits["job"])


@pytest.mark.parametrize(
    "market", [{"held": "AWS says no"}, {"limits": InstanceLimits(instances=1)}], ids=["held", "limit"]
)
def test_room_is_used_where_nothing_may_be_bought(market: dict[str, Any]) -> None:
    found = tick(job(), **market)
    assert (found.placed, bought(found)) == ({"job": ("cloud", "there")}, [])


def test_a_machine_that_is_kept_anyway_costs_nothing_more() -> None:
    found = tick(job(), min_instances=1)
    assert (found.placed, bought(found)) == ({"job": ("cloud", "there")}, [])
    busy = replace(IDLE, name="busy", used=IDLE.capacity)
    assert bought(tick(job(), there=(IDLE, busy), min_instances=1)) == [("job",)], "the busy one is kept, not this"
    limited = tick(
        job(), job("large", resources=Resources(16, 64000)), min_instances=1, limits=InstanceLimits(usd_per_hour=1.6)
    )
    assert bought(limited) == [], "it counts all the same where money is limited"


def test_nothing_is_bought_for_a_job_that_is_about_to_begin() -> None:
    given = IDLE.given([job("given")])
    assert bought(tick(job(), there=(given,))) == [("job",)]
    behind = replace(IDLE, used=IDLE.capacity).given([job("given")])
    assert sorted(name for names in bought(tick(job(), there=(behind,))) for name in names) == ["given", "job"]


def test_a_tick_makes_one_plan_for_what_begins_and_for_what_is_bought(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    make = machines.plan
    monkeypatch.setattr(machines, "plan", lambda *told, **more: plans.append(make(*told, **more)) or plans[-1])
    jobs = [job(), job("large", resources=Resources(16, 64000))]
    found = tick(*jobs)
    assert (found.placed, bought(found)) == ({"large": ("cloud", "there")}, [("job",)])
    assert len(plans) == 1
    busy = replace(IDLE, used=Resources(15, 1000))
    assert tick(*jobs, there=(busy,)).placed != found.placed
    assert len(plans) > 1, "another question has another answer"


def test_a_plan_that_is_not_of_now_puts_jobs_on_no_more_machines_than_their_task_may_use() -> None:
    there = (replace(IDLE, tasks=frozenset({"t"}), jobs=1), replace(IDLE, name="other"))
    jobs = [job(name, task="t", max_instances=1) for name in ("a", "b")]
    begins = (Placement("a", "other"), Placement("b", "there"))
    plan = ForeseenActions(Actions(begins, (), (), (), {}, None, {}, {}), False, planned=frozenset({"a", "b"}))
    market = MachineMarket(TYPES, boot_seconds=BOOT)
    site = SiteView(name="cloud", locations=there, launched=there, market=market, policy="forecast")
    at_work = (job("before", task="t"), "cloud", "there")
    found = assign(jobs, [site], [at_work], now=NOW, choice=Choice(NOW, foreseen={"cloud": plan}))
    assert found.placed == {"b": ("cloud", "there")}


def test_jobs_are_prefetched_as_a_plan_says() -> None:
    """How long they take is the plan's to say as well: it learns that from one job of a task."""
    full = replace(IDLE, used=IDLE.capacity, jobs=4, idle_since=None)
    other = replace(IDLE, name="other")
    jobs = [job("next"), job("later", time=5.0), job("elsewhere", time=5.0)]
    names = frozenset(each.name for each in jobs)
    nothing = Actions((), (), (), (), {}, None, {}, {})
    plan = ForeseenActions(nothing, True, planned=names, homes={"next": "there", "later": "there"})
    plan = replace(plan, prefetch_to={"next": "there"})
    site = SiteView(
        name="cloud",
        locations=(full, other),
        launched=(full, other),
        market=MachineMarket(TYPES, boot_seconds=BOOT),
        policy="forecast",
    )
    found = assign(jobs, [site], now=NOW, choice=Choice(NOW, foreseen={"cloud": plan}))
    assert found.placed == {"next": ("cloud", "there")}
