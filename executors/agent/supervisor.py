"""The process of a job: forked by the node agent, it claims a job, runs it, writes the exit file, and can run another.

It runs Airflow's supervisor, which forks the task's process. It is a session leader and adopts orphans, so that the
whole tree can be found, measured and killed. It terminates whatever the task has left running.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from lading.executors.agent import job_folder, process_tree
from lading.executors.agent.job_folder import EndCause, ExitFile, Supervisor
from lading.executors.agent.scratch import VARIABLE, JobScratch
from lading.executors.agent.warm_pool import HandedOverJob, SupervisorLine
from lading.hooks.batch.environment import strip
from lading.hooks.files import child_processes, host
from lading.hooks.files.logs import get_logger
from lading.hooks.files.safe_files import open_regular
from lading.hooks.spool.spool import Envelope, JobFolder, Spool
from lading.hooks.spool.tokens import JOB_VARIABLE, TASK_VARIABLE
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import CPUS_VARIABLE

if TYPE_CHECKING:
    from lading.executors.agent.cpu_groups import CpuGroups

log = get_logger(__name__)

# Exit codes of this process, which tell the agent the outcome if the disk had no room for the exit file.
SUCCEEDED, FAILED, NOT_STARTED = 0, 1, 75


# Only a job whose peak was below this, in KiB, hands its process on: the kernel reports one peak over all children that
# a process ever had, which would hide the peaks of later jobs.
LIGHT = 32 * 1024


# From <linux/mman.h>: move memory into huge pages now (Linux 6.1).
MADV_COLLAPSE = 25


class AgentJobFailed(Exception):
    """A job that has failed.

    :param reason: why
    :param exit_code: of the task's process; negative: the signal that killed it
    """

    cause = "error"

    def __init__(self, reason: Reason, exit_code: int = 1) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.exit_code = exit_code

    @staticmethod
    def of_error(error: BaseException) -> AgentJobFailed:
        if isinstance(error, AgentJobFailed):
            return error
        return AgentJobFailed(because("job_error", text=f"{type(error).__name__}: {error}"))


class JobRefused(AgentJobFailed):
    """A job whose task Airflow did not let start, which is no failure of the task."""

    cause = "cancelled"


class JobSettled(AgentJobFailed):
    """A job whose task was cleared, marked or deleted in Airflow while it ran.

    The exit code 0 distinguishes it from a job cancelled otherwise: Airflow already knows the outcome.
    """

    cause = "cancelled"

    def __init__(self) -> None:
        super().__init__(because("task_ended_in_airflow"), 0)


class NoScratch(AgentJobFailed):
    """A job that cannot get a scratch folder on this machine, which is not the task's fault."""

    cause = "node_failure"


class MachineOutOfMemory(AgentJobFailed):
    """A job killed by the kernel because its machine ran out of memory.

    Either this job used too much, or other jobs use more memory than they were packed by.
    """

    cause = "out_of_memory"

    def __init__(self) -> None:
        super().__init__(because("machine_out_of_memory"), -signal.SIGKILL)


class AgentJob:
    """The job of this process, for the code that runs it."""

    def __init__(self, token: str, spool: Spool, expires_at: float = 0.0) -> None:
        self.token = token
        self.spool = spool
        self.expires_at = expires_at
        """When its JWT expires, epoch seconds."""
        self.folder: JobFolder = spool.job(token)
        self.outputs: dict[str, int] = {}
        """The files that it leaves on this machine, with their sizes in bytes."""
        self.envelope: Envelope | None = None
        self.devices: Sequence[str] = ()
        self.used: tuple[float, int] | None = None
        """CPU seconds and peak memory (KiB) of a container that is not below this process.

        The agent cannot measure it, as its processes are not in the tree of this one.
        """
        self.scratch: JobScratch | None = None
        self.ended_at: float | None = None
        """When the task's process ended, epoch seconds; from then on, other jobs can use its resources."""
        self.is_unanswered = False
        """Whether the task cannot begin because Airflow's API server does not answer."""

    def cause(self) -> EndCause | None:
        """Return why the agent has terminated this job; None: it has not."""
        return EndCause.read(self.folder)

    def is_cancelled(self) -> bool:
        return (ended := self.cause()) is not None and ended.cause == "cancelled"

    def api_is_silent(self) -> None:
        """Tell the agent that the task cannot begin because the API server does not answer."""
        if not self.is_unanswered:
            self.is_unanswered = True
            job_folder.mark_unanswered(self.folder)
            self.spool.ring()

    def api_has_answered(self) -> None:
        """Tell the agent that the API server answers again, if it did not before."""
        if self.is_unanswered:
            self.is_unanswered = False
            with contextlib.suppress(OSError):  # the mark is removed with the job's folder
                job_folder.begin_anew(self.folder)
            self.spool.ring()

    def leave_scratch(self, keep: float, disk: int) -> None:
        """Remove or keep the job's scratch folder (see :meth:`JobScratch.end`)."""
        if self.scratch is not None:
            with contextlib.suppress(OSError):  # it was removed
                self.scratch.end(keep, disk)

    def task_has_ended(self) -> None:
        """Tell the agent that the task's process has ended, so that the next job can use its cpus and memory."""
        if self.ended_at is None:
            self.ended_at = time.time()
            job_folder.mark_task_ended(self.folder)
            self.spool.ring()

    def asked_to_end(self, number: int, _: Any) -> None:
        """Handle SIGTERM while Airflow's supervisor, which would pass it on to the task, is not watching the task.

        Once the task has ended, the signal is ignored: only reports are left, and it would not speed them up.
        """
        if self.ended_at is None:
            signal.signal(number, signal.SIG_DFL)
            if self.is_cancelled():
                self.leave_scratch(0.0, 0)  # otherwise the folder would be kept, as for a job that died unreported
            os.kill(os.getpid(), number)


class Runner(Protocol):
    def preload(self, runner: str = "") -> None:
        """Import and warm up in the agent whatever each job would otherwise have to import.

        :param runner: for jobs that name this runner, what only they need; empty: what all jobs need
        """

    def run(self, workload: dict[str, Any], job: AgentJob) -> None:
        """Run a workload to its end, in the process of its job.

        :raises AgentJobFailed: the workload failed
        """


def preload(runner: Runner, named: str = "") -> None:
    """Import what jobs need into this process, from which the jobs' processes are forked.

    :param named: the runner that the jobs name
    """
    gc.disable()  # imported modules stay in memory; collecting garbage meanwhile would take a tenth of the time
    try:
        runner.preload(named)
    finally:
        gc.enable()
    # Exclude these objects from garbage collection, which would touch and so copy their pages in a job's process.
    gc.collect()
    gc.freeze()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """Move this process's memory into huge pages, which nearly halves the time of forks and of their exits.

    A process that writes to a huge page that it shares copies only 4 KiB. Kernels before 6.1 move nothing.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for mapping in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode = mapping.split()[:5]
        if access == "rw-p" and inode == "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            madvise(start, end - start, MADV_COLLAPSE)


def become(
    assignment: HandedOverJob,
    spool: Spool,
    runner: Runner,
    line: SupervisorLine | None,
    close: Sequence[int],
    cpu_groups: CpuGroups | None,
    most_jobs: int,
) -> NoReturn:
    """Turn this newly forked copy of the agent into the process of a job and of its successors. Never returns.

    :param line: to the agent, for further jobs and for showing the memory of forks; None: there will be neither
    :param close: descriptors of the agent that the job must not keep, above all its lock
    :param cpu_groups: the cgroups in which this process gets its own; None: cgroups cannot be used
    :param most_jobs: how many jobs it runs at most, one after another
    """
    code = NOT_STARTED
    try:
        for descriptor in close:
            os.close(descriptor)
        _leave_the_agent()
        if line is not None:
            os.register_at_fork(after_in_child=line.show_memory)
        environment, birth = dict(os.environ), ProcessUsage()
        folder = None
        with contextlib.suppress(OSError):  # if the agent may not enter its folder, this process runs only one job
            folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
        following: HandedOverJob | None = assignment
        for number in range(1, most_jobs + 1):
            if following is None:
                break
            code = NOT_STARTED
            code, light = _serve(AgentJob(following.token, spool), runner, following, cpu_groups)
            light = light and folder is not None
            if light and folder is not None:
                _tidy_up(environment)
                os.fchdir(folder)
            spent = number == most_jobs or ProcessUsage().own_peak - birth.own_peak > LIGHT
            again = light and not spent and line is not None and line.announce()
            spool.ring()
            following = line.wait() if again and line is not None else None
    except BaseException:
        with contextlib.suppress(BaseException):
            print_traceback()
    finally:
        if cpu_groups is not None:
            cpu_groups.leave()
        os._exit(code)


def _serve(job: AgentJob, runner: Runner, assignment: HandedOverJob, cpu_groups: CpuGroups | None) -> tuple[int, bool]:
    """Run one job; returns its exit code, and whether this process is fit for another job."""
    os.environ[JOB_VARIABLE] = job.token
    if assignment.gpu_site:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(assignment.devices)
    strip(os.environ)
    _redirect_output(job.folder.output)
    envelope = _take(job, assignment.devices)
    if envelope is None:
        return NOT_STARTED, False
    if cpu_groups is not None:
        cpu_groups.enter(envelope.resources.cpus)
    job.envelope, job.devices, job.expires_at = envelope, list(assignment.devices), envelope.expires_at
    os.environ[CPUS_VARIABLE] = f"{envelope.resources.cpus:g}"
    if (task := envelope.workload.get("ti")) is not None:
        os.environ[TASK_VARIABLE] = str(task["id"])
    if envelope.dags is not None:
        from lading.hooks.dags import bundles  # only Airflow's jobs need it, and their runner has imported it

        os.environ.update(bundles.environment(envelope.workload, envelope.dags))
    # What few jobs need is imported late: each module takes a batch job a tenth of a millisecond.
    if envelope.team is not None:
        from lading.hooks.dags.teams import VARIABLE as TEAM_VARIABLE

        os.environ[TEAM_VARIABLE] = envelope.team
    if envelope.inputs:
        from lading.hooks.files.addresses import INPUTS_VARIABLE

        os.environ[INPUTS_VARIABLE] = json.dumps(dict(envelope.inputs))
    return _run(job, runner, envelope, assignment)


def _tidy_up(environment: Mapping[str, str]) -> None:
    """Undo the changes that a job has made to this process: signal handlers, environment, temporary folder."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
    forget_temporary_folder()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _has_one_thread() -> bool:
    if "threading" not in sys.modules:
        return True
    import threading

    return threading.active_count() == 1


def forget_temporary_folder() -> None:
    """Let ``tempfile`` determine the folder for temporary files again, if it has been imported."""
    if "tempfile" in sys.modules:
        import tempfile

        tempfile.tempdir = None


def print_traceback() -> None:
    import traceback  # imported late, like everything that only failures need

    traceback.print_exc()


def _leave_the_agent() -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_tree.adopt_orphans()
    child_processes.restore_open_files_limit()
    _volunteer_for_the_oom_killer()
    # Also exclude objects that the agent has created since it froze its heap: collecting them would copy their pages.
    gc.freeze()


def _volunteer_for_the_oom_killer() -> None:
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        # If the machine runs out of memory, the kernel should kill jobs rather than the agent or Airflow's
        # own services.
        if int(score.read_text()) < 500:  # the deployment may have set a higher score
            score.write_text("500")


def _redirect_output(path: Path) -> None:
    output = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)


def _take(job: AgentJob, devices: Mapping[str, float]) -> Envelope | None:
    """Claim the job, and note that this process runs it; None: another process has claimed it."""
    pid = os.getpid()
    started = host.started(pid)
    claimed = job_folder.claim(job.folder, pid, started)
    if claimed is None:
        return None
    try:
        envelope = Envelope.read(claimed)
        Supervisor(
            pid,
            started,
            host.boot_id(),
            time.time(),
            host.since_boot(),
            envelope.resources,
            envelope.memory_limit,
            envelope.time_limit,
            dict(devices),
            envelope.dags,
            envelope.container,
        ).write(job.folder)
    except OSError:
        os.rename(claimed, job.folder.workload)
        raise
    claimed.unlink()  # it holds the JWT
    return envelope


def _run(job: AgentJob, runner: Runner, envelope: Envelope, assignment: HandedOverJob) -> tuple[int, bool]:
    signal.signal(signal.SIGTERM, job.asked_to_end)
    before, killed = ProcessUsage(), host.oom_kills()
    exit_code, reason, cause = 0, None, AgentJobFailed.cause
    try:
        job.scratch = _enter_scratch(job, assignment)
        runner.run(envelope.workload, job)
    except BaseException as error:
        print_traceback()
        failure = AgentJobFailed.of_error(error)
        if failure.exit_code == -signal.SIGKILL and job.cause() is None and host.oom_kills() > killed:
            failure = MachineOutOfMemory()
        exit_code, reason, cause = failure.exit_code, failure.reason, failure.cause
    job.task_has_ended()
    # The recorded end is when the resources were freed, not when everything has been reported.
    ended_at = job.ended_at or time.time()
    clean = end_leftovers()
    has_failed = reason is not None and cause != "cancelled" and not job.is_cancelled()
    job.leave_scratch(assignment.keep_failed if has_failed else 0.0, envelope.resources.disk)
    usage = ProcessUsage()
    peak = usage.peak_since(before)
    used = job.used or (usage.cpu_seconds - before.cpu_seconds, 0)
    touched = 0 if job.used else usage.touched_since(before) // 1024
    cpu_seconds, memory = round(used[0], 3), used[1] // 1024 or None
    sentinel = ExitFile(exit_code, reason, ended_at, cpu_seconds, memory, touched, cause, job.outputs)
    written = _write_exit_file(sentinel, job)
    light = clean and written and reason is None and job.cause() is None and peak < LIGHT
    # A connection test runs a hook in this process itself, which may have left anything behind.
    alone = _has_one_thread() and envelope.workload.get("type") != "TestConnection"
    return FAILED if reason else SUCCEEDED, light and alone


def _enter_scratch(job: AgentJob, assignment: HandedOverJob) -> JobScratch:
    """Create the job's scratch folder, and set the variables that name it.

    :raises NoScratch: it cannot be created
    """
    try:
        made = JobScratch(assignment.scratch, job.token)
    except OSError as error:
        raise NoScratch(because("no_scratch", text=str(error))) from error
    os.environ.update({VARIABLE: str(made.path), "TMPDIR": str(made.path)})
    forget_temporary_folder()
    return made


def _write_exit_file(sentinel: ExitFile, job: AgentJob) -> bool:
    # On a full disk, writing the exit file is retried for five minutes.
    deadline = time.monotonic() + 300.0
    while time.monotonic() < deadline:
        try:
            sentinel.write(job.folder)
        except OSError as error:
            log.warning("cannot write the exit file: %s", error)
            time.sleep(1)
        else:
            return True
    return False


def end_leftovers() -> bool:
    """Terminate what the task has left running, with SIGTERM, then SIGKILL; return whether nothing was left."""
    me = os.getpid()
    deadline = time.monotonic() + 2.0
    _reap()
    left = process_tree.descendants(me)
    clean = not left
    process_tree.send(left, signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        _reap()
        left = process_tree.descendants(me)
    if left:
        process_tree.kill_descendants(me)
        _reap()
    return clean


def reap_orphans(task: int) -> None:
    """Reap adopted processes, which would stay zombies, but not the task, whose exit Airflow's supervisor waits for."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != task:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _reap() -> None:
    """Reap all children that have ended, so that their CPU time counts."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class ProcessUsage:
    """What this process and its children have used so far; memory in KiB."""

    def __init__(self) -> None:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        self.own_peak = own.ru_maxrss
        self.childrens_peak = children.ru_maxrss
        self.childrens_faults = children.ru_minflt
        # getrusage(2) counts writes to files, including those through mappings, in blocks of 512 bytes.
        self.childrens_writes = children.ru_oublock * 512

    def peak_since(self, before: ProcessUsage) -> int:
        """Return the peak of the largest single process, including mapped files, less what it inherited by fork."""
        inherited = before.own_peak
        # This peak covers all children so far, so it belongs to this job only if it has grown.
        children = self.childrens_peak if self.childrens_peak > before.childrens_peak else 0
        return max(children - max(inherited, self.own_peak), self.own_peak - inherited, 0)

    def touched_since(self, before: ProcessUsage) -> int:
        """Estimate the memory that the children have made their own, from page faults less writes to files.

        Each page costs a fault, including pages of files that are written.
        """
        faults = (self.childrens_faults - before.childrens_faults) * resource.getpagesize()
        writes = self.childrens_writes - before.childrens_writes
        return max(min(faults, self.childrens_peak * 1024) - writes, 0) // 1024
