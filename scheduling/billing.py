"""What a bought machine costs, and how that is shared among the jobs that were on it. Pure; USD and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lading.scheduling.resources import Resources

# EC2 bills Linux by the second, but for at least a minute: https://aws.amazon.com/ec2/pricing/on-demand/
LEAST_SECONDS = 60.0


class Stay(NamedTuple):
    """A job on a machine.

    :param share: of the machine, 0 to 1 (:func:`dominant_share`)
    :param since: epoch seconds at which it began
    :param until: at which it ended
    """

    name: str
    share: float
    since: float
    until: float


def dominant_share(asked: Resources, capacity: Resources) -> float:
    """The largest part of any resource of a machine that a job asks for, at most all of it.

    Ghodsi et al., Dominant resource fairness, NSDI 2011: what a job keeps others from, whichever resource that is.
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
    """USD at a price from one time to another."""
    return usd_per_hour * max(0.0, until - since) / 3600


def minimum(usd_per_hour: float, launched: float, ended: float) -> float:
    """USD that are billed on top of the seconds of a life which is shorter than the least."""
    return cost(usd_per_hour, ended, max(ended, launched + LEAST_SECONDS))


def metered(prices: Sequence[tuple[float, float]], more: float, launched: float, ended: float) -> float:
    """USD of a life during which the price has changed, the least that is billed included.

    :param prices: since when each held, epoch seconds, and USD per hour, oldest first; the first one from the launch on
    :param more: what is paid besides, USD per hour
    """
    ended = max(ended, launched + LEAST_SECONDS)
    since = [launched, *(min(max(at, launched), ended) for at, _ in prices[1:]), ended]
    return sum(cost(usd + more, *times) for (_, usd), times in zip(prices, pairwise(since), strict=True))


def divided(usd: float, launched: float, ended: float, stays: Sequence[Stay]) -> tuple[dict[str, float], float]:
    """What each job is charged of a machine's bill, and what remains unused.

    At each moment a job pays its dominant share; where the shares of all are more than the machine, each pays its part
    of their sum. So no more is charged than was billed.

    :param usd: the bill
    :returns: USD by the job's name, and the rest
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
