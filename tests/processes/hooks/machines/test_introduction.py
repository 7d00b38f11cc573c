"""The first question to a machine, for which this one stands, and the conversation that goes on from it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from lading.hooks.machines import introduction
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.spool import server
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
        assert "secret" not in " ".join(command), "everybody may read a command line"
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
        found = introduction.introduce(spool, config, host, API)
        assert (found.note, found.drains, found.clock_ahead) == (None, False, 0.0)
        assert wait_until(lambda: spool.ask(REQUEST).lives, 20, 0.1), "its agent has begun"
        [session] = transport.sessions
        assert isinstance(session, ProcessSession)
        command = psutil.Process(session.process.pid).cmdline()
        assert command[-2:] == [server.__file__, config.root(host)], "nothing that the question has imported stays"
        introduction.introduce(spool, config, host, API)
        assert (len(transport.sessions), transport.sessions[0].alive) == (2, False)
    finally:
        spool.ask({**REQUEST, "shutdown": "cancel"})
        assert wait_until(lambda: not spool.ask(REQUEST).lives, 20, 0.1)
        spool.close()


def test_a_look_starts_nothing_and_ends(tmp_path: Path) -> None:
    config, transport = table(tmp_path), Counting()
    spool = introduction.spool_connection(transport, config, config.hosts[0], API)
    found = introduction.introduce(spool, config, config.hosts[0], API, look=True)
    assert found.facts.capacity.cpus > 0
    assert wait_until(lambda: not transport.sessions[0].alive, 10, 0.05)
    assert list(tmp_path.iterdir()) == []
    spool.close()


def test_a_python_that_is_not_there_is_refused_with_the_words_of_the_shell(tmp_path: Path) -> None:
    config = table(tmp_path, python=str(tmp_path / "nowhere"))
    spool = introduction.spool_connection(Counting(), config, config.hosts[0], API)
    begun = time.monotonic()
    with pytest.raises(introduction.Refused, match=r"does not answer there: .*nowhere: not found"):
        introduction.introduce(spool, config, config.hosts[0], API)
    assert time.monotonic() - begun < 10


def test_what_cannot_be_introduced_is_served_all_the_same(tmp_path: Path) -> None:
    """Its jobs are known, whatever has become of Lading there."""
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
    with pytest.raises(introduction.Refused):
        introduction.introduce(spool, config, host, API)
    assert spool.ask(REQUEST).known == {"00000000-0000-4000-8000-000000000000"}
    spool.close()
