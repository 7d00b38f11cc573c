"""The jobs explorer: search, filter and sort jobs, page by page, or export all of them as CSV.

Times are seconds since the epoch, durations seconds, memory MiB, money USD. None means unknown or hidden.
"""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from sqlalchemy import (
    ColumnElement,
    Double,
    String,
    and_,
    cast,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
    union,
    union_all,
)
from sqlalchemy.orm import Session

from lading.executors.starts import expected_starts
from lading.executors.store import LIVE, JobRow, LocationRow, SiteRow, State, usd_until
from lading.executors.store.figures import CPUS, SITE
from lading.executors.store.instances import InstanceRow
from lading.executors.store.jobs import CHUNK, chunks
from lading.executors.store.leases import database_ahead
from lading.plugin.ui.queries.runs import TrySummary, as_tries, waited
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.starts.expected_starts import ExpectedStart

# Matches are counted up to this number.
MOST_COUNTED = 5_000
# If there are more matches, any order but that of queueing sorts only the newest ones, this many.
MOST_SORTED = 5_000
# If a search term matches more names than this, the search does not use the indexes on names.
MOST_NAMES = 200
# One query covers at most this many Dags.
MOST_DAGS = 100
# A CSV file is written in parts of this many rows.
ROWS_AT_A_TIME = 2_000
MOST_WORDS = 5
# In the order of queueing, the first 3,000 jobs are searched, then the first 8,000 and so on, finally all.
NUMBERS_OF_PARTS = (3_000, 8_000, 30_000, 150_000)
# Sorts last: larger than any time, sum or fraction.
LAST = 1e99
LAST_CHARACTER = "\U0010ffff"
BEGINNINGS = ("token", "native_id", "node", "location")
# A search lists at most this many machines.
MOST_FOUND = 5
# Punctuation that surrounds names in logs.
AROUND = "\"'`.,;:()"
INDEXED = re.compile(r"(.+)\[(\d{1,9})\]")
NUMBER = re.compile(r"\d{1,9}", re.ASCII)
RAN = JobRow.ended_at - JobRow.started_at

# ``starts``: when waiting jobs are expected to start.
SortKey = Literal["queued", "started", "ended", "waited", "ran", "usd", "cpus_used", "memory_used", "starts"]
Order = Literal["desc", "asc"]


class FoundMachine(BaseModel):
    """A machine, instance or allocation whose name, native id or node matches the search."""

    site: str
    name: str
    state: str
    """The current state; ``ended``: it no longer exists."""


class FoundTask(BaseModel):
    """A Dag or a task that the search names."""

    dag_id: str
    task_id: str | None
    """None: the Dag itself."""
    run_id: str | None
    """The newest run of the Dag with a record; None: its jobs belong to no run."""


class MapIndexes(BaseModel):
    """The map indexes of a mapped task that have records, if the one that was searched for has none."""

    dag_id: str
    task_id: str
    first: int
    last: int
    recorded: int
    """How many map indexes from ``first`` to ``last`` have records; the others were not queued, or their records have
    been purged."""


class JobPage(BaseModel):
    """A page of the matching jobs."""

    now: float
    jobs: list[TrySummary]
    machines: list[FoundMachine]
    """Machines that match the search, at most :data:`MOST_FOUND`."""
    tasks: list[FoundTask]
    """Dags and tasks that the search names, at most :data:`MOST_FOUND`: the best matches, Dags first."""
    map_indexes: list[MapIndexes]
    """Empty, unless no job has the map index in the search; at most :data:`MOST_FOUND` tasks."""
    after: str | None
    """The cursor to request the next page with; None: this is the last page."""
    matching: int
    """The number of matching jobs, counted up to :data:`MOST_COUNTED` unless only unfinished jobs can match."""
    is_more: bool
    """Whether more jobs match than were counted."""
    is_partial: bool
    """Whether only the newest :data:`MOST_SORTED` were sorted because more jobs match."""


@dataclass(frozen=True, slots=True)
class JobChoice:
    """The filters of jobs; None or empty: any.

    :param q: search terms separated by spaces, all of which must match, written as the page and logs print them: a part
        of a run's id or of ``dag.task[3]``, a map index next to other terms, a site, or the start of ``site/machine``,
        of the name of a machine or node, of a native id or of a token
    :param site: the site that a job was given to, or that it names while it was given to none
    :param location: the name of a machine, an allocation or a node
    :param reason_site: the site that the reason is about, or the job's site if the reason is about none
    :param since: queued at or after this; ``until``: before this
    :param ended_since: finished at or after this
    """

    q: str | None = None
    dag_id: Sequence[str] = ()
    team: Sequence[str] = ()
    run_id: str | None = None
    task_id: str | None = None
    site: Sequence[str] = ()
    location: str | None = None
    state: Sequence[str] = ()
    cause: Sequence[str] = ()
    reason_code: Sequence[str] = ()
    reason_limit: str | None = None
    reason_site: str | None = None
    since: float | None = None
    until: float | None = None
    ended_since: float | None = None

    @property
    def names_any(self) -> bool:
        """Whether any filter other than times is set. Matching such a filter would reveal what a hidden job is."""
        times = ("since", "until", "ended_since")
        return any(getattr(self, each.name) for each in fields(self) if each.name not in times)

    def is_of_dags(self, sight: Sight) -> bool:
        """Whether only jobs of certain Dags can match, because of a filter or of what the user can see."""
        return bool(self.dag_id) or (sight.dags is not None and self.names_any)

    @property
    def search_terms(self) -> list[str]:
        words = [each.strip(AROUND) for each in (self.q or "").split()]
        return [each for each in words if each.strip("/")][:MOST_WORDS]

    @property
    def map_index_terms(self) -> list[str]:
        """The search terms that can be map indexes: numbers next to other terms."""
        words = self.search_terms
        numbers = [each for each in words if NUMBER.fullmatch(each)]
        return numbers if len(numbers) < len(words) else []

    def without_map_indexes(self) -> JobChoice:
        words = [each for each in self.search_terms if each not in self.map_index_terms]
        named = [indexed[1] if (indexed := INDEXED.fullmatch(each)) else each for each in words]
        return replace(self, q=" ".join(named))

    def ways(
        self, session: Session, sight: Sight, named: Sequence[Any] | None = None
    ) -> list[ColumnElement[bool]] | None:
        """Return alternative conditions, each backed by an index; each job meets at least one of them in addition to
        :meth:`conditions`. None: :meth:`conditions` suffice.

        :param named: the result of :func:`named_tasks`, if the caller has it
        """
        if self.search_terms:
            # The indexes on names do not help to find a map index.
            others = (each for each in self.search_terms if each not in self.map_index_terms)
            return ways(session, max(others, key=len), named)
        if self.location is not None:
            return [JobRow.location == self.location, JobRow.node == self.location]
        if sight.dags is not None and self.is_of_dags(sight) and not self.dag_id:
            named = sorted(sight.dags)
            each: list[Any] = [JobRow.dag_id.in_(named[start : start + CHUNK]) for start in range(0, len(named), CHUNK)]
            return [JobRow.dag_id.is_(None), JobRow.dag_id == "", *each]
        return None

    def conditions(self, sight: Sight, by: Collection[str] | None = None) -> list[ColumnElement[bool]]:
        """Return the conditions that all matching jobs meet.

        :param by: the only columns whose indexes the database can use; None: any
        """
        found: list[Any] = []
        if self.site:
            found.append(SITE.in_(self.site))
        for name in ("dag_id", "team", "state", "cause", "reason_code"):
            if values := getattr(self, name):
                column = getattr(JobRow, name)
                if by is not None and name not in by:
                    column = func.coalesce(column, "")
                found.append(column == values[0] if len(values) == 1 else column.in_(values))
        found += [
            getattr(JobRow, name) == value
            for name in ("run_id", "task_id", "reason_limit")
            if (value := getattr(self, name)) is not None
        ]
        if self.reason_site is not None:
            found.append(is_about(self.reason_site, self.reason_code))
        if (by is None or "cause" in by) and [*self.state] == [State.FAILED.value]:
            found.append(JobRow.cause.is_not(None))  # every failed job has one, and it has an index
        if self.location is not None:
            found.append(or_(JobRow.location == self.location, JobRow.node == self.location))
        if self.since is not None:
            found.append(JobRow.queued_at >= self.since)
        if self.until is not None:
            found.append(JobRow.queued_at < self.until)
        if self.ended_since is not None:
            found.append(JobRow.ended_at >= self.ended_since)
        indexes = self.map_index_terms
        found += [
            or_(matches(word), JobRow.map_index == int(word)) if word in indexes else matches(word)
            for word in self.search_terms
        ]
        if self.names_any:
            found.append(sight.condition())
        return found


def is_about(site: str, codes: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition for jobs whose reason is about a site, or about none while the job itself is at the site.

    :param codes: the possible codes of the reasons; empty: any
    """
    text = type_coerce(JobRow.reason, String)

    def has(*parts: str) -> ColumnElement[bool]:
        pattern = "%".join(re.sub(r"([%_/])", r"/\1", part) for part in parts)
        return text.like(f"%{pattern}%", escape="/")

    # In a stored reason its own parameters come last, after those of the reasons nested in it.
    begins = [f'"code": {json.dumps(code, ensure_ascii=False)}, "params": {{' for code in codes] or ['"params": {']
    about = or_(*(has(begin, f'"site": {json.dumps(site, ensure_ascii=False)}') for begin in begins))
    about_any = or_(*(has(begin, '"site": ') for begin in begins))
    return or_(about, and_(JobRow.site == site, or_(text.is_(None), not_(about_any))))


def matches(word: str) -> ColumnElement[bool]:
    """Return the condition for jobs whose task or run contains a word, or whose other names start with it."""
    task = task_name(JobRow.dag_id, JobRow.task_id)
    parts = [each.icontains(word, autoescape=True) for each in (task, JobRow.run_id)]
    begins = [getattr(JobRow, name).istartswith(word, autoescape=True) for name in BEGINNINGS]
    if indexed := INDEXED.fullmatch(word):
        parts.append(and_(task.icontains(indexed[1], autoescape=True), JobRow.map_index == int(indexed[2])))
    return or_(*parts, *begins, *at_site(word, JobRow.site, (JobRow.location, JobRow.node)))


def task_name(dag_id: Any, task_id: Any) -> Any:
    """Return the expression for a task as it is printed, ``dag.task``."""
    return func.coalesce(dag_id, "", type_=String) + "." + func.coalesce(task_id, "", type_=String)


def at_site(word: str, site: Any, names: Sequence[Any]) -> list[ColumnElement[bool]]:
    """Return the conditions for rows that a word such as ``site`` or ``site/name`` refers to.

    :param site: the column of the site
    :param names: the columns of names; at least one must start with the name
    """
    place, _, name = word.partition("/")
    if not name:
        return [site == place]
    return [and_(site == place, or_(*(each.istartswith(name, autoescape=True) for each in names)))]


def find_machines(session: Session, terms: Sequence[str]) -> list[FoundMachine]:
    """Return the machines that match every search term, current ones first."""
    found: dict[tuple[str, str], FoundMachine] = {}
    for row, name, order, others in (
        (LocationRow, LocationRow.name, LocationRow.name, [LocationRow.name != LocationRow.site]),
        (InstanceRow, InstanceRow.token, InstanceRow.ordered_at.desc(), []),
    ):
        names = (name, row.node, row.native_id)
        each = [
            or_(*(column.istartswith(word, autoescape=True) for column in names), *at_site(word, row.site, names))
            for word in terms
        ]
        if not any(re.search(r"[^/]/[^/]", word) for word in terms):  # a site alone names none of its machines
            each.append(or_(*(column.istartswith(word, autoescape=True) for column in names for word in terms)))
        query = select(row.site, name, row.state).where(*each, *others).order_by(order).limit(MOST_FOUND)
        for site, its_name, state in session.execute(query):
            found.setdefault((site, its_name), FoundMachine(site=site, name=its_name, state=state or "up"))
    return [*found.values()][:MOST_FOUND]


def named_tasks(session: Session, choice: JobChoice) -> Sequence[Any] | None:
    """Return the pairs of a Dag and a task of it whose printed name contains the word of a search; None: the search has
    not exactly one word."""
    words = choice.without_map_indexes().search_terms
    return session.execute(pairs(session, JobRow.task_id, words[0])).all() if len(words) == 1 else None


def find_tasks(session: Session, sight: Sight, choice: JobChoice, named: Sequence[Any]) -> list[FoundTask]:
    """Return the Dags and tasks that a search for one name means: the Dags, if their own id contains the word, or else
    the tasks whose printed name does.

    Whole names come before others, and shorter before longer ones.

    :param named: see :func:`named_tasks`
    """
    word = " ".join(choice.without_map_indexes().search_terms).lower()
    names = [(dag, task) for dag, task in named if sight.sees(dag)]
    found: set[tuple[str, str | None]] = {(dag, None) for dag, _ in names if word in dag.lower()}
    found = found or {(dag, task) for dag, task in names}

    def rank(name: tuple[str, str | None]) -> tuple[bool, int, str]:
        dag, task = name
        printed = dag if task is None else f"{dag}.{task}"
        return word not in (printed.lower(), (task or "").lower()), len(printed), printed

    shown = sorted(found, key=rank)[:MOST_FOUND]
    newest = newest_runs(session, sorted({dag for dag, _ in shown}))
    return [FoundTask(dag_id=dag, task_id=task, run_id=newest[dag]) for dag, task in shown]


def newest_runs(session: Session, dags: Sequence[str]) -> dict[str, str | None]:
    """Return the runs of the jobs that were queued last, by Dag."""

    def newest(dag_id: str) -> Any:
        of_dag = select(JobRow.run_id).where(JobRow.dag_id == dag_id).order_by(JobRow.queued_at.desc()).limit(1)
        return select(literal(dag_id), of_dag.scalar_subquery())

    return dict(session.execute(union_all(*map(newest, dags))).all()) if dags else {}


def begins_with(session: Session, name: str, word: str) -> ColumnElement[bool]:
    """Return the condition for jobs one of whose names starts with a word, in a form that an index can serve."""
    column = getattr(JobRow, name)
    if session.get_bind().dialect.name == "sqlite":  # its LIKE ignores case and uses no index
        return and_(column >= word, column < word + LAST_CHARACTER)
    found: ColumnElement[bool] = column.startswith(word, autoescape=True)
    return found


def ways(session: Session, word: str, named: Sequence[Any] | None = None) -> list[ColumnElement[bool]] | None:
    """Return alternative conditions, each backed by an index; each job that matches a word meets at least one.

    None: the word matches too many names, or it is a site.
    """
    indexed = INDEXED.fullmatch(word)
    name = indexed[1] if indexed else word
    tasks: dict[str, list[str]] = {}
    for dag_id, task_id in session.execute(pairs(session, JobRow.task_id, name)) if named is None else named:
        tasks.setdefault(dag_id, []).append(task_id)
    runs: dict[str, list[str]] = {}
    for dag_id, run_id in session.execute(pairs(session, JobRow.run_id, word)):
        runs.setdefault(dag_id, []).append(run_id)
    if max(map(len, (*tasks.values(), *runs.values(), tasks, runs)), default=0) > MOST_NAMES:
        return None
    of_index = [] if indexed is None else [JobRow.map_index == int(indexed[2])]
    # Dags are combined into few queries; the database uses the index for each Dag.
    of_tasks = [and_(JobRow.dag_id == dag_id, JobRow.task_id.in_(names), *of_index) for dag_id, names in tasks.items()]
    of_runs = [and_(JobRow.dag_id == dag_id, JobRow.run_id.in_(names)) for dag_id, names in runs.items()]
    found = [
        or_(*each[start : start + MOST_DAGS])
        for each in (of_tasks, of_runs)
        for start in range(0, len(each), MOST_DAGS)
    ]
    begins = [begins_with(session, name, word) for name in BEGINNINGS]
    site, _, place = word.partition("/")
    if place:
        begins += [and_(JobRow.site == site, begins_with(session, name, place)) for name in ("location", "node")]
    elif session.scalar(select(SiteRow.name).where(SiteRow.name == site)) is not None:
        return None
    return [*found, *begins]


def pairs(session: Session, column: Any, word: str) -> Any:
    """Select the pairs of a Dag and a run or task of it whose printed name contains a word.

    :param column: the column of runs or tasks, which follows the Dag in an index
    """
    names = skip_scan(session, column)
    # Tasks are printed with their Dag, runs without.
    printed = type_coerce(names.c.name, String) if column is JobRow.run_id else task_name(names.c.dag_id, names.c.name)
    return select(names.c.dag_id, names.c.name).where(
        names.c.name.is_not(None), printed.icontains(word, autoescape=True)
    )


def skip_scan(session: Session, column: Any) -> Any:
    """Select the distinct pairs of a Dag and a value of a column by a loose index scan.

    The recursive query jumps from one pair to the next in the index instead of reading all jobs.
    """
    if session.get_bind().dialect.name in ("mysql", "mariadb"):  # they do a loose index scan for DISTINCT
        return select(JobRow.dag_id, column.label("name")).where(JobRow.dag_id.is_not(None)).distinct().subquery()
    first = select(func.min(JobRow.dag_id).label("dag_id")).cte("dags", recursive=True)
    following = select(func.min(JobRow.dag_id)).where(JobRow.dag_id > first.c.dag_id).scalar_subquery()
    dags = first.union_all(select(following).where(first.c.dag_id.is_not(None)))
    least = select(func.min(column)).where(JobRow.dag_id == dags.c.dag_id).scalar_subquery()
    begun = select(dags.c.dag_id, least.label("name")).where(dags.c.dag_id.is_not(None)).cte("names", recursive=True)
    after = (
        select(func.min(column))
        .where(JobRow.dag_id == begun.c.dag_id, column > begun.c.name)
        .correlate(begun)
        .scalar_subquery()
    )
    return begun.union_all(select(begun.c.dag_id, after).where(begun.c.name.is_not(None)))


class PageCursor(NamedTuple):
    """The end of a page: when the first page was requested, and the sort value and token of the last job."""

    now: float
    value: float
    token: str

    def __str__(self) -> str:
        return f"{self.now!r}:{self.value!r}:{self.token}"

    @classmethod
    def parse(cls, text: str) -> PageCursor:
        now, value, token = text.split(":", 2)
        return cls(float(now), float(value), token)


def sort_value(key: SortKey, order: Order, now: float) -> Any:
    """Return the expression to sort jobs by; jobs without a value come last."""
    values: dict[str, Any] = {
        "queued": JobRow.queued_at,
        "started": JobRow.started_at,
        "ended": JobRow.ended_at,
        "waited": waited(now),
        "ran": func.coalesce(JobRow.ended_at, now) - JobRow.started_at,
        "usd": usd_until(now),
        "cpus_used": JobRow.cpu_seconds / func.nullif(CPUS * RAN, 0),
        # PostgreSQL's decimals have more digits than the cursor, so that the next page would repeat or skip jobs.
        "memory_used": cast(JobRow.peak_memory, Double) / func.nullif(JobRow.memory, 0),
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
    """Return a page of the matching jobs.

    :param after: the cursor of the previous page
    """
    place = None if after is None else PageCursor.parse(after)
    # Any other order would reveal properties of hidden jobs, so they are left out.
    more = [sight.condition()] if sort != "queued" and not choice.names_any else []
    if sort == "starts":
        more.append(JobRow.state.in_(expected_starts.WAITING))
    # SQLite has to use the index on Dags, which contains the other columns: half a million jobs can have one state.
    # MySQL and MariaDB compare how many entries match in the indexes on Dags and causes, where failed jobs are few.
    # PostgreSQL chooses well from its own statistics.
    steered = {"sqlite": ("dag_id",), "mysql": ("dag_id", "cause"), "mariadb": ("dag_id", "cause")}
    visible = steered.get(session.get_bind().dialect.name) if choice.is_of_dags(sight) else None
    conditions = [*choice.conditions(sight, visible), *more]
    seen_at = now if place is None else place.now
    named = named_tasks(session, choice)
    each_way = choice.ways(session, sight, named)
    # Unfinished jobs are few enough to be counted, as Overview does.
    is_exact = bool(choice.state) and {*choice.state} <= {*LIVE} and not choice.search_terms
    number = (
        session.scalar(select(func.count()).select_from(JobRow).where(*choice.conditions(sight), *more)) or 0
        if is_exact
        else count(session, conditions, each_way)
    )
    value = None if sort == "starts" else sort_value(sort, order, seen_at)
    beyond = [] if place is None or value is None else [is_beyond(value, order, place)]
    if value is None:
        found = by_start(session, [*choice.conditions(sight), *more], each_way, order, seen_at, place, limit + 1)
    elif number <= MOST_COUNTED:
        found = narrow(session, conditions, each_way, value, order, beyond, limit + 1)
    else:
        # Jobs are scanned in the order of queueing, of one Dag or of all, until enough match.
        by = ("dag_id",) if len(choice.dag_id) == 1 else ()
        found = wide(session, [*choice.conditions(sight, by), *more], value, sort, order, beyond, limit + 1)
    shown = found[:limit]
    end = PageCursor(seen_at, shown[-1][1], shown[-1][0]) if len(found) > limit else None
    return JobPage(
        now=now,
        jobs=load(session, sight, [token for token, _ in shown], now),
        machines=find_machines(session, choice.search_terms) if choice.search_terms else [],
        tasks=find_tasks(session, sight, choice, named or ()),
        map_indexes=[] if number else find_map_indexes(session, sight, choice),
        after=None if end is None else str(end),
        matching=number if is_exact else min(number, MOST_COUNTED),
        is_more=number > MOST_COUNTED and not is_exact,
        is_partial=number > MOST_COUNTED and sort != "queued",
    )


def find_map_indexes(session: Session, sight: Sight, choice: JobChoice) -> list[MapIndexes]:
    """Return the map indexes of the mapped tasks that the other terms of a search match, those with the most first."""
    others = choice.without_map_indexes()
    if others.q == " ".join(choice.search_terms) or not others.search_terms:
        return []
    columns = JobRow.dag_id, JobRow.task_id, JobRow.map_index
    mapped = JobRow.map_index >= 0, JobRow.dag_id.is_not(None), JobRow.task_id.is_not(None)
    # A job can match in several ways.
    each_way = others.ways(session, sight)
    ways = [true()] if each_way is None else each_way
    matching = union(*(select(*columns).where(way, *others.conditions(sight), *mapped) for way in ways))
    each = matching.subquery().c
    span = func.min(each.map_index), func.max(each.map_index), func.count()
    rows = session.execute(select(each.dag_id, each.task_id, *span).group_by(each.dag_id, each.task_id))
    found = [
        MapIndexes(dag_id=dag_id, task_id=task_id, first=first, last=last, recorded=recorded)
        for dag_id, task_id, first, last, recorded in rows
    ]
    return sorted(found, key=lambda each: (-each.last, each.dag_id, each.task_id))[:MOST_FOUND]


def is_beyond(value: Any, order: Order, place: PageCursor) -> ColumnElement[bool]:
    further, later = (
        (value < place.value, JobRow.token < place.token)
        if order == "desc"
        else (value > place.value, JobRow.token > place.token)
    )
    # This redundant condition lets an index find where the page begins.
    from_it = value <= place.value if order == "desc" else value >= place.value
    return and_(from_it, or_(further, and_(value == place.value, later)))


def in_order(value: Any, order: Order) -> tuple[Any, Any]:
    """Order by value and token in one direction, because an index cannot be read in two directions at once."""
    return (value.desc(), JobRow.token.desc()) if order == "desc" else (value, JobRow.token)


def count(session: Session, conditions: Sequence[Any], each_way: Sequence[Any] | None) -> int:
    """Count the matching jobs; any result above :data:`MOST_COUNTED` only means that there are more.

    :param each_way: see :meth:`JobChoice.ways`
    """
    if each_way is None:
        some = select(JobRow.token).where(*conditions).limit(MOST_COUNTED + 1).subquery()
        return session.scalar(select(func.count()).select_from(some)) or 0
    tokens: set[str] = set()
    for way in each_way:
        tokens.update(session.scalars(select(JobRow.token).where(way, *conditions).limit(MOST_COUNTED + 1)))
        if len(tokens) > MOST_COUNTED:
            break
    return len(tokens)


def narrow(
    session: Session,
    conditions: Sequence[Any],
    each_way: Sequence[Any] | None,
    value: Any,
    order: Order,
    beyond: Sequence[Any],
    number: int,
) -> list[tuple[str, float]]:
    """Return a page of jobs, each with its sort value, if few match.

    :param value: the expression to sort by
    :param beyond: the condition for jobs after the previous page
    :param number: the most jobs to return
    """
    # No index has the order of this sum, so the database sorts the matches rather than scan all jobs in order.
    sum_of_it = value + 0.0
    found: dict[str, float] = {}
    for way in [[]] if each_way is None else [[each] for each in each_way]:
        query = select(JobRow.token, sum_of_it.label("value")).where(*way, *conditions, *beyond)
        rows = session.execute(query.order_by(*in_order(sum_of_it, order)).limit(number))
        found |= {token: float(each) for token, each in rows}
    return sorted(found.items(), key=lambda each: (each[1], each[0]), reverse=order == "desc")[:number]


def by_start(
    session: Session,
    conditions: Sequence[Any],
    each_way: Sequence[Any] | None,
    order: Order,
    now: float,
    place: PageCursor | None,
    number: int,
) -> list[tuple[str, float]]:
    """Return a page of waiting jobs, each with its expected start as its sort value; jobs without one come last.

    Only the newest :data:`MOST_SORTED` are sorted, because each start is estimated.

    :param now: when the first page was requested, so that all pages have the same starts
    :param number: the most jobs to return
    """
    rows: dict[str, Any] = {}
    for way in [[]] if each_way is None else [[each] for each in each_way]:
        query = select(*expected_starts.COLUMNS).where(*way, *conditions).order_by(*in_order(JobRow.queued_at, "desc"))
        rows |= {row.token: row for row in session.execute(query.limit(MOST_SORTED))}
    newest = sorted(rows.values(), key=lambda row: (row.queued_at, row.token), reverse=True)[:MOST_SORTED]
    known = expected_starts.expected_starts(session, newest, now, is_drawn=False)
    sign = -1.0 if order == "desc" else 1.0
    found = []
    for row in newest:
        start = known.get(row.token)
        value = start.at if isinstance(start, ExpectedStart) else sign * LAST
        found.append((sign * value, row.token, value))
    found.sort()
    if place is not None:
        found = found[bisect_right(found, (sign * place.value, place.token), key=itemgetter(0, 1)) :]
    return [(token, value) for _, token, value in found[:number]]


def wide(
    session: Session,
    conditions: Sequence[Any],
    value: Any,
    sort: SortKey,
    order: Order,
    beyond: Sequence[Any],
    number: int,
) -> list[tuple[str, float]]:
    """Return a page of jobs if many match.

    The order of queueing has an index; any other order sorts only the newest :data:`MOST_SORTED` of them.
    """
    if sort == "queued":
        query = select(JobRow.token, JobRow.queued_at).where(*conditions, *beyond)
        query = query.order_by(*in_order(JobRow.queued_at, order)).limit(number)
        for part in parts(session, beyond, order, number):
            rows = session.execute(query.where(*part)).all()
            if len(rows) == number:
                break
        return [(token, float(at)) for token, at in rows]
    youngest = select(JobRow.token).where(*conditions).order_by(*in_order(JobRow.queued_at, "desc")).limit(MOST_SORTED)
    for part in parts(session, [], "desc", MOST_SORTED):
        some = youngest.where(*part).subquery()
        if session.scalar(select(func.count()).select_from(some)) == MOST_SORTED:
            break
    query = select(JobRow.token, value.label("value")).join(some, JobRow.token == some.c.token).where(*beyond)
    of_page = session.execute(query.order_by(*in_order(value, order)).limit(number))
    return [(token, float(each)) for token, each in of_page]


def parts(session: Session, beyond: Sequence[Any], order: Order, least: int) -> Iterator[list[ColumnElement[bool]]]:
    """Yield conditions for ever more of the jobs in the order of queueing, and finally for all.

    Without them, some databases read and sort all jobs, although the first few are enough.

    :param least: the number of wanted jobs; parts of this size or smaller are skipped
    """
    for number in (each for each in NUMBERS_OF_PARTS if each > least):
        places = select(JobRow.queued_at).where(*beyond).order_by(*in_order(JobRow.queued_at, order))
        end = session.scalar(places.offset(number).limit(1))
        if end is None:
            break
        yield [JobRow.queued_at >= end if order == "desc" else JobRow.queued_at <= end]
    yield []


def load(session: Session, sight: Sight, tokens: Sequence[str], now: float) -> list[TrySummary]:
    """Load jobs in the order of their tokens. Purged jobs are left out, and hidden ones show only their size."""
    rows = {
        job.token: (job, usd)
        for chunk in chunks(tokens)
        for job, usd in session.execute(select(JobRow, usd_until(now)).where(JobRow.token.in_(chunk)))
    }
    return as_tries(session, sight, [rows[token] for token in tokens if token in rows], now)


# The CSV file.

COLUMNS = (
    JobRow.token, JobRow.dag_id, JobRow.team, JobRow.run_id, JobRow.task_id, JobRow.kind, JobRow.map_index,
    JobRow.try_number, JobRow.state, JobRow.cause, JobRow.reason_code, JobRow.reason, JobRow.site, JobRow.location,
    JobRow.node, JobRow.native_id, JobRow.queue, JobRow.queued_at, JobRow.started_at, JobRow.ended_at, JobRow.exit_code,
    JobRow.cpus, JobRow.nodes, JobRow.memory, JobRow.gpus, JobRow.peak_memory, JobRow.cpu_seconds,
)  # fmt: skip
TITLES = (
    "dag_id", "team", "run_id", "task_id", "map_index", "try_number", "state", "cause", "reason_code", "reason", "site",
    "location", "node", "native_id", "queue", "queued_at", "started_at", "ended_at", "exit_code", "waited_seconds",
    "ran_seconds", "cpus", "nodes", "memory_mib", "gpus", "peak_memory_mib", "cpu_seconds", "cpu_hours", "usd",
)  # fmt: skip


def csv_rows(
    open_session: Callable[[], AbstractContextManager[Session]], sight: Sight, choice: JobChoice, now: float
) -> Iterator[str]:
    """Yield all matching jobs that the user can see, newest first, as parts of a CSV file (RFC 4180).

    :param open_session: opens a session for each part, so that a slow reader does not occupy a connection
    """
    conditions = [*choice.conditions(sight), sight.condition()]
    yield lines([TITLES])
    last: tuple[float, str] | None = None
    while True:
        query = select(*COLUMNS, usd_until(now).label("usd")).where(*conditions)
        if last is not None:
            at, token = last
            query = query.where(JobRow.queued_at <= at, or_(JobRow.queued_at < at, JobRow.token < token))
        with open_session() as session:
            rows = session.execute(query.order_by(*in_order(JobRow.queued_at, "desc")).limit(ROWS_AT_A_TIME)).all()
            ahead = database_ahead(session)
            part = lines([csv_row(row, now, ahead) for row in rows]) if rows else ""
            last = (rows[-1].queued_at, rows[-1].token) if rows else None
        if part:
            yield part
        if len(rows) < ROWS_AT_A_TIME:
            return


def csv_row(row: Any, now: float, ahead: float = 0.0) -> tuple[Any, ...]:
    """Convert a job to a row of the file, with times in ISO 8601, UTC.

    :param ahead: seconds by which the database's clock, which dates its queueing, is ahead of the controller's
    """
    queued_at = row.queued_at - ahead
    begun = row.started_at if row.started_at is not None else row.ended_at
    waited = (now if begun is None else begun) - queued_at
    ran = None if row.started_at is None else (now if row.ended_at is None else row.ended_at) - row.started_at
    begun_and_ended = (iso(queued_at), iso(row.started_at), iso(row.ended_at))
    return (
        row.dag_id, row.team, row.run_id, row.task_id or row.kind, row.map_index if row.map_index >= 0 else None,
        row.try_number, row.state, row.cause, row.reason_code, None if row.reason is None else str(row.reason),
        row.site, row.location, row.node, row.native_id, row.queue, *begun_and_ended, row.exit_code, round(waited, 3),
        None if ran is None else round(ran, 3), row.cpus, row.nodes or 1, row.memory, row.gpus, row.peak_memory,
        row.cpu_seconds, None if ran is None else ran * row.cpus * (row.nodes or 1) / 3600, row.usd,
    )  # fmt: skip


def iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def lines(rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as CSV. Text that spreadsheets would run as a formula gets an apostrophe (OWASP, "CSV Injection")."""
    text = io.StringIO()
    csv.writer(text).writerows([[harmless(value) for value in row] for row in rows])
    return text.getvalue()


def harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value
