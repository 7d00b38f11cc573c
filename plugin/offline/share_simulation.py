"""`lading simulate --shares`: what each share gets when the jobs of a trace contend for a number of equal machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from lading.hooks.files.sites_file import SitesError, read_sites_document
from lading.hooks.site.share_tables import parse_shares
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.simulation.contention import ContendingJob, ContentionReport, contend
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.accounting.share_table import HALF_LIFE, Shares
from lading.scheduling.accounting.who import Tenant
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.resources import Resources


def simulate_shares(
    arrivals: Sequence[Arrival], file: str, machines: int | None, offered: Catalogue, output: str, out: IO[str]
) -> int:
    """Run the trace with the shares of a sites file and without, and print both; returns the exit status.

    :param machines: the number of machines, all of the cheapest type that can run every job
    :raises UsageError: the file or the jobs cannot be used
    """
    if machines is None:
        raise UsageError("--shares needs a limited number of machines; give --max-instances NUMBER")
    try:
        document = read_sites_document(Path(file))
        shares = parse_shares(document.get("shares", []), document.get("sites", {}), HALF_LIFE)
    except (SitesError, ValueError) as error:
        raise UsageError(f"--shares {file}: {error}") from error
    size = cheapest(offered, [each.job.resources for each in arrivals])
    jobs = [
        ContendingJob(
            f"{each.job.name} {number}",
            shares.share_of(Tenant(each.job.team, each.job.dag_id)),
            each.job.resources,
            each.arrival,
            each.duration,
            each.job.priority,
        )
        for each in arrivals
        for number in range(each.job.count)
    ]
    there = [size] * machines
    fair, without = contend(jobs, there, shares), contend(jobs, there, None)
    rows = [as_row("shares", fair, shares), as_row("without", without, shares)]
    if output == "json":
        json.dump({"runs": rows}, out, indent=1)
        out.write("\n")
        return 0
    for row in rows:
        out.write(
            f"{row['order']}: contended for {row['contended_seconds']:,.0f} s, Jain's index {row['jain']:.4f}, "
            f"utilization {row['utilization']:.3f}, makespan {row['makespan_seconds']:,.0f} s\n"
        )
        for name, part in row["part"].items():
            out.write(
                f"  {name}: {100 * part:.1f} % while it contended, mean wait {row['wait_seconds'][name]:,.0f} s\n"
            )
    return 0


def cheapest(offered: Catalogue, needs: Sequence[Resources]) -> Resources:
    """Return the capacity of the cheapest type that can run every job.

    :raises UsageError: no type can
    """
    fitting = [
        (min(each.usd_per_hour for each in kind.offerings), name)
        for name, kind in offered.types.items()
        if kind.offerings and all(need.fits(kind.capacity) for need in set(needs))
    ]
    if not fitting:
        raise UsageError(
            "--shares: no type can run every job of the trace; leave out the largest jobs, or allow larger types"
        )
    return offered.types[min(fitting)[1]].capacity


def as_row(order: str, found: ContentionReport, shares: Shares) -> dict[str, Any]:
    return {
        "order": order,
        "jain": found.jain(shares),
        "contended_seconds": found.contended,
        "utilization": found.utilization,
        "makespan_seconds": found.makespan,
        "part": found.part,
        "wait_seconds": found.waits,
    }
