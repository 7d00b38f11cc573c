"""How the end of a job that an agent has run is judged."""

from __future__ import annotations

import signal
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from lading.executors.agent import running, supervisor
from lading.executors.agent.job_folder import EndCause, ExitFile, Supervisor
from lading.executors.agent.process_tree import PAGE, Process
from lading.executors.agent.running import MEMORY_INTERVAL, RunningJob, RunningJobs, judge_end
from lading.hooks.files import host
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources

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
    assert judge_end(None, None, supervisor.SUCCEEDED, 0, was_rebooted=False)["peak_memory"] is None


def test_what_was_touched_since_the_last_exact_sample_counts(tmp_path: Path) -> None:
    owner = Supervisor(1, 1, host.boot_id(), 0.0, 0.0, Resources(), None, None)
    job = RunningJob("a", JobFolder(tmp_path), owner, is_child=False)
    assert job.samples.peak_at_end(20) == 20, "there was no sample"
    quarter = 35 * 2**20 // PAGE
    above, below = (Process(pid, 1, 1, "S", 0, pid, quarter, quarter) for pid in (1, 2))
    job.meter.processes = [above, below]
    job.note_memory(40, is_exact=True)
    job.note_memory(30, is_exact=True)
    touched = 3 * 35  # not by the supervisor itself
    expected = [40, 40, 40, 50]
    assert [job.samples.peak_at_end(each) for each in (0, touched, touched + 10, touched + 20)] == expected
    job.meter.processes = [above, below, below]
    job.note_memory(31, is_exact=False)
    assert job.samples.peak_at_end(touched + 20) == 50, "it may have used more than this sample shows"
    job.meter.processes = [above]
    job.note_memory(1, is_exact=True)
    assert job.samples.peak_at_end(touched + 20) == 50, "its task had ended before this sample"


def test_the_memory_of_running_jobs_is_reported_once_a_minute_where_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    journal = Mock()
    jobs = RunningJobs(Mock(), journal, Mock(), ())

    def add(token: str, age: float, container: str | None = None) -> RunningJob:
        began = host.since_boot() - age
        owner = Supervisor(1, 1, host.boot_id(), 0.0, began, Resources(), None, None, container=container)
        job = jobs.jobs[token] = RunningJob(token, JobFolder(tmp_path), owner, is_child=False, peak_memory=500)
        return job

    old = add("old", 2 * MEMORY_INTERVAL)
    add("new", MEMORY_INTERVAL / 2)
    add("inside", 2 * MEMORY_INTERVAL, "docker://image")
    reported = journal.measured.call_args_list
    jobs.report_memory()
    assert reported == [call("old", peak_memory=500)]
    old.peak_memory = 800
    jobs.report_memory()
    assert len(reported) == 1, "not before the minute is over"
    clock[0] += MEMORY_INTERVAL
    jobs.report_memory()
    assert reported[1:] == [call("old", peak_memory=800)]
    old.peak_memory = 850
    clock[0] += MEMORY_INTERVAL
    jobs.report_memory()
    assert len(reported) == 2, "it has hardly grown"
