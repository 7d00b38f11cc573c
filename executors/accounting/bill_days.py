"""Bills summed up by day, so that the bill of a year reads the jobs of no day but today.

A day is summed up once it is over, again two days later, and whenever a job or machine that ended on it changes. Until
then, reading a bill sums that day up from its jobs, so a bill is never out of date.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Double,
    Index,
    Integer,
    String,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.accounting import bills
from lading.executors.accounting.bills import BillKey
from lading.executors.store.jobs import CHUNK
from lading.executors.store.tables import Base, Capacity, InstanceRow, InstanceState, JobRow, StringID, UsageRow
from lading.scheduling.accounting.bill import PARTS, BillParts
from lading.scheduling.accounting.periods import SECONDS_PER_DAY, Period

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


Split = Literal["dag", "task", "run", "site", "team"]
SPLITS: tuple[Split, ...] = ("dag", "task", "run", "site", "team")
# Special values of `split`: the whole day; machine time not charged to any job; the mark of the last check for changes.
WHOLE, MACHINES, CHECKED = "whole", "machines", "checked"
DAY, WEEK, MONTH = (each.value for each in Period)
SUMS = (
    "jobs", "failed", "used", "unused", "idle", "boot", "usd_used", "usd_unused", "usd_idle", "usd_boot",
)  # fmt: skip


class BillDayRow(Base):
    """A sum of what was billed in a day, week or month, for one value of a split."""

    __tablename__ = "lading_bill"

    level: Mapped[str] = mapped_column(String(5), primary_key=True)
    split: Mapped[str] = mapped_column(String(8), primary_key=True)
    # Days since the epoch, in UTC; for a week or a month, its first day.
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # Empty if the sum has no Dag or task, or is not split by it.
    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    task_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # Of a run, a site or a team.
    name: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # The week and month that contain the day: weeks since the epoch, starting on Monday, and months since the year 0.
    week: Mapped[int] = mapped_column(Integer)
    month: Mapped[int] = mapped_column(Integer)
    jobs: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    # Cpu-seconds.
    used: Mapped[float] = mapped_column(Double)
    unused: Mapped[float] = mapped_column(Double)
    idle: Mapped[float] = mapped_column(Double)
    boot: Mapped[float] = mapped_column(Double)
    # NULL if nothing in the sum has a price.
    usd_used: Mapped[float | None] = mapped_column(Double)
    usd_unused: Mapped[float | None] = mapped_column(Double)
    usd_idle: Mapped[float | None] = mapped_column(Double)
    usd_boot: Mapped[float | None] = mapped_column(Double)
    # When the sum was made, in epoch seconds; 0: it is out of date.
    at: Mapped[float] = mapped_column(Double)

    __table_args__ = (
        Index("lading_bill_name", "split", "dag_id", "task_id", "name", "day"),
        Index("lading_bill_week", "week", "level"),
        Index("lading_bill_month", "month", "level"),
    )


class SplitKey(NamedTuple):
    """What a sum belongs to; an empty field means none, or that the sum is not split by it.

    :param split: how the bill is split; :data:`MACHINES` for machine time not charged to any job
    :param name: the name of a run, a site or a team
    """

    split: str
    dag_id: str = ""
    task_id: str = ""
    name: str = ""


def split_key(key: BillKey, split: Split) -> SplitKey:
    dag_id = key.dag_id or ""
    if split == "site":
        return SplitKey(split, dag_id, name=key.site or "")
    if key.task_id is None:
        return SplitKey(MACHINES)
    if split in ("run", "team"):
        return SplitKey(split, dag_id, name=(key.run_id if split == "run" else key.team) or "")
    return SplitKey(split, dag_id, key.task_id if split == "task" else "")


def month_of(day: int) -> int:
    """Return the month of a day, in months since the year 0."""
    date = datetime.fromtimestamp(day * SECONDS_PER_DAY, timezone.utc)
    return date.year * 12 + date.month - 1


def week_of(day: int) -> int:
    """Return the week of a day, in weeks since the epoch, which was a Thursday."""
    return (day + 3) // 7


def number_of(day: int, period: Period) -> int:
    """Return the number of the day, week or month that contains a day."""
    return {Period.DAY: day, Period.WEEK: week_of(day), Period.MONTH: month_of(day)}[period]


def first_day(number: int, period: Period) -> int:
    """Return the first day of a period, in days since the epoch.

    :param number: as returned by :func:`number_of`
    """
    if period is Period.MONTH:
        first = datetime(number // 12, number % 12 + 1, 1, tzinfo=timezone.utc)
        return int(first.timestamp()) // SECONDS_PER_DAY
    return number * 7 - 3 if period is Period.WEEK else number


# Summing up.


def sum_up(session: Session, now: float, seconds: float = 0.2) -> bool:
    """Sum up days that are over, latest first, but at least one; return whether all are done.

    :param now: epoch seconds
    :param seconds: for about which days are summed up
    """
    began = time.monotonic()
    # A day is summed up once it has been over for ten minutes: by then most of its jobs' ends are stored.
    last = int((now - 600.0) // SECONDS_PER_DAY) - 1
    known = summed_up(session)
    note_changed(session, known, now)
    first = first_known(session)
    days = [] if first is None else [day for day in range(last, first - 1, -1) if is_due(day, known.get(day), now)]
    for number, day in enumerate(days):
        if number and time.monotonic() - began > seconds:
            return False
        sum_up_day(session, day, now)
    return True


def is_due(day: int, at: float | None, now: float) -> bool:
    """Whether a day that is over has to be summed up.

    :param at: when it was last summed up; None or 0: never, or the sum is out of date
    """
    # If a site did not answer, the start of a job or the idle time of a machine may become known two days late.
    settled = (day + 1) * SECONDS_PER_DAY + 2 * 86400.0
    return not at or at < settled <= now


def sum_up_day(session: Session, day: int, now: float) -> None:
    """Sum up a day, then its week and month, replacing the sums kept so far."""
    since = day * float(SECONDS_PER_DAY)
    found: dict[SplitKey, BillParts] = {SplitKey(WHOLE): BillParts()}
    for key, parts in bills.bill(session, since, since + SECONDS_PER_DAY).items():
        keys = {split_key(key, split) for split in SPLITS}
        for each in (SplitKey(WHOLE), *keys):
            found.setdefault(each, BillParts()).add(parts)
    when = {"level": DAY, "day": day, "week": week_of(day), "month": month_of(day), "at": now}
    table: Any = BillDayRow.__table__
    session.execute(delete(table).where(table.c.level == DAY, table.c.day == day))
    session.execute(insert(table), [{**when, **key._asdict(), **columns_of(parts)} for key, parts in found.items()])
    for period in (Period.WEEK, Period.MONTH):
        sum_up_period(session, day, period, now)


def sum_up_period(session: Session, day: int, period: Period, now: float) -> None:
    """Sum up the days of the week or month that contains a day, replacing the sum kept so far."""
    table: Any = BillDayRow.__table__
    column, number = (table.c.week if period is Period.WEEK else table.c.month), number_of(day, period)
    session.execute(delete(table).where(table.c.level == period.value, column == number))
    names = (*SplitKey._fields, *SUMS)
    keys_and_sums = (
        *(table.c[name] for name in SplitKey._fields),
        *(func.sum(table.c[name]).label(name) for name in SUMS),
    )
    first = first_day(number, period)
    constants = map(literal, (period.value, first, week_of(first), month_of(first), now))
    its = select(*constants, *keys_and_sums)
    its = its.where(table.c.level == DAY, column == number, table.c.split != CHECKED)
    columns = ("level", "day", "week", "month", "at", *names)
    session.execute(insert(table).from_select(columns, its.group_by(*keys_and_sums[: len(SplitKey._fields)])))


def columns_of(parts: BillParts) -> dict[str, Any]:
    return {name: None if name.startswith("usd") and not parts.is_priced else getattr(parts, name) for name in SUMS}


def note_changed(session: Session, known: dict[int, float], now: float) -> None:
    """Mark the kept days that are out of date, and record that changes were checked until now."""
    checked = checked_at(session)
    mark = (BillDayRow.level == DAY, BillDayRow.split == CHECKED)
    stale: list[int] = []
    if checked is not None and session.scalar(select(BillDayRow.jobs).where(*mark)) != len(SPLITS):
        stale = sorted(known)  # an earlier release kept fewer splits
    elif known and checked is not None:
        stale = sorted(changed_days(session, checked, now) & known.keys())
    table: Any = BillDayRow.__table__
    for start in range(0, len(stale), CHUNK):
        some = stale[start : start + CHUNK]
        session.execute(update(table).where(table.c.split == WHOLE, table.c.day.in_(some)).values(at=0.0))
        known.update(dict.fromkeys(some, 0.0))
    if checked is None:
        row = {"level": DAY, "day": 0, "week": 0, "month": 0, "at": now, **SplitKey(CHECKED)._asdict()}
        session.execute(insert(table), [{**row, **columns_of(BillParts(jobs=len(SPLITS)))}])
    else:
        session.execute(update(table).where(*mark).values(at=now, jobs=len(SPLITS)))


def checked_at(session: Session) -> float | None:
    """Return the time, in epoch seconds, up to which changes have been checked; None: never."""
    return session.scalar(select(BillDayRow.at).where(BillDayRow.level == DAY, BillDayRow.split == CHECKED))


def changed_days(session: Session, since: float, now: float) -> set[int]:
    """Return the past days on which jobs or machines ended that have changed since a time.

    A changed job also affects the day on which its machine ended: the time not charged to any job is billed on that
    day.
    """
    # The hosts' clocks differ by less than a minute, and no transaction takes longer.
    since, today = since - 60.0, now // SECONDS_PER_DAY * SECONDS_PER_DAY
    found: set[int] = set()
    # With the day computed in the query, SQLite and MariaDB would scan the index of ends.
    jobs = select(JobRow.ended_at).where(JobRow.changed_at >= since, func.coalesce(JobRow.ended_at, now) < today)
    machines = select(InstanceRow.ended_at).where(
        InstanceRow.state == InstanceState.ENDED, InstanceRow.changed_at >= since, InstanceRow.ended_at < today
    )
    theirs = (
        select(InstanceRow.ended_at)
        .join(JobRow, JobRow.location == InstanceRow.token)
        .where(JobRow.changed_at >= since, InstanceRow.state == InstanceState.ENDED, InstanceRow.ended_at < today)
    )
    for query in (jobs, machines, theirs):
        found.update(int(at // SECONDS_PER_DAY) for at in session.scalars(query) if at is not None)
    return found


def summed_up(session: Session, first: int | None = None, until: int | None = None) -> dict[int, float]:
    """Return when each kept day was summed up.

    :param first: the first day wanted; None: no lower limit
    :param until: the day after the last day wanted
    """
    conditions = [BillDayRow.level == DAY, BillDayRow.split == WHOLE]
    conditions += [] if first is None else [BillDayRow.day >= first]
    conditions += [] if until is None else [BillDayRow.day < until]
    rows: Any = session.execute(select(BillDayRow.day, BillDayRow.at).where(*conditions)).all()
    return dict(rows)


def first_known(session: Session) -> int | None:
    """Return the first day with any data; None: the store is empty."""
    ended = [session.scalar(select(func.min(each))) for each in (JobRow.ended_at, InstanceRow.ended_at)]
    at_hand = session.scalar(select(func.min(Capacity.since)))
    if at_hand is not None:  # their earlier idle time is in the usage rows, and is deleted with those
        at_hand = max(at_hand, bills.kept_until(session))
    days = [int(at // SECONDS_PER_DAY) for at in (*ended, at_hand) if at is not None]
    # A row that only marks a day without machines at hand is written even if the store is younger than that day, so it
    # does not count as data.
    is_mark = and_(UsageRow.dag_id == "", UsageRow.size_class == bills.AT_HAND, UsageRow.site == "")
    kept = session.scalar(select(func.min(UsageRow.day)).where(~is_mark))
    return min([*days, *([] if kept is None else [kept])], default=None)


def forget(session: Session, before: int) -> None:
    """Delete the sums of days before `before`, and of weeks and months that began before it."""
    table: Any = BillDayRow.__table__
    session.execute(delete(table).where(table.c.day < before, table.c.split != CHECKED))


# Reading.


class KnownDays(NamedTuple):
    """The days whose sums are kept, and the first day with any data.

    :param kept: the days whose sums are up to date
    :param first: None: the store is empty
    """

    kept: frozenset[int]
    first: int | None


def known_days(session: Session, since: float, until: float, now: float) -> KnownDays:
    """Return which days between two times have sums that are up to date."""
    kept = {day for day, at in summed_up(session, int(since // SECONDS_PER_DAY), day_behind(until)).items() if at}
    checked = checked_at(session)
    if kept and checked is not None:
        kept -= changed_days(session, checked, now)
    return KnownDays(frozenset(kept), first_known(session))


def day_behind(until: float) -> int:
    """Return the day after the last day that begins before a time."""
    return -int(-until // SECONDS_PER_DAY)


def not_kept(known: KnownDays, since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a time span that no kept sum covers, oldest first."""
    if known.first is None:
        return
    days = range(max(known.first, int(since // SECONDS_PER_DAY)), day_behind(until))
    for first, behind in runs(day for day in days if day not in known.kept):
        yield max(since, first * float(SECONDS_PER_DAY)), min(until, behind * float(SECONDS_PER_DAY))


def runs(days: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each run of consecutive days as its first day and the day after its last.

    :param days: in ascending order
    """
    first = behind = None
    for day in days:
        if first is None or day != behind:
            if first is not None and behind is not None:
                yield first, behind
            first = day
        behind = day + 1
    if first is not None and behind is not None:
        yield first, behind


def within(days: Collection[int]) -> ColumnElement[bool]:
    return or_(*(and_(BillDayRow.day >= first, BillDayRow.day < behind) for first, behind in runs(sorted(days))))


def sums() -> list[Any]:
    return [func.sum(getattr(BillDayRow, name)) for name in SUMS]


def as_parts(values: Sequence[Any]) -> BillParts:
    """Build the parts of a bill from the values of the columns :data:`SUMS`."""
    found = dict(zip(SUMS, values, strict=True))
    amounts = {name: float(value or 0.0) for name, value in found.items() if name not in ("jobs", "failed")}
    is_priced = found["usd_used"] is not None
    return BillParts(int(found["jobs"]), int(found["failed"]), **amounts, is_priced=is_priced)


def whole_days(session: Session, days: Collection[int]) -> dict[int, BillParts]:
    if not days:
        return {}
    columns = (BillDayRow.day, *(getattr(BillDayRow, name) for name in SUMS))
    query = select(*columns).where(BillDayRow.level == DAY, BillDayRow.split == WHOLE, within(days))
    return {day: as_parts(values) for day, *values in session.execute(query)}


def days_of_dags(
    session: Session, days: Collection[int], which: ColumnElement[bool]
) -> dict[int, tuple[BillParts, int]]:
    """Return what was billed to some Dags on each of these days, and how many of the Dags had jobs on it."""
    if not days:
        return {}
    dags = func.count(case((BillDayRow.jobs > 0, BillDayRow.dag_id)).distinct())
    query = select(BillDayRow.day, dags, *sums()).where(BillDayRow.level == DAY, BillDayRow.split == "dag")
    rows = session.execute(query.where(within(days), which).group_by(BillDayRow.day))
    return {day: (as_parts(values), number) for day, number, *values in rows}


# The columns that identify a row of a bill; a Dag next to them says who is allowed to see the amount.
OF_ROW: dict[Split, tuple[str, ...]] = {
    "dag": ("dag_id",), "task": ("dag_id", "task_id"), "run": ("dag_id", "name"), "site": ("name",), "team": ("name",),
}  # fmt: skip


def row_key(key: BillKey, split: Split) -> SplitKey:
    found = split_key(key, split)
    return SplitKey(found.split, **{name: getattr(found, name) for name in OF_ROW[split]})


def key_columns(split: Split) -> tuple[list[Any], list[Any]]:
    """Return the columns of :func:`row_key`, and those of them to group by."""
    others = SplitKey._fields[1:]
    columns = [getattr(BillDayRow, name) if name in OF_ROW[split] else literal("").label(name) for name in others]
    return [BillDayRow.split, *columns], [BillDayRow.split, *(getattr(BillDayRow, name) for name in OF_ROW[split])]


def splits_of(split: Split) -> tuple[str, ...]:
    """Return the values of the column `split` that a bill with this split contains."""
    return (split,) if split == "site" else (split, MACHINES)


def by_split(
    session: Session, days: Collection[int], split: Split, which: ColumnElement[bool]
) -> dict[SplitKey, BillParts]:
    """Return what was billed to some Dags on all of these days together, by row, using the sums of whole months.

    :param which: the condition that selects the Dags
    """
    columns, grouped = key_columns(split)
    found: dict[SplitKey, BillParts] = {}
    for when in by_level(days, Period.MONTH):
        its = (when, BillDayRow.split.in_(splits_of(split)), which)
        for *key, in_sum in rows_of(session.execute(select(*columns, *sums()).where(*its).group_by(*grouped))):
            found.setdefault(SplitKey(*key), BillParts()).add(in_sum)
    return found


def by_level(days: Collection[int], period: Period) -> Iterator[ColumnElement[bool]]:
    """Yield conditions for the rows of complete periods within these days, and for the rows of the remaining days."""
    numbers = Counter(number_of(day, period) for day in days)
    whole = {
        number for number, has in numbers.items() if has == first_day(number + 1, period) - first_day(number, period)
    }
    others = [day for day in days if number_of(day, period) not in whole]
    firsts = sorted(first_day(number, period) for number in whole)
    if period is Period.DAY:
        others, firsts = [*days], []
    for start in range(0, len(firsts), CHUNK):
        yield and_(BillDayRow.level == period.value, BillDayRow.day.in_(firsts[start : start + CHUNK]))
    if others:
        yield and_(BillDayRow.level == DAY, within(others))


def rows_of(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Split each row into its key and the parts of the bill that follow it."""
    for row in rows:
        yield [*row[: -len(SUMS)], as_parts(row[-len(SUMS) :])]


class PeriodSum(NamedTuple):
    """What was billed in a period.

    :param usd: None: nothing in it has a price
    """

    usd: float | None
    cpu_seconds: float


def by_period(
    session: Session,
    days: Collection[int],
    keys: Collection[SplitKey],
    split: Split,
    period: Period,
    which: ColumnElement[bool],
) -> Iterator[tuple[SplitKey, int, PeriodSum]]:
    """Yield what was billed on these days for some rows of a bill, by day, week (:func:`week_of`) or month.

    :param which: the condition that selects the Dags
    """
    number = {Period.DAY: BillDayRow.day, Period.WEEK: BillDayRow.week, Period.MONTH: BillDayRow.month}[period]
    columns, grouped = key_columns(split)
    amounts, ordered = [func.sum(each) for each in (whole("usd_"), whole(""))], sorted(keys)
    for when in by_level(days, period):
        for start in range(0, len(ordered), CHUNK):
            its = (when, or_(*conditions(ordered[start : start + CHUNK], split)), which)
            query = select(*columns, number, *amounts).where(*its).group_by(*grouped, number)
            for *key, at, usd, seconds in session.execute(query):
                yield SplitKey(*key), at, PeriodSum(usd, float(seconds))


def whole(prefix: str) -> ColumnElement[float]:
    """Return the sum of the four parts of a bill, in SQL; NULL if they have no price."""
    first, *others = (getattr(BillDayRow, f"{prefix}{part}") for part in PARTS)
    for each in others:
        first = first + each
    found: ColumnElement[float] = first
    return found


def conditions(keys: Iterable[SplitKey], split: Split) -> list[ColumnElement[bool]]:
    """Return conditions that together select the rows of the keys, and that an index can serve one by one."""
    found: list[ColumnElement[bool]] = []
    by_dag: dict[tuple[str, str], list[SplitKey]] = {}
    for key in keys:
        by_dag.setdefault((key.split, key.dag_id), []).append(key)
    for (its, dag_id), alike in by_dag.items():
        each = [BillDayRow.split == its]
        if "dag_id" in OF_ROW[split] or its == MACHINES:
            each.append(BillDayRow.dag_id == dag_id)
        if "task_id" in OF_ROW[split]:
            each.append(BillDayRow.task_id.in_([key.task_id for key in alike]))
        if "name" in OF_ROW[split]:
            each.append(BillDayRow.name.in_([key.name for key in alike]))
        found.append(and_(*each))
    return found
