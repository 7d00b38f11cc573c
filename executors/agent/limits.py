"""Enforce memory and time limits: measure running jobs, and terminate those that exceed a limit."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lading.executors.agent import process_tree
from lading.executors.agent.job_folder import EndCause
from lading.executors.agent.running import RunningJob
from lading.scheduling.model.reasons import because

# Jobs without a memory limit are sampled soon after their start, then less and less often, to find their peak, seconds.
# Sampling takes at most 1 % of the time, for all jobs together; a slow sample delays only the next one of
# its own job. Samples in a row stop after MOST_AT_ONCE seconds, so that they do not delay the start of a job.
FIRST_LOOK = 0.125
MOST_AT_ONCE = 0.05

# A measurement takes the kernel longer than a sample, which gives only a lower bound. A job whose sample exceeds its
# limit is measured at once. Any other job is measured only if it may use this much more than its sample shows, MiB, and
# all these measurements together take at most 2 % of a CPU.
UNSEEN = 8

INFINITY = float("inf")


class LimitEnforcer:
    def __init__(self) -> None:
        self._next_round = self._next_measurement = 0.0
        self._next_record = 0.0
        self._new_first = False

    def enforce(self, jobs: Iterable[RunningJob], *, kill_grace: float) -> float:
        """Sample the jobs that are due, and terminate those that exceed a limit.

        :returns: seconds until the next job is due
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
        """Sample the jobs that have a memory limit; returns seconds until the next round."""
        limited = [job for job in jobs if job.supervisor.memory_limit is not None and job.cause is None]
        if not limited:
            return INFINITY
        now = time.monotonic()
        if now >= self._next_round:
            # Count CPU time: where jobs compete for CPUs, sampling takes long, but limits matter even more.
            before = time.thread_time()
            for job in limited:
                self._look(job)
            # The pause grows if sampling all jobs would take more than a tenth of a CPU: a hundred jobs
            # take about 30 ms.
            self._next_round = now + max(0.2, 10 * (time.thread_time() - before))
            self._measure(limited)
        return self._next_round - time.monotonic()

    def _record(self, jobs: list[RunningJob]) -> float:
        """Sample the jobs without a memory limit that are due; returns seconds until the next is."""
        start = now = time.monotonic()
        jobs = [job for job in jobs if job.supervisor.memory_limit is None]
        for job in jobs:
            job.next_look = job.next_look or now + FIRST_LOOK
        if now >= self._next_record:
            self._new_first = not self._new_first  # alternate, so that neither new nor old jobs wait for ever
            looked = []
            for job in sorted(jobs, key=lambda job: ((job.peak_memory is not None) == self._new_first, job.next_look)):
                if now > start + MOST_AT_ONCE:
                    break
                if now >= job.next_look:
                    before = now
                    self._look(job)
                    looked.append(job)
                    now = time.monotonic()
                    pause = min(max(job.age, FIRST_LOOK), 1.0)
                    job.next_look = now + max(pause, 100 * (now - before))
            self._next_record = now + 100 * min(now - start, MOST_AT_ONCE)
            self._measure(looked)
        return max(min((job.next_look for job in jobs), default=INFINITY), self._next_record) - now

    def _look(self, job: RunningJob) -> None:
        if processes := process_tree.tree(job.supervisor.pid):
            job.meter.watch(processes)
            job.note_memory(job.meter.at_least, is_exact=job.meter.unseen < UNSEEN)

    def _measure(self, jobs: list[RunningJob]) -> None:
        """Measure the jobs whose sample is not enough, and kill those that exceed their limit."""
        for job in sorted(jobs, key=lambda job: job.measured_at):
            limit = INFINITY if job.supervisor.memory_limit is None else job.supervisor.memory_limit
            is_due = time.monotonic() >= self._next_measurement and job.meter.unseen >= UNSEEN
            if job.meter.at_least <= limit and not is_due:
                continue
            before = time.thread_time()
            used = job.meter.measure(job.meter.processes)
            job.measured_at = time.monotonic()
            self._next_measurement = job.measured_at + 50 * (time.thread_time() - before)
            job.note_memory(used, is_exact=True)
            if used > limit:
                job.kill(EndCause("out_of_memory", because("over_memory", used=used, limit=limit)))

    def _time_left(self, jobs: list[RunningJob]) -> float:
        left = [
            job.supervisor.time_limit - job.age
            for job in jobs
            if job.supervisor.time_limit is not None and job.cause is None
        ]
        return min(left, default=INFINITY)
