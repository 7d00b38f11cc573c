"""Memory as a batch system writes it: so much for each of something, in some unit."""

from __future__ import annotations

from lading.hooks.batch.directives import Unsupported
from lading.hooks.batch.system import BatchJobRequest, MemoryDialect, Profile

_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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
