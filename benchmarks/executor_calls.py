"""What Airflow's scheduler calls in its own loop, and what controller and agent decide, timed in this process.

Imported only once the environment names the database, because Airflow connects when it is imported.
"""

from __future__ import annotations

import gc
import statistics
import time
import uuid
from collections.abc import Callable

from airflow.executors import workloads
from airflow.executors.workloads.base import BundleInfo
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.utils.session import create_session
from sqlalchemy import insert

from lading.executors.columns import job_columns, resource_columns
from lading.executors.controller import dispatch
from lading.executors.executor import LadingExecutor
from lading.executors.migrations.db_manager import ensure_tables
from lading.executors.store import Change, JobRow, State, apply
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import assign
from lading.scheduling.starts import queueing


def workload(number: int) -> workloads.ExecuteTask:
    ti = TaskInstanceDTO(
        id=uuid.uuid4(),
        dag_version_id=uuid.uuid4(),
        task_id="task",
        dag_id="dag",
        run_id="run",
        try_number=1,
        map_index=number,
        pool_slots=1,
        queue="default",
        priority_weight=1,
        external_executor_id=str(uuid.uuid4()),
        executor_config={"lading": {"cpus": 2, "memory": "4 GiB"}},
    )
    return workloads.ExecuteTask(
        ti=ti, dag_rel_path="dag.py", token="", log_path="x.log", bundle_info=BundleInfo(name="dags-folder")
    )


def measure(live: int, calls: int) -> None:
    """Print the 50th and 99th percentile of ``queue_workload`` and ``sync`` with ``live`` live jobs in the store."""
    ensure_tables()
    executor = LadingExecutor()
    executor.job_id = 1
    with create_session(scoped=False) as session:
        rows = [
            {**job_columns(each), **resource_columns(each, executor.settings), "owner": 1, "state": State.RUNNING}
            for each in map(workload, range(live))
        ]
        session.execute(insert(JobRow), rows)

    def queue(each: workloads.ExecuteTask) -> Callable[[], None]:
        def call() -> None:
            with create_session(scoped=False) as session:
                executor.queue_workload(each, session)

        return call

    report(f"queue_workload and commit, {live} live jobs", [timed(queue(workload(live + n))) for n in range(calls)])
    syncs = []
    for number in range(calls):
        if number % 2:  # every second one has something to report
            tokens = [row["token"] for row in rows[number * 5 : number * 5 + 5]]
            with create_session(scoped=False) as session:
                values = {"state": State.SUCCEEDED, "ended_at": time.time()}
                apply(session, [Change(token, values, report=True) for token in tokens])
        syncs.append(timed(executor.sync))
        executor.get_event_buffer()
    report(f"sync, {live} live jobs, every second one with 5 ended jobs", syncs)


def measure_plan(jobs: int, locations: int) -> None:
    waiting = [
        WaitingJob(name=str(number), resources=Resources(cpus=1 + number % 8, memory=1024 * (1 + number % 5)))
        for number in range(jobs)
    ]
    there = [Location(f"node{number}", Resources(cpus=64, memory=256 * 1024)) for number in range(locations)]
    site = SiteView(name="site", locations=there, possible=there)
    gc.freeze()  # as the controller does
    report(
        f"plan of {jobs} jobs on {locations} locations",
        [timed(lambda: dispatch.decided(waiting, assign(waiting, [site], now=0.0), 0.0)) for _ in range(20)],
    )


def measure_starts(jobs: int) -> None:
    """Print how long a location takes to choose what to start from ``jobs`` waiting jobs of 45 sizes."""
    machine = Resources(cpus=64, memory=256 * 1024)
    waiting = [
        queueing.QueuedJob(str(number), Resources(0.25 * (1 + number % 9), 512 * (1 + number % 5)), 1, number)
        for number in range(jobs)
    ]
    report(
        f"next starts of {jobs} waiting jobs",
        [timed(lambda: queueing.next_starts(waiting, machine, machine, now=0, patience=60)) for _ in range(20)],
    )


def timed(call: Callable[[], object]) -> float:
    """How long a call takes, in milliseconds."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def report(what: str, times: list[float]) -> None:
    """Print the distribution of some times in milliseconds."""
    percentiles = statistics.quantiles(times, n=100)
    print(
        f"{what}: median {statistics.median(times):.2f} ms, 99th percentile {percentiles[98]:.2f} ms, "
        f"worst {max(times):.2f} ms",
        flush=True,
    )
