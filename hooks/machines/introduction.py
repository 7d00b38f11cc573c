"""What a machine says of itself when it is asked for the first time, and how its node agent is started. Pure.

The other side is ``python -m lading.executors.host``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from lading.hooks.api_tunnel import address
from lading.hooks.files.written import Text, Written, checked, parsed
from lading.hooks.machines.agent_host import MARK
from lading.hooks.machines.facts import Facts
from lading.hooks.machines.fixed_config import HostConfig, MachinesConfig
from lading.hooks.spool.events import Amounts, Date, Name
from lading.hooks.ssh import session
from lading.hooks.ssh.answer import Answer, TransportError
from lading.hooks.ssh.steps import Run
from lading.scheduling.hints.machine_words import SPOT
from lading.scheduling.resources import Resources

MODULE = "lading.executors.host"
# The command that starts the agent answers within this, Python on a slow file server included, seconds.
TIMEOUT = 60.0
# Clocks that differ by less are taken to agree: so much may be the way of the answer, seconds.
SAME_TIME = 2.0


class HostAnswer(Written):
    """What the command answers."""

    version: Name
    refused: Text = ""
    host: Name = ""
    boot_id: Name = ""
    now: Date = 0
    arch: Name = ""
    os: Name = ""
    capacity: Amounts = Amounts()
    lives: bool = False
    drains: bool = False
    note: Text | None = None


class Refused(TransportError):
    """The machine is reached, but its Lading and ours do not go together, or it cannot be used. It has its jobs."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """An answer to the first question.

    :param clock_ahead: seconds by which its clock is before ours; 0: they agree
    :param lives: whether its agent lives
    :param drains: whether that is another one than is to be, which takes no jobs
    :param note: what is wrong with the agent
    """

    facts: Facts
    clock_ahead: float
    lives: bool
    drains: bool
    note: str | None


def command(config: MachinesConfig, host: HostConfig, api: str, *, look: bool = False) -> Run:
    """Ask a machine what it has, and have its node agent started.

    :param api: URL of Airflow's execution API
    :param look: whether no agent is to be started
    """
    root = config.root(host)
    wanted = {
        "version": version("airflow-lading"),
        "share": host.share,
        "reserve": {"cpus": config.reserve_cpus, "memory": config.reserve_memory},
        "patience": config.patience,
        "kill_grace": config.kill_grace,
        "idle_seconds": config.agent_idle_seconds,
        "switch_off": config.switch_off,
        "scratch": config.scratch,
        "keep_failed": config.keep_failed,
        "is_spot": config.reads_notices and host.capacity_type == SPOT,
        "stamp": stamp(config, host, api),
        "logs": f"{root}/logs",
        "look": look,
    }
    # On standard input, for everybody may read a command line: the setup, and what is meant for the command.
    text = session.script([config.python, "-m", MODULE, f"{root}/spool"], setup(config, host, api))
    return Run(["/bin/sh", "-c", session.READ_AND_RUN], stdin=text + json.dumps(wanted).encode())


def setup(config: MachinesConfig, host: HostConfig, api: str) -> str:
    """The shell text before Lading's own commands on a machine."""
    return "\n".join([*_environment(config, host, api), "umask 077"])


def stamp(config: MachinesConfig, host: HostConfig, api: str) -> str:
    """What tells an agent that is started with all this from one that was started with something else."""
    parts = [version("airflow-lading"), config.python, *_environment(config, host, api)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _environment(config: MachinesConfig, host: HostConfig, api: str) -> list[str]:
    file = f"{config.root(host)}/api_address" if config.api == "tunnel" else None
    return address.environment(config.agent_setup, api, file)


def read(answer: Answer, asked_at: float, answered_at: float) -> Introduction:
    """What a machine has answered.

    :param asked_at: seconds since the epoch, of our clock; ``answered_at`` likewise
    :raises Refused: it cannot be used; with what it said
    :raises TransportError: it has not answered
    """
    line = next((each for each in answer.lines if each.startswith(MARK)), None)
    if line is None:
        kind = TransportError if answer.status is None else Refused
        raise kind(f"Lading does not answer there: {answer.words}")
    try:
        found: dict[str, Any] = checked(HostAnswer, parsed(line.removeprefix(MARK).encode()))
    except ValueError as error:
        raise TransportError(f"what Lading answers there makes no sense: {error}") from error
    if found.get("refused"):
        raise Refused(found["refused"])
    ahead = found["now"] - (asked_at + answered_at) / 2
    return Introduction(
        Facts(found["host"], found["boot_id"], found["arch"], found["os"], Resources(**found["capacity"].model_dump())),
        ahead if abs(ahead) > SAME_TIME + (answered_at - asked_at) / 2 else 0.0,
        found.get("lives", False),
        found.get("drains", False),
        found.get("note"),
    )
