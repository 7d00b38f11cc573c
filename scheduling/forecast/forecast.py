"""The remaining work of runs: their steps, how long each takes, and which must finish before it starts. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import NamedTuple

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.prediction import EXACT
from lading.scheduling.model.unfinished import MOST_SPREAD_OF_ONE_KIND, censored_shift, seconds_left

# Jobs of a task have histories by size. Computing a shift looks at all running steps, so beyond this many histories in
# a run the first one's shift is used.
MOST_SHIFTS = 8
NO_LENGTHS: Mapping[str, float] = MappingProxyType({})


class CycleError(ValueError):
    """Tasks wait for each other, so that none of them can ever start."""


class RoomWait(NamedTuple):
    """How long a step that can start has to wait for room.

    :param seconds: from the request for room until it is available, above zero
    :param since: when the room was requested, epoch seconds; None: it will be when the step can start
    """

    seconds: float
    since: float | None = None


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """One unfinished job: a task instance that runs, waits, or is still expected.

    :param job: its requests; its name is unique in the forecast
    :param seconds: its expected length from its start, above zero except for steps elsewhere
    :param spread: the standard deviation of the logarithm of its length; 0: the length is known
    :param parents: the steps that must finish before it can start; finished ones are omitted
    :param begun: since when it runs, epoch seconds; None: not started
    :param location: the machine on which it runs
    :param elsewhere: whether it needs none of the planned machines, and only takes time
    :param room_wait: its wait for room, for a step elsewhere; None: there is room at once
    :param pool: its Airflow pool; None: irrelevant
    :param pool_slots: how many slots of the pool it takes
    :param ahead: whether machines or allocations are launched for it before it waits; None: machines if the length of
        such steps is known, allocations if its start is certain
    :param alike: what identifies the steps of its run with similar lengths, its task; None: there are none
    :param measured: how many finished steps ``seconds`` is based on
    :param at_once: whether it starts as soon as it can, on another machine if there is no room, like a member of a gang
    """

    job: PlannedJob
    seconds: float
    parents: tuple[str, ...] = ()
    begun: float | None = None
    location: str | None = None
    spread: float = 0.0
    elsewhere: bool = False
    room_wait: RoomWait | None = None
    pool: str | None = None
    pool_slots: int = 1
    ahead: bool | None = None
    alike: str | None = None
    measured: int = 0
    at_once: bool = False

    def with_seconds(self, seconds: float) -> WorkflowStep:
        """The same step with another length; faster than ``replace``, for thousands of them."""
        return WorkflowStep(
            job=self.job,
            seconds=seconds,
            parents=self.parents,
            begun=self.begun,
            location=self.location,
            spread=self.spread,
            elsewhere=self.elsewhere,
            room_wait=self.room_wait,
            pool=self.pool,
            pool_slots=self.pool_slots,
            ahead=self.ahead,
            alike=self.alike,
            measured=self.measured,
            at_once=self.at_once,
        )

    def left(self, now: float) -> float:
        """The expected remaining seconds."""
        if self.begun is None:
            return self.seconds
        return seconds_left(now - self.begun, self.seconds, self.spread)

    def start(self, ready: float) -> float:
        """When it starts, epoch seconds, if it can start at ``ready`` and there are enough machines."""
        if self.room_wait is None:
            return ready
        seconds, since = self.room_wait
        return max(ready, (ready if since is None else since) + seconds)

    @property
    def is_measured(self) -> bool:
        """Whether the length of such steps has been measured; otherwise it is assumed from other tasks."""
        return self.measured > 0 or self.spread <= EXACT

    @property
    def wait_to_come(self) -> float:
        """How long it will wait for room once it can start, seconds."""
        return self.room_wait.seconds if self.room_wait is not None and self.room_wait.since is None else 0.0

    def waits_for_room(self, now: float) -> bool:
        """Whether it waits for room, and not longer than expected so far."""
        return self.room_wait is not None and self.room_wait.since is not None and self.start(now) > now


@dataclass(frozen=True)
class Forecast:
    """The steps of all live runs, by name.

    :param steps: the unfinished steps
    :param began: when each run started, epoch seconds, by ``Job.run``; a missing run starts now
    :param hurries: the value of time of runs that differ from the default, by ``Job.run``
        (:mod:`lading.scheduling.forecast.choice`)
    :param finish_by: the deadlines of runs, whatever they cost, epoch seconds, by ``Job.run``
    :param most_at_once: how many steps of a run can be active at once, by ``Job.run``; a missing run is unlimited
    :param pools: the slots of each pool; a missing pool is unlimited
    :param turns: the priority and the turn that shares assign to waiting steps, by name (:class:`PlannedJob`); empty if
        all are of one share
    """

    steps: Mapping[str, WorkflowStep]
    began: Mapping[str, float] = field(default_factory=dict)
    hurries: Mapping[str, float] = field(default_factory=dict)
    most_at_once: Mapping[str, int] = field(default_factory=dict)
    finish_by: Mapping[str, float] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)
    # They differ in each tick, which must not cause a new plan.
    turns: Mapping[str, tuple[int, float]] = field(default_factory=dict, compare=False)

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        by_parent: dict[str, list[str]] = {name: [] for name in self.steps}
        for name, step in self.steps.items():
            for parent in step.parents:
                if parent in by_parent:
                    by_parent[parent].append(name)
        return {name: tuple(some) for name, some in by_parent.items()}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All steps, parents first.

        :raises CycleError: steps wait for each other
        """
        missing = {name: sum(each in self.steps for each in step.parents) for name, step in self.steps.items()}
        ordered = [name for name, number in missing.items() if not number]
        for name in ordered:
            for child in self.children[name]:
                missing[child] -= 1
                if not missing[child]:
                    ordered.append(child)
        if len(ordered) < len(self.steps):
            odd = sorted(self.steps.keys() - set(ordered))
            raise CycleError(f"{len(odd)} tasks wait for each other, among them {', '.join(odd[:3])}")
        return tuple(ordered)

    def with_lengths(self, seconds: Mapping[str, float]) -> Forecast:
        """The same forecast with other lengths of some steps, by name."""
        if not seconds:
            return self
        changed = {name: self.steps[name].with_seconds(its) for name, its in seconds.items()}
        found = replace(self, steps={**self.steps, **changed})
        # They do not depend on lengths, and thousands of steps take long to sort.
        vars(found).update({name: value for name, value in vars(self).items() if name in ("children", "order")})
        return found

    def rests(self, now: float, lengths: Mapping[str, float] = NO_LENGTHS) -> dict[str, float]:
        """The longest path from now, or from the start of an unstarted step, through the step to the end of its run,
        seconds, by name.

        :param lengths: what steps still take if it is not what is expected or is known already, seconds, by name
        """
        found: dict[str, float] = {}
        for name in reversed(self.order):
            left = lengths.get(name)
            found[name] = (self.steps[name].left(now) if left is None else left) + self.behind(name, found)
        return found

    def behind(self, name: str, rests: Mapping[str, float]) -> float:
        """The longest path from the end of a step to the end of its run, seconds.

        :param rests: see :meth:`rests`; of the steps that wait for it
        """
        return max((rests[each] + self.steps[each].wait_to_come for each in self.children[name]), default=0.0)

    def soonest(self, now: float) -> dict[str, float]:
        """When each step starts if there are enough machines, epoch seconds; now if it is running."""
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}
        for name in self.order:
            step = self.steps[name]
            ready = max((ends[each] for each in step.parents if each in ends), default=now)
            starts[name] = now if step.begun is not None else step.start(ready)
            ends[name] = starts[name] + step.left(now)
        return starts

    def by_those_at_work(self, now: float) -> Forecast:
        """The forecast with longer lengths for steps whose running siblings already take longer.

        Short jobs finish first: if two of fifty steps that started together have finished, the others take longer than
        these two. So running steps count as measurements, too (:func:`censored_shift`). If none has finished, or
        lengths are known, an overdue step counts with the length that is now expected of it; and if none has finished,
        the others are assumed to take as long as the longest one, since they have not had the time to finish.
        """
        passed: dict[tuple[str | None, str], list[float]] = {}
        overdue: dict[tuple[str | None, str], list[WorkflowStep]] = {}
        for step in self.steps.values():
            if step.begun is None or step.alike is None or not step.seconds > 0 or now <= step.begun:
                continue
            key, its = (step.job.run, step.alike), now - step.begun
            passed.setdefault(key, []).append(math.log(its / step.seconds))
            if its > step.seconds:
                overdue.setdefault(key, []).append(step)

        @cache
        def common(key: tuple[str | None, str], measured: int) -> float:
            """The mean of the finished steps of a kind and of the overdue ones."""
            ends = ((now - (step.begun or 0.0) + step.left(now), step.seconds) for step in overdue[key])
            return _common([math.log(length / seconds) for length, seconds in ends], measured)

        shifts: dict[object, dict[tuple[float, float], float]] = {}
        changed: dict[str, float] = {}
        for name, step in self.steps.items():
            key = step.job.run, step.alike or ""
            shift = 0.0
            if step.measured and step.spread > EXACT:
                those, spread = passed.get(key, ()), min(MOST_SPREAD_OF_ONE_KIND, step.spread)
                # Its own running time is not counted here, but when its remaining time is computed.
                others = len(those) if step.begun is None else len(those) - 1
                if others > 0:
                    found, kind = shifts.setdefault(key, {}), (step.measured * len(those) / others, spread)
                    if kind not in found and len(found) < MOST_SHIFTS:
                        found[kind] = censored_shift(those, *kind)
                    shift = found.get(kind, next(iter(found.values())))
            elif key in overdue and (step.begun is None or now - step.begun <= step.seconds):
                shift = common(key, step.measured)
            if shift:
                changed[name] = step.seconds * math.exp(shift)
        return self.with_lengths(changed)

    def by_means(self) -> Forecast:
        """The forecast with the mean lengths of unstarted steps, which exceed the medians.

        Steps that run one after the other on a machine take the sum of their lengths, so the mean counts. Steps whose
        task has no finished step are unchanged.
        """
        means: dict[str, float] = {}
        for name, step in self.steps.items():
            if step.measured and step.spread and step.begun is None:
                means[name] = step.seconds * math.exp(min(MOST_SPREAD_OF_ONE_KIND, step.spread) ** 2 / 2)
        return self.with_lengths(means)

    def ready(self) -> set[str]:
        """The unstarted steps that wait for no step that takes time."""
        found: set[str] = set()
        for name in self.order:
            step = self.steps[name]
            before = (each for each in step.parents if each in self.steps)
            if step.begun is None and all(each in found and not self.steps[each].seconds for each in before):
                found.add(name)
        return found

    def launched_when_waiting(self) -> frozenset[str]:
        """The steps for which machines are launched only once they wait, because of their hints or because no step of
        their task has finished.

        How many machines such steps need is unknown: by the time the first has finished, most could be superfluous. A
        machine that boots in vain costs as much as a useful one, which only saves the time of a boot.
        """
        return frozenset(
            name
            for name, step in self.steps.items()
            if not (step.ahead if step.ahead is not None else step.is_measured)
        )

    def without(self, names: Iterable[str]) -> Forecast:
        """The forecast without these steps and all steps that wait for them."""
        left_out, further = set[str](), list(names)
        while further:
            if (name := further.pop()) not in left_out:
                left_out.add(name)
                further += self.children[name]
        return replace(self, steps={name: step for name, step in self.steps.items() if name not in left_out})

    def by_rest(self, rests: Mapping[str, float]) -> Iterator[str]:
        """The unstarted steps, parents first, in the order in which they get machines.

        The order is: highest priority, then the share whose turn it is, then the longest remaining path, then steps
        that can start now, then the run that started first. Where shares take turns, expected steps come after all
        waiting ones.

        Steps for which machines are launched only once they wait come last within their priority until then: a step
        that may arrive late, and whose length is unknown, takes no room from waiting ones.
        """
        missing = {
            name: sum(each in self.steps and self.steps[each].begun is None for each in step.parents)
            for name, step in self.steps.items()
            if step.begun is None
        }

        launched_late = self.launched_when_waiting()
        last = min((priority for priority, _ in self.turns.values()), default=0), math.inf

        def place(name: str) -> tuple[int, bool, float, float, bool, float, str]:
            step = self.steps[name]
            priority, turn = self.turns.get(name, last) if self.turns else (step.job.priority, 0.0)
            is_to_come = any(each in self.steps for each in step.parents)
            is_late, began = is_to_come and name in launched_late, self.began.get(step.job.run or "", math.inf)
            return -priority, is_late, turn, -rests[name], is_to_come, began, name

        ready = [place(name) for name, number in missing.items() if not number]
        heapq.heapify(ready)
        while ready:
            *_, name = heapq.heappop(ready)
            yield name
            for child in self.children[name]:
                missing[child] -= 1
                if not missing[child]:
                    heapq.heappush(ready, place(child))


def _common(over: Iterable[float], measured: int) -> float:
    """The mean of the measured values, which are 0, and of lower bounds, which count as the mean or more."""
    total, found = 0.0, 0.0
    for number, each in enumerate(sorted(over, reverse=True), 1):
        if each <= found:
            break
        total += each
        found = total / (measured + number)
    return found
