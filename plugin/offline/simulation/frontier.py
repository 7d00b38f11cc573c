"""The trade-off between cost and duration of a workflow: by ``hurry``, and on fleets of equal machines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.fixed_fleet import fleets
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.plan import FORECAST, InstanceLimits

HURRIES = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
# Seconds between two plans: short, because a controller wakes as soon as a task has finished.
TICK = 0.1


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One way to run a workflow.

    :param way: its name
    :param seconds: from the start of the run to its end, including the boot
    :param machines: how many are launched
    :param hurry: the ``hurry`` it is planned with; None: a fleet of equal machines
    """

    way: str
    usd: float
    seconds: float
    machines: int
    hurry: float | None = None


def by_hurry(
    workflow: Sequence[Arrival], catalogue: Catalogue, boot: float, limits: InstanceLimits
) -> Iterator[FrontierPoint]:
    """Yield the cost and duration for each of :data:`HURRIES`, with known lengths.

    :param boot: seconds from a launch to the first job
    """
    lengths = expected_lengths(workflow, "known")
    conditions = Conditions(boot_seconds=boot, tick_seconds=TICK)
    for hurry in HURRIES:
        report = simulate(workflow, catalogue, limits, FORECAST, conditions=conditions, hurry=hurry, lengths=lengths)
        yield FrontierPoint(f"hurry {hurry:g}", report.cost, report.makespan, report.launches, hurry)


def on_equal_machines(
    workflow: Sequence[Arrival], catalogue: Catalogue, boot: float, limits: InstanceLimits
) -> list[FrontierPoint]:
    """Return the Pareto-optimal fleets of equal machines (no other is both cheaper and faster), the cheapest first."""
    most = limits.instances
    found = sorted(
        (each.usd, each.seconds + boot, each)
        for each in fleets(wfformat.as_forecast(workflow), catalogue, boot)
        if most is None or each.machines <= most
    )
    best: list[FrontierPoint] = []
    for usd, seconds, each in found:
        if not best or seconds < best[-1].seconds:
            best.append(FrontierPoint(f"{each.machines} × {each.instance_type}", usd, seconds, each.machines))
    return best
