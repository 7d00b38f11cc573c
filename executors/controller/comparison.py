"""What the locations of a site have beside what the store thinks they have, and what follows from the difference.

A location that could not be asked changes nothing for its jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lading.executors.controller.absence import Absence
from lading.executors.controller.views import SiteAnswer
from lading.executors.decisions import Decision
from lading.executors.store import Change, State, queue
from lading.executors.store.queue import GivenJob
from lading.scheduling.reasons import Reason, because

# A job that its location does not know may be between two of its files, or its news may be on the way.
SECONDS_UNTIL_REPEATED = 5.0
SECONDS_UNTIL_LOST = 30.0
# What a site has and the store does not want: another database, or a job that was given up too early.
SECONDS_UNTIL_STRANGE = 60.0
STRANGE = because("stranger")


@dataclass(slots=True)
class Comparison:
    """The differences at one site, and for how long there have been any.

    :param absent: the jobs that it was given and does not know
    :param strange: those that it knows and was not given
    """

    absent: Absence = field(default_factory=Absence)
    strange: Absence = field(default_factory=Absence)

    def of(self, answer: SiteAnswer, decision: Decision, now: float) -> Decision:
        """The decision with what follows from the differences: jobs are lost, given again, or ended as strangers."""
        site, here, seen = answer.site.name, queue.by_location(answer.jobs), answer.observation.locations
        asked = {each.name: each.known for each in seen if each.known is not None}
        if answer.site.launches:
            # What was launched and is not named any more is gone, and all that was on it.
            named = {each.name for each in seen}
            asked |= {name: frozenset() for name in here if name is not None and name not in named}
        # Those of locations that could not be asked, and what another machine was given, before a fail-over.
        unasked = {job.token for job in answer.jobs if job.location not in asked}
        where = {token: name for name, known in asked.items() for token in known}
        elsewhere = (job for job in answer.jobs if job.token not in asked.get(str(job.location), ()))
        moved = {job.token: where[job.token] for job in elsewhere if job.token in where}
        jobs = [job for job in answer.jobs if job.location in asked and job.token not in moved]
        absent = self.absent.look((job.token for job in jobs if job.token not in asked[str(job.location)]), unasked)
        given = {job.token for job in answer.jobs}
        strange = {token: name for name, known in asked.items() for token in known - given}
        silent = self.strange.since.keys() if any(each.known is None for each in seen) else ()
        unknown = strangers(self.strange.look(strange, silent))
        decision = decision.with_changes([*relocations(moved), *lost(jobs, absent, now)])
        for name in asked:
            cancels = {job.token: job.cancel for job in here.get(name, ()) if job.cancel}
            cancels |= {token: reason for token, reason in unknown.items() if strange[token] == name}
            again = repeats(here.get(name, ()), absent, now, answer.site.jwt_seconds)
            decision = decision.with_repeats(site, name, again).with_cancels(site, name, cancels)
        return decision


def relocations(moved: Mapping[str, str]) -> list[Change]:
    """Jobs are at another location than the store thinks, which an older version of Lading may have left so.

    :param moved: the location that has each, by token
    """
    return [Change(token, {"location": location}) for token, location in moved.items()]


def lost(jobs: Iterable[GivenJob], absent: Mapping[str, float], now: float) -> list[Change]:
    """The end of running jobs that their site has not known for long. Missing is never success."""
    values = {
        "state": State.FAILED,
        "cause": "lost",
        "reason": because("lost_at_site", seconds=SECONDS_UNTIL_LOST),
        "ended_at": now,
    }
    return [
        Change(job.token, values, report=True)
        for job in jobs
        if job.state == State.RUNNING and absent.get(job.token, 0.0) > SECONDS_UNTIL_LOST
    ]


def repeats(jobs: Iterable[GivenJob], absent: Mapping[str, float], now: float, jwt_seconds: float) -> list[str]:
    """Placed jobs to be given again: they did not arrive, or their JWT is not known to be fresh.

    One that runs out later than one made now was made by a controller whose clock is ahead of this one's, on another
    machine: how much of its time is left is not known here.

    :param now: epoch seconds
    :param jwt_seconds: for which a JWT is valid at the site
    """

    def due(job: GivenJob) -> bool:
        if job.token in absent:
            return absent[job.token] > SECONDS_UNTIL_REPEATED
        return job.expires_at is None or not now + jwt_seconds / 2 <= job.expires_at <= now + jwt_seconds

    return [job.token for job in jobs if job.state == State.PLACED and due(job)]


def strangers(unknown: Mapping[str, float]) -> dict[str, Reason]:
    """The jobs to be ended that a site has and the store does not: by token, the reason.

    :param unknown: for how many seconds each has not been known
    """
    return {token: STRANGE for token, seconds in unknown.items() if seconds > SECONDS_UNTIL_STRANGE}
