"""The bill by period and by Dag, task, run, site or team, split into used, requested but unused, idle and booting.

Amounts are USD and cpu-hours. None means that nothing has a price.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from sqlalchemy import case, func, not_, select
from sqlalchemy.orm import Session

from lading.executors.accounting import bill_days, task_usage
from lading.executors.accounting.bill_days import (
    MACHINES,
    BillDayRow,
    PeriodSum,
    Split,
    SplitKey,
    by_period,
    first_known,
    known_days,
    not_kept,
    number_of,
)
from lading.executors.accounting.bills import bill, running
from lading.executors.starts.work_left import work_left
from lading.executors.store.figures import site_figures
from lading.executors.store.figures import total as known_total
from lading.executors.store.tables import InstanceRow, InstanceState, SiteRow
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.accounting.bill import BillParts, SpendingOutlook, hours_of_work, total
from lading.scheduling.accounting.idle import FRACTIONS, IdleAdvice, IdleCost, halve
from lading.scheduling.accounting.periods import SECONDS_PER_DAY, Period, following, periods
from lading.scheduling.accounting.periods import begin as first_of

# The cost of Dags the user cannot read is shown only as a sum, for past days on which at least this many of them had
# jobs: the sum of a single Dag would reveal what that Dag cost.
FEWEST_HIDDEN = 2
# At most this many rows are listed, the most expensive ones; the rest is one row. The second limit is rows × periods.
MOST_ROWS, MOST_SUMS = 100, 12_000
# The rate of a forecast is the mean of this many days and of today: a whole week, because weekends differ.
DAYS_OF_RATE = 7


class BillAmounts(BaseModel):
    """An amount, in total and split into used, unused, idle and booting."""

    jobs: int
    failed: int
    usd: float | None
    """The total; None: nothing has a price."""
    usd_used: float | None
    usd_unused: float | None
    """Requested by jobs, but not used."""
    usd_idle: float | None
    """Cpus of machines that were up which no job requested, on idle and on busy machines."""
    usd_boot: float | None
    """Machines from launch until they were up."""
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
    """Whether the period is over."""


class BillRow(BaseModel):
    """One Dag, task, run, site or team, or the sum of several."""

    kind: Literal["named", "machines", "hidden", "others"]
    """``machines``: costs of machines not charged to any job; ``hidden``: Dags the user cannot read; ``others``: rows
    beyond the limit."""
    dag_id: str | None
    task_id: str | None
    run_id: str | None
    """Also None for runs whose jobs have been purged."""
    site: str | None
    """Also None if the site is no longer recorded."""
    team: str | None
    """Also None for Dags without a team."""
    total: BillAmounts
    usd: list[float | None]
    """For each period of the bill; None: nothing has a price."""
    cpu_hours: list[float]
    """For each period of the bill."""


class ExpectedBill(BaseModel):
    """What a month will have cost by its end: its bill until now, the present rate for as long as the running and
    waiting jobs last, and the mean rate of the last days after that."""

    until: float
    """The end of the month."""
    usd: float | None
    """None: nothing has a price."""
    cpu_hours: float
    hours: float
    """How long the running and waiting jobs last at the present rate; 0: nothing runs, or some Dags may be hidden from
    the user, so that the mean rate applies from now on."""
    usd_per_hour: float | None
    """The present rate of all sites."""
    cpus: float
    """The present rate in cpu-hours per hour: the cpus of machines that are up and of batch jobs."""
    since: float
    """Since when the mean rate is averaged."""
    usd_per_day: float | None
    """The mean rate."""
    cpu_hours_per_day: float


class IdleSite(BaseModel):
    """The idle cpus of a site: those of machines that were up which no job requested."""

    site: str
    usd: float | None
    """What they cost within the time range; None: nothing has a price."""
    cpu_hours: float
    usd_site: float | None
    """What the whole site cost within the time range; None: nothing has a price."""
    cpu_hours_site: float
    usd_machines: float | None
    """The part of idle machines: those without a job until they were released. The rest are idle cpus of busy machines,
    including the time between two jobs. None: unknown, or nothing has a price."""
    cpu_hours_machines: float | None
    idle_seconds: float | None
    """The setting ``idle_seconds`` of the site: how long an idle machine is kept; None: it launches no machines."""
    machines: int
    """Machines that were idle before they were released, within the time range. Without any, savings are unknown."""


class BillPage(BaseModel):
    """A bill: its periods, the totals, and the rows."""

    now: float
    by: Period
    split: Split
    periods: list[BillPeriod]
    total: BillAmounts
    totals: list[BillAmounts]
    """The total of each period."""
    rows: list[BillRow]
    """Largest total first, then the rows ``others`` and ``machines``. They add up to the total."""
    running: BillAmounts
    """Of the total: running jobs and machines that are up, until now. They count as part of the period that contains
    now, and running jobs as using all that they requested."""
    expected: ExpectedBill | None
    """The bill of the current month by its end; None: the bill begins at another time, or there is less than a day of
    data."""
    idle_sites: list[IdleSite]
    """Only in a bill by site: the sites with idle cpus, the most expensive ones first."""
    idle_since: float
    """The beginning of the time range of ``idle_sites`` and ``idle_advice``, which ends as that of the bill. It is
    later than that of the bill if records of machines have been deleted (``job_retention_days``)."""
    idle_advice: IdleAdvice | None
    """Only in a bill by site: which settings together halve the cost of all idle cpus, or how much settings can save at
    most. Amounts are for the time range from ``idle_since``, in USD if the bill has a price, otherwise in
    cpu-hours. None: no cpu was idle."""
    is_partial: bool
    """Whether some Dags may be hidden from the user. Totals then include hidden Dags only on past days on which at
    least two of them had jobs."""


Kept = Callable[[Collection[SplitKey]], Iterable[tuple[SplitKey, int, PeriodSum]]]


@dataclass(slots=True)
class BillRows:
    """A bill summed up by period and by row.

    :param days: the days whose stored sums are used
    """

    days: set[int]
    totals: list[BillParts]
    hidden: list[BillParts]
    """By period: the part of ``totals`` for Dags the user cannot read."""
    sums: dict[SplitKey, BillParts] = field(default_factory=dict)
    """By row the user can see, over all periods."""
    recent: dict[SplitKey, dict[int, BillParts]] = field(default_factory=dict)
    """By row and index of the period: the part without stored daily sums."""
    running: BillParts = field(default_factory=BillParts)
    """The part of running jobs and machines that are up."""

    def add(self, number: int, key: SplitKey, parts: BillParts) -> None:
        """Add an amount without stored daily sums."""
        self.totals[number].add(parts)
        self.sums.setdefault(key, BillParts()).add(parts)
        self.recent.setdefault(key, {}).setdefault(number, BillParts()).add(parts)


def bill_page(
    session: Session, sight: Sight, since: float, until: float, by: Period, split: Split, now: float
) -> BillPage:
    """Compute the bill of all periods that overlap a time range."""
    spans = periods(since, until, by)
    begins = [begin for begin, _ in spans]
    found, which = sum_up(session, sight, spans, split, now), sight.condition(BillDayRow.dag_id)

    def kept(keys: Collection[SplitKey]) -> Iterator[tuple[SplitKey, int, PeriodSum]]:
        return by_period(session, found.days, keys, split, by, which)

    whole = total(found.totals)
    month = first_of(now, Period.MONTH)
    is_this_month = begins[0] == month.timestamp() and now < spans[-1][1]
    until, idle_since = min(spans[-1][1], now), max(begins[0], task_usage.complete_since(session))
    idle: list[tuple[IdleCost, IdleSite]] = []
    idle_parts = whole
    if split == "site" and idle_since < until:
        of_idle = found if idle_since == begins[0] else sum_up(session, sight, [(idle_since, spans[-1][1])], split, now)
        idle, idle_parts = idle_costs(session, of_idle, idle_since, until), total(of_idle.totals)
    idle_cost = idle_parts.usd_idle if whole.is_priced else idle_parts.idle / 3600
    return BillPage(
        now=now,
        by=by,
        split=split,
        periods=[BillPeriod(since=begin, until=its_end, is_whole=its_end <= now) for begin, its_end in spans],
        total=as_amounts(whole),
        totals=[as_amounts(each) for each in found.totals],
        rows=as_rows(found, kept, begins, by),
        running=as_amounts(found.running),
        expected=expected_bill(session, sight, whole, following(month, Period.MONTH).timestamp(), now)
        if is_this_month
        else None,
        idle_sites=[each for _, each in idle],
        idle_since=idle_since,
        idle_advice=halve([each for each, _ in idle], idle_cost) if idle else None,
        is_partial=is_partial(sight),
    )


def is_partial(sight: Sight) -> bool:
    return sight.dags is not None or bool(sight.hidden)


def sum_up(session: Session, sight: Sight, spans: Sequence[tuple[float, float]], split: Split, now: float) -> BillRows:
    """Sum up a bill by row and by consecutive period, until now.

    Daily sums are used where they are stored (:mod:`lading.executors.accounting.bill_days`); the rest is summed from
    the jobs and machines that finished then. What is still running belongs to the period that contains now.

    :param spans: the start and end of each period, which are the beginnings of days in UTC
    """
    begins = [begin for begin, _ in spans]
    end = min(spans[-1][1], now)
    known = known_days(session, begins[0], end, now)
    days = {day for day in known.kept if begins[0] <= day * SECONDS_PER_DAY < end}
    found = BillRows(days, [BillParts() for _ in spans], [BillParts() for _ in spans])
    which = sight.condition(BillDayRow.dag_id)
    if is_partial(sight):
        unseen = bill_days.days_of_dags(session, days, not_(which))
        for day, parts in bill_days.whole_days(session, days).items():
            of_unseen, dags = unseen.get(day, (BillParts(), 0))
            number = bisect_right(begins, day * SECONDS_PER_DAY) - 1
            found.totals[number].add(parts if dags >= FEWEST_HIDDEN else parts.less(of_unseen))
            if dags >= FEWEST_HIDDEN:
                found.hidden[number].add(of_unseen)
    else:
        for day, parts in bill_days.whole_days(session, days).items():
            found.totals[bisect_right(begins, day * SECONDS_PER_DAY) - 1].add(parts)
    found.sums = bill_days.by_split(session, days, split, which)
    for number, (begin, its_end) in enumerate(spans):
        for one, other in not_kept(known, begin, min(its_end, now)):
            for key, parts in bill(session, one, other).items():
                if sight.sees(key.dag_id):
                    found.add(number, bill_days.row_key(key, split), parts)
    if begins[0] <= now < spans[-1][1]:
        number = bisect_right(begins, now) - 1
        for key, parts in running(session, now).items():
            # A machine that is not up yet has cost nothing.
            if sight.sees(key.dag_id) and (parts.jobs or parts.cpu_seconds or parts.usd):
                found.add(number, bill_days.row_key(key, split), parts)
                found.running.add(parts)
    return found


def expected_bill(session: Session, sight: Sight, spent: BillParts, until: float, now: float) -> ExpectedBill | None:
    """Extrapolate the bill of the current month to its end; None: there is less than a day of data.

    :param spent: the bill of the month until now
    :param until: the end of the month, epoch seconds
    """
    first, today = first_known(session), int(now // SECONDS_PER_DAY)
    since = max(today - DAYS_OF_RATE, today if first is None else first) * float(SECONDS_PER_DAY)
    if now - since < SECONDS_PER_DAY:
        return None
    lately = total(sum_up(session, sight, [(since, (today + 1) * float(SECONDS_PER_DAY))], "site", now).totals)
    mean_hours = (now - since) / 3600
    sites = site_figures(session).values()
    rates = known_total([each.usd_per_hour for each in sites]), sum(each.up + each.batch for each in sites)
    # The present rate includes the jobs of Dags that such a user cannot read.
    work = [] if is_partial(sight) else work_left(session, now)
    hours = hours_of_work(sum(each.cpu_hours for each in work), sum(each.cpus for each in work))
    per_hour = None if lately.usd is None else lately.usd / mean_hours, lately.cpu_seconds / 3600 / mean_hours
    usd = None
    if per_hour[0] is not None:
        usd = SpendingOutlook(spent.usd or 0.0, per_hour[0], now, rates[0] or 0.0, hours)
    return ExpectedBill(
        until=until,
        usd=None if usd is None else usd.by(until),
        cpu_hours=SpendingOutlook(spent.cpu_seconds / 3600, per_hour[1], now, rates[1], hours).by(until),
        hours=hours,
        usd_per_hour=rates[0],
        cpus=rates[1],
        since=since,
        usd_per_day=None if usd is None else 24 * usd.per_hour,
        cpu_hours_per_day=24 * per_hour[1],
    )


def idle_costs(session: Session, found: BillRows, since: float, until: float) -> list[tuple[IdleCost, IdleSite]]:
    """Return the sites with idle cpus, and what shorter ``idle_seconds`` would have saved, most expensive first.

    Savings are estimated from the machines that were released within the time range.

    :param found: the bill by site
    """
    amounts = {key.name: parts for key, parts in found.sums.items() if key.name and (parts.idle or parts.usd_idle)}
    in_usd = total(found.totals).is_priced
    released = released_machines(session, since, until)
    rows = {row.name: row for row in session.scalars(select(SiteRow).where(SiteRow.name.in_(amounts)))}
    sites = []
    for name, parts in amounts.items():
        row, its = rows.get(name), released.get(name, ReleasedMachines())
        cost = IdleCost(
            site=name,
            kind="" if row is None else row.kind,
            cost=parts.usd_idle if in_usd else parts.idle / 3600,
            idle_seconds=None if row is None else row.idle_seconds,
            machines=its.number,
            saved=its.usd_saved if in_usd else its.cpu_hours_saved,
        )
        # A machine that was released within the time range can have been idle before it, too.
        site = IdleSite(
            site=name,
            usd=parts.usd_idle if parts.is_priced else None,
            cpu_hours=parts.idle / 3600,
            usd_site=parts.usd,
            cpu_hours_site=parts.cpu_seconds / 3600,
            usd_machines=min(its.usd, parts.usd_idle) if its.number and parts.is_priced else None,
            cpu_hours_machines=min(its.cpu_hours, parts.idle / 3600) if its.number else None,
            idle_seconds=cost.idle_seconds,
            machines=its.number,
        )
        sites.append((cost, site))
    return sorted(sites, key=lambda each: (-(each[1].usd or 0.0), -each[1].cpu_hours, each[1].site))


class ReleasedMachines(NamedTuple):
    """The machines of a site that were released after being idle, what they cost while they were idle, and what each of
    :data:`FRACTIONS` of ``idle_seconds`` would have saved.
    """

    number: int = 0
    usd: float = 0.0
    cpu_hours: float = 0.0
    usd_saved: Sequence[float] = ()
    cpu_hours_saved: Sequence[float] = ()


def released_machines(session: Session, since: float, until: float) -> dict[str, ReleasedMachines]:
    """Sum up by site the machines that ended in a time range after being idle."""
    kept = SiteRow.idle_seconds
    tail = InstanceRow.ended_at - InstanceRow.idle_since
    # A machine can stay up for longer than the setting while its release is delayed; no setting saves that.
    capped = case((tail > kept, kept), else_=tail)
    seconds = [tail, *(case((capped > kept * part, capped - kept * part), else_=0.0) for part in FRACTIONS)]
    sums = [func.sum(each * time) for each in (InstanceRow.usd_per_hour, InstanceRow.cpus) for time in seconds]
    query: Any = select(SiteRow.name, func.count(), *sums).join(InstanceRow, InstanceRow.site == SiteRow.name)
    query = query.where(
        kept.is_not(None),
        InstanceRow.state == InstanceState.ENDED,
        InstanceRow.ended_at >= since,
        InstanceRow.ended_at < until,
        InstanceRow.idle_since.is_not(None),
    )
    found = {}
    for name, machines, *each in session.execute(query.group_by(SiteRow.name)):
        (usd, *usd_saved), (cpu_hours, *cpu_hours_saved) = (
            [float(amount or 0.0) / 3600 for amount in half] for half in (each[: len(seconds)], each[len(seconds) :])
        )
        found[str(name)] = ReleasedMachines(int(machines), usd, cpu_hours, usd_saved, cpu_hours_saved)
    return found


def billed(
    session: Session, sight: Sight, since: float, until: float, split: Split, now: float
) -> dict[SplitKey, BillParts]:
    """Sum up by row what Dags the user can read were billed within a time range.

    :param since: the start of a day in UTC
    """
    known = known_days(session, since, until, now)
    days = {day for day in known.kept if since <= day * SECONDS_PER_DAY and (day + 1) * SECONDS_PER_DAY <= until}
    found = bill_days.by_split(session, days, split, sight.condition(BillDayRow.dag_id))
    for one, other in not_kept(known, since, until):
        for key, parts in bill(session, one, other).items():
            if sight.sees(key.dag_id):
                found.setdefault(bill_days.row_key(key, split), BillParts()).add(parts)
    return found


def as_rows(found: BillRows, kept: Kept, begins: Sequence[float], by: Period) -> list[BillRow]:
    """Make rows for the largest totals, one for Dags the user cannot read, one for all others, and one for machines.

    :param kept: reads the stored sums of rows in each period
    :param begins: the starts of the periods
    """
    machines = SplitKey(MACHINES)
    ordered = sorted(found.sums.keys() - {machines}, key=lambda key: (*by_size(found.sums[key]), key))
    most = max(1, min(MOST_ROWS, MOST_SUMS // len(begins)))
    # The cost of machines that belongs to no row is always shown.
    shown, others = [*ordered[:most], *({machines} & found.sums.keys())], ordered[most:]
    numbers = {number_of(int(begin) // SECONDS_PER_DAY, by): index for index, begin in enumerate(begins)}
    sums: dict[SplitKey, dict[int, PeriodSum]] = {key: {} for key in shown}
    for key, at, a_sum in kept(shown):
        sums[key][numbers[at]] = a_sum
    rows = []
    for key in shown:
        each = [plus(sums[key].get(index), found.recent.get(key, {}).get(index)) for index in range(len(begins))]
        rows.append((found.sums[key], as_row(key, found.sums[key], each)))
    hidden = total(found.hidden)
    if hidden.jobs:
        rows.append((hidden, as_row(SplitKey("hidden"), hidden, [plus(None, each) for each in found.hidden])))
    rows.sort(key=lambda row: (row[1].kind == MACHINES, *by_size(row[0])))
    if others:
        named = [row for _, row in rows]
        rest = [
            without(whole, [(row.usd[index], row.cpu_hours[index]) for row in named])
            for index, whole in enumerate(found.totals)
        ]
        whole = total(found.sums[key] for key in others)
        at = len(rows) - (rows[-1][1].kind == MACHINES)
        rows.insert(at, (whole, as_row(SplitKey("others"), whole, rest)))
    return [row for _, row in rows]


def by_size(parts: BillParts) -> tuple[float, float]:
    """The sort key of totals, largest first."""
    return -(parts.usd or 0.0), -parts.cpu_seconds


def plus(kept: PeriodSum | None, recent: BillParts | None) -> PeriodSum:
    each = [] if kept is None else [kept]
    each += [] if recent is None else [PeriodSum(recent.usd, recent.cpu_seconds)]
    usd = [one.usd for one in each if one.usd is not None]
    return PeriodSum(sum(usd) if usd else None, sum(one.cpu_seconds for one in each))


def without(whole: BillParts, parts: Sequence[tuple[float | None, float]]) -> PeriodSum:
    """Subtract rows, given as USD and cpu-hours, from the total of a period."""
    usd = None if whole.usd is None else max(0.0, whole.usd - sum(each or 0.0 for each, _ in parts))
    return PeriodSum(usd, max(0.0, whole.cpu_seconds - 3600 * sum(hours for _, hours in parts)))


def as_row(key: SplitKey, whole: BillParts, each: Sequence[PeriodSum]) -> BillRow:
    kinds: dict[str, Literal["machines", "hidden", "others"]] = {
        MACHINES: "machines", "hidden": "hidden", "others": "others",
    }  # fmt: skip
    return BillRow(
        kind=kinds.get(key.split, "named"),
        dag_id=key.dag_id or None if key.split in ("dag", "task", "run") else None,
        task_id=key.task_id or None,
        run_id=key.name or None if key.split == "run" else None,
        site=key.name or None if key.split == "site" else None,
        team=key.name or None if key.split == "team" else None,
        total=as_amounts(whole),
        usd=[one.usd for one in each],
        cpu_hours=[one.cpu_seconds / 3600 for one in each],
    )


def as_amounts(found: BillParts) -> BillAmounts:
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
