"""Strikes: jobs under which controllers died or hung, so that no job brings down one controller after another.

A controller marks the jobs it is about to examine, and clears the marks when it has finished or shuts down cleanly. If
it does neither, the next holder of the lease finds the marks. If a single job was marked, it brought the controller
down and gets a strike. If several were, any may be to blame, so each counts as struck at least once and is examined
alone from then on. With :data:`MOST_STRIKES` strikes, a job fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, func, select, update

from lading.executors.store.jobs import Change, apply, chunks, knows
from lading.executors.store.tables import JobRow, State
from lading.scheduling.model.reasons import Reason, because

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A job under which this many controllers died or hung is not tried again.
MOST_STRIKES = 2
WAITING = State.QUEUED, State.ATTEMPTED
WITHOUT_SYNC = {"synchronize_session": False}


def is_struck() -> ColumnElement[bool]:
    """Return the condition for jobs under which a controller died or hung, or may have."""
    return func.coalesce(JobRow.strikes, 0) > 0


def note(session: Session, holder: str, tokens: Iterable[str]) -> None:
    """Mark the jobs that a controller is about to examine; the caller commits before examining them.

    :param holder: the holder of the lease
    """
    _write(session, tokens, examined_by=holder)


def passed(session: Session, tokens: Iterable[str]) -> None:
    """Clear the marks and strikes of jobs that a controller has examined successfully."""
    _write(session, tokens, examined_by=None, strikes=None)


def take_back(session: Session, tokens: Iterable[str]) -> None:
    """Clear the marks of jobs that were not examined after all."""
    _write(session, tokens, examined_by=None)


def take_all_back(session: Session, holder: str) -> None:
    """Clear all marks of a controller that shuts down cleanly or whose fate is known in more detail."""
    session.execute(
        update(JobRow)
        .where(JobRow.state.in_(WAITING), JobRow.examined_by == holder)
        .values(examined_by=None, changed_at=JobRow.changed_at),
        execution_options=WITHOUT_SYNC,
    )


def blame(session: Session, holder: str, token: str) -> bool:
    """Blame one job for the death of a controller, and clear its other marks.

    :returns: whether the job is stored; otherwise it was not queued yet
    """
    take_all_back(session, holder)
    session.execute(
        update(JobRow)
        .where(JobRow.token == token, JobRow.state.in_(WAITING))
        .values(examined_by=holder, changed_at=JobRow.changed_at),
        execution_options=WITHOUT_SYNC,
    )
    return knows(session, token)


def _write(session: Session, tokens: Iterable[str], **values: str | None) -> None:
    for chunk in chunks(sorted(tokens)):
        query = update(JobRow).where(JobRow.token.in_(chunk)).values(**values, changed_at=JobRow.changed_at)
        session.execute(query, execution_options=WITHOUT_SYNC)


def charge(session: Session, holder: str) -> list[Change]:
    """Strike the jobs under which other controllers died or hung; those struck too often fail.

    :param holder: the holder that has just taken the lease
    :returns: the changes made
    """
    noted = session.execute(
        select(JobRow.token, JobRow.strikes, JobRow.sizing).where(
            JobRow.state.in_(WAITING), JobRow.examined_by.is_not(None), JobRow.examined_by != holder
        )
    ).all()
    changes = []
    for token, before, sizing in noted:
        strikes = (before or 0) + 1 if len(noted) == 1 else max(before or 0, 1)
        values: dict[str, Any] = {"strikes": strikes, "examined_by": None}
        if strikes >= MOST_STRIKES:
            reason = because("controllers_died_placing" if sizing is None else "controllers_died_sizing", count=strikes)
            values |= {"state": State.FAILED, "cause": "error", "reason": reason, "ended_at": time.time()}
        changes.append(Change(token, values, report=strikes >= MOST_STRIKES))
    return apply(session, changes)


def repeated(session: Session, task: tuple[str, str, str]) -> dict[str, list[int]]:
    """Return the requests of a task's jobs in a run that were struck too often, each with its map indexes."""
    dag_id, run_id, task_id = task
    map_indexes: dict[str, list[int]] = {}
    for map_index, text in session.execute(
        select(JobRow.map_index, JobRow.sizing).where(
            JobRow.dag_id == dag_id,
            JobRow.run_id == run_id,
            JobRow.task_id == task_id,
            JobRow.strikes >= MOST_STRIKES,
            JobRow.sizing.is_not(None),
        )
    ):
        map_indexes.setdefault(str(text), []).append(map_index)
    return map_indexes


def refusal(struck: list[int], map_index: int) -> Reason | None:
    """Return why a job is not tried, given struck jobs with the same request; None: it is tried.

    One struck mapped instance is not enough, because the others have inputs of their own.

    :param struck: the map indexes of jobs struck too often
    """
    if map_index in struck:
        return because("controllers_died_sizing_try")
    # After two mapped instances with equal requests have brought a controller down, the remaining ones fail.
    if len(struck) >= 2:
        indexes = [str(each) for each in sorted(struck)[:2]]
        return because("controllers_died_sizing_alike", count=len(struck), indexes=indexes)
    return None
