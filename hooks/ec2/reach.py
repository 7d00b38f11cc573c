"""Brings a booting machine to the point where it takes jobs: probes SSH, connects, and checks that it is ready."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.fleet_state import FleetPart, FleetState
from lading.hooks.ec2.identity import Identity, matching
from lading.hooks.ec2.life import LifePhase
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.machines.connection import Connection
from lading.hooks.machines.fixed_config import HostConfig
from lading.hooks.machines.machine import Machine
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.transport import Server
from lading.scheduling.model.quotas import is_burstable
from lading.scheduling.model.reasons import because


class Readiness(FleetPart):
    """Connects to machines that have booted, and lets them take jobs once they are ready."""

    def __init__(self, state: FleetState, connector: Connector) -> None:
        super().__init__(state)
        self.connector = connector

    def connect(self) -> None:
        if self.machines:
            prepare()
        waiting = {}
        for machine in list(self.machines.values()):
            is_waiting = machine.phase is LifePhase.BOOTING and machine.connection is None
            if is_waiting and (host := self.address(machine)):
                waiting[machine.name] = host
        config = self.state.config
        port = config.ssh_port
        places = {name: (host, port) for name, host in waiting.items()}
        up = waiting.keys() if config.jump_host else answering(places)
        for name, host in waiting.items():
            machine = self.machines[name]
            if name not in up:
                machine.obstacle = because("no_ssh_yet", host=host, port=port)
                continue
            try:
                machine.connection = self.connector.connect(machine, host)
            except (ValueError, OSError) as error:
                machine.obstacle = because("booting", text=str(error))
                self.state.complaints.begin(f"Cannot connect to {machine.name}", error)
                continue
            machine.connection.rounds.start()

    def address(self, machine: EC2Machine) -> str | None:
        """Return the address of a machine; None: EC2 has not reported it yet."""
        if machine.instance is None:
            return None
        return machine.instance.public if self.state.config.address == "public" else machine.instance.private

    def promote_ready(self) -> None:
        with self.state.lock:
            if [machine for machine in self.machines.values() if machine.becomes_ready()]:
                self.state.shortages.answered()


def answering(places: Mapping[str, tuple[str, int]], patience: float = 0.5) -> set[str]:  # the next round tries again
    """Return the names of the places that accept a connection.

    :param places: address and port, by name
    :param patience: seconds to wait for all of them together
    """
    found, pending, poll = set(), {}, select.poll()
    for name, place in places.items():
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        error = made.connect_ex(place)
        if error in (0, errno.EINPROGRESS):
            pending[made.fileno()] = name, made
            poll.register(made, select.POLLOUT)
        else:
            made.close()
    end = time.monotonic() + patience
    while pending and (left := end - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            name, made = pending.pop(descriptor)
            poll.unregister(descriptor)
            if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.add(name)
            made.close()
    for _, made in pending.values():
        made.close()
    return found


def prepare() -> None:
    """Import the SSH modules while the first machines boot, because it takes a second."""
    with suppress(ImportError):  # connecting reports what is missing
        for each in ("airflow.providers.ssh.hooks.ssh", "lading.hooks.ssh.paramiko_transport"):
            import_module(each)


@dataclass(frozen=True, slots=True)
class Connector:
    """Creates the connections to the machines of a site.

    :param identities: our current identity, then former ones
    :param api: URL at which jobs reach Airflow's execution API
    :param folder: local folder for the state of machines; ``logs``: Airflow's log folder
    :param notify: called when a machine begins or ceases to take jobs
    """

    site: str
    config: EC2Config
    identities: Sequence[Identity]
    api: str
    folder: Path
    logs: Path
    notify: Callable[[], None] = lambda: None

    def connect(self, ec2_machine: EC2Machine, host: str) -> Connection:
        """Create the connection to a machine at an address, without starting its rounds.

        :raises ValueError: the jump host or the address is not valid
        """
        from lading.hooks.ssh.paramiko_transport import SSHTransport  # not needed to read the sites file

        config, identity = self.config, matching(self.identities, ec2_machine.deployment)
        assert identity is not None, "EC2 was asked only for our deployments"
        kind, _, capacity_type = ec2_machine.offering
        server = Server(
            ec2_machine.name,
            host,
            config.ssh_port,
            config.user,
            identity.user_key.private,
            identity.host_key(ec2_machine.token).public,
            config.jump_host,
        )
        transport = SSHTransport(
            server,
            setup=config.login_setup,
            backoff=Backoff(longest=8.0),  # seconds between two logins to a booting machine
            deployment=config.deployment,
        )
        table: dict[str, object] = {
            "ssh_conn_id": ec2_machine.name,
            "instance_type": kind,
            "capacity_type": capacity_type,
        }
        if is_burstable(kind) and ec2_machine.capacity.cpus > 0:  # it reports more CPUs than it can sustain
            table |= {"cpus": ec2_machine.capacity.cpus}
        host_table = HostConfig.model_validate({**table, "usd_per_hour": ec2_machine.usd_per_hour or 0.0})
        machine = Machine(self.site, config, host_table, transport, self.api, self.folder / ec2_machine.name, self.logs)
        return Connection(self.site, machine, self.notify)
