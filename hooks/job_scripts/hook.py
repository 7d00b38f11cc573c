"""Submit job scripts from Python: from a notebook or from a task.

>>> hook = BatchHook("slurm", ssh_conn_id="hpc_login", work_dir="/scratch/me/lading")
>>> run = hook.submit(JobScript("mpirun ./solve", nodes=2, ppn=32, time="2h"))
>>> run.get()
0

Without ``ssh_conn_id`` commands run on this machine, and Airflow is not needed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from lading.hooks.batch.refusals import CancelError
from lading.hooks.batch.system import BatchSystem
from lading.hooks.dags.teams import team_of_process
from lading.hooks.files.addresses import fitting
from lading.hooks.files.table_model import describe_former_key
from lading.hooks.job_scripts.array_result import JobArrayRun
from lading.hooks.job_scripts.profile import OPTIONS, SiteOptions, SiteProfile
from lading.hooks.job_scripts.result import JobCancelled, JobFailed, JobRun, RunTimeout, SavedRun, SubmitRejected
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSite, batch_system, open_site
from lading.hooks.job_scripts.run_store import RunStore
from lading.hooks.job_scripts.script import JobScript
from lading.hooks.polling.rounds import PollInterval
from lading.hooks.site import RemovedLeftovers
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.transport import Transport, Unusable
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import parse_time

# The environment variable with the Dag of the running task.
DAG_ID = "AIRFLOW_CTX_DAG_ID"

log = logging.getLogger(__name__)
Result = TypeVar("Result")

RUNS_FOLDER = Path("~/.lading/runs")
# Seconds for which an unreachable site is retried before a submission fails.
REACH_TIMEOUT = 300.0

__all__ = ["BatchHook", "JobArrayRun", "JobCancelled", "JobFailed", "JobRun", "RunTimeout", "SubmitRejected"]


class BatchHook:
    """Submits job scripts to one batch site, for one user.

    :param system: ``slurm``, ``pbspro``, ``torque``, ``lsf``, ``sge``, the name of a batch system that a plugin has
        added, or a batch system object
    :param ssh_conn_id: Airflow's SSH connection to the login node; None: commands run on this machine
    :param work_dir: a folder that login node and compute nodes share; absolute, or below the home as ``~/...``
    :param profile: how the site differs from other sites with its batch system
    :param options: further keys of a site's table: ``login_setup``, ``setup``, ``accounting``, ``max_poll_interval``,
        ``lost_after``, ``cancel_unrunnable_after``, ``control_master``
    :param transport: used instead of opening a connection
    :param runs_folder: where runs are saved on this machine; None: nowhere, so each call of :meth:`submit` submits, and
        no other process finds the run again
    :raises TypeError: an option is unknown
    :raises ValueError: the system is unknown, or an option is not valid
    """

    def __init__(
        self,
        system: str | BatchSystem,
        *,
        ssh_conn_id: str | None = None,
        work_dir: str | None = None,
        profile: SiteProfile | None = None,
        transport: Transport | None = None,
        runs_folder: Path | None = RUNS_FOLDER,
        **options: object,
    ) -> None:
        table = {"ssh_conn_id": ssh_conn_id, "work_dir": work_dir, **options}
        given = {key: value for key, value in table.items() if value is not None}
        unknown = sorted(given.keys() - set(OPTIONS))
        if unknown:
            former = describe_former_key(unknown[0], OPTIONS)
            raise TypeError(
                former or f"{unknown[0]!r} is not an option; the options are: {nearest_first(unknown[0], OPTIONS)}"
            )
        found = batch_system(system) if isinstance(system, str) else system
        parsed = SiteOptions.of_table(given, "BatchHook")
        self._begin(RunSite(ssh_conn_id or "here", found, profile or SiteProfile(), parsed, transport), runs_folder)

    @classmethod
    def of_site(cls, name: str, *, runs_folder: Path | None = RUNS_FOLDER) -> BatchHook:
        """Return the hook of a site of ``[lading] sites_file``.

        :raises ValueError: the file has no such site, or the site is not a batch cluster
        """
        hook = cls.__new__(cls)
        hook._begin(open_site(name, os.environ.get(DAG_ID), team_of_process()), runs_folder)
        return hook

    def _begin(self, site: RunSite, runs_folder: Path | None) -> None:
        self.site = site
        self._store = None if runs_folder is None else RunStore(runs_folder.expanduser())
        self._runs: dict[str, JobRun] = {}
        self._looked_at = 0.0
        self.lock = threading.RLock()
        self.watcher = Watcher(site.name, self.pauses)

    def submit(self, script: JobScript, *, key: str | None = None, force: bool = False) -> JobRun:
        """Submit a script unless that was done already; in that case return the earlier run, whatever its state.

        A script with ``array`` is one run, a :class:`JobArrayRun`, whose elements are runs too: ``run[3]``. Limits and
        temporary failures only delay the run: it stays ``queued`` until the batch system accepts it, and every look at
        it tries again.

        :param key: distinguishes runs; by default the site and the whole content of the script
        :param force: forget the earlier run without cancelling it, and submit again
        :raises SubmitRejected: the batch system rejects the job for good
        :raises NearScriptError: the prologue has failed; the next call runs it again
        :raises Unusable: the connection is not set up, so retrying does not help
        :raises TransportError: the site could not be reached for :data:`REACH_TIMEOUT`; the next call continues
        :raises ValueError: the script cannot be rendered, or the batch system has no option for a resource
        """
        # Airflow passes a task's process its task instance.
        full = self.site.admitted(script, os.environ.get(DAG_ID), team_of_process())
        with self.lock:
            name = _file_name(key) if key is not None else self._key(full)
            if force:
                self._forget(name)
            return patiently(lambda: self._submit(full, name), REACH_TIMEOUT)

    def _submit(self, script: JobScript, name: str) -> JobRun:
        run = self._runs.get(name) or self._intended(name, script)
        self._runs[name] = run
        if not run.record.ended:
            run.prepare(lambda record: self.site.place(record, script))
            if run.record.job_id is None:
                self.refresh(at_once=True)
        if run.record.cause == "submit_rejected":
            # Nothing was submitted, so no later call has to find it: the next one submits again, when the site may be
            # fixed.
            self._forget(name)
            raise SubmitRejected(run.record)
        return run

    def _forget(self, name: str) -> None:
        if self._store is not None:
            self._store.remove(name)
        self._runs.pop(name, None)

    def _intended(self, name: str, script: JobScript) -> JobRun:
        """Return the saved run, or a new one, which is saved before anything is done for it."""
        saved = self._store.load(name) if self._store else None
        if saved is None:
            token = str(uuid.uuid4())
            # A script that cannot be rendered is refused before anything is saved or sent.
            record = self.site.new_record(token, script)
            self.site.rendered(record, script)
            first = SavedRun(record.to_json(), script.render_prologue(), script.render_epilogue())
            saved = self._store.create(name, asdict(first)) if self._store else asdict(first)
        run = SavedRun(**saved)
        return (JobArrayRun if run.record.get("elements") else JobRun)(self, name, run)

    def refresh(self, *, at_once: bool = False) -> None:
        """Look at all unfinished runs of this hook in one exchange, at most once per poll interval.

        :param at_once: look in any case
        """
        with self.lock:
            options = self.site.options
            if not at_once and time.monotonic() - self._looked_at < options.min_poll_interval:
                return
            asked = {run.key: run.living() for run in self._runs.values()}
            records = [record for living in asked.values() for record in living]
            seen = {each.record.token: each.record for each in self.site.advance(records)}
            for key, living in asked.items():
                self._runs[key].update([seen[record.token] for record in living])
            self._looked_at = time.monotonic()

    def clean(self, older_than: str | float = "30d", *, dry_run: bool = False) -> list[RemovedLeftovers]:
        """Remove what finished runs have left: their folders at the site, and their saved state on this machine.

        A script whose run is no longer saved is submitted again.

        :param older_than: how long the runs must have been unchanged: seconds, or text such as ``"30d"``; at least an
            hour
        :param dry_run: only report what would be removed
        :raises TransportError: the site could not be asked; nothing or only a part was removed
        :raises ValueError: it is not a duration, or less than an hour
        """
        seconds = parse_time(older_than)
        living = frozenset(run.token for run in self._runs.values() if not run.record.ended)
        if self._store is None:
            return list(self.site.clean(seconds, living, dry_run))
        found = list(self.site.clean(seconds, living | self._store.living(), dry_run))
        return [*found, *self._store.clean(seconds, dry_run=dry_run)]

    def pauses(self) -> Callable[[RunRecord], float]:
        """Return a function that gives the seconds between looks at a run; they grow while the run does not change."""
        return pauses(self.site.options)

    def watch(self, run: JobRun) -> None:
        """Look at a run until it has finished, in a thread that all runs of this hook share."""
        self.watcher.watch(run)

    def save(self, key: str, saved: SavedRun) -> None:
        if self._store is not None:
            self._store.save(key, asdict(saved))

    def close(self) -> None:
        """Close the connection; runs continue, and the next request opens it again."""
        self.site.close()

    def _key(self, script: JobScript) -> str:
        """Return a key that is equal for the same script at the same site; random where nothing is saved."""
        if self._store is None:
            return uuid.uuid4().hex
        rendered = script.files(self.site.system, self.site.profile.profile)
        what = [self.site.system.name, self.site.name, self.site.options.work_dir, rendered]
        near = [script.render_prologue(), script.render_epilogue()]
        return hashlib.sha256(json.dumps([what, near]).encode(errors="surrogateescape")).hexdigest()[:32]

    def __enter__(self) -> BatchHook:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def patiently(do: Callable[[], Result], seconds: float) -> Result:
    """Do something at a site, and retry while the site cannot be reached; each retry is logged.

    :param seconds: after which the last error is raised
    :raises Unusable: the connection is not set up; this is not retried
    :raises TransportError: it failed until the time was over
    :raises CancelError: the same for a cancellation
    """
    retrying = Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_random_exponential(1, max=30),
        stop=stop_after_delay(seconds),
        before_sleep=_log_repetition,
        reraise=True,
    )
    return retrying(do)


def _passes(error: BaseException) -> bool:
    return isinstance(error, (TransportError, CancelError)) and not isinstance(error, Unusable)


def _log_repetition(state: RetryCallState) -> None:
    if state.outcome is not None and state.next_action is not None:
        pause = state.next_action.sleep
        log.warning("%s; trying again in %.0f s (attempt %d)", state.outcome.exception(), pause, state.attempt_number)


def pauses(options: SiteOptions) -> Callable[[RunRecord], float]:
    """Return a function that gives the seconds until the next look at a run: from ``min_poll_interval`` to
    ``max_poll_interval`` while it does not change.
    """
    last: list[object] = []
    # Each look reads the files of a run, so it waits half the time since the run's last change.
    interval = PollInterval(options.min_poll_interval, options.max_poll_interval, 0.5)

    def next_pause(record: RunRecord) -> float:
        now = [record.state, record.attempt, record.gone_since, record.held]
        if now != last or record.gone_since:
            interval.changed()
        last[:] = now
        return interval.pause(has_jobs=True)

    return next_pause


def _file_name(key: str) -> str:
    """Return the name of a run's file; a long key, such as the ids of a Dag and its run together, is shortened.

    :raises ValueError: the key is not valid
    """
    if not key or "/" in key or key.startswith(".") or "\0" in key:
        raise ValueError(f"key {shortened(key)} is not valid; it must not be empty, contain '/' or begin with '.'")
    # The file's name gets prefixes and suffixes.
    return fitting(key, 200)


# Watches runs for which a callback, `as_completed` or `wait` is waiting.


class Watcher:
    """Looks at runs until each has finished, all of them in one exchange; its thread lives only while there are any.

    The thread is a daemon: a program that exits does not wait for it.

    :param pauses: makes, for each run, the function that gives the seconds between looks at it
    """

    seconds_after_error = 10.0
    """Until the next look after an unexpected error."""

    def __init__(self, name: str, pauses: Callable[[], Callable[[RunRecord], float]]) -> None:
        self.name = name
        self._pauses = pauses
        self._watched: dict[JobRun, Callable[[RunRecord], float]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, run: JobRun) -> None:
        """Look at a run until it has finished, and resolve it then; watching it twice has no effect."""
        with self._changed:
            if run in self._watched:
                return
            self._watched[run] = self._pauses()
            # In a forked process the thread object exists, but its thread does not run.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=f"lading-runs-{self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                runs = list(self._watched)
                if not runs:
                    self._thread = None
                    return
            pause, over = self.seconds_after_error, []
            try:
                over = [run for run in runs if run.done()]
                pause = min((self._watched[run](run.record) for run in runs if run not in over), default=0.0)
            except Exception:  # callers would wait forever if the thread died
                log.exception("The runs of site %s could not be polled; trying again", self.name)
            end = time.monotonic() + pause
            with self._changed:
                for run in over:
                    del self._watched[run]
                count = len(self._watched)
                # A new run is polled before the pause is over.
                while count == len(self._watched) and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
