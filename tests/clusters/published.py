"""What a controller publishes of its sites, for the check at Dag parse."""

from __future__ import annotations

from typing import Any

MACHINE = {"arch": "x86_64", "os": "linux", "features": [], "capacity_type": "on-demand"}
"""What a location is besides amounts where a test does not care."""


def site(cpus: float, memory: int, disk: int = 0, gpus: float = 0, *types: str | None, **others: Any) -> dict[str, Any]:
    """One site with a location of this size, or one for each instance type."""
    amounts = {"cpus": cpus, "memory": memory, "disk": disk, "gpus": gpus}
    return {
        "locations": [{**amounts, **MACHINE, "instance_type": each} for each in types or (None,)],
        "arch": "x86_64",
        "dialect": None,
        "accept_untargeted": True,
        "burst_after": 0,
        "has_sites_file": others.get("dialect") is None,
        "rules": {},
        **others,
    }
