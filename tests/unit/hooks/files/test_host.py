"""What a process may really use of its machine, read from trees like those of real machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from lading.hooks.files import hardware, host

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")])
def test_the_architecture_has_the_name_that_hints_have_for_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, arch: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", "6.1", "#1", machine)))
    assert hardware.arch() == arch


def tree(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": f"MemTotal:       {64 * GIB // 1024} kB\nMemFree: 1 kB\n", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_without_limits(tmp_path: Path) -> None:
    usable = host.usable(tmp_path, tree(tmp_path, {"proc/self/cgroup": "0::/\n"}))
    assert usable.memory == 64 * 1024
    assert usable.cpus == len(os.sched_getaffinity(0))


def test_of_a_very_large_file_system_only_what_a_column_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL and MySQL would refuse the row of the location, and the tick with it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(20 * 2**50, 0, 20 * 2**50))
    found = host.usable(tmp_path, tree(tmp_path, {"proc/self/cgroup": "0::/\n"}))
    assert found.disk == host.hardware(tmp_path, tmp_path).disk == 2**31 - 1


def test_cgroup_v2_limits_of_the_group_and_of_those_above_count(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1/app\n",
            "sys/fs/cgroup/kubepods/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/kubepods/pod1/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/kubepods/pod1/app/memory.max": "max\n",
            "sys/fs/cgroup/kubepods/pod1/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/kubepods/pod1/app/cpu.max": "max 100000\n",
        },
    )
    assert list(host.memory_limits(root)) == [8 * GIB, 16 * GIB]
    assert list(host.cpu_limits(root)) == [1.5]


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/0123\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
    )
    usable = host.usable(tmp_path, root)
    assert (usable.memory, usable.cpus) == (2048, 0.5)


def test_cgroup_v1_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/job7\n3:cpu,cpuacct:/job7\n0::/\n",
            "sys/fs/cgroup/memory/job7/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu,cpuacct/job7/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/job7/cpu.cfs_period_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        },
    )
    assert list(host.memory_limits(root)) == [4 * GIB]
    assert list(host.cpu_limits(root)) == [2.0]


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert list(host.memory_limits(tree(tmp_path, {}))) == []


def test_gpus_are_counted_and_the_visible_ones_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert host.gpu_devices(tmp_path) == []
    for address in ("0000:00:1e.0", "0000:00:1f.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    assert host.gpu_devices(tmp_path) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert host.gpu_devices(tmp_path) == ["1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert host.gpu_devices(tmp_path) == []


def test_the_start_of_a_process_is_counted_from_boot() -> None:
    before = host.since_boot()
    with subprocess.Popen(["sleep", "60"]) as process:
        started = host.started(process.pid) / os.sysconf("SC_CLK_TCK")
        now = host.since_boot()
        process.kill()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= started <= now + tick


def test_what_the_kernel_has_killed_in_the_own_group_is_counted(tmp_path: Path) -> None:
    assert host.oom_kills(tmp_path) == 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/host/only\n0::/\n")
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 7\n")
    assert (host.oom_kills(tmp_path), host.machine_oom_kills(tmp_path)) == (3, 7)


def test_where_no_group_counts_what_the_kernel_has_killed_the_machine_does(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 12\noom_kill 7\noom_other 1\n")
    assert host.oom_kills(tmp_path) == 7


@pytest.mark.parametrize(
    ("variable", "id", "name"),
    [("JOB_ID", "12", "12.3.batch.q"), ("PBS_JOBID", "12[3].pbs1", "pbs.12[3].pbs1"), ("LSB_JOBID", "12", "12.tmpdir")],
)
def test_scratch_folders_outlive_what_a_batch_system_deletes_with_its_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, id: str, name: str
) -> None:
    own = tmp_path / name
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(own))
    for each in host.BATCH_JOB_IDS:
        monkeypatch.delenv(each, raising=False)
    assert host.scratch("") == own, "it is no batch job"
    monkeypatch.setenv(variable, "1")
    assert host.scratch("") == own, "it is the folder of another one, or of all"
    monkeypatch.setenv(variable, id)
    assert host.scratch("") == tmp_path
    assert host.scratch("$TMPDIR") == own, "it is named"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert host.scratch("") == own, "nothing can be written beside it"
