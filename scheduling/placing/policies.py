"""The interface of policies, which choose a location of a site for each job, and the data they can use. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.model.resources import Resources

GREEDY, PRICED = "greedy", "priced"
FIRST_COME, DATA_LOCALITY = "first_come", "data_locality"
# Lading's own policies see all jobs of a site at once. The filling ones also prefetch jobs to machines before there is
# room; the others place a job only when there is room.
FILLING = (GREEDY, PRICED, FORECAST)
BUILT_IN = (*FILLING, FIRST_COME, DATA_LOCALITY)
# The policies that a site with existing machines can have, and a site that buys machines.
OF_ANY_SITE = (GREEDY, PRICED, FIRST_COME, DATA_LOCALITY)
OF_BUYERS = (FORECAST, GREEDY, FIRST_COME, DATA_LOCALITY)
# How data_locality chooses if no location with a job's data has room.
RANDOM, CHEAPEST = "random", "cheapest"


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """Where a job is, or was.

    :param target: the site, with the queue if the job was given one: ``hpc/long``
    :param locations: their names, without those they are stacked on
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

    :param jobs: the names of all jobs that it, or a location stacked on it, has had
    """

    name: str
    site: str
    jobs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Files:
    """Input files and their locations.

    :param inputs: by waiting job: the bytes of its input files by URI
    :param holders: by URI, where a file is: pairs of a site and a location
    """

    inputs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    holders: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The context of a policy's decision.

    :param site: the name of the site that the job has come to
    :param now: epoch seconds
    """

    site: str
    now: float
    files: Files


class Policy(Protocol):
    """A third-party policy. It is called for one job at a time, after the jobs before it have been placed."""

    def get_location(
        self,
        context: PolicyContext,
        job: PlannedJob,
        requirement: Resources,
        available: Mapping[str, Location],
        jobs: Mapping[str, JobAllocation],
        locations: Mapping[str, Mapping[str, LocationAllocation]],
    ) -> str | None:
        """Return the name of one of the available locations; None: the job waits.

        :param requirement: what it takes there
        :param available: those with room for it, oldest first; a stacked location only if those beneath it have room,
            too
        :param jobs: by name
        :param locations: by site and name
        """


class Allocations:
    """Where jobs are and were, as third-party policies see it.

    :param stacks: by site and location, the locations it is stacked on, which its jobs use as well
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
        is_new = job not in self.jobs
        self.jobs[job] = allocation
        site = allocation.target.partition("/")[0]
        for name in allocation.locations if is_new else ():
            for each in (name, *self.stacks.get((site, name), ())):
                there = self.locations.setdefault(site, {})
                there.setdefault(each, LocationAllocation(each, site)).jobs.append(job)
