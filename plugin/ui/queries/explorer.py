"""The jobs explorer: which jobs are chosen, in which order, a page of them, and all of them as CSV.

Times are seconds since the epoch, durations seconds, memory MiB, money USD. None is what is not known, or what the user
may not see.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, usd_until
from lading.executors.store.figures import CPUS
from lading.executors.store.gangs.rows import held_for
from lading.executors.store.jobs import chunks
from lading.plugin.ui.queries.runs import TrySummary, as_try, boots_of
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.starts import as_estimate, starts

# It is counted how many match, up to so many.
MOST_COUNTED = 10_000
# What is sorted by something else than times is the youngest of the choice, so many of them.
MOST_SORTED = 20_000
# A file is made of so many rows at a time.
ROWS_AT_A_TIME = 2_000
MOST_WORDS = 5
# No time, sum or share is as large.
LAST = 1e300
RAN = JobRow.ended_at - JobRow.started_at

SortKey = Literal["queued", "started", "ended", "waited", "ran", "usd", "cpus_used", "memory_used"]
Order = Literal["desc", "asc"]


class JobPage(BaseModel):
    """A page of the jobs that are chosen."""

    now: float
    jobs: list[TrySummary]
    after: str | None
    """What asks for the next page; None: this is the last."""
    matching: int
    """How many are chosen, counted up to :data:`MOST_COUNTED`."""
    is_more: bool
    """Whether more than that are."""
    is_partial: bool
    """Whether only the youngest :data:`MOST_SORTED` were sorted, for more are chosen."""


@dataclass(frozen=True, slots=True)
class JobChoice:
    """Which jobs are asked for; None, or empty: any.

    :param q: what is looked for: parts of names of Dags, tasks and runs, ``task[3]``, the beginning of a native id, of
        a machine or of a node; of several words, apart by spaces, each must be found
    :param location: the name of a machine, an allocation or a node
    :param since: that were queued since then; ``until``: before
    """

    q: str | None = None
    dag_id: Sequence[str] = ()
    run_id: str | None = None
    task_id: str | None = None
    site: Sequence[str] = ()
    location: str | None = None
    state: Sequence[str] = ()
    cause: Sequence[str] = ()
    reason_code: Sequence[str] = ()
    reason_limit: str | None = None
    since: float | None = None
    until: float | None = None

    @property
    def names_any(self) -> bool:
        """Whether it asks for more than a time: which jobs have something would say what they are."""
        return any(getattr(self, each.name) for each in fields(self) if each.name not in ("since", "until"))

    def conditions(self, sight: Sight) -> list[ColumnElement[bool]]:
        """The conditions for these jobs."""
        found: list[Any] = [
            getattr(JobRow, name).in_(values)
            for name in ("dag_id", "site", "state", "cause", "reason_code")
            if (values := getattr(self, name))
        ]
        found += [
            getattr(JobRow, name) == value
            for name in ("run_id", "task_id", "reason_limit")
            if (value := getattr(self, name)) is not None
        ]
        if self.location is not None:
            found.append(or_(JobRow.location == self.location, JobRow.node == self.location))
        if self.since is not None:
            found.append(JobRow.queued_at >= self.since)
        if self.until is not None:
            found.append(JobRow.queued_at < self.until)
        found += [matches(word) for word in (self.q or "").split()[:MOST_WORDS]]
        if self.names_any:
            found.append(sight.condition())
        return found


def matches(word: str) -> ColumnElement[bool]:
    """The condition for jobs of which a name has a word in it, or another one begins with it."""
    parts = [getattr(JobRow, name).icontains(word, autoescape=True) for name in ("dag_id", "task_id", "run_id")]
    begins = [getattr(JobRow, name).istartswith(word, autoescape=True) for name in ("native_id", "node", "location")]
    if indexed := re.fullmatch(r"(.+)\[(\d{1,9})\]", word):
        task = JobRow.task_id.icontains(indexed[1], autoescape=True)
        parts.append(and_(task, JobRow.map_index == int(indexed[2])))
    return or_(*parts, *begins)


class Place(NamedTuple):
    """Where a page ends: what it was sorted by, and when that was.

    :param value: of its last job
    """

    now: float
    value: float
    token: str

    def __str__(self) -> str:
        return f"{self.now!r}:{self.value!r}:{self.token}"

    @classmethod
    def of(cls, text: str) -> Place:
        now, value, token = text.split(":", 2)
        return cls(float(now), float(value), token)


def sort_value(key: SortKey, order: Order, now: float) -> Any:
    """What jobs are sorted by; those that have none come last."""
    values: dict[str, Any] = {
        "queued": JobRow.queued_at,
        "started": JobRow.started_at,
        "ended": JobRow.ended_at,
        "waited": func.coalesce(JobRow.started_at, JobRow.ended_at, now) - JobRow.queued_at,
        "ran": func.coalesce(JobRow.ended_at, now) - JobRow.started_at,
        "usd": usd_until(now),
        "cpus_used": JobRow.cpu_seconds / func.nullif(CPUS * RAN, 0),
        "memory_used": JobRow.peak_memory * 1.0 / func.nullif(JobRow.memory, 0),
    }
    value = values[key]
    return value if key == "queued" else func.coalesce(value, -1.0 if order == "desc" else LAST)


def find_jobs(
    session: Session,
    sight: Sight,
    choice: JobChoice,
    now: float,
    sort: SortKey = "queued",
    order: Order = "desc",
    limit: int = 50,
    after: str | None = None,
) -> JobPage:
    """A page of the jobs that are chosen.

    :param after: the end of the page before, as it says it
    :raises ValueError: ``after`` is no such end
    """
    place = None if after is None else Place.of(after)
    conditions = choice.conditions(sight)
    if sort != "queued" and not choice.names_any:
        conditions.append(sight.condition())  # the order would say what they are
    number, is_more = count(session, conditions)
    seen_at = now if place is None else place.now
    found = page(session, conditions, sort, order, limit + 1, seen_at, place)
    shown = found[:limit]
    end = Place(seen_at, shown[-1][1], shown[-1][0]) if len(found) > limit else None
    return JobPage(
        now=now,
        jobs=load(session, sight, [token for token, _ in shown], now),
        after=None if end is None else str(end),
        matching=number,
        is_more=is_more,
        is_partial=is_more and sort not in ("queued",),
    )


def count(session: Session, conditions: Sequence[Any]) -> tuple[int, bool]:
    """How many jobs meet conditions, up to :data:`MOST_COUNTED`, and whether there are more."""
    some = select(JobRow.token).where(*conditions).limit(MOST_COUNTED + 1).subquery()
    number = session.scalar(select(func.count()).select_from(some)) or 0
    return min(number, MOST_COUNTED), number > MOST_COUNTED


def page(
    session: Session,
    conditions: Sequence[Any],
    sort: SortKey,
    order: Order,
    number: int,
    now: float,
    place: Place | None,
) -> list[tuple[str, float]]:
    """The tokens of the jobs of a page, each with what it is sorted by."""
    value = sort_value(sort, order, now)
    query = select(JobRow.token, value.label("value")).where(*conditions)
    if place is not None:
        beyond = value < place.value if order == "desc" else value > place.value
        query = query.where(or_(beyond, and_(value == place.value, JobRow.token > place.token)))
    by = value.desc() if order == "desc" else value
    return [(token, float(each)) for token, each in session.execute(query.order_by(by, JobRow.token).limit(number))]


def load(session: Session, sight: Sight, tokens: Sequence[str], now: float) -> list[TrySummary]:
    """The jobs of tokens, in their order, as far as they may be seen."""
    rows = {
        job.token: (job, usd)
        for chunk in chunks(tokens)
        for job, usd in session.execute(select(JobRow, usd_until(now)).where(JobRow.token.in_(chunk)))
    }
    jobs = [rows[token] for token in tokens if token in rows]
    boots, held = boots_of(session, [job for job, _ in jobs]), held_for(session)
    expected = starts(session, [job for job, _ in jobs], now)
    return [
        as_try(
            job, sight, usd, boots.get(job.location or ""), held.get(job.token), as_estimate(expected.get(job.token))
        )
        for job, usd in jobs
    ]


# A file of all rows.

COLUMNS = (
    JobRow.token, JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.kind, JobRow.map_index, JobRow.try_number,
    JobRow.state, JobRow.cause, JobRow.reason_code, JobRow.reason, JobRow.site, JobRow.location, JobRow.node,
    JobRow.native_id, JobRow.queue, JobRow.queued_at, JobRow.started_at, JobRow.ended_at, JobRow.exit_code,
    JobRow.cpus, JobRow.nodes, JobRow.memory, JobRow.gpus, JobRow.peak_memory, JobRow.cpu_seconds,
)  # fmt: skip
TITLES = (
    "dag_id", "run_id", "task_id", "map_index", "try_number", "state", "cause", "reason_code", "reason", "site",
    "location", "node", "native_id", "queue", "queued_at", "started_at", "ended_at", "exit_code", "waited_seconds",
    "ran_seconds", "cpus", "nodes", "memory_mib", "gpus", "peak_memory_mib", "cpu_seconds", "cpu_hours", "usd",
)  # fmt: skip


def csv_rows(session: Session, sight: Sight, choice: JobChoice, now: float) -> Iterator[str]:
    """All jobs that are chosen and that the user may see, youngest first, as parts of a CSV file (RFC 4180)."""
    conditions = [*choice.conditions(sight), sight.condition()]
    yield lines([TITLES])
    last: tuple[float, str] | None = None
    while True:
        query = select(*COLUMNS, usd_until(now).label("usd")).where(*conditions)
        if last is not None:
            at, token = last
            query = query.where(JobRow.queued_at <= at, or_(JobRow.queued_at < at, JobRow.token > token))
        rows = session.execute(query.order_by(JobRow.queued_at.desc(), JobRow.token).limit(ROWS_AT_A_TIME)).all()
        if rows:
            yield lines([csv_row(row, now) for row in rows])
        if len(rows) < ROWS_AT_A_TIME:
            return
        last = rows[-1].queued_at, rows[-1].token


def csv_row(row: Any, now: float) -> tuple[Any, ...]:
    """A job as a row of a file: times in ISO 8601, UTC."""
    begun = row.started_at if row.started_at is not None else row.ended_at
    waited = (now if begun is None else begun) - row.queued_at
    ran = None if row.started_at is None else (now if row.ended_at is None else row.ended_at) - row.started_at
    return (
        row.dag_id, row.run_id, row.task_id or row.kind, row.map_index if row.map_index >= 0 else None, row.try_number,
        row.state, row.cause, row.reason_code, None if row.reason is None else str(row.reason), row.site, row.location,
        row.node, row.native_id, row.queue, iso(row.queued_at), iso(row.started_at), iso(row.ended_at), row.exit_code,
        round(waited, 3), None if ran is None else round(ran, 3), row.cpus, row.nodes or 1, row.memory, row.gpus,
        row.peak_memory, row.cpu_seconds,
        None if ran is None else ran * row.cpus * (row.nodes or 1) / 3600, row.usd,
    )  # fmt: skip


def iso(at: float | None) -> str | None:
    """A time as text, to the second."""
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def lines(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as lines. What a spreadsheet would take for a formula gets an apostrophe (OWASP, "CSV Injection")."""
    text = io.StringIO()
    csv.writer(text).writerows([[harmless(value) for value in row] for row in rows])
    return text.getvalue()


def harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
