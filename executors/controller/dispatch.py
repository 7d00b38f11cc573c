"""Dispatch: turn an assignment into a decision, and placed jobs into the envelopes that are sent to sites.

Envelopes are made from the rows in the store, so that a job which ended in the meantime is not sent.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lading.executors import store
from lading.executors.controller import launched
from lading.executors.decisions import Decision, is_relaxed, placement, refused, relaxed
from lading.executors.sizing import sizing
from lading.executors.store import Change, JobRow, groups, queue
from lading.executors.store.fair_queue import FairTurns
from lading.executors.store.queued import QueuedJobs
from lading.hooks.batch.script_jobs import JOB_SCRIPT, STARTED_AT
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.admission import admitted, refusal
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.gpus import type_of
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.sizing.auto import at_least_default, from_text, is_limit

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.hooks.site import Site

log = logging.getLogger(__name__)

BEHIND_OTHERS = because("turn")


def decided(jobs: Sequence[WaitingJob], found: Assignment, now: float) -> Decision:
    changes = [refused(token, reason, now) for token, reason in found.refused.items()]
    placed: dict[str, dict[str, list[str]]] = {}
    by_token = {job.name: job for job in jobs} if found.stops else {}
    for token, (site, location) in found.placed.items():
        placed.setdefault(site, {}).setdefault(location, []).append(token)
        passed, stop = found.passed.get(token), found.stops.get(token)
        why = None if passed is None else because("sent_to_next_site").with_also(passed)
        change = placement(token, site, location, why, now, stop)
        if stop is not None and is_relaxed(stop):
            change = relaxed(change, by_token[token], stop)
        changes.append(change)
    reasons: dict[Reason, list[str]] = {}
    is_new: dict[tuple[int, int], bool] = {}
    for job in jobs:
        reason = found.waits.get(job.name)
        if reason is None and job.reason is not None and job.name in found.waits:
            # A short wait for its turn needs no reason, but an outdated reason is replaced.
            reason = BEHIND_OTHERS
        if reason is None or reason is job.reason:
            continue
        pair = id(reason), id(job.reason)  # thousands of jobs share a few pairs
        if pair not in is_new:
            is_new[pair] = reason != job.reason
        if is_new[pair]:
            reasons.setdefault(reason, []).append(job.name)
    orders = {site: launched.orders(each.launches) for site, each in found.provisions.items() if each.launches}
    decision = Decision(tuple(changes), placed, orders=orders, provisions=found.provisions)
    return replace(decision, reasons=reasons, more_waiting=bool(jobs))


def explain(
    session: Session, queued: QueuedJobs, decision: Decision, before: float, fair: FairTurns | None = None
) -> None:
    """Store why jobs wait.

    :param before: jobs that this tick did not consider get a reason only if they were queued before this, epoch seconds
        by the database's clock
    :param fair: the turns of shares, and whose jobs cannot start; None: all can
    """
    for reason, tokens in decision.reasons.items():
        queued.explain(session, reason, tokens)
    groups.explain(session, queued, before)
    queued.explain(session, sizing.UNKNOWN, queued.without_reason(before, are_unsized=True))
    if fair is not None:
        fair.explain_held(session, queued, before)
    if decision.more_waiting:
        queued.explain(session, BEHIND_OTHERS, queued.without_reason(before, are_unsized=False))


def to_send(
    session: Session,
    placed: Mapping[str, Sequence[str]],
    mint: Callable[[str, float], str],
    site: Site[Any],
    database_ahead: float = 0.0,
    rests: Mapping[str, float] = queue.NO_RESTS,
    fair: FairTurns | None = None,
) -> tuple[dict[str, list[Envelope]], list[Change]]:
    """Make the envelopes of placed jobs, each with a JWT that is valid for as long as the site requires.

    A job whose row is unreadable fails, without affecting the others. So does a job placed at a site that its Dag is
    not admitted to, whoever placed it and whenever. Where the site enforces requests as limits, a job without hints
    requests at least the defaults, because packing it by a smaller estimate could kill it. Each job is charged for
    what it occupies at the site, such as whole cores.

    :param placed: tokens by location
    :param database_ahead: seconds by which the database's clock, which dates queueing, is ahead of ours
    :param rests: longest remaining path in seconds by token, which orders jobs of one priority; empty: by arrival
    :param fair: the turns of shares; None: shares take no turns
    :returns: envelopes by location, and the stored changes that end jobs
    """
    seconds, open_to = site.jwt_seconds, [(site.name, site.admission)]
    expires_at = time.time() + seconds
    jobs = queue.to_send(session, [token for tokens in placed.values() for token in tokens])
    by_token, changes = dict[str, Envelope](), list[Change]()
    for job in jobs:
        # A job that is already at the site only gets a new JWT.
        if job.expires_at is None and not admitted(open_to, job.dag_id, job.team):
            changes.append(refused(job.token, refusal(open_to, job.dag_id, job.team), time.time()))
            continue
        # A job script needs no JWT, as its task is not running.
        jwt = None if job.kind == JOB_SCRIPT else mint(job.subject, seconds)
        try:
            made = envelope(job, jwt, expires_at, database_ahead, rests.get(job.token, 0.0))
            if fair is not None:
                # A new JWT does not move a job behind those that the site got meanwhile.
                sent_at = None if job.expires_at is None else job.placed_at
                turn = fair.turn(job.token) if sent_at is None else sent_at
                made = replace(made, turn=turn, priority=fair.priority(job))
            values: dict[str, Any] = {"expires_at": expires_at}
            if job.chosen is not None and (
                site.requests_are_limits or is_limit(getattr(site.config, "container", None))
            ):
                made = replace(made, resources=at_least_default(made.resources, from_text(job.chosen)))
            made = replace(made, resources=site.occupied(made.resources))
            if made.resources != job.resources:
                # If the job goes back to the queue, its former request is restored.
                before = {**asdict(job.resources), **json.loads(job.asked or "{}")}
                values |= {**asdict(made.resources), "asked": json.dumps(before)}
            by_token[job.token] = made
            changes.append(Change(job.token, values))
        except Exception as error:  # stored data can be anything
            reason = because("row_unreadable", text=f"{type(error).__name__}: {error}")
            log.error("Job %s: %s", job.token, reason, exc_info=error)
            changes.append(refused(job.token, reason, time.time()))
    # Write only after making the JWTs, which takes a while: from its first write on, a transaction locks all of SQLite.
    store.apply(session, changes)
    sent = {location: [by_token[each] for each in tokens if each in by_token] for location, tokens in placed.items()}
    return sent, [change for change in changes if "state" in change.values]


def envelope(
    job: JobRow, jwt: str | None, expires_at: float, database_ahead: float = 0.0, rest: float = 0.0
) -> Envelope:
    """Return the envelope of a job.

    :param jwt: authenticates its task to Airflow's API; None: it is a job script
    :param expires_at: when the JWT expires, epoch seconds
    :param database_ahead: seconds by which the database's clock, which dates queueing, is ahead of ours
    :param rest: longest remaining path of its run in seconds; 0: it is ordered by arrival
    """
    if jwt is None:
        workload = {"type": JOB_SCRIPT, STARTED_AT: job.started_at}
    else:
        workload = {**json.loads(job.workload), "token": jwt}
    return Envelope(
        token=job.token,
        workload=workload,
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
        rest=rest,
        team=job.team,
        gpu_type=type_of((job.features or "").split(",")),
    )
