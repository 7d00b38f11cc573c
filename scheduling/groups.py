"""Groups: the mapped instances of one task in one run, which are limited together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """What jobs have in common that are limited together.

    :param run: the run of a Dag
    :param task: the task
    :param max_instances: how many jobs of the task may be at work at once in the run; None: any number
    :param run_max_instances: how many jobs of all tasks of the run may; None: any number
    """

    run: tuple[str, str]
    task: str
    max_instances: int | None = None
    run_max_instances: int | None = None

    def room(self, live: Mapping[tuple[str, str], Mapping[str, int]]) -> int | None:
        """How many more jobs may start; None: any number.

        :param live: by run and task, how many jobs are at work
        """
        tasks = live.get(self.run, {})
        rooms = []
        if self.max_instances is not None:
            rooms.append(self.max_instances - tasks.get(self.task, 0))
        if self.run_max_instances is not None:
            rooms.append(self.run_max_instances - sum(tasks.values()))
        return max(min(rooms), 0) if rooms else None

    def reason(self, live: Mapping[tuple[str, str], Mapping[str, int]]) -> str:
        """Why a job of the group that may not start has to wait."""
        if self.max_instances is not None and live.get(self.run, {}).get(self.task, 0) >= self.max_instances:
            return f"waits: {self.max_instances} jobs of task {self.task!r} may be at work at once (max_instances)"
        return f"waits: {self.run_max_instances} jobs of this run may be at work at once (max_instances of the Dag)"


def admitted(jobs: Iterable[tuple[str, Group]], live: Mapping[tuple[str, str], Mapping[str, int]]) -> list[str]:
    """Return the tokens of the jobs that may start together, in their order.

    :param jobs: tokens of waiting jobs with their groups, in the order in which they should start
    :param live: by run and task, how many jobs are at work
    """
    counts = {run: Counter(tasks) for run, tasks in live.items()}
    tokens = []
    for token, group in jobs:
        if group.room(counts) != 0:
            counts.setdefault(group.run, Counter())[group.task] += 1
            tokens.append(token)
    return tokens
