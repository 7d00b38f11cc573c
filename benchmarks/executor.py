"""What Lading costs and gains compared with LocalExecutor, as ratios in one run on this machine.

    python -m benchmarks.executor throughput [--database sqlite postgresql] [--runs 5] [--tasks 200]
    python -m benchmarks.executor memory
    python -m benchmarks.executor latency
    python -m benchmarks.executor store
    python -m benchmarks.executor plan
    python -m benchmarks.executor starts

Each starts the Airflow it needs, in a temporary folder on free loopback ports. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lading.executors.agent import warm_pool
from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.postgres import Postgres

CPUS = 8
TICKS = os.sysconf("SC_CLK_TCK")
AGENT, TASKS = "lading.executors.agent", "supervisors and tasks"

DAG = """
import time
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None, max_active_tasks=10000, default_args={"executor_config": resources(cpus=1, memory=64)})
def trivial():
    @task
    def one(number):
        return number
    one.expand(number=list(range(TASKS)))

trivial()

@dag(schedule=None, max_active_tasks=10000, default_args={"executor_config": resources(cpus=1, memory=64)})
def sleepers():
    @task
    def sleep(number):
        time.sleep(30)
    sleep.expand(number=list(range(CPUS)))

sleepers()

@dag(schedule=None)
def clock():
    @task
    def now():
        return time.time()
    now()

clock()
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of the comparison.

    :param name: how it is called in the results
    :param executor: Airflow's ``core.executor``
    :param config: further options of Airflow
    """

    name: str
    executor: str
    config: dict[str, Any]


LADING = Contender("lading", "lading.executors.LadingExecutor", {})
LOCAL = Contender("local", "LocalExecutor", {"core.parallelism": CPUS})
LOCAL_HB1 = Contender("local, heartbeat 1 s", LOCAL.executor, {**LOCAL.config, "workers.min_heartbeat_interval": 1})
CONTENDERS = (LOCAL, LADING, LOCAL_HB1)


@contextmanager
def airflow(contender: Contender, database: str | None = None, tasks: int = 200) -> Iterator[Airflow]:
    """A healthy Airflow with the benchmark's Dags; Lading's site has as many cpus as LocalExecutor has processes."""
    with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder:
        home = Path(folder)
        sites = home / "sites.toml"
        sites.write_text(f'[sites.local]\nkind = "local"\ncpus = {CPUS}\n')
        config = {"lading.sites_file": sites, "core.parallelism": 32, **contender.config}
        service = Airflow(
            home,
            executor=contender.executor,
            database=database,
            config=config,
            components=("api-server", "scheduler", "dag-processor"),
        )
        with service:
            service.add_dag("benchmark", DAG.replace("TASKS", str(tasks)).replace("CPUS", str(CPUS)))
            warm_up(service)
            yield service


def warm_up(service: Airflow) -> None:
    for _ in range(2):
        state = service.wait_for_run("clock", service.trigger("clock"), 120)
        assert state == "success", state


def seconds(instant: str) -> float:
    """An instant of the REST API in seconds since the epoch."""
    return datetime.fromisoformat(instant).timestamp()


def cpu_of(pid: int) -> tuple[float, float]:
    """Return the CPU seconds that a process and its reaped children have used so far; 0 after its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, users, systems = (int(field) / TICKS for field in fields[11:15])
    return user + system, users + systems


def cpu_seconds(pids: list[int]) -> float:
    """What these processes and their reaped children have used so far."""
    return sum(own + reaped for own, reaped in map(cpu_of, pids))


def cpu_by_part(service: Airflow, server: Postgres | None) -> dict[str, float]:
    """Return the CPU seconds that each part of an Airflow has used so far."""
    everyone = {process.pid: process for process in service.processes()}
    components = {service.pid(name): name for name in ("api-server", "scheduler", "dag-processor")}
    forks = {pid for pid, process in everyone.items() if AGENT in process.command}
    agents = {pid for pid in forks if everyone[pid].parent not in forks}

    def part_of(pid: int) -> str:
        """Return the part of the nearest process that has one, from this process upwards."""
        process = everyone.get(pid)
        if process is None:
            return "others"
        if pid in agents or "LocalExecutor" in process.command:
            return TASKS
        if "lading.plugin" in process.command:
            return "controller"
        return components.get(pid) or part_of(process.parent)

    used: dict[str, float] = defaultdict(float)
    for pid in everyone:
        own, reaped = cpu_of(pid)
        used["agent" if pid in agents else part_of(pid)] += own
        used[part_of(pid)] += reaped
    if server is not None:
        used["database"] = cpu_seconds([process.pid for process in processes.belonging(server.folder, ())])
    return used


def run_trivial(service: Airflow, server: Postgres | None, tasks: int) -> tuple[float, dict[str, float]]:
    """Tasks per second from the first queued to the last finished, and the CPU seconds of each part."""
    before = cpu_by_part(service, server)
    run_id = service.trigger("trivial")
    state = service.wait_for_run("trivial", run_id, 600)
    after = cpu_by_part(service, server)
    used = {part: after[part] - before.get(part, 0.0) for part in after}
    assert state == "success", state
    instances = service.task_instances("trivial", run_id)
    assert len(instances) == tasks
    start = min(seconds(instance["queued_when"]) for instance in instances)
    end = max(seconds(instance["end_date"]) for instance in instances)
    return tasks / (end - start), used


def throughput(options: argparse.Namespace) -> None:
    for kind in options.database:
        results: dict[str, list[tuple[float, dict[str, float]]]] = {contender.name: [] for contender in CONTENDERS}
        with ExitStack() as stack:
            server = stack.enter_context(Postgres()) if kind == "postgresql" else None
            stack.callback(compare, kind, options.tasks, results)  # of the complete runs, should one fail
            for run in range(options.runs):
                for position, contender in enumerate(CONTENDERS):
                    database = server.create_database(f"run{run}_{position}") if server else None
                    with airflow(contender, database, options.tasks) as service:
                        rate, parts = run_trivial(service, server, options.tasks)
                        results[contender.name].append((rate, parts))
                        cpu = sum(parts.values())
                        print(
                            f"  {kind} run {run + 1} {contender.name}: {rate:.2f} tasks/s, {cpu:.1f} CPU s", flush=True
                        )


def compare(database: str, tasks: int, results: dict[str, list[tuple[float, dict[str, float]]]]) -> None:
    runs = min(map(len, results.values()))
    if not runs:
        return
    print(f"{database}: {tasks} trivial tasks, {CPUS} cpus, medians of {runs} alternating runs")
    medians = {
        name: (
            statistics.median(rate for rate, _ in found[:runs]),
            statistics.median(sum(parts.values()) for _, parts in found[:runs]),
        )
        for name, found in results.items()
    }
    our_rate, our_cpu = medians[LADING.name]
    for name, (rate, cpu) in medians.items():
        print(f"  {name:22} {rate:6.2f} tasks/s {cpu:6.1f} CPU s", end="")
        print(f"   lading/this: {our_rate / rate:.2f} tasks/s, {our_cpu / cpu:.2f} CPU s", flush=True)
    for name, found in results.items():
        per_task = {
            part: 1000 * statistics.median(parts.get(part, 0.0) for _, parts in found[:runs]) / tasks
            for part in sorted({part for _, parts in found[:runs] for part in parts})
        }
        print(f"  {name:22} CPU ms per task: {', '.join(f'{part} {cpu:.0f}' for part, cpu in per_task.items())}")


def pss(pid: int) -> float:
    """The proportional set size of a process in MiB; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def memory(options: argparse.Namespace) -> None:
    """Memory per running trivial task, and of the idle controller and agent."""
    for contender in (LOCAL, LADING):
        with airflow(contender) as service:
            if contender is LADING:
                idle(service)
            run_id = service.trigger("sleepers")
            for number in range(CPUS):
                service.wait_for_task("sleepers", run_id, "sleep", "running", map_index=number, timeout=25)
            time.sleep(5)
            tree = task_processes(service, contender)
            total = sum(pss(pid) for pid in tree)
            print(
                f"{contender.name}: {total / CPUS:.1f} MiB PSS per running task ({len(tree)} processes, {CPUS} tasks)"
            )
            service.wait_for_run("sleepers", run_id, 120)


def task_processes(service: Airflow, contender: Contender) -> list[int]:
    """The processes that live for the running tasks: each task's own and the one that supervises it."""
    everyone = service.processes()
    if contender is LADING:
        agent = next(process.pid for process in everyone if AGENT in process.command)
        parents = {process.pid for process in everyone if process.parent == agent}
    else:
        parents = {process.pid for process in everyone if "LocalExecutor" in process.command}
    children = {process.pid for process in everyone if process.parent in parents}
    return sorted(parents | children)


def idle(service: Airflow) -> None:
    time.sleep(
        2 * warm_pool.PATIENCE
    )  # until the warm-up's processes have gone: an agent is charged with those it reaps
    mine = [p for p in service.processes() if AGENT in p.command or "lading.plugin" in p.command]
    before, started = cpu_seconds([p.pid for p in mine]), time.monotonic()
    time.sleep(30)
    share = (cpu_seconds([p.pid for p in mine]) - before) / (time.monotonic() - started)
    for process in mine:
        print(f"  {process.command}: {pss(process.pid):.0f} MiB PSS")
    print(f"idle controller and agent: {sum(pss(p.pid) for p in mine):.0f} MiB PSS, {100 * share:.2f} % of a CPU")


def latency(options: argparse.Namespace) -> None:
    """From the moment the agent sees a workload to the first line of user code."""
    with airflow(LADING) as service:
        delays = []
        for _ in range(10):
            run_id = service.trigger("clock")
            service.wait_for_run("clock", run_id, 60)
            rows = json.loads(service.cli("lading", "jobs", "--run-id", run_id, "--output", "json"))
            delays.append(service.xcom("clock", run_id, "now") - float(rows[0]["started_at"]))
        print(f"agent starts the job to user code: median {statistics.median(delays):.2f} s, worst {max(delays):.2f} s")


def store(options: argparse.Namespace) -> None:
    with Postgres() as server:
        database = server.create_database("store")
        with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as home:
            service = Airflow(Path(home), database=database, components=())
            service.migrate()
            os.environ.update(service.environment)
            from benchmarks import executor_calls

            executor_calls.measure(live=10_000, calls=1_000)


def plan(options: argparse.Namespace) -> None:
    from benchmarks import executor_calls

    executor_calls.measure_plan(jobs=10_000, locations=100)


def starts(options: argparse.Namespace) -> None:
    from benchmarks import executor_calls

    executor_calls.measure_starts(jobs=10_000)


def machine() -> str:
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return f"{os.cpu_count()} cpus, {memory_mib} MiB, Python {platform.python_version()}, Linux {platform.release()}"


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "throughput": throughput,
    "memory": memory,
    "latency": latency,
    "store": store,
    "plan": plan,
    "starts": starts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--database", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    processes.end_in_order()
    print(f"machine: {machine()}", flush=True)
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
