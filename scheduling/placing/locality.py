"""The policy ``data_locality``: a job goes to a location that holds its largest available input file. Pure.

StreamFlow's DataLocalityPolicy (https://streamflow.di.unito.it): inputs are checked by size, the largest first; the
first location that has one and has room for the job gets it. If there is none, another location is chosen at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.placing.policies import CHEAPEST, PolicyContext
from lading.scheduling.placing.rooms import Rooms


class DataLocality:
    """Chooses locations for the jobs at a site.

    :param fallback: how to choose if no location with an input has room: ``random`` or ``cheapest``
    :param wait: seconds that a job waits for a location with one of its inputs before it goes to another one
    """

    def __init__(self, context: PolicyContext, rooms: Rooms, fallback: str, wait: float) -> None:
        self.context = context
        self.rooms = rooms
        self.fallback = fallback
        self.wait = wait
        self._order = {name: number for number, name in enumerate(rooms.by_name)}

    def location(self, job: PlannedJob) -> str | None:
        """Return where a job goes; None: it waits."""
        holders = [name for name in self._holders(job) if self.rooms.suits(job, name)]
        for name in holders:
            if self.rooms.has_room(job, name):
                return name
        suiting = self.rooms.suiting(job)
        if holders and self.context.now - job.queued_at < self.wait:
            return None
        return self._cheapest(job, suiting) if self.fallback == CHEAPEST else self._by_chance(job, suiting)

    def _holders(self, job: PlannedJob) -> Iterator[str]:
        """Yield the site's locations that have an input of the job, by size of the input, then by age."""
        files = self.context.files
        inputs = files.inputs.get(job.name, {})
        for uri in sorted(inputs, key=lambda uri: (-inputs[uri], uri)):
            here = (name for site, name in files.holders.get(uri, ()) if site == self.context.site)
            yield from sorted((name for name in here if name in self._order), key=self._order.__getitem__)

    def _by_chance(self, job: PlannedJob, suiting: list[str]) -> str | None:
        """Return a random location with room. The seed is the job's name, so repeated calls give the same answer."""
        chance = None
        while suiting:
            chance = chance or Random(job.name)  # slow to construct, so only if needed
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
