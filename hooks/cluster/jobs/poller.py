"""The communication between a controller and a cluster that both modes of a site share.

The cluster's folder holds the truth: envelopes, submissions, the batch system's answers, and the reports of jobs. A
controller that starts reads all of it. Intents come first: a submission is written to the folder before it is made, and
if its outcome is unknown, it is looked up by its name.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| the batch system could not be asked | nothing about any job; no submissions (``unasked``) | it answers |
| a submission without an ID, its name in no complete list for 15 s | not accepted: submitted again | final |
| the same in a list that may be incomplete | nothing | a complete list |
| a survey, notes or accounting that cannot be read | the previous ones stay valid | the next poll |
| an event that cannot be read | skipped | final |
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
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)

# The steps of a poll that query the batch system.
STATE_QUESTIONS = frozenset({"status", "accounting"})
QUESTIONS = STATE_QUESTIONS | {"cancel", "nodes"}


@dataclass(slots=True, kw_only=True)
class ClusterLook:
    """The steps of one poll that both modes of a site share.

    :param pending: the actions of this poll, such as cancellations
    :param done: tokens of jobs whose files are removed
    :param files: event files to be removed
    :param copied: jobs whose logs are copied
    :param logs: the step that reads these logs
    :param status: the query for the states of batch jobs
    :param cancelled: cancelled batch jobs of job scripts, which are queried as well
    :param steps: all steps by name
    :param answers: the answers by the same names
    :param asked_at: when the steps were sent, on the monotonic clock
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
    """Limits how often pollers query a batch system for the states of jobs: all of its sites take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0
        """When the next query is allowed, for any poller."""
        self._turns: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        """When the next query is allowed, by poller."""

    def begin(self, poller: object, seconds: float) -> bool:
        """Whether it is a poller's turn; if so, the query begins now.

        :param seconds: minimum time without further queries after this one
        """
        now = time.monotonic()
        with self._lock:
            if now < self._turns.get(poller, 0.0):
                return False
            self._turns[poller] = now  # it is waiting for its turn, so other pollers leave room for it
            if now < self._next:
                return False
            self._next = now + seconds
            return True

    def asked(self, poller: object, seconds: float) -> None:
        """Note that a poller has sent a query: the next one is allowed after this many seconds, and this poller's turn
        comes after those of the others that are waiting.
        """
        now = time.monotonic()
        with self._lock:
            others = sum(each is not poller and now < turn + seconds for each, turn in self._turns.items())
            self._next, self._turns[poller] = now + seconds, now + seconds * (1 + others)

    def at_once(self) -> None:
        with self._lock:
            self._next = 0.0
            self._turns.clear()


_questions: WeakValueDictionary[tuple[str | None, ...], StateQuestions] = WeakValueDictionary()
_questions_lock = threading.Lock()


def questions_to(system: BatchSystem, config: ClusterConfig) -> StateQuestions:
    """Return the object that the pollers of all sites share that reach the same batch system in the same way."""
    key = system.name, config.ssh_conn_id, config.control_master, config.login_setup
    with _questions_lock:
        return _questions.setdefault(key, StateQuestions())


class ClusterPoller(ClusterPart, ABC):
    """The state of a cluster's site. Only one thread calls ``round``; other threads can call the remaining methods.

    :param api: URL at which the nodes reach Airflow's execution API
    :param nodes: failed nodes, to which nothing is submitted; None: all nodes are used
    :param rejected: keeps files of the cluster that cannot be read; None: they are not kept
    """

    submitter: Submitter
    seconds_until_repeated = 15.0
    """Until a submission without an answer counts as lost if the batch system does not know its name."""
    seconds_between_surveys = 60.0
    """Of the nodes, made in polls that are due anyway."""

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
        """The deployment that is to own the cluster's folder; None: any deployment."""
        self.unasked: Reason | None = None
        """Why the last attempt to query the batch system failed; None: it succeeded."""
        self.no_api: str | None = None
        """Why the nodes cannot reach Airflow's API now, as text; nothing is submitted meanwhile. None: they can."""
        self._surveyed_at = self._notes_read_at = -self.seconds_between_surveys
        self.questions = StateQuestions()
        self._cancelled_scripts: dict[str, Cancellation] = {}
        self._events_read_at: float | None = None  # last poll that has read all events, on the monotonic clock
        self.rejected = rejected or RejectedFiles(None)
        self.logs = TaskLogs(self.folder.logs, logs)
        self._cancels: dict[str, Reason] = {}
        self._troubles = Trouble(log)
        self._set_up(api)

    def _submitted_id(self, name: str, answer: str | None) -> str | None:
        """Return the native ID in the answer to an earlier controller's submission; None: there is none."""
        if answer is not None:
            try:
                return self.system.submitted(CommandResult(0, answer))
            except SubmitError:
                log.warning("submission %s: %r contains no job ID", name, answer)
        return None

    def _named_clusters(self, name: str, header: str) -> tuple[str, ...]:
        """Return the clusters that the script of an earlier controller's submission names.

        :param header: of the script
        """
        try:
            return self.system.clusters_of_script(header)
        except ValueError as error:
            log.warning("submission %s: %s", name, error)
        return ()

    @abstractmethod
    def _set_up(self, api: str) -> None:
        """Create the submitter and the post-mortem of the mode."""

    @property
    def trouble(self) -> Reason | None:
        """Why nothing can be submitted now; None: submissions are possible."""
        return self.unasked or self.unreachable_api

    @property
    def unreachable_api(self) -> Reason | None:
        """Why the nodes cannot reach Airflow's API now; None: they can, as far as known."""
        return None if self.no_api is None else because("api_unreachable", text=self.no_api)

    @property
    def failing(self) -> str | None:
        """Why submissions keep failing, as text, if that is known before the failure is final; None: they do not."""
        return None

    # -- what the controller calls

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Take jobs, to be given to the cluster in the next round.

        Jobs whose return is not stored yet are skipped: the caller does not know of it, and they are to go elsewhere.
        """
        returned = self._returned()
        self.submitter.take(each for each in envelopes if each.token not in returned)

    def _returned(self) -> frozenset[str]:
        return frozenset(event["token"] for event in self.event_buffer.unread() if event["event"] == "returned")

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """Request the cancellation of jobs in the next round; return whether any request is new."""
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
        """Take back jobs that have not started, in the next round; return whether any request is new.

        :param tokens: by the name of the location
        """

    def known(self) -> frozenset[str]:
        with self.tracker.lock:
            return (
                self.submitter.tokens()
                | self._returned()
                | frozenset(token for token, job in self.tracker.jobs.items() if not job.stored)
            )

    def unread(self) -> list[dict[str, Any]]:
        return self.event_buffer.unread()

    def acknowledge(self, count: int) -> list[dict[str, Any]]:
        """Note that the first ``count`` of the unread events have been stored, and return them."""
        stored = self.event_buffer.acknowledge(count)
        self.tracker.acknowledge(event["token"] for event in stored if event["event"] == "finished")
        return stored

    # -- the rounds

    def round(self) -> None:
        """Poll the cluster if that is due, and give it all that is pending.

        :raises OSError: it could not be reached
        """
        if self.user is None:
            self._load()
        if self.interval.is_due() or self._has_errands():
            self._look_at_cluster()
        self.submitter.give(self.transport, self.trouble)
        self._cancel()

    def pause(self) -> float:
        """Return the seconds until the next round: few while something changes, many after a while without changes."""
        return self.interval.pause(has_jobs=bool(self.tracker.jobs))

    @abstractmethod
    def batch_jobs(self) -> list[tuple[TrackedBatchJob, str]]:
        """Return the submitted batch jobs that are not forgotten, each with the file of its output."""

    @abstractmethod
    def withdraw_waiting(self) -> None:
        """Take back what has not started; the next controller gives it again."""

    def remove(self) -> None:
        """Delete the whole folder of a trial."""
        parent, _, name = self.folder.root.rpartition("/")
        self.transport.remove(parent, [name])

    @abstractmethod
    def _load(self) -> None:
        """Read what an earlier controller has left."""

    @abstractmethod
    def _look_at_cluster(self) -> None:
        """Poll the cluster, and do what is pending there."""

    @abstractmethod
    def _cancel(self) -> None:
        """Cancel the jobs whose cancellation was requested."""

    @abstractmethod
    def _read_event(self, event: dict[str, Any], job: TrackedBatchJob, file: str | None) -> None:
        """Process an event of a job.

        :param file: the file whose last event it is
        """

    def _has_errands(self) -> bool:
        """Whether something has to be done at the cluster before the next poll is due."""
        pending = self.tracker.pending
        return bool(pending.cancels or pending.withdrawals) or any(
            job.stored for job in list(self.tracker.jobs.values())
        )

    def _report(self, event: dict[str, Any], job: TrackedBatchJob, file: str | None = None) -> None:
        self.event_buffer.add({**event, **self._location_of(job)}, file)

    def _conclude(self, job: TrackedBatchJob, event: dict[str, Any], file: str | None) -> None:
        """Report the end of a job, which makes room for another one.

        :param file: contained the event
        """
        job.end()
        if (id := job.native_id(self.system)) is not None:
            self.tracker.canceller.forget(id)
        self.submitter.note_end()
        self.interval.at_once()
        self._report(event, job, file)

    def _location_of(self, job: TrackedBatchJob) -> dict[str, str]:
        return job.whereabouts(self.system)

    # -- polling

    def _due(self) -> dict[str, Any]:
        """Return the common fields of a poll in either mode."""
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
        """Add the steps of every poll that come before reading the events of jobs: a job that has ended by then has
        reported that already.

        :param removals: files that are no longer needed, relative to the cluster's folder
        :param batches: batch jobs that may not have ended
        :param gone: those of them that may have ended
        """
        steps, pending = look.steps, look.pending
        if removals:
            steps["remove"] = Remove(self.folder.root, removals)
        if pending.withdrawals:
            steps["withdraw"] = remote_steps.withdraw(self.folder, pending.withdrawals)
        if pending.cancels:
            steps["cancel"] = ask(self.system.cancel(list(pending.cancels)))
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
            lost = [job.submission for job in batches if job.submission is not None and job.submission.id is None]
            clusters = {cluster for submission in lost for cluster in submission.clusters}
            look.status = StatusQuery(self.system, self.user, ids, by_name=unsure, clusters=clusters)
            steps["status"] = look.status.step
        if time.monotonic() - self._notes_read_at >= self.seconds_between_surveys:
            steps["cancelled"] = canceller.read_notes(self.folder.root)
        survey = None if self.context.home else self.system.survey  # it shows the nodes of the login node's cluster
        if survey is not None and time.monotonic() - self._surveyed_at >= self.seconds_between_surveys:
            steps["nodes"] = ask(survey.command)
        if is_due and (accounting := self._accounting(gone)) is not None:
            steps["accounting"] = ask(accounting)
        if asked := len(STATE_QUESTIONS & steps.keys()):
            self.questions.asked(self, self.config.seconds_after_questions(asked, len(batches)))

    def _accounting(self, gone: Sequence[TrackedBatchJob]) -> list[str] | None:
        """Return the accounting query; None: there is no accounting, or it cannot know more than the batch system."""
        unclear = [job.submission for job in gone if is_unclear(job.native) and job.submission is not None]
        ids = sorted({each.id for each in unclear if each.id})
        if not ids or self.config.accounting == "off" or self.user is None:
            return None
        return self.system.accounting(ids, self.user, min(each.since for each in unclear))

    def _send(self, look: ClusterLook) -> dict[str, CommandResult]:
        """Send a poll. Reading logs is its last step, so that they contain all that jobs wrote before their last
        events.

        :returns: the answers, after the results of actions have been processed
        :raises OSError: the outcome is unknown; after any error all actions are repeated
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
            pending.check_cancelled(self.system, look.pending, answers["cancel"], look.asked_at)
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
        """Read which batch jobs of job scripts were cancelled; if that fails, the previous list stays valid."""
        self._notes_read_at = time.monotonic()
        trouble = None
        try:
            self._cancelled_scripts = canceller.parse_notes(answer)
        except TransportError as error:
            trouble = error
        self._troubles.note("the cancelled job scripts", trouble)

    def _press_scripts(self, cancelled: Mapping[str, Cancellation], known: Statuses) -> None:
        """Cancel listed jobs of job scripts again, because the process that cancelled them first may have exited."""
        for name, cancellation in cancelled.items():
            id, is_shown = cancellation.native_id(self.system), cancellation.is_shown(known.jobs)
            if not is_shown and known.is_silent((cancellation.id, cancellation.index)):
                continue
            if not is_shown:
                self.tracker.canceller.forget(id)
                self.tracker.pending.leftovers.add(f"{canceller.NOTES}/{name}")
                self._cancelled_scripts.pop(name, None)
            else:
                self.tracker.pending.cancel(self.tracker.canceller.press([id], at_once=False))

    def _take_inventory(self, answer: CommandResult) -> None:
        """Read the nodes and queues; if that fails, the previous inventory stays valid."""
        assert self.system.survey is not None
        self._surveyed_at = time.monotonic()
        trouble = None
        try:
            self.submitter.inventory = self.system.survey.inventory(answer)
        except CouldNotAsk as error:
            trouble = error
        self._troubles.note("the nodes of the cluster", trouble)

    def _forget(self, tokens: Sequence[str], files: Sequence[str]) -> None:
        """Forget finished jobs whose files have been removed, and these event files."""
        self.event_buffer.removed(files)
        self.tracker.forget(tokens)
        self.logs.forget(tokens)

    def _accounts(self, look: ClusterLook) -> Statuses:
        return accounts(self.system, look.answers.get("accounting"), self._troubles)

    def _read_logs(self, look: ClusterLook) -> None:
        """Copy new log lines, and note which Dag bundles were removed because no job reads them any more."""
        if look.logs is not None:
            self.logs.copy(look.copied, look.logs, look.answers["logs"])
        if "sweep" in look.answers and self.submitter.bundles is not None:
            self.submitter.bundles.swept(look.answers["sweep"])

    def _read_events(self, files: Mapping[str, bytes]) -> None:
        earliest, latest = to_epoch(self._events_read_at) - SECONDS_UNTIL_SEEN, time.time()
        for reported, last in self.event_buffer.new(files, self.rejected):
            event = between(reported, earliest, latest)  # a node's clock has dated it
            token = event["token"]
            if event["event"] in hold.EVENTS:
                self.event_buffer.add(event, last)
                continue
            if event["event"] not in ("started", "finished") and token not in self.tracker.jobs:
                self.event_buffer.drop(last)  # the job was taken back meanwhile, and the store gives it again
                continue
            # Any other unknown job started while it was being withdrawn.
            self._read_event(event, self.tracker.job(token), last)

    def _statuses(self, look: ClusterLook) -> Statuses | None:
        """Return the batch system's report; None: it was not queried, or could not be."""
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
        """Process the batch system's report about batch jobs.

        :param asked_at: on the monotonic clock
        """
        for submission in {id(job.submission): job.submission for job in live if job.submission}.values():
            if not submission.is_found(known) and known.are_whole(submission.clusters):
                self._doubt(submission, asked_at)
        for job in live:
            if not job.ended and (key := job.key) is not None and not known.is_silent(key):
                self._compare(job, job.found_in(known), asked_at)

    @abstractmethod
    def _doubt(self, submission: Submission, asked_at: float) -> None:
        """Treat a submission as lost if the batch system has not known it for long and none of its jobs has started."""

    @abstractmethod
    def _compare(self, job: TrackedBatchJob, native: NativeJob | None, asked_at: float) -> None:
        """Process what the batch system reports about a job.

        :param native: None: it does not know the job
        """

    def _see(self, job: TrackedBatchJob, native: NativeJob | None, asked_at: float, *, may_run: bool = False) -> None:
        """Process the batch system's report about a batch job.

        :param may_run: whether the job may still be running in a state unknown to Lading, for any length of time
        """
        blocked_for = self.config.cancel_unrunnable_after
        strange_for = math.inf if may_run else self.config.lost_after
        if job.see(native, asked_at, blocked_for=blocked_for, strange_for=strange_for):
            self.interval.changed(asked_at)

    def _logs_to_copy(self) -> list[TrackedBatchJob]:
        """Return the jobs whose logs are read now; the next poll starts with the others."""
        chosen = self.logs.choose(self.tracker.jobs.values())
        self.tracker.move_to_end(chosen)
        return chosen
