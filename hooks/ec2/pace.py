"""How fast EC2 may be asked to launch, and what it has none of at the moment."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from lading.hooks.ec2.client import STATE_CODE, AWSTrouble, EC2Error
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.scheduling.quotas import quota
from lading.scheduling.reasons import Reason, because

# Of RunInstances an account has 5 requests and 2 more each second, and 1,000 instances and 2 more each second:
# https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
REQUESTS, INSTANCES, REFILL = 5.0, 1000.0, 2.0
# What EC2 has no capacity for is not asked for again before, seconds; a quota neither, unless machines have ended.
SECONDS_WITHOUT_CAPACITY = 180.0
SECONDS_OVER_QUOTA = 180.0
# A throttle pauses launches for so long, and ever longer; what is refused for good as well, seconds.
FIRST_THROTTLE, LONGEST_THROTTLE = 5.0, 120.0
FIRST_HOLD, LONGEST_HOLD = 60.0, 900.0
# What an administrator has to fix for a part of the site is not asked for again before, seconds.
SECONDS_UNTIL_MENDED = 900.0
# Which types a zone has changes as rarely as the list of them is asked for, seconds.
SECONDS_NOT_OFFERED = 86_400.0
# AWS takes a moment to know an instance profile that was just made: it is asked again after this, that often, seconds.
SECONDS_UNTIL_KNOWN, MOST_UNKNOWN = 15.0, 4
# A type of which a machine never answered is not launched in that zone before, seconds: giving one up takes minutes,
# and the other zones are to have been tried by then. After so many in a row it is the image or the network.
SECONDS_AFTER_SILENCE = 1800.0
MOST_SILENT = 3

Offering = tuple[str, str | None, str]
"""Type, zone and capacity type."""


class Concern(Enum):
    """What a refusal is about: nothing else is held by it."""

    OFFERING = "offering"
    TYPE_IN_ZONE = "type in zone"
    TYPE = "type"
    SUBNET = "subnet"
    ZONE = "zone"
    CAPACITY_TYPE = "capacity type"
    VOLUMES = "volumes"
    """Those of the account in the region: every machine has some, and leaves them when it ends."""
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class AWSRefusal:
    """What AWS means by an error code, or by the code of the reason for which a machine has ended.

    :param code: a pattern of it; messages change, so what is recognized by its text has a row for the rest of its code
    :param seconds: for how long what it concerns is left alone; of an account and its volumes it is the first pause of
        ever longer ones
    :param reason: the code of the reason, which says what to do
    :param words: a pattern of what the message has; empty: any
    """

    code: str
    concern: Concern
    seconds: float
    reason: str = "aws_refused"
    words: str = ""

    def meets(self, code: str, words: str) -> bool:
        return bool(re.fullmatch(self.code, code) and re.search(self.words, words, re.IGNORECASE))


PROFILE = r"Invalid IAM Instance Profile"
DENIED = "UnauthorizedOperation|AccessDenied|AccessDeniedException"
UNSUPPORTED = "Unsupported|UnsupportedOperation"
# The first that meets counts. What none meets concerns the offering, and is left alone ever longer.
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
REFUSALS = (
    AWSRefusal("InsufficientFreeAddressesInSubnet", Concern.SUBNET, SECONDS_WITHOUT_CAPACITY, "aws_subnet_full"),
    AWSRefusal(
        "InvalidParameterValue", Concern.SUBNET, SECONDS_WITHOUT_CAPACITY, "aws_subnet_full",
        r"free (ipv[46] )?addresses",
    ),
    AWSRefusal("InvalidParameterValue", Concern.ACCOUNT, SECONDS_UNTIL_KNOWN, "aws_profile", PROFILE),
    AWSRefusal(r"InvalidSubnetID\..*|InvalidSubnet", Concern.SUBNET, SECONDS_UNTIL_MENDED, "aws_subnet"),
    AWSRefusal("InsufficientVolumeCapacity", Concern.ZONE, SECONDS_WITHOUT_CAPACITY, "aws_no_capacity"),
    AWSRefusal("InsufficientAddressCapacity", Concern.ZONE, SECONDS_WITHOUT_CAPACITY, "aws_no_capacity"),
    AWSRefusal(
        "InvalidParameterCombination", Concern.ACCOUNT, FIRST_HOLD, "aws_plan_image",
        "image is not eligible for free tier",
    ),
    AWSRefusal("InvalidParameterCombination", Concern.TYPE, SECONDS_UNTIL_MENDED, "aws_plan_type", "free tier"),
    AWSRefusal(
        f"InvalidParameterCombination|InvalidParameterValue|{UNSUPPORTED}", Concern.TYPE, SECONDS_UNTIL_MENDED,
        "aws_image_unsuited", r"\bENA\b|enhanced networking|UEFI|boot mode|architecture|NitroTPM",
    ),
    AWSRefusal(
        r"InvalidParameter\w*|Unsupported\w*", Concern.CAPACITY_TYPE, SECONDS_UNTIL_MENDED, "aws_no_spot_image",
        "spot instance requests are not supported for this ami",
    ),
    AWSRefusal("InvalidParameterCombination", Concern.TYPE, SECONDS_UNTIL_MENDED, "aws_type"),
    AWSRefusal(
        "Unsupported", Concern.TYPE_IN_ZONE, SECONDS_NOT_OFFERED, "aws_not_in_zone",
        r"not supported in (your|the) requested availability zone|availability zone is (no longer supported|currently "
        "constrained)",
    ),
    AWSRefusal(
        "Unsupported", Concern.TYPE, SECONDS_NOT_OFFERED, "aws_type",
        "not supported in (this|the|your requested) region",
    ),
    AWSRefusal(UNSUPPORTED, Concern.TYPE, SECONDS_UNTIL_MENDED, "aws_marketplace_image", "aws marketplace"),
    AWSRefusal(
        UNSUPPORTED, Concern.TYPE, SECONDS_UNTIL_MENDED, "aws_type",
        "instance type does not support|ebs-optimized instances are not supported",
    ),
    # "The requested configuration is currently not supported": the type or how it is bought, there or anywhere.
    AWSRefusal(UNSUPPORTED, Concern.OFFERING, SECONDS_UNTIL_MENDED, "aws_configuration"),
    AWSRefusal(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted", Concern.CAPACITY_TYPE, SECONDS_UNTIL_MENDED,
        "aws_spot_role",
    ),
    AWSRefusal("PendingVerification", Concern.ACCOUNT, FIRST_HOLD, "aws_verification"),
    AWSRefusal("OptInRequired", Concern.ACCOUNT, FIRST_HOLD, "aws_subscription"),
    AWSRefusal(DENIED, Concern.ACCOUNT, FIRST_HOLD, "aws_organization", "service control policy"),
    AWSRefusal(DENIED, Concern.ACCOUNT, FIRST_HOLD, "aws_boundary", "permissions boundary"),
    AWSRefusal(DENIED, Concern.ACCOUNT, FIRST_HOLD, "aws_permission"),
    AWSRefusal("RequestExpired|ExpiredToken|ExpiredTokenException", Concern.ACCOUNT, FIRST_HOLD, "aws_expired"),
    AWSRefusal(
        "AuthFailure|InvalidClientTokenId|UnrecognizedClientException|Blocked", Concern.ACCOUNT, FIRST_HOLD,
        "aws_credentials",
    ),
    AWSRefusal(r"InvalidAMIID\..*", Concern.TYPE, FIRST_HOLD, "aws_image"),
    AWSRefusal(
        r"InvalidGroup\..*|InvalidKeyPair\..*|InvalidSecurityGroupID\..*", Concern.ACCOUNT, FIRST_HOLD, "aws_table",
    ),
    AWSRefusal("", Concern.ACCOUNT, FIRST_HOLD),  # what boto3 or the table says: no credentials, no region
    # Of the reasons for which machines end: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
    AWSRefusal(
        r"Server\.(InsufficientInstanceCapacity|SpotInstance(Termination|Shutdown)|InternalError)", Concern.OFFERING,
        SECONDS_WITHOUT_CAPACITY, "aws_no_capacity",
    ),
    AWSRefusal(
        r"(Client\.)?(VolumeLimitExceeded|MaxIOPSLimitExceeded)", Concern.VOLUMES, FIRST_HOLD, "aws_volume_quota"
    ),
    AWSRefusal(r"Client\.InvalidParameter\w*", Concern.ACCOUNT, FIRST_HOLD, "aws_volume_image"),
    AWSRefusal(
        r"Client\.(InternalError|InvalidSnapshot\.NotFound)", Concern.ACCOUNT, FIRST_HOLD, "aws_volume_key"
    ),
)  # fmt: skip
UNKNOWN = AWSRefusal(".*", Concern.OFFERING, SECONDS_WITHOUT_CAPACITY)
# The codes of the reasons of refusals that pass by themselves.
TRANSIENT = {
    AWSTrouble.CAPACITY: "aws_no_capacity",
    AWSTrouble.QUOTA: "aws_quota",
    AWSTrouble.THROTTLE: "aws_throttle",
    AWSTrouble.SILENCE: "aws_silent",
}


def refusal(code: str, words: str) -> AWSRefusal:
    """What a refusal concerns; what is unknown concerns the offering alone."""
    return next((each for each in REFUSALS if each.meets(code, words)), UNKNOWN)


def said_by(error: EC2Error) -> dict[str, str]:
    """What AWS says, as the parameters of a reason."""
    return {"error": error.code, "text": error.words}


class Shortage(NamedTuple):
    """What EC2 launches none of for now.

    :param until: epoch seconds
    """

    until: float
    why: Reason


UNTIL = attrgetter("until")


@dataclass(slots=True)
class Bucket:
    """:param most: at most so many at once
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
            return self._refused(offering, refusal(error.code, error.words), said_by(error), subnet)
        why = because(TRANSIENT[error.trouble], **said_by(error))
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
        if found.words == PROFILE and self._unknown_profile < MOST_UNKNOWN:
            self._unknown_profile += 1
            why = because("aws_new_profile")
            self._throttle.failed_for(why)
        elif found.concern is Concern.ACCOUNT:
            self._refusal.failed_for(why)
        elif found.concern is Concern.VOLUMES:
            self._volumes.failed_for(why)
        elif found is UNKNOWN:
            pauses = self._strange.setdefault(offering, ReasonedBackoff(FIRST_HOLD, LONGEST_HOLD))
            pauses.failed_for(why)
            self.offerings[offering] = Shortage(time.time() + pauses.left, why)
        elif found.concern is Concern.SUBNET and subnet is not None:
            self.subnets[subnet] = shortage
        elif found.concern is Concern.TYPE:
            self.wider[kind, None, None] = shortage
        elif found.concern is Concern.CAPACITY_TYPE:
            self.wider[None, None, capacity_type] = shortage
        elif found.concern is Concern.OFFERING or zone is None:
            self.offerings[offering] = shortage
        else:
            self.wider[kind if found.concern is Concern.TYPE_IN_ZONE else None, zone, None] = shortage
        return why

    def failed(self, offering: Offering, words: str) -> bool:
        """A machine has ended before it was up; returns whether AWS says that this was its doing.

        :param words: AWS's reason, which begins with a code
        """
        code = STATE_CODE.match(words)
        if code is None or (found := refusal(code[0], words)) is UNKNOWN:
            return False
        more = words[code.end() :].lstrip(": ")
        self._refused(offering, found, {"error": code[0] if more else "", "text": more or words})
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
        """Why nothing can be launched before a person has done something; None: it can."""
        return self._refusal.reason or self._volumes.reason or self._doubt.reason

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
