"""Jobs of a real node agent get CPU time by their cpus where the kernel lets the agent make cgroups."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.hooks.files import host
from lading.scheduling.model.resources import Resources
from tests.services.agent import ROOT, RUNNER, NodeAgent
from tests.services.processes import remove_cgroup

SMALL, LARGE = Resources(0.01, 64), Resources(1, 64)
FALLBACK = "jobs share CPU time regardless of their cpus"


def shares_folder() -> Path | None:
    """The cgroup of version 1 in which this process may make others."""
    own = next(host.groups("cpu"), None)
    return own if own and (own / "cpu.shares").exists() and os.access(own, os.W_OK) else None


def unified_folder() -> Path | None:
    """The cgroup of version 2 in which this process may make others with the cpu controller."""
    with contextlib.suppress(OSError):
        for base in (host.ROOT / "sys/fs/cgroup", host.ROOT / "sys/fs/cgroup/unified"):
            if "cpu" in (base / "cgroup.subtree_control").read_text().split() and os.access(base, os.W_OK):
                return base
    return None


SHARES = shares_folder()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeAgent]:
    yield NodeAgent(tmp_path)
    NodeAgent.clean_up()


def compete(node: NodeAgent, folder: Path) -> tuple[float, float]:
    """The CPU seconds that a small and a large job get that need the same processor."""
    cpu = min(os.sched_getaffinity(0))
    for token, rival, resources in (("small", "large", SMALL), ("large", "small", LARGE)):
        node.put(token, "compete", resources, cpu=cpu, folder=str(folder), rival=rival, cpu_seconds=2.0)
    for token in ("small", "large"):
        assert node.wait_for(token)["cause"] is None
    return float((folder / "small").read_text()), float((folder / "large").read_text())


def test_jobs_get_cpu_time_in_proportion_to_their_cpus_or_the_log_says_that_they_do_not(
    node: NodeAgent, tmp_path: Path
) -> None:
    node.start()
    small, large = compete(node, tmp_path)
    assert node.stop() == 0
    said = node.spool.log.read_text()
    if SHARES is None:
        assert said.count(FALLBACK) == 1
    else:
        assert small < large / 10
        assert FALLBACK not in said


def test_an_agent_that_may_make_no_cgroups_says_so_once_and_runs_its_jobs(node: NodeAgent) -> None:
    node.start(privileged=False)
    for token, resources in (("a", SMALL), ("b", LARGE)):
        node.put(token, "succeed", resources)
        assert node.wait_for(token)["cause"] is None
    assert node.stop() == 0
    assert node.spool.log.read_text().count(FALLBACK) == 1


# What the kernel of this machine does not have is no service that could be installed: there is nothing to skip.
if SHARES is not None:

    def test_a_supervisor_that_runs_another_job_gets_its_weight_and_its_cgroup_goes_with_it(
        node: NodeAgent, tmp_path: Path
    ) -> None:
        node.start()
        seen = []
        for token, cpus in (("a", 0.01), ("b", 2), ("c", 0.25)):
            node.put(token, "cpu_shares", Resources(cpus, 64), path=str(tmp_path / token))
            assert node.wait_for(token)["cause"] is None
            group, shares = (tmp_path / token).read_text().split()
            assert Path(group).parent.parent == SHARES
            seen.append(int(shares))
        assert seen == [10, 2048, 256]
        assert node.stop() == 0
        node.wait(lambda: not os.path.exists(Path(group).parent))

    def test_the_cgroup_of_a_job_goes_that_was_killed_along_with_its_agent(node: NodeAgent, tmp_path: Path) -> None:
        assert SHARES is not None
        node.start()
        node.put("a", "until", LARGE, path=str(tmp_path / "end"))
        pid = node.wait_for("a", "started")["pid"]
        [group] = node.wait(lambda: list(SHARES.glob(f"lading-*/lading-*-{pid}")))
        node.kill()
        os.kill(pid, signal.SIGKILL)
        assert group.exists()
        node.start()
        assert node.wait_for("a")["cause"] == "lost"
        node.wait(lambda: not group.exists())
        assert node.stop() == 0


if unified_folder() is not None:

    def test_an_agent_in_a_cgroup_of_its_own_weighs_its_jobs_by_version_2(node: NodeAgent, tmp_path: Path) -> None:
        base = unified_folder()
        assert base is not None
        scope = base / f"lading-test-{os.getpid()}.scope"
        scope.mkdir()
        try:
            command = [sys.executable, "-m", "lading.executors.agent", str(node.spool.root), "--runner", RUNNER]
            with node.spool.log.open("ab") as log:
                node.process = subprocess.Popen(
                    ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(scope), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            small, large = compete(node, tmp_path)
            assert small < large / 10
            assert node.stop() == 0
            assert FALLBACK not in node.spool.log.read_text()
        finally:
            NodeAgent.clean_up()
            for group in scope.glob("lading-*"):
                remove_cgroup(group)
            remove_cgroup(scope)
