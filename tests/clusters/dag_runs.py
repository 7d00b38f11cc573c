"""A run of a Dag as Airflow's tables have it, and its jobs as Lading's do."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunType
from sqlalchemy import insert
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.store import State
from lading.operators import resources
from lading.scheduling.hints.gang_hints import AFTER
from lading.scheduling.hints.hints import HINT_KEY

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
    """A task of the run, mapped where it has a size."""
    hints = {"cpus": 4, "time": 600, "ahead": True, **hints}
    config = resources(**hints)
    config[HINT_KEY][AFTER] = after.split()
    begun = datetime.fromtimestamp(begun, timezone.utc) if state == "running" else None
    for number in range(size) if size else [-1]:
        values = {
            "id": uuid7(), "dag_id": "d", "run_id": "r", "task_id": task_id, "map_index": number, "state": state,
            "pool": "p", "pool_slots": 1, "try_number": 1, "max_tries": 0, "executor_config": config,
            "start_date": begun,
        }  # fmt: skip
        session.execute(insert(TaskInstance.__table__), [values])


def job(session: Session, task_id: str, state: State, **columns: Any) -> None:
    """Its job at Lading."""
    known: dict[str, Any] = {
        "cpus": 4.0,
        "memory": 512,
        "disk": 0,
        "gpus": 0.0,
        "ahead": True,
        "dag_id": "d",
        "run_id": "r",
    }
    known |= {"token": task_id, "queued_at": NOW}
    known |= {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "priority": 1, "unreported": False, "news": 0}
    store.add_job(session, task_id=task_id, map_index=-1, try_number=1, state=state, **{**known, **columns})
