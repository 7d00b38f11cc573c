"""Inheritance: room that becomes free for a job because earlier jobs finish, so that it is not requested. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.resources import Resources


class JobShare(NamedTuple):
    """What a job takes at a spot.

    :param is_there: True: it is included in the spot's use; False: it is promised to an upcoming job
    """

    job: str
    resources: Resources
    is_there: bool


@dataclass(slots=True)
class Spot:
    """A location with jobs of a run, or room that was requested ahead for one of its jobs.

    :param location: None: the room was requested, and its location is unknown
    :param free: what is free now
    """

    site: str
    location: Location | None = None
    free: Resources = Resources()
    shares: list[JobShare] = field(default_factory=list)

    def left(self, before: Collection[str]) -> Resources:
        """Return what is free once these jobs have finished."""
        free = self.free
        for share in self.shares:
            if share.is_there and share.job in before:
                free += share.resources
            elif not share.is_there and share.job not in before:
                free -= share.resources
        return free

    def has_room(self, job: PlannedJob, before: Collection[str], start: float) -> bool:
        """Return whether a job has room from ``start`` (epoch seconds) on, once these jobs have finished."""
        there = self.location
        suits = there is None or (there.suits(job) and there.lasts(job.time, start))
        return suits and job.resources.fits(self.left(before))


class Inheritance:
    """The room of one run.

    :param locations: by site and name
    :param at_work: name, place and resources of each job of the run that has a place
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
        """The requested rooms, numbered, by the name of the job each was requested for."""

    def missing(self, before: Collection[str], site: str, jobs: Sequence[PlannedJob], start: float) -> list[PlannedJob]:
        """Return the jobs that inherit no room; for the others, room is kept.

        :param before: the names of all their predecessors
        :param jobs: equal jobs, as they are at the site: a spot without room for one has none for the next
        :param start: epoch seconds
        """
        # Requested room becomes free when the job it was requested for has finished.
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
        for job in jobs:
            spot = Spot(site, shares=[JobShare(job.name, job.resources, is_there=True)])
            self.asked_for[job.name] = len(self.asked_for), spot
