"""Traces of jobs as they come in real life: a day of Poisson arrivals, bursts, and a thin stream with scatters.

Durations are log-normal with a median of 15 minutes and end after 6 hours at the latest; sizes are twenty shapes of
nf-core pipelines. What a trace says of durations is exact, off by a log-normal factor, or nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources

# Cpus and GiB of twenty steps as nf-core pipelines have them.
SHAPES = (
    *((1, 1), (1, 2), (1, 4), (1, 6), (1, 8), (2, 4), (2, 6), (2, 8), (2, 12), (2, 16)),
    *((4, 8), (4, 16), (4, 30), (6, 36), (8, 16), (8, 32), (8, 64), (12, 72), (16, 64), (16, 120)),
)
GIB = 1024
DAY = 86_400.0
MEDIAN, SPREAD, CAP = 900.0, 1.2, 21_600.0
KNOWN, UNKNOWN = 0.0, None


def arrival(chance: random.Random, number: int, when: float, error: float | None) -> Arrival:
    """One job.

    :param error: sigma of the log-normal factor by which its stated time is off; None: none is stated
    """
    cpus, memory = chance.choice(SHAPES)
    duration = min(CAP, chance.lognormvariate(math.log(MEDIAN), SPREAD))
    off = math.exp(chance.gauss(0.0, 1.0) * (error or 0.0))
    time = None if error is None else duration * off
    return Arrival(PlannedJob(f"j{number}", Resources(cpus, memory * GIB), time=time, arch="x86_64"), when, duration)


def at(times: Sequence[float], error: float | None, seed: int) -> list[Arrival]:
    chance = random.Random(seed)
    return [arrival(chance, number, when, error) for number, when in enumerate(sorted(times))]


def poisson(number: int = 2_000, error: float | None = KNOWN, seed: int = 1) -> list[Arrival]:
    """So many jobs spread over a day."""
    chance = random.Random(-seed)
    return at([chance.uniform(0, DAY) for _ in range(number)], error, seed)


def bursts(number: int = 2_000, times: int = 1, error: float | None = KNOWN, seed: int = 1) -> list[Arrival]:
    """So many jobs at once, so many times a day."""
    return at([i * DAY / times for i in range(times) for _ in range(number)], error, seed)


def scatters(error: float | None = KNOWN, seed: int = 1) -> list[Arrival]:
    """A thin stream of 600 jobs a day, and four scatters of 350 jobs each among them."""
    chance = random.Random(-seed)
    stream = [chance.uniform(0, DAY) for _ in range(600)]
    starts = [chance.uniform(0, DAY) for _ in range(4)]
    return at([*stream, *(start for start in starts for _ in range(350))], error, seed)
