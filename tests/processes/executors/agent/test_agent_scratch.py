"""The scratch folders of the jobs of a node agent, and of a batch job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.executors.agent.job_folder import Supervisor
from lading.scheduling.reasons import free_text
from lading.scheduling.resources import Resources
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


def test_a_folder_that_cannot_be_made_fails_the_job_with_a_reason(node: NodeAgent) -> None:
    (node.scratch / f"lading-{os.geteuid()}").write_text("in the way")
    node.put("a", "succeed")
    assert "the job has no scratch folder" in str(node.wait_for("a")["reason"])
    (node.scratch / f"lading-{os.geteuid()}").unlink()
