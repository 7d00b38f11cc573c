"""Job arrays: how many tasks one submission may have, and into which submissions many are divided. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from lading.hooks.batch.system import BatchSystem, Profile

T = TypeVar("T")


def largest_array(system: BatchSystem, profile: Profile) -> int:
    """How many tasks one submission may have, numbered from 1; 1: no arrays."""
    most = profile.max_array_size or system.max_array_size
    if system.name == "slurm" and profile.max_array_size:
        most -= 1  # SLURM limits the largest index, not the number
    return most if most >= max(2, system.smallest_array) else 1


def chunks(jobs: Sequence[T], most: int, system: BatchSystem) -> Iterable[Sequence[T]]:
    """The jobs in parts of at most ``most``; where an array of a part would be too small, each job alone."""
    for start in range(0, len(jobs), most):
        part = jobs[start : start + most]
        if len(part) >= max(2, system.smallest_array):
            yield part
        else:
            yield from ([job] for job in part)
