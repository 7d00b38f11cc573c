"""The scope of AWS's refusals, what it does not end, its clock, credentials, and answers that make no sense."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError

from lading.executors.controller import launched
from lading.hooks.ec2 import boot, client
from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error, EC2Instance, read
from lading.hooks.ec2.fleet import EC2Fleet
from lading.hooks.ec2.launcher import Launcher
from lading.hooks.ec2.life import End, LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.pace import Shortages
from lading.hooks.ec2.permissions import subnet_check
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, free_text
from tests.unit.hooks.ec2.test_launch import US, config, orders

KINDS, ZONES, CAPACITY_TYPES = ("m7i.large", "c7i.large"), ("us-east-1a", "us-east-1b"), ("spot", "on-demand")
ALL = [(kind, zone, each) for kind in KINDS for zone in ZONES for each in CAPACITY_TYPES]
TRIED = "m7i.large", "us-east-1a", "spot"
SUBNETS = {"us-east-1a": ("subnet-a1", "subnet-a2"), "us-east-1b": ("subnet-b1",)}


def in_subnets() -> Shortages:
    """Nothing is refused yet, in a zone with two subnets and one with one."""
    shortages = Shortages()
    shortages.zones = SUBNETS
    return shortages


def held(shortages: Shortages) -> str:
    """What of all offerings is held, as one would say it."""
    if shortages.held is not None:
        return "account"
    gone = {each for each in ALL if shortages.shortage_of(each) is not None}
    named = {
        "type": {each for each in ALL if each[0] == TRIED[0]},
        "type in zone": {each for each in ALL if each[:2] == TRIED[:2]},
        "zone": {each for each in ALL if each[1] == TRIED[1]},
        "capacity type": {each for each in ALL if each[2] == TRIED[2]},
        "offering": {TRIED},
        "subnet" if shortages.closed else "nothing": set(),
    }
    return next(name for name, offerings in named.items() if offerings == gone)


def why(shortages: Shortages) -> Reason | None:
    """Why what was tried is not launched now; None: it may be."""
    shortage = shortages.shortage_of(TRIED)
    return shortages.held or (shortage.why if shortage is not None else None)


MINUTE, DAY = 60.0, 86_400.0
NOT_IN_ZONE = (
    "Your requested instance type (m7i.large) is not supported in your requested Availability Zone (us-east-1a). "
    "Please retry your request by not specifying an Availability Zone or choosing us-east-1b, us-east-1c."
)
CONSTRAINED = (
    "The requested Availability Zone is currently constrained and we are no longer accepting new customer requests "
    "for t1/m1/c1/m2/m3 instance types. Please retry your request by not specifying an Availability Zone or choosing "
    "us-east-1e, us-east-1b, us-east-1c."
)
NOT_SUPPORTED = (
    "The requested configuration is currently not supported. Please check the documentation for supported "
    "configurations."
)
NOT_IN_REGION = (
    "Your requested instance type (m1.small) is not supported in this region (eu-west-1). Please retry your request "
    "in one of the following regions: us-east-1."
)
MARKETPLACE = (
    "The instance configuration for this AWS Marketplace product is not supported. Please see the AWS Marketplace "
    "site for more information about supported instance types, regions, and operating systems."
)
NO_OPTIONS = "The hpc6a.48xlarge instance type does not support specifying CpuOptions."
NO_EBS = (
    "EBS-optimized instances are not supported for your requested configuration. Please check the documentation for "
    "supported configurations."
)
NO_CAPACITY = (
    "We currently do not have sufficient m7i.large capacity in the Availability Zone you requested (us-east-1a). Our "
    "system will be working on provisioning additional capacity. You can currently get m7i.large capacity by not "
    "specifying an Availability Zone in your request or choosing us-east-1b."
)
UNFULFILLABLE = (
    "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again."
)
FREE_TIER = (
    "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, run "
    "'describe-instance-types' with the filter 'free-tier-eligible=true'."
)
FREE_IMAGE = (
    "The specified image is not eligible for Free Tier. For a list of Free Tier images, run 'describe-images' with "
    "the filter 'free-tier-eligible=true'."
)
ENA = (
    "Enhanced networking with the Elastic Network Adapter (ENA) is required for the 'm7i.large' instance type. Ensure "
    "that you are using an AMI that is enabled for ENA."
)
UEFI = (
    "The t2.micro instance type does not support an AMI with a boot mode of UEFI. Only instance types built on the "
    "Nitro System support UEFI. Specify an instance type that supports UEFI, and try again."
)
NO_ADDRESSES = "There are not enough free addresses in subnet 'subnet-a1' to satisfy the requested number of instances."
VALIDATED = (
    "Your request for accessing resources in this region is being validated, and you will not be able to launch "
    "additional resources in this region until the validation is complete."
)


@pytest.mark.parametrize(
    ("code", "words", "scope", "remedy"),
    [
        ("InsufficientInstanceCapacity", NO_CAPACITY, "offering", ""),
        ("InsufficientInstanceCapacity", "There is no Spot capacity available that matches your request.", "offering",
         ""),
        ("UnfulfillableCapacity", UNFULFILLABLE, "offering", ""),
        ("Unsupported", NOT_IN_ZONE, "type in zone", ""),
        ("Unsupported", CONSTRAINED, "type in zone", ""),
        ("Unsupported", NOT_SUPPORTED, "offering", "tenancy"),
        ("Unsupported", NOT_IN_REGION, "type", "exclude_types"),
        ("Unsupported", NO_EBS, "type", "exclude_types"),
        ("Unsupported", "which is said nowhere", "offering", ""),
        ("UnsupportedOperation", MARKETPLACE, "type", "Marketplace"),
        ("UnsupportedOperation", NO_OPTIONS, "type", "exclude_types"),
        ("InvalidParameterCombination", "Spot instance requests are not supported for this AMI", "capacity type",
         "capacity_type"),
        ("InvalidParameterCombination", FREE_TIER, "type", "plan"),
        ("InvalidParameterCombination", FREE_IMAGE, "account", "free-tier images"),
        ("InvalidParameterCombination", ENA, "type", "ami"),
        ("InvalidParameterValue", UEFI, "type", "ami"),
        ("InvalidParameterValue", "The architecture 'arm64' of the specified instance type does not match the "
         "architecture 'x86_64' of the specified AMI.", "type", "ami"),
        ("InsufficientVolumeCapacity", "There is not enough capacity to fulfill your EBS volume request.", "zone", ""),
        ("InsufficientAddressCapacity", "Not enough available addresses.", "zone", ""),
        ("InvalidSubnetID.NotFound", "The subnet ID 'subnet-a1' does not exist", "subnet", "subnets"),
        ("InsufficientFreeAddressesInSubnet", NO_ADDRESSES, "subnet", "subnets"),
        ("InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy "
         "the request.", "subnet", "subnets"),
        ("InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes", "subnet", "subnets"),
        ("InvalidParameterValue", "Not enough free addresses in subnet subnet-a1", "subnet", "subnets"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided credentials do not have permission to "
         "create the service-linked role for EC2 Spot Instances.", "capacity type", "create-service-linked-role"),
        ("PendingVerification", VALIDATED, "account", "is verifying"),
        ("OptInRequired", "You are not subscribed to this service.", "account", "subscribe"),
        ("UnauthorizedOperation", "... with an explicit deny in a service control policy", "account", "organization"),
        ("UnauthorizedOperation", "... no permissions boundary allows the action", "account", "boundary"),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.", "account", "--policy"),
        ("RequestExpired", "Request has expired.", "account", "expired"),
        ("VolumeLimitExceeded", "You have exceeded your maximum gp3 storage limit of 50 TiB in this region.",
         "account", "EBS storage"),
        ("MaxIOPSLimitExceeded", "You have exceeded your maximum io2 IOPS limit in this region.", "account", "IOPS"),
        ("SomethingNew", "which nobody has seen yet", "offering", ""),
    ],
)  # fmt: skip
def test_a_refusal_holds_what_it_concerns_and_shows_the_code_the_message_and_the_remedy(
    code: str, words: str, scope: str, remedy: str
) -> None:
    shortages = in_subnets()
    shortages.refused(TRIED, EC2Error(client.meaning(code), code, words), "subnet-a1")
    assert held(shortages) == scope
    said = str(why(shortages) or shortages.closed)
    assert f"{code}: {words}" in said
    assert remedy in said


@pytest.mark.parametrize(("words", "seconds"), [(NOT_IN_ZONE, DAY), (NOT_SUPPORTED, 15 * MINUTE), (NOT_IN_REGION, DAY)])
def test_what_is_not_supported_is_left_alone_for_longer_than_what_there_is_none_of(words: str, seconds: float) -> None:
    shortages, now = Shortages(), time.time()
    shortages.refused(TRIED, EC2Error(client.meaning("Unsupported"), "Unsupported", words))
    assert 0 <= shortages.shortage_of(TRIED).until - now - seconds < 10  # type: ignore[union-attr]


@pytest.mark.parametrize("code", ["VolumeLimitExceeded", "MaxIOPSLimitExceeded"])
def test_an_account_that_may_have_no_more_volumes_launches_nothing_until_a_machine_has_ended(code: str) -> None:
    shortages = Shortages()
    shortages.refused(TRIED, EC2Error(client.meaning(code), code, "full"))
    assert f"{code}: full; raise the quotas for EBS" in str(shortages.held), "and no quota of vCPUs"
    assert shortages.shortage_of(TRIED) is None
    assert shortages.reason is not None
    assert (shortages.reason.code, shortages.reason.meaning.kind) == ("aws_volume_quota", "quota")
    shortages.freed()
    assert (shortages.held, shortages.reason) == (None, None)
    shortages.failed(TRIED, f"Client.{code}: full")
    shortages.refused(TRIED, EC2Error(client.meaning("OptInRequired"), "OptInRequired", "no"))
    shortages.freed()
    assert "OptInRequired" in str(shortages.held), "for which no room helps"
    assert shortages.reason is not None
    assert shortages.reason.code == "aws_subscription"


def test_machines_that_never_answer_are_a_reason_of_their_own() -> None:
    shortages = Shortages()
    while shortages.held is None:
        shortages.never_answered(TRIED, free_text("no route to it"))
    assert shortages.reason is not None
    assert shortages.reason.code == "machines_silent"
    assert "never answered; the last one: no route to it" in str(shortages.reason)


def test_a_zone_is_held_when_all_of_its_subnets_are() -> None:
    shortages = in_subnets()
    for subnet, left in (("subnet-a1", ["subnet-a2"]), ("subnet-a2", [])):
        assert held(shortages) in ("nothing", "subnet")
        error = EC2Error(AWSTrouble.PERMANENT, "InsufficientFreeAddressesInSubnet", f"{subnet} is full")
        shortages.refused(TRIED, error, subnet)
        assert shortages.open_subnets("us-east-1a") == left
    assert held(shortages) == "zone"
    assert "is full" in str(why(shortages))
    assert "subnet-a1: " in str(shortages.closed)
    assert "subnet-a2: " in str(shortages.closed)
    assert shortages.open_subnets(None) == ["subnet-b1"]


@pytest.mark.parametrize(
    ("code", "message", "transition", "reason"),
    [
        ("Server.InternalError", "Client.VolumeLimitExceeded: Volume limit exceeded", "Server.InternalError",
         "Client.VolumeLimitExceeded: Volume limit exceeded"),
        ("Server.InternalError", "Client.InternalError: Client error on launch", "", "Client.InternalError: Client "
         "error on launch"),
        ("Server.SpotInstanceTermination", "The instance was terminated for lack of capacity", "",
         "Server.SpotInstanceTermination: The instance was terminated for lack of capacity"),
        ("Client.UserInitiatedShutdown", "", "User initiated (2026-11-23 12:00:01 GMT)",
         "Client.UserInitiatedShutdown"),
        ("", "", "Server.InternalError: Internal error on launch", "Server.InternalError: Internal error on launch"),
        ("pending", "pending", "", "pending"),
        ("", "", "User initiated (2026-11-23 12:00:01 GMT)", "User initiated (2026-11-23 12:00:01 GMT)"),
        (None, None, "", ""),
    ],
)  # fmt: skip
def test_the_reason_of_an_end_has_its_code_wherever_aws_says_it(
    code: str | None, message: str | None, transition: str, reason: str
) -> None:
    state = {"StateReason": {"Code": code, "Message": message}, "StateTransitionReason": transition}
    [found] = read([{"Instances": [{**DESCRIBED, **state}]}])
    assert found.reason == reason
    [found] = read([{"Instances": [{**DESCRIBED, "StateReason": None, "StateTransitionReason": transition}]}])
    assert found.reason == transition


@pytest.mark.parametrize(
    ("reason", "scope"),
    [
        ("Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request", "offering"),
        ("Server.InternalError: Internal error on launch", "offering"),
        ("Server.InternalError", "offering"),
        ("Server.SpotInstanceTermination: Spot instance termination", "offering"),
        ("Server.SpotInstanceShutdown: Spot instance shutdown", "offering"),
        ("Client.VolumeLimitExceeded: Volume limit exceeded", "account"),
        ("Client.InternalError: Client error on launch", "account"),
        ("Client.InvalidSnapshot.NotFound: The specified snapshot was not found.", "account"),
        ("Client.InvalidParameterCombination: Could not create volume with size 50GiB and iops 32000 from snapshot "
         "'snap-0721118841565684b'", "account"),
        ("Client.UserInitiatedShutdown: User initiated shutdown", "nothing"),
        ("Client.InstanceInitiatedShutdown: Instance initiated shutdown", "nothing"),
        ("Service initiated (2026-08-10 20:37:24 GMT)", "nothing"),
        ("", "nothing"),
    ],
)  # fmt: skip
def test_a_machine_that_ends_before_it_was_up_holds_what_its_reason_concerns(reason: str, scope: str) -> None:
    shortages = Shortages()
    assert shortages.failed(TRIED, reason) is (scope != "nothing")
    assert held(shortages) == scope
    assert not shortages.is_in_doubt


def test_an_instance_profile_that_was_just_made_is_asked_for_again_and_then_named() -> None:
    shortages, words = Shortages(), "Value (jobs) for parameter iamInstanceProfile.name is invalid. Invalid IAM "
    error = EC2Error(AWSTrouble.PERMANENT, "InvalidParameterValue", f"{words}Instance Profile name")
    for _ in range(4):
        shortages.refused(TRIED, error)
        assert shortages.held is None
        assert "instance profile" in str(shortages.paused)
    shortages.refused(TRIED, error)
    assert "correct `instance_profile`" in str(shortages.held)


def refusing(code: str, words: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": words}}, "TerminateInstances")


class Fake:
    """EC2's client, which does not end protected instances, nor any that is asked for together with one."""

    def __init__(self, protected: Sequence[str] = (), names_it: bool = True) -> None:
        self.protected, self.names_it = set(protected), names_it
        self.ended: set[str] = set()
        self.asked = 0

    def terminate_instances(self, InstanceIds: Sequence[str]) -> None:
        self.asked += 1
        for each in InstanceIds:
            if each in self.protected:
                name = f"'{each}' " if self.names_it else ""
                raise refusing("OperationNotPermitted", f"The instance {name}may not be terminated.")
        self.ended |= set(InstanceIds)


@pytest.mark.parametrize("names_it", [True, False])
def test_what_is_protected_keeps_no_other_machine_running(names_it: bool) -> None:
    ids = [f"i-{number:08x}" for number in range(40)]
    fake = Fake(ids[7:9], names_it)
    refused = EC2(config(), lambda *_: fake).terminate(ids)
    assert refused.keys() == set(ids[7:9])
    assert fake.ended == set(ids) - set(ids[7:9])
    assert fake.asked < 20


def machine(number: int) -> EC2Machine:
    id = f"i-{number:08x}"
    found = EC2Instance(id, "m7i.large", "us-east-1a", "running", "on-demand", 0, None, None, {}, "")
    ec2_machine = EC2Machine.adopted(id, found, 0, None)
    ec2_machine.describe(found)
    return ec2_machine


def test_a_protected_machine_is_asked_about_ever_more_rarely_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, now = Fake(["i-00000001"]), [1000.0]
    ec2 = EC2(config(), lambda *_: fake)
    fleet = EC2Fleet("cloud", "cloud", config(), ec2, [US], "http://api", tmp_path, tmp_path)
    for number in range(3):
        ec2_machine = machine(number)
        ec2_machine.termination_reason = End(None, "nothing needs it")
        fleet.machines[ec2_machine.name] = ec2_machine
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(100):
        fleet.termination.terminate()
        now[0] += 0.25
    assert fake.ended == {"i-00000000", "i-00000002"}
    assert fake.asked == 2, "once for all, and once without the protected one"
    assert "i-00000001 cannot be terminated" in str(fleet.termination.refused)
    assert "disableApiTermination" in str(fleet.termination.refused)
    fake.protected.clear()
    now[0] += 60.0
    fleet.termination.terminate()
    assert "i-00000001" in fake.ended
    assert fleet.termination.refused is None


SKEWS = [sign * skew for skew in (5, 300, 3600) for sign in (1, -1)]


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("phase", [LifePhase.PENDING, LifePhase.BOOTING, LifePhase.UP])
def test_the_clock_of_aws_decides_nothing_and_is_on_the_bill(skew: float, phase: LifePhase) -> None:
    [order] = orders(1)
    [batch] = boot.batches([order])
    known = launched.row("cloud", order, 0.0)

    def seen(by: float) -> tuple[Location, float | None]:
        ec2_machine = EC2Machine.ordered(order, batch, "ours", None)
        ec2_machine.describe(replace(machine(0).instance, launched_at=time.time() + by))  # type: ignore[type-var]
        ec2_machine.heard_at, ec2_machine.phase = 1000.0, phase
        there = ec2_machine.seen("cloud")
        return there.location, launched.news(known, there, 1000.0)["launched_at"]

    (agreeing, _), (location, billed) = seen(0.0), seen(skew)
    assert location == agreeing
    assert billed is not None
    assert abs(billed - time.time() - skew) < 60


@pytest.mark.parametrize("code", ["AuthFailure", "ExpiredToken", "RequestExpired", "InvalidAMIID.NotFound"])
def test_credentials_and_images_are_read_again_when_aws_does_not_take_them(code: str) -> None:
    made: list[str] = []

    class Client:
        def __init__(self, service: str) -> None:
            made.append(service)
            self.is_stale = made.count("ec2") == 1

        def get_parameter(self, Name: str) -> Any:
            return {"Parameter": {"Value": f"ami-{made.count('ssm')}"}}

        def run_instances(self, **_: Any) -> Any:
            if self.is_stale:
                raise refusing(code, "no")
            return {"Instances": []}

    ec2 = EC2(config(ami={"x86_64": "/my/image"}), lambda service, *_: Client(service))
    assert ec2.image("x86_64") == ec2.image("x86_64") == "ami-1"
    with pytest.raises(EC2Error) as caught:
        ec2.run({})
    assert caught.value.trouble is AWSTrouble.PERMANENT
    assert ec2.run({}) == []
    assert ec2.image("x86_64") == "ami-2"
    ec2._read_at -= client.SECONDS_UNTIL_READ_AGAIN
    assert ec2.image("x86_64") == "ami-3", "also after a while"


DESCRIBED = {"InstanceId": "i-1", "InstanceType": "m7i.large", "State": {"Name": "running"}}
ODD: list[Any] = [None, "x", 7, [], {"InstanceId": "i-2"}, {**DESCRIBED, "Placement": None}, {**DESCRIBED, "Tags": [7]}]


@pytest.mark.parametrize("odd", [*ODD, {**DESCRIBED, "StateReason": "x"}, {**DESCRIBED, "AmiLaunchIndex": None}])
def test_an_instance_that_makes_no_sense_costs_itself_alone(odd: Any) -> None:
    good = {**DESCRIBED, "LaunchTime": datetime(2026, 1, 1, tzinfo=timezone.utc)}
    assert [each.id for each in read([{"Instances": [odd, good]}])] == ["i-1"]
    assert [each.id for each in read([odd if isinstance(odd, list) else None, {"Instances": [good]}])] == ["i-1"]  # type: ignore[list-item]


@pytest.mark.parametrize("answer", [{}, None, {"Subnets": 7}, {"Images": [], "InstanceTypes": [{}]}])
def test_an_answer_that_makes_no_sense_is_an_error_of_ec2(answer: Any) -> None:
    class Client:
        def __getattr__(self, name: str) -> Any:
            return lambda **_: answer

    ec2 = EC2(config(ami={"x86_64": "/my/image"}), lambda *_: Client())
    for ask in (ec2.zones, lambda: ec2.volumes("ami-1"), lambda: ec2.arch("x.large"), lambda: ec2.image("x86_64")):
        with pytest.raises(EC2Error, match="the answer of AWS is invalid"):
            ask()


AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
NO_ROWS: list[Any] = [None, "x", 7, [], {}]
SPOT: dict[str, Any] = {
    "InstanceType": "m7i.large", "AvailabilityZone": "us-east-1a", "SpotPrice": "0.1", "Timestamp": AT,
}  # fmt: skip
QUOTA: dict[str, Any] = {"QuotaName": "Running On-Demand Standard instances", "Value": 64.0}


class Rows:
    """AWS on paper, which answers each question with the same rows."""

    meta = SimpleNamespace(region_name="us-east-1")

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def get_paginator(self, _: str) -> Any:
        return SimpleNamespace(paginate=lambda **_: [{"SpotPriceHistory": self.rows, "Quotas": self.rows}, {}])

    def describe_subnets(self, **_: Any) -> Any:
        return {"Subnets": self.rows}


@pytest.mark.parametrize(
    ("ask", "good", "odd", "found"),
    [
        (
            lambda ec2: ec2.spot_prices("m7i.large", "us-east-1a", 0.0, 1.0), SPOT,
            [{**SPOT, "SpotPrice": each} for each in ("-1", "nan", "", None, [])] + [{**SPOT, "Timestamp": "now"}],
            [(AT.timestamp(), 0.1)],
        ),
        (
            EC2.quotas, QUOTA,
            [{**QUOTA, "Value": each} for each in (-1.0, math.nan, math.inf, None, [], "many")]
            + [{**QUOTA, "QuotaName": each} for each in (None, "", 7)],
            [("Running On-Demand Standard instances", 64.0)],
        ),
        (
            EC2.zones, {"SubnetId": "subnet-0a1b2c3d", "AvailabilityZone": "us-east-1a"},
            [{"SubnetId": "subnet-0a1b2c3d"}, {"SubnetId": "subnet-0a1b2c3d", "AvailabilityZone": None}],
            {"us-east-1a": ("subnet-0a1b2c3d",)},
        ),
    ],
    ids=["spot prices", "quotas", "subnets"],
)  # fmt: skip
def test_a_row_that_makes_no_sense_costs_itself_alone(
    ask: Callable[[EC2], Any], good: Any, odd: list[Any], found: Any
) -> None:
    assert ask(EC2(config(), lambda *_: Rows([*NO_ROWS, *odd, good, *NO_ROWS]))) == found


class Network:
    """EC2's client with some subnets, which refuses a question for one that there is not by its id."""

    meta = SimpleNamespace(region_name="us-east-1")

    def __init__(self, zone_of: dict[str, str]) -> None:
        self.zone_of = zone_of
        self.asked = 0

    def describe_subnets(self, SubnetIds: Sequence[str] = (), Filters: Sequence[Any] = ()) -> Any:
        self.asked += 1
        if unknown := [each for each in SubnetIds if each not in self.zone_of]:
            words = f"The subnet ID '{unknown[0]}' does not exist"
            raise ClientError({"Error": {"Code": "InvalidSubnetID.NotFound", "Message": words}}, "DescribeSubnets")
        wanted = SubnetIds or next(each["Values"] for each in Filters if each["Name"] == "subnet-id")
        there = [each for each in wanted if each in self.zone_of]
        return {"Subnets": [{"SubnetId": each, "AvailabilityZone": self.zone_of[each]} for each in sorted(there)]}


LISTED = ("subnet-0000000b", "subnet-0000000c", "subnet-0000000a")


def test_a_subnet_that_there_is_not_costs_itself_alone_and_is_named_in_the_check() -> None:
    there = Network({"subnet-0000000a": "us-east-1a", "subnet-0000000b": "us-east-1a"})
    ec2 = EC2(config(subnets=LISTED), lambda *_: there)
    assert ec2.zones() == {"us-east-1a": ("subnet-0000000b", "subnet-0000000a")}, "in the order of the table"
    assert ec2.unknown_subnets() == ["subnet-0000000c"]
    assert there.asked == 1
    check = subnet_check(ec2)
    assert not check.good
    assert "there is no subnet-0000000c in us-east-1: correct `subnets`" in check.message
    assert "subnet-0000000b in us-east-1a, subnet-0000000a in us-east-1a" in check.message
    there.zone_of["subnet-0000000c"] = "us-east-1b"
    ec2._read_at -= client.SECONDS_UNTIL_READ_AGAIN
    assert ec2.unknown_subnets() == [], "they are read again after a while"
    assert subnet_check(ec2).good


def test_a_table_of_which_there_is_no_subnet_is_named() -> None:
    with pytest.raises(EC2Error, match=f"there is no subnet {' or '.join(LISTED)} in us-east-1: correct `subnets`"):
        EC2(config(subnets=LISTED), lambda *_: Network({})).zones()


class Region(EC2):
    """EC2, where some subnets are full and requests may be refused; it counts what is asked."""

    def __init__(self, full: Sequence[str] = (), subnets: Sequence[str] = LISTED) -> None:
        zone_of = {"subnet-0000000a": "us-east-1a", "subnet-0000000b": "us-east-1a", "subnet-0000000c": "us-east-1b"}
        super().__init__(config(subnets=tuple(subnets)), lambda *_: Network(zone_of))
        self.full = set(full)
        self.refusals: list[EC2Error] = []
        self.asked: list[dict[str, Any]] = []
        self.ami = "ami-1"

    def image(self, arch: str) -> str:
        return self.ami

    def run(self, parameters: Any) -> list[EC2Instance]:
        self.asked.append(json.loads(json.dumps(parameters)))
        if self.refusals:
            raise self.refusals.pop(0)
        subnet = boot.subnet_of(parameters)
        if subnet in self.full:
            raise EC2Error(AWSTrouble.PERMANENT, "InsufficientFreeAddressesInSubnet", NO_ADDRESSES)
        zone = next(zone for zone, subnets in self.zones().items() if subnet in subnets)
        found = EC2Instance(
            "i-00000001", parameters["InstanceType"], zone, "pending", "on-demand", 0, None, None, {}, ""
        )
        return [found]

    @property
    def asked_in(self) -> list[str]:
        """The subnets that were asked for, by the last characters of their ids."""
        return [boot.subnet_of(each)[-1] for each in self.asked]


class Launching:
    """A launcher with what it is to launch, and what it has dropped, by their names."""

    def __init__(self, ec2: Region) -> None:
        self.ended: dict[str, str] = {}
        self.launcher = Launcher(ec2, US, "cloud", {}, self._leave)
        self.launcher.looked_at = 0.0
        self.number = 0

    def _leave(self, ec2_machine: EC2Machine, end: End) -> None:
        self.ended[ec2_machine.name] = str(end.reason)
        del self.launcher.machines[ec2_machine.name]

    def order(self, kind: str, zone: str | None = "us-east-1a") -> EC2Machine:
        [order] = orders(1, kind, zone=zone)
        self.number += 1
        [batch] = boot.batches([replace(order, name=f"L{self.number}")])
        ec2_machine = EC2Machine.ordered(batch.orders[0], batch, "ours", None)
        self.launcher.machines[ec2_machine.name] = ec2_machine
        self.launcher.order([batch])
        return ec2_machine


def test_when_a_subnet_is_full_the_next_one_of_its_zone_is_taken_and_then_another_zone() -> None:
    ec2 = Region(full=["subnet-0000000b"])
    site = Launching(ec2)
    first, second = site.order("m7i.large"), site.order("c7i.large")
    site.launcher.round()
    assert ec2.asked_in == ["b", "a"]
    assert "not enough free addresses" in site.ended[first.name]
    assert second.phase is LifePhase.PENDING
    assert "subnet-0000000b: " in str(site.launcher.shortages.closed)
    assert site.launcher.shortages.shortage_of(("m7i.large", "us-east-1a", "on-demand")) is None, "it is ordered anew"
    ec2.full.add("subnet-0000000a")
    third, fourth, fifth = site.order("m7i.large"), site.order("r7i.large"), site.order("m7i.large", "us-east-1b")
    site.launcher.round()
    assert ec2.asked_in == ["b", "a", "a", "c"], "not type by type"
    assert {third.name, fourth.name} < site.ended.keys()
    assert fifth.phase is LifePhase.PENDING


def test_where_no_zone_is_named_any_subnet_may_be_taken() -> None:
    ec2 = Region(full=["subnet-0000000b", "subnet-0000000a"])
    site = Launching(ec2)
    for kind in ("m7i.large", "c7i.large", "r7i.large"):
        last = site.order(kind, None)
        site.launcher.round()
    assert ec2.asked_in == ["b", "a", "c"]
    assert last.phase is LifePhase.PENDING


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def look(self, launcher: Launcher, seconds: float) -> None:
        """Let time pass, ask what there is, and have the next round."""
        self.now += seconds
        launcher.looked_at = self.now
        launcher.round()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


SILENCE = EC2Error(AWSTrouble.SILENCE, "", "AWS does not answer")


def test_what_was_not_answered_is_repeated_by_the_same_bytes_also_when_credentials_expire_meanwhile(
    clock: Clock,
) -> None:
    ec2 = Region()
    ec2.refusals = [SILENCE, EC2Error(client.meaning("RequestExpired"), "RequestExpired", "Request has expired.")]
    site = Launching(ec2)
    ec2_machine = site.order("m7i.large")
    with pytest.raises(EC2Error, match="does not answer"):
        site.launcher.round()
    assert ec2_machine.phase is LifePhase.UNKNOWN
    ec2.ami = "ami-2"
    clock.look(site.launcher, 4.0)
    assert len(ec2.asked) == 2
    assert site.ended == {}, "what the credentials refuse says nothing of the request before"
    assert ec2_machine.phase is LifePhase.UNKNOWN
    assert "RequestExpired" in str(site.launcher.shortages.held)
    clock.look(site.launcher, 20.0)
    assert len(ec2.asked) == 2, "nothing is asked for while launches are held"
    clock.look(site.launcher, 50.0)
    assert [each == ec2.asked[0] for each in ec2.asked] == [True] * 3, "or EC2 would not take the token"
    assert ec2_machine.phase is LifePhase.PENDING
    assert site.launcher.unanswered == {}


@pytest.mark.parametrize("code", ["InvalidAMIID.NotFound", "InvalidSubnetID.NotFound", "VcpuLimitExceeded"])
def test_what_is_refused_when_it_is_repeated_was_not_launched(clock: Clock, code: str) -> None:
    ec2 = Region()
    ec2.refusals = [SILENCE, EC2Error(client.meaning(code), code, "no")]
    site = Launching(ec2)
    ec2_machine = site.order("m7i.large")
    with pytest.raises(EC2Error):
        site.launcher.round()
    clock.look(site.launcher, 4.0)
    assert code in site.ended[ec2_machine.name]
    assert site.launcher.unanswered == {}


def test_what_was_not_asked_for_yet_is_not_taken_for_launched(clock: Clock) -> None:
    """The image of one architecture cannot be looked up; the other machine is launched all the same."""

    class Ssm(Region):
        def image(self, arch: str) -> str:
            if arch == "aarch64" and self.ami == "ami-1":
                raise SILENCE
            return self.ami

    ec2 = Ssm()
    site = Launching(ec2)
    arm, other = site.order("m7g.large"), site.order("m7i.large")
    with pytest.raises(EC2Error):
        site.launcher.round()
    assert ec2.asked == []
    assert arm.phase is LifePhase.ORDERED, "it can be withdrawn"
    with pytest.raises(EC2Error):
        clock.look(site.launcher, 1.0)
    assert other.phase is LifePhase.PENDING
    ec2.ami = "ami-2"
    clock.look(site.launcher, 1.0)
    assert arm.phase is LifePhase.PENDING


UNHEARD = ["InvalidBlockDeviceMapping", "TagPolicyViolation", "SomethingThatAWSHasAddedSince"]


@pytest.mark.parametrize("code", UNHEARD)
def test_an_unknown_code_from_three_offerings_holds_the_account_for_ten_minutes(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Region):
        def run(self, parameters: Any) -> list[EC2Instance]:
            self.asked.append(parameters)
            raise EC2Error(client.meaning(code), code, "what AWS says")

    monkeypatch.setattr("lading.hooks.ec2.launcher.REQUESTS", 1000.0)
    ec2, clock = Refusing(), [1e9]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    site = Launching(ec2)
    kinds = [f"{family}.{size}" for family in ("c7i", "m7i", "r7i") for size in ("large", "xlarge", "2xlarge")]
    for seconds, asked in ((0, 3), (599, 3), (601, 4), (1200, 4), (1202, 5)):
        clock[0] = 1e9 + seconds
        ordered = [site.order(kind) for kind in kinds]
        site.launcher.round()
        assert len(ec2.asked) == asked, seconds
        assert all(f"{code}: what AWS says" in site.ended[each.name] for each in ordered)
        assert f"{code}: what AWS says" in str(site.launcher.shortages.held)


def test_unknown_codes_hold_the_account_only_where_they_are_the_same_and_nothing_is_launched_meanwhile() -> None:
    def refuse(code: str, number: int) -> None:
        shortages.refused(ALL[number], EC2Error(client.meaning(code), code, "no"))

    shortages = Shortages()
    for number, code in enumerate(UNHEARD):
        refuse(code, number)
    for _ in range(5):
        refuse(UNHEARD[0], 0)
    refuse(UNHEARD[0], 1)
    assert shortages.held is None, "each code from two offerings at most"
    shortages.launched(ALL[5])
    refuse(UNHEARD[0], 2)
    assert shortages.held is None, "the account launches other offerings"
    refuse(UNHEARD[0], 3)
    refuse(UNHEARD[0], 4)
    assert shortages.held is not None
    shortages.launched(ALL[5])
    assert shortages.held is None


@pytest.mark.parametrize("code", ["IdempotentInstanceTerminated", "IdempotentParameterMismatch"])
def test_a_token_that_is_spent_holds_nothing(code: str) -> None:
    shortages = Shortages()
    assert f"{code}: no" in str(shortages.refused(TRIED, EC2Error(client.meaning(code), code, "no")))
    assert held(shortages) == "nothing"


@pytest.mark.parametrize(
    "error",
    [
        exceptions.EndpointConnectionError(endpoint_url="https://ec2"),
        exceptions.ConnectTimeoutError(endpoint_url="https://ec2"),
        exceptions.SSLError(endpoint_url="https://ec2", error="cut"),
        exceptions.ReadTimeoutError(endpoint_url="https://ec2"),
        exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ],
)
def test_a_connection_that_fails_is_no_refusal(error: Exception) -> None:
    """A launch may have worked whose answer was cut, and nothing is held for an outage of the network."""

    class Client:
        def run_instances(self, **_: Any) -> Any:
            raise error

    with pytest.raises(EC2Error) as caught:
        EC2(config(), lambda *_: Client()).run({})
    assert caught.value.trouble is AWSTrouble.SILENCE


@pytest.mark.parametrize("odd", [{"InstanceId": "i-2"}, None])
def test_what_cannot_be_read_is_not_missed(odd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[Any] = []

    class Client:
        def get_paginator(self, _: str) -> Any:
            return SimpleNamespace(paginate=lambda **_: pages)

    ec2, now = EC2(config(), lambda *_: Client()), [1000.0]
    fleet = EC2Fleet("cloud", "cloud", config(), ec2, [US], "http://api", tmp_path, tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ec2_machine = machine(1)
    ec2_machine.is_described, ec2_machine.phase, ec2_machine.since = True, LifePhase.UP, now[0]
    fleet.machines[ec2_machine.name] = ec2_machine

    def described(page: dict[str, Any]) -> bool:
        pages[:] = [{"ResponseMetadata": {}, **page}]
        for _ in range(3):
            now[0] += 100.0
            fleet.registration.register()
        return ec2_machine.name in fleet.machines

    assert described({"Reservations": [{"Instances": [odd]}]})
    answers = SimpleNamespace(silence=lambda now: 0.0)
    ec2_machine.has_answered, ec2_machine.connection = True, answers  # type: ignore[assignment]
    assert described({"Reservations": []}), "EC2 says so, but the machine answers"
    ec2_machine.connection = None
    assert not described({"Reservations": []})
