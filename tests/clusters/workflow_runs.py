"""Workflows as Dags in Airflow's tables, under a real controller and store, with simulated machines and clock.

Airflow's scheduler is played: what has no parent left that has not succeeded is queued, with a job in Lading's store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.types import DagRunType
from sqlalchemy import func, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.controller import leadership, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.starts import expected_starts
from lading.executors.starts.expected_starts import Accuracy
from lading.executors.store import JobRow, State
from lading.operators import resources
from lading.plugin.host import AirflowHost
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.accounting.billing import LEAST_SECONDS
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.model.resources import Resources
from tests.clusters.bought import BoughtSite, Clock
from tests.clusters.queued import QueuedSite
from tests.clusters.sites import make_settings, rest
from tests.services.at_once import AtOnce

# Between two ticks, seconds; the controller is woken when a job ends, or a machine is up.
TICK = 1.0
# No run of a test is longer, seconds.
LONGEST = 86_400.0
BUNDLE = "recordings"


@dataclass
class RunResult:
    """How runs went.

    :param usd: what the machines have cost, from launch to end, each for a minute at least
    :param seconds: from the first run's start until the last job had ended
    :param cpu_hours: of the allocations, from the start of each to its end
    :param ticks: seconds that each tick of the controller took
    """

    usd: float
    cpu_hours: float
    seconds: float
    launches: int
    ticks: list[float] = field(default_factory=list)


class WorkflowRuns:
    """
    :param workflows: by the ids of their Dags
    :param queue: seconds for which allocations wait, where they are what is launched; ``node_boots``: seconds from the
        start of one until its agent has begun
    :param lag: see :class:`BoughtSite`
    :param latency: seconds from when the end of a task is known until those that wait for it alone are queued
    :param hints: of all tasks, in addition to what they need according to the recording
    """

    def __init__(
        self,
        engine: Engine,
        workflows: dict[str, Sequence[Arrival]],
        market: MachineMarket | Market,
        folder: Path,
        patch: pytest.MonkeyPatch,
        *,
        queue: float = 0.0,
        node_boots: float = 0.0,
        lag: float = 0.0,
        latency: float = 0.0,
        **hints: Any,
    ) -> None:
        self.engine, self.workflows, self.hints = engine, workflows, hints
        self.clock, self.lengths = Clock(), dict[str, float]()
        self.site: BoughtSite
        if isinstance(market, Market):
            self.site = QueuedSite(folder, market, self.clock, self.lengths, queue, node_boots)
        else:
            self.site = BoughtSite(folder, market, self.clock, self.lengths, market.policy)
        self.site.lag, self.latency = lag, latency
        self.waiting: dict[tuple[str, str], dict[str, set[str]]] = {}
        self.ready: dict[tuple[str, str, str], float] = {}
        """When the tasks that are to be queued wait for no other one any more, epoch seconds."""
        self.numbers = 0
        self.really = time.perf_counter
        with Session(engine) as session:
            session.add(DagBundleModel(name=BUNDLE))
            session.commit()
            for dag_id, workflow in workflows.items():
                self._store(session, dag_id, workflow)
            session.commit()
        patch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
        patch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
        patch.setattr(time, "time", self.clock)
        patch.setattr(time, "monotonic", self.clock)
        patch.setattr(leadership, "seconds_ahead", lambda *_: 0.0)
        self.house = Controller(
            AirflowHost(),
            {"cloud": self.site},
            lambda subject, seconds: "",
            make_settings(folder),
            False,
            lambda changes: None,
        )
        self.house.site_plans.threads = AtOnce()  # however slow the machine is
        self.house.housekeeping.due = lambda *_: False  # type: ignore[method-assign]  # it goes by the real clock

    def _store(self, session: Session, dag_id: str, workflow: Sequence[Arrival]) -> None:
        with DAG(dag_id, schedule=None, max_active_tasks=10_000) as dag:
            tasks = {each.job.name: BashOperator(task_id=task_id(each.job.name), bash_command=":") for each in workflow}
        for each in workflow:
            for parent in each.parents:
                tasks[parent] >> tasks[each.job.name]
        session.add(DagModel(dag_id=dag_id, bundle_name=BUNDLE, is_paused=False))
        session.flush()
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), BUNDLE, session=session)

    def begin(self, dag_id: str, run_id: str) -> None:
        """Let a run of a Dag begin now."""
        workflow = self.workflows[dag_id]
        with Session(self.engine) as session:
            began = datetime.fromtimestamp(self.clock.now, timezone.utc)
            session.add(
                DagRun(dag_id=dag_id, run_id=run_id, run_type=DagRunType.MANUAL, state="running", start_date=began)
            )
            session.flush()
            rows = []
            for each in workflow:
                asked = each.job.resources
                amounts = {"cpus": asked.cpus, "memory": f"{asked.memory} MiB", "time": each.job.time}
                rows.append(
                    {
                        "id": uuid7(), "dag_id": dag_id, "run_id": run_id, "task_id": task_id(each.job.name),
                        "map_index": -1, "state": None, "pool": "p", "pool_slots": 1, "try_number": 1, "max_tries": 0,
                        "executor_config": resources(**{**amounts, **self.hints}),
                    }
                )  # fmt: skip
            session.execute(insert(TaskInstance.__table__), rows)
            session.commit()
        self.waiting[dag_id, run_id] = {each.job.name: set(each.parents) for each in workflow}
        self._queue()

    def _queue(self) -> None:
        """What Airflow's scheduler does: note what has succeeded, and queue what waits for nothing any more."""
        with Session(self.engine) as session:
            for (dag_id, run_id), left in self.waiting.items():
                mine = TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id
                done = (JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.state == State.SUCCEEDED)
                over = set(session.scalars(select(JobRow.task_id).where(*done)))
                names = {task_id(each.job.name): each.job.name for each in self.workflows[dag_id]}
                if over:
                    session.execute(
                        update(TaskInstance).where(*mine, TaskInstance.task_id.in_(over)).values(state="success")
                    )
                ended = {names[each] for each in over}
                for each in self.workflows[dag_id]:
                    name = each.job.name
                    if name in left and left[name] <= ended:
                        ready = self.ready.setdefault((dag_id, run_id, name), self.clock.now)
                        if left[name] and self.clock.now < ready + self.latency:
                            continue
                        del left[name], self.ready[dag_id, run_id, name]
                        self._queue_one(session, dag_id, run_id, each)
                if not left and len(over) == len(names):
                    ran = DagRun.dag_id == dag_id, DagRun.run_id == run_id
                    session.execute(update(DagRun).where(*ran).values(state="success"))
            session.commit()

    def _queue_one(self, session: Session, dag_id: str, run_id: str, each: Arrival) -> None:
        self.numbers += 1
        token, asked = f"{self.numbers:06}-{run_id}"[:36], each.job.resources
        self.lengths[token] = each.duration
        mine = (
            TaskInstance.dag_id == dag_id,
            TaskInstance.run_id == run_id,
            TaskInstance.task_id == task_id(each.job.name),
        )
        session.execute(update(TaskInstance).where(*mine).values(state="queued", external_executor_id=token))
        what = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 1}
        whose = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id(each.job.name), "map_index": -1}
        amounts = {"cpus": asked.cpus, "memory": asked.memory, "disk": 0, "gpus": 0.0, "try_number": 1}
        limit = each.job.time
        store.add_job(session, token=token, queued_at=self.clock.now, time_limit=limit, **what, **whose, **amounts)

    def add_alone(self, token: str, asked: Resources, seconds: float) -> None:
        """Queue a job of no Dag."""
        self.lengths[token] = seconds
        what = {"kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 1}
        amounts = {"cpus": asked.cpus, "memory": asked.memory, "disk": 0, "gpus": 0.0, "try_number": 1}
        with Session(self.engine) as session:
            store.add_job(session, token=token, queued_at=self.clock.now, **what, **amounts)
            session.commit()

    def tick(self, ticks: list[float]) -> None:
        """Let the controller tick until it has nothing more to do at this moment."""
        for _ in range(3):
            self.house.threads.request_observations()
            rest(self.house.threads)
            begun = self.really()
            self.house.tick()
            ticks.append(self.really() - begun)
            rest(self.house.threads)
            before = self.numbers
            self._queue()
            if self.numbers == before and not self.site.news():
                return
            self.clock.now += 0.001  # what is to come is read once at one moment

    def run(self, starts: Sequence[tuple[float, str, str]]) -> RunResult:
        """Runs to their end, and until no machine is left.

        :param starts: when each begins, seconds from now; its Dag and its id
        """
        start, launched = self.clock.now, len(self.site.diary.launches)
        coming, ticks, last_end = sorted(starts), list[float](), start
        while coming or self.site.machines or not self._is_over():
            while coming and start + coming[0][0] <= self.clock.now:
                _, dag_id, run_id = coming.pop(0)
                self.begin(dag_id, run_id)
            self.site.advance()
            if self.site.events:
                last_end = max(last_end, *(each["at"] for each in self.site.events if each["event"] == "finished"), 0.0)
            self.tick(ticks)
            begins = [start + coming[0][0]] if coming else []
            queued = [ready + self.latency for ready in self.ready.values()]
            # What ends while a tick looks again and again lies behind it: the clock never goes back.
            self.clock.now = max(self.clock.now, min([self.clock.now + TICK, *self.site.due(), *queued, *begins]))
            assert self.clock.now - start < LONGEST, "it does not come to its end"
        launches, released = self.site.diary.launches, self.site.diary.released
        usd = cpu_hours = 0.0
        for number in range(launched, len(launches)):
            at, kind, capacity_type = launches[number]
            if isinstance(self.site, QueuedSite):  # allocations have no price
                cpu_hours += self.site.cpus[number] * max(0.0, released[number] - at - self.site.queue) / 3600
                continue
            offerings = self.site.machines_on_sale.catalogue.types[kind].offerings
            price = next(each.usd_per_hour for each in offerings if each.capacity_type == capacity_type)
            usd += max(LEAST_SECONDS, released[number] - at) / 3600 * price
        return RunResult(usd, cpu_hours, last_end - start, len(launches) - launched, ticks)

    def _is_over(self) -> bool:
        with Session(self.engine) as session:
            left = session.scalar(select(func.count()).where(JobRow.state.not_in(store.ENDED)))
        return not left and not any(self.waiting.values())

    def close(self) -> None:
        self.house.site_plans.close()
        self.house.threads.end()


class SaidRuns(WorkflowRuns):
    """The same where somebody looks all the time when jobs are expected to start."""

    def tick(self, ticks: list[float]) -> None:
        super().tick(ticks)
        with Session(self.engine) as session:
            waiting = select(*expected_starts.COLUMNS).where(JobRow.state.in_(expected_starts.WAITING))
            expected_starts.show_starts(session, session.execute(waiting).all(), self.clock.now)
            session.commit()

    def accuracy(self, since: float = 0.0) -> list[Accuracy]:
        """How often that came true of jobs that have started since a time."""
        with Session(self.engine) as session:
            return expected_starts.accuracy(session, since)


def task_id(name: str) -> str:
    """The id of the task of a job of a recording."""
    return name.replace("/", ".")[-200:]
