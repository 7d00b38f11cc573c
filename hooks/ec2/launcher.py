"""Requests ordered machines from EC2, without deciding what to order.

RunInstances can take a minute to answer, so the launcher has a thread of its own and delays no other machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lading.hooks.ec2 import boot
from lading.hooks.ec2.boot import LaunchBatch
from lading.hooks.ec2.client import CREDENTIALS, EC2, AWSTrouble, EC2Error, EC2Instance
from lading.hooks.ec2.identity import Identity
from lading.hooks.ec2.life import End, LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.pace import INSTANCES, REQUESTS, Shortages, TokenBucket
from lading.hooks.ec2.refusals import TRANSIENT, said_by
from lading.hooks.polling.rounds import Poller
from lading.scheduling.model.catalogue import bundled
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)

# Seconds between rounds while something is to be requested, and otherwise.
SHORT_PAUSE, LONG_PAUSE = 0.25, 5.0
NOT_THERE = LifePhase.ORDERED, LifePhase.UNKNOWN


@dataclass(frozen=True, slots=True)
class UnansweredLaunch:
    """A request without an answer, which may have launched machines.

    :param parameters: repeated exactly, because EC2 accepts a token only with the same parameters
    :param due: on the monotonic clock; it is repeated once EC2 has listed its instances after that time
    """

    batch: LaunchBatch
    parameters: Mapping[str, Any]
    due: float


class NoSubnetOpen(Exception):
    """Nothing is launched in any subnet of a zone for now.

    :ivar reason: why
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason


@dataclass(eq=False)
class Launcher(Poller):
    """Launches orders. ``round`` belongs to one thread; the rest can be called from another.

    :param identity: that of the deployment that owns the machines
    :param scope: the value of the tag that names the site
    :param machines: those of the fleet, by name
    :param leave: called with each machine that is not launched, and why
    :ivar batches: orders to request
    :ivar unanswered: requests without an answer, by token
    :ivar looked_at: when EC2 was last asked successfully for its instances, on the monotonic clock
    """

    ec2: EC2
    identity: Identity
    scope: str
    machines: dict[str, EC2Machine]
    leave: Callable[[EC2Machine, End], None]
    shortages: Shortages = field(default_factory=Shortages)
    batches: deque[LaunchBatch] = field(default_factory=deque)
    unanswered: dict[str, UnansweredLaunch] = field(default_factory=dict)
    looked_at: float | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: frozenset[str] = frozenset()  # the names in the request that is being made
        self._requests, self._instances = TokenBucket(REQUESTS), TokenBucket(INSTANCES)

    def order(self, batches: Sequence[LaunchBatch]) -> None:
        """Request these from the next round on."""
        self.batches.extend(batches)

    def withdraw(self, machine: EC2Machine) -> bool:
        """Cancel an order; return False if it is too late, because EC2 may already be launching the machine."""
        with self._lock:
            if machine.phase is not LifePhase.ORDERED or machine.name in self._asked:
                return False
            machine.enter(LifePhase.GONE)
            return True

    @property
    def is_busy(self) -> bool:
        return bool(self.batches or self.unanswered)

    def pause(self) -> float:
        return SHORT_PAUSE if self.is_busy else LONG_PAUSE

    def round(self) -> None:
        """Request orders as fast as EC2's limits allow, once the existing instances are listed.

        :raises EC2Error: EC2 does not answer
        """
        if self.looked_at is None:
            return
        self._repeat(self.looked_at)
        while self.batches:
            batch = self.batches.popleft()
            if not (waiting := self._waiting(batch)):
                continue
            if (why := self._withheld(batch)) is not None:
                self._end(waiting, why)
            elif self._may_ask(batch):
                self._ask(batch)
            else:
                self.batches.appendleft(batch)
                return

    def _waiting(self, batch: LaunchBatch) -> list[EC2Machine]:
        """Return the machines of a batch that are still wanted."""
        found = [self.machines.get(each.name) for each in batch.orders]
        return [each for each in found if each is not None and each.phase in NOT_THERE]

    def _withheld(self, batch: LaunchBatch) -> Reason | None:
        """Return why a batch is refused without asking EC2; None if EC2 decides."""
        shortage = self.shortages.shortage_of(batch.offering)
        return self.shortages.held or (shortage.why if shortage is not None else None)

    def _may_ask(self, batch: LaunchBatch) -> bool:
        if self.shortages.paused is not None:
            return False
        now = time.monotonic()
        return self._instances.take(len(batch.orders), now) and self._requests.take(1, now)

    def _repeat(self, looked_at: float) -> None:
        """Find out the outcome of requests without an answer, which a time-out leaves open.

        Machines that the fleet has found by their tags are done. For the rest, the same bytes are sent with the same
        token. EC2 then answers with what it has launched for the token, and launches nothing twice:
        https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
        """
        for token, request in list(self.unanswered.items()):
            if not self._waiting(request.batch):
                del self.unanswered[token]
            elif looked_at > request.due and self.shortages.held is None and self._may_ask(request.batch):
                self._ask(request.batch)

    def _ask(self, batch: LaunchBatch) -> None:
        before = self.unanswered.get(batch.token)
        with self._lock:
            batch = batch if before is not None else self._wanted(batch)
            self._asked = frozenset(each.name for each in self._waiting(batch))
        if not self._asked:
            return
        parameters = None
        try:
            parameters = before.parameters if before is not None else self._parameters(batch)
            self._answered(batch, self.ec2.run(parameters))
        except NoSubnetOpen as error:
            self.unanswered.pop(batch.token, None)
            self._end(self._waiting(batch), error.reason)
        except EC2Error as error:
            self._refused(batch, parameters, error)
        finally:
            self._asked = frozenset()

    def _wanted(self, batch: LaunchBatch) -> LaunchBatch:
        """Drop unwanted orders from a batch that was never requested."""
        names = {each.name for each in self._waiting(batch)}
        found = LaunchBatch(tuple(each for each in batch.orders if each.name in names)) if names else batch
        for each in self._waiting(found):
            each.token = found.token
        return found

    def _answered(self, batch: LaunchBatch, found: Sequence[EC2Instance]) -> None:
        self.unanswered.pop(batch.token, None)
        self.shortages.launched(batch.offering)
        self._note(batch, found)

    def _parameters(self, batch: LaunchBatch) -> dict[str, Any]:
        kind, zone, _ = batch.offering
        image = self.ec2.image(self.arch(kind))
        zones = self.shortages.zones = self.ec2.zones()
        if zone is not None and zone not in zones:
            message = f"no subnet of the table is in {zone}; those are in {', '.join(sorted(zones))}"
            raise EC2Error(AWSTrouble.PERMANENT, "InvalidSubnetID.NotFound", message)
        there = self.shortages.open_subnets(zone)
        if not there and (why := self._withheld(batch)) is not None:
            raise NoSubnetOpen(why)
        subnet = (there or self.shortages.subnets_of(zone))[0]
        root = self.ec2.image_facts(image).root if self.ec2.config.disk else ""
        return boot.request(self.ec2.config, self.identity, self.scope, batch, image, subnet, root)

    def arch(self, kind: str) -> str:
        """Return the architecture of a type.

        :raises EC2Error: EC2 does not answer, or the type does not exist
        """
        known = bundled().types.get(kind)
        return known.arch if known is not None else self.ec2.arch(kind)

    def _note(self, batch: LaunchBatch, found: Sequence[EC2Instance]) -> None:
        """Record the launched machines, and give up the orders that were not fulfilled."""
        by_index = {each.index: each for each in found}
        for index, order in enumerate(batch.orders):
            machine, instance = self.machines.get(order.name), by_index.get(index)
            if machine is None or machine.instance is not None:
                continue
            if instance is not None:
                machine.describe(instance, self.ec2.clock_ahead)
                machine.enter(LifePhase.PENDING)
            else:
                reason = because("launched_in_part", launched=len(found), asked=len(batch.orders))
                self.shortages.reclaimed(batch.offering, reason)
                self.leave(machine, End("no_capacity", reason))

    def _refused(self, batch: LaunchBatch, parameters: Mapping[str, Any] | None, error: EC2Error) -> None:
        """:param parameters: None: the request was not made, because its parameters could not be determined"""
        if error.trouble is AWSTrouble.SILENCE:
            for each in self._waiting(batch):
                each.obstacle = because(TRANSIENT[error.trouble], **said_by(error))
            if parameters is None:
                self.batches.append(batch)  # at the end, behind batches with other images
            else:
                self._expect(batch, parameters)
                for each in self._waiting(batch):
                    each.enter(LifePhase.UNKNOWN)
            raise error
        why = self.shortages.refused(
            batch.offering, error, boot.subnet_of(parameters) if parameters is not None else None
        )
        if batch.token in self.unanswered and parameters is not None and CREDENTIALS.fullmatch(error.code):
            # A rejection of the credentials says nothing about the earlier request, which may have launched machines.
            self._expect(batch, parameters)
            return
        if error.trouble is AWSTrouble.THROTTLE:
            if batch.token not in self.unanswered:
                self.batches.appendleft(batch)
            for each in self._waiting(batch):
                each.obstacle = why
            return
        self.unanswered.pop(batch.token, None)
        log.warning("EC2 refused to launch %s in %s (%s): %s", *batch.offering, error)
        self._end(self._waiting(batch), why)

    def _expect(self, batch: LaunchBatch, parameters: Mapping[str, Any]) -> None:
        # The request is repeated after this time, unless its machines were found meanwhile.
        self.unanswered[batch.token] = UnansweredLaunch(batch, parameters, time.monotonic() + 3.0)

    def _end(self, machines: Sequence[EC2Machine], why: Reason) -> None:
        reason = because("launch_refused").with_also(why)
        for machine in machines:
            with self._lock:
                if machine.phase not in NOT_THERE:
                    continue
                machine.enter(LifePhase.GONE)
            self.leave(machine, End("no_capacity", reason))
