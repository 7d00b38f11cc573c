"""What EC2 instances cost the controller, and what a day costs compared with the simulator, on a mock of EC2.

    python -m benchmarks.ec2 launch [--machines 100] [--boot 20]
    python -m benchmarks.ec2 idle [--machines 300] [--seconds 60]
    python -m benchmarks.ec2 day [--hours 24] [--jobs 2000] [--speed 60]

``launch``: the time from the decision until a job has started on each of ``--machines`` new machines, with and without
their boot time. ``idle``: CPU time and memory of a controller with idle machines. ``day``: a trace with ``--jobs`` jobs
a day, replayed ``--speed`` times as fast; its USD and machine-hours as billed by EC2, compared with those of the
simulator, which gets the measured times of boots and of job starts. It prints its progress on stderr each minute.

The controller is a real one, with SQLite as its store. On real machines, their own work would use their own processors,
so here it is reduced: one SSH server answers for all booted machines, and forks instead of restarting; a few lines of
shell report what a machine has; its spool is served by forks of one Python process; and its agent, which exists from
the order on, runs a stub instead of Airflow tasks. The figures include no start of Python on a machine. Nothing else
should run meanwhile. For the cost of a decision, run ``python -m benchmarks.provisioning 5000 50 300``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from airflow import settings as airflow_settings
from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks import machine_python
from benchmarks.executor import machine
from benchmarks.machines import API, MANY, agent
from benchmarks.traces import poisson
from lading.executors import store
from lading.executors.controller import site_memory
from lading.executors.controller.controller import Controller
from lading.executors.store import JobRow, State
from lading.executors.store.instances import InstanceRow
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity, KeyPair
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.reach import Readiness
from lading.hooks.ec2.site import EC2Site
from lading.hooks.machines import agent_host, introduction
from lading.hooks.machines.fixed_config import HostConfig
from lading.hooks.site import LocationState, Observation, Order
from lading.hooks.spool.spool import Spool
from lading.plugin.host import AirflowHost
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model import prediction
from lading.scheduling.model.plan import Objective
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.scale_in import ScaleIn
from tests.clusters.sites import make_settings
from tests.services import processes
from tests.services.ec2 import FakeEC2
from tests.services.forked import Forked
from tests.services.processes import wait_until
from tests.services.sshd import Sshd

SMALL = "c5.large"
FAMILIES = ("c7i.*", "m7i.*", "r7i.*")
# In the place of Python on a machine: what it has, and what serves its spool, without a start of Python.
PYTHON = """#!/bin/bash
[ "$2" = lading.executors.host ] || exec {python} "$@"
read -r asked
mark='"mark": "([^"]*)"'
[[ $asked =~ $mark ]]
read -r said <"$3/../introduction"
printf '%s{{"now": %s, %s\\n' "${{BASH_REMATCH[1]}}" "$EPOCHREALTIME" "$said"
{serve}
"""
# What a stated time is of the real one, and what a machine needs for a task of no length, seconds.
STATED, TO_BEGIN = 1.5, 2.0
# The first jobs end when all have begun, seconds.
LASTING = 20.0
# The simulator bills so exactly, for the double bills from one whole second to another, seconds.
EXACTLY = 0.01
# A controller plans when something has happened, not only once a second: so the simulator looks so often, seconds.
LOOKS = 0.25
MINUTE = 60.0
# After its last arrival a day's jobs, and then its machines, have so long to end, seconds.
LAST = 1800.0


class Machines:
    """Everything that answers behind the simulated instances.

    :param boot: seconds from an order until its machine answers
    """

    def __init__(self, config: EC2Config, sshd: Sshd, boot: float) -> None:
        self.config, self.boot = config, boot
        self.agents: dict[str, Forked] = {}
        self.ordered: dict[str, float] = {}
        """When each was ordered, on the monotonic clock."""
        ours = KeyPair((sshd.folder / "id_user").read_text(), (sshd.folder / "id_user.pub").read_text().strip())
        theirs = KeyPair("", sshd.host_key)
        Identity.host_key = lambda self, token: theirs  # type: ignore[method-assign]
        Identity.user_key = property(lambda self: ours)  # type: ignore[assignment]
        Readiness.address = lambda _, member: self.address(member)  # type: ignore[method-assign]
        introduction.RESIDENTS.enter = lambda *_, **__: None  # type: ignore[method-assign, assignment]

    def address(self, member: EC2Machine) -> str | None:
        booted = time.monotonic() - self.ordered.get(member.name, 0.0) >= self.boot
        return "127.0.0.1" if booted and member.name in self.agents else None

    def begin(self, order: Order) -> None:
        host = HostConfig(ssh_conn_id=order.name, instance_type=order.launch.kind)
        root, capacity = Path(self.config.root(host)), order.launch.capacity
        spool = Spool(root / "spool")
        spool.create()
        amounts = {name: getattr(capacity, name) for name in ("cpus", "memory", "disk", "gpus")}
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        said = {"version": version("airflow-lading"), "host": order.name, "boot_id": boot_id, "arch": "x86_64"}
        said |= {"os": "linux", "capacity": amounts, "lives": True}
        (root / "introduction").write_text(json.dumps(said).removeprefix("{"))
        spool.config.write_text(json.dumps(agent_host.settings(capacity, 300, 10, measure_disk=False)))
        stamp = introduction.stamp(self.config, host, API)
        self.agents[order.name] = agent(spool.root, "--logs", "/tmp", stamp=stamp)

    def end(self, names: Iterable[str]) -> None:
        for name in names:
            if (its := self.agents.pop(name, None)) is not None:
                its.kill()


class BootingSite(EC2Site):
    machines: Machines

    def launch(self, orders: Sequence[Order]) -> None:
        self.machines.ordered |= dict.fromkeys((each.name for each in orders), time.monotonic())
        super().launch(orders)
        threading.Thread(target=lambda: [self.machines.begin(each) for each in orders]).start()

    def observe(self) -> Observation:
        found = super().observe()
        self.machines.end(each["token"] for each in found.events if each["event"] == "released")
        return found


@dataclass
class House:
    """A controller at work, its store, and what it buys from."""

    site: BootingSite
    controller: Controller
    engine: Engine
    service: FakeEC2

    def add(self, jobs: Sequence[tuple[Resources, float, float | None]]) -> None:
        """Queue jobs: what each asks for, for how long it runs and what it says of that, seconds."""
        now = time.time()
        with Session(self.engine) as session:
            for resources, seconds, limit in jobs:
                workload = {"function": "sleep", "arguments": {"seconds": seconds}}
                asked = {name: getattr(resources, name) for name in ("cpus", "memory", "disk", "gpus")}
                what = {"kind": "Probe", "subject": "s", "workload": json.dumps(workload), "priority": 0}
                when = {"state": State.QUEUED, "queued_at": now, "time_limit": limit}
                store.add_job(session, token=str(uuid.uuid4()), **what, **when, **asked)
            session.commit()
        self.controller.ring()

    def count(self, *states: State) -> int:
        with Session(self.engine) as session:
            return session.scalar(select(func.count()).where(JobRow.state.in_(states))) or 0

    def instances(self) -> list[InstanceRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(InstanceRow).order_by(InstanceRow.ordered_at)))

    def wait(self, there: Callable[[], bool], seconds: float, pause: float = 0.1) -> None:
        """:raises TimeoutError: it has not come in time"""
        if not wait_until(there, seconds, pause):
            with Session(self.engine) as session:
                states = session.execute(
                    select(JobRow.state, JobRow.reason, func.count()).group_by(JobRow.state, JobRow.reason)
                ).all()
            raise TimeoutError(f"it did not come in {seconds} s: {states}")


@contextmanager
def house(boot: float, **options: Any) -> Iterator[House]:
    """A controller of one site of EC2.

    :param boot: seconds from an order until its machine answers
    :param options: of the site's table
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lading-benchmark-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        service = stack.enter_context(FakeEC2(least_seconds=0.0))
        service.never_boots("*")  # what answers is ours
        # Without what the user's own shell does at each login, which is not the machine's.
        sshd = stack.enter_context(Sshd(options=MANY, environment={"HOME": str(folder)}, is_forked=True))
        agent(folder / "warm").kill()  # so that all others begin in milliseconds
        os.environ |= {
            **service.environment,
            "AIRFLOW__CORE__FERNET_KEY": "b25seSBmb3IgdGhlIG1lYXN1cmVtZW50cyBoZXJlIQ==",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"),
        }
        serve = stack.enter_context(machine_python.command())
        python = folder / "python"
        python.write_text(PYTHON.format(python=sys.executable, serve=serve))
        python.chmod(0o755)
        ours = {"user": sshd.user, "ssh_port": sshd.port, "work_dir": str(folder / "work"), "python": str(python)}
        config = EC2Config(
            **{**service.table, **ours, "api_url": API, "expected_boot_time": boot + TO_BEGIN, **options}
        )
        site = BootingSite("cloud", config, folder / "state")
        site.machines = Machines(config, sshd, boot)
        stack.callback(lambda: site.machines.end(list(site.machines.agents)))
        engine = create_engine(f"sqlite:///{folder}/airflow.db", connect_args={"timeout": 60})
        import_all_models()
        Base.metadata.create_all(engine)
        store.metadata.create_all(engine)
        airflow_settings.NonScopedSession = sessionmaker(engine, expire_on_commit=False)
        settings = make_settings(folder, shutdown_seconds=120)
        controller = Controller(AirflowHost(), {"cloud": site}, lambda *_: "", settings, False, lambda changes: None)
        loop = threading.Thread(target=controller.run)
        loop.start()
        stack.callback(loop.join)
        stack.callback(controller.stop)
        made = House(site, controller, engine, service)
        made.wait(lambda: site.fleet.is_loaded and site.fleet.offers.catalogue is not None, 120)
        yield made


def launch(machines: int, boot: float) -> dict[str, Any]:
    with house(boot, instance_types=(SMALL,), max_instances=machines, idle_seconds=3600) as made:
        before = cpu_seconds()
        made.add([(Resources(2, 64), LASTING, None)] * machines)
        made.wait(lambda: made.count(State.RUNNING, State.SUCCEEDED) == machines, boot + 600)
        spent, rows = cpu_seconds() - before, made.instances()
        decided = min(each.ordered_at for each in rows)
        with Session(made.engine) as session:
            begun = [at - decided for at in session.scalars(select(JobRow.started_at)) if at is not None]
        ready = [each.ready_at - decided for each in rows if each.ready_at is not None]
        made.wait(lambda: made.count(State.SUCCEEDED) == machines, LASTING + 600, 1.0)
        return {
            "machines": len(rows),
            "seconds from the decision until a job has begun on each": round(max(begun), 2),
            "of that without the boot": {
                "until half of the machines take jobs": round(statistics.median(ready) - boot, 2),
                "until all do": round(max(ready) - boot, 2),
                "until half of the jobs have begun": round(statistics.median(begun) - boot, 2),
                "until all have": round(max(begun) - boot, 2),
            },
            "processor seconds of the controller": round(spent, 1),
        }


def idle(machines: int, seconds: float) -> dict[str, Any]:
    with house(5.0, instance_types=(SMALL,), max_instances=machines, idle_seconds=3600) as made:
        made.add([(Resources(2, 64), 1.0, None)] * machines)
        made.wait(lambda: made.count(State.SUCCEEDED) == machines, 900, 1.0)
        fleet = made.site.fleet
        made.wait(
            lambda: [each.seen("").state for each in fleet.machines.values()] == [LocationState.UP] * machines, 60
        )
        time.sleep(15)
        before = cpu_seconds()
        time.sleep(seconds)
        spent, process = cpu_seconds() - before, psutil.Process()
        return {
            "machines": machines,
            "share of a core": round(spent / seconds, 4),
            "resident MiB": process.memory_info().rss // 2**20,
            "threads": process.num_threads(),
        }


def cpu_seconds() -> float:
    """Of this process, which is the controller's."""
    found = psutil.Process().cpu_times()
    return found.user + found.system


def day(jobs: int, hours: float, speed: float, boot: float, idle_seconds: float) -> dict[str, Any]:
    """:param boot: as in the day, as is ``idle_seconds``"""
    trace = [
        Arrival(replace(each.job, time=STATED * length + TO_BEGIN, arch=None), each.arrival / speed, length)
        for each in poisson(jobs)
        if each.arrival < hours * 3600
        for length in [each.duration / speed]
    ]
    options = {"instance_types": FAMILIES, "max_instances": 1000, "idle_seconds": round(idle_seconds / speed)}
    # Jobs of this day are short when they would be without its speed.
    prediction.SHORT, site_memory.SHORT = prediction.SHORT / speed, site_memory.SHORT / speed
    with house(boot / speed, **options) as made:
        market = made.site.fleet.offers.market(made.site.fleet.launcher.shortages, time.time())
        assert market is not None
        # What the planner compiles at its first use a controller that has run for a day has long done.
        simulated(trace, market, boot / speed + TO_BEGIN, 0.0, options["idle_seconds"])
        start = said = time.monotonic()
        for number, each in enumerate(trace):
            time.sleep(max(0.0, start + each.arrival - time.monotonic()))
            made.add([(each.job.resources, each.duration, each.job.time)])
            if time.monotonic() - said >= MINUTE:
                said += MINUTE
                say(made, number + 1, len(trace))
        made.wait(over(made, len(trace), lambda: made.count(State.SUCCEEDED) == len(trace)), LAST, 1.0)
        made.wait(over(made, len(trace), lambda: not made.site.fleet.machines), LAST, 0.5)
        rows, bill = made.instances(), made.service.ledger()
        with Session(made.engine) as session:
            jobs_done = [*session.execute(select(JobRow.location, JobRow.placed_at, JobRow.started_at))]
    up = {each.token: each.ready_at for each in rows if each.ready_at is not None}
    booted = statistics.mean(each.ready_at - each.ordered_at for each in rows if each.ready_at is not None)
    # Not of what was prefetched to a machine, which is a wait for room.
    lag = statistics.median(begun - placed for name, placed, begun in jobs_done if placed >= up.get(name, placed))
    virtual = simulated(trace, market, booted, lag, options["idle_seconds"])
    usd = sum(each["usd"] for each in bill)
    machine_hours = sum(each["ended"] - each["launched"] for each in bill) / 3600
    return {
        "jobs": len(trace),
        "seconds until a machine took jobs": round(booted, 2),
        "seconds until a job with a place began": round(lag, 2),
        "machines": {"live": len(bill), "simulated": virtual.launches},
        "USD": compared(usd * speed, virtual.cost * speed),
        "machine-hours": compared(machine_hours * speed, virtual.instance_hours * speed),
    }


def say(made: House, arrived: int, jobs: int) -> None:
    """Say on standard error how far a day has come."""
    machines, memory = len(made.site.fleet.machines), psutil.Process().memory_info().rss // 2**20
    done = made.count(State.SUCCEEDED)
    print(f"{arrived} of {jobs} jobs have come, {done} ended; {machines} machines, {memory} MiB", file=sys.stderr)


def over(made: House, jobs: int, there: Callable[[], bool]) -> Callable[[], bool]:
    """The same question, which says each minute how far the day has come.

    :raises RuntimeError: a job has failed, so that it will not come to its end
    """
    said = time.monotonic()

    def asked() -> bool:
        nonlocal said
        if time.monotonic() - said >= MINUTE:
            said += MINUTE
            say(made, jobs, jobs)
        if failed := made.count(State.FAILED):
            raise RuntimeError(f"{failed} jobs have failed")
        return there()

    return asked


def simulated(trace: Sequence[Arrival], market: MachineMarket, boot: float, lag: float, idle_seconds: float) -> Report:
    return simulate(
        trace,
        market.catalogue,
        market.limits,
        market.policy,
        objective=Objective(),
        scale_in=ScaleIn(idle_seconds, EXACTLY),
        conditions=Conditions(boot_seconds=boot, lag_seconds=lag, tick_seconds=LOOKS),
    )


def compared(live: float, virtual: float) -> dict[str, float]:
    return {"live": round(live, 4), "simulated": round(virtual, 4), "more": round(live / virtual - 1, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["launch", "idle", "day"])
    parser.add_argument("--machines", type=int)
    parser.add_argument("--boot", type=float, help="boot time in seconds: 20 for launch, 60 for day")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--jobs", type=int, default=2_000, help="jobs in a whole day")
    parser.add_argument("--speed", type=float, default=60.0)
    parser.add_argument("--idle", type=float, default=120.0, help="idle_seconds of the day")
    options = parser.parse_args()
    processes.end_in_order()
    logging.disable(logging.INFO)
    print(machine(), flush=True)
    if options.what == "launch":
        print(launch(options.machines or 100, options.boot or 20.0))
    elif options.what == "idle":
        print(idle(options.machines or 300, options.seconds))
    else:
        print(day(options.jobs, options.hours, options.speed, options.boot or 60.0, options.idle))


if __name__ == "__main__":
    main()
