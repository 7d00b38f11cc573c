"""What is learned from refusals: the limit that they name, and when more is submitted. By a clock of its own."""

from __future__ import annotations

import random
import sys

import pytest

from lading.hooks.batch.refusals import SubmitError, limit_on_jobs
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.batch.submit_limits import FIRST_PAUSE, LONGEST_PAUSE, BackPressure
from lading.hooks.batch.system import Profile
from lading.hooks.ssh.answer import CommandResult

ASSOC = "sbatch: error: AssocMaxSubmitJobLimit sbatch: error: Batch job submission failed: Job violates accounting"


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        (ASSOC, "AssocMaxSubmitJobLimit"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerUserLimit"),
        ("qsub: would exceed queue batch's per-user limit of jobs in 'Q' state", "limit of jobs in"),
        ("qsub: Maximum number of jobs for user 'hpc' already in queue batch", "Maximum number of jobs for user"),
        (
            "qsub: submit error (Maximum number of jobs already in queue for user MSG=total number of current user's "
            "jobs exceeds the queue limit: user hpc@trq1, queue short)",
            "Maximum number of jobs already in queue for user",
        ),
        (
            "Unable to run job: job rejected: Only 75 jobs are allowed per user (current job count: 75)",
            "Only 75 jobs are allowed per user",
        ),
        ("User <hpc>: Pending job threshold reached. Retrying in 60 seconds...", "Pending job threshold"),
        ("sbatch: error: Batch job submission failed: Requested partition configuration not available now", None),
        ("slurm: licenses currently unavailable", None),
        ("qsub: job rejected: array has more than 75000 tasks, max_aj_tasks", None),
    ],
)
def test_how_refusals_name_a_limit_on_jobs(message: str, limit: str | None) -> None:
    assert limit_on_jobs(message) == limit


def test_a_limit_on_jobs_is_none_on_the_size_of_arrays() -> None:
    assert not SubmitError("limit", "Maximum number of jobs already in queue (array of 40)").is_of_arrays
    assert SubmitError("limit", "array too large").is_of_arrays


class Queue:
    """A queue with a limit, of which some places may be others', and which counts ends a little late."""

    def __init__(self, limit: int, seed: int) -> None:
        self.now, self.limit, self.random = 0.0, limit, random.Random(seed)
        self.pressure = BackPressure(100, lambda: self.now)
        self.jobs: list[float] = []  # when each ends
        self.counted: list[float] = []  # until when it is counted
        self.refused = self.ends = self.idle = 0

    def round(self, waiting: int) -> int:
        """One round of submissions; returns how many were taken."""
        over = [end for end in self.jobs if end <= self.now]
        self.jobs = [end for end in self.jobs if end > self.now]
        self.counted = [end for end in self.counted if end > self.now]
        for _ in over:
            self.ends += 1
            self.pressure.release()
        taken, room = 0, min(waiting, self.pressure.room(len(self.jobs)))
        while room > 0:
            size = min(room, self.pressure.chunk)
            if len(self.counted) + size > self.limit:
                self.refused += 1
                self.pressure.refuse(size, len(self.jobs), ASSOC)
                break
            ends = [self.now + self.random.uniform(5, 60) for _ in range(size)]
            self.jobs += ends
            self.counted += [end + self.random.uniform(0, 3) for end in ends]
            self.pressure.accept(size, len(self.jobs))
            taken, room = taken + size, room - size
        return taken


@pytest.mark.parametrize("limit", [1, 2, 12, 50])
@pytest.mark.parametrize("seed", range(5))
def test_no_more_is_refused_than_once_a_minute_and_for_each_end(limit: int, seed: int) -> None:
    queue, waiting, idle = Queue(limit, seed), 300, 0
    while waiting or queue.jobs:
        waiting -= queue.round(waiting)
        idle += 2 if waiting and not queue.jobs else 0
        # The first array that is too large is followed at once by single jobs: that is one call more.
        assert queue.refused <= 2 + queue.now // BackPressure.seconds_between_probes + queue.ends
        queue.now += 2.0
        assert queue.now < 100_000
    # One slot alone is idle for a minute where its last job was counted for longer than usual.
    assert idle <= (0.25 if limit == 1 else 0.05) * queue.now, "the cluster is not idle while jobs wait"
    assert queue.refused <= queue.now / BackPressure.seconds_between_probes + queue.ends / 4 + 2, (
        "ends are mostly followed by room"
    )


def test_a_learned_limit_falls_when_others_use_it_up() -> None:
    now = 0.0
    pressure = BackPressure(1, lambda: now)
    assert pressure.room(12) == sys.maxsize
    pressure.refuse(1, 12, ASSOC)
    assert (pressure.most, pressure.room(12), pressure.limit) == (12, 0, "AssocMaxSubmitJobLimit")
    pressure.release()
    assert pressure.room(11) == 0, "the batch system counts it out in a moment"
    now += 6
    assert pressure.room(11) == 1
    pressure.refuse(1, 11, ASSOC)
    assert pressure.room(11) == 0
    now += BackPressure.seconds_between_probes
    assert pressure.room(11) == 1, "the probe"
    pressure.refuse(1, 11, ASSOC)
    assert pressure.most == 11


def test_of_two_limits_the_one_that_leaves_less_room_is_named() -> None:
    pressure = BackPressure(100, clock=lambda: 0.0)
    pressure.refuse(1, 12, ASSOC)
    room, why = pressure.allow("slurm", Profile(max_submitted=10), 10)
    assert (room, why.code) == (0, "max_submitted")
    room, why = pressure.allow("slurm", Profile(max_submitted=20), 12)
    assert (room, why.code) == (0, "submit_limit")


def test_an_array_that_cannot_be_divided_is_tried_again_after_a_pause_and_tells_no_limit_on_single_jobs() -> None:
    pressure = BackPressure(100, clock=lambda: 0.0)
    for number in (1, 20):
        for _ in range(number):
            with pytest.raises(SubmitError):
                pressure.read(SLURM(), CommandResult(1, "", ASSOC), 40, 5, divisible=False)
        room, why = pressure.allow("slurm", Profile(), 5)
        assert (room, why.code, ASSOC in why.sentence) == (0, "site_limit", True)
        longest = FIRST_PAUSE if number == 1 else LONGEST_PAUSE
        assert longest / 2 - 1 < pressure.backoff.left <= longest
    assert (pressure.most, pressure.limit) == (None, None)
    pressure.accept(40, 45)
    assert pressure.allow("slurm", Profile(), 45)[0] == sys.maxsize


def test_after_a_submission_without_an_answer_nothing_is_submitted_for_a_while() -> None:
    pressure = BackPressure(100, clock=lambda: 0.0)
    with pytest.raises(SubmitError):
        pressure.read(SLURM(), CommandResult(None, "", "connection lost"), 1, 5)
    room, why = pressure.allow("slurm", Profile(), 5)
    assert (room, why.code) == (0, "submit_unanswered")


def test_an_array_that_exceeds_a_learned_limit_is_tried_when_a_single_job_would_be() -> None:
    now = 0.0
    pressure = BackPressure(100, clock=lambda: now)
    pressure.refuse(1, 12, ASSOC)
    assert pressure.allow("slurm", Profile(), 12, 40)[0] == 0
    now += BackPressure.seconds_between_probes
    assert pressure.allow("slurm", Profile(), 12, 40)[0] == 40
    assert pressure.allow("slurm", Profile(max_submitted=50), 12, 40)[0] == 38, "that limit is not a learned one"
