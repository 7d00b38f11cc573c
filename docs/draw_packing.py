"""Draw docs/images/packing.svg from a real plan: the same jobs packed by both policies on the bundled catalogue.

python docs/draw_packing.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lading.scheduling.model.catalogue import BUNDLED_DATE, bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import Plan
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import plan

GIB = 1024
JOBS = {
    "align": (8, 20, 10, "#4269d0"),
    "call": (4, 30, 10, "#efb118"),
    "sort": (2, 6, 20, "#3ca951"),
    "index": (1, 12, 14, "#ff725c"),
    "qc": (1, 1, 30, "#a463f2"),
}
WIDTH, UNIT, GAP, TOP = 720, 9.0, 44, 80
FREE, INK = "#d8d8d8", "#333333"


def plans() -> Iterator[tuple[str, Plan]]:
    goods = bundled().select(
        [f"{family}7i.{size}" for family in "cmr" for size in ("large", "xlarge", "2xlarge", "4xlarge")]
    )
    jobs = [PlannedJob(name, Resources(c, m * GIB), count, arch="x86_64") for name, (c, m, count, _) in JOBS.items()]
    for policy in ("greedy", "priced"):
        yield policy, plan(jobs, (), goods, policy=policy, effort="best")


def machines(result: Plan) -> Iterator[tuple[str, Counter[str], int]]:
    """Types with their jobs, largest first, those that are filled alike together."""
    held = {launch.name: Counter[str]() for launch in result.launches}
    for placement in result.placements:
        held[placement.location][placement.job] += placement.count
    kinds = Counter(
        (launch.usd_per_hour, launch.instance_type, tuple(sorted(held[launch.name].items())))
        for launch in result.launches
    )
    for (_, kind, jobs), number in sorted(kinds.items(), reverse=True):
        yield kind, Counter(dict(jobs)), number


def column(x: float, bottom: float, capacity: float, parts: list[tuple[float, str]], height: float) -> Iterator[str]:
    """One resource of a machine: what jobs take of it from below, what is free above."""
    yield f'<rect x="{x:.1f}" y="{bottom - height:.1f}" width="11" height="{height:.1f}" fill="{FREE}"/>'
    for amount, colour in parts:
        part = amount / capacity * height
        bottom -= part
        yield (
            f'<rect x="{x:.1f}" y="{bottom:.1f}" width="11" height="{part:.1f}" fill="{colour}" '
            'stroke="white" stroke-width="0.6"/>'
        )


def panel(policy: str, result: Plan, y: float) -> tuple[list[str], float]:
    """One plan: each machine as two columns, cpus and memory, as high as it has cpus."""
    goods = bundled().types
    gap = f"{result.gap:.1%}" if result.gap is not None else "-"
    shapes = [
        f'<text x="10" y="{y + 18:.0f}" font-weight="bold">{policy}: {len(result.launches)} instances, '
        f"{result.cost:.2f} USD/h, {gap} above the lower bound</text>"
    ]
    x, row, tallest = 10.0, y + 34, 0.0
    rows: list[list[tuple[float, str, Counter[str], int]]] = [[]]
    for kind, jobs, number in machines(result):
        if x + 62 > WIDTH:
            rows.append([])
            x = 10.0
        rows[-1].append((x, kind, jobs, number))
        x += 62 + GAP
    for line in rows:
        tallest = max(goods[kind].capacity.cpus for _, kind, _, _ in line) * UNIT + 4
        bottom = row + tallest
        for x, kind, jobs, number in line:
            capacity = goods[kind].capacity
            height = capacity.cpus * UNIT + 4
            takes = [(JOBS[name][0] * count, JOBS[name][3]) for name, count in jobs.items()]
            shapes += column(x + 8, bottom, capacity.cpus, takes, height)
            takes = [(JOBS[name][1] * GIB * count, JOBS[name][3]) for name, count in jobs.items()]
            shapes += column(x + 22, bottom, capacity.memory, takes, height)
            shapes.append(f'<text x="{x + 37:.0f}" y="{bottom - 2:.0f}" font-size="11">{number} ×</text>')
            shapes.append(f'<text x="{x:.0f}" y="{bottom + 13:.0f}" font-size="9.5">{kind}</text>')
        row = bottom + 28
    return shapes, row


def main() -> None:
    body: list[str] = []
    for i, (name, (cpus, gib, count, colour)) in enumerate(JOBS.items()):
        x, y = 10 + i % 3 * 225, 22 + i // 3 * 20
        body.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{x + 17}" y="{y}">{count} × {name}: {cpus} cpus, {gib} GiB</text>')
    body.append(
        f'<text x="10" y="66" font-size="11">left column: cpus, right column: memory, grey: free; '
        f"prices of {BUNDLED_DATE}</text>"
    )
    bottom = float(TOP)
    for policy, result in plans():
        shapes, bottom = panel(policy, result, bottom)
        body += shapes
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom:.0f}" font-family="sans-serif" '
        f'font-size="13" fill="{INK}"><title>The same jobs packed by greedy and by priced</title>'
        f'<rect width="{WIDTH}" height="{bottom:.0f}" fill="white"/>'
    )
    (Path(__file__).parent / "images" / "packing.svg").write_text(
        "\n".join([head, *body, "</svg>"]) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
