"""A site that a test leads by the hand, and settings without a configuration of Airflow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.settings import Settings
from lading.hooks.site import Observation, Seen, Site, SiteConfig
from lading.hooks.spool.spool import Envelope
from lading.scheduling.plan import Location
from lading.scheduling.resources import Resources

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


def make_store(folder: Path, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Engine:
    """A database with Lading's tables alone, which these modules take for Airflow's."""
    engine = create_engine(f"sqlite:///{folder}/store.db")
    store.metadata.create_all(engine)

    @contextlib.contextmanager
    def create_session(scoped: bool) -> Iterator[Session]:
        with Session(engine) as session:
            yield session
            session.commit()

    for module in modules:
        monkeypatch.setattr(module, "create_session", create_session)
    return engine


class FakeSite(Site[SiteConfig]):
    """A site that starts all that it is given, at a location called ``here``, and says what a test wants it to say.

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
        self.locations: list[Seen] | None = None
        """In the place of the one location."""
        self.hang: set[str] = set()
        """The methods that do not return before :attr:`release` is set."""
        self.release = threading.Event()
        self.trouble: Exception | None = None
        """What every method raises."""
        self.full = False
        """Whether nothing can be put there."""
        self.jobs: dict[str, Envelope] = {}
        self.cancelled: dict[str, str] = {}
        self.calls: list[str] = []
        self.looks = 0
        self.acknowledged: list[int] = []
        """The number of events of each answer that was stored."""
        self.closed: list[str] = []

    def go_on(self) -> None:
        """Hang no longer."""
        self.hang.clear()
        self.release.set()

    def _perhaps_hang(self, where: str) -> None:
        if where in self.hang:
            self.release.wait()
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

        here = [Seen(self.location, known=frozenset(self.jobs) if self.known else None)]
        return Observation(here if self.locations is None else self.locations, told, acknowledge)

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        self.calls.append("put")
        self._perhaps_hang("put")
        if self.full:
            raise OSError(28, "No space left on device")
        for each in envelopes["here"]:
            self.jobs[each.token] = each
            self.events.append({"event": "started", "token": each.token, "at": time.time()})

    def cancel(self, messages: Mapping[str, Mapping[str, str]]) -> None:
        self.calls.append(f"cancel {messages}")
        self._perhaps_hang("cancel")
        for tokens in messages.values():
            self.cancelled |= tokens

    def close(self, how: str, timeout: float) -> None:
        self._perhaps_hang("close")
        self.closed.append(how)
