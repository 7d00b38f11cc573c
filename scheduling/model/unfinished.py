"""What running jobs say about lengths: how much longer each will run, and how long others like it take. Pure.

Lengths are log-normal (see :mod:`lading.scheduling.model.prediction`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain, repeat
from statistics import NormalDist

NORMAL = NormalDist()
# The largest standard deviation of the logarithms of lengths; and the least remaining time of a job that exceeds its
# expected length, seconds.
MOST_SPREAD, MOMENT = 1.5, 1.0
# The golden ratio: the fractional parts of its multiples are spread evenly, however many there are (Weyl's sequence).
GOLDEN = (1 + math.sqrt(5)) / 2
# A larger spread comes from a mixture of different jobs, from which their mean cannot be derived.
MOST_SPREAD_OF_ONE_KIND = 1.0
# A job that has run for so many standard deviations less than expected says nothing about the length of others. And
# the number of bisections in the search for a shift of the mean.
NEAR, HALVINGS = 3.0, 12


def even_quantile(number: int) -> float:
    """Return a number of a sequence that fills the interval from 0 to 1 evenly; the first is 0.5.

    Values at these quantiles are like a sample of a distribution, but the same each time.
    """
    return (0.5 + number * GOLDEN) % 1.0


def typical_length(mean: float, spread: float, number: int) -> float:
    """Return the length of one of many similar jobs: together they are distributed as lengths are.

    :param mean: of the lengths of all
    :param number: of the job, from 0
    """
    if not spread:
        return mean
    return mean * math.exp(spread * NORMAL.inv_cdf(even_quantile(number)) - spread**2 / 2)


def seconds_left(passed: float, seconds: float, spread: float, quantile: float = 0.5) -> float:
    """Return a quantile of the remaining time of a running job, given how long it has run.

    The less certain its length, the less its expected end says. The longer it exceeds its length, the longer it is
    expected to continue: the factor by which it exceeds its length is itself a measurement of the spread.

    :param passed: seconds since it started
    :param seconds: the median of its length
    :param spread: the standard deviation of the logarithm of its length; 0: the length is known
    :param quantile: which part of such jobs finishes earlier; by default the median is returned
    """
    if not spread and passed < seconds:
        return seconds - passed
    if passed <= 0:
        return seconds * math.exp(spread * NORMAL.inv_cdf(quantile)) - passed
    over = math.log(passed / seconds) if seconds else 0.0
    left = passed * math.expm1(_longer(over, min(MOST_SPREAD, max(spread, over)), quantile))
    return left if passed < seconds else MOMENT + left


def censored_shift(passed: Sequence[float], measured: float, spread: float) -> float:
    """By how much the mean of normal values exceeds the mean of the measured ones, if others are only known to exceed a
    bound.

    Maximum likelihood (Tobin, "Estimation of relationships for limited dependent variables", Econometrica 26, 1958).

    :param passed: the lower bounds of the others, relative to the mean of the measured ones
    :param measured: the number of measured values, above zero; larger if each of the others counts as a fraction of one
    :param spread: the standard deviation of all, above zero
    """
    near = [each for each in passed if each > -NEAR * spread]  # a step that has just started says nothing
    if not near:
        return 0.0

    numbers = Counter(near)  # jobs that started together have the same bound

    def is_more(shift: float) -> bool:
        hazards = (repeat(_hazard((each - shift) / spread), number) for each, number in numbers.items())
        return spread * math.fsum(chain.from_iterable(hazards)) > measured * shift

    low, high = 0.0, max(spread, *near)
    while is_more(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_more(middle) else (low, middle)
    return low


def _longer(logarithm: float, spread: float, quantile: float) -> float:
    """The quantile of the excess over ``logarithm`` of those normal values around 0 that exceed it."""
    if not spread:
        return 0.0
    part = math.erfc(logarithm / spread / math.sqrt(2)) / 2 * (1 - quantile)
    return -NORMAL.inv_cdf(max(part, sys.float_info.min)) * spread - logarithm


def _hazard(value: float) -> float:
    """The mean of those standard normal values that exceed ``value``."""
    if value > 8:  # beyond this, erfc soon underflows
        return value + 1 / value
    return math.exp(-value * value / 2) * math.sqrt(2 / math.pi) / math.erfc(value / math.sqrt(2))
