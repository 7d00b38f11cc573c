"""A site that is driven by a test, and settings without a configuration of Airflow."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import site_threads
from lading.executors.controller.site_threads import SiteThread, SiteThreads
from lading.executors.settings import Settings
from lading.hooks.site import ElasticSite, LocationState, Observation, ObservedLocation, Order, Site, SiteConfig
from lading.hooks.spool.spool import Envelope
from lading.plugin.host import AirflowHost
from lading.scheduling.matching import market
from lading.scheduling.matching.market import Market
from lading.scheduling.model.job import NATIVE
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from tests.services.processes import wait_until
from tests.services.sqlite import open_sqlite

FINISHED = {
    "event": "finished",
    "token": "t",
    "at": 9.0,
    "exit_code": 1,
    "cause": "error",
    "reason": "in words",
    "peak_memory": None,
    "cpu_seconds": None,
}
"""The end of a job that has failed."""


def make_settings(folder: Path, **options: Any) -> Settings:
    """The defaults of ``[lading]`` with a state folder.

    :param options: those that shall be otherwise
    """
    defaults: dict[str, Any] = {
        "sites_file": None,
        "state_folder": folder,
        "default_resources": Resources(cpus=0.25, memory=512),
        "on_shutdown": "cancel",
        "shutdown_seconds": 30,
        "job_retention_days": 30,
    }
    return Settings(**{**defaults, **options})


@functools.cache
def empty_store() -> bytes:
    """A database with Lading's tables and those of Airflow that a tick reads, which take longer to make than most tests
    do."""
    import_all_models()  # to some of which the table of task instances refers
    with tempfile.TemporaryDirectory() as folder:
        engine = open_sqlite(Path(folder, "empty.db"))
        store.metadata.create_all(engine)
        for model in (DagBundleModel, DagModel, DagRun, Pool, Trigger, TaskInstance):
            model.__table__.create(engine)
        engine.dispose()
        return Path(folder, "empty.db").read_bytes()


def make_store(folder: Path) -> Engine:
    """A database with Lading's tables, no runs and no task instances."""
    (folder / "store.db").write_bytes(empty_store())
    return open_sqlite(folder / "store.db")


class StoreHost(AirflowHost):
    """Airflow with another database."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        with Session(self.engine) as session:
            yield session
            session.commit()


class FakeSite(Site[SiteConfig]):
    """A site that starts all that it is given, at a location called ``here``, and answers as a test wants.

    :param events: what it says; kept until it is acknowledged
    :param known: whether it says which jobs it has
    """

    kind = "fake"
    config_model = SiteConfig

    def __init__(self, name: str, folder: Path, events: Iterable[object] = (), *, known: bool = False) -> None:
        super().__init__(name, SiteConfig(kind="fake"), folder)
        self.events: Any = list(events)
        self.known = known
        self.location = Location("here", Resources(cpus=4, memory=4096))
        self.locations: list[ObservedLocation] | None = None
        """In the place of the one location."""
        self.hang: set[str] = set()
        """The methods that do not return before :meth:`go_on`."""
        self.hangs = False
        """Whether one of them has been called and has not returned."""
        self._goes_on = threading.Event()
        self.trouble: Exception | None = None
        """What every method raises."""
        self.full = False
        """Whether nothing can be put there."""
        self.jobs: dict[str, Envelope] = {}
        self.cancelled: dict[str, Reason] = {}
        self.calls: list[str] = []
        self.looks = 0
        self.acknowledged: list[int] = []
        """The number of events of each answer that was stored."""
        self.closed: list[str] = []

    def go_on(self) -> None:
        """Hang no longer."""
        self.hang.clear()
        self.hangs = False  # now, not when its thread has woken: a wait for its rest is a wait for that
        self._goes_on.set()
        self._goes_on = threading.Event()

    def _perhaps_hang(self, where: str) -> None:
        goes_on = self._goes_on
        if where in self.hang:
            self.hangs = True
            goes_on.wait()
            self.hangs = False
        if self.trouble is not None:
            raise self.trouble

    def potential(self) -> list[Location]:
        return [self.location]

    def observe(self) -> Observation:
        self._perhaps_hang("observe")
        self.looks += 1
        told = list(self.events) if isinstance(self.events, list) else self.events

        def acknowledge() -> None:
            self._perhaps_hang("acknowledge")
            self.acknowledged.append(len(told))
            del self.events[: len(told)]

        here = [ObservedLocation(self.location, known=frozenset(self.jobs) if self.known else None)]
        return Observation(here if self.locations is None else self.locations, told, acknowledge)

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        self.calls.append("put")
        self._perhaps_hang("put")
        if self.full:
            raise OSError(28, "No space left on device")
        for each in envelopes["here"]:
            self.jobs[each.token] = each
            self.events.append({"event": "started", "token": each.token, "at": time.time()})

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        self.calls.append(f"cancel {reasons}")
        self._perhaps_hang("cancel")
        for tokens in reasons.values():
            self.cancelled |= tokens

    def close(self, how: str, timeout: float) -> None:
        self._perhaps_hang("close")
        self.closed.append(how)


# The kind of instances of a job without directives.
ANY = market.kind(None, {})


class FakeElasticSite(FakeSite, ElasticSite[SiteConfig]):
    """A site that launches what is ordered, whose life the test decides. What is up starts all that it is given.

    :param most: instances at a time, of 4 cpus each
    """

    def __init__(self, name: str, folder: Path, most: int = 2) -> None:
        super().__init__(name, folder)
        node = Resources(cpus=4, memory=4096)
        self.says: Any = Market(node, 0, 3600.0, 600.0, most, whole=True, idle_seconds=60.0)
        """What it says can be launched."""
        self.there: dict[str, ObservedLocation] = {}
        self.given: dict[str, dict[str, bool]] = {}
        """By instance, the jobs that it has, each with whether it has begun."""
        self.starts = True
        """Whether what is given begins."""
        self.before_launch: Callable[[Sequence[Order]], None] = lambda orders: None
        self.ordered: list[Order] = []
        """All that was launched, in order."""
        self.let_go: dict[str, str] = {}
        """The reasons of all that was to be released."""
        self.recalled: list[tuple[str, str]] = []

    def potential(self) -> list[Location]:
        return [Location("node", Resources(cpus=4, memory=4096), hints=frozenset([NATIVE]))]

    def see(self, name: str, state: LocationState = LocationState.UP, kind: str = ANY, **words: str) -> None:
        """Name an instance from now on, in this state."""
        [node] = self.potential()
        location = replace(node, name=name, instance_type=kind, ends_at=round(time.time()) + 3600.0)
        self.there[name] = ObservedLocation(location, state, **words)

    def end(self, name: str, **words: Any) -> None:
        """Let an instance end and report it; what has not begun there comes back."""
        self.there.pop(name, None)
        for token, has_begun in self.given.pop(name, {}).items():
            if not has_begun:
                self.tell("returned", token, location=name)
        self.tell("released", name, at=time.time(), **words)

    def tell(self, event: str, token: str, **words: Any) -> None:
        self.events.append({"event": event, "token": token, **words})

    def observe(self) -> Observation:
        self.locations = [replace(seen, known=frozenset(self.given.get(name, ()))) for name, seen in self.there.items()]
        return replace(super().observe(), market=self.says)

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        self.calls.append("put")
        self._perhaps_hang("put")
        for name, jobs in envelopes.items():
            for job in jobs:
                if name not in self.there:
                    self.tell("returned", job.token, location=name, reason={"code": "machine_gone"})
                    continue
                self.given.setdefault(name, {})[job.token] = self.starts
                if self.starts:
                    self.tell("started", job.token, at=time.time())

    def launch(self, orders: Sequence[Order]) -> None:
        self.calls.append("launch")
        self._perhaps_hang("launch")
        self.before_launch(orders)
        for order in orders:
            self.ordered.append(order)
            self.see(order.name, LocationState.BOOTING, order.launch.kind)

    def release(self, reasons: Mapping[str, str]) -> None:
        self.calls.append("release")
        self._perhaps_hang("release")
        self.let_go |= reasons

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        self.calls.append("recall")
        self._perhaps_hang("recall")
        for name, some in tokens.items():
            for token in some:
                self.recalled.append((name, token))
                if self.given.get(name, {}).get(token) is False:
                    del self.given[name][token]
                    self.tell("returned", token, location=name)


def close_all_but(monkeypatch: pytest.MonkeyPatch, threads: SiteThreads, hanging: Collection[str]) -> None:
    """Let the time in which sites are let go of be over when all have been but those that hang: no machine is too slow
    for that.
    """
    awaited = [thread for name, thread in threads.threads.items() if name not in hanging]

    def is_done(thread: SiteThread) -> bool:
        """Whether it is closed and at rest: at a jump of the clock one that is busy would look as if it hung."""
        return thread.closes_within(0.0) and thread.rounds.under_way_since is None

    def monotonic() -> float:
        awaited[:] = [thread for thread in awaited if not is_done(thread)]
        return time.monotonic() + (0 if awaited else 10_000)

    monkeypatch.setattr(site_threads, "time", SimpleNamespace(monotonic=monotonic))


def rest(threads: Iterable[SiteThread]) -> None:
    """Wait until the threads of sites have nothing to do, or hang."""

    def at_rest(thread: SiteThread) -> bool:
        if isinstance(thread.site, FakeSite) and thread.site.hangs:
            return True
        rounds = thread.rounds
        with rounds._change:
            idle = rounds.under_way_since is None and not rounds._tasks
            return rounds._thread.ident is None or (idle and (thread.has_more or not rounds._is_requested))

    assert wait_until(lambda: all(at_rest(thread) for thread in threads), 10, 0.005)
