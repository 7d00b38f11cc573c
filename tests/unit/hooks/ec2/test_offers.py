"""What a site of EC2 could ever launch, known without asking AWS."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from lading.hooks.ec2 import boot
from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error, read
from lading.hooks.ec2.identity import Identity
from lading.hooks.ec2.life import LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.offers import HOURS_PER_MONTH, LARGEST_VOLUME, EC2Offers, kept_roots, launchable
from lading.hooks.ec2.pace import Shortages
from lading.hooks.ec2.reach import Connector
from lading.hooks.ec2.site import EC2Site
from lading.hooks.site import ObservedLocation, Order
from lading.scheduling.matching.routes import refusal, route
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import valid_types
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch, recalls
from tests.unit.hooks.ec2.test_launch import config


def cloud(**options: Any) -> SiteView:
    return SiteView(name="cloud", possible=launchable(config(**options), {}))


def waiting(**options: Any) -> WaitingJob:
    return WaitingJob(**{"name": "j", "resources": Resources(1, 1024), **options})


def test_each_type_with_an_image_as_jobs_have_it() -> None:
    found = launchable(config(instance_types=("m7i.*large", "m7g.large"), capacity_type="spot-with-fallback"), {})
    assert {each.arch for each in found} == {"x86_64"}
    assert len({each.name for each in found}) == len(found)
    large = [each for each in found if each.instance_type == "m7i.large"]
    assert [each.capacity_type for each in large] == ["spot", "on-demand"]
    assert {each.capacity for each in large} == {Resources(2, 8192 - 512, LARGEST_VOLUME)}
    [sized] = launchable(config(instance_types=("m7i.large",), disk="50 GiB", reserve_memory="1 GiB"), {})
    assert sized.capacity == Resources(2, 7168, 50 * 1024)


def test_what_no_type_can_hold_is_refused_and_what_one_can_is_not() -> None:
    site = cloud(instance_types=("m7i.*",))
    assert site.may_run(PlannedJob("j", Resources(192, 700_000)))
    words = str(refusal(waiting(resources=Resources(193, 1024)), [site]))
    assert "more than any site can ever give" in words
    assert "m7i.48xlarge" in words
    assert site.may_run(PlannedJob("j", Resources(1, 1024, disk=10_000))), "the image may have that much"


def test_a_target_is_a_pattern_of_types() -> None:
    site = cloud(instance_types=("m7i.large", "c7i.large"))
    [stop] = route(waiting(targets='[["cloud/c7i.*"], []]'), [site])
    assert dict(stop.changes) == {"types": {"c7i.large"}}
    assert route(waiting(targets='[["cloud/r7i.*"], []]'), [site]) == ()


@pytest.mark.parametrize(
    ("targets", "types"),
    [
        ('[["cloud/c7i.*", "lab"], []]', {"c7i.large"}),
        ('[["cloud/c7i.*", "cloud/m7i.*"], []]', {"c7i.large", "m7i.large"}),
        ('[["cloud/c7i.*", "cloud"], []]', None),
        ('[["lab"], []]', None),
        (None, None),
    ],
)
def test_what_was_given_a_machine_and_has_not_begun_is_still_bound_to_its_target(
    targets: str | None, types: set[str] | None
) -> None:
    site = cloud(instance_types=("m7i.large", "c7i.large", "r7i.large"))
    assert site.need(waiting(targets=targets)).types == types
    one = frozenset({"m7i.large"})
    assert site.need(waiting(targets=targets, types=one)).types == one, "a stop has said it already"


def test_a_job_of_a_target_does_not_come_back_for_a_machine_of_another_type() -> None:
    site = cloud(instance_types=("m7i.large", "c7i.large"))
    job, size = waiting(targets='[["cloud/c7i.*"], []]'), Resources(2, 7000)
    busy = Location("busy", size, used=size, instance_type="c7i.large")
    idle = Location("idle", size, instance_type="m7i.large")
    for need, back in ((site.need(job), {}), (job, {"busy": ["j"]})):
        assert recalls([busy.given([need]), idle], frozenset({"j"}), now=0.0) == back


@pytest.mark.parametrize("asked", ["m7i.largee", "x" * 10_000, ""])
def test_of_very_many_types_the_closest_are_named(asked: str) -> None:
    words = valid_types(asked, bundled().types.keys())
    assert len(words) < 300
    assert f"and {len(bundled().types) - 5} more" in words
    assert asked != "m7i.largee" or "m7i.large," in words


def test_a_machine_has_the_features_of_its_type(tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text(
        "instance_type,vcpus,memory_gib,arch,gpus,gpu_name,local_storage_gb,usd_per_hour\n"
        "mine.large,4,16,x86_64,1,Own A1,0,1\n"
    )
    offers = EC2Offers(config(prices=str(table)), EC2(config()), tmp_path)
    for kind, feature in (("g6.xlarge", "NVIDIA L4"), ("mine.large", "Own A1")):
        [batch] = boot.batches([Order("L1", Launch(kind, Resources(4, 16_000, gpus=1), 60, ()))])
        ec2_machine = EC2Machine.ordered(batch.orders[0], batch, "ours", offers.specified(kind))
        job = PlannedJob("j", Resources(1, 1024, gpus=1), features=frozenset({feature}))
        assert ec2_machine.seen("cloud").location.suits(job), "or what was launched for a job would never get it"


def test_jobs_have_the_root_volume_and_instance_storage_only_where_the_table_says_that_it_is_used() -> None:
    def disks(**options: Any) -> dict[str, int]:
        found = launchable(config(instance_types=("m5.large", "m5d.large"), **options), {"x86_64": 8192})
        return {str(each.instance_type): each.capacity.disk for each in found}

    assert disks() == {"m5.large": 8192, "m5d.large": 8192}, "the image is known"
    assert disks(disk="50 GiB") == {"m5.large": 51_200, "m5d.large": 51_200}
    assert disks(scratch="/mnt/scratch") == {"m5.large": 8192, "m5d.large": 71_525}


def test_a_job_that_asks_for_more_disk_than_the_image_has_is_refused_at_once() -> None:
    site = SiteView(name="cloud", possible=launchable(config(instance_types=("m7i.*",)), {"x86_64": 8192}))
    assert site.may_run(PlannedJob("j", Resources(1, 1024, disk=8192)))
    assert "more than any site can ever give" in str(refusal(waiting(resources=Resources(1, 1024, disk=8193)), [site]))


class Aws:
    """EC2 on paper: a subnet and an image; it says no prices."""

    meta = SimpleNamespace(region_name="us-east-1")

    def __init__(self, root: str = "/dev/sda1") -> None:
        self.root = root

    def describe_subnets(self, **_: Any) -> Any:
        return {"Subnets": [{"SubnetId": "subnet-0a1b2c3d", "AvailabilityZone": "us-east-1a"}]}

    def describe_images(self, **_: Any) -> Any:
        volumes = [
            {"DeviceName": self.root, "Ebs": {"VolumeSize": 8}},
            {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 2}},
        ]
        return {"Images": [{"RootDeviceName": self.root, "BlockDeviceMappings": volumes}]}

    def get_paginator(self, _: str) -> Any:
        raise OSError("no route to host")


def test_what_the_image_has_is_known_before_the_first_boot_and_to_later_processes(tmp_path: Path) -> None:
    table = config(instance_types=("m7i.large",))
    offers = EC2Offers(table, EC2(table, lambda *_: Aws()), tmp_path)
    offers.round()
    assert offers.catalogue is not None
    assert offers.catalogue.types["m7i.large"].capacity.disk == 8192, "or no job that asks for disk would ever run"
    assert kept_roots(tmp_path, table) == {"x86_64": 8192}
    assert kept_roots(tmp_path, config(ami={"x86_64": "ami-ffffffff"})) == {}
    site = EC2Site("cloud", table, tmp_path)
    assert {each.capacity.disk for each in site.potential()} == {8192}


class Renewed(Aws):
    """The parameter of SSM names another image by now, which has a larger root volume."""

    def __init__(self) -> None:
        super().__init__()
        self.image = "ami-1"
        self.gib = 8
        self.away = False

    def get_parameter(self, Name: str) -> Any:
        if self.away:
            raise EndpointConnectionError(endpoint_url="https://ssm")
        return {"Parameter": {"Value": self.image}}

    def describe_images(self, ImageIds: list[str]) -> Any:
        volume = {"DeviceName": self.root, "Ebs": {"VolumeSize": self.gib}}
        return {"Images": [{"RootDeviceName": self.root, "BlockDeviceMappings": [volume]}]}


def test_what_is_known_of_an_image_follows_the_parameter_that_names_it(tmp_path: Path) -> None:
    table = config(instance_types=("m7i.large",), ami={"x86_64": "/my/image"})
    aws = Renewed()
    ec2 = EC2(table, lambda *_: aws)
    offers = EC2Offers(table, ec2, tmp_path)

    def known() -> tuple[Any, ...]:
        offers.round()
        market = offers.market(Shortages())
        assert market is not None
        disk, volumes = market.catalogue.types["m7i.large"].capacity.disk, dict(offers.surcharges("x86_64"))["volumes"]
        return market.images["x86_64"], disk, round(volumes * HOURS_PER_MONTH, 9), kept_roots(tmp_path, table)["x86_64"]

    assert known() == ("ami-1", 8192, 0.64, 8192)
    aws.image, aws.gib = "ami-2", 16
    assert known() == ("ami-1", 8192, 0.64, 8192), "it is not asked for in each round"
    ec2.read_again()
    assert known() == ("ami-2", 16_384, 1.28, 16_384), "or jobs would count on the disk and the driver of another image"
    ec2.read_again()
    aws.away = True
    assert known() == ("ami-2", 16_384, 1.28, 16_384)
    assert "the image for x86_64 is unknown" in str(offers.note)
    aws.away = False
    known()
    assert "the image" not in str(offers.note)


def test_a_machine_says_from_which_image_it_has_booted() -> None:
    described = {"InstanceId": "i-00000001", "InstanceType": "m7i.large", "State": {"Name": "running"}}
    [found] = read([{"Instances": [{**described, "ImageId": "ami-1"}]}])
    ec2_machine = EC2Machine.adopted("L1", found, 512, None)
    ec2_machine.describe(found)
    ec2_machine.phase = LifePhase.UP
    ec2_machine.connection = SimpleNamespace(seen=lambda _: ObservedLocation(Location("L1", Resources(2, 7000))))  # type: ignore[assignment]
    assert ec2_machine.seen("cloud").image == "ami-1"


def test_a_subnet_that_there_is_not_stops_neither_prices_nor_launches_and_is_in_the_note(tmp_path: Path) -> None:
    table = config(instance_types=("m7i.large",), subnets=("subnet-0000000f", "subnet-0a1b2c3d"))
    offers = EC2Offers(table, EC2(table, lambda *_: Aws()), tmp_path)
    offers.round()
    assert offers.catalogue is not None
    assert {each.zone for each in offers.catalogue.types["m7i.large"].offerings} == {"us-east-1a"}
    assert "there is no subnet-0000000f in us-east-1, so nothing is launched there" in str(offers.note)


def test_a_full_subnet_closes_its_zone_for_planning_only_when_no_other_is_there(tmp_path: Path) -> None:
    table = config(instance_types=("m7i.large",))
    offers, shortages = EC2Offers(table, EC2(table, lambda *_: Aws()), tmp_path), Shortages()
    offers.round()
    shortages.zones = {"us-east-1a": ("subnet-1", "subnet-2")}
    error = EC2Error(AWSTrouble.PERMANENT, "InsufficientFreeAddressesInSubnet", "full")
    for subnet, is_open in (("subnet-1", True), ("subnet-2", False)):
        shortages.refused(("m7i.large", "us-east-1a", "on-demand"), error, subnet)
        market = offers.market(shortages)
        assert market is not None
        [offering] = market.catalogue.types["m7i.large"].offerings
        assert (offering.unavailable_until is None) is is_open
        why = offering.unavailable_because
        assert why is None if is_open else why == because("aws_subnet_full", error=error.code, text="full")


def test_disk_changes_the_root_volume_of_the_image_whatever_that_is_called() -> None:
    table = config(disk="50 GiB")
    assert EC2(table, lambda *_: Aws()).volumes("ami-1") == (50.0, 52.0)


def test_what_an_image_has_is_measured_anew_where_what_it_boots_with_has_changed() -> None:
    assert boot.mark(config(), "ami-1") == "ami-1"
    marks = {boot.mark(config(boot_script=text), "ami-1") for text in ("", "a", "b")}
    assert len(marks) == 3
    assert all(each.partition(" ")[0] == "ami-1" for each in marks)


def test_a_gpu_that_is_not_supported_is_named() -> None:
    words = str(refusal(waiting(resources=Resources(1, 1024, gpus=1)), [cloud(instance_types=("g4ad.*",))]))
    assert "(its AMD Radeon Pro V520 is not supported: only NVIDIA GPUs are)" in words


def test_a_burstable_machine_has_its_baseline_whatever_it_shows_and_is_launched_with_standard_credits(
    tmp_path: Path,
) -> None:
    table = config(instance_types=("t3.*",), user="jobs")
    [large] = [each for each in launchable(table, {}) if each.instance_type == "t3.large"]
    assert large.capacity.cpus == 0.6
    [batch] = boot.batches([Order("L1", Launch("t3.large", large.capacity, 60, ()))])
    us = Identity.from_secret("ours")
    asked = boot.request(table, us, "cloud", batch, "ami-1", "subnet-1", "")
    assert asked["CreditSpecification"] == {"CpuCredits": "standard"}
    assert asked["NetworkInterfaces"][0]["AssociatePublicIpAddress"] is False
    [other] = boot.batches([Order("L2", Launch("m7i.large", large.capacity, 60, ()))])
    assert "CreditSpecification" not in boot.request(table, us, "cloud", other, "ami-1", "subnet-1", "")
    ec2_machine = EC2Machine.ordered(batch.orders[0], batch, us.deployment, None)
    connection = Connector("cloud", table, (us,), "http://127.0.0.1:1", tmp_path, tmp_path).connect(
        ec2_machine, "127.0.0.1"
    )
    assert connection.machine.host.cpus == 0.6, "what its node agent is given"
