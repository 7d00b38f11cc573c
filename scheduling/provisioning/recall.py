"""Which prefetched jobs are recalled from a location where they have not started."""

from __future__ import annotations

from collections.abc import Sequence

from lading.scheduling.matching import groups
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.provisioning.planner import placements


def recalls(live: Sequence[Location], settled: frozenset[str], *, now: float) -> dict[str, list[str]]:
    """Return, by location, the prefetched jobs that it can no longer run, or that another could run at once.

    :param settled: those that were prefetched a while ago; the others could start at any moment
    """
    home = {job.name: each.name for each in live for job in each.prefetched}
    recalled = {job.name for each in live for job in each.prefetched if not suits(each, job, now)}
    movable = [job for each in live for job in each.prefetched if job.name in settled and job.name not in recalled]
    open_ones = [each for each in live if takes(each)]
    if movable and len(open_ones) > 1:
        recalled |= {
            each.job
            for each in placements(movable, open_ones, groups.no_further(movable), now=now)
            if each.location != home[each.job]
        }
    back: dict[str, list[str]] = {}
    for name, location in home.items():
        if name in recalled:
            back.setdefault(location, []).append(name)
    return back


def takes(allocation: Location) -> bool:
    return not (allocation.booting or allocation.draining)


def suits(allocation: Location, job: PlannedJob, now: float) -> bool:
    return allocation.suits(job) and allocation.lasts(job.time or 0.0, now) and not allocation.draining
