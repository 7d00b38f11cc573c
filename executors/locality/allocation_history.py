"""Where jobs are and were, as policies of third parties see it, read from the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, State
from lading.scheduling.placing.policies import Allocations, JobAllocation
from lading.scheduling.resources import Resources

# What another transaction has stored may be seen so much later than the time that it has noted, seconds.
OVERLAP = 60.0
# What the store has forgotten is forgotten here so often, seconds.
RELOAD_SECONDS = 3600.0


class AllocationHistory:
    """All jobs that the store has and that have, or had, a location; each look reads what has changed since."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobAllocation] = {}
        self._read_at = self._loaded_at = float("-inf")

    def read(self, session: Session, stacks: Mapping[tuple[str, str], Sequence[str]]) -> Allocations:
        """What is known now.

        :param stacks: by site and location, those in which it lies
        """
        now = time.time()
        if now - self._loaded_at > RELOAD_SECONDS:
            self.jobs, self._loaded_at, self._read_at = {}, now, float("-inf")
        amounts = JobRow.cpus, JobRow.memory, JobRow.disk, JobRow.gpus
        query = select(JobRow.token, JobRow.site, JobRow.location, JobRow.queue, JobRow.state, *amounts).order_by(
            JobRow.placed_at
        )
        is_first = self._read_at < 0
        changed = JobRow.location.is_not(None) if is_first else JobRow.changed_at >= self._read_at - OVERLAP
        for row in session.execute(query.where(changed)):
            if row.location is None:  # it waits again
                self.jobs.pop(row.token, None)
                continue
            target = row.site if row.queue is None else f"{row.site}/{row.queue}"
            resources = Resources(row.cpus, row.memory, row.disk, row.gpus)
            self.jobs[row.token] = JobAllocation(target, (row.location,), State(row.state).value, resources)
        self._read_at = now
        return Allocations(self.jobs, stacks)
