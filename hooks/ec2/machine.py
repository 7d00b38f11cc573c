"""One machine of a fleet, as a controller knows it.

| read | concluded | until |
|---|---|---|
| no instance yet | ordered or not answered: expected, no later than a new one | ``life.LONGEST`` |
| nothing of its specification | what jobs can use is not known: none are given | it is reached |
| no price | costs nothing in plans | a price is known |
| ended when seen pending less than 10 s before | it never ran, and costs nothing | for good |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from lading.hooks.ec2 import boot
from lading.hooks.ec2.boot import LaunchBatch
from lading.hooks.ec2.client import EC2Instance
from lading.hooks.ec2.life import LONGEST_UNTIL_REPEATED, SECONDS_UNTIL_REPEATED, End, LifePhase
from lading.hooks.ec2.pace import Offering
from lading.hooks.machines.connection import Connection
from lading.hooks.site import LocationState, ObservedLocation, Order
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.catalogue import InstanceType
from lading.scheduling.location import Location
from lading.scheduling.reasons import Reason, because
from lading.scheduling.resources import NOT_KNOWN, Resources

PENDING = "pending"
# What ends when it was pending so lately has never run, seconds.
SECONDS_UNSEEN = 10.0
# What a machine cannot report about itself.
ITS = "launched_at", "usd_per_hour", "priced_at", "surcharges", "features"
STATES = {
    LifePhase.UP: LocationState.UP,
    LifePhase.DRAINING: LocationState.DRAINING,
    LifePhase.TERMINATING: LocationState.DRAINING,
}


@dataclass(slots=True)
class EC2Machine:
    """A machine, or what is to become one.

    :param token: the ClientToken of its launch, from which its host key is derived
    :param capacity: what jobs can use of it, as far as it is known of its type
    :param usd_per_hour: all that it costs; ``surcharges``: what of that is not the machine itself, by name
    :param priced_at: epoch seconds, by AWS's clock, since when it costs that; None: since its launch, or not known
    :param since: of its phase, on the monotonic clock
    :param instance: as EC2 described it last; None: it has not
    :param heard_at: when EC2 first said that it is there, epoch seconds of our own clock; None: it has not
    :param clock_ahead: seconds by which AWS's clock was ahead of ours when EC2 described it last
    :param is_described: whether EC2 ever has described it
    :param missed_at: since when it does not, though others are described, on the monotonic clock; None: it does
    :param connection: None: it was not reached yet
    :param release: why it is to go; None: it is not
    :param asked_at: when EC2 was asked to end it, on the monotonic clock; None: it was not
    :param refusal: of the requests to end it
    :param termination_reason: why EC2 is asked to end it; None: it is not
    :param obstacle: what kept it, when that was last tried, from being launched or reached; None: nothing did
    :param has_answered: whether it was ever ready
    :param of_no_use_at: since when it takes no jobs and has none, on the monotonic clock; None: it takes them
    :param pending_since: when EC2 said first that it is pending, on the monotonic clock; None: it never did
    :param pending_until: until when that is known, likewise
    :param never_ran: whether it has ended while it was pending
    :param is_adopted: whether it was found, and may have jobs that are not known yet
    """

    name: str
    token: str
    offering: Offering
    capacity: Resources
    arch: str | None
    usd_per_hour: float | None
    priced_at: float | None = None
    surcharges: tuple[tuple[str, float], ...] = ()
    phase: LifePhase = LifePhase.ORDERED
    since: float = field(default_factory=time.monotonic)
    deployment: str = ""
    instance: EC2Instance | None = None
    heard_at: float | None = None
    clock_ahead: float = 0.0
    is_described: bool = False
    missed_at: float | None = None
    connection: Connection | None = None
    release: Reason | None = None
    asked_at: float | None = None
    refusal: Backoff = field(default_factory=lambda: Backoff(2 * SECONDS_UNTIL_REPEATED, LONGEST_UNTIL_REPEATED))
    has_answered: bool = False
    of_no_use_at: float | None = None
    termination_reason: End | None = None
    is_adopted: bool = False
    pending_since: float | None = None
    pending_until: float = 0.0
    never_ran: bool = False
    obstacle: Reason | None = None
    features: frozenset[str] = frozenset()

    def describe(self, instance: EC2Instance, clock_ahead: float = 0.0, as_of: float | None = None) -> None:
        """Know what EC2 says of it now.

        :param clock_ahead: seconds by which AWS's clock is ahead of ours
        :param as_of: when EC2 was asked, on the monotonic clock, for its answer may take long; None: now
        """
        self.clock_ahead = clock_ahead
        now = time.monotonic()
        as_of = now if as_of is None else as_of
        if instance.state == PENDING:
            self.pending_since = self.pending_since or now
            self.pending_until = max(self.pending_since, as_of)
        elif not instance.lives and self._is_pending:
            self.never_ran = as_of - self.pending_until < SECONDS_UNSEEN
        self.instance = instance
        self.heard_at = time.time() if self.heard_at is None else self.heard_at

    @property
    def _is_pending(self) -> bool:
        return self.instance is not None and self.instance.state == PENDING

    @property
    def billed_from(self) -> float | None:
        """Epoch seconds, by AWS's clock, since when it is paid for, which is when it began to run; None: it has not, or
        that is not known.

        AWS says when it was launched, in whole seconds. How long it was pending is what was seen of that here, which
        is too little by a poll at most, and by what EC2 takes for its answers.
        """
        if self.instance is None or self.instance.launched_at is None or self._is_pending or self.never_ran:
            return None
        seconds = 0.0 if self.pending_since is None else self.pending_until - self.pending_since
        return self.instance.launched_at + int(seconds)

    def enter(self, phase: LifePhase) -> None:
        """Come to a phase, unless it is there already."""
        if phase is not self.phase:
            self.phase, self.since = phase, time.monotonic()

    @classmethod
    def ordered(cls, order: Order, batch: LaunchBatch, deployment: str, known: InstanceType | None) -> EC2Machine:
        """What is to be launched.

        :param known: its type as it is specified; None: it is not
        """
        launch = order.launch
        return cls(
            order.name,
            batch.token,
            batch.offering,
            launch.capacity,
            known.arch if known else None,
            launch.usd_per_hour,
            deployment=deployment,
            features=known.features if known else frozenset(),
        )

    @classmethod
    def adopted(cls, name: str, instance: EC2Instance, reserve: int, known: InstanceType | None) -> EC2Machine:
        """A machine that was launched by an earlier controller, or by another one that acted.

        :param reserve: MiB that are left to the system and the node agent
        :param known: its type as it is specified; None: it is not
        """
        capacity = known.capacity if known is not None else NOT_KNOWN
        return cls(
            name,
            (instance.tags.get(boot.TOKEN, "").split() or [name])[0],
            (instance.kind, instance.zone, instance.capacity_type),
            replace(capacity, memory=max(capacity.memory - reserve, 1)),
            known.arch if known else None,
            boot.price(instance.tags),
            phase=LifePhase.PENDING,
            deployment=instance.tags.get(boot.DEPLOYMENT, ""),
            is_adopted=True,
            features=known.features if known else frozenset(),
        )

    @property
    def seconds(self) -> float:
        """For how long it is in its phase."""
        return time.monotonic() - self.since

    @property
    def waits(self) -> Reason | None:
        """Why it does not answer, or is not ready for its first job; None: it is, or was not asked yet."""
        if self.connection is None:
            return self.obstacle
        note = self.connection.machine.note if self.phase is LifePhase.BOOTING else None
        text = self.connection.trouble or note
        return None if text is None else because("booting", text=text)

    def silence(self) -> float:
        """For how many seconds it has not answered; 0: it answers."""
        return self.connection.silence(time.monotonic()) if self.connection is not None else self.seconds

    @property
    def is_ready(self) -> bool:
        """Whether it was reached, and takes jobs, or may have some already."""
        machine = self.connection.machine if self.connection is not None else None
        return machine is not None and machine.is_loaded and (self.is_adopted or machine.note is None)

    def becomes_ready(self) -> bool:
        """Be up, where it is ready for the first time; whether that was so."""
        if self.phase is not LifePhase.BOOTING or not self.is_ready:
            return False
        self.has_answered = True
        self.enter(LifePhase.UP)
        return True

    def seconds_of_no_use(self) -> float:
        """For how long it has taken no jobs though it answers, and has had none; 0: it takes them."""
        machine = self.connection.machine if self.connection is not None else None
        is_of_no_use = machine is not None and machine.note is not None and not machine.tracker.jobs
        self.of_no_use_at = (self.of_no_use_at or time.monotonic()) if is_of_no_use else None
        return 0.0 if self.of_no_use_at is None else time.monotonic() - self.of_no_use_at

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on it, and nothing can come any more."""
        return self.connection is None or self.connection.machine.is_empty

    def seen(self, site: str) -> ObservedLocation:
        """The location as it is now."""
        id = self.instance.id if self.instance is not None else None
        billed = None if (since := self.billed_from) is None else since - self.clock_ahead
        state = STATES.get(self.phase, LocationState.BOOTING)
        if self.connection is None or self.phase is LifePhase.BOOTING:
            waits = self.waits
            note = None if waits is None else waits.sentence
            return ObservedLocation(
                self._location(site), state, frozenset(), note, id, billed_since=billed, waits=waits
            )
        there = self.connection.seen(site)
        if state is LocationState.UP:
            state = there.state
        known = self._location(site)
        its = {name: getattr(known, name) for name in ITS}
        location = replace(there.location, **its)
        image = self.instance.image or None if self.instance is not None else None
        return ObservedLocation(location, state, there.known, there.note, id, there.node, billed, image)

    def _location(self, site: str) -> Location:
        kind, _, capacity_type = self.offering
        return Location(
            self.name,
            self.capacity,
            instance_type=kind,
            capacity_type=capacity_type,
            usd_per_hour=self.usd_per_hour or 0.0,
            priced_at=None if self.priced_at is None else self.priced_at - self.clock_ahead,
            surcharges=self.surcharges,
            arch=self.arch,
            features=self.features,
            site=site,
            launched_at=self.heard_at,
        )
