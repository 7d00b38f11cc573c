"""What the tries of a simulated run request: their authors' amounts, what Lading would choose, or what they use. Pure.

With ``auto``, each try is sized when it is queued, from the use of earlier tries of its task, in earlier runs and in
this one, by the same functions that size jobs in a controller.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.hints.hints import Hints, JobLimits
from lading.scheduling.hints.retries import EarlierTry, Factors, learn
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.plan import ASKED, AUTO
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.auto import sized
from lading.scheduling.sizing.right_size import ROUNDED, Sizes, sizes
from lading.scheduling.sizing.usage import Usage, Use

SHORT = "out_of_memory"


class SizedTries:
    """What each try of a trace requests.

    A try with less memory than its job used when it was recorded runs for its whole length, then fails and is repeated
    with more memory. One with fewer cpus than its job used on average takes longer in proportion.

    :param how: one of :data:`lading.scheduling.model.plan.SIZES`
    :param catalogue: no try requests more than its largest machine has
    :param known: what tries of earlier runs used, by task
    """

    def __init__(
        self, trace: Sequence[Arrival], how: str, catalogue: Catalogue, known: Mapping[str, Usage] | None = None
    ) -> None:
        self.how, self.usages = how, defaultdict(Usage, known or {})
        self.arrivals = {each.job.name: each for each in trace}
        machines = [kind.capacity for kind in catalogue.types.values()]
        self.largest = Resources(
            max((each.cpus for each in machines), default=0.0), max((each.memory for each in machines), default=0)
        )
        self._changed: set[str] = set()
        self._fitted: dict[str, Sizes] = {}
        self._tries: dict[str, list[EarlierTry]] = defaultdict(list)
        self._requested: dict[str, Resources] = {}

    def next(self, name: str) -> Resources:
        arrival, tries = self.arrivals[name], self._tries[name]
        asked, used, factors = arrival.job.resources, arrival.used, Factors()
        if self.how == AUTO:
            fitted = self._sizes(task_of(arrival))
            hints = Hints(auto={"cpus": asked.cpus, "memory": asked.memory})
            hints, _ = sized(hints, fitted, self.largest, None if used is None else used.input_size)
            asked = replace(asked, cpus=hints.cpus or asked.cpus, memory=hints.memory or asked.memory)
            if fitted.memory is not None and tries:
                too_little = max(each.memory for each in tries)
                factors = Factors(memory=fitted.memory.after(too_little) / too_little)
        elif self.how != ASKED and used is not None:
            asked = _exactly(asked, used)
        limits = JobLimits(memory=asked.memory, time=None)
        self._requested[name] = learn(asked, limits, tries, factors, self.largest.memory).resources
        return self._requested[name]

    def seconds(self, name: str) -> float:
        """Return how long the last requested try of a job runs."""
        arrival = self.arrivals[name]
        if (used := arrival.used) is None or not used.cpu_seconds or used.seconds <= 0:
            return arrival.duration
        busy = min(used.cpu_seconds / used.seconds, used.cpus)
        return arrival.duration * max(1.0, busy / self._requested[name].cpus)

    def end(self, name: str) -> bool:
        """Learn from a finished try; return whether it had too little memory."""
        arrival = self.arrivals[name]
        if (used := arrival.used) is None:
            return False
        had, task = self._requested[name], task_of(arrival)
        needed = min(used.peak_memory or 0, self.largest.memory)
        is_short = had.memory < needed
        if is_short:
            tries = self._tries[name]
            tries.append(EarlierTry(len(tries) + 1, SHORT, had.memory, arrival.duration))
            used = replace(used, peak_memory=had.memory, cause=SHORT)
        self.usages[task].add(replace(used, cpus=had.cpus, memory=had.memory))
        self._fitted.pop(task, None)
        self._changed.add(task)
        return is_short

    def take_changed(self) -> set[str]:
        """Return the tasks whose requests can have changed because tries finished since the last call."""
        found, self._changed = self._changed, set()
        return found if self.how == AUTO else set()

    def _sizes(self, task: str) -> Sizes:
        if task not in self._fitted:
            self._fitted[task] = sizes(self.usages[task])
        return self._fitted[task]


def task_of(arrival: Arrival) -> str:
    """Return the name under which the use of similar jobs is collected."""
    return arrival.job.task or arrival.job.name


def earlier_runs(trace: Sequence[Arrival], runs: int, seed: int) -> dict[str, Usage]:
    """Return the use by task after some simulated earlier runs, each try of which is a random recorded one.

    So an earlier run can lack the largest tries, like a run with other inputs.

    :param seed: of the random choice
    """
    chance, found = random.Random(seed), defaultdict[str, Usage](Usage)
    by_task: dict[str, list[Use]] = defaultdict(list)
    for each in trace:
        if each.used is not None:
            by_task[task_of(each)].append(each.used)
    for _ in range(runs):
        for task, uses in by_task.items():
            for use in chance.choices(uses, k=len(uses)):
                found[task].add(use)
    return dict(found)


def _exactly(asked: Resources, used: Use) -> Resources:
    """Return what a job used, rounded up like sizes; amounts that were not recorded stay as requested."""
    cpus, memory = asked.cpus, asked.memory
    if used.cpu_seconds and used.seconds > 0:
        cpus = min(cpus, ROUNDED["cpus"](used.cpu_seconds / used.seconds))
    if used.peak_memory is not None:
        memory = ROUNDED["memory"](used.peak_memory)
    return replace(asked, cpus=cpus, memory=memory)
