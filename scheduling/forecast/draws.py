"""Cases of how long steps take, in which fleets are compared where lengths are not known. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from lading.scheduling.forecast.fleet_work import FleetWork
from lading.scheduling.forecast.forecast import NORMAL, Forecast, WorkflowStep
from lading.scheduling.prediction import EXACT

# Of a task of which none has ended so much of the spread is that from step to step; no step is among so few; and none
# is over sooner, seconds.
ALONE, MOST_PART, MOMENT = 0.3, 1 - 1e-6, 1e-6


@dataclass(frozen=True, slots=True)
class Draw:
    """How long steps take in one case of many.

    :param seconds: of those of :attr:`FleetWork.names`
    :param left: seconds for which those run on that have begun, by their names
    """

    seconds: Sequence[float]
    left: Mapping[str, float]


def draws(work: FleetWork, medians: Forecast, number: int) -> list[Draw]:
    """Cases of how long steps take, by the spread of each; none: all of that is known.

    Steps that are alike have the same chance in all cases together: of four cases with five steps each one has the
    longest of twenty. The same steps have the same cases in each plan, so that plans differ by what has happened alone.
    Of a task of which none has ended the length of all is not known, and less differs from step to step.

    :param medians: the forecast with the medians of lengths
    """
    steps = medians.steps
    if not any(step.spread > EXACT for step in steps.values()):
        return []
    alike: dict[tuple[str | None, str], list[str]] = {}
    for name, step in steps.items():
        if step.spread > EXACT:
            alike.setdefault((step.job.run, name if step.alike is None else step.alike), []).append(name)
    factors: list[dict[str, float]] = [{} for _ in range(number)]
    tasks = sorted((crc32(f"{key} {case}".encode()), key, case) for key in alike for case in range(number))
    common: dict[tuple[object, int], float] = {}
    seen: dict[object, int] = {}
    for _, key, case in tasks:
        # Each task has each part of the chance once.
        place = seen[key] = seen.get(key, -1) + 1
        common[key, case] = NORMAL.inv_cdf((place + 0.5) / number)
    for key, names in alike.items():
        order = sorted((crc32(f"{name} {case}".encode()), name, case) for name in names for case in range(number))
        for place, (_, name, case) in enumerate(order):
            step = steps[name]
            its_own, shared = step.spread, step.spread / math.sqrt(step.measured) if step.measured else 0.0
            if not step.measured:
                its_own, shared = ALONE * step.spread, math.sqrt(1 - ALONE**2) * step.spread
            shift = step.seconds * math.exp(shared * common[key, case])
            part = (place + 0.5) / len(order)
            if step.begun is not None:
                passed = max(0.0, medians_passed(step, work.now))
                below = NORMAL.cdf(math.log(max(passed, 1e-3) / shift) / its_own)
                part = min(below + part * (1 - below), MOST_PART)
                factors[case][name] = max(MOMENT, shift * math.exp(its_own * NORMAL.inv_cdf(part)) - passed)
            else:
                factors[case][name] = shift * math.exp(its_own * NORMAL.inv_cdf(part))
    return [
        Draw(
            [case.get(name, steps[name].seconds) for name in work.names],
            {name: case.get(name, steps[name].left(work.now)) for name in work.begun},
        )
        for case in factors
    ]


def medians_passed(step: WorkflowStep, now: float) -> float:
    """Seconds for which a step has run."""
    return 0.0 if step.begun is None else now - step.begun
