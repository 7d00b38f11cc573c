"""The executor: Snakemake's side. The engine is imported when the executor of a workflow is made."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from lading.scheduling.text.printable import printable_lines
from snakemake_executor_plugin_lading import direct
from snakemake_executor_plugin_lading.interrupts import Interrupts, ignored_interrupts

if TYPE_CHECKING:
    from snakemake_executor_plugin_lading.engine import EndedJob, Engine, JobCommand

# How often the store is asked for jobs that have ended, seconds: at once while they end all the time.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
# How often it is asked whether a controller lives, and why jobs wait, seconds.
SECONDS_BETWEEN_QUESTIONS = 1.0
# How long the end waits for the thread that checks the active jobs, seconds.
SECONDS_TO_JOIN = 20.0
INTERRUPTED = "Interrupted by Ctrl-C."
# What is shown of the log of a job that has failed.
MOST_LAST_LINES, MOST_LAST_BYTES = 10, 4096


class Executor(RemoteExecutor):
    """Gives the jobs that are ready to Lading, all at once, and takes their ends back."""

    # The thread that checks the active jobs begins before the executor is complete.
    pause = SHORTEST_PAUSE
    interrupts: Interrupts | None = None

    def __post_init__(self) -> None:
        from snakemake_executor_plugin_lading.engine import Engine, EngineError
        from snakemake_executor_plugin_lading.needs import for_users

        self.next_questions = 0.0
        self.logged: set[str] = set()
        self.is_cancelled = False
        self.interrupts = Interrupts()
        try:
            self.engine: Engine = Engine(self.workflow, self.executor_settings, self.envvars(), self.logger)
            self.engine.start(self.direct_command)
        except BaseException as error:
            self.interrupts.close()
            self._stop_checking()
            if isinstance(error, EngineError):
                raise WorkflowError(for_users(str(error))) from error
            if isinstance(error, KeyboardInterrupt):  # for which Snakemake shows a traceback before it runs jobs
                raise WorkflowError(INTERRUPTED) from None
            raise

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit jobs: one transaction for all of them."""
        for job in jobs:
            self.run_job_pre(job)
        infos = [SubmittedJobInfo(job, aux={}) for job in jobs]
        new = [info for info in infos if not self.engine.resume(info)]
        for info in new:
            command = self.direct_command(info.job)
            if command is not None:
                self.workflow.async_run(direct.prepare(info.job))
            info.aux["command"] = command or self.snakemake_command(info.job)
        self.engine.submit(new)
        for info in infos:
            self.report_job_submission(info)

    def direct_command(self, job: JobExecutorInterface) -> JobCommand | None:
        """Return the shell command that a job is; None: it is a Snakemake, or what it runs is certain only in one."""
        from snakemake_executor_plugin_lading.engine import JobCommand

        if self.executor_settings.always_snakemake:
            return None
        if (found := direct.find_command(job, self.workflow)) is None:
            return None
        if changed := direct.changed_variables():  # last: a function of the Snakefile may change one
            self._say_once(
                f"each job starts a Snakemake, since the workflow has changed the environment: {', '.join(changed)}"
            )
            return None
        # The folder may be another one than that in which Snakemake was started: the Snakefile may name it.
        return JobCommand(*found, folder=os.getcwd(), is_direct=True)

    def snakemake_command(self, job: JobExecutorInterface) -> JobCommand:
        """Return the Snakemake that runs a job."""
        from snakemake_executor_plugin_lading.engine import JobCommand, arguments_of

        is_shared = self.workflow.storage_settings.assume_common_workdir
        folder = str(self.workflow.workdir_init) if is_shared else ""
        return JobCommand(arguments_of(self.format_job_exec(job)), {}, folder, is_direct=False)

    def get_job_args(self, job: JobExecutorInterface, **given: Any) -> str:
        """Return the arguments of the Snakemake that runs a job."""
        arguments = super().get_job_args(job, **given)
        if self.cores == "all":
            # All of its machine are fewer than its site says, or those of other jobs. The last one counts.
            arguments += f" --cores {max(1, job.threads)}"
        is_shared = SharedFSUsage.INPUT_OUTPUT in self.workflow.storage_settings.shared_fs_usage
        # The main Snakemake removes temporary files, and misses those of a single job that are gone before.
        return f"{arguments} --notemp" if is_shared and not job.is_group() else arguments

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    async def check_active_jobs(
        self, active_jobs: Sequence[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended; the others are given back."""
        self._heed_interrupt()
        if not active_jobs:
            self._rest(has_news=False)
            return
        ended: dict[str, EndedJob] = {}
        with self._needing_store():
            ended = self.engine.fetch_ended()
            if time.monotonic() >= self.next_questions:
                self.next_questions = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
                self.engine.keep_controller()
                for wait in self.engine.wait_reasons():
                    self._say_once(wait)
        has_news = False
        again: list[SubmittedJobInfo] = []
        for info in active_jobs:
            end = ended.get(str(info.external_jobid))
            if end is None:
                yield info
                continue
            has_news = True
            if end.succeeded:
                self.report_job_success(info)
            elif not self.is_cancelled and self.engine.may_resubmit(info, end):
                self.logger.info(f"Lading: job {info.job.jobid} is submitted again: {end.message}")
                again.append(info)
            else:
                keep_updated(info.job)
                # Relative, as those of rules: Snakemake prints no path whose bytes are no UTF-8.
                logs = [os.path.relpath(path) for path in (info.aux["log"],) if os.path.exists(path)]
                last = "".join(f"\n{lines}\n" for path in logs if (lines := last_lines(path)))
                self.report_job_error(info, msg=f"Lading: {end.message}. {last}", aux_logs=logs)
        for info in again:
            restore_updated(info.job)
            if info.aux["command"].is_direct:
                await direct.prepare(info.job)  # it may have written a part of its output
        with self._needing_store():
            if again:
                self.engine.submit(again)
            self.engine.acknowledge(ended)
        for info in again:
            yield info
        self._rest(has_news=has_news)

    def _say_once(self, text: str) -> None:
        if text not in self.logged:
            self.logged.add(text)
            self.logger.info(f"Lading: {text}")

    def _heed_interrupt(self) -> None:
        """End the workflow where it was interrupted.

        Where Snakemake has not lost the interrupt, it cancels the jobs by itself and does not look at this error.
        """
        scheduler = self.workflow.scheduler
        if self.interrupts is not None and self.interrupts.look() and not self.is_cancelled and scheduler is not None:
            scheduler.executor_error_callback(WorkflowError(INTERRUPTED))

    @contextlib.contextmanager
    def _needing_store(self) -> Iterator[None]:
        """End the workflow where its store is removed, be it meanwhile."""
        from snakemake_executor_plugin_lading.state_folder import StoreRemoved

        try:
            yield
        except StoreRemoved as error:
            if not self.is_cancelled:
                self.is_cancelled = True
                # Of an error that was raised Snakemake shows where.
                self.workflow.scheduler.executor_error_callback(WorkflowError(str(error)))

    def _rest(self, *, has_news: bool) -> None:
        """Set when the active jobs are checked again."""
        self.pause = SHORTEST_PAUSE if has_news else min(LONGEST_PAUSE, 1.5 * self.pause)
        self.next_seconds_between_status_checks = self.pause

    def cancel_jobs(self, active_jobs: Sequence[SubmittedJobInfo]) -> None:
        """Have jobs ended; those that wait never start."""
        self.is_cancelled = True
        # Those that are being asked about at this moment are not among the active ones.
        self.engine.cancel()

    def cancel(self) -> None:
        """Cancel the jobs and shut down; after another Ctrl-C without waiting until they have ended."""
        try:
            super().cancel()
        except KeyboardInterrupt:
            with ignored_interrupts():
                self.logger.info("Lading: interrupted again; the controller ends the jobs that still run")
                self.wait = False
                self.engine.stop(waits=False)
                if self.interrupts is not None:
                    self.interrupts.close()

    def _stop_checking(self) -> bool:
        """End the thread that checks the active jobs; whether it has ended."""
        with self.lock:
            self.wait = False
        # An interrupt may have left a lock held for which that thread waits, such as that of a log's handler.
        self.wait_thread.join(SECONDS_TO_JOIN)
        return not self.wait_thread.is_alive()

    def shutdown(self) -> None:
        if self._stop_checking() and self._tmpdir is not None:  # which would be made to be removed
            super().shutdown()
        self.engine.stop()
        if self.interrupts is not None:
            self.interrupts.close()


def last_lines(path: str) -> str:
    """Return the last lines of a job's log, as a terminal takes them."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-MOST_LAST_LINES:]
    return printable_lines("\n".join(lines))


# Of an output that its rule updates() Snakemake keeps a copy while the job runs, and puts it back where the job fails.
# Where both the job's Snakemake and the main one do that, the second finds no copy, and removes the file as corrupted.


def keep_updated(job: Any) -> None:
    """Before a job has failed for Snakemake: have a copy of each file that it updates, which it puts back."""
    for path, persistence in _updated(job):
        if os.path.exists(path) and not persistence._get_backup_path(path).exists():
            persistence.backup_output(path)  # it is as it was: the job has not begun, or has put it back itself


def restore_updated(job: Any) -> None:
    """Before a job runs anew: have each file that it updates as it was."""
    for path, persistence in _updated(job):
        if persistence._get_backup_path(path).exists():
            persistence.restore_output(path)


def _updated(job: Any) -> Iterator[tuple[Path, Any]]:
    for each in job.jobs if job.is_group() else [job]:
        for file in each.output:
            if "update" in (getattr(file, "flags", None) or {}):
                yield Path(file), each.rule.workflow.persistence
