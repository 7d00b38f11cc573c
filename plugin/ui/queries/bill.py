"""The bill: what was used, asked for and not used, what idled and booted, by period and by Dag, task, site or team.

BillParts are USD, and cpu-hours of everything. None is what has no price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel
from sqlalchemy.orm import Session

from lading.executors.store.bills import BillKey, bill, running
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.insight.bill import BillParts, total
from lading.scheduling.insight.periods import Period, periods

# So many rows are named, those with the largest sums; the others are one.
MOST_ROWS = 100

Split = Literal["dag", "task", "site", "team"]


class BillAmounts(BaseModel):
    """One sum in its four parts."""

    jobs: int
    failed: int
    usd: float | None
    """All of it; None: nothing of it has a price."""
    usd_used: float | None
    usd_unused: float | None
    """Of what jobs asked for and did not use."""
    usd_idle: float | None
    """Of machines while no job had them."""
    usd_boot: float | None
    """Of machines until they were up."""
    cpu_hours: float
    cpu_hours_used: float
    cpu_hours_unused: float
    cpu_hours_idle: float
    cpu_hours_boot: float


class BillPeriod(BaseModel):
    """A day, a week or a month, in UTC."""

    since: float
    until: float
    is_whole: bool
    """Whether it is over."""


class BillRow(BaseModel):
    """One Dag, task, site or team, or a sum of others."""

    kind: Literal["named", "machines", "hidden", "others"]
    """``machines``: what no job was charged of them; ``hidden``: Dags that the user may not read; ``others``: the rest
    of a long list."""
    dag_id: str | None
    task_id: str | None
    site: str | None
    """None as well: where is not known any more."""
    team: str | None
    """None as well: of no team."""
    total: BillAmounts
    periods: list[BillAmounts]
    """In the order of the periods of the bill."""


class BillPage(BaseModel):
    """What was billed, by period."""

    now: float
    by: Period
    split: Split
    periods: list[BillPeriod]
    total: BillAmounts
    totals: list[BillAmounts]
    """Of each period."""
    rows: list[BillRow]
    """Largest sum first."""
    running: BillAmounts
    """Of jobs that run, and machines that are up, until now: it is in none of the sums."""


RowKey = tuple[str, str | None, str | None, str | None, str | None]


def bill_page(
    session: Session, sight: Sight, since: float, until: float, by: Period, split: Split, now: float
) -> BillPage:
    """The bill of all periods of which a part lies between two times."""
    spans = periods(since, until, by)
    sums: list[dict[RowKey, BillParts]] = [
        by_row(bill(session, begin, min(end, now)), sight, split) if begin < now else {} for begin, end in spans
    ]
    rows: dict[RowKey, list[BillParts]] = {}
    for number, found in enumerate(sums):
        for key, amounts in found.items():
            rows.setdefault(key, [BillParts() for _ in spans])[number].add(amounts)
    whole = [total(found.values()) for found in sums]
    return BillPage(
        now=now,
        by=by,
        split=split,
        periods=[BillPeriod(since=begin, until=end, is_whole=end <= now) for begin, end in spans],
        total=as_model(total(whole)),
        totals=[as_model(each) for each in whole],
        rows=as_rows(rows, len(spans)),
        running=as_model(total(running(session, now).values())),
    )


def by_row(found: Mapping[BillKey, BillParts], sight: Sight, split: Split) -> dict[RowKey, BillParts]:
    """The sums by what the bill is split by."""
    rows: dict[RowKey, BillParts] = {}
    for key, amounts in found.items():
        rows.setdefault(row_key(key, sight, split), BillParts()).add(amounts)
    return rows


def row_key(key: BillKey, sight: Sight, split: Split) -> RowKey:
    if not sight.sees(key.dag_id):
        return "hidden", None, None, None, None
    if split == "site":
        return "named", None, None, key.site, None
    if key.task_id is None:
        return "machines", None, None, None, None
    if split == "team":
        return "named", None, None, None, key.team
    return "named", key.dag_id, key.task_id if split == "task" else None, None, None


def as_rows(rows: Mapping[RowKey, Sequence[BillParts]], number: int) -> list[BillRow]:
    """The rows with the largest sums, and one for all others.

    :param number: of periods
    """
    sums = {key: total(each) for key, each in rows.items()}
    ordered = sorted(
        rows, key=lambda key: (-(sums[key].usd or 0.0), -sums[key].cpu_seconds, [each or "" for each in key])
    )
    shown, others = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    found = [
        BillRow(
            kind=key[0],  # type: ignore[arg-type]
            dag_id=key[1],
            task_id=key[2],
            site=key[3],
            team=key[4],
            total=as_model(sums[key]),
            periods=[as_model(each) for each in rows[key]],
        )
        for key in shown
    ]
    if others:
        each_period = [total(rows[key][index] for key in others) for index in range(number)]
        found.append(
            BillRow(
                kind="others",
                dag_id=None,
                task_id=None,
                site=None,
                team=None,
                total=as_model(total(each_period)),
                periods=[as_model(each) for each in each_period],
            )
        )
    return found


def as_model(found: BillParts) -> BillAmounts:
    priced = found.is_priced
    return BillAmounts(
        jobs=found.jobs,
        failed=found.failed,
        usd=found.usd,
        usd_used=found.usd_used if priced else None,
        usd_unused=found.usd_unused if priced else None,
        usd_idle=found.usd_idle if priced else None,
        usd_boot=found.usd_boot if priced else None,
        cpu_hours=found.cpu_seconds / 3600,
        cpu_hours_used=found.used / 3600,
        cpu_hours_unused=found.unused / 3600,
        cpu_hours_idle=found.idle / 3600,
        cpu_hours_boot=found.boot / 3600,
    )
