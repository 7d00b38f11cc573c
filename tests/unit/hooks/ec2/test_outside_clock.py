"""AWS's clock: bills last as long as by it, and are dated by ours."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.ec2 import boot
from lading.hooks.ec2.bills import EndedInstance
from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.fleet import EC2Fleet
from lading.hooks.ec2.life import End
from lading.scheduling.model.reasons import because
from tests.services.outside_clocks import off
from tests.unit.hooks.ec2.test_launch import US, config

NAME, LIVED = "L" + "a" * 14, 600.0


class Aws:
    """EC2's client, with a clock that is not ours, and a machine that is there for a while.

    :ivar state: the machine's
    """

    def __init__(self, ahead: float) -> None:
        self.ahead, self.state = ahead, "running"
        self.launched_at = self.now() - LIVED

    def now(self) -> float:
        return float(int(time.time())) + self.ahead

    def get_paginator(self, _: str) -> Any:
        return SimpleNamespace(paginate=self.describe_instances)

    def describe_instances(self, **_: Any) -> Any:
        ended = datetime.fromtimestamp(self.now(), timezone.utc)
        instance = {
            "InstanceId": "i-1",
            "InstanceType": "m7i.large",
            "InstanceLifecycle": "spot",
            "Placement": {"AvailabilityZone": "us-east-1a"},
            "State": {"Name": self.state},
            "LaunchTime": datetime.fromtimestamp(self.launched_at, timezone.utc),
            "StateTransitionReason": ""
            if self.state == "running"
            else f"User initiated ({ended:%Y-%m-%d %H:%M:%S} GMT)",
        }
        said = {"HTTPHeaders": {"date": formatdate(self.now(), usegmt=True)}}
        yield {"Reservations": [{"Instances": [instance]}], "ResponseMetadata": said}


@pytest.fixture
def aws(ahead: float, monkeypatch: pytest.MonkeyPatch) -> Aws:
    monkeypatch.setattr(boot, "is_ours", lambda *_: True)
    return Aws(ahead)


def make(aws: Aws, folder: Path) -> EC2Fleet:
    table = config()
    return EC2Fleet("cloud", "cloud", table, EC2(table, lambda *_: aws), [US], "http://api", folder, folder)


@off
def test_what_aws_dates_is_dated_by_our_clock_and_lasts_as_long(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    fleet, lives = make(aws, tmp_path), list[EndedInstance]()
    monkeypatch.setattr(fleet.offers.bills, "add", lives.append)
    fleet.registration.register()
    [machine] = fleet.machines.values()
    machine.priced_at = aws.launched_at + 60
    seen = machine.seen("cloud")
    assert seen.billed_since == pytest.approx(time.time() - LIVED, abs=10)
    assert seen.location.priced_at == pytest.approx(time.time() - LIVED + 60, abs=10)
    aws.state = "terminated"
    fleet.registration.register()
    [event] = [each for each in fleet.event_buffer.unread() if each["event"] == "released"]
    assert event["at"] == pytest.approx(time.time(), abs=10)
    assert event["launched_at"] == pytest.approx(seen.billed_since, abs=0.001)
    [life] = lives
    assert life.launched_at == aws.launched_at, "the price is asked for by AWS's clock"
    assert event["at"] - event["launched_at"] == pytest.approx(life.ended_at - life.launched_at, abs=0.001)


@off
def test_an_end_that_aws_does_not_date_is_billed_up_to_now(aws: Aws, tmp_path: Path, ahead: float) -> None:
    fleet = make(aws, tmp_path)
    fleet.registration.register()
    [machine] = fleet.machines.values()
    fleet.termination.end(machine, End("lost", because("machine_unknown_to_ec2")))
    [event] = [each for each in fleet.event_buffer.unread() if each["event"] == "released"]
    assert event["at"] == pytest.approx(time.time(), abs=10)
    assert event["at"] - event["launched_at"] == pytest.approx(LIVED, abs=60)
