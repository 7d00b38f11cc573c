"""What machines behind SSH cost the controller, with node agents of this machine behind one real sshd.

    python -m benchmarks.machines idle [--hosts 100] [--seconds 60]
    python -m benchmarks.machines first [--hosts 20]
    python -m benchmarks.machines throughput [--tasks 200] [--runs 3]

The agents run a stub in the place of Airflow's tasks: what is measured is Lading's. ``idle`` is the processor time and
the memory of a controller's side of so many machines that have nothing to do, ``first`` the time from the decision
until one job has begun on each, ``throughput`` how many trivial jobs a second four machines of a core run as a share of
what this machine does with four cores. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.executor import machine
from lading.executors.agent import warm_pool
from lading.executors.controller.solo import Solo
from lading.hooks.files.atomic import write_atomically
from lading.hooks.machines import agent_host, introduction
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import LocationState, Site
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.resources import Resources
from tests.services.forked import Forked
from tests.services.processes import wait_until
from tests.services.sshd import Sshd

ROOT = Path(__file__).parents[1]
RUNNER = "tests.clusters.agent_runner"
API = "http://127.0.0.1:9/execution/"
MANY = {"MaxStartups": "500:30:1000", "MaxSessions": "20"}


def agent(spool: Path, *options: str, stamp: str = "") -> Forked:
    """A node agent of this machine with a stub in the place of Airflow's tasks."""
    Spool(spool).create()
    environment = {"PYTHONPATH": str(ROOT)}
    arguments = [str(spool), "--runner", RUNNER, "--stamp", stamp, *options]
    return Forked("lading.executors.agent.agent", arguments, cwd=ROOT, environment=environment, log=spool / "agent.log")


@contextmanager
def machines(count: int, cpus: float = 1.0) -> Iterator[FixedSite]:
    """A site of so many machines, whose agents live."""
    folder = Path(tempfile.mkdtemp(prefix="lading-benchmark-"))
    names = [f"lab{number}" for number in range(count)]
    config = SSHConfig(
        kind="ssh",
        hosts=[{"ssh_conn_id": name, "cpus": cpus, "memory": 2000, "disk": 0} for name in names],  # type: ignore[arg-type]
        work_dir=str(folder / "work"),
        python=sys.executable,
        api_url=API,
    )
    with Sshd(options=MANY) as sshd:
        os.environ |= {f"AIRFLOW_CONN_{name.upper()}": sshd.connection() for name in names}
        stamps = {host.ssh_conn_id: introduction.stamp(config, host, API) for host in config.hosts}
        agents = [
            agent(Path(config.root(host)) / "spool", "--logs", "/tmp", stamp=stamps[host.ssh_conn_id])
            for host in config.hosts
        ]
        site = FixedSite("lab", config, folder / "state")
        try:
            assert wait_until(lambda: all_up(site, count), 300, 0.5), "all machines are up"
            yield site
        finally:
            site.close("cancel", 30)
            for each in agents:
                each.kill()
            shutil.rmtree(folder, ignore_errors=True)


def all_up(site: FixedSite, count: int) -> bool:
    try:
        seen = site.observe().locations
    except OSError:
        return False
    return [each.state for each in seen] == [LocationState.UP] * count


def jobs(count: int) -> list[Envelope]:
    now = time.time()
    workload = {"function": "succeed"}
    return [
        Envelope(str(uuid.uuid4()), workload, Resources(1, 64), None, None, 0, now, now + 3600) for _ in range(count)
    ]


def until_all(solo: Solo, kind: str, count: int) -> float:
    """Tick until so many jobs have had an event of a kind; the seconds that it took."""
    begun, found = time.monotonic(), set()
    while len(found) < count:
        found |= {event["token"] for event in solo.tick() if event["event"] == kind}
        time.sleep(0.01)
    return time.monotonic() - begun


def idle(hosts: int, seconds: float) -> dict[str, Any]:
    with machines(hosts) as site:
        solo, process = Solo(site), psutil.Process()
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
        solo = Solo(site)
        solo.put(jobs(hosts))
        until_all(solo, "finished", hosts)  # all agents have imported what they need
        time.sleep(warm_pool.PATIENCE + 1)  # and no process is left that could run another job
        solo.tick()
        solo.put(jobs(hosts))
        return {"hosts": hosts, "seconds until a job has begun on each": round(until_all(solo, "started", hosts), 2)}


def throughput(tasks: int, runs: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"local": [], "ssh": []}
    with machines(4) as site, tempfile.TemporaryDirectory() as folder:
        local = LocalSite("local", LocalConfig(kind="local", cpus=4, memory=8000), Path(folder) / "spool")
        settings = agent_host.settings(local.capacity, 60, 10, measure_disk=True)
        here = agent(Path(folder) / "spool")
        write_atomically(Path(folder) / "spool/config.json", json.dumps(settings))
        sides: dict[str, Site[Any]] = {"local": local, "ssh": site}
        for side in sides.values():
            warm(side)
        for _ in range(runs):
            for name, side in sides.items():
                solo = Solo(side)
                solo.tick()
                solo.put(jobs(tasks))
                found[name].append(tasks / until_all(solo, "finished", tasks))
        local.close("cancel", 10)
        here.kill()
    rates = {name: round(statistics.median(each), 1) for name, each in found.items()}
    return {"jobs a second": rates, "ratio": round(rates["ssh"] / rates["local"], 2)}


def warm(side: Site[Any]) -> None:
    solo = Solo(side)
    solo.put(jobs(8))
    until_all(solo, "finished", 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["idle", "first", "throughput"])
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    if options.what == "idle":
        print(idle(options.hosts or 100, options.seconds))
    elif options.what == "first":
        print(first(options.hosts or 20))
    else:
        print(throughput(options.tasks, options.runs))


if __name__ == "__main__":
    main()
