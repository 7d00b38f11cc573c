"""The remaining tasks of a run, and the chain of tasks that determines its length. Pure; epoch seconds.

This is the critical path of project planning (Kelley and Walker, "Critical-path planning and scheduling", 1959), based
on measured times for finished tasks, and on earlier jobs of the task for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple


class Stretch(NamedTuple):
    """A task of a run.

    :param since: when its first job was queued; None: it has none yet
    :param started: when its first job started
    :param until: when its last job ended; None: some have not
    :param seconds: the length of one of its jobs, or of all together if it has none yet; None: unknown
    :param last: when its last job started or is expected to; None: it has none
    """

    since: float | None
    started: float | None
    until: float | None
    seconds: float | None
    last: float | None = None


def order(upstream: Mapping[str, Iterable[str]], names: Iterable[str]) -> list[str]:
    """Tasks in topological order; by name if they wait for each other."""
    wanted = set(names)
    graph = {name: [each for each in upstream.get(name, ()) if each in wanted] for name in sorted(wanted)}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError:
        return sorted(wanted)


def without(upstream: Mapping[str, Iterable[str]], names: Iterable[str]) -> dict[str, set[str]]:
    """The direct predecessors of tasks when all other tasks are removed: predecessors of a removed task, such as one
    that Airflow finishes without a job, become predecessors of its successors.

    :param names: the tasks that remain
    """
    kept, before = set(names), dict[str, set[str]]()
    for name in order(upstream, {*upstream, *kept}):
        its = [{each} if each in kept else before.get(each, set()) for each in upstream.get(name, ())]
        before[name] = set().union(*its)
    return {name: before[name] for name in kept}


def to_come(
    tasks: Mapping[str, Stretch], upstream: Mapping[str, Iterable[str]], now: float
) -> dict[str, tuple[float, float]]:
    """The expected (start, end) of unfinished tasks, as far as their lengths are known.

    Nothing is expected of tasks behind one whose length is unknown.
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
    """The chain of tasks that ends last, in order; each follows the predecessor that ended last.

    :param ends: when each task ended or is expected to end
    """
    if not ends or not upstream:
        return []
    chain = [max(ends, key=lambda name: (ends[name], name))]
    while before := [each for each in upstream.get(chain[-1], ()) if each in ends and each not in chain]:
        chain.append(max(before, key=lambda name: (ends[name], name)))
    return chain[::-1]
