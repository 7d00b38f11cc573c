"""What AWS means when it refuses a launch or terminates a machine: what each error code concerns, and for how long.

| read | concluded | until |
|---|---|---|
| a code in the table | as its row says, for its time | that time; a successful launch |
| a code in no table | the offering is held for 1, 2, ... 15 min | that time; a successful launch of it |
| the same such code from three offerings | the account is held for ten minutes | that time; any successful launch |
| no code: an error of boto3 or the table | the account is held | see ``pace`` |
| an unknown code for a terminated machine | it was silent: see ``pace`` | see there |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from lading.hooks.ec2.client import AWSTrouble, EC2Error

# Seconds without requests for what EC2 has no capacity for.
SECONDS_WITHOUT_CAPACITY = 180.0
# The first pause in seconds after a refusal that concerns the whole account.
FIRST_HOLD = 60.0
# Seconds without requests for a part of the site that an administrator has to fix.
SECONDS_UNTIL_MENDED = 900.0
# Seconds without requests for a type that a zone does not offer; the list of offered types is requested as rarely.
SECONDS_NOT_OFFERED = 86_400.0


class RefusalScope(Enum):
    """What a refusal concerns; nothing else is held."""

    OFFERING = "offering"
    TYPE_IN_ZONE = "type in zone"
    TYPE = "type"
    SUBNET = "subnet"
    ZONE = "zone"
    CAPACITY_TYPE = "capacity type"
    VOLUMES = "volumes"
    """The volumes of the account in the region: each machine has some, and frees them when it terminates."""
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class AWSRefusal:
    """The meaning of an error code, or of the code in the reason for a machine's termination.

    :param code: a pattern for the code; messages change, so a row that needs a message is followed by one for its code
    :param seconds: for how long what it concerns is held; for an account and its volumes, the first of ever longer
        pauses
    :param reason: the code of the reason, which says what to do
    :param message: a pattern to find in the message; empty: any
    """

    code: str
    scope: RefusalScope
    seconds: float
    reason: str = "aws_refused"
    message: str = ""

    def meets(self, code: str, message: str) -> bool:
        return bool(re.fullmatch(self.code, code) and re.search(self.message, message, re.IGNORECASE))


PROFILE = r"Invalid IAM Instance Profile"
DENIED = "UnauthorizedOperation|AccessDenied|AccessDeniedException"
UNSUPPORTED = "Unsupported|UnsupportedOperation"
# The first match counts. An unmatched code concerns the offering, which is held for ever longer times; the same code
# from several offerings concerns the account: see UNKNOWN.
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
REFUSALS = (
    AWSRefusal("InsufficientFreeAddressesInSubnet", RefusalScope.SUBNET, SECONDS_WITHOUT_CAPACITY, "aws_subnet_full"),
    AWSRefusal(
        "InvalidParameterValue", RefusalScope.SUBNET, SECONDS_WITHOUT_CAPACITY, "aws_subnet_full",
        r"free (ipv[46] )?addresses",
    ),
    # AWS takes a moment to know a new instance profile.
    AWSRefusal("InvalidParameterValue", RefusalScope.ACCOUNT, 15.0, "aws_profile", PROFILE),
    AWSRefusal(r"InvalidSubnetID\..*|InvalidSubnet", RefusalScope.SUBNET, SECONDS_UNTIL_MENDED, "aws_subnet"),
    AWSRefusal("InsufficientVolumeCapacity", RefusalScope.ZONE, SECONDS_WITHOUT_CAPACITY, "aws_no_capacity"),
    AWSRefusal("InsufficientAddressCapacity", RefusalScope.ZONE, SECONDS_WITHOUT_CAPACITY, "aws_no_capacity"),
    AWSRefusal(
        "InvalidParameterCombination", RefusalScope.ACCOUNT, FIRST_HOLD, "aws_plan_image",
        "image is not eligible for free tier",
    ),
    AWSRefusal("InvalidParameterCombination", RefusalScope.TYPE, SECONDS_UNTIL_MENDED, "aws_plan_type", "free tier"),
    AWSRefusal(
        f"InvalidParameterCombination|InvalidParameterValue|{UNSUPPORTED}", RefusalScope.TYPE, SECONDS_UNTIL_MENDED,
        "aws_image_unsuited", r"\bENA\b|enhanced networking|UEFI|boot mode|architecture|NitroTPM",
    ),
    AWSRefusal(
        r"InvalidParameter\w*|Unsupported\w*", RefusalScope.CAPACITY_TYPE, SECONDS_UNTIL_MENDED, "aws_no_spot_image",
        "spot instance requests are not supported for this ami",
    ),
    AWSRefusal("InvalidParameterCombination", RefusalScope.TYPE, SECONDS_UNTIL_MENDED, "aws_type"),
    AWSRefusal(
        "Unsupported", RefusalScope.TYPE_IN_ZONE, SECONDS_NOT_OFFERED, "aws_not_in_zone",
        r"not supported in (your|the) requested availability zone|availability zone is (no longer supported|currently "
        "constrained)",
    ),
    AWSRefusal(
        "Unsupported", RefusalScope.TYPE, SECONDS_NOT_OFFERED, "aws_type",
        "not supported in (this|the|your requested) region",
    ),
    AWSRefusal(UNSUPPORTED, RefusalScope.TYPE, SECONDS_UNTIL_MENDED, "aws_marketplace_image", "aws marketplace"),
    AWSRefusal(
        UNSUPPORTED, RefusalScope.TYPE, SECONDS_UNTIL_MENDED, "aws_type",
        "instance type does not support|ebs-optimized instances are not supported",
    ),
    # "The requested configuration is currently not supported": the type or the capacity type, in this zone or in any.
    AWSRefusal(UNSUPPORTED, RefusalScope.OFFERING, SECONDS_UNTIL_MENDED, "aws_configuration"),
    AWSRefusal(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted", RefusalScope.CAPACITY_TYPE, SECONDS_UNTIL_MENDED,
        "aws_spot_role",
    ),
    AWSRefusal("PendingVerification", RefusalScope.ACCOUNT, FIRST_HOLD, "aws_verification"),
    AWSRefusal("OptInRequired", RefusalScope.ACCOUNT, FIRST_HOLD, "aws_subscription"),
    AWSRefusal(DENIED, RefusalScope.ACCOUNT, FIRST_HOLD, "aws_organization", "service control policy"),
    AWSRefusal(DENIED, RefusalScope.ACCOUNT, FIRST_HOLD, "aws_boundary", "permissions boundary"),
    AWSRefusal(DENIED, RefusalScope.ACCOUNT, FIRST_HOLD, "aws_permission"),
    AWSRefusal("RequestExpired|ExpiredToken|ExpiredTokenException", RefusalScope.ACCOUNT, FIRST_HOLD, "aws_expired"),
    AWSRefusal(
        "AuthFailure|InvalidClientTokenId|UnrecognizedClientException|Blocked", RefusalScope.ACCOUNT, FIRST_HOLD,
        "aws_credentials",
    ),
    AWSRefusal(r"InvalidAMIID\..*", RefusalScope.TYPE, FIRST_HOLD, "aws_image"),
    AWSRefusal(
        r"InvalidGroup\..*|InvalidKeyPair\..*|InvalidSecurityGroupID\..*",
        RefusalScope.ACCOUNT, FIRST_HOLD, "aws_table",
    ),
    AWSRefusal("", RefusalScope.ACCOUNT, FIRST_HOLD),  # an error of boto3 or the table: no credentials, no region
    # Reasons for terminations: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
    AWSRefusal(
        r"Server\.(InsufficientInstanceCapacity|SpotInstance(Termination|Shutdown)|InternalError)",
        RefusalScope.OFFERING, SECONDS_WITHOUT_CAPACITY, "aws_no_capacity",
    ),
    AWSRefusal(
        r"(Client\.)?(VolumeLimitExceeded|MaxIOPSLimitExceeded)", RefusalScope.VOLUMES, FIRST_HOLD, "aws_volume_quota"
    ),
    AWSRefusal(r"Client\.InvalidParameter\w*", RefusalScope.ACCOUNT, FIRST_HOLD, "aws_volume_image"),
    AWSRefusal(
        r"Client\.(InternalError|InvalidSnapshot\.NotFound)", RefusalScope.ACCOUNT, FIRST_HOLD, "aws_volume_key"
    ),
)  # fmt: skip
# A code that is not in the table.
UNKNOWN = AWSRefusal(".*", RefusalScope.OFFERING, SECONDS_WITHOUT_CAPACITY)
# The reason codes of refusals that are temporary.
TRANSIENT = {
    AWSTrouble.CAPACITY: "aws_no_capacity",
    AWSTrouble.QUOTA: "aws_quota",
    AWSTrouble.THROTTLE: "aws_throttle",
    AWSTrouble.SILENCE: "aws_silent",
}


def refusal(code: str, message: str) -> AWSRefusal:
    """Return the meaning of a refusal; an unknown one concerns only the offering."""
    return next((each for each in REFUSALS if each.meets(code, message)), UNKNOWN)


def said_by(error: EC2Error) -> dict[str, str]:
    return {"error": error.code, "text": error.message}
