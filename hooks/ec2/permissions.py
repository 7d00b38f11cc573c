"""What AWS must allow: the least policy that a site needs, and whether each part of it is granted.

A request with ``DryRun`` changes nothing; EC2 answers whether it would have been allowed:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

from lading.hooks.ec2 import boot
from lading.hooks.ec2.boot import Batch
from lading.hooks.ec2.client import EC2, EC2Error, Trouble, translated
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity
from lading.hooks.site import Check, Order
from lading.scheduling.hints.machine_words import SPOT
from lading.scheduling.provisioning.launch import Launch
from lading.scheduling.resources import Resources

# What is asked of everything there is: EC2 has no narrower resources for these.
DESCRIBED = (
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
)
# Without it `airflow lading check` cannot look at quotas; nothing else needs it.
QUOTAS = "servicequotas:ListServiceQuotas"
# An instance that there is not, and what EC2 says of it.
NOBODY = "i-00000000000000000"
NO_SUCH_INSTANCE = "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"
# The smallest type that nearly every zone has, by architecture.
SMALL = {"x86_64": "t3.micro", "aarch64": "t4g.micro"}
DRY = "DryRunOperation"
# What begins so is true of all other requests as well.
SILENT, USELESS = "AWS does not answer", "nothing can be asked of AWS"
HOPELESS = SILENT, USELESS
REFUSED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")


def policy(config: EC2Config) -> dict[str, Any]:
    """The least that the identity of a site must be allowed, as a policy of IAM.

    Only what has the tag of Lading can be ended, and only a launch may set tags.
    """
    partition = "arn:*:ec2:*"
    statements: list[dict[str, Any]] = [
        {"Sid": "Look", "Effect": "Allow", "Action": [*DESCRIBED, "pricing:GetProducts", QUOTAS], "Resource": "*"},
        {"Sid": "Launch", "Effect": "Allow", "Action": "ec2:RunInstances", "Resource": "*"},
        {
            "Sid": "TagWhatIsLaunched",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": [f"{partition}:*:instance/*", f"{partition}:*:volume/*"],
            "Condition": {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        },
        {
            "Sid": "EndWhatLadingLaunched",
            "Effect": "Allow",
            "Action": "ec2:TerminateInstances",
            "Resource": f"{partition}:*:instance/*",
            "Condition": {"StringLike": {f"aws:ResourceTag/{boot.DEPLOYMENT}": "*"}},
        },
    ]
    if config.instance_profile is not None:
        condition = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
        role = {"Sid": "GiveTheRole", "Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:*:iam::*:role/*"}
        statements.append({**role, "Condition": condition})
    if parameters := sorted({each for each in config.ami.values() if each.startswith("/")}):
        names = [f"arn:*:ssm:*:*:parameter{each}" for each in parameters]
        statements.append({"Sid": "Image", "Effect": "Allow", "Action": "ssm:GetParameter", "Resource": names})
    if SPOT in config.capacity_types:
        statements.append(
            {
                "Sid": "FirstSpotRequestOfTheAccount",
                "Effect": "Allow",
                "Action": "iam:CreateServiceLinkedRole",
                "Resource": "arn:*:iam::*:role/aws-service-role/spot.amazonaws.com/*",
                "Condition": {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def checks(config: EC2Config, ec2: EC2) -> Iterator[Check]:
    """Whether the connection works, what it is for is there, and each part of the policy is granted.

    Nothing is launched or changed.
    """
    try:
        reader, launcher = ec2.reader, ec2.launcher
    except EC2Error as error:
        yield Check("AWS", False, str(error))
        return
    dry: Mapping[str, Callable[[], Any]] = {
        "ec2:DescribeInstances": lambda: reader.describe_instances(DryRun=True),
        "ec2:DescribeSubnets": lambda: reader.describe_subnets(DryRun=True),
        "ec2:DescribeImages": lambda: reader.describe_images(DryRun=True),
        "ec2:DescribeInstanceTypes": lambda: reader.describe_instance_types(DryRun=True),
        "ec2:DescribeInstanceTypeOfferings": lambda: reader.describe_instance_type_offerings(DryRun=True),
        "ec2:DescribeSpotPriceHistory": lambda: reader.describe_spot_price_history(DryRun=True, MaxResults=1),
        "ec2:TerminateInstances": lambda: reader.terminate_instances(DryRun=True, InstanceIds=[NOBODY]),
    }
    for action, ask in dry.items():
        found = _asked(action, ask)
        yield found
        if found.words.startswith(HOPELESS):
            return
    zones: Mapping[str, str] = {}
    try:
        zones = ec2.zones()
        yield Check("subnets", True, ", ".join(f"{subnet} in {zone}" for zone, subnet in sorted(zones.items())))
    except EC2Error as error:
        yield Check("subnets", False, f"{error}; it is looked for in {ec2.region}: mend `subnets` or `region`")
    for arch in config.ami:
        image = None
        try:
            image = ec2.image(arch)
            yield _image(reader, arch, image, ec2.region)
        except EC2Error as error:
            yield Check(f"image for {arch}", False, f"{error}; mend `ami` in the table of the site")
        if zones and image is not None:
            parameters = _launch(config, arch, image, *next(iter(zones.items())))
            yield _asked(f"ec2:RunInstances with {image}", lambda asked=parameters: launcher.run_instances(**asked))  # type: ignore[misc]


def _launch(config: EC2Config, arch: str, image: str, zone: str, subnet: str) -> dict[str, Any]:
    """The request for a machine of the site, all but its type, which launches nothing."""
    kind = SMALL.get(arch, SMALL["x86_64"])
    launch = Launch(kind, Resources(), inf, (), zone, config.capacity_types[0])
    parameters = boot.request(config, Identity.of("any"), "check", Batch((Order("check", launch),)), image, subnet)
    del parameters["ClientToken"]  # the request of the next check may be another
    return {**parameters, "DryRun": True}


def _image(reader: Any, arch: str, image: str, region: str) -> Check:
    what = f"image for {arch}"
    try:
        with translated():
            found = reader.describe_images(ImageIds=[image])["Images"]
    except EC2Error as error:
        return Check(what, False, f"{error}; it is looked for in {region}: mend `ami` or `region`")
    if not found:
        return Check(what, False, f"{image} is not in {region}; mend `ami` or `region` in the table of the site")
    its = {"arm64": "aarch64"}.get(str(found[0].get("Architecture")), str(found[0].get("Architecture")))
    if its != arch:
        return Check(what, False, f"{image} is for {its}; give one for {arch} in `ami` of the site's table")
    return Check(what, True, f"{image}: {found[0].get('Name', '')}")


def _asked(action: str, ask: Callable[[], Any]) -> Check:
    """Whether a request that changes nothing would have been allowed."""
    try:
        with translated():
            ask()
    except EC2Error as error:
        if error.code in REFUSED:
            return Check(action, False, f"{error.words} Allow what `airflow lading check SITE --policy` prints.")
        # Of what there is not EC2 complains only to those who may end it.
        if error.code and error.code not in (DRY, *NO_SUCH_INSTANCE):
            return Check(action, False, str(error))
        if error.trouble is Trouble.SILENCE:
            return Check(action, False, error.words)
        if not error.code:
            words = f"{USELESS}: {error}; mend the connection that `aws_conn_id` names, or `region`"
            return Check(action, False, words)
    return Check(action, True, "is allowed")
