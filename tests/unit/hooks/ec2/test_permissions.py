"""The policy that a site needs: it passes the site's own check and launches, and nothing beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lading.hooks.ec2 import boot, cost_tags
from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error, EC2Instance
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity, identities
from lading.hooks.ec2.permissions import checks, found_policy, policy
from lading.hooks.site import Order
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch
from tests.unit.hooks.ec2.test_launch import config

# How the check of the right to set tags is called.
TAGS = "ec2:CreateTags for cost allocation"
REGION, ACCOUNT = "eu-west-1", "123456789012"
US = identities("ours, before")
OURS = US[0].deployment
TABLE: dict[str, Any] = {
    "region": REGION,
    "security_groups": ["sg-0a1b2c3d"],
    "key_pair": "mine",
    "instance_profile": "jobs",
    "instance_types": ["t3.*", "m7i.large"],
    "capacity_type": "spot-with-fallback",
}


def arn(rest: str, account: str = ACCOUNT) -> str:
    return f"arn:aws:ec2:{REGION}:{account}:{rest}"


class Iam:
    """IAM on paper: what a policy without denials allows."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.statements = json.loads(json.dumps(document))["Statement"]

    def allows(self, action: str, resource: str = "*", **context: str) -> bool:
        return any(self._grants(each, action, resource, context) for each in self.statements)

    def _grants(self, statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str]) -> bool:
        return (
            any(fnmatchcase(action, each) for each in listed(statement["Action"]))
            and any(fnmatchcase(resource, each) for each in listed(statement["Resource"]))
            and all(
                context.get(key) is not None
                and all(
                    any(
                        fnmatchcase(given, value) if operator == "StringLike" else given == value
                        for value in listed(values)
                    )
                    for given in context[key].split(",")
                )
                for operator, pairs in statement.get("Condition", {}).items()
                for key, values in pairs.items()
            )
        )

    def launches(self, request: Mapping[str, Any], role: str = "jobs") -> bool:
        """Whether RunInstances with these parameters is allowed, on each resource that it names or makes."""
        tags = {
            each["ResourceType"]: {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in each["Tags"]}
            for each in request["TagSpecifications"]
        }
        [interface] = request["NetworkInterfaces"]
        resources = [
            arn("instance/*"),
            arn("volume/*"),
            arn("network-interface/*"),
            arn(f"subnet/{interface['SubnetId']}"),
            arn(f"image/{request['ImageId']}", account=""),
            *(arn(f"security-group/{each}") for each in interface.get("Groups", ["sg-default0"])),
            *([arn(f"key-pair/{request['KeyName']}")] if "KeyName" in request else []),
            *([arn("spot-instances-request/*")] if "InstanceMarketOptions" in request else []),
        ]
        passes = {"iam:PassedToService": "ec2.amazonaws.com"}
        return (
            all(
                self.allows("ec2:RunInstances", each, **tags.get(each.rpartition(":")[2].partition("/")[0], {}))
                for each in resources
            )
            and all(
                self.allows("ec2:CreateTags", arn(f"{kind}/*"), **its, **{"ec2:CreateAction": "RunInstances"})
                for kind, its in tags.items()
            )
            and (
                "IamInstanceProfile" not in request
                or self.allows("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{role}", **passes)
            )
        )


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


class Client:
    """EC2 on paper: it has one machine of ours, and asks IAM."""

    meta = SimpleNamespace(region_name=REGION)

    def __init__(self, iam: Iam, machines: Sequence[tuple[str, str]] = ()) -> None:
        self.iam, self.machines, self.asked = iam, dict(machines), list[str]()

    def __getattr__(self, name: str) -> Any:
        action = "ec2:" + "".join(part.capitalize() for part in name.split("_"))
        return lambda *_, **given: self._refuse(self.iam.allows(action))

    def describe_subnets(self, **given: Any) -> Any:
        if given.get("DryRun"):
            self._refuse(self.iam.allows("ec2:DescribeSubnets"))
        return {"Subnets": [{"SubnetId": "subnet-0a1b2c3d", "AvailabilityZone": f"{REGION}a"}]}

    def describe_images(self, **given: Any) -> Any:
        if given.get("DryRun"):
            self._refuse(self.iam.allows("ec2:DescribeImages"))
        return {"Images": [{"Architecture": "x86_64", "Name": "linux", "RootDeviceName": "/dev/xvda"}]}

    def run_instances(self, **request: Any) -> Any:
        self.asked.append(request["InstanceType"])
        self._refuse(self.iam.launches(request))

    def terminate_instances(self, InstanceIds: list[str], **_: Any) -> Any:
        [name] = InstanceIds
        tags = {f"aws:ResourceTag/{boot.DEPLOYMENT}": self.machines[name]} if name in self.machines else {}
        self._refuse(self.iam.allows("ec2:TerminateInstances", arn(f"instance/{name}"), **tags))

    def create_tags(self, Resources: list[str], Tags: list[dict[str, str]], **given: Any) -> Any:
        assert given == {"DryRun": True}
        [name] = Resources
        context = {f"aws:ResourceTag/{boot.DEPLOYMENT}": self.machines[name]} if name in self.machines else {}
        keys = ",".join(each["Key"] for each in Tags)
        self._refuse(self.iam.allows("ec2:CreateTags", arn(f"instance/{name}"), **context, **{"aws:TagKeys": keys}))

    @staticmethod
    def _refuse(allowed: bool) -> None:
        code = "DryRunOperation" if allowed else "UnauthorizedOperation"
        raise ClientError({"Error": {"Code": code, "Message": "You are not authorized."}}, "any")


def least(**changes: Any) -> Iam:
    return Iam(policy(config(**{**TABLE, **changes}), US, REGION, f"arn:aws:iam::{ACCOUNT}:role/jobs", encrypted=True))


def request(who: Identity = US[0], **changes: Any) -> dict[str, Any]:
    """What is asked for a machine of the site."""
    launch = Launch("m7i.large", Resources(), 60, (), f"{REGION}a", changes.pop("capacity_type", "spot"))
    subnet, image = changes.pop("subnet", "subnet-0a1b2c3d"), changes.pop("image", "ami-0a1b2c3d")
    batch = boot.LaunchBatch((Order("L1", launch),))
    return boot.request(config(**{**TABLE, **changes}), who, "cloud", batch, image, subnet, "/dev/xvda")


def checked(client: Client, **changes: Any) -> dict[str, Any]:
    table = config(**{**TABLE, **changes})
    return {each.what: each for each in checks(table, EC2(table, lambda *_: client), US, lambda: None)}


@pytest.mark.parametrize(
    "changes", [{}, {"key_pair": None, "instance_profile": None, "security_groups": [], "capacity_type": "on-demand"}]
)
def test_the_policy_of_a_site_passes_its_own_check_with_its_own_cheapest_type(changes: dict[str, Any]) -> None:
    client = Client(least(**changes))
    found = checked(client, **changes)
    assert [each for each in found.values() if not each.good] == []
    assert client.asked == ["t3.nano"]
    client = Client(least(**changes))
    checked(client, **changes, exclude_types=["t3.*"])
    assert client.asked == ["m7i.large"], "not one that the site would never launch"


def test_what_the_site_launches_is_allowed_and_nothing_beside_it() -> None:
    iam = least()
    assert iam.launches(request())
    assert iam.launches(request(capacity_type="on-demand"))
    refused = {
        "another subnet": request(subnet="subnet-ffffffff"),
        "another image": request(image="ami-ffffffff"),
        "another group": request(security_groups=["sg-ffffffff"]),
        "another key pair": request(key_pair="others"),
        "another deployment's tag": request(Identity.from_secret("another")),
    }
    assert [name for name, each in refused.items() if iam.launches(each)] == []
    assert not iam.launches(request(), role="administrators")
    assert not iam.launches(
        {**request(), "TagSpecifications": [{"ResourceType": each, "Tags": []} for each in ("instance", "volume")]}
    ), "without a tag"
    assert not iam.allows("ec2:CreateTags", arn("instance/i-1")), "of what there is already"


def test_only_machines_of_this_deployment_can_be_ended() -> None:
    iam, tag = least(), f"aws:ResourceTag/{boot.DEPLOYMENT}"
    for each in US:
        assert iam.allows("ec2:TerminateInstances", arn("instance/i-1"), **{tag: each.deployment}), "also of an old key"
    assert not iam.allows(
        "ec2:TerminateInstances", arn("instance/i-1"), **{tag: Identity.from_secret("another").deployment}
    )
    assert not iam.allows("ec2:TerminateInstances", arn("instance/i-1"))


def test_keys_of_volumes_are_used_through_ec2_alone_and_only_where_volumes_are_encrypted() -> None:
    key, through = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1", {"kms:ViaService": f"ec2.{REGION}.amazonaws.com"}
    assert least().allows("kms:Decrypt", key, **through)
    assert not least().allows("kms:Decrypt", key)
    assert least().allows("kms:CreateGrant", key, **through, **{"kms:GrantIsForAWSResource": "true"})
    assert not least().allows("kms:CreateGrant", key, **through)
    assert not Iam(policy(config(), US, REGION, None, encrypted=False)).allows("kms:Decrypt", key, **through)


def test_what_aws_does_not_say_of_a_site_is_taken_as_it_is_named() -> None:
    class Silent(EC2):
        def role(self, profile: str) -> str:
            raise EC2Error(AWSTrouble.PERMANENT, "AccessDenied", "no")

        def encrypts(self) -> bool:
            raise EC2Error(AWSTrouble.PERMANENT, "UnauthorizedOperation", "no")

    table = config(**{**TABLE, "region": "cn-north-1", "ami": {"x86_64": "/my/image"}})
    found = found_policy(table, Silent(table, lambda *_: Client(least())), US)
    by_name = {each["Sid"]: each for each in found["Statement"]}
    assert by_name["GiveTheRole"]["Resource"] == "arn:aws-cn:iam::*:role/jobs"
    assert by_name["UseTheKeysOfVolumes"]["Resource"] == "arn:aws-cn:kms:cn-north-1:*:key/*"
    assert by_name["Image"]["Resource"] == ["arn:aws-cn:ssm:cn-north-1:*:parameter/my/image"]
    assert len(json.dumps(found)) < 6144, "what IAM takes as a managed policy"


def test_what_is_granted_for_our_machines_is_tried_on_one_of_them() -> None:
    for machines, good in ([("i-1", OURS)], True), ([("i-1", "another")], False):
        found = checked_with(least(), machines)
        assert found["ec2:TerminateInstances"].good is good
        assert found[TAGS].good is good
        assert not found[TAGS].warns


def test_tags_of_who_is_charged_are_tried_where_they_are_set() -> None:
    document = policy(config(**TABLE), US, REGION, f"arn:aws:iam::{ACCOUNT}:role/jobs", encrypted=True)
    without = {**document, "Statement": [each for each in document["Statement"] if each["Sid"] != "TagWhoIsCharged"]}
    found = checked_with(Iam(without), [("i-1", OURS)])
    assert (found[TAGS].good, found["ec2:TerminateInstances"].good) == (False, True)
    assert "--policy" in found[TAGS].message, "what to do"
    assert TAGS not in checked_with(Iam(without), [("i-1", OURS)], cost_tags=False)
    none = checked(Client(Iam(without)))[TAGS]
    assert (none.good, none.warns) == (True, True), "there is no machine on which that can be tried"
    assert "cost_tags = false" in none.message


def test_only_who_is_charged_may_be_tagged_later_and_only_on_our_machines() -> None:
    iam, ours = least(), {f"aws:ResourceTag/{boot.DEPLOYMENT}": OURS}
    both = f"{cost_tags.TEAM},{cost_tags.DAG}"
    assert iam.allows("ec2:CreateTags", arn("instance/i-1"), **ours, **{"aws:TagKeys": both})
    assert iam.allows("ec2:CreateTags", arn("instance/i-1"), **ours, **{"aws:TagKeys": cost_tags.DAG})
    for keys in (boot.DEPLOYMENT, f"{both},{boot.DEPLOYMENT}", "Name"):
        assert not iam.allows("ec2:CreateTags", arn("instance/i-1"), **ours, **{"aws:TagKeys": keys})
    theirs = {f"aws:ResourceTag/{boot.DEPLOYMENT}": "another"}
    assert not iam.allows("ec2:CreateTags", arn("instance/i-1"), **theirs, **{"aws:TagKeys": both})
    assert not iam.allows("ec2:CreateTags", arn("volume/vol-1"), **ours, **{"aws:TagKeys": both})


def checked_with(iam: Iam, machines: Sequence[tuple[str, str]], **changes: Any) -> dict[str, Any]:
    """What is found where there is a machine that says that it is ours."""
    [batch] = boot.batches([Order("L1", Launch("m7i.large", Resources(), 60, ()))])
    tags = {each["Key"]: each["Value"] for each in boot.tags(config(), US[0], "cloud", batch)}
    ours = EC2Instance("i-1", "m7i.large", "z", "running", "on-demand", 0, None, None, tags, "", client_token="L1")

    class One(EC2):
        def describe(self, filters: Mapping[str, Sequence[str]]) -> list[EC2Instance]:
            return [ours]

    table, client = config(**{**TABLE, **changes}), Client(iam, machines)
    return {each.what: each for each in checks(table, One(table, lambda *_: client), US, lambda: None)}


def test_a_table_has_what_it_needs_in_its_policy_and_no_more() -> None:
    def names(table: EC2Config, role: str | None) -> set[str]:
        return {each["Sid"] for each in policy(table, US, REGION, role, encrypted=False)["Statement"]}

    few = names(config(), None)
    assert few == {
        "Look", "LaunchWhatIsTagged", "LaunchThereFromThat", "TagWhatIsLaunched", "EndWhatThisDeploymentLaunched",
        "TagWhoIsCharged",
    }  # fmt: skip
    assert few - names(config(cost_tags=False), None) == {"TagWhoIsCharged"}
    more = names(config(ami={"x86_64": "/my/image"}, capacity_type="spot"), "arn:aws:iam::1:role/jobs")
    assert more - few == {"Image", "GiveTheRole", "FirstSpotRequestOfTheAccount"}
