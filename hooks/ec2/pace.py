"""How fast EC2 may be asked to launch, and what it has none of at the moment."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from lading.hooks.ec2.client import STATE_CODE, AWSTrouble, EC2Error
from lading.hooks.ssh.backoff import Backoff
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
# What an administrator has to mend for a part of the site is not asked for again before, seconds.
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

    :param code: a pattern of it; messages change, so what is known by its words has a row for the rest of its code
    :param seconds: for how long what it concerns is left alone; of an account and its volumes it is the first pause of
        ever longer ones
    :param words: a pattern of what the message has; empty: any
    :param remedy: what to do; empty: nothing, it passes
    """

    code: str
    concern: Concern
    seconds: float
    remedy: str = ""
    words: str = ""

    def meets(self, code: str, words: str) -> bool:
        return bool(re.fullmatch(self.code, code) and re.search(self.words, words, re.IGNORECASE))


ADDRESSES = "the subnet has no free address; give a larger one in `subnets`, or end what holds its addresses"
PROFILE = r"Invalid IAM Instance Profile"
# The first that meets counts. What none meets concerns the offering, and is left alone ever longer.
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
REFUSALS = (
    AWSRefusal("InsufficientFreeAddressesInSubnet", Concern.SUBNET, SECONDS_WITHOUT_CAPACITY, ADDRESSES),
    AWSRefusal(
        "InvalidParameterValue", Concern.SUBNET, SECONDS_WITHOUT_CAPACITY, ADDRESSES, r"free (ipv[46] )?addresses",
    ),
    AWSRefusal("InvalidParameterValue", Concern.ACCOUNT, SECONDS_UNTIL_KNOWN, "mend `instance_profile`", PROFILE),
    AWSRefusal(r"InvalidSubnetID\..*|InvalidSubnet", Concern.SUBNET, SECONDS_UNTIL_MENDED, "mend `subnets`"),
    AWSRefusal("InsufficientVolumeCapacity", Concern.ZONE, SECONDS_WITHOUT_CAPACITY),
    AWSRefusal("InsufficientAddressCapacity", Concern.ZONE, SECONDS_WITHOUT_CAPACITY),
    AWSRefusal(
        "InvalidParameterCombination", Concern.ACCOUNT, FIRST_HOLD,
        "the account's plan has only images of the free tier: name such in `ami`, or change the plan",
        "image is not eligible for free tier",
    ),
    AWSRefusal(
        "InvalidParameterCombination", Concern.TYPE, SECONDS_UNTIL_MENDED,
        "the account's plan has only types of the free tier: name such in `instance_types`, or change the plan",
        "free tier",
    ),
    AWSRefusal(
        "InvalidParameterCombination|InvalidParameterValue|Unsupported|UnsupportedOperation", Concern.TYPE,
        SECONDS_UNTIL_MENDED, "the image does not suit the type: give another one in `ami`, or leave the type out "
        "(`exclude_types`)", r"\bENA\b|enhanced networking|UEFI|boot mode|architecture|NitroTPM",
    ),
    AWSRefusal(
        r"InvalidParameter\w*|Unsupported\w*", Concern.CAPACITY_TYPE, SECONDS_UNTIL_MENDED,
        "give another image in `ami`, or take `capacity_type = \"on-demand\"`",
        "spot instance requests are not supported for this ami",
    ),
    AWSRefusal("InvalidParameterCombination", Concern.TYPE, SECONDS_UNTIL_MENDED, "exclude the type (`exclude_types`)"),
    AWSRefusal(
        "Unsupported", Concern.TYPE_IN_ZONE, SECONDS_NOT_OFFERED, "",
        r"not supported in (your|the) requested availability zone|availability zone is (no longer supported|currently "
        "constrained)",
    ),
    AWSRefusal(
        "Unsupported", Concern.TYPE, SECONDS_NOT_OFFERED, "exclude the type (`exclude_types`)",
        "not supported in (this|the|your requested) region",
    ),
    AWSRefusal(
        "Unsupported|UnsupportedOperation", Concern.TYPE, SECONDS_UNTIL_MENDED,
        "the image is a product of AWS Marketplace that is not for this type: give another one in `ami`, or leave the "
        "type out (`exclude_types`)", "aws marketplace",
    ),
    AWSRefusal(
        "Unsupported|UnsupportedOperation", Concern.TYPE, SECONDS_UNTIL_MENDED, "exclude the type (`exclude_types`)",
        "instance type does not support|ebs-optimized instances are not supported",
    ),
    # "The requested configuration is currently not supported": the type or how it is bought, there or anywhere.
    AWSRefusal(
        "Unsupported|UnsupportedOperation", Concern.OFFERING, SECONDS_UNTIL_MENDED,
        "if no type can be launched, see whether the tenancy of the subnets' VPC is `default`",
    ),
    AWSRefusal(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted", Concern.CAPACITY_TYPE, SECONDS_UNTIL_MENDED,
        "make the role once, by `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    ),
    AWSRefusal(
        "PendingVerification", Concern.ACCOUNT, FIRST_HOLD,
        "AWS verifies the account for this region, which takes up to 4 hours; after that write to its support",
    ),
    AWSRefusal("OptInRequired", Concern.ACCOUNT, FIRST_HOLD, "subscribe the account to EC2, or enable the region"),
    AWSRefusal(
        "UnauthorizedOperation|AccessDenied|AccessDeniedException", Concern.ACCOUNT, FIRST_HOLD,
        "a service control policy of the organization forbids it: its administrator has to allow it",
        "service control policy",
    ),
    AWSRefusal(
        "UnauthorizedOperation|AccessDenied|AccessDeniedException", Concern.ACCOUNT, FIRST_HOLD,
        "widen the permissions boundary of the site's role", "permissions boundary",
    ),
    AWSRefusal(
        "UnauthorizedOperation|AccessDenied|AccessDeniedException", Concern.ACCOUNT, FIRST_HOLD,
        "allow what `airflow lading check SITE --policy` prints",
    ),
    AWSRefusal("RequestExpired|ExpiredToken|ExpiredTokenException", Concern.ACCOUNT, FIRST_HOLD, "the credentials have "
            "expired, or the clock of this machine is wrong: renew the one, or mend the other"),
    AWSRefusal(
        "AuthFailure|InvalidClientTokenId|UnrecognizedClientException|Blocked", Concern.ACCOUNT, FIRST_HOLD,
        "mend the credentials of the connection that `aws_conn_id` names",
    ),
    AWSRefusal(r"InvalidAMIID\..*", Concern.TYPE, FIRST_HOLD, "mend `ami` of the table"),
    AWSRefusal(
        r"InvalidGroup\..*|InvalidKeyPair\..*|InvalidSecurityGroupID\..*", Concern.ACCOUNT, FIRST_HOLD,
        "mend the table of the site",
    ),
    AWSRefusal("", Concern.ACCOUNT, FIRST_HOLD),  # what boto3 or the table says: no credentials, no region
    # Of the reasons for which machines end: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
    AWSRefusal(
        r"Server\.(InsufficientInstanceCapacity|SpotInstance(Termination|Shutdown)|InternalError)", Concern.OFFERING,
        SECONDS_WITHOUT_CAPACITY,
    ),
    AWSRefusal(
        r"(Client\.)?(VolumeLimitExceeded|MaxIOPSLimitExceeded)", Concern.VOLUMES, FIRST_HOLD,
        "raise the quotas of EBS storage and its IOPS in Service Quotas, delete volumes that are not used, or lower "
        "`disk`",
    ),
    AWSRefusal(
        r"Client\.InvalidParameter\w*", Concern.ACCOUNT, FIRST_HOLD,
        "the volumes cannot be made as the image says: give another one in `ami`",
    ),
    AWSRefusal(
        r"Client\.(InternalError|InvalidSnapshot\.NotFound)", Concern.ACCOUNT, FIRST_HOLD,
        "the volumes cannot be made: let the site's credentials use the KMS key of the image, and see that its "
        "snapshots are there",
    ),
)  # fmt: skip
UNKNOWN = AWSRefusal(".*", Concern.OFFERING, SECONDS_WITHOUT_CAPACITY)


def refusal(code: str, words: str) -> AWSRefusal:
    """What a refusal concerns; what is unknown concerns the offering alone."""
    return next((each for each in REFUSALS if each.meets(code, words)), UNKNOWN)


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
        self.offerings: dict[Offering, tuple[float, str]] = {}
        """Until when there is none of an offering, epoch seconds, and AWS's words."""
        self.quotas: dict[str, tuple[float, str]] = {}
        """The same of what an account may have no more of, by the name of the quota."""
        self.wider: dict[tuple[str | None, str | None, str | None], tuple[float, str]] = {}
        """The same of types, zones and capacity types, which hold all offerings that have them; None: any."""
        self.subnets: dict[str, tuple[float, str]] = {}
        """The same of subnets: a zone is held while all of its subnets are."""
        self.zones: Mapping[str, Sequence[str]] = {}
        """The subnets by their zones, as far as they are known."""
        self._strange: dict[Offering, Backoff] = {}
        self._unknown_profile = 0
        self._throttle = Backoff(FIRST_THROTTLE, LONGEST_THROTTLE)
        self._refusal = Backoff(FIRST_HOLD, LONGEST_HOLD)
        self._volumes = Backoff(FIRST_HOLD, LONGEST_HOLD)
        self._doubt = Backoff(FIRST_HOLD, LONGEST_HOLD)
        self._silent = 0

    def refused(self, offering: Offering, error: EC2Error, subnet: str | None = None) -> None:
        """A launch was refused.

        :param subnet: in which it was to be; None: it did not come to that
        """
        kind, _, capacity_type = offering
        if error.trouble is AWSTrouble.CAPACITY:
            self.offerings[offering] = time.time() + SECONDS_WITHOUT_CAPACITY, str(error)
        elif error.trouble is AWSTrouble.QUOTA:
            self.quotas[quota(kind, capacity_type)] = time.time() + SECONDS_OVER_QUOTA, str(error)
        elif error.trouble is AWSTrouble.THROTTLE:
            self._throttle.failed(f"AWS takes no more requests for now: {error}")
        elif error.trouble is AWSTrouble.PERMANENT:
            self._refused(offering, refusal(error.code, error.words), str(error), subnet)

    def _refused(self, offering: Offering, found: AWSRefusal, said: str, subnet: str | None = None) -> None:
        """Hold what a refusal concerns, and nothing else."""
        kind, zone, capacity_type = offering
        words, until = f"{said}; {found.remedy}" if found.remedy else said, time.time() + found.seconds
        if found.words == PROFILE and self._unknown_profile < MOST_UNKNOWN:
            self._unknown_profile += 1
            self._throttle.failed("AWS does not know the instance profile yet, which takes a moment after it was made")
        elif found.concern is Concern.ACCOUNT:
            self._refusal.failed(words)
        elif found.concern is Concern.VOLUMES:
            self._volumes.failed(words)
        elif found is UNKNOWN:
            pauses = self._strange.setdefault(offering, Backoff(FIRST_HOLD, LONGEST_HOLD))
            pauses.failed(words)
            self.offerings[offering] = time.time() + pauses.left, words
        elif found.concern is Concern.SUBNET and subnet is not None:
            self.subnets[subnet] = until, words
        elif found.concern is Concern.TYPE:
            self.wider[kind, None, None] = until, words
        elif found.concern is Concern.CAPACITY_TYPE:
            self.wider[None, None, capacity_type] = until, words
        elif found.concern is Concern.OFFERING or zone is None:
            self.offerings[offering] = until, words
        else:
            self.wider[kind if found.concern is Concern.TYPE_IN_ZONE else None, zone, None] = until, words

    def failed(self, offering: Offering, words: str) -> bool:
        """A machine has ended before it was up; returns whether AWS says that this was its doing.

        :param words: AWS's reason, which begins with a code
        """
        code = STATE_CODE.match(words)
        if code is None or (found := refusal(code[0], words)) is UNKNOWN:
            return False
        self._refused(offering, found, words)
        return True

    def reclaimed(self, offering: Offering, words: str) -> None:
        """AWS has taken a machine away: there is no capacity for another one."""
        self.offerings[offering] = time.time() + SECONDS_WITHOUT_CAPACITY, words

    def never_answered(self, offering: Offering, words: str) -> None:
        """A machine has ended that never answered: another offering is tried, and after some in a row none for a while.

        :param words: why it has ended
        """
        self.offerings[offering] = time.time() + SECONDS_AFTER_SILENCE, f"the last one never answered: {words}"
        self._silent += 1
        if self.is_in_doubt:
            said = f"the last {self._silent} machines that were launched never answered; the last one: {words}"
            self._doubt.failed(said)

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
    def paused(self) -> str | None:
        """Why nothing is launched for a moment, in words; None: it may be."""
        return self._throttle.held

    @property
    def held(self) -> str | None:
        """Why nothing can be launched before somebody has done something, in words; None: it can."""
        return self._refusal.held or self._volumes.held or self._doubt.held

    @property
    def reason(self) -> Reason | None:
        """Why nothing is launched now; None: it may be."""
        causes = (
            ("refused", self._refusal.held),
            ("account_limit", self._volumes.held),
            ("machines_silent", self._doubt.held),
            ("site_limit", self.paused),
        )
        return next((because(code, text=text) for code, text in causes if text is not None), None)

    @property
    def any(self) -> bool:
        """Whether there is none of anything."""
        held = self.offerings, self.quotas, self.wider, self.subnets
        return any(end > time.time() for each in held for end, _ in list(each.values()))

    @property
    def closed(self) -> str | None:
        """In which subnets nothing is launched for now, and why, in words; None: in all of them it may be."""
        found = [f"{name}: {words}" for name, (end, words) in sorted(self.subnets.items()) if end > time.time()]
        return f"nothing is launched for now in {'; '.join(found)}" if found else None

    def open_subnets(self, zone: str | None) -> list[str]:
        """The subnets of a zone in which machines may be launched now.

        :param zone: None: any
        """
        return [each for each in self._subnets_of(zone) if self.subnets.get(each, (0.0, ""))[0] <= time.time()]

    def _subnets_of(self, zone: str | None) -> list[str]:
        return [each for name, subnets in self.zones.items() if zone in (None, name) for each in subnets]

    def until(self, offering: Offering) -> float | None:
        """Until when there is none of an offering, epoch seconds; None: there may be now."""
        found = self._of(offering)
        return found[0] if found is not None else None

    def missing(self, offering: Offering) -> str | None:
        """Why there is none of an offering, in words; None: there may be."""
        found = self._of(offering)
        return found[1] if found is not None else None

    def _of(self, offering: Offering) -> tuple[float, str] | None:
        return max((each for each in self._all_of(offering) if each[0] > time.time()), default=None)

    def _all_of(self, offering: Offering) -> Iterator[tuple[float, str]]:
        kind, zone, capacity_type = offering
        narrow = self.offerings.get(offering), self.quotas.get(quota(kind, capacity_type))
        places = (kind, None, None), (kind, zone, None), (None, zone, None), (None, None, capacity_type)
        wide = (self.wider.get(place) for place in places if place != (None, None, None))
        yield from (each for each in (*narrow, *wide) if each is not None)
        if (here := self._subnets_of(zone)) and not self.open_subnets(zone):
            yield min(self.subnets[each] for each in here)
