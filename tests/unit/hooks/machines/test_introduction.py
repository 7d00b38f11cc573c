"""The first question to a machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.files.version import VERSION
from lading.hooks.machines import introduction
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.spool import agent_archive
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.session import SessionEnded
from lading.scheduling.model.resources import Resources

TOLD: dict[str, Any] = {
    "version": VERSION,
    "host": "lab1",
    "boot_id": "b",
    "now": 1000.0,
    "arch": "x86_64",
    "os": "linux",
    "capacity": {"cpus": 4.0, "memory": 8000, "disk": 10, "gpus": 0.0},
    "lives": True,
    "drains": False,
    "note": None,
}


def table(**changes: Any) -> SSHConfig:
    values = {"kind": "ssh", "hosts": [{"ssh_conn_id": "lab1", "cpus": 4}], "work_dir": "/w", "python": "/p"}
    return SSHConfig(**{**values, **changes})


def answer(**changes: Any) -> str:
    return json.dumps({**TOLD, **changes})


def test_what_is_asked() -> None:
    config = table(setup="module load airflow", api="tunnel")
    wanted = introduction.wanted(config, config.hosts[0], "http://api/execution/", None, look=False)
    assert wanted["share"] == {"cpus": 4.0, "memory": None, "disk": None, "gpus": None}
    assert (wanted["logs"], wanted["reserve"]) == ("/w/lab1/logs", {"cpus": 0.0, "memory": 1024})
    text = introduction.setup(config, config.hosts[0], "http://api/execution/")
    assert "module load airflow" in text
    assert "export LADING_API_TUNNEL=/w/lab1/api_address" in text
    stamps = {introduction.stamp(table(setup=setup), config.hosts[0], "u") for setup in ("", "other")}
    assert len(stamps) == 2


def test_what_is_answered() -> None:
    found = introduction.read_introduction(answer(), 999.9, 1000.1)
    assert found.facts == introduction.MachineFacts("lab1", "b", "x86_64", "linux", Resources(4, 8000, 10))
    assert (found.clock_ahead, found.lives, found.drains, found.note) == (0.0, True, False, None)


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_clocks_that_differ(ahead: float) -> None:
    found = introduction.read_introduction(answer(now=10_000 + ahead), 9_999.9, 10_000.1)
    assert found.clock_ahead == pytest.approx(ahead)


def test_a_slow_answer_is_no_wrong_clock() -> None:
    assert introduction.read_introduction(answer(), 990, 1000.5).clock_ahead == 0.0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("[1", "is not valid: "),
        ("{}", "is not valid: "),
        (answer(capacity={"cpus": "many"}), "is not valid: "),
        (answer(refused="Lading 1 is installed there, but the controller has 2"), "Lading 1 .* controller has 2"),
    ],
)
def test_no_answer(said: str, words: str) -> None:
    with pytest.raises(TransportError, match=words):
        introduction.read_introduction(said, 0, 0)


class WithoutLading:
    """A machine where Lading does not begin."""

    transport, setup = None, ""

    def __init__(self, said: str) -> None:
        self.said = said
        self.asked: list[tuple[object, ...]] = []

    def begin(self, *asked: object) -> str:
        self.asked.append(asked)
        raise SessionEnded(f"it exited; its last output: {self.said}")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("sh: /p: not found", r"does not answer on the machine: .* sh: /p: not found$"),
        (
            "/p: No module named 'lading'",
            r"not answer on the machine: .*install the same version for /p, .* pip install airflow-lading==\d",
        ),
    ],
)
def test_a_machine_without_lading_is_refused_with_its_last_output(said: str, words: str) -> None:
    spool: Any = WithoutLading(said)
    with pytest.raises(introduction.MachineRefused, match=words):
        introduction.introduce(spool, table(), table().hosts[0], "u", None)
    assert [options for options, *_ in spool.asked] == [["-m", "lading.executors.host", "/w/lab1/spool"]]


def test_where_jobs_are_commands_the_agent_is_brought_when_it_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AirflowDeployment, "brings_agent", lambda _: True)
    brought: list[tuple[object, ...]] = []
    monkeypatch.setattr(agent_archive, "bring", lambda *where: brought.append(where))
    spool: Any = WithoutLading("can't open file")
    with pytest.raises(introduction.MachineRefused, match="can't open file"):
        introduction.introduce(spool, table(), table().hosts[0], "u", None)
    path = agent_archive.archive().path("/w/lab1")
    assert [options for options, *_ in spool.asked] == 2 * [[path, "lading.executors.host", "/w/lab1/spool"]]
    assert brought == [(None, "/p", "/w/lab1", "")]


def test_an_agent_of_other_sources_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AirflowDeployment, "brings_agent", lambda _: True)
    stamp = introduction.stamp(table(), table().hosts[0], "u")
    monkeypatch.setattr(agent_archive, "archive", lambda: agent_archive.AgentArchive(b"", "0" * 64))
    assert introduction.stamp(table(), table().hosts[0], "u") != stamp
