"""The fake EC2 itself: what it does that moto does not, for what is proved against it is worth no more than this."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.prices import Prices
from lading.scheduling.model.catalogue import bundled
from tests.services.ec2 import FakeEC2
from tests.services.ec2_ledger import IMAGE_GIB, USD_PER_GIB
from tests.services.processes import living, wait_until
from tests.unit.hooks.ec2.test_launch import config

ZONE = "us-east-1b"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=0.6) as service:
        yield service


@pytest.fixture
def ec2(service: FakeEC2) -> Iterator[FakeEC2]:
    yield service
    service.allow()
    if there := service.living():
        service.client.terminate_instances(InstanceIds=there)
    assert service.living() == []


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    return folder


def launch(ec2: FakeEC2, type: str = "m5.large", zone: str = ZONE, **more: Any) -> list[str]:
    request = {"ImageId": ec2.ami["x86_64"], "InstanceType": type, "MinCount": 1, "MaxCount": 1, **more}
    reply = ec2.client.run_instances(SubnetId=ec2.subnets[zone], **request)
    return [each["InstanceId"] for each in reply["Instances"]]


def described(ec2: FakeEC2, *names: str) -> dict[str, dict[str, Any]]:
    reply = ec2.client.describe_instances(**({"InstanceIds": list(names)} if names else {}))
    return {each["InstanceId"]: each for found in reply["Reservations"] for each in found["Instances"]}


def code(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    response = error.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def user_data(keys: Path) -> str:
    private = "".join(f"    {line}\n" for line in (keys / "host").read_text().splitlines())
    public = (keys / "user.pub").read_text().strip()
    return f"#cloud-config\nssh_keys:\n  ed25519_private: |\n{private}ssh_authorized_keys:\n  - {public}\n"


def ssh(ec2: FakeEC2, name: str, keys: Path, *command: str) -> list[str]:
    address = described(ec2, name)[name]["PrivateIpAddress"]
    known = keys / f"known_{name}"
    known.write_text(f"[{address}]:{ec2.ssh_port} {(keys / 'host.pub').read_text()}")
    options = [f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=none", "BatchMode=yes", "IdentitiesOnly=yes"]
    line = ["ssh", "-F", "none", "-i", str(keys / "user"), "-p", str(ec2.ssh_port)]
    return [*line, *(f"-o{each}" for each in options), f"{ec2.user}@{address}", *command]


def said(ec2: FakeEC2, name: str, keys: Path, *command: str) -> str:
    return subprocess.run(ssh(ec2, name, keys, *command), capture_output=True, text=True, timeout=60).stdout.strip()


def is_up(ec2: FakeEC2, name: str, keys: Path) -> bool:
    return said(ec2, name, keys, "echo up") == "up"


def test_an_instance_boots_with_the_keys_of_its_user_data_and_dies_with_its_jobs(ec2: FakeEC2, keys: Path) -> None:
    boot_seconds, ec2.boot_seconds = ec2.boot_seconds, 3600.0
    request = {"ImageId": ec2.ami["x86_64"], "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1}
    answer = ec2.client.run_instances(SubnetId=ec2.subnets[ZONE], UserData=user_data(keys), **request)
    [instance] = answer["Instances"]
    name = instance["InstanceId"]
    assert instance["State"]["Name"] == "pending"  # that it says itself: it runs before sshd answers
    assert not is_up(ec2, name, keys)
    ec2.boot_seconds = boot_seconds
    assert wait_until(lambda: is_up(ec2, name, keys), 20)
    assert described(ec2, name)[name]["State"]["Name"] == "running"
    mark = str(uuid.uuid4().int % 10**8 + 10**8)  # as seconds it is found among all processes
    said(ec2, name, keys, f"setsid -f sleep {mark} </dev/null >/dev/null 2>&1; true")
    assert any(f"sleep {mark}" in each.command for each in living().values())
    assert said(ec2, name, keys, "whoami") == ec2.user != "root"
    ec2.client.terminate_instances(InstanceIds=[name])
    assert not any(f"sleep {mark}" in each.command for each in living().values())
    assert not is_up(ec2, name, keys)


def test_each_instance_is_a_machine_of_its_own(ec2: FakeEC2, keys: Path) -> None:
    ec2.shrink("m5.xlarge", 12_000)
    names = [*launch(ec2, UserData=user_data(keys)), *launch(ec2, "m5.xlarge", UserData=user_data(keys))]
    assert wait_until(lambda: all(is_up(ec2, name, keys) for name in names), 20)
    look = "hostname; cat /proc/sys/kernel/random/boot_id; grep MemTotal /proc/meminfo; ls -A; touch mine; echo $PATH"
    small, large = (said(ec2, name, keys, look).splitlines() for name in names)
    assert small[0] != large[0]
    assert small[1] != large[1]
    specified = bundled().types["m5.large"].capacity.memory
    assert 0.9 * specified < int(small[2].split()[1]) / 1024 < specified
    assert int(large[2].split()[1]) == 12_000 * 1024
    assert "mine" not in large
    said(ec2, names[0], keys, "sudo shutdown -h now")
    assert wait_until(lambda: described(ec2, names[0])[names[0]]["State"]["Name"] == "stopped", 20)
    assert ec2.living() == [names[1]]


def test_what_switches_itself_off_is_terminated_where_it_was_launched_so(ec2: FakeEC2, keys: Path) -> None:
    [name] = launch(ec2, UserData=user_data(keys), InstanceInitiatedShutdownBehavior="terminate")
    assert wait_until(lambda: is_up(ec2, name, keys), 20)
    said(ec2, name, keys, "sudo -n shutdown -h now")
    assert wait_until(lambda: described(ec2, name)[name]["State"]["Name"] == "terminated", 20)


def test_as_many_are_launched_as_there_are_between_the_least_and_the_most(ec2: FakeEC2) -> None:
    assert len(launch(ec2, MaxCount=4)) == 4
    ec2.offer(2, type="c5.large", zone=ZONE)
    with pytest.raises(ClientError) as error:
        launch(ec2, "c5.large", MinCount=3, MaxCount=4)
    assert code(error) == ("InsufficientInstanceCapacity", 500)
    assert len(launch(ec2, "c5.large", MaxCount=4)) == 2
    with pytest.raises(ClientError):
        launch(ec2, "c5.large")
    assert len(launch(ec2, "c5.large", zone="us-east-1a")) == 1


def test_a_token_launches_once(ec2: FakeEC2) -> None:
    first = launch(ec2, ClientToken="once", MaxCount=2)
    assert launch(ec2, ClientToken="once", MaxCount=2) == first
    assert len(described(ec2)) >= 2
    assert len(ec2.living()) == 2
    with pytest.raises(ClientError) as error:
        launch(ec2, "m5.xlarge", ClientToken="once", MaxCount=2)
    assert code(error) == ("IdempotentParameterMismatch", 400)
    ec2.client.terminate_instances(InstanceIds=first)
    with pytest.raises(ClientError) as error:
        launch(ec2, ClientToken="once", MaxCount=2)
    assert code(error) == ("IdempotentInstanceTerminated", 400)


def test_an_answer_that_is_lost_has_launched_all_the_same(ec2: FakeEC2) -> None:
    ec2.refuse("lost", times=1)
    with pytest.raises(ConnectionClosedError):
        launch(ec2, ClientToken="lost")
    [name] = ec2.living()
    assert launch(ec2, ClientToken="lost") == [name]


def test_a_new_instance_is_not_described_at_once(ec2: FakeEC2) -> None:
    [before] = launch(ec2)
    ec2.hide(8)
    [name] = launch(ec2)
    assert before in described(ec2)
    assert name not in described(ec2)
    with pytest.raises(ClientError) as error:
        described(ec2, name)
    assert code(error) == ("InvalidInstanceID.NotFound", 400)
    assert wait_until(lambda: name in described(ec2), 30)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("ice", ("InsufficientInstanceCapacity", 500)),
        ("quota", ("VcpuLimitExceeded", 400)),
        ("throttle", ("RequestLimitExceeded", 503)),
        ("unauthorized", ("UnauthorizedOperation", 403)),
        ("unsupported", ("Unsupported", 400)),
    ],
)
def test_what_is_refused_is_refused_there_and_so_often(ec2: FakeEC2, what: str, expected: tuple[str, int]) -> None:
    ec2.refuse(what, type="m5.*", zone=ZONE, capacity_type="on-demand", times=1)
    assert launch(ec2, "c5.large")
    assert launch(ec2, zone="us-east-1a")
    assert launch(ec2, InstanceMarketOptions={"MarketType": "spot"})
    with pytest.raises(ClientError) as error:
        launch(ec2)
    assert code(error) == expected
    assert launch(ec2)


def test_a_quota_counts_the_vcpus_of_a_family_that_run(ec2: FakeEC2) -> None:
    ec2.quota(6)
    assert len(launch(ec2, MaxCount=5)) == 3  # of two vCPUs each
    with pytest.raises(ClientError) as error:
        launch(ec2, "c5.large")
    assert code(error) == ("VcpuLimitExceeded", 400)
    assert launch(ec2, "g4dn.xlarge")
    assert launch(ec2, InstanceMarketOptions={"MarketType": "spot"})


def test_a_trial_says_what_is_permitted(ec2: FakeEC2) -> None:
    with pytest.raises(ClientError) as error:
        launch(ec2, DryRun=True)
    assert code(error)[0] == "DryRunOperation"
    ec2.refuse("unauthorized")
    with pytest.raises(ClientError) as error:
        launch(ec2, DryRun=True)
    assert code(error)[0] == "UnauthorizedOperation"
    assert ec2.living() == []


def test_an_image_and_a_type_that_do_not_exist_are_refused(ec2: FakeEC2) -> None:
    with pytest.raises(ClientError) as error:
        launch(ec2, ImageId="ami-00000000000000000")
    assert code(error)[0] == "InvalidAMIID.NotFound"
    with pytest.raises(ClientError) as error:
        launch(ec2, "m5.huge")
    assert code(error)[0] == "InvalidInstanceType.NotFound"


def metadata(ec2: FakeEC2, name: str, path: str, token: str = "") -> str:
    request = urllib.request.Request(f"{ec2.endpoint}/imds/{name}/{path}")
    if token:
        request.add_header("X-aws-ec2-metadata-token", token)
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(response.read().decode())


def imds_token(ec2: FakeEC2, name: str) -> str:
    url = f"{ec2.endpoint}/imds/{name}/latest/api/token"
    request = urllib.request.Request(url, headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(response.read().decode())


def test_a_reclaim_is_announced_to_holders_of_a_token(ec2: FakeEC2, keys: Path) -> None:
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    [name] = launch(ec2, UserData=user_data(keys), **spot)
    assert described(ec2, name)[name]["InstanceLifecycle"] == "spot"
    assert wait_until(lambda: is_up(ec2, name, keys), 20)
    place = said(ec2, name, keys, "echo $AWS_EC2_METADATA_SERVICE_ENDPOINT")
    assert place == f"{ec2.endpoint}/imds/{name}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        metadata(ec2, name, "latest/meta-data/instance-id")
    token = imds_token(ec2, name)
    assert metadata(ec2, name, "latest/meta-data/instance-id", token) == name
    with pytest.raises(urllib.error.HTTPError, match="404"):
        metadata(ec2, name, "latest/meta-data/spot/instance-action", token)
    ec2.reclaim(name, notice=6.0)
    notice = json.loads(metadata(ec2, name, "latest/meta-data/spot/instance-action", token))
    assert notice["action"] == "terminate"
    assert notice["time"].endswith("Z")
    assert name in ec2.living()
    assert wait_until(lambda: ec2.living() == [], 5)
    assert described(ec2, name)[name]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_what_never_boots_runs_and_does_not_answer(ec2: FakeEC2, keys: Path) -> None:
    ec2.never_boots("m5.large")
    [name] = launch(ec2, UserData=user_data(keys))
    assert wait_until(lambda: described(ec2, name)[name]["State"]["Name"] == "running", 5)
    time.sleep(1)
    assert not is_up(ec2, name, keys)


def test_the_ledger_bills_seconds_at_the_price_of_the_moment(ec2: FakeEC2) -> None:
    [fixed] = launch(ec2)
    [spot] = launch(ec2, InstanceMarketOptions={"MarketType": "spot"})
    [dead] = launch(ec2)
    ids = {fixed, spot, dead}
    assert wait_until(lambda: {each["State"]["Name"] for each in described(ec2, *ids).values()} == {"running"}, 20)
    ec2.kill(dead)
    ec2.boot_seconds = 60.0
    [pending] = launch(ec2)
    ec2.kill(pending)
    ec2.boot_seconds = 0.6
    lines = {each["id"]: each for each in ec2.ledger()}
    usd = bundled().types["m5.large"].offerings[0].usd_per_hour
    volume = USD_PER_GIB * IMAGE_GIB
    assert lines[pending]["usd"] == 0, "what has never run is not billed"
    # Less than a minute is billed as one.
    assert lines[fixed]["usd"] == pytest.approx((usd + volume) / 60) == lines[dead]["usd"]
    assert lines[spot]["usd"] == pytest.approx((usd * 0.35 * 1.1 + volume) / 60, rel=1e-4)
    assert lines[dead]["ended"] is not None
    assert lines[spot]["capacity_type"] == "spot"
    before = lines[spot]["usd"]
    ec2.price("m5.large", 60.0)
    lines = {each["id"]: each for each in ec2.ledger()}
    assert lines[fixed]["usd"] == pytest.approx((usd + volume) / 60)
    assert lines[spot]["usd"] > 10 * before


def test_it_says_what_it_costs(ec2: FakeEC2, tmp_path: Path) -> None:
    ec2.price("m5.large", 0.01, zone="us-east-1c", capacity_type="spot")
    table = config(region="us-east-1", instance_types=("m5.large", "m7i.*"), capacity_type="spot-with-fallback")
    asked = EC2(table, lambda name, *_: ec2.make(name))
    prices = Prices(table, asked, tuple(ec2.subnets), tmp_path)
    found = prices.catalogue(time.time())
    assert prices.trouble is None
    assert all("AWS Price List" in source for source in found.sources)
    cheapest = min(found.types["m5.large"].offerings, key=lambda each: each.usd_per_hour)
    assert (cheapest.capacity_type, cheapest.zone, cheapest.usd_per_hour) == ("spot", "us-east-1c", 0.01)
    ec2.refuse("unauthorized", action="GetProducts")
    again = Prices(table, asked, tuple(ec2.subnets), tmp_path / "other")
    assert "snapshot" in again.catalogue(time.time()).sources[0]
    assert "not authorized" in str(again.trouble) or "UnauthorizedOperation" in str(again.trouble)
