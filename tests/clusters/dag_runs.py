"""A Dag and a run of it as Airflow's tables have them, and its jobs as Lading's do."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.types import DagRunType
from sqlalchemy import insert
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.store import State
from lading.operators import resources

NOW = 1_800_000_000.0


def add_run(session: Session) -> None:
    """The run ``r`` of the Dag ``d``."""
    session.add(DagBundleModel(name="bundle"))
    session.flush()
    session.add(DagModel(dag_id="d", bundle_name="bundle", is_paused=False))
    session.add(DagRun(dag_id="d", run_id="r", run_type=DagRunType.MANUAL, state="running"))


def task(
    session: Session,
    task_id: str,
    after: str = "",
    state: str | None = None,
    size: int = 0,
    begun: float = NOW,
    **hints: Any,
) -> None:
    """A task of the run, mapped where it has a size; see :func:`store_dag`."""
    session.info.setdefault("tasks", {})[task_id] = after.split(), bool(size)
    hints = {"cpus": 4, "time": 600, "ahead": True, **hints}
    config = resources(**hints)
    begun = datetime.fromtimestamp(begun, timezone.utc) if state == "running" else None
    for number in range(size) if size else [-1]:
        values = {
            "id": uuid7(), "dag_id": "d", "run_id": "r", "task_id": task_id, "map_index": number, "state": state,
            "pool": "p", "pool_slots": 1, "try_number": 1, "max_tries": 0, "executor_config": config,
            "start_date": begun,
        }  # fmt: skip
        session.execute(insert(TaskInstance.__table__), [values])


def store_dag(session: Session) -> None:
    """Store the Dag of the tasks that were added in this session."""
    tasks: dict[str, Any] = {}
    with DAG("d", schedule=None) as dag:
        for task_id, (after, is_mapped) in session.info["tasks"].items():
            if is_mapped:
                tasks[task_id] = BashOperator.partial(task_id=task_id).expand(bash_command=[":"])
            else:
                tasks[task_id] = BashOperator(task_id=task_id, bash_command=":")
            for each in after:
                tasks[each] >> tasks[task_id]
    session.flush()
    SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "bundle", session=session)


def job(session: Session, task_id: str, state: State, **columns: Any) -> None:
    """Its job at Lading."""
    known: dict[str, Any] = {
        "cpus": 4.0,
        "memory": 512,
        "disk": 0,
        "gpus": 0.0,
        "dag_id": "d",
        "run_id": "r",
    }
    known |= {"token": task_id, "queued_at": NOW}
    known |= {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "priority": 1, "unreported": False, "news": 0}
    known |= {"map_index": -1, "try_number": 1}
    store.add_job(session, task_id=task_id, state=state, **{**known, **columns})
