"""Whether a cluster counts memory in the unit in which a site's table has it: for ``airflow lading check``."""

from __future__ import annotations

from collections.abc import Iterator

from lading.hooks.batch.memory import MemoryUnit, dialect, names
from lading.hooks.batch.system import BatchSystem, MemoryDialect
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.site import Check
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.text.units import format_memory

_WORDS = {"B": "bytes", "K": "KiB", "M": "MiB", "G": "GiB", "T": "TiB"}


def checks(config: ClusterConfig, system: BatchSystem, unit: MemoryUnit, answer: CommandResult) -> Iterator[Check]:
    """What the batch system says of it; nothing where it does not: then the trial job shows it.

    :param answer: to the command of the unit
    """
    ours = _ours(config, unit)
    if ours is None or answer.status != 0 or (theirs := unit.read(answer.stdout)) is None:
        return
    words = f"{system.name} counts memory in {_WORDS[theirs]} ({unit.setting})"
    if theirs == ours:
        yield Check("memory unit", True, f"{words}, and so does the table")
    else:
        yield Check("memory unit", False, f"{words}, and the table in {_WORDS[ours]}; {_remedy(theirs)}")


def misunderstanding(
    name: str, config: ClusterConfig, system: BatchSystem, unit: MemoryUnit, script: str, answer: CommandResult
) -> str | None:
    """What the batch system has taken the memory of a trial job for, if that is something else than was meant.

    :param name: of the site
    :param script: of the job
    :param answer: to the command that shows its limits
    """
    ours = _ours(config, unit)
    if ours is None or answer.status != 0 or (found := unit.understood(script, answer.stdout, ours)) is None:
        return None
    number, mib, theirs = found
    return (
        f"a trial job asked for {number} {_WORDS[ours]} of memory, and {system.name} has taken that for "
        f"{format_memory(round(mib)) if mib >= 1 else f'{mib * 1024:.0f} KiB'}: it counts in {_WORDS[theirs]} "
        f"({unit.setting}); {_remedy(theirs, name)}"
    )


def _ours(config: ClusterConfig, unit: MemoryUnit) -> str | None:
    """The unit of the table; None: no memory is asked for that is counted so, or it is asked for in bytes."""
    found = dialect(config.profile, MemoryDialect(per="node", resource=unit.resource))
    if found.per == "none" or found.unit == "B" or unit.resource not in names(found):
        return None
    return found.unit or unit.default


def _remedy(theirs: str, name: str = "NAME") -> str:
    return f'set unit = "{theirs}" in [sites.{name}.memory]'
