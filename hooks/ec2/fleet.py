"""The machines of a site: what the controller requests, and the rounds that advance each machine through its life.

Most phases of that life (:class:`lading.hooks.ec2.life.LifePhase`) have a module: launch (``launcher``, in a thread of
its own), registration, readiness (``reach``) and termination; draining and liveness are here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lading.hooks.ec2 import boot, life
from lading.hooks.ec2.client import EC2
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.cost_tags import CostTags
from lading.hooks.ec2.fleet_state import FleetState
from lading.hooks.ec2.identity import Identity
from lading.hooks.ec2.launcher import Launcher
from lading.hooks.ec2.life import End, LifePhase, with_obstacle
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.offers import EC2Offers
from lading.hooks.ec2.reach import Connector, Readiness
from lading.hooks.ec2.registration import Registration
from lading.hooks.ec2.termination import Termination
from lading.hooks.machines.connection import Connection
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.rounds import Poller
from lading.hooks.site import Order
from lading.scheduling.model.reasons import Reason, because

# Seconds between rounds while something is pending, and otherwise.
SHORT_PAUSE, LONG_PAUSE = 0.25, 5.0
AT_WORK = {LifePhase.UP, LifePhase.DRAINING}


class EC2Fleet(Poller):
    """The machines of a site. ``round`` belongs to one thread; the rest can be called from another.

    :param site: the name of the site
    :param scope: the value of its machines' site tag; a trial has its own
    :param identities: our current identity, then former ones
    :param api: URL at which jobs reach Airflow's execution API
    :param folder: local folder for the state of machines; ``logs``: Airflow's log folder
    :param notify: called when a machine begins or ceases to take jobs
    """

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
        limits: EC2Limits = EC2Limits(),
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self.config, self.ec2, self.identities = config, ec2, identities
        self.event_buffer = EventBuffer()
        self.offers = EC2Offers(config, ec2, folder, self.event_buffer.add, limits)
        self.state = FleetState(site, scope, config, ec2, identities, self.offers, self.event_buffer, limits)
        self.machines = self.state.machines
        self.termination = Termination(self.state)
        self.cost_tags = CostTags(self.state)
        self.launcher = Launcher(
            ec2, identities[0], scope, self.machines, self.termination.leave, shortages=self.state.shortages
        )
        self.registration = Registration(self.state, self.termination)
        connector = Connector(site, config, identities, api, folder / "machines", logs, notify)
        self.readiness = Readiness(self.state, connector)

    # -- what the controller calls

    @property
    def is_loaded(self) -> bool:
        """Whether EC2 has reported the existing machines."""
        return self.registration.is_loaded

    def order(self, orders: Sequence[Order]) -> None:
        """Launch machines, except those already ordered."""
        with self.state.lock:
            new = {order.name: order for order in orders if order.name not in self.machines}
            batches, ours = boot.batches(list(new.values())), self.identities[0].deployment
            for batch in batches:
                known = self.offers.specified(batch.offering[0])
                for order in batch.orders:
                    self.machines[order.name] = EC2Machine.ordered(order, batch, ours, known)
            self.launcher.order(batches)

    def release(self, reasons: Mapping[str, Reason]) -> None:
        """Release machines once their jobs have finished."""
        for name, reason in reasons.items():
            if (machine := self.machines.get(name)) is not None and machine.release is None:
                machine.release = reason

    @property
    def connections(self) -> list[Connection]:
        """The connections of all machines that were reached, including former machines."""
        there = [machine.connection for machine in list(self.machines.values())]
        return [*(connection for connection in there if connection is not None), *list(self.state.left)]

    def promote_ready(self) -> None:
        """Mark machines that have become ready as up, even while EC2 is slow to answer."""
        self.readiness.promote_ready()

    def forget_left(self) -> None:
        """Forget former machines whose last events are stored."""
        done = [connection for connection in self.state.left if not connection.machine.event_buffer.unread()]
        for connection in done:
            self.state.left.remove(connection)
            shutil.rmtree(connection.machine.folder, ignore_errors=True)

    # -- the rounds

    def pause(self) -> float:
        machines = list(self.machines.values())
        busy = any(machine.phase is not LifePhase.UP or machine.release for machine in machines)
        return SHORT_PAUSE if busy else LONG_PAUSE

    def round(self) -> None:
        """Advance each machine in its life.

        :raises OSError: EC2 did not answer; everything that does not need its answer is done nevertheless
        """
        try:
            if self.registration.is_due():
                self.registration.register()
                self.launcher.looked_at = self.registration.asked_at
            self.termination.terminate()
            self.offers.charge(list(self.machines.values()))
            self.cost_tags.update()
        finally:
            if self.is_loaded:
                self.readiness.connect()
                self.readiness.promote_ready()
                for machine in list(self.machines.values()):
                    self._drain(machine)
                    self._check_liveness(machine)

    def _drain(self, machine: EC2Machine) -> None:
        connection = machine.connection
        if machine.phase is not LifePhase.UP or connection is None:
            return
        if connection.leaving is not None and machine.release is None:
            machine.release = connection.leaving
            self.state.shortages.reclaimed(machine.offering, connection.leaving)
        if connection.machine.is_closing and machine.release is None:
            machine.release = because("machine_closing")
        if machine.release is not None:
            connection.machine.is_closing = True
            machine.enter(LifePhase.DRAINING)
            connection.rounds.wake()

    def _check_liveness(self, machine: EC2Machine) -> None:
        """Have a machine terminated that is released and empty, does not answer, or takes too long."""
        if machine.termination_reason is None and (end := self._due_end(machine)) is not None:
            self.termination.request_end(machine, end)
        reason = machine.termination_reason
        if reason is not None and machine.instance is None and self.launcher.withdraw(machine):
            self.termination.leave(machine, reason)

    def _due_end(self, machine: EC2Machine) -> End | None:
        """Return why a machine has to be terminated now; None if it does not."""
        phase, reason, connection = machine.phase, machine.release, machine.connection
        if phase is LifePhase.DRAINING and machine.is_empty:
            leaves = connection is not None and connection.leaving is not None
            return End("preempted" if leaves else None, reason or because("machine_closing"))
        is_new = phase in (LifePhase.ORDERED, LifePhase.PENDING, LifePhase.BOOTING) and not machine.is_adopted
        if reason is not None and is_new:  # it never had a job
            return End(None, reason)
        deadline = self.config.lost_after
        if phase in AT_WORK and machine.silence() > deadline:
            return End("node_failure", with_obstacle(because("machine_unreached", seconds=deadline), machine.waits))
        if phase is LifePhase.UP and connection is not None and machine.seconds_of_no_use() > deadline:
            return End("node_failure", because("machine_takes_no_jobs", seconds=deadline, text=connection.machine.note))
        boot_seconds, least = self.config.expected_boot_time, self.state.limits.boot
        late = life.overdue(phase, machine.seconds, boot_seconds, machine.waits, least)
        return End("node_failure", late) if late is not None else None
