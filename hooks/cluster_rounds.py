"""The rounds in which a controller and a cluster talk: one look at it, and one in which it is given something.

The cluster's folder holds the truth: envelopes, the tasks of each submission, what the batch system answered, what jobs
have said. A controller that begins reads it all again. Intent first: a submission is in the folder before it is made,
and one of which nobody knows whether it was accepted is looked up by its name before its tasks are submitted again.
Should a task be submitted twice all the same, the first of its batch jobs takes the envelope and the second ends.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lading.hooks import cluster_steps, cluster_verdict
from lading.hooks.batch import Answer, BatchSystem, CouldNotAsk, NativeJob, SubmitError
from lading.hooks.cluster_config import ClusterConfig
from lading.hooks.cluster_folder import ClusterFolder
from lading.hooks.cluster_giving import Giving
from lading.hooks.cluster_judgement import MOST_VERDICTS, Judgement
from lading.hooks.cluster_ledger import Ledger, Submission, Tracked
from lading.hooks.cluster_logs import TaskLogs
from lading.hooks.cluster_news import News
from lading.hooks.cluster_pace import Pace
from lading.hooks.cluster_steps import Parts
from lading.hooks.exchange import GetAll, Put, Remove, Run, Step, TransportError
from lading.hooks.log_copy import LogCopies
from lading.hooks.spool import Envelope

if TYPE_CHECKING:
    from lading.hooks.transport import Transport

log = logging.getLogger(__name__)

# A submission of which nobody knows is given up when the batch system has not known its name for so long, seconds.
SECONDS_UNTIL_REPEATED = 15.0
# A job that runs by its batch system says so itself within this, seconds; else it is believed without.
SECONDS_UNTIL_BELIEVED = 30.0
# A job that was asked to end, and does not, is ended by the batch system, seconds after the kill grace.
SECONDS_UNTIL_FORCED = 60.0
# Airflow's event log is not told of short waits.
SECONDS_UNTIL_TOLD = 10.0


@dataclass(slots=True)
class _Look:
    """One look at the cluster.

    :param done: tokens whose files are removed, and files of events that are
    :param cancels: native ids, and what is withdrawn from its submission
    :param doubtful: the jobs that may have ended without a word
    :param copied: those whose logs are looked at
    """

    done: list[str]
    files: list[str]
    cancels: list[str]
    withdrawals: list[tuple[str, str]]
    live: list[Tracked]
    doubtful: list[Tracked]
    copied: list[Tracked]
    logs: Parts | None = None
    steps: dict[str, Step] = field(default_factory=dict)


class Rounds:
    """The state of a site of batch jobs. ``round`` belongs to one thread, the rest may be called by another.

    :param api: URL of Airflow's execution API
    :ivar no_api: why the nodes cannot reach it now, in words: nothing is submitted then
    """

    def __init__(
        self, config: ClusterConfig, system: BatchSystem, transport: Transport, api: str, logs: LogCopies
    ) -> None:
        self.config = config
        self.system = system
        self.transport = transport
        self.folder = ClusterFolder(config.work_dir)
        self.user: str | None = None
        self.note: str | None = None
        self.no_api: str | None = None
        self.ledger = Ledger()
        self.news = News()
        self.pace = Pace(config.poll_shortest, config.longest_poll)
        self.logs = TaskLogs(self.folder, logs)
        self.giving = Giving(config, system, api, self.ledger, self.news, self.pace)
        self.judgement = Judgement(config, self.ledger, self.news, self._conclude)
        self._cancels: dict[str, str] = {}
        self._has_accounting = config.accounting == "auto"

    # -- what the controller calls

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Take jobs, to be submitted in the next round."""
        self.giving.take(envelopes)

    def ask_to_cancel(self, messages: Mapping[str, str]) -> bool:
        """End jobs in the next round; returns whether there is anything new in that."""
        with self.ledger.lock:
            new = {
                token: words
                for token, words in messages.items()
                if (job := self.ledger.jobs.get(token)) is None or (job.cancelled_at is None and not job.ended)
            }
            self._cancels |= new
            return bool(new)

    def known(self) -> frozenset[str]:
        """All jobs that the site has."""
        with self.ledger.lock:
            return self.giving.tokens() | frozenset(
                token for token, job in self.ledger.jobs.items() if not job.acknowledged
            )

    def unread(self) -> list[dict[str, Any]]:
        """The events that were not acknowledged yet."""
        return self.news.unread()

    def acknowledge(self, count: int) -> None:
        """The first so many of the unread events have been stored."""
        ended = [event["token"] for event in self.news.acknowledge(count) if event["event"] == "finished"]
        with self.ledger.lock:
            for token in ended:
                if token in self.ledger.jobs:
                    self.ledger.jobs[token].acknowledged = True

    # -- the rounds

    def round(self) -> None:
        """One look at the cluster where it is due, and all that it is to be given.

        :raises OSError: it could not be asked
        """
        if self.user is None:
            self._load()
        if self.pace.is_due() or self._has_errands():
            self._look()
        self.giving.give(self.transport, self.note or self.no_api)
        self._cancel()

    def pause(self) -> float:
        """Seconds until the next round: short while something changes, long when nothing has for a while."""
        return self.pace.pause(has_jobs=bool(self.ledger.jobs))

    def withdraw_waiting(self) -> None:
        """Take back from the batch system what it has not started; it is submitted again by whoever comes next."""
        for job in list(self.ledger.live()):
            if not job.started and (job.native is None or job.native.state == "pending"):
                self.ledger.cancel_natively(job, self.system)
                job.envelope = None
                self.ledger.withdraw(job)

    def remove(self) -> None:
        """Delete the whole folder, of a trial."""
        parent, _, name = self.folder.root.rpartition("/")
        self.transport.remove(parent, [name])

    def _has_errands(self) -> bool:
        errands = self.ledger.errands
        return bool(errands.cancels or errands.withdrawals) or any(
            job.acknowledged for job in list(self.ledger.jobs.values())
        )

    def _load(self) -> None:
        (answer,) = self.transport.exchange([cluster_steps.load(self.folder)])
        self.user, found, begun = cluster_steps.loaded(answer)
        now = time.monotonic()
        for each in found:
            id = None
            if each.answer is not None:
                try:
                    id = self.system.submitted(Answer(0, each.answer))
                except SubmitError:
                    log.warning("submission %s: %r has no id in it", each.name, each.answer)
            submission = Submission(each.name, [task.token for task in each.tasks], id, now)
            tasks = [task for task in each.tasks if task.token not in each.withdrawn]
            self.ledger.submit_found(submission, tasks, begun)

    # -- looking

    def _look(self) -> None:
        look = self._prepare()
        asked_at = time.monotonic()
        answers = dict(zip(look.steps, self.transport.exchange(list(look.steps.values())), strict=True))
        errands = self.ledger.errands
        try:
            events = GetAll(self.folder.events).files(answers["events"])
        except TransportError:
            errands.cancels, errands.withdrawals = look.cancels, look.withdrawals
            raise
        self.pace.looked(has_jobs=bool(self.ledger.jobs))
        if look.withdrawals and answers["withdraw"].status != 0:
            errands.withdrawals += look.withdrawals
        if "remove" in answers and answers["remove"].status == 0:
            self._forget(look.done, look.files)
        self._read_events(events)
        known = "status" in answers and self._read_status(answers["status"], look.live, asked_at)
        if "sweep" in answers and self.giving.bundles is not None:
            self.giving.bundles.swept(answers["sweep"])
        accounts = self._read_accounting(answers["accounting"]) if "accounting" in answers else {}
        if look.logs is not None:
            self.logs.copy(look.copied, look.logs, answers["logs"])
        if look.doubtful and known:
            self.judgement.judge(look.doubtful, answers["remains"], accounts)
        self._press(asked_at)

    def _prepare(self) -> _Look:
        """What is asked and done in one look."""
        done, files, errands = self.ledger.over(), self.news.done(), self.ledger.errands
        live = list(self.ledger.live())
        doubtful = [job for job in live if job.gone_since is not None][:MOST_VERDICTS]
        look = _Look(done, files, *errands.take(), live, doubtful, self.logs.choose(self.ledger))
        removals = [f"spool/events/{name}" for name in files]
        removals += [name for token in done for name in self.folder.files_of(token)] + sorted(errands.leftovers)
        if removals:
            look.steps["remove"] = Remove(self.folder.root, removals)
        if look.withdrawals:
            look.steps["withdraw"] = cluster_steps.withdraw(self.folder, look.withdrawals)
        if look.cancels:
            look.steps["cancel"] = Run(self.system.cancel(look.cancels))
        if live or self.note is not None:
            look.steps["status"] = self._status(live)
        if (accounting := self._accounting(doubtful)) is not None:
            look.steps["accounting"] = Run(accounting)
        if (sweep := self._sweep()) is not None:
            look.steps["sweep"] = sweep
        look.steps["events"] = GetAll(self.folder.events)
        if doubtful:
            look.steps["remains"] = self.judgement.question(doubtful)
        if look.copied:
            look.steps["logs"] = look.logs = self.logs.question(look.copied)
        return look

    def _sweep(self) -> Run | None:
        """What removes Dag bundles that no job reads any more; None: it is not the time."""
        if self.giving.bundles is None:
            return None
        with self.ledger.lock:
            return self.giving.bundles.sweep({job.task.bundle for job in self.ledger.jobs.values()})

    def _status(self, live: Sequence[Tracked]) -> Run:
        assert self.user is not None
        known = sorted({job.submission.id for job in live if job.submission and job.submission.id})
        unsure = any(job.submission is not None and job.submission.id is None for job in live)
        return Run(self.system.status(self.user, () if unsure else known))

    def _forget(self, tokens: Sequence[str], files: Sequence[str]) -> None:
        self.news.removed(files)
        self.ledger.forget(tokens)
        self.logs.forget(tokens)
        self.judgement.forget(tokens)

    def _read_events(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            if not self.news.is_new(name):
                continue
            try:
                events = [json.loads(line) for line in content.decode().splitlines()]
                tokens = [event["token"] for event in events]
            except (ValueError, KeyError, TypeError) as error:
                log.error("%s in %s cannot be read and is left out: %s", name, self.folder.events, error)
                self.news.drop(name)
                continue
            for event, token in zip(events, tokens, strict=True):
                # One that is not known began while it was being withdrawn.
                self._read_event(event, self.ledger.job(token), name if event is events[-1] else None)

    def _read_event(self, event: dict[str, Any], job: Tracked, file: str | None) -> None:
        self.pace.changed()
        if job.ended:
            self.news.drop(file)
        elif event["event"] == "started":
            job.started, job.envelope = True, None
            self.news.tell(event, file)
        elif cluster_verdict.is_certain(event):
            self._conclude(job, event, file)
        elif job.submission is None:  # there is nobody to ask for more
            self._conclude(job, cluster_verdict.finished(job.token, None, event), file)
        else:
            job.own, job.own_file = event, file
            job.gone_since = job.gone_since or time.monotonic()

    def _read_status(self, answer: Answer, live: Sequence[Tracked], asked_at: float) -> bool:
        """Take in what the batch system says now; returns whether it could be asked."""
        try:
            found = self.system.statuses(answer)
        except CouldNotAsk as error:
            self.note = f"its batch system could not be asked: {error.words}"
            return False
        self.note = None
        by_key = {(job.id, job.index): job for job in found}
        # TORQUE adds the index to the name of an element.
        by_name = {job.name.removesuffix(f"-{job.index}"): job.id for job in found if job.name}
        for submission in {id(job.submission): job.submission for job in live if job.submission}.values():
            if submission.id is None:
                submission.id = by_name.get(submission.name)
                if submission.id is None:
                    self._doubt(submission, asked_at)
        for job in live:
            if not job.ended and job.key is not None:
                native = by_key.get(job.key)
                self._compare(job, native if native is not None and job.is_this(native) else None, asked_at)
        return True

    def _doubt(self, submission: Submission, asked_at: float) -> None:
        """Give up a submission that the batch system has not known for long, unless its jobs have begun."""
        jobs = [self.ledger.jobs[token] for token in submission.tokens if token in self.ledger.jobs]
        if any(job.started or job.own or job.ended for job in jobs):
            for job in jobs:
                job.gone_since = job.gone_since or asked_at
        elif asked_at - submission.asked_at > SECONDS_UNTIL_REPEATED:
            log.warning("submission %s has not arrived, its %d jobs are submitted again", submission.name, len(jobs))
            self.ledger.take_back(submission)

    def _compare(self, job: Tracked, native: NativeJob | None, asked_at: float) -> None:
        if native is None:
            # An answer that was on its way when it was submitted does not count.
            if job.submission is not None and asked_at > job.submission.asked_at:
                job.gone_since = job.gone_since or asked_at
            return
        if job.native is None or native.state != job.native.state:
            self.pace.changed(asked_at)
        job.native = native
        if native.state == "ended" or (native.state == "pending" and native.cause == "error"):
            if native.state == "pending":  # it will never start, and would lie in its queue for ever
                self.ledger.cancel_natively(job, self.system)
            job.gone_since = job.gone_since or asked_at
            return
        if job.own is None:
            job.gone_since = None
        if native.state == "running":
            job.running_since = job.running_since or asked_at
            if not job.started and asked_at - job.running_since > SECONDS_UNTIL_BELIEVED:
                job.started = True
                self.news.tell({"event": "started", "token": job.token, "at": time.time()})
        elif job.submission is not None and asked_at - job.submission.asked_at > SECONDS_UNTIL_TOLD:
            where = f"queue {self.config.queue!r}" if self.config.queue else "the queue"
            words = f"waits in {where} of the batch system: {native.reason or 'it says no reason'}"
            self.news.tell_reason(job, words)

    def _accounting(self, doubtful: Sequence[Tracked]) -> list[str] | None:
        """The question to the accounting, if there is one and it may tell more than the batch system has."""
        ids = sorted({job.submission.id for job in doubtful if job.submission and job.submission.id})
        unclear = [
            job
            for job in doubtful
            if job.native is None or job.native.state != "ended" or cluster_verdict.is_vague(job.native)
        ]
        if not (self._has_accounting and ids and unclear and self.user):
            return None
        since = min((job.submission.since for job in unclear if job.submission), default=datetime.now())
        return self.system.accounting(ids, self.user, since)

    def _read_accounting(self, answer: Answer) -> dict[tuple[str, int | None], NativeJob]:
        try:
            found = self.system.accounted(answer)
        except CouldNotAsk as error:
            log.info("the accounting could not be asked: %s", error.words)
            return {}
        return {(job.id, job.index): job for job in found if job.state == "ended"}

    # -- cancelling

    def _press(self, now: float) -> None:
        """Let the batch system end what was asked to end and does not."""
        late = self.config.kill_grace + SECONDS_UNTIL_FORCED
        for job in list(self.ledger.live()):
            if job.cancelled_at is not None and now - job.cancelled_at > late:
                job.cancelled_at = now
                self.ledger.cancel_natively(job, self.system)

    def _cancel(self) -> None:
        with self.ledger.lock:
            messages, self._cancels = self._cancels, {}
        if not messages:
            return
        files = {token: words.encode(errors="replace") for token, words in messages.items()}
        try:
            steps = [Put(f"{self.folder.spool}/cancel", files), cluster_steps.cancel(self.folder, messages)]
            put, answer = self.transport.exchange(steps)
            found = cluster_steps.cancelled(answer)
        except OSError:
            with self.ledger.lock:
                self._cancels = {**messages, **self._cancels}
            raise
        self.pace.at_once()
        for token, words in messages.items():
            job = self.ledger.job(token)
            if found.get(token) == "begun" and not job.ended:
                job.cancelled_at = time.monotonic() if put.status == 0 else None
            elif not job.ended:
                self.ledger.cancel_natively(job, self.system)
                own = {"cause": "cancelled", "message": words, "exit_code": None}
                self._conclude(job, cluster_verdict.finished(token, None, own), None)

    def _conclude(self, job: Tracked, event: dict[str, Any], file: str | None) -> None:
        job.end()
        self.giving.pressure.release()
        self.pace.at_once()
        self.news.tell(event, file)
