"""``airflow lading instances`` beside a fake EC2 and a store, with a controller and without one."""

from __future__ import annotations

import json
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.requests import Requests
from lading.executors.settings import Settings
from lading.executors.store import JobRow, Lease, State
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.ec2 import boot
from lading.hooks.ec2.boot import LaunchBatch
from lading.hooks.ec2.site import EC2Site
from lading.hooks.site import Order
from lading.plugin.host import AirflowHost
from lading.plugin.sites import load_sites
from lading.plugin.subcommands import instances as command
from lading.plugin.subcommands.instances import instances as instances_command
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch
from tests.services.ec2 import FakeEC2
from tests.services.processes import wait_until

KEY = "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE="
HOUR = 3600.0


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=HOUR) as service:
        yield service


class House:
    """A deployment with a site of EC2, a store, and a command line."""

    def __init__(self, service: FakeEC2, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
        self.service, self.engine, self.capsys = service, engine, capsys
        self.stored_at = 0.0

    @property
    def site(self) -> EC2Site:
        [site] = (each for each in load_sites(Settings.load()).values() if isinstance(each, EC2Site))
        return site

    def launch(self, name: str, scope: str = "cloud") -> str:
        """Launch a machine as a controller does; returns its id."""
        fleet = self.site.fleet
        launch = Launch("m5.large", Resources(2, 7000), HOUR, (), zone="us-east-1a", usd_per_hour=0.096)
        subnet = self.service.subnets["us-east-1a"]
        batch = LaunchBatch((Order(name, launch),))
        request = boot.request(fleet.config, fleet.identities[0], scope, batch, self.service.ami["x86_64"], subnet, "")
        self.service.forget_tokens()  # tests use the same names
        [instance] = fleet.ec2.run(request)
        its_id = {"instance-id": [instance.id]}
        assert wait_until(lambda: fleet.ec2.describe(its_id)[0].state == "running", 20), "it is billed from then on"
        return instance.id

    def store(self, name: str, id: str | None, site: str = "cloud", **columns: Any) -> None:
        """Store a machine that has run for an hour, with a job on it for half an hour."""
        now = self.stored_at = time.time()
        amounts = {"cpus": 2.0, "memory": 7000, "disk": 0, "gpus": 0.0}
        row = {"kind": "m5.large", "capacity_type": "on-demand", "usd_per_hour": 0.096, "seconds": 0.0, **amounts}
        row |= {"state": InstanceState.UP, "ordered_at": now - HOUR, "launched_at": now - HOUR, "native_id": id}
        job = {"kind": "Probe", "subject": "s", "workload": "{}", "queued_at": now, "started_at": now - HOUR / 2}
        job |= {"state": State.RUNNING, "priority": 0, "try_number": 1, "map_index": -1, **amounts, "cpus": 1.0}
        with Session(self.engine) as session:
            session.add(InstanceRow(token=name, site=site, **(row | columns)))
            session.add(JobRow(token=f"job of {name}", site=site, location=name, **(job | {"memory": 100})))
            session.commit()

    def has_cost(self, usd: float, usd_per_hour: float, hours: float = 1.0) -> bool:
        """Whether this is the price of so many hours before what was stored last, and of some time until now."""
        elapsed = (time.time() - self.stored_at) / HOUR
        rounding = 0.5e-4 + 1e-6
        return usd_per_hour * hours - rounding <= usd <= usd_per_hour * (hours + elapsed) + rounding

    def lead(self) -> None:
        """Have a controller that acts, elsewhere."""
        with Session(self.engine) as session:
            lease = {"holder": "h", "host": "elsewhere.invalid", "pid": 1, "managed": True}
            session.add(Lease(name="controller", expires_at=time.time() + HOUR, **lease))
            session.commit()

    def run(self, action: str = "list", *names: str, output: str = "json", ended: bool = False) -> tuple[int, str, str]:
        """Run the command; returns its status, output and errors."""
        status = 0
        self.capsys.readouterr()
        try:
            instances_command(Namespace(action=action, instance=list(names), ended=ended, output=output, verbose=False))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
            found = self.capsys.readouterr()
            return status, found.out, found.err + (end.code if isinstance(end.code, str) else "")
        found = self.capsys.readouterr()
        return status, found.out, found.err

    def rows(self) -> dict[str, dict[str, Any]]:
        status, output, errors = self.run()
        assert status == 0, errors
        return {each["instance"]: each for each in json.loads(output)}

    def job(self, name: str) -> JobRow:
        with Session(self.engine) as session:
            return session.scalars(select(JobRow).where(JobRow.token == f"job of {name}")).one()

    def instance(self, name: str) -> InstanceRow:
        with Session(self.engine) as session:
            return session.scalars(select(InstanceRow).where(InstanceRow.token == name)).one()


@pytest.fixture
def house(
    service: FakeEC2,
    airflow_database: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[House]:
    table = {
        "kind": "ec2", "aws_conn_id": "", "subnets": list(service.subnets.values()), "work_dir": "/var/lading",
        "python": "/usr/bin/python3",
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    ami = f'ami = {{x86_64 = "{service.ami["x86_64"]}"}}'
    (tmp_path / "sites.toml").write_text("\n".join(["[sites.cloud]", *lines, ami, ""]))
    variables = {
        **service.environment,
        "AIRFLOW__CORE__FERNET_KEY": KEY,
        "AIRFLOW__LADING__SITES_FILE": str(tmp_path / "sites.toml"),
        "AIRFLOW__LADING__STATE_FOLDER": str(tmp_path / "state"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(AirflowHost, "store_fault", lambda self, session: None)  # its tables come from no migration
    yield House(service, airflow_database, capsys)
    service.allow()
    if living := service.living():
        service.client.terminate_instances(InstanceIds=living)


def test_a_machine_that_the_store_has_lost_is_seen(house: House) -> None:
    known, lost = house.launch("Lknown"), house.launch("Llost")
    house.store("Lknown", known)
    stored_at = house.stored_at
    house.store("Lgone", "i-00000000000000000")
    house.store("Lnode", "4711", site="hpc", capacity_type=None, usd_per_hour=None, kind='["short", []]')
    rows = house.rows()
    assert rows.keys() == {"Lknown", "Llost", "Lgone", "Lnode"}
    assert rows["Lknown"]["state"] == "up"
    assert rows["Lknown"]["seller_state"] in ("pending", "running")
    assert (rows["Lknown"]["note"], rows["Lknown"]["running_jobs"]) == (None, 1)
    house.stored_at = stored_at
    assert house.has_cost(rows["Lknown"]["usd"], 0.096)
    assert (rows["Llost"]["state"], rows["Llost"]["native_id"], rows["Llost"]["usd_per_hour"]) == (None, lost, 0.096)
    assert "it is not in the store" in rows["Llost"]["note"]
    assert "its site no longer lists it" in rows["Lgone"]["note"]
    assert (rows["Lnode"]["instance_type"], rows["Lnode"]["note"]) == ("queue short", None)
    assert "0.096" in house.run(output="plain")[1]


def test_what_another_deployment_has_launched_is_none_of_ours(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.launch("Lours")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "YW5vdGhlciBrZXkgb2YgYW5vdGhlciBkZXBsb3ltZW4=")
    assert house.rows() == {}
    status, _, errors = house.run("terminate", "Lours")
    assert (status, "there is no live instance 'Lours'" in errors) == (1, True)
    assert len(house.service.living()) == 1


def test_without_a_controller_a_machine_is_terminated_and_billed_and_its_jobs_are_cancelled(house: House) -> None:
    house.store("La", house.launch("La"), surcharges=json.dumps({"volumes": 0.01}))
    lost = house.launch("Lb")
    leftover = house.launch("Lc", scope="cloud/lading-check-x")
    status, _, errors = house.run("terminate", "cloud/La", lost, leftover)
    assert (status, "1 of its jobs were cancelled" in errors) == (0, True), errors
    assert house.service.living() == []
    row, job = house.instance("La"), house.job("La")
    assert row.state == InstanceState.ENDED
    assert row.usd is not None
    assert house.has_cost(row.usd, 0.096)
    assert row.usd_idle is not None
    [line, *_] = json.loads(house.run(ended=True)[1])
    assert (line["instance"], line["usd"], line["state"]) == ("La", pytest.approx(row.usd, abs=1e-4), "ended")
    assert line["of_which"].keys() == {"volumes"}
    assert house.has_cost(line["of_which"]["volumes"], 0.01)
    assert (job.state, job.cause, job.unreported) == (State.CANCELLED, "cancelled", True)
    assert job.usd is not None
    assert house.has_cost(job.usd, 0.048, hours=0.5)
    assert house.rows() == {}


def test_what_is_terminated_without_a_controller_is_billed_by_the_clock_of_its_seller(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.service.price("m5.large", 36.0)
    house.store("La", id := house.launch("La"), state=InstanceState.ORDERED, launched_at=None, usd_per_hour=36.0)
    wrong = SimpleNamespace(time=lambda: time.time() + HOUR, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(command, "time", wrong)
    status, _, errors = house.run("terminate", "La")
    assert status == 0, errors
    [line] = (each for each in house.service.ledger() if each["id"] == id)
    row = house.instance("La")
    assert (row.launched_at, row.ended_at) == (line["launched"], line["ended"])
    assert row.usd == pytest.approx(line["usd"], abs=0.005)


def test_without_a_controller_a_drain_is_noted_for_the_next_one(house: House) -> None:
    house.store("La", house.launch("La"))
    house.launch("Llost")
    status, _, errors = house.run("drain", "La")
    assert (status, "no controller is running" in errors) == (0, True)
    assert house.run("drain", "Llost")[0] == 1
    released: dict[str, Any] = {}
    with Session(house.engine) as session:
        Requests(lambda site, reasons: released.update(reasons)).step(session)
    assert list(released) == ["La"]


@pytest.mark.parametrize(("action", "state"), [("drain", InstanceState.DRAINING), ("terminate", InstanceState.ENDED)])
def test_a_controller_that_acts_is_asked(house: House, action: str, state: InstanceState) -> None:
    house.store("La", house.launch("La"))
    house.lead()
    asked = threading.Event()

    def release(site: str, reasons: dict[str, str]) -> None:
        asked.set()

    def act() -> None:
        controller = Requests(release)  # type: ignore[arg-type]
        while not stop.is_set():
            controller.next_look = 0.0
            with Session(house.engine) as session:
                controller.step(session)
                if asked.is_set():
                    session.get_one(InstanceRow, "La").state = state
                session.commit()
            time.sleep(0.1)

    stop = threading.Event()
    thread = threading.Thread(target=act)
    thread.start()
    try:
        status, _, errors = house.run(action, "La")
    finally:
        stop.set()
        thread.join()
    assert (status, asked.is_set()) == (0, True), errors
    words = {"drain": "it takes no more jobs", "terminate": "it has ended"}
    assert words[action] in errors
    assert len(house.service.living()) == 1, "the command has left it to the controller"
    assert (house.job("La").cancel is not None) == (action == "terminate")


def test_what_the_controller_has_not_seen_yet_is_left_to_it(house: House) -> None:
    house.launch("Llost")
    house.lead()
    status, _, errors = house.run("terminate", "Llost")
    assert (status, "adopts it within a minute" in errors) == (1, True)
    assert len(house.service.living()) == 1


def test_where_aws_does_not_answer_the_store_is_shown(house: House) -> None:
    house.store("La", house.launch("La"))
    house.service.refuse("unauthorized", action="DescribeInstances")
    status, output, errors = house.run()
    assert (status, "site cloud: UnauthorizedOperation" in errors) == (1, True)
    [row] = json.loads(output)
    assert (row["instance"], row["state"], row["seller_state"], row["note"]) == ("La", "up", None, None)


@pytest.mark.parametrize("names", [(), ("no",)])
def test_an_instance_has_to_be_named(house: House, names: tuple[str, ...]) -> None:
    house.store("La", None)
    status, _, errors = house.run("terminate", *names)
    assert (status, "valid: La" in errors) == (1, True)
