"""Machines of EC2 from their order to their end, against a fake EC2 with a real sshd and node agent on each."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable

import pytest

from lading.executors.agent import ending
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.site import LocationState
from lading.hooks.spool.spool import Envelope
from lading.plugin.subcommands import trial
from lading.plugin.subcommands.check import site_findings
from lading.plugin.subcommands.trial import trial_finding
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.clusters.driven import HEALTH, Driven, asked, asking
from tests.clusters.ec2_drive import KIND, PATIENCE, ZONE, Drive
from tests.reasons import message_in
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until


def test_a_machine_is_launched_runs_jobs_and_goes_when_it_is_empty(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    api.gates[HEALTH] = threading.Event()
    drive, has_news = make(), threading.Event()
    drive.site.on_news = has_news.set
    [name] = drive.up()
    assert has_news.wait(PATIENCE), "its first job does not wait for the next tick"
    assert drive.last is not None
    [seen] = drive.last.locations
    assert (seen.location.instance_type, seen.location.usd_per_hour) == (KIND, 0.096)
    assert seen.location.capacity.cpus == 2  # as measured there
    assert 7000 < seen.location.capacity.memory < 8192 - 512
    assert seen.native_id == service.living()[0]
    [job] = drive.give(name)
    drive.wait_for("started", job)
    drive.site.release({name: free_text("nothing needs it")})
    drive.until(lambda states: states[name] is LocationState.DRAINING)
    [late] = drive.give(name)
    drive.wait_for("returned", late)
    api.gates[HEALTH].set()
    [end] = drive.wait_for("finished", job)
    assert end["cause"] is None
    [released] = drive.wait_for("released", name)
    assert (released["cause"], str(released["reason"])) == (None, "nothing needs it")
    assert drive.look() == {}
    assert service.living() == []


def test_what_is_unknown_is_taken_in_and_what_is_anothers_is_left_alone(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.gates[HEALTH] = threading.Event()
    first = make("one")
    [name] = first.up()
    [job] = first.give(name)
    first.wait_for("started", job)
    first.site.close("hand_over", 10)
    second = make("two")  # another machine's controller: it has nothing but Airflow's configuration
    second.until(lambda states: name in states)
    api.gates[HEALTH].set()
    [end] = second.wait_for("finished", job)
    assert end["cause"] is None
    [seen] = second.last.locations if second.last is not None else ()
    assert (seen.name, seen.location.instance_type, seen.location.usd_per_hour) == (name, KIND, 0.096)
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "c29tZWJvZHkgZWxzZSdzIGtleSwgbm90IG91cnMgMTI=")
    others = make("three")
    others.until(lambda _: others.last is not None)
    assert others.look() == {}
    others.site.close("cancel", 10)
    assert len(service.living()) == 1
    second.site.release({name: free_text("nothing needs it")})
    second.wait_for("released", name)


def test_a_machine_that_dies_is_noticed_and_its_jobs_reported(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    api.delays[HEALTH] = 600
    drive = make()
    [name] = drive.up()
    given = drive.give(name, 3)
    drive.until(lambda _: len(drive.events_of("started")) == 2)  # the machine has two processors; any of them waits
    started = drive.events_of("started").keys()
    service.kill(service.living()[0])
    drive.wait_for("released", name)
    ended = {**drive.events_of("finished"), **drive.events_of("returned")}
    assert ended.keys() == set(given)
    assert {drive.events_of("finished")[token]["cause"] for token in started} == {"node_failure"}


def test_a_machine_that_is_stopped_from_outside_is_terminated(make: Callable[..., Drive], service: FakeEC2) -> None:
    drive = make(limits=EC2Limits(while_quiet=2.0))
    [name] = drive.up()
    [id] = service.living()
    service.client.stop_instances(InstanceIds=[id])
    [released] = drive.wait_for("released", name)
    assert (released["cause"], "stopped" in str(released["reason"])) == ("node_failure", True)
    [found] = service.client.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"]
    assert found["State"]["Name"] == "terminated", "its volumes would be paid for on and on"


def test_prices_that_are_slow_to_come_keep_no_death_from_being_noticed(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    limits = EC2Limits(prices_timeout=600)  # longer than the test: the slow request must not end
    drive = make(limits=limits, capacity_type="spot", max_poll_interval=1)
    [name] = drive.up(capacity_type="spot")
    drive.until(lambda _: drive.last is not None and drive.last.market is not None)  # prices were asked for once
    drive.site.fleet.offers._prices.spot_age = 0.0  # type: ignore[union-attr]
    service.slow("DescribeSpotPriceHistory", 600)
    asked_before = service.requests()["DescribeSpotPriceHistory"]
    rounds = drive.site.price_rounds
    rounds.wake()
    assert wait_until(lambda: service.requests()["DescribeSpotPriceHistory"] > asked_before, PATIENCE)
    began = rounds.under_way_since
    service.kill(service.living()[0])
    drive.wait_for("released", name)
    assert rounds.under_way_since == began, "AWS has not answered yet what anything costs"


def test_what_is_refused_is_reported_and_what_is_not_answered_is_looked_up(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    drive = make()
    service.refuse("ice", type=KIND, zone=ZONE)
    [name] = drive.order()
    [end] = drive.wait_for("released", name)
    assert (end["cause"], "InsufficientInstanceCapacity" in str(end["reason"])) == ("no_capacity", True)
    service.allow()
    [again] = drive.order()  # it would be refused again
    drive.wait_for("released", again)
    service.refuse("lost", times=1)
    drive.order(2, zone="us-east-1a")
    drive.until(lambda states: list(states.values()) == [LocationState.UP] * 2)
    assert len(service.living()) == 2, "a request without an answer is not repeated as another one"


def test_jobs_get_the_cheapest_machines_that_fit_though_a_zone_has_none_and_these_go_when_idle(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    service.refuse("ice", zone="us-east-1a")
    options = {"instance_types": ("m5.large", "m5.xlarge"), "idle_seconds": 2, "expected_boot_time": 5}
    driven = Driven(make(**options).answered())
    jobs = driven.put(4)
    ends = driven.wait_for("finished", jobs, 2 * PATIENCE)
    assert [end["cause"] for end in ends] == [None] * 4
    bought = service.ledger()[-2:]
    assert {each["zone"] for each in bought} <= {"us-east-1b", "us-east-1c"}

    def is_empty() -> bool:
        driven.look()
        return not driven.solo.seen

    assert wait_until(is_empty, PATIENCE, 0.2), driven.solo.seen
    assert service.living() == []


def test_what_a_type_has_less_than_its_specification_makes_no_launch_loop(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    service.shrink(KIND, 5000)
    before = len(service.ledger())
    driven = Driven(make(instance_types=("m5.large", "m5.xlarge"), idle_seconds=2).answered())
    now = time.time()
    big = Envelope(str(uuid.uuid4()), asking(), Resources(1, 6500), None, None, 0, now, now + 3600)
    driven.solo.put([big])
    [end] = driven.wait_for("finished", [big.token], 2 * PATIENCE)
    assert end["cause"] is None
    assert [each["type"] for each in service.ledger()[before:]] == ["m5.large", "m5.xlarge"]


def test_a_spot_machine_that_is_taken_away_uses_up_no_try_and_counts_as_a_shortage(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    api.delays[HEALTH] = 600
    drive = make(capacity_type="spot")
    [name] = drive.up(capacity_type="spot")
    [job] = drive.give(name)
    drive.wait_for("started", job)
    service.reclaim(service.living()[0], notice=0.0)
    [end] = drive.wait_for("finished", job)
    assert end["cause"] == "preempted"
    [released] = drive.wait_for("released", name)
    assert released["cause"] == "preempted"
    [again] = drive.order(capacity_type="spot")
    [refused] = drive.wait_for("released", again)
    assert "reclaimed the machine" in str(refused["reason"])


def test_a_notice_is_heeded_short_jobs_end_by_themselves_and_the_others_in_time(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    drive = make(capacity_type="spot")
    [name] = drive.up(capacity_type="spot")
    api.delays[HEALTH] = 600
    [long] = drive.give(name)
    drive.until(lambda _: asked(api) == 1)
    api.delays[HEALTH] = 6
    [short] = drive.give(name)
    drive.until(lambda _: asked(api) == 2)
    [machine] = service.living()
    before = time.time()
    service.reclaim(machine, notice=ending.BEFORE + 40)
    after = time.time()
    drive.until(lambda states: states[name] is LocationState.DRAINING, ending.INTERVAL + 5)
    [seen] = drive.last.locations if drive.last is not None else ()
    assert "AWS is reclaiming the machine: its jobs are told to stop at" in (seen.note or "")
    assert seen.location.ends_at is not None
    assert before + 30 < seen.location.ends_at < after + 50, "as well as one look can tell the machine's clock"
    [late] = drive.give(name)
    [back] = drive.wait_for("returned", late)
    assert message_in(back).startswith("waits: ")
    [again] = drive.order(capacity_type="spot")
    [refused] = drive.wait_for("released", again)
    assert "AWS is reclaiming the machine" in str(refused["reason"]), "its offering counts as short from the notice on"
    [end] = drive.wait_for("finished", short)
    assert end["cause"] is None
    [end] = drive.wait_for("finished", long)
    assert (end["cause"], machine in service.living()) == ("preempted", True)
    [released] = drive.wait_for("released", name)
    assert (released["cause"], "AWS is reclaiming the machine" in str(released["reason"])) == ("preempted", True)


def test_a_machine_that_no_controller_asks_for_anything_switches_itself_off(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    drive = make(max_poll_interval=1)
    # So short a time is refused in a table: machines would end while a controller is only slow.
    drive.site.config = drive.site.config.model_copy(update={"orphan_after": 20})
    [name] = drive.up()
    [job] = drive.give(name)
    [end] = drive.wait_for("finished", job)
    assert end["cause"] is None
    [machine] = service.living()
    drive.site.close("hand_over", 10)
    assert service.living() == [machine], "it goes by itself, not by the controller's end"
    terminated = service.requests().get("TerminateInstances", 0)
    assert wait_until(lambda: service.living() == [], PATIENCE, 0.5)
    assert service.requests().get("TerminateInstances", 0) == terminated
    later = make("later")
    later.until(lambda _: later.last is not None)
    assert later.look() == {}


def test_when_airflow_stops_machines_go_as_soon_as_they_are_empty(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    api.delays[HEALTH] = 600
    drive = make()
    works, _ = drive.up(2)
    [job] = drive.give(works)
    drive.wait_for("started", job)
    [id] = [each.native_id for each in (drive.last.locations if drive.last else ()) if each.name == works]
    drive.site.close("leave", 120)
    assert service.living() == [id], "the other one had nothing to do"
    assert job not in drive.events_of("finished")
    later = make("later")
    later.until(lambda states: states.get(works) is LocationState.DRAINING)
    [late] = later.give(works)
    later.wait_for("returned", late)  # and what runs there is ended with the machine


def test_machines_that_are_to_stay_when_airflow_stops_stay_without_their_jobs(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    api.delays[HEALTH] = 600
    drive = make(terminate_on_shutdown=False)
    [name] = drive.up()
    [job] = drive.give(name)
    drive.wait_for("started", job)
    drive.site.close("cancel", 30)
    [end] = drive.wait_for("finished", job)
    assert (end["cause"], len(service.living())) == ("cancelled", 1)
    later = make("later")
    later.until(lambda states: states.get(name) is LocationState.UP)
    later.site.release({name: free_text("nothing needs it")})
    later.wait_for("released", name)


def test_a_trial_buys_the_cheapest_machine_runs_a_job_there_and_leaves_nothing(
    make: Callable[..., Drive], service: FakeEC2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "mint", lambda: lambda *_: "")
    site = make(instance_types=("m5.large", "m5.xlarge"), terminate_on_shutdown=False).site
    before = len(service.ledger())
    [unasked] = (each for each in site_findings(site, PATIENCE, launch=False) if each.what == "site cloud")
    assert (unasked.good, unasked.warns, "--launch" in unasked.message) == (True, True, True)
    assert len(service.ledger()) == before
    found = trial_finding("site cloud", site, PATIENCE)
    assert found.good, found.message
    words = r"a trial job ran; .*; a m5.large \(on-demand, us-east-1.\) ran for .* and cost (0\.\d+)"
    cost = re.search(words, found.message)
    assert cost, found.message
    [bought] = service.ledger()[before:]
    assert (bought["type"], float(cost[1])) == ("m5.large", pytest.approx(bought["usd"], abs=0.0005))
    assert service.living() == []


def test_an_instance_with_copied_tags_is_reported_and_neither_taken_in_nor_ended(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    drive = make()
    [ours] = drive.up()
    mine = [{"Name": "tag:lading:token", "Values": [ours]}]
    [reservation] = service.client.describe_instances(Filters=mine)["Reservations"]
    tags = reservation["Instances"][0]["Tags"]
    image = service.ami["x86_64"]
    reply = service.client.run_instances(
        ImageId=image, InstanceType="m5.large", MinCount=1, MaxCount=1, SubnetId=service.subnets["us-east-1b"],
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )  # fmt: skip
    stranger = reply["Instances"][0]["InstanceId"]
    try:
        later = make("spool2")
        later.until(lambda states: states.get(ours) is LocationState.UP)
        assert later.look().keys() == {ours}
        assert later.last is not None
        assert stranger in str(later.last.note)
        assert [each.name for each in later.site.listed_instances()] == [ours]
        with pytest.raises(OSError, match=f"{stranger}: not launched by this deployment"):
            later.site.end([stranger])
        later.site.close("cancel", 30)
        assert service.living() == [stranger]
    finally:
        service.client.terminate_instances(InstanceIds=[stranger])
