"""What AWS's answers mean, how long a phase of a machine's life may take, and how fast EC2 may be asked."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from lading.hooks.ec2 import machine as member_module
from lading.hooks.ec2.client import AWSTrouble, EC2Error, EC2Instance, meaning, read
from lading.hooks.ec2.life import LONGEST, LifePhase, ended, overdue, unattended
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.pace import Offering, Shortages, TokenBucket
from lading.hooks.ec2.refusals import SECONDS_WITHOUT_CAPACITY
from lading.hooks.ssh import backoff
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.reasons import clauses

OFFERING = "m7i.large", "us-east-1a", "spot"


def instance(state: str, reason: str = "", capacity_type: str = "on-demand") -> EC2Instance:
    return EC2Instance("i-1", "m7i.large", "us-east-1a", state, capacity_type, 0, None, None, {}, reason)


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("InsufficientInstanceCapacity", AWSTrouble.CAPACITY),
        ("VcpuLimitExceeded", AWSTrouble.QUOTA),
        ("RequestLimitExceeded", AWSTrouble.THROTTLE),
        ("IdempotentInstanceTerminated", AWSTrouble.TERMINATED),
        ("IdempotentParameterMismatch", AWSTrouble.MISMATCH),
        ("InternalError", AWSTrouble.SILENCE),
        ("503", AWSTrouble.SILENCE),
        ("InternalServerError", AWSTrouble.SILENCE),
        ("ServiceUnavailableException", AWSTrouble.SILENCE),
        ("UnauthorizedOperation", AWSTrouble.PERMANENT),
        ("InvalidAMIID.NotFound", AWSTrouble.PERMANENT),
        ("", AWSTrouble.PERMANENT),
    ],
)
def test_what_an_error_means(code: str, trouble: AWSTrouble) -> None:
    assert meaning(code) is trouble


def test_how_a_machine_has_ended() -> None:
    assert ended(instance("running")) is None
    assert ended(instance("pending")) is None
    reclaimed = ended(instance("terminated", "Server.SpotInstanceTermination: taken away", "spot"))
    assert reclaimed is not None
    assert reclaimed.cause == "preempted"
    died = ended(instance("shutting-down", "Server.InternalError"))
    assert died is not None
    assert (died.cause, str(died.reason)) == ("node_failure", "the machine is shutting-down: Server.InternalError")
    for state in ("stopping", "stopped", "shutting-down", "terminated"):
        assert ended(instance(state)) is not None
    assert ended(instance("hibernating")) is None, "in a state that Lading does not know it lives while it answers"


@pytest.mark.parametrize(
    ("transition", "at"),
    [
        ("User initiated (2026-11-23 12:00:01 GMT)", 1795435201.0),
        ("Service initiated (2026-11-23 12:00:01 UTC)", 1795435201.0),
        ("Server.InternalError", None),
        ("User initiated (2026-13-23 12:00:01 GMT)", None),
        ("", None),
    ],
)
def test_when_a_machine_has_ended_is_what_aws_says(transition: str, at: float | None) -> None:
    described = {"InstanceId": "i-1", "InstanceType": "m7i.large", "State": {"Name": "terminated"}}
    [found] = read([{"Instances": [{**described, "StateTransitionReason": transition}]}])
    assert found.ended_at == at


def test_an_end_that_no_controller_saw_has_a_cause() -> None:
    end = unattended(instance("terminated", "User initiated"))
    words = "it stopped while no controller was running: the machine is terminated: User initiated"
    assert (end.cause, str(end.reason)) == ("lost", words)
    assert unattended(instance("terminated", "Server.SpotInstanceTermination", "spot")).cause == "preempted"


def test_every_phase_before_work_has_an_end_with_a_reason() -> None:
    for phase in (LifePhase.ORDERED, LifePhase.UNKNOWN, LifePhase.PENDING):
        assert overdue(phase, LONGEST[phase], 60, None) is None
        assert phase.value in str(overdue(phase, LONGEST[phase] + 1, 60, None))
    assert overdue(LifePhase.BOOTING, 600, 60, None) is None
    assert "refused" in str(overdue(LifePhase.BOOTING, 601, 60, free_text("connection refused")))
    assert overdue(LifePhase.BOOTING, 1400, 300, None) is None
    assert overdue(LifePhase.UP, 1e9, 60, None) is None
    assert overdue(LifePhase.DRAINING, 1e9, 60, None) is None


def test_a_bucket_is_filled_again() -> None:
    bucket = TokenBucket(5.0)
    assert [bucket.take(1, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert bucket.take(2, 1.0)
    assert not bucket.take(1, 1.0)


class Paper(Shortages):
    """Shortages at a time that the test says, seconds."""

    now = 0.0

    def at(self, now: float) -> Paper:
        self.now = now
        return self


def why(shortages: Shortages, offering: Offering) -> str | None:
    """Why there is none of an offering; None: there may be."""
    shortage = shortages.shortage_of(offering)
    return None if shortage is None else shortage.why.sentence


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Paper:
    """Shortages whose pauses are as long as they may be."""
    paper = Paper()
    monkeypatch.setattr(backoff.random, "uniform", lambda least, most: most)
    for clock in ("time", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: paper.now)
    return paper


def test_what_is_refused_is_left_alone_for_a_while(found: Paper) -> None:
    found.at(100.0).refused(OFFERING, EC2Error(AWSTrouble.CAPACITY, "InsufficientInstanceCapacity", "none"))
    assert why(found.at(101.0), OFFERING) == "InsufficientInstanceCapacity: none"
    assert found.shortage_of(("m7i.large", "us-east-1b", "spot")) is None
    assert found.at(100.0 + SECONDS_WITHOUT_CAPACITY).shortage_of(OFFERING) is None
    found.at(200.0).refused(OFFERING, EC2Error(AWSTrouble.QUOTA, "VcpuLimitExceeded", "full"))
    assert why(found.at(201.0), ("c7i.large", "us-east-1b", "spot")) == "VcpuLimitExceeded: full", "of one quota"
    assert found.shortage_of(("g5.xlarge", "us-east-1b", "spot")) is None, "of another"
    assert found.shortage_of(("m7i.large", "us-east-1b", "on-demand")) is None
    found.freed()
    assert found.shortage_of(("m7i.large", "us-east-1b", "spot")) is None


def test_a_throttle_pauses_and_a_refusal_for_good_holds_ever_longer(found: Paper) -> None:
    throttle, refusal = (
        EC2Error(AWSTrouble.THROTTLE, "T", "slowly"),
        EC2Error(AWSTrouble.PERMANENT, "OptInRequired", "not allowed"),
    )
    found.refused(OFFERING, throttle)
    assert "slowly" in str(found.at(4.0).paused)
    assert found.at(5.0).paused is None
    found.refused(OFFERING, throttle)
    assert found.at(14.0).paused is not None
    found.at(0.0).refused(OFFERING, refusal)
    assert clauses((found.at(59.0).held, found.at(60.0).held)) == (
        "OptInRequired: not allowed; subscribe the account to EC2, or enable the region",
        None,
    )
    found.refused(OFFERING, refusal)
    assert found.at(179.0).held is not None
    found.launched(OFFERING)
    assert (found.at(61.0).held, found.at(14.0).paused) == (None, None)
    found.at(0.0)
    for _ in range(2000):  # as after weeks
        found.refused(OFFERING, throttle)
        found.refused(OFFERING, refusal)
    found.at(EC2Limits.longest_hold)
    assert (found.held, found.paused) == (None, None)


def test_machines_that_never_answer_are_launched_ever_more_rarely(found: Paper) -> None:
    for number in range(3):
        assert (found.held, found.is_in_doubt) == (None, False)
        found.never_answered((f"m{number}.large", "us-east-1a", "spot"), free_text("it was booting for too long"))
    assert (
        why(found.at(1.0), ("m0.large", "us-east-1a", "spot"))
        == "the last machine that was launched never answered: it was booting for too long"
    )
    assert found.shortage_of(("m0.large", "us-east-1b", "spot")) is None, "another zone may do"
    assert "the last 3 machines that were launched never answered" in str(found.at(59.0).held)
    assert (found.at(60.0).held, found.is_in_doubt) == (None, True)
    found.launched(OFFERING)  # which says nothing of the machine
    for number in range(2000):
        found.at(60.0 + number / 20).never_answered(OFFERING, free_text("again"))
    assert found.at(159.0 + EC2Limits.longest_hold).held is not None
    assert found.at(160.0 + EC2Limits.longest_hold).held is None
    found.at(2000.0).never_answered(OFFERING, free_text("again"))
    found.answered()
    assert (found.at(2001.0).held, found.is_in_doubt) == (None, False)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(member_module.time, "monotonic", lambda: self.now)  # type: ignore[attr-defined]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def launched(state: str) -> EC2Instance:
    return replace(instance(state), launched_at=50_000.0)


def a_member() -> EC2Machine:
    return EC2Machine("L1", "L1", OFFERING, Resources(2, 7000), "x86_64", 0.1)


def test_what_is_pending_is_not_billed_by_whatever_clock_aws_has(clock: Clock) -> None:
    found = a_member()
    assert found.billed_from is None
    for seconds in (0, 10, 20):
        clock.now = 1000.0 + seconds
        found.describe(launched("pending"))
        assert found.billed_from is None
        assert found.seen("cloud").billed_since is None
    clock.now = 1021.0
    for state in ("running", "shutting-down", "terminated"):
        found.describe(launched(state))
        assert found.billed_from == 50_020.0, "LaunchTime, and what was seen of its pending"


def test_how_long_it_is_pending_does_not_depend_on_how_long_answers_take(clock: Clock) -> None:
    found = a_member()
    found.describe(launched("pending"))
    for asked_at, answered_at in ((999.0, 1004.0), (1010.0, 1019.0)):
        clock.now = answered_at
        found.describe(launched("pending"), as_of=asked_at)
    found.describe(launched("running"), as_of=1019.0)
    assert found.billed_from == 50_010.0


def test_what_ends_while_it_is_pending_is_not_billed_at_all(clock: Clock) -> None:
    found = a_member()
    found.describe(launched("pending"))
    clock.now += 1
    found.describe(launched("terminated"))
    assert found.billed_from is None


def test_what_may_have_run_while_nothing_was_seen_of_it_is_billed(clock: Clock) -> None:
    found, adopted = a_member(), a_member()
    found.describe(launched("pending"))
    clock.now += 300
    found.describe(launched("terminated"))
    adopted.describe(launched("running"))
    assert found.billed_from == adopted.billed_from == 50_000.0
