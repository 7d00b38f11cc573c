"""The chart of `lading simulate --plot`: what each policy paid for and used over time, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from lading.scheduling.simulation.report import Report

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 180, 60, 40, 50
PARTS = 300
PAID, USED, MACHINES, INK = "#d8d8d8", "#4269d0", "#ff725c", "#333333"


def svg(reports: Sequence[Report]) -> str:
    """One panel per policy, all with the same scales."""
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


def html(reports: Sequence[Report]) -> str:
    """The same as a page."""
    return f'<!doctype html>\n<meta charset="utf-8">\n<title>lading simulate</title>\n{svg(reports)}'


def title(report: Report) -> str:
    over = "" if report.gap is None else f", {1 + report.gap:.3f} × the lower bound"
    return f"{report.policy}: {report.cost:,.2f} USD{over}"


def stairs(across: Sequence[float], down: Sequence[float]) -> list[str]:
    """A line that is level in each part."""
    return [f"{x:.1f},{y:.1f}" for i, y in enumerate(down) for x in (across[i], across[i + 1])]
