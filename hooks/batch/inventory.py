"""The nodes and queues of a batch system, to count idle nodes and to check a site's table.

A batch system has a :class:`Survey` if one command can list them: the command, and the parser of its output. The
parsers of the built-in batch systems are in the `output` module of each family.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| a failure, an unreadable answer, or no node | could not ask: the previous inventory stays | the next survey |
| no queue | any name can be a queue | the next survey |
| some nodes without their number of idle ones | the number of idle nodes is unknown | the next survey |
| a queue without a maximum | a job can request any number of nodes | the next survey |
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
# MiB in one unit; a number without a letter is in bytes.
_MIB = {"": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}


@dataclass(frozen=True, slots=True)
class Nodes:
    """A group of identical nodes.

    :param cpus: cpus of each node that jobs can use
    :param memory: MiB of each node that jobs can use; None: not reported
    :param queue: the queue to which they belong; None: any queue
    :param count: number of nodes, including those that are down
    :param idle: number of nodes that accept jobs and run none; None: not reported
    """

    cpus: int
    memory: int | None = None
    queue: str | None = None
    count: int = 1
    idle: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All nodes and queues of a batch system.

    :param queues: their names; empty: not reported
    :param default: the queue of jobs that name none; None: there is none, or it is not reported
    :param most: by queue, the maximum number of nodes of one job, including nodes that are down or drained now; a
        missing queue: unknown
    :param longest: by queue, the maximum run time of a job in seconds; a missing queue: unlimited or unknown
    """

    nodes: Sequence[Nodes]
    queues: Sequence[str] = ()
    default: str | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    longest: Mapping[str, int] = field(default_factory=dict)

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return the names that are not queues of the batch system."""
        return [name for name in names if self.queues and name not in self.queues]

    def nodes_of_queues(self, names: Sequence[str]) -> list[Nodes]:
        """Return the nodes on which jobs of these queues can run.

        :param names: empty: the default queue
        """
        asked = {None, *(names or ([self.default] if self.default else self.queues))}
        return [nodes for nodes in self.nodes if nodes.queue in asked]

    def count_nodes(self, names: Sequence[str]) -> tuple[int, int | None] | None:
        """Return how many nodes can run jobs of these queues, and how many of these nodes are idle.

        None: the number of idle nodes, or both numbers, are unknown. Several queues may share the same nodes.
        """
        kinds = self.nodes_of_queues(names)
        if not kinds or len({nodes.queue for nodes in kinds} - {None}) > 1:
            return None
        idle = [nodes.idle for nodes in kinds if nodes.idle is not None]
        return sum(nodes.count for nodes in kinds), sum(idle) if len(idle) == len(kinds) else None

    def most_nodes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the maximum number of nodes of one job by the queue that it names; the empty name: it names none.

        :param names: the queues of jobs that name none; empty: the default one
        """
        of_site = [self.most.get(name) for name in names or ([self.default] if self.default else [])]
        known = [each for each in of_site if each is not None]
        # With several queues, the largest of their maxima applies, provided that all of them are known.
        own = {"": max(known)} if known and len(known) == len(of_site) else {}
        return {**self.most, **own}

    def longest_in(self, queue: str | None) -> int | None:
        """Return the maximum run time in a queue, in seconds; None: unlimited or unknown.

        :param queue: as the job names it: one queue, or several separated by commas, any of which can run it; None:
            none
        """
        named = (queue or self.default or "").split(",")
        return max(self.longest[name] for name in named) if all(name in self.longest for name in named) else None


def time_limit(text: str | None) -> int | None:
    """Parse a queue's limit on the run time of jobs, in seconds; None: there is none."""
    with suppress(UnitError):
        return None if text is None else parse_time(int(text) if text.isdigit() else text)
    return None


@dataclass(frozen=True, slots=True)
class Survey:
    """How to list the nodes and queues of a batch system.

    :param command: the one command
    :param read: parses its standard output; any exception means that the output cannot be parsed
    """

    command: Sequence[str]
    read: Callable[[str], Inventory]

    def inventory(self, answer: CommandResult) -> Inventory:
        """Parse the answer to the command.

        :raises CouldNotAsk: it is not a valid answer
        """
        if answer.status != 0:
            raise CouldNotAsk(answer.message)
        try:
            found = self.read(answer.stdout)
        except Exception as error:  # whatever the parser stumbles over, it is not a valid answer
            raise CouldNotAsk(
                f"the answer of {self.command[0]} cannot be parsed: {error!r}; {answer.message}"
            ) from None
        if not found.nodes:
            raise CouldNotAsk(f"the answer of {self.command[0]} lists no nodes: {answer.message}")
        return found


def mib(text: str) -> int | None:
    """Parse an amount of memory such as ``24684092kb`` or ``23.5G``, in MiB; None: it is not an amount, or infinite.

    A decimal fraction may have been rounded down, so half of its last digit is added.
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
