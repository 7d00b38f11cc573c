"""The site of kind ``ssh``: existing machines, each a location with a node agent."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from lading.hooks.cleanup import leftovers
from lading.hooks.cleanup.cleaning import clean_files
from lading.hooks.files.owner import Owner
from lading.hooks.files.safe_files import visible
from lading.hooks.machines import introduction
from lading.hooks.machines.connection import Connection
from lading.hooks.machines.fixed_config import HostConfig, SSHConfig
from lading.hooks.machines.introduction import RESIDENTS
from lading.hooks.machines.machine import Machine
from lading.hooks.site import Check, Holding, Observation, RemovedLeftovers, Site, StagingArea, join
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.connect import connect
from lading.hooks.ssh.transport import Transport
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import format_resources
from lading.scheduling.text.units import format_time

log = logging.getLogger(__name__)


class FixedSite(Site[SSHConfig], Holding):
    kind = "ssh"
    holds = True
    config_model = SSHConfig

    def __init__(self, name: str, config: SSHConfig, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.is_trial = False
        # Seconds that the first look waits, so that a single look finds all machines; later looks do not wait.
        self._first_answer = 10.0
        self._is_closed = False

    @cached_property
    def connections(self) -> dict[str, Connection]:
        """The machines by the names of their locations."""
        logs = self.config.deployment.log_folder()
        return {host.ssh_conn_id: self._reach(host, logs) for host in self.config.hosts}

    def _reach(self, host: HostConfig, logs: Path) -> Connection:
        transport, api = self.connect(host), self.config.execution_api
        folder = self.folder / host.ssh_conn_id
        machine = Machine(
            self.name,
            self.config,
            host,
            transport,
            api,
            folder,
            logs,
            Owner.from_key(*self.config.deployment.identity()),
        )
        return Connection(self.name, machine, self.notify)

    def connect(self, host: HostConfig) -> Transport:
        return connect(host.ssh_conn_id, setup=self.config.login_setup, deployment=self.config.deployment)

    @classmethod
    def exclusive(cls, config: SSHConfig) -> Mapping[str, str]:
        return {host.ssh_conn_id: f"SSH connection {host.ssh_conn_id!r}" for host in config.hosts}

    @property
    def arch(self) -> str:
        return self.config.default_arch

    def potential(self) -> list[Location]:
        return [self.connections[host.ssh_conn_id].location(self.name) for host in self.config.hosts]

    def observe(self) -> Observation:
        if not self._is_closed:
            for each in self.connections.values():
                each.rounds.start()
        self._await_first_answers()
        now = time.monotonic()
        deadline = self.config.lost_after
        if not any(each.machine.is_loaded or each.silence(now) > deadline for each in self.connections.values()):
            troubles = (f"{each.name}: {each.trouble}" for each in self.connections.values())
            raise OSError("; ".join(troubles))
        seen, away = [], []
        for connection in self.connections.values():
            if connection.silence(now) > deadline:
                away.append(
                    f"{connection.name} has not been reached for {format_time(self.config.lost_after)}, so its "
                    f"jobs count as lost: {connection.trouble}"
                )
            else:
                seen.append(connection.seen(self.name))
        unread = [(each, each.machine.event_buffer.unread()) for each in self.connections.values()]

        def acknowledge() -> None:
            for each, events in unread:
                each.machine.acknowledge(len(events))

        return Observation(seen, [event for _, events in unread for event in events], acknowledge, note=join(*away))

    def _await_first_answers(self) -> None:
        """Wait until a machine has answered, and a moment longer for the others."""
        end = time.monotonic() + self._first_answer
        self._first_answer = 0.0
        rounds = [each.rounds for each in self.connections.values()]
        while time.monotonic() < end:
            answered = [each.answered_within(0.0) for each in rounds]
            if all(answered):
                return
            if any(answered):
                # Once one machine has answered, the others get two seconds.
                end = min(end, time.monotonic() + 2.0)
            time.sleep(0.02)

    def staging_area(self, location: str) -> StagingArea:
        return self.connections[location].staging_area()

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, here in envelopes.items():
            if (each := self.connections.get(name)) is not None:
                each.machine.tracker.give([envelope.at(self.config) for envelope in here])
                each.rounds.wake()

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        for name, asked in reasons.items():
            each = self.connections.get(name)
            if each is not None and asked and each.machine.tracker.ask_to_cancel(asked):
                each.rounds.wake()

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        for name, asked in tokens.items():
            if (each := self.connections.get(name)) is not None and asked:
                each.machine.tracker.ask_back(asked)
                each.rounds.wake()

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        for name, here in holds.items():
            if (connection := self.connections.get(name)) is not None:
                connection.hold(here)

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        for name, here in tokens.items():
            if (connection := self.connections.get(name)) is not None:
                connection.drop(here)

    # -- closing

    def close(self, how: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._is_closed = True
        if "connections" not in self.__dict__:
            return
        with ThreadPoolExecutor(len(self.connections)) as pool:
            list(pool.map(lambda each: each.let_go(how, deadline, is_trial=self.is_trial), self.connections.values()))

    # -- checks and trials

    def parts(self) -> Mapping[str, Site[SSHConfig]]:
        if len(self.config.hosts) == 1:
            return super().parts()
        configs = {host.ssh_conn_id: self.config.model_copy(update={"hosts": (host,)}) for host in self.config.hosts}
        return {
            f"site {self.name}: machine {name}": type(self)(self.name, config, self.folder)
            for name, config in configs.items()
        }

    def trial(self, folder: Path) -> Site[SSHConfig]:
        config = self.config.model_copy(update={"work_dir": f"{self.config.work_dir}/{folder.name}"})
        site = type(self)(self.name, config, folder / "spool")
        site.is_trial = True
        return site

    def checks(self) -> Iterator[Check]:
        for host in self.config.hosts:
            yield self._check(host)

    def _check(self, host: HostConfig) -> Check:
        what = f"machine {host.ssh_conn_id}"
        transport = self.connect(host)
        api = self.config.execution_api
        spool = introduction.spool_connection(transport, self.config, host, api)
        try:
            found = introduction.introduce(
                spool, self.config, host, api, Owner.from_key(*self.config.deployment.identity()), look=True
            )
        except TransportError as error:
            return Check(what, False, str(error))
        finally:
            spool.close()
            transport.close()
        ahead = f"; its clock differs by {found.clock_ahead:+.0f} s, which Lading corrects" if found.clock_ahead else ""
        facts = found.facts
        place = f"{host.ssh_conn_id!r} of site {self.name!r}"
        if (message := RESIDENTS.enter(place, facts.boot_id, is_bounded=host.is_bounded)) is not None:
            return Check(what, False, message)
        message = f"{facts.host}, {facts.os} {facts.arch}: {format_resources(facts.capacity)}{ahead}"
        if found.note is not None:
            message += f"; {found.note}"
        return Check(what, True, message, warns=bool(found.clock_ahead or found.note))

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[RemovedLeftovers]:
        for host in self.config.hosts:
            transport = self.connect(host)
            try:
                for root, sorts in (
                    (self.config.root(host), leftovers.MACHINE),
                    (self.config.work_dir, leftovers.TRIALS),
                ):
                    step = leftovers.sweep(root, sorts, keep, older_than, dry_run=dry_run)
                    (answer,) = transport.exchange([step], leftovers.LIMIT + 60.0)
                    yield from leftovers.swept(answer)
            except TransportError as error:  # the others are cleaned
                yield RemovedLeftovers(f"machine {host.ssh_conn_id}", 0, 0.0, str(error))
            finally:
                transport.close()
            rejected = self.folder / host.ssh_conn_id / "rejected"
            if rejected.is_dir():
                yield from clean_files("rejected files", visible(rejected), older_than=older_than, dry_run=dry_run)
