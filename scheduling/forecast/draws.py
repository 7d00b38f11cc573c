"""Sampled cases of step lengths, in which fleets are compared if lengths are uncertain. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.model.prediction import EXACT
from lading.scheduling.model.unfinished import MOST_SPREAD_OF_ONE_KIND, NORMAL

# For a task without finished steps, the part of the spread that is between its steps; the highest quantile of a step
# that has started; and the shortest remaining time, seconds.
ALONE, MOST_PART, MOMENT = 0.3, 1 - 1e-6, 1e-6


def draws(medians: Forecast, now: float, number: int) -> list[dict[str, float]]:
    """Sample cases of step lengths from the spread of each step; none if all lengths are known.

    Return what each step of uncertain length still takes in each case, seconds, by name.

    Similar steps are stratified in each case and over all cases together: of five steps, one is from the longest fifth
    in each of four cases, and one case has the longest of twenty. A step has the same quantiles in each plan, so that
    plans only differ by what has happened. Steps of a task with n finished steps are between the quantiles 1 / (2n + 2)
    and 1 - 1 / (2n + 2): a few measurements show how much lengths differ, but not how long the longest of many takes.
    For a task without finished steps the common length is uncertain, and the
    steps differ less from each other.

    :param medians: the forecast with median lengths
    :param now: epoch seconds
    """
    steps = medians.steps
    if not any(step.spread > EXACT for step in steps.values()):
        return []
    alike: dict[tuple[str | None, str], list[str]] = {}
    for name, step in steps.items():
        if step.spread > EXACT:
            alike.setdefault((step.job.run, name if step.alike is None else step.alike), []).append(name)
    factors: list[dict[str, float]] = [{} for _ in range(number)]
    tasks = sorted((scattered(f"{key} {case}"), key, case) for key in alike for case in range(number))
    common: dict[tuple[object, int], float] = {}
    seen: dict[object, int] = {}
    for _, key, case in tasks:
        # Over the cases, each task gets each quantile once.
        place = seen[key] = seen.get(key, -1) + 1
        common[key, case] = NORMAL.inv_cdf((place + 0.5) / number)
    for key, names in alike.items():
        for name, case, part in quantiles(names, number):
            step = steps[name]
            if step.measured:
                its_own = min(step.spread, MOST_SPREAD_OF_ONE_KIND)
                shared = its_own / math.sqrt(step.measured)
                quantile = (0.5 + part * step.measured) / (1 + step.measured)
            else:
                quantile = part
                its_own, shared = ALONE * step.spread, math.sqrt(1 - ALONE**2) * step.spread
            shift = step.seconds * math.exp(shared * common[key, case])
            if step.begun is not None:
                passed = max(0.0, medians_passed(step, now))
                below = NORMAL.cdf(math.log(max(passed, 1e-3) / shift) / its_own)
                longer = min(below + quantile * (1 - below), MOST_PART)
                factors[case][name] = max(MOMENT, shift * math.exp(its_own * NORMAL.inv_cdf(longer)) - passed)
            else:
                factors[case][name] = shift * math.exp(its_own * NORMAL.inv_cdf(quantile))
    return factors


def quantiles(names: Sequence[str], number: int) -> Iterator[tuple[str, int, float]]:
    """Yield (name, case, quantile) for each step and case.

    In each case, each of n equal parts of the distribution has one step, and over the cases, each of its parts has one
    (Latin hypercube sampling: McKay, Beckman, Conover, Technometrics 21, 1979).
    """
    ranked = [sorted(names, key=lambda name: (scattered(f"{name} {case}"), name)) for case in range(number)]
    for rank, some in enumerate(zip(*ranked, strict=True)):
        places = sorted(range(number), key=lambda case: scattered(f"{rank} {case} {some[0]}"))
        for place, case in enumerate(places):
            yield some[case], case, (rank + (place + 0.5) / number) / len(names)


def scattered(text: str) -> bytes:
    """Return a hash that puts similar texts in random order; a CRC would keep them together."""
    return blake2b(text.encode(), digest_size=8).digest()


def medians_passed(step: WorkflowStep, now: float) -> float:
    """How long a step has run, seconds."""
    return 0.0 if step.begun is None else now - step.begun
