"""The first question to a machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lading.hooks.files.version import VERSION
from lading.hooks.machines import introduction
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.session import SessionEnded
from lading.scheduling.resources import Resources

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
        ("[1", "makes no sense"),
        ("{}", "makes no sense"),
        (answer(capacity={"cpus": "many"}), "makes no sense"),
        (answer(refused="Lading 1 is installed there, the controller is 2"), "Lading 1 .* controller is 2"),
    ],
)
def test_no_answer(said: str, words: str) -> None:
    with pytest.raises(TransportError, match=words):
        introduction.read_introduction(said, 0, 0)


def test_a_machine_without_lading_is_refused_with_its_last_output() -> None:
    class Without:
        def begin(self, *_: object) -> str:
            raise SessionEnded("it ended; its last output: sh: /p: not found")

    spool: Any = Without()
    with pytest.raises(introduction.MachineRefused, match=r"does not answer there: .* sh: /p: not found"):
        introduction.introduce(spool, table(), table().hosts[0], "u", None)
