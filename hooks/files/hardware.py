"""The architecture of this machine and the type of its GPUs, under the names that hints use.

The module is apart from ``host``, which each batch job imports, because the names of GPUs take long to import.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lading.hooks.files.host import ROOT
from lading.scheduling.model.gpus import parse_type
from lading.scheduling.model.machine_traits import parse_arch


def arch() -> str:
    """Return the architecture of this machine, under the name that hints use."""
    return parse_arch(os.uname().machine)


def gpu_type(root: Path = ROOT) -> str | None:
    """Return the type that all NVIDIA GPUs have according to the driver; None without GPUs, or if types differ or are
    unknown."""
    types = set()
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = None
        with contextlib.suppress(OSError, ValueError):
            lines = file.read_text(errors="replace").splitlines()
            model = next((parse_type(line.partition(":")[2]) for line in lines if line.startswith("Model:")), None)
        types.add(model)
    return types.pop() if len(types) == 1 else None
