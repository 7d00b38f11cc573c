"""The launcher: requests ordered allocations, releases others, and moves jobs into the inboxes of their allocations.

It decides nothing: the controller has chosen all of these.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from lading.hooks.batch.submit_limits import FIRST_PAUSE, LONGEST_PAUSE
from lading.hooks.cluster.allocations import remote_steps as allocation_steps
from lading.hooks.cluster.allocations import script as allocation_script
from lading.hooks.cluster.allocations.allocation import Allocation, AllocationFleet, ReleaseState
from lading.hooks.cluster.allocations.layout import AllocationFolder
from lading.hooks.cluster.jobs import remote_steps as cluster_steps
from lading.hooks.cluster.jobs.context import ClusterContext
from lading.hooks.cluster.jobs.job_script import named_clusters, named_queues
from lading.hooks.cluster.jobs.submitter import SUBMISSION_TIMEOUT, Submitter
from lading.hooks.cluster.jobs.tracker import TrackedBatchJob
from lading.hooks.site import LocationState, ObservedLocation, Order
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.hooks.spool.tokens import checked
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.hooks.ssh.steps import Put, RemoteStep
from lading.hooks.ssh.transport import Transport
from lading.scheduling.matching.market import Market, kind, need
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

log = logging.getLogger(__name__)

NO_ROOM = because("allocation_full")


class AllocationLauncher(Submitter):
    """Requests the allocations of a site and submits jobs to them.

    :param fleet: the allocations
    """

    def __init__(self, context: ClusterContext, api: str, fleet: AllocationFleet) -> None:
        super().__init__(context, api)
        self.fleet = fleet
        self.letting_go = False
        self.trouble: Reason | None = None
        self._starts = ReasonedBackoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._failures: list[Reason] = []
        self._orders: dict[str, Order] = {}
        self._holds: dict[str, bytes] = {}

    @property
    def most(self) -> Market:
        """What can be launched if nothing prevents it."""
        queue = ",".join(named_queues(self.config, self.system))
        return allocation_script.market(self.config, self._longest(queue))

    # -- what the controller calls

    def market(self) -> Market:
        barred = next(iter(self.barred.reasons().values()), None)
        held = self.trouble or self.pressure.held() or self._starts.reason or self._unexplained() or barred
        if held is None and not self.pressure.room(submitted := self._count_submitted()):
            held = self.pressure.reason(self.system.name, submitted)
        return replace(self.most, held=held)

    def _count_submitted(self) -> int:
        return sum(not each.over for each in list(self.fleet.allocations.values()))

    def note_end(self) -> None:
        """A job in an allocation is not a batch job, so its end makes no room in the batch system."""

    def order(self, orders: Iterable[Order]) -> None:
        """Take orders, to be launched in the next round; an order that is known already is ignored."""
        with self.tracker.lock:
            self._orders |= {each.name: each for each in orders if each.name not in self.fleet.allocations}

    def ordered(self) -> list[Order]:
        with self.tracker.lock:
            return list(self._orders.values())

    def forget_orders(self, reason: Reason) -> None:
        self.release({each.name: reason for each in self.ordered()})

    def take_for(self, name: str, envelopes: Sequence[Envelope]) -> None:
        """Take jobs for an allocation, to be moved into its inbox in the next round."""
        with self.tracker.lock:
            jobs = self.tracker.jobs
            # A job that is already in an inbox stays with that allocation until it is taken out of it.
            new = [each.token for each in envelopes if each.token not in jobs or jobs[each.token].submission is None]
            self.fleet.given |= dict.fromkeys(new, name)
            self.take(envelopes)

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        """Hold room in allocations, from the next round on."""
        with self.tracker.lock:
            files = {self._hold_file(name, each.token): each for name, here in holds.items() for each in here}
            self._holds |= {file: each.to_json().encode() for file, each in files.items() if file}
        self.interval.at_once()

    def drop_holds(self, tokens: Mapping[str, Collection[str]]) -> None:
        """Stop holding room in allocations, from the next poll on."""
        with self.tracker.lock:
            for file in (self._hold_file(name, token) for name, here in tokens.items() for token in here):
                self._holds.pop(file, None)
                self.tracker.pending.leftovers |= {file} if file else set()
        self.interval.at_once()

    def _hold_file(self, name: str, token: str) -> str:
        """Return the file of a hold, relative to the cluster's folder; empty: the allocation no longer exists."""
        allocation = self.fleet.allocations.get(name)
        return "" if allocation is None else f"{allocation.folder.relative}/spool/holds/{checked(token)}.json"

    def give_back(self) -> None:
        """Register the taken jobs: they wait for their allocation, and are given back with all others."""
        self._note_given()

    # -- the rounds

    def give(self, transport: Transport, trouble: Reason | None) -> None:
        renewed = self._note_given()
        try:
            self.trouble = trouble or self._bring_agent(transport)
            placed = self._placed(transport)
        except OSError:
            self.take(renewed.values())
            raise
        launched = self._launched()
        drained = [each for each in self.fleet.allocations.values() if each.release is ReleaseState.WANTED]
        if renewed or placed or launched or drained or self._holds:
            try:
                self._exchange(transport, renewed, placed, launched, drained)
            except OSError:
                self.take(renewed.values())
                raise

    @property
    def failing(self) -> str | None:
        """Why the last allocation failed, if several in a row ended before they started; None: they did not."""
        # Two consecutive allocations that end before they start count as a fault of the site.
        is_enough = len(self._failures) >= (1 if self.is_trial else 2)
        return self._failures[-1].sentence if is_enough else None

    def has_failed(self, allocation: Allocation, why: Reason) -> None:
        """Note that an allocation has ended before it could run a job."""
        self._failures.append(because("allocation_failed", allocation=allocation.name).with_also(why))
        self._starts.failed_for(self._failures[-1])

    def has_worked(self) -> None:
        self._failures.clear()
        self._starts.succeeded()

    def _placed(self, transport: Transport) -> dict[str, str]:
        """Return the jobs that go into an inbox now, as the name of the allocation by token."""
        waiting = []
        for job in list(self.tracker.waiting()):
            if (allocation := self._allocation(job)) is None or self.letting_go:
                self.give_back_job(job, NO_ROOM)
            elif job.envelope is not None:
                waiting.append((job, allocation))
        ready = {job.token for job in self._with_dags(transport, [job for job, _ in waiting])} if waiting else set()
        placed = {}
        for job, allocation in waiting:
            if job.token in ready and not job.ended:
                self.fleet.place(job, allocation)
                placed[job.token] = allocation.name
        return placed

    def _allocation(self, job: TrackedBatchJob) -> Allocation | None:
        """Return the allocation to which a job was given, if it accepts jobs."""
        allocation = self.fleet.allocations.get(self.fleet.given.get(job.token, ""))
        takes = allocation is not None and allocation.is_up and allocation.release is ReleaseState.NONE
        return allocation if takes else None

    def give_back_job(self, job: TrackedBatchJob, reason: Reason) -> None:
        """Return a job that is in no inbox and will not be; it waits for a new placement."""
        name = self.fleet.given.get(job.token) or (job.submission.name if job.submission is not None else "")
        self.fleet.forget([job.token])
        with self.tracker.lock:
            self.tracker.jobs.pop(job.token, None)
        self.event_buffer.add({"event": "returned", "token": job.token, "location": name, "reason": reason})

    def _launched(self) -> list[tuple[Allocation, str, Order]]:
        """Register the allocations that are requested now, and return each with its script and its order."""
        if self.market().held is not None or self.letting_go:
            return []
        with self.tracker.lock:
            due = dict(islice(self._orders.items(), self.pressure.room(self._count_submitted())))
            self._orders = {name: order for name, order in self._orders.items() if name not in due}
            new = [self._allocation_of(order) for name, order in due.items() if name not in self.fleet.allocations]
            self.fleet.allocations |= {each.name: each for each in new}
        found = []
        writer = allocation_script.AllocationWriter(self.system, self.config, self.api, self.is_trial)
        for allocation in new:
            try:
                submission, native = allocation.submission, allocation_script.native(allocation.terms)
                submission.clusters = named_clusters(native, self.config, self.system)
                submission.excluded = self._excluded(allocation.terms.kind, submission.clusters)
                script = writer.allocation(allocation.folder, allocation.terms, submission.excluded, self._longest)
                found.append((allocation, script, due[allocation.name]))
            except ValueError as error:
                self.drop(allocation, "submit_rejected", because("script_refused", text=str(error)), refused=True)
        return found

    def _allocation_of(self, order: Order) -> Allocation:
        folder = AllocationFolder(self.folder, order.name)
        return Allocation.from_terms(folder, allocation_script.terms(order.launch, self.config))

    def drop(self, allocation: Allocation, cause: str | None, reason: Reason | None, *, refused: bool = False) -> None:
        """Forget an allocation that is over or never existed, and report it as released.

        :param refused: whether the batch system refuses it permanently
        """
        self.fleet.drop(allocation)
        if cause != "submit_rejected":
            self.pressure.release()
        if (id := allocation.batch.native_id(self.system)) is not None:
            self.tracker.canceller.forget(id)
        event = {"event": "released", "token": allocation.name, "at": time.time(), "cause": cause, "reason": reason}
        self.event_buffer.add({**event, "refused": refused})
        self.interval.at_once()

    def release(self, reasons: Mapping[str, Reason]) -> None:
        """Release allocations: a running one ends when its jobs have ended, a pending one at once.

        :param reasons: by name
        """
        for name, reason in reasons.items():
            with self.tracker.lock:
                order, allocation = self._orders.pop(name, None), self.fleet.allocations.get(name)
            if order is not None:
                self.event_buffer.add({"event": "released", "token": name, "at": time.time(), "reason": reason})
            if allocation is not None and allocation.release is ReleaseState.NONE and not allocation.over:
                log.info("allocation %s is being released: %s", name, reason)
                self.let_go(allocation)

    def let_go(self, allocation: Allocation) -> None:
        """Let an allocation end when its running jobs have ended, or at once if it is pending."""
        allocation.release = ReleaseState.WANTED if allocation.is_up else ReleaseState.ASKED
        if not allocation.is_up:
            self.tracker.cancel_natively(allocation.batch, self.system)

    def _unexplained(self) -> Reason | None:
        """Return the allocation that ended before it started, until the cause is determined; None: there is none."""
        for allocation in list(self.fleet.allocations.values()):
            is_explained = allocation.over or allocation.release is ReleaseState.ASKED
            if allocation.batch.gone_since is not None and allocation.ends_at is None and not is_explained:
                return because("allocation_failed", allocation=allocation.name)
        return None

    # -- exchanging with the cluster

    def _exchange(
        self,
        transport: Transport,
        renewed: dict[str, Envelope],
        placed: dict[str, str],
        launched: Sequence[tuple[Allocation, str, Order]],
        drained: Sequence[Allocation],
    ) -> None:
        given, again = (f"{prefix}{uuid.uuid4().hex}" for prefix in (allocation_steps.GIVEN, allocation_steps.RENEWED))
        files = {f"{each.folder.relative}/spool/shutdown": b"drain" for each in drained}
        with self.tracker.lock:
            held, self._holds = self._holds, {}
        files |= held
        for token, name in placed.items():
            envelope = self.tracker.jobs[token].envelope
            assert envelope is not None
            files[f"incoming/{given}/{name}/{token}.json"] = self._packed(envelope, self.fleet.allocations[name])
        for token, envelope in renewed.items():
            if (allocation := self.fleet.of_job(self.tracker.jobs[token])) is not None:
                files[f"incoming/{again}/{allocation.name}/{token}.json"] = self._packed(envelope, allocation)
        for allocation, script, _ in launched:
            files[f"{allocation.folder.relative}/terms.json"] = allocation.terms.to_json().encode()
            files[f"{allocation.folder.relative}/script"] = script.encode()
        steps: list[RemoteStep] = [Put(self.folder.root, files), allocation_steps.place([given, again], self.folder)]
        before = None
        for allocation, _, _ in launched:
            command = self.system.submit(f"{allocation.folder.root}/script")
            needed = [] if self._agent is None else [self._agent]
            steps.append(cluster_steps.submit_in(allocation.folder.root, command, needed, after=before))
            before = allocation.folder.root
        self.fleet.doubtful |= placed.keys()
        put, moved, *answers = transport.exchange(steps, SUBMISSION_TIMEOUT)
        self.interval.soon()
        submitted = self._count_submitted() - len(launched)
        for (allocation, _, order), answer in zip(launched, answers, strict=True):
            if answer.status == cluster_steps.NOT_ITS_TURN:
                self.fleet.drop(allocation)
                self.order([order])
            else:
                submitted += self._read_launch(allocation, answer, submitted)
        for each in drained if put.status == 0 else ():
            each.release = ReleaseState.ASKED
        self._read_placed(placed, put, moved)

    def _packed(self, envelope: Envelope, allocation: Allocation) -> bytes:
        """Return the envelope with the resources that its job takes of an allocation, as the planner counts them.

        Its times are converted to the clock of the agent's node.
        """
        node = replace(self.most, capacity=allocation.terms.capacity)
        sent = replace(envelope, resources=need(envelope.waiting(), node).resources)
        return sent.by_clock(allocation.clock_ahead).to_json().encode()

    def _read_placed(self, placed: dict[str, str], put: CommandResult, moved: CommandResult) -> None:
        refused = frozenset(placed) if put.status else allocation_steps.refused(moved)
        if put.status is None or refused is None:
            return  # unknown whether they arrived: they are looked up before anything else is done about them
        self.fleet.doubtful -= placed.keys()
        for token in refused & placed.keys():
            if not put.status:
                self.fleet.allocations[placed[token]].closed = True
            self.give_back_job(self.tracker.jobs[token], NO_ROOM)
        if put.status:
            raise TransportError(f"jobs could not be written to {self.folder.root}: {put.message}")

    def _read_launch(self, allocation: Allocation, answer: CommandResult, submitted: int) -> int:
        """Read the answer to a submission; return 1 if an allocation was, or may have been, submitted, else 0."""
        submission = allocation.submission
        refusal = self._refusal(submission, answer, "allocation", allocation.terms.kind, submitted)
        queue = allocation_script.queue(allocation.terms)
        if refusal is None:
            self.barred.admit(queue)
        if refusal is None or refusal.kind == "transient":
            return 1
        for_good = refusal.kind == "permanent" and not submission.excluded
        if for_good:
            reason = because("allocation_refused", system=self.system.name, text=refusal.message)
        elif refusal.kind == "permanent":
            reason = because("batch_says", text=refusal.message)
        else:
            reason = self.pressure.held() or self.pressure.reason(self.system.name, submitted)
        if for_good and refusal.of_account and allocation.terms.kind == kind(queue, {}) and not self.is_trial:
            self.bar(queue, refusal)
            for_good = False
        self.drop(allocation, "submit_rejected", reason, refused=for_good)
        return 0

    # -- reporting

    def queue_reason(self, allocation: Allocation) -> Reason | None:
        """Return why an allocation waits in its queue; None: it does not, or the batch system has not reported it."""
        native = allocation.batch.native
        if not allocation.is_pending or native is None or native.state != "pending":
            return None
        queue = allocation_script.queue(allocation.terms) or self.config.queue
        given_up_at = allocation.batch.given_up_at(self.config.cancel_unrunnable_after)
        return allocation.submission.waits(queue, native, allocation.name, given_up_at)


# Allocations as locations of their site.


def seen_allocations(fleet: AllocationFleet, launcher: AllocationLauncher) -> list[ObservedLocation]:
    """Return the requested allocations that are not forgotten, and the orders that are about to be requested."""
    with fleet.tracker.lock:  # orders become allocations under the same lock
        known, allocations, orders = fleet.known(), list(fleet.allocations.values()), launcher.ordered()
    held = launcher.market().held
    there = [
        ObservedLocation(
            allocation_location(each.name, each.terms.capacity, each.terms.kind, last_moment(each)),
            location_state(each),
            frozenset(known.get(each.name, ())),
            None if (waits := launcher.queue_reason(each)) is None else waits.sentence,
            each.batch.native_id(launcher.system),
            each.batch.node,
            waits=waits,
        )
        for each in allocations
    ]
    return [*there, *(seen_order(each, held) for each in orders)]


def seen_order(order: Order, held: Reason | None) -> ObservedLocation:
    """Return an order that is about to be requested, as a location.

    :param held: why it is not requested yet
    """
    launch = order.launch
    there = allocation_location(order.name, launch.capacity, launch.kind, time.time() + launch.seconds)
    note = None if held is None else held.sentence
    return ObservedLocation(there, LocationState.BOOTING, frozenset(), note, waits=held)


def location_state(allocation: Allocation) -> LocationState:
    if allocation.release is not ReleaseState.NONE:
        return LocationState.DRAINING
    if allocation.is_pending:
        return LocationState.BOOTING
    return LocationState.UP if allocation.is_up else LocationState.DRAINING


def last_moment(allocation: Allocation) -> float:
    """Return when an allocation stops accepting jobs, epoch seconds; one that has not started: as if it started now."""
    left = allocation.terms.seconds if allocation.ends_at is None else allocation.ends_at - time.monotonic()
    return time.time() + left


def allocation_location(name: str, capacity: Resources, kind: str, ends_at: float) -> Location:
    """Return an allocation as placement sees it. Its end is rounded, so that each poll gives the same location."""
    return Location(name, capacity, instance_type=kind, ends_at=float(round(ends_at)))
