"""In which unit LSF counts limits of memory: LSF_UNIT_FOR_LIMITS in lsf.conf, in KiB where it is not set.

IBM Spectrum LSF Configuration Reference, "LSF_UNIT_FOR_LIMITS"; Command Reference, "badmin showconf", "bjobs -l".
"""

from __future__ import annotations

import re

from lading.hooks.batch.memory_unit import MIB, MemoryUnit, Unit

_SETTING = re.compile(r"^\s*LSF_UNIT_FOR_LIMITS\s*=\s*\"?([KMGT])B?\b", re.MULTILINE | re.IGNORECASE)
# What showconf begins with; a parameter that it does not list is not set.
_SHOWN = re.compile(r"^\s*MBD configuration at ", re.MULTILINE)
# The names of limits, and their values in the line below.
_LIMITS = re.compile(r"^((?: +[A-Z]+LIMIT)* +MEMLIMIT\b.*)\r?\n(.*)$", re.MULTILINE)
_VALUE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT])B?\b")


def unit(text: str) -> Unit | None:
    """The unit in what ``badmin showconf`` and ``bparams -l`` print; None: they do not say it."""
    if match := _SETTING.search(text):
        found: dict[str, Unit] = {"K": "K", "M": "M", "G": "G", "T": "T"}
        return found[match[1].upper()]
    return "K" if _SHOWN.search(text) else None


def shown(text: str) -> float | None:
    """MiB of the MEMLIMIT in what ``bjobs -l`` prints; None: there is none, or it cannot be read."""
    if (match := _LIMITS.search(text)) is None:
        return None
    names, values = match[1].split(), _VALUE.findall(match[2])
    number = names.index("MEMLIMIT")
    return float(values[number][0]) * MIB[values[number][1]] if number < len(values) else None


MEMORY_UNIT = MemoryUnit(
    # Neither is there in every version, and showconf may be for administrators.
    command=["sh", "-c", "badmin showconf mbd </dev/null 2>/dev/null; bparams -l 2>/dev/null; true"],
    read=unit,
    setting="LSF_UNIT_FOR_LIMITS",
    resource="M",
    default="M",
    directive=re.compile(r"^#BSUB -M (\d+)$", re.MULTILINE),
    job=lambda id: ["bjobs", "-l", id],
    shown=shown,
)
