"""The rounds of a site where tasks are packed into allocations, each of which is filled by a node agent.

An envelope is in only one inbox at a time: it is given to another allocation after it was taken out of the first one,
or once that one is over. If a job reaches two of them nevertheless, the first agent that claims it starts it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.allocations import remote_steps
from lading.hooks.cluster.allocations.allocation import Allocation, AllocationFleet, ReleaseState
from lading.hooks.cluster.allocations.launcher import AllocationLauncher, seen_allocations
from lading.hooks.cluster.allocations.layout import SECONDS_BETWEEN_REPORTS, AllocationFolder
from lading.hooks.cluster.allocations.post_mortem import AllocationPostMortem
from lading.hooks.cluster.allocations.remote_steps import Events
from lading.hooks.cluster.jobs import end_event
from lading.hooks.cluster.jobs.poller import ClusterLook, ClusterPoller
from lading.hooks.cluster.jobs.tracker import Submission, TrackedBatchJob
from lading.hooks.polling.job_life import JobPhase
from lading.hooks.polling.outside_clock import SECONDS_UNTIL_SEEN, least_ahead
from lading.hooks.site import ObservedLocation
from lading.hooks.spool import events
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import FilePart, Parts, Put
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)

# Maximum age, in seconds, of the remaining time that an agent reports.
LONGEST_REPORTED_AGO = SECONDS_BETWEEN_REPORTS + SECONDS_UNTIL_SEEN


@dataclass(slots=True, kw_only=True)
class _Look(ClusterLook):
    """One poll of the cluster.

    :param back: jobs to be taken out of inboxes: the allocation of each, by token
    :param gone: allocations that may have ended, with those of their jobs that had started
    :param new: allocations whose agents have not reported their start
    """

    back: dict[str, str]
    gone: dict[str, list[TrackedBatchJob]]
    new: list[Allocation]
    remains: Parts | None = None


class AllocationMode(ClusterPoller):
    def _set_up(self, api: str) -> None:
        self.fleet = AllocationFleet(self.tracker)
        self.submitter: AllocationLauncher = AllocationLauncher(self.context, api, self.fleet)
        self.post_mortem = AllocationPostMortem(self.submitter, self._conclude)
        self.recall = InboxRecall(self.fleet, self._let_wait)
        # By token: reasons of cancelled jobs, and log paths of jobs about which nothing else is known.
        self._cancelled: dict[str, Reason] = {}
        self._paths: dict[str, str] = {}

    @property
    def failing(self) -> str | None:
        return self.submitter.failing

    def pause(self) -> float:
        return self.interval.pause(
            has_jobs=bool(self.tracker.jobs or self.fleet.allocations or self.submitter.ordered())
        )

    def seen(self) -> list[ObservedLocation]:
        return seen_allocations(self.fleet, self.submitter)

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> bool:
        # A job that is being taken back ends in Airflow if it has not started; otherwise the request is repeated.
        return super().ask_to_cancel(
            {token: reason for token, reason in reasons.items() if token not in self.recall.asked}
        )

    def ask_back(self, tokens: Mapping[str, Sequence[str]]) -> bool:
        return self.recall.ask(tokens)

    def batch_jobs(self) -> list[tuple[TrackedBatchJob, str]]:
        return [(each.batch, each.folder.output) for each in list(self.fleet.allocations.values())]

    def withdraw_waiting(self) -> None:
        self.submitter.letting_go = True
        self.recall.ask_for_all()
        for job in list(self.tracker.waiting()):
            self.submitter.give_back_job(job, because("stopped"))
        for allocation in list(self.fleet.allocations.values()):
            if not (allocation.over or allocation.release is ReleaseState.ASKED):
                self.submitter.let_go(allocation)
        self.interval.at_once()

    def remove(self) -> None:
        ids = [each.submission.id for each in self.fleet.allocations.values() if not each.over and each.submission.id]
        if ids:
            self.transport.run([self.system.cancel(ids)])
        for _ in range(4):  # an agent that is shutting down may still write there
            with contextlib.suppress(OSError):
                super().remove()
                return
            time.sleep(1.0)
        super().remove()

    def _load(self) -> None:
        (answer,) = self.transport.exchange([remote_steps.load(self.folder, self.owner)])
        left = remote_steps.loaded(answer)
        for listed in left.allocations.values():
            if listed.terms is None:
                log.error(
                    "the stored terms of allocation %s cannot be read, so this controller does not use it", listed.name
                )
                continue
            id = self._submitted_id(listed.name, listed.answer)
            allocation = Allocation.from_terms(AllocationFolder(self.folder, listed.name), listed.terms, id)
            allocation.submission.clusters = self._named_clusters(listed.name, "\n".join(listed.header))
            self.fleet.allocations[listed.name] = allocation
            paths = {token: claim.log_path for token, claim in left.claims.items()} | left.log_paths
            with self.tracker.lock:
                for token in (*listed.waiting, *listed.begun):
                    phase = JobPhase.STARTED if token in listed.begun else JobPhase.WAITING
                    job = TrackedBatchJob(token, paths.get(token, ""), left.bundles.get(token, ""), phase=phase)
                    self.tracker.jobs.setdefault(token, job)
                    self.fleet.given[token] = listed.name
                    self.fleet.place(self.tracker.jobs[token], allocation)
        for token, claim in left.claims.items():  # claims of jobs whose end has not been read yet, or that are over
            if token not in self.tracker.jobs:
                self._paths[token] = claim.log_path
        self.logs.keep({*self.tracker.jobs, *left.claims})
        self.user = left.user

    # -- polling

    def _has_errands(self) -> bool:
        return super()._has_errands() or bool(self.recall.asked)

    def _look_at_cluster(self) -> None:
        look = self._prepare()
        try:
            answers = self._send(look)
            events = self._events(look, answers)
        except OSError:
            self.fleet.doubtful |= look.back.keys()
            raise
        self._slow_down()
        for name, files in events.items():
            self._reading = self.fleet.allocations[name]  # allocations are only dropped below
            self._read_events(files)
        if all(len(files) < Events.most for files in events.values()):
            self._events_read_at = look.asked_at
        self.recall.read(look.back, look.gone, answers.get("back"))
        known = self._statuses(look)
        if known is not None:
            self._read_states(known, self.fleet.living(), look.asked_at)
        if look.new:
            self._read_begun(look.new, answers["up"])
        self._read_logs(look)
        if look.remains is not None and known is not None:
            contents = look.remains.contents(answers["remains"])
            self.post_mortem.judge(look.gone, contents, self._accounts(look), known)
        for allocation in list(self.fleet.allocations.values()):
            self._tidy(allocation, events.get(allocation.name))
        self.post_mortem.conclude_hopeless()

    def _read_begun(self, allocations: Sequence[Allocation], answer: CommandResult) -> None:
        contents = _begun_question(allocations).contents(answer)
        for allocation, content in zip(allocations, contents, strict=True):
            up = remote_steps.read_up(content)
            if up is not None:
                log.info("allocation %s runs on %s", allocation.name, up["host"])
                now, allocation.ends_at = time.time(), time.monotonic() + up["left"]
                allocation.clock_ahead = least_ahead(up["now"], now - LONGEST_REPORTED_AGO, now)
                self.nodes.seen(self.node_of(allocation.batch))
                self.interval.changed()

    def _doubt(self, submission: Submission, asked_at: float) -> None:
        allocation = self.fleet.allocations[submission.name]
        if allocation.ends_at is not None:
            allocation.batch.lose(asked_at)
        elif asked_at - submission.asked_at > self.seconds_until_repeated:
            log.warning("allocation %s has not reached the batch system", allocation.name)
            self.submitter.drop(allocation, "lost", because("allocation_unknown"))

    def _compare(self, job: TrackedBatchJob, native: NativeJob | None, asked_at: float) -> None:
        allocation = self.fleet.of_job(job)
        assert allocation is not None
        # Until the announced end of its agent, it may still be running.
        may_run = allocation.ends_at is not None and asked_at < allocation.ends_at
        self._see(job, native, asked_at, may_run=may_run)
        unwanted = allocation.release is ReleaseState.ASKED and allocation.ends_at is None and job.gone_since is None
        if native is not None and (job.is_hopeless or unwanted):  # unwanted: its cancellation had no effect
            self.tracker.press(job, self.system)

    def _slow_down(self) -> None:
        """Set the poll interval. While an allocation is pending it stays short, so that its node soon gets its jobs."""
        awaited = any(each.is_pending for each in self.fleet.allocations.values())
        longest = self.config.max_poll_interval
        # Jobs wait for a pending allocation, so it is polled at least this often.
        self.interval.longest = min(longest, max(self.interval.shortest, 15)) if awaited else longest
        self.interval.looked(has_jobs=bool(self.tracker.jobs or self.fleet.allocations))

    def _prepare(self) -> _Look:
        allocations, gone = list(self.fleet.allocations.values()), self.post_mortem.gone()
        look = _Look(
            back=self.recall.choose(),
            gone=gone,
            new=[each for each in allocations if each.ends_at is None and not each.over],
            **self._due(),
        )
        if look.back:
            look.steps["back"] = remote_steps.take_back(look.back, gone, self.folder)
        removals = [*look.files, *sorted(look.pending.leftovers)]
        removals += [f"{kind}/{token}" for token in look.done for kind in ("logs", "claims")]
        self._ask(look, removals, self.fleet.living(), [self.fleet.allocations[name].batch for name in gone])
        if look.new:
            look.steps["up"] = _begun_question(look.new)
        for each in allocations:
            look.steps[f"events {each.name}"] = Events(f"{each.folder.spool}/events", largest=events.MOST_BYTES)
        if gone and look.status is not None:
            look.steps["remains"] = look.remains = self.post_mortem.question(gone)
        return look

    # -- reading the answers

    def _events(self, look: _Look, answers: Mapping[str, CommandResult]) -> dict[str, dict[str, bytes]]:
        """Return the event files of each allocation, by their paths relative to the cluster's folder."""
        found = {}
        for key, step in look.steps.items():
            if isinstance(step, Events):
                name = key.removeprefix("events ")
                folder = f"{self.fleet.allocations[name].folder.relative}/spool/events"
                files = step.files(answers[key])
                for file, why in step.left_out(answers[key]).items():
                    self.rejected.report(f"{folder}/{file}", why)
                found[name] = {f"{folder}/{file}": content for file, content in files.items()}
        return found

    def _forget(self, tokens: Sequence[str], files: Sequence[str]) -> None:
        super()._forget(tokens, files)
        self.fleet.forget(tokens)
        for token in tokens:
            self._cancelled.pop(token, None)
            self._paths.pop(token, None)

    def _read_event(self, event: dict[str, Any], job: TrackedBatchJob, file: str | None) -> None:
        if event["event"] != "measured":  # of which many jobs have one now and then: nothing is to be asked sooner
            self.interval.changed()
        if job.ended:
            self.event_buffer.drop(file)
            return
        if job.token in self._paths:
            job.log_path = self._paths.pop(job.token)
        kind = event["event"]
        if kind in ("started", "finished"):
            job.enter(self._reading.submission)
            job.begin()
            job.envelope = None
            job.began_at = event["at"] if kind == "started" else job.began_at
            self.fleet.doubtful.discard(job.token)
        if kind != "finished":
            self._report(event, job, file)
        elif (said := end_event.sentinel(event)) is not None and said.is_certain:
            self._conclude(job, event, file)
        else:
            job.report_end(event, file)

    def _location_of(self, job: TrackedBatchJob) -> dict[str, str]:
        allocation = self.fleet.of_job(job)
        return allocation.batch.whereabouts(self.system) if allocation is not None else {}

    def _let_wait(self, job: TrackedBatchJob) -> None:
        """Let a job that is in no inbox any more wait again, or report it as cancelled if that was requested."""
        if job.token in self._cancelled:
            self._conclude(job, end_event.not_begun(job.token, "cancelled", self._cancelled[job.token]), None)
        else:
            self.submitter.give_back_job(job, because("not_started_there"))

    # -- removing allocations

    def _tidy(self, allocation: Allocation, events: Mapping[str, bytes] | None) -> None:
        """Remove an allocation that is over once two polls in a row found no news and no unfinished jobs of it."""
        if allocation.end is None or events is None:
            return
        allocation.rest = 0 if events else allocation.rest + 1
        if allocation.rest > 1 and not any(each is allocation for each, _ in self.fleet.jobs()):
            self.submitter.drop(allocation, *allocation.end)

    # -- cancelling

    def _cancel(self) -> None:
        with self.tracker.lock:
            reasons, self._cancels = self._cancels, {}
        files: dict[str, bytes] = {}
        for token, reason in reasons.items():
            job = self.tracker.job(token)
            allocation = self.fleet.of_job(job)
            if job.ended:
                continue
            if allocation is None:
                self._conclude(job, end_event.not_begun(token, "cancelled", reason), None)
            else:
                files[f"{allocation.folder.relative}/spool/cancel/{token}"] = reason.to_json().encode()
        if not files:
            return
        try:
            (put,) = self.transport.exchange([Put(self.folder.root, files)])
        except OSError:
            put = CommandResult(None)
        self.interval.soon()
        for path in files:
            token = path.rpartition("/")[2]
            if put.status == 0:
                self._cancelled[token] = reasons[token]
                self.tracker.job(token).cancelled_at = time.monotonic()
            else:
                with self.tracker.lock:
                    self._cancels.setdefault(token, reasons[token])
        if put.status != 0:
            raise TransportError(f"jobs could not be cancelled: {put.message}")

    def _conclude(self, job: TrackedBatchJob, event: dict[str, Any], file: str | None) -> None:
        if (allocation := self.fleet.of_job(job)) is not None and not allocation.worked and file is not None:
            allocation.worked = True
            self.submitter.has_worked()
        super()._conclude(job, event, file)


def _begun_question(allocations: Sequence[Allocation]) -> Parts:
    return Parts([FilePart(each.folder.up) for each in allocations])


# Jobs are taken out of inboxes if no agent will start them there, or if the controller recalls them.


class InboxRecall:
    """Takes jobs out of their inboxes.

    :param let_wait: called with each job that is in no inbox any more
    """

    def __init__(self, fleet: AllocationFleet, let_wait: Callable[[TrackedBatchJob], None]) -> None:
        self.fleet = fleet
        self.let_wait = let_wait
        self.asked: dict[str, str] = {}
        """The allocation of each job that was asked back, by token."""

    def ask(self, tokens: Mapping[str, Sequence[str]]) -> bool:
        """Take jobs back in the next round; return whether any request is new.

        :param tokens: by allocation
        """
        with self.fleet.tracker.lock:
            given = self.fleet.given
            pairs = ((token, name) for name, some in tokens.items() for token in some if given.get(token) == name)
            new = {token: name for token, name in pairs if token not in self.asked}
            self.asked |= new
        return bool(new)

    def ask_for_all(self) -> None:
        self.asked |= {job.token: allocation.name for allocation, job in self.fleet.jobs() if not job.started}

    def choose(self) -> dict[str, str]:
        """Return the jobs to take out of their inboxes in this poll: the allocation of each, by token."""
        placed = {job.token: allocation for allocation, job in self.fleet.jobs() if not job.started}
        back = {token: each.name for token, each in placed.items() if each.ends or token in self.fleet.doubtful}
        for job in list(self.fleet.tracker.waiting()):
            if job.token in self.asked:  # it is not in an inbox yet
                self.let_wait(job)
        with self.fleet.tracker.lock:
            self.asked = {token: name for token, name in self.asked.items() if token in placed}
            back |= self.asked
        return dict(list(back.items())[:1000])  # taken out of inboxes in one poll

    def read(self, chosen: Mapping[str, str], gone: Mapping[str, object], answer: CommandResult | None) -> None:
        """Determine which of the chosen jobs are in no inbox any more.

        :param gone: allocations that may have ended
        :param answer: None: nothing was taken back
        """
        found = {} if answer is None else remote_steps.taken_back(answer)
        self.fleet.doubtful |= chosen.keys() - found.keys()
        now = time.monotonic()
        for token, what in found.items():
            self.asked.pop(token, None)
            job = self.fleet.tracker.jobs.get(token)
            if job is None or job.started or job.ended or job.submission is None:
                continue
            late = now - self.fleet.placed_at.get(token, 0.0) > AllocationMode.seconds_until_repeated
            if what == "removed" or (what == "absent" and token in self.fleet.doubtful and late):
                self.let_wait(job)
            elif what == "begun":
                self.fleet.doubtful.discard(token)
                if chosen[token] in gone:
                    job.begin()
