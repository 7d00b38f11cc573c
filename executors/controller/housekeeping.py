"""Housekeeping: what a controller does beside its ticks, now and then."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from lading.executors import store
from lading.executors.controller.metrics import Metrics
from lading.executors.controller.sites_file import bindings_of, difference, edition_now, possible, published_site
from lading.executors.controller_process import another_scheduler_lives
from lading.executors.orchestrator import current
from lading.executors.orchestrator.current import open_session
from lading.executors.settings import Settings
from lading.executors.store import (
    CHUNK,
    JobRow,
    State,
    bill_days,
    capacity,
    data,
    figures,
    instances,
    requests,
    run_rows,
    site_rows,
    usage,
)
from lading.executors.store.queued import QueuedJobs
from lading.executors.store.tables import as_name
from lading.executors.store.usage import MOST_FORGOTTEN
from lading.hooks.files.logs import Trouble
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.site import (
    ElasticSite,
    LocationState,
    Observation,
    ObservedLocation,
    Site,
    Tenancy,
    alike,
    check_location,
    join,
)
from lading.hooks.site.rules import published_bindings
from lading.scheduling.location import Location
from lading.scheduling.matching.market import readable_kind
from lading.scheduling.reasons import because
from lading.scheduling.resources import Resources
from lading.scheduling.site_names import is_named
from lading.scheduling.text.printable import storable

# The column of the type takes so many characters; what an allocation is for may take more.
LONGEST_TYPE = 64


if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

SECONDS_BETWEEN_ROUNDS = 10.0
SECONDS_BETWEEN_PURGES = 600.0
# It is looked at whether a day is over, and what has changed of those that are kept.
SECONDS_BETWEEN_SUMS = 60.0
SECONDS_PER_DAY = 86400
# A task instance is made QUEUED and its job is made in one transaction, but the two are read in two.
SECONDS_UNTIL_UNWANTED = 10.0
# A controller that an executor started ends when Airflow has been gone for so long and nothing is left to do.
SECONDS_UNTIL_NEEDLESS = 60.0
# A site that could not be asked at the start may only be slow.
SECONDS_UNTIL_HOMELESS = 60.0
NOTHING_LAUNCHED = because("nothing_launched")
UNWANTED = because("unwanted")


class Housekeeping:
    """Rounds of checks that need not happen in every tick.

    :param managed: whether the controller belongs to an executor, and may end when there is none any more
    :param sites: all sites by name
    :param needs_inputs: whether plugins ask for the values of the inputs of all jobs
    """

    def __init__(
        self, settings: Settings, managed: bool, sites: Mapping[str, Site[Any]], *, needs_inputs: bool = False
    ) -> None:
        self.settings = settings
        self.needs_inputs = needs_inputs
        self.managed = managed
        self.sites = sites
        self.edition = edition_now(settings.sites_file)
        self.bindings = published_bindings(bindings_of(settings.sites_file, sites))
        self.next_round = 0.0
        self.next_purge = 0.0
        self.next_sums = 0.0
        self.needed_at = time.monotonic()
        self.are_listed = False
        self.stored: dict[str, Observation] = {}
        self.published: dict[str, Sequence[ObservedLocation]] = {}
        self.trouble = Trouble(log)
        self.potential = {name: self._potential(site) for name, site in sites.items()}
        self.dialects: dict[str, dict[str, Any] | None] = {}

    def _potential(self, site: Site[Any]) -> tuple[Location, ...]:
        """What could be at a site, empty where it does not say that as it should."""
        try:
            locations = tuple(site.potential())
            for each in locations:
                check_location(each)
        except Exception as error:  # a third party's site may say anything
            self.trouble.begin(f"What site {site.name!r} could have is not known", error, traceback=True)
            return ()
        return locations

    def due(self, metrics: Metrics, troubles: Mapping[str, str | None], queued: QueuedJobs) -> bool:
        """Do what is due; returns whether the controller is needless and should end.

        :param troubles: of each site why it does not answer, as text; None: it does
        """
        now = time.monotonic()
        if now < self.next_round:
            return False
        self.next_round = now + SECONDS_BETWEEN_ROUNDS
        self._look_at_the_file()
        with open_session() as session:
            if not self.are_listed:
                site_rows.save(session, map(site_row, self.sites.values(), count()))
            barred = {name: each.barred for name, each in self.stored.items()}
            site_rows.note_answers(session, troubles, barred, time.time())
        # Apart from what was written, for this looks through many rows: others wait for the one lock that SQLite has.
        with open_session() as session:
            cancel_unwanted(session, time.time())
            fail_orphaned_jobs(session, self.is_known, time.time())
            current.orchestrator().forget_ended(session)
            launching = [name for name, site in self.sites.items() if site.launches]
            instances.end_at_other_sites(session, launching, NOTHING_LAUNCHED, time.time())
            self._note_tenants(session)
            live = figures.count_live(session, queued)
            metrics.round(session, live)
            is_work = bool(live) or instances.count_living(session) > 0
        if now >= self.next_sums:
            with open_session() as session:
                are_all = bill_days.sum_up(session, time.time())
                self._note_missed(queued.missed(session))
            self.next_sums = now + SECONDS_BETWEEN_SUMS if are_all else now
        if now >= self.next_purge:
            with open_session() as session:
                is_all = self._purge(session, time.time() - self.settings.job_retention_days * SECONDS_PER_DAY)
            self.next_purge = now + SECONDS_BETWEEN_PURGES if is_all else now
        self.are_listed = True
        if not self.managed or is_work or another_scheduler_lives(self.settings, None):
            self.needed_at = now
        return now - self.needed_at > SECONDS_UNTIL_NEEDLESS

    def _note_missed(self, tokens: Collection[str]) -> None:
        """Say that jobs were missed in the queue, as a scheduler of an older version or a hand has changed them."""
        what = "Jobs were queued or changed without this controller being told"
        if tokens:
            self.trouble.begin(what, LookupError(f"{len(tokens)} of them; they are read now"))
        else:
            self.trouble.end(what)

    def _purge(self, session: Session, before: float) -> bool:
        """Delete what ended before a time, of very many jobs some; returns whether that was all.

        :param before: epoch seconds
        """
        is_all = store.forget_ended(session, before) < MOST_FORGOTTEN
        if is_all:  # those that were on a machine go before it
            usage.keep_launched(session, before)
            instances.forget_ended(session, before)
        data.forget(session, before)
        capacity.forget(session, before)
        requests.forget(session, before)
        run_rows.forget(session, before)
        return is_all

    def _note_tenants(self, session: Session) -> None:
        """Tell sites whose the jobs on their machines are."""
        for name, site in self.sites.items():
            if isinstance(site, ElasticSite) and site.launches:
                found = instances.tenants(session, name)
                site.note_tenants({location: Tenancy(*its) for location, its in found.items()})

    def is_known(self, site: str, place: str, token: str, state: str) -> bool:
        """Whether a job or its location may still be there; of a site that could not be asked yet, any may."""
        if site in self.sites and self.sites[site].launches:
            return True  # its end may not be stored yet; one that is nowhere is missed, or given again and comes back
        if site in self.stored:
            return any(each.name == place or token in (each.known or ()) for each in self.stored[site].locations)
        return site in self.sites

    def possible(self, site: Site[Any]) -> Sequence[Location]:
        """All that could ever be at a site, and what it had when it answered last; empty: that is not known."""
        stored = self.stored.get(site.name)
        return possible(self.potential[site.name], lasting(site, () if stored is None else stored.locations))

    def largest(self, name: str | None) -> Resources | None:
        """The most of everything that a location has which a job can get; None: that is not known.

        :param name: the only site that it may go to; None: each that takes jobs which name none
        """
        asked = [
            site
            for site in self.sites.values()
            if is_named(site.name, name) or (name is None and site.config.accept_untargeted)
        ]
        known = [self.possible(site) for site in asked]
        found = [each.capacity for locations in known for each in locations]
        if not found or not all(known):
            return None
        return Resources(*(max(getattr(each, name) for each in found) for name in ("cpus", "memory", "disk", "gpus")))

    def save_locations(self, session: Session, site: Site[Any], observation: Observation) -> None:
        """Store a site's locations when they have changed; ``saved`` is to be called when that is committed.

        They are published for the check at Dag parse. Where that fails it is tried again the next time, for it keeps
        nothing else from being done.
        """
        seen, stored = observation.locations, self.stored.get(site.name)
        if stored is None or not stored.looks_like(observation):
            now = time.time()
            store.save_locations(session, site.name, location_rows(site, observation, now))
            capacity.save(session, site.name, machine_capacities(site, observation, now), now)
        published = self.published.get(site.name)
        if published is None or not alike(published, seen):
            self.dialects[site.name] = site.dialect()
            if published is None:  # it has been asked for the first time, and may know more by now
                self.potential[site.name] = self._potential(site)
            self._publish({**self.published, site.name: seen})

    def saved(self, site: Site[Any], observation: Observation) -> None:
        """The locations of a site are in the store."""
        self.stored[site.name] = observation

    def _publish(self, seen: dict[str, Sequence[ObservedLocation]]) -> None:
        """Publish what the sites have, and by which edition of the sites file this controller goes."""
        sites = {name: self._about(site, seen.get(name, ())) for name, site in self.sites.items()}
        found = {"sites": sites, "edition": self.edition, "bindings": self.bindings}
        try:
            write_atomically(self.settings.published_sites, json.dumps(found))
        except OSError as error:
            self.trouble.begin("the sites could not be published", error)
        else:
            self.trouble.end("the sites could not be published")
            self.published = seen

    def _look_at_the_file(self) -> None:
        """Say it when the sites file is another by now, and publish what is known before any site could be asked."""
        if not self.published:
            self._publish({})
        what = "this controller is older than the sites file and goes on with what it has read; restart it"
        if (message := difference(self.edition, self.settings.sites_file)) is not None:
            self.trouble.begin(what, ValueError(message))
        else:
            self.trouble.end(what)

    def _about(self, site: Site[Any], seen: Sequence[ObservedLocation]) -> dict[str, Any]:
        """What is published of a site, also of one that could not be asked yet or has no location now."""
        dialect = self.dialects.get(site.name) if seen else site.dialect()
        locations = possible(self.potential[site.name], lasting(site, seen))
        return published_site(site, locations, dialect, needs_inputs=self.needs_inputs)


def lasting(site: Site[Any], seen: Sequence[ObservedLocation]) -> list[Location]:
    """The locations of a site but for what was launched: that is a part of what could be, and soon gone."""
    return [] if site.launches else [each.location for each in seen]


def drop_unwanted(session: Session, tokens: Sequence[str], now: float) -> list[store.Change]:
    """End those of these jobs that wait and that the orchestrator does not want any more, or does not know.

    :returns: what has changed
    """
    tokens = current.orchestrator().unwanted(session, tokens, SECONDS_UNTIL_UNWANTED)
    if not tokens:
        return []
    log.info("%d jobs that wait are not wanted any more", len(tokens))
    return store.apply(session, [store.Change(token, ended_unwanted(now), report=True) for token in tokens])


def ended_unwanted(now: float) -> dict[str, Any]:
    """The columns of a job that waits and that is not wanted any more."""
    return {"state": State.CANCELLED, "cause": "cancelled", "reason": UNWANTED, "ended_at": now}


def cancel_unwanted(session: Session, now: float) -> None:
    """End jobs that have a place, or sleep, and that the orchestrator does not want any more, or does not know."""
    tokens = current.orchestrator().disowned(session, SECONDS_UNTIL_UNWANTED, CHUNK)
    for state in (State.ATTEMPTED, State.PLACED):
        values = {"cancel": UNWANTED} if state == State.PLACED else ended_unwanted(now)
        chosen = [token for token, its_state in tokens if its_state == state]
        if chosen:
            log.info("%d jobs in state %s are not wanted any more", len(chosen), state.value)
            store.apply(session, [store.Change(token, values, report=state != State.PLACED) for token in chosen])


def fail_orphaned_jobs(session: Session, is_known: Callable[[str, str, str, str], bool], now: float) -> None:
    """End jobs at locations that are gone: the site was taken out of the file, or no longer names its machine.

    One that still runs there, as after a fail-over to another machine, and of which the orchestrator hears by itself,
    is left alone as long as it does.
    """
    rows = session.execute(
        select(JobRow.token, JobRow.site, JobRow.location, JobRow.state)
        # What seems to be placed later than now was placed by a controller of another machine, before this one began.
        .where(
            JobRow.state.in_((State.PLACED, State.RUNNING)), func.abs(now - JobRow.placed_at) > SECONDS_UNTIL_HOMELESS
        )
    )
    homeless = {
        token: (place, site) for token, site, place, state in rows if not is_known(str(site), str(place), token, state)
    }
    if not homeless:
        return
    at_work = current.orchestrator().still_at_work(session, list(homeless), now)
    changes: list[store.Change] = []
    for token, (place, site) in homeless.items():
        if token in at_work:
            continue
        reason = because("location_gone", location=place, site=site)
        values = {"state": State.FAILED, "cause": "lost", "reason": reason, "ended_at": now}
        log.warning("Job %s is failed as lost: %s", token, reason)
        changes.append(store.Change(token, values, report=True))
    store.apply(session, changes)


def site_row(site: Site[Any], position: int) -> store.SiteRow:
    """The row of a site."""
    return store.SiteRow(name=site.name, kind=site.kind, position=position, limits=json.dumps(site.config.limits))


def location_rows(site: Site[Any], observation: Observation, now: float) -> list[store.LocationRow]:
    """The rows of all that a site has; one that launches its locations has a row of its own before these."""
    if not site.launches or (market := observation.market) is None:
        return [location_row(site, seen, seen.note, seen.location.instance_type, now) for seen in observation.locations]
    trouble = None if observation.trouble is None else observation.trouble.sentence
    state = LocationState.UP if trouble is None else LocationState.UNREACHABLE
    itself = ObservedLocation(Location(site.name, market.capacity), state)
    kinds = {each.name: readable_kind(str(each.location.instance_type)) for each in observation.locations}
    launched = [
        location_row(site, seen, join(kinds[seen.name], seen.note), None, now) for seen in observation.locations
    ]
    return [location_row(site, itself, join(trouble, observation.note), None, now), *launched]


def machine_capacities(site: Site[Any], observation: Observation, now: float) -> list[store.Capacity]:
    """What machines of a site have that were not launched; a queue is none, and what was launched has its own row."""
    if site.launches:
        return []
    machines = [each.location for each in observation.locations if each.state != LocationState.BOOTING]
    return [
        store.Capacity(
            site=site.name,
            name=each.name,
            cpus=each.capacity.cpus,
            memory=each.capacity.memory,
            gpus=each.capacity.gpus,
            usd_per_hour=None if (rate := cpu_hour(site, each)) is None else rate * each.capacity.cpus,
            since=now,
        )
        for each in machines
        if each.max_jobs is None
    ]


def cpu_hour(site: Site[Any], location: Location) -> float | None:
    """What an hour of a cpu of a location costs, USD: as its site says of it, or as its table does; None: neither."""
    if location.usd_per_hour > 0 and location.capacity.cpus > 0:
        return location.usd_per_hour / location.capacity.cpus
    usd: float | None = site.config.cpu_hour(location.capacity)
    return usd


def location_row(
    site: Site[Any], seen: ObservedLocation, note: str | None, instance_type: str | None, now: float
) -> store.LocationRow:
    """The row of one location."""
    location, capacity = seen.location, seen.location.capacity
    return store.LocationRow(
        site=site.name,
        name=location.name,
        kind=site.kind,
        instance_type=None if instance_type is None else storable(instance_type)[:LONGEST_TYPE],
        cpus=capacity.cpus,
        memory=capacity.memory,
        disk=capacity.disk,
        gpus=capacity.gpus,
        arch=location.arch,
        os=location.os,
        features=", ".join(sorted(location.features)) or None,
        capacity_type=location.capacity_type,
        nodes=location.nodes,
        idle_nodes=location.idle_nodes,
        wraps=as_name(location.wraps),
        stacked=location.stacked,
        usd_per_cpu_hour=cpu_hour(site, location),
        note=storable(note or "") or (None if seen.state == LocationState.UP else f"it is {seen.state.value}"),
        state=seen.state.value,
        native_id=as_name(seen.native_id),
        node=as_name(seen.node),
        seen_at=now,
    )
