"""The scratch folders of the jobs of a node agent, and of a batch job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lading.executors.agent.job_folder import Supervisor
from lading.executors.agent.scratch import JobScratch
from lading.hooks.files.safe_files import own_folder, own_folders
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.services import forked
from tests.services.account import Account, NeedsRootError
from tests.services.agent import NodeAgent
from tests.services.processes import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeAgent]:
    node = NodeAgent(tmp_path)
    node.configure(capacity=Resources(4, 4096, 100), keep_failed=600, kill_grace=20.0)
    node.start()
    yield node
    assert node.stop() == 0
    NodeAgent.clean_up()


def folders(node: NodeAgent) -> list[str]:
    return sorted(path.name for top in node.scratch.iterdir() for path in top.iterdir())


def test_each_job_has_its_own_and_finds_it(node: NodeAgent, tmp_path: Path) -> None:
    for token in ("a", "b"):  # the second one in the process of the first
        node.put(token, "variables", path=str(tmp_path / token))
        node.wait_for(token)
        seen = json.loads((tmp_path / token).read_text())
        assert seen["LADING_SCRATCH"] == seen["TMPDIR"] == str(node.scratch / f"lading-{os.geteuid()}" / token)
        assert folders(node) == []


def test_that_of_a_failed_job_is_kept_until_its_room_is_needed(node: NodeAgent) -> None:
    node.put("failed", "litter", Resources(1, 64, 60), code=3)
    node.wait_for("failed")
    assert folders(node) == ["failed", "failed.kept"]
    node.put("fits", "litter", Resources(1, 64, 100), code=0)
    assert node.wait_for("fits")["cause"] is None
    assert wait_until(lambda: folders(node) == [], 20)


def test_an_idle_agent_leaves_that_of_a_failed_job_to_the_next_one(node: NodeAgent) -> None:
    node.put("failed", "litter", Resources(1, 64, 60), code=3)
    node.wait_for("failed")
    node.configure(capacity=Resources(4, 4096, 100), keep_failed=600, idle_seconds=0.5)
    assert node.process is not None
    assert node.process.wait(120) == 0
    assert folders(node) == ["failed", "failed.kept"]
    node.configure(capacity=Resources(4, 4096, 100), keep_failed=600)
    node.start()
    node.put("fits", "litter", Resources(1, 64, 100), code=0)
    assert node.wait_for("fits")["cause"] is None
    assert wait_until(lambda: folders(node) == [], 20)


@pytest.mark.parametrize("moment", ["path", "starting"])
def test_that_of_a_cancelled_job_is_not_kept(node: NodeAgent, tmp_path: Path, moment: str) -> None:
    """Its task may have begun, or not: then its process dies without reporting anything."""
    arguments = {"path": str(tmp_path / "other"), "seconds": 60, moment: str(tmp_path / "begun")}
    node.put("a", "note", **arguments)
    assert wait_until((tmp_path / "begun").exists, 20)
    assert "a" in folders(node)
    node.spool.ask_to_cancel({"a": free_text("enough")})
    assert node.wait_for("a")["cause"] == "cancelled"
    assert folders(node) == []


def test_after_the_death_of_all_that_knew_of_it_the_next_agent_sees_to_it(node: NodeAgent, tmp_path: Path) -> None:
    node.configure(capacity=Resources(4, 4096, 100), keep_failed=0)
    for token in ("runs", "dies"):
        node.put(token, "until", path=str(tmp_path / f"end of {token}"))
        node.wait_for(token, "started")
    assert wait_until(lambda: {"dies", "runs"} <= set(folders(node)), 20)
    supervisor = Supervisor.read(node.spool.job("dies"))
    assert supervisor is not None
    node.kill()
    os.killpg(supervisor.pid, signal.SIGKILL)
    os.kill(supervisor.pid, signal.SIGKILL)
    node.start()
    assert node.wait_for("dies")["cause"] == "lost"
    assert wait_until(lambda: "dies" not in folders(node), 20)
    assert "runs" in folders(node), "it is the folder of a job that runs"
    (tmp_path / "end of runs").touch()
    assert node.wait_for("runs")["cause"] is None
    assert wait_until(lambda: folders(node) == [], 20)


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_machine_not_of_the_task(
    node: NodeAgent, tmp_path: Path
) -> None:
    node.scratch.rmdir()
    node.scratch.write_text("in the way")
    node.put("a", "succeed")
    finished = node.wait_for("a")
    assert finished["cause"] == "node_failure"
    assert "the job has no scratch folder" in str(finished["reason"])
    node.scratch.unlink()
    node.scratch.mkdir()


@pytest.fixture(scope="module")
def other() -> Iterator[Account]:
    """Another user of this machine."""
    try:
        with Account() as account:
            yield account
    except NeedsRootError as error:
        pytest.skip(str(error))


SQUAT = {
    "folder": ["mkdir", "-m", "700"],
    "open_folder": ["mkdir", "-m", "777"],
    "link": ["ln", "-s", "/tmp"],
    "fifo": ["mkfifo"],
}


def open_to_all(folder: Path) -> None:
    for each in (folder, *folder.parents[:-2]):
        each.chmod(each.stat().st_mode | 0o055)


@pytest.mark.parametrize("what", SQUAT)
def test_another_user_who_has_taken_the_name_of_the_folder_fails_no_job(
    node: NodeAgent, tmp_path: Path, other: Account, what: str
) -> None:
    open_to_all(tmp_path)
    node.scratch.chmod(0o1777)
    taken = node.scratch / f"lading-{os.geteuid()}"
    subprocess.run([*SQUAT[what], taken], check=True, user=other.uid)
    for path in (taken.with_name(f"{taken.name}-first"), taken.with_name(f"{taken.name}-{'z' * 8}")):
        subprocess.run(["mkdir", path], check=True, user=other.uid)  # nor does one who tries to guess
    scratch = []
    for token in ("a", "b"):
        node.put(token, "variables", path=str(tmp_path / token))
        assert node.wait_for(token)["cause"] is None
        scratch.append(Path(json.loads((tmp_path / token).read_text())["LADING_SCRATCH"]).parent)
    assert scratch[0] == scratch[1], "it is the same one for all jobs of this user"
    found = scratch[0].lstat()
    assert (found.st_uid, found.st_mode & 0o777) == (os.geteuid(), 0o700)
    node.put("failed", "litter", Resources(1, 64, 60), code=3)
    node.wait_for("failed")
    assert (scratch[0] / "failed" / "litter").exists()
    node.put("large", "litter", Resources(1, 64, 100), code=0)
    assert node.wait_for("large")["cause"] is None
    assert wait_until(lambda: not list(scratch[0].iterdir()), 20), "that one is looked after as well"


def test_neither_can_root_take_the_name_of_a_user(tmp_path: Path, other: Account) -> None:
    open_to_all(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / f"lading-{other.uid}").mkdir(0o777)

    def job() -> None:
        os.setgroups([])
        os.setgid(other.uid)
        os.setuid(other.uid)
        made = JobScratch(str(shared), "a")
        assert made.path.is_dir()
        assert made.path.parent.parent == shared
        assert made.path.parent.lstat().st_uid == other.uid
        made.end(0.0, 0)

    forked.run(job)
    assert len(list(shared.iterdir())) == 2


def test_processes_that_need_it_at_once_find_the_same_one(tmp_path: Path) -> None:
    (tmp_path / "lading").touch()
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: own_folder(tmp_path, "lading"), range(16)))
    assert found <= set(own_folders(tmp_path, "lading"))
    assert own_folder(tmp_path, "lading") in found
