"""What a machine reports about itself when it is asked for the first time, and how its node agent is started.

The other side is ``python -m lading.executors.host``, which begins the conversation with the machine's spool.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lading.hooks.api_tunnel import address
from lading.hooks.deployment import current
from lading.hooks.files.json_model import JsonModel, Text, checked, parsed
from lading.hooks.files.owner import Owner
from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically
from lading.hooks.files.version import VERSION
from lading.hooks.machines.fixed_config import HostConfig, MachinesConfig
from lading.hooks.polling.outside_clock import seconds_ahead
from lading.hooks.spool import agent_archive
from lading.hooks.spool.connection import SpoolConnection
from lading.hooks.spool.events import Amounts, Date, Name
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.session import SessionEnded
from lading.scheduling.machine_traits import SPOT
from lading.scheduling.resources import Resources

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

MODULE = "lading.executors.host"
# The command that starts the agent answers within this, Python on a slow file server included, seconds.
TIMEOUT = 60.0

# What an answer has unless the machine is refused.
NEEDED = ("host", "boot_id", "now", "arch", "os", "capacity")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostAnswer(JsonModel):
    """What the command answers."""

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
    """The machine is reached, but its Lading and ours do not go together, or it cannot be used. Its jobs run on."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """An answer to the first question.

    :param clock_ahead: seconds by which its clock is ahead of ours; 0: they agree
    :param lives: whether its agent lives
    :param drains: whether that is another one than is to be, which takes no jobs
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
    """Ask a machine what it has, have its node agent started, and keep the connection to the program that serves its
    spool.

    :param api: URL of Airflow's execution API
    :param owner: the deployment to which Lading's folder there is to belong; None: it is not marked
    :param look: whether no agent is to be started, and nothing else asked
    :raises MachineRefused: it cannot be used; with what it said
    :raises TransportError: it has not answered
    """
    asked = wanted(config, host, api, owner, look=look)
    try:
        try:
            return _asked(spool, config, host, asked)
        except SessionEnded:
            if agent_archive.brought() is None:
                raise
        # It may be all that is missing.
        agent_archive.bring(spool.transport, config.python, config.root(host), spool.setup)
        return _asked(spool, config, host, asked)
    except SessionEnded as error:
        text = f"Lading does not answer there: {' '.join(str(error).split())}"
        if "No module named 'lading" in text and agent_archive.brought() is None:
            text += f"; install it for {config.python}, in the same version and beside Airflow's Task SDK: pip install "
            text += f"airflow-lading=={VERSION}"
        raise MachineRefused(text) from error
    except agent_archive.AgentNotBrought as error:
        raise MachineRefused(str(error)) from error


def _asked(spool: SpoolConnection, config: MachinesConfig, host: HostConfig, asked: Mapping[str, Any]) -> Introduction:
    """One attempt.

    :raises SessionEnded: Lading does not begin there
    :raises TransportError: it has not answered
    """
    root = config.root(host)
    _, *options = agent_archive.command(config.python, root, MODULE)
    asked_at = time.time()
    line = spool.begin([*options, f"{root}/spool"], json.dumps(asked), asked["mark"], TIMEOUT)
    return read_introduction(line, asked_at, time.time())


def wanted(config: MachinesConfig, host: HostConfig, api: str, owner: Owner | None, *, look: bool) -> dict[str, Any]:
    """What is asked; the parameters are those of :func:`introduce`."""
    root = config.root(host)
    return {
        "version": VERSION,
        "mark": f"lading-host-{secrets.token_hex(8)} ",  # which no noise of a login has
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
        "runner": current.deployment().runner_options(),
        "owner": None if owner is None else owner.to_json(),
        "look": look,
    }


def spool_connection(transport: Transport, config: MachinesConfig, host: HostConfig, api: str) -> SpoolConnection:
    """The conversation with a machine; ``api`` as in :func:`introduce`."""
    return SpoolConnection(transport, config.python, config.root(host), setup(config, host, api))


def setup(config: MachinesConfig, host: HostConfig, api: str) -> str:
    """The shell text before Lading's own commands on a machine."""
    return "\n".join([*_environment(config, host, api), "umask 077"])


def stamp(config: MachinesConfig, host: HostConfig, api: str) -> str:
    """What distinguishes an agent that was started with all this from one that was started with something else."""
    found = agent_archive.brought()
    parts = [VERSION if found is None else found.digest, config.python, *_environment(config, host, api)]
    parts += current.deployment().runner_options()
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _environment(config: MachinesConfig, host: HostConfig, api: str) -> list[str]:
    file = f"{config.root(host)}/api_address" if config.needs_tunnel(api) else None
    return address.environment(config.agent_setup, api, file)


def read_introduction(line: str, asked_at: float, answered_at: float) -> Introduction:
    """What a machine has answered.

    :param line: without its mark
    :param asked_at: seconds since the epoch, of our clock; ``answered_at`` likewise
    :raises Refused: it cannot be used; with what it said
    :raises TransportError: it makes no sense
    """
    try:
        found: dict[str, Any] = checked(HostAnswer, parsed(line.encode(errors="replace")))
        if found.get("refused"):
            raise MachineRefused(found["refused"])
        if missing := [name for name in NEEDED if name not in found]:
            raise ValueError(f"it says no {', '.join(missing)}")
        capacity = Resources(**asdict(found["capacity"]))
    except ValueError as error:
        raise TransportError(f"what Lading answers there makes no sense: {error}") from error
    return Introduction(
        MachineFacts(found["host"], found["boot_id"], found["arch"], found["os"], capacity),
        seconds_ahead(found["now"], asked_at, answered_at),
        found.get("lives", False),
        found.get("drains", False),
        found.get("note"),
    )


# What is known of a machine, and the file that keeps it over a restart of the controller.

MOST_BYTES = 2**16


@dataclass(frozen=True, kw_only=True, slots=True)
class FactsFile(JsonModel):
    """What was known of a machine, as a controller has kept it."""

    host: Text
    boot_id: Text
    arch: Text
    os: Text
    capacity: Amounts


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a machine has, since its last start.

    :param host: its name, as it calls itself
    :param boot_id: of this start
    :param arch: of its processors, as ``uname -m`` says
    :param os: as ``uname -s`` says, in small letters
    :param capacity: what jobs may fill
    """

    host: str
    boot_id: str
    arch: str
    os: str
    capacity: Resources


def load_facts(file: Path) -> MachineFacts | None:
    """What was known before this process began; None: nothing."""
    with suppress(OSError, NotReadable, ValueError):
        found = checked(FactsFile, parsed(read_regular(file, MOST_BYTES)))
        amounts = found.pop("capacity")
        return MachineFacts(**found, capacity=Resources(amounts.cpus, amounts.memory, amounts.disk, amounts.gpus))
    return None


def save_facts(file: Path, facts: MachineFacts) -> None:
    """:raises OSError: it cannot be written"""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(facts)))


class Residents:
    """Which machine each place of this process leads to: what one has must not be filled twice.

    The threads of all machines may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, tuple[str, bool]] = {}

    def enter(self, place: str, boot_id: str, *, is_bounded: bool) -> str | None:
        """Note where a place leads to; why that cannot be; None: it can.

        :param place: a site and its connection
        :param is_bounded: whether its table says how much of the machine may be filled
        """
        with self._lock:
            for known_place, (its, bounded) in self._places.items():
                if known_place != place and its == boot_id and not (is_bounded and bounded):
                    return (
                        f"it is the same machine as {known_place}, and what it has would be filled twice: keep one "
                        "of them, or give both `cpus` and `memory`"
                    )
            self._places[place] = boot_id, is_bounded
            return None

    def leave(self, place: str) -> None:
        """It is not used any more."""
        with self._lock:
            self._places.pop(place, None)


RESIDENTS = Residents()
