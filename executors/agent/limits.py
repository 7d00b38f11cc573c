"""Enforces the limits of memory and time: measures running jobs, and ends those that go beyond a limit."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lading.executors.agent import process_tree
from lading.executors.agent.job_folder import EndCause
from lading.executors.agent.running import RunningJob
from lading.scheduling.reasons import because

# Jobs with a memory limit are looked at this often, seconds; less often when looking takes long (a large tree, many
# jobs), so that it never takes more than one part in LEISURE of the time.
INTERVAL = 0.2
LEISURE = 25

# The peak of jobs without a limit is found by looking once soon after the start, then now and then, seconds. Looking
# takes one part in PEAK_LEISURE of the time, of all jobs together where a look is short; one that is not is charged to
# its own job alone. No more is looked at in a row than a start may wait for.
FIRST_LOOK = 1.0
PEAK_INTERVAL = 5.0
PEAK_LEISURE = 100
MOST_AT_ONCE = 0.05

# The exact measurement costs more than the upper bound, so without a limit it waits until the bound has grown by
# this, MiB.
MOVED = 8

INFINITY = float("inf")


class LimitEnforcer:
    """Enforces the limits of the jobs and records their peak memory."""

    def __init__(self) -> None:
        self._next_round = 0.0
        self._next_record = 0.0
        self._new_first = False

    def enforce(self, jobs: Iterable[RunningJob], *, kill_grace: float) -> float:
        """Look at the jobs whose time has come, and end those that are beyond a limit.

        :returns: seconds until the next job is due for a look
        """
        live = [job for job in jobs if not job.task_has_ended]
        for job in live:
            limit = job.supervisor.time_limit
            if limit is not None and job.cause is None and job.age > limit:
                job.end(
                    EndCause("time_limit", because("over_time", limit=limit)),
                    kill_grace,
                )
        return max(0.0, min(self._guard(live), self._record(live), self._time_left(live)))

    def _guard(self, jobs: list[RunningJob]) -> float:
        """Measure the jobs that have a memory limit."""
        limited = [job for job in jobs if job.supervisor.memory_limit is not None and job.cause is None]
        if not limited:
            return INFINITY
        now = time.monotonic()
        if now >= self._next_round:
            for job in limited:
                self._compare(job)
            self._next_round = now + max(INTERVAL, LEISURE * (time.monotonic() - now))
        return self._next_round - time.monotonic()

    def _compare(self, job: RunningJob) -> None:
        limit = job.supervisor.memory_limit
        assert limit is not None
        processes = process_tree.tree(job.supervisor.pid)
        job.meter.watch(processes)
        if process_tree.resident(processes) <= limit:
            return
        used = job.meter.measure(processes)
        job.peak_memory = max(job.peak_memory, used)
        if used > limit:
            job.kill(EndCause("out_of_memory", because("over_memory", used=used, limit=limit)))

    def _record(self, jobs: list[RunningJob]) -> float:
        """Measure the jobs whose peak has not been looked for lately."""
        start = now = time.monotonic()
        for job in jobs:
            job.next_look = job.next_look or now + FIRST_LOOK
        if now >= self._next_record:
            self._new_first = not self._new_first  # in turns: neither shall wait for ever for the others
            for job in sorted(jobs, key=lambda job: ((job.measured_at_bound > 0) == self._new_first, job.next_look)):
                if now > start + MOST_AT_ONCE:
                    break
                if now >= job.next_look:
                    before = now
                    self._look(job)
                    now = time.monotonic()
                    job.next_look = now + max(PEAK_INTERVAL, PEAK_LEISURE * (now - before))
            self._next_record = now + PEAK_LEISURE * min(now - start, MOST_AT_ONCE)
        return max(min((job.next_look for job in jobs), default=INFINITY), self._next_record) - now

    def _look(self, job: RunningJob) -> None:
        processes = process_tree.tree(job.supervisor.pid)
        job.meter.watch(processes)
        bound = process_tree.resident(processes)
        if bound > job.measured_at_bound + MOVED:
            job.measured_at_bound = bound
            job.peak_memory = max(job.peak_memory, job.meter.measure(processes))

    def _time_left(self, jobs: list[RunningJob]) -> float:
        left = [
            job.supervisor.time_limit - job.age
            for job in jobs
            if job.supervisor.time_limit is not None and job.cause is None
        ]
        return min(left, default=INFINITY)
