"""The policy ``data_locality``: a job goes where its largest input file is that can be had. Pure.

StreamFlow's DataLocalityPolicy (https://streamflow.di.unito.it): inputs are looked at by their weight, the heaviest
first; a location that has one and has room for the job gets it. Where none has, one of the others gets it by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from lading.scheduling.job import PlannedJob
from lading.scheduling.placing.policies import CHEAPEST, PolicyContext
from lading.scheduling.placing.rooms import Rooms


class DataLocality:
    """The choice for the jobs that come to a site.

    :param rest: where a job goes whose inputs are nowhere that has room: ``random`` or ``cheapest``
    :param wait: seconds for which a job waits for a location that has one of its inputs before it goes to another
    """

    def __init__(self, context: PolicyContext, rooms: Rooms, rest: str, wait: float) -> None:
        self.context = context
        self.rooms = rooms
        self.rest = rest
        self.wait = wait
        self._order = {name: number for number, name in enumerate(rooms.by_name)}

    def location(self, job: PlannedJob) -> str | None:
        """Where a job goes; None: it waits."""
        holders = [name for name in self._holders(job) if self.rooms.suits(job, name)]
        for name in holders:
            if self.rooms.has_room(job, name):
                return name
        suiting = self.rooms.suiting(job)
        if holders and self.context.now - job.queued_at < self.wait:
            return None
        return self._cheapest(job, suiting) if self.rest == CHEAPEST else self._by_chance(job, suiting)

    def _holders(self, job: PlannedJob) -> Iterator[str]:
        """The locations of the site that have an input of a job, by the weight of the inputs, then by age."""
        files = self.context.files
        inputs = files.inputs.get(job.name, {})
        for uri in sorted(inputs, key=lambda uri: (-inputs[uri], uri)):
            here = (name for site, name in files.holders.get(uri, ()) if site == self.context.site)
            yield from sorted((name for name in here if name in self._order), key=self._order.__getitem__)

    def _by_chance(self, job: PlannedJob, suiting: list[str]) -> str | None:
        """One of those that have room, another one for each job, and the same whenever that job is asked for."""
        chance = None
        while suiting:
            chance = chance or Random(job.name)  # which takes a while to make
            number = chance.randrange(len(suiting))
            if self.rooms.has_room(job, suiting[number]):
                return suiting[number]
            suiting[number] = suiting[-1]
            suiting.pop()
        return None

    def _cheapest(self, job: PlannedJob, suiting: list[str]) -> str | None:
        there = self.rooms.by_name
        while suiting:
            name = min(suiting, key=lambda name: (there[name].usd_per_hour, self._order[name]))
            if self.rooms.has_room(job, name):
                return name
            suiting.remove(name)
        return None
