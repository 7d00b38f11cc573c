"""Workflows in a simulation: their runs, what is known of the lengths of their jobs, and which jobs wait for others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, pstdev

from lading.scheduling.prediction import Prediction
from lading.scheduling.simulation.trace import Arrival


def run_at(workflow: Sequence[Arrival], run: str, seconds: float) -> list[Arrival]:
    """A run of a workflow that begins at a time; its jobs have names and a ``Job.run`` of their own."""
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
    """What is known of the lengths of jobs before they run, by their names.

    :param known: one of :data:`lading.scheduling.plan.LENGTHS`
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
    """What a run before has said of the jobs of a task."""
    spread = pstdev(math.log(each.duration) for each in jobs)
    return Prediction(median(each.duration for each in jobs), spread, number=len(jobs))


@dataclass(slots=True)
class Dependencies:
    """Which jobs wait for others, by their numbers.

    :param parents: those that must end before each job
    :param ended: those that have
    """

    parents: Mapping[int, tuple[int, ...]]
    ended: set[int] = field(default_factory=set)
    children: dict[int, list[int]] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, trace: Sequence[Arrival]) -> Dependencies:
        """Those of a trace, whose jobs are numbered as they come.

        :raises ValueError: a job waits for one that is not in it
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
        """Note that a job has ended; the jobs that wait for none any more."""
        self.ended.add(job)
        for child in self.children.get(job, ()):
            self.missing[child] -= 1
            if not self.missing[child]:
                del self.missing[child]
                yield child
