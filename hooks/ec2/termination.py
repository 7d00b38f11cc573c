"""The last phase of a machine: EC2 is asked to terminate it, and its end is reported with its cost.

| read | concluded | until |
|---|---|---|
| EC2 does not answer, or is busy | asked again after 30 s | EC2 has accepted it |
| a refusal that names instances | they run on and are reported; the others terminate | asked again within 15 min |
| it does not know the instance | it is gone | permanent |
| no termination time | now | permanent |
"""

from __future__ import annotations

import time
from dataclasses import replace

from lading.hooks.ec2 import life
from lading.hooks.ec2.client import AWSTrouble, EC2Error, EC2Instance
from lading.hooks.ec2.fleet_state import FleetPart, FleetState
from lading.hooks.ec2.life import End, LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.site import join


class Termination(FleetPart):
    def __init__(self, state: FleetState) -> None:
        super().__init__(state)
        self.reported: set[str] = set()
        """The ids of instances that EC2 still describes, but whose end was reported."""
        self.is_news = False
        """Whether a termination was requested since EC2 last described its instances."""

    def request_end(self, machine: EC2Machine, end: End) -> End:
        """Have a machine terminated, unless that was requested already; return the reason.

        A machine that never answered is recorded first, so that no other one of its kind is bought in its place.
        """
        if machine.termination_reason is None:
            instance, shortages = machine.instance, self.state.shortages
            is_silent = instance is not None and not (machine.has_answered or machine.is_adopted)
            is_named = instance is not None and is_silent and shortages.failed(machine.offering, instance.reason)
            if end.cause == "node_failure" and is_silent and not is_named:
                shortages.never_answered(machine.offering, end.reason)
            machine.termination_reason = end
        return machine.termination_reason

    def terminate(self) -> None:
        """Ask EC2 to terminate the machines that are due.

        :raises EC2Error: EC2 does not answer
        """
        now = time.monotonic()
        condemned = [
            machine
            for machine in list(self.machines.values())
            if machine.termination_reason is not None and machine.instance is not None
            if machine.asked_at is None or now - machine.asked_at > 30.0
            if machine.refusal.held is None
        ]
        if not condemned:
            return
        what = f"Machines of site {self.state.site!r} cannot be terminated"
        by_id = {machine.instance.id: machine for machine in condemned if machine.instance is not None}
        try:
            refused = self.ec2.terminate(list(by_id))
        except EC2Error as error:
            self.state.complaints.begin(what, error)
            if error.trouble is AWSTrouble.SILENCE:
                raise
            for machine in condemned:
                machine.asked_at = now
            return
        for id, machine in by_id.items():
            machine.asked_at = now
            if id in refused:
                machine.refusal.failed(f"{id} cannot be terminated and still costs money: {life.remedied(refused[id])}")
            else:
                machine.refusal.succeeded()
                machine.enter(LifePhase.TERMINATING)
        if refused:
            self.state.complaints.begin(what, next(iter(refused.values())))
        else:
            self.state.complaints.end(what)
        self.is_news = True

    @property
    def refused(self) -> str | None:
        """Which machines AWS refuses to terminate, and what to do, as text; None: none."""
        machines = list(self.machines.values())
        condemned = (machine for machine in machines if machine.termination_reason is not None)
        return join(*(machine.refusal.message for machine in condemned if machine.refusal.failures))

    def end(self, machine: EC2Machine, end: End) -> None:
        if end.cause == "preempted" and machine.asked_at is None:
            self.state.shortages.reclaimed(machine.offering, end.reason)
        self.state.shortages.freed()
        end = self.request_end(machine, end)  # the earlier reason, if we have terminated it
        self.leave(machine, end)

    def leave(self, machine: EC2Machine, end: End) -> None:
        machine.enter(LifePhase.GONE)
        if (connection := machine.connection) is not None:
            connection.rounds.stopping = True
            connection.machine.transport.close()  # aborts an exchange that will get no answer
            connection.rounds.stop(1.0)
            connection.machine.endings.end_all(end.cause or "node_failure", end.reason)
            connection.machine.leave()
            self.state.left.append(connection)
        instance = machine.instance
        if instance is not None:
            instance = replace(instance, launched_at=machine.billed_from)
        self.report(machine.name, instance, end)
        with self.state.lock:
            self.machines.pop(machine.name, None)

    def report(self, name: str, instance: EC2Instance | None, end: End) -> None:
        """Report an end with the time up to which AWS bills: by our clock in the event, by AWS's clock for the bill."""
        ahead = self.ec2.clock_ahead
        ended_at = (instance.ended_at if instance is not None else None) or time.time() + ahead
        event = {"event": "released", "token": name, "at": ended_at - ahead, "cause": end.cause, "reason": end.reason}
        if instance is None:
            self.state.event_buffer.add(event)
            return
        self.reported.add(instance.id)
        launched_at = None if instance.launched_at is None else instance.launched_at - ahead
        self.state.event_buffer.add({**event, "native_id": instance.id, "launched_at": launched_at})
        self.state.offers.bill(name, instance, ended_at)
