"""Which cgroup an agent takes for its jobs', on made-up trees of folders, and what weight a job has."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from lading.executors.agent.cpu_groups import CpuGroups, NoCpuGroups, shares, weight

SPOOL = Path("/spool")
OWN = f"lading-{hashlib.sha256(b'/spool').hexdigest()[:12]}-{os.getpid()}"


def make(root: Path, membership: str, files: dict[str, str]) -> Path:
    """A made-up file system; the folder of its cgroups."""
    base = root / "sys/fs/cgroup"
    for name, text in {"../../../proc/self/cgroup": membership, **files}.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).parent.resolve().joinpath(Path(name).name).write_text(text)
    return base


def scope(folder: str, *pids: int, controllers: str = "cpu memory") -> dict[str, str]:
    """A cgroup of version 2, in which this process can have one of its own."""
    return {
        f"{folder}/cgroup.procs": "".join(f"{pid}\n" for pid in pids),
        f"{folder}/cgroup.controllers": controllers,
        f"{folder}/cgroup.subtree_control": "",
        f"{folder}/{OWN}/cgroup.procs": "",
        f"{folder}/{OWN}/cpu.weight": "100",
    }


@pytest.mark.parametrize(
    ("cpus", "as_shares", "as_weight"),
    [
        (0.0, 2, 1),
        (0.001, 2, 1),
        (0.01, 10, 1),
        (0.25, 256, 25),
        (1, 1024, 100),
        (64, 65536, 6400),
        (1e6, 2**18, 10000),
    ],
)
def test_weights_are_those_of_the_cpus_within_what_the_kernel_allows(
    cpus: float, as_shares: int, as_weight: int
) -> None:
    assert (shares(cpus), weight(cpus)) == (as_shares, as_weight)


def test_alone_in_a_cgroup_of_version_2_an_agent_moves_to_a_leaf(tmp_path: Path) -> None:
    base = make(tmp_path, "0::/a.slice/agent.scope\n", scope("a.slice/agent.scope", os.getpid()))
    found = CpuGroups.of_agent(SPOOL, tmp_path)
    own = base / "a.slice/agent.scope"
    assert (found.base, found.home) == (own, own / OWN)
    assert (own / OWN / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+cpu"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (scope("user.slice", os.getpid(), os.getppid()), "1 processes that are not the agent's"),
        (scope("user.slice", os.getpid(), controllers="memory pids"), "no cpu controller"),
        ({"user.slice/cgroup.procs": "1\n"}, "no cgroup with the cpu controller"),
    ],
)
def test_a_cgroup_that_is_not_the_agents_alone_is_left_as_it_is(
    tmp_path: Path, files: dict[str, str], why: str
) -> None:
    base = make(tmp_path, "0::/user.slice\n", files)
    with pytest.raises(NoCpuGroups, match=why):
        CpuGroups.of_agent(SPOOL, tmp_path)
    assert {name: (base / name).read_text() for name in files} == files


def test_an_agent_that_may_not_delegate_returns_to_its_cgroup(tmp_path: Path) -> None:
    files = scope("agent.scope", os.getpid())
    del files["agent.scope/cgroup.subtree_control"]
    base = make(tmp_path, "0::/agent.scope\n", files)
    with pytest.raises(NoCpuGroups):
        CpuGroups.of_agent(SPOOL, tmp_path)
    assert int((base / "agent.scope/cgroup.procs").read_text()) == os.getpid()


@pytest.mark.parametrize(
    ("membership", "mount", "own"),
    [
        ("5:cpu,cpuacct:/lab\n0::/\n", "cpu,cpuacct", "cpu,cpuacct/lab"),
        ("5:cpu:/docker/abc\n0::/\n", "cpu", "cpu"),  # a container, whose mount shows only its own
        ("5:memory:/x\n0::/lab\n", "unified", "unified/lab"),  # version 1 for other controllers
    ],
)
def test_the_cgroup_is_found_that_has_the_agent(tmp_path: Path, membership: str, mount: str, own: str) -> None:
    files = scope(own, os.getpid()) if mount == "unified" else {f"{own}/cgroup.procs": f"1\n{os.getpid()}\n"}
    if mount != "unified":
        folder = f"{own}/{OWN.rpartition('-')[0]}"
        files |= {f"{each}/cpu.shares": "1024" for each in (own, folder, f"{folder}/{OWN}")}
    base = make(tmp_path, membership, files)
    found = CpuGroups.of_agent(SPOOL, tmp_path)
    assert found.home == (found.base / OWN if mount == "unified" else base / own)
    assert found.base == (base / own if mount == "unified" else base / folder)
