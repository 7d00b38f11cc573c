"""What is launched and released, and when: the data of provisioning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lading.scheduling.job import PlannedJob
from lading.scheduling.machine_traits import ON_DEMAND
from lading.scheduling.reasons import Reason
from lading.scheduling.resources import Resources

# Airflow hands over the instances of a mapped task in several goes. What could turn out too small, or one of many, is
# launched when no job has come for so long, and after the second number in any case, seconds.
SECONDS_UNTIL_SETTLED = 2.0
LONGEST_ARRIVAL = 6.0


@dataclass(frozen=True, slots=True)
class Launch:
    """A machine to launch, or an allocation.

    :param kind: which jobs may use it, by their ``instance_type``; of a machine its instance type
    :param capacity: what jobs can use of it
    :param seconds: that it has for jobs; infinite: it stays until it is released
    :param jobs: the names of those for which it is launched; they go where there is room first
    :param zone: in which it is launched; None: where its site has zones, in any of them
    :param capacity_type: ``on-demand`` or ``spot``
    :param usd_per_hour: its price when it was decided, USD; None: it has none
    :param idle_seconds: after which an allocation ends by itself in which nothing runs; None: as its site says
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
    """What a plan of all that is to come asks for at a site of allocations now, in which jobs that have come have their
    tokens as names.

    :param launches: the allocations that are asked for now
    :param planned: the waiting jobs that have a place in it, or for which it is being made: nothing else is asked for
        for them
    :param awaits: what some of them wait for
    :param begins: when the jobs are to begin that are still to come and for which is launched, epoch seconds
    :param needed: the allocations that it needs sooner than another one would come out of its queue
    :param releases: the idle ones that it does not, each with the reason
    :param starts: when waiting jobs are to start by it, epoch seconds
    :param prefetch_to: the allocations that are there to which they may go before there is room in them
    :param prefetched: those that were prefetched so, too
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


@dataclass(frozen=True, slots=True)
class Provision:
    """What is to be done so that all that waits at a site can run.

    :param launches: what is launched now
    :param releases: what ends with its running jobs, each with the reason
    :param spare: that in which nothing that waits has a place
    :param waits: why nothing is launched for jobs, by their names: the others have a place, or are to get one
    :param refused: jobs that are too large for all that can be launched, each with the reason
    :param homes: the machines that boot and on which jobs have a place, by the names of the jobs
    :param awaits: what jobs wait for that have a place in a forecast, by their names
    :param ahead: when jobs are to begin that are still to come and for which something is launched now, epoch
        seconds, by their names
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
    """The launches that are due: all when no more jobs come, before that those whose jobs have waited for long enough.

    :param jobs: all that wait
    :param since: when each of them was seen first to find no room, by its name; without it, when it came
    :param is_whole: whether a launch would be the same whatever else comes
    """
    if not launches:
        return launches
    arrived = {job.name: job.queued_at for job in jobs} | {**(since or {})}
    # One that counts for others came first of them; when the last one came is not known.
    last = max(now if job.count > 1 else arrived[job.name] for job in jobs)
    if now - last > SECONDS_UNTIL_SETTLED:
        return launches
    late = now - LONGEST_ARRIVAL
    return tuple(each for each in launches if is_whole(each) or min(arrived[name] for name in each.jobs) < late)
