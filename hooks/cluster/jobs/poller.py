"""What a controller and a cluster say to each other in each mode of a site: the part that the modes share.

The cluster's folder holds the truth: envelopes, what was submitted, what the batch system answered, what jobs have
said. A controller that begins reads it all again. Intent first: what is submitted is in the folder before it is, and a
submission of which it is not known whether it was accepted is looked up by its name.

| read | concluded | until |
|---|---|---|
| the batch system could not be asked | nothing of any job; nothing is submitted (``unasked``) | it answers |
| a submission without an id, its name in no whole list for 15 s | not accepted: submitted again | for good |
| the same in a list that may lack some | nothing | a whole list |
| a survey, notes or accounting that cannot be read | what was known stands | the next look |
| an event that cannot be read | costs itself alone | for good |
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from lading.hooks.batch import canceller
from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.outcome import is_unclear
from lading.hooks.batch.status_query import QUESTION_LIMIT, Statuses, StatusQuery, accounts, ask
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, NativeJob, SubmitError
from lading.hooks.cluster.jobs import remote_steps
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.context import ClusterContext, ClusterPart
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.cluster.jobs.submitter import Submitter
from lading.hooks.cluster.jobs.tracker import PendingActions, Submission, TrackedBatchJob
from lading.hooks.files.logs import Trouble
from lading.hooks.files.owner import Owner
from lading.hooks.polling.outside_clock import SECONDS_UNTIL_SEEN, between, to_epoch
from lading.hooks.polling.task_logs import LogCopies, TaskLogs
from lading.hooks.spool import hold
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import Parts, RemoteStep, Remove
from lading.hooks.ssh.transport import TIMEOUT, Transport
from lading.scheduling.reasons import Reason, because

log = logging.getLogger(__name__)

# A submission without an answer counts as lost when the batch system has not known its name for so long, seconds.
SECONDS_UNTIL_REPEATED = 15.0
# Short waits are not written to Airflow's event log.
SECONDS_UNTIL_REPORTED = 10.0
# A batch system is asked for its nodes so often, in a look that is due anyway.
SECONDS_BETWEEN_SURVEYS = 60.0
# The steps of a look in which the batch system is asked.
STATE_QUESTIONS = frozenset({"status", "accounting"})
QUESTIONS = STATE_QUESTIONS | {"cancel", "nodes"}


@dataclass(slots=True, kw_only=True)
class ClusterLook:
    """What both modes of a site ask and do.

    :param pending: what is done there
    :param done: tokens of jobs whose files are removed
    :param files: the files of events that are removed
    :param copied: the jobs whose logs are looked at
    :param logs: the question for them
    :param status: the question for the states of batch jobs
    :param cancelled: batch jobs of job scripts that were asked to end, which are asked for as well
    :param steps: all that is sent, by names of the look's own
    :param answers: to them, by the same names
    :param asked_at: when it was sent, on the monotonic clock
    """

    pending: PendingActions
    done: list[str]
    files: list[str]
    copied: list[TrackedBatchJob]
    logs: Parts | None = None
    status: StatusQuery | None = None
    cancelled: Mapping[str, Cancellation] = field(default_factory=dict)
    steps: dict[str, RemoteStep] = field(default_factory=dict)
    answers: dict[str, CommandResult] = field(default_factory=dict)
    asked_at: float = 0.0


class StateQuestions:
    """When pollers ask a batch system for the states of jobs: those of all its sites take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0
        """From when on any of them may ask."""
        self._turns: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        """From when on each of them may."""

    def begin(self, poller: object, seconds: float) -> bool:
        """Whether it is the turn of a poller; then it asks now.

        :param seconds: for which none asks after the shortest question
        """
        now = time.monotonic()
        with self._lock:
            if now < self._turns.get(poller, 0.0):
                return False
            self._turns[poller] = now  # it waits for its turn: who asks before it leaves it room
            if now < self._next:
                return False
            self._next = now + seconds
            return True

    def asked(self, poller: object, seconds: float) -> None:
        """Note that a poller has asked: none asks again for so many seconds, and it asks after the others that are
        waiting to."""
        now = time.monotonic()
        with self._lock:
            others = sum(each is not poller and now < turn + seconds for each, turn in self._turns.items())
            self._next, self._turns[poller] = now + seconds, now + seconds * (1 + others)

    def at_once(self) -> None:
        """Let all ask now."""
        with self._lock:
            self._next = 0.0
            self._turns.clear()


_questions: WeakValueDictionary[tuple[str | None, ...], StateQuestions] = WeakValueDictionary()
_questions_lock = threading.Lock()


def questions_to(system: BatchSystem, config: ClusterConfig) -> StateQuestions:
    """What the pollers of all sites share that ask one batch system in one way."""
    key = system.name, config.ssh_conn_id, config.control_master, config.login_setup
    with _questions_lock:
        return _questions.setdefault(key, StateQuestions())


class ClusterPoller(ClusterPart, ABC):
    """The state of a site of a cluster. ``round`` belongs to one thread, the rest may be called by another.

    :param api: URL at which the nodes reach Airflow's execution API
    :param nodes: those to which nothing is submitted; None: all are used
    :param rejected: what cannot be read of what lies there; None: it is not kept here
    """

    submitter: Submitter

    def __init__(
        self,
        config: ClusterConfig,
        system: BatchSystem,
        transport: Transport,
        api: str,
        logs: LogCopies,
        nodes: ExcludedNodes | None = None,
        rejected: RejectedFiles | None = None,
    ) -> None:
        super().__init__(ClusterContext(config, system, nodes or ExcludedNodes(0)))
        self.transport = transport
        self.user: str | None = None
        self.owner: Owner | None = None
        """Whose the cluster's folder is to be; None: any deployment's."""
        self.unasked: Reason | None = None
        """Why the batch system could not be asked when that was tried last; None: it could."""
        self.no_api: str | None = None
        """Why the nodes cannot reach Airflow's API now, as text: nothing is submitted then."""
        self._surveyed_at = self._notes_read_at = -SECONDS_BETWEEN_SURVEYS
        self.questions = StateQuestions()
        self._cancelled_scripts: dict[str, Cancellation] = {}
        self._events_read_at: float | None = None  # of the last look that has read all that were there, monotonic
        self.rejected = rejected or RejectedFiles(None)
        self.logs = TaskLogs(self.folder.logs, logs)
        self._cancels: dict[str, Reason] = {}
        self._troubles = Trouble(log)
        self._set_up(api)

    def _submitted_id(self, name: str, answer: str | None) -> str | None:
        """The native id in the answer to a submission of an earlier controller; None: there is none."""
        if answer is not None:
            try:
                return self.system.submitted(CommandResult(0, answer))
            except SubmitError:
                log.warning("submission %s: %r has no id in it", name, answer)
        return None

    @abstractmethod
    def _set_up(self, api: str) -> None:
        """Make what submits, and what judges how jobs have ended."""

    @property
    def trouble(self) -> Reason | None:
        """Why nothing can be submitted now; None: it can."""
        return self.unasked or self.unreachable_api

    @property
    def unreachable_api(self) -> Reason | None:
        """Why the nodes cannot reach Airflow's API now; None: they can, as far as that is known."""
        return None if self.no_api is None else because("api_unreachable", text=self.no_api)

    @property
    def failing(self) -> str | None:
        """Why what is submitted here fails again and again, as text, as far as that is known before it ends."""
        return None

    # -- what the controller calls

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Take jobs, to be given to the cluster in the next round.

        That one has come back may not be stored yet: who gives it does not know then, and it is to go elsewhere.
        """
        returned = self._returned()
        self.submitter.take(each for each in envelopes if each.token not in returned)

    def _returned(self) -> frozenset[str]:
        """The jobs that have come back, where that is not stored yet."""
        return frozenset(event["token"] for event in self.event_buffer.unread() if event["event"] == "returned")

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """End jobs in the next round; returns whether there is anything new in that."""
        with self.tracker.lock:
            new = {
                token: reason
                for token, reason in reasons.items()
                if (job := self.tracker.jobs.get(token)) is None or (job.cancelled_at is None and not job.ended)
            }
            self._cancels |= new
            return bool(new)

    @abstractmethod
    def ask_back(self, tokens: Mapping[str, Sequence[str]]) -> bool:
        """Take jobs back in the next round that have not begun; returns whether there is anything new in that.

        :param tokens: by the name of the location
        """

    def known(self) -> frozenset[str]:
        """All jobs that the site has."""
        with self.tracker.lock:
            return (
                self.submitter.tokens()
                | self._returned()
                | frozenset(token for token, job in self.tracker.jobs.items() if not job.stored)
            )

    def unread(self) -> list[dict[str, Any]]:
        """The events that were not acknowledged yet."""
        return self.event_buffer.unread()

    def acknowledge(self, count: int) -> None:
        """The first so many of the unread events have been stored."""
        ended = [event["token"] for event in self.event_buffer.acknowledge(count) if event["event"] == "finished"]
        self.tracker.acknowledge(ended)

    # -- the rounds

    def round(self) -> None:
        """One look at the cluster where it is due, and all that it is to be given.

        :raises OSError: it could not be asked
        """
        if self.user is None:
            self._load()
        if self.interval.is_due() or self._has_errands():
            self._look_at_cluster()
        self.submitter.give(self.transport, self.trouble)
        self._cancel()

    def pause(self) -> float:
        """Seconds until the next round: short while something changes, long when nothing has for a while."""
        return self.interval.pause(has_jobs=bool(self.tracker.jobs))

    @abstractmethod
    def batch_jobs(self) -> list[tuple[TrackedBatchJob, str]]:
        """The batch jobs that were asked for and not forgotten, each with the file in which it prints."""

    @abstractmethod
    def withdraw_waiting(self) -> None:
        """Take back what has not begun; the next controller gives it again."""

    def remove(self) -> None:
        """Delete the whole folder, of a trial."""
        parent, _, name = self.folder.root.rpartition("/")
        self.transport.remove(parent, [name])

    @abstractmethod
    def _load(self) -> None:
        """Read what an earlier controller has left."""

    @abstractmethod
    def _look_at_cluster(self) -> None:
        """Look at the cluster, and do what is to be done there."""

    @abstractmethod
    def _cancel(self) -> None:
        """End the jobs that are to be ended."""

    @abstractmethod
    def _read_event(self, event: dict[str, Any], job: TrackedBatchJob, file: str | None) -> None:
        """Take in an event of a job.

        :param file: the file of which it is the last one
        """

    def _has_errands(self) -> bool:
        """Whether something is to be done at the cluster before the next look is due."""
        pending = self.tracker.pending
        return bool(pending.cancels or pending.withdrawals) or any(
            job.stored for job in list(self.tracker.jobs.values())
        )

    def _report(self, event: dict[str, Any], job: TrackedBatchJob, file: str | None = None) -> None:
        """Report an event of a job, with its batch job and node as far as they are known."""
        self.event_buffer.add({**event, **self._location_of(job)}, file)

    def _conclude(self, job: TrackedBatchJob, event: dict[str, Any], file: str | None) -> None:
        """Report the end of a job; there is room for another.

        :param file: in which the event came
        """
        job.end()
        if (id := job.native_id(self.system)) is not None:
            self.tracker.canceller.forget(id)
        self.submitter.note_end()
        self.interval.at_once()
        self._report(event, job, file)

    def _location_of(self, job: TrackedBatchJob) -> dict[str, str]:
        """The ``native_id`` and the ``node`` of a job, as far as they are known."""
        return job.whereabouts(self.system)

    # -- one look

    def _due(self) -> dict[str, Any]:
        """What every look is about."""
        return {
            "pending": self.tracker.pending.take(),
            "done": [job.token for job in self.tracker.over()],
            "files": self.event_buffer.done(),
            "copied": self._logs_to_copy(),
        }

    def _ask(
        self,
        look: ClusterLook,
        removals: Sequence[str],
        batches: Sequence[TrackedBatchJob],
        gone: Sequence[TrackedBatchJob],
    ) -> None:
        """Add what is asked and done in every look, before what jobs have said is read: who ends has said so before.

        :param removals: the files that are not needed any more, relative to the cluster's folder
        :param batches: the batch jobs that may live
        :param gone: those of them that may have ended
        """
        steps, pending = look.steps, look.pending
        if removals:
            steps["remove"] = Remove(self.folder.root, removals)
        if pending.withdrawals:
            steps["withdraw"] = remote_steps.withdraw(self.folder, pending.withdrawals)
        if pending.cancels:
            steps["cancel"] = ask(self.system.cancel(pending.cancels))
        if self.submitter.bundles is not None:
            with self.tracker.lock:
                sweep = self.submitter.bundles.sweep({job.bundle for job in self.tracker.jobs.values()})
            if sweep is not None:
                steps["sweep"] = sweep
        assert self.user is not None
        look.cancelled = dict(self._cancelled_scripts)
        asks = batches or look.cancelled or self.unasked is not None
        is_due = bool(asks or gone) and self.questions.begin(self, self.config.seconds_after_questions(1, len(batches)))
        if is_due and asks:
            known = {job.submission.id for job in batches if job.submission is not None}
            known |= {each.id for each in look.cancelled.values()}
            unsure, ids = None in known, sorted(id for id in known if id)
            look.status = StatusQuery(self.system, self.user, ids, by_name=unsure)
            steps["status"] = look.status.step
        if time.monotonic() - self._notes_read_at >= SECONDS_BETWEEN_SURVEYS:
            steps["cancelled"] = canceller.read_notes(self.folder.root)
        if self.system.survey is not None and time.monotonic() - self._surveyed_at >= SECONDS_BETWEEN_SURVEYS:
            steps["nodes"] = ask(self.system.survey.command)
        if is_due and (accounting := self._accounting(gone)) is not None:
            steps["accounting"] = ask(accounting)
        if asked := len(STATE_QUESTIONS & steps.keys()):
            self.questions.asked(self, self.config.seconds_after_questions(asked, len(batches)))

    def _accounting(self, gone: Sequence[TrackedBatchJob]) -> list[str] | None:
        """The question to the accounting, if there is one and it may know more than the batch system has."""
        unclear = [job.submission for job in gone if is_unclear(job.native) and job.submission is not None]
        ids = sorted({each.id for each in unclear if each.id})
        if not ids or self.config.accounting == "off" or self.user is None:
            return None
        return self.system.accounting(ids, self.user, min(each.since for each in unclear))

    def _send(self, look: ClusterLook) -> dict[str, CommandResult]:
        """Send a look, with the question for logs at its end, which then hold all that jobs had written before theirs.

        :returns: the answers; those to what was to be done are taken in
        :raises OSError: its outcome is not known; after any error all is done again
        """
        pending, look.asked_at = self.tracker.pending, time.monotonic()
        if look.copied:
            look.steps["logs"] = look.logs = self.logs.question(look.copied)
        timeout = TIMEOUT + QUESTION_LIMIT * len(QUESTIONS & look.steps.keys())
        try:
            answers = dict(zip(look.steps, self.transport.exchange(list(look.steps.values()), timeout), strict=True))
        except BaseException:
            pending.put_back(look.pending)
            raise
        look.answers = answers
        if "cancel" in answers:
            pending.check_cancelled(self.system, look.pending.cancels, answers["cancel"], look.asked_at)
        if "withdraw" in answers and answers["withdraw"].status != 0:
            pending.withdrawals += look.pending.withdrawals
        if "remove" in answers and answers["remove"].status != 0:
            pending.leftovers |= look.pending.leftovers
        elif "remove" in answers:
            self._forget(look.done, look.files)
        if "nodes" in answers:
            self._take_inventory(answers["nodes"])
        if "cancelled" in answers:
            self._take_notes(answers["cancelled"])
        return answers

    def _take_notes(self, answer: CommandResult) -> None:
        """Know which batch jobs of job scripts were asked to end; where that cannot be read, what was known stands."""
        self._notes_read_at = time.monotonic()
        trouble = None
        try:
            self._cancelled_scripts = canceller.parse_notes(answer)
        except TransportError as error:
            trouble = error
        self._troubles.note("which job scripts were cancelled", trouble)

    def _press_scripts(self, cancelled: Mapping[str, Cancellation], known: Statuses) -> None:
        """Ask again to end the jobs of job scripts that are still listed; who asked first may have ended."""
        for name, cancellation in cancelled.items():
            id, is_shown = cancellation.native_id(self.system), cancellation.is_shown(known.jobs)
            if not is_shown and known.is_silent((cancellation.id, cancellation.index)):
                continue
            if not is_shown:
                self.tracker.canceller.forget(id)
                self.tracker.pending.leftovers.add(f"{canceller.NOTES}/{name}")
                self._cancelled_scripts.pop(name, None)
            else:
                self.tracker.pending.cancels += self.tracker.canceller.press([id], at_once=False)

    def _take_inventory(self, answer: CommandResult) -> None:
        """Know the nodes; where that could not be asked, the last answer stays valid."""
        assert self.system.survey is not None
        self._surveyed_at = time.monotonic()
        trouble = None
        try:
            self.submitter.inventory = self.system.survey.inventory(answer)
        except CouldNotAsk as error:
            trouble = error
        self._troubles.note("how many nodes are idle", trouble)

    def _forget(self, tokens: Sequence[str], files: Sequence[str]) -> None:
        """These jobs are over, and their files removed as well as these files of events."""
        self.event_buffer.removed(files)
        self.tracker.forget(tokens)
        self.logs.forget(tokens)

    def _accounts(self, look: ClusterLook) -> Statuses:
        return accounts(self.system, look.answers.get("accounting"), self._troubles)

    def _read_logs(self, look: ClusterLook) -> None:
        """Copy what is new in logs; and take in which Dag bundles that no job reads any more were removed."""
        if look.logs is not None:
            self.logs.copy(look.copied, look.logs, look.answers["logs"])
        if "sweep" in look.answers and self.submitter.bundles is not None:
            self.submitter.bundles.swept(look.answers["sweep"])

    def _read_events(self, files: Mapping[str, bytes]) -> None:
        earliest, latest = to_epoch(self._events_read_at) - SECONDS_UNTIL_SEEN, time.time()
        for reported, last in self.event_buffer.new(files, self.rejected):
            event = between(reported, earliest, latest)  # it is dated by the clock of a node
            token = event["token"]
            if event["event"] in hold.EVENTS:
                self.event_buffer.add(event, last)
                continue
            if event["event"] not in ("started", "finished") and token not in self.tracker.jobs:
                self.event_buffer.drop(last)  # it was taken back meanwhile, and the store gives it again
                continue
            # Another one that is not known began while it was being withdrawn.
            self._read_event(event, self.tracker.job(token), last)

    def _statuses(self, look: ClusterLook) -> Statuses | None:
        """What the batch system says now; None: it was not asked, or could not be."""
        if look.status is None:
            return None
        try:
            found = look.status.read(look.answers["status"])
        except CouldNotAsk as error:
            self.unasked = because("batch_unasked", text=error.message)
            return None
        self.unasked = None
        self._troubles.note("the states of jobs", found.gap)
        self._press_scripts(look.cancelled, found)
        return found

    def _read_states(self, known: Statuses, live: Sequence[TrackedBatchJob], asked_at: float) -> None:
        """Take in what the batch system says of batch jobs now.

        :param asked_at: on the monotonic clock
        """
        for submission in {id(job.submission): job.submission for job in live if job.submission}.values():
            if not submission.is_found(known) and known.is_whole:
                self._doubt(submission, asked_at)
        for job in live:
            if not job.ended and (key := job.key) is not None and not known.is_silent(key):
                self._compare(job, job.found_in(known), asked_at)

    @abstractmethod
    def _doubt(self, submission: Submission, asked_at: float) -> None:
        """Take a submission for lost that the batch system has not known for long, unless its jobs have begun."""

    @abstractmethod
    def _compare(self, job: TrackedBatchJob, native: NativeJob | None, asked_at: float) -> None:
        """See what is new in what the batch system says of a job.

        :param native: None: it does not know it
        """

    def _see(self, job: TrackedBatchJob, native: NativeJob | None, asked_at: float, *, may_run: bool = False) -> None:
        """Take in what the batch system says of a batch job now.

        :param may_run: whether it may still run in a state that Lading does not know, for however long
        """
        blocked_for = self.config.cancel_unrunnable_after
        strange_for = math.inf if may_run else self.config.lost_after
        if job.see(native, asked_at, blocked_for=blocked_for, strange_for=strange_for):
            self.interval.changed(asked_at)

    def _logs_to_copy(self) -> list[TrackedBatchJob]:
        """The jobs whose logs are looked at now; the others come before them in the next look."""
        chosen = self.logs.choose(self.tracker.jobs.values())
        self.tracker.move_to_end(chosen)
        return chosen
