"""The node agent of an allocation: ``python -m lading.executors.agent.allocation_agent FOLDER NAME``.

The batch system starts it on a node of the cluster. It works like an agent on any location, within the allocation's
time limit: it starts no job that would outlast the allocation, terminates running jobs when the time is over, and exits
when nothing has run for a while. On SIGTERM and the other signals that announce the end of a batch job, it lets its
jobs shut down cleanly, including ``on_kill``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import socket
import sys
import time
from importlib import import_module
from pathlib import Path

from lading.executors.agent import process_tree, watchdog
from lading.executors.agent.agent import Agent, JobEnvironment
from lading.executors.agent.container_runner import ContainerRunner
from lading.executors.agent.ending import Ending
from lading.executors.agent.inbox import InboxEntry
from lading.executors.agent.job_folder import TERMINATED, EndCause
from lading.executors.agent.supervisor import Runner, preload
from lading.hooks.cluster.allocations.layout import (
    SECONDS_BETWEEN_REPORTS,
    AllocationFolder,
    AllocationTerms,
    Claim,
)
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.files import host
from lading.hooks.files.logs import log_to_stderr
from lading.hooks.files.safe_files import read_regular, visible, write_atomically
from lading.hooks.spool.spool import AgentConfig, Envelope, Spool
from lading.scheduling.model.reasons import because
from lading.scheduling.starts import queueing
from lading.scheduling.text.units import format_time

log = logging.getLogger(__name__)

RUNNER = "lading.executors.agent.tasks.airflow_runner"


class AllocationAgent(Agent):
    """The agent of an allocation.

    :param began: when the allocation started, on the monotonic clock
    """

    announcements = watchdog.ANNOUNCEMENTS
    ending: Ending

    def __init__(
        self,
        folder: AllocationFolder,
        terms: AllocationTerms,
        runner: Runner,
        *,
        began: float,
        close: tuple[int, ...] = (),
    ) -> None:
        super().__init__(Spool(Path(folder.spool)), runner, close)
        self.folder = folder
        self.terms = terms
        devices = host.gpu_devices() if terms.capacity.gpus else ()
        scratch, keep_failed = terms.scratch, terms.keep_failed
        self._configure(
            AgentConfig(
                terms.capacity, tuple(devices), 60.0, terms.kill_grace, scratch=scratch, keep_failed=keep_failed
            )
        )
        self.ending = Ending(
            began + terms.seconds,
            EndCause("time_limit", because("allocation_over", least=terms.unlimited)),
            terms.kill_grace,
        )
        self.ending.announce(self.spool)
        self.busy_at = time.monotonic()
        self._write_left_at = 0.0

    def run(self) -> None:
        super().run()
        self.running.supervisor_lines.hang_up()  # otherwise, supervisors would wait for another job
        with contextlib.suppress(OSError):  # it may already be closed, or the whole folder may be gone
            os.rename(self.spool.inbox, self.folder.closed)
        log.info("the agent of the allocation exits")

    @property
    def left(self) -> float:
        """Seconds left for jobs."""
        return self.ending.left

    def lasts(self, entry: InboxEntry) -> bool:
        """Return whether the time left is enough for a job."""
        limit = entry.time_limit
        return (self.terms.unlimited if limit is None else limit + self.terms.kill_grace) <= self.left

    def _is_done(self) -> bool:
        if self.shutdown is not None:
            return super()._is_done()
        now = time.time()
        waiting = any(self.lasts(self.inbox.entries[job.token]) for job in self.inbox.ready(now))
        if self.running.jobs or self.journal.pending or waiting or self.holds.by_job:
            self.busy_at = time.monotonic()
        return time.monotonic() - self.busy_at >= self.terms.idle and self._closes()

    def _closes(self) -> bool:
        """Close the inbox; if a job has arrived at the same moment, reopen it and return False."""
        os.rename(self.spool.inbox, self.folder.closed)
        if any(path.stem not in self.inbox.entries for path in visible(Path(self.folder.closed))):
            os.rename(self.folder.closed, self.spool.inbox)
            self.busy_at = time.monotonic()
            return False
        log.info("nothing has run for %s", format_time(self.terms.idle))
        return True

    def write_left(self) -> None:
        """Write the host's name, its time and the remaining seconds, as the reader's clock may differ.

        :raises OSError: the file cannot be written
        """
        self._write_left_at = time.monotonic() + SECONDS_BETWEEN_REPORTS
        said = {"host": socket.gethostname(), "now": time.time(), "left": round(max(self.left, 0.0))}
        write_atomically(Path(self.folder.up), f"{json.dumps(said)}\n")

    def _obey_end(self) -> None:
        super()._obey_end()
        if time.monotonic() >= self._write_left_at:
            with contextlib.suppress(OSError):  # limits must still be enforced, and writing is tried again
                self.write_left()

    def _read_config(self) -> None:
        """Do nothing: the terms of an allocation never change."""

    def _read_shutdown(self) -> None:
        if self.end_signals.received:
            self._end_all(TERMINATED, self.terms.kill_grace)
            return
        super()._read_shutdown()

    def _end_all(self, cause: EndCause, grace: float) -> None:
        self.shutdown = self.shutdown or cause.cause
        super()._end_all(cause, grace)

    def _hopeful(self, ready: list[queueing.QueuedJob], config: AgentConfig) -> list[queueing.QueuedJob]:
        hopeful = super()._hopeful(ready, config)
        return [job for job in hopeful if self.lasts(self.inbox.entries[job.token])]

    def _start(self, token: str, devices: dict[str, float]) -> None:
        try:
            claimed = self._claim(token)
        except (OSError, ValueError) as error:
            self.inbox.hold(token, error)
            return
        if claimed:
            super()._start(token, devices)
            if token not in self.running.jobs:
                self._unclaim(token)
        else:
            log.warning("job %s has started elsewhere", token)
            self.inbox.forget(token)
            self.spool.envelope(token).unlink(missing_ok=True)

    def _claim(self, token: str) -> bool:
        """Claim the job for this allocation; returns False if another allocation has claimed it.

        :raises OSError: it is unknown whether the claim was made
        :raises ValueError: the job's envelope is damaged
        """
        try:
            envelope = Envelope.read(self.spool.envelope(token))
        except FileNotFoundError:
            return True  # it was taken back at this moment, which the agent will notice
        return Claim(self.folder.name, envelope.log_path).make(Path(self.folder.claims), token)

    def _unclaim(self, token: str) -> None:
        try:
            Claim(self.folder.name, "").drop(Path(self.folder.claims), token)
        except OSError as error:
            log.error("the claim of job %s could not be removed: %s", token, error)


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m lading.executors.agent.allocation_agent", description="Run the node agent of an allocation."
    )
    parser.add_argument("folder", type=Path, help="Lading's folder on the cluster")
    parser.add_argument("name", help="the allocation's name")
    parser.add_argument("--runner", default=RUNNER, help=argparse.SUPPRESS)  # the tests run functions without Airflow
    options = parser.parse_args(arguments)
    log_to_stderr()

    cluster = ClusterFolder(str(options.folder.absolute()))
    folder = AllocationFolder(cluster, options.name)
    # A larger file does not hold terms.
    terms = AllocationTerms.from_json(read_regular(Path(folder.terms), 2**20).decode())
    try:
        os.mkdir(folder.taken)
    except FileExistsError:
        print(f"allocation {options.name} has already been started, so it is not started again")
        return 0
    spool = Spool(Path(folder.spool))
    spool.create(reopens=True)  # a batch system may run an allocation's job again
    # A scheduler marks its children as having database access; this process and its jobs have none.
    os.environ.pop("_AIRFLOW_PROCESS_CONTEXT", None)
    watched = watchdog.make_for_all(spool, terms.kill_grace)
    process_tree.adopt_orphans()
    runner = JobEnvironment(ContainerRunner(import_module(options.runner)), f"{cluster.root}/logs")
    preload(runner)
    agent = AllocationAgent(folder, terms, runner, began=began, close=(watched,))
    agent.end_signals.receive()
    agent.write_left()
    agent.run()
    watchdog.revoke(watched)
    return 0


if __name__ == "__main__":
    sys.exit(main())
