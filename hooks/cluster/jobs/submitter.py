"""Submit jobs to a cluster: choose which ones are submitted now and together, and interpret the answers."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from lading.hooks.batch.inventory import Inventory
from lading.hooks.batch.request import new_name
from lading.hooks.batch.submit_limits import BackPressure, BarredQueues, chunks, largest_array
from lading.hooks.batch.system import SubmitError
from lading.hooks.cluster.jobs import end_event, job_script, remote_steps
from lading.hooks.cluster.jobs.context import ClusterContext, ClusterPart
from lading.hooks.cluster.jobs.job_script import ArrayShape, ScriptWriter
from lading.hooks.cluster.jobs.layout import Task, write_tokens
from lading.hooks.cluster.jobs.tracker import Submission, TrackedBatchJob
from lading.hooks.dags import upload
from lading.hooks.dags.bundles import DagBundles
from lading.hooks.dags.upload import BundleSync
from lading.hooks.spool import agent_archive
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import Put, RemoteStep
from lading.hooks.ssh.transport import Transport
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)

# Maximum number of submissions in one round; a submit command takes about a second.
MOST_SUBMISSIONS = 50
SUBMISSION_TIMEOUT = 180.0


class Submitter(ClusterPart):
    """Submits the jobs of a site to its cluster.

    :param api: URL at which the nodes reach Airflow's execution API
    :ivar site: name of the site, which is its only location if each job is a batch job
    """

    def __init__(self, context: ClusterContext, api: str) -> None:
        super().__init__(context)
        self.api = api
        self.is_trial = False
        self.site = ""
        self.inventory: Inventory | None = None
        """The nodes and queues that the batch system last listed; None: it has not listed any, or cannot."""
        self.barred = BarredQueues()
        self._anywhere: set[tuple[Any, tuple[str, ...]]] = set()
        self.pressure = BackPressure(largest_array(self.system, self.config.profile))
        bundles = DagBundles(self.config.max_bundle_size) if self.config.dags == "sync" else None
        self.bundles = BundleSync(self.folder.bundles, bundles) if bundles else None
        self._given: dict[str, Envelope] = {}
        archive = agent_archive.brought(self.config.deployment)
        self._agent = None if archive is None else archive.path(self.folder.root)
        self._has_agent = False

    def take(self, envelopes: Iterable[Envelope]) -> None:
        """Take jobs, to be submitted in the next round."""
        with self.tracker.lock:
            self._given |= {envelope.token: envelope for envelope in envelopes}

    def give_back(self) -> None:
        """Forget jobs that were taken but not processed; the store gives them again."""
        with self.tracker.lock:
            self._given.clear()

    def tokens(self) -> frozenset[str]:
        return frozenset(self._given)

    def give(self, transport: Transport, trouble: Reason | None) -> None:
        """Submit what can be submitted now.

        :param trouble: why nothing can be submitted now; None: submissions are possible
        :raises OSError: the cluster could not be reached
        """
        renewed = self._note_given()
        try:
            trouble = trouble or self._bring_agent(transport)
            submissions, scripts = self._plan(transport, trouble)
        except OSError:
            self.take(renewed.values())
            raise
        if not submissions and not renewed:
            return
        steps = self._placing(submissions, scripts, renewed)
        submitted, before = self._count_submitted(), None
        for submission in submissions:
            name, command = submission.name, self.system.submit(f"{self.folder.submission(submission.name)}/script")
            bundles = {self.tracker.jobs[token].bundle for token in submission.tokens} - {""}
            steps.append(remote_steps.submit(self.folder, name, command, bundles, self._agent, before))
            self.tracker.submit(submission)
            before = name
        put, placed, *answers = transport.exchange(steps, SUBMISSION_TIMEOUT)
        self.interval.soon()
        for submission, answer in zip(submissions, answers, strict=True):
            submitted += self._read(submission, answer, submitted)
        if put.status != 0 or placed.status != 0:
            raise TransportError(f"jobs could not be written to {self.folder.root}: {_fault(put, placed)}")

    def _count_submitted(self) -> int:
        """Count this site's batch jobs as the batch system's limits do: each array element counts."""
        with self.tracker.lock:
            return sum(1 for _ in self.tracker.live())

    def _bring_agent(self, transport: Transport) -> Reason | None:
        """Upload the node agent unless it is installed or present; return why that failed, or None.

        It does not wait for a job: the first jobs then start sooner, and users learn at once that it cannot run there.

        :raises OSError: the cluster could not be reached
        """
        if self._agent is None or self._has_agent or self.pressure.held() is not None:
            return None
        try:
            agent_archive.bring(transport, self.config.python, self.folder.root)
        except agent_archive.AgentNotBrought as error:
            log.warning("%s", error)
            reason = because("agent_not_brought", text=str(error))
            self.pressure.hold(reason)
            return reason
        self._has_agent = True
        return None

    def _note_given(self) -> dict[str, Envelope]:
        """Register the taken jobs; return the envelopes that replace those of submitted jobs."""
        renewed = {}
        with self.tracker.lock:
            given, self._given = self._given, {}
            for token, given_envelope in given.items():
                job = self.tracker.jobs.get(token)
                # A job reads the Dag bundle to which it was bound, even if that has changed since.
                envelope = upload.bind(given_envelope, self.folder.bundles, job.bundle if job is not None else "")
                shape = job_script.shape(envelope, self.config)
                if job is None:
                    self.tracker.jobs[token] = TrackedBatchJob(token, envelope.log_path, envelope=envelope, shape=shape)
                elif not (job.started or job.ended):
                    job.envelope, job.shape = envelope, shape
                    if job.submission is not None:
                        renewed[token] = envelope
        return renewed

    def _placing(
        self, submissions: Sequence[Submission], scripts: dict[str, str], renewed: dict[str, Envelope]
    ) -> list[RemoteStep]:
        files: dict[str, bytes] = {}
        folders = []
        if renewed:
            folders.append(f"renewed-{uuid.uuid4().hex}")
            files |= {f"incoming/{folders[0]}/{token}.json": _bytes(each) for token, each in renewed.items()}
        for submission in submissions:
            name = submission.name
            jobs = [self.tracker.jobs[token] for token in submission.tokens]
            folders.append(name)
            files |= {f"incoming/{name}/{job.token}.json": _bytes(job.envelope) for job in jobs}
            files[f"submissions/{name}/tasks"] = write_tokens(
                Task(job.token, job.log_path, job.bundle) for job in jobs
            ).encode()
            files[f"submissions/{name}/script"] = scripts[name].encode()
        return [Put(self.folder.root, files), remote_steps.place_envelopes(self.folder.root, folders)]

    @property
    def limit(self) -> str | None:
        """The limit of the batch system that was reached, with the number of submitted jobs, as text; None: none was.

        A limit on something else than the number of jobs is only shown while it blocks submissions.
        """
        held = self.pressure.held()
        if held is None and self.pressure.most is not None:
            submitted = self._count_submitted()
            if self.pressure.limit is None and self.pressure.room(submitted):
                return None
            held = self.pressure.reason(self.system.name, submitted)
        return None if held is None else held.sentence

    def note_end(self) -> None:
        self.pressure.release()

    # -- planning submissions

    def _plan(self, transport: Transport, trouble: Reason | None) -> tuple[list[Submission], dict[str, str]]:
        waiting = self._admitted()
        held = trouble or self.pressure.held()
        if held is not None:
            self._explain_all(waiting, held)
            return [], {}
        submissions: list[Submission] = []
        writer = ScriptWriter(self.system, self.config, self.api, self.is_trial)
        scripts: dict[str, str] = {}
        for (shape, rule), tokens in self._by_shape(self._with_dags(transport, waiting)).items():
            try:
                clusters = job_script.named_clusters(dict(shape.native), self.config, self.system)
            except ValueError as error:
                self._reject(tokens, because("script_refused", text=str(error)))
                continue
            excluded = self._excluded(shape, clusters)
            for chunk in chunks(tokens, self.pressure.chunk, self.system):
                if len(submissions) == MOST_SUBMISSIONS:
                    return submissions, scripts
                name = new_name()
                try:
                    titles = (
                        [each.title for token in chunk if (each := self.tracker.jobs[token].envelope)] if rule else []
                    )
                    fitted = job_script.fitted(shape, self.config, self.system, self.inventory)
                    scripts[name] = writer.submission(name, len(chunk), fitted, excluded, titles)
                except ValueError as error:
                    self._reject(chunk, because("script_refused", text=str(error)))
                    continue
                submissions.append(
                    Submission(name, list(chunk), None, time.monotonic(), datetime.now(), excluded, clusters)
                )
        return submissions, scripts

    def _longest(self, queue: str, native: Collection[str] = ()) -> int | None:
        return job_script.longest(queue, native, self.config, self.inventory)

    def _admitted(self) -> list[TrackedBatchJob]:
        """Return the waiting jobs. Those in queues that refuse the account are returned, to be placed elsewhere."""
        barred, waiting = self.barred.reasons(), list(self.tracker.waiting())
        for job in waiting if barred else ():
            if job.shape is not None and not job.shape.native and (reason := barred.get(job.shape.queue or "")):
                self.give_back_job(job, reason)
        return [job for job in waiting if job.token in self.tracker.jobs]

    def give_back_job(self, job: TrackedBatchJob, reason: Reason) -> None:
        """Return a job that was not submitted and will not be; it waits for a new placement."""
        self.tracker.pending.leftovers.add(f"spool/inbox/{job.token}.json")
        with self.tracker.lock:
            self.tracker.jobs.pop(job.token, None)
        event = {"event": "returned", "token": job.token, "location": self.site, "reason": reason}
        self.event_buffer.add(event)

    def _with_dags(self, transport: Transport, waiting: Sequence[TrackedBatchJob]) -> list[TrackedBatchJob]:
        """Return the jobs whose Dags are available at the site, each bound to the current content of its bundle."""
        if self.bundles is None:
            return list(waiting)
        ready = []
        for bound in self.bundles.bind_jobs(
            transport,
            [(job, job.envelope, "") for job in waiting if job.envelope is not None],
            refuse=lambda job, message: self._reject([job.token], because("bundle_refused", text=message)),
            hold=self.event_buffer.add_reason,
        ):
            bound.job.bundle, bound.job.envelope = bound.hash, bound.envelope
            ready.append(bound.job)
        return ready

    def _by_shape(self, waiting: Sequence[TrackedBatchJob]) -> dict[Any, list[str]]:
        """Group the jobs for which there is room so that each group can share an array.

        All jobs of a group have the same rule, if any, so that cancelling an array affects one rule only.
        """
        room, why = self.pressure.allow(self.system.name, self.config, self._count_submitted())
        self._explain_all(waiting[room:], why)
        by_shape: dict[Any, list[str]] = {}
        for job in waiting[: min(room, 2000)]:  # in one round
            rule = "" if job.envelope is None else job.envelope.title[0]
            by_shape.setdefault((job.shape, rule), []).append(job.token)
        return by_shape

    def _excluded(self, shape: Any, clusters: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes on which a shape must not run.

        :param clusters: those that it names
        """
        nodes = tuple(self.nodes.reasons()) if clusters == self.context.home else ()
        if not nodes:
            self._anywhere.clear()
        return () if (shape, nodes) in self._anywhere else nodes

    # -- reading the answers of the batch system

    def _read(self, submission: Submission, answer: CommandResult, submitted: int) -> int:
        """Read the answer to a submission; return how many jobs it has added, or may have added."""
        jobs = [self.tracker.jobs[token] for token in submission.tokens]
        if answer.status == remote_steps.NOT_ITS_TURN:
            self.tracker.take_back(submission)
            self.interval.at_once()
            return 0
        refusal = self._refusal(submission, answer, "job", jobs[0].shape, submitted)
        if refusal is None and jobs[0].shape is not None:
            self.barred.admit(jobs[0].shape.queue)
        if refusal is None or refusal.kind == "transient":
            return len(jobs)
        self.tracker.take_back(submission)
        is_divided = len(jobs) > 1 and refusal.is_of_arrays  # it is split into smaller arrays, submitted next
        for_good = refusal.kind == "permanent" and not (is_divided or submission.excluded)
        if for_good and not self._is_barred(refusal, jobs[0].shape):
            self._reject(submission.tokens, because("submit_refused", system=self.system.name, text=refusal.message))
        elif refusal.kind == "limit" and not is_divided:
            self._explain_all(jobs, self.pressure.held() or self.pressure.reason(self.system.name, submitted))
        self.interval.at_once()
        return 0

    def _refusal(
        self, submission: Submission, answer: CommandResult, what: str, shape: object, submitted: int
    ) -> SubmitError | None:
        """Note the native ID in the answer to a submission. If there is none, return the refusal.

        :param what: kind of what was submitted, as text
        :param shape: shared by all submissions that the same nodes can run
        :param submitted: number of batch jobs before this submission
        """
        count = max(1, len(submission.tokens))
        submission.asked_at = time.monotonic()
        if answer.status == remote_steps.NOT_TRIED:
            self._has_agent = False
            if self.bundles is not None:
                self.bundles.forget()
            refusal = SubmitError("limit", f"its files are not in {self.folder.root}")
            self.pressure.hold(because("site_limit", system=self.system.name, text=refusal.message))
        else:
            try:
                submission.id = self.pressure.read(self.system, answer, count, submitted)
                log.info("submitted %s %s as %s", what, submission.name, submission.id)
                return None
            except SubmitError as error:
                refusal = error
        log.warning("%s %s (%s): %s", what, submission.name, refusal.kind, refusal.message)
        if refusal.kind == "permanent" and submission.excluded:
            # Perhaps only the excluded nodes can run it, so the next submission of this shape excludes none.
            self._anywhere.add((shape, submission.excluded))
        return refusal

    def _is_barred(self, refusal: SubmitError, shape: ArrayShape | None) -> bool:
        """Whether the account was refused in a queue that the job did not choose by native directives; noted for a
        while.

        Trial jobs do not count, because a trial has to report the refusal itself.
        """
        if not refusal.of_account or shape is None or shape.native or self.is_trial:
            return False
        self.bar(shape.queue, refusal)
        return True

    def bar(self, queue: str | None, refusal: SubmitError) -> None:
        """Note that a queue refuses the account; None: the site's default queue."""
        reason = because("not_admitted", system=self.system.name, queue=queue or None, text=refusal.message)
        self.barred.bar(queue, reason)

    def _reject(self, tokens: Iterable[str], reason: Reason) -> None:
        for token in tokens:
            self.tracker.jobs[token].end()
            self.event_buffer.add(end_event.not_begun(token, "submit_rejected", reason))
        self.interval.at_once()

    def _explain_all(self, jobs: Iterable[TrackedBatchJob], reason: Reason) -> None:
        for job in jobs:
            self.event_buffer.add_reason(job, reason)


def _bytes(envelope: Envelope | None) -> bytes:
    assert envelope is not None
    return envelope.to_json().encode()


def _fault(*answers: CommandResult) -> str:
    return "; ".join(answer.message for answer in answers if answer.status != 0)
