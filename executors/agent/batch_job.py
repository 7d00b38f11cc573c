"""One task as one job of a batch system: ``python -m lading.executors.agent.batch_job FOLDER SUBMISSION INDEX``.

The batch system starts it on a node of the cluster. It takes its job's envelope from the spool in ``FOLDER``, does for
that one job what the node agent does for many, and writes what happened to the spool's events. A second batch job for
the same task finds no envelope and exits, so that a task runs once however often it was submitted.

On SIGTERM and the other signals that announce the end of a batch job, it lets the task shut down cleanly, including
``on_kill``.
"""

from __future__ import annotations

import gc
import os
import sys

from lading.executors.agent import watchdog

RUNNER = "lading.executors.agent.tasks.airflow_runner"


def main(arguments: list[str] | None = None) -> int:
    """Run the task with this number, counted from 1, of a submission: ``FOLDER SUBMISSION INDEX [OPTION VALUE]...``

    ``--kill-grace``: seconds between SIGTERM and SIGKILL; ``--scratch``: the parent of the job's scratch folder;
    ``--keep-failed``: seconds to keep that folder if the job fails; ``--runner``: the module that runs the task.
    """
    root, submission, index, *given = sys.argv[1:] if arguments is None else arguments
    # Not with argparse, which would take a thirtieth of the CPU time of a job. Only Lading's scripts start this.
    options = {"--kill-grace": "10", "--scratch": "", "--keep-failed": "0", "--runner": RUNNER}
    if unknown := sorted(set(given[::2]) - options.keys()):
        sys.exit(f"unknown: {', '.join(unknown)}; valid: {', '.join(options)}")
    options |= zip(given[::2], given[1::2], strict=True)
    watched = watchdog.make(float(options["--kill-grace"]))
    # Modules imported from now on stay in memory; garbage collection meanwhile would take a tenth of the time.
    gc.disable()
    from lading.executors.agent import batch_task  # imported late, so that the watcher is a copy of a small process

    status = batch_task.run(root, submission, int(index), options, watched)
    watchdog.revoke(watched)
    return status


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    # Finalizing an interpreter that has imported all of Airflow takes as long as a short task.
    os._exit(ended)
