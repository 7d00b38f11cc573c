"""What a launched machine costs, and how that cost is divided among the jobs that ran on it. Pure; USD and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lading.scheduling.model.resources import Resources

# EC2 bills Linux instances by the second, with a minimum of one minute: https://aws.amazon.com/ec2/pricing/on-demand/
LEAST_SECONDS = 60.0


class Stay(NamedTuple):
    """The time that a job spent on a machine.

    :param share: the job's share of the machine, 0 to 1 (:func:`dominant_share`)
    :param since: when it started, epoch seconds
    :param until: when it finished, epoch seconds
    """

    name: str
    share: float
    since: float
    until: float


def dominant_share(asked: Resources, capacity: Resources) -> float:
    """The largest fraction of any one resource of a machine that a job requests, at most 1.

    This is what the job denies to others, whichever resource it is: Ghodsi et al., Dominant resource fairness, NSDI
    2011.
    """
    parts = [
        need / have
        for need, have in (
            (asked.cpus, capacity.cpus),
            (asked.memory, capacity.memory),
            (asked.disk, capacity.disk),
            (asked.gpus, capacity.gpus),
        )
        if have > 0
    ]
    return min(1.0, max(parts, default=1.0))


def cost(usd_per_hour: float, since: float, until: float) -> float:
    return usd_per_hour * max(0.0, until - since) / 3600


def minimum(usd_per_hour: float, launched: float, ended: float) -> float:
    """The USD that the minimum billing time adds to the bill of a machine that lived for less than that."""
    return cost(usd_per_hour, ended, max(ended, launched + LEAST_SECONDS))


def metered(prices: Sequence[tuple[float, float]], more: float, launched: float, ended: float) -> float:
    """The USD for a machine whose price changed while it was up, including the minimum billing time.

    :param prices: (epoch seconds since when the price held, USD per hour), oldest first; the first holds from the
        launch
    :param more: surcharges, USD per hour
    """
    ended = max(ended, launched + LEAST_SECONDS)
    since = [launched, *(min(max(at, launched), ended) for at, _ in prices[1:]), ended]
    return sum(cost(usd + more, *times) for (_, usd), times in zip(prices, pairwise(since), strict=True))


def divided(usd: float, launched: float, ended: float, stays: Sequence[Stay]) -> tuple[dict[str, float], float]:
    """Divide a machine's bill among its jobs.

    At each moment a job pays its dominant share. Where the shares add up to more than the machine, each job pays in
    proportion to its share of the sum, so that no more is charged than was billed.

    :param usd: the bill
    :returns: USD by job name, and the unused rest
    """
    charged = {stay.name: 0.0 for stay in stays}
    seconds = max(ended - launched, LEAST_SECONDS)
    inside = [stay._replace(since=max(stay.since, launched), until=min(stay.until, ended)) for stay in stays]
    steps = sorted({time for stay in inside if stay.since < stay.until for time in (stay.since, stay.until)})
    for since, until in pairwise(steps):
        here = [stay for stay in inside if stay.since <= since and until <= stay.until]
        whole = max(1.0, sum(stay.share for stay in here))
        for stay in here:
            charged[stay.name] += usd * (until - since) / seconds * stay.share / whole
    return charged, usd - sum(charged.values())
