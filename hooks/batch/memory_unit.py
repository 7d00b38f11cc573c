"""In which unit a batch system counts the memory of jobs, where its sites differ in that. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["K", "M", "G", "T"]
MIB: dict[str, float] = {"K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
# Amounts that differ by more than this factor were counted in other units, and are not only rounded.
ANOTHER_UNIT = 32


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
