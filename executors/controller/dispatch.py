"""Dispatch: from what waits and what sites answered to what is to be done. The decisions here are pure.

What travels is read from the store, so that one that ended meanwhile does not.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lading.executors import store
from lading.executors.controller import launched
from lading.executors.controller.events import clean
from lading.executors.estimation import appraisal
from lading.executors.store import Change, Job, State, groups, queue
from lading.hooks.site import Order
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.job import LAYOUT
from lading.scheduling.matching.rules import NODES, in_words
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import Waiting
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.provisioning import Provision

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

BEHIND_OTHERS = "waits for its turn: jobs with a higher priority or an earlier arrival come first"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done in this tick.

    :param changes: what is recorded before anything is done
    :param placed: by site and location, the tokens of the jobs that it is given (again)
    :param cancels: by site and location, the tokens of jobs to end, each with the reason in words
    :param recalls: by site and location, the tokens of jobs that are to come back unless they have begun
    :param orders: by site, what is launched
    :param provisions: by site, all that was decided about what is launched and released
    :param reasons: by reason, the tokens of the jobs that wait for it and have been told another one, or none
    :param holds: by site and location, the room that is to be held; ``drops``: the tokens of what is given back
    :param store_more: stores what else was decided, with the time
    :param more_waiting: whether there may be waiting jobs that nobody looked at
    """

    changes: tuple[Change, ...] = ()
    placed: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    cancels: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    recalls: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    orders: Mapping[str, Sequence[Order]] = field(default_factory=dict)
    provisions: Mapping[str, Provision] = field(default_factory=dict)
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)
    holds: Mapping[str, Mapping[str, Sequence[Hold]]] = field(default_factory=dict)
    drops: Mapping[str, Mapping[str, Collection[str]]] = field(default_factory=dict)
    store_more: Callable[[Session, float], None] = lambda session, now: None
    more_waiting: bool = False

    def with_changes(self, changes: Iterable[Change]) -> Decision:
        return replace(self, changes=(*self.changes, *changes))

    def with_repeats(self, site: str, location: str, tokens: Iterable[str]) -> Decision:
        if not (tokens := list(tokens)):
            return self
        its_own = self.placed.get(site, {})
        repeated = {**its_own, location: [*its_own.get(location, ()), *tokens]}
        return replace(self, placed={**self.placed, site: repeated})

    def with_cancels(self, site: str, location: str, messages: Mapping[str, str]) -> Decision:
        if not messages:
            return self
        return replace(self, cancels={**self.cancels, site: {**self.cancels.get(site, {}), location: messages}})

    def with_reasons(self, reasons: Mapping[str, Sequence[str]]) -> Decision:
        return replace(self, reasons={**self.reasons, **reasons}) if reasons else self

    def with_recalls(self, site: str, tokens: Mapping[str, Sequence[str]]) -> Decision:
        return replace(self, recalls={**self.recalls, site: tokens}) if tokens else self


def decided(jobs: Sequence[Waiting], found: Assignment, now: float) -> Decision:
    """What is to be done about waiting jobs.

    :param found: where they go
    """
    changes = [refused(token, reason, now) for token, reason in found.refused.items()]
    placed: dict[str, dict[str, list[str]]] = {}
    by_token = {job.name: job for job in jobs} if found.stops else {}
    for token, (site, location) in found.placed.items():
        placed.setdefault(site, {}).setdefault(location, []).append(token)
        passed, stop = found.passed.get(token), found.stops.get(token)
        words = None if passed is None else clean(f"sent here because {passed}")
        change = placement(token, site, location, words, now, stop)
        if stop is not None and is_relaxed(stop):
            change = relaxed(change, by_token[token], stop)
        changes.append(change)
    reasons: dict[str, list[str]] = {}
    waits = {words: clean(words) for words in {*found.waits.values()} if words}  # plugins have their say in them
    for job in jobs:
        reason = waits.get(found.waits.get(job.name) or "")
        if not reason and job.reason is not None and job.name in found.waits:
            # A short wait for its turn is not worth a reason; but one that does not hold any more is replaced.
            reason = BEHIND_OTHERS
        if reason and reason != job.reason:
            reasons.setdefault(reason, []).append(job.name)
    orders = {site: launched.orders(each.launches) for site, each in found.provisions.items() if each.launches}
    decision = Decision(tuple(changes), placed, orders=orders, provisions=found.provisions)
    return replace(decision, reasons=reasons, more_waiting=bool(jobs))


def refused(token: str, reason: str, now: float) -> Change:
    """The end of a job that can never run."""
    values = {"state": State.FAILED, "cause": "error", "reason": clean(reason), "ended_at": now}
    return Change(token, values, report=True)


def placement(token: str, site: str, location: str, reason: str | None, now: float, stop: Stop | None = None) -> Change:
    """The intent to run a job at a location.

    :param stop: where it asks for something else than its hints say; None: it does not
    """
    its_queue = None if stop is None else dict(stop.relaxed + stop.changes).get("queue")
    values = {"state": State.PLACED, "site": site, "location": location, "placed_at": now, "queue": its_queue}
    values["reason"] = values["placed_because"] = reason
    return Change(token, values)


def relaxed(change: Change, job: Waiting, stop: Stop) -> Change:
    """A placement by a rule, or where there are fewer nodes than a job wishes: it has what it asks for there, and what
    it wished is kept for when it comes back."""
    words = in_words(job, tuple((dict(stop.relaxed) | _nodes(stop)).items()))
    most = f"asks for {words}, the most that a job can have there"
    words = most if stop.rule is None else f"by rule {stop.rule!r}: {words}"
    reason = "; ".join(filter(None, (change.values["reason"], words)))
    values = {"rule": stop.rule, "asked": json.dumps(columns(job)), "reason": reason, "placed_because": reason}
    return replace(change, values=change.values | columns(stop.asked(job)) | values)


def is_relaxed(stop: Stop) -> bool:
    """Whether a job has less at a stop than it wishes."""
    return stop.rule is not None or bool(_nodes(stop))


def _nodes(stop: Stop) -> dict[str, Any]:
    return {name: value for name, value in stop.changes if name == NODES}


def columns(job: Waiting) -> dict[str, Any]:
    """What a rule may change of a job, as its row has it; its queue has a column of its own for that."""
    features = ",".join(sorted(job.features)) or None
    limit = {"memory_limit": job.memory_limit, "features": features, "capacity_type": job.capacity_type}
    return {**asdict(job.resources), **limit, NODES: job.nodes if LAYOUT in job.hints else None}


def explain(session: Session, decision: Decision, before: float) -> None:
    """Store why jobs wait; of those that were not looked at, for the ones queued before this (epoch seconds, by the
    database's clock)."""
    for reason, tokens in decision.reasons.items():
        store.explain(session, reason, tokens)
    groups.explain(session, before)
    appraisal.explain(session, before)
    if decision.more_waiting:
        store.explain_the_rest(session, BEHIND_OTHERS, before)


def to_send(
    session: Session,
    placed: Mapping[str, Sequence[str]],
    mint: Callable[[str, float], str],
    seconds: float,
    database_ahead: float = 0.0,
) -> tuple[dict[str, list[Envelope]], list[Change]]:
    """Placed jobs as they travel, by location, each with a JWT that is valid for so many seconds; and what was stored.

    One whose row cannot be read fails, and it alone.

    :param database_ahead: by how many seconds the clock is before ours that says when they were queued
    """
    expires_at = time.time() + seconds
    jobs = queue.to_send(session, [token for tokens in placed.values() for token in tokens])
    by_token, changes = dict[str, Envelope](), list[Change]()
    for job in jobs:
        jwt = mint(job.subject, seconds)
        try:
            by_token[job.token] = envelope(job, jwt, expires_at, database_ahead)
            changes.append(Change(job.token, {"expires_at": expires_at}))
        except Exception as error:  # the data is whatever was stored
            words = f"its row cannot be read, so it was not sent: {type(error).__name__}: {error}; clear the task"
            log.error("Job %s: %s", job.token, words, exc_info=error)
            changes.append(refused(job.token, words, time.time()))
    # After the JWTs, which take a while: who has written to SQLite holds its one lock until he commits.
    store.apply(session, changes)
    sent = {location: [by_token[each] for each in tokens if each in by_token] for location, tokens in placed.items()}
    return sent, [change for change in changes if "state" in change.values]


def envelope(job: Job, jwt: str, expires_at: float, database_ahead: float = 0.0) -> Envelope:
    """A job as it travels.

    :param jwt: with which its task introduces itself
    :param expires_at: when that is no longer valid, epoch seconds
    :param database_ahead: by how many seconds the clock is before ours that says when it was queued
    """
    return Envelope(
        token=job.token,
        workload={**json.loads(job.workload), "token": jwt},
        resources=job.resources,
        memory_limit=job.memory_limit,
        time_limit=job.time_limit,
        priority=job.priority,
        queued_at=job.queued_at - database_ahead,
        expires_at=expires_at,
        queue=job.queue or job.queue_hint,
        native=json.loads(job.native_hint) if job.native_hint else {},
        layout=job.layout,
        container=job.container,
        inputs=json.loads(job.stage) if job.stage else {},
    )
