"""Workflows in a simulation: their runs, what is known of their jobs' lengths, and which jobs wait for others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, pstdev

from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.prediction import Prediction


def run_at(workflow: Sequence[Arrival], run: str, seconds: float) -> list[Arrival]:
    """Return a run of a workflow that starts at a time; its jobs have their own names and ``Job.run``."""
    return [
        replace(
            each,
            job=replace(each.job, name=f"{run}/{each.job.name}", run=run),
            arrival=seconds,
            parents=tuple(f"{run}/{parent}" for parent in each.parents),
        )
        for each in workflow
    ]


def expected_lengths(trace: Iterable[Arrival], known: str) -> dict[str, Prediction]:
    """Return what is known of the lengths of jobs before they run, by job name.

    :param known: one of :data:`lading.scheduling.model.plan.LENGTHS`
    """
    if known == "unknown":
        return {}
    if known == "known":
        return {each.job.name: Prediction(each.duration, number=1) for each in trace}
    by_task: dict[str | None, list[Arrival]] = {}
    for each in trace:
        by_task.setdefault(each.job.task, []).append(each)
    found = ((some, _as_before(some)) for some in by_task.values())
    return {each.job.name: expected for some, expected in found for each in some}


def _as_before(jobs: Sequence[Arrival]) -> Prediction:
    """Return the prediction that an earlier run of a task's jobs would give."""
    spread = pstdev(math.log(each.duration) for each in jobs)
    return Prediction(median(each.duration for each in jobs), spread, number=len(jobs))


@dataclass(slots=True)
class Dependencies:
    """Which jobs wait for others, by number.

    :param parents: the jobs that must finish before each job
    :param ended: the finished jobs
    :param missing: how many parents of a job have not finished; jobs without any are left out
    """

    parents: Mapping[int, tuple[int, ...]]
    ended: set[int] = field(default_factory=set)
    children: dict[int, list[int]] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, trace: Sequence[Arrival]) -> Dependencies:
        """Build the dependencies of a trace, whose jobs are numbered in their order.

        :raises ValueError: a job waits for one that is not in the trace
        """
        numbers = {arrival.job.name: number for number, arrival in enumerate(trace)}
        parents = {}
        for number, arrival in enumerate(trace):
            for name in arrival.parents:
                if name not in numbers:
                    raise ValueError(f"job {arrival.job.name!r} waits for {name!r}, which is not in the trace")
            parents[number] = tuple(numbers[name] for name in dict.fromkeys(arrival.parents))
        dependencies = cls(parents)
        for number, some in parents.items():
            if some:
                dependencies.missing[number] = len(some)
            for parent in some:
                dependencies.children.setdefault(parent, []).append(number)
        return dependencies

    def end(self, job: int) -> Iterable[int]:
        """Record that a job has finished; yield the jobs that now wait for none."""
        self.ended.add(job)
        for child in self.children.get(job, ()):
            self.missing[child] -= 1
            if not self.missing[child]:
                del self.missing[child]
                yield child
