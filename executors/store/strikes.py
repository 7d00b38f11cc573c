"""Strikes: under which jobs controllers have died or hung, so that none brings down one after the other.

A controller notes the jobs that it is about to examine, and takes the note back when it has come through, or ends in
order. The next holder of the lease finds the notes of one that did neither. A job that was noted alone has brought
it down: a strike. Of several any may have, so each counts as struck once at least and is examined alone from then on.
At :data:`MOST_STRIKES` a job has failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, func, select, update

from lading.executors.store.jobs import Change, apply, chunks, knows
from lading.executors.store.tables import JobRow, State
from lading.scheduling.reasons import Reason, because

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A job under which so many controllers have died or hung is not tried again.
MOST_STRIKES = 2
# How many mapped instances of a task that ask for the same may bring a controller down before the others fail.
MOST_ALIKE = 2
WAITING = State.QUEUED, State.ATTEMPTED
WITHOUT_SYNC = {"synchronize_session": False}


def is_struck() -> ColumnElement[bool]:
    """Whether a controller has died or hung under a job, or may have."""
    return func.coalesce(JobRow.strikes, 0) > 0


def note(session: Session, holder: str, tokens: Iterable[str]) -> None:
    """Note the jobs that a controller is about to examine; commit it before that.

    :param holder: by which the lease is held
    """
    _write(session, tokens, examined_by=holder)


def passed(session: Session, tokens: Iterable[str]) -> None:
    """Note that a controller has come through with these jobs: they have brought down none."""
    _write(session, tokens, examined_by=None, strikes=None)


def take_back(session: Session, tokens: Iterable[str]) -> None:
    """Take back the notes of jobs that were not examined after all."""
    _write(session, tokens, examined_by=None)


def take_all_back(session: Session, holder: str) -> None:
    """Take back all notes of a controller that ends in order, or of which is known better what it does."""
    session.execute(
        update(JobRow)
        .where(JobRow.state.in_(WAITING), JobRow.examined_by == holder)
        .values(examined_by=None, changed_at=JobRow.changed_at),
        execution_options=WITHOUT_SYNC,
    )


def blame(session: Session, holder: str, token: str) -> bool:
    """Note for a controller that has died over which job that was: what else it has noted has not brought it down.

    :returns: whether there is such a job; where there is none, it was one that is still to come
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
    """Strike the jobs that other controllers have noted and died or hung over; those struck too often have failed.

    :param holder: the holder that has just taken the lease
    :returns: what has changed
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
    """What those of a task and run have asked for under which controllers have died or hung too often, as it is stored:
    the map index of each."""
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
    """Why a job is not tried that asks for the same as those; None: it is.

    Mapped instances have their own inputs, so one of them says little of the next.

    :param struck: the map indexes of those under which controllers have died or hung too often
    """
    if map_index in struck:
        return because("controllers_died_sizing_try")
    if len(struck) >= MOST_ALIKE:
        indexes = [str(each) for each in sorted(struck)[:MOST_ALIKE]]
        return because("controllers_died_sizing_alike", count=len(struck), indexes=indexes)
    return None
