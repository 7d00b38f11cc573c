"""The rounds in which a controller and a cluster talk: one look at it, and one in which it is given something.

The cluster's folder holds the truth: envelopes, the tasks of each submission, what the batch system answered, what jobs
have said. A controller that begins reads it all again. Intent first: a submission is in the folder before it is made,
and one of which nobody knows whether it was accepted is looked up by its name before its tasks are submitted again.
Should a task be submitted twice all the same, the first of its batch jobs takes the envelope and the second ends.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lading.hooks import cluster_script, cluster_steps, cluster_verdict
from lading.hooks.batch import Answer, BatchSystem, CouldNotAsk, NativeJob, SubmitError
from lading.hooks.cluster_config import ClusterConfig
from lading.hooks.cluster_folder import ClusterFolder, Task, write_tokens
from lading.hooks.cluster_ledger import Ledger, Submission, Tracked
from lading.hooks.cluster_steps import Part, Parts
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
# What a job has said of its end is believed when the batch system has not said more for so long, seconds.
SECONDS_FOR_A_CAUSE = 30.0
# A job that was asked to end, and does not, is ended by the batch system, seconds after the kill grace.
SECONDS_UNTIL_FORCED = 60.0
# A refused submission is tried again after 5, 10, 20 ... seconds, at most this many.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
# A job that a failing node or a preemption has ended before its task began is submitted so often, the first included.
MOST_ATTEMPTS = 4
# Airflow's event log is not told of short waits.
SECONDS_UNTIL_TOLD = 10.0
# In one round so many jobs are submitted, by so many commands of a second or so, looked into, have their logs copied.
MOST_SUBMITTED = 2000
MOST_SUBMISSIONS = 50
SUBMISSION_TIMEOUT = 180.0
MOST_VERDICTS = 200
MOST_LOGS = 200
# Bytes of all logs in one round; what is left comes in the next.
MOST_LOG_BYTES = 16 * 2**20
TAIL_BYTES = 2000


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

    :param api: URL at which the nodes reach Airflow's execution API
    """

    def __init__(
        self, config: ClusterConfig, system: BatchSystem, transport: Transport, api: str, logs: LogCopies
    ) -> None:
        self.config = config
        self.system = system
        self.transport = transport
        self.api = api
        self.logs = logs
        self.folder = ClusterFolder(config.work_dir)
        self.user: str | None = None
        self.note: str | None = None
        self.ledger = Ledger()
        self.lock = threading.Lock()
        self.news: list[tuple[dict[str, Any], str | None]] = []
        self._given: dict[str, Envelope] = {}
        self._cancels: dict[str, str] = {}
        self._done_files: set[str] = set()
        self._seen_files: set[str] = set()
        self._native_cancels: list[str] = []
        self._attempts: dict[str, int] = {}
        self._withdrawals: list[tuple[str, str]] = []
        self._leftovers: set[str] = set()
        self._has_accounting = config.accounting == "auto"
        self._chunk = cluster_script.largest_array(system, config)
        self._hold_until = 0.0
        self._pause = 0.0
        self._refusal = ""
        self._changed_at = time.monotonic()
        self._look_at = 0.0

    # -- what the controller calls

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Take jobs, to be submitted in the next round."""
        with self.lock:
            self._given |= {envelope.token: envelope for envelope in envelopes}

    def ask_to_cancel(self, messages: Mapping[str, str]) -> bool:
        """End jobs in the next round; returns whether there is anything new in that."""
        with self.lock:
            new = {
                token: words
                for token, words in messages.items()
                if (job := self.ledger.jobs.get(token)) is None or (job.cancelled_at is None and not job.ended)
            }
            self._cancels |= new
            return bool(new)

    def known(self) -> frozenset[str]:
        """All jobs that the site has."""
        with self.lock:
            return frozenset(self._given) | frozenset(
                token for token, job in self.ledger.jobs.items() if not job.acknowledged
            )

    def unread(self) -> list[dict[str, Any]]:
        """The events that were not acknowledged yet."""
        with self.lock:
            return [event for event, _ in self.news]

    def acknowledge(self, count: int) -> None:
        """The first so many of the unread events have been stored."""
        with self.lock:
            for event, file in self.news[:count]:
                if file is not None:
                    self._done_files.add(file)
                job = self.ledger.jobs.get(event["token"])
                if job is not None and event["event"] == "finished":
                    job.acknowledged = True
            del self.news[:count]

    # -- the rounds

    def round(self) -> None:
        """One look at the cluster where it is due, and all that it is to be given.

        :raises OSError: it could not be asked
        """
        if self.user is None:
            self._load()
        if time.monotonic() >= self._look_at or self._has_errands():
            self._look()
        self._give()
        self._cancel()

    def pause(self) -> float:
        """Seconds until the next round: short while something changes, long when nothing has for a while."""
        quiet = (time.monotonic() - self._changed_at) / 10
        shortest, longest = self.config.poll_shortest, self.config.longest_poll
        return min(max(quiet, shortest), longest) if self.ledger.jobs else longest

    def withdraw_waiting(self) -> None:
        """Take back from the batch system what it has not started; it is submitted again by whoever comes next."""
        for job in list(self.ledger.live()):
            if not job.started and job.submission is not None and (job.native is None or job.native.state == "pending"):
                self._withdrawals.append((job.submission.name, job.token))
                self._cancel_natively(job)
                with self.lock:
                    del self.ledger.jobs[job.token]

    def remove(self) -> None:
        """Delete the whole folder, of a trial."""
        parent, _, name = self.folder.root.rpartition("/")
        self.transport.remove(parent, [name])

    def _has_errands(self) -> bool:
        return bool(self._native_cancels or self._withdrawals) or any(
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
            with self.lock:
                for task in each.tasks:
                    if task.token not in each.withdrawn:
                        self.ledger.jobs.setdefault(task.token, Tracked(task, started=task.token in begun))
                self.ledger.submit_found(submission)

    # -- looking

    def _look(self) -> None:
        look = self._prepare()
        asked_at = time.monotonic()
        answers = dict(zip(look.steps, self.transport.exchange(list(look.steps.values())), strict=True))
        try:
            events = GetAll(self.folder.events).files(answers["events"])
        except TransportError:
            self._native_cancels, self._withdrawals = look.cancels, look.withdrawals
            raise
        self._look_at = time.monotonic() + self.pause()
        if look.withdrawals and answers["withdraw"].status != 0:
            self._withdrawals += look.withdrawals
        if "remove" in answers and answers["remove"].status == 0:
            self._forget(look.done, look.files)
        self._read_events(events)
        natives = self._read_status(answers["status"], look.live, asked_at) if "status" in answers else None
        accounts = self._read_accounting(answers["accounting"]) if "accounting" in answers else {}
        if look.logs is not None:
            self._copy(look.copied, look.logs, answers["logs"])
        if look.doubtful and natives is not None:
            self._judge(look.doubtful, answers["remains"], accounts)
        self._press(asked_at)

    def _prepare(self) -> _Look:
        """What is asked and done in one look."""
        with self.lock:
            done = [token for token, job in self.ledger.jobs.items() if job.acknowledged and job.log_done]
            files = sorted(self._done_files)
        live = list(self.ledger.live())
        doubtful = [job for job in live if job.gone_since is not None][:MOST_VERDICTS]
        look = _Look(done, files, self._native_cancels, self._withdrawals, live, doubtful, self._to_copy(live))
        self._native_cancels, self._withdrawals = [], []
        removals = [f"spool/events/{name}" for name in files]
        removals += [name for token in done for name in self.folder.files_of(token)] + sorted(self._leftovers)
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
        look.steps["events"] = GetAll(self.folder.events)
        if doubtful:
            look.steps["remains"] = Parts([part for job in doubtful for part in self._remains(job)], 2**16)
        if look.copied:
            parts = [self._log_part(job) for job in look.copied]
            look.steps["logs"] = look.logs = Parts(parts, MOST_LOG_BYTES // len(parts))
        return look

    def _status(self, live: Sequence[Tracked]) -> Run:
        assert self.user is not None
        known = sorted({job.submission.id for job in live if job.submission and job.submission.id})
        unsure = any(job.submission is not None and job.submission.id is None for job in live)
        return Run(self.system.status(self.user, () if unsure else known))

    def _forget(self, tokens: Sequence[str], files: Sequence[str]) -> None:
        with self.lock:
            self._done_files.difference_update(files)
            self._seen_files.difference_update(files)
            self._leftovers = {f"submissions/{name}" for name in self.ledger.forget(tokens)}
        for token in tokens:
            self.logs.forget(token)
            self._attempts.pop(token, None)
        if tokens:
            self.logs.save()

    def _read_events(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            if name in self._seen_files:
                continue
            try:
                events = [json.loads(line) for line in content.decode().splitlines()]
                tracked = [self.ledger.jobs.get(event["token"]) for event in events]
            except (ValueError, KeyError, TypeError) as error:
                log.error("%s in %s cannot be read and is left out: %s", name, self.folder.events, error)
                with self.lock:
                    self._done_files.add(name)
                self._seen_files.add(name)
                continue
            self._seen_files.add(name)
            for event, job in zip(events, tracked, strict=True):
                self._read_event(event, job, name if event is events[-1] else None)

    def _read_event(self, event: dict[str, Any], job: Tracked | None, file: str | None) -> None:
        self._changed_at = time.monotonic()
        if job is None:  # it began while it was being withdrawn
            with self.lock:
                job = self.ledger.jobs.setdefault(event["token"], Tracked(Task(event["token"])))
        if job.ended:
            if file is not None:
                with self.lock:
                    self._done_files.add(file)
            return
        if event["event"] == "started":
            job.started, job.envelope = True, None
            self._tell(event, file)
        elif cluster_verdict.is_certain(event):
            self._conclude(job, event, file)
        elif job.submission is None:  # there is nobody to ask for more
            self._conclude(job, cluster_verdict.finished(job.token, None, event), file)
        else:
            job.own, job.own_file = event, file
            job.gone_since = job.gone_since or time.monotonic()

    def _read_status(
        self, answer: Answer, live: Sequence[Tracked], asked_at: float
    ) -> dict[tuple[str, int | None], NativeJob] | None:
        """What the batch system says now, and what follows from it; None: it could not be asked."""
        try:
            found = self.system.statuses(answer)
        except CouldNotAsk as error:
            self.note = f"its batch system could not be asked: {error.words}"
            return None
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
                self._compare(job, by_key.get(job.key), asked_at)
        return by_key

    def _doubt(self, submission: Submission, asked_at: float) -> None:
        """Give up a submission that the batch system has not known for long, unless its jobs have begun."""
        jobs = [self.ledger.jobs[token] for token in submission.tokens if token in self.ledger.jobs]
        if any(job.started or job.own or job.ended for job in jobs):
            for job in jobs:
                job.gone_since = job.gone_since or asked_at
        elif asked_at - submission.asked_at > SECONDS_UNTIL_REPEATED:
            log.warning("submission %s has not arrived, its %d jobs are submitted again", submission.name, len(jobs))
            self._leftovers.add(f"submissions/{submission.name}")
            with self.lock:
                self.ledger.take_back(submission)

    def _compare(self, job: Tracked, native: NativeJob | None, asked_at: float) -> None:
        if native is None:
            # An answer that was on its way when it was submitted does not count.
            if job.submission is not None and asked_at > job.submission.asked_at:
                job.gone_since = job.gone_since or asked_at
            return
        if job.native is None or native.state != job.native.state:
            self._changed_at = asked_at
        job.native = native
        if native.state == "ended" or (native.state == "pending" and native.cause == "error"):
            if native.state == "pending":  # it will never start, and would lie in its queue for ever
                self._cancel_natively(job)
            job.gone_since = job.gone_since or asked_at
            return
        if job.own is None:
            job.gone_since = None
        if native.state == "running":
            job.running_since = job.running_since or asked_at
            if not job.started and asked_at - job.running_since > SECONDS_UNTIL_BELIEVED:
                job.started = True
                self._tell({"event": "started", "token": job.token, "at": time.time()}, None)
        elif job.submission is not None and asked_at - job.submission.asked_at > SECONDS_UNTIL_TOLD:
            where = f"queue {self.config.queue!r}" if self.config.queue else "the queue"
            self._tell_reason(job, f"waits in {where} of the batch system: {native.reason or 'it says no reason'}")

    def _accounting(self, doubtful: Sequence[Tracked]) -> list[str] | None:
        """The question to the accounting, if there is one and it may tell more than the batch system has."""
        ids = sorted({job.submission.id for job in doubtful if job.submission and job.submission.id})
        unclear = [job for job in doubtful if job.native is None or job.native.state != "ended" or _vague(job.native)]
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

    def _remains(self, job: Tracked) -> list[Part]:
        assert job.submission is not None
        folder, output = self.folder.job(job.token), self.folder.output(job.submission.name, job.index)
        names = ("exit.json", "cause.json", "supervisor.json")
        return [*(Part(f"{folder}/{name}") for name in names), Part(output, -TAIL_BYTES)]

    def _judge(
        self,
        doubtful: Sequence[Tracked],
        answer: Answer,
        accounts: Mapping[tuple[str, int | None], NativeJob],
    ) -> None:
        """Tell the end of jobs that are gone, as far as it is known how they ended."""
        remains = Parts([part for job in doubtful for part in self._remains(job)]).contents(answer)
        for number, job in enumerate(doubtful):
            if job.ended or job.gone_since is None:
                continue
            sentinel, cause, supervisor, output = remains[4 * number : 4 * number + 4]
            left = _parsed(sentinel)
            own = job.own or (cluster_verdict.of_sentinel(left, _parsed(cause)) if left is not None else None)
            native = job.native if job.native is not None and job.native.state != "running" else None
            account = accounts.get(job.key) if job.key is not None else None
            if account is not None and (native is None or native.state != "ended" or _vague(native)):
                native = account
            if not self._is_decided(job, native, own):
                continue
            if supervisor is None and not job.started and native is not None and self._may_run_again(job, native):
                self._submit_again(job, native)
                continue
            words = (output or b"").decode(errors="replace")
            event = cluster_verdict.finished(job.token, native, own, words, started=job.started)
            self._conclude(job, event, job.own_file)

    def _may_run_again(self, job: Tracked, native: NativeJob) -> bool:
        """Whether a job is submitted again whose task has not begun: nothing that it can help has ended it."""
        again = native.cause in cluster_verdict.INFRASTRUCTURE
        return again and job.own is None and self._attempts.get(job.token, 1) < MOST_ATTEMPTS

    def _submit_again(self, job: Tracked, native: NativeJob) -> None:
        assert job.submission is not None
        assert native.cause is not None
        self._attempts[job.token] = self._attempts.get(job.token, 1) + 1
        self._withdrawals.append((job.submission.name, job.token))
        self._tell_reason(job, f"waits: it is submitted again, for {cluster_verdict.WORDS[native.cause]}")
        with self.lock:
            job.submission = job.native = job.gone_since = job.running_since = None
            if job.envelope is None:  # of an earlier controller: the store has it, and gives it again
                del self.ledger.jobs[job.token]

    def _is_decided(self, job: Tracked, native: NativeJob | None, own: Mapping[str, Any] | None) -> bool:
        assert job.gone_since is not None
        gone = time.monotonic() - job.gone_since
        if own is not None and cluster_verdict.is_certain(own):
            return True
        if native is not None and native.state == "ended" and not _vague(native):
            return True
        failed = native is not None and (native.cause is not None or bool(native.exit_code))
        if failed or (native is not None and native.exit_code is not None and own is not None):
            return gone > self.config.poll_shortest
        # That of a file server's other machines is seen some seconds later here.
        ended = own is not None or (native is not None and native.state == "ended")
        return gone > (SECONDS_FOR_A_CAUSE if ended else self.config.absence_deadline)

    def _press(self, now: float) -> None:
        """Let the batch system end what was asked to end and does not."""
        late = self.config.kill_grace + SECONDS_UNTIL_FORCED
        for job in list(self.ledger.live()):
            if job.cancelled_at is not None and now - job.cancelled_at > late:
                job.cancelled_at = now
                self._cancel_natively(job)

    # -- logs

    def _to_copy(self, live: Sequence[Tracked]) -> list[Tracked]:
        """The jobs whose logs are looked at now: those that have ended first, then in turn."""
        ended = [job for job in list(self.ledger.jobs.values()) if job.ended and not job.log_done]
        for job in ended:
            job.log_done = not job.task.log_path
        running = [job for job in live if job.started and job.task.log_path]
        chosen = ([job for job in ended if not job.log_done] + running)[:MOST_LOGS]
        with self.lock:
            for job in chosen:  # to the end of the line
                self.ledger.jobs[job.token] = self.ledger.jobs.pop(job.token)
        return chosen

    def _log_part(self, job: Tracked) -> Part:
        return Part(f"{self.folder.logs(job.token)}/{job.task.log_path}", self.logs.offset(job.token))

    def _copy(self, jobs: Sequence[Tracked], parts: Parts, answer: Answer) -> None:
        for job, data in zip(jobs, parts.contents(answer), strict=True):
            try:
                if data:
                    self.logs.add(job.token, job.task.log_path, data)
            except (OSError, ValueError) as error:
                log.error("the log of job %s cannot be copied: %s", job.token, error)
                job.log_done = job.ended
                continue
            # What was read of a job that had ended before is the rest, unless there was too much of it.
            job.log_done = job.ended and len(data or b"") < parts.most
        self.logs.save()

    # -- giving

    def _give(self) -> None:
        with self.lock:
            given, self._given = self._given, {}
            renewed = {}
            for token, envelope in given.items():
                job = self.ledger.jobs.get(token)
                if job is None:
                    task = Task(token, _log_path(envelope))
                    shape = cluster_script.shape(envelope, self.config)
                    self.ledger.jobs[token] = Tracked(task, envelope, shape)
                elif not (job.started or job.ended):
                    job.envelope = envelope
                    job.shape = cluster_script.shape(envelope, self.config)
                    if job.submission is not None:
                        renewed[token] = envelope
        submissions, scripts = self._plan()
        if not submissions and not renewed:
            return
        files: dict[str, bytes] = {}
        folders = []
        if renewed:
            folders.append(f"renewed-{uuid.uuid4().hex}")
            files |= {f"incoming/{folders[0]}/{token}.json": _bytes(each) for token, each in renewed.items()}
        for submission in submissions:
            jobs = [self.ledger.jobs[token] for token in submission.tokens]
            folders.append(submission.name)
            files |= {f"incoming/{submission.name}/{job.token}.json": _bytes(job.envelope) for job in jobs}
            files[f"submissions/{submission.name}/tasks"] = write_tokens(job.task for job in jobs).encode()
            files[f"submissions/{submission.name}/script"] = scripts[submission.name].encode()
        steps: list[Step] = [Put(self.folder.root, files), cluster_steps.place(self.folder, folders)]
        for submission in submissions:
            command = self.system.submit(f"{self.folder.submission(submission.name)}/script")
            steps.append(cluster_steps.submit(self.folder, submission.name, command))
            self.ledger.submit(submission)
        put, placed, *answers = self.transport.exchange(steps, SUBMISSION_TIMEOUT)
        self._changed_at = time.monotonic()
        self._look_at = self._changed_at + self.config.poll_shortest
        for submission, answer in zip(submissions, answers, strict=True):
            submission.asked_at = time.monotonic()
            self._read_submitted(submission, answer)
        if put.status != 0 or placed.status != 0:
            raise TransportError(f"jobs could not be written to {self.folder.root}: {_fault(put, placed)}")

    def _plan(self) -> tuple[list[Submission], dict[str, str]]:
        """What is submitted now, with the script of each."""
        now = time.monotonic()
        waiting = list(self.ledger.waiting())
        if now < self._hold_until or self.note is not None:
            for job in waiting:
                self._tell_reason(job, f"waits: {self.note or self._refusal}")
            return [], {}
        room = MOST_SUBMITTED
        if self.config.max_submitted is not None:
            room = min(room, self.config.max_submitted - sum(1 for _ in self.ledger.live()))
            for job in waiting[max(room, 0) :]:
                self._tell_reason(job, f"waits: max_submitted = {self.config.max_submitted} jobs are submitted already")
        by_shape: dict[Any, list[str]] = {}
        for job in waiting[: max(room, 0)]:
            by_shape.setdefault(job.shape, []).append(job.token)
        submissions: list[Submission] = []
        scripts: dict[str, str] = {}
        for shape, tokens in by_shape.items():
            for chunk in cluster_script.chunks(tokens, self._chunk, self.system):
                if len(submissions) == MOST_SUBMISSIONS:
                    return submissions, scripts
                name = f"L{uuid.uuid4().hex[:14]}"  # TORQUE takes names of 15 characters
                try:
                    scripts[name] = cluster_script.render(
                        name,
                        len(chunk),
                        shape,
                        system=self.system,
                        config=self.config,
                        folder=self.folder,
                        api=self.api,
                    )
                except ValueError as error:
                    self._reject(chunk, str(error))
                    continue
                submissions.append(Submission(name, list(chunk), None, now, datetime.now()))
        return submissions, scripts

    def _read_submitted(self, submission: Submission, answer: Answer) -> None:
        try:
            submission.id = self.system.submitted(answer)
        except SubmitError as error:
            self._refuse(submission, answer, error)
            return
        log.info("submitted %s with %d jobs as %s", submission.name, len(submission.tokens), submission.id)
        self._pause = 0.0
        most = cluster_script.largest_array(self.system, self.config)
        if len(submission.tokens) == self._chunk < most:
            self._chunk = min(most, self._chunk * 2)

    def _refuse(self, submission: Submission, answer: Answer, error: SubmitError) -> None:
        tried = answer.status != cluster_steps.NOT_TRIED
        if not tried:
            error = SubmitError("limit", f"its files could not be written to {self.folder.root}")
        log.warning("submission %s (%s): %s", submission.name, error.kind, error.words)
        if error.kind == "transient":
            # It may have been accepted: it is looked up by its name before anything else is done about it.
            self._hold(f"{self.system.name} did not say whether it has taken the job: {error.words}")
            return
        self._leftovers.add(f"submissions/{submission.name}")
        with self.lock:
            self.ledger.take_back(submission)
        if error.kind == "permanent":
            self._reject(submission.tokens, f"{self.system.name} does not take the job: {error.words}")
        elif len(submission.tokens) > 1 and tried:
            self._chunk = max(1, len(submission.tokens) // 2)  # a part of it may be allowed, at once
            self._look_at = 0.0
        else:
            self._hold(f"{self.system.name} takes no more jobs now: {error.words}")

    def _hold(self, words: str) -> None:
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._hold_until = time.monotonic() + self._pause
        self._refusal = words

    def _reject(self, tokens: Iterable[str], words: str) -> None:
        for token in tokens:
            event = cluster_verdict.finished(
                token, None, {"cause": "submit_rejected", "message": words, "exit_code": None}
            )
            self._conclude(self.ledger.jobs[token], event, None)

    # -- cancelling

    def _cancel(self) -> None:
        with self.lock:
            messages, self._cancels = self._cancels, {}
        if not messages:
            return
        files = {token: words.encode(errors="replace") for token, words in messages.items()}
        try:
            steps = [Put(f"{self.folder.spool}/cancel", files), cluster_steps.cancel(self.folder, messages)]
            put, answer = self.transport.exchange(steps)
            found = cluster_steps.cancelled(answer)
        except OSError:
            with self.lock:
                self._cancels = {**messages, **self._cancels}
            raise
        now = time.monotonic()
        self._changed_at, self._look_at = now, 0.0
        for token, words in messages.items():
            job = self.ledger.jobs.get(token)
            if job is None:
                with self.lock:
                    job = self.ledger.jobs.setdefault(token, Tracked(Task(token)))
            if found.get(token) == "begun" and not job.ended:
                job.cancelled_at = now if put.status == 0 else None
            elif not job.ended:
                self._cancel_natively(job)
                own = {"cause": "cancelled", "message": words, "exit_code": None}
                self._conclude(job, cluster_verdict.finished(token, None, own), None)

    def _cancel_natively(self, job: Tracked) -> None:
        if (id := job.native_id(self.system)) is not None:
            self._native_cancels.append(id)

    # -- telling

    def _conclude(self, job: Tracked, event: dict[str, Any], file: str | None) -> None:
        job.ended, job.envelope, job.own = True, None, None
        self._hold_until = 0.0 if self._chunk == 1 else self._hold_until
        self._changed_at, self._look_at = time.monotonic(), 0.0
        self._tell(event, file)

    def _tell(self, event: dict[str, Any], file: str | None) -> None:
        with self.lock:
            self.news.append((event, file))

    def _tell_reason(self, job: Tracked, reason: str) -> None:
        if job.told != reason:
            job.told = reason
            self._tell({"event": "waiting", "token": job.token, "reason": reason}, None)


def _vague(native: NativeJob) -> bool:
    """Whether the accounting may know more."""
    return native.cause in (None, "error")


def _parsed(content: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(content) if content else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _log_path(envelope: Envelope) -> str:
    path = envelope.workload.get("log_path")
    return path if isinstance(path, str) and "\t" not in path and "\n" not in path else ""


def _bytes(envelope: Envelope | None) -> bytes:
    assert envelope is not None
    return envelope.to_json().encode()


def _fault(*answers: Answer) -> str:
    return "; ".join(answer.words for answer in answers if answer.status != 0)
