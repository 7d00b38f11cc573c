"""SVG charts: what each policy paid for and used over time, and the cost of a run against the time it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import ParamSpec

from lading.plugin.offline.options import UsageError
from lading.plugin.offline.simulation.frontier import FrontierPoint
from lading.plugin.offline.simulation.report import Report
from lading.scheduling.text.printable import shortened

P = ParamSpec("P")

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 180, 60, 40, 50
PARTS = 300
LABEL_WIDTH, LABEL_HEIGHT = 60, 24
PAID, USED, MACHINES, INK = "#d8d8d8", "#4269d0", "#ff725c", "#333333"


def svg(reports: Sequence[Report]) -> str:
    """Draw a panel per policy, all with the same scales."""
    series = [report.timeline.means(PARTS) for report in reports]
    most = max((each.paid for _, parts in series for each in parts), default=0.0) or 1.0
    most_machines = max((each.machines for _, parts in series for each in parts), default=0.0) or 1.0
    first, last = min(borders[0] for borders, _ in series), max(borders[-1] for borders, _ in series)
    scale = WIDTH / max(last - first, 1e-9)
    height = TOP + len(reports) * (HEIGHT + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {height}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20">cpus <tspan fill="#888888">paid for</tspan> and '
        f'<tspan fill="{USED}">used</tspan>, <tspan fill="{MACHINES}">machines up</tspan> (right), over hours</text>',
    ]
    for number, (report, (borders, parts)) in enumerate(zip(reports, series, strict=True)):
        base = TOP + number * (HEIGHT + GAP) + HEIGHT + 16
        across = [LEFT + (border - first) * scale for border in borders]
        lines.append(f'<text x="{LEFT}" y="{base - HEIGHT - 6}" font-weight="bold">{escape(title(report))}</text>')
        for colour, amounts in ((PAID, [each.paid for each in parts]), (USED, [each.used for each in parts])):
            steps = " ".join(stairs(across, [base - amount / most * HEIGHT for amount in amounts]))
            lines.append(f'<path d="M{across[0]:.1f},{base} L{steps} L{across[-1]:.1f},{base} Z" fill="{colour}"/>')
        steps = " ".join(stairs(across, [base - each.machines / most_machines * HEIGHT for each in parts]))
        lines.append(f'<path d="M{steps}" fill="none" stroke="{MACHINES}" stroke-width="1.2"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{base - HEIGHT + 10}" text-anchor="end">{most:,.0f}</text>')
        lines.append(
            f'<text x="{LEFT + WIDTH + 6}" y="{base - HEIGHT + 10}" fill="{MACHINES}">{most_machines:,.0f}</text>'
        )
        for part in range(7):
            hours = (last - first) * part / 6 / 3600
            lines.append(
                f'<text x="{LEFT + WIDTH * part / 6:.0f}" y="{base + 14}" text-anchor="middle">{hours:.1f} h</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


def frontier_svg(points: Sequence[FrontierPoint], equal: Sequence[FrontierPoint]) -> str:
    """Draw the cost against the duration, by hurry and on fleets of equal machines. Both axes are logarithmic."""
    all_points = [*points, *equal]
    across = Scale([each.seconds / 3600 for each in all_points], LEFT, LEFT + WIDTH)
    down = Scale([each.usd for each in all_points], TOP + 2 * HEIGHT, TOP)
    bottom = TOP + 2 * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 120} {bottom + GAP}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20">USD over the hours that the run takes: <tspan fill="{USED}">by hurry</tspan>, '
        f'<tspan fill="{MACHINES}">on equal machines</tspan></text>',
        f'<path d="M{LEFT},{TOP} V{bottom} H{LEFT + WIDTH}" fill="none" stroke="{PAID}"/>',
    ]
    lines += [
        f'<text x="{across(value):.1f}" y="{bottom + 16}" text-anchor="middle">{value:.3g} h</text>'
        for value in across.ticks()
    ]
    lines += [
        f'<text x="{LEFT - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>' for value in down.ticks()
    ]
    labels: dict[tuple[float, float], tuple[float, float, list[str]]] = {}  # points close to each other share one
    for some, colour in ((points, USED), (equal, MACHINES)):
        at = [
            (across(point.seconds / 3600), down(point.usd), point)
            for point in sorted(some, key=lambda point: point.seconds)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-opacity="0.4"/>')
        for x, y, point in at:
            said = f"{point.way}: {point.usd:.4f} USD, {point.seconds:,.0f} s"
            lines.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(said)}</title></circle>'
            )
            labels.setdefault((x // LABEL_WIDTH, y // LABEL_HEIGHT), (x, y, []))[2].append(point.way)
    lines += [
        f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{escape(", ".join(ways))}</text>' for x, y, ways in labels.values()
    ]
    return "\n".join([*lines, "</svg>", ""])


class Scale:
    """A logarithmic axis from the smallest to the largest of some positive values."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.least, self.most = min(values), max(*values, min(values) * 1.1)
        self.first, self.last = first, last

    def __call__(self, value: float) -> float:
        part = math.log(value / self.least) / math.log(self.most / self.least)
        return self.first + part * (self.last - self.first)

    def ticks(self) -> list[float]:
        return [self.least * (self.most / self.least) ** (part / 4) for part in range(5)]


def form(path: str, draw_svg: Callable[P, str]) -> Callable[P, str]:
    """Return the function that draws a chart, as SVG or as an HTML page, by the suffix of the file.

    :raises UsageError: the suffix is neither .svg nor .html
    """
    suffix = Path(path).suffix
    if suffix not in (".svg", ".html"):
        raise UsageError(f"--plot {shortened(path)} has no known file type; valid: a name that ends in .svg or .html")
    if suffix == ".svg":
        return draw_svg
    head = '<!doctype html>\n<meta charset="utf-8">\n<title>lading</title>\n'

    def draw_page(*args: P.args, **kwargs: P.kwargs) -> str:
        return head + draw_svg(*args, **kwargs)

    return draw_page


def draw(drawn: str, path: str) -> None:
    """:raises UsageError: the file cannot be written"""
    try:
        Path(path).write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {shortened(path)}: {error.strerror}") from None


def title(report: Report) -> str:
    over = "" if report.gap is None else f", {1 + report.gap:.3f} × the lower bound"
    return f"{report.policy}: {report.cost:,.2f} USD{over}"


def stairs(across: Sequence[float], down: Sequence[float]) -> list[str]:
    """Return the points of a step line."""
    return [f"{x:.1f},{y:.1f}" for i, y in enumerate(down) for x in (across[i], across[i + 1])]
