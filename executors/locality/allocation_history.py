"""The locations of current and past jobs, read from the store for the policies of plugins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, State
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.policies import Allocations, JobAllocation


class AllocationHistory:
    """All jobs in the store that have or had a location; each read fetches only what has changed since the last."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobAllocation] = {}
        self._read_at = self._loaded_at = float("-inf")

    def read(self, session: Session, stacks: Mapping[tuple[str, str], Sequence[str]]) -> Allocations:
        """Return the current allocations.

        :param stacks: by site and location, the locations that contain it
        """
        now = time.time()
        # Reading everything again drops jobs that the store has forgotten.
        if now - self._loaded_at > 3600.0:
            self.jobs, self._loaded_at, self._read_at = {}, now, float("-inf")
        amounts = JobRow.cpus, JobRow.memory, JobRow.disk, JobRow.gpus
        query = select(JobRow.token, JobRow.site, JobRow.location, JobRow.queue, JobRow.state, *amounts).order_by(
            JobRow.placed_at
        )
        is_first = self._read_at < 0
        # A change may become visible a minute later than its time stamp, because its transaction commits later.
        changed = JobRow.location.is_not(None) if is_first else JobRow.changed_at >= self._read_at - 60.0
        for row in session.execute(query.where(changed)):
            if row.location is None:  # the job was queued again
                self.jobs.pop(row.token, None)
                continue
            target = row.site if row.queue is None else f"{row.site}/{row.queue}"
            resources = Resources(row.cpus, row.memory, row.disk, row.gpus)
            self.jobs[row.token] = JobAllocation(target, (row.location,), State(row.state).value, resources)
        self._read_at = now
        return Allocations(self.jobs, stacks)
