"""The node agent: one long-lived process per location that starts jobs, enforces their limits and reports their ends.

It is started as ``python -m lading.executors.agent SPOOL`` and controlled only through the spool folder. It imports
Airflow's Task SDK once and forks a process for each job, so that a job starts in milliseconds. It keeps nothing in
memory that its successor cannot read from the spool: after ``kill -9``, the next agent adopts the running jobs.

SIGTERM and SIGINT act like the request ``cancel``: it terminates its jobs, leaves the backlog in the inbox, and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import select
import signal
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from lading.executors.agent import process_tree
from lading.executors.agent.container_runner import ContainerRunner
from lading.executors.agent.cpu_groups import CpuGroups, NoCpuGroups
from lading.executors.agent.end_signals import EndSignals
from lading.executors.agent.ending import ENDS_AT_VARIABLE, Ending, SpotNotice
from lading.executors.agent.holds import AgentHolds
from lading.executors.agent.inbox import Inbox
from lading.executors.agent.job_folder import EndCause
from lading.executors.agent.journal import AgentJournal
from lading.executors.agent.limits import LimitEnforcer
from lading.executors.agent.running import RunningJobs
from lading.executors.agent.scratch import Scratch
from lading.executors.agent.supervisor import AgentJob, Runner, preload
from lading.executors.agent.warm_pool import HandedOverJob
from lading.hooks.files import child_processes
from lading.hooks.files.bell import Bell
from lading.hooks.files.logs import Trouble, log_to_stderr
from lading.hooks.files.safe_files import NotReadable, open_regular, visible
from lading.hooks.machines.agent_host import introduce
from lading.hooks.spool.spool import AgentConfig, Spool, lock_spool
from lading.hooks.spool.tokens import TOKEN
from lading.hooks.spool.values import asked_reason
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.model import gpus
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import CPUS_VARIABLE, Resources
from lading.scheduling.starts import queueing

log = logging.getLogger(__name__)

RUNNER = "lading.executors.agent.tasks.airflow_runner"

# The spool is checked this often even if nothing rings the bell, seconds.
TICK = 1.0


# Failures as they appear in the log.
TURN = "files of the spool cannot be read or written"
CONFIG = "config.json cannot be read, so the agent keeps its previous configuration"


class Agent:
    """The agent of one spool.

    :param close: descriptors that the jobs' processes must not inherit, in addition to those the agent opens itself
    :param held: descriptor of the lock that makes this the only agent of its spool; None: it holds no lock
    """

    announcements: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGINT)
    """The signals that request its shutdown."""

    def __init__(self, spool: Spool, runner: Runner, close: tuple[int, ...] = (), held: int | None = None) -> None:
        self.spool = spool
        self.held = held
        close = close if held is None else (*close, held)
        self.bell = Bell(spool.bell).open()
        self.end_signals = EndSignals(self.announcements)
        self.journal = AgentJournal(spool)
        self.running = RunningJobs(spool, self.journal, runner, (*close, self.bell, *self.end_signals.descriptors))
        self.inbox = Inbox(spool, self.journal, self.running.jobs.__contains__)
        self.holds = AgentHolds(spool, self.journal, self.inbox.rejected)
        self.limits = LimitEnforcer()
        self.trouble = Trouble(log)
        self.scratch = Scratch()
        self.api = Backoff()  # delays starts while Airflow's API server does not answer
        self.config: AgentConfig | None = None
        self.ending: Ending | None = None  # of the location, once it is announced
        self._notice = SpotNotice()
        self._config_seen: tuple[int, int] | None = None
        self._reasons_due = 0.0
        self._busy_at = time.monotonic()
        self.shutdown: str | None = None
        self._root = os.stat(spool.root)
        self._missing_since: float | None = None

    def run(self) -> None:
        """Work until a requested shutdown is complete, or the agent is no longer needed."""
        child_processes.raise_open_files_limit()
        self._find_cpu_groups()
        self.running.adopt(self.inbox)
        pause = 0.0
        while not self._is_done():
            self._wait(pause)
            self.end_signals.log_new()
            if self._is_orphaned():
                return
            try:
                if not self._is_the_one():
                    log.error("another agent serves %s and takes over its jobs", self.spool.root)
                    return
                self._read_config()
                self._read_shutdown()
                self._obey_end()
                self.inbox.refresh()
                self._read_cancels()
                self.running.collect(self.inbox)
                if self.running.cpu_groups is not None:
                    self.running.cpu_groups.remove_ended()
                pause = self._enforce_limits()
                self.scratch.expire(self.running.failures)
                self._hold_room()
                self._start_jobs()
                self.journal.flush()
                part_log(self.spool)
                self.trouble.end(TURN)
            except Exception as error:  # exiting would help no job, and the next agent would meet the same error
                self.trouble.begin(TURN, error, traceback=True)
                pause = TICK
        if self.running.cpu_groups is not None:
            self.running.cpu_groups.close()
        self.inbox.rejected.remove(self.spool.shutdown)
        Bell(self.spool.bell).remove(self.bell)
        if self.shutdown is None and self.config is not None and self.config.switch_off:
            log.info("this machine is no longer needed: %s", self.config.switch_off)
            os.execv("/bin/sh", ["sh", "-c", self.config.switch_off])

    def _is_orphaned(self) -> bool:
        """Kill all jobs if the spool was removed or replaced by another folder; returns whether it was.

        Nobody could learn about these jobs any more, and whoever removed the folder is free to run them again. A spool
        that cannot be read now still exists, and one that is not found may reappear a moment later on a file server.
        """
        now = time.monotonic()
        try:
            is_another = not os.path.samestat(os.stat(self.spool.root), self._root)
            self._missing_since = None
        except FileNotFoundError:
            is_another = False
            self._missing_since = self._missing_since or now
        except OSError:
            return False
        # A spool that has been missing for this long was removed.
        if not is_another and (self._missing_since is None or now - self._missing_since < 5.0):
            return False
        found = "another folder has taken its place" if is_another else "it was removed"
        log.error("the spool %s is gone (%s): killing all jobs of this agent", self.spool.root, found)
        self.running.kill_all()
        return True

    def _find_cpu_groups(self) -> None:
        try:
            self.running.cpu_groups = found = CpuGroups.of_agent(self.spool.root)
            log.info("jobs share CPU time in proportion to their cpus, through cgroups in %s", found.base)
        except NoCpuGroups as why:
            log.info("jobs share CPU time regardless of their cpus, because cgroups cannot be used: %s", why)

    def _is_the_one(self) -> bool:
        """Return whether this agent holds the spool's lock; a removed lock file is created again."""
        if self.held is None:
            return True
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(self.spool.lock), os.fstat(self.held)):
                return True
        if (anew := lock_spool(self.spool)) is None:
            return False
        os.dup2(anew, self.held, inheritable=False)
        os.close(anew)
        return True

    def _is_done(self) -> bool:
        if self.running.jobs or self.journal.pending:
            self._busy_at = time.monotonic()
            return False
        return self.shutdown is not None or self._is_idle()

    def _is_idle(self) -> bool:
        idle_seconds = self.config.idle_seconds if self.config else None
        is_awaited = self.inbox.entries or self.holds.by_job
        if idle_seconds is None or is_awaited or time.monotonic() - self._busy_at < idle_seconds:
            return False
        log.info("no job and no request for %g s", idle_seconds)
        return True

    def _wait(self, pause: float) -> None:
        for descriptor in select.select([self.bell, self.end_signals.wakeup], [], [], min(pause, TICK))[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65536)
            if descriptor == self.bell:
                self._busy_at = time.monotonic()

    def _read_config(self) -> None:
        try:
            status = os.stat(self.spool.config)
            if (status.st_ino, status.st_mtime_ns) == self._config_seen:
                return
            self._configure(AgentConfig.from_json(self.spool.request(self.spool.config)))
            self._config_seen = (status.st_ino, status.st_mtime_ns)
            log.info("the location is %s", self.config)
            self.trouble.end(CONFIG)
        except FileNotFoundError:
            return  # its site has not written it yet
        except Exception as error:
            self.trouble.begin(CONFIG, error, level=logging.ERROR)

    def _configure(self, config: AgentConfig) -> None:
        self.config = config
        if (config.scratch, config.keep_failed) != (self.scratch.configured, self.scratch.keep_failed):
            self.scratch = Scratch(config.scratch, config.keep_failed)

    def _read_shutdown(self) -> None:
        if self.end_signals.received:
            self.shutdown = "cancel"
        if self.shutdown != "cancel":  # a cancelling shutdown is final, because jobs have been sent SIGTERM
            try:
                self.shutdown = self.spool.request(self.spool.shutdown)
            except FileNotFoundError:
                self.shutdown = None  # a new controller can withdraw the request and keep the agent
            except NotReadable as error:
                self.inbox.rejected.move(self.spool.shutdown, error)
            except OSError as error:  # reading is tried again
                self.inbox.rejected.report(self.spool.shutdown.name, error)
        if self.shutdown == "cancel":
            self._end_all(EndCause("cancelled", because("agent_shut_down")), self._kill_grace)

    def _obey_end(self) -> None:
        if self.ending is None and self.config is not None and self.config.is_spot:
            self.ending = self._notice.read(self.spool, self.config.kill_grace)
        if self.ending is not None and self.ending.left <= 0:
            self._end_all(self.ending.cause, self.ending.grace)

    def _end_all(self, cause: EndCause, grace: float) -> None:
        for job in self.running.jobs.values():
            job.end(cause, grace)
            job.kill_supervisor_after(2 * grace)

    @property
    def _kill_grace(self) -> float:
        return self.config.kill_grace if self.config else 0.0

    def _read_cancels(self) -> None:
        for path in visible(self.spool.cancels):
            try:
                self._read_cancel(path)
            except FileNotFoundError:
                continue  # it was withdrawn
            except NotReadable as error:
                self.inbox.rejected.move(path, error)
            except Exception as error:  # reading is tried again, and the other requests are still served
                self.inbox.rejected.report(path.name, f"{type(error).__name__}: {error}")

    def _read_cancel(self, path: Path) -> None:
        token = path.name
        reason = asked_reason(self.spool.request(path))
        if not TOKEN.fullmatch(token):
            path.unlink()
        elif token in self.running.jobs:
            self.running.jobs[token].end(EndCause("cancelled", reason), self._kill_grace)
            path.unlink()
        elif self.journal.has_finished(token):
            path.unlink()
        else:  # it waits, or is unknown here: either way it must never run
            self.inbox.cancel(token, reason, path.unlink)

    def _enforce_limits(self) -> float:
        pause = self.limits.enforce(self.running.jobs.values(), kill_grace=self._kill_grace)
        self.running.report_memory()
        return pause

    def _hold_room(self) -> None:
        if (config := self.config) is not None:
            devices = self.running.free_devices(config.gpu_devices)
            self.holds.refresh(
                lambda: queueing.QueueRoom(self._free(config), self.holds.without(devices)), takes=self.shutdown is None
            )

    def _start_jobs(self) -> None:
        now, clock = time.time(), time.monotonic()
        away = self.running.api_away(len(self.inbox.ready(now)))
        if self.config is None or self.shutdown is not None or self.end_signals.received or not self.inbox.entries:
            return
        if self.config.is_spot and self.ending is not None:  # waiting jobs go to other machines
            return
        if away is None:
            self.api.succeeded()
        elif not self._is_due(away):
            self.inbox.report_reasons({job.token: away for job in self.inbox.ready(now)}, now)
            return
        for held in self.holds.held_for({job.token for job in self.inbox.ready(now)} if self.holds.by_job else ()):
            self._start(held.hold.job, dict(held.devices))
            self.holds.use(held.hold.job)
        capacity, patience = self.config.capacity, self.config.patience
        devices = self.holds.without(self.running.free_devices(self.config.gpu_devices))
        free = self._free(self.config)
        ready = self.inbox.ready(now)
        if self.scratch.kept and any(job.resources.disk > free.disk for job in ready):
            self.scratch.make_room()
        ready = self._hopeful(ready, self.config)
        decision = queueing.next_starts(ready, free, capacity, now=clock, patience=patience, devices=devices)
        for token, reason in decision.impossible.items():
            self.inbox.refuse(token, reason)
        for token in decision.overtaken:
            self.inbox.overtake(token, clock)
        for token in decision.starts[: 1 if self.running.unanswered else None]:
            self._start(token, gpus.pick(devices, self.inbox.entries[token].waiting.resources.gpus) or {})
            devices = self.holds.without(self.running.free_devices(self.config.gpu_devices))
        if clock < self._reasons_due and not self.inbox.has_unreported(now):
            return
        # Reasons for waiting are for users, so changes of them are reported at most twice a second. The first reason of
        # a job that has waited long is reported at once.
        self._reasons_due = clock + 0.5
        free = self._free(self.config)
        reasons = queueing.reasons(self.inbox.ready(now), free, now=clock, patience=patience, devices=devices)
        self.inbox.report_reasons(reasons, now)

    def _is_due(self, away: Reason) -> bool:
        """Return whether to start another job although Airflow's API server does not answer the jobs started before.

        Those keep asking themselves, but the server may be failing to answer only them.
        """
        is_due = self.api.failures > 0 and self.api.left <= 0
        if is_due or not self.api.failures:
            self.api.failed(away.sentence)
        return is_due

    def _free(self, config: AgentConfig) -> Resources:
        used = self.running.used() + self.holds.used()
        free = config.capacity - used
        if config.measure_disk:
            return replace(free, disk=min(free.disk, self.scratch.measure(used.disk)))
        return replace(free, disk=max(free.disk - self.scratch.counted, 0))

    def _hopeful(self, ready: list[queueing.QueuedJob], config: AgentConfig) -> list[queueing.QueuedJob]:
        """Leave out jobs whose disk request cannot be met even if all jobs end: no room is kept free for them."""
        if not config.measure_disk:
            return ready
        return [job for job in ready if not self.scratch.whole < job.resources.disk <= config.capacity.disk]

    def _start(self, token: str, devices: dict[str, float]) -> None:
        if self.end_signals.received or (entry := self.inbox.take(token)) is None:
            return
        try:
            has_gpus = bool(self.config and self.config.gpu_devices)
            scratch = self.scratch.configured, self.scratch.keep_failed
            assignment = HandedOverJob(token, devices, has_gpus, *scratch)
            limits = entry.memory_limit, entry.time_limit
            self.running.start(assignment, entry.waiting.resources, *limits, entry.runner)
        except Exception as error:  # this job waits for a while; the others can start
            self.running.take_back(token, self.inbox, str(error))


def part_log(spool: Spool) -> None:
    """Start a new log file if the old one has become large and is where this process's output goes."""
    if not spool.log_is_full():
        return
    full = os.stat(spool.log)
    ours = [output for output in (1, 2) if os.path.samestat(os.fstat(output), full)]
    if ours:
        spool.part_log()
        new = open_regular(spool.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for output in ours:
            os.dup2(new, output)
        os.close(new)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lading.executors.agent", description="Run Lading's node agent.")
    parser.add_argument("spool", type=Path, help="the folder through which the agent is controlled")
    parser.add_argument("--logs", help="the parent of the jobs' log folders; default: as Airflow is configured")
    parser.add_argument("--stamp", default="", help=argparse.SUPPRESS)
    parser.add_argument("--runner", default=RUNNER, help=argparse.SUPPRESS)  # the tests run functions without Airflow
    options = parser.parse_args(arguments)
    log_to_stderr()

    spool = Spool(options.spool.absolute())
    spool.create()
    # A scheduler marks its children as having database access; this process and its jobs have none.
    os.environ.pop("_AIRFLOW_PROCESS_CONTEXT", None)
    held = lock_spool(spool)
    if held is None:
        print(f"another agent already serves {spool.root}", file=sys.stderr)
        return 0
    process_tree.adopt_orphans()
    contained = ContainerRunner(import_module(options.runner))
    runner: Runner = JobEnvironment(contained, options.logs) if options.logs else contained
    agent = Agent(spool, runner, held=held)
    # A signal that arrives once the agent is known must not kill it, however long it still takes to start.
    agent.end_signals.receive()
    introduce(spool, options.stamp)
    preload(runner)
    agent.run()
    return 0


class JobEnvironment:
    """A runner that sets each job's own log folder and number of threads, as a batch system would.

    It also tells each job the name of the file that says when its machine is taken away.

    :param logs: the parent of the jobs' log folders, from which the controller fetches the logs
    """

    def __init__(self, runner: Runner, logs: str) -> None:
        self.runner = runner
        self.logs = logs

    def preload(self, runner: str = "") -> None:
        self.runner.preload(runner)

    def run(self, workload: dict[str, Any], job: AgentJob) -> None:
        os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] = f"{self.logs}/{job.token}"
        os.environ["OMP_NUM_THREADS"] = str(max(1, math.ceil(float(os.environ[CPUS_VARIABLE]))))
        os.environ[ENDS_AT_VARIABLE] = str(job.spool.ends_at)
        self.runner.run(workload, job)
