"""What is launched at a site: ordered in the store first, found again by its token, and counted until it has ended."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import request_rows, store
from lading.executors.controller import housekeeping, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.controller.metrics import Metrics
from lading.executors.forecast import site_plans
from lading.executors.gangs.gang_outcome import GangOutcome
from lading.executors.request_rows import RequestKind
from lading.executors.settings import Settings
from lading.executors.store import Change, JobRow, State
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.tables import RequestRow
from lading.hooks.site import LocationState, Observation, ObservedLocation, Order, Site
from lading.hooks.spool.spool import Envelope
from lading.plugin.host import AirflowHost
from lading.scheduling.gangs.room import GangRoom
from lading.scheduling.matching import market
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import because
from tests.clusters.sites import ANY, FINISHED, FakeElasticSite, FakeSite, make_settings, rest
from tests.reasons import told
from tests.services.processes import wait_until


@dataclass
class House:
    """A database, and the controllers that come and go on it."""

    engine: Engine
    settings: Settings
    sites: Sequence[Site[Any]]
    told: list[Change] = field(default_factory=list)
    living: list[Controller] = field(default_factory=list)

    @property
    def controller(self) -> Controller:
        return self.living[-1]

    def new_controller(self) -> Controller:
        """Another one, as after a crash of the last one."""
        for each in self.living:
            each.leadership.leads_until = 0.0
            each.leadership.has_lost = True
        with Session(self.engine) as session:
            session.query(store.Lease).delete()
            session.commit()
        sites = {site.name: site for site in self.sites}
        made = Controller(AirflowHost(), sites, lambda subject, seconds: "jwt", self.settings, True, self.told.extend)
        self.living.append(made)
        return made

    def give_up_at_once(self) -> None:
        """What a site does not show is gone, lost or sent again from now on."""
        for instances_of in self.controller.launched.values():
            instances_of.seconds_until_gone = 0.0
        for compared in self.controller.compared.values():
            compared.seconds_until_lost = compared.seconds_until_repeated = 0.0

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.look()
            self.controller.tick()
            rest(self.controller.threads)

    def look(self) -> None:
        """Have the sites looked at, when they have done what they were asked to."""
        rest(self.controller.threads)
        self.controller.threads.request_observations()
        rest(self.controller.threads)

    def end(self) -> None:
        for each in self.living:
            each.leadership.leads_until = 0.0
            each.threads.end()

    def add(self, *tokens: str, **columns: Any) -> None:
        """Jobs of a kind that is not cancelled for lack of a task."""
        defaults: dict[str, Any] = {
            "kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "cpus": 4.0, "memory": 1,
            "disk": 0, "gpus": 0.0, "priority": 0, "queued_at": time.time() - 30,
        }  # fmt: skip
        with Session(self.engine) as session:
            for token in tokens:
                store.add_job(session, token=token, **{**defaults, **columns})
            session.commit()

    def change(self, token: str, **columns: Any) -> None:
        with Session(self.engine) as session:
            session.execute(update(JobRow).where(JobRow.token == token).values(**columns))
            store.tell(session, [token])
            session.commit()

    def job(self, token: str) -> JobRow:
        with Session(self.engine) as session:
            return session.scalars(select(JobRow).where(JobRow.token == token)).one()

    def rows(self) -> list[InstanceRow]:
        """The instances, in the order in which they were ordered."""
        with Session(self.engine) as session:
            return list(session.scalars(select(InstanceRow).order_by(InstanceRow.ordered_at, InstanceRow.token)))

    def row(self) -> InstanceRow:
        [found] = self.rows()
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeElasticSite]:
    made = FakeElasticSite("hpc", tmp_path / "hpc")
    yield made
    made.go_on()


@pytest.fixture
def make_house(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., House]]:
    """A controller that looks at its sites in each tick."""
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
    monkeypatch.setattr(site_plans, "PAUSE_BETWEEN_LOOKS", 0.0)
    made: list[House] = []

    def make(*sites: Site[Any]) -> House:
        made.append(House(airflow_database, make_settings(tmp_path), sites))
        made[0].new_controller()
        return made[0]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def house(make_house: Callable[..., House], site: FakeElasticSite) -> House:
    return make_house(site)


def launch(house: House, site: FakeElasticSite, *tokens: str) -> str:
    """Have an instance launched for jobs, up and running them; its name."""
    house.add(*tokens, cpus=4.0 / len(tokens))
    house.tick(2)
    [order] = site.ordered
    site.see(order.name)
    house.tick(2)
    return order.name


def finish(site: FakeElasticSite, name: str, token: str) -> None:
    """Let a job end well."""
    del site.given[name][token]
    left = {"exit_code": 0, "cause": None, "reason": None, "peak_memory": None, "cpu_seconds": None}
    site.tell("finished", token, at=time.time(), **left)


def test_an_order_is_in_the_store_before_it_reaches_the_site_and_reaches_it_once(
    house: House, site: FakeElasticSite
) -> None:
    stored: list[str] = []

    def look(orders: Sequence[Order]) -> None:
        with Session(house.engine) as session:
            stored.extend(session.scalars(select(InstanceRow.token)))

    site.before_launch = look
    house.add("t")
    house.tick()
    row = house.row()
    assert (stored, row.state, row.site) == ([row.token], InstanceState.ORDERED, "hpc")
    assert (row.cpus, row.memory, row.launched_at) == (4.0, 4096, None)
    house.tick(3)
    assert [order.name for order in site.ordered] == [row.token]
    assert house.row().state == InstanceState.BOOTING
    assert house.job("t").state == State.QUEUED, "what boots takes no jobs"


def test_an_order_that_a_crash_has_kept_from_the_site_is_looked_up_before_it_is_repeated(
    house: House, site: FakeElasticSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.controller, "act", lambda decision: None)
    house.add("t")
    house.tick()
    [old] = house.rows()
    house.new_controller()
    house.tick(3)
    assert site.ordered == [], "it may still be there: the site was asked, but not for long"
    house.give_up_at_once()
    time.sleep(0.01)
    house.tick(3)
    ended, new = house.rows()
    assert (ended.token, ended.state, ended.cause) == (old.token, InstanceState.ENDED, "lost")
    assert [order.name for order in site.ordered] == [new.token]


def test_an_order_that_has_reached_the_site_before_a_crash_is_found_again(house: House, site: FakeElasticSite) -> None:
    house.add("t")
    house.tick()
    house.new_controller()
    house.give_up_at_once()
    house.tick(3)
    assert house.row().state == InstanceState.BOOTING
    assert len(site.ordered) == 1


def test_an_order_that_is_lost_and_turns_up_late_is_used_all_the_same(house: House, site: FakeElasticSite) -> None:
    """It would run on otherwise, and never be released."""
    house.give_up_at_once()
    house.add("t")
    house.tick()
    [order] = site.ordered
    site.there.clear()
    house.controller.any_wait = lambda: False  # type: ignore[method-assign]
    house.tick(2)
    time.sleep(0.01)
    house.tick()
    assert house.row().state == InstanceState.ENDED
    site.see(order.name)
    del house.controller.any_wait
    house.tick(3)
    row = house.row()
    assert (row.state, row.ended_at, row.cause, told(row.reason)) == (InstanceState.UP, None, None, None)
    assert (house.job("t").state, house.job("t").location) == (State.RUNNING, order.name)


def test_one_that_has_ended_and_is_named_while_it_goes_stays_ended(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    site.tell("released", name, at=5.0, cause="time_limit")
    site.see(name, LocationState.DRAINING)
    house.tick(2)
    assert (house.row().state, house.row().cause) == (InstanceState.ENDED, "time_limit")


def test_the_row_of_an_instance_follows_what_the_site_sees(house: House, site: FakeElasticSite) -> None:
    house.add("t")
    house.tick(2)
    [order] = site.ordered
    site.see(order.name, LocationState.BOOTING, native_id="17")
    house.tick()
    row = house.row()
    assert (row.state, row.native_id, row.node, row.ready_at) == (InstanceState.BOOTING, "17", None, None)
    assert row.launched_at is not None
    assert row.launched_at >= row.ordered_at
    site.see(order.name, native_id="17", node="n1")
    house.tick(2)
    row = house.row()
    assert (row.state, row.node) == (InstanceState.UP, "n1")
    assert row.ready_at is not None
    assert row.ready_at >= (row.launched_at or 0)
    job = house.job("t")
    assert (job.state, job.site, job.location) == (State.RUNNING, "hpc", order.name)
    site.see(order.name, LocationState.UNREACHABLE, native_id="17", node="n1")
    house.tick()
    assert house.row().state == InstanceState.UP, "it may be back"


def test_a_name_that_no_column_takes_is_stored_as_far_as_it_goes(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    site.see(name, native_id="17\0" + "x" * 999, node="n" * 999)
    house.tick()
    row = house.row()
    assert (len(row.native_id or ""), row.node) == (250, "n" * 250)
    assert "\0" not in (row.native_id or "")


def test_a_location_of_which_only_the_end_is_later_is_not_stored_again(
    house: House, site: FakeElasticSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = json.dumps(["a queue with a long name", [["account", "x" * 99]]])
    site.see("L1", LocationState.BOOTING, kind, native_id="17")
    house.tick()
    with Session(house.engine) as session:
        location = session.get_one(store.LocationRow, ("hpc", "L1"))
        assert (location.state, location.native_id, location.instance_type) == ("booting", "17", None)
        assert (location.note or "").startswith("queue a queue with a long name, account=xxx")
    monkeypatch.setattr(store, "save_locations", lambda *_: pytest.fail("nothing has changed"))
    monkeypatch.setattr(housekeeping, "write_atomically", lambda *_: pytest.fail("nothing has changed"))
    later = replace(site.there["L1"].location, ends_at=time.time() + 9999)
    site.there["L1"] = replace(site.there["L1"], location=later)
    house.tick()
    assert house.controller.observe()[0].observation.locations[0].location == later


def test_an_instance_is_idle_while_it_has_nothing_to_do(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    assert house.row().idle_since is None, "it works"
    finish(site, name, "t")
    house.tick()
    since = house.row().idle_since
    assert since is not None
    house.tick(2)
    assert house.row().idle_since == since
    house.add("u")
    house.tick(3)
    assert house.job("u").state == State.RUNNING
    assert house.row().idle_since is None
    finish(site, name, "u")
    house.tick()
    assert (house.row().idle_since or 0) > since


def test_what_waits_in_its_queue_and_is_not_needed_any_more_is_released(house: House, site: FakeElasticSite) -> None:
    house.add("t")
    house.tick(2)
    house.change("t", state=State.CANCELLED)
    house.tick()
    assert site.let_go == {}, "something may come soon"
    with Session(house.engine) as session:
        session.execute(update(InstanceRow).values(idle_since=time.time() - 100))
        session.commit()
    house.tick()
    [order] = site.ordered
    assert site.let_go == {order.name: because("not_wanted")}
    assert house.row().state == InstanceState.BOOTING, "it is over when the site says so"
    site.end(order.name, reason="as asked")
    house.tick()
    row = house.row()
    assert (row.state, row.cause, told(row.reason)) == (InstanceState.ENDED, None, "as asked")


def test_the_end_of_an_instance_is_stored_with_its_cause(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    site.end(name, cause="preempted", reason="the spot market took it\0")
    house.tick()
    row = house.row()
    assert (row.state, row.cause, told(row.reason)) == (
        InstanceState.ENDED,
        "preempted",
        "the spot market took it\ufffd",
    )
    assert row.ended_at is not None
    assert house.job("t").state == State.RUNNING, "how it ended is reported for each job by itself"


def test_an_end_of_which_nothing_more_is_said_is_an_end(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    site.there.clear()
    site.tell("released", name, at=5.0)
    house.tick()
    row = house.row()
    assert (row.state, row.ended_at, row.cause, told(row.reason)) == (InstanceState.ENDED, 5.0, None, None)


def test_what_the_site_never_launches_fails_the_jobs_that_still_wait_for_it(
    house: House, site: FakeElasticSite
) -> None:
    house.add("a", "b", "c", "d", cpus=1.0)
    house.tick(2)
    [order] = site.ordered
    assert sorted(order.launch.jobs) == ["a", "b", "c", "d"]
    house.change("b", state=State.PLACED, site="hpc", location="other")
    house.change("c", state=State.CANCELLED)
    house.change("d", state=State.RUNNING, site="hpc", location="other")
    house.add("e", cpus=1.0)
    site.see("other")
    site.given["other"] = {"b": False, "d": True}
    site.end(order.name, cause="submit_rejected", reason="no such account", refused=True)
    house.tick()
    job = house.job("a")
    assert (job.state, job.cause, told(job.reason)) == (State.FAILED, "submit_rejected", "no such account")
    assert job.unreported
    assert [change.token for change in house.told if change.values.get("state") == State.FAILED] == ["a"]
    states = [house.job(token).state for token in "bcd"]
    assert states == [State.PLACED, State.CANCELLED, State.RUNNING]
    assert house.job("e").state != State.FAILED, "it came later"


def test_an_end_of_another_kind_fails_no_job(house: House, site: FakeElasticSite) -> None:
    house.add("t")
    house.tick(2)
    site.end(site.ordered[0].name, cause="node_failure", reason="it did not boot")
    house.tick(2)
    assert house.job("t").state == State.QUEUED
    assert len(site.ordered) == 2, "it is launched anew"


def test_a_job_that_comes_back_waits_again_and_is_given_elsewhere(house: House, site: FakeElasticSite) -> None:
    site.starts = False
    name = launch(house, site, "t")
    assert (house.job("t").state, house.job("t").location) == (State.PLACED, name)
    site.end(name, cause="node_failure")
    house.look()
    house.controller.observe()
    job = house.job("t")
    assert (job.state, job.site, job.location, job.placed_at, job.expires_at) == (State.QUEUED, None, None, None, None)
    site.starts = True
    house.tick(2)
    new = site.ordered[-1].name
    assert new != name
    site.see(new)
    house.tick(2)
    assert (house.job("t").state, house.job("t").location) == (State.RUNNING, new)


@pytest.mark.parametrize("columns", [{"location": "other"}, {"state": State.RUNNING}])
def test_what_comes_back_late_changes_nothing(house: House, site: FakeElasticSite, columns: dict[str, Any]) -> None:
    site.starts = False
    name = launch(house, site, "t")
    house.change("t", **columns)
    site.see("other")
    site.tell("returned", "t", location=name)
    before = house.job("t")
    house.look()
    house.controller.observe()
    after = house.job("t")
    assert (after.state, after.location, after.placed_at) == (before.state, before.location, before.placed_at)


def test_a_job_that_was_to_be_ended_where_it_lay_is_ended_when_it_comes_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SECONDS_UNTIL_UNWANTED", 0.0)
    house.add("t", kind="ExecuteTask", cancel=because("unwanted"), dag_id="d", run_id="r", task_id="t")
    with Session(house.engine) as session:
        assert store.take_lease(session, house.controller.leadership.holder, "host", 1, True, 3600.0, None)
        assert [*house.controller.queued.read(session).jobs] == ["t"]
        session.commit()
    house.controller.drop_unwanted()
    assert [*house.controller.queued.jobs] == []
    assert house.job("t").state == State.CANCELLED


def one_waits_behind_another(house: House, site: FakeElasticSite) -> None:
    """On an instance that is full, and another one is free."""
    site.starts = False
    site.see("full")
    site.see("free")
    house.add("runs", state=State.RUNNING, site="hpc", location="full", placed_at=1.0)
    house.add("waits", state=State.PLACED, site="hpc", location="full", placed_at=time.time() - 20, expires_at=1e12)
    site.given["full"] = {"runs": True, "waits": False}


@pytest.mark.parametrize("ahead", [0.0, 300.0, 3600.0])
def test_a_prefetched_job_is_recalled_when_another_instance_has_room(
    house: House, site: FakeElasticSite, ahead: float
) -> None:
    """A controller placed it whose clock may have been ahead of ours."""
    one_waits_behind_another(house, site)
    house.change("waits", placed_at=time.time() - 20 + ahead)
    house.tick(2)
    assert site.recalled == [("full", "waits")]
    house.tick(2)
    assert (house.job("waits").state, house.job("waits").location) == (State.PLACED, "free")
    assert site.given == {"full": {"runs": True}, "free": {"waits": False}}


def test_a_prefetched_job_stays_while_its_site_is_paused_or_the_other_room_is_held(
    house: House, site: FakeElasticSite
) -> None:
    one_waits_behind_another(house, site)
    controller, held = house.controller, {("hpc", "free"): site.there["free"].location.capacity}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller.requests, "step", lambda session: None)
        patch.setattr(controller.requests, "paused", {"hpc": "ann"})
        house.tick(2)
    assert site.recalled == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controller, "any_wait", lambda: True)
        patch.setattr(
            controller.gangs,
            "decide",
            lambda _, __, sites, *___, **____: GangOutcome(GangRoom(sites, held).with_held()),
        )
        house.tick(2)
    assert site.recalled == []
    house.tick()
    assert site.recalled == [("full", "waits")]


def test_what_a_site_has_and_the_store_does_not_know_gets_a_row_and_is_used(
    house: House, site: FakeElasticSite
) -> None:
    """An older version of Lading has launched it."""
    site.see("an-old-name-that-is-longer-than-a-token-of-lading", native_id="9")
    house.add("t")
    house.tick(2)
    row = house.row()
    assert (row.state, row.native_id, row.cpus, row.seconds > 3000) == (InstanceState.UP, "9", 4.0, True)
    assert site.ordered == []
    assert house.job("t").state == State.RUNNING


def test_a_job_is_found_in_the_allocation_that_has_it(house: House, site: FakeElasticSite) -> None:
    """For an older version of Lading the site was its location."""
    house.give_up_at_once()
    house.controller.housekeeping.seconds_between_rounds = 0.0
    place = {"site": "hpc", "location": "hpc", "placed_at": 1.0, "expires_at": time.time() + 590}
    house.add("runs", state=State.RUNNING, **place)
    house.add("waits", state=State.PLACED, **place)
    site.see("L1")
    site.given["L1"] = {"runs": True, "waits": False}
    house.tick()
    time.sleep(0.01)
    house.tick(2)
    for token, state in (("runs", State.RUNNING), ("waits", State.PLACED)):
        assert (house.job(token).state, house.job(token).location) == (state, "L1")
    assert site.calls.count("put") == 0


def test_what_ran_at_a_location_that_is_gone_is_lost_but_not_at_once(house: House, site: FakeElasticSite) -> None:
    launch(house, site, "t")
    site.there.clear()
    house.tick(3)
    assert house.job("t").state == State.RUNNING
    house.give_up_at_once()
    time.sleep(0.01)
    house.tick()
    assert (house.job("t").state, house.job("t").cause) == (State.FAILED, "lost")


def test_a_location_that_could_not_be_asked_changes_nothing(
    house: House, site: FakeElasticSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.give_up_at_once()
    name = launch(house, site, "t")
    site.given.clear()
    monkeypatch.setattr(FakeElasticSite, "observe", FakeSite.observe)
    site.locations = [site.there[name]]
    assert site.locations[0].known is None
    for _ in range(3):
        time.sleep(0.01)
        house.tick()
    assert house.job("t").state == State.RUNNING
    site.trouble = OSError("away")
    for _ in range(3):
        time.sleep(0.01)
        house.tick()
    assert house.job("t").state == State.RUNNING
    assert house.row().state == InstanceState.UP


def test_a_job_that_was_placed_where_nothing_is_any_more_waits_again(house: House, site: FakeElasticSite) -> None:
    """As after a crash between the intent and the deed."""
    house.give_up_at_once()
    house.add("t", state=State.PLACED, site="hpc", location="gone", placed_at=1.0, expires_at=1e12)
    house.tick()
    time.sleep(0.01)
    house.tick(2)
    assert house.job("t").state == State.QUEUED
    house.tick(2)
    site.see(site.ordered[0].name)
    house.tick(2)
    assert house.job("t").state == State.RUNNING


def test_a_living_instance_is_work_and_one_that_has_ended_is_forgotten_in_time(
    house: House, site: FakeElasticSite
) -> None:
    house.controller.housekeeping.seconds_between_rounds = 0.0
    house.controller.housekeeping.seconds_between_purges = 0.0
    house.controller.housekeeping.seconds_until_needless = 0.0
    keeping, days = house.controller.housekeeping, 86400.0

    def needless() -> bool:
        time.sleep(0.01)
        return keeping.due(Metrics(AirflowHost().metrics()), {}, house.controller.queued)

    site.see("L1")
    house.tick()
    assert not needless()
    site.end("L1")
    house.tick()
    assert needless()
    assert house.row().state == InstanceState.ENDED
    with Session(house.engine) as session:
        session.execute(update(InstanceRow).values(ended_at=time.time() - 31 * days))
        session.commit()
    assert needless()
    assert house.rows() == []


def test_what_was_launched_at_a_site_that_is_none_any_more_keeps_no_controller_from_ending(
    make_house: Callable[..., House], site: FakeElasticSite, tmp_path: Path
) -> None:
    site.launches = False
    house = make_house(site, FakeSite("b", tmp_path / "b"))
    with Session(house.engine) as session:
        for token, of in (("L1", "gone"), ("L2", "hpc"), ("L3", "b")):
            columns = {"kind": "", "cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "seconds": 1.0, "ordered_at": 1.0}
            session.add(InstanceRow(token=token, site=of, state=InstanceState.UP, **columns))
        session.commit()
    house.tick()
    assert {(row.state, row.cause) for row in house.rows()} == {(InstanceState.ENDED, "lost")}


def test_a_launch_that_fails_costs_no_other_site_anything_and_is_done_anew(
    make_house: Callable[..., House], site: FakeElasticSite, tmp_path: Path
) -> None:
    other = FakeElasticSite("cloud", tmp_path / "cloud")
    house = make_house(site, other)

    def fail(orders: Sequence[Order]) -> None:
        raise OSError("no quota")

    site.before_launch = fail
    house.add("t", site_hint="hpc")
    house.add("u", site_hint="cloud")
    house.tick(3)
    assert (site.ordered, site.calls.count("launch"), len(other.ordered)) == ([], 1, 1)
    other.see(other.ordered[0].name)
    house.tick(2)
    assert house.job("u").state == State.RUNNING
    site.before_launch = lambda orders: None
    house.give_up_at_once()
    time.sleep(0.01)
    house.tick(2)
    assert len(site.ordered) == 1
    assert house.job("t").state == State.QUEUED


def test_orders_of_a_site_that_hangs_wait_for_it_and_are_given_once(
    house: House, site: FakeElasticSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.give_up_at_once()
    house.tick()
    site.hang.add("launch")
    house.add("t", "u")
    house.controller.tick()
    assert wait_until(lambda: site.hangs, 60, 0.02)
    with monkeypatch.context() as patch:
        patch.setattr(site_threads, "SECONDS_UNTIL_SILENT", 0.05)
        for _ in range(10):
            time.sleep(0.02)
            house.controller.tick()
        assert site.calls == ["launch"]
        assert [row.state for row in house.rows()] == [InstanceState.ORDERED] * 2, "nothing is concluded from silence"
    site.go_on()
    house.tick(3)
    assert sorted(order.name for order in site.ordered) == sorted(row.token for row in house.rows())
    assert {row.state for row in house.rows()} == {InstanceState.BOOTING}


@pytest.mark.parametrize("says", [KeyError("prices"), 5])
def test_a_site_that_cannot_say_what_it_launches_stops_no_other(
    make_house: Callable[..., House], site: FakeElasticSite, tmp_path: Path, says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.says = says
    house = make_house(site, FakeSite("b", tmp_path / "b", known=True))
    house.add("t", site_hint="b", cpus=1.0)
    house.tick(4)
    assert house.job("t").state == State.RUNNING
    assert sum("valid: a Market, or None" in each.getMessage() for each in caplog.records) == 1
    site.says = FakeElasticSite("x", tmp_path).says
    house.add("u", site_hint="hpc")
    house.tick(3)
    assert len(site.ordered) == 1


def test_a_site_reports_its_own_instances_only(
    make_house: Callable[..., House], site: FakeElasticSite, tmp_path: Path
) -> None:
    other = FakeSite("b", tmp_path / "b")
    house = make_house(site, other)
    name = launch(house, site, "t")
    other.events = [{"event": "released", "token": name, "at": 5.0, "refused": True}]
    house.tick(2)
    assert house.row().state == InstanceState.UP
    assert 1 in other.acknowledged


def test_a_job_does_not_wait_for_ever_for_one_that_makes_no_start(house: House, site: FakeElasticSite) -> None:
    """Which jobs an order is for is forgotten with it, not kept for ever."""
    house.add("t")
    house.tick()
    house.give_up_at_once()
    site.there.clear()
    house.tick()
    time.sleep(0.01)
    house.tick(2)
    assert [row.state for row in house.rows()] == [InstanceState.ENDED, InstanceState.BOOTING]
    assert list(house.controller.launched["hpc"].ordered_for) == [site.ordered[-1].name]


def test_a_job_of_another_kind_gets_an_instance_of_its_own(house: House, site: FakeElasticSite) -> None:
    launch(house, site, "t")
    house.add("u", "v", queue_hint="other")
    house.add("w", instance_type="any")
    house.tick(2)
    assert [order.launch.kind for order in site.ordered] == [ANY, market.kind("other", {})]
    assert site.let_go == {}, "there may be two, and both have work"
    reason = told(house.job("w").reason) or ""
    assert "'any' is not available" in reason, "that is only the site's answer"


# -- machines that are counted, and distinguished


class Hosts(FakeSite):
    """A site of machines of 4 cpus each, which start all that they are given.

    :param kinds: what each is besides amounts, by its name
    """

    def __init__(self, name: str, folder: Path, kinds: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(name, folder, known=True)
        self.hosts = [replace(self.location, name=host, **{"arch": "x86_64", **kind}) for host, kind in kinds.items()]
        self.at: dict[str, str] = {}
        """The host of each job, by its token."""

    def potential(self) -> list[Location]:
        return self.hosts

    def observe(self) -> Observation:
        self.locations = [
            ObservedLocation(host, known=frozenset(token for token, name in self.at.items() if name == host.name))
            for host in self.hosts
        ]
        return super().observe()

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, jobs in envelopes.items():
            self.at |= dict.fromkeys((job.token for job in jobs), name)
            self.events += [{"event": "started", "token": job.token, "at": time.time()} for job in jobs]

    def finish(self, token: str) -> None:
        """Let a job end well."""
        del self.at[token]
        self.events.append({**FINISHED, "token": token, "exit_code": 0, "cause": None, "reason": None})


TWO = {"dag_id": "d", "run_id": "r", "task_id": "two", "max_instances": 2}


def test_max_instances_counts_the_machines_on_which_jobs_live(make_house: Callable[..., House], tmp_path: Path) -> None:
    lab = Hosts("lab", tmp_path / "lab", {f"host{number}": {} for number in range(4)})
    house = make_house(lab)
    house.add(*(f"job{number:02}" for number in range(9)), cpus=1.0, **TWO)
    house.add("free0", "free1", cpus=4.0, priority=-1)
    house.tick(4)
    on = {host for token, host in lab.at.items() if token.startswith("job")}
    assert len(on) == 2, "8 jobs fill two machines, and the ninth is prefetched to one of them"
    assert {lab.at["free0"], lab.at["free1"]}.isdisjoint(on)
    # A controller that comes after a crash counts what is there, too.
    for token in [token for token in lab.at if token.startswith("free")]:
        lab.finish(token)
    house.new_controller()
    house.add("late", cpus=4.0, **TWO)
    house.add("later", cpus=4.0, **{**TWO, "queued_at": time.time() - 20})
    house.tick(4)
    assert {host for token, host in lab.at.items() if token[0] in "jl"} == on
    waiting = [job for job in (house.job("late"), house.job("later")) if job.state == State.QUEUED]
    words = "waits: jobs of task 'two' can use at most 2 machines at once, and these have no room left (max_instances)"
    assert {told(job.reason) for job in waiting} <= {words}
    # When one machine has none of them any more, another one may have some.
    first = min(on)
    for token in [token for token, host in lab.at.items() if host == first]:
        lab.finish(token)
    house.tick(4)
    assert len({host for token, host in lab.at.items() if token[0] in "jl"}) <= 2


def test_no_more_machines_are_launched_than_a_run_may_use(make_house: Callable[..., House], tmp_path: Path) -> None:
    hpc = FakeElasticSite("hpc", tmp_path / "hpc", most=9)
    hpc.starts = False  # or it would take more at each look
    house = make_house(hpc)
    limits = {"dag_id": "d", "run_id": "r", "run_max_instances": 2}
    house.add(*(f"job{number:02}" for number in range(6)), task_id="a", cpus=4.0, **limits)
    house.tick(3)
    assert len(hpc.ordered) == 2
    for order in hpc.ordered:
        hpc.see(order.name)
    house.tick(4)
    assert len(hpc.ordered) == 2
    jobs = [house.job(f"job{number:02}") for number in range(6)]
    assert Counter(job.location for job in jobs if job.location) == {order.name: 2 for order in hpc.ordered}
    words = (
        "waits: jobs of this run can use at most 2 machines at once, and these have no room left (max_instances "
        "of the Dag)"
    )
    assert {told(job.reason) for job in jobs if job.state == State.QUEUED} == {words}


def test_each_job_goes_to_a_machine_that_is_what_it_asks_for(make_house: Callable[..., House], tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "arm": {"arch": "aarch64"},
        "plain": {},
        "fast": {"features": frozenset(["avx512", "nvme"])},
        "brief": {"capacity_type": "spot"},
    }
    lab = Hosts("lab", tmp_path / "lab", kinds)
    house = make_house(lab)
    house.add("on-arm", arch="aarch64")
    house.add("on-spot", capacity_type="spot")
    house.add("on-fast", features="avx512,nvme", cpus=3.0)
    house.add("any0", "any1", "any2", "any3", priority=-1, cpus=1.0)
    house.add("nowhere", features="tpu")
    house.tick(3)
    assert (lab.at["on-arm"], lab.at["on-spot"], lab.at["on-fast"]) == ("arm", "brief", "fast")
    assert {lab.at[f"any{number}"] for number in range(4)} <= {"plain", "fast", "brief"}, "the default is x86_64"
    nowhere = house.job("nowhere")
    assert (nowhere.state, told(nowhere.reason)) == (
        State.FAILED, "hint features: 'tpu' is not available, valid: avx512, nvme",
    )  # fmt: skip
    published = json.loads(house.settings.published_sites.read_text())["sites"]["lab"]
    assert published["arch"] == "x86_64"
    words = ("arch", "os", "capacity_type")
    assert {(*(each[word] for word in words), *each["features"]) for each in published["locations"]} == {
        ("aarch64", "linux", "on-demand"),
        ("x86_64", "linux", "on-demand"),
        ("x86_64", "linux", "spot"),
        ("x86_64", "linux", "on-demand", "avx512", "nvme"),
    }


def test_nothing_is_launched_for_an_architecture_that_a_site_does_not_have(
    house: House, site: FakeElasticSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = replace(site.potential()[0], arch="x86_64")
    monkeypatch.setattr(site, "potential", lambda: [node])
    house.add("t", arch="aarch64")
    house.tick(2)
    assert site.ordered == []
    assert told(house.job("t").reason) == "hint arch: 'aarch64' is not available, valid: x86_64"


def ask(house: House, kind: RequestKind, target: str) -> None:
    """Ask as the API server does; the controller looks at it in its next tick."""
    with Session(house.engine) as session:
        request_rows.ask(session, kind, target, "ada")
        session.commit()
    house.controller.requests.next_look = 0.0


def outcomes(house: House) -> list[str | None]:
    """What came of all that was asked."""
    with Session(house.engine) as session:
        return [each.outcome for each in reversed(request_rows.latest(session, 0.0, 10))]


def test_a_paused_site_is_given_nothing_by_the_next_controller_either_until_it_is_resumed(
    house: House, site: FakeElasticSite
) -> None:
    name = launch(house, site, "t")
    ask(house, RequestKind.PAUSE, "hpc")
    house.add("u")
    house.new_controller()
    house.tick(3)
    assert house.job("t").state == State.RUNNING, "what it has goes on"
    assert (house.job("u").state, len(site.ordered)) == (State.QUEUED, 1), "and nothing is launched"
    reason = told(house.job("u").reason)
    assert reason == "waits: site 'hpc' is paused by ada"
    assert house.job("u").reason_code == "paused"
    finish(site, name, "t")
    house.tick(2)
    assert house.job("u").state == State.QUEUED
    ask(house, RequestKind.RESUME, "hpc")
    house.tick(2)
    assert house.job("u").state == State.RUNNING
    assert outcomes(house) == ["it gets no more jobs; its current jobs continue", "it gets jobs again"]


def test_a_drain_is_asked_of_the_site_until_it_is_seen(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    site.trouble = OSError("the login node is away")
    ask(house, RequestKind.DRAIN, f"hpc/{name}")
    house.tick()
    assert (site.let_go, outcomes(house)) == ({}, [None])
    site.trouble = None
    house.new_controller()
    house.tick()
    assert site.let_go == {name: because("released_by", by="ada", kind="drain")}
    site.see(name, LocationState.DRAINING)
    house.tick()
    house.controller.requests.next_look = 0.0
    house.tick()
    assert outcomes(house) == ["it takes no more jobs, and is released when its last one has finished"]
    assert house.job("t").state == State.RUNNING, "a drain ends no job"


def test_what_is_terminated_ends_with_its_jobs(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    ask(house, RequestKind.TERMINATE, f"hpc/{name}")
    house.tick(2)
    assert (list(site.let_go), site.cancelled) == ([name], {"t": because("machine_terminated", machine=name, by="ada")})
    site.events.append({**FINISHED, "cause": "cancelled"})
    del site.given[name]
    site.end(name)
    house.tick(2)
    house.controller.requests.next_look = 0.0
    house.tick()
    assert (house.job("t").state, outcomes(house)) == (State.CANCELLED, ["it has ended"])


def test_what_a_site_never_does_is_abandoned(house: House, site: FakeElasticSite) -> None:
    name = launch(house, site, "t")
    ask(house, RequestKind.DRAIN, f"hpc/{name}")
    with Session(house.engine) as session:
        session.execute(update(RequestRow).values(at=time.time() - 3600))
        session.commit()
    house.tick()
    assert outcomes(house) == ["its site has not carried it out within 600 s; see the site's note"]
    with Session(house.engine) as session, pytest.raises(LookupError, match="there is no site 'no'; valid: hpc"):
        request_rows.ask(session, RequestKind.PAUSE, "no", "ada")
    with Session(house.engine) as session, pytest.raises(LookupError, match="'hpc/no' is not a live instance"):
        request_rows.ask(session, RequestKind.DRAIN, "hpc/no", "ada")
