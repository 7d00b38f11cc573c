"""A controller is killed at each point on the way of a gang, and another one takes over.

Both are controllers as Airflow runs them, over two sites whose node agents live on, as they do. A member has room at
either site, and both of them at neither.
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
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.agent.tasks import probe
from lading.executors.controller.answers import SiteAnswer
from lading.executors.controller.controller import Controller
from lading.executors.decisions import Decision
from lading.executors.store import JobRow, State
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.executors.store.gangs.terms import GangTerms
from lading.hooks.conformance.site_suite import close
from lading.hooks.files.safe_files import visible
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope, Spool
from tests.clusters.driven import HEALTH, asked
from tests.clusters.sites import StoreHost, make_settings
from tests.services import processes
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until

PATIENCE = 60.0
SITES = ("a", "b")
STORED, HALF_HELD, HELD, STARTED, GIVEN_BY_ONE = POINTS = (
    "what is to be held is stored, and no site has heard of it",
    "half of it is held",
    "all of it is held",
    "that the members start is stored, and no site has heard of it",
    "one of two sites has got its member",
)


def kill_at(reached: str, point: str | None) -> None:
    if reached == point:
        os.kill(os.getpid(), signal.SIGKILL)


class Watched(LocalSite):
    """A site at which its controller may be killed; the second one is given a member when the first one has its own."""

    point: str | None = None
    first_has_its_own = threading.Event()

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        if not (self.name == SITES[1] and self.point == HALF_HELD):
            super().hold(holds)

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        if self.point == GIVEN_BY_ONE and self.name == SITES[1] and envelopes:
            self.first_has_its_own.wait()
            kill_at(GIVEN_BY_ONE, self.point)
        super().put(envelopes)
        if self.name == SITES[0] and envelopes:
            self.first_has_its_own.set()


class Mortal(Controller):
    """A controller that is killed when it reaches a point."""

    point: str | None = None
    engine: Engine

    def observe(self) -> list[SiteAnswer]:
        seen = super().observe()
        with Session(self.engine) as session:
            held = [row.state for row in session.scalars(select(HoldRow))].count("held")
        for number, point in ((1, HALF_HELD), (2, HELD)):
            if held == number:
                kill_at(point, self.point)
        return seen

    def record(self, decision: Decision, any_wait: bool, started: float) -> None:
        super().record(decision, any_wait, started)
        if decision.holds:
            kill_at(STORED, self.point)
        if decision.placed:
            kill_at(STARTED, self.point)


class House:
    """A database, and the controllers that come and go on it."""

    def __init__(self, engine: Engine, folder: Path, spools: Path) -> None:
        self.engine, self.folder, self.spools = engine, folder, spools
        self.living: list[ForkProcess] = []

    def start(self, point: str | None = None) -> ForkProcess:
        """Start a controller.

        :param point: where it is killed; None: nowhere
        """
        process = multiprocessing.get_context("fork").Process(target=self._run, args=(point,), daemon=False)
        process.start()
        self.living.append(process)
        return process

    def _run(self, point: str | None) -> None:
        with (self.folder / "log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
        self.engine.dispose(close=False)
        Watched.point = Mortal.point = point
        Mortal.engine = self.engine
        sites = {name: made(name, self.spools) for name in SITES}
        settings = make_settings(self.folder, on_shutdown="leave")
        controller = Mortal(
            StoreHost(self.engine), sites, lambda subject, seconds: "jwt", settings, False, lambda changes: None
        )
        for compared in controller.compared.values():
            compared.seconds_until_repeated = 0.5
        signal.signal(signal.SIGTERM, lambda number, frame: controller.stop())
        controller.run()

    def add(self) -> None:
        """A gang of two, of a kind that is not cancelled for lack of a task."""
        with Session(self.engine) as session:
            for number in range(2):
                store.add_job(
                    session, token=str(uuid.uuid4()), kind="Probe", subject="s", workload=json.dumps(probe.workload()),
                    cpus=1.0, memory=300, disk=0, gpus=0.0, priority=0, state=State.QUEUED, queued_at=time.time(),
                    dag_id="d", run_id="r", task_id="t", map_index=number, gang="gang",
                    gang_terms=GangTerms("pair", tasks={"t": ()}).to_json(),
                )  # fmt: skip
            session.commit()

    def jobs(self) -> list[JobRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(JobRow)))

    def held(self) -> list[HoldRow | GangRow]:
        with Session(self.engine) as session:
            return [*session.scalars(select(HoldRow)), *session.scalars(select(GangRow))]

    def is_over(self) -> bool:
        """Whether all jobs have ended, and nothing is held or known of their gang."""
        files = [each for name in SITES for each in visible(Spool(self.spools / name).holds)]
        return all(job.ended_at is not None for job in self.jobs()) and not (self.held() or files)

    def told(self) -> str:
        jobs = [(job.token, job.state, job.site, job.reason) for job in self.jobs()]
        return f"{jobs}\n{self.held()}\n{processes.tails([self.folder / 'log'], 60)}"


def made(name: str, spools: Path) -> Watched:
    """A site of one cpu, with an agent of its own."""
    return Watched(name, LocalConfig(accept_untargeted=True, cpus=1, memory=1000, kill_grace=2), spools / name)


@pytest.fixture(scope="module")
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as found:
        yield found


@pytest.fixture(scope="module")
def spools(tmp_path_factory: pytest.TempPathFactory, api: ExecutionApi) -> Iterator[Path]:
    """Where two agents live that all tests share."""
    folder = tmp_path_factory.mktemp("spools")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", api.url)
        patch.setenv("AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT", "200")
        yield folder
        close(made(name, folder) for name in SITES)


@pytest.fixture
def house(airflow_database: Engine, tmp_path: Path, spools: Path, api: ExecutionApi) -> Iterator[House]:
    house = House(airflow_database, tmp_path, spools)
    yield house
    for gate in api.gates.values():
        gate.set()
    for process in house.living:
        process.kill()
        process.join()


@pytest.mark.parametrize("point", POINTS)
def test_a_gang_outlives_its_controller(house: House, api: ExecutionApi, point: str) -> None:
    # One that has begun waits for the other, also until there is a controller again.
    api.gates[HEALTH] = both_run = threading.Event()
    before = asked(api)
    house.add()
    first = house.start(point)
    assert wait_until(lambda: first.exitcode is not None, PATIENCE), house.told()
    assert first.exitcode == -signal.SIGKILL, house.told()
    assert house.held(), "nothing was left to be found"

    second = house.start()
    assert wait_until(lambda: asked(api) - before == 2, PATIENCE, 0.1), house.told()
    both_run.set()
    assert wait_until(house.is_over, PATIENCE, 0.1), house.told()
    second.terminate()
    second.join(180)
    assert second.exitcode == 0, house.told()

    jobs = house.jobs()
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 2, house.told()
    assert asked(api) - before == 2, "a member has run twice"
    assert {job.site for job in jobs} == {*SITES}
    assert max(job.started_at or 0.0 for job in jobs) < min(job.ended_at or 0.0 for job in jobs), "not together"
