"""Inheritance: the room that comes free for a job because those before it end, and is not asked for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.resources import Resources


class JobShare(NamedTuple):
    """What a job takes somewhere.

    :param is_there: whether it counts as used where it is; else it is to come there
    """

    job: str
    resources: Resources
    is_there: bool


@dataclass(slots=True)
class Spot:
    """A location with jobs of a run, or room that was asked for ahead for a job of it.

    :param location: None: it was asked for, and where that will be is not known
    :param free: what is free now
    """

    site: str
    location: Location | None = None
    free: Resources = Resources()
    shares: list[JobShare] = field(default_factory=list)

    def left(self, before: Collection[str]) -> Resources:
        """What is free when these jobs have ended."""
        free = self.free
        for share in self.shares:
            if share.is_there and share.job in before:
                free += share.resources
            elif not share.is_there and share.job not in before:
                free -= share.resources
        return free

    def has_room(self, job: PlannedJob, before: Collection[str], start: float) -> bool:
        """Whether a job has room there from a moment on, epoch seconds, when these jobs have ended."""
        there = self.location
        suits = there is None or (there.suits(job) and there.lasts(job.time, start))
        return suits and job.resources.fits(self.left(before))


class Inheritance:
    """The room of one run.

    :param locations: by the names of their sites, and their own
    :param at_work: the name, the place and the resources of each job of the run that has a place
    """

    def __init__(
        self,
        locations: Mapping[tuple[str, str], Location],
        at_work: Iterable[tuple[str, tuple[str, str], Resources]],
    ) -> None:
        there: dict[tuple[str, str], Spot] = {}
        for job, where, resources in at_work:
            location = locations.get(where)
            if location is None or location.draining or location.stacked or location.max_jobs is not None:
                continue
            spot = there.setdefault(where, Spot(where[0], location, location.capacity - location.used))
            spot.shares.append(JobShare(job, resources, is_there=True))
        self.spots = list(there.values())
        self.asked_for: dict[str, tuple[int, Spot]] = {}
        """The room that is asked for, by the names of the jobs for which it is, with its number."""

    def missing(self, before: Collection[str], site: str, jobs: Sequence[PlannedJob], start: float) -> list[PlannedJob]:
        """Those of some jobs for which nothing comes free; for the others it is kept.

        :param before: the names of all jobs that come before them
        :param jobs: as they are at the site, all alike: what has no room for one has none for those after it
        :param start: epoch seconds
        """
        # What is asked for comes free when the job has ended for which it is.
        after = sorted(self.asked_for[name] for name in self.asked_for.keys() & frozenset(before))
        spots = iter([each for each in (*self.spots, *(spot for _, spot in after)) if each.site == site])
        spot, left = next(spots, None), list[PlannedJob]()
        for job in jobs:
            while spot is not None and not spot.has_room(job, before, start):
                spot = next(spots, None)
            if spot is None:
                left.append(job)
            else:
                spot.shares.append(JobShare(job.name, job.resources, is_there=False))
        return left

    def asked(self, site: str, jobs: Iterable[PlannedJob]) -> None:
        """Room is asked for these jobs."""
        for job in jobs:
            spot = Spot(site, shares=[JobShare(job.name, job.resources, is_there=True)])
            self.asked_for[job.name] = len(self.asked_for), spot
