"""What Docker is asked for by the process of a job, which the agent may be killing the children of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lading.executors.agent import container
from lading.executors.agent.supervisor import AgentJob
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.resources import Resources

# It is killed twice before it does anything.
KILLED_TWICE = """#!/bin/sh
echo "$@" >> "$CALLS"
[ "$(wc -l < "$CALLS")" -gt 2 ] || kill -KILL $$
echo true
exit 1
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docker").write_text(KILLED_TWICE)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_a_container_is_removed_although_the_command_that_removes_it_was_killed(calls: Path) -> None:
    container.remove("docker://image:1", "a")
    assert calls.read_text().splitlines() == ["rm --force lading-a"] * 3, "until it has done so, well or not"


def test_that_a_container_was_killed_for_its_memory_is_found_out_as_well(calls: Path) -> None:
    assert container.is_out_of_memory("a")
    assert calls.read_text().splitlines() == ["inspect --format={{.State.OOMKilled}} lading-a"] * 3


def test_an_agent_that_was_brought_runs_in_the_container_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    spool = Spool(tmp_path / "spool")
    spool.create()
    monkeypatch.setattr(container, "ARCHIVE", f"{agents}/1.zip")
    asked = Envelope("a", {}, Resources(1, 256), None, None, 1, 0.0, 0.0, container="apptainer:///images/x.sif")
    command = container.start(AgentJob("a", spool), asked, "runner", {})
    inside = ["/images/x.sif", "python", f"{agents}/1.zip", container.INSIDE, str(spool.root), "a", "runner", "0.0"]
    assert command[-len(inside) :] == inside
    assert f"{agents}:{agents}" in command


def test_where_there_is_no_docker_nothing_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    container.remove("docker://image:1", "a")
    assert not container.is_out_of_memory("a")
