"""Machines behind SSH: real sshds of unprivileged users, on each a node agent. Jobs only ask an API for its health."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent.tasks import probe
from lading.executors.controller.solo import Solo
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.site import LocationState
from lading.hooks.spool.spool import Envelope
from lading.scheduling.resources import Resources
from tests.services import node_python
from tests.services.account import Account
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.sshd import Sshd

HEALTH = "/execution/health"


class Host:
    """A machine: an account and an sshd of its own."""

    def __init__(self, name: str, account: Account, sshd: Sshd) -> None:
        self.name = name
        self.account = account
        self.sshd = sshd
        self.python = node_python.make(account)


class Lab:
    """A controller's side of some machines, and what it has heard."""

    def __init__(self, site: FixedSite) -> None:
        self.site = site
        self.solo = Solo(site)
        self.events: list[dict[str, Any]] = []

    def put(self, count: int, cpus: float = 1) -> list[str]:
        tokens = [str(uuid.uuid4()) for _ in range(count)]
        now, asked = time.time(), Resources(cpus, 300)
        self.solo.put(Envelope(each, probe.workload(), asked, None, None, 0, now, now + 3600) for each in tokens)
        return tokens

    def look(self) -> None:
        self.events += self.solo.tick()

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {event["token"]: event for event in self.events if event["event"] == kind}

    def wait_for(self, kind: str, tokens: list[str], seconds: float = 60) -> list[dict[str, Any]]:
        def there() -> bool:
            self.look()
            return set(tokens) <= self.of(kind).keys()

        assert wait_until(there, seconds, 0.05), (self.events, self.solo.seen)
        return [self.of(kind)[token] for token in tokens]

    def states(self) -> dict[str, LocationState]:
        return {each.name: each.state for each in self.site.observe().locations}


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with ExitStack() as stack:
        found = []
        for number in range(2):
            account = stack.enter_context(Account())
            found.append(Host(f"lab{number + 1}", account, stack.enter_context(Sshd(account))))
        yield found


@pytest.fixture
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as service:
        answer = service.answer
        service.answer = lambda *request: (answer(*request)[0], {"status": "healthy"})  # type: ignore[method-assign]
        yield service


@pytest.fixture
def make(
    hosts: list[Host], api: ExecutionApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Lab]]:
    """Make controllers' sides of the machines."""
    made: list[Lab] = []
    shared = Path(tempfile.mkdtemp(prefix="lading-machines-", dir="/var/tmp"))
    shared.chmod(0o1777)  # the machines of the tests are one

    def build(**options: Any) -> Lab:
        for host in hosts:
            monkeypatch.setenv(f"AIRFLOW_CONN_{host.name.upper()}", host.sshd.connection())
        table: dict[str, Any] = {
            "kind": "ssh",
            "hosts": [{"ssh_conn_id": host.name, "cpus": 2, "memory": 4000} for host in hosts],
            "work_dir": str(shared),
            "python": str(hosts[0].python),
            "api_url": api.url,
            "kill_grace": 2,
        }
        config = SSHConfig(**{**table, **options})
        made.append(Lab(FixedSite("lab", config, tmp_path / str(len(made)))))
        return made[-1]

    yield build
    for each in made:
        each.site.close("cancel", 20.0)
    shutil.rmtree(shared)


def test_jobs_run_on_all_machines(make: Callable[..., Lab], hosts: list[Host]) -> None:
    lab = make()
    begun = time.monotonic()
    lab.look()
    print("first answer", time.monotonic() - begun)
    assert lab.states() == {"lab1": LocationState.UP, "lab2": LocationState.UP}
    begun = time.monotonic()
    tokens = lab.put(8)
    ends = lab.wait_for("finished", tokens)
    print("8 jobs", time.monotonic() - begun)
    assert {event["cause"] for event in ends} == {None}
    lab.wait_for("started", tokens)
    assert {given.location for given in lab.solo.given.values()} == set()
