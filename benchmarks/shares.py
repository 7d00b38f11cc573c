"""What shares add to a tick, and how fair a day is: python -m benchmarks.shares [JOBS [SHARES [LOCATIONS [TASKS]]]]

First the processor time of what a tick reads and decides (the jobs that wait, of a SQLite database, and where they go)
with shares and without, in turn; then a day of four teams on machines that they all want, with Jain's index among those
of equal weight, and the utilization beside what it is without shares. TASKS are those of each team, 1500 if not given;
there are as many machines as these keep busy.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.shares import Budgets, FairShares
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, queue, run_rows, share_rows  # noqa: F401 - each has tables
from lading.scheduling.location import Location
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.placement import assign
from lading.scheduling.resources import Resources
from lading.scheduling.shares.table import Share, Shares
from lading.scheduling.shares.who import Who
from lading.scheduling.simulation.contention import ContendingJob, contend

ROUNDS = 15
HOUR = 3600.0
JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "try_number": 1, "news": 0, "map_index": -1, "priority": 1,
    "unreported": False, "state": State.QUEUED, "disk": 0, "gpus": 0.0, "run_id": "run", "task_id": "task",
    "changed_at": 1.0,
}  # fmt: skip


def main() -> None:
    given = [int(each) for each in sys.argv[1:5]]
    *sizes, tasks = [*given, *[10_000, 50, 100, 1500][len(given) :]]
    for is_mixed in (False, True):
        tick(*sizes, is_mixed=is_mixed)
    day(tasks)


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
        shares = FairShares(settings, {}, {}, Budgets(settings))
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
    """Compare a day of four teams with shares and without."""
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


if __name__ == "__main__":
    main()
