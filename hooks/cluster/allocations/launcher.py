"""Giving jobs to allocations: which go into which inbox now, which allocations are asked for, and which make way."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lading.hooks.batch.submit_limits import BackPressure
from lading.hooks.batch.system import BatchSystem, NativeJob, SubmitError
from lading.hooks.cluster import remote_steps as cluster_steps
from lading.hooks.cluster.allocations import remote_steps as allocation_steps
from lading.hooks.cluster.allocations import script as allocation_script
from lading.hooks.cluster.allocations.allocation import Allocation, Fleet
from lading.hooks.cluster.allocations.layout import AllocationFolder
from lading.hooks.cluster.config import ClusterConfig
from lading.hooks.cluster.event_buffer import EventBuffer
from lading.hooks.cluster.excluded_nodes import ExcludedNodes
from lading.hooks.cluster.poll_interval import PollInterval
from lading.hooks.cluster.poller import SECONDS_UNTIL_TOLD, waits_in_queue
from lading.hooks.cluster.submitter import SUBMISSION_TIMEOUT, Submitter
from lading.hooks.cluster.tracker import Tracked
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import Answer, TransportError
from lading.hooks.ssh.steps import Put, Step
from lading.scheduling import provisioning as planning
from lading.scheduling.plan import Location
from lading.scheduling.provisioning import Launch, Need

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

# Airflow hands over the instances of a mapped task in several goes. An allocation of less than a node is asked for when
# no job has come for so long, and after the second number in any case, seconds.
SECONDS_UNTIL_SETTLED = 2.0
LONGEST_ARRIVAL = 6.0
# So many allocations in a row that end before they begin are the site's trouble, which people are told of.
MOST_FAILURES = 2


class AllocationLauncher(Submitter):
    """The way of jobs into allocations.

    :param fleet: the allocations
    """

    def __init__(
        self,
        config: ClusterConfig,
        system: BatchSystem,
        api: str,
        fleet: Fleet,
        event_buffer: EventBuffer,
        interval: PollInterval,
        nodes: ExcludedNodes,
    ) -> None:
        super().__init__(config, system, api, fleet.tracker, event_buffer, interval, nodes)
        self.fleet = fleet
        self.node = allocation_script.node(config)
        self.letting_go = False
        self.failing: str | None = None
        self._starts = BackPressure(1)
        self._failures = 0
        self._arrived_at = 0.0
        self._unsettled_since: float | None = None

    def give(self, transport: Transport, trouble: str | None) -> None:
        renewed = self._note_given()
        try:
            waiting = self._waiting(transport)
        except OSError:
            self.take(renewed.values())
            raise
        placed = self._place(waiting)
        launched = self._launch([job for job in waiting if job.token not in placed and not job.ended], trouble)
        drained = [each for each in self.fleet.allocations.values() if each.wants_drain]
        if renewed or placed or launched or drained:
            try:
                self._exchange(transport, renewed, placed, launched, drained)
            except OSError:
                self.take(renewed.values())
                raise

    def has_failed(self, allocation: Allocation, words: str) -> None:
        """An allocation has ended before it could run a job."""
        self._failures += 1
        self._starts.hold(f"allocation {allocation.name} ended before it could run a job: {words}")
        self.failing = self._starts.held() if self._failures >= (1 if self.is_trial else MOST_FAILURES) else None

    def has_worked(self) -> None:
        """An allocation has run a job."""
        self._failures, self.failing = 0, None
        self._starts = BackPressure(1)

    # -- what is decided

    def _waiting(self, transport: Transport) -> list[Tracked]:
        """The jobs without a place whose Dags are where they read them, in the order in which they should start."""
        if self.letting_go:
            return []
        waiting = [job for job in self.tracker.waiting() if job.envelope is not None]
        for job in waiting:
            if job.token not in self.fleet.needs:
                self._arrived_at = time.monotonic()
            assert job.envelope is not None
            self.fleet.needs[job.token] = allocation_script.job(job.envelope, self.config, self.node)
        needs = self.fleet.needs
        ready = self._with_dags(transport, waiting) if waiting else []
        return sorted(ready, key=lambda job: (-needs[job.token].priority, needs[job.token].queued_at, job.token))

    def _place(self, waiting: Sequence[Tracked]) -> dict[str, str]:
        """Note where jobs go; the name of the allocation by token."""
        placed = planning.place([self.fleet.need(job) for job in waiting], self.fleet.live())
        for token, name in placed.items():
            self.fleet.place(self.tracker.jobs[token], self.fleet.allocations[name])
        return placed

    def _launch(self, waiting: Sequence[Tracked], trouble: str | None) -> list[tuple[Allocation, Launch, str]]:
        """The allocations to ask for, each noted, with its script."""
        live = self.fleet.live()
        need = planning.needed([self.fleet.need(job) for job in waiting], live, self.node)
        for token, words in need.refused.items():
            self._reject([token], words)
        self._release(need)
        held = trouble or self.pressure.held() or self._starts.held() or self._unexplained()
        launches = [] if held or self.letting_go else self._settled(need.launches)
        if not waiting:
            self.failing = None  # nothing would ever try it again while the site is said to be in trouble
        self._tell_reasons(waiting, held, live)
        found = []
        for launch in launches:
            folder = AllocationFolder(self.folder, f"L{uuid.uuid4().hex[:14]}")  # TORQUE takes names of 15 characters
            allocation = Allocation.of(folder, allocation_script.terms(launch, self.config))
            allocation.submission.excluded = self._excluded(launch.kind)
            try:
                script = self._allocation_script(allocation)
            except ValueError as error:
                self._reject(launch.jobs, str(error))
                continue
            self.fleet.allocations[allocation.name] = allocation
            found.append((allocation, launch, script))
        return found

    def _settled(self, launches: Sequence[Launch]) -> list[Launch]:
        """The launches that are due: a part of a node is not as long as more jobs come."""
        now = time.monotonic()
        partial = [each for each in launches if each.capacity.cpus < self.node.capacity.cpus]
        if not partial:
            self._unsettled_since = None
            return list(launches)
        self._unsettled_since = self._unsettled_since or now
        if now - self._arrived_at > SECONDS_UNTIL_SETTLED or now - self._unsettled_since > LONGEST_ARRIVAL:
            self._unsettled_since = None
            return list(launches)
        self.interval.changed()
        return [each for each in launches if each not in partial]

    def _release(self, need: Need) -> None:
        """Let allocations go that make way, or that wait in their queue and are not needed any more."""
        now = time.monotonic()
        for each in self.fleet.allocations.values():
            spare = each.is_pending and each.name in need.spare
            each.spare_since = (each.spare_since or now) if spare else None
            unused = each.spare_since is not None and now - each.spare_since > self.config.idle_seconds
            if (unused or each.name == need.drain) and not (each.draining or each.wants_drain):
                log.info("allocation %s is let go", each.name)
                self.let_go(each)

    def let_go(self, allocation: Allocation) -> None:
        """Let an allocation end when its running jobs have, at once when it waits in its queue."""
        if allocation.is_up:
            allocation.wants_drain = True
        else:
            allocation.draining = True
            self.tracker.cancel_natively(allocation.batch, self.system)

    def _unexplained(self) -> str | None:
        """The allocation that has ended before it began, as long as it is being looked into."""
        for each in self.fleet.allocations.values():
            if each.batch.gone_since is not None and each.ends_at is None and not (each.over or each.draining):
                return f"allocation {each.name} has ended before it could run a job"
        return None

    def _allocation_script(self, allocation: Allocation) -> str:
        return allocation_script.render(
            allocation.folder,
            allocation.terms,
            system=self.system,
            config=self.config,
            api=self.api,
            excluded=allocation.submission.excluded,
            is_trial=self.is_trial,
        )

    # -- what is done

    def _exchange(
        self,
        transport: Transport,
        renewed: dict[str, Envelope],
        placed: dict[str, str],
        launched: Sequence[tuple[Allocation, Launch, str]],
        drained: Sequence[Allocation],
    ) -> None:
        given, again = (f"{prefix}{uuid.uuid4().hex}" for prefix in (allocation_steps.GIVEN, allocation_steps.RENEWED))
        files = {f"{each.folder.relative}/spool/shutdown": b"drain" for each in drained}
        for token, name in placed.items():
            envelope = self.tracker.jobs[token].envelope
            assert envelope is not None
            files[f"incoming/{given}/{name}/{token}.json"] = self._packed(envelope, self.fleet.allocations[name])
        for token, envelope in renewed.items():
            if (allocation := self.fleet.of(self.tracker.jobs[token])) is not None:
                files[f"incoming/{again}/{allocation.name}/{token}.json"] = self._packed(envelope, allocation)
        for allocation, _, script in launched:
            files[f"{allocation.folder.relative}/terms.json"] = allocation.terms.to_json().encode()
            files[f"{allocation.folder.relative}/script"] = script.encode()
        steps: list[Step] = [Put(self.folder.root, files), allocation_steps.place([given, again], self.folder)]
        for allocation, _, _ in launched:
            command = self.system.submit(f"{allocation.folder.root}/script")
            steps.append(cluster_steps.submit_in(allocation.folder.root, command))
        self.fleet.doubtful |= placed.keys()
        put, moved, *answers = transport.exchange(steps, SUBMISSION_TIMEOUT)
        self.interval.soon()
        for (allocation, launch, _), answer in zip(launched, answers, strict=True):
            allocation.submission.asked_at = time.monotonic()
            self._read_launch(allocation, launch, answer)
        for each in drained:
            each.draining, each.wants_drain = put.status == 0, put.status != 0
        self._read_placed(placed, put, moved)

    def _packed(self, envelope: Envelope, allocation: Allocation) -> bytes:
        """The envelope with what its job takes of an allocation: the agent packs by the same numbers as the planner."""
        node = replace(self.node, capacity=allocation.terms.capacity)
        need = allocation_script.job(envelope, self.config, node)
        return replace(envelope, resources=need.resources).to_json().encode()

    def _read_placed(self, placed: dict[str, str], put: Answer, moved: Answer) -> None:
        refused = frozenset(placed) if put.status else allocation_steps.refused(moved)
        if put.status is None or refused is None:
            return  # they are looked for before anything else is done about them
        self.fleet.doubtful -= placed.keys()
        for token in refused & placed.keys():
            self.fleet.withdraw(self.tracker.jobs[token])
            if not put.status:
                self.fleet.allocations[placed[token]].closed = True
        if put.status:
            raise TransportError(f"jobs could not be written to {self.folder.root}: {put.words}")

    def _read_launch(self, allocation: Allocation, launch: Launch, answer: Answer) -> None:
        try:
            allocation.submission.id = self.system.submitted(answer)
        except SubmitError as error:
            self._refuse_launch(allocation, launch, answer, error)
            return
        log.info("asked for allocation %s of %s as %s", allocation.name, launch.capacity, allocation.submission.id)
        self.pressure.accept(0)

    def _refuse_launch(self, allocation: Allocation, launch: Launch, answer: Answer, error: SubmitError) -> None:
        if answer.status == cluster_steps.NOT_TRIED:
            error = SubmitError("limit", f"its files are not in {self.folder.root}")
        log.warning("allocation %s (%s): %s", allocation.name, error.kind, error.words)
        if error.kind == "transient":
            # It may have been accepted: it is looked up by its name before anything else is done about it.
            self.pressure.hold(f"{self.system.name} did not say whether it has taken the allocation: {error.words}")
            return
        self.fleet.drop(allocation)
        if error.kind == "permanent" and allocation.submission.excluded:
            # It may be that no other node can have it: it is asked for again from all of them.
            self._anywhere.add((launch.kind, allocation.submission.excluded))
            self.interval.at_once()
        elif error.kind == "permanent":
            self._reject(launch.jobs, f"{self.system.name} does not take the allocation for it: {error.words}")
        else:
            self.pressure.hold(f"{self.system.name} takes no more jobs now: {error.words}")

    # -- what is told

    def _queue_words(self, allocation: Allocation, native: NativeJob) -> str:
        queue = allocation_script.queue(allocation.terms) or self.config.queue
        return waits_in_queue(queue, native, allocation.submission)

    def _tell_reasons(self, waiting: Iterable[Tracked], held: str | None, live: Sequence[Location]) -> None:
        full = f"{len(live)} of {self.node.most} allocations are busy (max_allocations)"
        now = time.time()
        queued = {
            each.terms.kind: f"allocation {each.name} {self._queue_words(each, each.batch.native)}"
            for each in self.fleet.allocations.values()
            if each.is_pending and each.batch.native is not None and each.batch.native.state == "pending"
        }
        for job in waiting:
            need = self.fleet.need(job)
            reason = held or queued.get(str(need.instance_type)) or (full if len(live) >= self.node.most else None)
            if reason is not None and (held or now - need.queued_at > SECONDS_UNTIL_TOLD):
                self.event_buffer.tell_reason(job, f"waits: {reason}")
