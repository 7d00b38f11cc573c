"""Room that is asked for ahead of jobs for which no plan provides it. Pure.

Members of gangs, and jobs that share few machines, find their places together when they have come; some sites go by no
plan at all. When such a job begins is known from what is to come of its run: what it needs is asked for so long before
as it takes until there is room, but for what comes free where those before it end.
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

# Of a run so many jobs are looked at, those first for which room is asked for already, then those that start first: the
# others when they come nearer.
MOST_JOBS = 1_000


class AskedJob(NamedTuple):
    """A job that is to come and for which room is asked for.

    :param name: as in the forecast
    :param start: when it is to begin, epoch seconds
    """

    name: str
    task_id: str
    site: str
    start: float


class Request(NamedTuple):
    """A job that is to come and for which room may be asked for.

    :param wait: seconds until there is room
    """

    task_id: str
    room: RoomRequest
    wait: float


def asked_ahead(run: ComingRun, sites: Iterable[SiteView], asked_at: Mapping[str, float], now: float) -> list[AskedJob]:
    """The jobs of a run for which room is asked for now.

    Of those behind a job of which it is not known how long it takes there are none, nor of those that wait for a retry
    or come after it.

    :param sites: with what is on them
    :param asked_at: since when it is asked for, by the names of jobs, epoch seconds
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
                # It waits for nothing, so what comes after it starts sooner.
                steps[name] = replace(steps[name], room_wait=None)
                inherits = True
        if not inherits:
            break
    if run.most_at_once is None:
        return found
    admitted = _at_once(steps, run.most_at_once, asked_at, now)
    return [each for each in found if each.name in admitted]


def _retried(run: ComingRun) -> list[str]:
    """The jobs that wait for a retry, and the members of gangs that begin with such a one."""
    gangs = {task.gang for task in run.tasks.values() if any(job.retries for job in task.jobs)} - {None}
    return [job.name for task in run.tasks.values() for job in task.jobs if job.retries or task.gang in gangs]


def _at_once(steps: Mapping[str, WorkflowStep], most: int, asked_at: Mapping[str, float], now: float) -> set[str]:
    """The steps that begin as early as they may with others where so many are at work at a time: those first that start
    first, and of these what is asked for already."""
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
    """The jobs of a task that wait for the same ones together, those first that start first."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in sorted(due, key=lambda name: (starts[name], name)):
        alike.setdefault((requests[name].task_id, steps[name].parents), []).append(name)
    return [*alike.values()]


def _all_before(parents: Iterable[str], steps: Mapping[str, WorkflowStep]) -> frozenset[str]:
    """The names of all steps that come before those with such parents, however far."""
    found, further = set[str](), [*parents]
    while further:
        name = further.pop()
        if name in steps and name not in found:
            found.add(name)
            further += steps[name].parents
    return frozenset(found)


def _room(run: ComingRun, sites: Iterable[SiteView]) -> Inheritance:
    """What comes free when jobs of the run end."""
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
