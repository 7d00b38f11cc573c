"""Dispatch: from what waits and what sites answered to what is to be done. The decisions here are pure."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.executors.store import Change, Job, State
from lading.executors.store.queue import Given
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.sites import Waiting
from lading.scheduling.placement import Assignment

# A job that its location does not know may be between two of its files, or its news may be on the way.
SECONDS_UNTIL_REPEATED = 5.0
SECONDS_UNTIL_LOST = 30.0
# What a site has and the store does not want: another database, or a job that was given up too early.
SECONDS_UNTIL_STRANGE = 60.0
STRANGE = "Lading does not know this job (any more)"

BEHIND_OTHERS = "waits for its turn: jobs with a higher priority or an earlier arrival come first"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done in this tick.

    :param changes: what is recorded before anything is done
    :param placed: by site and location, the tokens of the jobs that it is given (again)
    :param cancels: by site and location, the tokens of jobs to end, each with the reason in words
    :param reasons: by reason, the tokens of the jobs that wait for it and have been told another one, or none
    :param more_waiting: whether there may be waiting jobs that nobody looked at
    """

    changes: tuple[Change, ...] = ()
    placed: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    cancels: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)
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


def decided(jobs: Sequence[Waiting], found: Assignment, now: float) -> Decision:
    """What is to be done about waiting jobs.

    :param found: where they go
    """
    changes = [refused(token, reason, now) for token, reason in found.refused.items()]
    placed: dict[str, dict[str, list[str]]] = {}
    for token, (site, location) in found.placed.items():
        placed.setdefault(site, {}).setdefault(location, []).append(token)
        passed = found.passed.get(token)
        changes.append(placement(token, site, location, None if passed is None else f"sent here because {passed}", now))
    reasons: dict[str, list[str]] = {}
    for job in jobs:
        # A short wait for its turn is not worth a reason; but one that does not hold any more is replaced.
        reason = found.waits.get(job.name) or (BEHIND_OTHERS if job.reason is not None else None)
        if job.name in found.waits and reason is not None and reason != job.reason:
            reasons.setdefault(reason, []).append(job.name)
    return Decision(tuple(changes), placed, reasons=reasons, more_waiting=bool(jobs))


def refused(token: str, reason: str, now: float) -> Change:
    """The end of a job that can never run."""
    values = {"state": State.FAILED, "cause": "error", "reason": reason, "ended_at": now}
    return Change(token, values, report=True)


def placement(token: str, site: str, location: str, reason: str | None, now: float) -> Change:
    """The intent to run a job at a location."""
    values = {"state": State.PLACED, "site": site, "location": location, "placed_at": now, "reason": reason}
    return Change(token, values)


@dataclass(slots=True)
class Absence:
    """Since when something has been missing, on a clock that never jumps."""

    since: dict[str, float] = field(default_factory=dict)

    def look(self, missing: Iterable[str], unasked: Container[str] = ()) -> dict[str, float]:
        """For each token that is missing now: for how many seconds it has been. The others are forgotten.

        :param unasked: those of which nothing could be learnt now, which changes nothing for them
        """
        now = time.monotonic()
        kept = {token: at for token, at in self.since.items() if token in unasked}
        found = {token: self.since.get(token, now) for token in missing}
        self.since = kept | found
        return {token: now - at for token, at in found.items()}

    def seconds(self) -> dict[str, float]:
        """For how many seconds what was missing at the last look has been."""
        now = time.monotonic()
        return {token: now - at for token, at in self.since.items()}


def lost(jobs: Iterable[Given], absent: Mapping[str, float], now: float) -> list[Change]:
    """The end of running jobs that their site has not known for long. Missing is never success."""
    values = {
        "state": State.FAILED,
        "cause": "lost",
        "reason": f"its site has known nothing of it for {SECONDS_UNTIL_LOST:.0f} s",
        "ended_at": now,
    }
    return [
        Change(job.token, values, report=True)
        for job in jobs
        if job.state == State.RUNNING and absent.get(job.token, 0.0) > SECONDS_UNTIL_LOST
    ]


def repeats(jobs: Iterable[Given], absent: Mapping[str, float], fresh_until: float) -> list[str]:
    """Placed jobs to be given again: they did not arrive, or their JWT runs out before ``fresh_until``."""

    def due(job: Given) -> bool:
        if job.token in absent:
            return absent[job.token] > SECONDS_UNTIL_REPEATED
        return job.expires_at is None or job.expires_at < fresh_until

    return [job.token for job in jobs if job.state == State.PLACED and due(job)]


def strangers(unknown: Mapping[str, float]) -> dict[str, str]:
    """The jobs to be ended that a site has and the store does not: by token, the reason in words.

    :param unknown: for how many seconds each has not been known
    """
    return {token: STRANGE for token, seconds in unknown.items() if seconds > SECONDS_UNTIL_STRANGE}


def envelopes(jobs: Iterable[Job], mint: Callable[[str], str], expires_at: float) -> list[Envelope]:
    """The jobs as they travel, each with a JWT that ``mint`` makes for its subject."""
    return [
        Envelope(
            token=job.token,
            workload={**json.loads(job.workload), "token": mint(job.subject)},
            resources=job.resources,
            memory_limit=job.memory_limit,
            time_limit=job.time_limit,
            priority=job.priority,
            queued_at=job.queued_at,
            expires_at=expires_at,
            queue=job.queue_hint,
            native=json.loads(job.native_hint) if job.native_hint else {},
            layout=job.layout,
        )
        for job in jobs
    ]
