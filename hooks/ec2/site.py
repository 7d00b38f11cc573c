"""The site of kind ``ec2``: instances launched in AWS, each a location with a node agent."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from lading.hooks.ec2 import account, boot, permissions
from lading.hooks.ec2.client import EC2, EC2Error
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.fleet import EC2Fleet
from lading.hooks.ec2.identity import Identity, identities
from lading.hooks.ec2.life import End
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.offers import kept_roots, launchable
from lading.hooks.ec2.prices import read_file
from lading.hooks.machines.connection import Connection
from lading.hooks.polling.event_buffer import EventBuffer
from lading.hooks.polling.rounds import Rounds
from lading.hooks.site import (
    Check,
    ElasticSite,
    Holding,
    ListedInstance,
    Observation,
    Order,
    StagingArea,
    Tenancy,
    join,
)
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.accounting import billing
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import ANY_ARCH
from lading.scheduling.model.reasons import Reason, because

STOPPED = because("airflow_stopped")


class EC2Site(ElasticSite[EC2Config], Holding):
    kind = "ec2"
    holds = True
    config_model = EC2Config
    trial_costs = True
    limits = EC2Limits()

    def __init__(self, name: str, config: EC2Config, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.scope = name
        # Seconds that the first poll waits, so that a single poll finds the existing machines; later polls do not wait.
        self._first_answer = 10.0
        self._is_closed = False

    @cached_property
    def fleet(self) -> EC2Fleet:
        here = self.config.deployment
        logs, ours = here.log_folder(), identities(here.identity().secret)
        api, ec2 = self.config.execution_api, EC2(self.config, limits=self.limits)
        return EC2Fleet(self.name, self.scope, self.config, ec2, ours, api, self.folder, logs, self.limits, self.notify)

    @cached_property
    def rounds(self) -> Rounds:
        """The thread that describes and terminates instances."""
        return Rounds(self.name, self.fleet, finished=self._note_round)

    @cached_property
    def launch_rounds(self) -> Rounds:
        return Rounds(f"{self.name}-launches", self.fleet.launcher, finished=self._note_round)

    @cached_property
    def price_rounds(self) -> Rounds:
        return Rounds(f"{self.name}-prices", self.fleet.offers)

    def _note_round(self) -> None:
        if self.fleet.event_buffer.unread():
            self.notify()

    @classmethod
    def refuse(cls, config: EC2Config) -> None:
        size = len(boot.user_data(config, Identity.from_secret("any"), "L" * 15).encode())
        if size > boot.MOST_USER_DATA:
            raise ValueError(
                f"boot_script makes the user data {size:,} bytes long; valid: at most {boot.MOST_USER_DATA:,}: let it "
                "download what it runs, or use an image"
            )

    @property
    def arch(self) -> str:
        asked = self.config.default_arch
        return asked if asked == ANY_ARCH or asked in self.config.ami else next(iter(self.config.ami))

    def trial(self, folder: Path) -> EC2Site:
        config = self.config.model_copy(update={"terminate_on_shutdown": True})
        site = type(self)(self.name, config, folder / "spool")
        site.scope = f"{self.name}/{folder.name}"  # so that it does not touch the site's machines
        return site

    def potential(self) -> list[Location]:
        return launchable(self.config, kept_roots(self.folder, self.config))

    def observe(self) -> Observation:
        if not self._is_closed:
            for each in (self.rounds, self.launch_rounds, self.price_rounds):
                each.start()
        deadline = time.monotonic() + self._first_answer
        self.rounds.answered_within(self._first_answer)
        self.price_rounds.answered_within(max(0.0, deadline - time.monotonic()))
        self._first_answer = 0.0
        fleet = self.fleet
        if not fleet.is_loaded:
            raise self.rounds.error("AWS has not answered yet")
        fleet.promote_ready()
        buffers = [fleet.event_buffer, *(each.machine.event_buffer for each in fleet.connections)]
        seen = [each.seen(self.name) for each in list(fleet.machines.values())]
        unread = [(each, each.unread()) for each in buffers]
        machines = {id(each.machine.event_buffer): each for each in fleet.connections}

        def acknowledge() -> None:
            for each, events in unread:
                self._acknowledge(each, machines.get(id(each)), len(events))
            fleet.forget_left()

        if fleet.offers.bills.is_new:
            self.price_rounds.wake()
        shortages = fleet.launcher.shortages
        troubles = dict.fromkeys([self.rounds.trouble, self.launch_rounds.trouble, self.price_rounds.trouble])
        reasons = [each.sentence for each in (shortages.held, shortages.paused) if each is not None]
        note = join(*troubles, *reasons, shortages.closed)
        note = join(
            note, fleet.registration.strangers, fleet.termination.refused, fleet.offers.note, fleet.cost_tags.refused
        )
        events = [event for _, events in unread for event in events]
        market = fleet.offers.market(shortages, sum(each.has_answered for each in list(fleet.machines.values())))
        return Observation(seen, events, acknowledge, market, note=note)

    @staticmethod
    def _acknowledge(buffer: EventBuffer, connection: Connection | None, count: int) -> None:
        if connection is not None:
            connection.machine.acknowledge(count)
        else:
            buffer.acknowledge(count)

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, here in envelopes.items():
            if (connection := self._connection(name)) is None:
                for each in here:
                    event = {"event": "returned", "token": each.token, "location": name}
                    self.fleet.event_buffer.add({**event, "reason": because("machine_gone")})
                continue
            connection.machine.tracker.give([envelope.at(self.config) for envelope in here])
            connection.rounds.wake()

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        for name, asked in reasons.items():
            connection = self._connection(name)
            if connection is not None and asked and connection.machine.tracker.ask_to_cancel(asked):
                connection.rounds.wake()

    def launch(self, orders: Sequence[Order]) -> None:
        self.fleet.order(orders)
        self.launch_rounds.wake()
        self.rounds.wake()

    def release(self, reasons: Mapping[str, Reason]) -> None:
        self.fleet.release(reasons)
        self.rounds.wake()

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        for name, asked in tokens.items():
            if (connection := self._connection(name)) is not None and asked:
                connection.machine.tracker.ask_back(asked)
                connection.rounds.wake()

    def note_tenants(self, tenants: Mapping[str, Tenancy]) -> None:
        self.fleet.cost_tags.tenants = tenants

    def staging_area(self, location: str) -> StagingArea:
        if (connection := self._connection(location)) is None:
            raise LookupError(location)
        return connection.staging_area()

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        for name, here in holds.items():
            if (connection := self._connection(name)) is not None:
                connection.hold(here)

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        for name, here in tokens.items():
            if (connection := self._connection(name)) is not None:
                connection.drop(here)

    def _connection(self, name: str) -> Connection | None:
        machine = self.fleet.machines.get(name)
        return machine.connection if machine is not None else None

    # -- requests from users

    def priced(self) -> MachineMarket | None:
        fleet = self.fleet
        fleet.offers.round()
        return fleet.offers.market(fleet.launcher.shortages)

    def listed_instances(self) -> list[ListedInstance]:
        ours = [each.deployment for each in self.fleet.identities]
        there = self.fleet.ec2.describe({f"tag:{boot.DEPLOYMENT}": ours})
        ahead = self.fleet.ec2.clock_ahead
        return [
            ListedInstance(
                each.tags.get(boot.SITE, ""),
                boot.named(each.tags, each.index) or each.id,
                each.id,
                each.state,
                each.kind,
                each.zone,
                each.capacity_type,
                boot.price(each.tags),
                None if each.launched_at is None else each.launched_at - ahead,
            )
            for each in there
            if each.state not in boot.ENDED and boot.is_ours(each, self.fleet.identities)
        ]

    def end(self, ids: Sequence[str]) -> Mapping[str, float]:
        ec2 = self.fleet.ec2
        found = ec2.describe({"instance-id": ids})
        if others := sorted(each.id for each in found if not boot.is_ours(each, self.fleet.identities)):
            raise OSError(
                f"{', '.join(others)}: not launched by this deployment, so not terminated; terminate those that are "
                "yours in AWS"
            )
        for error in ec2.terminate([each.id for each in found]).values():
            raise error
        with suppress(EC2Error):  # they are terminated in any case
            found = ec2.describe({"instance-id": ids})
        return {each.id: each.ended_at - ec2.clock_ahead for each in found if each.ended_at is not None}

    def checks(self) -> Iterator[Check]:
        if self.config.aws_conn_id:
            yield from account.connection_checks(self.config.deployment, self.config.aws_conn_id)
        if self.config.prices is not None:
            try:
                read_file(self.config.prices)
            except ValueError as error:
                yield Check("prices", False, str(error))
                return
        offers = self.fleet.offers
        yield from permissions.checks(self.config, self.fleet.ec2, self.fleet.identities, offers.asked)
        yield from account.checks(offers)

    def bootstrap(self, requirements: Sequence[str]) -> str:
        return boot.environment(self.config, requirements)

    def bill(self) -> str | None:
        found = []
        for machine in list(self.fleet.machines.values()):
            if (since := machine.billed_from) is not None and machine.usd_per_hour is not None:
                kind, zone, capacity_type = machine.offering
                seconds = time.time() + machine.clock_ahead - since
                usd = billing.cost(machine.usd_per_hour, 0.0, max(seconds, billing.LEAST_SECONDS))
                found.append(f"a {kind} ({capacity_type}, {zone}) ran for {seconds:.0f} s and cost {usd:.4f} USD")
        return "; ".join(found) or None

    def policy(self) -> str | None:
        return json.dumps(permissions.found_policy(self.config, self.fleet.ec2, self.fleet.identities), indent=2)

    # -- shutdown

    def close(self, how: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._is_closed = True
        if "fleet" not in self.__dict__ or self.rounds.stopping:
            return
        if how != "hand_over":
            for each in list(self.fleet.machines.values()):
                self._end(each, how)
            while self._is_ending(how) and time.monotonic() < deadline:
                self.rounds.wake()
                time.sleep(0.2)
        self.price_rounds.stop(0.0)
        for rounds in (self.launch_rounds, self.rounds):
            rounds.stop(max(0.0, deadline - time.monotonic()))
        connections = [each.connection for each in self.fleet.machines.values() if each.connection is not None]
        with ThreadPoolExecutor(max_workers=32) as pool:
            list(pool.map(lambda each: each.let_go("hand_over", deadline), connections))

    def _end(self, machine: EC2Machine, how: str) -> None:
        """Release a machine, with or without cancelling its jobs; or only cancel its jobs, if machines are kept."""
        if self.config.terminate_on_shutdown:
            machine.release = machine.release or STOPPED
            if how == "cancel":
                machine.termination_reason = machine.termination_reason or End("cancelled", machine.release)
        elif how == "cancel" and machine.connection is not None:
            tracker = machine.connection.machine.tracker
            tracker.ask_to_cancel(dict.fromkeys(tracker.known(), STOPPED))
            machine.connection.rounds.wake()

    def _is_ending(self, how: str) -> bool:
        """Check whether the release or cancellation is still in progress; jobs left running are not waited for."""
        machines = list(self.fleet.machines.values())
        trackers = [each.connection.machine.tracker for each in machines if each.connection is not None]
        if not self.config.terminate_on_shutdown:
            return how == "cancel" and any(each.is_busy for each in trackers)
        return len(machines) > (sum(each.is_busy for each in trackers) if how == "leave" else 0)
