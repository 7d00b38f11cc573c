"""What shares add to a tick, and how fair a day is:

    python -m benchmarks.shares tick [--jobs 10000] [--shares 50] [--locations 100]
    python -m benchmarks.shares day [--tasks 1500]
    python -m benchmarks.shares live [--tasks 500] [--database sqlite postgresql]

``tick``: the CPU time to read the waiting jobs from a SQLite database and to place them, alternately with and without
shares. ``day``: a day of four teams that compete for the same machines, with ``--tasks`` tasks each; it prints Jain's
index among teams of equal weight, and the utilization with and without shares. There are as many machines as the tasks
keep busy. ``live``: a real Airflow with two teams and three Dags of ``--tasks`` tasks each on 8 cpus; it prints the
part of each team in the tasks in the order in which they finish.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows  # noqa: F401 - it has tables
from lading.executors.controller.shares import Budgets, FairShares
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, queue, run_rows  # noqa: F401 - each has tables
from lading.plugin.host import AirflowHost
from lading.plugin.offline.simulation.contention import ContendingJob, contend
from lading.scheduling.accounting.share_table import Share, Shares
from lading.scheduling.accounting.who import Who
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import assign
from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.postgres import Postgres
from tests.services.processes import wait_until

ROUNDS = 15
HOUR = 3600.0
JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "try_number": 1, "news": 0, "map_index": -1, "priority": 1,
    "unreported": False, "state": State.QUEUED, "disk": 0, "gpus": 0.0, "run_id": "run", "task_id": "task",
    "changed_at": 1.0,
}  # fmt: skip

LIVE_SITES = """
[sites.local]
kind = "local"
cpus = 8
memory = "16 GiB"
reserve_cpus = 0

[[shares]]
team = "genes"
weight = 2

[[shares]]
team = "loads"
"""
LIVE_DAGS = {"genes": ("genes_a", "genes_b"), "loads": ("loads_a",), "gates": ("gate",)}
# All tasks wait before the first of them starts: until then one has the whole machine.
LIVE_DAG = """
import time
from pathlib import Path
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None, default_args={"executor_config": resources(cpus=1, memory=64)})
def NAME():
    if "NAME" == "gate":
        @task(executor_config=resources(cpus=8, memory=64))
        def hold():
            while not Path("OPEN").exists():
                time.sleep(0.1)
        hold()
    else:
        @task
        def one(number):
            return None
        one.expand(number=list(range(TASKS)))

NAME()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tick", "day", "live"))
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--shares", type=int, default=50)
    parser.add_argument("--locations", type=int, default=100)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--database", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    options = parser.parse_args()
    if options.what == "tick":
        for is_mixed in (False, True):
            tick(options.jobs, options.shares, options.locations, is_mixed=is_mixed)
    elif options.what == "day":
        day(options.tasks or 1500)
    else:
        processes.end_in_order()
        for kind in options.database:
            with Postgres() if kind == "postgresql" else nullcontext() as server:
                live(kind, server and server.create_database("shares"), options.tasks or 500)


def tick(jobs: int, number: int, locations: int, *, is_mixed: bool) -> None:
    """Compare a tick with shares and one without.

    :param is_mixed: whether the jobs of all shares have come mixed; else those of each share at once
    """
    there = [Location(f"machine{n}", Resources(cpus=8, memory=32768)) for n in range(locations)]
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/store.db")
        store.metadata.create_all(engine)
        rows = [
            {
                **JOB,
                "token": f"{n:08}",
                "dag_id": f"dag{n % number}",
                "team": f"team{n % number}",
                "queued_at": 1.0 + (0 if is_mixed else n % number) + n / jobs,
                "cpus": float(1 + n % 4),
                "memory": 1024 * (1 + n % 3),
            }
            for n in range(jobs)
        ]
        with Session(engine) as session:
            session.execute(insert(JobRow), rows)
            session.commit()
        settings = Settings(None, Path(folder), Resources(1, 512), "cancel", 30, 30)
        # What the imports have left costs no tick seconds of the collector, whose turn one or the other would have.
        gc.collect()
        gc.freeze()
        taken: dict[bool, list[float]] = {True: [], False: []}
        shares = FairShares(settings, {}, {}, Budgets(AirflowHost(), settings))
        shares.shares = Shares(tuple(Share(f"team{n}", Who(team=f"team{n}"), 1 + n % 3) for n in range(number)))
        for turn in range(2 * ROUNDS + 2):
            shares.is_on = is_fair = bool(turn % 2)
            time.sleep(0.5)  # a tick is one second apart from the next
            with Session(engine) as session:
                begun = time.process_time()
                site = SiteView(name="site", locations=there, possible=there)
                shares.count([], [site], 1e6)
                waiting = queue.waiting(session, turn, fair=shares.begin(1e6))
                found = assign(waiting, [site], now=1e6, choice=Choice(1e6), bounds=shares.bounds())
                shares.learn(waiting, found, 1e6)
                taken[is_fair].append(time.process_time() - begun)
        engine.dispose()
    without, fair = (statistics.median(taken[each][1:]) for each in (False, True))
    ratios = [one / other for one, other in zip(taken[True][1:], taken[False][1:], strict=True)]
    # Which jobs come first is not found out in each tick, so the mean is another figure than the median.
    mean = sum(taken[True][1:]) / sum(taken[False][1:])
    how = "mixed" if is_mixed else "one share after the other"
    print(
        f"a tick with {jobs:,} jobs of {number} shares on {locations} locations, come {how}: {1000 * fair:.0f} ms, "
        f"without shares {1000 * without:.0f} ms: {statistics.median(ratios):.2f} times as long, all ticks together "
        f"{mean:.2f} times"
    )


def day(tasks: int) -> None:
    machines = [Resources(8, 32_000)] * max(1, round(8 * tasks / 1500))
    table = Shares(tuple(Share(name, Who(team=name)) for name in ("night", "day1", "day2", "burst")))
    for seed in range(3):
        jobs = four_teams(seed, tasks)
        fair, without = contend(jobs, machines, table), contend(jobs, machines, None)
        print(
            f"a day of four teams, seed {seed}: {len(jobs):,} jobs, contended for {fair.contended / HOUR:.1f} h, "
            f"Jain's index {fair.jain(table):.4f} (without shares {without.jain(table):.4f}), utilization "
            f"{fair.utilization:.3f} (without {without.utilization:.3f})"
        )


def four_teams(seed: int, number: int) -> list[ContendingJob]:
    """One team that computes at night, two by day, and one with a large Dag every six hours."""
    chance, jobs = random.Random(seed), []
    for team, hours in (("night", (0, 8)), ("day1", (7, 19)), ("day2", (8, 20)), ("burst", (0, 24))):
        for n in range(number):
            hour = chance.uniform(*hours) if team != "burst" else 6.0 * (n * 4 // number)
            size = Resources(chance.choice([1, 1, 2, 4]), chance.choice([1000, 4000, 8000]))
            jobs.append(ContendingJob(f"{team}{n:05}", team, size, hour * HOUR, chance.uniform(60, 1800)))
    return jobs


def live(kind: str, database: str | None, tasks: int) -> None:
    """Say in which order the tasks of two teams end that all wait at once for a machine of 8 cpus.

    :param database: the URL of one that is empty; None: SQLite in the home folder
    :param tasks: of each of the three Dags
    """
    with tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder:
        home = Path(folder)
        (home / "sites.toml").write_text(LIVE_SITES)
        bundles = []
        for team, dags in LIVE_DAGS.items():
            its_own = home / "dags" / team
            its_own.mkdir(parents=True)
            for dag in dags:
                text = LIVE_DAG.replace("NAME", dag).replace("TASKS", str(tasks)).replace("OPEN", str(home / "open"))
                (its_own / f"{dag}.py").write_text(text)
            bundles.append(
                {
                    "name": team,
                    "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                    "kwargs": {"path": str(its_own), "refresh_interval": 1},
                    "team_name": team,
                }
            )
        teams = ";".join(f"{team}=lading.executors.LadingExecutor" for team in LIVE_DAGS)
        config = {
            "core.multi_team": True,
            "core.parallelism": 10 * tasks,
            "core.max_active_tasks_per_dag": 10 * tasks,
            "core.max_map_length": 10 * tasks,
            "core.default_pool_task_slot_count": 10 * tasks,  # else all but 128 stay with Airflow, in its order
            "scheduler.max_tis_per_query": 512,
            "dag_processor.dag_bundle_config_list": json.dumps(bundles),
            "lading.sites_file": home / "sites.toml",
        }
        service = Airflow(
            home,
            executor=f"lading.executors.LadingExecutor;{teams}",
            database=database,
            config=config,
            components=("api-server", "scheduler", "dag-processor"),
        )
        service.migrate()
        for team in LIVE_DAGS:
            service.cli("teams", "create", team)
        with service:
            names = [dag for dags in LIVE_DAGS.values() for dag in dags if dag != "gate"]
            for dag in ("gate", *names):
                service.wait_for_dag(dag)
            service.wait_for_task("gate", service.trigger("gate"), "hold", "running", timeout=300)
            runs = {dag: service.trigger(dag) for dag in names}
            # All of them are given to executors while one task has the whole machine.
            assert wait_until(lambda: len(_jobs(service, tasks)) == 3 * tasks + 1, 1800, 5), service.log_tails()
            begun = time.monotonic()
            (home / "open").touch()
            for dag, run in runs.items():
                state = service.wait_for_run(dag, run, 3600)
                assert state == "success", (dag, state)
            seconds = time.monotonic() - begun
            rows = _jobs(service, tasks)
    ended = [row for row in sorted(rows, key=lambda row: float(row["ended_at"])) if row["dag_id"] != "gate"]
    by_dag = Counter(row["dag_id"] for row in ended)
    assert by_dag == dict.fromkeys(names, tasks), by_dag
    print(f"{kind}: {len(ended):,} tasks in {seconds:.0f} s; of those that ended one after the other, of team genes")
    size = max(1, len(ended) // 10)
    for start in range(0, len(ended), size):
        some = [row["team"] for row in ended[start : start + size]]
        print(f"  {start + 1:5}-{start + len(some):<5} {100 * some.count('genes') / len(some):.1f} % (weight: 66.7 %)")
    parts = [
        statistics.fmean(row["team"] == "genes" for row in ended[start : start + 60])
        for start in range(0, max(1, len(ended) - 60), 60)
    ]
    print(
        f"  of sixty, {100 * min(parts):.0f} to {100 * max(parts):.0f} %, "
        f"the median {100 * statistics.median(parts):.1f} %"
    )


def _jobs(service: Airflow, tasks: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(service.lading("jobs", "--limit", str(4 * tasks), "-o", "json"))
    return found


if __name__ == "__main__":
    main()
