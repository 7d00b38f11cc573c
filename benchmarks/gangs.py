"""What gangs cost the controller: ticks with 200 gangs of 8 on 100 locations, in milliseconds of CPU.

    python -m benchmarks.gangs [--gangs 200] [--size 8] [--locations 100] [--runs 15]

The store is SQLite in a temporary folder, the sites answer at once, and Airflow is not involved.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from benchmarks.executor import machine
from lading.executors import store
from lading.executors.decisions import Decision
from lading.executors.gangs.gang_controller import GangController
from lading.executors.gangs.gang_outcome import GangOutcome
from lading.executors.orchestrator.orchestrator import ExpectedGang, Roster
from lading.executors.store import JobRow, State
from lading.executors.store.gangs import rows as gang_rows
from lading.executors.store.gangs.tables import HoldRow
from lading.executors.store.gangs.terms import GangTerms
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources


def nothing_to_come(_: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
    """All members are queued."""
    return dict.fromkeys(wanted, Roster(frozenset()))


def fill(session: Session, gangs: int, size: int) -> None:
    terms = GangTerms("together", tasks={"head": (), "workers": ()}).to_json()
    rows = [
        {
            "token": f"{gang}-{member}", "kind": "ExecuteTask", "subject": "s", "workload": "{}", "dag_id": "d",
            "run_id": f"r{gang}", "task_id": "workers" if member else "head", "map_index": member - 1,
            "try_number": 1, "priority": 1, "queued_at": 1.0 + gang, "unreported": False, "news": 0,
            "state": State.QUEUED, "cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0, "gang": f"gang-{gang}",
            "gang_terms": terms,
        }
        for gang in range(gangs)
        for member in range(size)
    ]  # fmt: skip
    session.execute(JobRow.__table__.insert(), rows)


def measure(what: str, runs: int, do: Callable[[], object]) -> None:
    """Print the median of so many calls, milliseconds of CPU, and the first one, in which SQL is put together."""
    times = []
    for _ in range(1 + runs):
        began = time.process_time()
        do()
        times.append(1000 * (time.process_time() - began))
    first, *times = times
    print(f"{what}: {statistics.median(times):.0f} ms of CPU, at most {max(times):.0f}, the first time {first:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("gangs", 200), ("size", 8), ("locations", 100), ("runs", 15)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    print(f"machine: {machine()}")
    # As a controller does: a collection is not to look at Airflow's modules.
    gc.collect()
    gc.freeze()
    # Room for a tenth of the gangs: the others find none, tick after tick.
    cpus = options.gangs * options.size / 10 / options.locations
    locations = [Location(f"m{each}", Resources(cpus, 2**20), site="lab") for each in range(options.locations)]
    sites = [SiteView(name="lab", locations=locations, possible=locations, holds=True)]
    keeper = GangController(read_roster=nothing_to_come)
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder)}/store.db")
        store.metadata.create_all(engine)
        with Session(engine) as session:
            fill(session, options.gangs, options.size)
            session.commit()

        def decide(session: Session) -> GangOutcome:
            return keeper.decide(session, gang_rows.load(session, by_dag=False), sites, time.time())

        def look() -> None:
            with Session(engine) as session:
                decide(session)

        def tick() -> None:
            with Session(engine) as session:
                decision = decide(session).added_to(Decision())
                store.apply(session, decision.changes)
                gang_rows.apply(session, decision.gangs, time.time())
                session.add_all(decision.notes)
                session.commit()

        what = f"{options.gangs} gangs of {options.size} on {options.locations} locations"
        measure(f"{what}, all of them begin", options.runs, look)
        tick()
        with Session(engine) as session:
            session.execute(update(HoldRow).values(state="held"))
            session.commit()
        measure(f"{what}, a tenth holds room and the others sleep", options.runs, look)
        for _ in range(2):
            tick()
        measure(f"{what}, nothing changes, with what is stored", options.runs, tick)


if __name__ == "__main__":
    main()
