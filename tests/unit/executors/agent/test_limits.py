"""The limits of running jobs, without any process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lading.executors.agent import limits
from lading.executors.agent.job_folder import Supervisor
from lading.executors.agent.limits import LimitEnforcer
from lading.executors.agent.running import RunningJob
from lading.hooks.files import host
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.model.resources import Resources

NOBODY = 2**22 + 1
LIMIT = 900


@pytest.mark.parametrize(
    ("age", "set_forward_by", "cause"),
    [(1000, 0, "time_limit"), (800, 0, None), (800, 7200, None), (1000, -7200, "time_limit")],
)
def test_a_time_limit_is_about_the_time_that_passes_not_about_clocks(
    tmp_path: Path, age: float, set_forward_by: float, cause: str | None
) -> None:
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = int((boot - 2 * age) * os.sysconf("SC_CLK_TCK"))  # it has run another job before
    at = time.time() - age - set_forward_by
    supervisor = Supervisor(NOBODY, started, host.boot_id(), at, boot - age, Resources(1, 64), None, LIMIT)
    job = RunningJob("job", JobFolder(tmp_path), supervisor, is_child=False)
    until_next_look = LimitEnforcer().enforce([job], kill_grace=10)
    assert (job.cause and job.cause.cause) == cause
    assert 0 <= until_next_look <= LIMIT


class Looks:
    """Looks that take their time, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.cost: dict[str, float] = {}
        self.looked: list[str] = []
        self.rounds: list[float] = []
        monkeypatch.setattr(limits.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(LimitEnforcer, "_look", lambda _, job, **named: self.look(job))

    def look(self, job: RunningJob) -> None:
        self.now += self.cost.get(job.token, 0.02)
        self.looked.append(job.token)
        job.peak_memory = 1

    def go(self, meter: LimitEnforcer, jobs: list[RunningJob], seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            before = self.now
            pause = meter.enforce(jobs, kill_grace=10)
            self.rounds.append(self.now - before)
            self.now += max(pause, 0.001)


def unlimited(folder: Path, count: int) -> list[RunningJob]:
    supervisor = Supervisor(NOBODY, 1, host.boot_id(), 0.0, 0.0, Resources(1, 64), None, None)
    return [RunningJob(f"job{number}", JobFolder(folder), supervisor, is_child=False) for number in range(count)]


def test_peaks_are_looked_for_in_a_hundredth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many jobs, too; each comes to its turn, and a start never waits for long."""
    looks, jobs, meter = Looks(monkeypatch), unlimited(tmp_path, 20), LimitEnforcer()
    assert meter.enforce(jobs, kill_grace=10) == limits.FIRST_LOOK
    looks.go(meter, jobs, 300)
    assert max(looks.rounds) < limits.MOST_AT_ONCE + 0.03
    assert sum(looks.rounds) < 300 / 100 * 1.3
    assert {*looks.looked} == {job.token for job in jobs}


def test_a_job_that_is_slow_to_measure_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, jobs, meter = Looks(monkeypatch), unlimited(tmp_path, 3), LimitEnforcer()
    looks.cost["job0"] = 2.0
    looks.go(meter, jobs, 100)
    assert looks.looked.count("job0") == 1
    assert looks.looked.count("job1") > 10


def test_new_jobs_and_old_ones_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, jobs, meter = Looks(monkeypatch), unlimited(tmp_path, 200), LimitEnforcer()
    old = jobs[:40]
    looks.go(meter, old, 200)
    looks.looked.clear()
    looks.go(meter, jobs, 60)
    of_old = sum(token in {job.token for job in old} for token in looks.looked)
    assert 0.3 < of_old / len(looks.looked) < 0.7
