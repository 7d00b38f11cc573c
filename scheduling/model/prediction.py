"""Predictions of how long jobs run, learned from finished jobs; each names its source. Pure.

The run times of batch jobs are close to log-normal (Lublin and Feitelson, "The workload on parallel supercomputers",
Journal of Parallel and Distributed Computing 63, 2003), so a prediction is a median and the spread of its logarithm. A
job's hint ``time`` is a limit and bounds the prediction. How much of their limits jobs use is learned as well, and is
used where it predicts more exactly than the durations alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# How many finished jobs a level of the history needs; with fewer, a wider level is used.
ENOUGH = 5
# The assumed median in seconds and its spread, used until jobs have finished.
ASSUMED, ASSUMED_SPREAD = 900.0, 1.2
# The same for a task of a run, which is usually shorter than a batch job. The 108 tasks of three nf-core pipelines
# (traces of Bader and others, "Sizey", IEEE CLUSTER 2024) have medians around 41 s, with a spread of 2.3.
ASSUMED_OF_TASK, SPREAD_OF_TASKS = 60.0, 2.3
ASSUMED_SOURCE = "assumed, because too few jobs have finished"
# Until jobs have finished, a time limit is taken as their length, with this spread and the weight of this many jobs.
STATED_SPREAD, STATED_WEIGHT = 0.05, 3.0
# A forecast learns within a run from the first finished job of a task; the assumed spread then has this weight.
ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN = 1, 0.1
# A spread below this counts as a known duration: scenarios would only add noise.
EXACT = 0.03
# A job this short, seconds, leaves its place empty for a good part of its length if jobs are only given to places that
# are free.
SHORT = 10.0
# A job shorter than this, seconds, can reach its memory peak between two samples.
SHORTEST_SAMPLED = 2.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a job will run.

    :param seconds: the median
    :param spread: the standard deviation of the logarithm; 0: the length is known
    :param most: its time limit; None: none
    :param source: what the prediction is based on, as text
    :param number: how many finished jobs of the same task it is based on
    """

    seconds: float
    spread: float = 0.0
    most: float | None = None
    source: str = "stated"
    number: int = 0


class Predictable(Protocol):
    @property
    def expected(self) -> Prediction | None: ...
    @property
    def time(self) -> float | None: ...


@dataclass(slots=True)
class Sample:
    """Sums over the logarithms of measured values."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        logarithm = math.log(max(value, 1e-3))
        self.number += 1
        self.total += logarithm
        self.squares += logarithm * logarithm

    @property
    def mean(self) -> float:
        return self.total / self.number if self.number else 0.0

    @property
    def deviation(self) -> float:
        """The sum of the squared distances from the mean."""
        return max(self.squares - self.number * self.mean**2, 0.0)

    def spread(self, assumed: float, weight: float) -> float:
        """The standard deviation, where ``assumed`` has the weight of ``weight`` measurements."""
        return math.sqrt((self.deviation + weight * assumed**2) / (self.number + weight))

    def with_one(self, assumed: float, spread: float) -> tuple[float, float]:
        """The mean and the standard deviation if there is one more measurement, with the assumed value and spread."""
        more = Sample(self.number, self.total, self.squares)
        more.add(assumed)
        return more.mean, math.sqrt((more.deviation + spread**2) / more.number)

    def replace(self, before: float | None, after: float) -> None:
        """Put a logarithm in the place of an earlier one, if there is one."""
        if before is not None:
            self.number -= 1
            self.total -= before
            self.squares -= before * before
        self.number += 1
        self.total += after
        self.squares += after * after


@dataclass(slots=True)
class History:
    """The run times of finished jobs, by level: a task's size class, a task, the site.

    :param durations: run times in seconds, by level
    :param shares: run times as fractions of the stated time limits, by level
    :param tasks: the mean run time of each task
    """

    durations: dict[Hashable, Sample] = field(default_factory=dict)
    shares: dict[Hashable, Sample] = field(default_factory=dict)
    tasks: Sample = field(default_factory=Sample)

    def add(self, levels: Sequence[tuple[Hashable, str]], seconds: float, stated: float | None) -> None:
        """Record a job that has succeeded.

        :param levels: (key, name) of its levels, the narrowest first; the site is always added
        :param stated: its time limit, if it had one
        """
        task = self.durations.get(levels[-1][0]) if levels else None
        before = None if task is None else task.mean
        for level in (*(key for key, _ in levels), None):
            self.durations.setdefault(level, Sample()).add(seconds)
            if stated:
                self.shares.setdefault(level, Sample()).add(seconds / stated)
        if levels:
            self.tasks.replace(before, self.durations[levels[-1][0]].mean)

    def knows(self, levels: Sequence[tuple[Hashable, str]]) -> bool:
        """Whether enough jobs of any of these levels have finished; the site does not count."""
        return any(level in self.durations and self.durations[level].number >= ENOUGH for level, _ in levels)

    def predict(
        self,
        levels: Sequence[tuple[Hashable, str]],
        stated: float | None,
        enough: int = ENOUGH,
        weight: float = 1.0,
    ) -> Prediction:
        """Predict how long a job will run, from the narrowest level with enough finished jobs.

        :param weight: the weight of the assumed spread in measurements, except at the level of the site
        """
        for level, level_name in (*levels, (None, "the site")):
            known = self.durations.get(level)
            if known is None or known.number < enough:
                continue
            spread = known.spread(ASSUMED_SPREAD, 1.0 if level is None else weight)
            share = self.shares.get(level)
            if stated and share is not None and share.number >= ENOUGH:
                of_limit = share.spread(STATED_SPREAD, STATED_WEIGHT)
                if of_limit < spread:
                    used = math.exp(share.mean)
                    source = f"{100 * used:.3g} % of its limit, the average of {share.number} jobs of {level_name}"
                    seconds = stated * used
                    return Prediction(seconds, of_limit if of_limit > EXACT else 0.0, None, source, known.number)
            if level is None and enough < ENOUGH:
                break
            source, number = f"{known.number} jobs of {level_name}", 0 if level is None else known.number
            return bounded(math.exp(known.mean), spread, stated, source, number)
        if stated and (enough >= ENOUGH or None not in self.durations):
            return Prediction(stated, 0.0, None, "its limit, because too few jobs have finished")
        if enough < ENOUGH:
            # Tasks differ more from each other than their jobs do, so each task counts once, and the assumed one, too.
            mean, spread = self.tasks.with_one(ASSUMED_OF_TASK, SPREAD_OF_TASKS)
            tasks = self.tasks.number
            source = f"{tasks} {'task' if tasks == 1 else 'tasks'} of the site" if tasks else ASSUMED_SOURCE
            return bounded(math.exp(mean), spread, stated, source)
        return Prediction(ASSUMED, ASSUMED_SPREAD, None, ASSUMED_SOURCE)


def predicted(job: Predictable) -> Prediction:
    """The prediction for a job; without one, its time limit or the assumed length."""
    if job.expected is not None:
        return job.expected
    if job.time is not None:
        return Prediction(job.time, source="its limit")
    return Prediction(ASSUMED, ASSUMED_SPREAD, source="assumed, because nothing is known about it")


def is_short(job: Predictable) -> bool:
    """Whether a job is so short that it goes to any location with room."""
    return predicted(job).seconds <= SHORT


def is_surely_short(seconds: float, spread: float) -> bool:
    """Whether even a job that takes longer than five of six of its kind is short.

    :param seconds: the median of its length
    :param spread: the standard deviation of the logarithm
    """
    return seconds * math.exp(spread) <= SHORT


def bounded(seconds: float, spread: float, most: float | None, source: str, number: int = 0) -> Prediction:
    """A prediction whose median the time limit bounds."""
    return Prediction(seconds if most is None else min(seconds, most), spread, most, source, number)
