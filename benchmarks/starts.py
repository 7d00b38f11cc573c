"""How often jobs start within the interval that was shown first.

    python -m benchmarks.starts            both simulated scenarios
    python -m benchmarks.starts full       2,500 jobs that wait for 40 cpus
    python -m benchmarks.starts shares     two days of 600 tasks of three teams on 32 cpus; 12 are kept for one of them
    python -m benchmarks.starts shares --seeds 3
    python -m benchmarks.starts live [--minutes 15]    a real Airflow, whose three Dags share 8 cpus

In the simulated scenarios, a real controller and database drive a simulated machine on a simulated clock. Every 30
seconds the starts of waiting jobs are shown, as on the page. The interval shown first counts, so a job is left out once
it has one. Lengths are log-normal and differ by task. The first day begins without any history.

``live`` starts Airflow on PostgreSQL in a temporary folder. Its tasks sleep for 3 to 40 s; their lengths are log-normal
and differ by task. Bursts of tasks are queued during the first 60 % of ``--minutes``. Every 20 seconds,
``airflow lading jobs`` shows the starts of waiting jobs. Jobs that have not started after ``--minutes`` are left out.
"""

from __future__ import annotations

import argparse
import heapq
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session

from benchmarks.packing import machine
from lading.executors import store
from lading.executors.controller import leadership, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.starts import expected_starts
from lading.executors.store import JobRow, State
from lading.plugin.host import AirflowHost
from tests.clusters.agents import AgentSite
from tests.clusters.bought import Clock
from tests.clusters.sites import make_settings, rest
from tests.services import processes
from tests.services.airflow import FINISHED, Airflow
from tests.services.airflow_tables import create_database, in_airflows_place
from tests.services.postgres import Postgres

LOOK = 30.0
# Airflow's scheduler queues the instances of a mapped task one after the other, seconds.
APART = 0.005
HOUR = 3600.0
# Jobs that wait for longer than this are counted, seconds.
SHORT_WAIT = 10.0
SITE = '[sites.lab]\nkind = "fake"\n'
SHARES = (
    SITE
    + """
[[shares]]
team = "genomics"
weight = 2

[[shares]]
team = "imaging"
sites = {lab = {cpus = 12, memory = "300 GiB"}}

[[shares]]
team = "weather"
"""
)

LIVE_LOOK = 20.0
LIVE_CPUS = 8
LIVE_SITES = f"""
[sites.local]
kind = "local"
cpus = {LIVE_CPUS}
memory = "16 GiB"
reserve_cpus = 0

[[shares]]
dag = "genomics"
weight = 2

[[shares]]
dag = "imaging"

[[shares]]
dag = "weather"
"""
# The medians of the lengths of the tasks of each Dag, seconds.
LIVE_DAGS = {"genomics": (6, 20), "imaging": (8, 14), "weather": (10, 16)}
# Tasks of a run, half of them of each task id.
LIVE_TASKS = 28
LIVE_DAG = """
import random, time
from airflow.sdk import dag, get_current_context, task
from lading.operators import resources

@dag(schedule=None, default_args={"executor_config": resources(cpus=1, memory=64)})
def NAME():
    def sleep(median, number):
        chosen = random.Random(f"{get_current_context()['dag_run'].conf['burst']} {median} {number}")
        time.sleep(min(40, max(3, median * chosen.lognormvariate(0, 0.5))))

    for median in MEDIANS:
        task(task_id=f"median_{median}")(sleep).partial(median=median).expand(number=list(range(TASKS // 2)))

NAME()
"""


@dataclass(frozen=True)
class Burst:
    """Instances of a mapped task that are queued together.

    :param at: seconds after the day begins
    :param median: of their lengths, seconds
    """

    at: float
    team: str
    task: str
    jobs: int
    median: float
    cpus: float = 1.0


@dataclass(frozen=True)
class Scenario:
    cpus: float
    sites_file: str
    bursts: Sequence[Burst]


def full(seed: int) -> Scenario:
    """2,500 jobs of two tasks at once, which keep 40 cpus busy for about nine hours."""
    halves = [Burst(60.0 * number, "genomics", task, 125, 480.0) for number in range(10) for task in ("align", "sort")]
    return Scenario(40, SITE, halves)


def shares(seed: int) -> Scenario:
    """600 tasks of three teams on each of two days, queued in bursts over eight hours; they need about ten hours of 32
    cpus."""
    chosen, bursts = random.Random(seed), []
    tasks = [(team, task) for team in ("genomics", "imaging", "weather") for task in ("a", "b", "c", "d")]
    medians = {each: chosen.choice((180.0, 360.0, 720.0, 1440.0)) for each in tasks}
    for day in range(2):
        for team, task in tasks:
            for size in (10, 15, 25):
                at, cpus = chosen.uniform(0, 8 * HOUR), chosen.choice((1.0, 1.0, 2.0, 4.0))
                bursts.append(Burst(24 * HOUR * day + at, team, task, size, medians[team, task], cpus))
    return Scenario(32, SHARES, bursts)


SCENARIOS = {"full": full, "shares": shares}


class Machine(AgentSite):
    """Runs each job for as long as its length says.

    :ivar lengths: by token, seconds
    """

    def __init__(self, folder: Path, cpus: float, clock: Clock) -> None:
        super().__init__("lab", folder, cpus)
        self.clock, self.lengths = clock, dict[str, float]()
        self.ends: list[tuple[float, str]] = []

    def advance(self) -> None:
        while self.ends and self.ends[0][0] <= self.clock.now:
            at, token = heapq.heappop(self.ends)
            del self.jobs[token]
            self.ended.append(token)
            end = {"exit_code": 0, "cause": None, "reason": None, "peak_memory": 1, "cpu_seconds": 1.0}
            began = at - self.lengths[token]
            self.events.append({"event": "finished", "token": token, "at": at, "started_at": began, **end})
            self._start()

    @property
    def now(self) -> float:
        return self.clock.now

    def _start(self) -> None:
        before = set(self.jobs)
        super()._start()
        for token in self.jobs.keys() - before:
            heapq.heappush(self.ends, (self.clock.now + self.lengths[token], token))


class Day:
    """A scenario under a real controller, until its last job has ended."""

    def __init__(self, engine: Engine, scenario: Scenario, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.engine, self.bursts = engine, sorted(scenario.bursts, key=lambda burst: burst.at)
        self.clock, self.random = Clock(), random.Random(seed)
        patch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
        patch.setattr(time, "time", self.clock)
        patch.setattr(time, "monotonic", self.clock)
        patch.setattr(leadership, "seconds_ahead", lambda *_: 0.0)
        self.site = Machine(folder, scenario.cpus, self.clock)
        (folder / "sites.toml").write_text(scenario.sites_file)
        options = make_settings(folder, sites_file=folder / "sites.toml")
        self.controller = Controller(
            AirflowHost(), {"lab": self.site}, lambda *_: "", options, True, lambda changes: None
        )
        self.runs, self.begin = 0, self.clock.now
        self.widths: dict[str, tuple[float, float]] = {}

    def queue(self, burst: Burst) -> None:
        self.runs += 1
        whose = {"dag_id": burst.team, "run_id": f"r{self.runs}", "task_id": burst.task, "team": burst.team}
        what = {"kind": "Test", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 1}
        amounts = {"cpus": burst.cpus, "memory": 512, "disk": 0, "gpus": 0.0, "try_number": 1}
        with Session(self.engine) as session:
            for number in range(burst.jobs):
                token = f"r{self.runs}-{number}"
                self.site.lengths[token] = burst.median * self.random.lognormvariate(0, 0.5)
                names = {"token": token, "map_index": number, "queued_at": self.clock.now + number * APART}
                store.add_job(session, **names, **whose, **what, **amounts)
            session.commit()

    def look(self) -> None:
        """Look at what is expected of all waiting jobs for which nothing was shown."""
        unsaid = JobRow.state.in_(expected_starts.WAITING), JobRow.said_at.is_(None)
        with Session(self.engine) as session:
            rows = session.execute(select(*expected_starts.COLUMNS).where(*unsaid)).all()
            expected_starts.show_starts(session, rows, self.clock.now)
            session.commit()

    def tick(self) -> None:
        """Let the controller tick until it has nothing more to do at this moment."""
        for _ in range(2):
            self.controller.threads.request_observations()
            rest(self.controller.threads)
            self.controller.tick()
            rest(self.controller.threads)

    def run(self) -> None:
        begin, next_look, coming = self.begin, self.clock.now, [*self.bursts]
        jobs = sum(burst.jobs for burst in coming)
        while len(self.site.ended) < jobs:
            while coming and begin + coming[0].at <= self.clock.now:
                self.queue(coming.pop(0))
            self.site.advance()
            self.tick()
            if next_look <= self.clock.now:
                self.look()
                next_look = self.clock.now + LOOK
            events = [next_look, *(end for end, _ in self.site.ends[:1]), *(begin + burst.at for burst in coming[:1])]
            self.clock.now = max(self.clock.now + 0.001, min(events))

    def close(self) -> None:
        self.controller.site_plans.close()
        self.controller.threads.end()


def report(engine: Engine, name: str, begin: float, took: float) -> None:
    """Print how many began within their interval, and how wide these were.

    :param begin: when the first day began, epoch seconds
    """
    columns = (
        JobRow.dag_id, JobRow.said_source, JobRow.said_at, JobRow.said_since, JobRow.said_until, JobRow.queued_at,
        JobRow.started_at,
    )  # fmt: skip
    with Session(engine) as session:
        jobs: Sequence[Any] = session.execute(select(*columns).where(JobRow.started_at.is_not(None))).all()
    rows = [job for job in jobs if job.said_at is not None]
    waited = sum(job.started_at - job.queued_at > SHORT_WAIT for job in jobs)
    groups: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        groups["all"].append(row)
        groups[f"on day {1 + int((row.queued_at - begin) // (24 * HOUR))}"].append(row)
        groups[row.said_source].append(row)
        groups[f"of {row.dag_id}"].append(row)
    print(f"{name}: {len(jobs)} jobs, {waited} of which waited for more than {SHORT_WAIT:.0f} s, in {took:.0f} s")
    for group, its in sorted(groups.items()):
        within = sum(row.said_since <= row.started_at <= row.said_until for row in its)
        early = sum(row.started_at < row.said_since for row in its)
        narrow = sum(
            row.said_until - row.said_since <= 61
            or row.said_until - row.said_at <= 3.01 * (row.said_since - row.said_at)
            for row in its
        )
        wait = statistics.median(row.started_at - row.said_at for row in its)
        print(
            f"  {group:14}{len(its):6} shown {100 * within / len(its):6.1f} % within ({early} earlier, "
            f"{len(its) - within - early} later) {100 * narrow / len(its):6.1f} % narrow, median wait {wait:.0f} s"
        )
    sys.stdout.flush()


def measure(name: str, seed: int) -> None:
    really, began = time.perf_counter, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        create_database(file := Path(folder, "airflow.db"))
        with in_airflows_place(file, patch) as engine:
            day = Day(engine, SCENARIOS[name](seed), seed, Path(folder), patch)
            day.run()
            day.close()
            report(engine, f"{name} (seed {seed})", day.begin, really() - began)


def live(minutes: float, seed: int) -> None:
    """Let three Dags share a real machine, and report on its jobs."""
    chosen, coming = random.Random(seed), [(0.0, dag_id) for dag_id in LIVE_DAGS]
    while (at := coming[-1][0] + chosen.uniform(20.0, 70.0)) < 0.6 * 60 * minutes:
        coming.append((at, chosen.choice([*LIVE_DAGS])))
    with Postgres() as server, tempfile.TemporaryDirectory(prefix="lading-benchmark-") as folder:
        (sites := Path(folder, "sites.toml")).write_text(LIVE_SITES)
        options = ("core.parallelism", "core.default_pool_task_slot_count", "scheduler.max_tis_per_query")
        config = {"lading.sites_file": sites, **dict.fromkeys(options, 1000)}
        components, database = ("api-server", "scheduler", "dag-processor"), server.create_database("starts")
        with Airflow(Path(folder), database=database, config=config, components=components) as service:
            for dag_id, medians in LIVE_DAGS.items():
                source = LIVE_DAG.replace("NAME", dag_id).replace("MEDIANS", str(medians))
                service.add_dag(dag_id, source.replace("TASKS", str(LIVE_TASKS)))
            print(f"load {os.getloadavg()[0]:.1f} at the beginning", flush=True)
            begin, next_look, runs = time.time(), 0.0, list[tuple[str, str]]()
            while (passed := time.time() - begin) < 60 * minutes and (coming or runs):
                while coming and coming[0][0] <= passed:
                    dag_id = coming.pop(0)[1]
                    runs.append((dag_id, service.trigger(dag_id, {"burst": len(coming)})))
                if next_look <= passed:
                    waiting = [state.value for state in expected_starts.WAITING]
                    service.lading("jobs", "--limit", "1000", "--state", *waiting)
                    runs = [run for run in runs if service.run_state(*run) not in FINISHED]
                    next_look = passed + LIVE_LOOK
                time.sleep(1)
            print(f"load {os.getloadavg()[0]:.1f} at the end")
        engine = create_engine(database)
        report(engine, f"live (seed {seed})", begin, time.time() - begin)
        engine.dispose()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join((*SCENARIOS, "live"))
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {names}")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=15, help="of each live run")
    args = parser.parse_args(argv)
    for name in args.scenarios:
        if name not in SCENARIOS and name != "live":
            parser.error(f"there is no scenario {name!r}: {names}")
    if "live" in args.scenarios:
        processes.end_in_order()
    logging.disable(logging.WARNING)
    print(machine())
    for name in args.scenarios or SCENARIOS:
        for seed in range(1, args.seeds + 1):
            if name == "live":
                live(args.minutes, seed)
            else:
                measure(name, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
