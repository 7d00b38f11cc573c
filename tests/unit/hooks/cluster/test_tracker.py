"""What a controller tracks of its batch jobs, by what the batch system reports."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from lading.hooks.batch.pbs.torque import TORQUE
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.status_query import Statuses, accounts
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.jobs.tracker import BatchJobTracker, PendingActions, Submission, TrackedBatchJob
from lading.hooks.files.logs import Trouble
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.text.units import format_moment

SUBMITTED_AT = 100.0
WAITS = NativeJob(id="7", state="pending", name="L1")
RUNS = replace(WAITS, state="running", nodes="n1")


@pytest.fixture
def job() -> TrackedBatchJob:
    return TrackedBatchJob("token", submission=Submission("L1", ["token"], "7", SUBMITTED_AT))


def test_an_answer_from_before_its_submission_says_nothing(job: TrackedBatchJob) -> None:
    assert not job.see(None, SUBMITTED_AT - 1)
    assert job.gone_since is None
    job.see(None, SUBMITTED_AT + 1)
    assert job.gone_since == SUBMITTED_AT + 1


def test_what_is_there_again_has_not_gone(job: TrackedBatchJob) -> None:
    job.see(None, SUBMITTED_AT + 1)
    assert job.see(RUNS, SUBMITTED_AT + 2)
    assert (job.gone_since, job.node) == (None, "n1")
    assert not job.see(replace(RUNS, nodes=None), SUBMITTED_AT + 3)
    assert job.node == "n1"


def test_what_has_said_how_it_ended_has_gone_although_the_batch_system_still_has_it(job: TrackedBatchJob) -> None:
    job.report_end({"cause": "terminated"}, None)
    gone_since = job.gone_since
    job.see(RUNS, time.monotonic() + 2)
    assert (job.gone_since is not None, job.gone_since) == (True, gone_since)


def test_what_will_never_start_has_gone(job: TrackedBatchJob) -> None:
    job.see(WAITS, SUBMITTED_AT + 1)
    assert (job.is_hopeless, job.gone_since) == (False, None)
    job.see(replace(WAITS, cause="error"), SUBMITTED_AT + 2)
    assert (job.is_hopeless, job.gone_since) == (True, SUBMITTED_AT + 2)


def test_what_would_never_have_started_is_not_cancelled_for_nothing(job: TrackedBatchJob) -> None:
    """PBS shows it in its history, once Lading has taken it out of the queue."""
    job.see(replace(WAITS, cause="error", reason="given up"), SUBMITTED_AT + 1)
    job.see(replace(WAITS, state="ended", cause="cancelled"), SUBMITTED_AT + 2)
    assert job.end_seen == replace(WAITS, cause="error", reason="given up")
    job.see(replace(WAITS, state="ended", exit_code=0), SUBMITTED_AT + 3)
    assert job.end_seen == replace(WAITS, state="ended", exit_code=0), "it has been mended"


def test_another_job_of_the_same_id_is_not_this_one(job: TrackedBatchJob) -> None:
    assert job.found_in(Statuses([RUNS])) is RUNS
    assert job.found_in(Statuses([replace(RUNS, name="another_job")])) is None


def test_a_submission_without_an_answer_is_looked_up_by_its_name() -> None:
    lost = Submission("L1", ["a", "b"], None, SUBMITTED_AT)
    assert not lost.is_found(Statuses([replace(WAITS, name="L2")]))
    assert lost.is_found(Statuses([replace(WAITS, id="9[]", index=1, name="L1-1")]))  # as TORQUE calls an element
    assert lost.id == "9[]"


def test_actions_that_could_not_be_done_are_done_with_those_that_came_since() -> None:
    pending = PendingActions({}, [("L1", "a")], {"submissions/L0"})
    pending.cancel(["7", "7"])
    taken = pending.take()
    since = taken.cancels["7"]
    assert (taken.cancels, pending.cancels, pending.withdrawals, pending.leftovers) == ({"7": since}, {}, [], set())
    pending.cancel(["8", "7"])
    pending.put_back(taken)
    assert (list(pending.cancels), pending.cancels["7"]) == (["8", "7"], since), "it counts from the first request"
    assert (pending.withdrawals, pending.leftovers) == ([("L1", "a")], {"submissions/L0"})


def test_accounts_are_those_of_jobs_that_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble(logging.getLogger("test"))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            none = accounts(SLURM(), CommandResult(1, "", "Slurm accounting storage is disabled\n"), trouble)
    assert (list(none.jobs), len(caplog.records)) == ([], 1)
    assert list(accounts(SLURM(), None, trouble).jobs) == []


def test_what_can_never_start_as_things_are_is_abandoned_after_a_while(job: TrackedBatchJob) -> None:
    never = replace(WAITS, never=True, reason="it asks for more time than the partition allows")
    for at, hopeless in ((110.0, False), (1000.0, False), (1010.0, True)):
        job.see(never, at, blocked_for=900.0)
        assert job.is_hopeless == hopeless
    job.see(WAITS, 1020.0, blocked_for=900.0)
    assert (job.is_hopeless, job.gone_since) == (False, None), "an administrator has changed the partition"
    job.see(never, 1030.0, blocked_for=900.0)
    assert not job.is_hopeless


def test_a_job_that_is_shown_although_it_was_cancelled_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """TORQUE's qdel of an array whose MOM is down exits with 0, and ends nothing."""
    tracker, system = BatchJobTracker(), TORQUE()
    submission = Submission("L1", ["a", "b"], "63[].head1", SUBMITTED_AT)
    job = TrackedBatchJob("b", submission=submission, index=2)
    system.cancelled(CommandResult(0))
    tracker.press(job, system)
    assert list(tracker.pending.take().cancels) == ["63[2].head1"]
    tracker.press(job, system)
    assert not tracker.pending.take().cancels, "it has some time to end"
    later = time.monotonic() + 61.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    tracker.press(job, system)
    assert list(tracker.pending.take().cancels) == ["63[2].head1"]


def test_what_waits_in_one_queue_waits_for_one_limit_as_a_job_of_its_own_and_in_an_allocation() -> None:
    submission = Submission("L1", ["a"], "7", 0.0, excluded=("n7",))
    own, packed = submission.waits("long", WAITS), submission.waits("long", WAITS, "L1")
    assert (own.code, packed.code) == ("batch_queue", "allocation_queue")
    assert own.limit == packed.limit == "queue long"
    assert "allocation L1 waits in queue 'long' of the batch system: " in str(packed)
    assert str(packed).endswith("nodes where jobs failed are avoided: n7")
    assert submission.waits(None, WAITS, "L1").limit is None


LIMITED = "a limit of the account is reached (AssocMaxJobsLimit)"


@pytest.mark.parametrize(("text", "is_said"), [("(Resources)", True), (LIMITED, False), (None, True)])
def test_nodes_that_are_avoided_are_named_where_a_job_waits_for_nodes(text: str | None, is_said: bool) -> None:
    submission = Submission("L1", ["a"], "1", 0.0, excluded=("n1",))
    waits = submission.waits("batch", NativeJob(id="1", state="pending", reason=text))
    assert ("nodes where jobs failed are avoided: n1" in waits.sentence) == is_said


def test_when_a_job_that_can_never_start_is_given_up_is_said() -> None:
    native = NativeJob(id="1", state="pending", reason="asks for too much time (PartitionTimeLimit)", never=True)
    job = TrackedBatchJob("a", submission=Submission("L1", ["a"], "1", 0.0, excluded=("n1",)))
    assert job.given_up_at(900) is None
    job.see(native, time.monotonic(), blocked_for=900)
    at = job.given_up_at(900)
    assert at is not None
    assert abs(at - time.time() - 900) < 60
    assert job.submission is not None
    reason = job.submission.waits("short", native, given_up_at=at)
    assert reason.code == "batch_never"
    assert f"if nothing changes, it is cancelled at {format_moment(at)}" in reason.sentence
    assert "n1" not in reason.sentence
