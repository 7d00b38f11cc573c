"""How long jobs will run, by those that the store has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import State, queue
from lading.executors.store.durations import MOST, Durations
from lading.scheduling.matching.market import Market, need
from lading.scheduling.model.location import AssignedJob, Location
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources


def add(session: Session, token: str, task: str, state: State = State.SUCCEEDED, **others: Any) -> None:
    values = {"dag_id": "d", "run_id": "old", "cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0, **others}
    store.add_job(
        session, owner=1, token=token, task_id=task, kind="ExecuteTask", workload="{}", subject="", queued_at=0.0,
        state=state, priority=1, unreported=False, news=0, map_index=-1, try_number=1, **values,
    )  # fmt: skip


def test_what_waits_and_what_runs_is_predicted_from_what_has_ended_well(tmp_path: Path) -> None:
    """By the size of a task, else by its siblings of the run, else by the site; a limit bounds it."""
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        for i in range(5):
            add(session, f"small{i}", "align", started_at=10.0, ended_at=70.0)
            add(session, f"failed{i}", "align", State.FAILED, started_at=0.0, ended_at=9_000.0)
            add(session, f"large{i}", "align", run_id="new", cpus=2.0 + i, started_at=0.0, ended_at=600.0)
        for name, task, cpus, limit in ("a", "align", 1.0, None), ("b", "align", 9.0, 300), ("c", "sort", 1.0, None):
            add(session, name, task, State.QUEUED, run_id="new", cpus=cpus, time_limit=limit)
        add(session, "r", "align", State.RUNNING, site="hpc", location="m", started_at=40.0)
        session.commit()
        durations = Durations().read(session)
        found = {job.name: job.expected or Prediction(0.0) for job in queue.waiting(session, durations=durations)}
        assert (round(found["a"].seconds), found["a"].source) == (60, "5 jobs of d.align of this size")
        assert (found["b"].seconds, found["b"].most) == (300, 300), "its siblings took 600 s"
        assert found["b"].source == "5 jobs of d.align in this run"
        assert found["c"].source == "10 jobs of the site"
        assert queue.waiting(session)[0].expected is None
        [given] = queue.given(session, "hpc", durations)
        location = queue.loaded(Location("m", Resources(8, 8_000)), [given], 0)
        assert location.running_jobs == (AssignedJob(40.0, found["a"], Resources(1, 100)),)
        assert need(given.job, Market(Resources(8, 8_000), 0, 9e3, 9e3, most=1)).expected == found["a"], (
            "provisioning takes it into account"
        )
    assert MOST / Durations.seconds_until_stale > 50, "of short jobs that end at this rate none is passed over"
