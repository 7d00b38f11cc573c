"""A controller is killed at each point of a launch and a release, and another one takes over, elsewhere.

Both are controllers as Airflow runs them, on one database: what is stored is all that the second one has.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.amazon.aws.hooks import base_aws  # noqa: F401 (once, not in each controller)
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.controller import Controller
from lading.executors.store import JobRow, State, instances
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.launcher import Launcher
from lading.hooks.ec2.life import LifePhase
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.site import EC2Site
from lading.hooks.ec2.termination import Termination
from lading.plugin.host import AirflowHost
from lading.scheduling.accounting import billing
from tests.clusters.driven import HEALTH, asked, asking, run_commands
from tests.clusters.sites import make_settings
from tests.services import node_python, processes
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until

PATIENCE = 90.0
# For so long EC2 answers nothing, seconds: longer than until a machine that it does not describe counts as missing.
OUTAGE = 30.0
JOBS, MACHINES = 3, 2
# An order that is not seen for so long is taken for one that was never sent, seconds.
SECONDS_UNTIL_GONE = 5.0
# So dear that a second costs a cent: bills are compared to the cent. Nor is there a least that hides the seconds.
USD_PER_HOUR = 36.0
CENT = 0.005


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=0.5, least_seconds=0.0) as service:
        service.price("m5.*", USD_PER_HOUR)
        yield service


@pytest.fixture
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as found:
        yield found


@dataclass(frozen=True)
class Point:
    """Where a controller is killed: before a method, or after it, for what it is called with."""

    owner: Any
    method: str
    is_after: bool = False
    applies: Callable[..., bool] = lambda *_: True

    def make(self) -> None:
        real = getattr(self.owner, self.method)

        def instead(*given: Any) -> Any:
            found = real(*given) if self.is_after or not self.applies(*given) else None
            if self.applies(*given):
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(self.owner, self.method, instead)


UNSENT = "launch: nothing is sent"
POINTS = {
    UNSENT: Point(EC2, "run"),
    "launch: EC2 has launched, nothing is noted": Point(Launcher, "_answered"),
    "launch: the ids are noted": Point(Launcher, "_answered", is_after=True),
    "boot: a machine is reached for the first time": Point(
        EC2Machine, "enter", applies=lambda _, phase: phase is LifePhase.UP
    ),
    "release: an inbox is to be closed": Point(
        EC2Machine, "enter", applies=lambda _, phase: phase is LifePhase.DRAINING
    ),
    "release: an inbox is closed and empty": Point(
        Termination, "request_end", applies=lambda _, member, __: member.phase is LifePhase.DRAINING
    ),
    "release: EC2 has terminated, nothing is noted": Point(EC2, "terminate", is_after=True),
    "release: the end is seen, and not told": Point(Termination, "leave"),
}


class House:
    """A database, and the controllers that come and go on it."""

    def __init__(self, engine: Engine, config: EC2Config, folder: Path) -> None:
        self.engine, self.config, self.folder = engine, config, folder
        self.limits = EC2Limits()
        self.living: list[ForkProcess] = []

    def start(self, name: str, point: str | None = None) -> ForkProcess:
        """Start a controller with a state folder of its own.

        :param point: where it is killed; None: nowhere
        """
        process = multiprocessing.get_context("fork").Process(target=self._run, args=(name, point), daemon=True)
        process.start()
        self.living.append(process)
        return process

    def _run(self, name: str, point: str | None) -> None:
        folder = self.folder / name
        folder.mkdir()
        with (self.folder / f"{name}.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
        self.engine.dispose(close=False)

        if point is not None:
            POINTS[point].make()
        site = EC2Site("cloud", self.config, folder / "spool" / "cloud")
        site.limits = self.limits
        settings = make_settings(folder)
        controller = Controller(
            AirflowHost(), {"cloud": site}, lambda subject, seconds: "", settings, False, lambda changes: None
        )
        controller.launched["cloud"].seconds_until_gone = SECONDS_UNTIL_GONE
        signal.signal(signal.SIGTERM, lambda number, frame: controller.stop())
        controller.run()

    def add(self, count: int, cpus: float = 1.0) -> None:
        """Add jobs of a kind that is not cancelled for lack of a task."""
        amounts = {"cpus": cpus, "memory": 300, "disk": 0, "gpus": 0.0, "priority": 0, "state": State.QUEUED}
        what = {"kind": "Probe", "subject": "s", "workload": json.dumps(asking()), "queued_at": time.time()}
        with Session(self.engine) as session:
            for _ in range(count):
                store.add_job(session, token=str(uuid.uuid4()), **what, **amounts)
            session.commit()

    def jobs(self) -> list[JobRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(JobRow).order_by(JobRow.queued_at)))

    def rows(self) -> list[InstanceRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(InstanceRow).order_by(InstanceRow.ordered_at, InstanceRow.token)))

    def has_ended(self) -> bool:
        """Whether all jobs and machines have."""
        rows, jobs = self.rows(), self.jobs()
        is_done = all(job.state in (State.SUCCEEDED, State.FAILED) for job in jobs)
        return is_done and all(row.state == InstanceState.ENDED for row in rows)

    def told(self) -> str:
        """What the controllers have logged, and what is stored, to find out why a test fails."""
        jobs = [(job.token, job.state, job.location, job.reason) for job in self.jobs()]
        rows = [(row.token, row.state, row.native_id, row.cause, row.reason) for row in self.rows()]
        return f"{jobs}\n{rows}\n{processes.tails(self.folder.glob('*.log'), 40)}"


@pytest.fixture
def house(
    service: FakeEC2, api: ExecutionApi, airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    variables = {
        **service.environment,
        "AIRFLOW__CORE__FERNET_KEY": "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(tmp_path / "logs"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(billing, "LEAST_SECONDS", 0.0)
    run_commands(monkeypatch)
    table: dict[str, Any] = {
        **service.table,
        "instance_types": ("m5.large",),
        "python": str(node_python.make(service.account)),
        "api_url": api.url,
        "kill_grace": 2,
        "disk": "16 TiB",
        "idle_seconds": 3,  # a machine that is up waits longer than a second for its first job where all is slow
        "expected_boot_time": 5,
    }
    made = House(airflow_database, EC2Config(**table), tmp_path)
    yield made
    for gate in api.gates.values():
        gate.set()
    for process in made.living:
        process.kill()
        process.join()
    if living := service.living():  # a test has failed: the next one is to find none of its machines
        service.client.terminate_instances(InstanceIds=living)


@pytest.mark.parametrize("point", POINTS)
def test_a_controller_that_is_killed_leaves_nothing_that_the_next_one_does_not_find(
    house: House, service: FakeEC2, api: ExecutionApi, point: str
) -> None:
    # Greedy launches for each job that has no room now; a forecast may wait for the end of another job instead.
    house.config = house.config.model_copy(update={"policy": "greedy"})
    before = len(service.ledger())
    # Jobs that ended earlier would make room for the last one, and its machine would not be launched.
    gate = api.gates[HEALTH] = threading.Event()

    def let_jobs_end() -> None:
        if len(service.ledger()) - before >= MACHINES:
            gate.set()

    house.add(JOBS)
    first = house.start("one", point)
    assert wait_until(lambda: let_jobs_end() or first.exitcode is not None, PATIENCE), house.told()
    assert first.exitcode == -signal.SIGKILL, house.told()
    assert not all(row.state == InstanceState.ENDED for row in house.rows()), "nothing was left to be found"

    second = house.start("two")
    assert wait_until(lambda: let_jobs_end() or house.has_ended(), PATIENCE, 0.2), house.told()
    second.terminate()
    second.join(180)
    assert second.exitcode == 0, house.told()

    assert [job.state for job in house.jobs()] == [State.SUCCEEDED] * JOBS, house.told()
    assert asked(api) == JOBS, "a job has run twice"
    assert service.living() == []
    bought = service.ledger()[before:]
    assert len(bought) == MACHINES, (bought, house.told())
    rows = house.rows()
    assert sorted(filter(None, (row.native_id for row in rows))) == sorted(each["id"] for each in bought), house.told()
    unsent = MACHINES if point == UNSENT else 0
    assert len(rows) == MACHINES + unsent, house.told()
    assert all(row.ended_at is not None and row.reason for row in rows), house.told()
    assert bills(rows) == pytest.approx({each["id"]: each["usd"] for each in bought}, abs=CENT), house.told()
    hours = {each["id"]: (each["ended"] - each["launched"]) / 3600 for each in bought}
    for row in rows:
        if row.surcharges is not None and row.native_id is not None:
            volumes = 16384 * 0.08 / 730 * hours[row.native_id]
            assert instances.of_which(row, 0.0) == {"volumes": pytest.approx(volumes)}
    assert wait_until(lambda: not processes.of_user(service.account.uid), PATIENCE), "a machine's process lives on"


def test_a_spot_machine_costs_what_it_costs_at_the_time(house: House, service: FakeEC2, api: ExecutionApi) -> None:
    house.limits = EC2Limits(between_offers=1.0, spot_age=4.0)
    house.config = house.config.model_copy(update={"capacity_type": "spot"})
    api.gates[HEALTH] = threading.Event()
    before = len(service.ledger())
    house.add(1)
    first = house.start("one")
    assert wait_until(lambda: any(row.state == InstanceState.UP for row in house.rows()), PATIENCE), house.told()
    time.sleep(2)  # some of its time has the first price
    service.price("m5.*", 10 * USD_PER_HOUR, capacity_type="spot")
    dear = pytest.approx(10 * USD_PER_HOUR + 16384 * 0.08 / 730)
    assert wait_until(lambda: house.rows()[0].usd_per_hour == dear, PATIENCE), house.told()
    api.gates[HEALTH].set()
    assert wait_until(house.has_ended, PATIENCE, 0.2), house.told()
    first.terminate()
    first.join(180)
    [bought], [row] = service.ledger()[before:], house.rows()
    assert row.usd_per_hour == dear
    assert row.usd == pytest.approx(bought["usd"], abs=CENT), house.told()


def test_a_spot_machine_is_billed_by_prices_that_were_never_read(
    house: House, service: FakeEC2, api: ExecutionApi
) -> None:
    house.config = house.config.model_copy(update={"capacity_type": "spot"})
    api.gates[HEALTH] = threading.Event()
    before = len(service.ledger())
    house.add(1)
    first = house.start("one")
    assert wait_until(lambda: any(row.state == InstanceState.UP for row in house.rows()), PATIENCE), house.told()
    for times in (10, 20, 5):  # within the minutes for which prices are kept
        service.price("m5.*", times * USD_PER_HOUR, capacity_type="spot")
        time.sleep(2)
    api.gates[HEALTH].set()
    assert wait_until(house.has_ended, PATIENCE, 0.2), house.told()
    [bought] = service.ledger()[before:]

    def is_billed() -> bool:
        return house.rows()[0].usd == pytest.approx(bought["usd"], abs=CENT)

    assert wait_until(is_billed, 20, 0.2), (bought, house.told())
    first.terminate()
    first.join(180)
    [row], [job] = house.rows(), house.jobs()
    assert row.usd_per_hour != pytest.approx(5 * USD_PER_HOUR, rel=0.1), "prices have not been read again"
    assert (job.usd or 0.0) + (row.usd_idle or 0.0) == pytest.approx(row.usd), "and so are its jobs"


def test_while_the_api_is_down_for_long_jobs_run_on_or_wait_and_say_so(
    house: House, service: FakeEC2, api: ExecutionApi
) -> None:
    house.limits = EC2Limits(until_missed=5.0)
    api.gates[HEALTH] = long_goes_on = threading.Event()
    before = len(service.ledger())
    house.add(1)
    first = house.start("one")
    assert wait_until(lambda: asked(api) == 1, PATIENCE), house.told()
    service.refuse("unavailable", action="*")
    since = time.monotonic()
    del api.gates[HEALTH]  # the first one waits on
    house.add(1)
    house.add(1, cpus=2)

    def is_so() -> bool:
        long, short, large = house.jobs()
        waits = large.state == State.QUEUED and "Unavailable" in str(large.reason)
        return long.state == State.RUNNING and short.state == State.SUCCEEDED and waits

    assert wait_until(is_so, OUTAGE / 2, 0.5), house.told()
    time.sleep(max(0.0, OUTAGE / 2 - (time.monotonic() - since)))
    assert is_so(), house.told()
    first.kill()
    first.join()
    second = house.start("two")  # which cannot find out what there is
    time.sleep(max(0.0, OUTAGE - (time.monotonic() - since)))
    assert wait_until(is_so, PATIENCE, 0.5), house.told()
    assert [row.native_id is None for row in house.rows()] == [False, True], house.told()
    assert len(service.ledger()) - before == 1
    service.allow()
    # The first machine has no room for the large one until then.
    assert wait_until(lambda: len(service.ledger()) - before == 2, PATIENCE), house.told()
    long_goes_on.set()

    assert wait_until(house.has_ended, PATIENCE, 0.2), house.told()
    bought = service.ledger()[before:]
    assert len(bought) == 2, (bought, house.told())

    def are_billed() -> bool:
        # At this price half a second counts; EC2 says only after a machine's end at which second that was.
        return bills(house.rows()) == pytest.approx({each["id"]: each["usd"] for each in bought}, abs=CENT)

    assert wait_until(are_billed, 20, 0.2), (bought, house.told())
    second.terminate()
    second.join(180)
    assert [job.state for job in house.jobs()] == [State.SUCCEEDED] * 3, house.told()
    assert asked(api) == 3, "a job has run twice"


def bills(rows: Iterable[InstanceRow]) -> dict[str, float | None]:
    """What machines have cost by the store, USD by their ids."""
    return {row.native_id: row.usd for row in rows if row.native_id is not None}
