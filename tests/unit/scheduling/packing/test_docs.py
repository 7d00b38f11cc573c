"""The example in docs/explanation/packing.md is what the planner does."""

from __future__ import annotations

from pathlib import Path

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import plan
from tests.services.packing import catalogue

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "packing.md"
GIB = 1024
TYPES = catalogue(small=(2, 4 * GIB, 0.1), medium=(4, 16 * GIB, 0.2), large=(8, 64 * GIB, 0.5))


def table() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| job | count |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_worked_example() -> None:
    rows = table()
    assert len(rows) == 6
    jobs = [
        PlannedJob(name, Resources(float(cpus), int(gib) * GIB), int(count), instance_type=hint or None)
        for name, count, cpus, gib, hint, _, _ in rows
    ]
    there = [Location("i-1", TYPES.types["medium"].capacity, Resources(1, 6 * GIB), "medium")]
    result = plan(list(reversed(jobs)), there, TYPES)
    for job, (_, _, _, _, _, cheapest, places) in zip(jobs, rows, strict=True):
        where = [p.location for p in result.placements if p.job == job.name for _ in range(p.count)]
        assert sorted(where) == sorted(places.split(", "))
        fitting = [kind for kind in TYPES.types.values() if job.resources.fits(kind.capacity)]
        assert min(fitting, key=lambda kind: kind.offerings[0].usd_per_hour).name == cheapest
    assert [launch.instance_type for launch in result.launches] == ["large", "medium", "medium", "small"]
    assert f"{result.cost:.2f} USD/h" in PAGE.read_text(encoding="utf-8")
    assert f"{result.bound:.2f} USD/h" in PAGE.read_text(encoding="utf-8")


def test_the_order_of_the_table_is_the_order_of_placement() -> None:
    """Placed one after another in that order, with what came before in place, every job goes where the table says."""
    prices = {kind.name: kind.offerings[0].usd_per_hour for kind in TYPES.types.values()}
    keys = [(-prices[cheapest], -float(cpus), -int(gib), name) for name, _, cpus, gib, _, cheapest, _ in table()]
    assert keys == sorted(keys)
