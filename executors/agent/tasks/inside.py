"""The runner of one job, in its container.

``python -m lading.executors.agent.tasks.inside SPOOL TOKEN RUNNER EXPIRES_AT``
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from pathlib import Path

from lading.executors.agent import process_tree
from lading.executors.agent.container import path_of
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed, ProcessUsage, end_leftovers, load_runner
from lading.hooks.files import host
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.events import to_json
from lading.hooks.spool.spool import Spool


def main() -> None:
    spool, token, module, expires_at = sys.argv[1:]
    job = AgentJob(token, Spool(Path(spool)), float(expires_at))
    workload = json.load(sys.stdin)
    process_tree.adopt_orphans()
    runner = load_runner(module)
    runner.preload()
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
        "peak": usage.peak_since(before),
        "touched": usage.touched_since(before),
        "is_out_of_memory": host.oom_kills() > killed,
    }
    write_atomically(path_of(job.folder.root), to_json(outcome))


if __name__ == "__main__":
    main()
