"""What is known of a run, and what follows from what its site says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import TypeAdapter

from lading.hooks.batch import outcome
from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.outcome import MOST_TRIES, REASONS, Outcome, decide
from lading.hooks.batch.status_query import plain_name
from lading.hooks.batch.system import ArrayRange, BatchSystem, NativeJob, SubmitError
from lading.hooks.job_scripts import layout
from lading.hooks.polling.job_life import ShownLife, ShownPhase
from lading.hooks.polling.outside_clock import least_ahead
from lading.hooks.ssh.answer import CommandResult, whole_number
from lading.hooks.ssh.backoff import pause
from lading.scheduling.reasons import because

RunState = Literal["queued", "submitted", "running", "succeeded", "failed", "cancelled"]
ENDED = frozenset({"succeeded", "failed", "cancelled"})
# Seconds for which a submission may be under way before it is taken for dead; more than its command may take.
UNDER_WAY = 120.0
# Seconds between refused submissions: the first, and the longest.
BACKOFF = (2.0, 60.0)
# Seconds by which a job may have begun before its script, the times of which are whole seconds.
HEAD_START = 2
# Where the batch system does not say more.
CAUSE_TEXTS = {cause: reason.sentence for cause, reason in REASONS.items()} | {
    # The script may have ended by itself when it could get no more.
    "out_of_memory": "it used more memory than it had asked for",
    "cancelled": because("batch_cancelled").sentence,
    "submit_rejected": "the batch system does not take it",
    "lost": "the batch system no longer knows it, and it left no exit status",
}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as far as it is known.

    :ivar token: identifies it everywhere; its folder at the site is called so
    :ivar folder: at the site, absolute
    :ivar jobname: what its batch job is called, if that name is no other's; it can be looked up by it
    :ivar given_name: what its script calls its batch job, which others may be called, too
    :ivar output: the file with what it prints, absolute; None: only the batch system knows its name
    :ivar attempt: the number of the submission that is being made, or was made
    :ivar not_before: when the submission is tried, seconds since the epoch
    :ivar doubtful_since: since when a submission has had no answer
    :ivar look_up: whether the batch system must be asked for its job by name before the next submission
    :ivar shared: what it has in common with others, with which it waits to be submitted as a job array: see
        :class:`lading.hooks.job_scripts.array.ArrayKey`; None: it is submitted by itself
    :ivar array: the folder of the array in which it is being submitted
    :ivar array_name: what the batch job of that array is called, if that name is no other's
    :ivar array_id: the native id of the array that has been accepted; None: it is in none
    :ivar index: its element of the array
    :ivar job_id: the native id; that of the element, if it is one
    :ivar time: seconds that it has asked for; None: not known
    :ivar elements: of a job array, their indices; None: it is one job
    :ivar submitted_at: when its first submission was tried
    :ivar started_at: when its script began, by this machine's clock: as it has noted itself once it has ended, before
        that when it was first seen to run; None: not known
    :ivar ended_at: when its script ended, by the same clock: as it has noted itself where it was not killed, else when
        that was seen
    :ivar gone_since: since when the batch system does not know it, or knows that it has ended and not how
    :ivar never_since: since when it says that the job can never start, though an administrator may change that
    :ivar strange_since: since when it reports a state that Lading does not know
    :ivar not_launched: how often a node could not launch its job
    :ivar waited: whether it waited when the batch system was asked last
    :ivar cancelling: whether it is to be cancelled
    :ivar reason: why it waits or has failed, as text
    :ivar cause: why it has failed, or will never start: one of Lading's causes
    """

    token: str
    folder: str
    jobname: str | None = None
    output: str | None = None
    attempt: int = 1
    not_before: float = 0.0
    doubtful_since: float | None = None
    look_up: bool = False
    shared: Mapping[str, Any] | None = None
    array: str | None = None
    array_name: str | None = None
    array_id: str | None = None
    index: int | None = None
    job_id: str | None = None
    elements: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    gone_since: float | None = None
    never_since: float | None = None
    strange_since: float | None = None
    not_launched: int = 0
    waited: bool = False
    given_name: str | None = None
    cancelling: bool = False
    state: RunState = "queued"
    reason: str | None = None
    cause: str | None = None
    exit_code: int | None = None
    nodes: str | None = None
    time: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def waiting(self) -> bool:
        """Whether the batch system has not accepted it yet, or that is not known."""
        return self.job_id is None and not self.ended

    @property
    def hopeless(self) -> bool:
        """Whether the batch system keeps it and will never start it."""
        return self.cause is not None and not self.ended

    @property
    def is_held(self) -> bool:
        """Whether a node could not launch its job, which is taken out of the batch system and submitted again.

        An element of the script's own array cannot be submitted without the others.
        """
        is_alone = self.elements is None and "/" not in self.token
        return is_alone and self.hopeless and self.cause == "node_failure" and self.not_launched < MOST_TRIES - 1

    @property
    def is_shown_although_cancelled(self) -> bool:
        """Whether it is to be cancelled, and the batch system says that it waits or runs."""
        is_unwanted = self.cancelling or self.is_held
        return is_unwanted and self.gone_since is None and self.state in ("submitted", "running")

    @property
    def gathering(self) -> bool:
        """Whether it waits for those with which it is submitted."""
        return self.waiting and self.shared is not None and self.array is None and not self.cancelling

    @property
    def name(self) -> str | None:
        """What the batch system calls its job, or the array in which it is; None: not known."""
        return self.given_name or (self.jobname if self.index is None else self.array_name)

    @property
    def submission(self) -> tuple[str, int | None]:
        """The native id of what was submitted, and which element of it the run is."""
        return self.array_id or str(self.job_id), self.index

    @property
    def cancellation(self) -> Cancellation:
        return Cancellation(*self.submission, self.name)

    @property
    def shown(self) -> ShownLife:
        """What the batch system showed of its job when it was asked last, as far as its times matter."""
        if self.gone_since is not None:
            is_stray = self.strange_since is not None
            return ShownLife(ShownPhase.STRAY if is_stray else ShownPhase.GONE, self.gone_since)
        if self.strange_since is not None:
            return ShownLife(ShownPhase.STRANGE, self.strange_since)
        return ShownLife() if self.never_since is None else ShownLife(ShownPhase.BLOCKED, self.never_since)

    @property
    def logs(self) -> list[str]:
        """The files with what the batch system has written beside its output, and with that."""
        return [path for path in dict.fromkeys([f"{self.folder}/{layout.BATCH_LOG}", self.output]) if path]

    @property
    def jobs(self) -> int:
        """How many jobs its submission is, as limits of a site count them."""
        return 1 if self.elements is None else len(ArrayRange(self.elements))

    def element(self, index: int, system: BatchSystem) -> RunRecord:
        """One element of the array that this run is, when the batch system has accepted the array."""
        folder = layout.of_element(self.folder, index)
        output = None if self.output is None else f"{folder}/{PurePosixPath(self.output).name}"
        token = layout.of_element(self.token, index)
        own = RunRecord(token, folder, self.jobname, output, submitted_at=self.submitted_at)
        own = replace(own, given_name=self.given_name or self.jobname, cancelling=self.cancelling, time=self.time)
        return own.accepted(str(self.job_id), index, system)

    def timed(self, sentinel: str | None, now: float) -> RunRecord:
        """The run with what is known of when its script began and ended.

        :param sentinel: what the file ``exit`` holds
        :param now: seconds since the epoch
        """
        if not self.ended:
            first = self.state == "running" and self.started_at is None
            return replace(self, started_at=now) if first else self
        if (times := layout.times(sentinel)) is not None:
            # In whole seconds, and by another clock: it began after it was submitted, and ended after it was first seen
            # to run, and before now.
            began, ended = map(float, times)
            submitted = self.submitted_at or 0.0
            ahead = least_ahead(ended, max(submitted + ended - began, self.started_at or 0.0), now)
            started = max(began - ahead, submitted)
            return replace(self, started_at=started, ended_at=max(ended - ahead, started))
        return self if self.ended_at is not None else replace(self, ended_at=now)

    def by_itself(self) -> RunRecord:
        """The run when it is to be submitted by itself."""
        return replace(self, shared=None, array=None, array_name=None, index=None)

    def again(self) -> RunRecord:
        """The run when its job is gone, which a node could not launch: it is to be submitted again."""
        return replace(
            self.by_itself(),
            job_id=None,
            array_id=None,
            attempt=self.attempt + 1,
            not_launched=self.not_launched + 1,
            state="queued",
            cause=None,
            gone_since=None,
            waited=False,
        )

    def accepted(self, id: str, index: int | None, system: BatchSystem) -> RunRecord:
        """The run when the batch system has given it an id.

        :param id: of what was submitted
        :param index: of the element, if that is an array
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
        """The run when it has failed."""
        message = CAUSE_TEXTS.get(cause, f"it ended with exit status {exit_code}" if exit_code else "it failed")
        reported = f"{message} ({reason})" if reason else message
        state: RunState = "cancelled" if cause == "cancelled" else "failed"
        return replace(self, state=state, cause=cause, reason=reported, exit_code=exit_code)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RunRecord:
        """What :meth:`to_json` has made.

        :raises ValueError: it is no such thing
        """
        return _records().validate_python(fields)


@cache
def _records() -> TypeAdapter[RunRecord]:
    return TypeAdapter(RunRecord)


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What a site has said of one run.

    :param asked: whether the batch system has answered; False changes nothing
    :param native: what it says of the job; None: it does not know it
    :param account: what the accounting says; None: nothing yet
    :param accounting: whether the accounting may say more
    :param sentinel: what the file ``exit`` holds
    :param job: what the file ``job`` holds: the id of the batch job that executes the script, and its element
    :param cancelled: whether it has been cancelled, by whomever
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
    """The run after it was tried to submit it, or looked up what has come of that.

    :param answer: to :func:`lading.hooks.job_scripts.layout.submit`
    """
    record = replace(record, submitted_at=record.submitted_at or now)
    first, _, rest = answer.stdout.partition("\n")
    reported, *element = first.split() or [""]
    if reported == "newer" and answer.status == 0 and (attempt := whole_number("".join(element))) is not None:
        return replace(record, attempt=attempt, not_before=0.0, doubtful_since=None)
    if reported in ("answered", "pending"):
        record = _as_element(record, element)
    if answer.status is None or reported not in ("answered", "claimed", "cancelled"):
        # It is not known; it may be under way. What is not under way after so long has died with its machine.
        since = record.doubtful_since or now
        message = "its submission has not been answered yet" if reported == "pending" else answer.message
        record = replace(record, doubtful_since=since, reason=message)
        over = reported == "pending" and now - since > UNDER_WAY
        return replace(record, attempt=record.attempt + 1, look_up=True, array=None) if over else record
    if reported == "cancelled":
        return record.failed("cancelled", "before it was submitted")
    if reported == "claimed":
        return record.accepted(*layout.in_job(rest), system)
    try:
        return record.accepted(system.submitted(replace(answer, stdout=rest)), record.index, system)
    except SubmitError as error:
        return _refused(record, error, now)


def looked_up(record: RunRecord, jobs: Sequence[NativeJob], system: BatchSystem) -> RunRecord:
    """The run whose submission has not been answered, if the batch system has its job."""
    sought = {(record.jobname, None), (record.array_name, record.index)}
    for job in jobs:
        name = plain_name(job)
        if record.elements is not None and name is not None and name == record.jobname:
            return record.accepted(job.id, None, system)
        if name is not None and (name, job.index) in sought:
            return record.accepted(job.id, job.index, system)
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
    """The run after its site was asked how its job is; how it has ended :mod:`lading.hooks.batch.outcome` decides.

    :param deadline: seconds after which a run is lost that neither its folder nor the batch system knows
    :param patience: seconds for which accounting and sentinel are waited for, since they come late
    :param cancel_unrunnable_after: seconds after which a run has failed that can never start, though that may change
    """
    id, index = record.submission
    runs_as, element = layout.in_job(facts.job or id)
    if facts.job and not (layout.same_job(runs_as, id) and element == index):
        # A submission that had no answer was accepted after all, and was faster.
        return replace(record.accepted(runs_as, element, system), state=record.state, gone_since=None)
    if not facts.asked:
        return record
    native = facts.native
    shown = record.shown.lost(now)
    if native is not None:
        shown = record.shown.shown(native, now, blocked_for=cancel_unrunnable_after, strange_for=deadline)
    is_stray = native is not None and shown.phase is ShownPhase.STRAY
    if native is not None and native.state != "ended" and not is_stray:
        living = _living(record, native, shown)
        # What will never start is failed, however often it takes to cancel it.
        return replace(living, cancelling=record.cancelling or (facts.cancelled and not living.hopeless))
    if record.is_held and not (record.cancelling or facts.cancelled or facts.job or facts.sentinel):
        return record.again()
    # In a state that is not known it is gone since then; the accounting was not asked yet when that is found.
    was_gone = record.gone_since is not None
    nodes = (native and native.nodes) or record.nodes
    strange_since = shown.since if is_stray else None
    record = replace(record, gone_since=shown.since, strange_since=strange_since, never_since=None, nodes=nodes)
    ended = decide(
        outcome.Evidence(
            native=None if is_stray else native,
            account=facts.account,
            accounting=facts.accounting,
            sentinel=layout.sentinel(facts.sentinel),
            cancelled=record.cancelling or facts.cancelled,
            says_memory=system.wording.says_memory(facts.log),
            waited=record.waited and facts.job is None,
            at_limit=_at_limit(record, facts.sentinel, system),
            gone=now - shown.since,
            patience=patience,
            deadline=deadline,
        )
    )
    if ended is None or (is_stray and not was_gone):
        return record
    return _over(record, ended, native if is_stray else None)


def _over(record: RunRecord, ended: Outcome, strange: NativeJob | None) -> RunRecord:
    """The run whose job has ended so.

    :param strange: what the batch system still shows of it, in a state that is not known
    """
    if ended.cause == "lost" and strange is not None:  # it may still run, and is cancelled
        return replace(record, cause="lost", reason=strange.reason)
    if ended.cause is None:
        return replace(record, state="succeeded", reason=None, exit_code=0)
    if ended.cause == "lost" and ended.exit_code == 0:
        return record.failed("lost", "the batch system says that it has succeeded")
    return record.failed(ended.cause, ended.reason, ended.exit_code)


def _living(record: RunRecord, native: NativeJob, shown: ShownLife) -> RunRecord:
    """The run whose job has not ended."""
    waits = native.state == "pending"
    never_since = shown.since if shown.phase is ShownPhase.BLOCKED else record.never_since if native.never else None
    hopeless = shown.phase is ShownPhase.UNRUNNABLE and not record.cancelling
    return replace(
        record,
        state="submitted" if waits else "running",
        reason=native.reason,
        cause=native.cause or "error" if hopeless else None,
        never_since=never_since,
        strange_since=shown.since if shown.phase is ShownPhase.STRANGE else None,
        nodes=native.nodes or record.nodes,
        gone_since=None,
        waited=waits,
    )


def _as_element(record: RunRecord, element: Sequence[str]) -> RunRecord:
    """The run whose attempt is this element of an array: its number, and the name of the array's batch job."""
    if len(element) != 2 or (index := whole_number(element[0])) is None:
        return replace(record, index=None, array_name=None)
    return replace(record, index=index, array_name=None if element[1] == "-" else element[1])


def _refused(record: RunRecord, error: SubmitError, now: float) -> RunRecord:
    # A smaller array, or a job, may be taken where an array was not; that of a script itself is as large as it is.
    too_large = record.index is not None and error.is_too_large
    for_ever = error.kind == "permanent" or (error.kind == "limit" and record.elements and error.is_of_arrays)
    if for_ever and not too_large:
        return record.failed("submit_rejected", error.message)
    return replace(
        record,
        attempt=record.attempt + 1,
        not_before=now if too_large else now + pause(record.attempt, *BACKOFF),
        reason=error.message,
        doubtful_since=None,
        look_up=error.kind == "transient",
        array=None,
    )


def _at_limit(record: RunRecord, sentinel: str | None, system: BatchSystem) -> bool:
    """Whether a script ran for as long as its batch system lets it."""
    if record.time is None or (times := layout.times(sentinel)) is None:
        return False
    limit = -(-record.time // system.grain) * system.grain
    return times[1] - times[0] >= limit - HEAD_START
