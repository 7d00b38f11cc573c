"""The one task of a batch job: how it is taken from the spool, run, and watched until its end has been reported."""

from __future__ import annotations

import contextlib
import gc
import os
import select
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from lading.executors.agent import process_tree, watchdog
from lading.executors.agent.container_runner import ContainerRunner
from lading.executors.agent.end_signals import EndSignals
from lading.executors.agent.job_folder import TERMINATED, EndCause
from lading.executors.agent.journal import JobJournal
from lading.executors.agent.limits import LimitEnforcer
from lading.executors.agent.running import RunningJobs
from lading.executors.agent.scratch import sweep_for_batch_jobs
from lading.executors.agent.warm_pool import HandedOverJob
from lading.hooks.cluster.jobs.layout import ClusterFolder, read_tokens
from lading.hooks.files.logs import get_logger, log_to_stderr
from lading.hooks.files.safe_files import NotReadable, read_regular
from lading.hooks.spool.command import COMMAND_RUNNER
from lading.hooks.spool.spool import Envelope, Spool
from lading.hooks.spool.values import asked_reason
from lading.scheduling.model.resources import NODES_VARIABLE

log = get_logger(__name__)

# How often the cancel file is checked, seconds: each check is a request to the cluster's file server.
TICK = 1.0


class NothingWaiting:
    """The empty inbox of a batch job, which runs only one task."""

    def refresh(self) -> None:
        """Do nothing: no other job arrives."""

    def hold(self, token: str, error: object) -> None:
        log.error("job %s was not started: %s", token, error)


class BatchJob:
    """The job of this process.

    :param assignment: the job and its scratch folder
    :param kill_grace: seconds between SIGTERM and SIGKILL
    :param watched: descriptor that keeps the watcher waiting; the task's processes must not inherit it
    """

    def __init__(
        self, spool: Spool, assignment: HandedOverJob, runner: ContainerRunner, kill_grace: float, watched: int
    ) -> None:
        self.spool = spool
        self.assignment = assignment
        self.token = token = assignment.token
        self.kill_grace = kill_grace
        self.end_signals = EndSignals(watchdog.ANNOUNCEMENTS)
        self.journal = JobJournal(spool, token)
        self.watched = watched
        self.runs_commands = runner.runner.__name__ == COMMAND_RUNNER
        close = watched, *self.end_signals.descriptors
        # After its only job the supervisor exits, and so wakes this process: a cluster's spool has no bell.
        self.running = RunningJobs(spool, self.journal, runner, close, most_jobs=1)
        self.limits = LimitEnforcer()
        self.inbox = NothingWaiting()

    def run(self) -> int:
        self.end_signals.receive()
        envelope = take(self.spool, self.token)
        if envelope is None:
            print(f"job {self.token} does not run here: it was cancelled, or another batch job has taken it")
            return 0
        watchdog.take_up(self.watched, self.spool.job(self.token), self.token)
        sweep_for_batch_jobs(self.assignment.scratch, self.assignment.keep_failed)
        if envelope.layout is not None and envelope.layout.least_nodes is not None:
            nodes = os.environ.get(NODES_VARIABLE, "")
            self.journal.nodes = int(nodes) if nodes.isdecimal() else None
        limits = envelope.memory_limit, envelope.time_limit
        # A command's process executes another program, whose memory can be read without a line.
        self.running.has_lines = not self.runs_commands or envelope.runner != ""
        self.running.start(self.assignment, envelope.resources, *limits, envelope.runner)
        pause = 0.0
        while self.running.jobs or self.journal.pending:
            with contextlib.suppress(BlockingIOError):
                if select.select([self.end_signals.wakeup], [], [], min(pause, TICK))[0]:
                    os.read(self.end_signals.wakeup, 65536)
            self.end_signals.log_new()
            pause = self._look()
        return 0

    def _look(self) -> float:
        try:
            self.running.collect(self.inbox)
            self.running.api_away()
            self._read_cancel()
            pause = self.limits.enforce(self.running.jobs.values(), kill_grace=self.kill_grace)
            self.running.report_memory()
        except OSError:
            log.exception("files of the spool cannot be read or written, will try again")
            pause = TICK
        self.journal.flush()
        return TICK if self.journal.pending else pause

    def _read_cancel(self) -> None:
        cause = TERMINATED if self.end_signals.received else None
        with contextlib.suppress(FileNotFoundError, NotReadable):  # an unreadable request is ignored
            cause = EndCause("cancelled", asked_reason(self.spool.request(self.spool.cancel(self.token))))
        for job in self.running.jobs.values():
            if cause is not None:
                job.end(cause, self.kill_grace)


def take(spool: Spool, token: str) -> Envelope | None:
    """Move the job's envelope to its folder, where its process will claim it; None: there is no envelope."""
    folder = spool.job(token)
    folder.root.mkdir(mode=0o700, exist_ok=True)
    try:
        os.rename(spool.envelope(token), folder.workload)
    except FileNotFoundError:
        with contextlib.suppress(OSError):  # another batch job uses the folder, so it is not empty
            folder.root.rmdir()
        return None
    return Envelope.read(folder.workload)


def run(root: str, submission: str, index: int, options: Mapping[str, str], watched: int) -> int:
    """Run a task; the parameters are those of :func:`lading.executors.agent.batch_job.main`.

    :param watched: descriptor that keeps the watcher waiting
    """
    runner = options["--runner"]
    log_to_stderr(is_late=runner == COMMAND_RUNNER)
    folder = ClusterFolder(os.path.abspath(root))
    # A larger file is not the list of tasks of a submission.
    tokens = read_regular(Path(folder.tokens(submission)), 2**24).decode()
    token = read_tokens(tokens)[index - 1].token
    # A scheduler marks its children as having database access; this process and its jobs have none.
    os.environ.pop("_AIRFLOW_PROCESS_CONTEXT", None)
    # The controller fetches the log from here.
    os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] = folder.logs(token)
    process_tree.adopt_orphans()
    contained = ContainerRunner(import_module(runner))
    contained.preload()
    gc.freeze()
    gc.enable()
    assignment = HandedOverJob(token, scratch=options["--scratch"], keep_failed=float(options["--keep-failed"]))
    return BatchJob(Spool(Path(folder.spool)), assignment, contained, float(options["--kill-grace"]), watched).run()
