"""Leadership: whether this controller holds the lease, by which one of several acts."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection

from airflow.utils.session import create_session
from sqlalchemy import select

from lading.executors import store
from lading.executors.controller.life.lease_clock import LeaseClock
from lading.executors.controller.life.mark import Mark
from lading.executors.controller_process import ask_to_make_way, is_dead
from lading.executors.store import Change, capacity, strikes
from lading.executors.store.leases import DatabaseNow
from lading.hooks.polling.outside_clock import seconds_ahead

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0
RENEWAL_SECONDS = 5.0


class Leadership:
    """The lease of one controller.

    One that has lost it never takes it again, so no two take it from each other for ever.

    :param sites: the names of the sites that it acts for
    :param managed: whether an executor started it and may stop it
    :param on_lost: called when another controller has the lease
    :param mark: says over which job a plugin has ended the controller before this one
    """

    def __init__(self, sites: Collection[str], managed: bool, on_lost: Callable[[], None], mark: Mark) -> None:
        self.sites = sites
        self.managed = managed
        self.on_lost = on_lost
        self.mark = mark
        self.holder = str(uuid.uuid4())
        self.leads_until = 0.0
        self.renew_at = 0.0
        self.has_lost = False
        self.database_ahead = 0.0
        self.may_look_ahead = True  # False: a plugin has ended the controller before over a task that is to come
        """By how many seconds the database's clock is before ours."""
        self.struck: list[Change] = []
        """What the controllers before it have died or hung over, not yet told."""
        self.clock = LeaseClock(RENEWAL_SECONDS, self.renew)
        self._renewal = threading.Lock()

    def lead(self) -> bool:
        """Take the lease, or hold it still; False: another controller acts."""
        return time.monotonic() < self.renew_at or self.renew()

    def may_act(self) -> bool:
        """Whether the lease is certainly held: no other controller acts."""
        return time.monotonic() < self.leads_until

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
            self.renew_at = now + 2 * RENEWAL_SECONDS if leads else 0.0
            return leads

    def give_up(self) -> None:
        """Let the next controller act, and never take the lease again.

        :raises SQLAlchemyError: the database is away; the lease runs out by itself
        """
        self.clock.stop()
        self.mark.end()
        self.has_lost = True
        self.leads_until = self.renew_at = 0.0  # a site that goes on only now must not be asked for anything
        with create_session(scoped=False) as session:
            strikes.take_all_back(session, self.holder)
            store.drop_lease(session, self.holder)

    def _take(self) -> bool:
        with create_session(scoped=False) as session:
            asked_at = time.time()
            said = session.execute(select(DatabaseNow())).scalar_one()
            self.database_ahead = seconds_ahead(said, asked_at, time.time(), self.database_ahead)
            held = store.lease(session)
            dead = held.holder if held and held.holder != self.holder and is_dead(held) else None
            if held is not None and not self.managed:
                ask_to_make_way(held)
            leads = store.take_lease(
                session, self.holder, socket.gethostname(), os.getpid(), self.managed, LEASE_SECONDS, dead
            )
            struck: list[Change] = []
            if leads and not self.leads_until:
                store.forget_other_sites(session, self.sites)
                capacity.end_other_sites(session, self.sites, time.time())
                if (left := self.mark.found()) is not None:
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
