"""The memory of jobs in a batch system's notation: an amount per node, cpu or job, in a unit that can differ by site.

How the unit is determined, and when that is revised:

| read | concluded | until |
|---|---|---|
| no unit in the batch system's output | the unit of the site's table, which a trial job checks | a unit is printed |
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


def dialect(profile: Profile, default: MemoryDialect) -> MemoryDialect:
    """Return the site's dialect, completed with the defaults of the batch system."""
    if profile.memory is None:
        return default
    return default.model_copy(update=profile.memory.model_dump(exclude_none=True))


def amount(request: BatchJobRequest, dialect: MemoryDialect, slots: int | None = None) -> int | None:
    """Return the number to write, rounded up; None: no memory is requested.

    :param slots: slots that the job gets on each node; None: as many as it requests cpus
    :raises Unsupported: the dialect does not say what the number refers to
    """
    if request.mem is None or dialect.per == "none":
        return None
    if dialect.per is None:
        raise Unsupported(
            f"mem = {request.mem} MiB: memory.per is missing in the profile; valid: node, cpu, slot, job, none"
        )
    slots = slots or request.cpus_per_node
    shares = {"node": 1, "cpu": slots, "slot": slots, "job": 1}[dialect.per]
    nodes = (request.nodes or 1) if dialect.per == "job" else 1
    return -(-request.mem * nodes * _BYTES["M"] // (shares * _BYTES[dialect.unit or "M"]))


def names(dialect: MemoryDialect) -> list[str]:
    """Return the resources that carry the number."""
    return dialect.resource.split(",") if dialect.resource else []


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """How to find out in which unit a batch system counts memory.

    :param command: prints the configuration
    :param read: returns the unit named in its standard output; None: it names none
    :param setting: the batch system's name for the unit
    :param resource: the resource of a :class:`MemoryDialect` that is counted in this unit
    :param default: the unit if a site's table sets none
    :param directive: matches the line of a batch script that limits memory; its only group is the number
    :param job: returns the command that prints the limits of the job with a native ID
    :param shown: returns the memory limit, in MiB, in the output of that command; None: there is none
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
        """Compare the memory limit that a script sets with the one that the batch system applies.

        Return the number in the script, the MiB that the batch system makes of it, and the unit in which it counts.
        None: it counts in the unit of the table, or the unit cannot be determined.

        :param said: output of the command for the job
        :param unit: the unit in the site's table
        """
        asked, mib = self.directive.search(script), self.shown(said)
        if asked is None or not mib or not (number := int(asked[1])):
            return None
        ratio = mib / (number * MIB[unit])
        # Amounts that differ by more are in different units, and not only rounded.
        if 1 / 32 < ratio < 32:
            return None
        counted: dict[Unit, float] = {"K": MIB["K"], "M": MIB["M"], "G": MIB["G"], "T": MIB["T"]}
        nearest = min(counted, key=lambda each: max(mib / (number * counted[each]), number * counted[each] / mib))
        return number, mib, nearest
