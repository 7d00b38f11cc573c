"""The memory of jobs as a batch system writes it: so much for each of something, in a unit that may differ by site.

| read | concluded | until |
|---|---|---|
| no unit in what the batch system prints | that of the site's table, which a trial job checks | it prints one |
| no limit of the trial job, or one within a factor of 32 | the table is right | the next check |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lading.hooks.batch.directives import Unsupported
from lading.hooks.batch.request import BatchJobRequest, MemoryDialect, Profile

_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Unit = Literal["K", "M", "G", "T"]
MIB: dict[str, float] = {"K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
# Amounts that differ by more than this factor were counted in other units, and are not only rounded.
ANOTHER_UNIT = 32


def dialect(profile: Profile, default: MemoryDialect) -> MemoryDialect:
    """The site's dialect, with the batch system's defaults for what it does not say."""
    if profile.memory is None:
        return default
    return default.model_copy(update=profile.memory.model_dump(exclude_none=True))


def amount(request: BatchJobRequest, dialect: MemoryDialect, slots: int | None = None) -> int | None:
    """The number to write, rounded up so that nothing is missing; None: memory is not asked for.

    :param slots: that it gets on each node; None: as many as it asks for cpus
    :raises Unsupported: the dialect does not say what the number is for
    """
    if request.mem is None or dialect.per == "none":
        return None
    if dialect.per is None:
        raise Unsupported(
            f"mem = {request.mem} MiB: the profile has memory without per; valid: node, cpu, slot, job, none"
        )
    slots = slots or request.cpus_per_node
    shares = {"node": 1, "cpu": slots, "slot": slots, "job": 1}[dialect.per]
    nodes = (request.nodes or 1) if dialect.per == "job" else 1
    return -(-request.mem * nodes * _BYTES["M"] // (shares * _BYTES[dialect.unit or "M"]))


def names(dialect: MemoryDialect) -> list[str]:
    """The resources that the number is given for."""
    return dialect.resource.split(",") if dialect.resource else []


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """How a batch system is asked.

    :param command: the one command
    :param read: the unit that its standard output names; None: it does not say
    :param setting: what the batch system calls it
    :param resource: of a :class:`MemoryDialect`, that which is counted so
    :param default: the unit where the table of a site says none
    :param directive: the line of a batch script that limits memory; its only group is the number
    :param job: the command that shows the limits of a job, of its native id
    :param shown: MiB of the memory limit in what that prints; None: there is none
    """

    command: Sequence[str]
    read: Callable[[str], Unit | None]
    setting: str
    resource: str
    default: Unit
    directive: re.Pattern[str]
    job: Callable[[str], Sequence[str]]
    shown: Callable[[str], float | None]

    def understood(self, script: str, said: str, unit: str) -> tuple[int, float, Unit] | None:
        """The number in a job's script, the MiB for which the batch system took it, and the unit in which it counts.

        None: it counts in the unit of the table, or that cannot be seen.

        :param said: what the command for the job has printed
        :param unit: of the table
        """
        asked, mib = self.directive.search(script), self.shown(said)
        if asked is None or not mib or not (number := int(asked[1])):
            return None
        ratio = mib / (number * MIB[unit])
        if 1 / ANOTHER_UNIT < ratio < ANOTHER_UNIT:
            return None
        counted: dict[Unit, float] = {"K": MIB["K"], "M": MIB["M"], "G": MIB["G"], "T": MIB["T"]}
        nearest = min(counted, key=lambda each: max(mib / (number * counted[each]), number * counted[each] / mib))
        return number, mib, nearest
