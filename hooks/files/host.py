"""This machine: what a process may really use of it, and how its processes are distinguished.

A container or a batch job sees the host's cores and memory but may use less: CPU affinity and the cgroup limits count,
of version 1 (https://docs.kernel.org/admin-guide/cgroup-v1/) and version 2
(https://docs.kernel.org/admin-guide/cgroup-v2.html), of the process's own group and of every group above it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from lading.scheduling.gpus import parse_type
from lading.scheduling.machine_traits import parse_arch
from lading.scheduling.resources import Resources

MIB = 2**20
# A column of a database holds no more; there are file systems of more than these 2 PiB.
MOST_DISK = 2**31 - 1
ROOT = Path("/")
# In which the batch systems pass a job its id.
BATCH_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# cgroup v1 says "no limit" with the largest page-aligned number.
UNLIMITED = 2**60


def usable(folder: Path, root: Path = ROOT) -> Resources:
    """What a process on this machine may use: the least of hardware, CPU affinity and cgroup limits.

    :param folder: disk space is the size of the file system of this folder, whatever lies there now
    :param root: where proc and sys are found; tests give another
    """
    return Resources(
        cpus=usable_cpus(root),
        memory=min([physical_memory(root), *memory_limits(root)]) // MIB,
        disk=disk(folder),
        gpus=float(len(gpu_devices(root))),
    )


def usable_cpus(root: Path = ROOT) -> float:
    """The processors that a process on this machine may use."""
    return min([float(len(os.sched_getaffinity(0))), *cpu_limits(root)])


def hardware(folder: Path, root: Path = ROOT) -> Resources:
    """What the whole machine has, whatever this process may use of it."""
    return Resources(
        cpus=float(os.cpu_count() or 1),
        memory=physical_memory(root) // MIB,
        disk=disk(folder),
        gpus=float(len(gpu_devices(root))),
    )


UNITS = {"memory": " MiB", "disk": " MiB", "gpus": ""}


def excess(given: Mapping[str, float | None], there: Resources) -> str | None:
    """What a table gives more of than a machine has, as text; None: nothing.

    Processors are not compared: that several tasks share one may be meant, and does them no harm.
    """
    more = [
        f"{name} = {amount:,.10g}{UNITS[name]} is more than the {getattr(there, name):,.10g} that this machine has"
        for name, amount in given.items()
        if name in UNITS and amount is not None and amount > getattr(there, name)
    ]
    if not more:
        return None
    return f"{'; '.join(more)}: tasks for which there is no room will start, and fail; lower it, or leave it out"


def disk(folder: Path) -> int:
    """The size of the file system of a folder, MiB, up to :data:`MOST_DISK`."""
    return min(shutil.disk_usage(existing(folder)).total // MIB, MOST_DISK)


def arch() -> str:
    """The architecture of this machine, as hints name it."""
    return parse_arch(os.uname().machine)


def boot_id() -> str:
    """Differs between machines and changes with each start of one: then its pids and clock ticks mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started(pid: int) -> int:
    """When a living process started, in clock ticks after boot: with the pid this is unique until the next boot.

    :raises ProcessLookupError: there is none of this pid
    """
    return int(_stat(pid)[19])


def is_alive(pid: int, started_at: int) -> bool:
    """Whether the process that started then, see :func:`started`, is still there and no zombie."""
    try:
        stat = _stat(pid)
    except ProcessLookupError:
        return False
    return int(stat[19]) == started_at and stat[0] not in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """What proc_pid_stat(5) says of a process from its third field on: its state; the 22nd is when it started.

    :raises ProcessLookupError: there is none of this pid
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    return stat[stat.rindex(b")") + 2 :].split()  # the name, in parentheses, may hold blanks and parentheses itself


def since_boot() -> float:
    """Seconds since the machine was started; setting its clock does not change it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def file_time(folder: Path) -> float:
    """What time it is by the clock that dates the files of a folder, which may be a file server's: epoch seconds.

    The folder is dated again by that.

    :raises OSError: it is not there, or not ours
    """
    os.utime(folder)
    return folder.stat().st_mtime


def scratch(configured: str) -> Path:
    """The folder on this machine in which jobs have folders of their own.

    :param configured: an absolute path, which may begin with an environment variable; empty: the machine's folder for
        temporary files
    :raises OSError: the variable is not set here
    """
    folder = os.path.expandvars(configured) if configured else str(_lasting(Path(tempfile.gettempdir())))
    if not folder.startswith("/"):
        raise OSError(f"scratch = {configured!r} is no folder on this machine, where that variable is not set")
    return Path(folder)


def _lasting(folder: Path) -> Path:
    """The folder for temporary files, or the one in which it lies where it is a batch job's own, which goes with that.

    Grid Engine and PBS make one for each job and name it by the job's id; what has failed could not be examined there.
    """
    ids = [re.match(r"\d+", os.environ.get(name, "")) for name in BATCH_JOB_IDS]
    is_of_job = any(id is not None and re.search(rf"(?<![A-Za-z0-9]){id[0]}(?![A-Za-z0-9])", folder.name) for id in ids)
    is_beside = is_of_job and folder.stat().st_dev == folder.parent.stat().st_dev
    return folder.parent if is_beside and os.access(folder.parent, os.W_OK | os.X_OK) else folder


def gpu_devices(root: Path = ROOT) -> list[str]:
    """The indices of the NVIDIA GPUs, as CUDA_VISIBLE_DEVICES names them; fewer where that variable is set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]
    with contextlib.suppress(OSError):
        return [str(index) for index, _ in enumerate(sorted((root / "proc/driver/nvidia/gpus").iterdir()))]
    return []


def gpu_type(root: Path = ROOT) -> str | None:
    """The type of all NVIDIA GPUs of this machine, by what the driver says; None: none, several, or unknown."""
    types = set()
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = None
        with contextlib.suppress(OSError, ValueError):
            lines = file.read_text(errors="replace").splitlines()
            model = next((parse_type(line.partition(":")[2]) for line in lines if line.startswith("Model:")), None)
        types.add(model)
    return types.pop() if len(types) == 1 else None


def physical_memory(root: Path = ROOT) -> int:
    """The memory of the machine in bytes."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{root / 'proc/meminfo'} does not name MemTotal")


def cpu_limits(root: Path = ROOT) -> Iterator[float]:
    """The processors that the cgroups allow, one number per limit."""
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
    """The memory that the cgroups allow in bytes, one number per limit."""
    for group in groups("memory", root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
                limit = int((group / name).read_text())
                if limit < UNLIMITED:
                    yield limit


def oom_kills(root: Path = ROOT) -> int:
    """How many processes of this one's cgroup the kernel has killed for want of memory; of the machine where there is
    no cgroup that counts them."""
    # In a container the first ones are the host's, which are not there.
    counts = [group / name for group in groups("memory", root) for name in ("memory.events", "memory.oom_control")]
    for count in (*counts, root / "proc/vmstat"):
        with contextlib.suppress(OSError):
            lines = count.read_text().splitlines()
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of this process's cgroup for a controller and of all groups above it."""
    base = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":  # where version 1 has controllers as well its folders lie beside
                mount = base / "unified" if (base / "unified").is_dir() else base
            elif controller in controllers.split(","):
                mount = base / controllers if (base / controllers).is_dir() else base / controller
            else:
                continue
            # In a container the path is the host's while the mount shows only the own group: then the mount is it.
            own = mount / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder == mount or mount in folder.parents)
