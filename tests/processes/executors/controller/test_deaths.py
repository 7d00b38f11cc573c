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
from lading.executors.store import JobRow, State

ROOT = Path(__file__).parents[4]
CONTROLLER = """
import os, signal, sys, time
from pathlib import Path

from airflow.utils.session import create_session
from sqlalchemy import select

from lading.executors.controller.controller import Controller
from lading.executors.controller.placing import Extensions
from lading.executors.sizing import sizing
from lading.executors.store import JobRow, State
from lading.hooks.site import SiteConfig
from lading.plugin.host import AirflowHost
from tests.clusters.sites import FakeSite, make_settings

folder, dies_in, answer = Path(sys.argv[1]), sys.argv[2], sizing.answer


def live_or_die(token):
    if token == "deadly":
        with (folder / "deaths").open("a") as deaths:
            deaths.write("x")
        os.kill(os.getpid(), signal.SIGKILL)


def deadly(question, *rest, **options):
    live_or_die(question.job.token)
    return answer(question, *rest, **options)


def all_are_dispatched():
    # By the store: a controller that is killed later may have given its site some of them, and its site ends with it.
    with create_session(scoped=False) as session:
        return not list(session.scalars(select(JobRow.token).where(JobRow.state.in_((State.QUEUED, State.ATTEMPTED)))))


class Policy:
    def get_location(self, context, job, *rest):
        live_or_die(job.name)
        return "here"


site, extensions = FakeSite("a", folder / "a"), None
if dies_in == "sizing":
    sizing.answer = deadly
else:
    site.config, extensions = SiteConfig(kind="fake", policy="mine"), Extensions(policies={"mine": Policy()})
settings = make_settings(folder / "state")
settings.state_folder.mkdir(exist_ok=True)
controller = Controller(AirflowHost(), {"a": site}, lambda *_: "jwt", settings, True, lambda changes: None, extensions)
while not all_are_dispatched():
    controller.tick()
    time.sleep(0.05)
controller.close()
"""


def run_controller(folder: Path, dies_in: str) -> int:
    """Let a controller run until it is killed or has given its jobs to its site; returns its status.

    :param dies_in: ``sizing`` or ``policy``, what is asked for the job that kills it
    """
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    done = subprocess.run(
        [sys.executable, "-c", CONTROLLER, str(folder), dies_in], cwd=ROOT, env=environment, timeout=300, check=False
    )
    return done.returncode


def add_jobs(engine: Engine, **columns: Any) -> None:
    """One that kills controllers, and its neighbours."""
    defaults: dict[str, Any] = {
        "kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "cpus": 1.0, "memory": 1, "disk": 0,
        "gpus": 0.0, "priority": 0, "dag_id": "d", "run_id": "r", "try_number": 1,
    }  # fmt: skip
    with Session(engine) as session:
        for index, token in enumerate(("before", "deadly", "behind", "elsewhere")):
            own = {"map_index": index, "task_id": "u" if token == "elsewhere" else "t", "queued_at": time.time()}
            store.add_job(session, token=token, **defaults, **own, **columns)
        session.commit()


def test_a_job_that_kills_controllers_is_tried_twice_and_its_neighbours_run(
    airflow_database: Engine, tmp_path: Path
) -> None:
    add_jobs(airflow_database, sizing='{"hints": {"memory": "1 GiB"}, "sources": {}}')
    assert [run_controller(tmp_path, "sizing") for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert (tmp_path / "deaths").read_text() == "xx"
    with Session(airflow_database) as session:
        jobs = {job.token: job for job in session.scalars(select(JobRow))}
    assert (jobs["deadly"].state, jobs["deadly"].unreported) == (State.FAILED, True)
    assert "2 controllers died or hung while determining its requests" in str(jobs["deadly"].reason)
    assert {jobs[token].memory for token in ("before", "behind", "elsewhere")} == {1024}
    assert {jobs[token].examined_by for token in jobs} == {None}


def test_a_job_over_which_a_plugin_kills_controllers_is_tried_twice(airflow_database: Engine, tmp_path: Path) -> None:
    add_jobs(airflow_database)
    assert [run_controller(tmp_path, "policy") for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert (tmp_path / "deaths").read_text() == "xx"
    with Session(airflow_database) as session:
        jobs = {job.token: job for job in session.scalars(select(JobRow))}
    assert (jobs["deadly"].state, jobs["deadly"].unreported) == (State.FAILED, True)
    assert "2 controllers died or hung while looking for a place for it" in str(jobs["deadly"].reason)
    assert {jobs[token].strikes for token in ("before", "behind", "elsewhere")} == {None}
