"""What a policy is: the choice of one location of a site for each job, and what it may know. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.plan import FORECAST
from lading.scheduling.resources import Resources

GREEDY, PRICED = "greedy", "priced"
FIRST_COME, DATA_LOCALITY = "first_come", "data_locality"
# Those that come with Lading, which see all jobs of a site at once. By the first ones machines are filled, and get more
# than they can run now. By the others a place is sought when something has come free.
FILLING = (GREEDY, PRICED, FORECAST)
BUILT_IN = (*FILLING, FIRST_COME, DATA_LOCALITY)
# Those that a site may have whose machines are there, and one that buys them.
OF_ANY_SITE = (GREEDY, PRICED, FIRST_COME, DATA_LOCALITY)
OF_BUYERS = (FORECAST, GREEDY, FIRST_COME, DATA_LOCALITY)
# Where a job goes when no location that has its data has room.
RANDOM, CHEAPEST = "random", "cheapest"


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """Where a job is, or was.

    :param target: the site, and where it has been given one the queue: ``hpc/long``
    :param locations: their names, without those in which they lie
    :param state: placed, running, succeeded, failed or cancelled
    :param resources: what it has of its location
    """

    target: str
    locations: tuple[str, ...]
    state: str
    resources: Resources


@dataclass(slots=True)
class LocationAllocation:
    """A location that has had a job.

    :param jobs: the names of all that it has had, and of those of the locations that are stacked on it
    """

    name: str
    site: str
    jobs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Files:
    """What is known of files.

    :param inputs: of each waiting job by its name: the bytes of its input files by their URIs
    :param holders: by its URI, where a file is: pairs of a site and a location
    """

    inputs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    holders: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What else a policy may know.

    :param site: the name of the site that the job has come to
    :param now: epoch seconds
    """

    site: str
    now: float
    files: Files


class Policy(Protocol):
    """A policy of a third party. It is called for one job after the other, with what the ones before have taken."""

    def get_location(
        self,
        context: PolicyContext,
        job: PlannedJob,
        requirement: Resources,
        available: Mapping[str, Location],
        jobs: Mapping[str, JobAllocation],
        locations: Mapping[str, Mapping[str, LocationAllocation]],
    ) -> str | None:
        """The name of one of the locations that are available; None: the job waits.

        :param requirement: what it takes there
        :param available: those that have room for it, oldest first: a stacked one only if what it lies in has, too
        :param jobs: by their names
        :param locations: by site and name
        """


class Allocations:
    """Where jobs are and were, as policies of third parties see it.

    :param stacks: by site and location, those in which it lies with all that its jobs take
    """

    def __init__(
        self,
        jobs: Mapping[str, JobAllocation] | None = None,
        stacks: Mapping[tuple[str, str], Sequence[str]] | None = None,
    ) -> None:
        self.stacks = stacks or {}
        self.jobs: dict[str, JobAllocation] = {}
        self.locations: dict[str, dict[str, LocationAllocation]] = {}
        for name, each in (jobs or {}).items():
            self.put(name, each)

    def put(self, job: str, allocation: JobAllocation) -> None:
        """Note where a job is."""
        is_new = job not in self.jobs
        self.jobs[job] = allocation
        site = allocation.target.partition("/")[0]
        for name in allocation.locations if is_new else ():
            for each in (name, *self.stacks.get((site, name), ())):
                there = self.locations.setdefault(site, {})
                there.setdefault(each, LocationAllocation(each, site)).jobs.append(job)
