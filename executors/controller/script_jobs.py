"""Deferred job scripts as jobs: when a task defers, its script is queued and placed like any other job.

The triggerer submits the script once it is placed (see :mod:`lading.hooks.batch.script_jobs`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import DataError, SQLAlchemyError

from lading.executors import store
from lading.executors.controller.answers import STATE_OF_CAUSE
from lading.executors.controller.housekeeping import UNWANTED
from lading.executors.orchestrator.orchestrator import Orchestrator, OrderedScript, ScriptEnd
from lading.executors.store import LIVE, Change, JobRow, State
from lading.executors.store.tables import as_name
from lading.hooks.batch.script_jobs import JOB_SCRIPT, ScriptRequest
from lading.hooks.files.json_model import JsonModel, checked
from lading.hooks.files.logs import Trouble
from lading.hooks.polling.outside_clock import least_ahead
from lading.hooks.spool.values import Date, ExitCode
from lading.scheduling.model.light_dataclasses import dataclass
from lading.scheduling.model.reasons import free_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.hooks.site import Site
    from lading.scheduling.model.resources import Resources

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# What a script has in common with the job that ordered it: its tenant, its scheduler, and the limits of its task.
COMMON = (
    "dag_id", "task_id", "run_id", "map_index", "try_number", "owner", "team", "dag_owner", "dag_tags", "executor_team",
    "priority", "max_instances", "run_max_instances", "max_jobs", "run_max_jobs", "max_usd",
)  # fmt: skip


class ScriptJobs:
    """The job scripts that tasks have left to the triggerer.

    :param host: the orchestrator of these tasks
    :param sites: by name
    :param largest: returns the largest amount of each resource that any location of a site has; None: unknown
    """

    def __init__(
        self, host: Orchestrator, sites: Mapping[str, Site[Any]], largest: Callable[[str], Resources | None]
    ) -> None:
        self.host = host
        self.sites = sites
        self.largest = largest
        self._live: set[str] = set()
        self._next_sweep = 0.0
        self.trouble = Trouble(log)

    @property
    def any_live(self) -> bool:
        return bool(self._live)

    @property
    def is_sweep_due(self) -> bool:
        return time.monotonic() >= self._next_sweep

    def sweep(self) -> None:
        """Add the scripts that have been missed, and read which ones live."""
        # Orders are read when the deferring job ends. This sweep finds those that were missed, for example
        # while no controller acted.
        self._next_sweep = time.monotonic() + 30.0
        self.add(None)
        mine = JobRow.kind == JOB_SCRIPT, JobRow.state.in_(LIVE)
        with self.host.session() as session:
            self._live = {*session.scalars(select(JobRow.token).where(*mine))}

    def add(self, jobs: Sequence[str] | None) -> None:
        """Add the scripts that these jobs have ordered, which have just ended; None: all that are missing."""
        if jobs is not None and not jobs:
            return
        with self.host.session() as session:
            orders = self.host.ordered_scripts(session, jobs)
        what = "A job script could not be queued"
        for tokens in self.write(self._add, orders, what, self.host.refuse_script):
            self._live.update(tokens)

    def _add(self, session: Session, orders: Sequence[OrderedScript]) -> list[str]:
        by_job = {order.job: order for order in orders}
        columns = [JobRow.token, JobRow.workload, *(getattr(JobRow, name) for name in COMMON)]
        rows: list[dict[str, Any]] = []
        for chunk in store.chunks(list(by_job)):
            for job, workload, *common in session.execute(select(*columns).where(JobRow.token.in_(chunk))):
                own = {"type": JOB_SCRIPT, "log_path": json.loads(workload).get("log_path")}
                shared = dict(zip(COMMON, common, strict=True))
                rows.append({**shared, **self._columns(by_job[job]), "workload": json.dumps(own)})
        store.add_jobs(session, rows)
        return [row["token"] for row in rows]

    def write(
        self,
        step: Callable[[Session, Sequence[T]], R],
        items: Sequence[T],
        what: str,
        refuse: Callable[[Session, T, Exception], None] | None = None,
    ) -> list[R]:
        """Store items in one transaction; if one cannot be stored, each in its own, so that it costs only itself.

        What a task wrote is checked when it is read, but one author's data must not stop everyone's controller.

        :param what: the failure, as logs name it
        :param refuse: called with an item that cannot be stored
        :returns: the results of the steps that worked
        :raises SQLAlchemyError: the database failed, whatever the data
        """
        if not items:
            return []
        try:
            with self.host.session() as session:
                return [step(session, items)]
        except Exception as error:
            if isinstance(error, SQLAlchemyError) and not isinstance(error, DataError):
                raise
            if len(items) == 1:
                self.trouble.begin(what, error, traceback=True)
                if refuse is not None:
                    with self.host.session() as session:
                        refuse(session, items[0], error)
                return []
        return [result for each in items for result in self.write(step, [each], what, refuse)]

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
            "gpus": 0.0,
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

    def ends(self, now: float) -> list[Change]:
        """Return the ends of the scripts whose tasks no longer wait for them.

        Called after the queue is read and before anything is placed. So no job of a task that has resumed can have
        ended since the last call; Airflow would then have deleted the event of the trigger.

        :param now: epoch seconds
        """
        placed_at: dict[str, float | None] = {}
        with self.host.session() as session:
            ends = self.host.ended_scripts(session, sorted(self._live))
            for chunk in store.chunks([end.token for end in ends]):
                found = session.execute(select(JobRow.token, JobRow.placed_at).where(JobRow.token.in_(chunk)))
                placed_at.update((row.token, row.placed_at) for row in found)
        return [ended(end, placed_at.get(end.token), now) for end in ends]

    def forget(self, tokens: Iterable[str]) -> None:
        """Forget scripts whose ends have been stored. The next sweep finds those that could not be."""
        self._live.difference_update(tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndValues(JsonModel):
    """What the end of a script is stored with. A task can write anything, and the columns cannot hold everything."""

    exit_code: ExitCode | None = None
    started_at: Date | None = None
    ended_at: Date | None = None

    @classmethod
    def of_end(cls, end: ScriptEnd) -> EndValues:
        """Return the valid values of an end; those that are not valid are unknown."""
        values: dict[str, Any] = {}
        for name in ("exit_code", "started_at", "ended_at"):
            try:
                values |= checked(cls, {name: getattr(end, name)})
            except ValueError as error:
                log.warning("The end of job script %s: %s", end.token, error)
        return cls(**values)


def ended(end: ScriptEnd, placed_at: float | None, now: float) -> Change:
    """Return the change for a script that has ended.

    The triggerer's clock has dated start and end, so both are shifted by what it must be ahead.

    :param placed_at: epoch seconds; None: it was not placed
    """
    valid, earliest = EndValues.of_end(end), placed_at or 0.0
    started_at, ended_at = valid.started_at, now if valid.ended_at is None else valid.ended_at
    ahead = least_ahead(ended_at, earliest, now)
    if started_at is not None:
        ahead += least_ahead(started_at - ahead, earliest, now)
    # A script that took longer than there was time for cannot be dated by a shift.
    ended_at = min(now, max(earliest, ended_at - ahead))
    reason = None if end.text is None else free_text(end.text)
    values: dict[str, Any] = {
        "state": STATE_OF_CAUSE.get(end.cause, State.FAILED),
        "cause": end.cause,
        "reason": UNWANTED if reason is None and end.cause == "cancelled" else reason,
        "ended_at": ended_at,
        "exit_code": valid.exit_code,
    }
    if started_at is not None and placed_at is not None:
        values["started_at"] = min(ended_at, max(placed_at, started_at - ahead))
    if end.native_id is not None:
        values["native_id"] = as_name(end.native_id)
    if end.node is not None:
        values["node"] = as_name(end.node)
    return Change(end.token, values, report=True)
