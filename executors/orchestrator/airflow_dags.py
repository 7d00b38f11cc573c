"""The structure of Dags as stored by Airflow, and what earlier runs tell about mapped tasks and branches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow import settings
from airflow.utils.state import TaskInstanceState

from lading.executors.orchestrator import airflow_runs as runs
from lading.executors.orchestrator.airflow_facts import DagFacts
from lading.executors.orchestrator.airflow_versions import cached_dags
from lading.executors.orchestrator.executor_names import goes_to_lading
from lading.executors.orchestrator.orchestrator import DagPast, DagStructure, DagTask, Forecaster
from lading.executors.store.gangs.runs import DagRunKey
from lading.hooks.files.logs import Trouble

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# The trigger rules under which a task no longer runs once an upstream task has failed.
NEED_SUCCESS = frozenset(("all_success", "none_failed", "none_failed_min_one_success", "none_skipped"))
TROUBLE = "The structure of some Dags cannot be read, so their jobs are planned without the tasks after them"


class Dags(Forecaster):
    """What is known about Dags. A structure is read once per version, the past again from time to time.

    Only the Dags read last are kept, because a controller runs for months.
    """

    most_dags = 50
    """Dags that are cached."""

    def __init__(self) -> None:
        self.bag = cached_dags(self.most_dags)
        self.structures: dict[Any, tuple[Any, DagStructure]] = {}
        self.pasts: dict[str, tuple[float, DagPast]] = {}
        self.trouble = Trouble(log)
        self._is_ours = cache(goes_to_lading)
        self._facts = DagFacts()

    def read_structures(self, session: Session, runs_: Iterable[DagRunKey]) -> Mapping[DagRunKey, DagStructure | None]:
        return {key: self.structure(session, run) for key, run in runs.dag_runs(session, runs_).items()}

    def facts(self, session: Session, dag_id: str) -> Mapping[str, Any]:
        return self._facts.columns(session, dag_id)

    def is_ours(self, executor: str | None, team: str | None) -> bool:
        return self._is_ours(executor, team)

    @property
    def zone(self) -> tzinfo:
        return settings.TIMEZONE

    def structure(self, session: Session, run: DagRun) -> DagStructure | None:
        """Return the structure of a run's Dag; None: it is unreadable, so its upcoming tasks are unknown."""
        try:
            dag = self.bag.get_dag_for_run(run, session)
            if dag is None:
                return None
            known = self.structures.get(run.dag_id)
            if known is None or known[0] is not dag:
                self.structures.pop(run.dag_id, None)
                self.structures[run.dag_id] = known = dag, structure_of(dag)
                if len(self.structures) > self.most_dags:
                    del self.structures[next(iter(self.structures))]
            return known[1]
        except Exception as error:  # stored by another version of Airflow or of a provider
            self.trouble.begin(TROUBLE, error, traceback=True)
            return None

    def past(self, session: Session, dag_id: str) -> DagPast:
        now = time.monotonic()
        stale_at, found = self.pasts.get(dag_id, (0.0, DagPast()))
        if now >= stale_at:
            # How often a task was skipped is counted from the last ten ended runs, and again after a minute.
            found = past_of(runs.past_states(session, dag_id, 10))
            self.pasts[dag_id] = now + 60.0, found
        return found


def structure_of(dag: Any) -> DagStructure:
    """Convert a Dag as stored by Airflow."""
    found = {}
    groups = {task_id: mapped_group(task) for task_id, task in dag.task_dict.items()}
    for task_id, task in dag.task_dict.items():
        group, upstream = groups[task_id], tuple(sorted(task.upstream_task_ids))
        limits = [each for each in (task.max_active_tis_per_dag, task.max_active_tis_per_dagrun) if each is not None]
        found[task_id] = DagTask(
            upstream,
            frozenset(each for each in upstream if group is not None and groups.get(each) == group),
            bool(task.is_mapped) or group is not None,
            bool(task.inherits_from_empty_operator) and not (task.has_on_execute_callback or task.outlets),
            str(getattr(task.trigger_rule, "value", task.trigger_rule)) in NEED_SUCCESS,
            task.executor,
            min(limits, default=None),
            int(task.priority_weight),
        )
    return DagStructure(found, dag.max_active_tasks, dag.timezone)


def mapped_group(task: Any) -> str | None:
    """Return the id of the innermost mapped task group that contains a task; None: there is none."""
    group = task.get_closest_mapped_task_group()
    return None if group is None else str(group.group_id)


def past_of(states: list[dict[str, Any]]) -> DagPast:
    """Summarize the states of the task instances of runs, given latest run first."""
    if not states:
        return DagPast()
    skipped = TaskInstanceState.SKIPPED.value
    lengths = {task_id: sum(counts.values()) for task_id, counts in states[0].items()}
    often = set()
    for task_id in {task_id for run in states for task_id in run}:
        ran = [run[task_id] for run in states if task_id in run]
        times = sum(counts[skipped] == sum(counts.values()) for counts in ran)
        # A task that was skipped in more than half of those runs is not expected to run.
        if times > 0.5 * len(ran):
            often.add(task_id)
    return DagPast(lengths, frozenset(often))
