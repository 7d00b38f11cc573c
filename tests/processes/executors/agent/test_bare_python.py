"""A machine that has a Python and nothing else: it gets the node agent, and runs commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.executors.agent import process_tree
from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.machines import introduction
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.site import config as site_config
from lading.hooks.spool.agent_archive import archive
from lading.hooks.spool.command import COMMAND_RUNNER, CommandWork
from lading.hooks.spool.connection import SpoolConnection
from lading.hooks.spool.spool import Envelope, Spool
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.resources import Resources
from tests.services.processes import wait_until

REQUEST = {"logs": [], "most": 1}
# Of what is not there either: commands run without it.
ABSENT = "snakemake_executor_plugin_lading.runner"


class Commands(AirflowDeployment):
    """A deployment whose jobs are commands."""

    def brings_agent(self) -> bool:
        return True

    def runner_options(self) -> list[str]:
        return ["--runner", COMMAND_RUNNER]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    interpreter = str(folder / "bin/python")
    asked = subprocess.run([interpreter, "-c", "import pydantic"], capture_output=True, text=True)
    assert "No module named 'pydantic'" in asked.stderr
    return interpreter


@pytest.fixture
def machine(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SSHConfig, SpoolConnection]]:
    monkeypatch.setattr(site_config, "AIRFLOW", Commands())
    config = SSHConfig(kind="ssh", hosts=[{"ssh_conn_id": "lab1"}], work_dir=str(tmp_path / "work"), python=python)
    [host] = config.hosts
    spool = introduction.spool_connection(ShellTransport(), config, host, "")
    try:
        assert introduction.introduce(spool, config, host, "", None).note is None
        yield config, spool
    finally:
        spool.ask({**REQUEST, "shutdown": "cancel"})
        assert wait_until(lambda: not spool.ask(REQUEST).lives, 20, 0.1)
        spool.close()


def run(spool: Spool, token: str, work: CommandWork, memory_limit: int | None = None) -> dict[str, object]:
    """Have a job run, and return how it has ended."""
    now = time.time()
    spool.put(
        [
            Envelope(
                token=token,
                workload=work.to_workload(),
                resources=Resources(1, 256),
                memory_limit=memory_limit,
                time_limit=60,
                priority=1,
                queued_at=now,
                expires_at=now + 600,
            )
        ]
    )
    ended: list[dict[str, object]] = []
    look: Callable[[], bool] = lambda: bool(  # noqa: E731
        ended.extend(
            event
            for _, found in spool.journal()
            for event in found
            if (event["event"], event["token"]) == ("finished", token)
        )
        or ended
    )
    assert wait_until(look, 60, 0.05), spool.log.read_text()
    return ended[0]


def test_it_gets_the_agent_and_runs_commands(
    machine: tuple[SSHConfig, SpoolConnection], python: str, tmp_path: Path
) -> None:
    config, connection = machine
    root = Path(config.root(config.hosts[0]))
    assert [each.name for each in (root / "agents").iterdir()] == [f"{archive().digest}.zip"]
    assert wait_until(lambda: connection.ask(REQUEST).lives, 20, 0.1), "its agent has begun"
    spool = Spool(root / "spool")
    pid = json.loads(spool.identity.read_text())["pid"]
    assert Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:3] == [
        python,
        archive().path(str(root)),
        "lading.executors.agent",
    ]
    # Nothing of what starts it is in the environment of jobs.
    ended = run(spool, "one", CommandWork(["sh", "-c", f"env > {tmp_path}/env; exit 3"]))
    assert (ended["cause"], ended["exit_code"]) == ("error", 3)
    assert "PYTHONPATH" not in (tmp_path / "env").read_text()
    hungry = CommandWork([python, "-c", "import time; a = bytes([1]) * (200 << 20); time.sleep(60)"])
    assert run(spool, "two", hungry, memory_limit=100)["cause"] == "out_of_memory"
    assert ABSENT not in spool.log.read_text()
    assert run(spool, "three", CommandWork(["true"], runner=ABSENT))["cause"] is None
    assert f"{ABSENT} is not available on this machine" in spool.log.read_text()
    again = introduction.introduce(connection, config, config.hosts[0], "", None)
    assert (again.note, again.drains, again.lives) == (None, False, True)
    assert process_tree.Process.read(pid) is not None, "it is the same agent"
