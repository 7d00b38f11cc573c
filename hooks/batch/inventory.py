"""What nodes and queues a batch system has: how many are idle, and whether a site's table is what there is.

A batch system has a :class:`Survey` where one command lists them: the command, and what reads its answer. Pure; the
readers of the systems that are built in are in the `output` of each family.

| read | concluded | until |
|---|---|---|
| a failure, nonsense, or no node | could not ask: what was known stays | the next survey |
| no queue | any name may be one | the next survey |
| no number of idle nodes of some | none is known of all | the next survey |
| no most of a queue | a job may ask for any number of nodes | the next survey |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lading.hooks.batch.refusals import CouldNotAsk
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.text.units import UnitError, parse_time

_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([kmgtp]?)([bw]?)", re.IGNORECASE)
# MiB in one of each; without a letter they are bytes.
_MIB = {"": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes that are alike.

    :param cpus: that jobs can have on each
    :param memory: MiB that jobs can have on each; None: the batch system does not say
    :param queue: whose they are; None: any queue's
    :param count: how many, those that are down included
    :param idle: how many of them take jobs and have none; None: the batch system does not say
    """

    cpus: int
    memory: int | None = None
    queue: str | None = None
    count: int = 1
    idle: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All nodes and queues.

    :param queues: their names; empty: the batch system has not said
    :param default: the queue of jobs that name none; None: there is none, or it has not said
    :param most: by queue, how many nodes one job there can ever have, those counted that are down or drained now; a
        queue that is missing: that is not known
    :param longest: by queue, for how many seconds a job there may run; a queue that is missing: any, or it is not known
    """

    nodes: Sequence[Nodes]
    queues: Sequence[str] = ()
    default: str | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Those of some queues that are not there."""
        return [name for name in names if self.queues and name not in self.queues]

    def nodes_of_queues(self, names: Sequence[str]) -> list[Nodes]:
        """The nodes on which jobs of these queues can run.

        :param names: empty: of the default queue
        """
        asked = {None, *(names or ([self.default] if self.default else self.queues))}
        return [nodes for nodes in self.nodes if nodes.queue in asked]

    def count_nodes(self, names: Sequence[str]) -> tuple[int, int | None] | None:
        """How many nodes there are on which jobs of these queues can run, and how many of them are idle.

        None: that is not known, of the idle ones or of all; several queues may have the same nodes.
        """
        kinds = self.nodes_of_queues(names)
        if not kinds or len({nodes.queue for nodes in kinds} - {None}) > 1:
            return None
        idle = [nodes.idle for nodes in kinds if nodes.idle is not None]
        return sum(nodes.count for nodes in kinds), sum(idle) if len(idle) == len(kinds) else None

    def most_nodes(self, names: Sequence[str]) -> dict[str, int]:
        """How many nodes one job can ever have by the queue that it names; by the empty name without naming one.

        :param names: the queues of jobs that name none; empty: the default one
        """
        of_site = [self.most.get(name) for name in names or ([self.default] if self.default else [])]
        known = [each for each in of_site if each is not None]
        # In one of several queues it may have more, as far as that is known.
        own = {"": max(known)} if known and len(known) == len(of_site) else {}
        return {**self.most, **own}

    def longest_in(self, queue: str | None) -> int | None:
        """For how many seconds a job may run; None: for any time, or that is not known.

        :param queue: that it names; of several, with commas between, it may run in any; None: none
        """
        named = (queue or self.default or "").split(",")
        return max(self.longest[name] for name in named) if all(name in self.longest for name in named) else None


def time_limit(text: str | None) -> int | None:
    """The limit of a queue on the time of its jobs, seconds; None: there is none."""
    with suppress(UnitError):
        return None if text is None else parse_time(int(text) if text.isdigit() else text)
    return None


@dataclass(frozen=True, slots=True)
class Survey:
    """How a batch system is asked.

    :param command: the one command
    :param read: what its standard output says; whatever it raises, that makes no sense
    """

    command: Sequence[str]
    read: Callable[[str], Inventory]

    def inventory(self, answer: CommandResult) -> Inventory:
        """What the answer to the command says.

        :raises CouldNotAsk: it is no answer
        """
        if answer.status != 0:
            raise CouldNotAsk(answer.message)
        try:
            found = self.read(answer.stdout)
        except Exception as error:  # whatever its reader stumbles over, it is no answer
            raise CouldNotAsk(f"the answer of {self.command[0]} makes no sense: {error!r}; {answer.message}") from None
        if not found.nodes:
            raise CouldNotAsk(f"the answer of {self.command[0]} has no nodes in it: {answer.message}")
        return found


def mib(text: str) -> int | None:
    """An amount of memory such as ``24684092kb`` or ``23.5G``, MiB; None: it is none, or beyond all measure.

    What was rounded to some digits may have been as much more as half of the last one.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, digits, letter, _ = match.groups()
    rounded = 0.5 * 10.0 ** -len(digits) if digits else 0.0
    amount = (float(f"{whole}.{digits or 0}") + rounded) * _MIB[letter.lower()]
    return int(amount) if math.isfinite(amount) else None


def one_shell(*commands: str) -> list[str]:
    return ["sh", "-c", " && ".join(commands)]
