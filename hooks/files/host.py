"""What a process can use of this machine, and how to tell its processes apart.

In a container or a batch job a process sees the host's cores and memory but may use less. So CPU affinity and cgroup
limits are applied, of version 1 (https://docs.kernel.org/admin-guide/cgroup-v1/) and version 2
(https://docs.kernel.org/admin-guide/cgroup-v2.html), of the process's own cgroup and of all its ancestors.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from lading.scheduling.model.resources import Resources

MIB = 2**20
# MiB, the most that an integer column of a database holds; some file systems are larger than these 2 PiB.
MOST_DISK = 2**31 - 1
ROOT = Path("/")
# Environment variables in which the batch systems pass a job its id.
BATCH_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# cgroup v1 reports "no limit" as the largest page-aligned number, which exceeds this.
UNLIMITED = 2**60


def usable(folder: Path, root: Path = ROOT) -> Resources:
    """Return what a process can use on this machine: the minimum of hardware, CPU affinity and cgroup limits.

    :param folder: disk is the size of this folder's file system, including used space
    :param root: the folder that contains proc and sys, for tests
    """
    return Resources(
        cpus=usable_cpus(root),
        memory=min([physical_memory(root), *memory_limits(root)]) // MIB,
        disk=disk(folder),
        gpus=float(len(gpu_devices(root))),
    )


def usable_cpus(root: Path = ROOT) -> float:
    return min([float(len(os.sched_getaffinity(0))), *cpu_limits(root)])


def hardware(folder: Path, root: Path = ROOT) -> Resources:
    """Return what the whole machine has, regardless of the limits of this process."""
    return Resources(
        cpus=float(os.cpu_count() or 1),
        memory=physical_memory(root) // MIB,
        disk=disk(folder),
        gpus=float(len(gpu_devices(root))),
    )


UNITS = {"memory": " MiB", "disk": " MiB", "gpus": ""}


def excess(given: Mapping[str, float | None], there: Resources) -> str | None:
    """Describe the resources that a table declares beyond what the machine has; None if there are none.

    CPUs are not compared: oversubscribing them is harmless and may be intended.
    """
    more = [
        f"{name} = {amount:,.10g}{UNITS[name]} is more than the {getattr(there, name):,.10g} that this machine has"
        for name, amount in given.items()
        if name in UNITS and amount is not None and amount > getattr(there, name)
    ]
    if not more:
        return None
    return f"{'; '.join(more)}: tasks will start without enough room, and fail; lower it, or remove it"


def disk(folder: Path) -> int:
    """Return the size of a folder's file system in MiB, at most :data:`MOST_DISK`."""
    import shutil

    return min(shutil.disk_usage(existing(folder)).total // MIB, MOST_DISK)


def boot_id() -> str:
    """Return an id that is different after each boot; pids and clock ticks are comparable only within one boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started(pid: int) -> int:
    """Return when a process started, in clock ticks since boot. With the pid this is unique until the next boot.

    :raises ProcessLookupError: no process has this pid
    """
    return int(_stat(pid)[19])


def is_alive(pid: int, started_at: int) -> bool:
    """Check whether the process with this pid and start time (see :func:`started`) still runs and is not a zombie."""
    try:
        stat = _stat(pid)
    except ProcessLookupError:
        return False
    return int(stat[19]) == started_at and stat[0] not in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the third on: the first is the state, the 20th the start time.

    :raises ProcessLookupError: no process has this pid
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    return stat[stat.rindex(b")") + 2 :].split()  # the name, in parentheses, can itself contain blanks and parentheses


def since_boot() -> float:
    """Return the seconds since boot, unaffected by changes of the system clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest ancestor that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def file_time(folder: Path) -> float:
    """Return the time by the clock that dates the files of a folder, possibly a file server's: epoch seconds.

    Sets the folder's modification time to it.

    :raises OSError: the folder does not exist, or belongs to another user
    """
    os.utime(folder)
    return folder.stat().st_mtime


def scratch(configured: str) -> Path:
    """Return the folder on this machine in which each job gets a scratch folder.

    :param configured: an absolute path, which may begin with an environment variable; empty: the machine's folder for
        temporary files
    :raises OSError: the variable is not set on this machine
    """
    folder = os.path.expandvars(configured) if configured else str(_lasting(_temporary_folder()))
    if not folder.startswith("/"):
        raise OSError(f"scratch = {configured!r} is not an absolute path: its variable is not set on this machine")
    return Path(folder)


def _temporary_folder() -> Path:
    """Return the folder for temporary files as ``tempfile`` determines it, whose import takes each batch job 2 ms."""
    for folder in (*map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp"):
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder).absolute()
    import tempfile

    return Path(tempfile.gettempdir())


def _lasting(folder: Path) -> Path:
    """Return the folder for temporary files, or its parent if it belongs to the batch job and is deleted with it.

    Grid Engine and PBS create one for each job and name it after the job's id. The scratch folder of a failed job could
    not be examined after it was deleted.
    """
    ids = [re.match(r"\d+", os.environ.get(name, "")) for name in BATCH_JOB_IDS]
    is_of_job = any(id is not None and re.search(rf"(?<![A-Za-z0-9]){id[0]}(?![A-Za-z0-9])", folder.name) for id in ids)
    is_beside = is_of_job and folder.stat().st_dev == folder.parent.stat().st_dev
    return folder.parent if is_beside and os.access(folder.parent, os.W_OK | os.X_OK) else folder


def gpu_devices(root: Path = ROOT) -> list[str]:
    """Return the NVIDIA GPUs as CUDA_VISIBLE_DEVICES lists them, or the indices of all GPUs if it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]
    with contextlib.suppress(OSError):
        return [str(index) for index, _ in enumerate(sorted((root / "proc/driver/nvidia/gpus").iterdir()))]
    return []


def physical_memory(root: Path = ROOT) -> int:
    """Return the machine's memory in bytes."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} does not name MemTotal")


def cpu_limits(root: Path = ROOT) -> Iterator[float]:
    """Yield the CPUs that each cgroup allows, one number per limit."""
    for group in groups("cpu", root):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            if quota != "max":
                yield int(quota) / int(period)
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((group / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                yield quota_us / int((group / "cpu.cfs_period_us").read_text())


def memory_limits(root: Path = ROOT) -> Iterator[int]:
    """Yield the bytes of memory that each cgroup allows, one number per limit."""
    for group in groups("memory", root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit
                limit = int((group / name).read_text())
                if limit < UNLIMITED:
                    yield limit


def oom_kills(root: Path = ROOT) -> int:
    """Count the OOM kills in this process's cgroup, or on the machine if no cgroup counts them."""
    # In a container the first paths are the host's, which do not exist in the container.
    counts = [group / name for group in groups("memory", root) for name in ("memory.events", "memory.oom_control")]
    for count in counts:
        with contextlib.suppress(OSError):
            return _oom_kills(count)
    return machine_oom_kills(root)


def machine_oom_kills(root: Path = ROOT) -> int:
    """Count the OOM kills on the machine, including those in all cgroups."""
    with contextlib.suppress(OSError):
        return _oom_kills(root / "proc/vmstat")
    return 0


def _oom_kills(count: Path) -> int:
    lines = count.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of this process's cgroup for a controller, and of all its ancestors."""
    base = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":  # cgroup v2; next to v1 controllers it is mounted in a folder of its own
                mount = base / "unified" if (base / "unified").is_dir() else base
            elif controller in controllers.split(","):
                mount = base / controllers if (base / controllers).is_dir() else base / controller
            else:
                continue
            # In a container the path can be the host's, while the mount shows only the container's own cgroup.
            own = mount / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder == mount or mount in folder.parents)
