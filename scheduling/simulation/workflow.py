"""Workflows in a simulation: which jobs wait for others to end, and what is done by the forecast of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lading.scheduling.forecast.choice import Way, nearby
from lading.scheduling.forecast.forecast import Forecast, Step
from lading.scheduling.forecast.policy import Actions, decide
from lading.scheduling.packing.problem import pose
from lading.scheduling.simulation.trace import Arrival

if TYPE_CHECKING:
    from lading.scheduling.simulation.simulator import Simulation

# After so many plans by the last way all ways are tried again: what is still to come is another shape by then.
PLANS_BY_ONE_WAY = 25


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
        found = cls(parents)
        for number, some in parents.items():
            if some:
                found.missing[number] = len(some)
            for parent in some:
                found.children.setdefault(parent, []).append(number)
        return found

    def end(self, job: int) -> Iterable[int]:
        """Note that a job has ended; the jobs that wait for none any more."""
        self.ended.add(job)
        for child in self.children.get(job, ()):
            self.missing[child] -= 1
            if not self.missing[child]:
                del self.missing[child]
                yield child


@dataclass(slots=True)
class Ahead:
    """Decides by the forecast, with the way of the last plan in mind.

    :param hurry: what time is worth (:mod:`lading.scheduling.forecast.choice`)
    """

    hurry: float
    ways: Sequence[Way] = ()
    plans: int = 0

    def decide(self, run: Simulation, now: float) -> Actions:
        """What is done now."""
        forecast = self._forecast(run, now)
        machines = list(run.machines.values())
        there = [machine.seen(run.queues) for machine in machines]
        spent = run.tally.money + math.fsum(
            (now - each.launched_at) / 3600 * each.launch.usd_per_hour for each in machines
        )
        actions, choice = decide(
            forecast,
            [str(job) for queue in run.busy.values() for job in queue.waiting],
            there,
            pose([], there, run.supply.available(now), run.limits, run.objective, now, None),
            boot=run.conditions.boot_seconds,
            hurry=self.hurry,
            spent=spent,
            ways=self.ways if self.plans % PLANS_BY_ONE_WAY else (),
            now=now,
        )
        self.ways = nearby(choice.way)
        self.plans += 1
        return actions

    def _forecast(self, run: Simulation, now: float) -> Forecast:
        """What all runs that have begun still have to do."""
        at = {job: (each.name, its.begun) for each in run.machines.values() for job, its in each.running.items()}
        steps: dict[str, Step] = {}
        began: dict[str, float] = {}
        for job, queue in enumerate(run.queues):
            label = queue.job.run or ""
            began[label] = min(began.get(label, math.inf), run.came[job])
            if job in run.dependencies.ended or run.came[job] > now or queue.refused:
                continue
            location, begun = at.get(job, (None, None))
            parents = tuple(str(each) for each in run.dependencies.parents[job])
            seconds = max(0.1, run.predicted(queue).seconds)
            steps[str(job)] = Step(replace(queue.job, name=str(job)), seconds, parents, begun, location)
        return Forecast(steps, began)
