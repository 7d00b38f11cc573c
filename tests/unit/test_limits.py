"""The limits of running jobs, without any process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lading.executors import limits
from lading.executors.job_folder import Supervisor
from lading.executors.limits import Limits
from lading.executors.running import RunningJob
from lading.hooks import machine
from lading.hooks.spool import JobFolder
from lading.scheduling.resources import Resources

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
    supervisor = Supervisor(NOBODY, started, machine.boot_id(), at, boot - age, Resources(1, 64), None, LIMIT)
    job = RunningJob("job", JobFolder(tmp_path), supervisor, is_child=False)
    until_next_look = Limits().enforce([job], kill_grace=10)
    assert (job.cause and job.cause.cause) == cause
    assert 0 <= until_next_look <= LIMIT


def test_peaks_are_looked_for_in_a_hundredth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many jobs, too; each comes to its turn, and a start never waits for long."""
    now, looks = 1000.0, []

    def look(self: Limits, job: RunningJob) -> None:
        nonlocal now
        now += 0.02
        looks.append((now, job.token))

    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    monkeypatch.setattr(Limits, "_look", look)
    supervisor = Supervisor(NOBODY, 1, machine.boot_id(), 0.0, 0.0, Resources(1, 64), None, None)
    jobs = [RunningJob(f"job{number}", JobFolder(tmp_path), supervisor, is_child=False) for number in range(20)]
    rounds, meter = [], Limits()
    assert meter.enforce(jobs, kill_grace=10) == limits.FIRST_LOOK
    while now < 1300:
        before = now
        pause = meter.enforce(jobs, kill_grace=10)
        rounds.append(now - before)
        now += max(pause, 0.001)
    assert max(rounds) < limits.MOST_AT_ONCE + 0.03
    assert sum(rounds) < 300 / 100 + 0.1
    assert {token for _, token in looks} == {job.token for job in jobs}
