"""The record of a run, and how it changes with what its site reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, TypeAdapter

from lading.hooks.batch import outcome
from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.outcome import MOST_TRIES, REASONS, Outcome, decide
from lading.hooks.batch.status_query import submitted_as
from lading.hooks.batch.system import ArrayRange, BatchSystem, NativeJob, SubmitError
from lading.hooks.job_scripts import layout
from lading.hooks.polling.job_life import ShownLife, ShownPhase
from lading.hooks.polling.outside_clock import least_ahead
from lading.hooks.spool.values import LARGEST_INTEGER
from lading.hooks.ssh.answer import CommandResult, whole_number
from lading.scheduling.model.reasons import because

# A database's INTEGER, because a record can come from a task.
ExitCode = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
RunState = Literal["queued", "submitted", "running", "succeeded", "failed", "cancelled"]
ENDED = frozenset({"succeeded", "failed", "cancelled"})
# Seconds by which a job may have started before its script, whose times are whole seconds.
HEAD_START = 2
# The text for each cause, to which the batch system's own reason is added.
CAUSE_TEXTS = {cause: reason.sentence for cause, reason in REASONS.items()} | {
    # The script may have exited by itself when it was refused more memory.
    "out_of_memory": "it used more memory than it had requested",
    "cancelled": because("batch_cancelled").sentence,
    "submit_rejected": "the batch system rejects it",
    "lost": "the batch system no longer knows it, and it left no exit status",
}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The state of a run, as far as it has been observed.

    :ivar token: identifies it everywhere; its folder at the site has this name
    :ivar folder: at the site, absolute
    :ivar jobname: the name of its batch job if no other job has that name, so that the job can be looked up by it
    :ivar given_name: the name that its script gives its batch job, which other jobs may have, too
    :ivar output: the file with what it prints, absolute; None: only the batch system knows its name
    :ivar attempt: the number of the current or last submission
    :ivar doubtful_since: since when a submission has had no answer
    :ivar look_up: whether its job must be looked up by name in the batch system before the next submission
    :ivar held: whether it waits for a controller to admit it; it is not submitted until then
    :ivar shared: what it has in common with other runs while it waits to be submitted with them as a job array: see
        :class:`lading.hooks.job_scripts.array.ArrayKey`; None: it is submitted by itself
    :ivar array: the folder of the array in which it is being submitted
    :ivar array_name: the name of that array's batch job if no other job has that name
    :ivar array_id: the native id of the accepted array; None: it is in none
    :ivar index: its element in the array
    :ivar job_id: the native id; in an array, that of the element
    :ivar clusters: those that its script names, one of which has its job; empty: the cluster of the login node
    :ivar time: seconds that it has requested; None: unknown
    :ivar elements: the indices of the elements if it is a job array; None: it is one job
    :ivar submitted_at: when its first submission was tried
    :ivar started_at: when its script started, by this machine's clock: when it was first seen running, replaced by the
        script's own record once it has finished; None: unknown
    :ivar ended_at: when its script finished, by the same clock: from the script's own record if it was not killed, else
        when that was observed
    :ivar shown: its life as its batch system shows it, in seconds since the epoch
    :ivar not_launched: how often a node could not launch its job
    :ivar cancelling: whether it is to be cancelled
    :ivar reason: why it waits or has failed, as text
    :ivar cause: why it has failed, or will never start: one of Lading's causes
    """

    token: str
    folder: str
    jobname: str | None = None
    output: str | None = None
    attempt: int = 1
    doubtful_since: FiniteFloat | None = None
    look_up: bool = False
    shared: Mapping[str, Any] | None = None
    array: str | None = None
    array_name: str | None = None
    array_id: str | None = None
    index: int | None = None
    job_id: str | None = None
    elements: str | None = None
    submitted_at: FiniteFloat | None = None
    started_at: FiniteFloat | None = None
    ended_at: FiniteFloat | None = None
    shown: ShownLife = field(default_factory=ShownLife)
    not_launched: int = 0
    given_name: str | None = None
    cancelling: bool = False
    state: RunState = "queued"
    reason: str | None = None
    cause: str | None = None
    exit_code: ExitCode | None = None
    nodes: str | None = None
    time: int | None = None
    clusters: tuple[str, ...] = ()
    held: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def waiting(self) -> bool:
        """Whether the batch system has not accepted it yet, as far as has been observed."""
        return self.job_id is None and not self.ended

    @property
    def hopeless(self) -> bool:
        """Whether the batch system lists it but will never start it."""
        return self.cause is not None and not self.ended

    @property
    def is_held(self) -> bool:
        """Whether a node could not launch its job, which is removed from the batch system and submitted again.

        An element of the script's own array cannot be submitted without the others.
        """
        is_alone = self.elements is None and "/" not in self.token
        return is_alone and self.hopeless and self.cause == "node_failure" and self.not_launched < MOST_TRIES - 1

    @property
    def is_shown_although_cancelled(self) -> bool:
        """Whether it is to be cancelled, but the batch system still reports it as waiting or running."""
        is_unwanted = self.cancelling or self.is_held
        return is_unwanted and self.gone_since is None and self.state in ("submitted", "running")

    @property
    def gathering(self) -> bool:
        """Whether it waits for other runs to be submitted with."""
        is_ready = self.waiting and not (self.cancelling or self.held)
        return is_ready and self.shared is not None and self.array is None

    @property
    def name(self) -> str | None:
        """The name of its job in the batch system, or of the array that it is in; None: unknown."""
        return self.given_name or (self.jobname if self.index is None else self.array_name)

    @property
    def submission(self) -> tuple[str, int | None]:
        """The native id of what was submitted, and the run's element in it."""
        return self.array_id or str(self.job_id), self.index

    @property
    def cancellation(self) -> Cancellation:
        return Cancellation(*self.submission, self.name)

    @property
    def gone_since(self) -> float | None:
        """Since when its end is to be determined; None: its batch system lists it, or has not been asked yet."""
        return None if self.shown.phase is ShownPhase.UNRUNNABLE else self.shown.gone_since

    @property
    def logs(self) -> list[str]:
        """The files with the batch system's own output and with the run's."""
        return [path for path in dict.fromkeys([f"{self.folder}/{layout.BATCH_LOG}", self.output]) if path]

    @property
    def jobs(self) -> int:
        """The number of jobs in its submission, as a site's limits count them."""
        return 1 if self.elements is None else len(ArrayRange(self.elements))

    def element(self, index: int, system: BatchSystem) -> RunRecord:
        """Return the record of one element of this array, once the batch system has accepted the array."""
        folder = layout.of_element(self.folder, index)
        output = None if self.output is None else f"{folder}/{PurePosixPath(self.output).name}"
        token = layout.of_element(self.token, index)
        own = RunRecord(token, folder, self.jobname, output, submitted_at=self.submitted_at)
        own = replace(own, given_name=self.given_name or self.jobname, cancelling=self.cancelling, time=self.time)
        return own.accepted(str(self.job_id), index, system)

    def timed(self, sentinel: str | None, now: float) -> RunRecord:
        """Return the run with the times at which its script started and finished, as far as they are known.

        :param sentinel: content of the file ``exit``
        :param now: seconds since the epoch
        """
        if not self.ended:
            first = self.state == "running" and self.started_at is None
            return replace(self, started_at=now) if first else self
        if (times := layout.times(sentinel)) is not None:
            # The sentinel's times are whole seconds of another clock. The script started after it was submitted, and
            # finished after it was first seen running and before now.
            began, ended = map(float, times)
            submitted = self.submitted_at or 0.0
            ahead = least_ahead(ended, max(submitted + ended - began, self.started_at or 0.0), now)
            started = max(began - ahead, submitted)
            return replace(self, started_at=started, ended_at=max(ended - ahead, started))
        return self if self.ended_at is not None else replace(self, ended_at=now)

    def by_itself(self) -> RunRecord:
        """Return the run, to be submitted by itself."""
        return replace(self, shared=None, array=None, array_name=None, index=None)

    def again(self) -> RunRecord:
        """Return the run, to be submitted again: its job, which a node could not launch, is gone."""
        return replace(
            self.by_itself(),
            job_id=None,
            array_id=None,
            attempt=self.attempt + 1,
            not_launched=self.not_launched + 1,
            state="queued",
            cause=None,
            shown=ShownLife(),
        )

    def accepted(self, id: str, index: int | None, system: BatchSystem) -> RunRecord:
        """Return the run with the id that the batch system has given it.

        :param id: of the submission
        :param index: of the element, if the submission is an array
        """
        return replace(
            self,
            job_id=id if index is None else system.element(id, index),
            array_id=None if index is None else id,
            index=index,
            array=None,
            state="submitted",
            reason=None,
            doubtful_since=None,
            look_up=False,
        )

    def failed(self, cause: str, reason: str | None, exit_code: int | None = None) -> RunRecord:
        message = CAUSE_TEXTS.get(cause, f"it failed with exit status {exit_code}" if exit_code else "it failed")
        reported = f"{message} ({reason})" if reason else message
        state: RunState = "cancelled" if cause == "cancelled" else "failed"
        return replace(self, state=state, cause=cause, reason=reported, exit_code=exit_code)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"shown": asdict(self.shown) | {"phase": self.shown.phase.value}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunRecord:
        """Read what :meth:`to_json` has written.

        :raises ValueError: it is damaged, or a number in it is not plausible
        """
        return _records().validate_python(fields)


@cache
def _records() -> TypeAdapter[RunRecord]:
    return TypeAdapter(RunRecord)


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What a site reports about one run.

    :param asked: whether the batch system has answered; False changes nothing
    :param native: the batch system's status of the job; None: it does not list the job
    :param account: the accounting's record of the job; None: none yet
    :param accounting: whether the accounting may have a record later
    :param sentinel: content of the file ``exit``
    :param job: content of the file ``job``: the id of the batch job that executes the script, and its element
    :param cancelled: whether it has been cancelled, by any process or person
    :param log: the end of what it and its batch system have written
    """

    asked: bool = False
    native: NativeJob | None = None
    account: NativeJob | None = None
    accounting: bool = False
    sentinel: str | None = None
    job: str | None = None
    cancelled: bool = False
    log: str = ""


def after_submission(record: RunRecord, answer: CommandResult, system: BatchSystem, now: float) -> RunRecord:
    """Return the run after an attempt to submit it, or after looking up the outcome of one.

    :param answer: the answer to :func:`lading.hooks.job_scripts.layout.submit`
    """
    record = replace(record, submitted_at=record.submitted_at or now)
    first, _, rest = answer.stdout.partition("\n")
    reported, *element = first.split() or [""]
    if reported == "newer" and answer.status == 0 and (attempt := whole_number("".join(element))) is not None:
        return replace(record, attempt=attempt, doubtful_since=None)
    if reported in ("answered", "pending"):
        record = _as_element(record, element)
    if answer.status is None or reported not in ("answered", "claimed", "cancelled"):
        # The outcome is unknown and the submission may be under way. One that takes longer than this has died with its
        # machine.
        since = record.doubtful_since or now
        message = "its submission has not been answered yet" if reported == "pending" else answer.message
        record = replace(record, doubtful_since=since, reason=message)
        # A submission without an answer for this long is dead; its command may take less.
        over = reported == "pending" and now - since > 120.0
        return replace(record, attempt=record.attempt + 1, look_up=True, array=None) if over else record
    if reported == "cancelled":
        return record.failed("cancelled", "before it was submitted")
    if reported == "claimed":
        return record.accepted(*layout.in_job(rest), system)
    try:
        return record.accepted(system.submitted(replace(answer, stdout=rest)), record.index, system)
    except SubmitError as error:
        return _refused(record, error)


def looked_up(record: RunRecord, jobs: Sequence[NativeJob], system: BatchSystem) -> RunRecord:
    """Return the run whose submission was not answered, accepted if the batch system lists its job."""
    for name, index in ((record.jobname, None), (record.array_name, record.index)):
        if (id := submitted_as(jobs, name)) is not None:
            return record.accepted(id, index, system)
    return replace(record, look_up=False, doubtful_since=None, array_name=None, index=None)


def after_question(
    record: RunRecord,
    facts: SiteReport,
    now: float,
    *,
    deadline: float,
    patience: float,
    system: BatchSystem,
    cancel_unrunnable_after: float = 900,
) -> RunRecord:
    """Return the run after its site was asked about its job.

    How a job has ended is decided by :mod:`lading.hooks.batch.outcome`.

    :param deadline: seconds after which a run is lost if neither its folder nor the batch system shows it
    :param patience: seconds to wait for accounting and sentinel, since they arrive late
    :param cancel_unrunnable_after: seconds after which a run fails that can never start, though that may change
    """
    id, index = record.submission
    runs_as, element = layout.in_job(facts.job or id)
    if facts.job and not (layout.same_job(runs_as, id) and element == index):
        # A submission whose answer was lost was accepted after all, and its job started first.
        return replace(record.accepted(runs_as, element, system), state=record.state, shown=ShownLife())
    if not facts.asked:
        return record
    native = facts.native
    shown = record.shown.lost(now)
    if native is not None:
        shown = record.shown.shown(native, now, blocked_for=cancel_unrunnable_after, strange_for=deadline)
    is_stray = native is not None and shown.phase is ShownPhase.STRAY
    if native is not None and native.state != "ended" and not is_stray:
        living = _living(record, native, shown)
        # A job that will never start fails, even if cancelling it takes several attempts.
        return replace(living, cancelling=record.cancelling or (facts.cancelled and not living.hopeless))
    if record.is_held and not (record.cancelling or facts.cancelled or facts.job or facts.sentinel):
        return record.again()
    # A job in an unknown state counts as gone from then on; when that is found, the accounting has not been asked yet.
    was_gone = record.gone_since is not None
    if shown.phase is ShownPhase.UNRUNNABLE:  # the accounting is asked only from now on
        shown = replace(shown, phase=ShownPhase.GONE, since=now)
    record = replace(record, shown=shown, nodes=(native and native.nodes) or record.nodes)
    ended = decide(
        outcome.Evidence(
            native=None if is_stray else native,
            account=facts.account,
            accounting=facts.accounting,
            sentinel=layout.sentinel(facts.sentinel),
            cancelled=record.cancelling or facts.cancelled,
            says_memory=system.wording.says_memory(facts.log),
            waited=shown.ran is False and facts.job is None,
            at_limit=_at_limit(record, facts.sentinel, system),
            gone=now - shown.since,
            patience=patience,
            deadline=deadline,
        )
    )
    if ended is None or (is_stray and not was_gone):
        return record
    if ended.cause == "cancelled" and not (record.cancelling or facts.cancelled):
        ended = replace(ended, reason="; ".join(filter(None, ["not by Lading", ended.reason])))
    return _over(record, ended, native if is_stray else None)


def _over(record: RunRecord, ended: Outcome, strange: NativeJob | None) -> RunRecord:
    """Return the run whose job has ended.

    :param strange: the job, if the batch system still lists it in an unknown state
    """
    if ended.cause == "lost" and strange is not None:  # it may still be running, so it is cancelled
        return replace(record, cause="lost", reason=strange.reason)
    if ended.cause is None:
        return replace(record, state="succeeded", reason=None, exit_code=0)
    if ended.cause == "lost" and ended.exit_code == 0:
        return record.failed("lost", "the batch system reports that it succeeded")
    return record.failed(ended.cause, ended.reason, ended.exit_code)


def _living(record: RunRecord, native: NativeJob, shown: ShownLife) -> RunRecord:
    hopeless = shown.phase is ShownPhase.UNRUNNABLE and not record.cancelling
    return replace(
        record,
        state="running" if shown.ran else "submitted",
        reason=native.reason,
        cause=native.cause or "error" if hopeless else None,
        shown=shown,
        nodes=native.nodes or record.nodes,
    )


def _as_element(record: RunRecord, element: Sequence[str]) -> RunRecord:
    """Return the run as an element of an array.

    :param element: its number, and the name of the array's batch job; other lengths: it is in none
    """
    if len(element) != 2 or (index := whole_number(element[0])) is None:
        return replace(record, index=None, array_name=None)
    return replace(record, index=index, array_name=None if element[1] == "-" else element[1])


def _refused(record: RunRecord, error: SubmitError) -> RunRecord:
    # A smaller array or a single job may be accepted instead; the size of a script's own array is fixed.
    is_divided = record.index is not None and error.is_of_arrays
    is_never_accepted = record.elements is not None and error.kind == "limit" and error.is_of_arrays
    if is_never_accepted or (error.kind == "permanent" and not is_divided):
        return record.failed("submit_rejected", error.message)
    return replace(
        record,
        attempt=record.attempt + 1,
        reason=error.message,
        doubtful_since=None,
        look_up=error.kind == "transient",
        array=None,
    )


def _at_limit(record: RunRecord, sentinel: str | None, system: BatchSystem) -> bool:
    """Whether a script ran for as long as its batch system allows."""
    if record.time is None or (times := layout.times(sentinel)) is None:
        return False
    limit = -(-record.time // system.grain) * system.grain
    return times[1] - times[0] >= limit - HEAD_START
