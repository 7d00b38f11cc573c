"""The first question to a machine, for which this one stands, and the conversation that goes on from it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.files.owner import Owner
from lading.hooks.machines import introduction
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.spool import server
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.ssh.session import ProcessSession, Session
from tests.services.processes import wait_until

API = "http://api/execution/"
REQUEST: dict[str, Any] = {"logs": [], "most": 1}


class Counting(ShellTransport):
    """Keeps the sessions that it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []

    def session(self, command: Sequence[str], setup: str = "") -> Session:
        assert "secret" not in " ".join(command), "every user may read a command line"
        self.sessions.append(super().session(command, setup))
        return self.sessions[-1]


def table(folder: Path, **changes: Any) -> SSHConfig:
    values = {"kind": "ssh", "hosts": [{"ssh_conn_id": "lab1"}], "work_dir": str(folder), "python": sys.executable}
    return SSHConfig(**{**values, "setup": "echo noise; TOKEN=secret", **changes})


def test_one_session_introduces_a_machine_and_serves_its_spool(tmp_path: Path) -> None:
    config, transport = table(tmp_path), Counting()
    host = config.hosts[0]
    spool = introduction.spool_connection(transport, config, host, API)
    try:
        found = introduction.introduce(spool, config, host, API, None)
        assert (found.note, found.drains, found.clock_ahead) == (None, False, 0.0)
        assert wait_until(lambda: spool.ask(REQUEST).lives, 20, 0.1), "its agent has begun"
        [session] = transport.sessions
        assert isinstance(session, ProcessSession)
        command = psutil.Process(session.process.pid).cmdline()
        assert command[-2:] == [server.__file__, config.root(host)], "nothing that the question has imported stays"
        introduction.introduce(spool, config, host, API, None)
        assert (len(transport.sessions), transport.sessions[0].alive) == (2, False)
    finally:
        spool.ask({**REQUEST, "shutdown": "cancel"})
        assert wait_until(lambda: not spool.ask(REQUEST).lives, 20, 0.1)
        spool.close()


def test_a_look_starts_nothing_and_ends(tmp_path: Path) -> None:
    config, transport = table(tmp_path), Counting()
    spool = introduction.spool_connection(transport, config, config.hosts[0], API)
    found = introduction.introduce(spool, config, config.hosts[0], API, None, look=True)
    assert found.facts.capacity.cpus > 0
    assert wait_until(lambda: not transport.sessions[0].alive, 10, 0.05)
    assert list(tmp_path.iterdir()) == []
    spool.close()


def test_a_python_that_is_not_there_is_refused_with_the_message_of_the_shell(tmp_path: Path) -> None:
    config = table(tmp_path, python=str(tmp_path / "nowhere"))
    spool = introduction.spool_connection(Counting(), config, config.hosts[0], API)
    begun = time.monotonic()
    with pytest.raises(introduction.MachineRefused, match=r"does not answer on the machine: .*nowhere: not found"):
        introduction.introduce(spool, config, config.hosts[0], API, None)
    assert time.monotonic() - begun < 60.0, "its answer is not waited for"


OURS, THEIRS = (
    Owner.from_key("key", "", "https://airflow.example.org"),
    Owner.from_key("another", "", "http://laptop:8080"),
)


def test_a_machine_s_folder_belongs_to_one_deployment(tmp_path: Path) -> None:
    """Another one's controller starts nothing, reads nothing and ends nothing there, and both names are said."""
    config = table(tmp_path)
    [host] = config.hosts
    root = Path(config.root(host))
    first, second = (introduction.spool_connection(Counting(), config, host, API) for _ in range(2))
    mine = {**REQUEST, "owner": OURS.to_json()}
    try:
        introduction.introduce(first, config, host, API, OURS)
        assert wait_until(lambda: first.ask(mine).lives, 20, 0.1)
        (root / "spool/events/1.jsonl").write_text("{}")
        for look in (False, True):
            with pytest.raises(introduction.MachineRefused, match="another deployment of Lading") as caught:
                introduction.introduce(second, config, host, API, THEIRS, look=look)
            for words in (OURS.name, OURS.ids[0], THEIRS.name, THEIRS.ids[0], "a work_dir of its own", f"{root}/owner"):
                assert words in str(caught.value)
        for request in ({}, {"shutdown": "cancel"}, {"remove": ["spool/events/1.jsonl"]}):
            with pytest.raises(TransportError, match="another deployment of Lading"):
                second.ask({**REQUEST, **request, "owner": THEIRS.to_json()})
        assert (root / "spool/events/1.jsonl").exists()
        assert not (root / "spool/shutdown").exists()
        rotated = Owner.from_key("new, key", "", "the same")
        assert first.ask({**REQUEST, "owner": rotated.to_json()}).lives
        assert introduction.introduce(second, config, host, API, rotated, look=True).facts.capacity.cpus > 0
    finally:
        first.ask({**mine, "shutdown": "cancel"})
        assert wait_until(lambda: not first.ask(mine).lives, 20, 0.1)
        first.close()
        second.close()
    assert [path.name for path in root.glob("*owner*")] == ["owner"]
    assert list(root.glob(".*")) == []


def test_a_check_says_that_a_machine_s_folder_is_another_deployment_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixedSite, "connect", lambda self, host: ShellTransport())
    site = FixedSite("lab", table(tmp_path / "work"), tmp_path / "spool")
    [found] = site.checks()
    assert found.good, found.message
    server.claim(site.config.root(site.config.hosts[0]), THEIRS.ids, THEIRS.name)
    [found] = site.checks()
    assert (found.what, found.good) == ("machine lab1", False)
    ours = Owner.from_key(*AIRFLOW.identity())
    for words in (f"{THEIRS.name} ({THEIRS.ids[0]})", f"this one is {ours.name} ({ours.ids[0]})"):
        assert words in found.message


def test_what_cannot_be_introduced_is_served_all_the_same(tmp_path: Path) -> None:
    """Its jobs are known, whatever state Lading is in there."""
    config, transport = table(tmp_path), Counting()
    host = config.hosts[0]
    (Path(config.root(host)) / "spool").mkdir(parents=True)
    for name in ("inbox", "jobs", "events"):
        (Path(config.root(host)) / "spool" / name).mkdir()
    (Path(config.root(host)) / "spool/jobs/00000000-0000-4000-8000-000000000000").touch()
    spool = introduction.spool_connection(transport, config, host, API)
    script = tmp_path / "without"
    script.write_text(f'#!/bin/sh\n[ "$2" != lading.executors.host ] || exit 3\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    spool.command = str(script)
    with pytest.raises(introduction.MachineRefused):
        introduction.introduce(spool, config, host, API, None)
    assert spool.ask(REQUEST).known == {"00000000-0000-4000-8000-000000000000"}
    spool.close()
