"""What tasks cost on a batch cluster, as ratios in one run on this machine.

    python -m benchmarks.batch throughput [--runs 3] [--tasks 500] [--contenders local allocation bare job]
    python -m benchmarks.batch cost [--runs 3]
    python -m benchmarks.batch bulk [--jobs 1000] [--running 40]

``throughput`` runs trivial mapped tasks on an emulated SLURM of 8 cpus: in allocations against LocalExecutor with 8
processes, and as batch jobs against a bare job array of the same work (benchmarks/bare_array.py says what that is). The
rates of Airflow's executors are measured from the first queued task on; that of the array, from its submission on.
Airflow's supervisor can sleep for some seconds after a task has finished, so LocalExecutor and the array also run with
``[workers] min_heartbeat_interval = 1``.

``cost`` compares the CPU time of a single batch job with that of an element of the bare array, which can be measured
even if other load makes rates useless. ``bulk`` counts the exchanges and the commands of a site with 1,000 live jobs,
and measures the CPU time of its thread.

They start the SLURM, sshd and Airflow that they need, in temporary folders on free loopback ports. All but ``cost``
have to run as root, because only root can run nodes that start jobs of another user. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from benchmarks.executor import CPUS, machine, seconds, warm_up
from tests.services import node_python, processes
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

NODES = 2
MEMORY, MEMORY_OVERHEAD = 64, 384  # of a task and of Airflow's supervisor of it, MiB
# An array may wait for long where a machine has few cpus: the wait has no end.
PATIENCE = 4 * 3600
REPOSITORY = Path(__file__).resolve().parent.parent

DAG = f"""
import time
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None, max_active_tasks=10000)
def trivial():
    @task(executor_config=resources(cpus=1, memory={MEMORY}, site="hpc"))
    def one(number):
        return number
    one.expand(number=list(range(TASKS)))

trivial()

@dag(schedule=None)
def clock():
    @task
    def now():
        return time.time()
    now()

clock()
"""
# The first site runs what warms Airflow up, so that every contender begins with an empty cluster.
SITES = """
[sites.local]
kind = "local"
cpus = 1

[sites.hpc]
kind = "slurm"
mode = "{mode}"
ssh_conn_id = "hpc"
work_dir = "{work_dir}"
python = "{python}"
node_cpus = {node_cpus}
node_memory = 16000
memory_overhead = {memory_overhead}
setup = '''
{setup}
'''
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison.

    :param name: how it is called in the results
    :param kind: what runs the tasks: LocalExecutor, a bare array, or a site of Lading's of that mode
    :param against: the contender that it is compared with; empty: it is what others are compared with
    :param wanted: the least ratio of its rate to that one's
    :param environment: what its tasks find in their environment beside the rest
    """

    name: str
    kind: Literal["local", "bare", "job", "allocation"]
    against: str = ""
    wanted: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def is_lading(self) -> bool:
        return self.kind in {"job", "allocation"}


QUICK = {"AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1"}
CONTENDERS = {
    each.name: each
    for each in (
        Contender("local", "local"),
        Contender("local-heartbeat-1", "local", environment=QUICK),
        Contender("allocation", "allocation", against="local", wanted=0.8),
        Contender("bare", "bare"),
        Contender("bare-heartbeat-1", "bare", environment=QUICK),
        Contender("job", "job", against="bare", wanted=0.9),
    )
}
EXECUTORS = {"local": "LocalExecutor", "bare": "benchmarks.bare_array.HoldingExecutor"}


@dataclass(frozen=True)
class Cluster:
    """An emulated SLURM with one user, whom an sshd lets in."""

    account: Account
    slurm: Slurm
    login: Sshd
    python: Path

    @classmethod
    @contextmanager
    def started(cls, cpus: int = CPUS // NODES) -> Iterator[Cluster]:
        """:param cpus: of each of its nodes; not the machine's"""
        with ExitStack() as stack:
            account = stack.enter_context(Account())
            slurm = stack.enter_context(Slurm(account, nodes=NODES, cpus=cpus, memory=16000))
            login = stack.enter_context(Sshd(account, environment=slurm.environment))
            yield cls(account, slurm, login, node_python.make(account))

    @property
    def dags(self) -> Path:
        return self.account.folder / "dags"

    def job_environment(self) -> dict[str, str]:
        return {"AIRFLOW_HOME": f"{self.account.home}/airflow", "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags)}


@contextmanager
def airflow(contender: Contender, cluster: Cluster, tasks: int, run: int) -> Iterator[Airflow]:
    with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder:
        home = Path(folder)
        config: dict[str, object] = {
            "core.default_pool_task_slot_count": 10_000,
            "core.parallelism": CPUS if contender.kind == "local" else 10_000,
            "scheduler.task_queued_timeout": PATIENCE,
            "workers.execution_api_timeout": 60,
        }
        executor = EXECUTORS.get(contender.kind, "lading.executors.LadingExecutor")
        if contender.is_lading:
            config["lading.sites_file"] = home / "sites.toml"
            (home / "sites.toml").write_text(sites(contender, cluster, f"lading-{run}-{contender.name}"))
        components = ("api-server", "scheduler", "dag-processor")
        service = Airflow(home, dags=cluster.dags, executor=executor, config=config, components=components)
        service.environment["AIRFLOW_CONN_HPC"] = cluster.login.connection()
        service.environment["PYTHONPATH"] = str(REPOSITORY)
        if contender.kind == "local":
            service.environment.update(contender.environment)
        service.environment["LADING_BENCHMARK_WORKLOADS"] = str(workloads(cluster, run, contender))
        with service:
            service.add_dag("benchmark", DAG.replace("TASKS", str(tasks)))
            for dag in ("clock", "trivial"):
                service.wait_for_dag(dag)
            warm_up(service)
            yield service
        cluster.slurm.wait_until_free(120)


def sites(contender: Contender, cluster: Cluster, folder: str) -> str:
    environment = {**cluster.job_environment(), **contender.environment}
    return SITES.format(
        mode=contender.kind,
        work_dir=cluster.account.home / folder,
        python=cluster.python,
        node_cpus=CPUS // NODES,
        memory_overhead=MEMORY_OVERHEAD,
        setup="\n".join(f"export {name}={value}" for name, value in environment.items()),
    )


def workloads(cluster: Cluster, run: int, contender: Contender) -> Path:
    """The folder of the bare array's workloads."""
    folder = cluster.account.folder / f"workloads-{run}-{contender.name}"
    folder.mkdir(exist_ok=True)
    return folder


def run_tasks(service: Airflow, contender: Contender, cluster: Cluster, tasks: int, run: int) -> tuple[float, float]:
    """Tasks per second, and the CPU seconds of the whole machine from the trigger to the end."""
    before = busy_seconds()
    run_id = service.trigger("trivial")
    submitted = None
    if contender.kind == "bare":
        submitted = submit_array(service, contender, cluster, tasks, workloads(cluster, run, contender))
    state = service.wait_for_run("trivial", run_id, PATIENCE)
    after = busy_seconds()
    assert state == "success", state
    instances = service.task_instances("trivial", run_id)
    assert len(instances) == tasks
    start = submitted or min(seconds(instance["queued_when"]) for instance in instances)
    end = max(seconds(instance["end_date"]) for instance in instances)
    return tasks / (end - start), after - before


def submit_array(service: Airflow, contender: Contender, cluster: Cluster, tasks: int, folder: Path) -> float:
    """Submit the tasks when Airflow has queued them all; returns when that was, in seconds since the epoch."""
    from benchmarks import bare_array

    if not processes.wait_until(lambda: bare_array.held(folder) == tasks, 600):
        raise RuntimeError(f"{bare_array.held(folder)} of {tasks} tasks were queued within 10 minutes")
    environment = {
        **cluster.job_environment(),
        **contender.environment,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{service.url}/execution/",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": f"{cluster.account.home}/logs",
    }
    for path in folder.glob("*.json"):
        cluster.account.own(path)
    text = bare_array.script(
        tasks, python=cluster.python, folder=folder, memory=MEMORY + MEMORY_OVERHEAD, environment=environment
    )
    path = folder / "script"
    path.write_text(text)
    submitted = time.time()
    bare_array.submit(
        path,
        user=cluster.account.uid,
        group=cluster.account.uid,
        extra_groups=[],
        env={"PATH": os.defpath, **cluster.slurm.environment},
    )
    return submitted


def busy_seconds() -> float:
    """What all cpus of this machine have worked so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def throughput(options: argparse.Namespace) -> None:
    contenders = [CONTENDERS[name] for name in options.contenders]
    results: dict[str, list[tuple[float, float]]] = {contender.name: [] for contender in contenders}
    with Cluster.started() as cluster:
        cluster.dags.mkdir()
        for run in range(options.runs):
            for contender in contenders:
                with airflow(contender, cluster, options.tasks, run) as service:
                    rate, cpu = run_tasks(service, contender, cluster, options.tasks, run)
                results[contender.name].append((rate, cpu))
                print(f"  run {run + 1} {contender.name}: {rate:.2f} tasks/s, {cpu:.0f} CPU s", flush=True)
    print(f"{options.tasks} trivial tasks, {CPUS} cpus, medians of {options.runs} alternating runs")
    medians = {name: [statistics.median(each) for each in zip(*runs, strict=True)] for name, runs in results.items()}
    for contender in contenders:
        rate, cpu = medians[contender.name]
        print(f"  {contender.name:18} {rate:6.2f} tasks/s {cpu:6.0f} CPU s", end="")
        if contender.against in medians:
            ratio = rate / medians[contender.against][0]
            print(f"   {ratio:.2f} × {contender.against} (wanted: {contender.wanted} and more)", end="")
        print()


def cost(options: argparse.Namespace) -> None:
    from benchmarks import batch_cost

    batch_cost.measure(options.runs)


def bulk(options: argparse.Namespace) -> None:
    with Cluster.started(cpus=options.running // NODES) as cluster, tempfile.TemporaryDirectory() as home:
        os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW_CONN_CLUSTER": cluster.login.connection()}
        from benchmarks import batch_bulk

        batch_bulk.measure(cluster.account, cluster.slurm, cluster.login, options.jobs, options.running)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "throughput": throughput,
    "cost": cost,
    "bulk": bulk,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--running", type=int, default=40)
    options = parser.parse_args()
    processes.end_in_order()
    print(f"machine: {machine()}", flush=True)
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
