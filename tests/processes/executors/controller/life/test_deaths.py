"""Controllers that are killed for real, over the same job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import controller  # noqa: F401 - with it all tables are known
from lading.executors.store import Job, State

ROOT = Path(__file__).parents[5]
CONTROLLER = """
import os, signal, sys, time
from pathlib import Path

from lading.executors.controller.controller import Controller
from lading.executors.estimation import appraisal
from tests.clusters.sites import FakeSite, make_settings

folder, answer = Path(sys.argv[1]), appraisal.answer


def deadly(question, *rest):
    if question.job.token == "deadly":
        with (folder / "deaths").open("a") as deaths:
            deaths.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(question, *rest)


appraisal.answer = deadly
site, settings = FakeSite("a", folder / "a"), make_settings(folder / "state")
settings.state_folder.mkdir(exist_ok=True)
controller = Controller({"a": site}, lambda *_: "jwt", settings, True, lambda changes: None)
while not site.jobs.keys() >= {"before", "behind", "elsewhere"}:
    controller.tick()
    time.sleep(0.05)
controller.close()
"""


def run_controller(folder: Path) -> int:
    """Let a controller run until it is killed or has given its jobs to its site; returns its status."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    done = subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(folder)], cwd=ROOT, env=environment, timeout=300, check=False
    )
    return done.returncode


def test_a_job_that_kills_controllers_is_tried_twice_and_its_neighbours_run(
    airflow_database: Engine, tmp_path: Path
) -> None:
    defaults: dict[str, Any] = {
        "kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "cpus": 1.0, "memory": 1, "disk": 0,
        "gpus": 0.0, "priority": 0, "dag_id": "d", "run_id": "r", "try_number": 1,
        "appraisal": '{"hints": {"memory": "1 GiB"}, "sources": {}}',
    }  # fmt: skip
    with Session(airflow_database) as session:
        for index, token in enumerate(("before", "deadly", "behind", "elsewhere")):
            own = {"map_index": index, "task_id": "u" if token == "elsewhere" else "t", "queued_at": time.time()}
            store.add_job(session, token=token, **defaults, **own)
        session.commit()
    assert [run_controller(tmp_path) for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert (tmp_path / "deaths").read_text() == "xx"
    with Session(airflow_database) as session:
        jobs = {job.token: job for job in session.scalars(select(Job))}
    assert (jobs["deadly"].state, jobs["deadly"].unreported) == (State.FAILED, True)
    assert "2 controllers have died or hung while they found out what it asks for" in (jobs["deadly"].reason or "")
    assert {jobs[token].memory for token in ("before", "behind", "elsewhere")} == {1024}
    assert {jobs[token].examined_by for token in jobs} == {None}
