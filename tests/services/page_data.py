"""Rows for the page: sites, machines, and jobs that ran, run and wait there, made up but as the engine writes them."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from lading.executors.store import Capacity, JobRow, LocationRow, SiteRow, State, reason_values, take_lease
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

DAGS = ("etl", "genomes", "report")
EVERYBODYS = "genomes"
TASKS = {"etl": ("extract", "load"), "genomes": ("align", "sort", "call"), "report": ("draw",)}
# Why jobs wait, and how many of a hundred for each; None: they have just come.
REASONS: dict[Reason | None, int] = {
    because("max_allocations", used=200, most=200): 55,
    because("batch_queue", queue="batch", text="(Priority)"): 22,
    because("machine_full", needs=Resources(4.0, 8192), taken=["cpus"]): 12,
    because("task_jobs", most=2, task="align"): 9,
    None: 2,
}
SITES = (("local", "local"), ("hpc", "slurm"), ("old", "sge"))
# For so long a site has not answered, seconds.
SILENCE = 900.0
AMOUNTS = {"memory": 64 * 1024, "gpus": 0.0}


def seed(session: Session, now: float, *, jobs: int, machines: int, waiting: int, seconds: float = 3600.0) -> None:
    """Fill empty tables.

    :param jobs: that ran within the last ``seconds``; some of them still run
    :param machines: of which one is this machine, a few are nodes of a queue, and the others allocations
    """
    add_dags(session)
    add_house(session, now, jobs, machines, waiting, seconds)


def add_house(session: Session, now: float, jobs: int, machines: int, waiting: int, seconds: float) -> None:
    """The same in Lading's own tables."""
    chance = random.Random(7)
    add_sites(session, now, machines - 1)
    take_lease(session, "controller", "host", 1, True, 86400.0, None)
    names = [f"L{number:014d}" for number in range(machines - 1)]
    session.add(Capacity(site="local", name="host", cpus=16.0, since=now - 86400, **AMOUNTS))
    for name in names:
        since = now - seconds * (1 + chance.random())
        session.add(
            InstanceRow(
                token=name, site="hpc", kind="", cpus=16.0, disk=0, seconds=14400.0, state=InstanceState.UP,
                ordered_at=since - 60, launched_at=since - 50, ready_at=since, native_id=str(chance.randrange(10**6)),
                node=f"node{chance.randrange(1, 40)}", usd_per_hour=0.8, **AMOUNTS,
            )
        )  # fmt: skip
    places = [
        ("local", "host", None),
        *(("hpc", name, None) for name in names),
        ("old", "old", "n1"),
        ("old", "old", "n2"),
    ]
    rows = [
        row
        for number in range(len(places))
        for row in lane_jobs(chance, places[number], now, seconds, jobs, len(places))
    ]
    rows += [waiting_job(chance, now) for _ in range(waiting)]
    for start in range(0, len(rows), 500):
        session.execute(insert(JobRow.__table__), rows[start : start + 500])
    session.commit()


def add_dags(session: Session) -> None:
    """One Dag that every user with access to any Dag may read, and two of a team."""
    theirs = DagBundleModel(name="theirs")
    theirs.teams.append(Team(name="team"))
    session.add_all([DagBundleModel(name="everybody's"), theirs])
    session.flush()
    for dag_id in DAGS:
        bundle = "everybody's" if dag_id == EVERYBODYS else "theirs"
        session.add(
            DagModel(dag_id=dag_id, bundle_name=bundle, fileloc=f"/{dag_id}.py", is_paused=False, is_stale=False)
        )


def add_sites(session: Session, now: float, most: int) -> None:
    """Of three sites one is down.

    :param most: allocations that a site may have
    """
    for position, (name, kind) in enumerate(SITES):
        trouble = "it has not answered for more than 10 s" if name == "old" else None
        # No controller looks at them: they are as when they were looked at last.
        contact = now - SILENCE if trouble else now + 86400
        limits = json.dumps({"max_allocations": str(most), "queue": "batch"} if name == "hpc" else {})
        session.add(
            SiteRow(name=name, kind=kind, position=position, limits=limits, contact_at=contact, trouble=trouble)
        )
        location = "host" if name == "local" else name
        rate = None if name == "local" else 0.05
        session.add(
            LocationRow(
                site=name, name=location, kind=kind, cpus=16.0, disk=0, state="up", seen_at=now, usd_per_cpu_hour=rate,
                **AMOUNTS,
            )
        )  # fmt: skip


def lane_jobs(
    chance: random.Random, place: tuple[str, str, str | None], now: float, seconds: float, jobs: int, places: int
) -> list[dict[str, Any]]:
    """The jobs of one machine, lane by lane."""
    site, location, node = place
    lanes, lane = [], 0.0
    while lane < 16:
        cpus = chance.choice([1.0, 1.0, 2.0, 4.0])
        lanes.append((lane, min(cpus, 16 - lane)))
        lane += cpus
    each = max(1, jobs // places // len(lanes))
    found = []
    for lane, cpus in lanes:
        lengths = [chance.uniform(0.3, 2.0) for _ in range(each)]
        unit, began = seconds / sum(lengths), now - seconds
        for number, length in enumerate(lengths):
            last = number == each - 1 and chance.random() < 0.95
            share = chance.choice([0.99, 0.99, 0.9])
            if site != "old" or began < now - SILENCE:  # what it has begun since is unknown
                found.append(ran(chance, site, location, node, lane, cpus, began, length * unit * share, now, last))
            began += length * unit
    return found


def ran(
    chance: random.Random, site: str, location: str, node: str | None, lane: float, cpus: float, began: float,
    seconds: float, now: float, is_running: bool,
) -> dict[str, Any]:  # fmt: skip
    row = job(chance, began - chance.uniform(1, 120))
    state = State.RUNNING if is_running else State.FAILED if chance.random() < 0.04 else State.SUCCEEDED
    row |= {"site": site, "location": location, "node": node, "lane": lane, "cpus": cpus, "state": state}
    row |= {"placed_at": began - 0.5, "started_at": began}
    if not is_running:
        usd = None if site == "local" else seconds / 3600 * cpus * 0.05
        row |= {
            "ended_at": min(began + seconds, now),
            "cpu_seconds": seconds * cpus * chance.uniform(0.1, 1),
            "usd": usd,
        }
        row |= {"peak_memory": chance.randrange(100, 2000), "cause": "error" if state == State.FAILED else None}
        row["changed_at"] = row["ended_at"]
    return row


def go_on(session: Session, chance: random.Random, now: float, jobs: int) -> None:
    """Let some of the jobs that run end, those that began first, and begin another one in the place of each."""
    running = select(JobRow).where(JobRow.state == State.RUNNING, JobRow.site != "old")
    begun = []
    for row in session.scalars(running.order_by(JobRow.started_at, JobRow.token).limit(jobs)):
        row.state, row.ended_at, row.changed_at = State.SUCCEEDED, now, now
        place = {name: getattr(row, name) for name in ("site", "location", "node", "lane", "cpus")}
        begun.append(job(chance, now - 1) | place | {"state": State.RUNNING, "placed_at": now, "started_at": now})
    session.execute(insert(JobRow.__table__), [row | {"changed_at": now} for row in begun])
    session.commit()


def waiting_job(chance: random.Random, now: float) -> dict[str, Any]:
    [reason] = chance.choices(list(REASONS), list(REASONS.values()))
    row = job(chance, now - chance.uniform(1, 4000 if reason else 5))
    return row | {"state": State.QUEUED, "cpus": 4.0, **reason_values(reason)}


def job(chance: random.Random, queued_at: float) -> dict[str, Any]:
    """The columns that all jobs have; each insert has the same ones."""
    dag_id = chance.choice(DAGS)
    empty = dict.fromkeys(
        ("site", "location", "node", "lane", "placed_at", "started_at", "ended_at", "cpu_seconds", "peak_memory",
         "cause", "reason", "reason_code", "reason_limit", "usd")
    )  # fmt: skip
    token = str(uuid.UUID(int=chance.getrandbits(128)))
    return {
        **empty, "token": token, "kind": "ExecuteTask", "subject": token, "workload": "{}", "memory": 2048, "disk": 0,
        "gpus": 0.0, "priority": 1, "unreported": False, "news": 0, "dag_id": dag_id, "run_id": "scheduled__1",
        "task_id": chance.choice(TASKS[dag_id]), "map_index": chance.randrange(200), "try_number": 1,
        "queued_at": queued_at, "changed_at": queued_at, "state": State.QUEUED, "cpus": 1.0,
    }  # fmt: skip
