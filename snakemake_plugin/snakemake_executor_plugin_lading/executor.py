"""The executor, on Snakemake's side. The engine is imported when the executor of a workflow is created."""

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

# The pause between queries for ended jobs, in seconds. It is short while jobs keep ending.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 0.5
# How often to check whether a controller is running, and why jobs wait, in seconds.
SECONDS_BETWEEN_QUESTIONS = 1.0
# How long a shutdown waits for the thread that checks the active jobs, in seconds.
SECONDS_TO_JOIN = 20.0
INTERRUPTED = "Interrupted by Ctrl-C."
# How many lines of the log of a failed job are shown: of its command; of its Snakemake, whose last lines are not about
# the failure itself.
LAST_LINES, LAST_LINES_OF_SNAKEMAKE = 10, 25
MOST_LAST_BYTES = 8192


class Executor(RemoteExecutor):
    """Submits ready jobs to Lading, all at once, and reports to Snakemake when they end."""

    # Defaults, because the thread that checks the active jobs starts before __post_init__ has finished.
    pause = SHORTEST_PAUSE
    interrupts: Interrupts | None = None

    def __post_init__(self) -> None:
        from snakemake_executor_plugin_lading.engine import Engine, EngineError
        from snakemake_executor_plugin_lading.needs import for_users

        self.next_questions = 0.0
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
            if isinstance(error, KeyboardInterrupt):  # before it runs jobs, Snakemake would show a traceback for it
                raise WorkflowError(INTERRUPTED) from None
            raise

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit jobs, in one transaction for all of them."""
        with self._needing_store():
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
        """Return the shell command of a job; None: the job has to start a Snakemake."""
        from snakemake_executor_plugin_lading.engine import JobCommand

        if self.executor_settings.always_snakemake:
            return None
        if (found := direct.find_command(job, self.workflow)) is None:
            return None
        if changed := direct.changed_variables():  # checked last, because a function of the Snakefile can change one
            self.engine.say_once(
                "each job starts a Snakemake, because the workflow has changed environment variables: "
                f"{', '.join(changed)}"
            )
            return None
        # Not the folder where Snakemake was started: the Snakefile can set another working directory.
        return JobCommand(*found, folder=os.getcwd(), is_direct=True)

    def snakemake_command(self, job: JobExecutorInterface) -> JobCommand:
        from snakemake_executor_plugin_lading.engine import JobCommand, arguments_of

        is_shared = self.workflow.storage_settings.assume_common_workdir
        folder = str(self.workflow.workdir_init) if is_shared else ""
        return JobCommand(arguments_of(self.format_job_exec(job)), {}, folder, is_direct=False)

    def get_job_args(self, job: JobExecutorInterface, **given: Any) -> str:
        arguments = super().get_job_args(job, **given)
        if self.cores == "all":
            # "All" would include the cores of other jobs on the machine. Snakemake uses the last --cores.
            arguments += f" --cores {max(1, job.threads)}"
        is_shared = SharedFSUsage.INPUT_OUTPUT in self.workflow.storage_settings.shared_fs_usage
        # The main Snakemake removes temporary files, and misses those that the Snakemake of a single job has removed.
        return f"{arguments} --notemp" if is_shared and not job.is_group() else arguments

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    async def check_active_jobs(
        self, active_jobs: Sequence[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended; yield the others."""
        self._heed_interrupt()
        if not active_jobs:
            self._rest(has_news=False)
            return
        ended: dict[str, EndedJob] = {}
        with self._needing_store():
            # A short job can end before Snakemake lists it as active. Its end is not acknowledged, so it comes again.
            active = {str(info.external_jobid) for info in active_jobs}
            ended = {token: end for token, end in self.engine.fetch_ended().items() if token in active}
            if time.monotonic() >= self.next_questions:
                self.next_questions = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
                self.engine.keep_controller()
                for common, wait in self.engine.wait_reasons().items():
                    self.engine.say_once(wait, common)
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
                # Relative, like the logs of rules. Snakemake cannot print paths that are not valid UTF-8.
                logs = [os.path.relpath(path) for path in (info.aux["log"],) if os.path.exists(path)]
                most = LAST_LINES if info.aux["command"].is_direct else LAST_LINES_OF_SNAKEMAKE
                last = "".join(f"\n{lines}\n" for path in logs if (lines := last_lines(path, most)))
                self.report_job_error(info, msg=f"Lading: {end.message}. {last}", aux_logs=logs)
        for info in again:
            restore_updated(info.job)
            if info.aux["command"].is_direct:
                await direct.prepare(info.job)  # it may have left incomplete output
        with self._needing_store():
            if again:
                self.engine.submit(again)
            self.engine.acknowledge(ended)
        for info in again:
            yield info
        self._rest(has_news=has_news)

    def _heed_interrupt(self) -> None:
        """Stop the workflow if it was interrupted.

        If Snakemake has not lost the interrupt, it cancels the jobs itself and ignores this error.
        """
        scheduler = self.workflow.scheduler
        if self.interrupts is not None and self.interrupts.look() and not self.is_cancelled and scheduler is not None:
            scheduler.executor_error_callback(WorkflowError(INTERRUPTED))

    @contextlib.contextmanager
    def _needing_store(self) -> Iterator[None]:
        """Stop the workflow if its store was removed. SQLite and Snakemake's own files can be the first to fail."""
        from snakemake_executor_plugin_lading.state_folder import StoreRemoved

        try:
            yield
        except Exception as error:
            if not isinstance(cause := self.engine.explain(error), StoreRemoved):
                raise
            if not self.is_cancelled:
                self.is_cancelled = True
                # Not raised, because Snakemake would show a traceback.
                self.workflow.scheduler.executor_error_callback(WorkflowError(str(cause)))

    def _rest(self, *, has_news: bool) -> None:
        """Set the time until the active jobs are checked again."""
        self.pause = SHORTEST_PAUSE if has_news else min(LONGEST_PAUSE, 1.5 * self.pause)
        self.next_seconds_between_status_checks = self.pause

    def cancel_jobs(self, active_jobs: Sequence[SubmittedJobInfo]) -> None:
        """Cancel jobs. Waiting jobs never start."""
        self.is_cancelled = True
        # All jobs of the run, because active_jobs lacks those that are being checked at this moment.
        self.engine.cancel()

    def cancel(self) -> None:
        """Cancel the jobs and shut down. After another Ctrl-C, do not wait until the jobs have ended."""
        try:
            super().cancel()
        except KeyboardInterrupt:
            with ignored_interrupts():
                self.logger.info("Lading: interrupted again; the controller cancels the remaining jobs")
                self.wait = False
                self.engine.stop(waits=False)
                if self.interrupts is not None:
                    self.interrupts.close()

    def _stop_checking(self) -> bool:
        """Stop the thread that checks the active jobs; returns whether it has stopped."""
        with self.lock:
            self.wait = False
        # Not forever: an interrupt may have left a lock held that the thread needs, such as that of a log handler.
        self.wait_thread.join(SECONDS_TO_JOIN)
        return not self.wait_thread.is_alive()

    def shutdown(self) -> None:
        if self._stop_checking() and self._tmpdir is not None:  # otherwise it would be created only to be removed
            super().shutdown()
        self.engine.stop()
        if self.interrupts is not None:
            self.interrupts.close()


def last_lines(path: str, most: int) -> str:
    """Return the last lines of a job's log as printable text."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-most:]
    return printable_lines("\n".join(lines))


# Snakemake keeps a copy of an output with update() while the job runs, and restores it if the job fails. If both the
# job's Snakemake and the main one do that, the second one finds no copy, and removes the file as corrupted.


def keep_updated(job: Any) -> None:
    """Back up each file that a job updates, before Snakemake learns that the job failed and restores the copy."""
    for path, persistence in _updated(job):
        if os.path.exists(path) and not persistence._get_backup_path(path).exists():
            persistence.backup_output(path)  # the file is unchanged: the job did not start, or restored the file itself


def restore_updated(job: Any) -> None:
    """Restore each file that a job updates, before the job is resubmitted."""
    for path, persistence in _updated(job):
        if persistence._get_backup_path(path).exists():
            persistence.restore_output(path)


def _updated(job: Any) -> Iterator[tuple[Path, Any]]:
    for each in job.jobs if job.is_group() else [job]:
        for file in each.output:
            if "update" in (getattr(file, "flags", None) or {}):
                yield Path(file), each.rule.workflow.persistence
