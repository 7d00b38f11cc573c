"""The totals of a simulation, and the report made of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from lading.plugin.offline.simulation.capacity_timeline import CapacityTimeline
from lading.plugin.offline.simulation.simulated_machines import Queue, SimulatedMachine
from lading.scheduling.accounting.billing import LEAST_SECONDS
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.reasons import Reason
from lading.scheduling.packing.problem import UNIT


@dataclass(frozen=True, slots=True)
class Report:
    """The result of running a trace. Times in seconds, money in USD, utilisations from 0 to 1.

    :param unplaced: jobs that found no place although everything else had finished
    :param refusals: names of jobs that no machine fits, with the reason
    :param bound: lower bound for the job-hours of the trace: no schedule costs less
    :param gap: cost / bound - 1; None if nothing ran
    :param makespan: from the first arrival to the last end
    :param restarts: jobs that lost their instance and started again
    :param lost_usd: cost of reclaims: for each reclaimed instance, the time since the start of the oldest lost work,
        and the boot of a replacement; ``lost_seconds``: the same in seconds
    :param launched: instances by type
    :param timeline: the capacity over time
    :param short: tries that had too little memory and were repeated
    """

    policy: str
    jobs: int
    unplaced: int
    refusals: tuple[tuple[str, Reason], ...]
    cost: float
    bound: float
    gap: float | None
    makespan: float
    wait_mean: float
    wait_median: float
    wait_p95: float
    wait_max: float
    cpu_utilisation: float
    memory_utilisation: float
    instance_hours: float
    launches: int
    peak_instances: int
    capacity_errors: int
    reclaims: int
    restarts: int
    plans: int
    lost_usd: float = 0.0
    lost_seconds: float = 0.0
    launched: Mapping[str, int] = field(default_factory=dict)
    timeline: CapacityTimeline = field(default_factory=CapacityTimeline, repr=False)
    short: int = 0


@dataclass(slots=True)
class Tally:
    """The totals so far.

    :param last_end: when the last job finished, seconds
    :param money: USD paid for the released machines
    :param paid_cpus: cpu-hours of the released machines; ``paid_memory``: their MiB-hours
    :param used_cpus: cpu-hours of finished jobs; ``used_memory``: their MiB-hours
    :param refusals: names of jobs that no machine fits, with the reason
    """

    last_end: float
    ended: int = 0
    money: float = 0.0
    paid_seconds: float = 0.0
    paid_cpus: float = 0.0
    paid_memory: float = 0.0
    used_cpus: float = 0.0
    used_memory: float = 0.0
    launched: Counter[str] = field(default_factory=Counter)
    peak: int = 0
    errors: int = 0
    reclaims: int = 0
    restarts: int = 0
    plans: int = 0
    lost_usd: float = 0.0
    lost_seconds: float = 0.0
    short: int = 0
    refusals: list[tuple[str, Reason]] = field(default_factory=list)
    timeline: CapacityTimeline = field(default_factory=CapacityTimeline)

    @property
    def lost(self) -> int:
        """The number of failed launches and reclaimed instances."""
        return self.errors + self.reclaims

    def end(self, queue: Queue, duration: float, time: float, *, is_short: bool = False) -> None:
        """Count a finished try; one that ran out of memory (``is_short``) has to be repeated and is no progress."""
        hours = duration / 3600
        if is_short:
            self.short += 1
        else:
            self.ended += 1
            queue.hours += hours
        self.last_end = max(self.last_end, time)
        self.timeline.used(time - duration, time, queue.need[0] / UNIT)
        self.used_cpus += queue.need[0] / UNIT * hours
        self.used_memory += queue.need[1] * hours

    def reclaim(self, machine: SimulatedMachine, time: float, boot: float) -> None:
        """Count a reclaimed machine, whose jobs lose their work.

        :param boot: seconds from the launch of a replacement to its first job
        """
        self.reclaims += 1
        self.restarts += len(machine.jobs)
        since = min((each.begun for each in machine.running.values() if each.begun < time), default=time)
        if time < machine.ready_at:
            since = machine.launched_at
        lost = time - since + boot
        unused = max(0.0, machine.launched_at + LEAST_SECONDS - time)
        self.lost_seconds += lost
        self.lost_usd += (lost + unused) / 3600 * machine.launch.usd_per_hour

    def pay(self, machine: SimulatedMachine, time: float, period: float) -> None:
        """Pay for a released machine: in whole billing periods, and at least the minimum billed time."""
        whole = max(1, math.ceil((time - machine.launched_at) / period - 1e-9)) * period
        seconds = max(whole, LEAST_SECONDS)
        self.timeline.paid(machine, machine.launched_at + seconds)
        self.money += seconds / 3600 * machine.launch.usd_per_hour
        self.paid_seconds += seconds
        self.paid_cpus += machine.capacity[0] / UNIT * seconds / 3600
        self.paid_memory += machine.capacity[1] * seconds / 3600

    def report(self, policy: str, arrivals: Sequence[float], waits: Iterable[float], bound: float) -> Report:
        """Return the report at the end.

        :param arrivals: of all jobs, the first one first
        :param waits: of all jobs; NaN for those that have not started
        :param bound: the lower bound of the cost, USD
        """
        begun = sorted(wait for wait in waits if not math.isnan(wait))
        return Report(
            policy=policy,
            jobs=len(arrivals),
            unplaced=len(arrivals) - self.ended,
            refusals=tuple(self.refusals),
            cost=self.money,
            bound=bound,
            gap=self.money / bound - 1 if bound > 0 else None,
            makespan=self.last_end - (arrivals[0] if arrivals else 0.0),
            wait_mean=fmean(begun) if begun else 0.0,
            wait_median=begun[len(begun) // 2] if begun else 0.0,
            wait_p95=begun[min(len(begun) - 1, int(len(begun) * 0.95))] if begun else 0.0,
            wait_max=begun[-1] if begun else 0.0,
            cpu_utilisation=self.used_cpus / self.paid_cpus if self.paid_cpus else 0.0,
            memory_utilisation=self.used_memory / self.paid_memory if self.paid_memory else 0.0,
            instance_hours=self.paid_seconds / 3600,
            launches=self.launched.total(),
            launched=dict(self.launched),
            peak_instances=self.peak,
            capacity_errors=self.errors,
            reclaims=self.reclaims,
            restarts=self.restarts,
            plans=self.plans,
            lost_usd=self.lost_usd,
            lost_seconds=self.lost_seconds,
            timeline=self.timeline,
            short=self.short,
        )


def least(queues: Iterable[Queue], catalogue: Catalogue) -> float:
    """Return the lower bound for the job-hours that ran, USD. The bound for concurrent jobs is convex and homogeneous,
    so its integral over time is at least the bound for the integral of the jobs.
    """
    from lading.scheduling.packing.bound import bound_of_hours

    ran = [(queue.job, queue.hours) for queue in queues if queue.hours > 0]
    return bound_of_hours(ran, catalogue) if ran else 0.0
