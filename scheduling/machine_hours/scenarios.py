"""Durations as scenarios: what may happen, in a few equally likely ways, so that expectations are means.

This is the sample average approximation (Kleywegt, Shapiro, Homem-de-Mello, SIAM Journal on Optimization 12, 2002)
with stratified quantiles. Where all durations are known there is one scenario, and everything is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from lading.scheduling.packing.arrays import Floats
from lading.scheduling.prediction import Prediction

SCENARIOS = 16
SEED = 4
SHUFFLES = 61
# Beyond this quantile nothing is expected to run.
TAIL = 0.999
# A job that outlives what was known of it is expected to run for this part of its age once more.
OVERDUE = 0.25
# The normal distribution is read off a table, between whose entries a straight line is true to a millionth.
DEVIATIONS = np.linspace(-8.0, 8.0, 8_001)


@lru_cache(maxsize=1)
def shuffles() -> Floats:
    """Quantiles in mixed orders, so that jobs that are alike do not all end together in a scenario."""
    random = np.random.default_rng(SEED)
    quantiles = (np.arange(SCENARIOS) + 0.5) / SCENARIOS
    return np.array([random.permutation(quantiles) for _ in range(SHUFFLES)])


@lru_cache(maxsize=1)
def shares() -> Floats:
    """The part of a normal distribution below each of the deviations."""
    return np.array([NormalDist().cdf(each) for each in DEVIATIONS.tolist()])


def remaining(predictions: Sequence[Prediction], ages: Sequence[float], draws: Sequence[int], exact: bool) -> Floats:
    """Seconds that jobs will still run (jobs, scenarios).

    :param ages: seconds that each has run for
    :param draws: numbers that distinguish jobs: the order of its scenarios
    :param exact: whether to take one scenario, for all durations are known
    """
    if not predictions:
        return np.zeros((0, 1 if exact else SCENARIOS))
    median = np.array([each.seconds for each in predictions])[:, None]
    age = np.maximum(np.array(ages, float), 0.0)[:, None]
    known = np.where(median > age, median - age, OVERDUE * age)
    if exact:
        return np.asarray(known)
    spread = np.array([each.spread for each in predictions])[:, None]
    most = np.array([np.inf if each.most is None else each.most for each in predictions])[:, None]
    sigma = np.maximum(spread, 1e-9)
    passed = np.where(age > 0, np.interp(np.log(np.maximum(age, 1e-9) / median) / sigma, DEVIATIONS, shares()), 0.0)
    quantile = passed + (1 - passed) * shuffles()[np.array(draws, np.int64) % SHUFFLES]
    whole = median * np.exp(sigma * np.interp(np.minimum(quantile, TAIL), shares(), DEVIATIONS))
    left = np.maximum(np.minimum(whole, most) - age, 0.0)
    # Beyond the tail the formula has nothing to say.
    left = np.where(left > 0, left, np.minimum(OVERDUE * age, np.maximum(most - age, 0.0)))
    return np.asarray(np.where(spread > 0, left, np.broadcast_to(known, left.shape)))
