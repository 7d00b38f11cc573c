"""Matches EC2's description to the machines of a site: launched by us or adopted, live, missing, or terminated.

Every instance of this deployment is ours, whichever controller launched it; an unknown one is adopted. An instance that
only has our tags is reported and never touched, like all other instances.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from lading.hooks.ec2 import boot, life
from lading.hooks.ec2.client import EC2Instance
from lading.hooks.ec2.fleet_state import FleetPart, FleetState
from lading.hooks.ec2.life import LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.termination import Termination
from lading.scheduling.text.printable import first_few

log = logging.getLogger(__name__)

CHANGING = {LifePhase.UNKNOWN, LifePhase.PENDING, LifePhase.TERMINATING}


class Registration(FleetPart):
    """Keeps track of the machines as EC2 describes them."""

    def __init__(self, state: FleetState, termination: Termination) -> None:
        super().__init__(state)
        self.termination = termination
        self.is_loaded = False
        """Whether EC2 has reported the existing machines."""
        self.described_at = 0.0
        """When EC2 last described them, on the monotonic clock; ``asked_at``: when that was requested."""
        self.asked_at: float | None = None
        self.strangers: str | None = None
        """Instances that have our tags but were not launched by us, as text; None: none."""

    def is_due(self) -> bool:
        machines = list(self.machines.values())
        is_odd = any(
            machine.phase is LifePhase.BOOTING or machine.waits is not None or machine.missed_at is not None
            for machine in machines
        )
        is_changing = any(machine.phase in CHANGING for machine in machines)
        pause = 1.0 if is_changing else 5.0 if is_odd else self.state.limits.while_quiet
        return self.termination.is_news or time.monotonic() - self.described_at >= pause

    def register(self) -> None:
        """Ask EC2 for its instances and update the machines.

        :raises EC2Error: EC2 does not answer
        """
        ours, asked_at = [identity.deployment for identity in self.state.identities], time.monotonic()
        described = self.ec2.describe({f"tag:{boot.DEPLOYMENT}": ours, f"tag:{boot.SITE}": [self.state.scope]})
        instances = self._launched_by_us(described)
        self.described_at = now = time.monotonic()
        self.termination.is_news = False
        there = set()
        self.termination.reported &= {instance.id for instance in instances}
        for instance in instances:
            machine = self._machine(instance)
            if machine is None:
                self._report_unattended_end(instance)
                continue
            there.add(machine.name)
            machine.describe(instance, self.ec2.clock_ahead, asked_at)
            machine.is_described, machine.missed_at = True, None
            if (end := life.ended(instance)) is not None:
                if instance.state in boot.ENDED:
                    self.termination.end(machine, end)
                else:  # a stopped instance still pays for its volumes
                    self.termination.request_end(machine, end)
            elif machine.phase in (LifePhase.ORDERED, LifePhase.UNKNOWN, LifePhase.PENDING):
                machine.enter(LifePhase.BOOTING if instance.state == "running" else LifePhase.PENDING)
        for machine in list(self.machines.values()):
            if machine.name not in there and machine.instance is not None and not self.ec2.unread:
                self._miss(machine, now)
        self.is_loaded, self.asked_at = True, asked_at

    def _launched_by_us(self, instances: Sequence[EC2Instance]) -> list[EC2Instance]:
        """Return the instances that we launched, and report others with our tags."""
        ours = [instance for instance in instances if boot.is_ours(instance, self.state.identities)]
        known = {instance.id for instance in ours}
        others = sorted(
            instance.id for instance in instances if instance.id not in known and instance.state not in boot.ENDED
        )
        before, self.strangers = self.strangers, None
        if others:
            self.strangers = (
                "tagged like Lading's instances, but Lading did not launch them, so it leaves them alone: "
                f"{first_few(others, 5)}"
            )
            if self.strangers != before:
                log.warning("Instances of site %r are %s", self.state.site, self.strangers)
        return ours

    def _machine(self, instance: EC2Instance) -> EC2Machine | None:
        """Return the machine of an instance, adopting an unknown live one; None: it has terminated."""
        name = _name(instance)
        with self.state.lock:
            machine = self.machines.get(name)
            if machine is not None and machine.instance is not None and machine.instance.id != instance.id:
                name, machine = (
                    instance.id,
                    self.machines.get(instance.id),
                )  # a duplicate, which should not exist; it is released
            if machine is None and instance.state not in boot.ENDED:
                known = self.state.offers.specified(instance.kind)
                machine = EC2Machine.adopted(name, instance, self.state.config.reserve_memory, known)
                self.machines[name] = machine
                log.info("Site %r adopts %s, which is %s (%s)", self.state.site, name, instance.id, instance.state)
            return machine

    def _miss(self, machine: EC2Machine, now: float) -> None:
        """Record that EC2 does not describe a machine, which may be temporary.

        It counts as missing only while EC2 answers and the machine itself does not, because the credentials may now be
        those of another account.
        """
        machine.missed_at = machine.missed_at or now
        limits = self.state.limits
        patience = limits.until_missed if machine.is_described else limits.until_described
        if now - machine.missed_at > patience and (not machine.has_answered or machine.silence() > patience):
            self.termination.end(machine, life.MISSED)

    def _report_unattended_end(self, instance: EC2Instance) -> None:
        """Report once that a machine terminated while no controller ran, because its row may be waiting for that."""
        name = _name(instance)
        if instance.id not in self.termination.reported and name not in self.machines:
            self.termination.report(name, instance, life.unattended(instance))


def _name(instance: EC2Instance) -> str:
    return boot.named(instance.tags, instance.index) or instance.id
