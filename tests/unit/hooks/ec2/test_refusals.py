"""What AWS's refusals concern, what it does not end, its clock, credentials, and answers that make no sense."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lading.executors.controller import launched
from lading.hooks.ec2 import boot, client
from lading.hooks.ec2.client import EC2, EC2Error, Instance, Trouble, read
from lading.hooks.ec2.fleet import Fleet
from lading.hooks.ec2.launcher import Launcher
from lading.hooks.ec2.life import End, Phase
from lading.hooks.ec2.member import Member
from lading.hooks.ec2.pace import MOST_UNKNOWN, Shortages
from lading.scheduling.location import Location
from tests.unit.hooks.ec2.test_launch import US, config, orders

KINDS, ZONES, CAPACITY_TYPES = ("m7i.large", "c7i.large"), ("us-east-1a", "us-east-1b"), ("spot", "on-demand")
ALL = [(kind, zone, each) for kind in KINDS for zone in ZONES for each in CAPACITY_TYPES]
TRIED = "m7i.large", "us-east-1a", "spot"


def held(shortages: Shortages) -> str:
    """What of all offerings is held, as one would say it."""
    if shortages.held is not None:
        return "account"
    gone = {each for each in ALL if shortages.missing(each) is not None}
    named = {
        "type": {each for each in ALL if each[0] == TRIED[0]},
        "zone": {each for each in ALL if each[1] == TRIED[1]},
        "capacity type": {each for each in ALL if each[2] == TRIED[2]},
        "offering": {TRIED},
        "nothing": set(),
    }
    return next(name for name, offerings in named.items() if offerings == gone)


@pytest.mark.parametrize(
    ("code", "words", "concern", "remedy"),
    [
        ("InvalidParameterCombination", "The specified instance type is not eligible for Free Tier.", "type", "plan"),
        ("InvalidParameterCombination", "Enhanced networking with the Elastic Network Adapter (ENA) is required for "
         "the 'm7i.large' instance type.", "type", "ami"),
        ("InvalidParameterValue", "The architecture 'arm64' of the specified instance type does not match the "
         "architecture 'x86_64' of the specified AMI.", "type", "ami"),
        ("InsufficientVolumeCapacity", "There is not enough capacity to fulfill your EBS volume request.", "zone", ""),
        ("InsufficientAddressCapacity", "Not enough available addresses.", "zone", ""),
        ("InvalidSubnetID.NotFound", "The subnet ID 'subnet-1' does not exist", "zone", "subnets"),
        ("InsufficientFreeAddressesInSubnet", "The specified subnet does not contain enough free private IP "
         "addresses.", "zone", "subnets"),
        ("InvalidParameterValue", "Not enough free addresses in subnet subnet-1", "zone", "subnets"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided credentials do not have permission to "
         "create the service-linked role for EC2 Spot Instances.", "capacity type", "create-service-linked-role"),
        ("PendingVerification", "Your request for accessing resources in this region is being validated", "account",
         "verifies"),
        ("OptInRequired", "You are not subscribed to this service.", "account", "subscribe"),
        ("UnauthorizedOperation", "... with an explicit deny in a service control policy", "account", "organization"),
        ("UnauthorizedOperation", "... no permissions boundary allows the action", "account", "boundary"),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.", "account", "--policy"),
        ("RequestExpired", "Request has expired.", "account", "expired"),
        ("SomethingNew", "which nobody has seen yet", "offering", ""),
    ],
)  # fmt: skip
def test_a_refusal_holds_what_it_concerns_and_says_the_code_the_words_and_the_remedy(
    code: str, words: str, concern: str, remedy: str
) -> None:
    shortages = Shortages()
    shortages.refused(TRIED, EC2Error(client.meaning(code), code, words))
    assert held(shortages) == concern
    said = str(shortages.held or shortages.missing(TRIED))
    assert f"{code}: {words}" in said
    assert remedy in said


@pytest.mark.parametrize(
    ("reason", "concern"),
    [
        ("Server.InsufficientInstanceCapacity: There was insufficient capacity", "offering"),
        ("Server.InternalError: Internal error on launch", "offering"),
        ("Client.VolumeLimitExceeded: Volume limit exceeded", "account"),
        ("Client.InternalError: Client error on launch", "account"),
        ("Client.UserInitiatedShutdown: User initiated shutdown", "nothing"),
        ("", "nothing"),
    ],
)
def test_a_machine_that_ends_before_it_was_up_holds_what_its_reason_concerns(reason: str, concern: str) -> None:
    shortages = Shortages()
    assert shortages.failed(TRIED, reason) is (concern != "nothing")
    assert held(shortages) == concern
    assert not shortages.is_in_doubt


def test_an_instance_profile_that_was_just_made_is_asked_for_again_and_then_named() -> None:
    shortages, words = Shortages(), "Value (jobs) for parameter iamInstanceProfile.name is invalid. Invalid IAM "
    error = EC2Error(Trouble.PERMANENT, "InvalidParameterValue", f"{words}Instance Profile name")
    for _ in range(MOST_UNKNOWN):
        shortages.refused(TRIED, error)
        assert shortages.held is None
        assert "instance profile" in str(shortages.paused)
    shortages.refused(TRIED, error)
    assert "mend `instance_profile`" in str(shortages.held)


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


def machine(number: int) -> Member:
    id = f"i-{number:08x}"
    found = Instance(id, "m7i.large", "us-east-1a", "running", "on-demand", 0, None, None, {}, "")
    member = Member.found(id, found, 0, None)
    member.describe(found)
    return member


def test_a_protected_machine_is_asked_about_ever_more_rarely_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, now = Fake(["i-00000001"]), [1000.0]
    ec2 = EC2(config(), lambda *_: fake)
    fleet = Fleet("cloud", "cloud", config(), ec2, [US], "http://api", tmp_path, tmp_path)
    for number in range(3):
        member = machine(number)
        member.doom = End(None, "nothing needs it")
        fleet.members[member.name] = member
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(100):
        fleet._terminate()
        now[0] += 0.25
    assert fake.ended == {"i-00000000", "i-00000002"}
    assert fake.asked == 2, "once for all, and once without the protected one"
    assert "i-00000001 cannot be ended" in str(fleet.refused)
    assert "disableApiTermination" in str(fleet.refused)
    fake.protected.clear()
    now[0] += 60.0
    fleet._terminate()
    assert "i-00000001" in fake.ended
    assert fleet.refused is None


SKEWS = [sign * skew for skew in (5, 300, 3600) for sign in (1, -1)]


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.BOOTING, Phase.UP])
def test_the_clock_of_aws_decides_nothing_and_is_on_the_bill(skew: float, phase: Phase) -> None:
    [order] = orders(1)
    [batch] = boot.batches([order])
    known = launched.row("cloud", order, 0.0)

    def seen(by: float) -> tuple[Location, float | None]:
        member = Member.ordered(order, batch, "ours", 60.0, None)
        member.describe(replace(machine(0).instance, launched_at=time.time() + by))  # type: ignore[type-var]
        member.heard_at, member.phase = 1000.0, phase
        there = member.seen("cloud")
        return there.location, launched.news(known, there, 1000.0)["launched_at"]

    (agreeing, _), (location, billed) = seen(0.0), seen(skew)
    assert location == agreeing
    assert location.ready_at == (None if phase is Phase.UP else 1060.0)
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
    assert caught.value.trouble is Trouble.PERMANENT
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


@pytest.mark.parametrize(
    "answer", [{}, None, {"Subnets": [{}]}, {"Subnets": []}, {"Images": [], "InstanceTypes": [{}]}]
)
def test_an_answer_that_makes_no_sense_is_an_error_of_ec2(answer: Any) -> None:
    class Client:
        def __getattr__(self, name: str) -> Any:
            return lambda **_: answer

    ec2 = EC2(config(ami={"x86_64": "/my/image"}), lambda *_: Client())
    for ask in (ec2.zones, lambda: ec2.volumes("ami-1"), lambda: ec2.arch("x.large"), lambda: ec2.image("x86_64")):
        with pytest.raises(EC2Error, match="makes no sense"):
            ask()


def test_a_full_subnet_is_not_asked_type_by_type() -> None:
    asked = []

    class Full(EC2):
        def run(self, parameters: Any) -> list[Instance]:
            asked.append(parameters["InstanceType"])
            raise EC2Error(Trouble.PERMANENT, "InsufficientFreeAddressesInSubnet", "no addresses")

        def zones(self) -> dict[str, str]:
            return {"us-east-1a": "subnet-0a1b2c3d"}

    members: dict[str, Member] = {}
    launcher = Launcher(Full(config()), US, "cloud", members, lambda member, end: None)
    launcher.looked_at = 0.0
    wanted = [each for kind in KINDS for each in orders(1, kind, zone="us-east-1a")]
    batches = boot.batches(wanted)
    for batch in batches:
        members[batch.orders[0].name] = Member.ordered(batch.orders[0], batch, "ours", 60.0, None)
    launcher.order(batches)
    launcher.round()
    assert asked == ["m7i.large"]
