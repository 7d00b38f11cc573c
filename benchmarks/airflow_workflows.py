"""What recorded workflows cost as Dags of a complete Airflow on a mock of EC2 with real machines, and in the simulator.

    python -m benchmarks.airflow_workflows                      rnaseq, its lengths divided by 20
    python -m benchmarks.airflow_workflows --divide 5 hic       hic, its lengths divided by 5

A Dag has the tasks of the recording, with their requests and dependencies; each task sleeps for its recorded duration.
Airflow has its own scheduler, PostgreSQL, and one site of kind ``ec2``: instances of moto, each with a real sshd, its
own processes and a node agent. The Dag runs twice: first with unknown durations, then with those of the first run. A
machine costs its price, including volumes, from its order until its end was noticed, and at least for a minute.

The simulator gets the same types and prices and the measured averages: the time of machines from their order to their
first job, of tasks from their start to their end, of a placed job until it starts on a running machine, and of Airflow
from the end of a task until the next tasks are queued. The time between two tasks does not shrink with their durations:
``path`` is its part of the critical path. Other load on this machine makes all of these times longer. Each sleeping
task is two processes, which take some 0.3 s of CPU time to start: use a smaller divisor if more tasks start in a second
than the cpus can start.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from benchmarks.executor import machine
from benchmarks.workflows import BOOT, DATA, FAMILIES
from lading.executors.store import JobRow
from lading.executors.store.instances import InstanceRow
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.site import EC2Site
from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths
from lading.scheduling.accounting import billing
from lading.scheduling.matching.market import MachineMarket
from tests.clusters.workflow_runs import task_id
from tests.services import node_python, processes
from tests.services.airflow import Airflow
from tests.services.ec2 import FakeEC2
from tests.services.postgres import Postgres

FERNET_KEY = "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE="
# So long a run may take, seconds; and how soon a controller plans again when something has happened, of which the
# simulator looks as often.
LONGEST, LOOKS = 7200.0, 0.25
DAG = '''
"""A recorded workflow whose tasks sleep."""
import json
import time
from pathlib import Path

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from lading.operators import resources


def sleep(seconds: float) -> None:
    time.sleep(seconds)


steps = json.loads(Path(__file__).with_name("recording.json").read_text())
with DAG("recording", schedule=None, max_active_tasks=1000) as dag:
    tasks = {
        each["id"]: PythonOperator(
            task_id=each["id"],
            python_callable=sleep,
            op_args=[each["seconds"]],
            executor_config=resources(cpus=each["cpus"], memory=each["memory"], site="cloud"),
        )
        for each in steps
    }
for each in steps:
    for parent in each["parents"]:
        tasks[parent] >> tasks[each["id"]]
'''


@dataclass(frozen=True, slots=True)
class LiveRun:
    """How a run went.

    :param usd: what the machines have cost; ``seconds``: from the first job's queueing until the last job's end
    :param lengths: of jobs from their start to their end, by the ids of their tasks
    :param boot: mean from an order to the begin of the first job where that waited, else until the machine was up;
        ``start``: of further jobs from the moment when there were a place and room for it to its begin, where the end
        of the last job on the machine before makes the room; ``queueing``: from the end of the last task before a job
        until that was queued
    """

    usd: float
    seconds: float
    launches: int
    lengths: Mapping[str, float]
    boot: float
    start: float
    queueing: float


def main(argv: Sequence[str] | None = None) -> int:
    names = sorted(path.stem for path in DATA.glob("*.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="rnaseq", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--divide", type=float, default=20.0, metavar="N", help="divide all durations, and the boot time, by N (20)"
    )
    parser.add_argument("--hurry", type=float, default=1.0)
    parser.add_argument("--keep", metavar="FOLDER", help="keep Airflow's logs and the measurements in this folder")
    args = parser.parse_args(argv)
    processes.end_in_order()
    logging.disable(logging.INFO)
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}", flush=True)
    text = (DATA / f"{args.name}.json").read_text(encoding="utf-8")
    workflow = wfformat.read(text, args.name, scale=1 / args.divide)
    with house(workflow, BOOT / args.divide, args.hurry, args.keep) as (airflow, market):
        for which, known in (("first", "unknown"), ("second", "known")):
            live = run(airflow, workflow)
            if args.keep:
                dump(airflow, Path(args.keep, f"{which}.json"))
            report(f"{args.name} {which}", workflow, live, market, args.hurry, known)
    return 0


@contextmanager
def house(
    workflow: Sequence[Arrival], boot: float, hurry: float, keep: str | None
) -> Iterator[tuple[Airflow, MachineMarket]]:
    """An Airflow with the Dag of a workflow and a site of EC2, and what that site can buy."""
    with ExitStack() as stack:
        folder = Path(keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="lading-benchmark-")))
        folder.mkdir(parents=True, exist_ok=True)
        service = stack.enter_context(FakeEC2(boot_seconds=boot))
        server = stack.enter_context(Postgres())
        # The machines' user reads the Dags where the scheduler does.
        dags = service.account.folder / "airflow" / "dags"
        dags.mkdir(parents=True)
        (dags / "recording.json").write_text(json.dumps(steps(workflow)))
        (dags / "recording.py").write_text(DAG)
        python = node_python.make(service.account)
        sites = folder / "sites.toml"
        types = [f"{family}.*" for family in FAMILIES]
        sites.write_text(
            f"""
            [sites.cloud]
            {service.toml}
            instance_types = {json.dumps(types)}
            exclude_types = ["*.metal*"]
            hurry = {hurry}
            max_instances = 100
            expected_boot_time = {max(1, round(boot))}
            python = "{python}"
            setup = '''
            export AIRFLOW_HOME=$HOME/airflow AIRFLOW__CORE__DAGS_FOLDER={dags}
            export AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=60
            '''
            """
        )
        config = {
            "lading.sites_file": sites,
            "core.fernet_key": FERNET_KEY,
            "core.parallelism": 1000,
            "core.default_pool_task_slot_count": 1000,
            "scheduler.scheduler_idle_sleep_time": 0.1,
            "workers.execution_api_timeout": 60,
        }
        os.environ |= {**service.environment, "AIRFLOW__CORE__FERNET_KEY": FERNET_KEY}
        os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"] = str(folder / "logs")
        airflow = Airflow(
            folder / "airflow",
            database=server.create_database("airflow"),
            dags=dags,
            config=config,
            components=("dag-processor", "scheduler", "api-server"),
            preloaded=True,
        )
        market = on_sale(service, python, types, hurry, folder)
        stack.enter_context(airflow)
        airflow.wait_for_dag("recording")
        yield airflow, market


def steps(workflow: Sequence[Arrival]) -> list[dict[str, Any]]:
    """The tasks of a Dag, as its file reads them."""
    return [
        {
            "id": task_id(each.job.name),
            "seconds": each.duration,
            "cpus": each.job.resources.cpus,
            "memory": f"{each.job.resources.memory} MiB",
            "parents": [task_id(name) for name in each.parents],
        }
        for each in workflow
    ]


def on_sale(service: FakeEC2, python: Path, types: Sequence[str], hurry: float, folder: Path) -> MachineMarket:
    options = {"instance_types": tuple(types), "exclude_types": ("*.metal*",), "hurry": hurry, "max_instances": 100}
    config = EC2Config(**service.table, **options, python=str(python))
    fleet = EC2Site("cloud", config, folder / "market").fleet
    fleet.offers.asked()
    market = fleet.offers.market(fleet.launcher.shortages)
    assert market is not None, fleet.offers.note
    return market


def rows(airflow: Airflow, run_id: str) -> tuple[list[JobRow], list[InstanceRow]]:
    """The jobs of a run, and all machines that there ever were."""
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with Session(engine, expire_on_commit=False) as session:
        jobs = list(session.scalars(select(JobRow).where(JobRow.run_id == run_id)))
        machines = list(session.scalars(select(InstanceRow).order_by(InstanceRow.ordered_at)))
        session.expunge_all()
    engine.dispose()
    return jobs, machines


def run(airflow: Airflow, workflow: Sequence[Arrival]) -> LiveRun:
    """Run the Dag once, until no machine is left.

    :raises RuntimeError: it has failed, or a task was tried twice
    """
    begun = time.time()
    run_id = airflow.trigger("recording")
    state = airflow.wait_for_run("recording", run_id, LONGEST)
    deadline = time.monotonic() + LONGEST
    while any(each.ended_at is None for each in rows(airflow, run_id)[1]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"machines do not end:\n{airflow.log_tails()}")
        time.sleep(1)
    jobs, machines = rows(airflow, run_id)
    if state != "success" or len(jobs) != len(workflow):
        raise RuntimeError(f"the run is {state} with {len(jobs)} jobs:\n{airflow.log_tails()}")
    machines = [each for each in machines if each.ordered_at > begun]
    by_task = {each.task_id: each for each in jobs}
    usd = sum(
        (each.usd_per_hour or 0.0) * max(billing.LEAST_SECONDS, (each.ended_at or 0.0) - each.ordered_at) / 3600
        for each in machines
    )
    ends = {name: each.ended_at or 0.0 for name, each in by_task.items()}
    boots, starts = delays(jobs, machines)
    queueing = [
        by_task[task_id(each.job.name)].queued_at - max(ends[task_id(name)] for name in each.parents)
        for each in workflow
        if each.parents
    ]
    return LiveRun(
        usd,
        max(ends.values()) - min(each.queued_at for each in jobs),
        len(machines),
        {str(name): ends[name] - (each.started_at or 0.0) for name, each in by_task.items()},
        statistics.mean(boots),
        statistics.mean(starts or [0.0]),
        statistics.mean(queueing),
    )


def delays(jobs: Sequence[JobRow], machines: Sequence[InstanceRow]) -> tuple[list[float], list[float]]:
    """For how long each machine has booted, and each further job taken to begin; see :class:`LiveRun`."""
    boots, starts = [], []
    for each in machines:
        mine = (job for job in jobs if job.location == each.token)
        its = sorted(((job.started_at or 0.0, job) for job in mine), key=lambda one: one[0])
        if each.ready_at is None:
            continue
        has_waited = bool(its) and its[0][1].queued_at < each.ready_at
        boots.append((its[0][0] if has_waited else each.ready_at) - each.ordered_at)
        for begin, job in its:
            room = max((other.ended_at or 0.0 for _, other in its if (other.ended_at or 0.0) <= begin), default=None)
            if room is not None:
                starts.append(begin - max(job.placed_at or 0.0, room))
    return boots, starts


def report(
    name: str, workflow: Sequence[Arrival], live: LiveRun, market: MachineMarket, hurry: float, known: str
) -> None:
    measured = [replace(each, duration=live.lengths[task_id(each.job.name)]) for each in workflow]
    path = critical_path(workflow, 0.0)
    overheads = critical_path(measured, live.start + live.queueing) - path
    more = statistics.median(live.lengths[task_id(each.job.name)] - each.duration for each in workflow)
    print(
        f"{name}: live {live.usd:.4f} USD, {live.seconds:.1f} s, {live.launches} launches; boot {live.boot:.2f} s, a "
        f"task {more:.2f} s beyond its sleep, {live.start:.2f} s from place to start, {live.queueing:.2f} s from its "
        f"end to queued; path {path:.0f} s of sleep, {overheads:.0f} s of these"
    )
    for what, trace, latency, lag in (
        ("with these", measured, live.queueing, live.start / 2),
        ("sleeps alone", workflow, 0.0, 0.0),
    ):
        its = simulated(trace, market, live.boot, lag, latency, hurry, known)
        print(
            f"{name}: simulated, {what}: {its.cost:.4f} USD ({live.usd / its.cost:.3f}), {its.makespan:.1f} s "
            f"({live.seconds / its.makespan:.3f}), {its.launches} launches",
            flush=True,
        )


def simulated(
    trace: Sequence[Arrival],
    market: MachineMarket,
    boot: float,
    lag: float,
    latency: float,
    hurry: float,
    known: str,
) -> Report:
    """What the simulator says of a workflow.

    :param lag: see :class:`lading.plugin.offline.simulation.conditions.Conditions`, as ``latency``
    """
    return simulate(
        trace,
        market.catalogue,
        market.limits,
        market.policy,
        conditions=Conditions(boot, lag, latency, tick_seconds=LOOKS),
        hurry=hurry,
        lengths=expected_lengths(trace, known),
    )


def critical_path(trace: Sequence[Arrival], more: float) -> float:
    """Seconds of the longest way through a workflow.

    :param more: what each task takes in addition to its length
    """
    longer = [replace(each, duration=each.duration + more) for each in trace]
    forecast = wfformat.as_forecast(longer)
    ends: dict[str, float] = {}
    for name in forecast.order:
        step = forecast.steps[name]
        ends[name] = max((ends[parent] for parent in step.parents), default=0.0) + step.seconds
    return max(ends.values())


def dump(airflow: Airflow, file: Path) -> None:
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with Session(engine) as session:
        found = {
            table.__tablename__: [
                {
                    column.name: getattr(row, column.name)
                    for column in table.__table__.columns
                    if column.name != "workload"
                }
                for row in session.scalars(select(table))
            ]
            for table in (JobRow, InstanceRow)
        }
    engine.dispose()
    file.write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    sys.exit(main())
