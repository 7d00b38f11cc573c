"""The site of kind ``ssh``: machines that are there anyway, each a location with a node agent."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lading.hooks.api_tunnel.address import execution_api
from lading.hooks.api_tunnel.direct import DirectTunnel
from lading.hooks.cleanup import leftovers
from lading.hooks.cleanup.cleaning import clean_files
from lading.hooks.files.atomic import visible
from lading.hooks.machines import introduction
from lading.hooks.machines.facts import RESIDENTS
from lading.hooks.machines.fixed_config import HostConfig, SSHConfig
from lading.hooks.machines.machine import Machine
from lading.hooks.polling.rounds import Rounds
from lading.hooks.site import Check, Cleaned, LocationState, Observation, Seen, Site, join
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.connect import connect
from lading.hooks.ssh.transport import Transport
from lading.scheduling.hints.machine_words import DEFAULT_OS
from lading.scheduling.plan import Location
from lading.scheduling.resources import NOT_KNOWN, Resources
from lading.scheduling.units import format_resources, format_time

log = logging.getLogger(__name__)

# How long the first look waits for answers, so that who only looks once knows what there is; later ones do not,
# seconds.
FIRST_ANSWER = 10.0
SECONDS_FOR_OTHERS = 2.0
# A machine whose answer takes longer is given no jobs meanwhile, seconds.
SECONDS_UNTIL_LATE = 20.0
NO_ANSWER = "it has not answered yet, so what it has is not known"


@dataclass(slots=True)
class Connection:
    """A machine, and the thread that talks to it."""

    machine: Machine
    rounds: Rounds

    @property
    def name(self) -> str:
        return self.machine.host.ssh_conn_id

    @property
    def trouble(self) -> str | None:
        """Why it is not reached; None: it is."""
        if self.rounds.trouble is None and self.machine.is_loaded:
            under_way = self.rounds.under_way_since
            is_late = under_way is not None and time.monotonic() - under_way > SECONDS_UNTIL_LATE
            return f"it has not answered for {SECONDS_UNTIL_LATE:.0f} s" if is_late else None
        return self.rounds.trouble or NO_ANSWER

    def silence(self, now: float) -> float:
        """For how many seconds it has not answered, 0 when there is no trouble; what it refuses is an answer."""
        return 0.0 if self.trouble is None else now - self.machine.reached_at


class FixedSite(Site[SSHConfig]):
    """Machines behind SSH."""

    kind = "ssh"
    config_model = SSHConfig

    def __init__(self, name: str, config: SSHConfig, folder: Path) -> None:
        super().__init__(name, config, folder)
        self.is_trial = False
        self._first_answer = FIRST_ANSWER
        self._is_closed = False

    @cached_property
    def connections(self) -> dict[str, Connection]:
        """The machines by the names of their locations."""
        from airflow.configuration import conf

        logs = Path(conf.get("logging", "base_log_folder"))
        return {host.ssh_conn_id: self._reach(host, logs) for host in self.config.hosts}

    def _reach(self, host: HostConfig, logs: Path) -> Connection:
        transport, api = self.connect(host), execution_api(self.config.api_url)
        machine = Machine(self.name, self.config, host, transport, api, self.folder / host.ssh_conn_id, logs)
        tunnel = None
        if self.config.api == "tunnel":
            tunnel = DirectTunnel(transport, api, file=f"{machine.root}/api_address")
        rounds = Rounds(f"{self.name}-{host.ssh_conn_id}", machine, tunnel, machine.spool)
        return Connection(machine, rounds)

    def connect(self, host: HostConfig) -> Transport:
        """The way to a machine."""
        return connect(host.ssh_conn_id, setup=self.config.login_setup)

    @classmethod
    def exclusive(cls, config: SSHConfig) -> Mapping[str, str]:
        return {host.ssh_conn_id: f"SSH connection {host.ssh_conn_id!r}" for host in config.hosts}

    @property
    def arch(self) -> str:
        return self.config.arch

    def potential(self) -> list[Location]:
        return [self._location(host, self.connections[host.ssh_conn_id].machine) for host in self.config.hosts]

    def observe(self) -> Observation:
        if not self._is_closed:
            for each in self.connections.values():
                each.rounds.start()
        self._await_first_answers()
        now = time.monotonic()
        deadline = self.config.absence_deadline
        if not any(each.machine.is_loaded or each.silence(now) > deadline for each in self.connections.values()):
            troubles = (f"{each.name}: {each.trouble}" for each in self.connections.values())
            raise OSError("; ".join(troubles))
        seen, away = [], []
        for each in self.connections.values():
            if each.silence(now) > deadline:
                away.append(
                    f"{each.name} has not been reached for {format_time(self.config.absence_deadline)}, so its "
                    f"jobs count as lost: {each.trouble}"
                )
            else:
                seen.append(self._seen(each))
        unread = [(each, each.machine.event_buffer.unread()) for each in self.connections.values()]

        def acknowledge() -> None:
            for each, events in unread:
                each.machine.acknowledge(len(events))

        return Observation(seen, [event for _, events in unread for event in events], acknowledge, note=join(*away))

    def _await_first_answers(self) -> None:
        """Wait until some machine has answered, and a moment longer for the others."""
        end = time.monotonic() + self._first_answer
        self._first_answer = 0.0
        rounds = [each.rounds for each in self.connections.values()]
        while time.monotonic() < end:
            answered = [each.answered_within(0.0) for each in rounds]
            if all(answered):
                return
            if any(answered):
                end = min(end, time.monotonic() + SECONDS_FOR_OTHERS)
            time.sleep(0.02)

    def _seen(self, each: Connection) -> Seen:
        machine, trouble = each.machine, each.trouble
        note = join(trouble or machine.note, machine.rejected.note)
        state = LocationState.UP if trouble is None and machine.note is None else LocationState.UNREACHABLE
        if trouble is None and machine.drains:
            state = LocationState.DRAINING
        known = machine.tracker.known() if trouble is None and not machine.is_behind else None
        node = machine.facts.host if machine.facts is not None else None
        return Seen(self._location(machine.host, machine), state, known, note, node=node)

    def _location(self, host: HostConfig, machine: Machine) -> Location:
        capacity = machine.facts.capacity if machine.facts is not None else None
        if capacity is None:
            said = {name: amount for name, amount in host.share.items() if amount is not None}
            capacity = Resources(**{**{name: getattr(NOT_KNOWN, name) for name in host.share}, **said})
        return Location(
            host.ssh_conn_id,
            capacity,
            instance_type=host.instance_type,
            usd_per_hour=host.usd_per_hour,
            capacity_type=host.capacity_type,
            arch=machine.facts.arch if machine.facts is not None else None,
            os=machine.facts.os if machine.facts is not None else DEFAULT_OS,
            features=frozenset((*host.features, *host.properties)),
            site=self.name,
        )

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, here in envelopes.items():
            if (each := self.connections.get(name)) is not None:
                limits = self.config.memory_limit, self.config.time_limit
                each.machine.tracker.give([envelope.limited(*limits) for envelope in here])
                each.rounds.wake()

    def cancel(self, messages: Mapping[str, Mapping[str, str]]) -> None:
        for name, asked in messages.items():
            each = self.connections.get(name)
            if each is not None and asked and each.machine.tracker.ask_to_cancel(asked):
                each.rounds.wake()

    # -- the end

    def close(self, how: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._is_closed = True
        if "connections" not in self.__dict__:
            return
        with ThreadPoolExecutor(len(self.connections)) as pool:
            list(pool.map(lambda each: self._let_go(each, how, deadline), self.connections.values()))

    def _let_go(self, each: Connection, how: str, deadline: float) -> None:
        try:
            each.rounds.stop(max(0.0, deadline - time.monotonic()))
            if each.rounds.is_alive:
                raise OSError("it does not answer; its jobs go on")
            if how != "hand_over" and each.machine.is_loaded:
                self._end_agent(each.machine, how, deadline)
            if self.is_trial:
                parent, _, name = each.machine.root.rpartition("/")
                each.machine.transport.remove(parent, [name])
                each.machine.transport.run([["rmdir", parent]])  # the last one of those that share it
        except OSError as error:
            log.warning("Machine %r of site %r could not be let go of in order: %s", each.name, self.name, error)
        finally:
            if each.rounds.tunnel is not None:
                each.rounds.tunnel.close()
            each.machine.leave()
            each.machine.transport.close()

    @staticmethod
    def _end_agent(machine: Machine, how: str, deadline: float) -> None:
        """Let the agent end: with its jobs, or when those that run have ended."""
        machine.shut_down("drain" if how == "leave" else "cancel")
        machine.round()
        while how == "cancel" and (machine.lives or machine.tracker.is_busy) and time.monotonic() < deadline:
            time.sleep(0.2)
            machine.round()

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
        """Whether a machine is reached, and has Lading."""
        what = f"machine {host.ssh_conn_id}"
        transport = self.connect(host)
        asked_at = time.time()
        try:
            command = introduction.command(self.config, host, execution_api(self.config.api_url), look=True)
            (answer,) = transport.exchange([command])
            found = introduction.read(answer, asked_at, time.time())
        except TransportError as error:
            return Check(what, False, str(error))
        finally:
            transport.close()
        ahead = (
            f"; its clock is {found.clock_ahead:+.0f} s from ours, which is allowed for" if found.clock_ahead else ""
        )
        facts = found.facts
        place = f"{host.ssh_conn_id!r} of site {self.name!r}"
        if (words := RESIDENTS.enter(place, facts.boot_id, is_bounded=host.is_bounded)) is not None:
            return Check(what, False, words)
        words = f"{facts.host}, {facts.os} {facts.arch}: {format_resources(facts.capacity)}{ahead}"
        return Check(what, True, words, warns=bool(found.clock_ahead))

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[Cleaned]:
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
                yield Cleaned(f"machine {host.ssh_conn_id}", 0, 0.0, str(error))
            finally:
                transport.close()
            rejected = self.folder / host.ssh_conn_id / "rejected"
            if rejected.is_dir():
                yield from clean_files("rejected files", visible(rejected), older_than=older_than, dry_run=dry_run)
