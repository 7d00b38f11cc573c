"""How fast EC2 may be asked to launch, and what it has none of at the moment.

| read | concluded | until |
|---|---|---|
| no capacity | the offering has none for 3 min | that time |
| a quota is reached | nothing that it counts for 3 min | that time; a machine ends |
| too many requests | no launch for 5, 10, ... 120 s | that time; a launch works |
| a spent token, or that of another request | nothing else is held | the next order has another |
| a machine that never answered | its offering for 30 min; after three in a row one at a time | a machine answers |
| a subnet that is not known | the offering | that time |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from lading.hooks.ec2.client import STATE_CODE, AWSTrouble, EC2Error
from lading.hooks.ec2.refusals import (
    FIRST_HOLD,
    OFFERINGS_UNTIL_HELD,
    PROFILE,
    SECONDS_HELD,
    SECONDS_WITHOUT_CAPACITY,
    TRANSIENT,
    UNKNOWN,
    AWSRefusal,
    RefusalScope,
    refusal,
    said_by,
)
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.scheduling.quotas import quota
from lading.scheduling.reasons import Reason, because

# Of RunInstances an account has 5 requests and 2 more each second, and 1,000 instances and 2 more each second:
# https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
REQUESTS, INSTANCES, REFILL = 5.0, 1000.0, 2.0
# A quota is not asked for again before, seconds, unless machines have ended.
SECONDS_OVER_QUOTA = 180.0
# A throttle pauses launches for so long, and ever longer; what is refused for good as well, seconds.
FIRST_THROTTLE, LONGEST_THROTTLE = 5.0, 120.0
LONGEST_HOLD = 900.0
# How often a request is repeated because AWS does not have an instance profile yet.
MOST_UNKNOWN = 4
# A type of which a machine never answered is not launched in that zone before, seconds: giving one up takes minutes,
# and the other zones are to have been tried by then. After so many in a row it is the image or the network.
SECONDS_AFTER_SILENCE = 1800.0
MOST_SILENT = 3

Offering = tuple[str, str | None, str]
"""Type, zone and capacity type."""


class Shortage(NamedTuple):
    """What EC2 launches none of for now.

    :param until: epoch seconds
    """

    until: float
    why: Reason


UNTIL = attrgetter("until")


@dataclass(slots=True)
class TokenBucket:
    """Tokens for requests, as EC2 counts them for each account and action.

    :param most: at most so many at once
    :param refill: more each second
    """

    most: float
    refill: float = REFILL
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, number: float, now: float) -> bool:
        """Take so many; returns whether there are as many.

        :param now: seconds on any clock that runs
        """
        self.left, self.at = min(self.most, self.left + max(0.0, now - self.at) * self.refill), now
        if self.left < number:
            return False
        self.left -= number
        return True


class Shortages:
    """What EC2 has refused."""

    def __init__(self) -> None:
        self.offerings: dict[Offering, Shortage] = {}
        """Until when there is none of an offering, epoch seconds, and why."""
        self.quotas: dict[str, Shortage] = {}
        """The same of what an account may have no more of, by the name of the quota."""
        self.wider: dict[tuple[str | None, str | None, str | None], Shortage] = {}
        """The same of types, zones and capacity types, which hold all offerings that have them; None: any."""
        self.subnets: dict[str, Shortage] = {}
        """The same of subnets: a zone is held while all of its subnets are."""
        self.zones: Mapping[str, Sequence[str]] = {}
        """The subnets by their zones, as far as they are known."""
        self._strange: dict[Offering, ReasonedBackoff] = {}
        self._strange_codes: dict[str, set[Offering]] = {}
        """The offerings that were refused with each unknown code since a launch has worked."""
        self._strange_hold: Shortage | None = None
        self._unknown_profile = 0
        self._throttle = ReasonedBackoff(FIRST_THROTTLE, LONGEST_THROTTLE)
        self._refusal = ReasonedBackoff(FIRST_HOLD, LONGEST_HOLD)
        self._volumes = ReasonedBackoff(FIRST_HOLD, LONGEST_HOLD)
        self._doubt = ReasonedBackoff(FIRST_HOLD, LONGEST_HOLD)
        self._silent = 0

    def refused(self, offering: Offering, error: EC2Error, subnet: str | None = None) -> Reason:
        """A launch was refused; returns why.

        :param subnet: in which it was to be; None: it did not come to that
        """
        kind, _, capacity_type = offering
        if error.trouble is AWSTrouble.PERMANENT:
            return self._refused(offering, refusal(error.code, error.message), said_by(error), subnet)
        # A token that is spent concerns that request alone: the next order has another one.
        why = because(TRANSIENT.get(error.trouble, UNKNOWN.reason), **said_by(error))
        if error.trouble is AWSTrouble.CAPACITY:
            self.reclaimed(offering, why)
        elif error.trouble is AWSTrouble.QUOTA:
            self.quotas[quota(kind, capacity_type)] = Shortage(time.time() + SECONDS_OVER_QUOTA, why)
        elif error.trouble is AWSTrouble.THROTTLE:
            self._throttle.failed_for(why)
        return why

    def _refused(
        self, offering: Offering, found: AWSRefusal, said: Mapping[str, str], subnet: str | None = None
    ) -> Reason:
        """Hold what a refusal concerns, and nothing else; returns why.

        :param said: the parameters of its reason
        """
        kind, zone, capacity_type = offering
        why = because(found.reason, **said)
        shortage = Shortage(time.time() + found.seconds, why)
        if found.message == PROFILE and self._unknown_profile < MOST_UNKNOWN:
            self._unknown_profile += 1
            why = because("aws_new_profile")
            self._throttle.failed_for(why)
        elif found.scope is RefusalScope.ACCOUNT:
            self._refusal.failed_for(why)
        elif found.scope is RefusalScope.VOLUMES:
            self._volumes.failed_for(why)
        elif found is UNKNOWN:
            pauses = self._strange.setdefault(offering, ReasonedBackoff(FIRST_HOLD, LONGEST_HOLD))
            pauses.failed_for(why)
            self.offerings[offering] = Shortage(time.time() + pauses.left, why)
            alike = self._strange_codes.setdefault(said["error"], set())
            alike.add(offering)
            if len(alike) >= OFFERINGS_UNTIL_HELD:
                self._strange_hold = Shortage(time.time() + SECONDS_HELD, why)
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
        """A machine has ended before it was up; returns whether AWS says that this was its doing.

        :param message: AWS's reason, which begins with a code
        """
        code = STATE_CODE.match(message)
        if code is None or (found := refusal(code[0], message)) is UNKNOWN:
            return False
        more = message[code.end() :].lstrip(": ")
        self._refused(offering, found, {"error": code[0] if more else "", "text": more or message})
        return True

    def reclaimed(self, offering: Offering, why: Reason) -> None:
        """EC2 has no capacity for another machine of an offering, as it has taken one away, or refused it."""
        self.offerings[offering] = Shortage(time.time() + SECONDS_WITHOUT_CAPACITY, why)

    def never_answered(self, offering: Offering, why: Reason) -> None:
        """A machine has ended that never answered: another offering is tried, and after some in a row none for a while.

        :param why: it has ended
        """
        until = time.time() + SECONDS_AFTER_SILENCE
        self.offerings[offering] = Shortage(until, because("machine_silent").with_also(why))
        self._silent += 1
        if self.is_in_doubt:
            self._doubt.failed_for(because("machines_silent", number=self._silent).with_also(why))

    def answered(self) -> None:
        """A machine has answered for the first time."""
        self._silent = 0
        self._doubt.succeeded()

    @property
    def is_in_doubt(self) -> bool:
        """Whether so many have never answered that one at a time is enough."""
        return self._silent >= MOST_SILENT

    def launched(self, offering: Offering) -> None:
        """A launch has worked."""
        self._strange.pop(offering, None)
        self._strange_codes.clear()
        self._strange_hold = None
        self._unknown_profile = 0
        self._throttle.succeeded()
        self._refusal.succeeded()
        self._volumes.succeeded()

    def freed(self) -> None:
        """A machine has ended, so a quota may have room."""
        self.quotas.clear()
        self._volumes.succeeded()

    @property
    def paused(self) -> Reason | None:
        """Why nothing is launched for a moment; None: it may be."""
        return self._throttle.reason

    @property
    def held(self) -> Reason | None:
        """Why nothing can be launched before an administrator has acted; None: it can."""
        why = self._refusal.reason or self._volumes.reason or self._doubt.reason
        if why is None and self._strange_hold is not None and self._strange_hold.until > time.time():
            return self._strange_hold.why
        return why

    @property
    def reason(self) -> Reason | None:
        """Why nothing is launched now; None: it may be."""
        return self.held or self.paused

    @property
    def any(self) -> bool:
        """Whether there is none of anything."""
        held = self.offerings, self.quotas, self.wider, self.subnets
        now = time.time()
        return any(shortage.until > now for each in held for shortage in list(each.values()))

    @property
    def closed(self) -> str | None:
        """In which subnets nothing is launched for now, and why, as text; None: in all of them it may be."""
        now = time.time()
        found = [f"{name}: {each.why.sentence}" for name, each in sorted(self.subnets.items()) if each.until > now]
        return f"nothing is launched for now in {'; '.join(found)}" if found else None

    def open_subnets(self, zone: str | None) -> list[str]:
        """The subnets of a zone in which machines may be launched now.

        :param zone: None: any
        """
        now = time.time()
        return [name for name in self.subnets_of(zone) if (its := self.subnets.get(name)) is None or its.until <= now]

    def subnets_of(self, zone: str | None) -> list[str]:
        """The subnets of a zone, as far as they are known; None: of all zones."""
        return [each for name, subnets in self.zones.items() if zone in (None, name) for each in subnets]

    def shortage_of(self, offering: Offering) -> Shortage | None:
        """Until when there is none of an offering, and why; None: there may be now."""
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
