"""Turn the answers of sites into views for placement and into changes of the store's rows.

Events have been validated before they get here (see :mod:`lading.hooks.spool.events`). A location that did not answer
changes nothing for its jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lading.executors.controller import launched
from lading.executors.controller.site_memory import MissingSince
from lading.executors.decisions import Decision
from lading.executors.store import ENDED, Change, State, queue
from lading.executors.store.instances import InstanceRow
from lading.executors.store.queue import GivenJob
from lading.executors.store.tables import as_name
from lading.hooks.site import ElasticSite, LocationState, Observation, ObservedLocation, Site
from lading.hooks.spool import hold
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.wishes import default_arch
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, because, combined
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import recalls

# Reasons of jobs that wait for something the site gives no details about.
NOT_BEGUN = because("not_begun")
NO_MARKET = because("no_market")
NO_LOCATIONS = because("no_locations")

# The states for causes that are not failures of the job.
STATE_OF_CAUSE = {None: State.SUCCEEDED, "cancelled": State.CANCELLED}

STRANGE = because("unknown_job")


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """The last answer of a site, with what the store has about that site.

    :param jobs: jobs given to the site
    :param instances: live instances of the site, oldest first
    :param is_new: whether the answer has not been processed yet
    :param sizes: measured sizes of its machines, by instance type and image
    :param boots: instance type and boot time in seconds of each of its latest boots
    :param files: bytes of files that unfinished runs have left, by location
    :param promised: the booting instance that has room for a waiting job, by the job's name
    """

    site: Site[Any]
    observation: Observation
    jobs: Sequence[GivenJob] = ()
    instances: Sequence[InstanceRow] = ()
    is_new: bool = True
    sizes: Mapping[tuple[str, str], Resources] = field(default_factory=dict)
    boots: Sequence[tuple[str, float]] = ()
    files: Mapping[str, int] = field(default_factory=dict)
    promised: Mapping[str, str] = field(default_factory=dict)


def view(site: Site[Any], answer: SiteAnswer | None, silence: str, possible: Sequence[Location]) -> SiteView:
    """Return a site's view for placement, without its locations and without the controller's own records about it.

    :param answer: None: the site did not answer
    :param silence: why it did not answer, as text
    """
    config = site.config
    silent = because("site_silent", site=site.name, text=silence)
    seen = [] if answer is None else [each.location for each in answer.observation.locations]
    return SiteView(
        name=site.name,
        possible=possible,
        arch=default_arch(site.arch, (*possible, *seen)),
        trouble=silent if answer is None else trouble(answer),
        barred={} if answer is None else answer.observation.barred,
        burst_after=config.burst_after,
        admission=site.admission,
        holds=site.holds,
        launches=site.launches,
        attempts=config.attempts,
        policy=config.policy,
        locality_fallback=config.locality_fallback,
        locality_wait=config.locality_wait,
        seconds_ahead=site.seconds_ahead,
    )


def with_locations(site: SiteView, answer: SiteAnswer, prefetchable: Mapping[str, int], now: float) -> SiteView:
    """Return the view with the site's locations and the jobs on them.

    :param prefetchable: how many short jobs can be prefetched, by the name of the location
    :param now: epoch seconds
    """
    here, seen, market = queue.by_location(answer.jobs), answer.observation.locations, market_of(answer)
    site = replace(site, market=market)

    promised: dict[str, set[str]] = {}
    for job, name in answer.promised.items():
        promised.setdefault(name, set()).add(job)

    def loaded(location: Location) -> Location:
        kept = frozenset(promised.get(location.name, ()))
        there, data = location, answer.files.get(location.name, 0)
        if (data, kept) != (location.data, location.promised):
            there = replace(location, data=data, promised=kept)
        return queue.loaded(there, here.get(location.name, ()), prefetchable.get(location.name, 0), site.need)

    if market is None:
        up = [launched.as_seen(each) for each in seen if each.state == LocationState.UP]
        return replace(site, locations=[loaded(each) for each in up])
    everything = [loaded(each) for each in launched.live(answer.instances, seen, market, now)]
    booting = {str(each.instance_type): NOT_BEGUN for each in everything if each.booting}
    coming = {
        str(each.location.instance_type): why_not_up(each) for each in seen if each.state == LocationState.BOOTING
    }
    return replace(
        site,
        locations=[each for each in everything if not (each.booting or each.draining)],
        launched=everything,
        booting=booting | {kind: reason for kind, reason in coming.items() if reason is not None},
    )


def why_not_up(seen: ObservedLocation) -> Reason | None:
    """Return what a booting machine, and so the jobs that need it, wait for; None: the site gives no reason."""
    return seen.waits or (because("booting", text=seen.note) if seen.note else None)


def paused(site: SiteView, by: str | None) -> SiteView:
    """Return the view of a paused site, which gets no jobs. Its idle machines are released as usual.

    :param by: the user who paused it; None: it is not paused
    """
    return site if by is None else replace(site, trouble=because("paused", site=site.name, by=by))


def market_of(answer: SiteAnswer) -> Market | MachineMarket | None:
    """Return what a site can launch; None: launching is off there, whatever market the site reports."""
    market = answer.observation.market if answer.site.launches and isinstance(answer.site, ElasticSite) else None
    return market.sized(answer.sizes).booting_as(answer.boots) if isinstance(market, MachineMarket) else market


def recalled(answer: SiteAnswer, site: SiteView, now: float) -> dict[str, list[str]]:
    """Return the jobs to recall from locations where they have not started, by location.

    While a site takes no jobs, for example because it is paused, only those are recalled that can no longer run there.
    """
    if site.trouble is not None:
        return recalls(site.launched, frozenset(), now=now)
    # A placement time in the future was written by an earlier controller on a machine whose clock is ahead.
    placed = ((each.token, each.placed_at) for each in answer.jobs if each.placed_at is not None)
    # A job that has waited at a location for this long can be moved to one that has room for it now.
    settled = (token for token, at in placed if abs(now - at) > 15.0)
    return recalls(site.launched, frozenset(settled), now=now)


def withdrawn(answer: SiteAnswer) -> tuple[list[Change], dict[str, list[str]]]:
    """Return the jobs of a site that must not start because their budget is spent.

    Members of a gang already hold room together, so they start anyway.

    :returns: changes that queue jobs again which were not sent yet, and the jobs to recall, by location
    """
    changes: list[Change] = []
    back: dict[str, list[str]] = {}
    for job in answer.jobs:
        why = job.terms.withdrawn if job.terms is not None else None
        if why is None or job.state != State.PLACED or job.cancel is not None or job.gang is not None:
            continue
        if job.expires_at is None:
            changes.append(queued_again(job.token, why, {"state": State.PLACED, "expires_at": None}))
        elif job.location is not None:
            back.setdefault(job.location, []).append(job.token)
    return changes, back


def trouble(answer: SiteAnswer) -> Reason | None:
    """Return why a site that has answered takes no jobs at all now; None: it takes jobs."""
    why = answer.observation.trouble or _trouble(answer.site.launches, answer.observation)
    return None if why is None else because("site_trouble", site=answer.site.name).with_also(why)


def _trouble(launches: bool, observation: Observation) -> Reason | None:
    if launches:
        return NO_MARKET if observation.market is None else None
    if any(each.state == LocationState.UP for each in observation.locations):
        return None
    found = [
        because("location_note", text=each.note)
        if each.note
        else because("location_state", location=each.name, state=each.state.value)
        for each in observation.locations
    ]
    return combined(found) if found else NO_LOCATIONS


def changes_by_events(events: Iterable[dict[str, Any]]) -> list[Change]:
    """Return the changes that events cause, in order for each job: at most one for each of its states.

    An unknown kind of event comes from a newer agent and changes nothing.
    """
    found: dict[str, list[Change]] = {}
    for event in events:
        if (change := change_by_event(event)) is not None:
            _add(found.setdefault(change.token, []), change)
    return [change for steps in found.values() for change in steps]


def _add(steps: list[Change], change: Change) -> None:
    """Append a change of a job, or merge it into the one before, so that repeated reports are stored once."""
    before = steps[-1] if steps else None
    if before is not None and before.values.get("state") in ENDED:
        return
    alike = before is not None and not (before.only_if or change.only_if)
    if before is not None and alike and before.values.get("state") in (None, change.values.get("state")):
        steps[-1] = Change(change.token, {**before.values, **change.values}, before.report or change.report)
    else:
        steps.append(change)


# The columns of a job that describe where it was placed.
OF_A_PLACE = (
    "site", "location", "placed_at", "submitted_at", "expires_at", "native_id", "node", "queue", "native_start",
)  # fmt: skip


def change_by_event(event: dict[str, Any]) -> Change | None:
    """Return the change that one event of the journal causes; None: it changes no job."""
    if event["event"] == "started":
        values = {"state": State.RUNNING, "started_at": event["at"], "reason": None, **batch_job_columns(event)}
        if event.get("nodes"):
            values["nodes"] = event["nodes"]
        return Change(event["token"], values, report=True)
    if event["event"] == "waiting":
        return Change(event["token"], {"reason": event["reason"], **batch_job_columns(event)}, report=True)
    if event["event"] in ("estimated", "measured") or (event["event"] == "located" and batch_job_columns(event)):
        start = {"native_start": event["starts_at"]} if "starts_at" in event else {}
        peak = {"peak_memory": event["peak_memory"]} if "peak_memory" in event else {}
        return Change(event["token"], {**batch_job_columns(event), **start, **peak})
    if event["event"] == "returned":
        return queued_again(event["token"], event.get("reason"), {"state": State.PLACED, "location": event["location"]})
    if event["event"] == "finished":
        values = {
            "state": State.FAILED if event.get("failed") else STATE_OF_CAUSE.get(event["cause"], State.FAILED),
            "cause": event["cause"],
            "reason": event["reason"],
            "ended_at": event["at"],
            "exit_code": event["exit_code"],
            "peak_memory": event["peak_memory"],
            "cpu_seconds": event["cpu_seconds"],
            # A batch system reports no start for a job that never started; a start already stored is kept.
            **({"started_at": event["started_at"]} if "started_at" in event else {}),
            **batch_job_columns(event),
        }
        return Change(event["token"], values, report=True)
    return None


def queued_again(token: str, reason: Reason | None, only_if: Mapping[str, Any]) -> Change:
    """Return the change that queues a job again which was given to a site and has not started."""
    return Change(token, dict.fromkeys(OF_A_PLACE) | {"state": State.QUEUED, "reason": reason}, only_if=only_if)


def holds_in_events(events: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, Reason | None]]:
    """Yield the token, the new state and the reason of each hold that events are about."""
    for event in events:
        if event["event"] in hold.EVENTS:
            yield event["token"], event["event"], event.get("reason")


def batch_job_columns(event: dict[str, Any]) -> dict[str, Any]:
    """Return the columns for the batch job's id and node that an event names; the others keep their values."""
    return {key: as_name(event[key]) for key in ("native_id", "node") if event.get(key)}


@dataclass
class Comparison:
    """How the jobs at one site differ from those in the store, and for how long.

    :param absent: jobs that were given to the site and that it does not list
    :param strange: jobs that the site lists and that were not given to it
    """

    absent: MissingSince = field(default_factory=MissingSince)
    strange: MissingSince = field(default_factory=MissingSince)
    seconds_until_repeated: float = 5.0
    """When a location does not list a job, the agent may be moving it between two files, or its event may still be in
    transit."""
    seconds_until_lost: float = 30.0
    seconds_until_strange: float = 60.0
    """A job that a site has and the store does not may belong to another database, or was declared lost too early."""

    def apply(self, answer: SiteAnswer, decision: Decision, now: float) -> Decision:
        """Extend the decision: absent jobs are sent again or declared lost, and strange ones are cancelled."""
        site, here, seen = answer.site.name, queue.by_location(answer.jobs), answer.observation.locations
        asked = {each.name: each.known for each in seen if each.known is not None}
        if answer.site.launches:
            # A launched location that the site no longer lists is gone, with every job on it.
            named = {each.name for each in seen}
            asked |= {name: frozenset() for name in here if name is not None and name not in named}
        # Jobs at locations that did not answer, or that were given to another machine before a failover.
        unasked = {job.token for job in answer.jobs if job.location not in asked}
        where = {token: name for name, known in asked.items() for token in known}
        elsewhere = (job for job in answer.jobs if job.token not in asked.get(str(job.location), ()))
        moved = {job.token: where[job.token] for job in elsewhere if job.token in where}
        jobs = [job for job in answer.jobs if job.location in asked and job.token not in moved]
        absent = self.absent.update((job.token for job in jobs if job.token not in asked[str(job.location)]), unasked)
        given = {job.token for job in answer.jobs}
        strange = {token: name for name, known in asked.items() for token in known - given}
        silent = self.strange.since.keys() if any(each.known is None for each in seen) else ()
        unknown = strangers(self.strange.update(strange, silent), self.seconds_until_strange)
        gone = lost(jobs, absent, now, self.seconds_until_lost)
        decision = decision.with_changes([*relocations(moved), *gone])
        for name in asked:
            cancels = {job.token: job.cancel for job in here.get(name, ()) if job.cancel}
            cancels |= {token: reason for token, reason in unknown.items() if strange[token] == name}
            its = here.get(name, ())
            again = repeats(its, absent, now, answer.site.jwt_seconds, self.seconds_until_repeated)
            decision = decision.with_repeats(site, name, again).with_cancels(site, name, cancels)
        return decision


def relocations(moved: Mapping[str, str]) -> list[Change]:
    """Return changes for jobs at another location than the store says, as an older version of Lading could leave them.

    :param moved: the location that has each job, by token
    """
    return [Change(token, {"location": location}) for token, location in moved.items()]


def lost(jobs: Iterable[GivenJob], absent: Mapping[str, float], now: float, patience: float) -> list[Change]:
    """Fail running jobs that their site has not listed for ``patience`` seconds: missing is never success.

    The triggerer follows job scripts, and tells how they end.
    """
    values = {
        "state": State.FAILED,
        "cause": "lost",
        "reason": because("lost_at_site", seconds=patience),
        "ended_at": now,
    }
    return [
        Change(job.token, values, report=True)
        for job in jobs
        if job.state == State.RUNNING and not job.is_script and absent.get(job.token, 0.0) > patience
    ]


def repeats(
    jobs: Iterable[GivenJob], absent: Mapping[str, float], now: float, jwt_seconds: float, patience: float
) -> list[str]:
    """Return the placed jobs to send again: they did not arrive, or their JWT may expire soon. A running job script is
    sent again if its site does not follow it.

    A JWT that expires later than a new one would was made on another machine whose clock is ahead, so its remaining
    time is unknown here.

    :param now: epoch seconds
    :param jwt_seconds: how long a JWT is valid at the site
    :param patience: seconds until an absent job has not arrived
    """

    def due(job: GivenJob) -> bool:
        if job.token in absent:
            return absent[job.token] > patience
        if job.is_script:
            return job.expires_at is None
        return job.expires_at is None or not now + jwt_seconds / 2 <= job.expires_at <= now + jwt_seconds

    return [job.token for job in jobs if (job.is_script or job.state == State.PLACED) and due(job)]


def strangers(unknown: Mapping[str, float], patience: float) -> dict[str, Reason]:
    """Return the jobs to cancel because a site has them and the store does not, with the reason, by token.

    :param unknown: for how many seconds the store has not had each job
    :param patience: seconds for which they are left alone
    """
    return {token: STRANGE for token, seconds in unknown.items() if seconds > patience}
