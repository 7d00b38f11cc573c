"""`lading plan --frontier`: the cost of a run against the time it takes, so that users can choose a trade-off."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

from lading.plugin.offline import chart
from lading.plugin.offline.inputs import read_workflow
from lading.plugin.offline.simulation.frontier import HURRIES, FrontierPoint, by_hurry, on_equal_machines
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.watch import ProgressWatch
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.text.printable import printable
from lading.scheduling.text.units import format_time

BOOT_SECONDS = 60.0


def run(args: argparse.Namespace, catalogue: Catalogue, out: IO[str]) -> int:
    workflow = read_workflow(args.workflow, catalogue)
    show(args, workflow, catalogue, BOOT_SECONDS, InstanceLimits(instances=args.max_instances), out)
    return 0


def show(
    args: argparse.Namespace,
    workflow: Sequence[Arrival],
    catalogue: Catalogue,
    boot: float,
    limits: InstanceLimits,
    out: IO[str],
) -> None:
    form = None if args.plot is None else chart.form(args.plot, chart.frontier_svg)
    points: list[FrontierPoint] = []
    with ProgressWatch(shown=args.progress) as watch:
        for point in by_hurry(workflow, catalogue, boot, limits):
            points.append(point)
            watch("frontier", len(points) / len(HURRIES))
    equal = on_equal_machines(workflow, catalogue, boot, limits)
    sources = "; ".join(catalogue.sources)
    if args.output == "json":
        json.dump({"by_hurry": [asdict(each) for each in points], "equal": [asdict(each) for each in equal]}, out)
        out.write("\n")
        print(printable(f"prices: {sources}"), file=sys.stderr)
    else:
        from rich.console import Console
        from rich.table import Table

        console = Console(file=out, highlight=False, markup=False, emoji=False)
        table = Table("", "USD", "Finishes after", "Machines")
        for each in (*points, *equal):
            table.add_row(
                printable(each.way), f"{each.usd:,.4f}", format_time(round(each.seconds)), f"{each.machines:,}"
            )
        console.print(table)
        console.print(printable(f"Prices: {sources}"), soft_wrap=True)
    if form is not None:
        chart.draw(form(points, equal), args.plot)
