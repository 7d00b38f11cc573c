"""A run of a job script, with the interface of :class:`multiprocessing.pool.AsyncResult`.

It is also a :class:`concurrent.futures.Future`, so ``concurrent.futures.as_completed`` and ``wait`` accept runs, and it
has the corresponding names of ``ipyparallel.AsyncResult``: ``done``, ``result``, ``abort``, ``elapsed`` and
``metadata`` (https://ipyparallel.readthedocs.io, "AsyncResult").

While the site cannot be asked, ``status`` keeps its last value. Only :mod:`lading.hooks.job_scripts.run` concludes that
a run has finished, and that is final.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

from lading.hooks.job_scripts import layout
from lading.hooks.job_scripts.local_script import NearScriptError, run_near
from lading.hooks.job_scripts.run import RunRecord, RunState
from lading.hooks.ssh.answer import TransportError

if TYPE_CHECKING:
    from lading.hooks.job_scripts.run_site import RunSite


class JobFailed(RuntimeError):
    """A run has failed or was cancelled.

    :ivar record: its record, with ``cause``, ``reason``, ``exit_code``, ``job_id``, ``nodes``
    """

    def __init__(self, record: RunRecord, output: str = "") -> None:
        name = f"batch job {record.job_id}" if record.job_id else "the batch job"
        cause = f" ({record.cause})" if record.cause not in (None, "error") else ""
        verb = "was" if record.state == "cancelled" else "has"
        super().__init__(f"{name} {verb} {record.state}{cause}: {record.reason}{output}")
        self.record, self.output = record, output

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.record, self.output)


class JobCancelled(JobFailed, futures.CancelledError):
    """A run was cancelled, by any process or person."""


class RunTimeout(multiprocessing.TimeoutError, futures.TimeoutError):
    """A run has not finished within the given time."""


class SubmitRejected(JobFailed):
    """The batch system rejects the job for good; the message is its own."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What this machine's disk keeps of a run.

    :ivar prologue: None: the script has none, or it has run
    :ivar epilogue: None: the script has none
    :ivar epilogue_state: ``due``, ``begun``, ``done``, or why it failed
    :ivar elements: the record of each element of a job array, once the array has been accepted
    """

    record: dict[str, Any]
    prologue: str | None = None
    epilogue: str | None = None
    epilogue_state: str = "due"
    elements: Sequence[dict[str, Any]] = ()


class RunKeeper(Protocol):
    """The keeper of runs, such as :class:`lading.hooks.job_scripts.hook.BatchHook`."""

    @property
    def site(self) -> RunSite:
        """The site of the runs."""

    def refresh(self) -> None:
        """Look at all unfinished runs."""

    def pauses(self) -> Callable[[RunRecord], float]:
        """Return a function that gives the seconds between looks at a run."""

    def save(self, key: str, saved: SavedRun) -> None:
        """Save the state of a run."""

    @property
    def lock(self) -> threading.RLock:
        """Held while records of runs change."""

    def watch(self, run: JobRun) -> None:
        """Look at a run until it has finished, in a thread that all runs share."""


class Waiters(list[Any]):
    """The waiters of ``concurrent.futures`` for a run; the first one starts watching it.

    ``as_completed`` and ``wait`` append themselves to the list ``_waiters`` of each future.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._begin()


class JobRun(futures.Future[int]):
    """A job script at a batch site: submitted once, however many processes submit it.

    Methods that look at the site do so at most once in 2 s, or in ``max_poll_interval`` if that is shorter, for all
    runs of the hook together. Callbacks and callers that wait with ``concurrent.futures`` are notified by the first
    thread that sees the run finished: a caller's, or the one that the runs of a hook share.
    """

    def __init__(self, hook: RunKeeper, key: str, saved: SavedRun) -> None:
        super().__init__()
        self._waiters = Waiters(self._watch)
        self._is_resolved = False
        self._finishing = threading.RLock()
        self._hook = hook
        self._saved = saved
        self.key = key

    @property
    def record(self) -> RunRecord:
        return RunRecord.from_json(self._saved.record)

    @property
    def job_id(self) -> str | None:
        """The native id; None: the batch system has not accepted the job yet."""
        return self.record.job_id

    @property
    def token(self) -> str:
        return self.record.token

    @property
    def folder(self) -> str:
        """The run's folder at the site, with its scripts and its output."""
        return self.record.folder

    @property
    def status(self) -> RunState:
        """``queued`` (the batch system has not accepted it yet), ``submitted`` (it waits in the batch system),
        ``running``, ``succeeded``, ``failed`` or ``cancelled``; the last known one if the site cannot be asked.
        """
        self._hook.refresh()
        return self.record.state

    def ready(self) -> bool:
        """Whether it has finished, including its epilogue.

        :raises NearScriptError: the epilogue has failed
        """
        if not self.record.ended:
            self._hook.refresh()
        if not self.record.ended:
            return False
        try:
            is_over = self._is_over()
        except NearScriptError as error:
            self._resolve(error)
            raise
        if is_over:
            self._resolve(self._failure())
        return is_over

    def _is_over(self) -> bool:
        """Run the epilogue of a finished run if that is due, and return whether it is done.

        :raises NearScriptError: the epilogue has failed
        """
        trouble, what = self._hook.site.trouble, f"the epilogue of run {self.key} waits"
        try:
            with self._finishing:  # another thread may be running the epilogue
                self._finish()
        except TransportError as error:
            trouble.begin(what, error)
            return False
        trouble.end(what)
        return True

    def successful(self) -> bool:
        """Whether it has succeeded.

        :raises ValueError: it has not finished
        """
        if not self.ready():
            raise ValueError(f"run {self.key} has not finished; it is {self.record.state}")
        return self.record.state == "succeeded"

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has finished, or for ``timeout`` seconds.

        :raises NearScriptError: the epilogue has failed
        """
        end = None if timeout is None else time.monotonic() + timeout
        pauses = self._hook.pauses()
        while not self.ready():
            pause = pauses(self.record)
            left = pause if end is None else min(pause, end - time.monotonic())
            if left <= 0:
                return
            time.sleep(left)

    def get(self, timeout: float | None = None) -> int:
        """Wait until it has finished, and return its exit status, which is 0.

        :raises RunTimeout: it has not finished after ``timeout`` seconds; a ``multiprocessing.TimeoutError`` and a
            ``concurrent.futures.TimeoutError``
        :raises SubmitRejected: the batch system rejects it; a :class:`JobFailed`
        :raises JobCancelled: it was cancelled; a :class:`JobFailed` and a ``concurrent.futures.CancelledError``
        :raises JobFailed: it has failed
        :raises NearScriptError: the epilogue has failed
        """
        self.wait(timeout)
        if timeout is not None and not self.ready():
            raise RunTimeout(f"run {self.key} is still {self.record.state} after {timeout:g} s")
        if (failure := self._failure()) is not None:
            raise failure
        return 0

    def _failure(self) -> JobFailed | None:
        """Return the exception for its failure; None: it has succeeded."""
        record = self.record
        if record.state == "succeeded":
            return None
        if record.cause == "submit_rejected":
            return SubmitRejected(record)
        return (JobCancelled if record.state == "cancelled" else JobFailed)(record)

    def exception(self, timeout: float | None = None) -> JobFailed | NearScriptError | None:
        """Wait as :meth:`get` does, and return the error of a run that has failed; None: it has succeeded.

        :raises RunTimeout: it has not finished after ``timeout`` seconds
        :raises JobCancelled: it was cancelled
        """
        try:
            self.get(timeout)
        except JobCancelled:
            raise
        except (JobFailed, NearScriptError) as error:
            return error
        return None

    def done(self) -> bool:
        """Whether it has finished, successfully or not.

        By then its epilogue has run, or has failed, which :meth:`get` raises.
        """
        try:
            return self.ready()
        except NearScriptError:
            return True

    def running(self) -> bool:
        return self.status == "running"

    def cancelled(self) -> bool:
        """Whether it was cancelled, by any process or person, and has finished."""
        return self.done() and self.record.state == "cancelled"

    def cancel(self) -> bool:
        """Cancel it, whether it waits or runs. It has finished once the batch system reports so: see :meth:`wait`.

        :returns: whether it is being cancelled, or was; False: it had finished before
        :raises CancelError: it was not cancelled, or that is unknown; call again
        """
        with self._hook.lock:
            if not self.record.ended:
                self._cancel()
            return not self.record.ended or self.record.state == "cancelled"

    def _cancel(self) -> None:
        self._cancelling([self.record])
        self.update(self._hook.site.cancel([self.record]))

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call a function with the run once it has finished; at once if it has.

        The function is called by the thread that first sees the run finished, and should return soon. Its exceptions
        are logged.
        """
        super().add_done_callback(fn)
        self._watch()

    def _watch(self) -> None:
        if not self._is_resolved:
            self._hook.watch(self)

    def _resolve(self, failure: JobFailed | NearScriptError | None) -> None:
        """Notify callbacks and waiters, once.

        :param failure: None: it has succeeded
        """
        with self._condition:
            if self._is_resolved:
                return
            self._is_resolved = True
        if isinstance(failure, JobCancelled):
            super().cancel()
            self.set_running_or_notify_cancel()
        elif failure is not None:
            self.set_exception(failure)
        else:
            self.set_result(0)

    def _cancelling(self, records: Sequence[RunRecord]) -> None:
        """Save that runs are being cancelled, before that is tried: it may succeed even if the batch system reports an
        error.

        Runs that the batch system has not accepted are left out: only the site can ensure that they never start.
        """
        accepted = [each for each in records if each.job_id is not None and not each.ended]
        self.update([replace(each, cancelling=True) for each in accepted])

    def output(self, most: int = 1_000_000) -> str:
        """Return what it has printed so far, at most ``most`` bytes; empty if the batch system chooses the file's name.

        :raises TransportError: it could not be read
        """
        return self._hook.site.printed(self.record, most)

    result = get
    abort = cancel

    @property
    def elapsed(self) -> float:
        """Seconds from its submission until its script finished, or until now; 0 before it was submitted."""
        record = self.record
        if record.submitted_at is None:
            return 0.0
        return max(0.0, (record.ended_at or time.time()) - record.submitted_at)

    @property
    def metadata(self) -> dict[str, Any]:
        """A summary: ``submitted``, ``started`` and ``completed`` as UTC times (None if that has not happened),
        ``status``, ``job_id``, ``cause``, ``reason``, ``exit_code``, ``nodes`` and ``folder``.

        The script itself records when it started and finished; see :class:`lading.hooks.job_scripts.run.RunRecord`.
        """
        record = self.record
        times = {"submitted": record.submitted_at, "started": record.started_at, "completed": record.ended_at}
        known = ("job_id", "cause", "reason", "exit_code", "nodes", "folder")
        return {
            **{name: None if at is None else datetime.fromtimestamp(at, timezone.utc) for name, at in times.items()},
            "status": record.state,
            **{name: getattr(record, name) for name in known},
        }

    def living(self) -> Sequence[RunRecord]:
        """Return the records to look at while it has not finished."""
        return [] if self.record.ended else [self.record]

    def update(self, records: Sequence[RunRecord]) -> None:
        """Save the new records of what :meth:`living` has returned."""
        for record in records:
            if record != self.record:
                self._save(replace(self._saved, record=record.timed(None, time.time()).to_json()))

    def prepare(self, place: Callable[[RunRecord], None]) -> None:
        """Run the prologue and write the files unless that was done; called before the run is first looked at.

        :raises NearScriptError: the prologue has failed
        :raises TransportError: the files could not be written
        """
        if self.record.submitted_at is not None or self._hook.site.placed(self.token):
            return
        if self._saved.prologue is not None:
            run_near("prologue", self._saved.prologue, variables(self.record))
            self._save(replace(self._saved, prologue=None))
        place(self.record)

    def _finish(self) -> None:
        """Run the epilogue, once among all processes that wait for this run."""
        saved = self._saved
        if saved.epilogue is None or saved.epilogue_state == "done":
            return
        if saved.epilogue_state == "due" and self.record.submitted_at is not None:
            if not self._hook.site.claim(self.record, layout.EPILOGUE, uuid.uuid4().hex):
                return
            self._save(replace(saved, epilogue_state="begun"))
            try:
                run_near("epilogue", str(saved.epilogue), variables(self.record))
            except NearScriptError as error:
                self._save(replace(self._saved, epilogue_state=str(error)))
                raise
            self._save(replace(self._saved, epilogue_state="done"))
        elif saved.epilogue_state not in ("due", "begun"):
            raise NearScriptError(saved.epilogue_state)

    def _save(self, saved: SavedRun) -> None:
        self._saved = saved
        self._hook.save(self.key, saved)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled, since it has a connection and callbacks; submit the same script, or the same "
            "key, in the other process to get this run"
        )

    def __repr__(self) -> str:
        return f"<JobRun {self.key} {self.record.state} job_id={self.record.job_id}>"


def variables(record: RunRecord) -> dict[str, str]:
    """Return the environment variables of a prologue or an epilogue."""
    reported = {
        "LADING_FOLDER": record.folder,
        "LADING_JOB_ID": record.job_id,
        "LADING_STATE": record.state if record.ended else None,
        "LADING_CAUSE": record.cause,
        "LADING_EXIT_STATUS": record.exit_code,
    }
    return {name: str(value) for name, value in reported.items() if value is not None}


__all__ = [
    "JobCancelled",
    "JobFailed",
    "JobRun",
    "NearScriptError",
    "RunTimeout",
    "SavedRun",
    "SubmitRejected",
    "TransportError",
]
