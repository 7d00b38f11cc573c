"""What a job's process does to itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lading.executors.agent import process_tree, supervisor
from lading.executors.agent.supervisor import Runner
from lading.hooks.files import host
from tests.services import forked
from tests.services.agent import NodeAgent
from tests.services.processes import remove_cgroup


@pytest.mark.parametrize(("inherited", "own"), [(100, 500), (800, 800)])
def test_the_kernel_ends_jobs_first_but_an_inherited_score_is_not_lowered(
    tmp_path: Path, inherited: int, own: int
) -> None:
    score, found = Path("/proc/self/oom_score_adj"), tmp_path / "score"

    def job() -> None:
        score.write_text(str(inherited))
        supervisor._volunteer_for_the_oom_killer()
        found.write_text(score.read_text())

    forked.run(job)
    assert int(found.read_text()) == own


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
HAS_COLLAPSE = HUGE_PAGES.exists() and tuple(map(int, platform.release().split(".")[:2])) >= (6, 1)


@pytest.mark.skipif(not HAS_COLLAPSE, reason="this kernel does not move memory into huge pages on request")
def test_what_jobs_inherit_is_in_huge_pages(tmp_path: Path) -> None:
    found = tmp_path / "found"

    def agent() -> None:
        kept = [bytes(1000) for _ in range(16 * 1024)]
        supervisor.preload(cast("Runner", SimpleNamespace(preload=lambda named: None)))
        amounts = Path("/proc/self/smaps_rollup").read_text().splitlines()
        found.write_text(next(line.split()[1] for line in amounts if line.startswith("AnonHugePages:")))
        del kept

    forked.run(agent)
    assert int(found.read_text()) >= 8 * 1024


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[NodeAgent]:
    """An agent in a cgroup whose memory is less than its machine's."""
    own = next((each for each in host.groups("memory") if (each / "memory.limit_in_bytes").exists()), None)
    if own is None or not os.access(own, os.W_OK):
        pytest.skip("no cgroup of version 1 for memory can be made here")
    group = own / f"lading-{os.getpid()}"
    group.mkdir()
    node = NodeAgent(tmp_path)
    try:
        node.start()
        assert node.process is not None
        for each in process_tree.tree(node.process.pid):
            (group / "cgroup.procs").write_text(str(each.pid))
        (group / "memory.limit_in_bytes").write_text(str(400 * 2**20))
        yield node
    finally:
        node.stop()
        NodeAgent.clean_up()
        remove_cgroup(group)


def test_a_job_without_a_limit_that_the_kernel_kills_has_run_out_of_memory(tight: NodeAgent) -> None:
    tight.put("one", "allocate", mebibytes=2000, seconds=60)
    finished = tight.wait_for("one")
    assert (finished["cause"], finished["exit_code"]) == ("out_of_memory", -9)
    assert finished["reason"].code == "machine_out_of_memory"
    tight.put("two", "fail")
    assert tight.wait_for("two")["cause"] == "error"
