"""One machine of a fleet, as a controller knows it.

| read | concluded | until |
|---|---|---|
| no instance yet | ordered or unanswered; expected no later than a new one | ``life.LONGEST`` |
| no specification of its type | what jobs can use is unknown, so it gets none | it is reached |
| no price | costs nothing in plans | a price is known |
| terminated less than 10 s after it was pending | it never ran, and costs nothing | permanent |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from lading.hooks.ec2 import boot
from lading.hooks.ec2.boot import LaunchBatch
from lading.hooks.ec2.client import EC2Instance
from lading.hooks.ec2.life import End, LifePhase
from lading.hooks.ec2.pace import Offering
from lading.hooks.machines.connection import Connection
from lading.hooks.site import LocationState, ObservedLocation, Order
from lading.hooks.ssh.backoff import Backoff
from lading.scheduling.model.catalogue import InstanceType
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import NOT_KNOWN, Resources

PENDING = "pending"
# Properties that a machine cannot report about itself.
ITS = "launched_at", "usd_per_hour", "priced_at", "surcharges", "features"
STATES = {
    LifePhase.UP: LocationState.UP,
    LifePhase.DRAINING: LocationState.DRAINING,
    LifePhase.TERMINATING: LocationState.DRAINING,
}


@dataclass(slots=True)
class EC2Machine:
    """A machine, or the order for one.

    :param token: the ClientToken of its launch, from which its host key is derived
    :param capacity: what jobs can use, according to its type
    :param usd_per_hour: its whole cost; ``surcharges``: the parts of that beyond the machine itself, by name
    :param priced_at: since when it costs that, epoch seconds by AWS's clock; None: since its launch, or unknown
    :param since: when its phase began, on the monotonic clock
    :param instance: EC2's last description; None: none yet
    :param heard_at: when EC2 first reported it, epoch seconds of our own clock; None: it has not
    :param clock_ahead: seconds by which AWS's clock was ahead of ours at EC2's last description
    :param is_described: whether EC2 has ever described it
    :param missed_at: since when EC2 describes others but not this one, on the monotonic clock; None: it describes it
    :param connection: None: not reached yet
    :param release: why it is to be released; None: it is not
    :param asked_at: when EC2 was asked to terminate it, on the monotonic clock; None: it was not
    :param refusal: the back-off of refused requests to terminate it
    :param termination_reason: why EC2 is asked to terminate it; None: it is not
    :param obstacle: what prevented the last attempt to launch or reach it; None: nothing
    :param has_answered: whether it was ever ready
    :param of_no_use_at: since when it takes no jobs and has none, on the monotonic clock; None: it takes jobs
    :param pending_since: when EC2 first reported it as pending, on the monotonic clock; None: never
    :param pending_until: until when EC2 reported it as pending, on the monotonic clock
    :param never_ran: whether it terminated while it was pending
    :param is_adopted: whether it was found, so that it may have unknown jobs
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
    refusal: Backoff = field(default_factory=lambda: Backoff(first=60.0, longest=900.0))
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
        """Update it from EC2's description.

        :param clock_ahead: seconds by which AWS's clock is ahead of ours
        :param as_of: when EC2 was asked, on the monotonic clock, because its answer can take long; None: now
        """
        self.clock_ahead = clock_ahead
        now = time.monotonic()
        as_of = now if as_of is None else as_of
        if instance.state == PENDING:
            self.pending_since = self.pending_since or now
            self.pending_until = max(self.pending_since, as_of)
        elif not instance.lives and self._is_pending:
            # A machine that terminated this soon after it was seen pending has never run.
            self.never_ran = as_of - self.pending_until < 10.0
        self.instance = instance
        self.heard_at = time.time() if self.heard_at is None else self.heard_at

    @property
    def _is_pending(self) -> bool:
        return self.instance is not None and self.instance.state == PENDING

    @property
    def billed_from(self) -> float | None:
        """Since when it is billed, that is since it began to run, epoch seconds by AWS's clock; None: it has not run,
        or that is unknown.

        AWS reports the time of the launch in whole seconds. To this the time is added for which it was seen pending,
        which falls short by no more than a poll and the delay of EC2's answers.
        """
        if self.instance is None or self.instance.launched_at is None or self._is_pending or self.never_ran:
            return None
        seconds = 0.0 if self.pending_since is None else self.pending_until - self.pending_since
        return self.instance.launched_at + int(seconds)

    def enter(self, phase: LifePhase) -> None:
        """Enter a phase, unless it is in it already."""
        if phase is not self.phase:
            self.phase, self.since = phase, time.monotonic()

    @classmethod
    def ordered(cls, order: Order, batch: LaunchBatch, deployment: str, known: InstanceType | None) -> EC2Machine:
        """Create the machine of an order.

        :param known: the specification of its type; None: unknown
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
        """Create a machine for an instance that an earlier controller has launched, or another one in its place.

        :param reserve: MiB reserved for the system and the node agent
        :param known: the specification of its type; None: unknown
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
        """Seconds since its phase began."""
        return time.monotonic() - self.since

    @property
    def waits(self) -> Reason | None:
        """Why it does not answer, or is not ready for its first job; None: it is ready, or was not tried yet."""
        if self.connection is None:
            return self.obstacle
        note = self.connection.machine.note if self.phase is LifePhase.BOOTING else None
        text = self.connection.trouble or note
        return None if text is None else because("booting", text=text)

    def silence(self) -> float:
        """Return for how many seconds it has not answered; 0: it answers."""
        return self.connection.silence(time.monotonic()) if self.connection is not None else self.seconds

    @property
    def is_ready(self) -> bool:
        """Whether it was reached and takes jobs, or already has some."""
        machine = self.connection.machine if self.connection is not None else None
        return machine is not None and machine.is_loaded and (self.is_adopted or machine.note is None)

    def becomes_ready(self) -> bool:
        """Enter the phase UP if it has just become ready; return whether it has."""
        if self.phase is not LifePhase.BOOTING or not self.is_ready:
            return False
        self.has_answered = True
        self.enter(LifePhase.UP)
        return True

    def seconds_of_no_use(self) -> float:
        """Return for how many seconds it has answered, but taken no jobs and had none; 0: it takes jobs."""
        machine = self.connection.machine if self.connection is not None else None
        is_of_no_use = machine is not None and machine.note is not None and not machine.tracker.jobs
        self.of_no_use_at = (self.of_no_use_at or time.monotonic()) if is_of_no_use else None
        return 0.0 if self.of_no_use_at is None else time.monotonic() - self.of_no_use_at

    @property
    def is_empty(self) -> bool:
        """Whether it has no jobs and no more can arrive."""
        return self.connection is None or self.connection.machine.is_empty

    def seen(self, site: str) -> ObservedLocation:
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
