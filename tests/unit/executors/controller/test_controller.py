"""What a controller does with what its sites tell, and with their trouble."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from lading.executors.controller import controller, housekeeping, process, site_thread
from lading.executors.controller.controller import Controller, Seen
from lading.executors.controller.dispatch import Decision
from lading.executors.controller.site_thread import MOST_EVENTS, SiteThread
from lading.executors.settings import Settings
from lading.executors.store import store
from lading.executors.store.store import Change, Job, Location, State
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import Observation, Place, Site, SiteConfig
from lading.hooks.spool.spool import Envelope
from lading.scheduling.resources import Resources
from tests.services.processes import wait_until

FINISHED = {
    "event": "finished",
    "token": "t",
    "at": 9.0,
    "exit_code": 1,
    "cause": "error",
    "message": "in words",
    "peak_memory": None,
    "cpu_seconds": None,
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A database of its own, in the place of Airflow's."""
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    store.metadata.create_all(engine)

    @contextlib.contextmanager
    def create_session(scoped: bool) -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            session.commit()

    monkeypatch.setattr(site_thread, "SECONDS_AFTER_TROUBLE", 0.0)
    for module in (controller, process, housekeeping):
        monkeypatch.setattr(module, "create_session", create_session)
    return engine


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        sites_file=None,
        state_folder=tmp_path / "state",
        default_resources=Resources(cpus=0.25, memory=512),
        on_shutdown="cancel",
        shutdown_seconds=30,
        job_retention_days=30,
    )


class Toy(Site[SiteConfig]):
    """A site that says what a test wants it to say."""

    kind = "toy"
    config_model = SiteConfig

    def __init__(self, name: str, folder: Path, says: Any) -> None:
        super().__init__(name, SiteConfig(kind="toy"), folder)
        self.says = says
        self.acknowledged = 0
        self.calls: list[str] = []
        self.full = False

    def declared_capacity(self) -> Resources | None:
        return None

    def observe(self) -> Observation:
        if isinstance(self.says, Exception):
            raise self.says
        return Observation([Place("here", Resources(cpus=4, memory=4096))], self.says, self.acknowledge)

    def acknowledge(self) -> None:
        self.acknowledged += 1

    def put(self, envelopes: Sequence[Envelope]) -> None:
        self.calls.append("put")
        if self.full:
            raise OSError(28, "No space left on device")

    def cancel(self, messages: Mapping[str, str]) -> None:
        self.calls.append(f"cancel {sorted(messages)}")

    def close(self, how: str, timeout: float) -> None:
        """Nothing is held."""


@dataclass
class House:
    """A controller with its sites and its store."""

    controller: Controller
    engine: Engine
    told: list[Change] = field(default_factory=list)

    def observe(self) -> list[Seen]:
        """What is seen when the threads of the sites have looked, and have been told what is stored."""
        self.controller.leads_until = time.monotonic() + 20
        self.rest()
        self.controller.threads.look()
        self.rest()
        seen = self.controller.observe()
        self.rest()
        return seen

    def rest(self) -> None:
        """Wait until the threads have nothing to do."""

        def at_rest(thread: SiteThread) -> bool:
            with thread._change:
                idle = thread._busy_since is None and not thread._tasks
                return thread._thread.ident is None or (idle and (thread.has_more or not thread._is_wanted))

        assert wait_until(lambda: all(at_rest(thread) for thread in self.controller.threads), 10, 0.01)

    def job(self, token: str = "t") -> Job:
        with Session(self.engine) as session:
            found = session.scalars(select(Job).where(Job.token == token)).one()
            session.expunge(found)
            return found


def house(engine: Engine, settings: Settings, sites: Sequence[Site[Any]], jobs: Mapping[str, str]) -> House:
    """
    :param jobs: the site of each job that runs, by token
    """
    settings.state_folder.mkdir(exist_ok=True)
    told: list[Change] = []
    made = Controller({site.name: site for site in sites}, lambda subject, seconds: "", settings, True, told.extend)
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
    sites = [Toy("a", tmp_path, [*wrong, FINISHED]), Toy("b", tmp_path, [FINISHED | {"token": "u"}])]
    here = house(engine, settings, sites, {"t": "a", "u": "b"})
    assert [seen.site.name for seen in here.observe()] == ["a", "b"]
    assert (here.job("t").state, here.job("u").state) == (State.FAILED, State.FAILED)
    assert [site.acknowledged for site in sites] == [1, 1]


@pytest.mark.parametrize("says", [OSError("away"), KeyError("x"), 5, None])
def test_the_trouble_of_a_site_stays_with_it(
    engine: Engine, settings: Settings, tmp_path: Path, says: object, caplog: pytest.LogCaptureFixture
) -> None:
    sites = [Toy("a", tmp_path, says), Toy("b", tmp_path, [FINISHED])]
    here = house(engine, settings, sites, {"t": "b"})
    for _ in range(3):
        assert [seen.site.name for seen in here.observe()] == ["b"]
    assert here.job().state == State.FAILED
    assert caplog.text.count("'a'") == 1
    sites[0].says = []
    assert len(here.observe()) == 2


def test_many_events_are_stored_in_portions_and_keep_no_other_site_waiting(
    engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    others = [FINISHED | {"token": f"nobody{number}"} for number in range(3 * MOST_EVENTS)]
    sites = [Toy("a", tmp_path, [*others, FINISHED]), Toy("b", tmp_path, [FINISHED | {"token": "u"}])]
    here = house(engine, settings, sites, {"t": "a", "u": "b"})
    seen = here.observe()
    assert here.job("u").state == State.FAILED
    assert here.job("t").state == State.RUNNING
    assert [each.is_new for each in seen] == [False, True], "what a site has is not compared with half of its events"
    assert sites[0].acknowledged == 0
    for _ in range(3):
        here.controller.observe()
    here.rest()
    assert here.job("t").state == State.FAILED
    assert sites[0].acknowledged == 1


def test_a_site_with_much_to_tell_is_let_go_of(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "another_scheduler_lives", lambda *_: False)
    site = Toy("a", tmp_path, [FINISHED | {"token": f"nobody{number}"} for number in range(3 * MOST_EVENTS)])
    here = house(engine, settings, [site], {"t": "a"})
    here.observe()
    begun = time.monotonic()
    here.controller._let_go()
    assert time.monotonic() - begun < 15
    assert site.acknowledged > 0


def test_the_trouble_of_the_database_is_no_sites(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(engine, settings, [Toy("a", tmp_path, [FINISHED])], {"t": "a"})
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


@pytest.mark.parametrize(
    "wrong",
    [{"known": ["t"]}, {"known": 5}, {"known": frozenset([5])}, {"places": 5}, {"places": ["x"]}, {"events": 5}],
)
def test_an_answer_of_other_types_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} is .*; valid: "):
        Observation(**{"places": [], **wrong})


def test_a_site_tells_of_its_own_jobs_only(engine: Engine, settings: Settings, tmp_path: Path) -> None:
    sites = [Toy("local", tmp_path, []), Toy("cluster", tmp_path, [FINISHED])]
    here = house(engine, settings, sites, {"t": "local"})
    here.observe()
    job = here.job()
    assert (job.state, job.unreported, job.cause) == (State.RUNNING, False, None)
    assert here.told == []
    assert sites[1].acknowledged == 1
    sites[0].says = [FINISHED]
    here.observe()
    assert here.job().state == State.FAILED
    assert len(here.told) == 1


def test_a_site_of_files_tells_in_its_note_what_cannot_be_read_and_takes_jobs_all_the_same(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalSite, "_agent_lives", lambda self: True)
    site = LocalSite("local", LocalConfig(cpus=2, memory=1024), tmp_path / "spool" / "local")
    here = house(engine, settings, [site], {"t": "local"})
    here.observe()
    (site.spool.events / "7.jsonl").write_text("[]\n" + json.dumps(FINISHED) + "\n")
    [seen] = here.observe()
    assert here.job().state == State.FAILED
    [place] = seen.observation.places
    assert "7.jsonl" in (place.note or "")
    assert place.is_usable
    with Session(engine) as session:
        assert "7.jsonl" in (session.scalars(select(Location.note)).one() or "")
    assert not list(site.spool.events.iterdir())


def test_a_full_disk_keeps_no_job_from_being_cancelled(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = Toy("a", tmp_path, [])
    site.full = True
    here = house(engine, settings, [site], {})
    monkeypatch.setattr(here.controller, "_envelopes", lambda tokens, seconds: list(tokens))
    here.observe()
    for _ in range(3):
        here.controller.act(Decision(placed={"a": ("u",)}, cancels={"a": {"t": "not wanted"}}))
    here.rest()
    assert site.calls == ["put", "cancel ['t']"] * 3
    assert caplog.text.count("No space left") == 1


def test_the_locations_are_there_again_after_a_full_disk(
    engine: Engine,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where a location is missing, each job that is lost there counts as lost with its machine."""
    here = house(engine, settings, [Toy("a", tmp_path, [])], {})
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
        assert session.scalars(select(Location.name)).all() == ["here"]
    assert not settings.published_sites.exists()
    full["file"] = False
    here.observe()
    assert json.loads(settings.published_sites.read_text())["sites"]["a"]["capacity"]["cpus"] == 4


@pytest.mark.parametrize(("burst_after", "goes"), [(None, ()), (3600, ()), (0, ("t",))])
def test_a_hiccup_of_the_first_site_sends_nothing_to_another_one(
    engine: Engine, settings: Settings, tmp_path: Path, burst_after: int | None, goes: tuple[str, ...]
) -> None:
    first, second = Toy("a", tmp_path, []), Toy("b", tmp_path, [])
    first.config = SiteConfig(kind="toy", burst_after=burst_after)
    second.config = SiteConfig(kind="toy", takes_unnamed=True)
    here = house(engine, settings, [first, second], {"t": "a"})
    with Session(engine) as session:
        job = session.get_one(Job, "t")
        job.state, job.site, job.location = State.QUEUED, None, None
        session.commit()

    def placed() -> dict[str, tuple[str, ...]]:
        decision = here.controller.decide(here.observe(), any_wait=True)
        return {site: tuple(tokens) for site, tokens in decision.placed.items() if tokens}

    assert placed() == {"a": ("t",)}
    first.says = OSError("a hiccup")
    assert placed() == ({"b": goes} if goes else {})
    second.config = SiteConfig(kind="toy")
    assert placed() == {}, "one that takes no such jobs gets none"
    first.says = []
    assert placed() == {"a": ("t",)}
