"""Gangs on real parts: node agents of this machine, behind sshd and in allocations of SLURM, under a real controller.

The jobs ask an API server for its health, which takes as long as a job is to take.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from lading.executors.store import ENDED, JobRow, State
from lading.hooks.conformance.site_suite import close
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.site import EC2Site
from lading.hooks.machines import connection
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import Site
from lading.scheduling.hints.gang_hints import AttemptSchedule
from tests.clusters.driven import HEALTH, asking, run_commands
from tests.clusters.ec2_drive import Drive
from tests.clusters.gangs import House
from tests.clusters.sites import make_settings, make_store
from tests.clusters.small_slurm import small_slurm
from tests.services import node_python
from tests.services.account import Account
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

WORKLOAD = asking()
MakeHouse = Callable[[Sequence[Site[Any]]], House]


@pytest.fixture
def make_house(
    api: ExecutionApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Sequence[Site[Any]]], House]]:
    """Makes a controller and its store for some sites, which end with the test; jobs end when their gate opens."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", api.url)
    run_commands(monkeypatch)
    api.gates[HEALTH] = threading.Event()
    engine = make_store(tmp_path)
    made: list[House] = []

    def make(sites: Sequence[Site[Any]]) -> House:
        made.append(House(engine, make_settings(tmp_path / "state"), sites))
        return made[-1]

    yield make
    api.gates[HEALTH].set()
    close(site for house in made for site in house.sites)


def states(house: House) -> set[str]:
    house.tick()
    return set(house.states().values())


def ran_together(house: House) -> bool:
    """Whether all jobs have ended well, and there was a time at which all of them ran."""
    jobs = list(house.jobs().values())
    assert {str(job.state) for job in jobs} == {State.SUCCEEDED.value}, [(job.token, job.reason) for job in jobs]
    return max(job.started_at or 0.0 for job in jobs) < min(job.ended_at or 0.0 for job in jobs)


def run_together(house: House) -> bool:
    return states(house) == {State.RUNNING.value}


def are_over(house: House) -> bool:
    return states(house) <= {state.value for state in ENDED}


def are_up(house: House, site: FixedSite) -> bool:
    house.tick()
    return all(each.trouble is None for each in site.connections.values())


@pytest.fixture
def hpc(
    account: Account, slurm_login: Sshd, api: ExecutionApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Site[Any]:
    """Allocations of SLURM."""
    monkeypatch.setenv("AIRFLOW_CONN_HPC", slurm_login.connection())
    return small_slurm(account, api.url)("hpc", tmp_path / "hpc")


def test_a_gang_of_four_over_allocations_and_this_machine(
    make_house: MakeHouse, hpc: Site[Any], api: ExecutionApi, tmp_path: Path
) -> None:
    local = LocalSite("local", LocalConfig(kind="local", cpus=2, memory=2000, kill_grace=2), tmp_path / "local")
    house = make_house([local, hpc])
    house.queue(
        "head.0", "head.1", "workers.0", "workers.1", cpus=1, memory=300, workload=WORKLOAD, sites=("local", "hpc")
    )
    assert wait_until(lambda: run_together(house), 180, 0.2), house.jobs()
    api.gates[HEALTH].set()
    assert wait_until(lambda: are_over(house), 120, 0.2), house.states()
    assert ran_together(house)
    assert {str(job.site) for job in house.jobs().values()} == {"local", "hpc"}
    assert house.holds() == []


def test_a_gang_in_a_reservation_that_an_operator_has_made(
    make_house: MakeHouse, hpc: Site[Any], slurm: Slurm, account: Account, api: ExecutionApi
) -> None:
    slurm.command(
        "scontrol", "create", "reservation", "ReservationName=ray", f"Users={account.name}", "StartTime=now",
        "Duration=30", "Nodes=n2", "Flags=IGNORE_JOBS",
    )  # fmt: skip
    try:
        house = make_house([hpc])
        house.queue("head", "worker", cpus=1, memory=300, workload=WORKLOAD, sites=("hpc", "hpc"))
        with Session(house.engine) as session:
            session.execute(update(JobRow).values(native_hint=json.dumps({"reservation": "ray"})))
            session.commit()
        assert wait_until(lambda: run_together(house), 180, 0.2), house.jobs()
        assert set(slurm.command("squeue", "--noheader", "--format=%v %N").splitlines()) == {"ray n2"}
        api.gates[HEALTH].set()
        assert wait_until(lambda: are_over(house), 120, 0.2), house.states()
        assert ran_together(house)
        close(house.sites)
        slurm.wait_until_free(60)
    finally:
        slurm.command("scontrol", "delete", "ReservationName=ray")


def test_one_of_two_hosts_dies_while_room_is_held(
    make_house: MakeHouse,
    account: Account,
    api: ExecutionApi,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    work_dir = Path(tempfile.mkdtemp(prefix="lading-machines-", dir="/var/tmp"))
    work_dir.chmod(0o1777)
    with Sshd(account) as first, Sshd(account) as second:
        for name, sshd in (("LAB1", first), ("LAB2", second)):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", sshd.connection())
        config = SSHConfig(
            kind="ssh",
            hosts=tuple({"ssh_conn_id": name, "cpus": 2, "memory": 2000} for name in ("lab1", "lab2")),  # type: ignore[arg-type]
            work_dir=str(work_dir),
            python=str(node_python.make(account)),
            api_url=api.url,
            kill_grace=2,
            max_poll_interval=1,
        )
        site = FixedSite("lab", config, tmp_path / "lab")
        house = make_house([site])
        assert wait_until(lambda: are_up(house, site), 120, 0.2)
        # The second one is asked for room as well, and does not come to say that it has some.
        monkeypatch.setattr(connection.Connection, "seconds_until_late", 600.0)
        second.freeze()
        options: dict[str, Any] = {"cpus": 2, "memory": 300, "workload": WORKLOAD}
        house.queue("head", "worker", attempts=AttemptSchedule((3600,), 2), **options)

        def is_held() -> bool:
            found = states(house)
            return found == {State.QUEUED.value} and ("lab1", "held") in [(e.location, e.state) for e in house.holds()]

        assert wait_until(is_held, 120, 0.05), (house.states(), house.holds())
        second.halt()
        assert wait_until(lambda: states(house) == {State.ATTEMPTED.value}, 60, 0.2), house.states()
        assert house.holds() == []
        second.start()
        assert wait_until(lambda: are_up(house, site), 120, 0.2)
        house.sleep(3600)
        assert wait_until(lambda: run_together(house), 180, 0.2), house.states()
        api.gates[HEALTH].set()
        assert wait_until(lambda: are_over(house), 180, 0.2), house.states()
        assert ran_together(house)
        assert {str(job.location) for job in house.jobs().values()} == {"lab1", "lab2"}
        close(house.sites)
    shutil.rmtree(work_dir, ignore_errors=True)


def test_fifty_gangs_that_compete_for_room_for_three(make_house: MakeHouse, api: ExecutionApi, tmp_path: Path) -> None:
    """None starves, none waits for another one for ever, and the members of each run together."""
    api.gates[HEALTH].set()
    api.delays[HEALTH] = 2.0
    site = LocalSite("local", LocalConfig(kind="local", cpus=6, memory=6000, kill_grace=2), tmp_path / "local")
    house = make_house([site])
    gangs = [f"r{number}" for number in range(50)]
    for run in gangs:
        house.to_come = {}
        options: dict[str, Any] = {"cpus": 1, "memory": 300, "workload": WORKLOAD}
        house.queue("head", "worker", run=run, attempts=AttemptSchedule((1,), 1000), **options)
    house.to_come = {}

    def all_are_over() -> bool:
        house.tick()
        house.sleep(1)
        return all(each.ended_at is not None for each in house.by_token().values())

    assert wait_until(all_are_over, 400, 0.1), house.by_token()
    jobs = house.by_token()
    assert {str(each.state) for each in jobs.values()} == {State.SUCCEEDED.value}
    for run in gangs:
        head, worker = jobs[f"head-{run}"], jobs[f"worker-{run}"]
        starts, ends = ([getattr(each, name) for each in (head, worker)] for name in ("started_at", "ended_at"))
        assert max(starts) < min(ends), run
    house.tick()
    assert (house.holds(), house.gangs()) == ([], [])


BOOT = 6.0


def test_what_is_bought_for_a_gang_stays_while_it_only_holds_room(
    make_house: MakeHouse, api: ExecutionApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The machine of the first task holds its room, idle for many times ``idle_seconds``, until that of the second one
    has booted."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=")
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    with FakeEC2(boot_seconds=BOOT) as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        table = {
            **service.table,
            "instance_types": ("m5.large",),
            "python": str(node_python.make(service.account)),
            "api_url": api.url,
            "kill_grace": 2,
            "idle_seconds": 1,
        }
        # A gang has no room at a site that does not say yet what it can launch, and is tried again after 15 minutes.
        house = make_house([Drive(EC2Site("cloud", EC2Config(**table), tmp_path / "cloud")).selling()])
        house.queue("head", "worker", cpus=2, memory=300, workload=WORKLOAD)
        since: list[float] = []

        def all_run() -> bool:
            found = states(house)
            if len(house.holds()) == 1 and house.holds()[0].state == "held":
                since.append(time.monotonic())
            return found == {State.RUNNING.value}

        assert wait_until(all_run, 900, 0.2), (house.jobs(), house.holds())
        assert since[-1] - since[0] > BOOT / 2, "one machine only held room meanwhile"
        api.gates[HEALTH].set()
        assert wait_until(lambda: are_over(house), 120, 0.2), house.states()
        assert ran_together(house)
        assert len({job.location for job in house.jobs().values()}) == 2
        assert house.holds() == []
        assert len(service.ledger()) == 2, "none was released while it held room, and bought again"

        def none_lives() -> bool:
            house.tick()
            return service.living() == []

        assert wait_until(none_lives, 60, 0.2), "it is released when it has nothing to hold"
        close(house.sites)
