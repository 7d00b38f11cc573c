"""What of a run is still to come, and which chain of tasks makes it as long. Pure; epoch seconds.

It is the critical path of project planning (Kelley and Walker, "Critical-path planning and scheduling", 1959), by what
was measured where tasks have ended, and by what their earlier jobs took where not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple


class Stretch(NamedTuple):
    """A task of a run.

    :param since: when its first job was queued; None: it has none yet
    :param started: when the first of them started
    :param until: when the last of them ended; None: some have not
    :param seconds: that a job of it takes, or all of them where it has none yet; None: that is not known
    :param last: when the last of its jobs started, or is expected to; None: it has none
    """

    since: float | None
    started: float | None
    until: float | None
    seconds: float | None
    last: float | None = None


def order(upstream: Mapping[str, Iterable[str]], names: Iterable[str]) -> list[str]:
    """Tasks in an order in which each comes after those that it waits for; by name where they wait for each other."""
    wanted = set(names)
    graph = {name: [each for each in upstream.get(name, ()) if each in wanted] for name in sorted(wanted)}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError:
        return sorted(wanted)


def without(upstream: Mapping[str, Iterable[str]], names: Iterable[str]) -> dict[str, set[str]]:
    """What comes right before each of some tasks when all others are left out: those before a task that is left out,
    such as one that Airflow ends without a job, come before those behind it.

    :param names: of the tasks that stay
    """
    kept, before = set(names), dict[str, set[str]]()
    for name in order(upstream, {*upstream, *kept}):
        its = [{each} if each in kept else before.get(each, set()) for each in upstream.get(name, ())]
        before[name] = set().union(*its)
    return {name: before[name] for name in kept}


def to_come(
    tasks: Mapping[str, Stretch], upstream: Mapping[str, Iterable[str]], now: float
) -> dict[str, tuple[float, float]]:
    """From when to when the tasks are expected that have not ended, as far as it is known how long they take.

    What is known of one is not known of those behind another of which it is not.
    """
    ends: dict[str, float | None] = {name: task.until for name, task in tasks.items() if task.until is not None}
    found: dict[str, tuple[float, float]] = {}
    for name in order(upstream, tasks):
        task = tasks[name]
        if task.until is not None:
            continue
        before = [ends.get(each) for each in upstream.get(name, ()) if each in tasks]
        if task.seconds is None or (task.since is None and None in before):
            ends[name] = None
            continue
        begin = task.started if task.started is not None else max([now, *(each for each in before if each is not None)])
        found[name] = begin, max(now, max(begin, task.last or begin) + task.seconds)
        ends[name] = found[name][1]
    return found


def critical(ends: Mapping[str, float], upstream: Mapping[str, Iterable[str]]) -> list[str]:
    """The chain of tasks that ends last, each with that of those before it which ended last; the first one first.

    :param ends: when each ended, or is expected to
    """
    if not ends or not upstream:
        return []
    chain = [max(ends, key=lambda name: (ends[name], name))]
    while before := [each for each in upstream.get(chain[-1], ()) if each in ends and each not in chain]:
        chain.append(max(before, key=lambda name: (ends[name], name)))
    return chain[::-1]
