"""What requesting capacity ahead costs the controller: 50 runs of 100 tasks, of which one runs, in milliseconds of CPU.

    python -m benchmarks.ahead [--dag-runs 50] [--tasks 100]

The store is SQLite in a temporary folder, with as much of Airflow's tables as it takes.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from airflow.models import import_all_models
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session
from uuid6 import uuid7

from benchmarks.executor import machine
from benchmarks.gangs import measure, void
from lading.executors import store
from lading.executors.gangs.ahead_requests import MOST_RUNS_PER_TICK, AheadRequests
from lading.executors.settings import Settings
from lading.executors.store import State
from lading.executors.store.durations import Durations, PastWaits
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.operators import resources
from lading.scheduling.gangs.room import Ways
from lading.scheduling.hints.gang_hints import AFTER
from lading.scheduling.hints.hints import HINT_KEY
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market, kind
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.resources import Resources

NODE = Resources(16, 65536)
# Tasks of a run in a row; each comes after all of the row before.
WIDTH = 10


def fill(session: Session, dag_runs: int, tasks: int, now: float) -> None:
    """Runs whose first task runs; all others are to come."""
    for run in range(dag_runs):
        columns = {"dag_id": "d", "run_id": f"r{run}", "map_index": -1, "try_number": 1}
        rows = []
        for number in range(tasks):
            row = number // WIDTH
            config = resources(cpus=4, memory="8 GiB", time="10m", ahead=True)
            config[HINT_KEY][AFTER] = [f"t{each}" for each in range(WIDTH * (row - 1), WIDTH * row) if row]
            is_first = number == 0
            state, begun = ("running", datetime.fromtimestamp(now, timezone.utc)) if is_first else (None, None)
            rows.append(
                {
                    **columns, "id": uuid7(), "task_id": f"t{number}", "state": state, "start_date": begun, "pool": "p",
                    "pool_slots": 1, "max_tries": 0, "executor_config": config,
                }
            )  # fmt: skip
        session.execute(insert(TaskInstance.__table__), rows)
        store.add_job(
            session, **columns, token=f"j{run}", kind="ExecuteTask", subject="s", workload="{}", task_id="t0",
            priority=1, queued_at=now, unreported=False, news=0, state=State.RUNNING, cpus=4.0, memory=8192, disk=0,
            gpus=0.0, ahead=True, site="hpc", location="i1", started_at=now,
        )  # fmt: skip
    for number in range(20):
        session.add(
            InstanceRow(
                token=f"i{number}", site="hpc", kind=kind(None, {}), cpus=16, memory=65536, disk=0, gpus=0.0,
                seconds=3600.0, state=InstanceState.ENDED, ordered_at=0.0, ready_at=1800.0,
            )
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("dag-runs", 50), ("tasks", 100)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"machine: {machine()}")
    site = SiteView(
        name="hpc", possible=[Location("node", NODE)], market=Market(NODE, 0, 14400.0, 3600.0, 100, whole=True)
    )
    now = time.time()
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder)}/store.db")
        store.metadata.create_all(engine)
        import_all_models()
        TaskInstance.__table__.create(engine)
        with Session(engine) as session:
            fill(session, options.dag_runs, options.tasks, now)
            session.commit()
        settings = Settings(None, Path(folder), Resources(0.25, 512), "leave", 30, 30)
        ahead = AheadRequests(settings, Durations(), PastWaits(), lambda: 0.1, Ways())

        def look() -> int:
            nonlocal now
            now += 1.0
            with Session(engine) as session:
                return sum(map(len, ahead.look_ahead(session, [site], now, by_dag=False).wanted.values()))

        what, looks = f"{options.dag_runs} runs of {options.tasks} tasks", -(-options.dag_runs // MOST_RUNS_PER_TICK)
        measure(f"{what}, ticks that look at some of them first", looks, lambda: void(look()))
        measure(f"{what}, ticks that look at some of them again", looks, lambda: void(look()))
        print(f"jobs for which is asked ahead: {look()}")


if __name__ == "__main__":
    main()
