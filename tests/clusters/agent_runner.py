"""A runner for the tests of the agent: a workload names a function of this module instead of an Airflow task."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy

from lading.executors.agent.supervisor import AgentJob, AgentJobFailed
from lading.hooks.files import host
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.tokens import JOB_VARIABLE, TASK_VARIABLE
from lading.scheduling.model.reasons import free_text

PR_SET_DUMPABLE = 4


def preload(runner: str = "") -> None:
    """There is nothing to import."""


def run(workload: dict[str, Any], job: AgentJob) -> None:
    """Run the function in a forked process, as Airflow's supervisor runs the task.

    With an argument ``starting`` that does not begin for a while; the file of that name says so. With one ``answered``
    it does not before the API server has answered, which the file of that name says.
    """
    if answered := workload.get("arguments", {}).pop("answered", None):
        job.api_is_silent()
        while not Path(answered).exists():
            time.sleep(0.05)
        job.api_has_answered()
    if starting := workload.get("arguments", {}).pop("starting", None):
        Path(starting).touch()
        time.sleep(60)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            code = globals()[workload["function"]](job, **workload.get("arguments", {})) or 0
        finally:
            os._exit(code)
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    job.task_has_ended()
    if (path := workload.get("report_until")) is not None:
        until(job, path)
    if code:
        raise AgentJobFailed(free_text(f"the task ended with {code}"), code)


def succeed(job: AgentJob) -> None:
    pass


def fail(job: AgentJob) -> int:
    return 3


def note(job: AgentJob, path: str, seconds: float = 0.0) -> None:
    """Add a line to a file, once per run of this job."""
    with open(path, "a") as stream:
        stream.write(f"{job.token}\n")
    time.sleep(seconds)


def open_files(job: AgentJob, path: str) -> None:
    """Report how many files it can have open, and run until it is killed."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    write_atomically(Path(path) / job.token, str(soft))
    time.sleep(60)


def sleep(job: AgentJob, seconds: float) -> None:
    time.sleep(seconds)


def until(job: AgentJob, path: str) -> None:
    """Last until there is a file."""
    while not os.path.exists(path):
        time.sleep(0.01)


def compete(job: AgentJob, cpu: int, folder: str, rival: str, cpu_seconds: float) -> None:
    """Spin on one processor against a rival until one of both has had so much of it, and report one's own part."""
    os.sched_setaffinity(0, {cpu})
    (Path(folder) / f"{job.token}.here").touch()
    until(job, str(Path(folder) / f"{rival}.here"))
    begun = time.process_time()
    while not (Path(folder) / "over").exists():
        for _ in range(10_000):
            pass
        if time.process_time() - begun >= cpu_seconds:
            (Path(folder) / "over").touch()
    write_atomically(Path(folder) / job.token, str(time.process_time() - begun))


def cpu_shares(job: AgentJob, path: str) -> None:
    """Report which cgroup of version 1 the job has, and its weight."""
    own = next(host.groups("cpu"))
    write_atomically(Path(path), f"{own} {(own / 'cpu.shares').read_text()}")


def sleep_deaf(job: AgentJob, seconds: float, started: str) -> None:
    """Sleep, and ignore being asked to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(started).touch()
    time.sleep(seconds)


def allocate(job: AgentJob, mebibytes: int, seconds: float) -> None:
    block = bytearray(os.urandom(2**20)) * mebibytes
    time.sleep(seconds)
    del block


def allocate_unseen(job: AgentJob, mebibytes: int, seconds: float) -> int:
    """Allocate as a task of Airflow, which has made itself undumpable: only root may look into it."""
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        return 71
    allocate(job, mebibytes, seconds)
    return 0


def map_file(job: AgentJob, mebibytes: int, path: str, seconds: float) -> None:
    """Write an array in a file, and read it again."""
    written = numpy.memmap(path, numpy.uint8, "w+", shape=(mebibytes * 2**20,))
    written[:] = 1
    time.sleep(seconds / 2)
    read = numpy.memmap(path, numpy.uint8, "r")
    assert read.sum() == mebibytes * 2**20
    time.sleep(seconds / 2)


def grow(job: AgentJob, mebibytes: int, per_second: float) -> None:
    """Allocate little by little."""
    kept = []
    for _ in range(mebibytes):
        kept.append(os.urandom(2**20))
        time.sleep(1 / per_second)


def share(job: AgentJob, mebibytes: int, processes: int, seconds: float) -> None:
    """Allocate once and fork a pool that shares it."""
    block = bytearray(os.urandom(2**20)) * mebibytes
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            time.sleep(seconds)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    del block


def escape(job: AgentJob, pid_file: str, seconds: float = 60.0) -> None:
    """Leave a daemon behind: forked twice, in a session of its own, ignoring signals, without our environment."""
    code = (
        "import os, signal, time; signal.signal(15, signal.SIG_IGN)\n"
        f"open({pid_file!r}, 'w').write(str(os.getpid())); time.sleep({seconds})"
    )
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", code], {})
        os._exit(0)
    while not (os.path.exists(pid_file) and Path(pid_file).read_text()):
        time.sleep(0.01)


def environment(job: AgentJob, path: str) -> None:
    Path(path).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))


def mark(job: AgentJob, path: str) -> None:
    Path(path).write_text(" ".join([os.environ[JOB_VARIABLE], os.environ.get(TASK_VARIABLE, "no task")]))


def surroundings(job: AgentJob, path: str) -> None:
    names = "AIRFLOW__LOGGING__BASE_LOG_FOLDER", "OMP_NUM_THREADS"
    ends_at = Path(os.environ["LADING_ENDS_AT"]).read_text().strip()
    Path(path).write_text(" ".join([*(os.environ[name] for name in names), ends_at]))


def child(job: AgentJob, seconds: float) -> None:
    """Wait for a program."""
    subprocess.run(["sleep", str(seconds)], check=True)


def litter(job: AgentJob, code: int) -> int:
    """Leave a file where temporary files go."""
    (Path(tempfile.gettempdir()) / "litter").write_text("x")
    return code


def variables(job: AgentJob, path: str) -> None:
    """Write the whole environment to a file."""
    Path(path).write_text(json.dumps(dict(os.environ)))
