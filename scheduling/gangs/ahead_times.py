"""Asking ahead: when the partitions of a run will start, and when what they need is to be asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Expected:
    """A partition that has not ended, as far as its time is known.

    :param name: its task, or its gang
    :param seconds: that it will take; None: that is not known, so nothing behind it can be reckoned with
    :param after: the partitions that come before it; those that have ended may be left out
    :param begun_at: when it has begun, epoch seconds; None: it has not
    :param wait: predicted seconds from asking for what it needs until that is there
    :param may_ask: whether that can be asked for before the partition is there; else it waits when it has come
    :param asked_at: since when that is asked for, or it waits itself, or will when it has slept until its next attempt;
        epoch seconds; None: it is not
    """

    name: str
    seconds: float | None
    after: frozenset[str] = frozenset()
    begun_at: float | None = None
    wait: float = 0.0
    may_ask: bool = False
    asked_at: float | None = None


class Time(NamedTuple):
    """When a partition will start, and when what it needs is to be asked for, epoch seconds."""

    start: float
    due: float


def start_times(partitions: Iterable[Expected], now: float, latency: float) -> dict[str, Time]:
    """When each partition starts; those are left out before which the time of one is not known.

    The first ones start as soon as they are decided about. What a queue, or an attempt that is still to come, has moved
    is what those behind it reckon with.

    :param now: epoch seconds
    :param latency: seconds that a decision takes, measured
    :raises graphlib.CycleError: partitions wait for each other
    """
    by_name: Mapping[str, Expected] = {each.name: each for each in partitions}
    order = TopologicalSorter({name: each.after & by_name.keys() for name, each in by_name.items()}).static_order()
    times: dict[str, Time] = {}
    for name in order:
        here = by_name[name]
        before = [by_name[each] for each in here.after if each in by_name]
        if here.begun_at is not None:
            times[name] = Time(here.begun_at, here.begun_at)
            continue
        # What takes longer than was predicted ends at any moment.
        ends = [max(now, times[each.name].start + (each.seconds or 0.0)) for each in before if each.name in times]
        if len(ends) < len(before) or any(each.seconds is None for each in before):
            continue
        free = max([now + latency, *ends])
        if here.may_ask:
            times[name] = Time(
                max(free, (now if here.asked_at is None else here.asked_at) + here.wait), free - here.wait
            )
        else:
            since = free if here.asked_at is None else here.asked_at
            times[name] = Time(max(free, since + here.wait), free)
    return times


def before(name: str, partitions: Mapping[str, Expected]) -> frozenset[str]:
    """All partitions that come before one, however far."""
    earlier: set[str] = set()
    next_ones = [*partitions[name].after]
    while next_ones:
        each = next_ones.pop()
        if each in partitions and each not in earlier:
            earlier.add(each)
            next_ones += partitions[each].after
    return frozenset(earlier)
