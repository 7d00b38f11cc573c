"""What scatter costs and gains on this machine, as ratios in one run.

    python -m benchmarks.scatter expand
    python -m benchmarks.scatter jobs [--runs 3] [--database sqlite postgresql]

``expand`` combines a million elements. ``jobs`` runs 1,000 trivial elements as a scatter on Lading, and with Airflow's
own ``expand`` on LocalExecutor; and 10,000 elements in chunks on Lading. It starts the Airflow it needs, in a temporary
folder on free loopback ports. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

from benchmarks.executor import CPUS, LADING, LOCAL, Contender, machine, seconds
from lading.scheduling.scatter import expand
from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.postgres import Postgres

ELEMENTS = 1_000
MANY = 10_000
CHUNK = 200

DAG = """
from airflow.sdk import dag, task
from lading.operators import resources, scatter

HINTS = {"executor_config": resources(cpus=1, memory=64)}

@task
def numbers(count):
    return list(range(count))

@task(**HINTS)
def one(number):
    return number

@task
def check(outputs, count):
    assert list(outputs) == list(range(count))

@dag(schedule=None, max_active_tasks=10000)
def scattered():
    check(scatter(one, number=numbers(ELEMENTS)), ELEMENTS)

@dag(schedule=None, max_active_tasks=10000)
def expanded():
    one.expand(number=numbers(ELEMENTS))

@dag(schedule=None, max_active_tasks=10000)
def chunked():
    check(scatter(one, number=numbers(MANY), chunk_size=CHUNK), MANY)

scattered()
expanded()
chunked()
"""


def combine(options: argparse.Namespace) -> None:
    inputs = {"a": range(100), "b": range(100), "c": range(100)}
    started = time.perf_counter()
    count = sum(1 for _ in expand("flat_crossproduct", inputs))
    took = time.perf_counter() - started
    tracemalloc.start()
    for _ in expand("flat_crossproduct", inputs):
        pass
    _, peak = tracemalloc.get_traced_memory()
    print(f"{count:,} combinations: {took:.2f} s, {peak / 1024:.0f} KiB at most")


def elements_per_second(service: Airflow, dag_id: str, elements: int) -> float:
    """From the first job queued to the last one ended."""
    run_id = service.trigger(dag_id)
    state = service.wait_for_run(dag_id, run_id, 1800)
    assert state == "success", state
    jobs = [each for each in service.task_instances(dag_id, run_id) if each["task_id"] == "one"]
    start = min(seconds(each["queued_when"]) for each in jobs)
    return elements / (max(seconds(each["end_date"]) for each in jobs) - start)


def measure(contender: Contender, database: str | None, dags: dict[str, int]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder:
        home = Path(folder)
        sites = home / "sites.toml"
        sites.write_text(f'[sites.local]\nkind = "local"\ncpus = {CPUS}\n')
        throttles = {"scheduler.max_tis_per_query": 256, "core.parallelism": 256}
        config = {"lading.sites_file": sites, **throttles, **contender.config}
        components = ("api-server", "scheduler", "dag-processor")
        with Airflow(
            home, executor=contender.executor, database=database, config=config, components=components
        ) as service:
            source = DAG.replace("ELEMENTS", str(ELEMENTS)).replace("MANY", str(MANY)).replace("CHUNK", str(CHUNK))
            service.add_dag("benchmark", source)
            return {dag_id: elements_per_second(service, dag_id, elements) for dag_id, elements in dags.items()}


def jobs(options: argparse.Namespace) -> None:
    for kind in options.database:
        rates: dict[str, list[float]] = {}
        with ExitStack() as stack:
            server = stack.enter_context(Postgres()) if kind == "postgresql" else None
            for run in range(options.runs):
                for contender, dags in (
                    (LOCAL, {"expanded": ELEMENTS}),
                    (LADING, {"scattered": ELEMENTS, "chunked": MANY}),
                ):
                    database = server.create_database(f"run{run}_{contender.name}") if server else None
                    for dag_id, rate in measure(contender, database, dags).items():
                        rates.setdefault(dag_id, []).append(rate)
                        print(f"  {kind} run {run + 1} {dag_id}: {rate:.2f} elements/s", flush=True)
        medians = {dag_id: statistics.median(each) for dag_id, each in rates.items()}
        print(f"{kind}, medians of {options.runs} runs, {CPUS} cpus:")
        print(f"  {ELEMENTS} elements, scatter on Lading / expand on LocalExecutor:", end=" ")
        print(
            f"{medians['scattered']:.2f} / {medians['expanded']:.2f} = {medians['scattered'] / medians['expanded']:.2f}"
        )
        print(f"  {MANY} elements in chunks of {CHUNK} / {ELEMENTS} without:", end=" ")
        print(
            f"{medians['chunked']:.2f} / {medians['scattered']:.2f} = {medians['chunked'] / medians['scattered']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("expand", "jobs"))
    parser.add_argument("--database", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    processes.end_in_order()
    print(f"machine: {machine()}", flush=True)
    {"expand": combine, "jobs": jobs}[options.what](options)


if __name__ == "__main__":
    main()
