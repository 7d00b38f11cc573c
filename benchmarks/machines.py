"""What machines behind SSH cost the controller, with node agents on this machine behind one real sshd.

    python -m benchmarks.machines idle [--hosts 100] [--seconds 60]
    python -m benchmarks.machines first [--hosts 20]
    python -m benchmarks.machines throughput [--hosts 4] [--tasks 200] [--runs 6] [--api url]

``idle``: CPU time and memory of a controller for ``--hosts`` idle machines. ``first``: the time from the decision until
a job has started on each machine. In both, the agents run a stub instead of Airflow tasks. ``throughput``: how many
trivial Airflow tasks per second ``--hosts`` machines with four cores in total run, relative to this machine with four
cores (``local``), and relative to this machine divided the same way but without SSH (``divided``). It prints medians
over rounds, in which each takes its turn to be first, with the CPU seconds of all processes. A mock replaces Airflow's
API server. With ``--hosts 1``, each side has one agent. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from benchmarks.executor import machine
from lading.executors.agent import warm_pool
from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.machines import introduction
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import LocationState, Site
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.model.resources import Resources
from tests.services.execution_api import task_workload
from tests.services.forked import Forked
from tests.services.processes import end_in_order, wait_until
from tests.services.sshd import Sshd

ROOT = Path(__file__).parents[1]
RUNNER = "tests.clusters.agent_runner"
API = "http://127.0.0.1:9/execution/"
DAG = """
from airflow.sdk import DAG, task

with DAG("trivial"):
    @task
    def nothing(): return 1

    nothing()
"""
# Of all machines together, and of this one.
CPUS = 4
MANY = {"MaxStartups": "500:30:1000", "MaxSessions": "20"}


def agent(spool: Path, *options: str, stamp: str = "") -> Forked:
    """A node agent of this machine with a stub in the place of Airflow's tasks."""
    Spool(spool).create()
    environment = {"PYTHONPATH": str(ROOT)}
    arguments = [str(spool), "--runner", RUNNER, "--stamp", stamp, *options]
    return Forked("lading.executors.agent.agent", arguments, cwd=ROOT, environment=environment, log=spool / "agent.log")


@contextmanager
def machines(count: int, *, cpus: float = 1.0, stub: bool = True, **options: Any) -> Iterator[FixedSite]:
    """A site of so many machines, whose agents live.

    :param cpus: of each
    :param stub: whether they run a stub in the place of Airflow's tasks
    :param options: of its table
    """
    folder = Path(tempfile.mkdtemp(prefix="lading-benchmark-"))
    names = [f"lab{number}" for number in range(count)]
    config = SSHConfig(
        kind="ssh",
        hosts=[{"ssh_conn_id": name, "cpus": cpus, "memory": int(2000 * cpus), "disk": 0} for name in names],  # type: ignore[arg-type]
        work_dir=str(folder / "work"),
        python=sys.executable,
        **{"api_url": API, **options},
    )
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        sshd = stack.enter_context(Sshd(options=MANY))
        os.environ |= {f"AIRFLOW_CONN_{name.upper()}": sshd.connection() for name in names}
        stamps = {host.ssh_conn_id: introduction.stamp(config, host, API) for host in config.hosts}
        for host in config.hosts if stub else ():
            spool = Path(config.root(host)) / "spool"
            stack.callback(agent(spool, "--logs", "/tmp", stamp=stamps[host.ssh_conn_id]).kill)
        site = FixedSite("lab", config, folder / "state")
        stack.callback(site.close, "cancel", 30)
        assert wait_until(lambda: all_up(site, count), 300, 0.5), "all machines are up"
        yield site


def all_up(site: FixedSite, count: int) -> bool:
    try:
        seen = site.observe().locations
    except OSError:
        return False
    return [each.state for each in seen] == [LocationState.UP] * count


def jobs(count: int, *, stub: bool = True) -> list[Envelope]:
    now, found = time.time(), []
    for token in (str(uuid.uuid4()) for _ in range(count)):
        workload = {"function": "succeed"} if stub else task_workload(token, "trivial", "nothing", "trivial.py")
        found.append(Envelope(token, workload, Resources(1, 64), None, None, 0, now, now + 3600))
    return found


def until_all(solos: Sequence[SiteDriver], kind: str, count: int) -> float:
    """Tick, each in turn, until so many jobs have had an event of a kind; the seconds that it took."""
    begun, found = time.monotonic(), set()
    for solo in cycle(solos):
        found |= {event["token"] for event in solo.tick() if event["event"] == kind}
        if len(found) >= count:
            break
        time.sleep(0.01)
    return time.monotonic() - begun


def idle(hosts: int, seconds: float) -> dict[str, Any]:
    with machines(hosts) as site:
        solo, process = SiteDriver(site), psutil.Process()
        solo.tick()
        time.sleep(5)
        before = process.cpu_times()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            solo.tick()
            time.sleep(1.0)
        after = process.cpu_times()
        spent = after.user + after.system - before.user - before.system
        return {
            "hosts": hosts,
            "share of a core": round(spent / seconds, 4),
            "resident MiB": process.memory_info().rss // 2**20,
            "threads": process.num_threads(),
        }


def first(hosts: int) -> dict[str, Any]:
    with machines(hosts) as site:
        solo = SiteDriver(site)
        solo.put(jobs(hosts))
        until_all([solo], "finished", hosts)  # all agents have imported what they need
        time.sleep(warm_pool.PATIENCE + 1)  # and no process is left that could run another job
        solo.tick()
        solo.put(jobs(hosts))
        return {"hosts": hosts, "seconds until a job has begun on each": round(until_all([solo], "started", hosts), 2)}


@contextmanager
def execution_api(tasks: int) -> Iterator[str]:
    """The URL of a stand-in for Airflow's API server, a process as that is; so many tasks succeed meanwhile."""
    command = [sys.executable, "-m", "tests.services.execution_api"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        succeeded, _ = server.communicate()
    assert int(succeeded) == tasks, "each task has run, and has reported it"


def throughput(hosts: int, tasks: int, runs: int, api: str) -> dict[str, Any]:
    names = ("local", "ssh") if hosts == 1 else ("local", "divided", "ssh")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, execution_api(len(names) * (16 + runs * tasks)) as url:
        (Path(folder) / "trivial.py").write_text(DAG)
        environment = {
            "AIRFLOW_HOME": folder,
            "AIRFLOW__CORE__DAGS_FOLDER": folder,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": url,
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": f"{folder}/logs",
        }
        os.environ |= environment
        setup = "export " + " ".join(f"{name}={value}" for name, value in environment.items())
        here = {count: [local(Path(folder), number, count) for number in range(count)] for count in {1, hosts}}
        with machines(hosts, cpus=CPUS / hosts, stub=False, api=api, api_url=url, setup=setup) as site:
            sides: dict[str, Sequence[Site[Any]]] = {"local": here[1], "divided": here[hosts], "ssh": [site]}
            for name in names:
                run(sides[name], 16)
            for number in range(runs):
                for name in (*names[number % len(names) :], *names[: number % len(names)]):
                    before = cpu_seconds(site)
                    found[name].append((tasks / run(sides[name], tasks), cpu_seconds(site) - before))
        for each in (each for sites in here.values() for each in sites):
            each.close("cancel", 10)
    rates = {name: [rate for rate, _ in each] for name, each in found.items()}
    return {
        "api": api,
        "hosts": hosts,
        "tasks a second": {name: round(statistics.median(each), 1) for name, each in rates.items()},
        "CPU seconds": {name: round(statistics.median(spent for _, spent in each), 1) for name, each in found.items()},
        **{f"of {name}": ratios(rates["ssh"], rates[name]) for name in names if name != "ssh"},
    }


def local(folder: Path, number: int, count: int) -> LocalSite:
    """This machine, or one of so many parts of it."""
    config = LocalConfig(kind="local", cpus=CPUS / count, memory=8000 // count)
    return LocalSite(f"local{number}", config, folder / f"spool-{number}-of-{count}")


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    found = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    return {"median": round(statistics.median(found), 2), "each": [round(each, 2) for each in found]}


def cpu_seconds(site: FixedSite) -> float:
    """What this process, the agents of a site, and all that they have started have had of the processors so far."""
    spools = [Spool(Path(site.config.root(host)) / "spool") for host in site.config.hosts]
    agents = [psutil.Process(json.loads(spool.identity.read_text())["pid"]) for spool in spools]
    roots, total = (psutil.Process(), *agents), 0.0
    for process in {each for root in roots for each in (root, *root.children(recursive=True))}:
        with suppress(psutil.NoSuchProcess):  # it counts as a child that has ended
            total += sum(process.cpu_times()[:4])
    return total


def run(sites: Sequence[Site[Any]], tasks: int) -> float:
    """The seconds in which sites run so many tasks, each its share."""
    solos, given = [SiteDriver(each) for each in sites], jobs(tasks, stub=False)
    for number, solo in enumerate(solos):
        solo.tick()
        solo.put(given[number :: len(solos)])
    return until_all(solos, "finished", tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["idle", "first", "throughput"])
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--api", choices=["url", "tunnel"], default="url")
    options = parser.parse_args()
    end_in_order()
    print(machine())
    if options.what == "idle":
        print(idle(options.hosts or 100, options.seconds))
    elif options.what == "first":
        print(first(options.hosts or 20))
    else:
        print(throughput(options.hosts or 4, options.tasks, options.runs, options.api))


if __name__ == "__main__":
    main()
