"""A node agent whose new controller has less state than the one before it, or other requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.hooks.files.safe_files import visible
from lading.scheduling.model.resources import Resources
from tests.services import processes
from tests.services.agent import NodeAgent


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeAgent]:
    node = NodeAgent(tmp_path)
    node.start()
    yield node
    NodeAgent.clean_up()


@pytest.mark.parametrize("killed", [False, True], ids=["the agent lives", "the agent was killed"])
def test_a_job_that_has_ended_does_not_run_again(node: NodeAgent, tmp_path: Path, killed: bool) -> None:
    """A controller that was killed before it read the journal gives the job again."""
    runs = tmp_path / "runs"
    node.put("job", "note", path=str(runs))
    assert processes.wait_until(lambda: bool(visible(node.spool.events)) and not visible(node.spool.jobs), 15, 0.01)
    if killed:
        node.kill()
        node.start()
    node.put("job", "note", path=str(runs))
    assert processes.wait_until(lambda: not node.spool.envelope("job").exists(), 15, 0.01), "the envelope is not taken"
    node.put("other", "succeed")
    node.wait_for("other")
    assert runs.read_text().split() == ["job"]
    assert [event["cause"] for event in node.events_of("job", "finished")] == [None]
    assert node.stop() == 0


def test_a_draining_agent_takes_jobs_again(node: NodeAgent, tmp_path: Path) -> None:
    """A new controller deletes the shutdown file of the one before it."""
    node.put("running", "until", Resources(1, 64), path=str(tmp_path / "end"))
    node.wait_for("running", "started")
    node.spool.ask_to_shut_down("drain")
    node.put("late", "succeed", Resources(1, 64), queued_at=time.time() + 1)
    time.sleep(0.5)  # that nothing starts can't be waited for
    node.read()
    assert node.events_of("late", "started") == []
    node.spool.shutdown.unlink()
    assert node.wait_for("late")["cause"] is None
    assert node.events_of("running", "finished") == []
    (tmp_path / "end").touch()
    assert node.wait_for("running")["cause"] is None
    assert node.process is not None
    assert node.process.poll() is None
    assert node.stop() == 0
