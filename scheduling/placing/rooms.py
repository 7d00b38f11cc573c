"""The free room of a site's locations while jobs are given to them one by one. Pure.

A stacked location lies in another one, and what its jobs take is taken from that one as well, at any depth. For any
other location only its own figures count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from lading.scheduling.matching.groups import Allowance, labels
from lading.scheduling.model.job import PlannedJob, Wish
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import Resources


def stacks(locations: Iterable[Location]) -> dict[str, tuple[str, ...]]:
    """Return for each stacked location the locations it lies in, down to one that is not stacked."""
    by_name = {each.name: each for each in locations}
    beneath_by_name = {}
    for name, location in by_name.items():
        beneath: list[str] = []
        each: Location | None = location
        while each is not None and each.stacked and each.wraps is not None and each.wraps not in beneath:
            beneath.append(each.wraps)
            each = by_name.get(each.wraps)
        if beneath:
            beneath_by_name[name] = tuple(beneath)
    return beneath_by_name


def within_stacks(locations: Sequence[Location]) -> tuple[Location, ...]:
    """Return the locations with the capacity that a job can ever have there, bounded by those they lie in."""
    by_name = {each.name: each for each in locations}
    beneath = stacks(locations)

    def bounded(location: Location) -> Location:
        here = [location.capacity, *(by_name[name].capacity for name in beneath[location.name] if name in by_name)]
        amounts = {name: min(getattr(each, name) for each in here) for name in ("cpus", "memory", "disk", "gpus")}
        return replace(location, capacity=Resources(**amounts))

    return tuple(bounded(each) if each.name in beneath else each for each in locations)


class Rooms:
    """The locations that take jobs now, oldest first.

    :param limits: on the number of them with jobs of a task or a run
    :param now: epoch seconds
    """

    def __init__(self, locations: Sequence[Location], limits: InstanceLimits, now: float) -> None:
        self.by_name = {each.name: each for each in locations}
        self.now = now
        self._kinds = {each.name: each.kind for each in locations}
        self._queued = {each.name: each.jobs for each in locations}
        self._allowance = Allowance(limits, locations)
        self._beneath = stacks(locations)
        self._free = {each.name: each.capacity - each.used for each in locations}
        self._changed: set[str] = set()
        self._suiting: dict[Hashable, list[str]] = {}
        for name in self._beneath:
            self._take(self.by_name[name].used, self._beneath[name])

    def suiting(self, job: PlannedJob) -> list[str]:
        """Return the locations that could have room for a job, the latest first; jobs of one shape share the list.

        A location without room for one job has none for later ones of its shape, so the caller removes it from the
        list.
        """
        key = job.resources, job.wish, job.time, job.nodes, job.queue, job.native, *labels(job)
        if key not in self._suiting:
            wish = job.wish
            self._suiting[key] = [name for name in reversed(self.by_name) if self.suits(job, name, wish)]
        return self._suiting[key]

    def suits(self, job: PlannedJob, name: str, wish: Wish | None = None) -> bool:
        """Return whether a job can run at a location, busy or not, before the location ends.

        :param wish: the job's wish, if the caller has it
        """
        location = self.by_name[name]
        fits = job.resources.fits(location.capacity) and location.lasts(job.time, self.now)
        return fits and self._kinds[name].grants(wish or job.wish) and location.has_nodes(job)

    def has_room(self, job: PlannedJob, name: str) -> bool:
        """Return whether a location that suits a job, and every location beneath it, has room now."""
        location = self.by_name[name]
        if location.max_jobs is not None:
            return self._queued[name] < location.max_jobs and not self._allowance.full(job)
        if not (job.resources.fits(self._free[name]) and self._allowance.admits(job, name)):
            return False
        beneath = self._beneath.get(name, ())
        return all(each in self._free and job.resources.fits(self._free[each]) for each in beneath)

    def oldest(self, job: PlannedJob) -> str | None:
        suiting = self.suiting(job)
        while suiting and not self.has_room(job, suiting[-1]):
            suiting.pop()
        return suiting[-1] if suiting else None

    def available(self, job: PlannedJob) -> dict[str, Location]:
        """Return the locations with room for a job now, oldest first."""
        suiting = self.suiting(job)
        suiting[:] = [name for name in suiting if self.has_room(job, name)]
        for name in self._changed:
            location, used = self.by_name[name], self.by_name[name].capacity - self._free[name]
            self.by_name[name] = replace(location, used=used, jobs=self._queued[name])
        self._changed.clear()
        return {name: self.by_name[name] for name in reversed(suiting)}

    def put(self, job: PlannedJob, name: str) -> None:
        location = self.by_name[name]
        if location.max_jobs is not None:
            self._queued[name] += 1
            self._changed.add(name)
            self._allowance.put_batch_job(job, name)
            return
        self._take(job.resources, (name, *self._beneath.get(name, ())))
        self._allowance.put(job, name)

    def _take(self, used: Resources, names: Sequence[str]) -> None:
        for name in names:
            if name in self._free:  # a location beneath that takes no jobs now is not tracked
                self._free[name] -= used
                self._changed.add(name)
