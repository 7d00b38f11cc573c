"""What Docker is asked for by the process of a job, which the agent may be killing the children of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lading.executors.agent import container
from lading.executors.agent.supervisor import AgentJob
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.model.resources import Resources

# It is killed twice before it does anything, and fails once, as Podman's does whose monitor was killed.
DOCKER = """#!/bin/sh
echo "$@" >> "$CALLS"
number=$(wc -l < "$CALLS")
[ "$number" -gt 2 ] || kill -KILL $$
echo true
[ "$1" = inspect ] || [ "$number" -gt 3 ] || exit 125
[ ! -e "$CALLS.gone" ] || { echo "Error: No such container: lading-a" >&2; exit 1; }
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_container_is_removed_although_what_removes_it_is_killed_and_fails(calls: Path, is_gone: bool) -> None:
    if is_gone:  # as Docker says it before version 23
        calls.with_name("calls.gone").touch()
    container.remove("docker://image:1", "a")
    assert calls.read_text().splitlines() == ["rm --force lading-a"] * 4, "until it has done so"


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
