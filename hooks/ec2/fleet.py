"""The machines of a site: the rounds in which EC2 is asked what there is, and told what is to be ended.

All that this deployment has launched is ours, whichever controller did: what is not known here is taken in. What has
our tags alone is reported, and as all else never touched.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lading.hooks.ec2 import boot, life
from lading.hooks.ec2.client import EC2, AWSTrouble, EC2Error, EC2Instance
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.identity import Identity
from lading.hooks.ec2.launcher import Launcher
from lading.hooks.ec2.life import End, LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.market import EC2Offers
from lading.hooks.ec2.reach import Connector, answering, prepare
from lading.hooks.files.logs import Trouble as Complaints
from lading.hooks.machines.connection import Connection
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.site import Order, join
from lading.scheduling.text.units import format_time

log = logging.getLogger(__name__)

# EC2 is asked what there is so often: while machines come and go, while they boot, and else, seconds.
WHILE_CHANGING, WHILE_BOOTING, WHILE_QUIET = 1.0, 5.0, 30.0
# Between rounds while something is to happen, and else, seconds.
SHORT_PAUSE, LONG_PAUSE = 0.25, 5.0
# So many instances that have our tags and are not ours are named.
MOST_NAMED = 5
CHANGING = {LifePhase.UNKNOWN, LifePhase.PENDING, LifePhase.TERMINATING}
AT_WORK = {LifePhase.UP, LifePhase.DRAINING}


class EC2Fleet:
    """The machines. ``round`` belongs to one thread, the rest may be called by another.

    :param site: the name of the site
    :param scope: what its machines are tagged with; that of a trial is another
    :param identities: who we are, then who we were
    :param api: URL at which jobs reach Airflow's execution API
    :param folder: for what is known of machines, here; ``logs``: Airflow's folder of logs
    """

    no_api: str | None = None

    def __init__(
        self,
        site: str,
        scope: str,
        config: EC2Config,
        ec2: EC2,
        identities: Sequence[Identity],
        api: str,
        folder: Path,
        logs: Path,
    ) -> None:
        self.site, self.scope, self.config, self.ec2 = site, scope, config, ec2
        self.identities = identities
        self._connector = Connector(site, config, identities, api, folder / "machines", logs)
        self.members: dict[str, EC2Machine] = {}
        self.left: list[Connection] = []
        """The machines that are gone, until all is stored that they have told."""
        self.event_buffer = EventBuffer()
        self.offers = EC2Offers(config, ec2, folder, self.event_buffer.tell)
        self.launcher = Launcher(ec2, identities[0], scope, self.members, self._leave)
        self.is_loaded = False
        """Whether it is known what there is."""
        self._lock = threading.Lock()
        self._complaints = Complaints(log)
        self._described_at = 0.0
        self.strangers: str | None = None
        """Which instances have our tags and were not launched by us, in words; None: none."""
        self._gone: set[str] = set()
        """The ids of instances that EC2 still describes and whose end was told."""

    # -- what the controller calls

    def order(self, orders: Sequence[Order]) -> None:
        """Launch machines; one that is known already is not launched again."""
        with self._lock:
            new = {each.name: each for each in orders if each.name not in self.members}
            batches, ours = boot.batches(list(new.values())), self.identities[0].deployment
            for batch in batches:
                known = self.offers.specified(batch.offering[0])
                for each in batch.orders:
                    self.members[each.name] = EC2Machine.ordered(each, batch, ours, self.config.boot_seconds, known)
            self.launcher.order(batches)

    def release(self, reasons: Mapping[str, str]) -> None:
        """Let machines go when their jobs have ended."""
        for name, reason in reasons.items():
            if (member := self.members.get(name)) is not None and member.release is None:
                member.release = reason

    @property
    def connections(self) -> list[Connection]:
        """All machines that have been reached, those that are gone among them."""
        there = [each.connection for each in list(self.members.values())]
        return [*(each for each in there if each is not None), *list(self.left)]

    def welcome(self) -> None:
        """Let machines be up that have become ready, also while EC2 takes its time for an answer."""
        with self._lock:
            if [each for each in self.members.values() if each.becomes_ready()]:
                self.launcher.shortages.answered()

    def forget_left(self) -> None:
        """What has told all that it had to tell, and is stored, is forgotten."""
        told = [each for each in self.left if not each.machine.event_buffer.unread()]
        for each in told:
            self.left.remove(each)
            shutil.rmtree(each.machine.folder, ignore_errors=True)

    # -- the rounds

    def pause(self) -> float:
        """Seconds until the next round."""
        busy = any(each.phase is not LifePhase.UP or each.release for each in list(self.members.values()))
        return SHORT_PAUSE if busy else LONG_PAUSE

    def round(self) -> None:
        """:raises OSError: EC2 could not be asked; the machines are looked after all the same"""
        try:
            if self._is_due():
                self._describe()
            self._terminate()
            self.offers.charge(list(self.members.values()))
        finally:
            if self.is_loaded:
                self._reach()
                self.welcome()
                for each in list(self.members.values()):
                    self._judge(each)

    def _is_due(self) -> bool:
        members = list(self.members.values())
        is_odd = any(
            each.phase is LifePhase.BOOTING or (each.trouble or each.missed_at) is not None for each in members
        )
        is_changing = any(each.phase in CHANGING for each in members)
        pause = WHILE_CHANGING if is_changing else WHILE_BOOTING if is_odd else WHILE_QUIET
        return time.monotonic() - self._described_at >= pause

    def _describe(self) -> None:
        """Know what there is.

        :raises EC2Error: EC2 does not answer
        """
        ours, began = [each.deployment for each in self.identities], time.monotonic()
        found = self.ec2.describe({f"tag:{boot.DEPLOYMENT}": ours, f"tag:{boot.SITE}": [self.scope]})
        found = self._launched_by_us(found)
        self._described_at = now = time.monotonic()
        there = set()
        self._gone &= {each.id for each in found}
        for instance in found:
            member = self._member(instance)
            if member is None:
                self._learn_of_end(instance)
                continue
            there.add(member.name)
            member.describe(instance, self.ec2.clock_ahead)
            member.is_described, member.missed_at = True, None
            if (end := life.ended(instance)) is not None:
                if instance.state in boot.ENDED:
                    self._end(member, end)
                else:  # one that is stopped goes on costing its volumes
                    self._doom(member, end)
            elif member.phase in (LifePhase.ORDERED, LifePhase.UNKNOWN, LifePhase.PENDING):
                member.enter(LifePhase.BOOTING if instance.state == "running" else LifePhase.PENDING)
        for member in list(self.members.values()):
            if member.name not in there and member.instance is not None:
                self._miss(member, now)
        self.is_loaded, self.launcher.looked_at = True, began

    def _launched_by_us(self, found: Sequence[EC2Instance]) -> list[EC2Instance]:
        """What bears our tags by right; of the rest it is said that there is such."""
        ours = [each for each in found if boot.is_ours(each, self.identities)]
        known = {each.id for each in ours}
        others = sorted(each.id for each in found if each.id not in known and each.state not in boot.ENDED)
        words = ", ".join(others[:MOST_NAMED]) + (
            f" and {len(others) - MOST_NAMED} more" if others[MOST_NAMED:] else ""
        )
        before, self.strangers = self.strangers, None
        if others:
            self.strangers = f"not launched by Lading, though tagged as if, so left alone: {words}"
            if self.strangers != before:
                log.warning("Instances of site %r are %s", self.site, self.strangers)
        return ours

    def _member(self, instance: EC2Instance) -> EC2Machine | None:
        """The machine that an instance is; one that lives and is not known is taken in; None: it has ended."""
        name = self._name(instance)
        with self._lock:
            member = self.members.get(name)
            if member is not None and member.instance is not None and member.instance.id != instance.id:
                name, member = instance.id, self.members.get(instance.id)  # there cannot be two; if there are, it goes
            if member is None and instance.state not in boot.ENDED:
                known = self.offers.specified(instance.kind)
                member = self.members[name] = EC2Machine.found(name, instance, self.config.reserve_memory, known)
                log.info("Site %r takes in %s, which is %s (%s)", self.site, name, instance.id, instance.state)
            return member

    @staticmethod
    def _name(instance: EC2Instance) -> str:
        return boot.named(instance.tags, instance.index) or instance.id

    def _miss(self, member: EC2Machine, now: float) -> None:
        """EC2 does not describe what it has launched: that may pass. While it says nothing at all nothing is missed."""
        member.missed_at = member.missed_at or now
        patience = life.SECONDS_UNTIL_MISSED if member.is_described else life.SECONDS_UNTIL_DESCRIBED
        if now - member.missed_at > patience:
            self._end(member, life.MISSED)

    def _end(self, member: EC2Machine, end: End) -> None:
        """A machine is no more."""
        if end.cause == "preempted" and member.asked_at is None:
            self.launcher.shortages.reclaimed(member.offering, end.words)
        self.launcher.shortages.freed()
        end = self._doom(member, end)  # which it has already if it was we who have ended it
        self._leave(member, end)

    def _doom(self, member: EC2Machine, end: End) -> End:
        """Have a machine ended, unless that is to be already; returns why.

        That it has never answered is known before another one is bought in its place.
        """
        if member.doom is None:
            is_silent = member.instance is not None and not (member.has_answered or member.is_adopted)
            named = (
                member.instance is not None
                and is_silent
                and self.launcher.shortages.failed(member.offering, member.instance.reason)
            )
            if end.cause == "node_failure" and is_silent and not named:
                self.launcher.shortages.never_answered(member.offering, end.words)
            member.doom = end
        return member.doom

    def _leave(self, member: EC2Machine, end: End) -> None:
        """Forget a machine, and tell of its end."""
        member.enter(LifePhase.GONE)
        if (connection := member.connection) is not None:
            connection.rounds.stopping = True
            connection.machine.transport.close()  # which ends an exchange that nobody will answer
            connection.rounds.stop(1.0)
            connection.machine.endings.give_up(end.cause or "node_failure", end.words)
            connection.machine.leave()
            self.left.append(connection)
        instance = member.instance
        if instance is not None:
            instance = replace(instance, launched_at=member.billed_from)
        self._tell(member.name, instance, end)
        with self._lock:
            self.members.pop(member.name, None)

    def _learn_of_end(self, instance: EC2Instance) -> None:
        """Tell, once, of a machine that has ended while no controller looked: its row may wait for that."""
        name = self._name(instance)
        if instance.id not in self._gone and name not in self.members:
            self._tell(name, instance, life.unattended(instance))

    def _tell(self, name: str, instance: EC2Instance | None, end: End) -> None:
        """Tell of an end, at the time up to which AWS bills: by our clock, and for the bill by AWS's."""
        ahead = self.ec2.clock_ahead
        ended_at = (instance.ended_at if instance is not None else None) or time.time() + ahead
        event = {"event": "released", "token": name, "at": ended_at - ahead, "cause": end.cause, "message": end.words}
        if instance is None:
            self.event_buffer.tell(event)
            return
        self._gone.add(instance.id)
        launched_at = None if instance.launched_at is None else instance.launched_at - ahead
        self.event_buffer.tell({**event, "native_id": instance.id, "launched_at": launched_at})
        self.offers.bill(name, instance, ended_at)

    # -- reaching machines

    def _reach(self) -> None:
        """Connect to machines that have come up."""
        if self.members:
            prepare()
        waiting = {}
        for each in list(self.members.values()):
            if each.phase is LifePhase.BOOTING and each.connection is None and (host := self._address(each)):
                waiting[each.name] = host
        port = self.config.ssh_port
        up = waiting.keys() if self.config.jump_host else answering({n: (h, port) for n, h in waiting.items()})
        for name, host in waiting.items():
            member = self.members[name]
            if name not in up:
                member.note = f"nothing answers at {host}:{port}"
                continue
            try:
                member.connection = self._connector.connect(member, host)
            except (ValueError, OSError) as error:
                member.note = str(error)
                self._complaints.begin(f"{member.name} cannot be connected to", error)
                continue
            member.connection.rounds.start()

    def _address(self, member: EC2Machine) -> str | None:
        if member.instance is None:
            return None
        return member.instance.public if self.config.address == "public" else member.instance.private

    # -- what becomes of a machine

    def _judge(self, member: EC2Machine) -> None:
        """Bring a machine on in its life, and give it up where it takes too long."""
        connection = member.connection
        if member.phase is LifePhase.UP and connection is not None:
            if connection.leaving is not None and member.release is None:
                member.release = connection.leaving
                self.launcher.shortages.reclaimed(member.offering, connection.leaving)
            if connection.machine.is_closing and member.release is None:
                member.release = "it was being given up already"
            if member.release is not None:
                connection.machine.is_closing = True
                member.enter(LifePhase.DRAINING)
                connection.rounds.wake()
        if member.doom is None and (end := self._due_end(member)) is not None:
            self._doom(member, end)
        if member.doom is not None and member.instance is None and self.launcher.withdraw(member):
            self._leave(member, member.doom)

    def _due_end(self, member: EC2Machine) -> End | None:
        """Why a machine is to be ended now; None: it is not."""
        phase, reason, connection = member.phase, member.release, member.connection
        if phase is LifePhase.DRAINING and member.is_empty:
            leaves = connection is not None and connection.leaving is not None
            return End("preempted" if leaves else None, reason or "it was given up")
        is_new = phase in (LifePhase.ORDERED, LifePhase.PENDING, LifePhase.BOOTING) and not member.is_adopted
        if reason is not None and is_new:  # it never had a job
            return End(None, reason)
        deadline = self.config.absence_deadline
        if phase in AT_WORK and member.silence() > deadline:
            return End("node_failure", f"it has not been reached for {format_time(deadline)}: {member.trouble}")
        if phase is LifePhase.UP and connection is not None and member.seconds_of_no_use() > deadline:
            return End("node_failure", f"it has taken no jobs for {format_time(deadline)}: {connection.machine.note}")
        late = life.overdue(phase, member.seconds, self.config.boot_seconds, member.trouble)
        return End("node_failure", late) if late is not None else None

    def _terminate(self) -> None:
        """End machines that are to go.

        :raises EC2Error: EC2 does not answer
        """
        now = time.monotonic()
        doomed = [
            each
            for each in list(self.members.values())
            if each.doom is not None and each.instance is not None
            if each.asked_at is None or now - each.asked_at > life.SECONDS_UNTIL_REPEATED
            if each.refusal.held is None
        ]
        if not doomed:
            return
        what = f"Machines of site {self.site!r} cannot be ended"
        by_id = {each.instance.id: each for each in doomed if each.instance is not None}
        try:
            refused = self.ec2.terminate(list(by_id))
        except EC2Error as error:
            self._complaints.begin(what, error)
            if error.trouble is AWSTrouble.SILENCE:
                raise
            for each in doomed:
                each.asked_at = now
            return
        for id, each in by_id.items():
            each.asked_at = now
            if id in refused:
                each.refusal.failed(f"{id} cannot be ended, and is paid for: {life.remedied(refused[id])}")
            else:
                each.refusal.succeeded()
                each.enter(LifePhase.TERMINATING)
        if refused:
            self._complaints.begin(what, next(iter(refused.values())))
        else:
            self._complaints.end(what)
        self._described_at = 0.0

    @property
    def refused(self) -> str | None:
        """Which machines AWS refuses to end, with what to do, in words; None: none."""
        members = list(self.members.values())
        return join(*(each.refusal.words for each in members if each.doom is not None and each.refusal.failures))
