"""What a controller does with the answers of its sites, and with their trouble."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunType
from sqlalchemy import insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.accounting import bill_days, task_usage
from lading.executors.controller import answers, controller, housekeeping, site_memory
from lading.executors.controller.answers import SiteAnswer
from lading.executors.controller.controller import Controller
from lading.executors.controller.site_threads import MOST_EVENTS
from lading.executors.decisions import Decision
from lading.executors.orchestrator.orchestrator import OrderedScript, ScriptEnd
from lading.executors.settings import Settings
from lading.executors.sizing.estimator import Estimator
from lading.executors.store import Change, JobRow, LocationRow, State, queue
from lading.hooks.batch.script_jobs import JOB_SCRIPT, ScriptRequest
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import LocationState, Observation, ObservedLocation, Site, SiteConfig
from lading.scheduling.model import location
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.auto import SizeChoice, as_text
from tests.clusters.sites import FINISHED, FakeSite, StoreHost, make_settings, make_store, rest
from tests.reasons import told


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
    return make_store(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path / "state")


@dataclass
class House:
    """A controller with its sites and its store."""

    controller: Controller
    engine: Engine
    told: list[Change] = field(default_factory=list)

    def observe(self) -> list[SiteAnswer]:
        """What is seen when the threads of the sites have looked, and have learnt what is stored."""
        self.controller.leadership.leads_until = time.monotonic() + 20
        self.rest()
        self.controller.threads.request_observations()
        self.rest()
        seen = self.controller.observe()
        self.rest()
        return seen

    def rest(self) -> None:
        """Wait until the threads have nothing to do."""
        rest(self.controller.threads)

    def job(self, token: str = "t") -> JobRow:
        with Session(self.engine) as session:
            found = session.scalars(select(JobRow).where(JobRow.token == token)).one()
            session.expunge(found)
            return found


def house(engine: Engine, settings: Settings, sites: Sequence[Site[Any]], jobs: Mapping[str, str]) -> House:
    """
    :param jobs: the site of each job that runs, by token
    """
    settings.state_folder.mkdir(exist_ok=True)
    told: list[Change] = []
    made = Controller(
        StoreHost(engine), {site.name: site for site in sites}, lambda subject, seconds: "", settings, True, told.extend
    )
    with Session(engine) as session:
        for token, site in jobs.items():
            amounts = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0}
            place = {"state": State.RUNNING, "site": site, "location": "here", "placed_at": 1.0}
            store.add_job(
                session,
                token=token,
                kind="ExecuteTask",
                subject="s",
                workload="{}",
                priority=1,
                queued_at=1.0,
                map_index=-1,
                try_number=1,
                unreported=False,
                news=0,
                **amounts,
                **place,
            )
        session.commit()
    return House(made, engine, told)


def test_what_is_no_event_stops_neither_its_site_nor_another(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    wrong = [{"event": "finished", "token": "x", "cause": "cancelled"}, {}, [], 5, FINISHED | {"exit_code": 10**30}]
    sites = [FakeSite("a", tmp_path, [*wrong, FINISHED]), FakeSite("b", tmp_path, [FINISHED | {"token": "u"}])]
    here = house(engine, settings, sites, {"t": "a", "u": "b"})
    assert [seen.site.name for seen in here.observe()] == ["a", "b"]
    assert (here.job("t").state, here.job("u").state) == (State.FAILED, State.FAILED)
    assert [site.acknowledged for site in sites] == [[6], [1]]


@pytest.mark.parametrize("says", [OSError("away"), KeyError("x"), 5, None])
def test_the_trouble_of_a_site_stays_with_it(
    engine: Engine, settings: Settings, tmp_path: Path, says: object, caplog: pytest.LogCaptureFixture
) -> None:
    sites = [FakeSite("a", tmp_path), FakeSite("b", tmp_path, [FINISHED])]
    if isinstance(says, Exception):
        sites[0].trouble = says
    else:
        sites[0].events = says
    here = house(engine, settings, sites, {"t": "b"})
    for _ in range(3):
        assert [seen.site.name for seen in here.observe()] == ["b"]
    assert here.job().state == State.FAILED
    assert caplog.text.count("'a'") == 1
    sites[0].trouble, sites[0].events = None, []
    assert len(here.observe()) == 2


def test_many_events_are_stored_in_portions_and_keep_no_other_site_waiting(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    others = [FINISHED | {"token": f"nobody{number}"} for number in range(3 * MOST_EVENTS)]
    sites = [FakeSite("a", tmp_path, [*others, FINISHED]), FakeSite("b", tmp_path, [FINISHED | {"token": "u"}])]
    here = house(engine, settings, sites, {"t": "a", "u": "b"})
    seen = here.observe()
    assert here.job("u").state == State.FAILED
    assert here.job("t").state == State.RUNNING
    assert [each.is_new for each in seen] == [False, True], "what a site has is not compared with half of its events"
    assert sites[0].acknowledged == []
    for _ in range(3):
        here.controller.observe()
    here.rest()
    assert here.job("t").state == State.FAILED
    assert sites[0].acknowledged == [3 * MOST_EVENTS + 1]


def test_a_site_with_much_to_tell_is_let_go_of(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "another_scheduler_lives", lambda *_: False)
    site = FakeSite("a", tmp_path, [FINISHED | {"token": f"nobody{number}"} for number in range(3 * MOST_EVENTS)])
    here = house(engine, settings, [site], {"t": "a"})
    here.observe()
    here.controller.settings = replace(settings, shutdown_seconds=600)
    begun = time.monotonic()
    here.controller._let_go()
    assert time.monotonic() - begun < 300, "it ends when all is reported"
    assert site.acknowledged


def test_the_trouble_of_the_database_is_no_sites(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(engine, settings, [FakeSite("a", tmp_path, [FINISHED])], {"t": "a"})
    real, errors = store.apply, iter([OperationalError("UPDATE", {}, Exception("database is locked"))])

    def apply(*arguments: Any) -> Any:
        if error := next(errors, None):
            raise error
        return real(*arguments)

    monkeypatch.setattr(store, "apply", apply)
    with pytest.raises(OperationalError):
        here.observe()
    assert here.controller.threads.silent == {}
    here.controller.observe()
    assert here.job().state == State.FAILED


def test_an_order_that_cannot_be_stored_does_not_undo_what_its_site_reports(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ordered(session: Session, jobs: Sequence[str] | None) -> list[OrderedScript]:
        assert jobs == ["t"]
        return [OrderedScript("run", "s", "t", ScriptRequest(site="a", queue="\ud800"))]

    refused = list[str]()
    monkeypatch.setattr(StoreHost, "ordered_scripts", lambda self, *asked: ordered(*asked))
    monkeypatch.setattr(StoreHost, "refuse_script", lambda self, session, order, _: refused.append(order.token))
    site = FakeSite("a", tmp_path, [FINISHED | {"cause": None, "exit_code": 0}])
    here = house(engine, settings, [site], {"t": "a"})
    assert [seen.site.name for seen in here.observe()] == ["a"]
    assert (here.job("t").state, site.acknowledged, refused) == (State.SUCCEEDED, [1], ["run"])
    assert "A job script could not be queued" in caplog.text


def test_a_script_ends_before_a_job_of_its_task_can_be_placed_again(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trigger told about the end is gone as soon as the task runs again."""
    site = FakeSite("a", tmp_path)
    here = house(engine, settings, [site], {"run": "a"})
    with Session(engine) as session:
        session.get_one(JobRow, "run").kind = JOB_SCRIPT
        session.commit()
    host, real, at_act, has_resumed = here.controller.host, here.controller.decide, list[str](), False

    def ended(session: Session, tokens: Sequence[str]) -> list[ScriptEnd]:
        assert [*tokens] == ["run"]
        return [ScriptEnd("run", None)] if has_resumed else []

    def decide(*arguments: Any) -> Any:
        nonlocal has_resumed
        has_resumed = True  # meanwhile, so that the next queue has the job of the resumed task
        return real(*arguments)

    monkeypatch.setattr(host, "ordered_scripts", lambda *_: [])
    monkeypatch.setattr(host, "ended_scripts", ended)
    monkeypatch.setattr(here.controller, "decide", decide)
    monkeypatch.setattr(here.controller, "act", lambda _: at_act.append(here.job("run").state))
    here.controller.leadership.leads_until = time.monotonic() + 20
    here.controller.script_jobs.sweep()
    here.controller._work(time.time())
    here.rest()
    assert (at_act, here.controller.script_jobs.any_live) == ([State.SUCCEEDED], False)
    assert site.cancelled.keys() == {"run"}


OF_LOCATION: list[dict[str, Any]] = [{"features": ["x"]}, {"capacity": None}, {"ends_at": "soon"}, {"name": 5}]
OF_LOCATION += [{"wraps": 5}, {"stacked": 1}]


@pytest.mark.parametrize("wrong", OF_LOCATION)
def test_a_location_with_wrong_fields_is_refused_where_it_is_seen(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(wrong))} of location "):
        ObservedLocation(location.Location(**{"name": "here", "capacity": Resources(), **wrong}))


WRONG = [{"known": ["t"]}, {"known": 5}, {"known": frozenset([5])}, {"location": "x"}, {"note": 5}, {"state": "up"}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_location_of_other_types_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(wrong))} "):
        ObservedLocation(**{"location": location.Location("here", Resources()), **wrong})


TWICE = [ObservedLocation(location.Location("here", Resources()))] * 2


@pytest.mark.parametrize("wrong", [{"locations": 5}, {"locations": ["x"]}, {"locations": TWICE}, {"events": 5}])
def test_an_answer_of_other_types_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(wrong))} .*; valid: "):
        Observation(**{"locations": [], **wrong})


@pytest.mark.parametrize(
    ("wraps", "words"),
    [
        ({"box": "host"}, "location 'box' wraps 'host', which is not among the locations"),
        ({"box": "shell", "shell": "box"}, "location 'box' wraps 'box', which wraps it in turn"),
    ],
)
def test_a_location_lies_in_another_one_of_its_site(wraps: dict[str, str], words: str) -> None:
    found = [ObservedLocation(location.Location(name, Resources(), wraps=beneath)) for name, beneath in wraps.items()]
    with pytest.raises(TypeError, match=f"^{words}$"):
        Observation(found)
    with pytest.raises(TypeError, match="is stacked, but wraps is None"):
        ObservedLocation(location.Location("box", Resources(), stacked=True))
    box = location.Location("box", Resources(), wraps="host", stacked=True)
    assert (
        len(Observation([ObservedLocation(location.Location("host", Resources())), ObservedLocation(box)]).locations)
        == 2
    )


def test_a_site_reports_its_own_jobs_only(engine: Engine, settings: Settings, tmp_path: Path) -> None:
    sites = [FakeSite("local", tmp_path, []), FakeSite("cluster", tmp_path, [FINISHED])]
    here = house(engine, settings, sites, {"t": "local"})
    here.observe()
    job = here.job()
    assert (job.state, job.unreported, job.cause) == (State.RUNNING, False, None)
    assert here.told == []
    assert sites[1].acknowledged == [1]
    sites[0].events = [FINISHED]
    here.observe()
    assert here.job().state == State.FAILED
    assert len(here.told) == 1


def test_a_site_of_files_says_in_its_note_what_cannot_be_read_and_takes_jobs_all_the_same(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentHost, "lives", lambda self: True)
    site = LocalSite("local", LocalConfig(cpus=2, memory=1024), tmp_path / "spool" / "local")
    here = house(engine, settings, [site], {"t": "local"})
    here.observe()
    (site.spool.events / "7.jsonl").write_text("[]\n" + json.dumps(FINISHED) + "\n")
    [seen] = here.observe()
    assert here.job().state == State.FAILED
    [location] = seen.observation.locations
    assert "7.jsonl" in (location.note or "")
    assert location.state == LocationState.UP
    with Session(engine) as session:
        assert "7.jsonl" in (session.scalars(select(LocationRow.note)).one() or "")
    assert not list(site.spool.events.iterdir())


def test_a_full_disk_keeps_no_job_from_being_cancelled(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = FakeSite("a", tmp_path, [])
    site.full = True
    here = house(engine, settings, [site], {})
    monkeypatch.setattr(here.controller, "_envelopes", lambda site, placed: dict(placed))
    here.observe()
    cancels = {"a": {"here": {"t": free_text("not wanted")}}}
    for _ in range(3):
        here.controller.act(Decision(placed={"a": {"here": ("u",)}}, cancels=cancels))
    here.rest()
    assert site.calls == ["put", f"cancel {cancels['a']}"] * 3
    assert caplog.text.count("No space left") == 1


def test_the_locations_are_there_again_after_a_full_disk(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where a location is missing, each job that is lost there counts as lost with its machine."""
    here = house(engine, settings, [FakeSite("a", tmp_path, [])], {})
    full = {"rows": True, "file": True}
    save, write = store.save_locations, housekeeping.write_atomically

    def fail(what: str, do: Any) -> Any:
        def maybe(*arguments: Any) -> None:
            if full[what]:
                raise OSError(28, "No space left on device")
            do(*arguments)

        return maybe

    monkeypatch.setattr(store, "save_locations", fail("rows", save))
    monkeypatch.setattr(housekeeping, "write_atomically", fail("file", write))
    assert here.observe() == []
    full["rows"] = False
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len(here.observe()) == 1
    assert caplog.text.count("could not be published") == 1
    with Session(engine) as session:
        assert session.scalars(select(LocationRow.name)).all() == ["here"]
    assert not settings.published_sites.exists()
    full["file"] = False
    here.observe()
    assert json.loads(settings.published_sites.read_text())["sites"]["a"]["locations"][0]["cpus"] == 4


@pytest.mark.parametrize(("order", "first"), [("priority", "early"), ("critical_path", "late")])
def test_jobs_go_by_arrival_or_by_the_rest_of_their_run(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, first: str
) -> None:
    site = FakeSite("a", tmp_path, [])
    here = house(engine, make_settings(tmp_path / "state", order=order), [site], {"early": "a", "late": "a"})
    with Session(engine) as session:
        for number, token in enumerate(("early", "late")):
            job = session.get_one(JobRow, token)
            job.state, job.site, job.location, job.cpus = State.QUEUED, None, None, 3.0
            job.queued_at = time.time() + number - 60
        session.commit()
    plans = here.controller.site_plans

    def read(session: Session, *_: object, **__: object) -> None:
        plans.rests = {"early": 10.0, "late": 500.0}

    monkeypatch.setattr(plans, "read", read)
    decision = here.controller.decide(here.observe(), any_wait=True)
    assert decision.placed["a"]["here"][0] == first
    here.controller.record(decision, True, time.time())
    here.controller.act(decision)
    here.rest()
    assert site.jobs[first].rest == (500.0 if order == "critical_path" else 0.0), "it travels to the agent"


def test_siblings_without_hints_are_packed_by_what_the_first_have_used(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    used = {"peak_memory": 100, "cpu_seconds": 20.0, "started_at": 1000.0, "at": 2000.0, "cause": None, "exit_code": 0}
    site = FakeSite("a", tmp_path)
    names = [f"sibling{number}" for number in range(60)]
    here = house(engine, settings, [site], dict.fromkeys(["first", "second", *names], "a"))
    with Session(engine) as session:
        for job in session.scalars(select(JobRow)):
            job.dag_id, job.run_id, job.task_id = "d", "r", "t"
            job.chosen = as_text({"cpus": SizeChoice(0.25), "memory": SizeChoice(512)})
            job.cpus = 0.25
            if job.token in names:
                job.state, job.site, job.location, job.queued_at = State.QUEUED, None, None, time.time()
        session.commit()

    def placed() -> int:
        here.controller.needs.due_at = 0.0
        return len(here.controller.decide(here.observe(), any_wait=True).placed["a"]["here"])

    by_default = placed()
    site.events = [{**FINISHED, **used, "token": token} for token in ("first", "second")]
    assert placed() >= 1.5 * (by_default + 2)
    assert all(here.job(name).memory_limit is None for name in names)


@pytest.mark.parametrize(("burst_after", "goes"), [(3600, False), (0, True)])
def test_a_hiccup_of_the_first_site_sends_nothing_to_another_one_before_its_time(
    engine: Engine, settings: Settings, tmp_path: Path, burst_after: int, goes: bool
) -> None:
    first, second = FakeSite("a", tmp_path, []), FakeSite("b", tmp_path, [])
    first.config = SiteConfig(kind="fake", burst_after=burst_after)
    second.config = SiteConfig(kind="fake", accept_untargeted=True)
    here = house(engine, settings, [first, second], {"t": "a"})
    with Session(engine) as session:
        job = session.get_one(JobRow, "t")
        job.state, job.site, job.location, job.queued_at = State.QUEUED, None, None, time.time()
        session.commit()

    def placed() -> dict[str, dict[str, list[str]]]:
        return dict(here.controller.decide(here.observe(), any_wait=True).placed)

    assert placed() == {"a": {"here": ["t"]}}
    first.trouble = OSError("a hiccup")
    assert placed() == ({"b": {"here": ["t"]}} if goes else {})
    here.controller.takers = frozenset(["a"])
    assert placed() == {}, "one that takes no such jobs gets none"
    first.trouble = None
    assert placed() == {"a": {"here": ["t"]}}


def test_a_site_that_cannot_say_what_it_could_have_stops_no_other(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    class Broken(FakeSite):
        def potential(self) -> list[location.Location]:
            raise KeyError("x")

    here = house(engine, settings, [Broken("a", tmp_path, []), FakeSite("b", tmp_path, [])], {})
    first, second = here.controller.views(here.observe(), time.time())
    assert (first.possible, [each.name for each in second.possible]) == ((), ["here"])


def test_trouble_that_is_over_counts_for_nothing_later(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no job waits that would have noticed that it was over."""
    site = FakeSite("a", tmp_path, [])
    here = house(engine, settings, [site], {})
    clock = [0.0]
    monkeypatch.setattr(site_memory.time, "monotonic", lambda: clock[0])

    def in_trouble(*answers: SiteAnswer) -> float:
        clock[0] += 1000
        return here.controller.views(answers, time.time(), is_work=False)[0].in_trouble

    answer = SiteAnswer(site, Observation([ObservedLocation(site.location)]))
    assert [in_trouble(), in_trouble(), in_trouble(answer), in_trouble()] == [0.0, 1000.0, 0.0, 0.0]


def two_locations(site: FakeSite, *known: frozenset[str] | None) -> None:
    machines = (location.Location(name, Resources(cpus=4, memory=4096)) for name in ("here", "there"))
    site.locations = [ObservedLocation(machine, known=tokens) for machine, tokens in zip(machines, known, strict=True)]


def test_a_location_that_could_not_be_asked_changes_nothing_for_its_jobs_while_its_neighbour_goes_on(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    site = FakeSite("a", tmp_path, [])
    here = house(engine, settings, [site], {"t": "a", "u": "a"})
    with Session(engine) as session:
        session.get_one(JobRow, "u").location = "there"
        session.commit()
    here.controller.compared["a"].seconds_until_lost = 0.0
    here.controller.compared["a"].seconds_until_strange = 0.0
    two_locations(site, None, frozenset(["stranger"]))
    for _ in range(2):
        time.sleep(0.01)
        decision = here.controller.decide(here.observe(), any_wait=False)
    assert [(change.token, change.values["cause"]) for change in decision.changes] == [("u", "lost")]
    assert decision.cancels == {"a": {"there": {"stranger": answers.STRANGE}}}
    two_locations(site, frozenset(), frozenset(["u"]))
    for _ in range(2):
        time.sleep(0.01)
        decision = here.controller.decide(here.observe(), any_wait=False)
    assert [change.token for change in decision.changes] == ["t"]


def test_a_cancel_and_a_repeat_go_to_the_location_of_their_job(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    site = FakeSite("a", tmp_path, [])
    here = house(engine, settings, [site], {"t": "a", "u": "a", "v": "a"})
    with Session(engine) as session:
        session.get_one(JobRow, "t").cancel = free_text("not wanted")
        for token in ("u", "v"):
            job = session.get_one(JobRow, token)
            job.location, job.state = "there", State.PLACED
        session.commit()
    two_locations(site, frozenset(["t"]), frozenset(["u", "v"]))
    decision = here.controller.decide(here.observe(), any_wait=False)
    assert decision.cancels == {"a": {"here": {"t": free_text("not wanted")}}}
    assert decision.placed == {"a": {"there": ["u", "v"]}}, "for each a fresh JWT"


@pytest.mark.parametrize("state", [state for state in LocationState if state != LocationState.UP])
def test_a_location_takes_jobs_only_when_it_is_up(
    engine: Engine, settings: Settings, tmp_path: Path, state: LocationState
) -> None:
    site = FakeSite("a", tmp_path, [])
    here = house(engine, settings, [site], {})
    large = location.Location("large", Resources(cpus=64, memory=4096))
    site.locations = [ObservedLocation(site.location), ObservedLocation(large, state, note="it comes")]
    [view] = here.controller.views(here.observe(), time.time())
    assert [each.name for each in view.locations] == ["here"]
    assert {each.name for each in view.possible} == {"here", "large"}
    site.locations[:1] = []
    [view] = here.controller.views(here.observe(), time.time())
    assert (list(view.locations), view.trouble and view.trouble.sentence) == (
        [],
        "site 'a' accepts no jobs now: it comes",
    )


def test_a_location_is_what_its_state_says_whatever_it_says_itself(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    site = FakeSite("a", tmp_path, [])
    site.location = replace(site.location, draining=True, booting=True)
    here = house(engine, settings, [site], {})
    [view] = here.controller.views(here.observe(), time.time())
    assert [(each.draining, each.booting) for each in view.locations] == [(False, False)]


def test_a_controller_that_has_nothing_to_do_does_not_load_the_locations(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(engine, settings, [FakeSite("a", tmp_path, [])], {"t": "a"})
    seen = here.observe()
    for name in ("loaded", "waiting"):
        monkeypatch.setattr(queue, name, lambda *_, **__: pytest.fail("it is not needed"))
    assert here.controller.decide(seen, any_wait=False).provisions == {}


@pytest.mark.parametrize(("heartbeat", "lost"), [(5.0, False), (120.0, True), (None, True)])
def test_a_location_that_is_gone_ends_its_jobs_unless_their_tasks_live(
    airflow_database: Engine, heartbeat: float | None, lost: bool
) -> None:
    with Session(airflow_database) as session:
        now = time.time()
        beat = None if heartbeat is None else datetime.fromtimestamp(now - heartbeat, tz=timezone.utc)
        add_running(session, "t", beat)
        housekeeping.fail_orphaned_jobs(
            StoreHost(airflow_database), session, lambda site, place, token, state: place != "gone", now
        )
        job = session.get_one(JobRow, "t")
        session.refresh(job)
        assert job.state == (State.FAILED if lost else State.RUNNING)
        if lost:
            assert (job.cause, told(job.reason)) == ("lost", "location 'gone' of site 'a' is gone")


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 300.0, 3600.0])
def test_a_location_that_is_gone_ends_jobs_which_a_controller_with_another_clock_has_placed(
    airflow_database: Engine, ahead: float
) -> None:
    with Session(airflow_database) as session:
        now = time.time()
        add_running(session, "t", None, placed_at=now - 90 + ahead)
        add_running(session, "young", None, placed_at=now - 5)
        housekeeping.fail_orphaned_jobs(StoreHost(airflow_database), session, lambda *_: False, now)
        states = {job.token: job.state for job in session.scalars(select(JobRow))}
    assert states == {"t": State.FAILED, "young": State.RUNNING}


def add_running(session: Session, token: str, heartbeat: datetime | None, placed_at: float = 1.0) -> None:
    """A job that runs at a location called gone, with its task instance."""
    add_job(session, token, state=State.RUNNING, site="a", location="gone", placed_at=placed_at)
    if heartbeat is not None:
        add_task_instance(session, last_heartbeat_at=heartbeat, state="running", external_executor_id=token)
    session.flush()


def add_job(session: Session, token: str, **columns: Any) -> None:
    amounts: dict[str, Any] = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0}
    store.add_job(
        session, token=token, subject="s", workload="{}", priority=1, map_index=-1, try_number=1, unreported=False,
        news=0, dag_id="d", run_id="r",
        **{"kind": "ExecuteTask", "task_id": "t", "queued_at": 1.0, **amounts, **columns},
    )  # fmt: skip


def add_task_instance(session: Session, task_id: str = "t", **columns: Any) -> None:
    if session.get(DagModel, "d") is None:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        session.add(DagModel(dag_id="d", bundle_name="bundle"))
        session.add(DagRun(dag_id="d", run_id="r", run_type=DagRunType.MANUAL, state="running"))
        session.flush()
    values = {"id": uuid7(), "pool": "default_pool", "pool_slots": 1, "max_tries": 0, "try_number": 1, **columns}
    session.execute(insert(TaskInstance).values(dag_id="d", run_id="r", task_id=task_id, map_index=-1, **values))


ASKS = json.dumps({"hints": {"memory": "1 GiB * attempt"}, "sources": {}})


@pytest.mark.parametrize("state", ["failed", "success", "removed", "skipped", "up_for_retry", None, "anew"])
def test_a_job_that_airflow_does_not_want_is_dropped_before_anything_is_done_for_it(
    airflow_database: Engine, settings: Settings, tmp_path: Path, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(airflow_database, settings, [FakeSite("a", tmp_path)], {})
    looked_at: list[str] = []
    monkeypatch.setattr(Estimator, "_start", lambda self, jobs, **_: looked_at.extend(job.token for job in jobs))
    with Session(airflow_database) as session:
        for token, columns in {"asks": {"sizing": ASKS}, "plain": {}, "sleeps": {"state": State.ATTEMPTED}}.items():
            add_job(session, token, **{"task_id": token, "state": State.QUEUED, **columns})
            its_own = {"state": "queued", "external_executor_id": "another"}
            add_task_instance(
                session, token, **(its_own if state == "anew" else {"state": state, "external_executor_id": token})
            )
        for token, columns in {"wanted": {"sizing": ASKS}, "wanted too": {}}.items():
            add_job(session, token, task_id=token, state=State.QUEUED, **columns)
            add_task_instance(session, token, state="queued", external_executor_id=token)
        # Their task instances are not there, for a while or not yet.
        add_job(session, "unknown", task_id="unknown", state=State.QUEUED)
        add_job(session, "new", task_id="new", state=State.QUEUED, queued_at=time.time() + 600)
        session.commit()
    here.observe()
    here.controller._work(time.time())
    here.rest()
    for token in ("asks", "plain", "sleeps", "unknown"):
        job = here.job(token)
        assert (job.state, job.cause, job.unreported) == (State.CANCELLED, "cancelled", True)
        assert job.reason == housekeeping.UNWANTED
    assert looked_at == ["wanted"]
    assert {change.token for change in here.told if change.values["state"] == State.PLACED} == {"wanted too", "new"}


def test_jobs_that_a_hand_or_an_older_scheduler_has_queued_or_changed_start(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = house(engine, settings, [FakeSite("a", tmp_path)], {})
    here.controller.housekeeping.seconds_between_rounds = 0.0
    here.controller.housekeeping.seconds_between_sums = 0.0
    here.controller.tick_seconds = 0.0
    with Session(engine) as session:
        assert store.take_lease(session, here.controller.leadership.holder, "host", 1, True, 3600.0, None)
        add_job(session, "changed", kind="Test", state=State.QUEUED, cancel=free_text("stop"))
        add_job(session, "added", kind="Test", state=State.FAILED)
        session.commit()
    here.observe()
    here.controller._work(time.time())
    assert here.job("changed").state == State.QUEUED
    with Session(engine) as session:
        session.execute(update(JobRow).where(JobRow.token == "changed").values(cancel=None))
        session.execute(update(JobRow).where(JobRow.token == "added").values(state=State.QUEUED))
        session.commit()
    for _ in range(3):
        here.controller._work(time.time())
        here.controller.housekeeping.due(here.controller.metrics, {}, here.controller.queued)
        here.rest()
    assert {here.job(token).state for token in ("changed", "added")} == {State.PLACED}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [
        text
        for text in warnings
        if "This controller was not notified of jobs that were queued or changed: number of jobs: 1" in text
    ]


def test_what_was_summed_up_stays_where_old_jobs_cannot_be_forgotten(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(engine, settings, [FakeSite("a", tmp_path)], {"t": "a"})
    ended = time.time() - 3 * 86400
    with Session(engine) as session:
        job = session.get_one(JobRow, "t")
        job.state, job.started_at, job.ended_at, job.unreported = State.SUCCEEDED, ended - 60, ended, False
        session.commit()

    def fail(session: Session, before: float) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task_usage, "forget_ended", fail)
    here.controller.housekeeping.seconds_of_sums = 3600.0  # else a slow machine sums up a day in each round
    with pytest.raises(OSError, match="No space"):
        here.controller.housekeeping.due(here.controller.metrics, {}, here.controller.queued)
    with Session(engine) as session:
        assert int(ended // 86400) in bill_days.summed_up(session)
