"""The running jobs of a location: how they are started and terminated, and what becomes of them."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from lading.executors.agent import job_folder, process_tree, supervisor
from lading.executors.agent.job_folder import EndCause, ExitFile, Supervisor
from lading.executors.agent.journal import SECONDS_UNTIL_REPORTED, Journal
from lading.executors.agent.process_tree import MemoryMeter, MemorySamples, Process
from lading.executors.agent.supervisor import Runner
from lading.executors.agent.warm_pool import HandedOverJob, SupervisorLines, make_line
from lading.hooks.files import host
from lading.hooks.files.logs import Trouble, get_logger
from lading.hooks.files.safe_files import read_end, visible
from lading.hooks.spool.job_files import of_sentinel
from lading.hooks.spool.spool import JobFolder, Spool
from lading.hooks.spool.tokens import TOKEN
from lading.scheduling.model.light_dataclasses import as_dict, dataclass, field, replace
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from lading.executors.agent.cpu_groups import CpuGroups

log = get_logger(__name__)


# How often the jobs that wait for an answer of the API server are counted, seconds: each of them reports every count.
SECONDS_PER_COUNT = 60.0

# How often the peak memory of running jobs is reported, in seconds, and by which fraction it must have grown, so that
# jobs whose memory does not change are not reported.
MEMORY_INTERVAL, MEMORY_GROWTH = 60.0, 0.1

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WaitingJobs(Protocol):
    """The part of the inbox that running jobs need."""

    def refresh(self) -> None:
        """Read new and replaced envelopes."""

    def hold(self, token: str, error: object) -> None:
        """Do not start a job for a while, because starting it has failed."""


@dataclass(slots=True)
class RunningJob:
    """A job that runs, or whose supervisor still has something to report."""

    token: str
    folder: JobFolder
    supervisor: Supervisor
    is_child: bool
    task_has_ended: bool = False
    cause: EndCause | None = None
    exit_status: int | None = None
    kill_task_at: float | None = None
    kill_supervisor_at: float | None = None
    meter: MemoryMeter = field(default_factory=MemoryMeter)
    peak_memory: int | None = None
    last_exact: tuple[int, int] = (0, 0)
    """The memory and the touched pages of its processes when that was last known exactly, MiB."""
    reported_memory: int = 0
    """What was reported of its peak while it runs, MiB."""
    unanswered_since: float | None = None
    """Since when it cannot begin because Airflow's API server does not answer, epoch seconds; None: it can."""
    is_reported_unanswered: bool = False
    next_look: float = 0.0
    measured_at: float = 0.0

    def end(self, cause: EndCause, grace: float) -> None:
        """Send SIGTERM, on which the operator's ``on_kill`` runs; kill it if it still runs ``grace`` seconds later."""
        self.task_has_ended = self.task_has_ended or job_folder.task_has_ended(self.folder)
        if self.cause is None and not self.task_has_ended:
            self._note(cause)
            self._signal(signal.SIGTERM)
            self.kill_task_at = time.monotonic() + grace

    def kill(self, cause: EndCause) -> None:
        """Kill the task and everything it has started; its supervisor survives to report and upload the log."""
        self._note(cause)
        self.kill_task_at = time.monotonic()
        self.press()

    def kill_supervisor_after(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.kill_supervisor_at = min(self.kill_supervisor_at or deadline, deadline)

    def press(self) -> None:
        """Send the signals that are due if a job that should end has not."""
        now = time.monotonic()
        if self.kill_task_at is not None and now >= self.kill_task_at and not self.task_has_ended:
            process_tree.kill_descendants(self.supervisor.pid)
            self.kill_task_at = now + 0.5  # the supervisor may have been about to start the task
            # After the task's processes have been killed, their supervisor has a minute to upload the log.
            self.kill_supervisor_after(60.0)
        if self.kill_supervisor_at is not None and now >= self.kill_supervisor_at:
            self._signal(signal.SIGKILL)

    def begin_to_measure(self) -> None:
        """Note the supervisor's memory that is not the job's: the agent's pages, and the remains of earlier jobs."""
        found = Process.read(self.supervisor.pid)
        if found is not None and found.started == self.supervisor.started:
            self.meter.begin(found)

    def note_memory(self, used: int, *, is_exact: bool) -> None:
        """Note what a sample or a measurement has shown, MiB.

        :param is_exact: whether it used hardly more than that
        """
        self.peak_memory = max(self.peak_memory or 0, used)
        # The supervisor is alone if its task has not started yet, or has just ended.
        if is_exact and len(self.meter.processes) > 1 and self.meter.is_whole:
            self.last_exact = used, self.meter.touched

    @property
    def samples(self) -> MemorySamples:
        return MemorySamples(self.peak_memory or 0, *self.last_exact)

    @property
    def age(self) -> float:
        """How long it has run, seconds, regardless of changes of the machine's clock; 0 while it cannot begin."""
        if self.unanswered_since is not None:
            return 0.0
        return host.since_boot() - self.supervisor.began

    @property
    def is_gone(self) -> bool:
        """Whether its supervisor has ended."""
        return self.exit_status is not None if self.is_child else not self.supervisor.alive

    def _note(self, cause: EndCause) -> None:
        log.info("terminating job %s, %s: %s", self.token, cause.cause, cause.reason)
        self.cause = cause
        try:
            cause.write(self.folder)
        except OSError as error:
            log.error("the supervisor of job %s will not know why the job is terminated: %s", self.token, error)

    def _signal(self, number: int) -> None:
        found = Process.read(self.supervisor.pid)
        if found is not None and found.started == self.supervisor.started:
            process_tree.send([found], number)


class RunningJobs:
    """The running jobs of a location.

    :param close: the agent's descriptors, which the jobs' processes must not inherit
    :param most_jobs: how many jobs a supervisor runs at most, one after another
    """

    def __init__(
        self,
        spool: Spool,
        journal: Journal,
        runner: Runner,
        close: Sequence[int],
        most_jobs: int = 100,  # libraries leak
    ) -> None:
        self.spool = spool
        self.journal = journal
        self.runner = runner
        self.close = close
        self.most_jobs = most_jobs
        self.has_lines = True
        """Whether supervisors have lines, which they need to run several jobs, and to show the memory of processes that
        they fork."""
        self.cpu_groups: CpuGroups | None = None
        self.boot_id = host.boot_id()
        self.jobs: dict[str, RunningJob] = {}
        self.failures = 0
        # The runners whose programs this process has imported, in addition to what all jobs need.
        self.runners = {""}
        self.supervisor_lines = SupervisorLines()
        self.trouble = Trouble(log)
        self._away: Reason | None = None
        self._away_until = 0.0
        self._next_memory = 0.0

    def used(self) -> Resources:
        """Return the resources of the jobs whose task has not ended."""
        return sum((job.supervisor.resources for job in self._occupying()), Resources())

    def free_devices(self, devices: Sequence[str]) -> dict[str, float]:
        """Return the free share of each GPU."""
        free = dict.fromkeys(devices, 1.0)
        for job in self._occupying():
            for device, share in job.supervisor.devices.items():
                if device in free:
                    free[device] -= share
        return free

    def adopt(self, inbox: WaitingJobs) -> None:
        """Take over the jobs of the previous agent: adopt those that run, and return the others to the inbox."""
        job_folder.remove_remains(self.spool.jobs)
        for path in visible(self.spool.jobs):
            if not TOKEN.fullmatch(path.name):
                continue
            try:
                owner = job_folder.owner(self.spool.job(path.name))
                if owner is None:
                    self.take_back(path.name, inbox)
                else:
                    self._adopt(path.name, owner)
            except Exception as error:  # whatever a task has left there must affect only this job
                log.error("cannot determine the state of job %s, the next agent will try again: %r", path.name, error)

    def start(
        self,
        assignment: HandedOverJob,
        resources: Resources,
        memory_limit: int | None,
        time_limit: int | None,
        runner: str,
    ) -> None:
        """Start a job whose envelope is in its folder, in a spare supervisor or a new one.

        :param memory_limit: MiB; None: no limit
        :param time_limit: seconds; None: no limit
        :param runner: the module that preloads the job's program; empty: none
        :raises OSError: the machine cannot fork another process
        """
        token = assignment.token
        if runner not in self.runners:
            self.runners.add(runner)
            supervisor.preload(self.runner, runner)
        pid = self.supervisor_lines.give(assignment, [job.supervisor.pid for job in self.jobs.values()]) or self._fork(
            assignment
        )
        now = time.time()
        identity = Supervisor(
            pid,
            host.started(pid),
            self.boot_id,
            now,
            host.since_boot(),
            resources,
            memory_limit,
            time_limit,
            assignment.devices,
        )
        meter = MemoryMeter(partial(self.supervisor_lines.smaps, pid))
        self.jobs[token] = job = RunningJob(token, self.spool.job(token), identity, is_child=True, meter=meter)
        job.begin_to_measure()
        self.journal.started(token, at=now, pid=pid)

    def _fork(self, assignment: HandedOverJob) -> int:
        end, line = make_line() if self.has_lines else (None, None)
        # Block signals until the new process has removed the agent's handlers: they would swallow a signal to it.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                if end is not None:
                    end.close()
                self.supervisor_lines.hang_up()
                supervisor.become(
                    assignment, self.spool, self.runner, line, self.close, self.cpu_groups, self.most_jobs
                )
        except OSError:
            if end is not None:
                end.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        if end is not None:
            self.supervisor_lines.add(pid, end)
        return pid

    def collect(self, inbox: WaitingJobs) -> None:
        """Report the jobs that have ended since the last call."""
        self._reap()
        for job in list(self.jobs.values()):
            what = f"cannot determine the state of job {job.token}"
            try:
                self._collect(job, inbox)
                self.trouble.end(what)
            except Exception as error:  # whatever a task has left in its folder must affect only this job
                self.trouble.begin(what, error, traceback=True)

    def _collect(self, job: RunningJob, inbox: WaitingJobs) -> None:
        job.task_has_ended = job.task_has_ended or job_folder.task_has_ended(job.folder)
        self._follow_start(job)
        job.press()
        gone = job.is_gone
        left = ExitFile.read(job.folder)
        if left is not None:
            self._finish(job, left)
        elif gone:
            self._settle_without_exit_file(job, inbox)

    @property
    def unanswered(self) -> list[RunningJob]:
        """The jobs that cannot begin because Airflow's API server does not answer them."""
        return [job for job in self.jobs.values() if job.unanswered_since is not None]

    def _follow_start(self, job: RunningJob) -> None:
        is_marked = job_folder.is_unanswered(job.folder)
        if is_marked and not job.task_has_ended:
            job.unanswered_since = job.unanswered_since or time.time()
        elif job.unanswered_since is not None:
            job.unanswered_since = None
            if not is_marked and (anew := Supervisor.read(job.folder)) is not None:
                job.supervisor = replace(job.supervisor, at=anew.at, began=anew.began)
                self.journal.started(job.token, at=anew.at, pid=job.supervisor.pid)

    def api_away(self, waiting: int = 0) -> Reason | None:
        """Return the reason that Airflow's API server does not answer jobs here; None: it answers, as far as known.

        Also reports the jobs that were started and cannot begin.

        :param waiting: number of further jobs that are not started for this reason
        """
        if not (unanswered := self.unanswered):
            self._away = None
            return None
        if self._away is None or time.monotonic() >= self._away_until:
            since = min(job.unanswered_since or math.inf for job in unanswered)
            is_counted_soon = self._away is None  # jobs started in the meantime may get no answer either
            self._away = because("api_away", jobs=waiting + len(unanswered), since=since)
            pause = SECONDS_UNTIL_REPORTED if is_counted_soon else SECONDS_PER_COUNT
            self._away_until = time.monotonic() + pause
        for job in unanswered:
            waits = time.time() - (job.unanswered_since or math.inf)
            if not job.is_reported_unanswered and waits >= SECONDS_UNTIL_REPORTED:
                job.is_reported_unanswered = True
                self.journal.waiting(job.token, self._away)
        return self._away

    def report_memory(self) -> None:
        """Report the peak memory of the jobs that have run for a minute, where it has grown since the last report.

        A container's processes are not below its supervisor: its own runner measures them, and tells only at the end.
        """
        if time.monotonic() < self._next_memory:
            return
        self._next_memory = time.monotonic() + MEMORY_INTERVAL
        for job in self._occupying():
            peak = job.peak_memory or 0
            if (
                job.supervisor.container is None
                and job.age >= MEMORY_INTERVAL
                and peak > job.reported_memory * (1 + MEMORY_GROWTH)
            ):
                job.reported_memory = peak
                self.journal.measured(job.token, peak_memory=peak)

    def _occupying(self) -> list[RunningJob]:
        return [job for job in self.jobs.values() if not job.task_has_ended]

    def _reap(self) -> None:
        by_pid = {job.supervisor.pid: job for job in self.jobs.values() if job.is_child}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                self.supervisor_lines.forget(pid)
                if pid in by_pid:
                    by_pid[pid].exit_status = os.waitstatus_to_exitcode(status)

    def _settle_without_exit_file(self, job: RunningJob, inbox: WaitingJobs) -> None:
        waits = job.folder.workload
        if (owner := job_folder.owner(job.folder)) is None and not waits.exists():
            owner = job_folder.owner(job.folder)  # it may have been claimed at this moment
        # A job with neither an owner nor an envelope did start: its task has damaged the file that says so.
        if owner is None and waits.exists():
            del self.jobs[job.token]
            self.take_back(job.token, inbox, "its process ended before it could claim the job")
        elif owner is not None and (owner.pid, owner.started) != (job.supervisor.pid, job.supervisor.started):
            # A process forked by an earlier agent has claimed the job first.
            job.supervisor, job.is_child, job.exit_status = owner, False, None
        else:
            self._end_leftovers(job)
            self._finish(job, None)

    def _end_leftovers(self, job: RunningJob) -> None:
        if job.supervisor.boot_id != self.boot_id:
            return
        process_tree.kill_leftovers(job.supervisor.pid, job.supervisor.started, job.token)
        if job.supervisor.container is not None:
            from lading.executors.agent import container  # imported late: few jobs have one

            container.remove(job.supervisor.container, job.token)
        # The agent adopts orphans, too, so processes that the search has missed are its children now.
        supervisors = {other.supervisor.pid for other in self.jobs.values()} | set(self.supervisor_lines.pids)
        for stray in process_tree.descendants(os.getpid()):
            if stray.parent == os.getpid() and stray.pid not in supervisors:
                process_tree.send(process_tree.tree(stray.pid), signal.SIGKILL)
        self._reap()

    def kill_all(self) -> None:
        """Kill all jobs and their supervisors, without reporting their ends."""
        for job in self.jobs.values():
            self._end_leftovers(job)
        process_tree.kill_descendants(os.getpid())

    def take_back(self, token: str, inbox: WaitingJobs, problem: str | None = None) -> None:
        """Return a job that has not started to the inbox.

        :param problem: why it could not be started; it then waits for a while
        """
        folder = self.spool.job(token)
        cause = EndCause.read(folder)
        if cause is not None and cause.cause == "cancelled":  # before its start, so repeat the request for the inbox
            self.spool.ask_to_cancel({token: cause.reason})
        if not job_folder.give_back(folder, self.spool.envelope(token)):
            owner = job_folder.owner(folder)
            if owner is not None:  # claimed at this moment
                self._adopt(token, owner)
                return
        job_folder.remove(folder)
        inbox.refresh()
        if problem is not None:
            inbox.hold(token, problem)

    def _adopt(self, token: str, owner: Supervisor) -> None:
        folder = self.spool.job(token)
        job = RunningJob(token, folder, owner, is_child=False, cause=EndCause.read(folder))
        job.task_has_ended = job_folder.task_has_ended(folder)
        if job.cause is not None:
            job.kill_task_at = time.monotonic()
        job.begin_to_measure()
        self.jobs[token] = job
        self.journal.started(token, at=owner.at, pid=owner.pid)
        log.info("adopted job %s, process %d", token, owner.pid)

    def _finish(self, job: RunningJob, left: ExitFile | None) -> None:
        del self.jobs[job.token]
        was_rebooted = job.supervisor.boot_id != self.boot_id
        peak = job.samples.peak_at_end(0 if left is None else left.touched_memory)
        end = judge_end(left, job.cause, job.exit_status, peak, was_rebooted=was_rebooted)
        self.failures += end["cause"] is not None
        if end["cause"] in ("error", "lost"):
            log.warning("job %s, %s: %s\n%s", job.token, end["cause"], end["reason"], _tail(job.folder))
        event = {"started_at": job.supervisor.at, **end}
        self.journal.finished(job.token, **event, cleanup=lambda: job_folder.remove(job.folder))


def _tail(folder: JobFolder) -> str:
    with contextlib.suppress(OSError):
        return read_end(folder.output, 4096).decode(errors="replace")
    return ""


def judge_end(
    left: ExitFile | None,
    cause: EndCause | None,
    exit_status: int | None,
    peak_memory: int,
    *,
    was_rebooted: bool,
) -> dict[str, Any]:
    """Return the event of a job's end, without its start.

    It is based on the supervisor's exit file. Without one, the supervisor's exit status is used; if that is unknown as
    well, because an earlier agent was the parent, the job is only known to be gone.

    :param left: the exit file; None: the supervisor has left none
    :param cause: why the agent has terminated the job; None: it has not
    :param exit_status: of the supervisor; None: unknown
    :param peak_memory: as far as the agent knows it, MiB; 0: unknown
    :param was_rebooted: whether the machine has rebooted since the job started
    """
    file = as_dict(left or _without_file(exit_status, was_rebooted=was_rebooted))
    end = of_sentinel(file, as_dict(cause) if cause else None)
    end["peak_memory"] = max(peak_memory, file["peak_memory"] or 0) or None
    return end


def _without_file(status: int | None, *, was_rebooted: bool) -> ExitFile:
    """Return the exit file that corresponds to a supervisor's exit status."""
    if was_rebooted:
        cause, reason = "node_failure", because("machine_rebooted")
    elif status == supervisor.SUCCEEDED:
        return ExitFile(None, None, time.time(), None, None)
    elif status == supervisor.FAILED:
        cause, reason = "error", because("details_lost")
    elif status is None:
        cause, reason = "lost", because("supervisor_gone")
    elif status < 0:
        cause, reason = "lost", because("supervisor_killed", signal=-status)
    else:
        cause, reason = "lost", because("supervisor_exited", exit_code=status)
    return ExitFile(None, reason, time.time(), None, None, cause=cause)
