"""Bills that are kept by day: the sums of each day that is over, so that a bill of a year reads no jobs but today's.

A day is summed up when it is over, once more after :data:`SECONDS_UNTIL_SETTLED`, and whenever a job or a machine has
changed that ended on it. Until then what reads a bill sums that day up itself, so a bill is never out of date.
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

from lading.executors.store import bills
from lading.executors.store.bills import BillKey
from lading.executors.store.jobs import CHUNK
from lading.executors.store.tables import Base, Capacity, InstanceRow, InstanceState, JobRow, StringID, UsageRow
from lading.scheduling.insight.bill import PARTS, BillParts
from lading.scheduling.insight.periods import SECONDS_PER_DAY, Period

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A day may be summed up when it has been over for so long, seconds: most of its ends are stored then.
SECONDS_LATE = 600.0
# When a job has begun, and what of a machine at hand idled, may be known later, where a site did not answer.
SECONDS_UNTIL_SETTLED = 2 * 86400.0
# Clocks of several hosts differ by less, and so long a transaction lasts, seconds.
SECONDS_APART = 60.0
# A round sums up days for about so long, seconds, and one in any case.
SECONDS_OF_ROUND = 0.2

Split = Literal["dag", "task", "run", "site", "team"]
SPLITS: tuple[Split, ...] = ("dag", "task", "run", "site", "team")
# All of a day; what no job was charged of machines; and since when there was no look at what has changed.
WHOLE, MACHINES, CHECKED = "whole", "machines", "checked"
DAY, WEEK, MONTH = (each.value for each in Period)
SUMS = (
    "jobs", "failed", "used", "unused", "idle", "boot", "usd_used", "usd_unused", "usd_idle", "usd_boot",
)  # fmt: skip


class BillDayRow(Base):
    """What was billed on a day, in a week or in a month, by what a bill is split by."""

    __tablename__ = "lading_bill"

    level: Mapped[str] = mapped_column(String(5), primary_key=True)
    split: Mapped[str] = mapped_column(String(8), primary_key=True)
    # Since the epoch, in UTC; of a week or a month its first.
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # Empty: of none, or by none.
    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    task_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # Of a site, or a team.
    name: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # In which the day is: weeks since the epoch that begin on Monday, and months since the year 0.
    week: Mapped[int] = mapped_column(Integer)
    month: Mapped[int] = mapped_column(Integer)
    jobs: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    # Cpu-seconds.
    used: Mapped[float] = mapped_column(Double)
    unused: Mapped[float] = mapped_column(Double)
    idle: Mapped[float] = mapped_column(Double)
    boot: Mapped[float] = mapped_column(Double)
    # None: nothing of it has a price.
    usd_used: Mapped[float | None] = mapped_column(Double)
    usd_unused: Mapped[float | None] = mapped_column(Double)
    usd_idle: Mapped[float | None] = mapped_column(Double)
    usd_boot: Mapped[float | None] = mapped_column(Double)
    # When it was summed up, epoch seconds; 0: it is out of date.
    at: Mapped[float] = mapped_column(Double)

    __table_args__ = (
        Index("lading_bill_name", "split", "dag_id", "task_id", "name", "day"),
        Index("lading_bill_week", "week", "level"),
        Index("lading_bill_month", "month", "level"),
    )


class SplitKey(NamedTuple):
    """Whose a sum is; empty: of none, or by none.

    :param split: what it is split by; :data:`MACHINES`: no job was charged it
    :param name: of a run, a site, or a team
    """

    split: str
    dag_id: str = ""
    task_id: str = ""
    name: str = ""


def split_key(key: BillKey, split: Split) -> SplitKey:
    """Whose a part of a bill is, by what it is split by."""
    dag_id = key.dag_id or ""
    if split == "site":
        return SplitKey(split, dag_id, name=key.site or "")
    if key.task_id is None:
        return SplitKey(MACHINES)
    if split in ("run", "team"):
        return SplitKey(split, dag_id, name=(key.run_id if split == "run" else key.team) or "")
    return SplitKey(split, dag_id, key.task_id if split == "task" else "")


def month_of(day: int) -> int:
    """The month in which a day is, in months since the year 0."""
    date = datetime.fromtimestamp(day * SECONDS_PER_DAY, timezone.utc)
    return date.year * 12 + date.month - 1


def week_of(day: int) -> int:
    """The week in which a day is, in weeks since the epoch; the epoch was a Thursday."""
    return (day + 3) // 7


def number_of(day: int, period: Period) -> int:
    """The period in which a day is."""
    return {Period.DAY: day, Period.WEEK: week_of(day), Period.MONTH: month_of(day)}[period]


def first_day(number: int, period: Period) -> int:
    """The first day of a period, in days since the epoch.

    :param number: see :func:`number_of`
    """
    if period is Period.MONTH:
        first = datetime(number // 12, number % 12 + 1, 1, tzinfo=timezone.utc)
        return int(first.timestamp()) // SECONDS_PER_DAY
    return number * 7 - 3 if period is Period.WEEK else number


# Summing up.


def sum_up(session: Session, now: float) -> bool:
    """Sum up days that are over, the youngest first, for about :data:`SECONDS_OF_ROUND`; returns whether all are.

    :param now: epoch seconds
    """
    began = time.monotonic()
    last = int((now - SECONDS_LATE) // SECONDS_PER_DAY) - 1
    known = summed_up(session)
    note_changed(session, known, now)
    first = first_known(session)
    days = [] if first is None else [day for day in range(last, first - 1, -1) if is_due(day, known.get(day), now)]
    for number, day in enumerate(days):
        if number and time.monotonic() - began > SECONDS_OF_ROUND:
            return False
        sum_up_day(session, day, now)
    return True


def is_due(day: int, at: float | None, now: float) -> bool:
    """Whether a day that is over is to be summed up.

    :param at: when it was last; None, or 0: it is not
    """
    settled = (day + 1) * SECONDS_PER_DAY + SECONDS_UNTIL_SETTLED
    return not at or at < settled <= now


def sum_up_day(session: Session, day: int, now: float) -> None:
    """Sum up a day, in the place of what is kept of it, and its week and month."""
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
    """Sum up the days of the week or the month of a day, in the place of what is kept of it."""
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
    """The columns of a sum."""
    return {name: None if name.startswith("usd") and not parts.is_priced else getattr(parts, name) for name in SUMS}


def note_changed(session: Session, known: dict[int, float], now: float) -> None:
    """Note which of the days that are kept are out of date, and that this was looked at."""
    checked = checked_at(session)
    mark = (BillDayRow.level == DAY, BillDayRow.split == CHECKED)
    stale: list[int] = []
    if checked is not None and session.scalar(select(BillDayRow.jobs).where(*mark)) != len(SPLITS):
        stale = sorted(known)  # an earlier release has kept fewer splits
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
    """Until when it was looked at what has changed, epoch seconds; None: never."""
    return session.scalar(select(BillDayRow.at).where(BillDayRow.level == DAY, BillDayRow.split == CHECKED))


def changed_days(session: Session, since: float, now: float) -> set[int]:
    """The days that are over on which jobs and machines have ended that were changed since a time, or machines on which
    such jobs were: what is left of a machine is billed when that has ended.
    """
    since, today = since - SECONDS_APART, now // SECONDS_PER_DAY * SECONDS_PER_DAY
    found: set[int] = set()
    # By the day in the query SQLite and MariaDB would look through the index of ends.
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
    """The days that are kept, each with when it was summed up.

    :param first: the first that matters; None: any
    :param until: the day behind the last
    """
    conditions = [BillDayRow.level == DAY, BillDayRow.split == WHOLE]
    conditions += [] if first is None else [BillDayRow.day >= first]
    conditions += [] if until is None else [BillDayRow.day < until]
    rows: Any = session.execute(select(BillDayRow.day, BillDayRow.at).where(*conditions)).all()
    return dict(rows)


def first_known(session: Session) -> int | None:
    """The first day of which anything is kept; None: nothing is."""
    ended = [session.scalar(select(func.min(each))) for each in (JobRow.ended_at, InstanceRow.ended_at)]
    at_hand = session.scalar(select(func.min(Capacity.since)))
    if at_hand is not None:  # what they idled before is kept with what is forgotten, and is deleted with that
        at_hand = max(at_hand, bills.kept_until(session))
    days = [int(at // SECONDS_PER_DAY) for at in (*ended, at_hand) if at is not None]
    # A row that says only that nothing was kept is written of the day before which jobs are forgotten, however old the
    # store is.
    is_mark = and_(UsageRow.dag_id == "", UsageRow.size_class == bills.AT_HAND, UsageRow.site == "")
    kept = session.scalar(select(func.min(UsageRow.day)).where(~is_mark))
    return min([*days, *([] if kept is None else [kept])], default=None)


def forget(session: Session, before: int) -> None:
    """Delete the days before one, and their months."""
    table: Any = BillDayRow.__table__
    session.execute(delete(table).where(table.c.day < before, table.c.split != CHECKED))


# Reading.


class KnownDays(NamedTuple):
    """Of which days the sums are kept, and of which anything is known.

    :param kept: those that are up to date
    :param first: the first of which anything is known; None: of none
    """

    kept: frozenset[int]
    first: int | None


def known_days(session: Session, since: float, until: float, now: float) -> KnownDays:
    """The days between two times of which the sums are kept, and are up to date."""
    kept = {day for day, at in summed_up(session, int(since // SECONDS_PER_DAY), day_behind(until)).items() if at}
    checked = checked_at(session)
    if kept and checked is not None:
        kept -= changed_days(session, checked, now)
    return KnownDays(frozenset(kept), first_known(session))


def day_behind(until: float) -> int:
    """The day behind the last of which a part is before a time."""
    return -int(-until // SECONDS_PER_DAY)


def not_kept(known: KnownDays, since: float, until: float) -> Iterator[tuple[float, float]]:
    """The parts of a time of which no sums are kept, oldest first."""
    if known.first is None:
        return
    days = range(max(known.first, int(since // SECONDS_PER_DAY)), day_behind(until))
    for first, behind in runs(day for day in days if day not in known.kept):
        yield max(since, first * float(SECONDS_PER_DAY)), min(until, behind * float(SECONDS_PER_DAY))


def runs(days: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The days in portions that follow each other, each by its first and the one behind its last.

    :param days: in their order
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
    """The condition for rows of these days."""
    return or_(*(and_(BillDayRow.day >= first, BillDayRow.day < behind) for first, behind in runs(sorted(days))))


def sums() -> list[Any]:
    return [func.sum(getattr(BillDayRow, name)) for name in SUMS]


def as_parts(values: Sequence[Any]) -> BillParts:
    """A sum of the columns :data:`SUMS`."""
    found = dict(zip(SUMS, values, strict=True))
    amounts = {name: float(value or 0.0) for name, value in found.items() if name not in ("jobs", "failed")}
    is_priced = found["usd_used"] is not None
    return BillParts(int(found["jobs"]), int(found["failed"]), **amounts, is_priced=is_priced)


def whole_days(session: Session, days: Collection[int]) -> dict[int, BillParts]:
    """What was billed on each of these days."""
    if not days:
        return {}
    columns = (BillDayRow.day, *(getattr(BillDayRow, name) for name in SUMS))
    query = select(*columns).where(BillDayRow.level == DAY, BillDayRow.split == WHOLE, within(days))
    return {day: as_parts(values) for day, *values in session.execute(query)}


def days_of_dags(
    session: Session, days: Collection[int], which: ColumnElement[bool]
) -> dict[int, tuple[BillParts, int]]:
    """What was billed on each of these days of some Dags, and of how many of them jobs."""
    if not days:
        return {}
    dags = func.count(case((BillDayRow.jobs > 0, BillDayRow.dag_id)).distinct())
    query = select(BillDayRow.day, dags, *sums()).where(BillDayRow.level == DAY, BillDayRow.split == "dag")
    rows = session.execute(query.where(within(days), which).group_by(BillDayRow.day))
    return {day: (as_parts(values), number) for day, number, *values in rows}


# Which columns make a row of a bill; a Dag beside them says who may see a part of it.
OF_ROW: dict[Split, tuple[str, ...]] = {
    "dag": ("dag_id",), "task": ("dag_id", "task_id"), "run": ("dag_id", "name"), "site": ("name",), "team": ("name",),
}  # fmt: skip


def row_key(key: BillKey, split: Split) -> SplitKey:
    """The row of a bill to which a part of it belongs."""
    found = split_key(key, split)
    return SplitKey(found.split, **{name: getattr(found, name) for name in OF_ROW[split]})


def key_columns(split: Split) -> tuple[list[Any], list[Any]]:
    """The columns of :func:`row_key`, and those of them by which rows are summed up."""
    others = SplitKey._fields[1:]
    columns = [getattr(BillDayRow, name) if name in OF_ROW[split] else literal("").label(name) for name in others]
    return [BillDayRow.split, *columns], [BillDayRow.split, *(getattr(BillDayRow, name) for name in OF_ROW[split])]


def splits_of(split: Split) -> tuple[str, ...]:
    """Which rows a split has."""
    return (split,) if split == "site" else (split, MACHINES)


def by_split(
    session: Session, days: Collection[int], split: Split, which: ColumnElement[bool]
) -> dict[SplitKey, BillParts]:
    """What was billed on all of these days together, of some Dags, by row; whole months are read as such.

    :param which: the condition for the Dags
    """
    columns, grouped = key_columns(split)
    found: dict[SplitKey, BillParts] = {}
    for when in by_level(days, Period.MONTH):
        its = (when, BillDayRow.split.in_(splits_of(split)), which)
        for *key, in_sum in rows_of(session.execute(select(*columns, *sums()).where(*its).group_by(*grouped))):
            found.setdefault(SplitKey(*key), BillParts()).add(in_sum)
    return found


def by_level(days: Collection[int], period: Period) -> Iterator[ColumnElement[bool]]:
    """The conditions for rows of these days: those of the periods of which all days are, and of the other days."""
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
    """Rows with the sums behind a key, each as the key and a sum."""
    for row in rows:
        yield [*row[: -len(SUMS)], as_parts(row[-len(SUMS) :])]


class PeriodSum(NamedTuple):
    """What was billed in a period.

    :param usd: None: nothing of it has a price
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
    """What was billed on these days of some rows, by the day, the week (:func:`week_of`) or the month.

    :param which: the condition for the Dags
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
    """All four parts of a row; NULL: the first is."""
    first, *others = (getattr(BillDayRow, f"{prefix}{part}") for part in PARTS)
    for each in others:
        first = first + each
    found: ColumnElement[float] = first
    return found


def conditions(keys: Iterable[SplitKey], split: Split) -> list[ColumnElement[bool]]:
    """The conditions of which rows of the keys meet one, each of which an index finds."""
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
