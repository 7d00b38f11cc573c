"""How one of several controllers leads, and shows that it lives: by its lease, and the clock that renews it."""

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

from sqlalchemy import select

from lading.executors import store
from lading.executors.controller.plugin_mark import PluginMark
from lading.executors.controller_process import ask_to_make_way, is_dead
from lading.executors.orchestrator import current
from lading.executors.orchestrator.current import open_session
from lading.executors.store import Change, capacity, strikes
from lading.executors.store.leases import DatabaseNow
from lading.hooks.files.logs import Trouble
from lading.hooks.polling.outside_clock import seconds_ahead

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0
RENEWAL_SECONDS = 5.0

# A loop that has not come to its next step for so long hangs, seconds. Each step is one site or a few queries.
SECONDS_UNTIL_HUNG = 30.0
# The process of a loop that does not even go on then is of no use, seconds.
SECONDS_UNTIL_HOPELESS = 60.0
# What fails, in the log.
RENEWAL = "The lease could not be renewed"
NOTE = "The job over which the controller hangs could not be noted"


class Leadership:
    """The lease of one controller.

    One that has lost it never takes it again, so no two take it from each other for ever.

    :param sites: the names of the sites that it acts for
    :param managed: whether an executor started it and may stop it
    :param on_lost: called when another controller has the lease
    :param mark: says over which job a plugin has ended the controller before this one
    """

    def __init__(self, sites: Collection[str], managed: bool, on_lost: Callable[[], None], mark: PluginMark) -> None:
        self.sites = sites
        self.managed = managed
        self.on_lost = on_lost
        self.mark = mark
        self.holder = str(uuid.uuid4())
        self.leads_until = 0.0
        self.renew_at = 0.0
        self.has_lost = False
        self.database_ahead = 0.0
        """Seconds by which the database's clock is ahead of this one's."""
        self.may_look_ahead = True
        """False: a plugin has ended the controller before this one over a task that is to come."""
        self.struck: list[Change] = []
        """What the controllers before it have died or hung over, not yet passed on."""
        self.clock = LeaseClock(RENEWAL_SECONDS, self.renew)
        self._renewal = threading.Lock()

    def lead(self) -> bool:
        """Take the lease, or hold it still; False: another controller acts."""
        return self.leads_until > 0 if time.monotonic() < self.renew_at else self.renew()

    def may_act(self) -> bool:
        """Whether the lease is certainly held, and its store is there: no other controller acts."""
        return time.monotonic() < self.leads_until and not current.orchestrator().has_lost_store()

    def renew(self) -> bool:
        """Take or renew the lease now; False: another controller acts.

        The clock calls it, and the loop where it must.
        """
        with self._renewal:
            if self.has_lost:
                return False
            now = time.monotonic()  # a clock that jumps must not prolong what the others count on
            leads = self._take()
            if leads and not self.leads_until:
                log.info("Controller %s (pid %d) acts for sites %s", self.holder, os.getpid(), ", ".join(self.sites))
            if self.leads_until and not leads:
                # Its sites' connections would go on, and a tunnel of this controller would be taken for the other's.
                log.warning("Controller %s has lost the lease, so it ends", self.holder)
                self.has_lost = True
                self.on_lost()
            self.leads_until = now + LEASE_SECONDS if leads else 0.0
            # The clock renews it before that; who stands by looks as often.
            self.renew_at = now + (2 if leads else 1) * RENEWAL_SECONDS
            return leads

    def release(self) -> None:
        """Let the next controller act, and never take the lease again.

        :raises SQLAlchemyError: the database is away; the lease runs out by itself
        """
        self.clock.stop()
        self.mark.end()
        self.has_lost = True
        self.leads_until = self.renew_at = 0.0  # a site that goes on only now must not be asked for anything
        with open_session() as session:
            strikes.take_all_back(session, self.holder)
            store.drop_lease(session, self.holder)

    def _take(self) -> bool:
        with open_session() as session:
            held = store.lease(session)
            is_others = held is not None and held.holder != self.holder
            dead = held.holder if held is not None and is_others and is_dead(held) else None
            if held is not None and not self.managed:
                ask_to_make_way(held)
            if held is not None and is_others and dead is None and held.left >= 0:
                return False  # who stands by asks for nothing else
            asked_at = time.time()
            said = session.execute(select(DatabaseNow())).scalar_one()
            self.database_ahead = seconds_ahead(said, asked_at, time.time(), self.database_ahead)
            leads = store.take_lease(
                session,
                self.holder,
                socket.gethostname(),
                os.getpid(),
                self.managed,
                LEASE_SECONDS,
                dead,
                self.database_ahead,
            )
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
                log.error("A controller has died over a task that is to come, so nothing is asked ahead by this one")
        if struck:
            which = ", ".join(each.token for each in struck[:3])
            log.error("A controller has died or hung while it examined %d jobs (%s ...)", len(struck), which)
        self.struck += struck
        return leads


class LeaseClock:
    """Renews the lease every few seconds while the loop says that it lives; of one that hangs the lease runs out.

    :param seconds: between two renewals
    :param renew: renews the lease
    """

    def __init__(self, seconds: float, renew: Callable[[], object]) -> None:
        self.seconds = seconds
        self.renew = renew
        self.hung = False
        """Whether the loop hangs now, so that the lease is not renewed."""
        self.end_process: Callable[[], None] = lambda: None
        """Called when there is no hope any more that the loop goes on, or nothing that it could go on with."""
        self.note_hang: Callable[[bool], None] = lambda hangs: None
        """Called in each round in which the loop hangs, and with False in the first in which it does no more."""
        self._trouble = Trouble(log)
        self._alive_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin; the loop lives."""
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """The loop has come to its next step."""
        self._alive_at = time.monotonic()

    def stop(self) -> None:
        """Renew no more. A renewal that hangs is not waited for beyond the next one's time."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self.seconds)

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            still = time.monotonic() - self._alive_at
            hung = still > SECONDS_UNTIL_HUNG
            if hung and not self.hung:
                log.error("The controller hangs, so it lets its lease expire. This is what it does:\n%s", stacks())
            if hung or self.hung:
                self._try(NOTE, partial(self.note_hang, hung))
            self.hung = hung
            if still > SECONDS_UNTIL_HOPELESS:
                self.end_process()
            if not hung:
                self._try(RENEWAL, self.renew)

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
            self._trouble.end(what)
        except Exception as error:  # such as a database that is away
            self._trouble.begin(what, error, traceback=True)


def stacks() -> str:
    """What each thread of this process does now."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
