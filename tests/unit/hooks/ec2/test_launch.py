"""What is asked of EC2 for a launch: keys, user data and requests that are the same bytes each time."""

from __future__ import annotations

import io
import json
from typing import Any

import paramiko
import pytest
from pydantic import ValidationError

from lading.hooks.ec2 import boot
from lading.hooks.ec2.boot import batches, named, request, user_data
from lading.hooks.ec2.client import EC2Instance
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity, identities, key_pair, matching
from lading.hooks.ec2.site import EC2Site
from lading.hooks.site import Order
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch

US = Identity.from_secret("ours")


def config(**options: Any) -> EC2Config:
    table: dict[str, Any] = {
        "kind": "ec2",
        "subnets": ("subnet-0a1b2c3d",),
        "ami": {"x86_64": "ami-0a1b2c3d"},
        "work_dir": "/home/ec2-user/lading",
        "python": "/opt/airflow/bin/python",
    }
    return EC2Config(**{**table, **options})


def orders(count: int, kind: str = "m7i.large", **options: Any) -> list[Order]:
    return [
        Order(f"L{kind[0]}{number:013}", Launch(kind, Resources(2, 7000), 60, (), **options)) for number in range(count)
    ]


def test_a_key_is_one_that_openssh_and_paramiko_read_and_the_same_each_time() -> None:
    pair = key_pair(bytes(range(32)))
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(pair.private))
    assert f"ssh-ed25519 {key.get_base64()}" == pair.public
    assert pair == key_pair(bytes(range(32)))
    assert "PRIVATE" not in repr(pair)


def test_who_we_are_follows_from_the_fernet_key_also_after_a_rotation() -> None:
    [old] = identities("first")
    new, again = identities("second, first")
    assert again == old
    assert new.deployment != old.deployment
    assert matching((new, again), old.deployment) is again
    assert matching((new, again), "another's") is None
    assert new.host_key("L1") != new.host_key("L2") != old.host_key("L2")
    with pytest.raises(ValueError, match="fernet_key is empty"):
        identities(" ,")


def test_the_same_orders_are_asked_for_by_the_same_bytes() -> None:
    [batch] = batches(orders(3, usd_per_hour=0.1, zone="us-east-1a"))
    asked = [
        request(config(), Identity.from_secret("ours"), "cloud", batch, "ami-1", "subnet-1", "/dev/xvda")
        for _ in range(2)
    ]
    assert json.dumps(asked[0]) == json.dumps(asked[1])
    assert (asked[0]["MinCount"], asked[0]["MaxCount"], asked[0]["ClientToken"]) == (1, 3, batch.orders[0].name)
    assert asked[0]["MetadataOptions"] == {
        "HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled",
    }  # fmt: skip
    tags = {each["Key"]: each["Value"] for each in asked[0]["TagSpecifications"][0]["Tags"]}
    assert [named(tags, index) for index in range(4)] == [*(each.name for each in batch.orders), None]
    assert tags[boot.DEPLOYMENT] == US.deployment


def test_orders_are_put_together_where_they_are_alike() -> None:
    found = batches([*orders(17), *orders(1, "c7i.large"), *orders(1, "r7i.large", capacity_type="spot")])
    assert [len(each.orders) for each in found] == [16, 1, 1, 1]
    value = " ".join(each.name for each in found[0].orders)
    assert len(value) <= 256, "the value of a tag"
    spot = request(config(), US, "cloud", found[-1], "ami-1", "subnet-1", "/dev/xvda")
    assert spot["InstanceMarketOptions"]["SpotOptions"]["InstanceInterruptionBehavior"] == "terminate"


def test_user_data_is_a_cloud_config_with_the_keys_and_nothing_of_ours_that_is_secret() -> None:
    text = user_data(config(boot_script="echo hello"), US, "L1")
    head, _, document = text.partition("\n")
    found = json.loads(document)
    assert head == "#cloud-config"
    assert found["ssh_keys"]["ed25519_public"] == US.host_key("L1").public
    [[*_, script, log]] = found["runcmd"]
    assert (script, log) == ("echo hello", "/home/ec2-user/lading-boot")
    assert US.user_key.private not in text.replace("\\n", "\n")


def test_what_is_optional_is_asked_for() -> None:
    table = config(
        disk="100 GiB", key_pair="mine", instance_profile="jobs", security_groups=("sg-0a1b2c3d",), address="public"
    )
    [batch] = batches(orders(1))
    found = request(table, US, "cloud", batch, "ami-1", "subnet-1", "/dev/xvda")
    assert found["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 100
    assert (found["KeyName"], found["IamInstanceProfile"]) == ("mine", {"Name": "jobs"})
    [interface] = found["NetworkInterfaces"]
    assert (interface["Groups"], interface["AssociatePublicIpAddress"]) == (["sg-0a1b2c3d"], True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subnets": ("net-1",)}, "not the id of a subnet"),
        ({"security_groups": ("default",)}, "not the id of a security group"),
        ({"ami": {"x86_64": "linux"}}, "not an image or the name of an SSM parameter"),
        ({"tags": {"lading:site": "x"}}, "cannot be a tag"),
        ({"min_instances": 11}, "more than max_instances"),
        ({"capacity_type": "reserved"}, "'spot-with-fallback'"),
        ({"orphan_after": 10}, "300"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(**options)


def test_user_data_that_is_too_long_for_ec2_is_refused() -> None:
    EC2Site.refuse(config(boot_script="true\n" * 100))
    with pytest.raises(ValueError, match="let it download"):
        EC2Site.refuse(config(boot_script="x" * boot.MOST_USER_DATA))


def test_only_what_this_deployment_has_launched_is_ours_whatever_its_tags_say() -> None:
    old, new = Identity.from_secret("old"), Identity.from_secret("new")
    [batch] = batches(orders(2, usd_per_hour=0.1))
    asked = request(config(), old, "cloud", batch, "ami-1", "subnet-1", "/dev/xvda")
    its_tags = {each["Key"]: each["Value"] for each in asked["TagSpecifications"][0]["Tags"]}

    def ours(tags: dict[str, str], token: str = asked["ClientToken"], who: tuple[Identity, ...] = (new, old)) -> bool:
        found = EC2Instance(
            "i-1", "m7i.large", "z", "running", "on-demand", 1, None, None, tags, "", client_token=token
        )
        return boot.is_ours(found, who)

    assert ours(its_tags), "also after a rotation of the key"
    assert not ours(its_tags, who=(new,)), "the key is gone"
    assert not ours(its_tags, token=""), "tags that were copied to another instance"
    assert not ours(its_tags, token=batch.orders[1].name)
    for name in (boot.PROOF, boot.DEPLOYMENT, boot.SITE, boot.TOKEN, boot.PRICE):
        assert not ours({**its_tags, name: "another"}), name
        assert not ours({key: value for key, value in its_tags.items() if key != name}), name


def test_a_hurry_is_for_a_site_that_buys_by_a_forecast() -> None:
    assert config(hurry="fast").hurry == 10.0
    assert (config().buying, config().hurry) == ("forecast", 1.0)
    assert (config(policy="greedy").buying, config(policy="first_come").buying) == ("greedy", "forecast")
    with pytest.raises(ValueError, match='hurry = 10 has no effect with policy = "greedy"; remove one of them'):
        config(policy="greedy", hurry="fast")
    with pytest.raises(
        ValueError, match="'soon' is not a value of hurry; valid: 0 to 100, or one of cheap, balanced, fast"
    ):
        config(hurry="soon")
