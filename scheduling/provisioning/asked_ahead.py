"""Room requested ahead for jobs for which no plan provides it. Pure.

Members of gangs, and jobs that share few machines, are placed together once they have come, and some sites use no plan
at all. The start of such a job is predicted from what its run still has to do. Room is requested ahead by the time it
takes to become available, unless the job inherits room from earlier jobs that finish.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from lading.scheduling.forecast.coming import ComingRun, RoomRequest, run_steps
from lading.scheduling.forecast.critical_path import NO_SITE
from lading.scheduling.forecast.forecast import Forecast, RoomWait, WorkflowStep
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.provisioning.coming_work import after_unknown
from lading.scheduling.provisioning.inheritance import Inheritance

# The number of jobs examined per run: first those with requested room, then those that start first. The others are
# examined when their start is closer.
MOST_JOBS = 1_000


class AskedJob(NamedTuple):
    """An upcoming job for which room is requested.

    :param name: as in the forecast
    :param start: predicted start, epoch seconds
    """

    name: str
    task_id: str
    site: str
    start: float


class Request(NamedTuple):
    """An upcoming job for which room can be requested.

    :param wait: seconds until there is room
    """

    task_id: str
    room: RoomRequest
    wait: float


def asked_ahead(run: ComingRun, sites: Iterable[SiteView], asked_at: Mapping[str, float], now: float) -> list[AskedJob]:
    """Return the jobs of a run for which room is requested now.

    Excluded are jobs behind one whose length is unknown, jobs that wait for a retry, and those behind them.

    :param sites: with what is on them
    :param asked_at: since when room is requested, by job name, epoch seconds
    :param now: epoch seconds
    """
    requests = {
        job.name: Request(task_id, task.request, job.room_wait.seconds)
        for task_id, task in run.tasks.items()
        if task.request is not None
        for job in task.jobs
        if job.token is None and job.begun is None and job.room_wait is not None
    }
    if not requests:
        return []
    steps = run_steps(run, NO_SITE)
    for name, each in requests.items():
        steps[name] = replace(steps[name], room_wait=RoomWait(each.wait, asked_at.get(name, now)))
    forecast = Forecast(steps)
    left = (requests.keys() & forecast.without(_retried(run)).steps.keys()) - after_unknown(forecast)
    room, before = _room(run, sites), dict[tuple[str, ...], frozenset[str]]()
    found: list[AskedJob] = []
    looks = MOST_JOBS
    while left and looks:
        starts = Forecast(steps).soonest(now)
        due = [name for name in left if name in asked_at or starts[name] <= now + requests[name].wait]
        due = sorted(due, key=lambda name: (name not in asked_at, starts[name], name))[:looks]
        left, looks = left.difference(due), looks - len(due)
        inherits = False
        for names in _together(due, starts, steps, requests):
            (task_id, request, _), parents, start = requests[names[0]], steps[names[0]].parents, starts[names[0]]
            if parents not in before:
                before[parents] = _all_before(parents, steps)
            needs = [replace(request.need, name=name) for name in names]
            missing: list[PlannedJob] = room.missing(before[parents], request.site, needs, start)
            room.asked(request.site, missing)
            found += [AskedJob(each.name, task_id, request.site, start) for each in missing]
            for name in set(names).difference(each.name for each in missing):
                # It inherits room without waiting, so the jobs after it start sooner.
                steps[name] = replace(steps[name], room_wait=None)
                inherits = True
        if not inherits:
            break
    if run.most_at_once is None:
        return found
    admitted = _at_once(steps, run.most_at_once, asked_at, now)
    return [each for each in found if each.name in admitted]


def _retried(run: ComingRun) -> list[str]:
    """Return the jobs that wait for a retry, and the members of gangs that start with such a job."""
    gangs = {task.gang for task in run.tasks.values() if any(job.retries for job in task.jobs)} - {None}
    return [job.name for task in run.tasks.values() for job in task.jobs if job.retries or task.gang in gangs]


def _at_once(steps: Mapping[str, WorkflowStep], most: int, asked_at: Mapping[str, float], now: float) -> set[str]:
    """Return the steps that can start as soon as possible under a limit of ``most`` concurrent steps.

    Earlier starts come first; ties go to running steps, then to those with requested room.
    """
    starts, found, ends = Forecast(steps).soonest(now), set[str](), list[float]()

    def place(name: str) -> tuple[float, bool, bool, str]:
        return starts[name], steps[name].begun is None, name not in asked_at, name

    for name in sorted((name for name, step in steps.items() if step.seconds), key=place):
        while ends and ends[0] <= starts[name]:
            heapq.heappop(ends)
        if len(ends) < most:
            heapq.heappush(ends, starts[name] + steps[name].left(now))
            found.add(name)
    return found


def _together(
    due: Iterable[str],
    starts: Mapping[str, float],
    steps: Mapping[str, WorkflowStep],
    requests: Mapping[str, Request],
) -> list[list[str]]:
    """Group jobs of the same task and with the same parents, by their starts."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in sorted(due, key=lambda name: (starts[name], name)):
        alike.setdefault((requests[name].task_id, steps[name].parents), []).append(name)
    return [*alike.values()]


def _all_before(parents: Iterable[str], steps: Mapping[str, WorkflowStep]) -> frozenset[str]:
    """Return the names of all direct and indirect predecessors of steps with these parents."""
    found, further = set[str](), [*parents]
    while further:
        name = further.pop()
        if name in steps and name not in found:
            found.add(name)
            further += steps[name].parents
    return frozenset(found)


def _room(run: ComingRun, sites: Iterable[SiteView]) -> Inheritance:
    """Return the room that becomes free when jobs of the run finish."""
    at_work = [
        (job.name, (job.site, job.location), job.need.resources)
        for task in run.tasks.values()
        for job in task.jobs
        if job.begun is not None and job.site is not None and job.location is not None and job.need is not None
    ]
    there: dict[tuple[str, str], Location] = {}
    for site in sites if at_work else ():
        there.update(((site.name, each.name), each) for each in (*site.launched, *site.locations))
    return Inheritance(there, at_work)
