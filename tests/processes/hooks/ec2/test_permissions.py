"""What AWS must allow, and what is said where it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.permissions import DESCRIBED, checks, policy
from lading.hooks.site import Check
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
    return {each.what: each for each in checks(config, made)}


def test_all_is_well_where_all_is_allowed_and_nothing_is_launched(ec2: FakeEC2) -> None:
    found = checked(ec2)
    assert [each for each in found.values() if not each.good] == []
    assert set(DESCRIBED) | {"ec2:TerminateInstances", f"ec2:RunInstances with {ec2.ami['x86_64']}"} <= found.keys()
    assert "us-east-1a" in found["subnets"].words
    assert ec2.ledger() == []


@pytest.mark.parametrize("action", [each.removeprefix("ec2:") for each in (*DESCRIBED, "ec2:TerminateInstances")])
def test_what_is_not_allowed_is_named_with_what_to_do(ec2: FakeEC2, action: str) -> None:
    ec2.refuse("unauthorized", action=action)
    found = checked(ec2)[f"ec2:{action}"]
    assert not found.good
    assert found.words.startswith("You are not authorized")
    assert "--policy" in found.words


def test_a_launch_that_is_not_allowed_is_found_without_one(ec2: FakeEC2) -> None:
    ec2.refuse("unauthorized")
    assert not checked(ec2)[f"ec2:RunInstances with {ec2.ami['x86_64']}"].good


def test_a_wrong_image_and_a_wrong_subnet_are_named(ec2: FakeEC2) -> None:
    found = checked(ec2, ami={"x86_64": ec2.ami["aarch64"]})["image for x86_64"]
    assert (found.good, found.words) == (
        False,
        f"{ec2.ami['aarch64']} is for aarch64; give one for x86_64 in `ami` of the site's table",
    )
    assert "mend `ami`" in checked(ec2, ami={"x86_64": "ami-00000000"})["image for x86_64"].words
    assert "mend `subnets`" in checked(ec2, subnets=["subnet-00000000"])["subnets"].words


def test_the_policy_has_no_more_than_the_table_needs() -> None:
    least = policy(table())
    assert {each["Sid"] for each in least["Statement"]} == {
        "Look", "Launch", "TagWhatIsLaunched", "EndWhatLadingLaunched",
    }  # fmt: skip
    more = policy(table(ami={"x86_64": "/my/image"}, instance_profile="jobs", capacity_type="spot"))
    assert {each["Sid"] for each in more["Statement"]} - {each["Sid"] for each in least["Statement"]} == {
        "Image", "GiveTheRole", "FirstSpotRequestOfTheAccount",
    }  # fmt: skip
    ending = next(each for each in least["Statement"] if each["Action"] == "ec2:TerminateInstances")
    assert ending["Condition"] == {"StringLike": {"aws:ResourceTag/lading:deployment": "*"}}
    assert json.loads(json.dumps(more)) == more
    assert max(len(json.dumps(each)) for each in (least, more)) < 6144  # what IAM takes as a managed policy
