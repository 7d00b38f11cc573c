"""The data of provisioning: what is launched and released, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.machine_traits import ON_DEMAND
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources

# Airflow queues the instances of a mapped task in several batches. A launch that later jobs could change waits until no
# job has arrived for SECONDS_UNTIL_SETTLED, but no longer than LONGEST_ARRIVAL (seconds) after the first of its jobs.
SECONDS_UNTIL_SETTLED = 2.0
LONGEST_ARRIVAL = 6.0
# Seconds allowed from the start of an allocation to that of its jobs, at least.
SECONDS_TO_BEGIN = 120.0


@dataclass(frozen=True, slots=True)
class Launch:
    """A machine or an allocation to launch.

    :param kind: which jobs can use it, by their ``instance_type``; the instance type of a machine
    :param capacity: what jobs can use of it
    :param seconds: how long jobs can use it; infinite: until it is released
    :param jobs: the names of the jobs for which it is launched; they can still go wherever there is room first
    :param zone: in which it is launched; None: in any zone of the site
    :param capacity_type: ``on-demand`` or ``spot``
    :param usd_per_hour: its price when it was decided, USD; None: it has no price
    :param idle_seconds: seconds without running jobs after which an allocation exits; None: the site's value
    """

    kind: str
    capacity: Resources
    seconds: float
    jobs: tuple[str, ...]
    zone: str | None = None
    capacity_type: str = ON_DEMAND
    usd_per_hour: float | None = None
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AllocationPlan:
    """What a plan of all upcoming work requests at a site of allocations. Waiting jobs are named by their tokens.

    :param launches: the allocations that are requested now
    :param planned: the waiting jobs that have a place in it, or for which it is being made: nothing else is requested
        for them
    :param needed: the queued allocations that it needs, and the running ones that it needs sooner than a new one would
        leave its queue
    :param releases: the idle allocations that it does not need, each with the reason
    :param awaits: what some of the waiting jobs wait for
    :param begins: planned starts of upcoming jobs for which something is launched, epoch seconds
    :param starts: planned starts of waiting jobs, epoch seconds
    :param prefetch_to: the allocations to which waiting jobs can be prefetched before there is room, by job
    :param prefetched: the jobs that were prefetched in this way
    :param known: the runs whose remaining steps it includes
    :param margin: how many seconds a walltime exceeds the time limits of its jobs
    """

    launches: tuple[Launch, ...] = ()
    planned: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    releases: Mapping[str, Reason] = field(default_factory=dict)
    awaits: Mapping[str, Reason] = field(default_factory=dict)
    begins: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)
    prefetch_to: Mapping[str, str] = field(default_factory=dict)
    prefetched: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    margin: float = SECONDS_TO_BEGIN

    def without_launches(self) -> AllocationPlan:
        """Return the plan after its launches have been made."""
        return replace(self, launches=()) if self.launches else self


@dataclass(frozen=True, slots=True)
class Provision:
    """What to launch and release so that everything that waits at a site can run.

    :param launches: what is launched now
    :param releases: what ends once its running jobs have finished, each with the reason
    :param spare: machines or allocations in which no waiting job has a place
    :param waits: why nothing is launched for jobs, by name; the others have a place, or are about to get one
    :param refused: jobs that are too large for anything that can be launched, each with the reason
    :param homes: the booting machines on which jobs have a place, by job name
    :param awaits: what jobs with a place in a forecast wait for, by name
    :param ahead: planned starts of upcoming jobs for which something is launched now, by name, epoch seconds
    """

    launches: tuple[Launch, ...] = ()
    releases: Mapping[str, Reason] = field(default_factory=dict)
    spare: frozenset[str] = frozenset()
    waits: Mapping[str, Reason] = field(default_factory=dict)
    refused: Mapping[str, Reason] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)
    awaits: Mapping[str, Reason] = field(default_factory=dict)
    ahead: Mapping[str, float] = field(default_factory=dict)


def settled(
    launches: tuple[Launch, ...],
    jobs: Sequence[PlannedJob],
    since: Mapping[str, float] | None,
    now: float,
    is_whole: Callable[[Launch], bool] = lambda _: False,
) -> tuple[Launch, ...]:
    """Return the due launches: all if no more jobs arrive, else those whose jobs have waited long enough.

    :param jobs: all that wait
    :param since: when each job first found no room, by name; without an entry, when it was queued
    :param is_whole: whether a launch would be the same whatever else arrives
    """
    if not launches:
        return launches
    arrived = {job.name: job.queued_at for job in jobs} | {**(since or {})}
    # A job with a count stands for jobs that came after it; when the last of them came is unknown.
    last = max(now if job.count > 1 else arrived[job.name] for job in jobs)
    return tuple(
        each for each in launches if is_whole(each) or is_due(min(arrived[name] for name in each.jobs), last, now)
    )


def is_due(first: float, last: float, now: float) -> bool:
    """Return whether a launch that later jobs could change is due.

    :param first: when the first of its jobs arrived; ``last``: when the last of all jobs did
    """
    return now - last > SECONDS_UNTIL_SETTLED or now - first > LONGEST_ARRIVAL
