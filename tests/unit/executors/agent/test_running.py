"""How the end of a job that an agent has run is judged."""

from __future__ import annotations

import signal

import pytest

from lading.executors.agent import supervisor
from lading.executors.agent.job_folder import EndCause, ExitFile
from lading.executors.agent.running import judge_end
from lading.scheduling.reasons import free_text

KILLED = ExitFile(-9, free_text("ended with signal 9"), 100.0, 1.5, 2048, touched_memory=10)


@pytest.mark.parametrize(
    ("status", "was_rebooted", "cause"),
    [
        (supervisor.SUCCEEDED, False, None),
        (supervisor.FAILED, False, "error"),
        (None, False, "lost"),
        (-signal.SIGKILL, False, "lost"),
        (77, False, "lost"),
        (supervisor.SUCCEEDED, True, "node_failure"),
    ],
)
def test_without_a_file_the_exit_status_says_what_is_known(
    status: int | None, was_rebooted: bool, cause: str | None
) -> None:
    end = judge_end(None, None, status, 0, was_rebooted=was_rebooted)
    assert end["cause"] == cause
    assert (end["reason"] is None) == (cause is None)


def test_what_airflow_has_settled_while_it_ran_has_begun_and_what_it_has_refused_has_not() -> None:
    settled, refused = supervisor.JobSettled(), supervisor.JobRefused(free_text("answered 409"))
    for failure, has_begun in ((settled, True), (refused, False)):
        left = ExitFile(failure.exit_code, failure.reason, 100.0, 1.5, 2048, cause=failure.cause)
        end = {"started_at": 50.0, **judge_end(left, None, supervisor.FAILED, 0, was_rebooted=False)}
        assert end["cause"] == "cancelled", "it has not succeeded, and is no example for later estimates"
        assert (end["started_at"] is not None) == has_begun


def test_the_file_comes_before_the_exit_status_and_the_agents_cause_before_the_file() -> None:
    assert str(judge_end(KILLED, None, supervisor.SUCCEEDED, 0, was_rebooted=True)["reason"]) == "ended with signal 9"
    end = judge_end(KILLED, EndCause("out_of_memory", free_text("used 2 GiB of 1 GiB")), None, 0, was_rebooted=False)
    assert (end["cause"], str(end["reason"])) == ("out_of_memory", "used 2 GiB of 1 GiB")
    assert (end["at"], end["exit_code"], end["cpu_seconds"]) == (100.0, -9, 1.5)


def test_the_peak_of_memory_is_the_most_that_was_measured() -> None:
    peaks = [
        judge_end(KILLED, None, None, mebibytes, was_rebooted=False)["peak_memory"] for mebibytes in (0, 2000, 3000)
    ]
    assert peaks == [2048, 2048, 3000]
    unmeasured = ExitFile(0, None, 100.0, None, None, touched_memory=10)
    assert judge_end(unmeasured, None, 0, 0, was_rebooted=False)["peak_memory"] == 10
    for is_short, peak in ((False, 3), (True, 10)):  # it had grown after the last look
        assert judge_end(unmeasured, None, 0, 3, was_rebooted=False, is_short=is_short)["peak_memory"] == peak
    assert judge_end(None, None, supervisor.SUCCEEDED, 0, was_rebooted=False)["peak_memory"] is None
