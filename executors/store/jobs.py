"""The queries on jobs and on locations. Sessions are the caller's, and nothing is committed here."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, bindparam, case, delete, func, insert, or_, select, true, update

from lading.executors.store.leases import AHEAD, DatabaseNow
from lading.executors.store.tables import ENDED, LIVE, JobRow, LocationRow, State, UnseenRow, reason_values

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.scheduling.reasons import Reason

# When a job was queued by the clock of the controller, which dates all else of it: the database dates that.
QUEUED = JobRow.queued_at - AHEAD
# Databases limit how many values one statement may carry; SQLite's oldest limit is 999.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Change:
    """What the controller learnt about one job.

    :param token: the job
    :param values: column values to set
    :param report: whether the executor has to report it to Airflow
    :param only_if: column values that the job must have; where it has others nothing is changed
    """

    token: str
    values: dict[str, Any]
    report: bool = False
    only_if: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """The values, and those that the job must have: parameters of the statement of its :class:`StatementKind`."""
        new = {f"new_{name}": value for name, value in self.values.items() if value is not None}
        return {**new, **{f"old_{name}": value for name, value in self.only_if.items()}}


def knows(session: Session, token: str) -> bool:
    """Whether there is a job of this token."""
    return session.scalar(select(JobRow.token).where(JobRow.token == token)) is not None


def live(session: Session, tokens: Iterable[str], site: str | None = None) -> set[str]:
    """Those of these jobs that have not ended.

    :param site: that has been given them; None: any, or none yet
    """
    query = select(JobRow.token).where(JobRow.state.in_(LIVE), *([] if site is None else [JobRow.site == site]))
    return {
        token for chunk in chunks(sorted({*tokens})) for token in session.scalars(query.where(JobRow.token.in_(chunk)))
    }


def add_job(session: Session, **columns: Any) -> None:
    """Add one job, see :func:`add_jobs`."""
    add_jobs(session, [columns])


def add_jobs(session: Session, jobs: Iterable[Mapping[str, Any]]) -> None:
    """Add jobs; a token that is there already is left as it is (the same try was queued twice).

    They are queued now and in this order, by the database's clock, unless ``queued_at`` is given: those of several
    schedulers may differ.

    :param jobs: the columns of each
    """
    by_token = {job["token"]: job for job in jobs}
    known = find(session, list(by_token))
    alike: dict[frozenset[str], list[dict[str, Any]]] = {}
    for number, (token, job) in enumerate(by_token.items()):
        if token in known:
            continue
        columns = {**job, **(reason_values(job["reason"]) if "reason" in job else {})}
        columns |= {} if "queued_at" in job else {"later": number * 1e-6}
        alike.setdefault(frozenset(columns), []).append(columns)
    for names, some in alike.items():
        when = {"queued_at": DatabaseNow() + bindparam("later")} if "later" in names else {}
        session.execute(insert(JobRow.__table__).values(**when), some)  # many at a time: without the ORM
    tell(session, [token for token in by_token if token not in known])


def tell(session: Session, tokens: Sequence[str]) -> None:
    """Tell the controller that acts that these jobs wait, or have changed while they did: it reads no others."""
    if tokens:
        session.execute(insert(UnseenRow.__table__), [{"token": token} for token in tokens])


def unreported(session: Session, owner: int | None, limit: int, team: str | None = None) -> Sequence[JobRow]:
    """Jobs of a scheduler with news that Airflow has not got yet, at most ``limit``; ended ones come first.

    :param team: of its executor of this team, which alone reports them; None: of that for all teams
    """
    return session.scalars(
        select(JobRow)
        .where(JobRow.owner == owner, JobRow.executor_team.is_not_distinct_from(team), JobRow.unreported.is_(True))
        .order_by(JobRow.state.in_(LIVE), JobRow.ended_at, JobRow.queued_at)
        .limit(limit)
    ).all()


def mark_reported(session: Session, jobs: Iterable[JobRow]) -> None:
    """Remember that news were reported to Airflow; a job with more news since then stays unreported."""
    by_news: dict[int, list[str]] = {}
    for job in jobs:
        by_news.setdefault(job.news, []).append(job.token)
    for news, tokens in by_news.items():
        for chunk in chunks(tokens):
            session.execute(
                update(JobRow)
                .where(JobRow.token.in_(chunk), JobRow.news == news)
                .values(unreported=False, changed_at=JobRow.changed_at),
                execution_options={"synchronize_session": False},
            )


def find(session: Session, tokens: Sequence[str]) -> dict[str, str]:
    """The state of each of these jobs that the store knows, by token."""
    found: dict[str, str] = {}
    for chunk in chunks(tokens):
        rows = session.execute(select(JobRow.token, JobRow.state).where(JobRow.token.in_(chunk)))
        found.update({row.token: row.state for row in rows})
    return found


def locations(session: Session, tokens: Collection[str]) -> dict[str, str]:
    """Where these jobs have been, by token, as far as they have been anywhere."""
    return {
        token: location
        for chunk in chunks([*tokens])
        for token, location in session.execute(select(JobRow.token, JobRow.location).where(JobRow.token.in_(chunk)))
        if location is not None
    }


def adopt(session: Session, tokens: Sequence[str], owner: int | None, team: str | None = None) -> None:
    """Make a scheduler the owner of jobs; what has ended is reported (again) to the new owner.

    :param team: whose executor reports them; None: that for all teams
    """
    for chunk in chunks(tokens):
        session.execute(
            update(JobRow)
            .where(JobRow.token.in_(chunk))
            .values(owner=owner, executor_team=team, unreported=JobRow.state.in_(ENDED)),
            execution_options={"synchronize_session": False},
        )


def adopt_from(
    session: Session,
    dead: int,
    owner: int | None,
    team: str | None = None,
    *,
    but: Sequence[str | None] | None = (),
) -> dict[str, str]:
    """Take over the jobs of a dead scheduler that are live or unreported; returns the state of each by token.

    :param team: whose executor reports them from now on; None: that for all teams
    :param but: the teams whose jobs are left to others; None: only those of the executor's own team are taken
    """
    unfinished = or_(JobRow.state.in_(LIVE), JobRow.unreported.is_(True))
    its = JobRow.executor_team.is_not_distinct_from
    which = its(team) if but is None else and_(true(), *(~its(each) for each in but))
    rows = session.execute(select(JobRow.token, JobRow.state).where(JobRow.owner == dead, unfinished, which))
    known = {row.token: row.state for row in rows}
    taken: dict[str, str] = {}
    for chunk in chunks(list(known)):
        session.execute(
            update(JobRow).where(JobRow.token.in_(chunk), JobRow.owner == dead).values(owner=owner, executor_team=team),
            execution_options={"synchronize_session": False},
        )
        # Another scheduler may have been faster with some of them.
        ours = session.scalars(select(JobRow.token).where(JobRow.token.in_(chunk), JobRow.owner == owner))
        taken.update((token, known[token]) for token in ours)
    return taken


def foreign_owners(session: Session, owner: int | None) -> Sequence[int | None]:
    """The other schedulers that own a job which is live or unreported."""
    return session.scalars(
        select(JobRow.owner)
        .where(
            or_(JobRow.owner != owner, JobRow.owner.is_(None)), or_(JobRow.state.in_(LIVE), JobRow.unreported.is_(True))
        )
        .distinct()
    ).all()


def explained(reason: Reason) -> list[tuple[Any, Any]]:
    """The columns of jobs that are given a reason for their waiting, in the order in which they are set: MySQL looks at
    those that are new already. Another code or limit is reported to Airflow, another number is not."""
    same = JobRow.reason_code.is_not_distinct_from(reason.code) & JobRow.reason_limit.is_not_distinct_from(reason.limit)
    values = {
        "unreported": case((same, JobRow.unreported), else_=True),
        "news": case((same, JobRow.news), else_=JobRow.news + 1),
        "changed_at": JobRow.changed_at,
    }
    return [(getattr(JobRow, name), value) for name, value in {**values, **reason_values(reason)}.items()]


def explain_the_rest(session: Session, reason: Reason, before: float | DatabaseNow) -> None:
    """Give jobs a reason for their waiting that were queued before a time (seconds since the epoch) and have none."""
    session.execute(
        update(JobRow)
        .where(JobRow.state == State.QUEUED, JobRow.reason.is_(None), JobRow.queued_at < before, JobRow.gang.is_(None))
        .ordered_values(*explained(reason)),
        execution_options={"synchronize_session": False},
    )


def explain(session: Session, reason: Reason, tokens: Sequence[str]) -> None:
    """Give jobs that wait a reason for it."""
    for chunk in chunks(tokens):
        session.execute(
            update(JobRow)
            .where(JobRow.token.in_(chunk), JobRow.state == State.QUEUED)
            .ordered_values(*explained(reason)),
            execution_options={"synchronize_session": False},
        )


def forget_reasons(session: Session, code: str) -> None:
    """Take back the reasons of waiting jobs that have a code."""
    which = JobRow.state == State.QUEUED, JobRow.reason_code == code
    session.execute(insert(UnseenRow.__table__).from_select(["token"], select(JobRow.token).where(*which)))
    session.execute(
        update(JobRow).where(*which).values(**reason_values(None), changed_at=JobRow.changed_at),
        execution_options={"synchronize_session": False},
    )


def apply(session: Session, changes: Iterable[Change], site: str | None = None) -> list[Change]:
    """Record changes, those of one kind together. An ended job stays as it is: events may be reported twice.

    :param site: whose events they follow from: only its own jobs are changed; None: Lading's own decisions
    :returns: those that have changed something
    """
    changes = [with_reason(each) for each in restored(session, list(changes))]
    # The second change of a job comes after the first of each.
    rounds: dict[int, dict[StatementKind, dict[str, int]]] = {}
    seen: Counter[str] = Counter()
    for number, change in enumerate(changes):
        rounds.setdefault(seen[change.token], {}).setdefault(StatementKind.for_change(change), {})[change.token] = (
            number
        )
        seen[change.token] += 1
    session.flush()
    applied: set[int] = set()
    stamp = 0.0
    for kinds in rounds.values():
        for kind, numbers in kinds.items():
            stamp = max(time.time(), math.nextafter(stamp, math.inf))
            done = _apply(session, kind.statement(site), [changes[each] for each in numbers.values()], stamp)
            applied.update(numbers[token] for token in done)
    return [change for number, change in enumerate(changes) if number in applied]


def with_reason(change: Change) -> Change:
    """A change with all columns of the reason that it sets."""
    if "reason" not in change.values:
        return change
    return replace(change, values={**change.values, **reason_values(change.values["reason"])})


def _apply(session: Session, statement: Any, changes: Sequence[Change], stamp: float) -> Iterable[str]:
    """Make changes of one kind; returns the tokens of the jobs that were changed.

    :param stamp: their ``changed_at``, which no other job has
    """
    parameters = [{"token_": each.token, "stamp": stamp, **each.parameters()} for each in changes]
    done = session.execute(statement, parameters)
    tokens = [each.token for each in changes]
    if done.rowcount == len(tokens):  # type: ignore[attr-defined]
        return tokens
    # No driver says which they were, and some do not even say how many.
    query = select(JobRow.token).where(JobRow.changed_at == stamp)
    return [token for chunk in chunks(tokens) for token in session.scalars(query.where(JobRow.token.in_(chunk)))]


def restored(session: Session, changes: list[Change]) -> list[Change]:
    """The changes, where a job comes back with its columns as they were before a rule has changed them: it wishes for
    all again."""
    back = [each.token for each in changes if each.values.get("state") == State.QUEUED]
    query = select(JobRow.token, JobRow.asked)
    asked = {
        row.token: row.asked for some in chunks(back) for row in session.execute(query.where(JobRow.token.in_(some)))
    }

    def wishing(change: Change) -> Change:
        before = asked.get(change.token)
        values = {"rule": None, "asked": None, **(json.loads(before) if before else {})}
        return replace(change, values={**change.values, **values})

    return [wishing(each) if each.values.get("state") == State.QUEUED else each for each in changes]


class StatementKind(NamedTuple):
    """What changes have in common that one statement makes.

    :param columns: that get a value
    :param nulls: those that get none
    :param only_if: those whose values it looks at
    :param report: whether the executor has to report it to Airflow
    """

    columns: tuple[str, ...]
    nulls: tuple[str, ...]
    only_if: tuple[str, ...]
    report: bool

    @classmethod
    def for_change(cls, change: Change) -> StatementKind:
        nulls = {name for name, value in change.values.items() if value is None}
        columns = change.values.keys() - nulls
        return cls(tuple(sorted(columns)), tuple(sorted(nulls)), tuple(sorted(change.only_if)), change.report)

    def statement(self, site: str | None) -> Any:
        """The statement, with the parameters of :meth:`Change.parameters`.

        Not the ORM's: that takes many rows by their keys alone.

        :param site: where the jobs must be; None: anywhere
        """
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in self.columns}
        values |= dict.fromkeys(self.nulls)
        values |= {"changed_at": bindparam("stamp"), **self._following(values)}
        if self.report:
            values |= {"unreported": True, "news": JobRow.news + 1}
        asked = [getattr(JobRow, name).is_not_distinct_from(bindparam(f"old_{name}")) for name in self.only_if]
        here = [] if site is None else [JobRow.site == site]
        is_live = or_(*(JobRow.state == each for each in LIVE))  # IN is not for many rows
        which = (JobRow.token == bindparam("token_"), is_live, *here, *asked)
        return update(JobRow.__table__).where(*which).values(**values)

    def _following(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that follow from others which are set."""
        return {**self._granted(values), **self._billed(values)}

    def _granted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """How many nodes a job has that has begun: a batch system grants none more than it was asked for."""
        if not {"nodes", "started_at"} <= {*self.columns}:
            return {}
        return {"nodes": case((JobRow.nodes > values["nodes"], values["nodes"]), else_=JobRow.nodes)}

    def _billed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What an end has cost, and since when a batch job is submitted."""
        if "ended_at" in self.columns:
            started = values.get("started_at", JobRow.started_at)
            hours = None if started is None else (values["ended_at"] - started) / 3600
            usd = None if hours is None else cpu_hour() * JobRow.cpus * func.coalesce(JobRow.nodes, 1) * hours
            # Of a machine that has gone the bill has been shared already.
            return {"usd": None if usd is None else func.coalesce(usd, JobRow.usd)}
        if "native_id" in self.columns and "started_at" not in values:
            # The batch job in which a job starts may be an allocation, which was not submitted for it.
            return {"submitted_at": func.coalesce(JobRow.submitted_at, time.time())}
        return {}


def cpu_hour() -> Any:
    """What an hour of a cpu costs where a job is, USD: at its location, or where that is gone at its site."""
    rate = select(LocationRow.usd_per_cpu_hour).where(LocationRow.site == JobRow.site)
    here, anywhere = (rate.where(LocationRow.name == name).scalar_subquery() for name in (JobRow.location, JobRow.site))
    return func.coalesce(here, anywhere)


def usd_until(now: float) -> Any:
    """What a job has cost, USD: one that runs has cost until now what that takes where it is; None: it has no price."""
    ran = JobRow.cpus * func.coalesce(JobRow.nodes, 1) * (now - JobRow.started_at) / 3600
    return case((JobRow.state == State.RUNNING, cpu_hour() * ran), else_=JobRow.usd)


def save_locations(session: Session, site: str, locations: Iterable[LocationRow]) -> None:
    """Replace what is known of a site's locations; of one that stays in its state it is kept since when it is."""
    kept = list(locations)
    session.execute(
        delete(LocationRow).where(LocationRow.site == site, LocationRow.name.not_in([row.name for row in kept]))
    )
    # All at once: a merge asks for each row that is not there yet.
    known = {row.name: row for row in session.scalars(select(LocationRow).where(LocationRow.site == site))}
    for row in kept:
        if (before := known.get(row.name)) is not None:
            row.seen_at = before.seen_at if before.state == row.state else row.seen_at
            session.merge(row)
        else:
            session.add(row)


def forget_other_sites(session: Session, sites: Iterable[str]) -> None:
    """Delete the locations of sites that are none any more."""
    session.execute(delete(LocationRow).where(LocationRow.site.not_in(list(sites))))


def chunks(tokens: Sequence[str]) -> Iterable[Sequence[str]]:
    """The tokens in portions that every database takes in one statement."""
    return (tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK))
