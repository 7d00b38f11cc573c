"""How a simulated site behaves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the simulated site behaves.

    :param boot_seconds: from a launch until its first job starts; paid for
    :param capacity_errors: the probability that a launch fails for want of capacity
    :param unavailable_seconds: for how long the planner leaves an offering alone after that
    :param reclaims_per_hour: how often a spot instance is reclaimed on average; its jobs start anew elsewhere
    :param tick_seconds: between two plans; None: 1, or with many jobs a 10,000th of the trace
    :param seed: of all chance
    """

    boot_seconds: float = 60.0
    capacity_errors: float = 0.0
    unavailable_seconds: float = 180.0
    reclaims_per_hour: float = 0.0
    tick_seconds: float | None = None
    seed: int = 0
