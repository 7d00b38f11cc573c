"""Enforces the limits of memory and time: measures running jobs, and ends those that go beyond a limit."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lading.executors.agent import process_tree
from lading.executors.agent.job_folder import EndCause
from lading.executors.agent.running import RunningJob
from lading.scheduling.reasons import because

# Jobs with a memory limit are looked at this often, seconds; less often when the looks at all of them take so long that
# it would be more than one part in LOOK_LEISURE of the time of a CPU: those at a hundred jobs take about 30 ms. A job
# that has exceeded its limit, by totals, is measured at once; else measurements take no more than one part in LEISURE.
INTERVAL = 0.2
LOOK_LEISURE = 10
LEISURE = 25

# The peak of jobs without a limit is found by looking soon after the start, then less and less often, seconds. Looking
# takes one part in PEAK_LEISURE of the time, of all jobs together where a look is short; one that is not is charged to
# its own job alone. No more is looked at in a row than a start may wait for.
FIRST_LOOK = 0.125
PEAK_INTERVAL = 1.0
PEAK_LEISURE = 100
MOST_AT_ONCE = 0.05

# A measurement costs more than a look, so it waits until it may differ from the one before by this, MiB.
MOVED = 8

INFINITY = float("inf")


class LimitEnforcer:
    """Enforces the limits of the jobs and records their peak memory."""

    def __init__(self) -> None:
        self._next_round = self._next_measurement = 0.0
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
        """Look at the jobs that have a memory limit."""
        limited = [job for job in jobs if job.supervisor.memory_limit is not None and job.cause is None]
        if not limited:
            return INFINITY
        now = time.monotonic()
        if now >= self._next_round:
            # By CPU time: where jobs compete for the CPUs a look lasts, but a limit is to be enforced all the more.
            before, measuring = time.thread_time(), 0.0
            for job in sorted(limited, key=lambda job: job.measured_at):
                took = self._look(job, may_measure=time.monotonic() >= self._next_measurement)
                if took:
                    measuring += took
                    self._next_measurement = time.monotonic() + LEISURE * took
            looking = time.thread_time() - before - measuring
            self._next_round = now + max(INTERVAL, LOOK_LEISURE * looking)
        return self._next_round - time.monotonic()

    def _record(self, jobs: list[RunningJob]) -> float:
        """Look at the jobs whose peak has not been looked for lately; those with a limit are looked at anyway."""
        start = now = time.monotonic()
        jobs = [job for job in jobs if job.supervisor.memory_limit is None]
        for job in jobs:
            job.next_look = job.next_look or now + FIRST_LOOK
        if now >= self._next_record:
            self._new_first = not self._new_first  # in turns: neither shall wait for ever for the others
            for job in sorted(jobs, key=lambda job: ((job.peak_memory is not None) == self._new_first, job.next_look)):
                if now > start + MOST_AT_ONCE:
                    break
                if now >= job.next_look:
                    before = now
                    self._look(job)
                    now = time.monotonic()
                    pause = min(max(job.age, FIRST_LOOK), PEAK_INTERVAL)
                    job.next_look = now + max(pause, PEAK_LEISURE * (now - before))
            self._next_record = now + PEAK_LEISURE * min(now - start, MOST_AT_ONCE)
        return max(min((job.next_look for job in jobs), default=INFINITY), self._next_record) - now

    def _look(self, job: RunningJob, *, may_measure: bool = True) -> float:
        """Look at a job, measure it where that may say something new, and end it if it uses more than it may.

        :param may_measure: whether there is time for that; where its limit is at stake it is measured anyway
        :returns: the CPU seconds that measuring took
        """
        limit = INFINITY if job.supervisor.memory_limit is None else job.supervisor.memory_limit
        processes = process_tree.tree(job.supervisor.pid)
        if not processes:
            return 0.0
        job.meter.watch(processes)
        if job.meter.at_least <= limit and not (may_measure and job.meter.moved >= MOVED):
            return 0.0
        before = time.thread_time()
        used = job.meter.measure(processes)
        job.measured_at = time.monotonic()
        job.peak_memory = max(job.peak_memory or 0, used)
        if used > limit:
            job.kill(EndCause("out_of_memory", because("over_memory", used=used, limit=limit)))
        return time.thread_time() - before

    def _time_left(self, jobs: list[RunningJob]) -> float:
        left = [
            job.supervisor.time_limit - job.age
            for job in jobs
            if job.supervisor.time_limit is not None and job.cause is None
        ]
        return min(left, default=INFINITY)
