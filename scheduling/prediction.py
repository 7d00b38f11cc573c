"""How long jobs will run: predictions from what has ended, each with where it is from. Pure.

Run times of batch jobs are close to log-normal (Lublin and Feitelson, "The workload on parallel supercomputers",
Journal of Parallel and Distributed Computing 63, 2003), so a prediction is a median and the spread of its logarithm.
What a job states (the hint ``time``) is a limit and bounds it; how much of its limit a job uses is learnt like a
duration, and counts where it says more than durations by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# How many ended jobs a level of the history must have before it is used instead of a wider one.
ENOUGH = 5
# What is assumed before anything has ended: the median in seconds, its spread, and for how many jobs that counts.
ASSUMED, ASSUMED_SPREAD = 900.0, 1.2
# A stated time is taken at its word until jobs have ended; that counts for so many jobs.
STATED_SPREAD, STATED_WEIGHT = 0.05, 3.0
# A forecast learns within a run, from the first job of a task that has ended; what is assumed of the spread counts for
# this part of one.
ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN = 1, 0.1
# Below it a duration counts as known: scenarios would only add noise.
EXACT = 0.03
# A job that ends so soon would leave its place empty for a good part of that time if it were only given then, seconds.
SHORT = 10.0
# One that ends sooner may have used most of its memory between two looks at it, seconds.
SHORTEST_SAMPLED = 2.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a job will run.

    :param seconds: the median
    :param spread: the standard deviation of the logarithm; 0: it is known
    :param most: seconds after which it is ended; None: never
    :param source: where the prediction is from, as text
    :param number: how many jobs of the same task have ended from which it is
    """

    seconds: float
    spread: float = 0.0
    most: float | None = None
    source: str = "stated"
    number: int = 0


class Predictable(Protocol):
    """What has a limit, and perhaps a prediction."""

    @property
    def expected(self) -> Prediction | None: ...
    @property
    def time(self) -> float | None: ...


@dataclass(slots=True)
class Sample:
    """Logarithms of what was measured, as sums."""

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

    def spread(self, assumed: float, weight: float) -> float:
        """The standard deviation, where ``assumed`` counts for ``weight`` measurements."""
        variance = self.squares - self.number * self.mean**2
        return math.sqrt((max(variance, 0.0) + weight * assumed**2) / (self.number + weight))

    def with_one(self, assumed: float, spread: float) -> tuple[float, float]:
        """The mean and the standard deviation, as if one more had been measured: what is assumed, and of its spread."""
        more = Sample(self.number, self.total, self.squares)
        more.add(assumed)
        return more.mean, more.spread(spread, 1.0)


@dataclass(slots=True)
class History:
    """What is known of jobs that have ended, by levels: a task's size class, a task, the site.

    :param durations: seconds that jobs ran, by level
    :param shares: parts of their stated times that jobs ran, by level
    """

    durations: dict[Hashable, Sample] = field(default_factory=dict)
    shares: dict[Hashable, Sample] = field(default_factory=dict)

    def add(self, levels: Sequence[tuple[Hashable, str]], seconds: float, stated: float | None) -> None:
        """A job has ended well.

        :param levels: those it belongs to, the narrowest first, each with its name as text; the site comes by itself
        :param stated: its limit, if it had one
        """
        for level in (*(key for key, _ in levels), None):
            self.durations.setdefault(level, Sample()).add(seconds)
            if stated:
                self.shares.setdefault(level, Sample()).add(seconds / stated)

    def knows(self, levels: Sequence[tuple[Hashable, str]]) -> bool:
        """Whether enough is known of one of these levels, which the site is none of."""
        return any(level in self.durations and self.durations[level].number >= ENOUGH for level, _ in levels)

    def predict(
        self,
        levels: Sequence[tuple[Hashable, str]],
        stated: float | None,
        enough: int = ENOUGH,
        weight: float = 1.0,
    ) -> Prediction:
        """How long a job will run: by the narrowest level of which so many jobs have ended.

        :param weight: for how many jobs the assumed spread counts, but for what is known of the site alone
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
                    source = f"its limit, as {share.number} jobs of {level_name} used theirs"
                    seconds = stated * math.exp(share.mean)
                    return Prediction(seconds, of_limit if of_limit > EXACT else 0.0, None, source, known.number)
            if level is None and enough < ENOUGH:
                # Of other tasks, and a few of them, little follows: what is assumed counts as one of them.
                mean, spread = known.with_one(ASSUMED, ASSUMED_SPREAD)
                return bounded(math.exp(mean), spread, stated, f"{known.number} jobs of {level_name}")
            source, number = f"{known.number} jobs of {level_name}", 0 if level is None else known.number
            return bounded(math.exp(known.mean), spread, stated, source, number)
        if stated:
            return Prediction(stated, 0.0, None, "its limit, as nothing has ended yet")
        return Prediction(ASSUMED, ASSUMED_SPREAD, None, "assumed, as nothing has ended yet")


def predicted(job: Predictable) -> Prediction:
    """How long a job will run, as far as its own hints say it."""
    if job.expected is not None:
        return job.expected
    if job.time is not None:
        return Prediction(job.time, source="its limit")
    return Prediction(ASSUMED, ASSUMED_SPREAD, source="assumed, for nothing is known of it")


def is_short(job: Predictable) -> bool:
    """Whether a job is over so soon that it goes wherever there is room."""
    return predicted(job).seconds <= SHORT


def is_surely_short(seconds: float, spread: float) -> bool:
    """Whether a job is short also where it takes longer than five of six like it.

    :param seconds: the median of its length; ``spread``: the standard deviation of the logarithm
    """
    return seconds * math.exp(spread) <= SHORT


def bounded(seconds: float, spread: float, most: float | None, source: str, number: int = 0) -> Prediction:
    """A prediction that the limit bounds."""
    return Prediction(seconds if most is None else min(seconds, most), spread, most, source, number)
