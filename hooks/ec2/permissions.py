"""The minimal AWS policy of a site, and the checks that each part of it is granted.

A request with ``DryRun`` changes nothing; EC2 answers whether it would have been allowed:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from lading.hooks.ec2 import boot, cost_tags
from lading.hooks.ec2.boot import LaunchBatch
from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error, translated
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity
from lading.hooks.ec2.prices import specified
from lading.hooks.site import Check, Order
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.provisioning.launch import Launch

# Actions that can only be granted for all resources.
DESCRIBED = (
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
)
# Needed only by `airflow lading check`, to read quotas.
QUOTAS = "servicequotas:ListServiceQuotas"
# An instance that does not exist, and EC2's errors for it.
NO_INSTANCE = "i-00000000000000000"
NO_SUCH_INSTANCE = "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"
# The prefixes of regions outside the partition ``aws``, and the suffixes of service names there.
PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "us-iso-": "aws-iso", "us-isob-": "aws-iso-b"}
SUFFIXES = {"aws-cn": ".cn"}
# What EBS needs from a key: https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
KEYS = "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncrypt*"
DRY = "DryRunOperation"
# A message that starts with one of these applies to all further requests, too.
SILENT, USELESS = "AWS does not answer", "AWS cannot be asked"
REFUSED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")


def policy(
    config: EC2Config, identities: Sequence[Identity], region: str | None, role: str | None, *, encrypted: bool
) -> dict[str, Any]:
    """Return the minimal IAM policy for the identity of a site.

    Launches are limited to the site's own subnets, groups, images and key pair, and must be tagged with this deployment
    in the request. Only instances with that tag can be terminated, and only a launch can set tags, except those for
    cost allocation.

    :param identities: our current identity, then former ones
    :param region: the region of the machines; None: any
    :param role: the ARN of the role in the site's instance profile; None: it has no profile
    :param encrypted: whether volumes are, or may be, encrypted
    """
    partition = partition_of(region)
    its = f"arn:{partition}:ec2:{region or '*'}:*:"
    ours = [each.deployment for each in identities]
    images = [f"arn:{partition}:ec2:{region or '*'}::image/{each}" for each in _images(config)]
    used = [f"{its}subnet/{each}" for each in config.subnets]
    used += [f"{its}security-group/{each}" for each in config.security_groups or ("*",)]
    used += [f"{its}key-pair/{config.key_pair}"] if config.key_pair is not None else []
    used += [f"{its}spot-instances-request/*"] if SPOT in config.capacity_types else []
    statements: list[dict[str, Any]] = [
        {"Sid": "Look", "Effect": "Allow", "Action": [*DESCRIBED, "pricing:GetProducts", QUOTAS], "Resource": "*"},
        {
            "Sid": "LaunchWhatIsTagged",
            "Effect": "Allow",
            "Action": "ec2:RunInstances",
            "Resource": [f"{its}instance/*", f"{its}volume/*"],
            "Condition": {"StringEquals": {f"aws:RequestTag/{boot.DEPLOYMENT}": ours}},
        },
        {
            "Sid": "LaunchThereFromThat",
            "Effect": "Allow",
            "Action": "ec2:RunInstances",
            "Resource": [*images, *used, f"{its}network-interface/*"],
        },
        {
            "Sid": "TagWhatIsLaunched",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": [f"{its}instance/*", f"{its}volume/*"],
            "Condition": {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        },
        {
            "Sid": "EndWhatThisDeploymentLaunched",
            "Effect": "Allow",
            "Action": "ec2:TerminateInstances",
            "Resource": f"{its}instance/*",
            "Condition": {"StringEquals": {f"aws:ResourceTag/{boot.DEPLOYMENT}": ours}},
        },
    ]
    if config.cost_tags:
        statements.append(
            {
                "Sid": "TagWhoIsCharged",
                "Effect": "Allow",
                "Action": "ec2:CreateTags",
                "Resource": f"{its}instance/*",
                "Condition": {
                    "StringEquals": {f"aws:ResourceTag/{boot.DEPLOYMENT}": ours},
                    "ForAllValues:StringEquals": {"aws:TagKeys": [cost_tags.TEAM, cost_tags.DAG]},
                },
            }
        )
    if role is not None:
        condition = {"StringEquals": {"iam:PassedToService": f"ec2.amazonaws.com{SUFFIXES.get(partition, '')}"}}
        passed = {"Sid": "GiveTheRole", "Effect": "Allow", "Action": "iam:PassRole", "Resource": role}
        statements.append({**passed, "Condition": condition})
    if encrypted:
        through = {"StringLike": {"kms:ViaService": f"ec2.{region or '*'}.amazonaws.com{SUFFIXES.get(partition, '')}"}}
        keys = {"Effect": "Allow", "Resource": f"arn:{partition}:kms:{region or '*'}:*:key/*"}
        statements += [
            {"Sid": "UseTheKeysOfVolumes", **keys, "Action": list(KEYS), "Condition": through},
            {
                "Sid": "GrantThemToVolumes",
                **keys,
                "Action": "kms:CreateGrant",
                "Condition": {**through, "Bool": {"kms:GrantIsForAWSResource": "true"}},
            },
        ]
    if parameters := sorted({each for each in config.ami.values() if each.startswith("/")}):
        names = [f"arn:{partition}:ssm:{region or '*'}:*:parameter{each}" for each in parameters]
        statements.append({"Sid": "Image", "Effect": "Allow", "Action": "ssm:GetParameter", "Resource": names})
    if SPOT in config.capacity_types:
        statements.append(
            {
                "Sid": "FirstSpotRequestOfTheAccount",
                "Effect": "Allow",
                "Action": "iam:CreateServiceLinkedRole",
                "Resource": f"arn:{partition}:iam::*:role/aws-service-role/spot.amazonaws.com/*",
                "Condition": {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def _images(config: EC2Config) -> list[str]:
    """Return the site's images; all if an SSM parameter names one, because that can change."""
    return sorted(set(config.ami.values())) if all(each.startswith("ami-") for each in config.ami.values()) else ["*"]


def partition_of(region: str | None) -> str:
    return next((name for start, name in PARTITIONS.items() if (region or "").startswith(start)), "aws")


def found_policy(config: EC2Config, ec2: EC2, identities: Sequence[Identity]) -> dict[str, Any]:
    """Return the policy of a site, using its actual role and the encryption of its volumes if AWS reports them.

    Those requests can need more rights than a site. If they fail, the role is assumed to have the name of the profile,
    and volumes to be encrypted.
    """
    region, role, encrypted = config.region, None, True
    with suppress(EC2Error):
        region = ec2.region
    if config.instance_profile is not None:
        role = f"arn:{partition_of(region)}:iam::*:role/{config.instance_profile}"
        with suppress(EC2Error):
            role = ec2.role(config.instance_profile)
    with suppress(EC2Error, LookupError):
        encrypted = ec2.encrypts()
    return policy(config, identities, region, role, encrypted=encrypted)


def checks(
    config: EC2Config, ec2: EC2, identities: Sequence[Identity], catalogue: Callable[[], Catalogue | None]
) -> Iterator[Check]:
    """Check that the connection works, that the configured resources exist, and that each part of the policy is
    granted.

    Nothing is launched or changed.

    :param identities: our current identity, then former ones, which the policy names
    :param catalogue: returns what the site can launch; None: unknown
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
    }
    for action, ask in dry.items():
        found = _asked(action, ask)
        yield found
        if found.message.startswith((SILENT, USELESS)):
            return
    there = None
    with suppress(EC2Error):
        found = ec2.describe({f"tag:{boot.DEPLOYMENT}": [each.deployment for each in identities]})
        there = next((each.id for each in found if each.lives and boot.is_ours(each, identities)), None)
    yield _of_ours(
        "ec2:TerminateInstances",
        there,
        lambda id: reader.terminate_instances(DryRun=True, InstanceIds=[id]),
        otherwise="`airflow lading check SITE --launch` tests it on one",
    )
    if config.cost_tags:
        tags = [{"Key": name, "Value": "check"} for name in (cost_tags.TEAM, cost_tags.DAG)]
        yield _of_ours(
            "ec2:CreateTags for cost allocation",
            there,
            lambda id: reader.create_tags(DryRun=True, Resources=[id], Tags=tags),
            otherwise="it is tested once there is one; with cost_tags = false in the site's table it is not needed",
        )
    offered = catalogue()
    zones: Mapping[str, str] = {}
    try:
        zones = {zone: subnets[0] for zone, subnets in ec2.zones().items()}
        yield subnet_check(ec2)
    except EC2Error as error:
        yield Check("subnets", False, str(error))
    for arch in config.ami:
        image = None
        try:
            image = ec2.image(arch)
            yield _image(reader, arch, image, ec2.region)
        except EC2Error as error:
            yield Check(f"image for {arch}", False, f"{error}; correct `ami` in the table of the site")
        root = ""
        if image is not None and config.disk:
            try:
                root = ec2.image_facts(image).root
            except (EC2Error, LookupError) as error:
                yield Check(f"root volume of {image}", False, str(error))
                continue
        launch = _cheapest(config, offered, arch, zones)
        if image is not None and launch is not None:
            parameters = _request(config, identities[0], launch, image, zones[str(launch.zone)], root)
            yield _asked(f"ec2:RunInstances with {image}", lambda asked=parameters: launcher.run_instances(**asked))  # type: ignore[misc]


def subnet_check(ec2: EC2) -> Check:
    """Report which subnets of the table exist, and which do not.

    :raises EC2Error: AWS did not answer, or none exists
    """
    there = [f"{subnet} in {zone}" for zone, subnets in sorted(ec2.zones().items()) for subnet in subnets]
    if unknown := ec2.unknown_subnets():
        message = f"there is no {' or '.join(unknown)} in {ec2.region}: correct `subnets` of the table; machines are "
        return Check("subnets", False, f"{message}launched in the others: {', '.join(there)}")
    return Check("subnets", True, ", ".join(there))


def _cheapest(config: EC2Config, offered: Catalogue | None, arch: str, zones: Mapping[str, str]) -> Launch | None:
    """Return the first launch that the site would make for an architecture; None if it has no subnet or no type.

    :param offered: None: unknown, so all specified types are considered
    """
    known = offered if offered is not None and offered.types else specified(config)
    found = [
        (each.usd_per_hour, kind.name, each.capacity_type, zone)
        for kind in known.types.values()
        for each in kind.offerings
        if kind.arch == arch and (zone := each.zone or next(iter(zones), None)) in zones
    ]
    if not found:
        return None
    _, name, capacity_type, zone = min(found)
    return Launch(name, known.types[name].capacity, inf, (), zone, capacity_type)


def _request(
    config: EC2Config, identity: Identity, launch: Launch, image: str, subnet: str, root: str
) -> dict[str, Any]:
    """Return the launch request of a machine of the site, as a dry run."""
    batch = LaunchBatch((Order("check", launch),))
    parameters = boot.request(config, identity, "check", batch, image, subnet, root)
    del parameters["ClientToken"]  # the request of the next check may differ
    return {**parameters, "DryRun": True}


def _of_ours(action: str, there: str | None, ask: Callable[[str], Any], otherwise: str) -> Check:
    """Check a right that is granted only for machines with our tag, by trying it on one if one exists.

    :param there: the id of one; None: none exists now
    :param otherwise: advice if none exists
    """
    tried = _asked(action, lambda: ask(there or NO_INSTANCE))
    if tried.good or there is not None:
        return tried
    message = "it is granted only for machines of this deployment, and none exists now: "
    return Check(action, True, f"{message}{otherwise}", warns=True)


def _image(reader: Any, arch: str, image: str, region: str) -> Check:
    what = f"image for {arch}"
    try:
        with translated():
            found = reader.describe_images(ImageIds=[image])["Images"]
    except EC2Error as error:
        return Check(what, False, f"{error}; it was searched in {region}: correct `ami` or `region`")
    if not found:
        return Check(what, False, f"{image} is not in {region}; correct `ami` or `region` in the table of the site")
    its = {"arm64": "aarch64"}.get(str(found[0].get("Architecture")), str(found[0].get("Architecture")))
    if its != arch:
        return Check(what, False, f"{image} is for {its}; set one for {arch} in `ami` of the site's table")
    return Check(what, True, f"{image}: {found[0].get('Name', '')}")


def _asked(action: str, ask: Callable[[], Any]) -> Check:
    """Check whether a request that changes nothing would be allowed."""
    try:
        with translated():
            ask()
    except EC2Error as error:
        if error.code in REFUSED:
            return Check(action, False, f"{error.message} Allow what `airflow lading check SITE --policy` prints.")
        # EC2 reports a missing instance only to those who have the right to terminate it.
        if error.code and error.code not in (DRY, *NO_SUCH_INSTANCE):
            return Check(action, False, str(error))
        if error.trouble is AWSTrouble.SILENCE:
            return Check(action, False, error.message)
        if not error.code:
            message = f"{USELESS}: {error}; correct the connection that `aws_conn_id` names, or `region`"
            return Check(action, False, message)
    return Check(action, True, "is allowed")
