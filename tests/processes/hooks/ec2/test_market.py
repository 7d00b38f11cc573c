"""What machines cost in addition to their own price, against a mock of EC2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.offers import EC2Offers
from lading.hooks.ec2.pace import Shortages
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.services.ec2 import FakeEC2

GIB = 0.08 / 730


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2() as service:
        yield service


def offers(service: FakeEC2, folder: Path, limits: EC2Limits = EC2Limits(), **values: Any) -> EC2Offers:
    table = {"kind": "ec2", "work_dir": "/var/lading", "python": "/usr/bin/python3", "instance_types": ["m5.large"]}
    table |= {"subnets": list(service.subnets.values()), "ami": service.ami, **values}
    config = EC2Config.model_validate(table)
    return EC2Offers(config, EC2(config, lambda name, *_: service.make(name)), folder, limits=limits)


def bought(found: EC2Offers) -> MachineMarket:
    found.round()
    there = found.market(Shortages())
    assert there is not None
    return there


def spot(found: EC2Offers, zone: str) -> float:
    offerings = bought(found).catalogue.types["m5.large"].offerings
    return next(each.usd_per_hour for each in offerings if (each.zone, each.capacity_type) == (zone, "spot"))


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({}, {"volumes": 15 * GIB}),  # those of the image
        (
            {"disk": "100 GiB", "address": "public"},
            {"volumes": 100 * GIB, "public IPv4": 0.005},
        ),
    ],
)
def test_volumes_and_addresses_are_in_the_price_and_have_names(
    service: FakeEC2, tmp_path: Path, values: dict[str, Any], parts: dict[str, float]
) -> None:
    found = offers(service, tmp_path, **values)
    for each in bought(found).catalogue.types["m5.large"].offerings:
        assert each.usd_per_hour == pytest.approx(0.096 + sum(parts.values()))
    assert dict(found.surcharges("x86_64")) == pytest.approx(parts)
    assert found.note is None


def test_an_image_that_is_not_known_is_said(service: FakeEC2, tmp_path: Path) -> None:
    found = offers(service, tmp_path, ami={"x86_64": "ami-00000000"})
    assert bought(found).catalogue.types["m5.large"].offerings[0].usd_per_hour == 0.096
    assert "the cost of volumes is not counted" in str(found.note)


def test_a_subnet_that_there_is_not_is_left_out_and_said(service: FakeEC2, tmp_path: Path) -> None:
    found = offers(service, tmp_path, subnets=["subnet-00000000", *service.subnets.values()])
    zones = {each.zone for each in bought(found).catalogue.types["m5.large"].offerings}
    assert zones == set(service.subnets)
    assert "there is no subnet-00000000 in us-east-1" in str(found.note)


def test_a_spot_machine_costs_what_it_costs_now_and_one_on_demand_what_was_ordered(
    service: FakeEC2, tmp_path: Path
) -> None:
    limits = EC2Limits(spot_age=0.0)  # prices are requested in every round
    found, zone = offers(service, tmp_path, limits, capacity_type="spot-with-fallback"), "us-east-1a"
    before, more = spot(found, zone), 15 * GIB
    size = Resources(2, 7000)
    on_spot = EC2Machine("a", "a", ("m5.large", zone, "spot"), size, "x86_64", before)
    fixed = EC2Machine("b", "b", ("m5.large", zone, "on-demand"), size, "x86_64", 0.09)
    lost = EC2Machine("c", "c", ("m5.large", zone, "on-demand"), size, "x86_64", None)
    service.price("m5.large", 0.05, zone, "spot")
    found.round()
    found.charge([on_spot, fixed, lost])
    assert before == pytest.approx(0.096 * 0.35 + more)
    assert on_spot.usd_per_hour == pytest.approx(0.05 + more)
    assert (fixed.usd_per_hour, lost.usd_per_hour) == (0.09, pytest.approx(0.096 + more))
    assert dict(on_spot.surcharges) == {"volumes": pytest.approx(more)}
    assert on_spot.seen("cloud").location.surcharges == on_spot.surcharges


def test_while_machines_never_answer_one_more_at_a_time_is_enough(service: FakeEC2, tmp_path: Path) -> None:
    found, shortages = offers(service, tmp_path, max_instances=20), Shortages()
    assert bought(found).limits.instances == 20
    for _ in range(3):
        shortages.never_answered(("m5.large", "us-east-1a", "on-demand"), free_text("nothing answers"))
    most = [there.limits.instances for n in (0, 3, 20) if (there := found.market(shortages, n)) is not None]
    assert most == [1, 4, 20]
