"""What recorded workflows cost in allocations of a batch cluster, in cpu-hours and time, with and without the forecast.

    python -m benchmarks.allocations                        all runs in ``benchmarks/data``, durations × 20
    python -m benchmarks.allocations --queue 60 rnaseq hic
    python -m benchmarks.allocations --unlimited            tasks without time limits

Each allocation waits in its queue for ``--queue`` seconds, and is paid from its start to its end. A node has 16 cpus
and 128 GiB. There are at most 4 allocations at a time, of 4 h each; ``idle_seconds`` is 300. The time limit of a task
is twice the longest recorded duration of its kind, at least 10 minutes. A task is queued 2 s after the tasks before it
have finished, with Airflow's default priority: 1 plus the number of jobs behind it. ``now`` requests allocations for
waiting jobs. The others use the forecast, with each duration ``known``, only those of tasks of the same name (``task``,
as in a second run), or none (``unknown``, as in a first run). ``--spread``: the standard deviation of the logarithm of
actual over expected waits. ``--hurry``: how much finishing early is worth.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.packing import machine
from benchmarks.workflows import behind
from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.policy import Planner
from lading.scheduling.forecast.spending import Spending
from lading.scheduling.matching.market import Market, need
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import NOTHING, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import LENGTHS, Objective
from lading.scheduling.model.prediction import History, Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import pose
from lading.scheduling.placing.filling import in_planned_order, run_now
from lading.scheduling.provisioning import Launch, decide
from lading.scheduling.provisioning.allocation_plan import (
    SECONDS_PAID,
    allocation_plan,
    as_machine,
    as_machines,
    margin,
    sure_steps,
)
from lading.scheduling.provisioning.launch import AllocationPlan
from tests.services.planned import planned_actions

DATA = Path(__file__).parent / "data"
NODE = Resources(16, 128 * 1024)
OVERHEAD, IDLE, HOURS = 384, 300.0, 4 * 3600.0
MOST = 4
# Airflow's scheduler takes so long from the end of a task to the queueing of the next one, seconds.
LATENCY = 2.0
# Decisions are made whenever something has happened, and so often besides, seconds; soon after that more often.
BETWEEN, SOON, SOON_FOR = 10.0, 1.0, 10.0
LEAST_LIMIT = 600.0
RUN = "r"


@dataclass
class Allocation:
    """One allocation: when it starts, and when it has to end, seconds; ``ends``: of its jobs, by name."""

    launch: Launch
    starts: float
    ends: dict[str, float] = field(default_factory=dict)
    used: Resources = NOTHING
    idle_since: float | None = None
    ordered: float = 0.0

    def over(self, now: float) -> bool:
        """Whether it has ended by itself."""
        idle = IDLE if self.launch.idle_seconds is None else self.launch.idle_seconds
        is_idle = self.idle_since is not None and now - self.idle_since >= idle
        return now >= self.starts and (now >= self.starts + self.launch.seconds or is_idle)

    def location(self, name: str, now: float) -> Location:
        return Location(
            name,
            self.launch.capacity,
            self.used,
            self.launch.kind,
            ends_at=max(now, self.starts) + self.launch.seconds - max(0.0, now - self.starts),
            booting=now < self.starts,
            jobs=len(self.ends),
            idle_since=self.idle_since,
        )


@dataclass
class Found:
    """What a run has cost."""

    cpu_hours: float = 0.0
    seconds: float = 0.0
    allocations: int = 0


class Cluster:
    """A cluster and one run, played to its end.

    :param lengths: what is known of lengths, one of ``LENGTHS``; None: nothing is forecast
    :param hurry: what an early end is worth in cpu-hours
    :param spread: of the waits in the queue: the standard deviation of their logarithms
    """

    def __init__(
        self,
        workflow: Sequence[Arrival],
        queue: float,
        lengths: str | None,
        *,
        unlimited: bool,
        spread: float = 0.0,
        hurry: float = 1.0,
    ) -> None:
        self.random, self.spread = random.Random(0), spread
        self.planner = Planner(queue, hurry)
        self.spending = Spending()
        seconds = HOURS - 130
        self.market = Market(NODE, OVERHEAD, seconds, seconds / 2, MOST, idle_seconds=IDLE, queue_seconds=queue)
        self.queue, self.lengths = queue, lengths
        self.expected = expected_lengths(workflow, "known") if lengths == "known" else {}
        longest: dict[str | None, float] = {}
        for each in workflow:
            longest[each.job.task] = max(longest.get(each.job.task, 0.0), each.duration)
        self.arrivals = {each.job.name: each for each in workflow}
        self.needs = {}
        after = behind(workflow)
        for name, each in self.arrivals.items():
            limit = None if unlimited else max(LEAST_LIMIT, 2 * longest[each.job.task])
            amounts = replace(each.job.resources, memory=min(each.job.resources.memory, NODE.memory - OVERHEAD), disk=0)
            cpus = min(amounts.cpus, NODE.cpus)
            job = WaitingJob(name=name, resources=replace(amounts, cpus=cpus), time=limit, task=each.job.task, run=RUN)
            job = replace(job, priority=1 + len(after[name]))
            self.needs[name] = need(job, self.market)
        self.limits = {name: None if unlimited else its.time for name, its in self.needs.items()}
        self.history = History()
        if lengths == "task":  # as in a second run
            for name, each in self.arrivals.items():
                self.history.add(self._levels(name), each.duration, self.limits[name])
        self.queued: dict[str, float] = {}
        self.begun: dict[str, tuple[float, str]] = {}
        self.ended: dict[str, float] = {}
        self.there: dict[str, Allocation] = {}
        self.found = Found()
        self.changed_at = 0.0

    def run(self) -> Found:
        now, number = 0.0, 0
        while len(self.ended) < len(self.arrivals):
            self._advance(now)
            number += self._decide(now, number)
            now = self._next(now)
        self.found.seconds = max(self.ended.values())
        while self.there:
            self._advance(now)
            self._decide(now, number)
            now = self._next(now)
        return self.found

    def _next(self, now: float) -> float:
        events = [at for each in self.there.values() for at in (each.starts, each.starts + each.launch.seconds)]
        events += [at for each in self.there.values() for at in each.ends.values()]
        events += [self.ended[name] + LATENCY for name in self.ended]
        step = SOON if now - self.changed_at < SOON_FOR else BETWEEN
        return min([now + step, *(at for at in events if at > now)])

    def _advance(self, now: float) -> None:
        for name, each in list(self.there.items()):
            for job in [job for job, at in each.ends.items() if at <= now]:
                self.ended[job] = each.ends.pop(job)
                each.used -= self.needs[job].resources
                its = self.arrivals[job]
                self.history.add(self._levels(job), its.duration, self.limits[job])
                self.changed_at = now
            if each.ends:
                each.idle_since = None
            elif now >= each.starts and each.idle_since is None:
                each.idle_since = now
            if each.over(now):
                self._end(name, now)
        for name, its in self.arrivals.items():
            ready = max((self.ended[parent] + LATENCY for parent in its.parents if parent in self.ended), default=0.0)
            if name not in self.queued and all(parent in self.ended for parent in its.parents) and ready <= now:
                self.queued[name] = self.changed_at = now

    def _end(self, name: str, now: float) -> None:
        its = self.there.pop(name)
        assert not its.ends, f"jobs were cut: {sorted(its.ends)}"
        self.found.cpu_hours += max(0.0, now - its.starts) / 3600 * its.launch.capacity.cpus

    def _decide(self, now: float, number: int) -> int:
        """Place and launch; how many were launched."""
        waiting = [
            replace(self.needs[name], queued_at=at, expected=self._prediction(name))
            for name, at in self.queued.items()
            if name not in self.begun
        ]
        live = [each.location(name, now) for name, each in self.there.items()]
        plan = self._planned(waiting, live, now)
        if plan is not None:
            waiting = in_planned_order(waiting, plan.starts)
        for job, name in run_now(waiting, [each for each in live if not each.booting], now=now).items():
            its, length = self.there[name], self.arrivals[job].duration
            self.begun[job] = now, name
            its.ends[job] = now + length
            its.used += self.needs[job].resources
            its.idle_since = None
        waiting = [job for job in waiting if job.name not in self.begun]
        live = [each.location(name, now) for name, each in self.there.items()]
        found = decide(waiting, live, self.market, now=now, foreseen=plan)
        assert not found.refused, found.refused
        for name in found.releases:
            if not self.there[name].ends:
                self._end(name, now)
        for position, launch in enumerate(found.launches):
            waits = self.queue * self.random.lognormvariate(0.0, self.spread)
            self.there[f"a{number + position}"] = Allocation(launch, now + waits, ordered=now)
        self.found.allocations += len(found.launches)
        return len(found.launches)

    def _forecast(self) -> Forecast:
        steps: dict[str, WorkflowStep] = {}
        for name, its in self.arrivals.items():
            if name not in self.ended:
                expected = self._prediction(name)
                begun, where = self.begun.get(name, (None, None))
                steps[name] = WorkflowStep(
                    self.needs[name],
                    max(0.1, expected.seconds),
                    tuple(each for each in its.parents if each not in self.ended),
                    begun,
                    where,
                    expected.spread,
                )
        return Forecast(steps, {RUN: 0.0})

    def _planned(self, waiting: Sequence[PlannedJob], live: Sequence[Location], now: float) -> AllocationPlan | None:
        """What the plan requests for the upcoming work; None: nothing is forecast."""
        if self.lengths is None:
            return None
        forecast = self._forecast()
        waits = dict.fromkeys((str(each.instance_type) for each in self.needs.values()), self.queue)
        market = as_machines(self.market, waits)
        there = []
        for each in live:
            its = self.there[each.name]
            there.append(as_machine(each, its.ordered, None if each.booting else its.starts, self.queue, now))
        self.spending.see({each.name: (each.launched_at or now, each.usd_per_hour) for each in there}, now)
        problem = pose([], there, market.catalogue, market.limits, Objective(), now, None)
        spent = self.spending.usd(forecast, now)
        names = [each.name for each in waiting]
        actions = planned_actions(
            self.planner, forecast, names, there, problem, spent=spent, now=now, most_boot_paid=SECONDS_PAID
        )
        plan = allocation_plan(
            actions,
            frozenset(names) - actions.refused.keys(),
            forecast,
            dict(zip(names, names, strict=True)),
            {} if self.planner.schedule is None else self.planner.schedule.starts,
            sure_steps(forecast, names, [RUN], waits, now),
            there,
            waits,
            self.market,
            margin(0.0),
            now,
        )
        return replace(plan, known=frozenset([RUN]))

    def _levels(self, name: str) -> tuple[tuple[str, str], ...]:
        task = str(self.arrivals[name].job.task)
        return ((task, task),)

    def _prediction(self, name: str) -> Prediction:
        if name in self.expected:
            return self.expected[name]
        return self.history.predict(self._levels(name), self.limits[name], 1, 0.1)


def main(argv: Sequence[str] | None = None) -> int:
    names = sorted(path.stem for path in DATA.glob("*.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--queue", type=float, default=600.0, help="seconds that an allocation waits")
    parser.add_argument("--scale", type=float, default=20.0)
    parser.add_argument("--unlimited", action="store_true")
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--hurry", type=float, default=1.0)
    args = parser.parse_args(argv)
    print(machine())
    sums: Mapping[str, Counter[str]] = {each: Counter() for each in ("now", *LENGTHS)}
    for name in args.names or names:
        workflow = wfformat.read((DATA / f"{name}.json").read_text(encoding="utf-8"), name, scale=args.scale)
        for how, its in sums.items():
            begin = time.perf_counter()
            cluster = Cluster(
                workflow,
                args.queue,
                None if how == "now" else how,
                unlimited=args.unlimited,
                spread=args.spread,
                hurry=args.hurry,
            )
            found = cluster.run()
            its.update(cpu_hours=found.cpu_hours, seconds=found.seconds, allocations=found.allocations)
            print(
                f"{name:18}{how:9}{found.cpu_hours:8.1f} cpu-hours {found.seconds:8.0f} s "
                f"{found.allocations:3} allocations, in {time.perf_counter() - begin:.1f} s",
                flush=True,
            )
    before = sums["now"]
    for how, its in sums.items():
        shares = {key: its[key] / before[key] for key in before}
        print(
            f"{'sum':18}{how:9}{its['cpu_hours']:8.1f} cpu-hours {its['seconds']:8.0f} s {its['allocations']:3} "
            f"allocations: {shares['cpu_hours']:.3f} × cpu-hours, {shares['seconds']:.3f} × time"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
