"""Queries on jobs and locations. They use the caller's session and never commit."""

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

    from lading.scheduling.model.reasons import Reason

# When a job was queued, by the controller's clock, which dates everything else about it; queued_at is by the
# database's.
QUEUED = JobRow.queued_at - AHEAD
# Databases limit the number of values in a statement; the lowest limit is that of old SQLite versions, 999.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one job that the controller wants to record.

    :param values: column values to set
    :param report: whether the executor has to report the change to Airflow
    :param only_if: column values that the job must have; otherwise nothing is changed
    """

    token: str
    values: dict[str, Any]
    report: bool = False
    only_if: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters for the statement of its :class:`StatementKind`: the new values, and those required."""
        new = {f"new_{name}": value for name, value in self.values.items() if value is not None}
        return {**new, **{f"old_{name}": value for name, value in self.only_if.items()}}


def knows(session: Session, token: str) -> bool:
    return session.scalar(select(JobRow.token).where(JobRow.token == token)) is not None


def live(session: Session, tokens: Iterable[str], site: str | None = None) -> set[str]:
    """Return those of the jobs that have not ended.

    :param site: only jobs given to this site; None: any
    """
    query = select(JobRow.token).where(JobRow.state.in_(LIVE), *([] if site is None else [JobRow.site == site]))
    return {
        token for chunk in chunks(sorted({*tokens})) for token in session.scalars(query.where(JobRow.token.in_(chunk)))
    }


def add_job(session: Session, **columns: Any) -> None:
    add_jobs(session, [columns])


def add_jobs(session: Session, jobs: Iterable[Mapping[str, Any]]) -> None:
    """Add jobs; a job whose token is already stored is left unchanged (the same try was queued twice).

    Unless ``queued_at`` is given, jobs are queued now and in this order, by the database's clock, because the clocks of
    schedulers may differ.

    :param jobs: the columns of each job
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
        session.execute(insert(JobRow.__table__).values(**when), some)  # in bulk, without the ORM
    tell(session, [token for token in by_token if token not in known])


def tell(session: Session, tokens: Sequence[str]) -> None:
    """Tell the acting controller to read these jobs, which were queued or changed while waiting; it reads no others."""
    if tokens:
        session.execute(insert(UnseenRow.__table__), [{"token": token} for token in tokens])


def unreported(session: Session, owner: int | None, limit: int, team: str | None = None) -> Sequence[JobRow]:
    """Return up to ``limit`` jobs of a scheduler with news that Airflow has not received, ended jobs first.

    :param team: only jobs reported by the executor of this team; None: by the one for all teams
    """
    return session.scalars(
        select(JobRow)
        .where(JobRow.owner == owner, JobRow.executor_team.is_not_distinct_from(team), JobRow.unreported.is_(True))
        .order_by(JobRow.state.in_(LIVE), JobRow.ended_at, JobRow.queued_at)
        .limit(limit)
    ).all()


def mark_reported(session: Session, jobs: Iterable[JobRow]) -> None:
    """Record that news was reported to Airflow; a job with more news since then stays unreported."""
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
    """Return the states of those jobs that are stored, by token."""
    found: dict[str, str] = {}
    for chunk in chunks(tokens):
        rows = session.execute(select(JobRow.token, JobRow.state).where(JobRow.token.in_(chunk)))
        found.update({row.token: row.state for row in rows})
    return found


def locations(session: Session, tokens: Collection[str]) -> dict[str, str]:
    return {
        token: location
        for chunk in chunks([*tokens])
        for token, location in session.execute(select(JobRow.token, JobRow.location).where(JobRow.token.in_(chunk)))
        if location is not None
    }


def adopt(session: Session, tokens: Sequence[str], owner: int | None, team: str | None = None) -> None:
    """Make a scheduler the owner of jobs; ended jobs are reported (again) to the new owner.

    :param team: the team whose executor reports them; None: the executor for all teams
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
    """Take over the live or unreported jobs of a dead scheduler; return their states by token.

    :param team: the team whose executor reports them from now on; None: the executor for all teams
    :param but: the teams whose jobs are left to other executors; None: take only those of the executor's own team
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
        # Another scheduler may have taken some of them first.
        ours = session.scalars(select(JobRow.token).where(JobRow.token.in_(chunk), JobRow.owner == owner))
        taken.update((token, known[token]) for token in ours)
    return taken


def foreign_owners(session: Session, owner: int | None) -> Sequence[int | None]:
    """Return the other schedulers that own a live or unreported job."""
    return session.scalars(
        select(JobRow.owner)
        .where(
            or_(JobRow.owner != owner, JobRow.owner.is_(None)), or_(JobRow.state.in_(LIVE), JobRow.unreported.is_(True))
        )
        .distinct()
    ).all()


def any_to_report(session: Session, owner: int | None) -> bool:
    """Return whether any job is unreported, or is live and owned by another scheduler."""
    foreign = or_(JobRow.owner != owner, JobRow.owner.is_(None)) & JobRow.state.in_(LIVE)
    return bool(session.scalar(select(select(JobRow.token).where(or_(JobRow.unreported.is_(True), foreign)).exists())))


def explained(reason: Reason) -> list[tuple[Any, Any]]:
    """Return the columns to set when waiting jobs are given a reason, in the order to set them.

    The order matters because MySQL evaluates later assignments with the values set by earlier ones. A changed code or
    limit is reported to Airflow; a changed amount is not.
    """
    same = JobRow.reason_code.is_not_distinct_from(reason.code) & JobRow.reason_limit.is_not_distinct_from(reason.limit)
    values = {
        "unreported": case((same, JobRow.unreported), else_=True),
        "news": case((same, JobRow.news), else_=JobRow.news + 1),
        "changed_at": JobRow.changed_at,
    }
    return [(getattr(JobRow, name), value) for name, value in {**values, **reason_values(reason)}.items()]


def explain_the_rest(session: Session, reason: Reason, before: float | DatabaseNow) -> None:
    """Give a reason to the waiting jobs that have none and were queued before a time, in epoch seconds."""
    session.execute(
        update(JobRow)
        .where(JobRow.state == State.QUEUED, JobRow.reason.is_(None), JobRow.queued_at < before, JobRow.gang.is_(None))
        .ordered_values(*explained(reason)),
        execution_options={"synchronize_session": False},
    )


def explain(session: Session, reason: Reason, tokens: Sequence[str]) -> None:
    for chunk in chunks(tokens):
        session.execute(
            update(JobRow)
            .where(JobRow.token.in_(chunk), JobRow.state == State.QUEUED)
            .ordered_values(*explained(reason)),
            execution_options={"synchronize_session": False},
        )


def forget_reasons(session: Session, code: str) -> None:
    which = JobRow.state == State.QUEUED, JobRow.reason_code == code
    session.execute(insert(UnseenRow.__table__).from_select(["token"], select(JobRow.token).where(*which)))
    session.execute(
        update(JobRow).where(*which).values(**reason_values(None), changed_at=JobRow.changed_at),
        execution_options={"synchronize_session": False},
    )


def apply(session: Session, changes: Iterable[Change], site: str | None = None) -> list[Change]:
    """Record changes, grouped by kind. Ended jobs stay unchanged, because events may be reported twice.

    :param site: the site whose events cause the changes: only its own jobs are changed; None: Lading's own decisions
    :returns: the changes that took effect
    """
    changes = [with_reason(each) for each in restored(session, list(changes))]
    # The second change of a job is made after the first changes of all jobs.
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
    """Return the change with all columns that its reason sets."""
    if "reason" not in change.values:
        return change
    return replace(change, values={**change.values, **reason_values(change.values["reason"])})


def _apply(session: Session, statement: Any, changes: Sequence[Change], stamp: float) -> Iterable[str]:
    """Make changes of one kind; return the tokens of the jobs that changed.

    :param stamp: their new ``changed_at``, which no other job has
    """
    parameters = [{"token_": each.token, "stamp": stamp, **each.parameters()} for each in changes]
    done = session.execute(statement, parameters)
    tokens = [each.token for each in changes]
    if done.rowcount == len(tokens):  # type: ignore[attr-defined]
        return tokens
    # No driver tells which rows matched, and some do not even tell how many.
    query = select(JobRow.token).where(JobRow.changed_at == stamp)
    return [token for chunk in chunks(tokens) for token in session.scalars(query.where(JobRow.token.in_(chunk)))]


def restored(session: Session, changes: list[Change]) -> list[Change]:
    """Make jobs that go back to the queue request again what they requested before a rule or a site changed it."""
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
    """What changes have in common that one statement can make.

    :param columns: the columns that are set to a value
    :param nulls: the columns that are set to NULL
    :param only_if: the columns whose values are checked
    :param report: whether the executor has to report the change to Airflow
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
        """Return the statement, with the parameters of :meth:`Change.parameters`.

        It is a Core statement, because the ORM updates many rows only by primary key.

        :param site: only jobs at this site; None: at any
        """
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in self.columns}
        values |= dict.fromkeys(self.nulls)
        values |= {"changed_at": bindparam("stamp"), **self._following(values)}
        if self.report:
            values |= {"unreported": True, "news": JobRow.news + 1}
        asked = [getattr(JobRow, name).is_not_distinct_from(bindparam(f"old_{name}")) for name in self.only_if]
        here = [] if site is None else [JobRow.site == site]
        is_live = or_(*(JobRow.state == each for each in LIVE))  # IN does not work with executemany
        which = (JobRow.token == bindparam("token_"), is_live, *here, *asked)
        return update(JobRow.__table__).where(*which).values(**values)

    def _following(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._granted(values), **self._billed(values)}

    def _granted(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the nodes of a job that has started: a batch system never grants more than were requested."""
        if not {"nodes", "started_at"} <= {*self.columns}:
            return {}
        return {"nodes": case((JobRow.nodes > values["nodes"], values["nodes"]), else_=JobRow.nodes)}

    def _billed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a finished job has cost, or when a batch job was submitted."""
        if "ended_at" in self.columns:
            started = values.get("started_at", JobRow.started_at)
            hours = None if started is None else (values["ended_at"] - started) / 3600
            usd = None if hours is None else cpu_hour() * JobRow.cpus * func.coalesce(JobRow.nodes, 1) * hours
            # If its machine has gone, the bill has already been shared.
            return {"usd": None if usd is None else func.coalesce(usd, JobRow.usd)}
        if "native_id" in self.columns and "started_at" not in values:
            # The batch job in which a job starts may be an allocation that was not submitted for it.
            return {"submitted_at": func.coalesce(JobRow.submitted_at, time.time())}
        return {}


def cpu_hour() -> Any:
    """Return the price of a cpu-hour where a job is, in USD: at its location, or if that has gone, at its site."""
    rate = select(LocationRow.usd_per_cpu_hour).where(LocationRow.site == JobRow.site)
    here, anywhere = (rate.where(LocationRow.name == name).scalar_subquery() for name in (JobRow.location, JobRow.site))
    return func.coalesce(here, anywhere)


def usd_until(now: float) -> Any:
    """Return what a job has cost in USD, including the time up to now if it runs; NULL if it has no price."""
    ran = JobRow.cpus * func.coalesce(JobRow.nodes, 1) * (now - JobRow.started_at) / 3600
    return case((JobRow.state == State.RUNNING, cpu_hour() * ran), else_=JobRow.usd)


def save_locations(session: Session, site: str, locations: Iterable[LocationRow]) -> None:
    """Replace the locations of a site; `seen_at` of a location that stays in its state is kept."""
    kept = list(locations)
    session.execute(
        delete(LocationRow).where(LocationRow.site == site, LocationRow.name.not_in([row.name for row in kept]))
    )
    # Read all at once, because a merge queries each row that is not loaded yet.
    known = {row.name: row for row in session.scalars(select(LocationRow).where(LocationRow.site == site))}
    for row in kept:
        if (before := known.get(row.name)) is not None:
            row.seen_at = before.seen_at if before.state == row.state else row.seen_at
            session.merge(row)
        else:
            session.add(row)


def forget_other_sites(session: Session, sites: Iterable[str]) -> None:
    """Delete the locations of sites that are no longer in the sites file."""
    session.execute(delete(LocationRow).where(LocationRow.site.not_in(list(sites))))


def chunks(tokens: Sequence[str]) -> Iterable[Sequence[str]]:
    """Split tokens into portions that every database accepts in one statement."""
    return (tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK))
