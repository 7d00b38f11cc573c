"""A full house for the page: six sites, twelve Dags with runs of forty days, their machines, what fails and what waits.

All is made up, but as Airflow and the engine write it, so that each sub-page and each tab has something to show:
``python -m benchmarks.page --keep`` starts an Airflow on it, to be walked through.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.team import Team
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.timetables.base import DataInterval
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import insert
from sqlalchemy.orm import Session

from lading.executors.store import Capacity, JobRow, LocationRow, SiteRow, State, reason_values, take_lease
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.requests import RequestKind, ask
from lading.executors.store.share_rows import BudgetRow, save_standings
from lading.executors.store.tables import UsageRow
from lading.scheduling.insight.usage import Usage
from lading.scheduling.reasons import Reason, because
from lading.scheduling.resources import Resources
from lading.scheduling.shares.table import Kept, Share, ShareAmounts, Shares
from lading.scheduling.shares.usage import Standing, share_standings
from lading.scheduling.shares.who import Who
from tests.services.airflow import Airflow
from tests.services.sqlite import open_sqlite

# Who may log in, with the name as the password, and what they see.
LOGINS = {"admin": "all", "viewer": "one Dag"}
DAYS, DAY, HOUR = 40, 86400.0, 3600.0
TEAM = "genomics"
# What each user may read who may read any Dag; the others are of a team.
EVERYBODYS = "weather"
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
    "hpc": ("slurm", 0.8, {"max_allocations": "8", "queue": "batch", "max_submitted": "200"}),
    "cloud": ("ec2", 0.8064, {"max_instances": "10", "max_usd_per_hour": "10"}),
    "gpu": ("slurm", 2.5, {"max_allocations": "2", "queue": "gpu"}),
    "old": ("sge", 0.4, {"max_jobs": "100"}),
}
AT_HAND = {"local": ("host",), "lab": ("microscope1", "microscope2", "microscope3")}
# How many of 5,000 wait, of which task and at which site, and why.
WAITS: Sequence[tuple[int, str, str, str, Reason | None]] = (
    (1800, "genomes", "align", "hpc", because("max_allocations", used=8, most=8)),
    (700, "genomes", "sort", "hpc", because("max_allocations", used=8, most=8)),
    (420, "weather", "simulate", "hpc", because("batch_queue", queue="batch", text="(Priority)")),
    (300, "weather", "simulate", "hpc", because("task_jobs", most=6, task="simulate")),
    (900, "backfill_events", "replay", "cloud", because("site_instances", used=10, most=10)),
    (220, "etl_orders", "transform", "cloud", because("site_instances", used=10, most=10)),
    (90, "train_recommender", "features", "cloud",
     because("max_usd_per_hour", type="m7i.4xlarge", price=0.8064, used=9.6, most=10)),
    (60, "etl_customers", "transform", "cloud", because("no_capacity", type="m7i.4xlarge", until=2_000_000_000.0)),
    (140, "microscopy", "stitch", "lab", because("machine_full", needs=Resources(8.0, 30 * GIB), taken=["cpus"])),
    (150, "legacy_billing", "collect", "old",
     because("unreachable", text="ssh: connect to host old port 22: Connection timed out")),
    (100, "תחזית_מכירות", "fit", "gpu", because("paused", site="gpu", by="carol")),
    (70, "quarterly_regulatory_reporting_for_all_european_subsidiaries", "consolidate", "local",
     because("machine_full", needs=Resources(1.0, 2048), taken=["memory"])),
    (50, "lab_backup", "copy", "lab",
     because("budget_spent", budget="lab", spent=200.4, most=200, until=2_000_000_000.0)),
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
    """

    def __init__(self, session: Session, now: float, waiting: int, days: int = DAYS) -> None:
        self.session, self.now, self.waiting, self.days = session, now, waiting, days
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
            if began < self.now - 3 * HOUR and (plan.site != "old" or began < self.now - 0.6 * DAY):
                self.run(plan, began, self.now)
        for plan in PLANS:
            self.run(plan, self.now - self.chance.uniform(1200, 2400), self.now, is_live=True)
        self.add_sites()
        self.add_machines()
        self.add_waiting()
        for start in range(0, len(self.jobs), 500):
            self.session.execute(insert(JobRow.__table__), self.jobs[start : start + 500])
        self.add_year()
        self.add_budgets()
        self.add_shares()
        self.session.flush()
        ask(self.session, RequestKind.PAUSE, "gpu", "carol")
        take_lease(self.session, "controller", "scheduler-1", 1, True, 30 * DAY, None)
        self.session.commit()

    # -- Airflow's own

    def add_dags(self) -> None:
        theirs = DagBundleModel(name="theirs")
        theirs.teams.append(Team(name=TEAM))
        self.session.add_all([DagBundleModel(name="everybody's"), theirs])
        self.session.flush()
        for plan in PLANS:
            bundle = "everybody's" if plan.dag_id == EVERYBODYS else "theirs"
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
        last = {(job["task_id"], job["map_index"]): job for job in sorted(jobs, key=lambda job: job["try_number"])}
        has_failed = any(job["state"] == State.FAILED for job in last.values())
        state = DagRunState.RUNNING if is_live else DagRunState.FAILED if has_failed else DagRunState.SUCCESS
        run = serialized.dag.create_dagrun(
            run_id=run_id, logical_date=at, data_interval=DataInterval(at, at), run_after=at,  # type: ignore[arg-type]
            run_type=DagRunType.MANUAL, triggered_by=DagRunTriggeredByType.UI, state=state, start_date=at,
            session=self.session,
        )  # fmt: skip
        if not is_live:
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
            instance.state, instance.try_number = states[job["state"]], job["try_number"]
            for name, key in (("start_date", "started_at"), ("end_date", "ended_at"), ("queued_dttm", "queued_at")):
                if job[key] is not None:
                    setattr(instance, name, datetime.fromtimestamp(job[key], timezone.utc))
        self.session.flush()

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
            self.add_run(plan, run_id, began, jobs, is_live)

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
        if (plan.dag_id, task.name) == ("genomes", "align") and chance < 0.06:
            state, cause, seconds, exit_code = State.FAILED, "out_of_memory", seconds * 0.6, 137
        elif (plan.dag_id, task.name) == ("weather", "simulate") and chance < 0.05:
            state, cause, seconds = State.FAILED, "time_limit", HOUR
        elif plan.site == "cloud" and chance < 0.01:
            state, cause, seconds = State.FAILED, "preempted", seconds * 0.4
        elif chance < 0.015:
            state, cause, seconds, exit_code = State.FAILED, "error", seconds * 0.3, 1
        machine, start = self.place(plan.site, task.cpus, queued, seconds)
        if machine is not None and machine.node == "n17" and state == State.SUCCEEDED and self.chance.random() < 0.05:
            state, cause, seconds = State.FAILED, "node_failure", seconds * 0.5
        row |= {"site": plan.site, "placed_at": max(queued, start - 1), "started_at": start, "time_limit": 3600}
        if start > self.now - 1:  # it has not come to that
            row |= {"started_at": None, "placed_at": None, "site": None}
            return row | reason_values(because("machine_full", needs=Resources(task.cpus, task.memory), taken=["cpus"]))
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
            "said_until": start + self.chance.choice([200, 200, -50]),
            "said_source": self.chance.choice(["forecast", "batch_system", "past_waits"]),
        }  # fmt: skip
        return row | reason_values(reason)

    def place(self, site: str, cpus: float, queued: float, seconds: float) -> tuple[Machine | None, float]:
        """Where a job runs and when it starts: where there is room, on another machine, or where room comes first."""
        if site == "old":
            return None, queued + self.chance.uniform(20, 900)
        need = int(cpus)
        pool = self.machines.setdefault(site, [])
        alive = pool if site in AT_HAND else [m for m in pool if m.last + 900 > queued and queued - m.since < 4 * HOUR]
        best: tuple[float, int, Machine] | None = None
        for machine in alive:
            for lane in range(CPUS - need + 1):
                free = max(machine.lanes[lane : lane + need])
                if best is None or free < best[0]:
                    best = free, lane, machine
        most = int(SITES[site][2].get("max_instances" if site == "cloud" else "max_allocations", 99))
        if site not in AT_HAND and (best is None or (best[0] > queued + 120 and len(alive) < most)):
            boot = BOOT * self.chance.uniform(0.7, 1.6) if site == "cloud" else self.chance.uniform(60, 2400)
            self.natives += 1
            machine = Machine(f"L{self.chance.getrandbits(40):010x}", site, queued + boot, ordered=queued + 2)
            machine.native_id = f"i-{self.chance.getrandbits(60):017x}" if site == "cloud" else str(self.natives)
            machine.node = None if site == "cloud" else f"n{self.chance.randrange(1, 30)}"
            machine.is_spot = self.chance.random() < 0.7
            pool.append(machine)
            best = queued + boot, 0, machine
        assert best is not None
        free, lane, machine = best
        start = max(queued + self.chance.uniform(0.2, 3), free + 1, machine.since)
        for number in range(lane, lane + need):
            machine.lanes[number] = start + seconds
        self.lane = lane
        return machine, start

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
                end = machine.last + self.chance.uniform(120, 900)
                is_up = end > self.now
                end = min(end, machine.since + 5 * HOUR) if not is_up else end
                drains = is_up and self.chance.random() < 0.1
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
            contact = self.now - 0.6 * DAY if trouble else self.now + 30 * DAY  # no controller looks at it
            self.session.add(
                SiteRow(
                    name=name, kind=kind, position=position, limits=json.dumps(limits), contact_at=contact,
                    trouble=trouble,
                    paused_by="carol" if name == "gpu" else None,
                    idle_seconds={"hpc": 300.0, "gpu": 300.0, "cloud": 120.0}.get(name),
                )
            )  # fmt: skip
            for location in AT_HAND.get(name, (name,)):
                silent = location == "microscope3"
                self.session.add(
                    LocationRow(
                        site=name, name=location, kind=kind, cpus=float(CPUS), memory=MEMORY, disk=0, gpus=0.0,
                        state="unreachable" if silent else "up", seen_at=self.now - 700 if silent else self.now,
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
        for many, dag_id, task_id, site, reason in WAITS:
            plan = next(each for each in PLANS if each.dag_id == dag_id)
            task = next(each for each in plan.tasks if each.name == task_id)
            for number in range(max(1, many * self.waiting // whole)):
                queued = self.chance.uniform(began[dag_id], self.now - 1)
                row = self.job(plan, task, live[dag_id], 100 + number, 1, queued)
                is_submitted = reason is not None and reason.code == "batch_queue"
                if is_submitted:
                    self.natives += 1
                    row |= {"state": State.PLACED, "site": site, "location": site, "native_id": str(self.natives)}
                    row |= {"placed_at": row["queued_at"] + 2, "submitted_at": row["queued_at"] + 4}
                    if number % 2:
                        row["native_start"] = self.now + 600 + number * 20
                elif site == "cloud" and number < 200:
                    row["planned_start"] = self.now + 120 + number * 15
                row["site_hint"] = site
                self.jobs.append(row | reason_values(None if reason is None else reason.at(site)))

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
            "dag_owner": plan.owner, "team": None if plan.dag_id == EVERYBODYS else TEAM,
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
                        "usd": usd * 1.3, "usd_used": usd * 0.6, "usd_idle": usd * 0.25, "usd_boot": usd * 0.05
                    }  # fmt: skip
                    self.session.add(
                        UsageRow(
                            dag_id=plan.dag_id, task_id=task.name, day=today - age, size_class=-1, site=plan.site,
                            jobs=plan.runs * max(1, task.mapped), failed=0, cpu_seconds=cpu_seconds,
                            cpu_seconds_used=cpu_seconds * 0.6, cpu_seconds_unused=cpu_seconds * 0.4,
                            dag_owner=plan.owner, usage=Usage().dump(), **parts,
                        )
                    )  # fmt: skip

    def add_budgets(self) -> None:
        month = datetime.fromtimestamp(self.now, timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        ends = (month.replace(day=28) + timedelta(days=4)).replace(day=1).timestamp()
        for name, who, most, spent, per_hour in (
            ("genomics", "Dags genomes", 1500.0, 1310.5, 6.4),
            ("lab", "Dags lab_*", 200.0, 200.4, 0.0),
            ("all", "Dags *", 10_000.0, 3120.0, 15.2),
        ):
            self.session.add(
                BudgetRow(
                    name=name, who=who, most=most, unit="usd", per="month", spent=spent, per_hour=per_hour,
                    since=month.timestamp(), until=ends, at=self.now,
                )
            )  # fmt: skip

    def add_shares(self) -> None:
        """Three shares: one uses more than is kept for it, one less, and one more than its part."""
        genomics = Share("genomics", Who(owner="genomics"), 2, (Kept("hpc", {"cpus": 48.0, "memory": 96.0 * GIB}),))
        ml = Share("ml", Who(owner="ml"), 1, (Kept(None, {"cpus": 16.0}),), lends=False)
        shares = Shares((genomics, ml, Share("data", Who(owner="data"), 1)))
        used = {
            "genomics": {"hpc": ShareAmounts(96.0, 90.0 * GIB)},
            "ml": {"cloud": ShareAmounts(4.0, 16.0 * GIB)},
            "data": {"lab": ShareAmounts(17.0, 62.0 * GIB), "gpu": ShareAmounts(80.0, 32.0 * GIB)},
        }
        lately = {"genomics": 0.41, "ml": 0.06, "data": 0.2}
        standing = Standing(ShareAmounts(256.0, 1024.0 * GIB), used, lately)
        save_standings(self.session, share_standings(shares, standing), self.now)


def fill(session: Session, now: float, waiting: int = 5000, days: int = DAYS) -> None:
    """Fill empty tables with a full house.

    :param now: epoch seconds
    :param waiting: jobs
    :param days: of history
    """
    House(session, now, waiting, days).fill()


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
            fill(session, time.time(), waiting, days)
        engine.dispose()
        airflow.start("api-server")
        airflow.wait_until_healthy()
        yield airflow
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
