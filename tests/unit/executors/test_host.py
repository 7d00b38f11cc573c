"""The command by which a controller finds out what a machine has, and has its agent started."""

from __future__ import annotations

import io
import json
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from lading.executors import host as command
from lading.hooks.files import host
from lading.hooks.files.version import VERSION
from lading.hooks.machines.agent_host import AgentHost
from lading.hooks.spool import server

WANTED: dict[str, Any] = {
    "version": VERSION,
    "mark": "lading-host-1 ",
    "share": {},
    "reserve": {"cpus": 0, "memory": 0},
    "patience": 60.0,
    "kill_grace": 10.0,
    "scratch": "",
    "keep_failed": 0.0,
    "idle_seconds": 600.0,
    "stamp": "a",
    "logs": "/logs",
}


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The spools whose agents were started; they never come up."""
    found: list[str] = []
    monkeypatch.setattr(AgentHost, "_start", lambda self: found.append(str(self.spool.root)))
    monkeypatch.setattr(command, "SECONDS_TO_APPEAR", 0.0)
    return found


def test_what_a_machine_has_is_reported_and_an_agent_started(tmp_path: Path, started: list[str]) -> None:
    found = command.answer(tmp_path / "spool", WANTED)
    there = host.usable(tmp_path)
    assert found["capacity"] == {"cpus": there.cpus, "memory": there.memory, "disk": there.disk, "gpus": there.gpus}
    assert (found["version"], found["boot_id"], found["os"]) == (WANTED["version"], host.boot_id(), "linux")
    assert (found["lives"], started) == (False, [str(tmp_path / "spool")])
    config = json.loads((tmp_path / "spool/config.json").read_text())
    assert (config["capacity"], config["measure_disk"]) == (found["capacity"], True)
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700


def test_the_share_of_lading_is_what_the_sites_file_says(tmp_path: Path) -> None:
    share = {"cpus": 2.0, "memory": 1000, "disk": 5, "gpus": None}
    found = command.answer(tmp_path / "spool", {**WANTED, "share": share})
    assert found["capacity"] == {"cpus": 2.0, "memory": 1000, "disk": 5, "gpus": host.usable(tmp_path).gpus}
    assert json.loads((tmp_path / "spool/config.json").read_text())["measure_disk"] is False


def test_another_version_is_refused_with_both_named(tmp_path: Path, started: list[str]) -> None:
    found = command.answer(tmp_path / "spool", {"version": "9.9"})
    assert found["refused"] == (
        f"Lading {WANTED['version']} is installed there, but the controller has 9.9: install the same version on both"
    )
    assert (started, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("has_folder", [False, True], ids=["nothing", "a folder of configuration and logs"])
def test_a_python_without_airflow_is_refused_where_tasks_need_it(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, has_folder: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if has_folder:
        (home / "airflow/logs").mkdir(parents=True)
    monkeypatch.setattr(command, "find_spec", lambda name: PathFinder.find_spec(name, [str(home)]))
    found = command.answer(tmp_path / "spool", WANTED)
    assert "has Lading but not Airflow" in found["refused"]
    assert "install the controller's version of apache-airflow" in found["refused"]
    assert started == []
    assert "refused" not in command.answer(tmp_path / "spool", {**WANTED, "runner": ["--runner", "of.commands"]})


def test_the_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, arguments: ran.append(arguments))
    for wanted in (WANTED, {**WANTED, "look": True}, {"version": "9.9", "mark": "lading-host-1 "}):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{json.dumps(wanted)}\n"))
        assert command.main([str(tmp_path / "spool")]) == 0
    whole, looked, refused = (
        json.loads(line.removeprefix("lading-host-1 ")) for line in capsys.readouterr().out.splitlines()
    )
    assert (whole["lives"], "lives" in looked, "refused" in refused) == (False, False, True)
    [served] = ran
    assert served[-2:] == [server.__file__, str(tmp_path)], (
        "nothing is served for a mere check, or to one that is refused"
    )


def test_what_outlives_a_session_is_asked_of_systemd_where_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command, "LINGERING", tmp_path / "linger")
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    assert command.scope() == ()
    script = tmp_path / "systemd-run"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    assert command.scope() == (), "what belongs to a user who does not linger ends with the last session"
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger/me").touch()
    assert command.scope() == command.SCOPE
    script.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2; exit 1\n")
    assert command.scope() == ()
    script.write_text("#!/bin/sh\nexec /bin/sleep 9\n")
    assert command.scope() == (), "it hangs"
