"""How a simulated site behaves: boot times, failures, reclaims and delays."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the simulated site behaves.

    :param boot_seconds: from a launch until its first job starts; paid for
    :param lag_seconds: from a plan until its effects (a job starts, a machine is released), and from the end of a job
        until the planner knows of it
    :param latency_seconds: from the end of a job until jobs that wait only for it are queued: Airflow's share
    :param capacity_errors: the probability that a launch fails for lack of capacity
    :param scarce: the instance types whose launches always fail
    :param unavailable_seconds: how long the planner avoids an offering after such a failure
    :param reclaims_per_hour: how often a spot instance is reclaimed on average; its jobs restart elsewhere
    :param tick_seconds: between two plans; None: 1, or with many jobs a 10,000th of the trace
    :param plan_seconds: how long the search for the best fleet takes, during which jobs and machines change; None: as
        long as it takes here, so no two simulations are alike
    :param seed: of all random numbers
    """

    boot_seconds: float = 60.0
    lag_seconds: float = 0.0
    latency_seconds: float = 0.0
    capacity_errors: float = 0.0
    scarce: frozenset[str] = frozenset()
    unavailable_seconds: float = 180.0
    reclaims_per_hour: float = 0.0
    tick_seconds: float | None = None
    plan_seconds: float | None = 0.0
    seed: int = 0
