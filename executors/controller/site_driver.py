"""Drive one site like a controller but without a database, for trial jobs and tests of a site.

It uses the controller's placement and provisioning, and keeps in memory what the controller keeps in the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lading.executors.controller import launched
from lading.executors.controller.answers import SiteAnswer, recalled, view, with_locations
from lading.executors.controller.site_memory import SHORT, MeasuredSizes, MissingSince, Throughput
from lading.executors.store import State
from lading.executors.store.instances import InstanceRow
from lading.executors.store.queue import GivenJob
from lading.hooks.site import ElasticSite, ObservedLocation, Site
from lading.hooks.spool.spool import Envelope
from lading.hooks.spool.values import reason_of
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.reasons import Reason
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.placement import assign
from lading.scheduling.provisioning import Provision


class SiteDriver:
    """Drives a site: one tick observes it, decides, and acts.

    :param site: a site that no controller uses
    """

    def __init__(self, site: Site[Any]) -> None:
        self.site = site
        self.seen: Sequence[ObservedLocation] = ()
        """Its locations, as observed last."""
        self.reasons: dict[str, str] = {}
        """Why jobs wait, by token."""
        self.envelopes: dict[str, Envelope] = {}
        self.waiting: dict[str, WaitingJob] = {}
        self.given: dict[str, GivenJob] = {}
        self.instances: dict[str, InstanceRow] = {}
        self.ordered_for: dict[str, Sequence[str]] = {}
        self.promised: Mapping[str, str] = {}
        self.turned_away = MissingSince()
        self.sizes = MeasuredSizes({})
        self.throughput = Throughput(site.seconds_ahead)
        self.ends: list[dict[str, Any]] = []
        """``finished`` events of jobs that were at no location, which the next tick returns."""

    def put(self, envelopes: Iterable[Envelope]) -> None:
        """Queue jobs, which ticks give to locations; a job that is already at one is given again with its new JWT."""
        for envelope in envelopes:
            self.envelopes[envelope.token] = envelope
            if (given := self.given.get(envelope.token)) is None:
                self.waiting[envelope.token] = envelope.waiting()
            elif given.state == State.PLACED and given.location is not None:
                self.site.put({given.location: [envelope]})

    def tick(self) -> list[dict[str, Any]]:
        """Observe, decide, act.

        :returns: the site's events, and ``finished`` events of jobs that were at no location
        :raises OSError: the site did not answer
        """
        observation = self.site.observe()
        self.seen = observation.locations
        self._take_news(observation.events)
        observation.acknowledge()
        now = time.time()
        if self.site.launches:
            for each in self.seen:
                self.instances.setdefault(each.name, launched.stranger(self.site.name, each, now))
        self.sizes.learn(observation)
        rows, sizes = list(self.instances.values()), self.sizes.known
        given = list(self.given.values())
        answer = SiteAnswer(self.site, observation, given, rows, sizes=sizes, promised=self.promised)
        there = with_locations(view(self.site, answer, "", ()), answer, self.throughput.prefetchable(), now)
        there = replace(there, turned_away=self.turned_away.seconds())
        found = assign(sorted(self.waiting.values(), key=lambda job: job.rank), [there], now=now)
        self.turned_away.update(found.turned_away.get(self.site.name, ()))
        self._act(found, now)
        if isinstance(self.site, ElasticSite) and (back := recalled(answer, there, now)):
            self.site.recall(back)
        ends, self.ends = self.ends, []
        return [*observation.events, *ends]

    def cancel(self, reasons: Mapping[str, Reason]) -> None:
        for token, reason in reasons.items():
            if token in self.waiting:
                self._end(token, "cancelled", reason)
            if (given := self.given.get(token)) is not None and given.location is not None:
                self.site.cancel({given.location: {token: reason}})

    def _take_news(self, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            token, kind = event["token"], event["event"]
            given = self.given.get(token)
            if kind == "released":
                self.instances.pop(token, None)
                refused = self.ordered_for.pop(token, ()) if event.get("refused") else ()
                for job in self.waiting.keys() & {*refused}:
                    self._end(job, "submit_rejected", reason_of(event.get("reason")))
            elif kind == "waiting":
                self.reasons[token] = str(reason_of(event["reason"]))
            elif kind == "finished":
                self.given.pop(token, None)
                began = event.get("started_at")
                is_short = began is not None and event["at"] - began < SHORT and event.get("cause") is None
                if given is not None and given.location and is_short:
                    self.throughput.note([(given.location, float(began or 0.0), event["at"])])
            elif kind == "started" and given is not None:
                self.given[token] = replace(given, state=State.RUNNING)
            elif kind == "returned" and given is not None and given.location == event["location"]:
                self.waiting[token] = self.given.pop(token).job

    def _end(self, token: str, cause: str, reason: Reason | None) -> None:
        del self.waiting[token]
        end = {"event": "finished", "token": token, "at": time.time(), "cause": cause, "reason": reason}
        self.ends.append({**end, "exit_code": None})

    def _act(self, found: Assignment, now: float) -> None:
        self.reasons |= {token: str(reason) for token, reason in found.waits.items() if reason is not None}
        envelopes: dict[str, list[Envelope]] = {}
        for token, (_, location) in found.placed.items():
            job = self.waiting.pop(token)
            self.given[token] = GivenJob(job, State.PLACED, location, now, None, None)
            envelopes.setdefault(location, []).append(self.envelopes[token])
        if envelopes:
            self.site.put(envelopes)
        provision = found.provisions.get(self.site.name)
        if provision is not None and isinstance(self.site, ElasticSite):
            self._provide(self.site, provision, now)

    def _provide(self, site: ElasticSite[Any], provision: Provision, now: float) -> None:
        orders = launched.orders(provision.launches)
        self.instances |= {each.name: launched.row(site.name, each, now) for each in orders}
        self.ordered_for |= {each.name: each.launch.jobs for each in orders}
        self.promised = launched.promised(orders, provision)
        spare = provision.spare - {given.location for given in self.given.values()}
        for token, values in launched.idle(list(self.instances.values()), spare, now).items():
            self.instances[token].idle_since = values["idle_since"]
        if orders:
            site.launch(orders)
        if provision.releases:
            site.release(provision.releases)
