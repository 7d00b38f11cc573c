"""Restart safety, by killing for real: nothing is lost, nothing runs twice, nothing stalls.

Every task of the Dag below leaves a line in a file when it starts and one when it ends, so what ran how often, and
when, is there to be counted, whatever Airflow and Lading have stored.

What has to do with transactions and row locks runs on both databases. The kills at one moment after another, the power
cut, two schedulers and the like take half a minute each and end in the same code for both: they run on PostgreSQL.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.jobs.job import Job as AirflowJob
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from lading.executors import store
from lading.executors.store import JobRow, State
from lading.hooks.files.host import started
from lading.hooks.files.safe_files import visible
from lading.hooks.spool.spool import Spool
from tests.conftest import DATABASES
from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.ports import free_ports
from tests.services.postgres import Postgres
from tests.services.small_disk import small_disk

# What is allowed on an ordinary machine; LocalExecutor stalls for 300 s.
LONGEST_STALL = 60
CPUS = 4
COMPONENTS = ("dag-processor", "scheduler", "api-server")
# The command of a controller, an agent or what an agent has forked.
OF_LADING = re.compile(r"\blading\.(plugin|executors)\b")

SITES = f"""
[sites.local]
kind = "local"
cpus = {CPUS}
memory = "8 GiB"
kill_grace = "2 s"
"""

DAGS = '''
"""Tasks that tell a file when they start and when they end."""
import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import BaseOperator, dag, get_current_context, task
from lading.operators import resources

NOTES = Path(__file__).resolve().parents[1] / "notes"
ONE_CPU = {"retries": 1, "retry_delay": timedelta(seconds=1), "executor_config": resources(cpus=1, memory=64)}


def note(word):
    ti = get_current_context()["ti"]
    line = f"{ti.run_id} {ti.map_index} {ti.try_number} {os.getpid()} {time.time()} {word}\\n"
    descriptor = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def work(number):
    run = get_current_context()["dag_run"]
    note("start")
    time.sleep(run.conf["seconds"])
    while number in run.conf.get("held", ()) and not NOTES.with_name(f"released {run.run_id}").exists():
        time.sleep(0.05)
    note("end")


class Deaf(BaseOperator):
    """Runs until it is ended, but for its second try."""

    def execute(self, context):
        note("start")
        if context["ti"].try_number == 1:
            time.sleep(600)
        note("end")

    def on_kill(self):
        note("on_kill")


def mapped(count):
    @dag(dag_id=f"work_{count}", schedule=None, catchup=False)
    def works():
        task(**ONE_CPU)(work).expand(number=list(range(count)))

    works()


for count in (3, 8, 24, 48):
    mapped(count)


@dag(schedule=None, catchup=False)
def deaf():
    Deaf(task_id="deaf", **ONE_CPU)


deaf()
'''


@dataclass(frozen=True)
class Note:
    """A line that a task has left."""

    run_id: str
    index: int
    try_number: int
    pid: int
    at: float
    word: str


class Rig:
    """An Airflow whose processes are killed and started, and what its tasks have noted."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        self.engine: Engine = create_engine(
            airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"],
            poolclass=NullPool,  # a test stops the server
        )
        self.state_folder = airflow.home / "lading"

    # -- what there is

    @property
    def spool(self) -> Spool:
        return Spool(self.state_folder / "spool" / "local")

    def notes(self, run_id: str | None = None) -> list[Note]:
        path = self.airflow.home / "notes"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        found = [
            Note(run, int(index), int(number), int(pid), float(at), word) for run, index, number, pid, at, word in lines
        ]
        return [note for note in found if run_id in (None, note.run_id)]

    def jobs(self, run_id: str, *states: State) -> list[JobRow]:
        with Session(self.engine, expire_on_commit=False) as session:
            query = select(JobRow).where(JobRow.run_id == run_id)
            return list(session.scalars(query.where(JobRow.state.in_(states)) if states else query))

    def controller(self) -> int | None:
        """The pid of the controller that acts, if it lives."""
        with Session(self.engine) as session:
            lease = store.lease(session)
        return lease.pid if lease and processes.lives(lease.pid) else None

    def agent(self) -> int | None:
        """The pid of the node agent that has the spool, if it lives."""
        with contextlib.suppress(OSError, ValueError):
            identity = json.loads(self.spool.identity.read_text())
            if processes.lives(identity["pid"]) and started(identity["pid"]) == identity["started"]:
                return int(identity["pid"])
        return None

    def supervisors(self) -> list[int]:
        """The pids of the processes that run jobs."""
        with contextlib.suppress(OSError):
            found = [path / "supervisor.json" for path in visible(self.spool.jobs)]
            return [json.loads(path.read_text())["pid"] for path in found if path.exists()]
        return []

    def scheduler_id(self) -> int:
        """Airflow's number of the scheduler that was started last."""
        with Session(self.engine) as session:
            return session.scalars(select(func.max(AirflowJob.id)).where(AirflowJob.job_type == "SchedulerJob")).one()

    def queued_by(self, run_id: str) -> set[int | None]:
        with Session(self.engine) as session:
            return set(session.scalars(select(TaskInstance.queued_by_job_id).where(TaskInstance.run_id == run_id)))

    # -- what is done to it

    def kill(self, *victims: str) -> float:
        """SIGKILL to the scheduler, the controller, the agent, all at once; returns when that was."""
        pids = {"scheduler": None, "controller": self.controller(), "agent": self.agent()}
        at = time.time()
        for victim in victims:
            if victim == "scheduler":
                self.kill_scheduler()
            else:
                assert pids[victim], f"there is no {victim} to be killed"
                kill(pids[victim])
        return at

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler, and to its log server, which would outlive it and keep the port."""
        session = self.airflow.pid("scheduler")
        self.airflow.kill("scheduler")
        kill(*(process.pid for process in processes.living().values() if process.session == session))

    def restart_scheduler(self, **variables: object) -> None:
        """Stop and start the scheduler in order, with other values of the ``[lading]`` section."""
        self.stop_scheduler()
        for name, value in variables.items():
            self.airflow.environment[f"AIRFLOW__LADING__{name.upper()}"] = str(value)
        self.airflow.start("scheduler")

    def wait(self, reached: Callable[[], Any], what: str, seconds: float = LONGEST_STALL) -> None:
        assert processes.wait_until(lambda: bool(reached()), seconds), f"not within {seconds:g} s: {what}"

    def wait_for_note(self, run_id: str, word: str, count: int = 1, since: float = 0.0) -> None:
        def there() -> bool:
            return sum(note.word == word and note.at > since for note in self.notes(run_id)) >= count

        self.wait(there, f"{count} {word} in {run_id}")

    def release(self, run_id: str) -> None:
        """Let the tasks end that ``held`` in the conf of their run names."""
        (self.airflow.home / f"released {run_id}").touch()

    def stop_scheduler(self) -> None:
        """End the scheduler in order."""
        self.airflow.kill("scheduler", signal.SIGTERM)

    def left_behind(self) -> list[processes.Process]:
        """The processes that no living component of Airflow has in its session."""
        sessions = {self.airflow.pid(component) for component in self.airflow.components if self.runs(component)}
        return [process for process in self.airflow.processes() if process.session not in sessions]

    def stop_and_leave_nothing(self) -> None:
        """End the scheduler in order. What is Lading's ends before it, what it has forked itself maybe right after."""
        self.stop_scheduler()
        assert [each for each in self.left_behind() if OF_LADING.search(each.command)] == []
        self.wait(lambda: not self.left_behind(), "what the scheduler has forked ends as well")

    def runs(self, component: str) -> bool:
        with contextlib.suppress(KeyError):
            return processes.lives(self.airflow.pid(component))
        return False

    def complete(self) -> Rig:
        """Start what a test has left stopped."""
        for component in self.airflow.components:
            if not self.runs(component):
                with contextlib.suppress(KeyError):
                    self.airflow.kill(component)
                self.airflow.start(component)
        return self

    # -- what is proved

    def prove(
        self,
        run_id: str,
        count: int,
        twice: frozenset[int] = frozenset(),
        first_try: State = State.FAILED,
        timeout: float = 150,
        without_airflow: float = 0,
    ) -> None:
        """The run ends well, each of its tasks ran once, or twice where it was lost, and nothing stalled.

        :param without_airflow: seconds for which Airflow was not there itself
        """
        dag_id = f"work_{count}"
        assert self.airflow.wait_for_run(dag_id, run_id, timeout) == "success"
        notes = self.notes(run_id)
        assert Counter((note.index, note.try_number) for note in notes if note.word == "start") == Counter(
            [*((index, 1) for index in range(count)), *((index, 2) for index in twice)]
        )
        assert Counter(note.index for note in notes if note.word == "end") == Counter(range(count))
        tries = {ti["map_index"]: ti["try_number"] for ti in self.airflow.task_instances(dag_id, run_id)}
        assert tries == {index: 2 if index in twice else 1 for index in range(count)}
        assert longest_stall(notes) < LONGEST_STALL * processes.SLOWEST + without_airflow
        self.wait(lambda: {job.state for job in self.jobs(run_id)} <= set(store.ENDED), "every job has ended")
        expected = [*[State.SUCCEEDED] * count, *[first_try] * len(twice)]
        assert Counter(State(job.state) for job in self.jobs(run_id)) == Counter(expected)


def longest_stall(notes: list[Note]) -> float:
    """The longest time in which nothing started or ended."""
    times = sorted(note.at for note in notes)
    stall = max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)
    print(f"{notes[0].run_id}: longest stall {stall:.1f} s of {times[-1] - times[0]:.1f} s")
    return stall


def unfinished(notes: list[Note]) -> frozenset[int]:
    """The tasks that have started and not ended."""
    ended = {note.index for note in notes if note.word == "end"}
    return frozenset(note.index for note in notes if note.word == "start") - ended


def kill(*pids: int) -> None:
    """SIGKILL, and wait until they are no more."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert processes.wait_until(lambda: not any(map(processes.lives, pids)), 30, 0.01)


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL server that other tests don't use: it is stopped in between."""
    with Postgres() as server:
        yield server


def make_rig(home: Path, database: str | None, **options: Any) -> Airflow:
    home.mkdir(parents=True, exist_ok=True)
    (home / "sites.toml").write_text(SITES)
    config = {"lading.sites_file": home / "sites.toml", **options}
    return Airflow(home, database=database, config=config, components=COMPONENTS, preloaded=True)


def rig_on(database: str, request: pytest.FixtureRequest, home: Path) -> Iterator[Rig]:
    url = None
    if database == "postgresql":
        url = request.getfixturevalue("own_postgres").create_database("restarts")
    service = make_rig(home, url).__enter__()
    try:
        service.add_dag("proof", DAGS)
        yield Rig(service)
    finally:
        service.stop(orphans=True)  # Airflow's own serve-logs outlives a SIGKILL of its scheduler


@pytest.fixture(scope="module")
def postgres_rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from rig_on("postgresql", request, tmp_path_factory.mktemp("restarts-postgresql"))


@pytest.fixture
def on_postgres(postgres_rig: Rig) -> Rig:
    return postgres_rig.complete()


@pytest.fixture(scope="module", params=DATABASES)
def one_of_both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """That on SQLite ends with the last test that needs it."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_rig")
    else:
        yield from rig_on(request.param, request, tmp_path_factory.mktemp("restarts-sqlite"))


@pytest.fixture
def rig(one_of_both: Rig) -> Rig:
    return one_of_both.complete()


@pytest.fixture(scope="module", autouse=True)
def abandoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """An Airflow whose only scheduler was killed and never started again, since the beginning of these tests."""
    home = tmp_path_factory.mktemp("abandoned")
    service = make_rig(home, None)
    service.components = ()
    try:
        service.migrate()
        service.start("scheduler")
        rig = Rig(service)
        rig.wait(lambda: rig.state_folder.exists() and rig.controller() and rig.agent(), "all are there", 180)
        rig.kill_scheduler()
        yield rig
    finally:
        service.stop(orphans=True)


def test_a_scheduler_is_killed(rig: Rig) -> None:
    """Queued jobs go on starting without a scheduler, and the next one adopts them."""
    airflow = rig.airflow
    run = airflow.trigger("work_8", {"seconds": 1.5, "held": [4, 5, 6, 7]})
    rig.wait_for_note(run, "start")
    rig.wait(lambda: len(rig.jobs(run)) == 8, "all are in the store")
    dead = rig.scheduler_id()
    rig.kill("scheduler")
    rig.wait_for_note(run, "start", 8)
    assert rig.queued_by(run) == {dead}
    airflow.start("scheduler")
    rig.wait(lambda: rig.scheduler_id() != dead, "a new scheduler is there")
    rig.wait(lambda: rig.scheduler_id() in rig.queued_by(run), "the task instances that run are adopted")
    rig.release(run)
    rig.prove(run, 8)


def test_a_job_is_killed(rig: Rig) -> None:
    """A job whose supervisor is gone is lost, nothing of it is left, and Airflow tries it again."""
    run = rig.airflow.trigger("work_3", {"seconds": 0, "held": [0, 1, 2]})
    rig.wait_for_note(run, "start", 3)
    victim = rig.notes(run)[0]
    kill(processes.living()[victim.pid].parent)
    rig.wait(lambda: rig.jobs(run, State.FAILED), "the job has failed")
    assert not processes.lives(victim.pid)
    rig.release(run)
    rig.prove(run, 3, twice=frozenset([victim.index]))
    assert [job.cause for job in rig.jobs(run, State.FAILED)] == ["lost"]
    events = [event for event in rig.airflow.events("work_3", run) if event["event"] == "lading lost"]
    assert [(event["map_index"], event["try_number"]) for event in events] == [(victim.index, 1)]


def test_an_orderly_stop_cancels(rig: Rig) -> None:
    """Stopping leaves no process behind. What ran is tried again, what waited still waits."""
    deaf = rig.airflow.trigger("deaf")
    rig.wait_for_note(deaf, "start")
    run = rig.airflow.trigger("work_8", {"seconds": 1, "held": list(range(8))})
    rig.wait_for_note(run, "start", CPUS - 1)
    rig.stop_and_leave_nothing()
    ended = unfinished(rig.notes(run))
    assert len(ended) == CPUS - 1
    rig.release(run)
    rig.airflow.start("scheduler")
    assert rig.airflow.wait_for_run("deaf", deaf) == "success"
    assert [(note.try_number, note.word) for note in rig.notes(deaf)] == [
        (1, "start"),
        (1, "on_kill"),
        (2, "start"),
        (2, "end"),
    ]
    rig.prove(run, 8, twice=ended, first_try=State.CANCELLED)


def test_a_stop_right_after_the_start(on_postgres: Rig) -> None:
    """Nothing is left when the controller, or the agent, is still importing, or when Airflow still has another
    scheduler as alive, which was killed."""
    rig = on_postgres
    dead = rig.scheduler_id()
    rig.wait(lambda: rig.controller() and rig.agent(), "there are a controller and an agent")
    rig.kill("scheduler")
    rig.airflow.start("scheduler")
    rig.wait(lambda: rig.scheduler_id() != dead, "a new scheduler is there")
    rig.wait(
        (rig.state_folder / "schedulers" / str(rig.scheduler_id())).exists, "the new scheduler has introduced itself"
    )
    rig.stop_and_leave_nothing()
    rig.airflow.start("scheduler")
    rig.wait(lambda: any("controller" in process.command for process in rig.left_behind()), "a controller is started")
    rig.stop_and_leave_nothing()
    rig.airflow.start("scheduler")
    rig.wait(rig.agent, "an agent is started")
    rig.stop_and_leave_nothing()
    rig.airflow.start("scheduler")


def test_an_orderly_stop_leaves(on_postgres: Rig) -> None:
    """With ``on_shutdown = leave`` running jobs go on, and how they ended is known after the next start."""
    rig = on_postgres
    rig.restart_scheduler(on_shutdown="leave")
    run = rig.airflow.trigger("work_8", {"seconds": 1, "held": list(range(8))})
    rig.wait_for_note(run, "start", CPUS)
    rig.stop_scheduler()
    assert rig.controller() is None
    rig.release(run)
    rig.wait_for_note(run, "end", CPUS)
    rig.wait(lambda: not rig.left_behind(), "the agent ends after the last job")
    assert len(rig.notes(run)) == 2 * CPUS
    rig.airflow.start("scheduler")
    rig.wait_for_note(run, "start", 8)
    rig.prove(run, 8)

    # A new controller comes while the agent waits for the end of its jobs: it takes jobs again.
    run = rig.airflow.trigger("work_8", {"seconds": 1, "held": [0, 1, 2, 3]})
    rig.wait_for_note(run, "start", CPUS)
    agent, controller = rig.agent(), rig.controller()
    assert controller
    os.kill(controller, signal.SIGTERM)
    rig.wait(lambda: rig.controller() not in (controller, None), "another controller acts")
    rig.release(run)
    rig.prove(run, 8)
    assert rig.agent() == agent
    rig.restart_scheduler(on_shutdown="cancel")


ALL = ("agent", "controller", "scheduler")
# Moments that make no difference are left out: to a scheduler it does not matter whether an agent imports, and where
# all are killed nothing is left to which that could matter. They are killed while jobs run by the power cut.
STRIKES = [
    (("scheduler",), ("queued", "running")),
    (("controller",), ("queued", "importing", "running", "ended")),
    (("agent",), ("importing", "running", "ended")),
    (ALL, ("queued", "ended")),
]


@pytest.mark.parametrize(("victims", "moments"), STRIKES, ids=["+".join(victims) for victims, _ in STRIKES])
def test_killed_at_one_moment_after_another(
    on_postgres: Rig, victims: tuple[str, ...], moments: tuple[str, ...]
) -> None:
    rig = on_postgres
    count = 24 if len(moments) < 3 else 48
    run = rig.airflow.trigger(f"work_{count}", {"seconds": 1.5})
    at = 0.0

    def reach(moment: str) -> None:
        if moment == "queued":  # or just placed
            rig.wait(lambda: rig.jobs(run), "a job is in the store")
        elif moment == "importing":  # jobs are placed, but their agent is not ready
            rig.wait(lambda: rig.agent() and rig.jobs(run, State.PLACED), "there are an agent and a job for it")
            rig.kill("agent")
            rig.wait(rig.agent, "there is a new agent")
            assert rig.jobs(run, State.PLACED)
        else:
            rig.wait_for_note(run, "start" if moment == "running" else "end", since=at)

    for moment in moments:
        reach(moment)
        rig.wait(lambda: rig.agent() and rig.controller(), "there are an agent and a controller")
        at = rig.kill(*victims)
        if "scheduler" in victims:
            rig.airflow.start("scheduler")
        rig.wait_for_note(run, "start", since=at)
        following = min(note.at for note in rig.notes(run) if note.word == "start" and note.at > at)
        print(f"killed when {moment}: the next start came after {following - at:.1f} s")
    rig.prove(run, count)


def test_a_power_cut(on_postgres: Rig) -> None:
    """All processes are gone at once: what ran is lost and tried again, what waited runs once."""
    rig, airflow = on_postgres, on_postgres.airflow
    held = frozenset([2, 3, 4, 5])
    run = airflow.trigger("work_8", {"seconds": 1, "held": sorted(held)})

    def settled() -> bool:
        """Some have succeeded, some run, and the others must wait for these."""
        succeeded = {ti["map_index"] for ti in airflow.task_instances("work_8", run) if ti["state"] == "success"}
        started = {note.index for note in rig.notes(run)}
        return bool(succeeded) and held <= started == held | succeeded

    rig.wait(settled, "four tasks run, and those before them have succeeded")
    cut_at = time.monotonic()
    kill(*(process.pid for process in airflow.processes()))
    assert unfinished(rig.notes(run)) == held
    rig.release(run)
    rig.complete()
    airflow.wait_until_healthy()
    rig.prove(run, 8, twice=held, without_airflow=time.monotonic() - cut_at)
    assert {job.cause for job in rig.jobs(run, State.FAILED)} == {"lost"}


def test_the_database_is_away(on_postgres: Rig, own_postgres: Postgres) -> None:
    rig, airflow = on_postgres, on_postgres.airflow
    run = airflow.trigger("work_8", {"seconds": 6})
    rig.wait_for_note(run, "start", CPUS)
    agent, controller = rig.agent(), rig.controller()
    own_postgres.pause()
    time.sleep(20)
    own_postgres.start()
    rig.complete()  # Airflow's own components may exit; their service manager starts them again
    airflow.wait_until_healthy()
    rig.prove(run, 8)
    assert (rig.agent(), rig.controller()) == (agent, controller)


def test_the_disk_is_full(on_postgres: Rig, tmp_path: Path) -> None:
    """Jobs that run go on and end, others wait, and all is well as soon as there is room."""
    rig = on_postgres
    usual = rig.state_folder
    with small_disk(tmp_path / "state", mebibytes=2, mode="0700"):
        rig.restart_scheduler(state_folder=tmp_path / "state")
        rig.state_folder = tmp_path / "state"
        try:
            run = rig.airflow.trigger("work_8", {"seconds": 4})
            rig.wait_for_note(run, "start", CPUS)
            fill = rig.state_folder / "fill"
            fill_up(fill)
            rig.wait_for_note(run, "end", CPUS)
            rig.airflow.wait_for_task("work_8", run, "work", "success", map_index=rig.notes(run)[0].index)
            late = rig.airflow.trigger("work_3", {"seconds": 1})
            rig.wait(lambda: len(rig.jobs(late)) == 3, "more jobs are in the store")
            fill_up(fill)
            fill.unlink()
            rig.prove(run, 8)
            rig.prove(late, 3)
        finally:
            rig.restart_scheduler(state_folder=usual)
            rig.state_folder = usual


def fill_up(path: Path) -> None:
    """Write until there is no room for a single byte more."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as stream:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"x" * size)


def test_a_controller_hangs(on_postgres: Rig) -> None:
    """It lives and does not renew its lease: it is killed, and another one takes its place."""
    rig = on_postgres
    rig.wait(lambda: rig.controller() and rig.agent(), "all are there")
    hung = rig.controller()
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    try:
        rig.wait(lambda: not processes.lives(hung), "the controller that hangs is killed", 120)
        rig.wait(lambda: rig.controller() not in (None, hung), "another one acts", 90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(hung, signal.SIGCONT)


def test_nonsense_in_the_spool_delays_no_other(on_postgres: Rig) -> None:
    rig = on_postgres
    rig.wait(lambda: rig.controller() and rig.agent(), "all are there")
    controller, agent = rig.controller(), rig.agent()
    spool = rig.spool
    words = ['{"event":"finished","token":"x","cause":"cancelled"}', "{}", "[]", "5", "[" * 100_000]
    for number, text in enumerate(words):
        (spool.events / f"junk{number}.jsonl").write_text(text)
    for folder in (spool.events, spool.inbox, spool.cancels):
        os.mkfifo(folder / "fifo.json")
        (folder / "folder.json").mkdir()
        (folder / "link.json").symlink_to("nowhere")
    run = rig.airflow.trigger("work_3", {"seconds": 1})
    rig.prove(run, 3)
    assert (rig.controller(), rig.agent()) == (controller, agent)

    def left() -> list[str]:
        names = [path.name for folder in (spool.events, spool.inbox, spool.cancels) for path in folder.iterdir()]
        return [name for name in names if name.partition(".")[0] in ("fifo", "folder", "link")]

    rig.wait(lambda: not left(), "all of it is set aside")


def test_two_schedulers(on_postgres: Rig) -> None:
    """One controller acts for both; either scheduler can stop, cleanly or not, and nothing is lost."""
    rig, airflow = on_postgres, on_postgres.airflow
    ports = [
        f"AIRFLOW__{name}"
        for name in ("LOGGING__WORKER_LOG_SERVER_PORT", "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT")
    ]
    environment = {**airflow.environment, **dict(zip(ports, map(str, free_ports(2)), strict=True))}
    first = rig.scheduler_id()
    second = airflow.start_apart("scheduler", environment, airflow.home / "second.log")
    try:
        rig.wait(lambda: rig.scheduler_id() != first, "the second scheduler is there")
        run = airflow.trigger("work_48", {"seconds": 1})
        rig.wait_for_note(run, "start", 8)
        controller = rig.controller()
        rig.stop_scheduler()
        rig.wait_for_note(run, "start", 20)
        assert rig.controller() == controller
        airflow.start("scheduler")
        rig.wait(lambda: rig.scheduler_id() > first + 1, "the first scheduler is back")
        # All of it: its log server is forked from it, and would keep a transaction open that it died in.
        kill(*(process.pid for process in processes.living().values() if process.session == second.pid))
        rig.prove(run, 48)
        assert rig.controller() == controller
    finally:
        kill(*(process.pid for process in processes.living().values() if process.session == second.pid))
    rig.stop_scheduler()
    rig.wait(lambda: not rig.left_behind(), "what is on its way out when the scheduler has ended ends as well")


def test_airflow_never_comes_back(abandoned: Rig) -> None:
    """A controller and an agent that are no longer needed end by themselves."""
    abandoned.wait(lambda: not abandoned.airflow.processes(), "nothing is left", 150)
