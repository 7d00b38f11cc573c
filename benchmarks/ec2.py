"""What machines of EC2 cost the controller, against a double of EC2.

    python -m benchmarks.ec2 launch [--machines 100]
    python -m benchmarks.ec2 idle [--machines 300] [--seconds 60]

``launch`` is the time from the decision until jobs have begun on each of so many new machines, and that without their
boot; ``idle`` the processor time and the memory of a controller's side of so many that have nothing to do. What a
machine does by itself would have a processor of its own, so it is as little as can be: one SSH server answers for all
of them as soon as EC2 says that they run, what a machine has is a line of shell, and the agents are there from the
order on, with a stub in the place of Airflow's tasks. Nothing else should run meanwhile.

What a decision costs is ``python -m benchmarks.provisioning 5000 50 300``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.executor import machine
from benchmarks.machines import API, MANY, agent, jobs, until_all
from lading.executors.controller.solo import Solo
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.fleet import Fleet
from lading.hooks.ec2.site import EC2Site
from lading.hooks.ec2.tokens import Identity, KeyPair
from lading.hooks.machines import facts, introduction
from lading.hooks.machines.fixed_config import HostConfig
from lading.hooks.site import LocationState, Order
from tests.services import processes
from tests.services.ec2 import FakeEC2
from tests.services.processes import wait_until
from tests.services.sshd import Sshd

KIND, MIB = "c5.large", 3000
# The double's instances run after so many seconds, and are reached from then on.
BOOT = 1.0
# In the place of Python on a machine: what it has, without a start of Python; the rest is done by that.
PYTHON = """#!/bin/sh
[ "$2" = lading.executors.host ] || exec {python} "$@"
cat >/dev/null
now=$(date +%s.%N)
id=$(cat /proc/sys/kernel/random/boot_id)
printf 'lading-host {{"version": "{version}", "host": "m", "boot_id": "%s", "now": %s, ' "$id" "$now"
printf '"lives": true, "arch": "x86_64", "os": "linux", '
printf '"capacity": {{"cpus": 2.0, "memory": {mib}, "disk": 0, "gpus": 0.0}}}}\\n'
"""


class Fleeting(EC2Site):
    """A site whose machines have their agents from the order on.

    :ivar started: called with each of their names
    """

    started: Callable[[str], None]

    def launch(self, orders: Sequence[Order]) -> None:
        for each in orders:
            self.started(each.name)
        super().launch(orders)


@contextmanager
def bought(most: int, **options: Any) -> Iterator[Solo]:
    """A site that may buy so many machines, driven alone.

    :param options: of its table
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lading-benchmark-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        service = stack.enter_context(FakeEC2(boot_seconds=2 * BOOT))
        sshd = stack.enter_context(Sshd(options=MANY))
        service.never_boots("*")
        os.environ |= {
            **service.environment,
            "AIRFLOW__CORE__FERNET_KEY": "b25seSBmb3IgdGhlIG1lYXN1cmVtZW50cyBoZXJlIQ==",
        }
        _lead_all_to(sshd)
        python = folder / "python"
        python.write_text(PYTHON.format(python=sys.executable, version=version("airflow-lading"), mib=MIB))
        python.chmod(0o755)
        table: dict[str, Any] = {
            "kind": "ec2",
            "aws_conn_id": "",
            "subnets": tuple(service.subnets.values()),
            "ami": service.ami,
            "instance_types": (KIND,),
            "max_instances": most,
            "user": sshd.user,
            "ssh_port": sshd.port,
            "work_dir": str(folder / "work"),
            "python": str(python),
            "api_url": API,
            "idle_seconds": 3600,
            **options,
        }
        config = EC2Config(**table)
        site = Fleeting("cloud", config, folder / "state")

        def started(name: str) -> None:
            host = HostConfig(ssh_conn_id=name, instance_type=KIND)
            stamp = introduction.stamp(config, host, API)
            stack.callback(agent(Path(config.root(host)) / "spool", "--logs", "/tmp", stamp=stamp).kill)

        site.started = started
        stack.callback(site.close, "cancel", 120)
        site.observe()  # which waits for prices
        yield Solo(site)


def _lead_all_to(sshd: Sshd) -> None:
    """One server is the SSH server of all machines, which are one to Lading's eyes otherwise."""
    private = (sshd.folder / "id_user").read_text()
    its = KeyPair("", sshd.host_key)
    ours = KeyPair(private, (sshd.folder / "id_user.pub").read_text().strip())
    Identity.host_key = lambda self, token: its  # type: ignore[method-assign]
    Identity.user_key = property(lambda self: ours)  # type: ignore[assignment]
    Fleet._address = lambda self, member: "127.0.0.1" if member.instance else None  # type: ignore[method-assign]
    facts.RESIDENTS.enter = lambda *_, **__: None  # type: ignore[method-assign, assignment]


def launch(machines: int) -> dict[str, Any]:
    with bought(machines) as solo:
        solo.put(jobs(2 * machines))
        begun = time.monotonic()
        while not solo.instances:  # until arrivals have settled
            solo.tick()
            time.sleep(0.05)
        settled = time.monotonic() - begun
        whole = until_all(solo, "started", 2 * machines)
        return {
            "machines": len(solo.instances),
            "seconds until it is decided": round(settled, 2),
            "seconds from there until two jobs have begun on each": round(whole, 2),
            "of that without the boot": round(whole - BOOT, 2),
        }


def idle(machines: int, seconds: float) -> dict[str, Any]:
    with bought(machines) as solo:
        solo.put(jobs(2 * machines))
        until_all(solo, "finished", 2 * machines)
        assert wait_until(lambda: all_up(solo, machines), 600, 1.0), "all machines are up, and have nothing to do"
        time.sleep(10)
        process = psutil.Process()
        before, end = process.cpu_times(), time.monotonic() + seconds
        while time.monotonic() < end:
            solo.tick()
            time.sleep(1.0)
        after = process.cpu_times()
        spent = after.user + after.system - before.user - before.system
        return {
            "machines": machines,
            "share of a core": round(spent / seconds, 4),
            "resident MiB": process.memory_info().rss // 2**20,
            "threads": process.num_threads(),
        }


def all_up(solo: Solo, count: int) -> bool:
    solo.tick()
    return [each.state for each in solo.seen] == [LocationState.UP] * count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["launch", "idle"])
    parser.add_argument("--machines", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    processes.end_in_order()
    print(machine())
    if options.what == "launch":
        print(launch(options.machines or 100))
    else:
        print(idle(options.machines or 300, options.seconds))


if __name__ == "__main__":
    main()
