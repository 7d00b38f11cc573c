"""Job scripts as jobs: a task that leaves its script to the triggerer has ordered one, which is placed like any other.

The triggerer submits the script once it is placed (see :mod:`lading.hooks.batch.script_jobs`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from lading.executors import store
from lading.executors.controller.answers import STATE_OF_CAUSE
from lading.executors.controller.housekeeping import UNWANTED
from lading.executors.orchestrator import current
from lading.executors.orchestrator.orchestrator import OrderedScript, ScriptEnd
from lading.executors.store import LIVE, Change, JobRow, State
from lading.executors.store.tables import as_name
from lading.hooks.batch.script_jobs import JOB_SCRIPT, ScriptRequest
from lading.scheduling.reasons import free_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.hooks.site import Site
    from lading.scheduling.resources import Resources

# An order is found when the job that gave it ends. All are looked for this often, in seconds, because the end of a job
# can be stored in other ways, too, for example while no controller acts.
SECONDS_BETWEEN_SWEEPS = 30.0
# What a script has in common with the job that ordered it: its tenant, its scheduler, and the limits of its task.
COMMON = (
    "dag_id", "task_id", "run_id", "map_index", "try_number", "owner", "team", "dag_owner", "dag_tags", "executor_team",
    "priority", "max_instances", "run_max_instances", "max_jobs", "run_max_jobs", "max_usd",
)  # fmt: skip


class ScriptJobs:
    """The job scripts that tasks have left to the triggerer.

    :param sites: by name
    :param largest: returns the largest amount of each resource that any location of a site has; None: unknown
    """

    def __init__(self, sites: Mapping[str, Site[Any]], largest: Callable[[str], Resources | None]) -> None:
        self.sites = sites
        self.largest = largest
        self._live: set[str] = set()
        self._next_sweep = 0.0

    def add(self, session: Session, jobs: Sequence[str]) -> None:
        """Add the scripts that these jobs have ordered, which have just ended."""
        if jobs:
            self._add(session, jobs)

    @property
    def any_live(self) -> bool:
        return bool(self._live)

    @property
    def is_sweep_due(self) -> bool:
        return time.monotonic() >= self._next_sweep

    def sweep(self, session: Session) -> None:
        """Add the scripts that have been missed, and read which ones live."""
        self._next_sweep = time.monotonic() + SECONDS_BETWEEN_SWEEPS
        self._add(session, None)
        mine = JobRow.kind == JOB_SCRIPT, JobRow.state.in_(LIVE)
        self._live = {*session.scalars(select(JobRow.token).where(*mine))}

    def _add(self, session: Session, jobs: Sequence[str] | None) -> None:
        if not (orders := current.orchestrator().ordered_scripts(session, jobs)):
            return
        by_job = {order.job: order for order in orders}
        columns = [JobRow.token, JobRow.workload, *(getattr(JobRow, name) for name in COMMON)]
        rows: list[dict[str, Any]] = []
        for chunk in store.chunks(list(by_job)):
            for job, workload, *common in session.execute(select(*columns).where(JobRow.token.in_(chunk))):
                own = {"type": JOB_SCRIPT, "log_path": json.loads(workload).get("log_path")}
                shared = dict(zip(COMMON, common, strict=True))
                rows.append({**shared, **self._columns(by_job[job]), "workload": json.dumps(own)})
        store.add_jobs(session, rows)
        self._live.update(row["token"] for row in rows)

    def _columns(self, order: OrderedScript) -> dict[str, Any]:
        asked = order.request
        return {
            "token": order.token,
            "subject": order.subject,
            "kind": JOB_SCRIPT,
            "state": State.QUEUED,
            "unreported": False,
            "news": 0,
            "cpus": float(asked.ppn * asked.threads),
            "memory": self._memory(asked),
            "disk": 0,
            "gpus": float(asked.gpus or 0),
            "time_limit": asked.time,
            "site_hint": asked.site,
            "queue_hint": asked.queue,
            "nodes": asked.nodes,
            "ppn": asked.ppn,
            "threads": asked.threads,
        }

    def _memory(self, asked: ScriptRequest) -> int:
        """Return the memory by which a script is placed, MiB.

        A node has more for a script than for a task, next to which Airflow's supervisor runs.
        """
        memory, site, largest = asked.mem or 0, self.sites.get(asked.site), self.largest(asked.site)
        if site is None or largest is None or memory > largest.memory + site.memory_overhead:
            return memory
        return min(memory, largest.memory)

    def settle(self, session: Session, now: float) -> list[Change]:
        """End the scripts whose tasks no longer wait for them.

        Called before anything is placed, so that the task of a script that has ended cannot have resumed and ended
        since the last call: what the trigger told about the end would be gone.

        :param now: epoch seconds
        :returns: the changes that took effect
        """
        ends = current.orchestrator().ended_scripts(session, sorted(self._live))
        if not ends:
            return []
        placed_at: dict[str, float | None] = {}
        for chunk in store.chunks([end.token for end in ends]):
            found = session.execute(select(JobRow.token, JobRow.placed_at).where(JobRow.token.in_(chunk)))
            placed_at.update((row.token, row.placed_at) for row in found)
        changes = store.apply(session, [ended(end, placed_at.get(end.token), now) for end in ends])
        self._live.difference_update(end.token for end in ends)
        return changes


def ended(end: ScriptEnd, placed_at: float | None, now: float) -> Change:
    """Return the change for a script that has ended. The triggerer's clock has dated it.

    :param placed_at: epoch seconds; None: it was not placed
    """
    ended_at = min(now, max(placed_at or 0.0, end.ended_at or now))
    reason = None if end.text is None else free_text(end.text)
    values: dict[str, Any] = {
        "state": STATE_OF_CAUSE.get(end.cause, State.FAILED),
        "cause": end.cause,
        "reason": UNWANTED if reason is None and end.cause == "cancelled" else reason,
        "ended_at": ended_at,
        "exit_code": end.exit_code,
    }
    if end.started_at is not None and placed_at is not None:
        values["started_at"] = min(ended_at, max(placed_at, end.started_at))
    if end.native_id is not None:
        values["native_id"] = as_name(end.native_id)
    if end.node is not None:
        values["node"] = as_name(end.node)
    return Change(end.token, values, report=True)
