"""The controller: the loop that decides where jobs run and sees to it that they do.

Each tick observes the sites, decides, records what is to be done, and does it, in that order: an intent with its
token is in the store before it has any effect, so after a crash at any point nothing runs twice and nothing is lost.
Several controllers may run; the one that holds the lease acts.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.utils.session import create_session
from sqlalchemy.exc import SQLAlchemyError

from lading.executors import store
from lading.executors.controller import dispatch, estimation, events, housekeeping, throughput, views
from lading.executors.controller.dispatch import Decision
from lading.executors.controller.estimator import Estimator
from lading.executors.controller.lease_clock import LeaseClock
from lading.executors.controller.metrics import Metrics
from lading.executors.controller.process import another_scheduler_lives, ask_to_make_way, is_dead
from lading.executors.controller.site_thread import SiteThread, SiteThreads
from lading.executors.controller.throughput import Throughput
from lading.executors.controller.views import Answer
from lading.executors.settings import Settings
from lading.executors.store import Change, groups, queue
from lading.hooks.files.bell import Bell
from lading.hooks.files.trouble import Trouble
from lading.hooks.site import Site, taking_unnamed
from lading.hooks.spool.spool import Envelope
from lading.scheduling import placement
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.placement import SECONDS_UNTIL_EXPLAINED
from lading.scheduling.plan import Location

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0
RENEWAL_SECONDS = 5.0
TICK_SECONDS = 1.0
# A database that is away is asked again after this; nothing is lost meanwhile.
PAUSE_AFTER_TROUBLE = 2.0


class Controller:
    """Runs ticks until it is told to stop.

    :param sites: the sites by name, in the order of the sites file; the first is the default
    :param mint: makes a JWT for a subject that is valid for so many seconds
    :param settings: the ``[lading]`` section
    :param managed: whether an executor started it and may stop it
    :param notify: is told of changes after they have been stored
    """

    def __init__(
        self,
        sites: Mapping[str, Site[Any]],
        mint: Callable[[str, float], str],
        settings: Settings,
        managed: bool,
        notify: Callable[[Sequence[Change]], None],
    ) -> None:
        self.sites = sites
        self.by_dag = any(site.config.allowed_dags is not None for site in sites.values())
        self.takers = taking_unnamed({name: site.config for name, site in sites.items()})
        self.mint = mint
        self.notify = notify
        self.settings = settings
        self.managed = managed
        self.holder = str(uuid.uuid4())
        self.parent = os.getppid()
        self.leads_until = 0.0
        self.renew_at = 0.0
        self.renewal = threading.Lock()
        self.clock = LeaseClock(RENEWAL_SECONDS, self.renew)
        self.stopping = False
        self.turn = 0
        self.has_lost = False
        self.metrics = Metrics()
        self.housekeeping = housekeeping.Housekeeping(settings, managed, sites)
        self.absence = {name: dispatch.Absence() for name in sites}
        self.strangers = {name: dispatch.Absence() for name in sites}
        self.troubled = dispatch.Absence()
        self.turned_away = {name: dispatch.Absence() for name in sites}
        self.throughput = {name: Throughput() for name in sites}
        self.trouble = Trouble(log)
        self.ring = Bell(settings.controller_bell).ring
        self.estimator = Estimator(settings, self.ring, self.housekeeping.largest_memory)
        self.threads = SiteThreads(sites, self.ring, self.may_act, self.clock.beat)

    def run(self) -> None:
        """Tick until ``stop`` is called, or until nobody needs this controller any more."""
        self.clock.start()
        with Bell(self.settings.controller_bell) as bell:
            while not self.stopping:
                bell.wait(self._tick_safely())
                self.clock.beat()
        self.close()

    def stop(self) -> None:
        """End after the current tick."""
        self.stopping = True

    def _tick_safely(self) -> float:
        """One tick; returns the seconds to wait for the next. Trouble is logged and tried again, never fatal."""
        try:
            self.tick()
        except Exception as error:
            self.trouble.begin("The tick failed", error, traceback=True)
            return PAUSE_AFTER_TROUBLE
        self.trouble.end("The tick failed")
        return TICK_SECONDS

    def tick(self) -> None:
        """Observe, decide, record, act."""
        if not self.lead():
            # Another controller acts. One that only stands by ends with the executor that started it.
            if self.managed and os.getppid() != self.parent:
                self.stop()
            return
        started = time.time()
        with self.metrics.tick():
            seen = self.observe()
            any_wait = self.any_wait()
            if any_wait:
                self.appraise()
            decision = self.decide(seen, any_wait)
            self.record(decision, any_wait, started)
            self.act(decision)
            self.threads.look()
        if self.housekeeping.due(self.metrics):
            self.stop()

    def lead(self) -> bool:
        """Take the lease, or hold it still; False: another controller acts."""
        return time.monotonic() < self.renew_at or self.renew()

    def may_act(self) -> bool:
        """Whether the lease is certainly held: no other controller acts."""
        return time.monotonic() < self.leads_until

    def renew(self) -> bool:
        """Take or renew the lease now; False: another controller acts. The clock calls it, and the loop where it must.

        A controller that has lost the lease never takes it again, so no two take it from each other for ever.
        """
        with self.renewal:
            if self.has_lost:
                return False
            now = time.monotonic()  # a clock that jumps must not prolong what the others count on
            leads = self._take_lease()
            if leads and not self.leads_until:
                log.info("Controller %s (pid %d) acts for sites %s", self.holder, os.getpid(), ", ".join(self.sites))
            if self.leads_until and not leads:
                # Its sites' connections would go on, and a tunnel of this controller would be taken for the other's.
                log.warning("Controller %s has lost the lease, so it ends", self.holder)
                self.has_lost = True
                self.stop()
            self.leads_until = now + LEASE_SECONDS if leads else 0.0
            self.renew_at = now + 2 * RENEWAL_SECONDS if leads else 0.0
            return leads

    def _take_lease(self) -> bool:
        with create_session(scoped=False) as session:
            held = store.lease(session)
            dead = held.holder if held and held.holder != self.holder and is_dead(held) else None
            if held is not None and not self.managed:
                ask_to_make_way(held)
            leads = store.take_lease(
                session, self.holder, socket.gethostname(), os.getpid(), self.managed, time.time(), LEASE_SECONDS, dead
            )
            if leads and not self.leads_until:
                store.forget_other_sites(session, self.sites)
            return leads

    def observe(self) -> list[Answer]:
        """Store what the sites' threads have found. No site is waited for.

        What is wrong with one site, or with what it says, stays with that site: nothing is concluded about it.
        """
        seen = []
        for thread in self.threads.answering():
            try:
                is_new = self._take_news(thread)
            except SQLAlchemyError:
                raise  # no site's trouble: the same events are taken again
            except Exception as error:  # a third party's site may say anything
                thread.settle(events.clean(str(error)) or type(error).__name__)
                continue
            if thread.last is not None:
                with create_session(scoped=False) as session:
                    jobs = queue.given(session, thread.site.name)
                seen.append(Answer(thread.site, thread.last.locations, jobs, is_new))
        return seen

    def _take_news(self, thread: SiteThread) -> bool:
        """Store what a site's thread has found since the last time; returns whether there was anything and is no more.

        Of many events some are stored in each tick.
        """
        site, found = thread.site, thread.take()
        if found is None or thread.last is None:
            return False
        locations = thread.last.locations
        with create_session(scoped=False) as session:
            changes = store.apply(session, events.changes(found), site.name)
            short = store.locations(session, throughput.short(changes, time.time()))
            self.housekeeping.save_locations(session, site, locations)
        self.housekeeping.saved(site, locations)
        is_all = thread.settle()
        if not is_all:
            self.ring()
        self.throughput[site.name].note(short)
        self._tell(changes)
        return is_all

    def any_wait(self) -> bool:
        """Whether any job waits: a controller is idle most of the time, and then asks the database for little else."""
        with create_session(scoped=False) as session:
            return store.any_queued(session)

    def appraise(self) -> None:
        """Store what has been found out about jobs whose resources depend on their inputs or earlier tries."""
        with create_session(scoped=False) as session:
            changes, lessons = self.estimator.step(session)
            store.apply(session, changes)
            session.add_all(lesson.entry() for lesson in lessons)
        self._tell([change for change in changes if "state" in change.values])

    def decide(self, seen: Sequence[Answer], any_wait: bool) -> Decision:
        """Choose where waiting jobs go, and what becomes of jobs that a site does not know (any more)."""
        now = time.time()
        decision = Decision()
        sites = self.views(seen, any_wait)
        if any_wait:
            with create_session(scoped=False) as session:
                waiting = queue.waiting(session, self.turn, by_dag=self.by_dag)
            self.turn += 1
            found = placement.assign(waiting, sites, now=now)
            for name, absence in self.turned_away.items():
                absence.look(found.turned_away.get(name, ()))
            decision = dispatch.decided(waiting, found, now)
        for each in seen:
            if each.is_new:
                decision = self._compare(each, decision, now)
        return decision

    def views(self, seen: Sequence[Answer], any_wait: bool) -> list[SiteView]:
        """All sites as placement sees them, in their order; without what is on them where no job waits."""
        answers = {each.site.name: each for each in seen}
        trouble = {
            name: views.trouble(answers[name]) if name in answers else views.silent(name, self.threads.silence(name))
            for name in self.sites
        }
        since = self.troubled.look(name for name, words in trouble.items() if words is not None)
        return [
            SiteView(
                name=name,
                locations=self._loaded(answers[name]) if any_wait and trouble[name] is None else (),
                possible=self.housekeeping.possible(site),
                trouble=trouble[name],
                in_trouble=since.get(name, 0.0),
                is_new=self.threads.is_new(name),
                turned_away=self.turned_away[name].seconds(),
                takes_unnamed=name in self.takers,
                burst_after=site.config.burst_after,
                allowed_dags=site.config.allowed_dags,
            )
            for name, site in self.sites.items()
        ]

    def _loaded(self, answer: Answer) -> list[Location]:
        return views.loaded(answer, self.throughput[answer.site.name].ahead())

    def _compare(self, answer: Answer, decision: Decision, now: float) -> Decision:
        """Add what follows from the difference between what locations have and what the store thinks they have.

        A location that could not be asked changes nothing for its jobs.
        """
        site, here = answer.site.name, queue.by_location(answer.jobs)
        asked = {each.name: each.known for each in answer.locations if each.known is not None}
        # Those of locations that could not be asked, and what another machine was given, before a fail-over.
        unasked = {job.token for job in answer.jobs if job.location not in asked}
        jobs = [job for job in answer.jobs if job.location in asked]
        missing = (job.token for job in jobs if job.token not in asked[str(job.location)])
        absent = self.absence[site].look(missing, unasked)
        given = {job.token for job in answer.jobs}
        strange = {token: name for name, known in asked.items() for token in known - given}
        silent = self.strangers[site].since.keys() if len(asked) < len(answer.locations) else ()
        unknown = dispatch.strangers(self.strangers[site].look(strange, silent))
        decision = decision.with_changes(dispatch.lost(jobs, absent, now))
        for name in asked:
            cancels = {job.token: job.cancel for job in here.get(name, ()) if job.cancel}
            cancels |= {token: words for token, words in unknown.items() if strange[token] == name}
            repeats = dispatch.repeats(here.get(name, ()), absent, now + answer.site.jwt_seconds / 2)
            decision = decision.with_repeats(site, name, repeats).with_cancels(site, name, cancels)
        return decision

    def record(self, decision: Decision, any_wait: bool, started: float) -> None:
        """Commit every intent before anything is done about it.

        :param started: when this tick began, seconds since the epoch
        """
        if not (any_wait or decision.changes):
            return
        with create_session(scoped=False) as session:
            store.apply(session, decision.changes)
            for reason, tokens in decision.reasons.items():
                store.explain(session, reason, tokens)
            before = started - SECONDS_UNTIL_EXPLAINED
            groups.explain(session, before)
            estimation.explain(session, before)
            if decision.more_waiting:
                store.explain_the_rest(session, dispatch.BEHIND_OTHERS, before)
        self._tell(decision.changes)

    def _tell(self, changes: Sequence[Change]) -> None:
        """Tell metrics and listeners what has been stored."""
        self.metrics.count(changes)
        self.notify(changes)

    def act(self, decision: Decision) -> None:
        """Have the sites' threads give them their jobs. What fails is seen in a later look and repeated then."""
        if not self.may_act():
            return  # this tick took so long that another controller may act by now
        for thread in self.threads:
            name = thread.site.name
            try:
                thread.put(self._envelopes(decision.placed.get(name, {}), thread.site.jwt_seconds))
            except SQLAlchemyError:
                raise
            except Exception as error:
                self.trouble.begin(f"The jobs of site {name!r} could not be made ready", error, traceback=True)
            thread.cancel(decision.cancels.get(name, {}))

    def _envelopes(self, placed: Mapping[str, Sequence[str]], seconds: float) -> dict[str, list[Envelope]]:
        """Placed jobs as they travel, by location, each with a JWT that is valid for so many seconds."""
        if not placed:
            return {}
        expires_at = time.time() + seconds
        with create_session(scoped=False) as session:
            jobs = queue.to_send(session, [token for tokens in placed.values() for token in tokens])
            store.apply(session, [Change(job.token, {"expires_at": expires_at}) for job in jobs])
            made = dispatch.envelopes(jobs, lambda subject: self.mint(subject, seconds), expires_at)
        by_token = {each.token: each for each in made}
        return {
            location: [by_token[token] for token in tokens if token in by_token] for location, tokens in placed.items()
        }

    def close(self) -> None:
        """Let go of the sites, take in their last news, and give up the lease.

        ``on_shutdown`` says what becomes of the jobs when Airflow stops. While a scheduler lives it does not, and the
        next controller takes over.
        """
        self.estimator.close()
        try:
            if self.may_act():
                self._let_go()
            self.clock.stop()
            self.has_lost = True
            with create_session(scoped=False) as session:
                store.drop_lease(session, self.holder)
        except (SQLAlchemyError, OSError):
            log.exception("The last news could not be stored; the next controller reads them")
        log.info("Controller %s has ended", self.holder)

    def _let_go(self) -> None:
        """Let go of all sites at the same time, and store what they have to tell; one that hangs is left as it is."""
        how = "hand_over" if another_scheduler_lives(self.settings, None) else self.settings.on_shutdown
        self._observe_all()
        self.threads.close(how, self.settings.shutdown_seconds)
        self._observe_all()
        self.threads.end()

    def _observe_all(self) -> None:
        """Store all that the sites have to tell, as far as there is time."""
        deadline = time.monotonic() + self.settings.shutdown_seconds
        self.observe()
        while any(thread.has_more for thread in self.threads.answering()) and time.monotonic() < deadline:
            self.observe()
