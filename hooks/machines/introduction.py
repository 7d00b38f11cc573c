"""The first exchange with a machine: it reports its resources, and its node agent is started.

The program on the other side is ``python -m lading.executors.host``, which then serves the machine's spool.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lading.hooks.api_tunnel import address
from lading.hooks.files.json_model import JsonModel, Text, checked
from lading.hooks.files.owner import Owner
from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically
from lading.hooks.files.version import VERSION
from lading.hooks.machines.fixed_config import HostConfig, MachinesConfig
from lading.hooks.polling.outside_clock import seconds_ahead
from lading.hooks.spool import agent_archive
from lading.hooks.spool.connection import SpoolConnection
from lading.hooks.spool.job_files import Amounts
from lading.hooks.spool.values import Date, Name
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.session import SessionEnded
from lading.scheduling.model.light_dataclasses import dataclass, field
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.nesting import parse_json

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

MODULE = "lading.executors.host"

# Required fields of an answer that does not refuse.
NEEDED = ("host", "boot_id", "now", "arch", "os", "capacity")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostAnswer(JsonModel):
    version: Name
    refused: Text = ""
    host: Name = ""
    boot_id: Name = ""
    now: Date = 0
    arch: Name = ""
    os: Name = ""
    capacity: Amounts = field(default_factory=Amounts)
    lives: bool = False
    drains: bool = False
    note: Text | None = None


class MachineRefused(TransportError):
    """The machine is reachable but not usable, for example with another version of Lading. Its jobs keep running."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A machine's answer to the first request.

    :param clock_ahead: seconds by which its clock is ahead of ours; 0: they agree
    :param lives: whether its agent is running
    :param drains: whether that agent has another version or setup than required, so that it takes no jobs
    :param note: what is wrong with the agent
    """

    facts: MachineFacts
    clock_ahead: float
    lives: bool
    drains: bool
    note: str | None


def introduce(
    spool: SpoolConnection,
    config: MachinesConfig,
    host: HostConfig,
    api: str,
    owner: Owner | None,
    *,
    look: bool = False,
) -> Introduction:
    """Ask a machine for its resources, and have its node agent started.

    The connection to the program that serves its spool is kept.

    :param api: URL of Airflow's execution API
    :param owner: the deployment that Lading's folder on the machine is to belong to; None: the folder is not marked
    :param look: only query the resources, without starting an agent
    :raises MachineRefused: the machine cannot be used; with its explanation
    :raises TransportError: it has not answered
    """
    asked = wanted(config, host, api, owner, look=look)
    try:
        try:
            return _asked(spool, config, host, asked)
        except SessionEnded:
            if agent_archive.brought(config.deployment) is None:
                raise
        # The agent archive may be all that is missing.
        agent_archive.bring(spool.transport, config.python, config.root(host), spool.setup)
        return _asked(spool, config, host, asked)
    except SessionEnded as error:
        text = f"Lading does not answer on the machine: {' '.join(str(error).split())}"
        if "No module named 'lading" in text and agent_archive.brought(config.deployment) is None:
            text += f"; install the same version for {config.python}, next to Airflow's Task SDK: pip install "
            text += f"airflow-lading=={VERSION}"
        raise MachineRefused(text) from error
    except agent_archive.AgentNotBrought as error:
        raise MachineRefused(str(error)) from error


def _asked(spool: SpoolConnection, config: MachinesConfig, host: HostConfig, asked: Mapping[str, Any]) -> Introduction:
    """Make one attempt to introduce the machine.

    :raises SessionEnded: Lading does not start on the machine
    :raises TransportError: it has not answered
    """
    root = config.root(host)
    _, *options = agent_archive.command(config.deployment, config.python, root, MODULE)
    asked_at = time.time()
    # Including a start of Python from a slow file server.
    line = spool.begin([*options, f"{root}/spool"], json.dumps(asked), asked["mark"], 60.0)
    return read_introduction(line, asked_at, time.time())


def wanted(config: MachinesConfig, host: HostConfig, api: str, owner: Owner | None, *, look: bool) -> dict[str, Any]:
    """Return the request; the parameters are those of :func:`introduce`."""
    root = config.root(host)
    return {
        "version": VERSION,
        "mark": f"lading-host-{secrets.token_hex(8)} ",  # distinguishes the answer from a login's noise
        "share": host.share,
        "reserve": {"cpus": config.reserve_cpus, "memory": config.reserve_memory},
        "patience": config.patience,
        "kill_grace": config.kill_grace,
        "idle_seconds": config.agent_idle_seconds,
        "switch_off": config.switch_off,
        "scratch": config.scratch,
        "keep_failed": config.keep_failed_scratch,
        "is_spot": config.reads_notices and host.capacity_type == SPOT,
        "stamp": stamp(config, host, api),
        "logs": f"{root}/logs",
        "runner": config.deployment.runner_options(),
        "owner": None if owner is None else owner.to_json(),
        "look": look,
    }


def spool_connection(transport: Transport, config: MachinesConfig, host: HostConfig, api: str) -> SpoolConnection:
    """Return the connection to a machine's spool; ``api`` as in :func:`introduce`."""
    return SpoolConnection(transport, config.python, config.root(host), setup(config, host, api))


def setup(config: MachinesConfig, host: HostConfig, api: str) -> str:
    """Return the shell text that precedes Lading's own commands on a machine."""
    return "\n".join([*_environment(config, host, api), "umask 077"])


def stamp(config: MachinesConfig, host: HostConfig, api: str) -> str:
    """Return a hash of the version and setup of an agent, which shows whether a running one still has them."""
    found = agent_archive.brought(config.deployment)
    parts = [VERSION if found is None else found.digest, config.python, *_environment(config, host, api)]
    parts += config.deployment.runner_options()
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _environment(config: MachinesConfig, host: HostConfig, api: str) -> list[str]:
    file = f"{config.root(host)}/api_address" if config.needs_tunnel(api) else None
    return address.environment(config.agent_setup, api, file, config.deployment.heartbeat_timeout())


def read_introduction(line: str, asked_at: float, answered_at: float) -> Introduction:
    """Parse a machine's answer.

    :param line: without its mark
    :param asked_at: seconds since the epoch, by our clock; so is ``answered_at``
    :raises MachineRefused: the machine cannot be used; with its explanation
    :raises TransportError: the answer is not valid
    """
    try:
        found: dict[str, Any] = checked(HostAnswer, parse_json(line.encode(errors="replace")))
        if found.get("refused"):
            raise MachineRefused(found["refused"])
        if missing := [name for name in NEEDED if name not in found]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        capacity = Resources(**asdict(found["capacity"]))
    except ValueError as error:
        raise TransportError(f"the answer of Lading's program on the machine is not valid: {error}") from error
    return Introduction(
        MachineFacts(found["host"], found["boot_id"], found["arch"], found["os"], capacity),
        seconds_ahead(found["now"], asked_at, answered_at),
        found.get("lives", False),
        found.get("drains", False),
        found.get("note"),
    )


# The facts about a machine, and the file that keeps them over a restart of the controller.


@dataclass(frozen=True, kw_only=True, slots=True)
class FactsFile(JsonModel):
    host: Text
    boot_id: Text
    arch: Text
    os: Text
    capacity: Amounts


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts about a machine since its last boot.

    :param host: its name, as it reports it
    :param boot_id: of this boot
    :param arch: of its processors, as ``uname -m`` prints it
    :param os: as ``uname -s`` prints it, in lower case
    :param capacity: the resources that jobs can use
    """

    host: str
    boot_id: str
    arch: str
    os: str
    capacity: Resources


def load_facts(file: Path) -> MachineFacts | None:
    """Return the facts that an earlier process has saved; None: there are none."""
    with suppress(OSError, NotReadable, ValueError):
        found = checked(FactsFile, parse_json(read_regular(file, 2**16)))
        amounts = found.pop("capacity")
        return MachineFacts(**found, capacity=Resources(amounts.cpus, amounts.memory, amounts.disk, amounts.gpus))
    return None


def save_facts(file: Path, facts: MachineFacts) -> None:
    """Save the facts for the next controller.

    :raises OSError: the file cannot be written
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(facts)))


class Residents:
    """The machine that each place of this process leads to, so that no machine is filled twice.

    It can be called by the threads of all machines.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, tuple[str, bool]] = {}

    def enter(self, place: str, boot_id: str, *, is_bounded: bool) -> str | None:
        """Note which machine a place leads to; return why that is not allowed, or None.

        :param place: a site and its connection
        :param is_bounded: whether its table limits how much of the machine is used
        """
        with self._lock:
            for known_place, (its, bounded) in self._places.items():
                if known_place != place and its == boot_id and not (is_bounded and bounded):
                    return (
                        f"it is the same machine as {known_place}, so its resources would be used twice: keep one "
                        "of them, or give both `cpus` and `memory`"
                    )
            self._places[place] = boot_id, is_bounded
            return None

    def leave(self, place: str) -> None:
        with self._lock:
            self._places.pop(place, None)


RESIDENTS = Residents()
