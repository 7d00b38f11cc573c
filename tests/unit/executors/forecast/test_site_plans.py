"""The plan of a site from tick to tick: made in another thread, and followed as far as it is of now."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from lading.executors.forecast.held_up import SECONDS_UNTIL_HELD_UP
from lading.executors.forecast.site_plan import SECONDS_PENDING, PlanningInput, SitePlan, chosen
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, run_at_site, site_forecast
from lading.scheduling.forecast.fleet_work import Fleet
from lading.scheduling.forecast.forecast import RoomWait
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Provision, decide
from lading.scheduling.provisioning.foreseen import ForeseenActions
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
MARKET = MachineMarket(GOODS, policy=FORECAST, idle_seconds=120.0, boot_seconds=60.0)
HUGE = PlannedJob("", Resources(64, 1024))
NOW = 1000.0


class House:
    """A site, what is to come there, and the plans that are asked for, each made when the test says so."""

    def __init__(self) -> None:
        self.jobs: dict[str, ComingTask] = {}
        self.machines: list[Location] = []
        self.asked: list[tuple[Future[Fleet | None], PlanningInput, Sequence[Fleet]]] = []
        self.rings = 0
        self.at_once = True
        self.most: int | None = None
        self.run_max_instances: int | None = None
        self.pools: dict[str, int] = {}
        self.seconds_ahead = 0.0
        self.plan = SitePlan(MARKET, self.start, self.ring)

    def ring(self) -> None:
        self.rings += 1

    def start(self, here: PlanningInput, fleets: Sequence[Fleet]) -> Future[Fleet | None]:
        self.asked.append((Future(), here, fleets))
        if self.at_once:
            self.make()
        return self.asked[-1][0]

    def make(self) -> None:
        """Choose the fleet that was asked for last."""
        future, here, fleets = self.asked[-1]
        future.set_result(chosen(here, fleets, lambda: None))

    def job(self, name: str, *after: str, seconds: float = 100.0, **known: Any) -> None:
        need = PlannedJob("", Resources(2, 1024))
        self.jobs[name] = ComingTask((ComingJob(name, Prediction(seconds), "cloud", need, **known),), after)

    def machine(self, name: str, **known: Any) -> None:
        its = Location(name, Resources(2, 4096), instance_type="small", usd_per_hour=0.36, launched_at=0.0, **known)
        self.machines = [*(each for each in self.machines if each.name != name), its]

    def look(
        self,
        now: float = NOW,
        market: MachineMarket = MARKET,
        hurry: float | None = None,
        finish_by: float | None = None,
        **known: Any,
    ) -> ForeseenActions:
        up = [each for each in self.machines if not each.booting]
        ahead = self.seconds_ahead
        site = SiteView(name="cloud", market=market, locations=up, launched=self.machines, seconds_ahead=ahead)
        run = ComingRun("r", NOW, self.jobs, hurry, self.most, finish_by, self.run_max_instances)
        its = site_forecast([run_at_site(run, "cloud")], self.pools)
        return self.plan.next_actions(its, site, market, now, **known)

    def decided(self, now: float = NOW) -> Provision:
        return decide([], self.machines, MARKET, None, InstanceLimits(), now=now, foreseen=self.look(now))


def test_jobs_begin_by_the_plan_under_their_tokens_and_what_comes_has_a_machine() -> None:
    here = House()
    here.machine("up", idle_since=NOW)
    here.job("a", token="t-a", seconds=500)
    here.job("b", "a")
    here.job("c", "a")
    found = here.look()
    assert [(each.job, each.location) for each in found.actions.placements] == [("t-a", "up")]
    assert (found.is_of_now, found.planned, here.rings) == (True, {"t-a"}, 0)
    assert found.actions.needed.keys() == {"up"}


def test_a_plan_that_is_not_of_now_releases_nothing() -> None:
    """A machine has become idle, and a job has come: by the old plan, and with the new one to come, it stays."""
    here = House()
    here.machine("up", idle_since=NOW)
    here.machine("busy", used=Resources(2, 1024), jobs=1)
    here.job("a", token="a", begun=NOW, location="busy")
    assert here.decided().releases.keys() == {"up"}, "nothing needs it"
    here = House()
    here.machine("up", idle_since=NOW)
    here.job("a", token="a", begun=NOW, location="gone")
    here.at_once = False
    assert here.decided().releases == {}, "there is no plan yet"
    here.make()
    here.job("b", "a", token="b")
    found = here.look(NOW + 3)
    assert not found.is_of_now
    assert found.actions.releases == ()
    assert here.decided(NOW + 4).releases == {}
    here.make()
    assert here.look(NOW + 5).is_of_now


def test_as_long_as_a_plan_is_made_jobs_wait_for_it_but_not_for_long() -> None:
    here = House()
    here.at_once = False
    here.job("a", token="t")
    first = here.look()
    assert (first.is_of_now, first.planned, first.pending) == (False, frozenset(), {"t"})
    assert here.look(NOW + SECONDS_PENDING).pending == frozenset()
    assert here.rings == 0
    here.make()
    assert here.rings == 1, "no tick has waited for it"
    found = here.look(NOW + SECONDS_PENDING + 1)
    assert [each.instance_type for each in found.actions.launches] == ["small"]


def test_where_choosing_takes_long_machines_are_launched_by_the_last_fleet() -> None:
    here = House()
    here.job("a", token="t")
    here.look()
    here.machine("new", booting=True, ready_at=NOW + 60)
    here.at_once = False
    here.job("b", token="u")
    assert here.look(NOW + 3).actions.launches == ()
    late = here.look(NOW + SECONDS_PENDING + 1)
    assert not late.is_of_now
    assert {name for each in late.actions.launches for name in late.actions.launched_for[each.name]} == {"u"}


def test_fleets_a_little_smaller_and_larger_are_tried_where_something_goes_another_way() -> None:
    here = House()
    for name in "abc":
        here.machine(f"m-{name}", used=Resources(2, 1024), jobs=1)
        here.job(name, token=name, begun=NOW, location=f"m-{name}")
        here.job(f"{name}2", name)
    here.look()
    here.jobs.pop("a")  # it has ended early
    here.machine("m-a")
    here.job("a2", token="a2")
    here.look(NOW + 30)
    assert len(here.asked) == 2
    assert {2, 3, 4} <= {each.size for each in here.asked[-1][2] if not each.stretch}


def test_a_launch_that_is_withheld_is_asked_for_again_by_the_same_plan_until_it_is_made() -> None:
    """As by a budget. What comes behind it is overdue by then, and when it starts or ends is not known."""
    here = House()
    here.job("a", token="t")
    here.job("b", "a")
    assert here.look().actions.launches
    assert (here.plan.starts.keys(), here.plan.ends.keys()) == ({"t"}, {"r"})
    for seconds in range(1, 500, 7):
        found = here.look(NOW + seconds)
        names = [found.actions.launched_for[each.name] for each in found.actions.launches]
        assert (found.is_of_now, names[0][0], found.planned) == (True, "t", {"t"})
        assert (here.plan.starts, here.plan.ends) == ({}, {})
    assert len(here.asked) == 1
    here.machine("new", booting=True, ready_at=NOW + 560)
    found = here.look(NOW + 500)
    assert (found.is_of_now, found.actions.launches, len(here.asked)) == (True, (), 2)
    assert here.plan.starts == {"t": NOW + 560}


def test_a_machine_is_for_the_jobs_for_which_it_was_launched_where_others_of_its_kind_are_withheld() -> None:
    """Else those that no budget pays for would have it, and another one would be launched again and again."""
    market = replace(MARKET, limits=InstanceLimits(types={"large": 0}))
    for launched, withheld in (("t", "u"), ("u", "t")):
        here = House()
        here.job("a", token="t")
        here.job("b", token="u")
        assert len(here.look(market=market).actions.launches) == 2
        here.machine("new", booting=True, ready_at=NOW + 60, promised=frozenset({launched}))
        found = here.look(NOW + 1, market)
        assert (found.is_of_now, found.homes) == (True, {launched: "new"})
        assert list(found.actions.launched_for.values()) == [(withheld,)]
        assert len(here.asked) == 1


def test_what_can_be_launched_again_is_planned_for() -> None:
    here = House()
    here.job("a", token="t")
    held = replace(MARKET, held=free_text("no"))
    assert [here.look(NOW + seconds, held).planned for seconds in range(5)] == [set()] * 5
    full = replace(MARKET, limits=InstanceLimits(types={"small": 0, "large": 0}))
    assert here.look(NOW + 6, full).actions.launches == ()
    assert len(here.asked) == 1
    assert here.look(NOW + 7).actions.launches
    assert here.look(NOW + 8, full).actions.launches == (), "there is none of its kind any more"
    assert len(here.asked) == 3


def test_where_there_may_be_more_machines_than_a_plan_has_all_of_it_is_planned_anew() -> None:
    here = House()
    here.job("a", token="t", seconds=900)
    here.job("b", token="u", seconds=900)
    limits = InstanceLimits(types={"large": 0})
    one, more = (replace(MARKET, limits=replace(limits, instances=number)) for number in (1, 3))
    assert len(here.look(market=one).actions.launches) == 1
    here.machine("new", booting=True, ready_at=NOW + 60)
    assert here.look(NOW + 1, one).actions.launches == ()
    assert len(here.asked) == 1
    assert len(here.look(NOW + 2, more).actions.launches) == 1
    here.machine("newer", booting=True, ready_at=NOW + 62)
    assert here.look(NOW + 3, replace(MARKET, limits=limits)).is_of_now
    assert len(here.asked) == 2, "it has as many as it needs"


@pytest.mark.parametrize("known", [{"max_instances": 3}, {"run_max_instances": 3}], ids=["task", "run"])
def test_machines_for_a_task_that_may_use_few_are_planned_as_where_there_may_be_few(known: dict[str, int]) -> None:
    """Some of its jobs are at work, and one machine that takes no more counts as well."""
    found = []
    for is_hint in (True, False):
        here = House()
        need = PlannedJob("", Resources(3, 1024), task="r a")
        jobs = [ComingJob(f"a{n}", Prediction(300.0), "cloud", need, n, f"t{n}") for n in range(20)]
        jobs[0] = replace(jobs[0], begun=NOW, location="up")
        here.jobs["a"] = ComingTask(jobs, max_instances=known.get("max_instances") if is_hint else None)
        its = Location("up", Resources(8, 16384), Resources(3, 1024), "large", usd_per_hour=1.44, jobs=1)
        here.machines = [its, replace(its, name="draining", draining=True, tasks=frozenset(("r a",)), runs={"r"})]
        here.run_max_instances = known.get("run_max_instances") if is_hint else None
        limits = InstanceLimits(instances=None if is_hint else 3)
        actions = here.look(market=replace(MARKET, limits=limits)).actions
        assert here.plan.planner.schedule is not None
        used = {id(each) for each in here.plan.planner.schedule.homes.values()}
        assert len(used) == 2, "one of the three takes no more"
        found.append((len(actions.launches), len(actions.placements), here.plan.ends))
    assert found[0] == found[1]


def test_what_its_share_keeps_from_the_site_is_planned_when_that_does_not() -> None:
    here = House()
    here.job("a", token="t")
    here.job("b", token="u")
    assert [here.look(NOW + seconds, barred={"t"}).planned for seconds in range(100)] == [{"u"}] * 100
    assert (len(here.asked), here.plan.ends) == (1, {})
    assert here.look(NOW + 100).planned == {"t", "u"}
    assert len(here.asked) == 2


def test_a_run_that_cannot_end_when_it_shall_is_planned_to_end_as_early_as_it_can() -> None:
    def ends(*, finish_by: float | None = None) -> float:
        here = House()
        for name in "abcd":
            here.job(name, seconds=300, token=name)
        here.job("last", *"abcd", seconds=100)
        here.look(hurry=0.0, finish_by=finish_by)
        return here.plan.ends["r"]

    earliest = NOW + 60 + 300 + 100
    assert ends(finish_by=NOW + 10) == earliest
    assert ends(finish_by=earliest + 20) <= earliest + 20
    here = House()
    here.job("a", token="a")
    here.jobs["huge"] = replace(here.jobs["a"], jobs=(replace(here.jobs["a"].jobs[0], name="huge", need=HUGE),))
    here.look()
    assert here.plan.ends == {}, "what fits nothing does not end"


def test_what_is_asked_of_a_run_is_planned_at_once_and_in_all_ways() -> None:
    here = House()
    here.machine("up", idle_since=NOW)
    here.job("a", seconds=300, token="a")
    here.job("b", seconds=300, token="b")
    assert here.look(hurry=0.0).actions.launches == (), "one behind the other is cheaper"
    assert here.look(NOW + 1, hurry=0.0).is_of_now
    assert len(here.asked) == 1
    found = here.look(NOW + 2, hurry=0.0, finish_by=NOW + 400)
    assert (found.is_of_now, len(here.asked)) == (True, 2)
    assert len(found.actions.launches) == 1
    assert here.asked[-1][2] == here.asked[0][2] == [], "not only what is beside the last one"


def test_what_comes_after_is_not_known_and_so_nothing_goes() -> None:
    here = House()
    here.machine("up", idle_since=NOW)
    here.job("a", token="a", begun=NOW, location="gone")
    found = here.look(is_blind=True)
    assert (found.is_of_now, found.actions.releases) == (True, ())
    assert here.look(NOW + 1).actions.releases[0].location == "up"
    assert len(here.asked) == 1


def test_what_stays_in_any_case_is_no_reason_to_plan_anew() -> None:
    here = House()
    here.machine("up", idle_since=NOW)
    market = replace(MARKET, min_instances=1)
    assert [here.look(NOW + seconds, market).actions.releases for seconds in range(3)] == [(), (), ()]
    assert len(here.asked) == 1


def test_launches_that_are_held_leave_the_jobs_to_be_decided_about_otherwise() -> None:
    here = House()
    here.job("a", token="t")
    found = here.look(market=replace(MARKET, held=free_text("no")))
    assert (found.planned, found.actions.launches) == (frozenset(), ())


def test_what_fails_is_raised_and_planned_anew() -> None:
    here = House()
    here.at_once = False
    here.job("a", token="t")
    here.look()
    here.asked[-1][0].set_exception(ZeroDivisionError("odd"))
    with pytest.raises(ZeroDivisionError):
        here.look(NOW + 1)
    here.at_once = True
    assert here.look(NOW + 2).is_of_now


def test_for_what_airflow_could_have_queued_nothing_is_launched_before_it_has() -> None:
    here = House()
    here.job("a")
    assert here.look().not_ahead == {"a"}
    assert here.decided(NOW + 1).launches == ()
    here.job("a", token="t")
    assert [each.jobs for each in here.decided(NOW + 2).launches] == [("t",)]


def test_nor_for_what_comes_after_that() -> None:
    here = House()
    here.job("a", seconds=5)
    here.job("b", "a", seconds=5)
    assert here.look().not_ahead == {"a", "b"}
    assert here.decided(NOW + 1).launches == ()


def test_what_waits_behind_something_that_is_held_up_is_in_no_plan() -> None:
    here = House()
    need = PlannedJob("", Resources(2, 1024))
    one, two = (
        ComingJob(name, Prediction(5.0), site, need, index, token=name)
        for index, (name, site) in enumerate([("one", "hpc"), ("two", "cloud")])
    )
    here.jobs["a"] = ComingTask((one, two), most=1)
    found = [here.look(NOW + seconds) for seconds in (0, SECONDS_UNTIL_HELD_UP)]
    assert [each.planned for each in found] == [{"two"}, set()]


@pytest.mark.parametrize("known", [{}, {"site": "hpc", "token": "there"}], ids=["here", "at another site"])
def test_what_is_held_up_and_all_behind_it_is_not_planned(known: dict[str, Any]) -> None:
    """Something holds it up that is not known here: as soon as it comes it is planned again."""
    here = House()
    here.job("a", seconds=5)
    here.jobs["a"] = ComingTask([replace(here.jobs["a"].jobs[0], **known)])
    here.job("b", "a")
    here.job("c", token="c", begun=NOW, location="up", seconds=500)
    here.machine("up", used=Resources(2, 1024), jobs=1)
    here.look()
    assert here.plan.planner.chosen_for == {"a", "b", "c"}
    here.look(NOW + SECONDS_UNTIL_HELD_UP)
    assert here.plan.planner.open == {"c"}
    here.job("a", token="t", seconds=5)
    assert here.look(NOW + 60).planned == {"t"}
    assert here.plan.planner.open == {"a", "b", "c"}


def gang(*members: ComingJob) -> ComingTask:
    return ComingTask(members, ("a",), gang="g", ahead=True, at_once=True)


@pytest.mark.parametrize("retries", [False, True])
def test_a_gang_has_all_its_machines_at_once_unless_a_member_waits_for_a_retry(retries: bool) -> None:
    here = House()
    here.job("a", token="a", begun=NOW, location="up", seconds=500)
    here.machine("up", used=Resources(2, 1024), jobs=1)
    need = PlannedJob("", Resources(2, 1024))
    head, *others = (ComingJob(f"m{number}", Prediction(500.0), "cloud", need, number) for number in range(3))
    here.jobs["half"], here.jobs["head"] = gang(*others), gang(replace(head, retries=retries))
    here.job("behind", "head", "half")
    here.look()
    launches = here.look(NOW + 441).actions.launches
    assert len(launches) == (0 if retries else 2), "the third one goes where a was"


def test_of_a_run_no_more_machines_are_launched_ahead_than_it_may_have_jobs_at_work() -> None:
    here = House()
    here.most = 2
    here.job("a", token="a", begun=NOW, location="away", seconds=500)
    need = PlannedJob("", Resources(2, 1024))
    jobs = [ComingJob(f"b{number}", Prediction(500.0), "cloud", need, number) for number in range(5)]
    here.jobs["b"] = ComingTask(jobs, ("a",), ahead=True)
    here.look(hurry=10.0)
    assert len(here.look(NOW + 441, hurry=10.0).actions.launches) == 2


def test_behind_a_wait_in_another_queue_a_machine_boots_in_time() -> None:
    """What waits there for as long as is expected is not held up, and what waits for longer is."""
    here = House()
    here.job("a")
    waiting = replace(here.jobs["a"].jobs[0], site="hpc", token="t", room_wait=RoomWait(300.0, since=NOW))
    here.jobs["a"] = ComingTask([waiting])
    here.job("b", "a")
    here.job("c", token="c", begun=NOW, location="up", seconds=5000)
    here.machine("up", used=Resources(2, 1024), jobs=1)
    launches = {seconds: len(here.look(NOW + seconds).actions.launches) for seconds in (0, 30, 290)}
    assert launches == {0: 0, 30: 0, 290: 0}
    here.jobs["a"] = ComingTask([replace(waiting, begun=NOW + 295)])
    assert [len(here.look(NOW + seconds).actions.launches) for seconds in (296, 330, 335)] == [0, 0, 1], "less a boot"
    here.jobs["a"] = ComingTask([waiting])
    assert here.look(NOW + 301).not_ahead == {"a", "b"}
    here.look(NOW + 301 + SECONDS_UNTIL_HELD_UP)
    assert here.plan.planner.open == {"c"}


def test_while_something_is_held_up_idle_machines_stay() -> None:
    here = House()
    here.machine("up", idle_since=NOW)
    here.job("a")
    assert here.look().actions.releases == ()
    assert here.look(NOW + SECONDS_UNTIL_HELD_UP).actions.releases == (), "it may come at any time"
    here.jobs.clear()
    assert [each.location for each in here.look(NOW + 60).actions.releases] == ["up"]


@pytest.mark.parametrize("limit", ["run", "pool", "none"])
def test_what_has_to_wait_for_its_turn_is_not_held_up(limit: str) -> None:
    here = House()
    here.machine("up", used=Resources(2, 1024), jobs=1)
    here.most, here.pools = (1 if limit == "run" else None), ({"p": 3} if limit == "pool" else {})
    here.job("a", token="t", begun=NOW, location="up", seconds=200, pool="p", pool_slots=2)
    here.job("b", pool="p", pool_slots=2)
    found = [here.look(NOW + seconds) for seconds in (0, SECONDS_UNTIL_HELD_UP)]
    expected = {"b"} if limit == "none" else set()
    assert [each.not_ahead for each in found] == [expected, expected]
    assert ("b" in here.plan.planner.open) == (limit != "none")


def test_a_machine_with_jobs_that_no_plan_had_is_kept_when_it_is_empty() -> None:
    """More may come of what comes from a full site, of gangs and of tasks on few machines: ``idle_seconds`` bounds
    it."""
    here = House()
    here.job("last", token="l", begun=NOW, location="busy", seconds=900)
    here.machine("busy", used=Resources(2, 1024), jobs=1)
    here.machine("planned", idle_since=None)
    here.job("a", token="a", seconds=10)
    assert [each.location for each in here.look().actions.placements] == ["planned"]
    here.job("a", token="a", begun=NOW, location="planned", seconds=10)
    here.machine("planned", used=Resources(2, 1024), jobs=1)
    here.job("odd", token="o", begun=NOW, location="odd", seconds=10)
    here.machine("odd", used=Resources(2, 1024), jobs=1)
    here.machine("stranger", used=Resources(1, 1024), jobs=1)
    here.look(NOW + 1)
    assert here.plan.unplanned == {"busy", "odd", "stranger"}, "of what ran before it is not known"
    del here.jobs["a"], here.jobs["odd"]
    for name in ("planned", "odd", "stranger"):
        here.machine(name, idle_since=NOW + 10)
    assert [each.location for each in here.look(NOW + 10).actions.releases] == ["planned"]
    here.job("b", token="b", seconds=10)
    here.look(NOW + 11)


def test_types_are_planned_that_the_limits_allow() -> None:
    here = House()
    here.job("a", token="t")
    limited = replace(MARKET, limits=InstanceLimits(usd_per_hour=1.0, types={"small": 1}))
    assert [each.instance_type for each in here.look(market=limited).actions.launches] == ["small"]
    here = House()
    here.machine("busy", used=Resources(2, 1024), jobs=1)
    here.job("a", token="t")
    found = here.look(market=limited)
    assert (found.actions.launches, found.planned) == ((), frozenset()), "the limits decide what is said of it"


def test_a_boot_takes_as_long_as_those_of_its_type_have() -> None:
    market = replace(MARKET, boots={"small": 200.0})
    here = House()
    here.job("a", token="a", begun=NOW, location="gone", seconds=500)
    here.job("b", "a")
    assert here.look(market=market).actions.launches == ()
    assert here.look(NOW + 299, market=market).actions.launches == ()
    assert [each.instance_type for each in here.look(NOW + 300, market=market).actions.launches] == ["small"]


def test_short_jobs_go_to_the_machine_on_which_the_plan_has_them_before_there_is_room() -> None:
    here = House()
    here.machine("up", jobs=1, used=Resources(2, 1024))
    here.job("runs", seconds=5.0, token="t-runs", begun=NOW - 4, location="up")
    here.job("next", seconds=3.0, token="t-next")
    found = here.look()
    assert found.homes.keys() >= {"t-next"}
    assert found.prefetch_to == {"t-next": "up"}


@pytest.mark.parametrize(("seconds_ahead", "prefetched"), [(0.5, {}), (6.0, {"t-next": "up"})])
def test_a_site_that_answers_late_gets_them_sooner(seconds_ahead: float, prefetched: dict[str, str]) -> None:
    here = House()
    here.seconds_ahead = seconds_ahead
    here.machine("up", jobs=1, used=Resources(2, 1024))
    here.job("runs", seconds=8.0, token="t-runs", begun=NOW - 4, location="up")
    here.job("next", seconds=3.0, token="t-next")
    assert here.look().prefetch_to == prefetched


@pytest.mark.parametrize("late", [0.5, 6.0, 17.0, 400.0])
def test_an_overdue_machine_is_not_bought_a_second_time(late: float) -> None:
    """EC2 has throttled its launch, and another one would boot in five seconds."""
    here = House()
    here.machine("ordered", booting=True, ready_at=NOW)
    here.job("a", token="t-a", seconds=500)
    market = replace(MARKET, boot_seconds=5.0, hurry=10.0)
    assert here.look(NOW - 5, market).actions.launches == ()
    found = here.look(NOW + late, market)
    assert (found.is_of_now, found.actions.launches, found.planned) == (True, (), {"t-a"})
