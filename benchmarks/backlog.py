"""What waiting jobs cost a controller and its database, while nothing changes and when room becomes free:

    python -m benchmarks.backlog [--waiting 5000 20000 100000] [--seconds 30] [--drain]
    python -m benchmarks.backlog --idle [--seconds 60]

It uses PostgreSQL, an Airflow task instance for each job, and a mock site that one job fills. The jobs are submitted by
``queue_workload``. For each number of waiting jobs, it prints: the statements and the milliseconds of the database per
tick, with the most expensive statements; CPU time and memory of the controller; the size of the job table, and how many
of its updates were HOT; and how long it took to place the next job after room became free. With ``--drain``, 1,000
slots then run all jobs; each finishes as soon as it has started.

``--idle`` runs two controllers, one of them on standby, and the executors of four schedulers, with nothing to do. It
prints how many statements they send per minute, and how much CPU time each of them uses.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.postgres import Postgres

DAG, RUNS, TASKS, TEAMS = "backlog{}", 4, 5, 4
BATCH = 500
SLOTS = 1000
SETTLE_SECONDS = 45.0
NAMES = ("queries", "milliseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[5_000, 20_000, 100_000])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        if options.idle:
            idle(options.seconds, options.settle)
            return
        measure(options.waiting[0], options.seconds, options.settle, Path(options.here), drains=options.drain)
        return
    processes.end_in_order()
    with Postgres(shared_preload_libraries="pg_stat_statements", autovacuum_naptime="10") as server:
        for waiting in [0] if options.idle else options.waiting:
            with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as home:
                service = Airflow(Path(home), database=server.create_database(f"w{waiting}"), components=())
                service.migrate()
                command = [sys.executable, "-m", "benchmarks.backlog", "--waiting", str(waiting), "--here", home]
                command += ["--seconds", str(options.seconds), "--settle", str(options.settle)]
                command += [*(["--drain"] if options.drain else []), *(["--idle"] if options.idle else [])]
                subprocess.run(command, env=service.environment, check=True)


def measure(waiting: int, seconds: float, settle: float, home: Path, *, drains: bool) -> None:  # noqa: PLR0915
    from airflow.models import import_all_models
    from airflow.utils.session import create_session
    from sqlalchemy import text

    from lading.executors.controller.controller import Controller
    from lading.executors.settings import Settings
    from lading.executors.store import State
    from lading.plugin.host import AirflowHost

    import_all_models()
    print(f"{waiting:,} waiting jobs", flush=True)
    rate, milliseconds = queue_all(waiting + 1)
    print(f"  queue_workload: {rate:.0f} jobs/s, {milliseconds:.2f} ms of a cpu each")
    site = paper_site(home)
    settings = Settings.load()
    settings.state_folder.mkdir(parents=True, exist_ok=True)
    execute(CREATE)
    controller = Controller(
        AirflowHost(), {site.name: site}, lambda subject, seconds: "jwt", settings, False, lambda changes: None
    )
    longest = 0.0

    def tick() -> None:
        nonlocal longest
        begun = time.monotonic()
        controller.tick()
        controller.leadership.clock.beat()
        longest = max(longest, time.monotonic() - begun)

    def run(until: float) -> int:
        count = 0
        while time.monotonic() < until:
            begun = time.monotonic()
            tick()
            count += 1
            time.sleep(max(0.0, Controller.tick_seconds - (time.monotonic() - begun)))
        return count

    begun = time.monotonic()
    tick()
    print(f"  first tick: {time.monotonic() - begun:.2f} s")
    run(time.monotonic() + settle)
    execute(RESET)
    cpu, begun, longest = time.process_time(), time.monotonic(), 0.0
    ticks = run(time.monotonic() + seconds)
    cpu, passed = time.process_time() - cpu, time.monotonic() - begun
    print_statements(ticks)
    print(f"  controller: {100 * cpu / passed:.1f} % of a cpu, {memory():.0f} MiB, longest tick {longest:.2f} s")
    begun = time.monotonic()
    known = {*site.jobs}
    site.end(1)
    while known.issuperset(site.jobs) and time.monotonic() < begun + 60:
        tick()
        time.sleep(0.02)
    print(f"  first placement after room became free: {time.monotonic() - begun:.2f} s")
    print_tables()
    if drains:
        site.location = replace(site.location, capacity=replace(site.location.capacity, cpus=float(SLOTS)))
        execute(RESET)
        longest, cpu, begun, ticks = 0.0, time.process_time(), time.monotonic(), 0
        left = waiting
        while left and time.monotonic() < begun + 1800:
            tick()
            ticks += 1
            site.end(len(site.jobs))
            time.sleep(0.05)
            with create_session(scoped=False) as session:
                query = text("select count(*) from lading_job where ended_at is null and state <> :state")
                left = session.execute(query, {"state": State.SUCCEEDED.value}).scalar_one()
        cpu, passed = time.process_time() - cpu, time.monotonic() - begun
        print(f"  drained in {passed:.0f} s, longest tick {longest:.2f} s, {memory():.0f} MiB, {cpu:.0f} s of a cpu")
        print_statements(ticks)
        print_tables()
    os._exit(0)


def statements() -> tuple[int, float, list[Any]]:
    """How many statements this database has run, the milliseconds that they took, and those with most."""
    from airflow.utils.session import create_session
    from sqlalchemy import text

    query = """
        select calls, total_exec_time, query from pg_stat_statements s
        join pg_database d on d.oid = s.dbid where d.datname = current_database() order by total_exec_time desc
    """
    with create_session(scoped=False) as session:
        rows = session.execute(text(query)).all()
    return sum(row[0] for row in rows), sum(row[1] for row in rows), list(rows)


def print_statements(ticks: int) -> None:
    calls, spent, most = statements()
    print(f"  per tick: {calls / ticks:.1f} statements, {spent / ticks:.1f} ms of the database ({ticks} ticks)")
    for number, milliseconds, query in most[:10]:
        print(f"    {milliseconds / ticks:7.2f} ms, {number / ticks:5.2f} x {' '.join(query.split())[:150]}")


def execute(statement: str) -> None:
    from airflow.utils.session import create_session
    from sqlalchemy import text

    with create_session(scoped=False) as session:
        session.execute(text(statement))


CREATE, RESET = "create extension if not exists pg_stat_statements", "select pg_stat_statements_reset()"


def idle(seconds: float, settle: float) -> None:
    import psutil

    execute(CREATE)
    environment = {**os.environ, "AIRFLOW__LADING__START_CONTROLLER": "False"}
    executor = "from benchmarks.backlog import idle_executor; idle_executor({})"
    commands = [[sys.executable, "-c", executor.format(number)] for number in range(1, 5)]
    commands += [[sys.executable, "-m", "lading.plugin", "controller"]] * 2
    children = [psutil.Popen(command, env=environment, stderr=subprocess.DEVNULL) for command in commands]
    try:
        time.sleep(settle)
        execute(RESET)
        before = [sum(child.cpu_times()[:2]) for child in children]
        time.sleep(seconds)
        used = [sum(child.cpu_times()[:2]) - cpu for child, cpu in zip(children, before, strict=True)]
        calls, _, most = statements()
    finally:
        for child in children:
            child.terminate()
    print(f"idle: {60 * calls / seconds:.0f} statements a minute")
    for number, _, query in sorted(most, key=lambda row: -row[0])[:40]:
        print(f"  {60 * number / seconds:7.1f} x {' '.join(query.split())[:150]}")
    shares = [f"{100 * cpu / seconds:.2f} %" for cpu in used]
    print(f"  of a cpu: executors {', '.join(shares[:4])}; controllers {', '.join(shares[4:])}", flush=True)


def idle_executor(number: int) -> None:
    """Do what a scheduler without anything to do has its executor do."""
    from lading.executors.executor import LadingExecutor

    executor = LadingExecutor()
    executor.job_id = number
    executor.start()
    while True:
        executor.heartbeat()
        time.sleep(1.0)


def queue_all(number: int) -> tuple[float, float]:
    """Queue jobs through ``queue_workload``; return jobs per second, and milliseconds of this process's cpu per job."""
    import uuid

    from airflow.executors import workloads
    from airflow.executors.workloads.base import BundleInfo
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType
    from sqlalchemy import insert, text
    from uuid6 import uuid7

    from lading.executors.executor import LadingExecutor

    names = [DAG.format(dag) for dag in range(TEAMS)]
    with create_session(scoped=False) as session:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        for name in names:
            session.add(DagModel(dag_id=name, bundle_name="bundle", fileloc="dag.py"))
        session.flush()
        for name in names:
            for run in range(RUNS):
                session.add(DagRun(dag_id=name, run_id=f"run{run}", run_type=DagRunType.MANUAL, state="running"))
    rows, made = [], []
    for n in range(number):
        key = {
            "id": uuid7(), "dag_id": names[n % TEAMS], "run_id": f"run{n // TEAMS % RUNS}",
            "task_id": f"task{n // (TEAMS * RUNS) % TASKS}", "map_index": n // (TEAMS * RUNS * TASKS),
        }  # fmt: skip
        token = str(uuid.uuid4())
        rows.append(
            {
                **key, "external_executor_id": token, "state": "queued", "pool": "default_pool", "pool_slots": 1,
                "max_tries": 0, "try_number": 1, "queue": "default", "priority_weight": 1,
            }
        )  # fmt: skip
        ti = TaskInstanceDTO(
            **key, dag_version_id=uuid.uuid4(), try_number=1, pool_slots=1, queue="default", priority_weight=1,
            external_executor_id=token, executor_config={"lading": {"cpus": 1, "memory": f"{1 + n % 3} GiB"}},
        )  # fmt: skip
        made.append(
            workloads.ExecuteTask(
                ti=ti, dag_rel_path="dag.py", token="", log_path=f"{n}.log", bundle_info=BundleInfo(name="bundle")
            )
        )
    with create_session(scoped=False) as session:
        for start in range(0, number, 5000):
            session.execute(insert(TaskInstance), rows[start : start + 5000])
    with create_session(scoped=False) as session:
        session.execute(text("analyze task_instance"))
    executor = LadingExecutor()
    executor.job_id = 1
    begun, cpu = time.monotonic(), time.process_time()
    for start in range(0, number, BATCH):
        with create_session(scoped=False) as session:
            for each in made[start : start + BATCH]:
                executor.queue_workload(each, session)
    return number / (time.monotonic() - begun), 1000 * (time.process_time() - cpu) / number


def paper_site(folder: Path) -> Any:
    """A simulated site with one machine, whose jobs end when the benchmark says so."""
    import threading

    from lading.hooks.site import LocationState, Observation, ObservedLocation, Site, SiteConfig
    from lading.hooks.spool.spool import Envelope
    from lading.scheduling.model.location import Location
    from lading.scheduling.model.resources import Resources

    class PaperSite(Site[SiteConfig]):
        kind = "paper"
        config_model = SiteConfig

        def __init__(self) -> None:
            super().__init__("paper", SiteConfig(kind="paper"), folder)
            self.location = Location("machine", Resources(cpus=1.0, memory=2**30))
            self.jobs: list[str] = []
            self.begun: set[str] = set()
            self.events: list[dict[str, Any]] = []
            self.lock = threading.Lock()

        def potential(self) -> list[Location]:
            return [self.location]

        def observe(self) -> Observation:
            with self.lock:
                told, known = list(self.events), frozenset(self.jobs)

            def acknowledge() -> None:
                with self.lock:
                    del self.events[: len(told)]

            here = ObservedLocation(self.location, LocationState.UP, known=known)
            return Observation([here], told, acknowledge)

        def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
            with self.lock:
                for each in (each for some in envelopes.values() for each in some):
                    if each.token not in self.jobs:
                        self.jobs.append(each.token)
                self.start()

        def start(self) -> None:
            """Let those begin for which there is room; the others were prefetched."""
            for token in self.jobs[: int(self.location.capacity.cpus)]:
                if token not in self.begun:
                    self.begun.add(token)
                    self.events.append({"event": "started", "token": token, "at": time.time()})

        def end(self, number: int) -> None:
            with self.lock:
                for token in self.jobs[:number]:
                    self.events.append(
                        {
                            "event": "finished", "token": token, "at": time.time(), "exit_code": 0, "cause": None,
                            "reason": None, "peak_memory": 100, "cpu_seconds": 1.0,
                        }
                    )  # fmt: skip
                self.begun.difference_update(self.jobs[:number])
                del self.jobs[:number]
                self.start()

        def cancel(self, reasons: Any) -> None:
            """End nothing: all jobs of this site go on."""

        def close(self, how: str, timeout: float) -> None:
            """There is nothing to let go of."""

    return PaperSite()


def memory() -> float:
    """The resident memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def print_tables() -> None:
    from airflow.utils.session import create_session
    from sqlalchemy import text

    query = """
        select relname, pg_table_size(relid) / 1048576.0, pg_indexes_size(relid) / 1048576.0, n_live_tup, n_dead_tup,
            n_tup_upd, n_tup_hot_upd
        from pg_stat_user_tables where relname in ('lading_job', 'lading_unseen') order by relname
    """
    with create_session(scoped=False) as session:
        for name, table, indexes, live, dead, updates, hot in session.execute(text(query)):
            print(
                f"  {name}: {table:.0f} MiB and {indexes:.0f} MiB of indexes, {live:,} rows and {dead:,} dead ones, "
                f"{updates:,} updates, {hot:,} of them HOT",
                flush=True,
            )


if __name__ == "__main__":
    main()
