"""Groups: the jobs of one task in one run, and those of the whole run, which share limits. Pure.

Limits apply to their jobs (``max_jobs``) and to the machines that they use at once (``max_instances``, as Seven Bridges
counts instances). A machine is a location on which jobs are packed: this machine, a host, an allocation. Where each job
is a batch job of its own, each batch job counts as one machine, or as many as it has nodes: the batch system decides on
which nodes it runs, and with what else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.reasons import Reason, because


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The group of jobs that are counted together.

    :param run: the Dag run
    :param task: the task
    :param max_jobs: how many jobs of the task can be active at once in the run; None: any number
    :param run_max_jobs: how many jobs of all tasks of the run can; None: any number
    """

    run: tuple[str, str]
    task: str
    max_jobs: int | None = None
    run_max_jobs: int | None = None

    def room(self, live: Mapping[tuple[str, str], Mapping[str, int]]) -> int | None:
        """How many more jobs can start; None: any number.

        :param live: the number of active jobs, by run and task
        """
        tasks = live.get(self.run, {})
        rooms = []
        if self.max_jobs is not None:
            rooms.append(self.max_jobs - tasks.get(self.task, 0))
        if self.run_max_jobs is not None:
            rooms.append(self.run_max_jobs - sum(tasks.values()))
        return max(min(rooms), 0) if rooms else None

    def reason(self, live: Mapping[tuple[str, str], Mapping[str, int]]) -> Reason:
        if self.max_jobs is not None and live.get(self.run, {}).get(self.task, 0) >= self.max_jobs:
            return because("task_jobs", most=self.max_jobs, task=self.task)
        return because("run_jobs", most=self.run_max_jobs)


def admitted(jobs: Iterable[tuple[str, JobGroup]], live: Mapping[tuple[str, str], Mapping[str, int]]) -> list[str]:
    """Return the tokens of the jobs that can start together, in order.

    :param jobs: tokens of waiting jobs with their groups, in the order in which they should start
    :param live: the number of active jobs, by run and task
    """
    counts = {run: Counter(tasks) for run, tasks in live.items()}
    tokens = []
    for token, group in jobs:
        if group.room(counts) != 0:
            counts.setdefault(group.run, Counter())[group.task] += 1
            tokens.append(token)
    return tokens


class Label(NamedTuple):
    """A group whose machines are counted together: a task of a run, or a run.

    :param kind: ``task`` or ``run``
    :param name: the value of ``Job.task`` or ``Job.run``
    """

    kind: str
    name: str


def labels(job: PlannedJob) -> list[Label]:
    """The groups of a job whose machines are limited."""
    if job.task is None and job.run is None:
        return []
    named = (("task", job.task), ("run", job.run))
    return [Label(kind, name) for kind, name in named if name is not None]


def run_name(dag_id: object, run_id: object) -> str:
    """The value of ``Job.run``."""
    return f"{dag_id} {run_id}"


def task_name(dag_id: object, run_id: object, task_id: object) -> str:
    """The value of ``Job.task``."""
    return f"{dag_id} {run_id} {task_id}"


# (Site, location), and for a batch job of its own in a queue also its token.
Used = tuple[str, ...]


@dataclass(slots=True)
class GroupMachines:
    """The machines used by the jobs of limited groups.

    :param most: for each limited group with waiting jobs, on how many machines its jobs can be at once
    :param used: for each group, where its jobs are, and as how many machines each place counts; all nodes of a batch
        job are one entry, because an author can request any number of them
    """

    most: dict[Label, int] = field(default_factory=dict)
    used: dict[Label, dict[Used, int]] = field(default_factory=dict)
    _number: Counter[Label] = field(default_factory=Counter, init=False, repr=False)

    @classmethod
    def from_jobs(cls, waiting: Iterable[WaitingJob]) -> GroupMachines:
        """The limits of waiting jobs; if those of one group differ, the lowest counts."""
        made = cls()
        for job in waiting:
            if job.max_instances is None and job.run_max_instances is None:
                continue
            for kind, name, most in (("task", job.task, job.max_instances), ("run", job.run, job.run_max_instances)):
                if name is not None and most is not None:
                    label = Label(kind, name)
                    made.most[label] = min(most, made.most.get(label, most))
        return made

    def put(self, job: PlannedJob, site: str, location: str, *, is_queue: bool) -> None:
        """Count a job that is, or is going to be, at a location.

        :param is_queue: whether the job is a batch job of its own there
        """
        where, number = ((site, location, job.name), job.nodes) if is_queue else ((site, location), 1)
        for label in labels(job):
            there = self.used.setdefault(label, {})
            self._number[label] += number - there.get(where, 0)
            there[where] = number

    def full(self, job: PlannedJob) -> Label | None:
        """The group of a job that can use no further machine, or not as many as the job has nodes; None: none."""
        if not self.most:
            return None
        return next((label for label in labels(job) if self._left(label) < job.nodes), None)

    def _left(self, label: Label) -> float:
        most = self.most.get(label)
        return float("inf") if most is None else most - self._number[label]

    def are_at(self, label: Label, site: str) -> bool:
        """Whether jobs of a group are on a machine of a site that other jobs can share."""
        return any(len(each) == 2 and each[0] == site for each in self.used.get(label, ()))

    def limits(self, site: str, locations: Sequence[Location]) -> InstanceLimits:
        """What the limits leave for some locations of a site, including those that already have jobs of the group."""
        left: dict[str, dict[str, int]] = {"task": {}, "run": {}}
        for label, most in self.most.items():
            used = self.used.get(label, {})
            here = sum(used.get((site, name), 0) for name in locations_with(label, locations))
            left[label.kind][label.name] = max(0, most - self._number[label] + here)
        return InstanceLimits(tasks=left["task"], runs=left["run"])

    def reason(self, label: Label) -> Reason:
        most = self.most[label]
        if label.kind == "task":
            return because("task_machines", most=most, task=label.name.rpartition(" ")[2])
        return because("run_machines", most=most)


def limits_left(limits: InstanceLimits, locations: Sequence[Location]) -> InstanceLimits:
    tasks = {
        name: max(0, most - len(locations_with(Label("task", name), locations))) for name, most in limits.tasks.items()
    }
    runs = {
        name: max(0, most - len(locations_with(Label("run", name), locations))) for name, most in limits.runs.items()
    }
    return replace(limits, tasks=tasks, runs=runs) if tasks or runs else limits


def no_further(jobs: Iterable[PlannedJob]) -> InstanceLimits:
    """Limits under which jobs of groups only go where other jobs of the group are."""
    named = {label for job in jobs for label in labels(job)}
    tasks, runs = ({name: 0 for kind, name in named if kind == wanted} for wanted in ("task", "run"))
    return InstanceLimits(tasks=tasks, runs=runs)


def locations_with(label: Label, locations: Iterable[Location]) -> set[str]:
    return {each.name for each in locations if label.name in (each.tasks if label.kind == "task" else each.runs)}


class Allowance:
    """What is left of the limits of groups while locations are being filled.

    :param locations: the locations being filled
    """

    def __init__(self, limits: InstanceLimits, locations: Collection[Location]) -> None:
        named = [("task", limits.tasks), ("run", limits.runs)]
        self.most = {Label(kind, name): most for kind, names in named for name, most in names.items()}
        self.used = {label: locations_with(label, locations) for label in self.most}
        self._number = {label: len(used) for label, used in self.used.items()}

    def full(self, job: PlannedJob) -> list[Label]:
        """The groups of a job that can use no further machine."""
        if not self.most:
            return []
        return [label for label in labels(job) if label in self.most and not self._left(label) >= job.nodes]

    def _left(self, label: Label) -> int:
        return self.most[label] - self._number[label]

    def admits(self, job: PlannedJob, location: str) -> bool:
        """Whether a job can go to a location: jobs of its groups are there, or the groups can use another machine."""
        return not self.most or all(location in self.used[label] for label in self.full(job))

    def put(self, job: PlannedJob, machine: str) -> None:
        self._count(job, machine, 1)

    def put_batch_job(self, job: PlannedJob, queue: str) -> None:
        """Count all nodes of a batch job of its own, which no other job shares."""
        self._count(job, f"{queue} {job.name}", job.nodes)

    def _count(self, job: PlannedJob, where: str, number: int) -> None:
        for label in labels(job) if self.most else ():
            if label in self.most and where not in self.used[label]:
                self.used[label].add(where)
                self._number[label] += number
