"""Where jobs begin, and to which machines they are prefetched, as a plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lading.scheduling.forecast.policy import Actions
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import Placement
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import assign
from lading.scheduling.provisioning.foreseen import ForeseenActions
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


def job(name: str, **values: Any) -> WaitingJob:
    known = {"queued_at": NOW - 10, "time": 3600.0, "resources": Resources(1, 1000)}
    return WaitingJob(name=name, **{**known, **values})


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


def test_a_job_for_which_nothing_may_be_launched_goes_where_there_is_room() -> None:
    """Its plan would rather have a machine of its own, for which a budget does not pay."""
    names = frozenset({"poor", "planned"})
    nothing = Actions((), (), (), (), {}, None, {}, {})
    plan = ForeseenActions(nothing, True, planned=names, withheld=frozenset({"poor"}))
    market = MachineMarket(TYPES, boot_seconds=BOOT)
    site = SiteView(name="cloud", locations=(IDLE,), launched=(IDLE,), market=market, policy="forecast")
    found = assign([job(name) for name in names], [site], now=NOW, choice=Choice(NOW, foreseen={"cloud": plan}))
    assert found.placed == {"poor": ("cloud", "there")}
