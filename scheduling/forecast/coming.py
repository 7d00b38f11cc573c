"""The upcoming work of live runs, as a forecast for one site; work elsewhere only takes time. Pure.

A job has the same name before and after Airflow has queued it, so a plan made before stays valid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from lading.scheduling.forecast.forecast import Forecast, RoomWait, WorkflowStep
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources

# The shortest length that is expected of a job, seconds.
LEAST_SECONDS = 0.1
NO_NEED = Resources()


@dataclass(frozen=True, slots=True)
class ComingJob:
    """A job that is unfinished or still expected.

    :param name: unique, and stable for the same task instance
    :param expected: its predicted length from its start
    :param site: the site whose machines it needs; None: it needs none that a forecast launches
    :param need: its requests there
    :param index: its map index; -1: the task is not mapped
    :param token: the token of the job once Airflow has queued it; None: not queued yet
    :param begun: since when it is active, epoch seconds; None: it waits, or is not queued yet
    :param location: the machine on which it runs; None: none that other jobs share
    :param pool: its Airflow pool; None: unknown
    :param pool_slots: how many slots it takes there
    :param room_wait: how long it waits for room that no forecast buys; None: not at all, as far as is known
    :param retries: whether it waits for its next try, so that its start is unknown, and that of its gang
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
class ComingTask:
    """An unfinished task of a run.

    :param jobs: its unfinished jobs; tasks between others can be omitted once they have none
    :param upstream: the tasks directly before it; finished ones can be omitted
    :param by_index: the upstream tasks where each job waits only for the job with its own index, as in a mapped task
        group
    :param most: how many of its jobs can be active at once; None: any number
    :param priority: jobs of tasks with a higher priority get room first
    :param ahead: whether capacity is requested for its jobs before these are queued; None: only if their start is
        certain
    :param gang: its jobs start together with those of the other tasks of this gang; None: no gang
    :param at_once: whether its jobs get room as soon as they can start, as members of gangs and jobs with attempts do
    :param before: for a job index, the upstream tasks where it waits only for some jobs, and the indexes of these
    :param max_instances: on how many machines its jobs can run at once; None: any number
    """

    jobs: Sequence[ComingJob]
    upstream: Sequence[str] = ()
    by_index: AbstractSet[str] = frozenset()
    most: int | None = None
    priority: int = 1
    ahead: bool | None = None
    gang: str | None = None
    at_once: bool = False
    before: Mapping[int, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    max_instances: int | None = None


@dataclass(frozen=True, slots=True)
class ComingRun:
    """A live run.

    :param name: unique among the runs
    :param began: epoch seconds
    :param tasks: its unfinished tasks, by id
    :param hurry: the value of its time (:mod:`lading.scheduling.forecast.choice`); None: the site's setting
    :param finish_by: the deadline of the run, epoch seconds; None: only its hurry counts
    :param most_at_once: how many of its jobs Airflow allows to be active at once; None: any number
    :param max_instances: on how many machines its jobs can run at once; None: any number
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
    """The upcoming work at one site.

    :param waiting: the steps that wait there for a place, each with the token of its job
    :param come: the steps that are queued or active
    :param ready: the steps that have not started although all steps before them have finished, except those waiting at
        the site
    :param groups: on how many machines there the steps of tasks and runs can run
    """

    forecast: Forecast
    waiting: Mapping[str, str] = field(default_factory=dict)
    come: AbstractSet[str] = frozenset()
    ready: AbstractSet[str] = frozenset()
    groups: InstanceLimits = InstanceLimits()  # noqa: RUF009 (frozen)

    def held(self, runs: Container[str | None], jobs: Container[str] = ()) -> list[str]:
        """The steps that are not allowed to start there.

        :param runs: none of their steps is allowed to
        :param jobs: the tokens of further jobs that are not allowed to
        """
        of_runs = [name for name, step in self.forecast.steps.items() if step.begun is None and step.job.run in runs]
        return of_runs + [name for name, token in self.waiting.items() if token in jobs]

    def without(self, names: Collection[str]) -> SiteForecast:
        """The same work without these steps and all steps that wait for them."""
        if not names:
            return self
        forecast = self.forecast.without(names)
        return replace(
            self,
            forecast=forecast,
            waiting={name: token for name, token in self.waiting.items() if name in forecast.steps},
            come=self.come & forecast.steps.keys(),
            ready=self.ready & forecast.steps.keys(),
        )

    def unqueued(self) -> list[str]:
        """The steps that Airflow could have started or queued but has not, although their runs and pools have room for
        them."""
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
            # Its pool can never let it start, such as one that is closed with 0 slots.
            or steps[name].pool_slots > self.forecast.pools.get(steps[name].pool or "", math.inf)
            or (
                runs[steps[name].job.run] < self.forecast.most_at_once.get(steps[name].job.run or "", math.inf)
                and pools[steps[name].pool] + steps[name].pool_slots
                <= self.forecast.pools.get(steps[name].pool or "", math.inf)
            )
        ]


@dataclass(frozen=True, slots=True)
class RunAtSite:
    """The upcoming work of one run as far as it concerns a site; see :class:`SiteForecast`."""

    run: ComingRun
    steps: Mapping[str, WorkflowStep]
    waiting: Mapping[str, str]
    come: AbstractSet[str]
    ready: AbstractSet[str]
    groups: InstanceLimits


def site_forecast(
    parts: Iterable[RunAtSite], pools: Mapping[str, int] = {}, turns: Mapping[str, tuple[int, float]] = {}
) -> SiteForecast:
    """The remaining work of runs at a site. Runs without work there are omitted.

    :param pools: the slots of Airflow's pools; a missing pool is unlimited
    :param turns: the priority and the turn that shares assign to waiting jobs, by token; empty if all are of one share
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
    """The work of each run at a site, by name of the run; reused from before for runs that have not changed.

    :param before: the result of the last call
    """
    known = {run.name: before.get(run.name) for run in runs}
    return {
        run.name: part if (part := known[run.name]) is not None and part.run is run else run_at_site(run, site)
        for run in runs
    }


def run_at_site(run: ComingRun, site: str) -> RunAtSite:
    """The upcoming work of a run at a site; without steps if the run has no work there."""
    jobs = [job for task in run.tasks.values() for job in task.jobs]
    its = [job for job in jobs if job.site == site]
    if not its:
        return RunAtSite(run, {}, {}, frozenset(), frozenset(), InstanceLimits())
    waiting = {job.name: job.token for job in its if job.token is not None and job.begun is None}
    steps = run_steps(run, site)
    come = frozenset(job.name for job in jobs if job.token is not None or job.begun is not None)
    ready = frozenset(name for name in Forecast(steps).ready() if steps[name].seconds and name not in waiting)
    ready |= _behind_retries(run)
    return RunAtSite(run, steps, waiting, come, ready, groups_at(run, site))


def _behind_retries(run: ComingRun) -> frozenset[str]:
    """The upcoming members of gangs of which a member waits for its next try: nothing else holds them up."""
    gangs = {task.gang for task in run.tasks.values() if any(job.retries for job in task.jobs)} - {None}
    tasks = (task for task in run.tasks.values() if task.gang in gangs)
    return frozenset(job.name for task in tasks for job in task.jobs if job.token is None and job.begun is None)


def groups_at(run: ComingRun, site: str) -> InstanceLimits:
    """On how many machines of a site a run and its tasks can run; the machines that they use at other sites count."""

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
    """The steps of a run.

    Each task whose jobs all come before other tasks also gets a step of zero length that ends with the last of them.
    Otherwise a thousand jobs after a thousand others would have a thousand parents each. A gang starts with such a
    step, too.
    """
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
        # Active jobs come first, then waiting ones. Beyond the limit ``most``, each job waits for one before it.
        ordered = sorted(task.jobs, key=lambda job: (job.begun is None, job.token is None, job.index))
        # An earlier try that has not quite finished has the same name; the later one counts.
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
            if task.gang is not None and job.begun is None:  # queued members wait for the others, too
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
    """The steps of zero length that end when gangs can start, by name of the gang.

    :param ends: for each task, the step with whose end the task ends
    """
    before: dict[str, dict[str, None]] = {}
    for task in run.tasks.values():
        if task.gang is not None:
            others = [each for each in task.upstream if each in run.tasks and run.tasks[each].gang != task.gang]
            before.setdefault(task.gang, {}).update(dict.fromkeys(ends[each] for each in others))
    names = {gang: PlannedJob(f"{run.name} gang {gang} begin", NO_NEED, run=run.name) for gang in before}
    return {gang: WorkflowStep(names[gang], 0.0, tuple(some), elsewhere=True) for gang, some in before.items()}


def _end(run: ComingRun, task_id: str, task: ComingTask) -> str:
    return task.jobs[0].name if _is_one(task) else f"{run.name} {task_id} end"


def _is_one(task: ComingTask) -> bool:
    """Whether a task is a single job and always was: the last job of a mapped task is not."""
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
        at_once=task.at_once,
    )


def alone(job: ComingJob, since: float) -> ComingRun:
    """A job about which nothing else is known, as a run of its own.

    :param since: epoch seconds
    """
    return ComingRun(job.name, since, {"": ComingTask((job,))})
