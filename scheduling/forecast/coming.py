"""What is still to come of live runs, as a forecast of the jobs of one site: the others take time alone. Pure.

A job has the same name before Airflow has queued it and after, so that a plan which was made before holds afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from lading.scheduling.forecast.forecast import Forecast, RoomWait, WorkflowStep
from lading.scheduling.job import PlannedJob
from lading.scheduling.plan import InstanceLimits
from lading.scheduling.prediction import Prediction
from lading.scheduling.resources import Resources

# No job is expected to be over sooner than this, seconds.
LEAST_SECONDS = 0.1
NO_NEED = Resources()


@dataclass(frozen=True, slots=True)
class ComingJob:
    """A job that has not ended, or is still to come.

    :param name: unique, and the same as long as it is for the same task instance
    :param expected: how long it runs from its start
    :param site: the name of the site whose machines it needs; None: it needs none that is bought by a forecast
    :param need: what it takes there
    :param index: its place among the jobs of a mapped task; -1: the task is not mapped
    :param token: the name of the job that waits or is at work; None: it is still to come
    :param begun: epoch seconds since when it is at work; None: it waits, or is still to come
    :param location: the name of the machine on which it is at work; None: it is on none that others share
    :param pool: Airflow's pool in which it is, None: that is not known; ``pool_slots``: how many slots it takes there
    :param room_wait: for how long it waits for room that no forecast buys; None: not at all, as far as that is known
    :param retries: whether it waits for its next try, so that it is not known when it begins
    """

    name: str
    expected: Prediction
    site: str | None = None
    need: PlannedJob | None = None
    index: int = -1
    token: str | None = None
    begun: float | None = None
    location: str | None = None
    pool: str | None = None
    pool_slots: int = 1
    room_wait: RoomWait | None = None
    retries: bool = False


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """Where room is asked for ahead that no plan provides, and what a job takes there.

    Members of gangs find their places together when they have come; and some sites go by no plan.
    """

    site: str
    need: PlannedJob


@dataclass(frozen=True, slots=True)
class ComingTask:
    """A task of a run that has not ended.

    :param jobs: those of it that have not ended; a task that is left out has none, and is passed through
    :param upstream: the tasks that come right before it; those that have ended may be left out
    :param by_index: those of them of which only the job of the same index comes before a job, as in a mapped task group
    :param most: how many of its jobs may be at work at a time; None: any number
    :param priority: the higher it is the sooner its jobs get room
    :param ahead: whether what its jobs need is asked for before they have come; None: where their start is certain
    :param gang: its jobs begin together with those of the other tasks of the same gang; None: it is in none
    :param request: what is asked for ahead of each of its jobs though no plan provides it; None: nothing
    :param before: by the index of a job: the upstream tasks of which not all jobs come before it, and the indices of
        those that do
    :param max_instances: on how many machines its jobs may be at once; None: on any number
    """

    jobs: Sequence[ComingJob]
    upstream: Sequence[str] = ()
    by_index: AbstractSet[str] = frozenset()
    most: int | None = None
    priority: int = 1
    ahead: bool | None = None
    gang: str | None = None
    request: RoomRequest | None = None
    before: Mapping[int, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    max_instances: int | None = None


@dataclass(frozen=True, slots=True)
class ComingRun:
    """A live run.

    :param name: unique among the runs
    :param began: epoch seconds
    :param tasks: those that have not ended, by their ids
    :param hurry: what time is worth to it (:mod:`lading.scheduling.forecast.choice`); None: what the site says
    :param finish_by: epoch seconds until which it shall have ended; None: its hurry alone counts
    :param most_at_once: how many of its jobs Airflow lets be at work at a time; None: any number
    :param max_instances: on how many machines its jobs may be at once; None: on any number
    """

    name: str
    began: float
    tasks: Mapping[str, ComingTask]
    hurry: float | None = None
    most_at_once: int | None = None
    finish_by: float | None = None
    max_instances: int | None = None


@dataclass(frozen=True, slots=True)
class SiteForecast:
    """What is to come at one site.

    :param waiting: the names of the steps that wait there for a place, each with the token of its job
    :param come: the steps that Airflow has queued, or that are at work
    :param ready: those that have not begun, though all before them have ended; but for those that wait at the site
    :param groups: on how many machines there the steps of tasks and runs may be
    """

    forecast: Forecast
    waiting: Mapping[str, str] = field(default_factory=dict)
    come: AbstractSet[str] = frozenset()
    ready: AbstractSet[str] = frozenset()
    groups: InstanceLimits = InstanceLimits()  # noqa: RUF009 (frozen)

    def held(self, runs: Container[str | None], jobs: Container[str] = ()) -> list[str]:
        """The steps that may not begin there.

        :param runs: of which none may
        :param jobs: that may not, by their tokens
        """
        of_runs = [name for name, step in self.forecast.steps.items() if step.begun is None and step.job.run in runs]
        return of_runs + [name for name, token in self.waiting.items() if token in jobs]

    def unqueued(self) -> list[str]:
        """The steps that Airflow could have begun or queued and has not, as far as is known here: their runs and pools
        have room for them."""
        if not self.ready:
            return []
        steps = self.forecast.steps
        runs = Counter(steps[name].job.run for name in self.come)
        pools: Counter[str | None] = Counter()
        for name in self.come:
            pools[steps[name].pool] += steps[name].pool_slots
        return [
            name
            for name in self.ready
            if name in self.come
            # Its pool never lets it begin, as one that is closed with 0 slots.
            or steps[name].pool_slots > self.forecast.pools.get(steps[name].pool or "", math.inf)
            or (
                runs[steps[name].job.run] < self.forecast.most_at_once.get(steps[name].job.run or "", math.inf)
                and pools[steps[name].pool] + steps[name].pool_slots
                <= self.forecast.pools.get(steps[name].pool or "", math.inf)
            )
        ]


@dataclass(frozen=True, slots=True)
class RunAtSite:
    """What is to come of one run, as far as it concerns a site: see :class:`SiteForecast`."""

    run: ComingRun
    steps: Mapping[str, WorkflowStep]
    waiting: Mapping[str, str]
    come: AbstractSet[str]
    ready: AbstractSet[str]
    groups: InstanceLimits


def site_forecast(
    parts: Iterable[RunAtSite], pools: Mapping[str, int] = {}, turns: Mapping[str, tuple[int, float]] = {}
) -> SiteForecast:
    """What runs still have to do, as far as it concerns a site; those of which nothing is to be done there are left
    out.

    :param pools: how many slots each of Airflow's pools has; absent: any number
    :param turns: the priority and the turn that shares give to waiting jobs, by token; empty: they are of one share
    """
    its = [part for part in parts if part.steps]
    steps: dict[str, WorkflowStep] = {}
    waiting: dict[str, str] = {}
    for part in its:
        steps.update(part.steps)
        waiting.update(part.waiting)
    runs = [part.run for part in its]
    return SiteForecast(
        Forecast(
            steps,
            {run.name: run.began for run in runs},
            {run.name: run.hurry for run in runs if run.hurry is not None},
            {run.name: run.most_at_once for run in runs if run.most_at_once is not None},
            {run.name: run.finish_by for run in runs if run.finish_by is not None},
            pools,
            {name: turns[token] for name, token in waiting.items() if token in turns},
        ),
        waiting,
        frozenset().union(*(part.come for part in its)),
        frozenset().union(*(part.ready for part in its)),
        InstanceLimits(
            tasks={name: most for part in its for name, most in part.groups.tasks.items()},
            runs={name: most for part in its for name, most in part.groups.runs.items()},
        ),
    )


def parts_at(runs: Sequence[ComingRun], site: str, before: Mapping[str, RunAtSite]) -> dict[str, RunAtSite]:
    """What runs have to do at the site of this name, by their names; of those that are the same as before it is known.

    :param before: what this has found before
    """
    known = {run.name: before.get(run.name) for run in runs}
    return {
        run.name: part if (part := known[run.name]) is not None and part.run is run else run_at_site(run, site)
        for run in runs
    }


def run_at_site(run: ComingRun, site: str) -> RunAtSite:
    """What is to come of a run, as far as it concerns a site; without steps where nothing of it does."""
    jobs = [job for task in run.tasks.values() for job in task.jobs]
    its = [job for job in jobs if job.site == site]
    if not its:
        return RunAtSite(run, {}, {}, frozenset(), frozenset(), InstanceLimits())
    waiting = {job.name: job.token for job in its if job.token is not None and job.begun is None}
    steps = run_steps(run, site)
    come = frozenset(job.name for job in jobs if job.token is not None or job.begun is not None)
    ready = frozenset(name for name in Forecast(steps).ready() if steps[name].seconds and name not in waiting)
    return RunAtSite(run, steps, waiting, come, ready, groups_at(run, site))


def groups_at(run: ComingRun, site: str) -> InstanceLimits:
    """On how many machines of a site a run and its tasks may be: those on which they are elsewhere count."""

    def left(most: int, jobs: Iterable[ComingJob]) -> int:
        at_work = [job for job in jobs if job.begun is not None]
        shared = {(job.site, job.location) for job in at_work if job.location is not None and job.site != site}
        own = sum(1 if job.need is None else job.need.nodes for job in at_work if job.site and job.location is None)
        return max(0, most - len(shared) - own)

    limited = [(task, task.max_instances) for task in run.tasks.values() if task.max_instances is not None]
    tasks = {
        label: left(most, task.jobs)
        for task, most in limited
        for label in {job.need.task for job in task.jobs if job.need is not None and job.need.task is not None}
    }
    if run.max_instances is None:
        return InstanceLimits(tasks=tasks)
    jobs = (job for task in run.tasks.values() for job in task.jobs)
    return InstanceLimits(tasks=tasks, runs={run.name: left(run.max_instances, jobs)})


def run_steps(run: ComingRun, site: str) -> dict[str, WorkflowStep]:
    """The steps of a run: its jobs, and where all jobs of a task come before others a step without a length that ends
    with the last of them, for of a thousand jobs before a thousand others each would have a thousand parents. A gang
    begins with such a step, too."""
    steps: dict[str, WorkflowStep] = {}
    ends = {task_id: _end(run, task_id, task) for task_id, task in run.tasks.items()}
    begins = _begins(run, ends)
    steps.update((step.job.name, step) for step in begins.values())
    names = {(task_id, job.index): job.name for task_id, task in run.tasks.items() for job in task.jobs}
    for task_id, task in run.tasks.items():
        upstream = [each for each in task.upstream if each in run.tasks]
        every = tuple(ends[each] for each in upstream)
        in_common = tuple(ends[each] for each in upstream if each not in task.by_index)
        alike: dict[int, list[str]] = {}
        for other in (job for each in upstream if each in task.by_index for job in run.tasks[each].jobs):
            alike.setdefault(other.index, []).append(other.name)
        # Those at work come first, then those that wait; where there are too many each waits for one before it.
        ordered = sorted(task.jobs, key=lambda job: (job.begun is None, job.token is None, job.index))
        # An earlier try that has not quite ended has the same name: the later one counts.
        jobs = list({job.name: job for job in ordered}.values())
        for place, job in enumerate(jobs):
            has_come = job.token is not None or job.begun is not None
            parents = () if has_come else (*in_common, *alike.get(job.index, ()))
            if not has_come and (some := task.before.get(job.index)):
                its = [(each, index) for each, indices in some.items() for index in indices]
                parents = (
                    *(ends[each] for each in upstream if each not in some),
                    *(names[each] for each in its if each in names),
                )
            if task.gang is not None and job.begun is None:  # those that have come wait for the others
                parents = (begins[task.gang].job.name,)
            if task.most and place >= task.most and job.begun is None:
                parents = (*parents, jobs[place - task.most].name)
            steps[job.name] = _step(run, job, parents, site, task_id, task)
        if not _is_one(task):
            nothing = PlannedJob(ends[task_id], NO_NEED, run=run.name)
            parents = tuple(job.name for job in task.jobs) or every
            steps[ends[task_id]] = WorkflowStep(nothing, 0.0, parents, elsewhere=True)
    return steps


def _begins(run: ComingRun, ends: Mapping[str, str]) -> dict[str, WorkflowStep]:
    """The steps without a length that end when gangs may begin, by the names of these.

    :param ends: the names of the steps whose ends are those of the tasks
    """
    before: dict[str, dict[str, None]] = {}
    for task in run.tasks.values():
        if task.gang is not None:
            others = [each for each in task.upstream if each in run.tasks and run.tasks[each].gang != task.gang]
            before.setdefault(task.gang, {}).update(dict.fromkeys(ends[each] for each in others))
    names = {gang: PlannedJob(f"{run.name} gang {gang} begin", NO_NEED, run=run.name) for gang in before}
    return {gang: WorkflowStep(names[gang], 0.0, tuple(some), elsewhere=True) for gang, some in before.items()}


def _end(run: ComingRun, task_id: str, task: ComingTask) -> str:
    """The name of the step whose end is the end of a task."""
    return task.jobs[0].name if _is_one(task) else f"{run.name} {task_id} end"


def _is_one(task: ComingTask) -> bool:
    """Whether a task is one job, and was from the beginning: of a mapped one that is left others have ended."""
    return len(task.jobs) == 1 and task.jobs[0].index < 0


def _step(
    run: ComingRun, job: ComingJob, parents: tuple[str, ...], site: str, task_id: str, task: ComingTask
) -> WorkflowStep:
    seconds, need = max(LEAST_SECONDS, job.expected.seconds), job.need
    if need is None or job.site != site:
        nothing = PlannedJob(job.name, NO_NEED, run=run.name)
        return WorkflowStep(
            nothing,
            seconds,
            parents,
            job.begun,
            None,
            job.expected.spread,
            elsewhere=True,
            room_wait=job.room_wait,
            pool=job.pool,
            pool_slots=job.pool_slots,
            alike=task_id,
            measured=job.expected.number,
        )
    asked = PlannedJob(
        job.name,
        need.resources,
        priority=task.priority,
        time=need.time,
        run=run.name,
        arch=need.arch,
        features=need.features,
        task=need.task,
        instance_type=need.instance_type,
        capacity_type=need.capacity_type,
        hints=need.hints,
        os=need.os,
        types=need.types,
    )
    return WorkflowStep(
        asked,
        seconds,
        parents,
        job.begun,
        job.location,
        job.expected.spread,
        pool=job.pool,
        pool_slots=job.pool_slots,
        ahead=task.ahead,
        alike=task_id,
        measured=job.expected.number,
    )


def alone(job: ComingJob, since: float) -> ComingRun:
    """A job of which nothing else is known, as a run of its own.

    :param since: epoch seconds
    """
    return ComingRun(job.name, since, {"": ComingTask((job,))})
