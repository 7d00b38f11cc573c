"""What AWS must allow, and the messages if it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.ec2 import account, boot, cost_tags
from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import identities
from lading.hooks.ec2.offers import EC2Offers
from lading.hooks.ec2.permissions import DESCRIBED, checks
from lading.hooks.site import Check, Order
from lading.scheduling.model.catalogue import bundled
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch
from tests.services.ec2 import FakeEC2


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2() as service:
        yield service


@pytest.fixture
def ec2(service: FakeEC2) -> Iterator[FakeEC2]:
    yield service
    service.allow()
    assert service.living() == []


US = identities("ours, before")
TAGS = "ec2:CreateTags for cost allocation"


def table(**values: Any) -> EC2Config:
    table = {
        "kind": "ec2",
        "work_dir": "/var/lading",
        "python": "/usr/bin/python3",
        "subnets": ["subnet-0a1b2c3d"],
        **values,
    }
    return EC2Config.model_validate({"ami": {"x86_64": "ami-0a1b2c3d"}, **table})


def checked(ec2: FakeEC2, **values: Any) -> dict[str, Check]:
    config = table(**{"subnets": list(ec2.subnets.values()), "ami": ec2.ami, **values})
    made = EC2(config, lambda service, *_: ec2.make(service))
    return {each.what: each for each in checks(config, made, US, lambda: None)}


def test_all_is_well_where_all_is_allowed_and_nothing_is_launched(ec2: FakeEC2) -> None:
    found = checked(ec2)
    assert [each for each in found.values() if not each.good] == []
    assert set(DESCRIBED) | {"ec2:TerminateInstances", f"ec2:RunInstances with {ec2.ami['x86_64']}"} <= found.keys()
    assert "us-east-1a" in found["subnets"].message
    assert ec2.ledger() == []


@pytest.mark.parametrize("action", [each.removeprefix("ec2:") for each in DESCRIBED])
def test_what_is_not_allowed_is_named_with_what_to_do(ec2: FakeEC2, action: str) -> None:
    ec2.refuse("unauthorized", action=action)
    found = checked(ec2)[f"ec2:{action}"]
    assert not found.good
    assert found.message.startswith("You are not authorized")
    assert "--policy" in found.message


def test_a_launch_that_is_not_allowed_is_found_without_one(ec2: FakeEC2) -> None:
    ec2.refuse("unauthorized")
    assert not checked(ec2)[f"ec2:RunInstances with {ec2.ami['x86_64']}"].good


def test_a_wrong_image_and_a_wrong_subnet_are_named(ec2: FakeEC2) -> None:
    found = checked(ec2, ami={"x86_64": ec2.ami["aarch64"]})["image for x86_64"]
    assert (found.good, found.message) == (
        False,
        f"{ec2.ami['aarch64']} is for aarch64; set one for x86_64 in `ami` of the site's table",
    )
    assert "correct `ami`" in checked(ec2, ami={"x86_64": "ami-00000000"})["image for x86_64"].message
    assert "us-east-1: correct `subnets`" in checked(ec2, subnets=["subnet-00000000"])["subnets"].message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"security_groups": ["sg-00000000"]}, "sg-00000000"),
        ({"key_pair": "nobodys"}, "nobodys"),
        ({"instance_profile": "nobodys"}, "nobodys"),
    ],
)
def test_what_else_a_launch_names_is_looked_at(ec2: FakeEC2, values: dict[str, Any], words: str) -> None:
    found = checked(ec2, **values)[f"ec2:RunInstances with {ec2.ami['x86_64']}"]
    assert not found.good
    assert words in found.message


def test_without_credentials_that_alone_is_said(ec2: FakeEC2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**ec2.environment, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    [found] = checks(table(aws_conn_id=""), EC2(table(aws_conn_id="")), US, lambda: None)
    assert not found.good
    assert "Unable to locate credentials; correct the connection" in found.message


def test_a_connection_that_there_is_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HERE", "aws://")
    assert list(account.connection_checks(AIRFLOW, "here")) == []
    [found] = account.connection_checks(AIRFLOW, "nowhere")
    assert (found.good, found.warns) == (True, True)
    assert "there is no connection 'nowhere'" in found.message


def looked_at(ec2: FakeEC2, folder: Path, **values: Any) -> dict[str, Check]:
    """What is found out about the account."""
    config = table(**{"subnets": list(ec2.subnets.values()), "ami": ec2.ami, **values})
    made = EC2(config, lambda service, *_: ec2.make(service))
    return {each.what: each for each in account.checks(EC2Offers(config, made, folder))}


def test_prices_are_counted_and_dated_and_quotas_named(ec2: FakeEC2, tmp_path: Path) -> None:
    found = looked_at(ec2, tmp_path, instance_types=["m5.large", "m5.xlarge"], capacity_type="spot-with-fallback")
    assert found.keys() == {"prices", "quota standard on-demand", "quota standard spot"}
    assert [each for each in found.values() if not each.good or each.warns] == []
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert found["prices"].message.startswith("2 types in us-east-1a, us-east-1b, us-east-1c, from 0.0")
    assert f"(m5.large, spot), with volumes and addresses; AWS Price List of {today}" in found["prices"].message
    assert "burstable types (such as t3.*) are left out" in found["prices"].message
    assert found["quota standard spot"].message.startswith("32 vCPUs can run")


def test_a_limit_of_usd_that_no_machine_keeps_is_bad(ec2: FakeEC2, tmp_path: Path) -> None:
    found = looked_at(ec2, tmp_path, instance_types=["m5.large"], max_usd_per_hour=0.001)["prices"]
    assert not found.good
    assert "max_usd_per_hour = 0.001 is less than the cheapest machine costs" in found.message


def test_a_quota_that_nothing_fits_is_bad_and_one_below_the_table_is_said(ec2: FakeEC2, tmp_path: Path) -> None:
    found = looked_at(ec2, tmp_path, instance_types=["g5.xlarge", "m5.large"], max_vcpus={"standard": 64})
    assert not found["quota g on-demand"].good
    assert "0 vCPUs can run, but the smallest type offered has 4" in found["quota g on-demand"].message
    assert (found["quota standard on-demand"].good, found["quota standard on-demand"].warns) == (True, True)
    assert "max_vcpus = 64 is higher" in found["quota standard on-demand"].message


def test_of_quotas_with_one_family_the_least_counts(ec2: FakeEC2) -> None:
    made = EC2(table(), lambda service, *_: ec2.make(service))
    assert account.quotas(made) == {
        "standard on-demand": 32, "standard spot": 32, "g on-demand": 0, "p spot": 0, "u on-demand": 0,
    }  # fmt: skip


def test_quotas_that_may_not_be_looked_at_are_no_fault(ec2: FakeEC2, tmp_path: Path) -> None:
    ec2.refuse("unauthorized", action="ListServiceQuotas")
    found = looked_at(ec2, tmp_path, instance_types=["m5.large"])["quotas"]
    assert (found.good, found.warns, "servicequotas:ListServiceQuotas is not granted" in found.message) == (
        True,
        True,
        True,
    )


def test_prices_that_aws_does_not_tell_are_said_with_the_date_of_those_that_count(ec2: FakeEC2, tmp_path: Path) -> None:
    ec2.refuse("unauthorized", action="GetProducts")
    found = looked_at(ec2, tmp_path, instance_types=["m5.large"])["prices"]
    assert (found.good, found.warns) == (True, True)
    assert "AWS's prices could not be read" in found.message
    assert bundled().sources[0] in found.message
    nothing = looked_at(ec2, tmp_path, instance_types=["m5.large"], ami={"aarch64": ec2.ami["aarch64"]})["prices"]
    assert (nothing.good, "correct `instance_types`" in nothing.message) == (False, True)


def test_that_ending_is_refused_counts_only_on_a_machine_of_ours(ec2: FakeEC2) -> None:
    ec2.refuse("unauthorized", action="TerminateInstances")
    found = checked(ec2)["ec2:TerminateInstances"]
    assert (found.good, found.warns) == (True, True)
    assert "check SITE --launch" in found.message


def test_that_tags_are_refused_counts_only_on_a_machine_of_ours(ec2: FakeEC2) -> None:
    ec2.refuse("unauthorized", action="CreateTags")
    found = checked(ec2)[TAGS]
    assert (found.good, found.warns) == (True, True)
    assert "cost_tags = false" in found.message
    assert TAGS not in checked(ec2, cost_tags=False)
    [batch] = boot.batches([Order("L1", Launch("t3.micro", Resources(1, 512), 60, ()))])
    config = table(subnets=list(ec2.subnets.values()), ami=ec2.ami)
    marks = [{"Key": each["Key"], "Value": each["Value"]} for each in boot.tags(config, US[0], "cloud", batch)]
    ec2.allow()
    client = ec2.make("ec2")
    launched = client.run_instances(
        ImageId=ec2.ami["x86_64"], InstanceType="t3.micro", MinCount=1, MaxCount=1,
        SubnetId=next(iter(ec2.subnets.values())), ClientToken="L1",
        TagSpecifications=[{"ResourceType": "instance", "Tags": marks}],
    )  # fmt: skip
    [there] = launched["Instances"]
    try:
        assert (checked(ec2)[TAGS].good, checked(ec2)[TAGS].warns) == (True, False)
        ec2.refuse("unauthorized", action="CreateTags")
        refused = checked(ec2)[TAGS]
        assert not refused.good
        assert "--policy" in refused.message
        known = client.describe_instances(InstanceIds=[there["InstanceId"]])["Reservations"][0]["Instances"][0]["Tags"]
        assert not {each["Key"] for each in known} & {cost_tags.TEAM, cost_tags.DAG}, "nothing was changed"
    finally:
        client.terminate_instances(InstanceIds=[there["InstanceId"]])
