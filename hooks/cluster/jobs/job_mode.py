"""The rounds of a site where each task is a batch job or an element of a job array.

If a task is submitted twice nevertheless, its first batch job takes the envelope and the second one exits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lading.hooks.batch import outcome
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.jobs import end_event, remote_steps
from lading.hooks.cluster.jobs.poller import ClusterLook, ClusterPoller
from lading.hooks.cluster.jobs.post_mortem import PostMortem
from lading.hooks.cluster.jobs.script_runs import ScriptRuns
from lading.hooks.cluster.jobs.submitter import Submitter
from lading.hooks.cluster.jobs.tracker import Submission, TrackedBatchJob
from lading.hooks.polling.job_life import JobPhase
from lading.hooks.spool import events
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.steps import GetAll, Put
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)


class JobMode(ClusterPoller):
    """The state of a site where each task is a batch job."""

    seconds_until_reported = 10.0
    """Shorter waits are not written to Airflow's event log."""
    seconds_until_forced = 60.0
    """After the kill grace, until the batch system cancels a job that ignores its cancellation."""

    def _set_up(self, api: str) -> None:
        self.submitter: Submitter = Submitter(self.context, api)
        self.post_mortem = PostMortem(self.context, self._conclude)
        self.scripts = ScriptRuns(self.context)
        self._letting_go = False
        self._recalled: set[str] = set()

    def give(self, envelopes: Iterable[Envelope]) -> None:
        given = list(envelopes)
        self.scripts.give(each for each in given if each.workload.get("type") == JOB_SCRIPT)
        super().give(each for each in given if each.workload.get("type") != JOB_SCRIPT)

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> bool:
        scripts = self.scripts.known()
        others = {token: reason for token, reason in reasons.items() if token not in scripts}
        are_new = self.scripts.cancel(reasons)
        return super().ask_to_cancel(others) or are_new

    def known(self) -> frozenset[str]:
        return super().known() | self.scripts.known()

    def acknowledge(self, count: int) -> list[dict[str, Any]]:
        stored = super().acknowledge(count)
        self.scripts.forget(event["token"] for event in stored if event["event"] == "finished")
        return stored

    def pause(self) -> float:
        return self.interval.pause(has_jobs=bool(self.tracker.jobs) or self.scripts.has_runs)

    def _has_errands(self) -> bool:
        return self.scripts.is_urgent or super()._has_errands()

    def batch_jobs(self) -> list[tuple[TrackedBatchJob, str]]:
        with self.tracker.lock:
            jobs = [job for job in self.tracker.jobs.values() if job.submission is not None]
        return [(job, self.folder.output(job.submission.name, job.index)) for job in jobs if job.submission]

    def withdraw_waiting(self) -> None:
        self._letting_go = True
        with self.tracker.lock:
            for job in list(self.tracker.waiting()):
                del self.tracker.jobs[job.token]
        for job in list(self.tracker.live()):
            if not job.started and (job.native is None or job.native.state == "pending"):
                self._take_back(job)

    def ask_back(self, tokens: Mapping[str, Sequence[str]]) -> bool:
        with self.tracker.lock:
            known = ((token, self.tracker.jobs.get(token)) for some in tokens.values() for token in some)
            new = {token for token, job in known if job is not None and not (job.started or job.ended)} - self._recalled
            self._recalled |= new
        return bool(new)

    def round(self) -> None:
        super().round()
        self._give_back()

    def _give_back(self) -> None:
        """Return jobs that were asked back, to wait elsewhere. One that has taken its envelope continues to run."""
        with self.tracker.lock:
            asked = [self.tracker.jobs[token] for token in self._recalled & self.tracker.jobs.keys()]
        if not asked:
            return
        step = remote_steps.take_envelopes_back(self.folder.root, [job.token for job in asked])
        found = remote_steps.envelopes_taken_back(self.transport.exchange([step])[0])
        for job in asked:
            fate = found.get(job.token, "begun")
            if job.started or job.ended or fate == "begun":
                continue
            if job.submission is None:
                with self.tracker.lock:
                    self.tracker.jobs.pop(job.token)
            elif fate == "removed":
                self._take_back(job)
            else:
                continue  # its envelope is being moved, and will be asked back again
            event = {"event": "returned", "token": job.token, "location": self.submitter.site}
            self.event_buffer.add({**event, "reason": because("not_started_there")})
            self.interval.at_once()
        with self.tracker.lock:
            self._recalled.clear()

    def _take_back(self, job: TrackedBatchJob) -> None:
        """Withdraw a submitted job that has not started; the store gives it again."""
        self.tracker.cancel_natively(job, self.system)
        job.envelope = None
        self.tracker.withdraw(job)

    def _load(self) -> None:
        (answer,) = self.transport.exchange([remote_steps.load(self.folder, self.owner)])
        self.user, found, begun = remote_steps.loaded(answer)
        now = time.monotonic()
        for listed in found:
            id = self._submitted_id(listed.name, listed.answer)
            submission = Submission(listed.name, [task.token for task in listed.tasks], id, now)
            submission.clusters = self._named_clusters(listed.name, listed.header)
            tasks = [task for task in listed.tasks if task.token not in listed.withdrawn]
            self.tracker.submit_found(submission, tasks, begun)
        self.logs.keep({*self.tracker.jobs, *begun})

    # -- polling

    def _look_at_cluster(self) -> None:
        live = list(self.tracker.live())
        doubtful = [job for job in live if job.gone_since is not None][:200]  # examined in one poll
        reading = GetAll(self.folder.events, largest=events.MOST_BYTES)
        look = ClusterLook(**self._due())
        removals = [f"spool/events/{name}" for name in look.files]
        removals += [name for token in look.done for name in self.folder.files_of(token)]
        self._ask(look, [*removals, *sorted(look.pending.leftovers)], live, doubtful)
        look.steps["events"] = reading
        look.steps |= self.scripts.steps()
        if doubtful and look.status is not None:
            look.steps["remains"] = self.post_mortem.question(doubtful)
        answers = self._send(look)
        files = reading.files(answers["events"])
        self.interval.looked(has_jobs=bool(self.tracker.jobs) or self.scripts.has_runs)
        for name, why in reading.left_out(answers["events"]).items():
            self.rejected.report(name, why)
        self._read_events(files)
        if len(files) < reading.most:
            self._events_read_at = look.asked_at
        known = self._statuses(look)
        if known is not None:
            self._read_states(known, live, look.asked_at)
        self._settle()
        self._read_logs(look)
        if "remains" in answers and known is not None:
            self.post_mortem.judge(doubtful, answers["remains"], self._accounts(look), known)
        self._press(look.asked_at)
        self._troubles.note("the runs of job scripts", self.scripts.read(answers))

    def _read_event(self, event: dict[str, Any], job: TrackedBatchJob, file: str | None) -> None:
        if event["event"] != "measured":  # of which many jobs have one now and then: nothing is to be asked sooner
            self.interval.changed()
        if job.ended:
            self.event_buffer.drop(file)
        elif event["event"] == "started":
            job.begin()
            job.envelope, job.began_at = None, event["at"]
            self._report(event, job, file)
        elif event["event"] != "finished":
            self._report(event, job, file)
        elif job.submission is None:  # there is no batch job to query
            self._conclude(job, end_event.from_report(job.token, event), file)
        else:
            job.report_end(event, file)

    def _settle(self) -> None:
        """Report the end of jobs whose own reports are conclusive, unless the batch system contradicts them."""
        for job in list(self.tracker.live()):
            own = end_event.sentinel(job.own)
            if own is not None and own.is_certain:
                facts = outcome.Evidence(native=job.end_seen, cancelled=job.cancelled_at is not None)
                event = end_event.judged(job.token, facts, job.own)
                assert event is not None
                self._conclude(job, event, job.own_file)

    def _doubt(self, submission: Submission, asked_at: float) -> None:
        jobs = [self.tracker.jobs[token] for token in submission.tokens if token in self.tracker.jobs]
        if any(job.started or job.ended for job in jobs):
            for job in jobs:
                job.lose(asked_at)
        elif asked_at - submission.asked_at > self.seconds_until_repeated:
            log.warning(
                "submission %s has not reached the batch system; its %d jobs are submitted again",
                submission.name,
                len(jobs),
            )
            self.tracker.take_back(submission)

    def _compare(self, job: TrackedBatchJob, native: NativeJob | None, asked_at: float) -> None:
        node = job.node
        self._see(job, native, asked_at)
        if native is None:
            return
        if job.node != node and job.phase is JobPhase.STARTED:  # afterwards, the event of its end reports the node
            self._report({"event": "located", "token": job.token}, job)
        if job.started:
            self.nodes.seen(self.node_of(job))
        if native.state == "running":
            # A job that the batch system lists as running reports its start within 30 seconds, or counts as started.
            if not job.started and asked_at - job.shown.since > 30.0:
                job.begin()
                job.began_at = time.time()
                self._report({"event": "started", "token": job.token, "at": job.began_at}, job)
            return
        if job.is_hopeless:
            self.tracker.press(job, self.system)
        waits = native.state == "pending" and not (job.is_hopeless and native.cause in (None, "error"))
        if waits and job.submission and asked_at - job.submission.asked_at > self.seconds_until_reported:
            queue = (job.shape.queue if job.shape else None) or self.config.queue
            given_up_at = job.given_up_at(self.config.cancel_unrunnable_after)
            reason = job.submission.waits(queue, native, given_up_at=given_up_at)
            self.event_buffer.add_reason(job, reason, **self._location_of(job))
            if job.expects(native, time.time()):
                self.event_buffer.add({"event": "estimated", "token": job.token, "starts_at": job.starts_at})

    # -- cancelling

    def _press(self, now: float) -> None:
        """Let the batch system cancel jobs that ignore their cancellation."""
        late = self.config.kill_grace + self.seconds_until_forced
        for job in list(self.tracker.live()):
            if job.cancelled_at is not None and now - job.cancelled_at > late:
                self.tracker.press(job, self.system)

    def _cancel(self) -> None:
        with self.tracker.lock:
            reasons, self._cancels = self._cancels, {}
        if not reasons:
            return
        files = {token: reason.to_json().encode() for token, reason in reasons.items()}
        try:
            steps = [
                Put(f"{self.folder.spool}/cancel", files),
                remote_steps.take_envelopes_back(self.folder.root, reasons),
            ]
            put, answer = self.transport.exchange(steps)
            found = remote_steps.envelopes_taken_back(answer)
        except BaseException:  # whatever happened, a cancellation must not be forgotten
            with self.tracker.lock:
                self._cancels = {**reasons, **self._cancels}
            raise
        self.interval.at_once()
        for token, reason in reasons.items():
            job = self.tracker.job(token)
            if found.get(token) == "begun" and not job.ended:
                job.cancelled_at = time.monotonic() if put.status == 0 else None
            elif self._letting_go and job.submission is not None and not (job.started or job.ended):
                self._take_back(job)  # its batch job runs, and had not taken its envelope yet
            elif not job.ended:
                self.tracker.cancel_natively(job, self.system)
                self._conclude(job, end_event.not_begun(token, "cancelled", reason), None)

    def _conclude(self, job: TrackedBatchJob, event: dict[str, Any], file: str | None) -> None:
        if event["cause"] == "node_failure":
            self.nodes.failed(self.node_of(job), str(event["reason"]))
        elif job.started:
            self.nodes.seen(self.node_of(job))
        super()._conclude(job, event, file)
