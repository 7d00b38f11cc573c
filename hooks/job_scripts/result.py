"""A run of a job script, with the interface of :class:`multiprocessing.pool.AsyncResult`.

It is a :class:`concurrent.futures.Future` as well, so ``concurrent.futures.as_completed`` and ``wait`` take runs.

It also has the names that ``ipyparallel.AsyncResult`` has for the same: ``done``, ``result``, ``abort``, ``elapsed``
and ``metadata`` (https://ipyparallel.readthedocs.io, "AsyncResult").

What cannot be asked leaves ``status`` as it was known last; an end is concluded in
:mod:`lading.hooks.job_scripts.run` alone, and is for good.
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

    :ivar record: all that is known of it: ``cause``, ``reason``, ``exit_code``, ``job_id``, ``nodes``
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
    """A run was cancelled, by whomever."""


class RunTimeout(multiprocessing.TimeoutError, futures.TimeoutError):
    """A run has not ended within the time that was given."""


class SubmitRejected(JobFailed):
    """The batch system does not take the job, and never will; the message is its own."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What is kept of a run on this machine's disk.

    :ivar prologue: None: there is none, or it has run
    :ivar epilogue: None: there is none
    :ivar epilogue_state: ``due``, ``begun``, ``done``, or why it failed
    :ivar elements: what is known of each element of a job array, once that has been accepted
    """

    record: dict[str, Any]
    prologue: str | None = None
    epilogue: str | None = None
    epilogue_state: str = "due"
    elements: Sequence[dict[str, Any]] = ()


class RunKeeper(Protocol):
    """Who keeps runs, as :class:`lading.hooks.job_scripts.hook.BatchHook` does."""

    @property
    def site(self) -> RunSite:
        """Where they are."""

    def refresh(self) -> None:
        """Look at all runs that have not ended."""

    def pauses(self) -> Callable[[RunRecord], float]:
        """How long to wait between looks, in seconds."""

    def save(self, key: str, saved: SavedRun) -> None:
        """Save what is known of a run."""

    @property
    def lock(self) -> threading.RLock:
        """Held while what is known of runs changes."""

    def watch(self, run: JobRun) -> None:
        """Look at a run until it has ended, in a thread that all runs share."""


class Waiters(list[Any]):
    """Those of ``concurrent.futures`` that wait for a run, which has to be looked at from then on.

    ``as_completed`` and ``wait`` put themselves into the list ``_waiters`` of each future.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._begin()


class JobRun(futures.Future[int]):
    """A job script at a batch site: submitted once, whatever process asks.

    Methods that look at the site do so at most once in 2 s, or in ``max_poll_interval`` if that is less, for all runs
    of the hook together. Callbacks, and callers that wait by ``concurrent.futures``, are served by the first thread
    that sees the end: one that asks, or the one that the runs of a hook share.
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
        """What is known of the run."""
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
        """``queued`` (the batch system has not accepted it yet), ``submitted`` (it waits there), ``running``,
        ``succeeded``, ``failed`` or ``cancelled``; what was known last if the site cannot be asked.
        """
        self._hook.refresh()
        return self.record.state

    def ready(self) -> bool:
        """Whether it has ended. The epilogue has run then.

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
        """Whether its epilogue has run, after its end.

        :raises NearScriptError: the epilogue has failed
        """
        trouble, what = self._hook.site.trouble, f"the epilogue of run {self.key} waits"
        try:
            with self._finishing:  # which another thread may be about
                self._finish()
        except TransportError as error:
            trouble.begin(what, error)
            return False
        trouble.end(what)
        return True

    def successful(self) -> bool:
        """Whether it has succeeded.

        :raises ValueError: it has not ended
        """
        if not self.ready():
            raise ValueError(f"run {self.key} has not ended; it is {self.record.state}")
        return self.record.state == "succeeded"

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds.

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
        """Wait until it has ended; its exit status, which is 0.

        :raises RunTimeout: it has not ended after so many seconds; that is a ``multiprocessing.TimeoutError`` and a
            ``concurrent.futures.TimeoutError``
        :raises SubmitRejected: the batch system does not take it
        :raises JobCancelled: it was cancelled; that is a ``concurrent.futures.CancelledError``
        :raises JobFailed: it has failed; all of these but the time-out are one
        :raises NearScriptError: the epilogue has failed
        """
        self.wait(timeout)
        if timeout is not None and not self.ready():
            raise RunTimeout(f"run {self.key} is still {self.record.state} after {timeout:g} s")
        if (failure := self._failure()) is not None:
            raise failure
        return 0

    def _failure(self) -> JobFailed | None:
        """What is raised for its end; None: it has succeeded."""
        record = self.record
        if record.state == "succeeded":
            return None
        if record.cause == "submit_rejected":
            return SubmitRejected(record)
        return (JobCancelled if record.state == "cancelled" else JobFailed)(record)

    def exception(self, timeout: float | None = None) -> JobFailed | NearScriptError | None:
        """Wait until it has ended, or for so many seconds; what :meth:`get` raises for its failure, None: nothing.

        :raises RunTimeout: it has not ended after so many seconds
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
        """Whether it has ended, well or not. Its epilogue has run then, or has failed, which :meth:`get` raises."""
        try:
            return self.ready()
        except NearScriptError:
            return True

    def running(self) -> bool:
        """Whether its script runs now."""
        return self.status == "running"

    def cancelled(self) -> bool:
        """Whether it was cancelled, by whomever, and has ended."""
        return self.done() and self.record.state == "cancelled"

    def cancel(self) -> bool:
        """Cancel it, waiting or running. It has ended when the batch system reports its end: see :meth:`wait`.

        :returns: whether it is being cancelled, or was; False: it has ended before
        :raises CancelError: it was not cancelled, or that is not known; it may be tried again
        """
        with self._hook.lock:
            if not self.record.ended:
                self._cancel()
            return not self.record.ended or self.record.state == "cancelled"

    def _cancel(self) -> None:
        """Cancel it, which has not ended."""
        self._cancelling([self.record])
        self.update(self._hook.site.cancel([self.record]))

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Have a function called with the run when it has ended, once; at once if it has.

        It is called by the thread that sees the end first, and is to return soon. What it raises is logged.
        """
        super().add_done_callback(fn)
        self._watch()

    def _watch(self) -> None:
        """Have it looked at until it has ended."""
        if not self._is_resolved:
            self._hook.watch(self)

    def _resolve(self, failure: JobFailed | NearScriptError | None) -> None:
        """Serve callbacks and those who wait, once; its end is known.

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
        """Save that these are to be cancelled, since that may be done although the batch system says it was not.

        Those that are not accepted yet are left out: only the site can say that they are never to begin.
        """
        accepted = [each for each in records if each.job_id is not None and not each.ended]
        self.update([replace(each, cancelling=True) for each in accepted])

    def output(self, most: int = 1_000_000) -> str:
        """What it has printed so far, at most so many bytes of it; empty where its file's name is the batch system's.

        :raises TransportError: it could not be read
        """
        return self._hook.site.printed(self.record, most)

    result = get
    abort = cancel

    @property
    def elapsed(self) -> float:
        """Seconds since it was submitted, until its script ended if it has; 0 before it was submitted."""
        record = self.record
        if record.submitted_at is None:
            return 0.0
        return max(0.0, (record.ended_at or time.time()) - record.submitted_at)

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of it: ``submitted``, ``started`` and ``completed`` as times of UTC, None where it has not
        come to that, and ``status``, ``job_id``, ``cause``, ``reason``, ``exit_code``, ``nodes`` and ``folder``.

        When the script began and ended it has noted itself; see :class:`lading.hooks.job_scripts.run.RunRecord`.
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
        """What there is to look at while it has not ended."""
        return [] if self.record.ended else [self.record]

    def update(self, records: Sequence[RunRecord]) -> None:
        """Take and save what is newly known of what :meth:`living` has said."""
        for record in records:
            if record != self.record:
                self._save(replace(self._saved, record=record.timed(None, time.time()).to_json()))

    def prepare(self, place: Callable[[RunRecord], None]) -> None:
        """Run the prologue and write the files, unless that was done; before the run is first looked at.

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
        """Run the epilogue, once for all who wait for this run."""
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
            "key, in the other process: that finds this run"
        )

    def __repr__(self) -> str:
        return f"<JobRun {self.key} {self.record.state} job_id={self.record.job_id}>"


def variables(record: RunRecord) -> dict[str, str]:
    """What a prologue or an epilogue finds in its environment."""
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
