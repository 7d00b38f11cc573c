"""Leadership among several controllers: the lease, and the thread that renews it while the loop makes progress."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial

from lading.executors import store
from lading.executors.controller.plugin_mark import PluginMark
from lading.executors.controller_process import ask_to_make_way, is_dead
from lading.executors.orchestrator.kept_connection import poll
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.store import Change, capacity, strikes
from lading.hooks.files.logs import Trouble
from lading.hooks.polling.outside_clock import seconds_ahead

log = logging.getLogger(__name__)


# Failures as they appear in the log.
RENEWAL = "The lease could not be renewed"
NOTE = "The job at which the controller hangs could not be recorded"


class Leadership:
    """The lease of one controller.

    A controller that has lost its lease never takes it again, so that two cannot take it from each other for ever.

    :param host: the orchestrator whose database has the lease
    :param sites: the names of the sites that the controller acts for
    :param managed: whether an executor started the controller and can stop it
    :param on_lost: called when another controller has taken the lease
    :param mark: tells for which job a plugin crashed the previous controller
    """

    lease_seconds = 20.0
    renewal_seconds = lease_seconds / 3

    def __init__(
        self,
        host: Orchestrator,
        sites: Collection[str],
        managed: bool,
        on_lost: Callable[[], None],
        mark: PluginMark,
    ) -> None:
        self.host = host
        self.sites = sites
        self.managed = managed
        self.on_lost = on_lost
        self.mark = mark
        self.holder = str(uuid.uuid4())
        self.leads_until = 0.0
        self.renew_at = 0.0
        self.has_lost = False
        self.database_ahead = 0.0
        """Seconds by which the database's clock is ahead of ours."""
        self.may_look_ahead = True
        """False: a plugin crashed the previous controller while it examined an upcoming task."""
        self.struck: list[Change] = []
        """Changes of jobs that earlier controllers crashed or hung over, not published yet."""
        self.clock = LeaseClock(self.renewal_seconds, self.renew)
        self._renewal = threading.Lock()

    def lead(self) -> bool:
        """Take the lease, or keep it; False: another controller acts."""
        return self.leads_until > 0 if time.monotonic() < self.renew_at else self.renew()

    def may_act(self) -> bool:
        """Return whether the lease is certainly held and its store exists, so that no other controller acts."""
        return time.monotonic() < self.leads_until and not self.host.has_lost_store()

    def renew(self) -> bool:
        """Take or renew the lease now; False: another controller acts.

        Called by the clock's thread, and by the loop when a renewal is due.
        """
        with self._renewal:
            if self.has_lost:
                return False
            now = time.monotonic()  # a wall clock that jumps must not extend the lease beyond what others expect
            leads = self._take()
            if leads and not self.leads_until:
                log.info("Controller %s (pid %d) acts for sites %s", self.holder, os.getpid(), ", ".join(self.sites))
            if self.leads_until and not leads:
                # Its connections would stay open, and its tunnels would be mistaken for the new controller's.
                log.warning("Controller %s has lost the lease, so it exits", self.holder)
                self.has_lost = True
                self.on_lost()
            self.leads_until = now + self.lease_seconds if leads else 0.0
            # The clock renews a held lease before that; a standby checks as often as the clock.
            self.renew_at = now + (2 if leads else 1) * self.renewal_seconds
            return leads

    def release(self) -> None:
        """Give up the lease for good, so that the next controller can act.

        :raises SQLAlchemyError: the database is unreachable; the lease then expires on its own
        """
        self.clock.stop()
        self.mark.end()
        self.has_lost = True
        self.leads_until = self.renew_at = 0.0  # a site's thread that was stuck until now must not act any more
        with self.host.session() as session:
            strikes.take_all_back(session, self.holder)
            store.drop_lease(session, self.holder)

    def _take(self) -> bool:
        asked_at = time.time()
        held, said = poll(self.host.session, store.lease_and_time)
        answered_at = time.time()
        is_others = held is not None and held.holder != self.holder
        dead = held.holder if held is not None and is_others and is_dead(held) else None
        if held is not None and not self.managed:
            ask_to_make_way(held)
        if held is not None and is_others and dead is None and held.expires_at >= said:
            return False  # a standby queries nothing else
        self.database_ahead = seconds_ahead(said, asked_at, answered_at, self.database_ahead)
        take = partial(
            store.take_lease,
            holder=self.holder,
            host=socket.gethostname(),
            pid=os.getpid(),
            managed=self.managed,
            seconds=self.lease_seconds,
            dead=dead,
            database_ahead=self.database_ahead,
        )
        if self.leads_until and held is not None:
            return poll(self.host.session, take)
        with self.host.session() as session:
            leads = take(session)
            struck: list[Change] = []
            if leads and not self.leads_until:
                store.forget_other_sites(session, self.sites)
                capacity.end_other_sites(session, self.sites, time.time())
                if (left := self.mark.read()) is not None:
                    self.may_look_ahead = strikes.blame(session, *left)
                struck = strikes.charge(session, self.holder)
        if leads and not self.leads_until:
            self.mark.begin(self.holder)
            if not self.may_look_ahead:
                log.error(
                    "A controller has died while it handled an upcoming task, so this controller requests nothing ahead"
                )
        if struck:
            which = ", ".join(each.token for each in struck[:3])
            log.error("A controller has died or hung while it examined %d jobs (%s ...)", len(struck), which)
        self.struck += struck
        return leads


class LeaseClock:
    """Renews the lease every few seconds while the loop makes progress; if the loop hangs, it lets the lease expire.

    :param seconds: between two renewals
    """

    seconds_until_hung = 30.0
    """Until a loop that has not reached its next step hangs. Each step handles one site or a few queries."""

    def __init__(self, seconds: float, renew: Callable[[], object]) -> None:
        self.seconds = seconds
        self.renew = renew
        self.hung = False
        """Whether the loop hangs, so that the lease is not renewed."""
        self.end_process: Callable[[], None] = lambda: None
        """Called when the loop will not recover from a hang, or when its store is gone."""
        self.note_hang: Callable[[bool], None] = lambda hangs: None
        """Called with True in each round in which the loop hangs, and with False in the first round after that."""
        self._trouble = Trouble(log)
        self._alive_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """Note that the loop has reached its next step."""
        self._alive_at = time.monotonic()

    def stop(self) -> None:
        """Stop renewing. A renewal that hangs is waited for until the next one would be due."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self.seconds)

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            still = time.monotonic() - self._alive_at
            hung = still > self.seconds_until_hung
            if hung and not self.hung:
                log.error("The controller hangs, so it lets its lease expire. Stacks of its threads:\n%s", stacks())
            if hung or self.hung:
                self._try(NOTE, partial(self.note_hang, hung))
            self.hung = hung
            # A loop that has hung for a minute will not recover, so its process exits.
            if still > 60.0:
                self.end_process()
            if not hung:
                self._try(RENEWAL, self.renew)

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
            self._trouble.end(what)
        except Exception as error:  # for example an unreachable database
            self._trouble.begin(what, error, traceback=True)


def stacks() -> str:
    """Return the stack of each thread of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
