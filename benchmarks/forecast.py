"""How long a tick with a forecast takes: 50 runs of 200 tasks on 300 machines, with jobs that finish in each tick.

    python -m benchmarks.forecast [--dag-runs 50] [--tasks 200] [--machines 300] [--ticks 100]

It prints the milliseconds of each tick for reading upcoming tasks, following the plan and placing jobs, while another
thread makes the plan; and the peak memory of the process, including what simulates Airflow. The store is SQLite in a
temporary folder, with Airflow's tables.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import statistics
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.types import DagRunType
from sqlalchemy import create_engine, insert, select, update
from sqlalchemy.orm import Session
from uuid6 import uuid7

from benchmarks.executor import machine
from benchmarks.workflows import goods
from lading.executors import store
from lading.executors.controller.placing import Extensions, Placing
from lading.executors.forecast.site_plans import SitePlans
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, queue
from lading.executors.store.durations import Durations, PastWaits
from lading.operators import resources
from lading.plugin.host import AirflowHost
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.foreseen import ForeseenActions

# Tasks of a run in a row; each comes after two of the row before.
WIDTH = 20
MACHINE = Resources(8, 16384)
CPUS = 2.0


class House:
    """Runs whose first rows are at work or wait, and machines with jobs."""

    def __init__(self, session: Session, folder: Path, dag_runs: int, tasks: int, machines: int) -> None:
        self.session, self.tasks, self.chance = session, tasks, random.Random(1)
        self.machines = [f"m{number}" for number in range(machines)]
        self._store(dag_runs)
        settings = Settings(None, folder, Resources(0.25, 512), "leave", 30, 30)
        self.plans = SitePlans(AirflowHost(), settings, Ways(), lambda: None, PastWaits())
        site = SimpleNamespace(config=SimpleNamespace(placement_interval=0, policy=FORECAST))
        self.placing = Placing({"cloud": cast(Any, site)}, Extensions())
        self.durations = Durations()
        self.cpu: list[float] = []
        self.market = MachineMarket(goods(), policy=FORECAST, boot_seconds=60.0)

    def _store(self, dag_runs: int) -> None:
        with DAG("d", schedule=None, max_active_tasks=10_000) as dag:
            each = [BashOperator(task_id=f"t{number}", bash_command=":") for number in range(self.tasks)]
            for number in range(WIDTH, self.tasks):
                row = WIDTH * (number // WIDTH - 1)
                [each[row + number % WIDTH], each[row + (number + 1) % WIDTH]] >> each[number]
        session = self.session
        session.add(DagBundleModel(name="b"))
        session.flush()
        session.add(DagModel(dag_id="d", bundle_name="b", is_paused=False))
        session.flush()
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "b", session=session)
        config = resources(cpus=CPUS, memory="2 GiB", time="10m")
        for run in range(dag_runs):
            session.add(DagRun(dag_id="d", run_id=f"r{run}", run_type=DagRunType.MANUAL, state="running"))
            session.flush()
            rows = [
                {
                    "id": uuid7(), "dag_id": "d", "run_id": f"r{run}", "task_id": f"t{number}", "map_index": -1,
                    "state": None, "pool": "p", "pool_slots": 1, "try_number": 1, "max_tries": 0,
                    "executor_config": config, "start_date": datetime.now(timezone.utc),
                }
                for number in range(self.tasks)
            ]  # fmt: skip
            session.execute(insert(TaskInstance.__table__), rows)
            for number in range(WIDTH):
                self.queue(f"r{run}", number)
        session.commit()
        self.begin(len(self.machines) * 3)

    def queue(self, run_id: str, number: int) -> None:
        mine = TaskInstance.run_id == run_id, TaskInstance.task_id == f"t{number}"
        self.session.execute(update(TaskInstance).where(*mine).values(state="queued"))
        whose = {"dag_id": "d", "run_id": run_id, "task_id": f"t{number}", "map_index": -1, "try_number": 1}
        what = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 1}
        asked = {"cpus": CPUS, "memory": 2048, "disk": 0, "gpus": 0.0, "time_limit": 600}
        store.add_job(self.session, token=f"{run_id} {number}", queued_at=time.time(), **whose, **what, **asked)

    def begin(self, most: int) -> None:
        """Let jobs that wait begin on machines that have room."""
        busy = list(self.session.scalars(select(JobRow.location).where(JobRow.state == State.RUNNING)))
        room = [name for name in self.machines for _ in range(3 - busy.count(name))][:most]
        tokens = self.session.scalars(select(JobRow.token).where(JobRow.state == State.QUEUED).limit(len(room)))
        for token, name in zip(list(tokens), room, strict=False):
            values = {"state": State.RUNNING, "site": "cloud", "location": name, "started_at": time.time() - 300}
            self.session.execute(update(JobRow).where(JobRow.token == token).values(**values))
        self.session.commit()

    def end(self, number: int) -> None:
        """Let so many jobs end, as many others begin, and the task behind each be queued."""
        running = list(
            self.session.execute(
                select(JobRow.token, JobRow.run_id, JobRow.task_id).where(JobRow.state == State.RUNNING)
            )
        )
        for token, run_id, task_id in self.chance.sample(running, min(number, len(running))):
            values = {"state": State.SUCCEEDED, "ended_at": time.time()}
            self.session.execute(update(JobRow).where(JobRow.token == token).values(**values))
            mine = TaskInstance.run_id == run_id, TaskInstance.task_id == task_id
            self.session.execute(update(TaskInstance).where(*mine).values(state="success"))
            following = int(task_id[1:]) + WIDTH
            if following < self.tasks:
                self.queue(run_id, following)
        self.begin(number)

    def tick(self) -> tuple[float, bool]:
        """Decide once: seconds, and whether the plan is of now."""
        session, now, begun, cpu = self.session, time.time(), time.perf_counter(), time.thread_time()
        given = queue.by_location(queue.given(session, "cloud", self.durations.read(session)))
        there = [
            queue.loaded(
                Location(
                    name, MACHINE, instance_type="c6i.2xlarge", usd_per_hour=0.34, arch="x86_64", launched_at=now - 900
                ),
                given.get(name, ()),
                0,
            )
            for name in self.machines
        ]
        possible = [Location("c6i.2xlarge", MACHINE, instance_type="c6i.2xlarge", arch="x86_64")]
        site = SiteView(
            name="cloud", possible=possible, market=self.market, policy=FORECAST, locations=there, launched=there
        )
        waiting = queue.waiting(session)
        plans = self.plans.foresee(session, [site], waiting, now, by_dag=False)
        self.placing.assign(session, waiting, [site], [], now, {}, plans)
        self.cpu.append(time.thread_time() - cpu)
        actions = plans["cloud"]
        assert isinstance(actions, ForeseenActions)
        return time.perf_counter() - begun, actions.is_of_now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("dag-runs", 50), ("tasks", 200), ("machines", 300), ("ticks", 100), ("ends", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"machine: {machine()}")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
        engine = create_engine(f"sqlite:///{folder}/store.db")
        import_all_models()
        Base.metadata.create_all(engine)
        store.metadata.create_all(engine)
        with Session(engine, expire_on_commit=False) as session:
            house = House(session, Path(folder), options.dag_runs, options.tasks, options.machines)
            ticks, of_now = [], 0
            for _ in range(options.ticks):
                house.end(options.ends)
                with house.plans.paused():
                    seconds, is_of_now = house.tick()
                ticks.append(seconds)
                of_now += is_of_now
                time.sleep(max(0.0, 1.0 - seconds))
            house.plans.close()
    first, later = 1000 * ticks[0], sorted(1000 * each for each in ticks[1:])
    last = later[int(0.99 * len(later))]
    planner = house.plans.plans["cloud"].planner
    print(
        f"{options.dag_runs} runs of {options.tasks} tasks on {options.machines} machines: {first:.0f} ms first, then "
        f"{statistics.median(later):.0f} ms at the median, {last:.0f} ms at the 99th percentile, "
        f"{1000 * statistics.median(house.cpu):.0f} ms of a processor at the median; {planner.plans} plans, of now in "
        f"{of_now} of {len(ticks)} ticks; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
