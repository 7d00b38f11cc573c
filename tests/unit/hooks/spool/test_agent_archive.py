"""The node agent as one file: the same sources always make the same one, and any Python says what is wrong with it."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lading.hooks.deployment.airflow import AIRFLOW, AirflowDeployment
from lading.hooks.spool import agent_archive
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.ssh.steps import Put, RemoteStep, RunCommand
from lading.hooks.ssh.transport import TIMEOUT
from tests.services.agent_zip import sources_in, sources_of

# What jobs of Airflow need, which do not run by such a file, what an executor is, and what only controllers read.
NOT_IN_IT = {
    "lading.executors.executor",
    "lading.hooks.dags.bundles",
    "lading.hooks.spool.events",
    "lading.scheduling.matching.waiting",
}


class Counting(ShellTransport):
    """Counts how often files are sent."""

    sent = 0

    def exchange(self, steps: Sequence[RemoteStep], timeout: float = TIMEOUT) -> list[CommandResult]:
        self.sent += any(isinstance(each, Put) for each in steps)
        return super().exchange(steps, timeout)


def test_the_same_sources_make_the_same_file() -> None:
    first = agent_archive.archive()
    agent_archive.archive.cache_clear()
    assert agent_archive.archive() == first
    assert first.path("/scratch") == f"/scratch/agents/{first.digest}.zip"


def test_what_a_module_imports_when_it_is_used_is_in_the_file_too() -> None:
    names = set()
    for content in agent_archive.sources().values():
        module = ast.parse(content)
        hidden = [each for node in module.body if isinstance(node, ast.If) for each in ast.walk(node)]
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lading.") and node not in hidden:
                full = [f"{node.module}.{each.name}" for each in node.names]
                names |= {each if agent_archive._file(each) else str(node.module) for each in full}
    assert len(names) > 40
    files = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in agent_archive.sources()}
    assert names - files == NOT_IN_IT


def test_machines_get_it_where_jobs_are_commands() -> None:
    class OfCommands(AirflowDeployment):
        def brings_agent(self) -> bool:
            return True

    host = ("python3", "/w", "lading.executors.host")
    assert agent_archive.brought(AIRFLOW) is None
    assert agent_archive.command(AIRFLOW, *host) == ["python3", "-m", "lading.executors.host"]
    path = agent_archive.archive().path("/w")
    assert agent_archive.command(OfCommands(), *host) == ["python3", path, "lading.executors.host"]


def test_a_python_that_is_too_old_says_so() -> None:
    program = "import sys; sys.version_info = (3, 9, 2)\n" + agent_archive.MAIN
    done = subprocess.run([sys.executable, "-c", program, "module"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"{sys.executable} is Python 3.9, and the node agent needs 3.10 or newer; name another"
    )


def test_it_is_sent_once_and_what_has_not_been_used_for_long_goes(tmp_path: Path) -> None:
    transport, root = Counting(), str(tmp_path / "a folder")
    found = agent_archive.archive()
    agents = Path(root) / "agents"
    agents.mkdir(parents=True)
    script = Path(root) / "submissions/L1/script"
    script.parent.mkdir(parents=True)
    for name, days in (("old", 8), ("queued", 8), ("young", 6)):
        (agents / f"{name}.zip").touch()
        os.utime(agents / f"{name}.zip", (time.time(), time.time() - days * 86400))
    script.write_text(f"exec python3 {agents}/queued.zip lading.executors.agent.batch_job\n")
    for _ in range(2):
        agent_archive.bring(transport, sys.executable, root, "true\n")
    assert transport.sent == 1
    there = Path(found.path(root))
    whole = there.read_bytes()
    assert sources_in(there) == sources_of(found)
    for cut in (b"", whole[:-1], whole[:-1000] + bytes(1000)):
        there.write_bytes(cut)
        agent_archive.bring(transport, sys.executable, root)
        assert there.read_bytes() == whole, "what a crash has cut is sent again"
    assert transport.sent == 4
    assert sorted(each.name for each in agents.iterdir()) == sorted([f"{found.digest}.zip", "queued.zip", "young.zip"])


def test_it_starts_from_bytecode_and_with_another_python_from_the_sources(tmp_path: Path) -> None:
    agent_archive.bring(ShellTransport(), sys.executable, str(tmp_path))
    there = agent_archive.archive().path(str(tmp_path))

    def compiled_at_the_start() -> set[str]:
        """What is made of the sources in the archive, by the audit event of each."""
        program = (
            "import runpy, sys\n"
            "sys.addaudithook(lambda event, of: event == 'compile' and print(of[1], file=sys.stderr))\n"
            f"sys.argv = [{there!r}, 'lading.executors.agent.allocation_agent', '--help']\n"
            f"runpy.run_path({there!r}, run_name='__main__')\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "Run the node agent of an allocation" in done.stdout
        return {line for line in done.stderr.splitlines() if line.startswith(there)}

    assert compiled_at_the_start() == set()
    magic = importlib.util.MAGIC_NUMBER
    other = bytes([magic[0] ^ 1]) + magic[1:]
    with zipfile.ZipFile(there) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(there, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, other + content[4:] if name.endswith("c") else content)
    assert f"{there}/lading/executors/agent/allocation_agent.py" in compiled_at_the_start()


def test_what_has_arrived_in_part_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = agent_archive.archive()
    torn = agent_archive.AgentArchive(whole.content[:-1], whole.digest)
    monkeypatch.setattr(agent_archive, "archive", lambda: torn)
    with pytest.raises(agent_archive.AgentNotBrought, match="the archive was damaged on its way"):
        agent_archive.bring(ShellTransport(), sys.executable, str(tmp_path))
    assert list((tmp_path / "agents").iterdir()) == []


def test_nothing_of_the_home_is_imported_in_which_a_login_begins(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "hashlib.py").write_text("raise SystemExit('a stray file')\n")

    class Login(ShellTransport):
        def exchange(self, steps: Sequence[RemoteStep], timeout: float = TIMEOUT) -> list[CommandResult]:
            there = [replace(each, folder=str(home)) if isinstance(each, RunCommand) else each for each in steps]
            return super().exchange(there, timeout)

    agent_archive.bring(Login(), sys.executable, str(tmp_path / "work"))


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(agent_archive.AgentNotBrought, match=r"copied to .*/agents: .*/nowhere"):
        agent_archive.bring(ShellTransport(), str(tmp_path / "nowhere"), str(tmp_path))
