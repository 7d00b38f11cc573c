"""How fast EC2 can be asked to launch, and what it currently cannot launch.

| read | concluded | until |
|---|---|---|
| no capacity | none of this offering for 3 min | that time |
| a quota is reached | nothing that counts against it for 3 min | that time; a machine terminates |
| too many requests | no launches for 5, 10, ... 120 s | that time; a launch succeeds |
| a used token, or one of another request | nothing else is held | the next order has its own token |
| a machine that never answered | its offering for 30 min; after three in a row, one at a time | a machine answers |
| an unknown subnet | the offering | that time |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from lading.hooks.ec2.client import STATE_CODE, AWSTrouble, EC2Error
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.refusals import (
    PROFILE,
    SECONDS_WITHOUT_CAPACITY,
    TRANSIENT,
    UNKNOWN,
    AWSRefusal,
    RefusalScope,
    refusal,
    said_by,
)
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.scheduling.model.quotas import quota
from lading.scheduling.model.reasons import Reason, because

# RunInstances is limited per account to bursts of 5 requests and 1,000 instances, each refilled by 2 per second:
# https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
REQUESTS, INSTANCES, REFILL = 5.0, 1000.0, 2.0
# Seconds. Throttling pauses launches for ever longer times; so do permanent refusals.
FIRST_THROTTLE, LONGEST_THROTTLE = 5.0, 120.0

Offering = tuple[str, str | None, str]
"""Type, zone and capacity type."""


class Shortage(NamedTuple):
    """Why EC2 cannot launch something for now.

    :param until: epoch seconds
    """

    until: float
    why: Reason


UNTIL = attrgetter("until")


@dataclass(slots=True)
class TokenBucket:
    """A token bucket for requests, as EC2 keeps one for each account and action.

    :param most: its capacity
    :param refill: tokens per second
    """

    most: float
    refill: float = REFILL
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, number: float, now: float) -> bool:
        """Take tokens; return False, and take none, if there are too few.

        :param now: seconds on any monotonic clock
        """
        self.left, self.at = min(self.most, self.left + max(0.0, now - self.at) * self.refill), now
        if self.left < number:
            return False
        self.left -= number
        return True


class Shortages:
    """What EC2 has refused, and for how long it is not requested again."""

    def __init__(self, limits: EC2Limits = EC2Limits()) -> None:
        self.limits = limits
        self.offerings: dict[Offering, Shortage] = {}
        """The shortage of each offering."""
        self.quotas: dict[str, Shortage] = {}
        """The shortage of each exhausted quota, by its name."""
        self.wider: dict[tuple[str | None, str | None, str | None], Shortage] = {}
        """The shortages of all offerings with a type, zone and capacity type; None: any."""
        self.subnets: dict[str, Shortage] = {}
        """The shortage of each subnet; a zone is held while all of its subnets are."""
        self.zones: Mapping[str, Sequence[str]] = {}
        """The known subnets by zone."""
        self._strange: dict[Offering, ReasonedBackoff] = {}
        self._strange_codes: dict[str, set[Offering]] = {}
        """The offerings refused with each unknown code since the last successful launch."""
        self._strange_hold: Shortage | None = None
        self._unknown_profile = 0
        self._throttle = ReasonedBackoff(FIRST_THROTTLE, LONGEST_THROTTLE)
        self._refusal, self._volumes, self._doubt = (self._hold() for _ in range(3))
        self._silent = 0

    def _hold(self) -> ReasonedBackoff:
        return ReasonedBackoff(self.limits.first_hold, self.limits.longest_hold)

    def refused(self, offering: Offering, error: EC2Error, subnet: str | None = None) -> Reason:
        """Record a refused launch; return the reason.

        :param subnet: the subnet of the request; None: no request was made
        """
        kind, _, capacity_type = offering
        if error.trouble is AWSTrouble.PERMANENT:
            return self._refused(offering, refusal(error.code, error.message), said_by(error), subnet)
        # A used token concerns only that request, because the next order has a new one.
        why = because(TRANSIENT.get(error.trouble, UNKNOWN.reason), **said_by(error))
        if error.trouble is AWSTrouble.CAPACITY:
            self.reclaimed(offering, why)
        elif error.trouble is AWSTrouble.QUOTA:
            # Nothing is requested for this long, unless machines have terminated.
            self.quotas[quota(kind, capacity_type)] = Shortage(time.time() + 180.0, why)
        elif error.trouble is AWSTrouble.THROTTLE:
            self._throttle.failed_for(why)
        return why

    def _refused(
        self, offering: Offering, found: AWSRefusal, said: Mapping[str, str], subnet: str | None = None
    ) -> Reason:
        """Hold exactly what a refusal concerns; return the reason.

        :param said: the parameters of its reason
        """
        kind, zone, capacity_type = offering
        why = because(found.reason, **said)
        shortage = Shortage(time.time() + found.seconds, why)
        # The request is repeated while AWS does not know a new instance profile yet.
        if found.message == PROFILE and self._unknown_profile < 4:
            self._unknown_profile += 1
            why = because("aws_new_profile")
            self._throttle.failed_for(why)
        elif found.scope is RefusalScope.ACCOUNT:
            self._refusal.failed_for(why)
        elif found.scope is RefusalScope.VOLUMES:
            self._volumes.failed_for(why)
        elif found is UNKNOWN:
            pauses = self._strange.setdefault(offering, self._hold())
            pauses.failed_for(why)
            self.offerings[offering] = Shortage(time.time() + pauses.left, why)
            alike = self._strange_codes.setdefault(said["error"], set())
            alike.add(offering)
            # The image, the network or a policy is at fault: further offerings would be refused as well.
            if len(alike) >= 3:
                self._strange_hold = Shortage(time.time() + 600.0, why)
        elif found.scope is RefusalScope.SUBNET and subnet is not None:
            self.subnets[subnet] = shortage
        elif found.scope is RefusalScope.TYPE:
            self.wider[kind, None, None] = shortage
        elif found.scope is RefusalScope.CAPACITY_TYPE:
            self.wider[None, None, capacity_type] = shortage
        elif found.scope is RefusalScope.OFFERING or zone is None:
            self.offerings[offering] = shortage
        else:
            self.wider[kind if found.scope is RefusalScope.TYPE_IN_ZONE else None, zone, None] = shortage
        return why

    def failed(self, offering: Offering, message: str) -> bool:
        """Record a machine that terminated before it was up; return whether AWS states a cause on its own side.

        :param message: AWS's reason, which starts with a code
        """
        code = STATE_CODE.match(message)
        if code is None or (found := refusal(code[0], message)) is UNKNOWN:
            return False
        more = message[code.end() :].lstrip(": ")
        self._refused(offering, found, {"error": code[0] if more else "", "text": more or message})
        return True

    def reclaimed(self, offering: Offering, why: Reason) -> None:
        """Record that EC2 has no more capacity for an offering, because it reclaimed or refused a machine."""
        self.offerings[offering] = Shortage(time.time() + SECONDS_WITHOUT_CAPACITY, why)

    def never_answered(self, offering: Offering, why: Reason) -> None:
        """Record a machine that never answered: other offerings are tried, and after several in a row none for a while.

        :param why: the reason for its termination
        """
        # Giving up a machine takes minutes, and the other zones should be tried first.
        until = time.time() + 1800.0
        self.offerings[offering] = Shortage(until, because("machine_silent").with_also(why))
        self._silent += 1
        if self.is_in_doubt:
            self._doubt.failed_for(because("machines_silent", number=self._silent).with_also(why))

    def answered(self) -> None:
        """Record that a machine has answered for the first time."""
        self._silent = 0
        self._doubt.succeeded()

    @property
    def is_in_doubt(self) -> bool:
        """Whether several machines in a row never answered, so that only one is launched at a time."""
        # After this many in a row the image or the network is at fault.
        return self._silent >= 3

    def launched(self, offering: Offering) -> None:
        self._strange.pop(offering, None)
        self._strange_codes.clear()
        self._strange_hold = None
        self._unknown_profile = 0
        self._throttle.succeeded()
        self._refusal.succeeded()
        self._volumes.succeeded()

    def freed(self) -> None:
        """Record that a machine has terminated, so that a quota may have room."""
        self.quotas.clear()
        self._volumes.succeeded()

    @property
    def paused(self) -> Reason | None:
        """Why launches are paused for a moment; None: they are not."""
        return self._throttle.reason

    @property
    def held(self) -> Reason | None:
        """Why nothing can be launched until an administrator acts; None: launches are possible."""
        why = self._refusal.reason or self._volumes.reason or self._doubt.reason
        if why is None and self._strange_hold is not None and self._strange_hold.until > time.time():
            return self._strange_hold.why
        return why

    @property
    def reason(self) -> Reason | None:
        """Why nothing is launched now; None: launches are possible."""
        return self.held or self.paused

    @property
    def any(self) -> bool:
        held = self.offerings, self.quotas, self.wider, self.subnets
        now = time.time()
        return any(shortage.until > now for each in held for shortage in list(each.values()))

    @property
    def closed(self) -> str | None:
        """Which subnets are not used for now, and why, as text; None: all can be used."""
        now = time.time()
        found = [f"{name}: {each.why.sentence}" for name, each in sorted(self.subnets.items()) if each.until > now]
        return f"nothing is launched for now in {'; '.join(found)}" if found else None

    def open_subnets(self, zone: str | None) -> list[str]:
        """Return the subnets of a zone in which machines can be launched now.

        :param zone: None: all zones
        """
        now = time.time()
        return [name for name in self.subnets_of(zone) if (its := self.subnets.get(name)) is None or its.until <= now]

    def subnets_of(self, zone: str | None) -> list[str]:
        """Return the known subnets of a zone; None: of all zones."""
        return [each for name, subnets in self.zones.items() if zone in (None, name) for each in subnets]

    def shortage_of(self, offering: Offering) -> Shortage | None:
        """Return the longest shortage that affects an offering; None if it can be launched now."""
        now = time.time()
        return max((each for each in self._all_of(offering) if each.until > now), key=UNTIL, default=None)

    def _all_of(self, offering: Offering) -> Iterator[Shortage]:
        kind, zone, capacity_type = offering
        narrow = self.offerings.get(offering), self.quotas.get(quota(kind, capacity_type))
        places = (kind, None, None), (kind, zone, None), (None, zone, None), (None, None, capacity_type)
        wide = (self.wider.get(place) for place in places if place != (None, None, None))
        yield from (each for each in (*narrow, *wide) if each is not None)
        if (here := self.subnets_of(zone)) and not self.open_subnets(zone):
            yield min((self.subnets[each] for each in here), key=UNTIL)
