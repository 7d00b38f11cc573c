"""Runs the workload of one job inside its container.

``python -m lading.executors.agent.tasks.inside SPOOL TOKEN RUNNER EXPIRES_AT``
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from functools import partial
from importlib import import_module
from pathlib import Path

from lading.executors.agent import process_tree
from lading.executors.agent.container import path_of
from lading.executors.agent.job_folder import Supervisor
from lading.executors.agent.limits import LimitEnforcer
from lading.executors.agent.process_tree import MemoryMeter, MemorySamples
from lading.executors.agent.running import RunningJob
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed, ProcessUsage, end_leftovers
from lading.executors.agent.warm_pool import SupervisorLines, make_line
from lading.hooks.files import host
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.command import runner_of
from lading.hooks.spool.spool import JobFolder, Spool
from lading.hooks.spool.values import to_json
from lading.scheduling.model.light_dataclasses import as_dict
from lading.scheduling.model.resources import Resources

# The fields of MemorySamples in the memory shared with the meter.
SAMPLES = struct.Struct("=qqq")


def main() -> None:
    spool, token, module, expires_at = sys.argv[1:]
    job = AgentJob(token, Spool(Path(spool)), float(expires_at))
    workload = json.load(sys.stdin)
    samples = start_meter(token, job.folder)
    process_tree.adopt_orphans()
    runner = import_module(module)
    runner.preload(runner_of(workload))
    signal.signal(signal.SIGTERM, job.asked_to_end)
    before, killed = ProcessUsage(), host.oom_kills()
    exit_code, reason, cause = 0, None, AgentJobFailed.cause
    try:
        runner.run(workload, job)
    except BaseException as error:
        traceback.print_exc()
        failure = AgentJobFailed.of_error(error)
        exit_code, reason, cause = failure.exit_code, failure.reason, failure.cause
    end_leftovers()
    usage = ProcessUsage()
    outcome = {
        "exit_code": exit_code,
        "reason": reason,
        "cause": cause,
        "outputs": job.outputs,
        "cpu_seconds": usage.cpu_seconds - before.cpu_seconds,
        "peak": MemorySamples(*SAMPLES.unpack_from(samples)).peak_at_end(usage.touched_since(before) // 1024) * 1024,
        "is_out_of_memory": host.oom_kills() > killed,
    }
    write_atomically(path_of(job.folder.root), to_json(outcome))


def start_meter(token: str, folder: JobFolder) -> mmap.mmap:
    """Start a process that measures this one and its descendants, as the agent cannot see processes in Docker.

    Call this before importing anything large, because the meter is a copy of this process, and before this process
    adopts orphans, because the meter must not measure itself.

    :returns: shared memory with :data:`SAMPLES`
    """
    pid = os.getpid()
    end, line = make_line()
    root = Supervisor(pid, host.started(pid), host.boot_id(), time.time(), host.since_boot(), Resources(), None, None)
    samples = mmap.mmap(-1, mmap.PAGESIZE)
    if between := os.fork():
        os.waitpid(between, 0)
        end.close()
        os.register_at_fork(after_in_child=line.show_memory)
        return samples
    try:
        if os.fork():
            os._exit(0)
        lines, enforcer = SupervisorLines(), LimitEnforcer()
        lines.add(pid, end)
        measured = RunningJob(token, folder, root, is_child=False, meter=MemoryMeter(partial(lines.smaps, pid)))
        while root.alive:
            time.sleep(enforcer.enforce([measured], kill_grace=0.0))
            SAMPLES.pack_into(samples, 0, *as_dict(measured.samples).values())
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
