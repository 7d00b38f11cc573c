"""The controller's loop: it decides where jobs run, and has sites start and cancel them.

Each tick observes the sites, decides, records the decision, and acts on it, in that order. Every intent is stored with
its token before it has any effect, so that a crash at any point neither runs a job twice nor loses one.
Several controllers can run; only the one that holds the lease acts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DataError, SQLAlchemyError

from lading.executors import request_rows, rule_log, store
from lading.executors.controller import answers, dispatch, housekeeping, site_memory
from lading.executors.controller.answers import (
    Comparison,
    SiteAnswer,
    paused,
    recalled,
    view,
    with_locations,
    withdrawn,
)
from lading.executors.controller.launched import Launched
from lading.executors.controller.leadership import Leadership
from lading.executors.controller.metrics import Metrics
from lading.executors.controller.placing import Extensions, Placing
from lading.executors.controller.plugin_mark import PluginMark
from lading.executors.controller.script_jobs import ScriptJobs
from lading.executors.controller.shares import Budgets, FairShares
from lading.executors.controller.site_memory import MissingSince, Throughput
from lading.executors.controller.site_threads import SiteThread, SiteThreads
from lading.executors.controller_process import another_scheduler_lives, was_stopped
from lading.executors.decisions import Decision
from lading.executors.forecast.site_plans import SitePlans
from lading.executors.gangs.gang_controller import GangController
from lading.executors.gangs.gang_outcome import GangOutcome
from lading.executors.locality.staging import Staging
from lading.executors.orchestrator.kept_connection import poll
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.requests import Requests
from lading.executors.settings import CRITICAL_PATH, Settings
from lading.executors.sizing import sizing
from lading.executors.sizing.estimator import Estimator
from lading.executors.sizing.needs import Needs
from lading.executors.store import Change, State, lanes, queue, strikes
from lading.executors.store.durations import Durations
from lading.executors.store.gangs import rows as gangs
from lading.executors.store.queued import QueuedJobs
from lading.hooks.files.bell import Bell
from lading.hooks.files.logs import Trouble
from lading.hooks.site import Observation, Site, sites_accepting_untargeted
from lading.hooks.spool.spool import Envelope
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.reasons import Reason
from lading.scheduling.placing.placement import AtWork
from lading.scheduling.placing.placement_pass import SECONDS_UNTIL_EXPLAINED

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# After a tick, sites rest for this multiple of its duration, up to this many seconds: where ticks take long because
# they handle a thousand jobs or the machine is busy, a few ticks achieve as much as many.
REST_AFTER_TICK, LONGEST_REST = 2.0, 0.5


class Controller:
    """Runs ticks until it is stopped.

    :param host: the orchestrator that creates the jobs
    :param sites: the sites by name, in the order of the sites file; the first is the default
    :param mint: makes a JWT for a subject, valid for the given number of seconds
    :param settings: the ``[lading]`` section
    :param managed: whether an executor started the controller and can stop it
    :param notify: called with changes after they have been stored
    :param extensions: what plugins add to placement
    """

    tick_seconds = 1.0

    def __init__(
        self,
        host: Orchestrator,
        sites: Mapping[str, Site[Any]],
        mint: Callable[[str, float], str],
        settings: Settings,
        managed: bool,
        notify: Callable[[Sequence[Change]], None],
        extensions: Extensions | None = None,
    ) -> None:
        self.host = host
        self.sites = sites
        self.by_dag = any(not site.admission.is_open for site in sites.values())
        self.takers = sites_accepting_untargeted({name: site.config for name, site in sites.items()})
        self.mint = mint
        self.notify = notify
        self.mark = PluginMark(settings.controller_mark)
        self.placing = Placing(sites, extensions or Extensions(), self._mark)
        self.settings = settings
        self.managed = managed
        self.parent = os.getppid()
        self.leadership = Leadership(host, sites, managed, self.stop, self.mark)
        self.leadership.clock.note_hang = self._note_hang
        self.hangs_at: str | None = None
        self.has_noted = False
        self.stopping = False
        self.turn = 0
        self.queued = QueuedJobs(self.leadership.holder)
        self.looked_at: Sequence[str] = ()
        """The waiting jobs that the last tick considered."""
        self.unchecked: list[str] = []
        """The waiting jobs that this round has not yet checked for whether they are still wanted."""
        self.next_check = 0.0
        self.had_gangs = True
        """Whether gangs without a waiting job may exist."""
        self.idle_detector = IdleDetector()
        self.metrics = Metrics(host.metrics())
        self.durations = Durations()
        self.housekeeping = housekeeping.Housekeeping(
            host, settings, managed, sites, needs_inputs=self.placing.extensions.ask_of_all
        )
        self.script_jobs = ScriptJobs(host, sites, self.housekeeping.largest)
        self.budgets = Budgets(host, settings)
        self.shares = FairShares(settings, sites, self.housekeeping.potential, self.budgets, self.durations.known)
        self.compared = {name: Comparison() for name in sites}
        self.launched = {name: Launched(name, site.config.cpu_hour) for name, site in sites.items()}
        self.troubled = MissingSince()
        self.turned_away = {name: MissingSince() for name in sites}
        self.throughput = {name: Throughput(site.seconds_ahead) for name, site in sites.items()}
        self.trouble = Trouble(log)
        self.ring = Bell(settings.controller_bell).ring
        self.needs = Needs(self.housekeeping.largest)
        self.estimator = Estimator(
            host,
            settings,
            self.ring,
            self.housekeeping.largest,
            sites,
            self.leadership.holder,
            keeps_inputs=self.placing.needs_inputs,
        )
        self.threads = SiteThreads(sites, self.ring, self.leadership.may_act, self.leadership.clock.beat)
        ways = Ways(self.placing.extensions.rules, self.placing.rank, self.placing.extensions.filters)
        launches = any(site.launches for site in sites.values())
        self.site_plans = SitePlans(
            host, settings, ways, self.ring, self.placing.waits, self.budgets.terms, launches=launches
        )
        self.staging = Staging(sites, self.ring, settings.input_roots)
        self.gangs = GangController(host.rosters, ways, files=self.staging.missing)
        self.requests = Requests(self.threads.release)

    def run(self) -> None:
        """Tick until ``stop`` is called, or until this controller is no longer needed."""
        self.leadership.clock.start()
        with Bell(self.settings.controller_bell) as bell:
            while not self.stopping:
                bell.wait(self._tick_safely())
                self.leadership.clock.beat()
        self.close()

    def stop(self) -> None:
        """Stop after the current tick; a signal handler can call this."""
        self.stopping = True
        with contextlib.suppress(OSError):  # without the bell, the wait ends at the next tick
            self.ring()  # a signal does not end a wait

    def _mark(self, token: str | None) -> None:
        """Mark the job for which a plugin is being called; None: the call has returned.

        Each call counts as a step of the loop. Otherwise thousands of quick calls would look like a hang, and whichever
        job is marked at that moment would be blamed for it.
        """
        self.mark.put(token)
        self.leadership.clock.beat()

    def _note_hang(self, hangs: bool) -> None:
        """Record a strike against the job for which a plugin hangs, or take it back once the call has returned.

        A job is recorded when two checks in a row find the loop hanging at it. Strikes of other jobs are taken back,
        as they did not cause the hang. Called by the lease's clock.
        """
        at = self.placing.at if hangs else None
        if at is not None and at == self.hangs_at and not self.has_noted:
            with self.host.session() as session:
                strikes.take_all_back(session, self.leadership.holder)
                strikes.note(session, self.leadership.holder, [at])
                is_noted = store.knows(session, at)
            if is_noted:
                self.mark.put(None)  # so that the next controller does not count it again
            self.has_noted = True
        elif at is None and self.has_noted and self.hangs_at is not None:
            with self.host.session() as session:
                strikes.take_back(session, [self.hangs_at])
            self.has_noted = False
        self.hangs_at = at

    def _tick_safely(self) -> float:
        """Run one tick; a failure is logged and the tick repeated, so that no error ends the controller.

        :returns: seconds to wait for the next tick
        """
        try:
            self.tick()
        except Exception as error:
            self.queued.forget()  # it may contain uncommitted changes
            self.trouble.begin("The tick failed", error, traceback=True)
            return 2.0  # the last tick failed, for example because the database is unreachable
        self.trouble.end("The tick failed")
        return self.tick_seconds

    def tick(self) -> None:
        """Observe, decide, record and act, if this controller holds the lease and there is work."""
        if self.host.has_lost_store():
            log.error("The store was removed, so the controller exits; its node agents exit on their own")
            self.leadership.clock.end_process()
            self.stop()
            return
        if not self.leadership.lead():
            # Another controller acts. A standby exits together with the executor that started it.
            if self.managed and os.getppid() != self.parent:
                self.stop()
            return
        if self.leadership.struck:
            struck, self.leadership.struck = self.leadership.struck, []
            self._publish([change for change in struck if "state" in change.values])
        if self.managed and was_stopped(self.host, self.settings):
            self.stop()
            return
        if self.script_jobs.is_sweep_due:
            self.script_jobs.sweep()
        if not self.idle_detector.lasts(self.threads) or self.any_wait():
            begun = time.monotonic()
            with self.metrics.tick(), self.site_plans.paused():
                self._work(time.time())
            self.threads.request_observations(min(REST_AFTER_TICK * (time.monotonic() - begun), LONGEST_REST))
        if self.housekeeping.due(self.metrics, self.threads.troubles(), self.queued):
            self.stop()

    def _work(self, started: float) -> None:
        seen = self.observe()
        any_wait = self.any_wait()
        if any_wait:
            self.drop_unwanted()
            self.size()
        decision = self.decide(seen, any_wait)
        if self.script_jobs.any_live:
            self.settle_scripts()
        if any_wait and self.drop_unwanted_of(decision):
            self.ring()  # the decision included jobs that are gone now, so decide again
            return
        self.record(decision, any_wait, started)
        self.act(decision)
        self.idle_detector.decided(seen, decision, is_work=any_wait or len(seen) < len(self.sites))

    def observe(self) -> list[SiteAnswer]:
        """Store what the sites' threads have found, without waiting for any site.

        A failure of one site, or in its answer, affects only that site, about which nothing is then concluded.
        """
        seen = []
        for thread in self.threads.answering():
            try:
                is_new = self._take_news(thread)
                if thread.last is not None:
                    seen.append(self._answer(thread.site, thread.last, is_new))
            except Exception as error:  # a third party's site can return anything, even values that fit no column
                if isinstance(error, SQLAlchemyError) and not isinstance(error, DataError):
                    raise  # the database's fault, not the site's: the next tick takes the same events again
                thread.settle(error)
        return seen

    def _answer(self, site: Site[Any], observation: Observation, is_new: bool) -> SiteAnswer:
        """Combine a site's observation with the store's records of that site, which are updated first."""
        shares, ahead = self.shares, self.leadership.database_ahead
        given = partial(queue.given, site=site.name, database_ahead=ahead, terms=shares.terms, hours=shares.hours)
        if not site.launches:
            return SiteAnswer(site, observation, poll(self.host.session, given), is_new=is_new)
        with self.host.session() as session:
            jobs = given(session, durations=self.durations.read(session))
            there = self.launched[site.name]
            rows = there.refresh(session, observation.locations, is_new)
            known = there.measured(session, observation)
            boots = there.last_boots(session)
            files = self.placing.needed(session, site) if rows else {}
        return SiteAnswer(site, observation, jobs, rows, is_new, known, boots, files, there.promised)

    def _take_news(self, thread: SiteThread) -> bool:
        """Store what a site's thread has found since the last tick; many events are spread over several ticks.

        :returns: whether there was anything new and all of it is stored
        """
        site, news = thread.site, thread.take()
        if news is None or thread.last is None:
            return False
        observation = thread.last
        with self.host.session() as session:
            changes = store.apply(session, answers.changes_by_events(news), site.name)
            gangs.store_answers(session, site.name, answers.holds_in_events(news))
            changes += store.apply(session, self.launched[site.name].ended(session, news))
            lanes.settle(session, site.name, [each.token for each in changes if "started_at" in each.values])
            self.needs.note_ends(session, [each.token for each in changes if "ended_at" in each.values])
            self.shares.note_ends(session, [each.token for each in changes if each.values.get("cpu_seconds")])
            short = site_memory.short(changes, time.time())
            located = store.locations(session, short)
            self.placing.note_events(session, site.name, news, changes)
            self.housekeeping.save_locations(session, site, observation)
        self.housekeeping.saved(site, observation)
        is_all = thread.settle()
        if not is_all:
            self.ring()
        self.throughput[site.name].note((location, *short[token]) for token, location in located.items())
        self._publish(changes)
        # In transactions of its own, so that an order that cannot be stored does not undo what the site has reported.
        self.script_jobs.add([each.token for each in changes if each.values.get("state") == State.SUCCEEDED])
        return is_all

    def settle_scripts(self) -> None:
        """End the job scripts whose tasks no longer wait for them, before any job of these tasks can be placed."""
        ends = self.script_jobs.ends(time.time())
        what = "The end of a job script could not be stored"
        for changes, places in self.script_jobs.write(self._end_scripts, ends, what):
            self._publish(changes)
            for site, by_location in places.items():  # so that the site does not follow them any longer
                self.threads.threads[site].cancel(by_location)
        self.script_jobs.forget(each.token for each in ends)

    def _end_scripts(
        self, session: Session, ends: Sequence[Change]
    ) -> tuple[list[Change], dict[str, dict[str, dict[str, Reason]]]]:
        """Store the ends of job scripts.

        :returns: those that took effect, and the scripts by site and location
        """
        changes = {each.token: each for each in store.apply(session, ends)}
        places: dict[str, dict[str, dict[str, Reason]]] = {}
        for token, (site, location) in queue.places(session, list(changes)).items():
            if site in self.sites:
                places.setdefault(site, {}).setdefault(location, {})[token] = housekeeping.UNWANTED
        for site, by_location in places.items():
            its = [changes[token] for tokens in by_location.values() for token in tokens]
            self.placing.note_events(session, site, (), its)
        return [*changes.values()], places

    def any_wait(self) -> bool:
        """Return whether any job or gang waits, after reading users' requests and the jobs that wait.

        An idle controller queries the database for little else.
        """
        is_idle = self.idle_detector.is_quiet and not (self.queued.jobs or self.queued.is_outdated or self.had_gangs)
        has_chores = self.budgets.table or self.staging.fetches
        if is_idle and not has_chores and not poll(self.host.session, request_rows.any_news):
            return False
        with self.host.session() as session:
            self.shares.load(session)
            self.budgets.sum_up(session, time.time(), is_asked=self.requests.step(session))
            if self.budgets.in_hours:
                self.durations.read(session)
            self.staging.sweep(session)
            any_wait = bool(self.queued.read(session).jobs)
            # Gangs are formed from waiting jobs, so without waiting jobs only earlier gangs can exist.
            has_gangs = self.had_gangs and not any_wait and gangs.any_gang(session)
            self.had_gangs = any_wait or has_gangs
            return any_wait or has_gangs

    def drop_unwanted(self) -> None:
        """Cancel waiting jobs that Airflow no longer wants, before anything is done for them."""
        with self.host.session() as session:
            tokens = [*self.queued.unsized, *self._next_unchecked(), *self.queued.ganged]
            tokens += gangs.asleep(session)
            changes = housekeeping.drop_unwanted(self.host, session, [*dict.fromkeys(tokens)], time.time())
        self._publish(changes)
        if changes:  # clearing or failing a run affects all of its tasks, so check those too
            jobs = (self.queued.jobs.get(each.token) for each in changes)
            runs = {(job.row.dag_id, job.row.run_id) for job in jobs if job is not None}
            its = [token for token, job in self.queued.jobs.items() if (job.row.dag_id, job.row.run_id) in runs]
            with self.host.session() as session:
                more = housekeeping.drop_unwanted(self.host, session, its, time.time())
            self._publish(more)
            with self.host.session() as session:
                self.queued.read(session)

    def drop_unwanted_of(self, decision: Decision) -> bool:
        """Cancel jobs that the decision acts on and Airflow no longer wants; returns whether there were any."""
        tokens = [each.token for each in decision.changes if each.values.get("state") == State.PLACED]
        if any(decision.orders.values()) or any(decision.holds.values()):
            tokens += self.looked_at
        if not tokens:
            return False
        with self.host.session() as session:
            changes = housekeeping.drop_unwanted(self.host, session, [*dict.fromkeys(tokens)], time.time())
        self._publish(changes)
        return bool(changes)

    def _next_unchecked(self) -> list[str]:
        """Return the next few waiting jobs to check, working through all of them in turn."""
        if (now := time.monotonic()) < self.next_check:
            return []
        self.next_check = now + self.tick_seconds
        if not self.unchecked:
            self.unchecked = sorted(self.queued.jobs)  # tokens are random, so this order is, too
        # Every second, the orchestrator is asked whether it still wants some waiting jobs, in addition to those
        # about to be acted on. They are also read again, because someone may have changed them manually.
        taken = self.unchecked[-100:]
        del self.unchecked[-100:]
        self.queued.note(taken)
        return taken

    def size(self) -> None:
        """Store the resources of jobs whose requests depend on their inputs or earlier tries."""
        with self.host.session() as session:
            found, lessons = self.estimator.step(session, any_wait=bool(self.queued.unsized))
            changes = sizing.stored(session, found)
            self.host.note(session, [lesson.entry() for lesson in lessons])
        self.estimator.start()
        self.queued.note(change.token for change in changes)
        self._publish([change for change in changes if "state" in change.values])

    def decide(self, seen: Sequence[SiteAnswer], any_wait: bool) -> Decision:
        """Choose where waiting jobs go, and what to do about jobs that a site no longer lists."""
        now = time.time()
        decision = Decision()
        self.site_plans.live_runs.may_look_ahead = self.leadership.may_look_ahead
        is_work = any_wait or self.site_plans.expects_jobs or any(each.instances for each in seen)
        sites = self.views(seen, now, is_work=is_work)
        self.shares.count(seen, sites, now)
        if any_wait:
            self.shares.begin(now)
        if is_work:
            bounds = self.shares.bounds()
            if any_wait and self.settings.order == CRITICAL_PATH:
                with self.host.session() as session:
                    by_dag, ahead = self.by_dag, self.leadership.database_ahead
                    self.site_plans.refresh_rests(session, sites, now, by_dag=by_dag, database_ahead=ahead)
            together = GangOutcome(sites)
            known = self._gangs() if any_wait else None
            waiting, at_work = self._waiting() if any_wait else ([], [])
            if known is not None:
                with self.host.session() as session:
                    fair = self.shares.fair
                    together = self.gangs.decide(session, known, sites, now, waiting=waiting, fair=fair, bounds=bounds)
            with self.host.session() as session:
                by_dag, ahead = self.by_dag, self.leadership.database_ahead
                foreseen = self.site_plans.foresee(
                    session, together.sites, waiting, now, by_dag=by_dag, database_ahead=ahead
                )
                assignment = self.placing.assign(
                    session,
                    waiting,
                    together.sites,
                    at_work,
                    now,
                    wanted=together.wanted,
                    foreseen=foreseen,
                    bounds=bounds,
                )
            self.shares.learn(waiting, assignment, now)
            self.site_plans.barred = assignment.barred
            for name, absence in self.turned_away.items():
                absence.update(assignment.turned_away.get(name, ()))
            by_name = {site.name: site for site in together.sites}
            for name, provision in assignment.provisions.items():
                assignment.provisions[name] = self.launched[name].without_abandoned(
                    provision, by_name[name], together.wanted.get(name, ()), together.active
                )
            decision = together.added_to(dispatch.decided(waiting, assignment, now))
            decision = replace(decision, notes=self.site_plans.notes(assignment.provisions))
            sites = [*together.sites]
        views = {site.name: site for site in sites}
        for each in seen:
            back, taken_back = withdrawn(each)
            decision = decision.with_changes(back)
            for here in (recalled(each, views[each.site.name], now), taken_back):
                decision = decision.with_recalls(each.site.name, here)
        for each in (answer for answer in seen if answer.is_new):
            decision = self.compared[each.site.name].apply(each, decision, now)
        return decision

    def _gangs(self) -> gangs.GangRecords:
        """Load the gangs, and tell the fair queue their turns."""
        fair = self.shares.fair
        with self.host.session() as session:
            by_dag, ahead, rests = self.by_dag, self.leadership.database_ahead, self.site_plans.rests
            known = gangs.load(session, by_dag=by_dag, database_ahead=ahead, fair=fair, rests=rests)
        if fair is not None:
            fair.gangs = gangs.turns(known)
        return known

    def _waiting(self) -> tuple[list[WaitingJob], list[AtWork]]:
        """Return the waiting jobs with the latest estimates for their tasks, and the running jobs of their groups.

        Running jobs count where a group limits how many machines it uses.
        """
        with self.host.session() as session:
            self.host.note(session, self.needs.resize(session, self.queued.read(session)))
            self.queued.read(session)
            durations = self.durations.read(session) if any(each.launches for each in self.sites.values()) else None
            ahead = self.leadership.database_ahead
            found = queue.waiting(
                session,
                self.turn,
                by_dag=self.by_dag,
                durations=durations,
                database_ahead=ahead,
                rests=self.site_plans.rests,
                fair=self.shares.fair,
                queued=self.queued,
            )
            self.turn += 1
            self.looked_at = [job.name for job in found]
            return found, [*queue.on_machines(session, found)]

    def views(self, seen: Sequence[SiteAnswer], now: float, *, is_work: bool = True) -> list[SiteView]:
        """Return the views of all sites for placement, in the order of the sites file.

        :param is_work: False: leave out the locations, which nothing needs
        """
        answers = {each.site.name: each for each in seen}
        views = []
        for name, site in self.sites.items():
            each = view(site, answers.get(name), self.threads.silence(name), self.housekeeping.possible(site))
            if is_work and name in answers:
                each = with_locations(each, answers[name], self.throughput[name].prefetchable(), now)
            views.append(paused(each, self.requests.paused.get(name)))
        since = self.troubled.update(each.name for each in views if each.trouble is not None)
        return [
            replace(
                each,
                in_trouble=since.get(each.name, 0.0),
                is_new=self.threads.is_new(each.name),
                turned_away=self.turned_away[each.name].seconds(),
                accept_untargeted=each.name in self.takers,
            )
            for each in views
        ]

    def record(self, decision: Decision, any_wait: bool, started: float) -> None:
        """Commit every intent before it has any effect.

        :param started: when this tick began, epoch seconds
        """
        if not (any_wait or decision.changes or decision.provisions or self.shares.is_due):
            return
        with self.host.session() as session:
            self.shares.save(session, started)
            notes = rule_log.entries(session, store.apply(session, decision.changes))
            gangs.apply(session, decision.gangs, started)
            self.host.note(session, [*notes, *decision.notes])
            for site, provision in decision.provisions.items():
                self.launched[site].record(session, decision.orders.get(site, ()), provision, started)
            if any_wait:
                before = started + self.leadership.database_ahead - SECONDS_UNTIL_EXPLAINED
                self.queued.note(change.token for change in decision.changes)
                dispatch.explain(session, self.queued.read(session), decision, before, self.shares.fair)
        self._publish(decision.changes)

    def _publish(self, changes: Sequence[Change]) -> None:
        """Tell metrics and listeners about changes that have been stored."""
        self.queued.note(change.token for change in changes if "state" in change.values or "reason" in change.values)
        self.metrics.count(changes)
        self.notify(changes)

    def act(self, decision: Decision) -> None:
        """Hand the decision to the sites' threads. A later observation reveals what failed, and it is repeated then."""
        if not self.leadership.may_act():
            return  # this tick took so long that another controller may act by now
        for thread in self.threads:
            name = thread.site.name
            thread.drop(decision.drops.get(name, {}))
            thread.hold(decision.holds.get(name, {}))
            try:
                thread.put(self._envelopes(thread.site, decision.placed.get(name, {})))
            except SQLAlchemyError:
                raise
            except Exception as error:
                self.trouble.begin(f"The jobs of site {name!r} could not be prepared", error, traceback=True)
            thread.cancel(decision.cancels.get(name, {}))
            thread.recall(decision.recalls.get(name, {}))
            if (provision := decision.provisions.get(name)) is not None:
                thread.provide(decision.orders.get(name, ()), provision.releases)

    def _envelopes(self, site: Site[Any], placed: Mapping[str, Sequence[str]]) -> dict[str, list[Envelope]]:
        """Return the envelopes to send, by location: of jobs placed now, and of jobs whose files have arrived."""
        if not placed and not self.staging.waiting[site.name]:
            return {}
        with self.host.session() as session:
            ready, changes = self.staging.ready(session, site.name, placed)
            ahead = self.leadership.database_ahead
            rests, fair = self.site_plans.rests, self.shares.fair
            found, refused = dispatch.to_send(session, ready, self.mint, site, ahead, rests, fair)
        self._publish([*changes, *refused])
        return found

    def close(self) -> None:
        """Close the sites, store their last events, and release the lease.

        A controller that was stopped before it ever led does the same if no other one acts: it may have replaced one
        that was killed, whose agents and jobs are still running.
        """
        self.estimator.close()
        self.site_plans.close()
        try:
            if self.managed:
                self.leadership.lead()
            if self.leadership.may_act():
                self._let_go()
            self.leadership.release()
        except (SQLAlchemyError, OSError):
            log.exception("The sites' last events could not be stored; the next controller will read them")
        log.info("Controller %s has stopped", self.leadership.holder)

    def _let_go(self) -> None:
        """Close all sites at the same time, and store their last events; a site that hangs is left as it is."""
        how = "hand_over" if another_scheduler_lives(self.host, self.settings, None) else self.settings.on_shutdown
        if how != "hand_over":
            self.threads.await_first_answers(self.settings.shutdown_seconds)
        self.threads.exhaust(self.observe, self.settings.shutdown_seconds)
        if how != "hand_over":
            self._pass_cancellations()
        self.threads.close(how, self.settings.shutdown_seconds)
        self.threads.exhaust(self.observe, self.settings.shutdown_seconds)
        self.threads.end()

    def _pass_cancellations(self) -> None:
        """Have the sites cancel the jobs whose cancellation was requested since the last tick.

        Otherwise jobs that wait on a machine would stay there until the next controller starts.
        """
        with self.host.session() as session:
            asked = queue.cancellations(session)
        for thread in self.threads:
            thread.cancel(asked.get(thread.site.name, {}))


class IdleDetector:
    """Detects when the controller has nothing to decide.

    It is never idle while jobs are at a site or a site does not answer: their deadlines are checked in each tick.
    """

    seconds_until_lull = 5.0
    """Without news, until the controller idles."""
    seconds_between_decisions = 5.0
    """While idle. Decisions that depend on time alone, such as releasing a machine that has been idle for long,
    are late by at most this much."""

    def __init__(self) -> None:
        self._stirred_at = self._decided_at = time.monotonic()
        self.is_quiet = False
        """Whether no job was waiting or at a site at the last decision, and no site has given news since."""

    def lasts(self, threads: SiteThreads) -> bool:
        """Return whether the sites give no cause for a decision now."""
        now = time.monotonic()
        if threads.have_news():
            self._stirred_at = now
            self.is_quiet = False
        is_late = now - self._decided_at >= self.seconds_between_decisions
        return self.is_quiet and not is_late and now - self._stirred_at >= self.seconds_until_lull

    def decided(self, seen: Sequence[SiteAnswer], decision: Decision, *, is_work: bool) -> None:
        """Note that a decision was made.

        :param is_work: whether jobs wait, or a site has not answered
        """
        self._decided_at = time.monotonic()
        provides = any(decision.orders.values()) or any(each.releases for each in decision.provisions.values())
        self.is_quiet = not (is_work or provides or decision.changes or any(each.jobs for each in seen))
        if not self.is_quiet:
            self._stirred_at = self._decided_at
