"""A full house for the page: six sites, twelve Dags with runs of forty days, their machines, what fails and what waits.

All is made up, but as Airflow and the engine write it, so that each sub-page and each tab has something to show:
``python -m benchmarks.page --keep`` starts an Airflow on it, to be walked through.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.models.team import Team
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.timetables.base import DataInterval
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import Session

from lading.executors.accounting.share_rows import BudgetRow, ShareStandingRow, save_standings
from lading.executors.request_rows import RequestKind, ask
from lading.executors.starts.work_left import work_left
from lading.executors.store import Capacity, JobRow, LocationRow, SiteRow, State, reason_values, take_lease
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.run_rows import RunForecastRow
from lading.executors.store.tables import UsageRow
from lading.scheduling.accounting.bill import hours_of_work
from lading.scheduling.accounting.budgets import Period, PeriodBudget, Unit
from lading.scheduling.accounting.share_table import Kept, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing, share_standings
from lading.scheduling.accounting.who import Tenant, Who
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.usage import Usage
from tests.services.airflow import Airflow
from tests.services.sqlite import open_sqlite

# Who may log in, with the name as the password, and what they see.
LOGINS = {"admin": "all", "viewer": "one Dag"}
DAYS, DAY, HOUR = 40, 86400.0, 3600.0
# How long the lease of the controller that seems to run lasts, seconds.
LEASE = 60.0
# What each user may read who may read any Dag; the others are of a team.
EVERYBODYS = "weather"
# The team of an owner's Dags.
TEAMS = {"genomics": "genomics", "ml": "ml", "data": "analytics"}
GIB = 1024
BOOT = 90.0
# Lading's machines have so many cpus each, and GiB, and cost so much an hour.
CPUS, MEMORY = 16, 64 * GIB


@dataclass(frozen=True)
class TaskPlan:
    """A task: how many instances it has, and what one asks for and takes, in seconds."""

    name: str
    upstream: Sequence[str] = ()
    cpus: float = 1.0
    memory: int = 2 * GIB
    seconds: float = 300.0
    mapped: int = 0


@dataclass(frozen=True)
class DagPlan:
    """A Dag: where its jobs run, how many runs it has in a day, and at which hour the first one begins."""

    dag_id: str
    site: str
    hour: float
    tasks: Sequence[TaskPlan]
    runs: int = 1
    owner: str = "data"

    @property
    def team(self) -> str | None:
        return None if self.dag_id == EVERYBODYS else TEAMS[self.owner]


def chain(*plans: TaskPlan) -> tuple[TaskPlan, ...]:
    """Tasks one after the other."""
    before: tuple[str, ...] = ()
    found = []
    for plan in plans:
        found.append(TaskPlan(plan.name, before, plan.cpus, plan.memory, plan.seconds, plan.mapped))
        before = (plan.name,)
    return tuple(found)


PLANS = (
    DagPlan(
        "genomes", "hpc", 1.0, owner="genomics",
        tasks=(
            TaskPlan("fetch", (), 1, 2 * GIB, 240),
            TaskPlan("align", ("fetch",), 4, 8 * GIB, 1500, mapped=24),
            TaskPlan("sort", ("align",), 2, 8 * GIB, 400, mapped=12),
            TaskPlan("call_variants", ("sort",), 8, 24 * GIB, 2200),
            TaskPlan("quality", ("align",), 1, 4 * GIB, 500),
            TaskPlan("report", ("call_variants", "quality"), 1, 1 * GIB, 60),
        ),
    ),
    DagPlan("weather", "hpc", 4.0, chain(
        TaskPlan("download", seconds=200), TaskPlan("simulate", cpus=8, memory=16 * GIB, seconds=2800, mapped=6),
        TaskPlan("plot", seconds=120))),
    DagPlan("etl_orders", "cloud", 0.5, chain(
        TaskPlan("extract", seconds=150), TaskPlan("transform", cpus=2, memory=6 * GIB, seconds=600, mapped=8),
        TaskPlan("load", seconds=180)), runs=3),
    DagPlan("etl_customers", "cloud", 1.5, chain(
        TaskPlan("extract"), TaskPlan("transform", cpus=2), TaskPlan("load")), runs=2),
    DagPlan("train_recommender", "cloud", 6.0, chain(
        TaskPlan("features", cpus=4, memory=16 * GIB, seconds=1600),
        TaskPlan("train", cpus=16, memory=60 * GIB, seconds=5400),
        TaskPlan("evaluate", cpus=2, seconds=500)), owner="ml"),
    DagPlan("backfill_events", "cloud", 9.0, chain(TaskPlan("replay", cpus=2, memory=4 * GIB, seconds=700, mapped=30))),
    DagPlan("microscopy", "lab", 8.0, chain(
        TaskPlan("stitch", cpus=8, memory=30 * GIB, seconds=1800, mapped=3), TaskPlan("segment", cpus=4, seconds=900))),
    DagPlan("lab_backup", "lab", 22.0, chain(TaskPlan("copy", seconds=2400), TaskPlan("verify", seconds=600))),
    DagPlan("legacy_billing", "old", 2.0, chain(TaskPlan("collect", seconds=700), TaskPlan("invoice", seconds=500))),
    DagPlan("maintenance", "local", 0.1, chain(TaskPlan("vacuum", seconds=60), TaskPlan("report", seconds=20)), runs=8),
    DagPlan(
        "quarterly_regulatory_reporting_for_all_european_subsidiaries", "local", 12.0,
        chain(TaskPlan("collect_the_ledgers_of_each_subsidiary", seconds=300), TaskPlan("consolidate", seconds=200)),
    ),
    DagPlan("תחזית_מכירות", "gpu", 14.0, chain(TaskPlan("fit", cpus=4, memory=16 * GIB, seconds=1900, mapped=2))),
)  # fmt: skip
# By name: kind, what an hour of a machine costs, what it limits.
SITES: dict[str, tuple[str, float | None, dict[str, str]]] = {
    "local": ("local", None, {}),
    "lab": ("ssh", 0.03, {}),
    "hpc": ("slurm", 0.8, {"max_allocations": "8", "queue": "batch", "max_submitted": "500"}),
    "cloud": ("ec2", 0.8064, {"max_instances": "10", "max_usd_per_hour": "8.5"}),
    "gpu": ("slurm", 2.5, {"max_allocations": "2", "queue": "gpu"}),
    "old": ("sge", 0.4, {"max_jobs": "100"}),
}
AT_HAND = {"local": ("airflow1",), "lab": ("microscope1", "microscope2", "microscope3")}
# How long each site keeps idle machines, seconds.
IDLE_SECONDS = {"hpc": 1800.0, "gpu": 1200.0, "cloud": 900.0}
# One machine of the cloud boots and one is ordered; the limit counts both.
UNREADY = {"cloud": 2}
# What keeps a site full: the site, the Dag, and a task whose running jobs take all cpus that are left.
FULL = (
    ("hpc", "genomes", "align"), ("cloud", "backfill_events", "replay"), ("lab", "microscopy", "stitch"),
    ("local", "quarterly_regulatory_reporting_for_all_european_subsidiaries", "collect_the_ledgers_of_each_subsidiary"),
)  # fmt: skip
# A machine that has not been reachable for a while, seconds.
SILENT, SILENT_FOR = "microscope3", 3 * HOUR
# How long ago the site that is down last answered, seconds.
DOWN = 0.6 * DAY
# The budgets: name, whose, unit, period, and how much of it is spent.
BUDGETS: Sequence[tuple[str, Who, str, Period, float]] = (
    ("genomics", Who(team="genomics"), "USD", "month", 0.87),
    ("analytics", Who(team="analytics"), "USD", "month", 0.62),
    ("ml", Who(team="ml"), "USD", "month", 0.45),
    ("lab", Who(dag="lab_*"), "cpu-hours", "month", 1.002),
    ("backfills", Who(dag="backfill_*"), "USD", "day", 0.7),
    ("all", Who(), "USD", "month", 0.31),
)
# The last line of what fails; what is not listed leaves none.
ERRORS = {
    "genomes": "OSError: [Errno 28] No space left on device: '/scratch/genomes/chr7.bam'",
    "weather": "ValueError: the grid has 721 rows, 720 were expected",
    "etl_orders": 'psycopg.errors.UndefinedColumn: column "discount" does not exist',
    "etl_customers": 'psycopg.OperationalError: connection to server at "warehouse" failed: Connection refused',
    "backfill_events": "KeyError: 'event_id'",
    "maintenance": "psycopg.errors.LockNotAvailable: canceling statement due to lock timeout",
}
# How many of 5,000 wait, of which task and at which site, and why; None: see :meth:`House.reason_now`.
WAITS: Sequence[tuple[int, str, str, str, Reason | str]] = (
    (2500, "genomes", "align", "hpc", because("max_allocations", used=8, most=8)),
    (420, "genomes", "align", "hpc", because("batch_queue", queue="batch", text="(Priority)")),
    (300, "weather", "simulate", "hpc", "task_jobs"),
    (900, "backfill_events", "replay", "cloud", because("site_instances", used=10, most=10)),
    (220, "etl_orders", "transform", "cloud", because("site_instances", used=10, most=10)),
    (90, "train_recommender", "features", "cloud",
     because("max_usd_per_hour", type="m7i.4xlarge", price=0.8064, used=8.064, most=8.5)),
    (60, "etl_customers", "transform", "cloud", "no_capacity"),
    (140, "microscopy", "stitch", "lab", because("machine_full", needs=Resources(8.0, 30 * GIB), taken=["cpus"])),
    (150, "legacy_billing", "collect", "old",
     because("unreachable", text="ssh: connect to host old port 22: Connection timed out")),
    (100, "תחזית_מכירות", "fit", "gpu", because("paused", site="gpu", by="carol")),
    (70, "quarterly_regulatory_reporting_for_all_european_subsidiaries", "collect_the_ledgers_of_each_subsidiary",
     "local", because("machine_full", needs=Resources(1.0, 2048), taken=["cpus"])),
    (50, "lab_backup", "copy", "lab", "budget"),
)  # fmt: skip


@dataclass
class Machine:
    """A machine, or an allocation, and until when each of its cpus is taken."""

    name: str
    site: str
    since: float
    node: str | None = None
    native_id: str | None = None
    is_spot: bool = False
    lanes: list[float] = field(default_factory=lambda: [0.0] * CPUS)
    usd: float = 0.0
    last: float = 0.0
    ordered: float = 0.0


class House:
    """What fills the tables; the same house for the same seed.

    :param now: epoch seconds, when it is looked at
    :param logs: the folder in which the logs of recent failures are written; None: they are not
    """

    def __init__(self, session: Session, now: float, waiting: int, days: int = DAYS, logs: Path | None = None) -> None:
        self.session, self.now, self.waiting, self.days, self.logs = session, now, waiting, days, logs
        self.chance = random.Random(11)
        self.machines: dict[str, list[Machine]] = {
            site: [Machine(name, site, now - (days + 1) * DAY) for name in names] for site, names in AT_HAND.items()
        }
        self.jobs: list[dict[str, Any]] = []
        self.natives = 480_000

    def fill(self) -> None:
        """Fill empty tables."""
        self.add_dags()
        first = int((self.now - self.days * DAY) // DAY) * DAY
        plans = [
            (first + day * DAY + plan.hour * HOUR + number * DAY / plan.runs, plan)
            for day in range(self.days + 1)
            for plan in PLANS
            for number in range(plan.runs)
        ]
        for at, plan in sorted(plans, key=lambda each: (each[0], each[1].dag_id)):
            began = at + self.chance.uniform(0, 600)
            if began < self.now - 3 * HOUR and (plan.site != "old" or began < self.now - DOWN):
                self.run(plan, began, self.now)
        for plan in PLANS:
            is_long = plan.dag_id in {dag_id for _, dag_id, _ in FULL}
            ago = self.chance.uniform(3000, 3400) if is_long else self.chance.uniform(1200, 2400)
            self.run(plan, self.now - ago, self.now, is_live=True)
        for site, dag_id, task_id in FULL:
            self.fill_site(site, dag_id, task_id)
        self.add_sites()
        self.add_machines()
        self.add_budgets()
        self.add_waiting()
        for start in range(0, len(self.jobs), 500):
            self.session.execute(insert(JobRow.__table__), self.jobs[start : start + 500])
        self.add_work_of_budgets()
        self.add_year()
        self.add_shares()
        self.session.flush()
        asked = ask(self.session, RequestKind.PAUSE, "gpu", "carol")
        asked.at, asked.done_at, asked.outcome = self.now - 7200, self.now - 7198, "it is paused"
        take_lease(self.session, "controller", "scheduler-1", 1, True, LEASE, None)
        self.session.commit()

    # -- Airflow's own

    def add_dags(self) -> None:
        self.session.add(DagBundleModel(name="everybody's"))
        for team in TEAMS.values():
            theirs = DagBundleModel(name=team)
            theirs.teams.append(Team(name=team))
            self.session.add(theirs)
        self.session.flush()
        for plan in PLANS:
            bundle = plan.team or "everybody's"
            with DAG(plan.dag_id, schedule=None, max_active_tasks=5000) as dag:
                tasks: dict[str, Any] = {}
                for each in plan.tasks:
                    if each.mapped:
                        commands = [f"echo {number}" for number in range(each.mapped)]
                        tasks[each.name] = BashOperator.partial(task_id=each.name).expand(bash_command=commands)
                    else:
                        tasks[each.name] = BashOperator(task_id=each.name, bash_command=":", retries=1)
                for each in plan.tasks:
                    for parent in each.upstream:
                        tasks[parent] >> tasks[each.name]
            self.session.add(
                DagModel(
                    dag_id=plan.dag_id, bundle_name=bundle, fileloc=f"/{plan.dag_id}.py", is_paused=False,
                    is_stale=False, owners=plan.owner,
                )
            )  # fmt: skip
            self.session.flush()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle, session=self.session)
        self.session.commit()

    def add_run(self, plan: DagPlan, run_id: str, began: float, jobs: Iterable[dict[str, Any]], is_live: bool) -> None:
        """The run as Airflow has it, with its task instances as their last tries have left them."""
        serialized = SerializedDagModel.get(plan.dag_id, session=self.session)
        assert serialized is not None
        at = datetime.fromtimestamp(began, timezone.utc)
        jobs = sorted(jobs, key=lambda job: job["try_number"])
        last = {(job["task_id"], job["map_index"]): job for job in jobs}
        earlier = {(job["task_id"], job["map_index"]): job for job in jobs if job not in last.values()}
        has_failed = any(job["state"] == State.FAILED for job in last.values())
        state = DagRunState.RUNNING if is_live else DagRunState.FAILED if has_failed else DagRunState.SUCCESS
        run = serialized.dag.create_dagrun(
            run_id=run_id, logical_date=at, data_interval=DataInterval(at, at), run_after=at,  # type: ignore[arg-type]
            run_type=DagRunType.MANUAL, triggered_by=DagRunTriggeredByType.UI, state=state, start_date=at,
            session=self.session,
        )  # fmt: skip
        if is_live:
            its_plan = RunForecastRow(dag_id=plan.dag_id, run_id=run_id, hurry=None, finish_by=None, ends_at=None)
            its_plan.at = self.now
            self.session.add(its_plan)
        else:
            run.end_date = datetime.fromtimestamp(max(job["ended_at"] for job in last.values()), timezone.utc)
        states = {
            State.SUCCEEDED: TaskInstanceState.SUCCESS, State.FAILED: TaskInstanceState.FAILED,
            State.RUNNING: TaskInstanceState.RUNNING, State.QUEUED: TaskInstanceState.QUEUED,
            State.PLACED: TaskInstanceState.QUEUED,
        }  # fmt: skip
        for instance in run.get_task_instances(session=self.session):
            job = last.get((instance.task_id, instance.map_index))
            if job is None:
                instance.state = None if is_live else TaskInstanceState.UPSTREAM_FAILED
                continue
            for each in filter(None, (earlier.get((instance.task_id, instance.map_index)), job)):
                instance.state, instance.try_number = states[each["state"]], each["try_number"]
                for name, key in (("start_date", "started_at"), ("end_date", "ended_at"), ("queued_dttm", "queued_at")):
                    if each[key] is not None:
                        setattr(instance, name, datetime.fromtimestamp(each[key], timezone.utc))
                if each is not job:  # as Airflow does before the next try
                    self.session.add(TaskInstanceHistory(instance, state=TaskInstanceState.FAILED))
                    self.session.flush()
                    instance.id, instance.end_date = uuid.uuid4(), None
                if each["state"] == State.FAILED:
                    self.write_log(each)
        self.session.flush()

    def write_log(self, job: dict[str, Any]) -> None:
        """Write the log of a failed try."""
        if self.logs is None:
            return
        names = [f"{name}={job[name]}" for name in ("dag_id", "run_id", "task_id")]
        names += [f"map_index={job['map_index']}"] if job["map_index"] >= 0 else []
        folder = self.logs.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        at = datetime.fromtimestamp(job["ended_at"], timezone.utc).isoformat()
        error = job["cause"] if job["cause"] != "error" else ERRORS.get(job["dag_id"], "exit code 1")
        line = {
            "timestamp": at,
            "level": "error",
            "event": f"Try {job['try_number']} failed: {error}",
            "logger": "task",
        }
        (folder / f"attempt={job['try_number']}.log").write_text(json.dumps(line) + "\n")

    # -- jobs and machines

    def run(self, plan: DagPlan, began: float, now: float, is_live: bool = False) -> None:
        """One run: each task when all before it have ended, each job where there is room, or on another machine."""
        run_id = f"manual__{datetime.fromtimestamp(began, timezone.utc):%Y-%m-%dT%H:%M:%S}"
        ends: dict[str, float | None] = {}
        slow = self.chance.uniform(0.85, 1.2)
        jobs: list[dict[str, Any]] = []
        for task in plan.tasks:
            before = [ends.get(name) for name in task.upstream]
            ready = max((each for each in before if each is not None), default=began)
            if None in before or ready > now:
                ends[task.name] = None
                continue
            last: float | None = ready
            for index in range(task.mapped) if task.mapped else (-1,):
                end = self.tries(plan, task, run_id, index, ready, slow, jobs)
                last = None if end is None or last is None else max(last, end)
            ends[task.name] = last
        self.jobs += jobs
        if jobs and began > now - 3 * DAY:
            is_unfinished = any(job["ended_at"] is None for job in jobs)
            self.add_run(plan, run_id, began, jobs, is_live or is_unfinished)

    def tries(
        self, plan: DagPlan, task: TaskPlan, run_id: str, index: int, ready: float, slow: float,
        jobs: list[dict[str, Any]],
    ) -> float | None:  # fmt: skip
        """The tries of one task instance; when the last one ended, or None."""
        for number in (1, 2):
            row = self.ran(plan, task, run_id, index, number, ready + self.chance.uniform(0.5, 4), slow)
            jobs.append(row)
            if row["state"] != State.FAILED:
                return row["ended_at"]
            ready = row["ended_at"] + 10
        return None

    def ran(
        self, plan: DagPlan, task: TaskPlan, run_id: str, index: int, number: int, queued: float, slow: float
    ) -> dict[str, Any]:
        row = self.job(plan, task, run_id, index, number, queued)
        seconds = task.seconds * slow * self.chance.uniform(0.7, 1.3)
        chance = self.chance.random()
        state, cause, reason, exit_code = State.SUCCEEDED, None, None, 0
        if plan.site == "old" and queued > self.now - DOWN:
            down = because("unreachable", text="ssh: connect to host old port 22: Connection timed out")
            return row | {"site_hint": "old"} | reason_values(down.at("old"))
        if (plan.dag_id, task.name) == ("genomes", "align") and chance < 0.06:
            state, cause, seconds, exit_code = State.FAILED, "out_of_memory", seconds * 0.6, 137
            reason = because("batch_out_of_memory")
        elif (plan.dag_id, task.name) == ("weather", "simulate") and chance < 0.05:
            state, cause, seconds, reason = State.FAILED, "time_limit", HOUR, because("batch_time_limit")
        elif plan.site == "cloud" and chance < 0.01:
            state, cause, seconds = State.FAILED, "preempted", seconds * 0.4
        elif chance < 0.015:
            state, cause, seconds, exit_code = State.FAILED, "error", seconds * 0.3, 1
            if plan.dag_id in ERRORS:
                reason = because("task_exited", exit_code=1).with_also(because("last_output", text=ERRORS[plan.dag_id]))
        machine, start = self.place(plan.site, task.cpus, queued, seconds)
        if machine is not None and machine.node == "n17" and state == State.SUCCEEDED and self.chance.random() < 0.05:
            state, cause, seconds = State.FAILED, "node_failure", seconds * 0.5
        row |= {"site": plan.site, "placed_at": max(queued, start - 1), "started_at": start, "time_limit": 3600}
        if start > self.now - 1:  # it has not come to that
            row |= {"started_at": None, "placed_at": None, "site": None, "site_hint": plan.site}
            full = because("machine_full", needs=Resources(task.cpus, task.memory), taken=["cpus"])
            return row | reason_values(full.at(plan.site))
        ended = start + seconds
        rate = SITES[plan.site][1]
        if machine is None:
            self.natives += 1
            row |= {"location": plan.site, "node": f"n{self.chance.randrange(1, 30)}", "native_id": str(self.natives)}
            row |= {"submitted_at": queued + 3}
        else:
            row |= {"location": machine.name, "node": machine.node, "native_id": machine.native_id}
            row["lane"] = float(self.lane)
            machine.last = max(machine.last, ended)
        used = {"fetch": 0.3, "align": 0.93, "transform": 0.35, "features": 0.25}.get(task.name, 0.7)
        if ended >= self.now:
            measured = int(task.memory * used * 0.8) if self.now - start > 60 else None
            return row | {"state": State.RUNNING, "changed_at": start, "peak_memory": measured}
        usd = None if rate is None else min(seconds, ended - start) / HOUR * task.cpus / CPUS * rate
        if machine is not None and usd is not None:
            machine.usd += usd
        peak = 1.0 if cause == "out_of_memory" else used
        row |= {
            "state": state, "cause": cause, "exit_code": exit_code if state == State.SUCCEEDED or exit_code else None,
            "ended_at": ended, "changed_at": ended, "usd": usd,
            "cpu_seconds": seconds * task.cpus * min(1.0, used * self.chance.uniform(0.8, 1.1)),
            "peak_memory": int(task.memory * peak * self.chance.uniform(0.6, 1.0)),
            "said_at": queued + 30, "said_since": start - 200,
        }  # fmt: skip
        late = self.chance.choice([200, 200, -50])
        source = self.chance.choice(["forecast", "batch_system", "past_waits"])
        # Only the waits of earlier tries are below the goal.
        row |= {"said_until": start + (late if source == "past_waits" else 200), "said_source": source}
        return row | reason_values(reason)

    def place(self, site: str, cpus: float, queued: float, seconds: float) -> tuple[Machine | None, float]:
        """Where a job runs and when it starts: where there is room, on another machine, or where room comes first."""
        if site == "old":
            return None, queued + self.chance.uniform(20, 900)
        need = int(cpus)
        pool = self.machines.setdefault(site, [])
        alive = [m for m in pool if site in AT_HAND or (self.end_of(m) > queued and queued - m.since < 4 * HOUR)]
        if queued > self.now - SILENT_FOR:
            alive = [m for m in alive if m.name != SILENT]
        best: tuple[float, int, Machine] | None = None
        for machine in alive:
            for lane in range(CPUS - need + 1):
                free = max(machine.lanes[lane : lane + need])
                if best is None or free < best[0]:
                    best = free, lane, machine
        most = self.most(site)
        if site not in AT_HAND and (best is None or (best[0] > queued + 120 and len(alive) < most)):
            machine = self.launch(site, queued)
            best = machine.since, 0, machine
        assert best is not None
        free, lane, machine = best
        start = max(queued + self.chance.uniform(0.2, 3), free + 1, machine.since)
        for number in range(lane, lane + need):
            machine.lanes[number] = start + seconds
        self.lane = lane
        return machine, start

    @staticmethod
    def most(site: str) -> int:
        """How many machines of a site can be up."""
        limit = "max_instances" if site == "cloud" else "max_allocations"
        return int(SITES[site][2].get(limit, 99)) - UNREADY.get(site, 0)

    @staticmethod
    def end_of(machine: Machine) -> float:
        """When a machine is released, unless it gets more jobs."""
        return max(machine.last, machine.since) + IDLE_SECONDS[machine.site]

    def up(self, site: str, since: float | None = None) -> list[Machine]:
        """The machines that are up and can be reached, or were at some time since then."""
        if site in AT_HAND:
            return [each for each in self.machines[site] if each.name != SILENT]
        return [each for each in self.machines[site] if self.end_of(each) > (self.now if since is None else since)]

    def launch(self, site: str, ordered: float) -> Machine:
        boot = BOOT * self.chance.uniform(0.7, 1.6) if site == "cloud" else self.chance.uniform(60, 900)
        self.natives += 1
        machine = Machine(f"L{self.chance.getrandbits(40):010x}", site, ordered + boot, ordered=ordered + 2)
        machine.native_id = f"i-{self.chance.getrandbits(60):017x}" if site == "cloud" else str(self.natives)
        machine.node = None if site == "cloud" else f"n{self.chance.randrange(1, 30)}"
        machine.is_spot = self.chance.random() < 0.7
        self.machines.setdefault(site, []).append(machine)
        return machine

    def fill_site(self, site: str, dag_id: str, task_id: str) -> None:
        """Launch machines up to the limit of a site, and give jobs of a live run to their free cpus until now."""
        plan = next(each for each in PLANS if each.dag_id == dag_id)
        task = next(each for each in plan.tasks if each.name == task_id)
        run_id = [job["run_id"] for job in self.jobs if job["dag_id"] == dag_id][-1]
        began = min(job["queued_at"] for job in self.jobs if job["run_id"] == run_id and job["dag_id"] == dag_id)
        ready, up, need, index = (
            began + (500 if task.upstream else 5),
            self.up(site, began),
            int(task.cpus),
            task.mapped,
        )
        if site not in AT_HAND:
            up += [self.launch(site, began + 2) for _ in range(self.most(site) - len(up))]
            # Those that are up now come first, so that no more than the limit are.
            up = sorted(up, key=self.end_of, reverse=True)[: self.most(site)]
        for machine in up:
            for lane in range(CPUS - need + 1):
                end = max(ready, machine.since, *machine.lanes[lane : lane + need])
                while (start := end + self.chance.uniform(0.5, 5)) < self.now:
                    end = start + task.seconds * self.chance.uniform(0.7, 1.3)
                    self.jobs.append(self.filler(self.job(plan, task, run_id, index, 1, ready), machine, start, end))
                    self.jobs[-1]["lane"] = float(lane)
                    index += 1
                    machine.lanes[lane : lane + need] = [end] * need
                    machine.last = max(machine.last, end)

    def filler(self, row: dict[str, Any], machine: Machine, start: float, end: float) -> dict[str, Any]:
        """The job as it is now if it runs on a machine between two times and succeeds."""
        row |= {"site": machine.site, "placed_at": start - 1, "started_at": start, "changed_at": start}
        row |= {"location": machine.name, "node": machine.node, "native_id": machine.native_id}
        row |= {"state": State.RUNNING, "peak_memory": int(row["memory"] * 0.6)}
        if end >= self.now:
            return row
        rate = SITES[machine.site][1]
        usd = None if rate is None else (end - start) / HOUR * row["cpus"] / CPUS * rate
        machine.usd += usd or 0.0
        row |= {"state": State.SUCCEEDED, "ended_at": end, "changed_at": end, "exit_code": 0, "usd": usd}
        return row | {"cpu_seconds": (end - start) * row["cpus"] * 0.7}

    def add_machines(self) -> None:
        for site, machines in self.machines.items():
            _, rate, _ = SITES[site]
            for machine in machines:
                if site in AT_HAND:
                    self.session.add(
                        Capacity(
                            site=site, name=machine.name, cpus=CPUS, memory=MEMORY, gpus=0.0, usd_per_hour=rate,
                            since=machine.since,
                        )
                    )  # fmt: skip
                    continue
                end = self.end_of(machine) + self.chance.uniform(1, 20)
                is_up = end > self.now
                drains = is_up and site == "gpu"
                ended = {} if is_up else {"ended_at": max(end, machine.last)}
                # Waiting in the queue of a batch system costs nothing.
                billed = machine.ordered + 5 if site == "cloud" else machine.since
                usd = (max(end, machine.last) - billed) / HOUR * (rate or 0.0)
                self.session.add(
                    InstanceRow(
                        token=machine.name, site=site, kind="", cpus=float(CPUS), memory=MEMORY, disk=0, gpus=0.0,
                        seconds=0.0 if site == "cloud" else 4 * HOUR, usd_per_hour=rate,
                        state=InstanceState.DRAINING if drains else InstanceState.UP if is_up else InstanceState.ENDED,
                        ordered_at=machine.ordered, launched_at=billed, ready_at=machine.since,
                        native_id=machine.native_id, node=machine.node,
                        zone="eu-central-1a" if site == "cloud" else None,
                        capacity_type=("spot" if machine.is_spot else "on-demand") if site == "cloud" else None,
                        usd_idle=None if is_up else max(0.0, usd - machine.usd),
                        idle_since=None if is_up else machine.last, **ended,
                    )
                )  # fmt: skip
                if is_up:
                    self.session.add(
                        LocationRow(
                            site=site, name=machine.name, kind=SITES[site][0], cpus=float(CPUS), memory=MEMORY, disk=0,
                            gpus=0.0, state="draining" if drains else "up", seen_at=machine.since,
                            instance_type="m7i.4xlarge" if site == "cloud" else None,
                            usd_per_cpu_hour=(rate or 0) / CPUS,
                            capacity_type="spot" if machine.is_spot and site == "cloud" else None,
                            native_id=machine.native_id, node=machine.node,
                        )
                    )  # fmt: skip
        # One that boots, and one that was bought for nothing.
        for number, state in enumerate((InstanceState.BOOTING, InstanceState.ORDERED)):
            self.session.add(
                InstanceRow(
                    token=f"Lnew{number}", site="cloud", kind="", cpus=16.0, memory=MEMORY, disk=0, gpus=0.0,
                    seconds=0.0, usd_per_hour=0.8064, state=state, ordered_at=self.now - 40, zone="eu-central-1b",
                    capacity_type="spot", launched_at=self.now - 35 if number == 0 else None,
                    native_id="i-0123456789abcdef0" if number == 0 else None,
                )
            )  # fmt: skip

    def add_sites(self) -> None:
        for position, (name, (kind, rate, limits)) in enumerate(SITES.items()):
            trouble = "ssh: connect to host old port 22: Connection timed out" if name == "old" else None
            contact = self.now - DOWN if trouble else self.now
            self.session.add(
                SiteRow(
                    name=name, kind=kind, position=position, limits=json.dumps(limits), contact_at=contact,
                    trouble=trouble,
                    paused_by="carol" if name == "gpu" else None,
                    idle_seconds=IDLE_SECONDS.get(name),
                )
            )  # fmt: skip
            for location in AT_HAND.get(name, (name,)):
                silent = location == SILENT
                self.session.add(
                    LocationRow(
                        site=name, name=location, kind=kind, cpus=float(CPUS), memory=MEMORY, disk=0, gpus=0.0,
                        state="unreachable" if silent else "up", seen_at=self.now - SILENT_FOR if silent else self.now,
                        note="no route to host" if silent else None,
                        usd_per_cpu_hour=None if rate is None else rate / CPUS,
                        nodes=40 if kind == "slurm" else None, idle_nodes=3 if kind == "slurm" else None,
                    )
                )  # fmt: skip

    def add_waiting(self) -> None:
        """Jobs that wait, of the live runs of their Dags."""
        whole = sum(each[0] for each in WAITS)
        live = {job["dag_id"]: job["run_id"] for job in self.jobs}
        began = {dag_id: min(job["queued_at"] for job in self.jobs if job["run_id"] == live[dag_id]) for dag_id in live}
        instances: list[dict[str, Any]] = []
        indexes: Counter[str] = Counter()
        for many, dag_id, task_id, site, reason in WAITS:
            plan = next(each for each in PLANS if each.dag_id == dag_id)
            task = next(each for each in plan.tasks if each.name == task_id)
            # Airflow's row of another job of the task.
            its = TaskInstance.dag_id == dag_id, TaskInstance.run_id == live[dag_id], TaskInstance.task_id == task_id
            columns = TaskInstance.__table__.columns
            of_airflow = self.session.execute(select(*columns).where(*its).limit(1)).mappings().one()
            for number in range(max(1, many * self.waiting // whole)):
                queued = self.chance.uniform(began[dag_id], self.now - 1)
                row = self.job(plan, task, live[dag_id], 1000 + indexes[dag_id], 1, queued)
                indexes[dag_id] += 1
                is_submitted = isinstance(reason, Reason) and reason.code == "batch_queue"
                if is_submitted:
                    self.natives += 1
                    row |= {"state": State.PLACED, "site": site, "location": site, "native_id": str(self.natives)}
                    row |= {"placed_at": row["queued_at"] + 2, "submitted_at": row["queued_at"] + 4}
                    if number % 2:
                        row["native_start"] = self.now + 600 + number * 20
                elif site == "cloud" and number < 200:
                    row["planned_start"] = self.now + 120 + number * 15
                row["site_hint"] = site
                self.jobs.append(row | reason_values(self.reason_now(reason).at(site)))
                own = {"id": uuid.uuid4(), "map_index": row["map_index"], "state": TaskInstanceState.QUEUED}
                at = datetime.fromtimestamp(queued, timezone.utc)
                own |= {"try_number": 1, "queued_dttm": at, "start_date": None, "end_date": None, "duration": None}
                instances.append({**of_airflow, **own, "external_executor_id": row["token"]})
        for start in range(0, len(instances), 500):
            self.session.execute(insert(TaskInstance.__table__), instances[start : start + 500])

    def reason_now(self, reason: Reason | str) -> Reason:
        """A reason to wait; by its name one that holds until a time from now on."""
        if isinstance(reason, Reason):
            return reason
        if reason == "task_jobs":
            busy = [job for job in self.jobs if job["task_id"] == "simulate" and job["state"] == State.RUNNING]
            return because("task_jobs", most=max(1, len(busy)), task="simulate")
        if reason == "no_capacity":
            return because("no_capacity", type="m7i.4xlarge", until=self.now + 240)
        lab = self.session.get_one(BudgetRow, "lab")
        values = {"budget": "lab", "spent": round(lab.spent, 2), "most": lab.most, "until": lab.until}
        return because("budget_spent_cpu_hours", **values)

    def job(self, plan: DagPlan, task: TaskPlan, run_id: str, index: int, number: int, queued: float) -> dict[str, Any]:
        """The columns that all jobs have; each insert has the same ones."""
        empty = dict.fromkeys(
            ("site", "location", "node", "lane", "placed_at", "started_at", "ended_at", "cpu_seconds", "peak_memory",
             "cause", "reason", "reason_code", "reason_limit", "usd", "native_id", "submitted_at", "exit_code",
             "native_start", "planned_start", "said_at", "said_since", "said_until", "said_source", "site_hint")
        )  # fmt: skip
        token = str(uuid.UUID(int=self.chance.getrandbits(128)))
        return {
            **empty, "token": token, "kind": "ExecuteTask", "subject": token, "workload": "{}",
            "cpus": float(task.cpus), "memory": task.memory, "disk": 0, "gpus": 0.0, "priority": 1, "unreported": False,
            "news": 0, "dag_id": plan.dag_id, "run_id": run_id, "task_id": task.name,
            "map_index": index, "try_number": number,
            "queued_at": queued, "changed_at": queued, "state": State.QUEUED, "time_limit": 3600, "owner": None,
            "dag_owner": plan.owner, "team": plan.team,
        }  # fmt: skip

    # -- what is kept for long

    def add_year(self) -> None:
        """What is kept of jobs that have been forgotten: a year, in which the bill has grown."""
        today = int(self.now // DAY)
        for age in range(self.days + 1, 365):
            for plan in PLANS:
                rate = SITES[plan.site][1]
                for task in plan.tasks:
                    cpu_seconds = plan.runs * max(1, task.mapped) * task.seconds * task.cpus * (1.3 - age / 365)
                    usd = None if rate is None else cpu_seconds / HOUR / CPUS * rate
                    parts = {} if usd is None else {
                        "usd": usd, "usd_used": usd * 0.7, "usd_idle": usd * 2.0, "usd_boot": usd * 0.05
                    }  # fmt: skip
                    self.session.add(
                        UsageRow(
                            dag_id=plan.dag_id, task_id=task.name, day=today - age, size_class=-1, site=plan.site,
                            jobs=plan.runs * max(1, task.mapped), failed=0, cpu_seconds=cpu_seconds,
                            cpu_seconds_used=cpu_seconds * 0.7, cpu_seconds_unused=cpu_seconds * 0.3,
                            cpu_seconds_idle=cpu_seconds * 2.0, cpu_seconds_boot=cpu_seconds * 0.05,
                            dag_owner=plan.owner, usage=Usage().dump(), **parts,
                        )
                    )  # fmt: skip

    def add_budgets(self) -> None:
        """Budgets of which as much is spent as the jobs of their period have cost."""
        for name, who, unit, per, part in BUDGETS:
            budget = PeriodBudget(name, who, 1.0, Unit(unit), per)
            since, until = budget.period(self.now)
            spent = per_hour = 0.0
            for job in self.jobs:
                its = Tenant.from_columns(job["team"], job["dag_id"], job["dag_owner"], None)
                end = job["ended_at"] or self.now
                if job["started_at"] is None or end < since or not who.meets(its):
                    continue
                rate = job["cpus"] if unit == "cpu-hours" else job["cpus"] / CPUS * (SITES[job["site"]][1] or 0.0)
                spent += rate * (end - max(since, job["started_at"])) / HOUR
                per_hour += rate if job["state"] == State.RUNNING else 0.0
            # Before the first job of a period, nothing says how large a budget is.
            most = float(f"{max(spent, 1.0) / part:.2g}") if part < 1 else math.floor(max(spent, 2.0))
            self.session.add(
                BudgetRow(
                    name=name, who=str(who), most=most, unit=unit, per=per, spent=spent, per_hour=per_hour,
                    since=since, until=until, at=self.now,
                )
            )  # fmt: skip
        self.session.flush()

    def add_work_of_budgets(self) -> None:
        """How long the jobs of each budget last, as the controller stores it."""
        work = work_left(self.session, self.now)
        for name, who, *_ in BUDGETS:
            its = [each for each in work if who.meets(each.tenant)]
            hours = hours_of_work(sum(each.cpu_hours for each in its), sum(each.cpus for each in its))
            self.session.get_one(BudgetRow, name).hours_of_work = hours

    def add_shares(self) -> None:
        """Three shares, with what their jobs use now; one has cpus of its own at a site, which it exceeds."""
        genomics = Share("genomics", Who(owner="genomics"), 2, (Kept("hpc", {"cpus": 48.0, "memory": 384.0 * GIB}),))
        ml = Share("ml", Who(owner="ml"), 1, (Kept(None, {"cpus": 16.0}),), lends=False)
        shares = Shares((genomics, ml, Share("data", Who(owner="data"), 1)))
        used: dict[str, dict[str, ShareAmounts]] = {share.name: {} for share in shares.table}
        for job in self.jobs:
            if job["state"] == State.RUNNING:
                its = used[job["dag_owner"]]
                before = its.get(job["site"], ShareAmounts(0.0, 0.0))
                its[job["site"]] = ShareAmounts(before.cpus + job["cpus"], before.memory + job["memory"])
        machines = sum(len(self.up(site)) for site in self.machines)
        lately = {"genomics": 0.41, "ml": 0.06, "data": 0.2}
        standing = Standing(ShareAmounts(machines * CPUS, float(machines * MEMORY)), used, lately)
        save_standings(self.session, share_standings(shares, standing), self.now)


def fill(session: Session, now: float, waiting: int = 5000, days: int = DAYS, logs: Path | None = None) -> None:
    """Fill empty tables with a full house.

    :param now: epoch seconds
    :param waiting: jobs
    :param days: of history
    :param logs: see :class:`House`
    """
    House(session, now, waiting, days, logs).fill()


def renew(session: Session, now: float) -> None:
    """Renew what a running controller keeps current: its lease, and when it last saw or counted something."""
    take_lease(session, "controller", "scheduler-1", 1, True, LEASE, None)
    session.execute(update(SiteRow).where(SiteRow.trouble.is_(None)).values(contact_at=now))
    session.execute(update(ShareStandingRow).values(at=now))
    spent = BudgetRow.spent + BudgetRow.per_hour * (now - BudgetRow.at) / HOUR
    session.execute(update(BudgetRow).values(spent=spent, at=now))
    session.commit()


@contextlib.contextmanager
def renewed(engine: Engine) -> Iterator[None]:
    """Renew a house as long as it is served: nothing runs in it that would."""
    ended = threading.Event()

    def turn() -> None:
        while not ended.wait(LEASE / 4):
            with Session(engine) as session:
                renew(session, time.time())

    renewing = threading.Thread(target=turn)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()


@contextlib.contextmanager
def full_house(home: Path, waiting: int = 5000, days: int = DAYS) -> Iterator[Airflow]:
    """An API server alone on a full house, where people log in (:data:`LOGINS`).

    :param home: its folder, which is empty
    """
    airflow = Airflow(home, components=["api-server"], config=logins(home), preloaded=True)
    try:
        airflow.migrate()
        engine = open_sqlite(home / "airflow.db")
        with Session(engine) as session:
            fill(session, time.time(), waiting, days, home / "logs")
        engine.dispose()
        airflow.start("api-server")
        with renewed(engine):
            airflow.wait_until_healthy()
            yield airflow
        engine.dispose()
    finally:
        airflow.stop()


def logins(home: Path) -> dict[str, object]:
    """The options by which people log in, with passwords in a file in that folder."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "passwords.json").write_text(json.dumps({user: user for user in LOGINS}))
    return {
        "core.simple_auth_manager_all_admins": False,
        "core.simple_auth_manager_users": ",".join(
            f"{user}:{'admin' if sees == 'all' else 'viewer'}" for user, sees in LOGINS.items()
        ),
        "core.simple_auth_manager_passwords_file": home / "passwords.json",
    }
