"""What runs still have to do: their tasks, how long each takes, and which must end before it begins. Pure."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

from lading.scheduling.job import PlannedJob
from lading.scheduling.prediction import EXACT

# What runs is expected to run on for as long as half of those that are as long until now, of log-normal lengths whose
# logarithms have at most this standard deviation; and where it exceeds what was expected for a moment more, seconds.
MOST_SPREAD, MOMENT = 1.5, 1.0
# Beyond it a spread is that of several kinds of jobs, and their mean does not follow from it.
MOST_SPREAD_OF_ONE_KIND = 1.0
# What has run for so many standard deviations less than expected says nothing of how long others take. How often an
# interval is halved in which a shift of the mean is.
NEAR, HALVINGS = 3.0, 12
# Jobs of a task have histories by their sizes. Beyond so many of them in a run the first one's shift counts: each takes
# a look at all that run.
MOST_SHIFTS = 8
NORMAL = NormalDist()


class CycleError(ValueError):
    """Tasks that wait for each other, so that none of them can ever begin."""


class RoomWait(NamedTuple):
    """For how long there is no room for a step that may begin.

    :param seconds: from asking for room until it is there, above zero
    :param since: when it was asked for, epoch seconds; None: it is when the step may begin
    """

    seconds: float
    since: float | None = None


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """One job that has not ended: a task instance that runs, waits, or is still to come.

    :param job: what it needs; its name is unique in the forecast
    :param seconds: how long it is expected to run from its start, above zero but where it runs elsewhere; ``spread``:
        the standard deviation of the logarithm of that, 0: it is known
    :param parents: the names of the steps that must end before it may begin; those that have ended are left out
    :param begun: epoch seconds since when it runs; None: it does not yet
    :param location: the name of the machine on which it runs
    :param rest: seconds of the longest way behind it to the end of its run, through steps that are left out
    :param elsewhere: whether it needs none of the machines that are planned: it takes time, and nothing else
    :param room_wait: of a step that runs elsewhere; None: there is room at once
    :param pool: Airflow's pool in which it is; None: that does not matter
    :param pool_slots: how many slots of it it takes
    :param ahead: whether what it needs is launched before it waits; None: machines if it is known how long steps like
        it take, and allocations if it is certain when it begins
    :param alike: what the steps of its run have in common that take about as long, its task; None: there are none
    :param measured: how many such have ended by which ``seconds`` is expected
    """

    job: PlannedJob
    seconds: float
    parents: tuple[str, ...] = ()
    begun: float | None = None
    location: str | None = None
    spread: float = 0.0
    elsewhere: bool = False
    room_wait: RoomWait | None = None
    rest: float = 0.0
    pool: str | None = None
    pool_slots: int = 1
    ahead: bool | None = None
    alike: str | None = None
    measured: int = 0

    def left(self, now: float) -> float:
        """Seconds that it still runs. The less its length is known, the less follows from when it should end; and the
        more it exceeds that, the longer it is expected to run on: how many times it has taken is itself a measurement
        of the spread.
        """
        if self.begun is None:
            return self.seconds
        passed = now - self.begun
        if passed <= 0 or (not self.spread and passed < self.seconds):
            return self.seconds - passed
        over = math.log(passed / self.seconds) if self.seconds else 0.0
        left = passed * math.expm1(_longer(over, min(MOST_SPREAD, max(self.spread, over))))
        return left if passed < self.seconds else MOMENT + left

    def start(self, ready: float) -> float:
        """When it begins if it may at a moment and there are machines for all, epoch seconds."""
        if self.room_wait is None:
            return ready
        seconds, since = self.room_wait
        return max(ready, (ready if since is None else since) + seconds)

    @property
    def is_measured(self) -> bool:
        """Whether it is known how long steps like it take; else it is expected to take as long as others."""
        return self.measured > 0 or self.spread <= EXACT

    @property
    def wait_to_come(self) -> float:
        """For how long it will wait for room once it may begin, seconds."""
        return self.room_wait.seconds if self.room_wait is not None and self.room_wait.since is None else 0.0

    def waits_for_room(self, now: float) -> bool:
        """Whether it waits for room, and has not for longer than is expected."""
        return self.room_wait is not None and self.room_wait.since is not None and self.start(now) > now


@dataclass(frozen=True)
class Forecast:
    """The steps of all live runs, by name.

    :param steps: those that have not ended
    :param began: epoch seconds at which each run has begun, by ``Job.run``; one that is not here begins now
    :param hurries: what time is worth to runs, by ``Job.run``, where it is not what it is to all others
        (:mod:`lading.scheduling.forecast.choice`)
    :param finish_by: epoch seconds until which runs shall have ended, whatever that costs, by ``Job.run``
    :param most_at_once: how many steps of a run may be at work at a time, by ``Job.run``; absent: any number
    :param pools: how many slots each pool has; absent: any number
    :param turns: the priority and the turn that shares give to steps that wait, by name (:class:`PlannedJob`); empty:
        they are of one share
    """

    steps: Mapping[str, WorkflowStep]
    began: Mapping[str, float] = field(default_factory=dict)
    hurries: Mapping[str, float] = field(default_factory=dict)
    most_at_once: Mapping[str, int] = field(default_factory=dict)
    finish_by: Mapping[str, float] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)
    # It differs in each tick, and is no reason to plan anew.
    turns: Mapping[str, tuple[int, float]] = field(default_factory=dict, compare=False)

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """The steps that wait for each one."""
        by_parent: dict[str, list[str]] = {name: [] for name in self.steps}
        for name, step in self.steps.items():
            for parent in step.parents:
                if parent in by_parent:
                    by_parent[parent].append(name)
        return {name: tuple(some) for name, some in by_parent.items()}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All steps, parents first.

        :raises CycleError: some wait for each other
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

    def rests(self, now: float) -> dict[str, float]:
        """The seconds of the longest way from now, or from the start of a step that does not run yet, through it to the
        end of its run, by name.
        """
        found: dict[str, float] = {}
        for name in reversed(self.order):
            found[name] = self.steps[name].left(now) + self.behind(name, found)
        return found

    def behind(self, name: str, rests: Mapping[str, float]) -> float:
        """The seconds of the longest way from the end of a step to the end of its run.

        :param rests: see :meth:`rests`, of the steps that wait for it
        """
        ways = (rests[each] + self.steps[each].wait_to_come for each in self.children[name])
        return max((self.steps[name].rest, *ways))

    def soonest(self, now: float) -> dict[str, float]:
        """When each step begins if there are machines for all, epoch seconds; one that runs: now."""
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}
        for name in self.order:
            step = self.steps[name]
            ready = max((ends[each] for each in step.parents if each in ends), default=now)
            starts[name] = now if step.begun is not None else step.start(ready)
            ends[name] = starts[name] + step.left(now)
        return starts

    def nearest(self, most: int, now: float) -> Forecast:
        """The same without the steps that come last, where more than so many are still to begin.

        When each begins is reckoned as if there were machines for all. What is left out counts in
        :attr:`WorkflowStep.rest` of those before it.
        """
        if sum(step.begun is None for step in self.steps.values()) <= most:
            return self
        soonest = self.soonest(now)
        begins = [
            (soonest[name], number, name) for number, name in enumerate(self.order) if self.steps[name].begun is None
        ]
        left_out = {name for _, _, name in sorted(begins)[most:]}
        rests, kept = self.rests(now), dict[str, WorkflowStep]()
        for name, step in self.steps.items():
            if name not in left_out:
                is_cut = any(each in left_out for each in self.children[name])
                kept[name] = replace(step, rest=self.behind(name, rests)) if is_cut else step
        return replace(self, steps=kept)

    def by_those_at_work(self, now: float) -> Forecast:
        """The same where steps take longer, as those like them that are at work have taken as long until now.

        The shortest end first: if two of fifty that began together have ended, the others take longer than these. So
        what runs on counts as well (:func:`censored_shift`). Where none has ended, or lengths are known, what is
        overdue counts as one that takes as long as is expected of it now; and if none has ended, all others take as
        long as the one that takes the longest: before they could end they have not had the time.
        """
        passed: dict[tuple[str | None, str], list[float]] = {}
        overdue: dict[tuple[str | None, str], list[float]] = {}
        for step in self.steps.values():
            if step.begun is None or step.alike is None or not step.seconds > 0 or now <= step.begun:
                continue
            key, its = (step.job.run, step.alike), now - step.begun
            passed.setdefault(key, []).append(math.log(its / step.seconds))
            if its > step.seconds:
                overdue.setdefault(key, []).append(math.log((its + step.left(now)) / step.seconds))
        shifts: dict[object, dict[tuple[float, float], float]] = {}
        changed: dict[str, WorkflowStep] = {}
        for name, step in self.steps.items():
            key = step.job.run, step.alike or ""
            shift = 0.0
            if step.measured and step.spread > EXACT:
                those, spread = passed.get(key, ()), min(MOST_SPREAD_OF_ONE_KIND, step.spread)
                # For how long it has run itself counts when it is reckoned what is left.
                others = len(those) if step.begun is None else len(those) - 1
                if others > 0:
                    found, kind = shifts.setdefault(key, {}), (step.measured * len(those) / others, spread)
                    if kind not in found and len(found) < MOST_SHIFTS:
                        found[kind] = censored_shift(those, *kind)
                    shift = found.get(kind, next(iter(found.values())))
            elif key in overdue and (step.begun is None or now - step.begun <= step.seconds):
                shift = _common(overdue[key], step.measured)
            if shift:
                changed[name] = replace(step, seconds=step.seconds * math.exp(shift))
        return replace(self, steps={**self.steps, **changed}) if changed else self

    def by_means(self) -> Forecast:
        """The same where what is to come takes as long as on average, which is longer than half of all take.

        What follows one another on a machine takes the sum of that. Where none like it has ended it is left alone.
        """
        steps = dict(self.steps)
        for name, step in self.steps.items():
            if step.measured and step.spread and step.begun is None:
                times = math.exp(min(MOST_SPREAD_OF_ONE_KIND, step.spread) ** 2 / 2)
                steps[name] = replace(step, seconds=step.seconds * times)
        return replace(self, steps=steps)

    def ready(self) -> set[str]:
        """The steps that do not run and wait for none that takes time."""
        found: set[str] = set()
        for name in self.order:
            step = self.steps[name]
            before = (each for each in step.parents if each in self.steps)
            if step.begun is None and all(each in found and not self.steps[each].seconds for each in before):
                found.add(name)
        return found

    def launched_when_waiting(self) -> frozenset[str]:
        """The steps for which nothing is launched before they wait: by their hints, or as none of their task has ended.

        How many machines such steps take is not known: by the time the first of them has ended, most may be too many.
        What has booted for nothing costs as much as what is of use, which saves the time of a boot.
        """
        return frozenset(
            name
            for name, step in self.steps.items()
            if not (step.ahead if step.ahead is not None else step.is_measured)
        )

    def without(self, names: Iterable[str]) -> Forecast:
        """The same without these steps and all that wait for them."""
        left_out, further = set[str](), list(names)
        while further:
            if (name := further.pop()) not in left_out:
                left_out.add(name)
                further += self.children[name]
        return replace(self, steps={name: step for name, step in self.steps.items() if name not in left_out})

    def by_rest(self, rests: Mapping[str, float]) -> Iterator[str]:
        """The steps that do not run, parents first, and of those that are free of them the highest priority first, then
        those of the share whose turn it is, then the longest rest, then what can begin now, then those of the run that
        began first. Where shares go in turn, what is to come comes after all that waits.

        Those for which nothing is launched before they wait come after the others of their priority until they do: what
        may come late, and for a time that is not known, takes no room from what waits.
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


def _longer(logarithm: float, spread: float) -> float:
    """By how much half of those of normal logarithms around 0 that exceed one exceed it at most."""
    if not spread:
        return 0.0
    part = math.erfc(logarithm / spread / math.sqrt(2)) / 4
    return -NORMAL.inv_cdf(max(part, sys.float_info.min)) * spread - logarithm


def censored_shift(passed: Sequence[float], measured: float, spread: float) -> float:
    """By how much the mean of normal values is more than that of those that are measured, where of others is known
    that they are more than so much: by maximum likelihood (Tobin, "Estimation of relationships for limited dependent
    variables", Econometrica 26, 1958).

    :param passed: what the others exceed, over the mean of those that are measured
    :param measured: how many are, above zero; more where each of the others counts as a part of one
    :param spread: the standard deviation of all, above zero
    """
    near = [each for each in passed if each > -NEAR * spread]  # what has just begun says nothing
    if not near:
        return 0.0

    def is_more(shift: float) -> bool:
        return spread * math.fsum(_hazard((each - shift) / spread) for each in near) > measured * shift

    low, high = 0.0, max(spread, *near)
    while is_more(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_more(middle) else (low, middle)
    return low


def _hazard(value: float) -> float:
    """By how much a standard normal variable exceeds 0 on average where it exceeds this."""
    if value > 8:  # erfc is too small for a float soon
        return value + 1 / value
    return math.exp(-value * value / 2) * math.sqrt(2 / math.pi) / math.erfc(value / math.sqrt(2))


def _common(over: Iterable[float], measured: int) -> float:
    """The mean of what is measured, which is 0, and of what is at least so much, each counted as the mean or more."""
    total, found = 0.0, 0.0
    for number, each in enumerate(sorted(over, reverse=True), 1):
        if each <= found:
            break
        total += each
        found = total / (measured + number)
    return found
