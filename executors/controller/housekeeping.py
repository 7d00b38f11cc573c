"""Housekeeping: the controller's periodic checks and clean-ups that need not run in every tick."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from lading.executors import request_rows, store
from lading.executors.accounting import bill_days, task_usage
from lading.executors.accounting.task_usage import MOST_FORGOTTEN
from lading.executors.controller.metrics import Metrics
from lading.executors.controller.sites_file import bindings_of, difference, edition_now, possible, published_site
from lading.executors.controller_process import another_scheduler_lives
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.settings import Settings
from lading.executors.store import CHUNK, JobRow, State, capacity, data, figures, instances, run_rows, site_rows
from lading.executors.store.queued import QueuedJobs
from lading.executors.store.tables import as_name
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
from lading.scheduling.matching.market import readable_kind
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.printable import storable

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# A task instance is set to QUEUED and its job is created in one transaction, but they are read in two.
SECONDS_UNTIL_UNWANTED = 10.0
NOTHING_LAUNCHED = because("nothing_launched")
UNWANTED = because("unwanted")


class Housekeeping:
    """Runs the periodic checks, and publishes what the sites have.

    :param host: the orchestrator whose jobs it checks
    :param managed: whether an executor started the controller, which then exits once no scheduler is left
    :param needs_inputs: whether plugins need the input values of all jobs
    """

    seconds_between_rounds = 10.0
    seconds_between_purges = 600.0
    seconds_between_sums = 60.0
    """Between two updates of daily bills, which also close days that are over."""
    seconds_of_sums = 0.2
    """For about which one update runs."""
    seconds_until_needless = 60.0
    """Without Airflow and work, until a controller that an executor started exits."""

    def __init__(
        self,
        host: Orchestrator,
        settings: Settings,
        managed: bool,
        sites: Mapping[str, Site[Any]],
        *,
        needs_inputs: bool = False,
    ) -> None:
        self.host = host
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
        """Return the locations that a site could have; empty if the site fails to say or describes them wrongly."""
        try:
            locations = tuple(site.potential())
            for each in locations:
                check_location(each)
        except Exception as error:  # a third party's site can return or raise anything
            self.trouble.begin(f"The possible locations of site {site.name!r} are unknown", error, traceback=True)
            return ()
        return locations

    def due(self, metrics: Metrics, troubles: Mapping[str, str | None], queued: QueuedJobs) -> bool:
        """Run the checks that are due.

        :param troubles: why each site does not answer, as text; None: it answers
        :returns: whether the controller is no longer needed and should exit
        """
        now = time.monotonic()
        if now < self.next_round:
            return False
        self.next_round = now + self.seconds_between_rounds
        self._look_at_the_file()
        with self.host.session() as session:
            if not self.are_listed:
                site_rows.save(session, map(site_row, self.sites.values(), count()))
            barred = {name: each.barred for name, each in self.stored.items()}
            site_rows.note_answers(session, troubles, barred, time.time())
        # In a session of its own, because this reads many rows and a session that has written holds SQLite's one lock.
        with self.host.session() as session:
            cancel_unwanted(self.host, session, time.time())
            fail_orphaned_jobs(self.host, session, self.is_known, time.time())
            self.host.forget_ended(session)
            self._note_tenants(session)
            live = figures.count_live(session, queued)
            metrics.round(session, live)
            is_work = bool(live) or instances.count_living(session) > 0
        if now >= self.next_sums:
            with self.host.session() as session:
                launching = [name for name, site in self.sites.items() if site.launches]
                instances.end_at_other_sites(session, launching, NOTHING_LAUNCHED, time.time())
                are_all = bill_days.sum_up(session, time.time(), self.seconds_of_sums)
                self._note_missed(queued.missed(session))
            self.next_sums = now + self.seconds_between_sums if are_all else now
        if now >= self.next_purge:
            with self.host.session() as session:
                is_all = self._purge(session, time.time() - self.settings.job_retention_days * 86400)
            self.next_purge = now + self.seconds_between_purges if is_all else now
        self.are_listed = True
        if not self.managed or is_work or another_scheduler_lives(self.host, self.settings, None):
            self.needed_at = now
        return now - self.needed_at > self.seconds_until_needless

    def _note_missed(self, tokens: Collection[str]) -> None:
        """Log that jobs were changed by an older version's scheduler, or manually, without notice to the controller."""
        what = "This controller was not notified of jobs that were queued or changed"
        if tokens:
            self.trouble.begin(what, LookupError(f"number of jobs: {len(tokens)}; they have been read now"))
        else:
            self.trouble.end(what)

    def _purge(self, session: Session, before: float) -> bool:
        """Delete records that ended before a time; of very many jobs, only some at once.

        :param before: epoch seconds
        :returns: whether all were deleted
        """
        is_all = task_usage.forget_ended(session, before) < MOST_FORGOTTEN
        if is_all:  # jobs are deleted before the machines that they ran on
            task_usage.keep_launched(session, before)
            instances.forget_ended(session, before)
        data.forget(session, before)
        capacity.forget(session, before)
        request_rows.forget(session, before)
        run_rows.forget(session, before)
        return is_all

    def _note_tenants(self, session: Session) -> None:
        for name, site in self.sites.items():
            if isinstance(site, ElasticSite) and site.launches:
                found = instances.tenants(session, name)
                site.note_tenants({location: Tenancy(*its) for location, its in found.items()})

    def is_known(self, site: str, place: str, token: str, state: str) -> bool:
        """Return whether a job or its location may still exist; True while the site has not answered yet."""
        if site in self.sites and self.sites[site].launches:
            return True  # the end of its machine is handled by the comparison of each tick, or is not stored yet
        if site in self.stored:
            return any(each.name == place or token in (each.known or ()) for each in self.stored[site].locations)
        return site in self.sites

    def possible(self, site: Site[Any]) -> Sequence[Location]:
        """Return all locations that a site has or could ever have; empty: unknown."""
        stored = self.stored.get(site.name)
        return possible(self.potential[site.name], lasting(site, () if stored is None else stored.locations))

    def largest(self, name: str | None) -> Resources | None:
        """Return the largest amount of each resource that any location has for a job; None: unknown.

        :param name: the site that the job names; None: it names none
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
        """Store a site's locations if they have changed, and publish them for the check at Dag parse.

        Call ``saved`` once the session is committed. Publishing that fails is tried again the next time.
        """
        seen, stored = observation.locations, self.stored.get(site.name)
        if stored is None or not stored.looks_like(observation):
            now = time.time()
            store.save_locations(session, site.name, location_rows(site, observation, now))
            capacity.save(session, site.name, machine_capacities(site, observation, now), now)
        published = self.published.get(site.name)
        if published is None or not alike(published, seen):
            self.dialects[site.name] = site.dialect()
            if published is None:  # this is its first answer, so it may know more now than at the start
                self.potential[site.name] = self._potential(site)
            self._publish({**self.published, site.name: seen})

    def saved(self, site: Site[Any], observation: Observation) -> None:
        """Note that the locations of a site have been committed."""
        self.stored[site.name] = observation

    def _publish(self, seen: dict[str, Sequence[ObservedLocation]]) -> None:
        sites = {name: self._about(site, seen.get(name, ())) for name, site in self.sites.items()}
        file = str(self.settings.sites_file or "")
        found = {"sites": sites, "sites_file": file, "edition": self.edition, "bindings": self.bindings}
        try:
            write_atomically(self.settings.published_sites, json.dumps(found))
        except OSError as error:
            self.trouble.begin("the sites could not be published", error)
        else:
            self.trouble.end("the sites could not be published")
            self.published = seen

    def _look_at_the_file(self) -> None:
        """Log if the sites file has changed, and publish the sites' tables before any site has answered."""
        if not self.published:
            self._publish({})
        what = "this controller keeps using the sites file as it was at its start; restart it"
        if (message := difference(self.edition, self.settings.sites_file)) is not None:
            self.trouble.begin(what, ValueError(message))
        else:
            self.trouble.end(what)

    def _about(self, site: Site[Any], seen: Sequence[ObservedLocation]) -> dict[str, Any]:
        """Return what is published about a site, even if it has not answered yet or has no locations now."""
        dialect = self.dialects.get(site.name) if seen else site.dialect()
        locations = possible(self.potential[site.name], lasting(site, seen))
        return published_site(site, locations, dialect, needs_inputs=self.needs_inputs)


def lasting(site: Site[Any], seen: Sequence[ObservedLocation]) -> list[Location]:
    """Return the permanent locations of a site; launched ones are temporary and part of what it could have anyway."""
    return [] if site.launches else [each.location for each in seen]


def drop_unwanted(host: Orchestrator, session: Session, tokens: Sequence[str], now: float) -> list[store.Change]:
    """Cancel those of these waiting jobs that the orchestrator no longer wants, or does not have."""
    tokens = host.unwanted(session, tokens, SECONDS_UNTIL_UNWANTED)
    if not tokens:
        return []
    log.info("Airflow no longer wants %d waiting jobs", len(tokens))
    return store.apply(session, [store.Change(token, ended_unwanted(now), report=True) for token in tokens])


def ended_unwanted(now: float) -> dict[str, Any]:
    return {"state": State.CANCELLED, "cause": "cancelled", "reason": UNWANTED, "ended_at": now}


def cancel_unwanted(host: Orchestrator, session: Session, now: float) -> None:
    """Cancel jobs that are placed or asleep and that the orchestrator no longer wants, or does not have."""
    tokens = host.disowned(session, SECONDS_UNTIL_UNWANTED, CHUNK)
    for state in (State.ATTEMPTED, State.PLACED):
        values = {"cancel": UNWANTED} if state == State.PLACED else ended_unwanted(now)
        chosen = [token for token, its_state in tokens if its_state == state]
        if chosen:
            log.info("Airflow no longer wants %d jobs in state %s", len(chosen), state.value)
            store.apply(session, [store.Change(token, values, report=state != State.PLACED) for token in chosen])


def fail_orphaned_jobs(
    host: Orchestrator, session: Session, is_known: Callable[[str, str, str, str], bool], now: float
) -> None:
    """Fail jobs whose location is gone: the site was removed from the sites file, or no longer lists the machine.

    A job that still runs, for example after a failover to another machine, is left alone while it reports to the
    orchestrator itself.
    """
    # Jobs placed in the last minute are never taken for orphans: a site that does not answer yet may only be slow.
    rows = session.execute(
        select(JobRow.token, JobRow.site, JobRow.location, JobRow.state)
        # A placement time in the future was written by an earlier controller on a machine whose clock is ahead.
        .where(JobRow.state.in_((State.PLACED, State.RUNNING)), func.abs(now - JobRow.placed_at) > 60.0)
    )
    homeless = {
        token: (place, site) for token, site, place, state in rows if not is_known(str(site), str(place), token, state)
    }
    if not homeless:
        return
    at_work = host.still_at_work(session, list(homeless), now)
    changes: list[store.Change] = []
    for token, (place, site) in homeless.items():
        if token in at_work:
            continue
        reason = because("location_gone", location=place, site=site)
        values = {"state": State.FAILED, "cause": "lost", "reason": reason, "ended_at": now}
        log.warning("Job %s has failed as lost: %s", token, reason)
        changes.append(store.Change(token, values, report=True))
    store.apply(session, changes)


def site_row(site: Site[Any], position: int) -> store.SiteRow:
    return store.SiteRow(
        name=site.name,
        kind=site.kind,
        position=position,
        limits=json.dumps(site.config.limits),
        # Kinds of plugins can have another setting.
        idle_seconds=getattr(site.config, "idle_seconds", None) if site.launches else None,
    )


def location_rows(site: Site[Any], observation: Observation, now: float) -> list[store.LocationRow]:
    """Return the rows of a site's locations; if it launches them, a row for the site itself comes first."""
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
    """Return the capacities of a site's permanent machines; queues have none, and instances have rows of their own."""
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
    """Return the price of one cpu-hour at a location in USD, from the site's answer or its table; None: unknown."""
    if location.usd_per_hour > 0 and location.capacity.cpus > 0:
        return location.usd_per_hour / location.capacity.cpus
    usd: float | None = site.config.cpu_hour(location.capacity)
    return usd


def location_row(
    site: Site[Any], seen: ObservedLocation, note: str | None, instance_type: str | None, now: float
) -> store.LocationRow:
    location, capacity = seen.location, seen.location.capacity
    # The length of the column; the description of an allocation can be longer.
    return store.LocationRow(
        site=site.name,
        name=location.name,
        kind=site.kind,
        instance_type=None if instance_type is None else storable(instance_type)[:64],
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
