"""What goes wrong around machines of EC2: no job is lost, nothing is launched twice, and each end has a reason."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent import ending
from lading.hooks.ec2 import client, pace
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.machines import connection
from lading.hooks.machines.machine import Machine
from lading.hooks.site import LocationState
from lading.scheduling.model.reasons import free_text
from tests.clusters.driven import HEALTH, Driven, asked
from tests.clusters.ec2_drive import KIND, PATIENCE, ZONE, Drive
from tests.services import debian
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.small_disk import small_disk


def unavailable(service: FakeEC2) -> None:
    service.refuse("unavailable", action="*")


def too_slow(service: FakeEC2) -> None:
    """All is done, but long after the caller has gone."""
    service.slow("*", 5.0)


@pytest.mark.parametrize("away", [unavailable, too_slow])
def test_while_ec2_does_not_answer_jobs_run_and_nothing_is_lost_launched_twice_or_ended(
    make: Callable[..., Drive],
    service: FakeEC2,
    api: ExecutionApi,
    away: Callable[[FakeEC2], None],
) -> None:
    limits = EC2Limits(launch_timeout=1, read_timeout=1, until_missed=3.0)  # less than it is away
    drive, before = make(limits=limits, max_poll_interval=1), len(service.ledger())
    works, goes = drive.up(2)
    api.delays[HEALTH] = 10
    [long] = drive.give(works)
    drive.wait_for("started", long)
    away(service)
    drive.site.release({goes: free_text("nothing needs it")})
    [new] = drive.order(kind="m5.xlarge")
    api.delays[HEALTH] = 0
    [given] = drive.give(works)
    ends = drive.wait_for("finished", given, long)
    assert [end["cause"] for end in ends] == [None, None]
    drive.until(lambda _: "does not answer" in str(drive.last.note) or "Unavailable" in str(drive.last.note))
    states = drive.look()
    assert states.keys() == {works, goes, new}
    assert (states[works], states[goes]) == (LocationState.UP, LocationState.DRAINING)
    assert drive.events_of("released").keys().isdisjoint({works, goes, new})
    service.allow()
    [released] = drive.wait_for("released", goes)
    assert (released["cause"], str(released["reason"])) == (None, "nothing needs it")
    drive.until(lambda states: states == {works: LocationState.UP, new: LocationState.UP})
    assert len(service.ledger()) - before == 3, "nothing was launched twice"
    assert len(service.living()) == 2


def test_what_ec2_does_not_describe_for_a_moment_after_it_was_away_is_kept(
    make: Callable[..., Drive], service: FakeEC2, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = make(limits=EC2Limits(until_missed=5.0))
    [name] = drive.up()
    fleet = drive.site.fleet
    real, answers = fleet.ec2.describe, [0.0]

    def describe(filters: Any) -> list[client.EC2Instance]:
        answers[0] += 1
        return [] if answers[0] == 1 else real(filters)

    drive.until(lambda _: time.monotonic() - fleet.registration.described_at > 6.0)  # as long as it was away
    monkeypatch.setattr(fleet.ec2, "describe", describe)
    fleet.registration.described_at = 0.0
    drive.site.rounds.wake()
    drive.until(lambda _: answers[0] >= 2)
    assert drive.look() == {name: LocationState.UP}
    assert name not in drive.events_of("released")


def test_a_launch_that_hangs_holds_up_no_look_no_release_and_no_other_site(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    drive, other = make(), make("other", name="elsewhere")
    dies, goes = drive.up(2)
    [id] = [each.native_id for each in (drive.last.locations if drive.last else ()) if each.name == dies]
    service.slow("RunInstances", 600, type="m5.xlarge")
    asked_before = service.requests().get("RunInstances", 0)
    [hangs] = drive.order(kind="m5.xlarge")
    assert wait_until(lambda: service.requests().get("RunInstances", 0) > asked_before, PATIENCE, 0.05)
    service.kill(str(id))
    drive.site.release({goes: free_text("nothing needs it")})
    drive.wait_for("released", dies, goes)
    other.up()
    begun = time.monotonic()
    assert drive.look() == {hangs: LocationState.BOOTING}
    assert time.monotonic() - begun < 60
    assert drive.last is not None
    assert drive.last.locations[0].native_id is None, "it hangs all the time"
    drive.site.release({hangs: free_text("nobody wants it any more")})
    assert hangs not in drive.events_of("released"), "it may be there, or come"
    service.allow()
    [released] = drive.wait_for("released", hangs)
    assert (released["cause"], str(released["reason"])) == (None, "nobody wants it any more")
    assert [each["ended"] is None for each in service.ledger()[-2:]] in ([False, True], [True, False])


def test_a_refusal_for_good_holds_launches_and_the_site_and_its_jobs_show_the_message_of_aws(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    drive, before, asked_before = make(), len(service.ledger()), service.requests().get("RunInstances", 0)
    service.refuse("unauthorized")
    driven = Driven(drive.answered())
    [job] = driven.put(1)
    words = "You are not authorized to perform this operation"
    assert wait_until(lambda: driven.look() or words in driven.solo.reasons.get(job, ""), PATIENCE, 0.1), (
        driven.solo.reasons
    )
    assert words in str(drive.site.observe().note), "as `airflow lading sites` shows it"
    for _ in range(20):
        driven.look()
        time.sleep(0.05)
    assert service.requests()["RunInstances"] - asked_before == 1, "it is not asked for again and again"
    assert len(service.ledger()) == before


def silent(service: FakeEC2) -> str:
    service.never_boots(KIND)
    return "nothing answers at 127.77."


def strange(service: FakeEC2) -> str:
    service.gives_another_key(KIND)
    return "key is not the one that the machine was given at launch"


def hanging(service: FakeEC2) -> str:
    service.hangs(KIND)
    return "it has not answered yet"


@pytest.mark.parametrize("fault", [silent, strange, hanging])
def test_a_machine_that_is_never_reached_is_abandoned_with_a_reason_and_another_offering_takes_its_place(
    make: Callable[..., Drive],
    service: FakeEC2,
    fault: Callable[[FakeEC2], str],
) -> None:
    options = {
        "limits": EC2Limits(boot=8.0),
        "instance_types": ("m5.large", "m5.xlarge"),
        "subnets": (service.subnets[ZONE],),
        "expected_boot_time": 1,
    }
    drive, before = make(**options), len(service.ledger())
    drive.site.config = drive.site.config.model_copy(update={"idle_seconds": 1})
    words = fault(service)
    driven = Driven(drive.answered())
    [job] = driven.put(1)

    def given_up() -> list[dict[str, Any]]:
        """Without what has ended before."""
        driven.look()
        return [each for each in driven.events_of("released").values() if each["cause"] == "node_failure"]

    shortages = drive.site.fleet.launcher.shortages
    assert wait_until(lambda: driven.look() or bool(shortages.offerings), PATIENCE, 0.1), driven.solo.seen
    drive.site.fleet.state.limits = EC2Limits()  # the next one has all the time
    assert wait_until(lambda: bool(given_up()), PATIENCE, 0.1), driven.solo.seen
    [released] = given_up()
    assert str(released["reason"]).startswith("it was booting for more than 8 s: ")
    assert words in str(released["reason"])
    [end] = driven.wait_for("finished", [job])
    assert end["cause"] is None
    assert [each["type"] for each in service.ledger()[before:]] == ["m5.large", "m5.xlarge"]


def test_machines_that_never_answer_are_not_bought_for_ever(make: Callable[..., Drive], service: FakeEC2) -> None:
    service.never_boots("*")
    drive = make(
        limits=EC2Limits(boot=1.0, first_hold=15.0, longest_hold=15.0),
        instance_types=("m5.*", "c5.*"),
        subnets=(service.subnets[ZONE],),
        expected_boot_time=1,
        idle_seconds=1,
    )
    before, driven = len(service.ledger()), Driven(drive.answered())
    driven.put(3, cpus=2)  # each asks for a machine of its own

    def all_have_ended() -> bool:
        driven.look()
        return len(service.ledger()) > before and service.living() == []

    assert wait_until(all_have_ended, PATIENCE, 0.1)
    shortages = drive.site.fleet.launcher.shortages
    assert wait_until(lambda: driven.look() or shortages.held is not None, PATIENCE, 0.1)
    bought = len(service.ledger())
    assert "machines that were launched never answered" in str(shortages.held)
    driven.look()
    assert any("never answered" in words for words in driven.solo.reasons.values()), driven.solo.reasons

    def is_over() -> bool:
        there = len(service.ledger())
        is_held = shortages.held is not None  # now, so it was when that was asked
        assert there == bought or not is_held, "nothing is bought meanwhile"
        driven.look()
        return not is_held

    assert wait_until(is_over, PATIENCE, 0.1)
    assert wait_until(lambda: driven.look() or len(service.ledger()) > bought, PATIENCE, 0.1)
    assert len(service.ledger()) == bought + 1, "then one at a time"


def test_a_machine_whose_ssh_hangs_is_abandoned_and_its_job_reported(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.Connection, "seconds_until_late", 2.0)
    api.delays[HEALTH] = 600
    drive = make(max_poll_interval=1)
    drive.site.fleet.config = drive.site.config.model_copy(update={"lost_after": 15})
    [name] = drive.up()
    [job] = drive.give(name)
    drive.wait_for("started", job)
    service.freeze(service.living()[0])
    # It may come back.
    drive.until(lambda states: (states.get(name), len(service.living())) == (LocationState.UNREACHABLE, 1))
    [released] = drive.wait_for("released", name)
    assert released["cause"] == "node_failure"
    assert str(released["reason"]).startswith("it has been unreachable for ")
    assert (drive.events_of("finished")[job]["cause"], service.living()) == ("node_failure", [])


def test_a_machine_whose_lading_is_refused_is_never_up_and_abandoned_with_a_reason(
    make: Callable[..., Drive], service: FakeEC2, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$2" != lading.executors.host ] || exit 3\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    tmp_path.chmod(0o755)
    drive = make(python=str(python), expected_boot_time=1)
    [name] = drive.order()
    drive.answered()
    drive.until(
        lambda _: any("Lading does not answer on the machine" in str(each.note) for each in drive.last.locations)
    )
    drive.site.fleet.state.limits = EC2Limits(boot=8.0)  # its refusal has been seen
    [released] = drive.wait_for("released", name)
    assert str(released["reason"]).startswith("it was booting for more than 8 s: Lading does not answer on the machine")
    assert (released["cause"], service.living()) == ("node_failure", [])
    assert bool(drive.site.fleet.launcher.shortages.offerings), "another one would be the same"


def test_a_machine_that_takes_no_jobs_and_has_none_is_abandoned(
    make: Callable[..., Drive], service: FakeEC2, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = make(max_poll_interval=1)
    [name] = drive.up()
    drive.site.fleet.config = drive.site.config.model_copy(update={"lost_after": 15})
    monkeypatch.setattr(Machine, "note", property(lambda _: "its disk is full"))
    # It may be mended.
    drive.until(lambda states: (states.get(name), len(service.living())) == (LocationState.UNREACHABLE, 1))
    [released] = drive.wait_for("released", name)
    assert (released["cause"], service.living()) == ("node_failure", [])
    assert str(released["reason"]).startswith("it has accepted no jobs for ")
    assert str(released["reason"]).endswith("its disk is full")


def test_a_full_disk_holds_jobs_up_and_loses_neither_them_nor_the_machine(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    with small_disk() as folder:
        drive = make(work_dir=str(folder))
        [name] = drive.up()
        drive.wait_for("finished", *drive.give(name))
        filler, given = folder / "filler", list[str]()

        def is_held_up() -> bool:
            with suppress(OSError), filler.open("ab", buffering=0) as stream:
                while stream.write(b"x" * 65536):  # also what comes free meanwhile
                    pass
            given.extend(drive.give(name))  # what came free was enough for those before
            state = drive.look().get(name)
            notes = [str(each.note) for each in drive.last.locations] if drive.last is not None else []
            return state is LocationState.UNREACHABLE and "could not be written" in notes[0]

        assert wait_until(is_held_up, PATIENCE, 1.0), drive.last
        filler.unlink()
        assert {end["cause"] for end in drive.wait_for("finished", *given)} == {None}
        assert len(service.living()) == 1
        drive.site.close("cancel", 30)


def test_a_machine_whose_clock_is_an_hour_off_runs_jobs_and_heeds_a_notice(
    make: Callable[..., Drive], service: FakeEC2, api: ExecutionApi
) -> None:
    debian.install("faketime")
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    drive = make(login_setup=f"export LD_PRELOAD={library} FAKETIME=+1h DONT_FAKE_MONOTONIC=1", capacity_type="spot")
    [name] = drive.up(capacity_type="spot")
    begun = time.time()
    [short] = drive.give(name)
    [end] = drive.wait_for("finished", short)
    times = [each["at"] for each in (end, drive.events_of("started")[short])]
    assert end["cause"] is None
    # By the controller's clock, as well as one look can tell what the other one says.
    assert all(begun - 60 < at < time.time() + 60 for at in times), times
    api.delays[HEALTH] = 600
    [long] = drive.give(name)
    drive.until(lambda _: asked(api) == 2)
    service.reclaim(service.living()[0], notice=ending.BEFORE + 8)
    [end] = drive.wait_for("finished", long)
    assert end["cause"] == "preempted"
    drive.wait_for("released", name)


def test_a_hundred_at_once_are_asked_for_at_the_pace_that_ec2_takes(
    make: Callable[..., Drive], service: FakeEC2
) -> None:
    service.never_boots("*")
    drive, before = make(max_instances=100), len(service.ledger())
    asked_before = service.requests().get("RunInstances", 0)
    begun = time.monotonic()
    names = drive.order(100)
    drive.until(lambda _: len(service.ledger()) - before == 100, 2 * PATIENCE)
    requests = service.requests()["RunInstances"] - asked_before
    assert requests == 7, "16 at a time"
    assert time.monotonic() - begun >= (requests - pace.REQUESTS - 1) / pace.REFILL
    drive.until(lambda states: states.keys() == set(names), 2 * PATIENCE)
    assert drive.last is not None
    drive.until(lambda _: len({each.native_id for each in drive.last.locations}) == 100, 2 * PATIENCE)
    drive.site.close("cancel", 4 * PATIENCE)  # it returns when all are released
    assert service.living() == []
    assert service.requests()["RunInstances"] - asked_before == 7
