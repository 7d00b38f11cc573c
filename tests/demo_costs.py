"""What the jobs that a run had at a site would have cost there under each policy, as JSON: ``python -m tests.demo_costs
SITE RUN``, in the environment of the demo's Airflow. Nothing if none ran there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from sqlalchemy import select

from lading.executors.settings import Settings
from lading.executors.store import JobRow
from lading.plugin.database import read_connections, reading_store
from lading.plugin.host import AirflowHost
from lading.plugin.offline.dag_cost import market_of
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.sites import load_sites
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.scale_in import ScaleIn

POLICIES = ("forecast", "greedy", "alone")


def main(site: str, run: str) -> None:
    read_connections()
    with reading_store(AirflowHost()) as session:
        rows = session.scalars(select(JobRow).where(JobRow.site == site, JobRow.run_id == run)).all()
        market, why = market_of(session, load_sites(Settings.load())[site])
        if market is None:
            raise SystemExit(f"site {site}: {why}")
        arrivals = arrivals_of(rows)
        print(json.dumps({policy: simulated(arrivals, market, policy) for policy in POLICIES if arrivals}))


def arrivals_of(rows: Sequence[JobRow]) -> list[Arrival]:
    """The jobs that ran: one that was cancelled before its start took no machine."""
    ran = [
        (row, row.ended_at - row.started_at) for row in rows if row.started_at is not None and row.ended_at is not None
    ]
    begin = min((row.queued_at for row, _ in ran), default=0.0)
    return [
        Arrival(
            PlannedJob(row.token, Resources(row.cpus, row.memory, row.disk, row.gpus)), row.queued_at - begin, seconds
        )
        for row, seconds in ran
    ]


def simulated(arrivals: Sequence[Arrival], market: MachineMarket, policy: str) -> dict[str, float]:
    report = simulate(
        arrivals,
        market.catalogue,
        market.limits,
        policy,
        scale_in=ScaleIn(market.idle_seconds),
        conditions=Conditions(boot_seconds=market.boot_seconds),
    )
    return {"usd": report.cost, "machines": report.launches, "seconds": report.makespan}


if __name__ == "__main__":
    main(*sys.argv[1:])
