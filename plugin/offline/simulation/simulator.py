"""A discrete-event simulation of a site that launches machines: what a trace of jobs would have cost, and how long it
would have taken.

Jobs arrive, are planned at fixed intervals, wait for instances to boot, run for their durations, and leave. Instances
fail to launch, are reclaimed, and are released after being idle. The forecast is followed by the same functions as in a
controller: :class:`lading.executors.forecast.site_plan.SitePlan`, :class:`lading.scheduling.placing.choosing.Choice`
and :func:`lading.scheduling.provisioning.decision.decide`. With another policy, a job keeps its place on a booting
instance, except for a short job, which starts wherever there is room first. All randomness comes from the seed.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count

from lading.executors.forecast.site_plan import PlanningInput, SitePlan, chosen
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.report import Report, Tally, least
from lading.plugin.offline.simulation.simulated_machines import Queue, SimulatedMachine
from lading.plugin.offline.simulation.sized_tries import SizedTries
from lading.plugin.offline.simulation.supply import KnownSupply
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import Dependencies
from lading.scheduling.forecast.coming import SiteForecast
from lading.scheduling.forecast.fleet_work import Fleet
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import AssignedJob
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.plan import FORECAST, InstanceLimits, Objective, Plan, PlannedLaunch
from lading.scheduling.model.prediction import ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN, History, Prediction, is_short
from lading.scheduling.packing.problem import Vector, vector
from lading.scheduling.placing.choosing import Choice, with_jobs
from lading.scheduling.provisioning.decision import decide
from lading.scheduling.provisioning.launch import Provision, is_due
from lading.scheduling.provisioning.planner import plan
from lading.scheduling.provisioning.scale_in import ScaleIn, next_boundary, releases

# Seconds between two plans unless conditions give an interval: those of a controller or, with more than TICKS jobs, the
# trace's length divided by TICKS.
TICK = 1.0
TICKS = 10_000
# After this many plans in a row with failed launches or reclaimed instances, and no job arriving or finishing, the
# simulation gives up.
MOST_VAIN_PLANS = 1000


# The simulation has a single site.
SITE = "simulated"


class NoEnd(ValueError):
    """Jobs in the simulation never finish, because launches always fail or instances are reclaimed too soon."""


def simulate(
    trace: Sequence[Arrival],
    catalogue: Catalogue,
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    policy: str = FORECAST,
    *,
    effort: str = "fast",
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    scale_in: ScaleIn = ScaleIn(),  # noqa: B008 (frozen)
    conditions: Conditions = Conditions(),  # noqa: B008 (frozen)
    hurry: float = 1.0,
    lengths: Mapping[str, Prediction | float] | None = None,
    tries: SizedTries | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Run a trace to its end.

    :param hurry: the value of time for the policy ``forecast`` (:mod:`lading.scheduling.forecast.choice`)
    :param lengths: predicted or known (seconds) lengths of jobs, by name; those of other jobs are learnt
    :param tries: what each try requests; None: always what the trace says
    :param progress: called after every plan with the number of finished jobs
    :raises ValueError: an unknown policy or effort, or a job waits for one that is not in the trace
    :raises NoEnd: it would never end
    """
    run = Simulation(trace, catalogue, limits, policy, effort, objective, scale_in, conditions, hurry, lengths, tries)
    return run.run(progress)


class Simulation:
    """One run: the clock, the pending events, the queues and the machines."""

    def __init__(
        self,
        trace: Sequence[Arrival],
        catalogue: Catalogue,
        limits: InstanceLimits,
        policy: str,
        effort: str,
        objective: Objective,
        scale_in: ScaleIn,
        conditions: Conditions,
        hurry: float = 1.0,
        lengths: Mapping[str, Prediction | float] | None = None,
        tries: SizedTries | None = None,
    ) -> None:
        self.catalogue, self.limits, self.supply = catalogue, limits, KnownSupply(catalogue)
        self.policy, self.effort, self.scale_in, self.conditions = policy, effort, scale_in, conditions
        self.objective = objective
        self.random = random.Random(conditions.seed)
        self.lengths, self.hurry, self.tries = lengths or {}, hurry, tries
        self.plan = SitePlan(MachineMarket(catalogue, boot_seconds=conditions.boot_seconds), self.search, lambda: None)
        self.searched: tuple[Future[Fleet | None], Fleet | None] | None = None
        """The search that is not over yet, and what it finds."""
        self.arrivals = array("d")
        self.durations = array("d")
        self.shape_of = array("l")
        self.queues: list[Queue] = []
        self.enlist(trace)
        self.came = array("d", self.arrivals)  # of the trace; ``arrivals`` changes when a job's parents have finished
        self.waits = array("d", [math.nan]) * len(self.arrivals)
        first = self.arrivals[0] if self.arrivals else 0.0
        span = self.arrivals[-1] - first if self.arrivals else 0.0
        many = len(self.arrivals) > TICKS
        self.tick = conditions.tick_seconds or max(TICK, span / TICKS if many else 0.0)
        self.machines: dict[str, SimulatedMachine] = {}
        self.events: list[tuple[float, int, str, str, int]] = []  # time, order, what, machine, job
        self.order = count()
        self.awaited: set[str] = set()  # booting machines on which short jobs are planned
        self.next_arrival = 0
        self.next_forecast, self.live = 0, dict[int, tuple[object, WorkflowStep] | None]()
        """The unfinished jobs, waiting, running or upcoming, of runs that have begun: their steps in the last forecast,
        each with the inputs it was built from."""
        self.began: dict[str, float] = {}
        """By run, the earliest arrival among its finished jobs."""
        self.tally = Tally(last_end=first)
        self.history = History()
        self.predictions: dict[object, Prediction] = {}
        """What the history predicts, until another job finishes."""
        self.busy: dict[int, Queue] = {}  # the queues with waiting jobs

    def enlist(self, trace: Sequence[Arrival]) -> None:
        """Number the jobs by arrival and sort equal ones into queues; each step of a workflow has its own queue."""
        numbers: dict[PlannedJob, int] = {}
        trace = sorted(trace, key=lambda arrival: (arrival.arrival, arrival.job.name))
        if self.policy == FORECAST:
            ones = (replace(arrival, job=replace(arrival.job, count=1)) for arrival in trace)
            trace = [one for one, arrival in zip(ones, trace, strict=True) for _ in range(arrival.job.count)]
        self.dependencies = Dependencies.read(trace)
        has_own_sizes = self.tries is not None
        self.is_workflow = self.policy == FORECAST or bool(self.dependencies.missing) or has_own_sizes
        for place, arrival in enumerate(trace):
            # In a forecast, a job without a run is a run of its own, unless jobs wait for others.
            is_alone = self.policy == FORECAST and arrival.job.run is None and not self.dependencies.missing
            run = f"job {place}" if is_alone else arrival.job.run
            name = str(place) if self.is_workflow else ""
            alike = replace(arrival.job, name=name, count=1, queued_at=0.0, run=run)
            number = numbers.setdefault(alike, len(numbers))
            if number == len(self.queues):
                self.queues.append(Queue(replace(alike, name=str(number)), arrival.job.name, vector(alike.resources)))
            for _ in range(arrival.job.count):
                self.arrivals.append(arrival.arrival)
                self.durations.append(arrival.duration)
                self.shape_of.append(number)
        for job in range(len(self.arrivals)) if has_own_sizes else ():
            self.size(job)

    def size(self, job: int) -> None:
        """Update a job's requests and duration for its next try."""
        if self.tries is not None:
            queue = self.queues[self.shape_of[job]]
            queue.ask(self.tries.next(queue.first))
            self.durations[job] = self.tries.seconds(queue.first)

    def run(self, progress: Callable[[int], None]) -> Report:
        passed, vain = (-1, -1), 0
        while True:
            lost, coming = self.tally.lost, self.next_time()
            if coming is None:
                break
            # A controller decides as soon as a search is over.
            is_search = bool(self.events) and self.events[0][0] == coming and self.events[0][2] == "plan"
            now = coming if is_search else max(coming, math.ceil(coming / self.tick - 1e-9) * self.tick)
            self.advance(now)
            self.decide(now)
            progress(self.tally.ended)
            if passed != (self.next_arrival, self.tally.ended):
                passed, vain = (self.next_arrival, self.tally.ended), 0
            elif self.tally.lost > lost and (vain := vain + 1) > MOST_VAIN_PLANS:
                raise NoEnd(f"no job has ended in {MOST_VAIN_PLANS:,} plans in a row, {now:,.0f} s after the start")
        for machine in list(self.machines.values()):
            self.release(machine, max(self.tally.last_end, machine.launched_at))
        return self.tally.report(self.policy, self.came, self.waits, least(self.queues, self.catalogue))

    def next_time(self) -> float | None:
        times = [self.events[0][0]] if self.events else []
        if self.next_arrival < len(self.arrivals):
            times.append(self.arrivals[self.next_arrival])
        return min(times, default=None)

    def advance(self, now: float) -> None:
        while self.next_arrival < len(self.arrivals) and self.arrivals[self.next_arrival] <= now:
            if self.next_arrival not in self.dependencies.missing:
                self.size(self.next_arrival)
                self.queue(self.shape_of[self.next_arrival]).waiting.append(self.next_arrival)
            self.next_arrival += 1
        while self.events and self.events[0][0] <= now:
            time, _, what, name, job = heapq.heappop(self.events)
            if what == "plan" and self.searched is not None:
                (future, found), self.searched = self.searched, None
                future.set_result(found)
                continue
            if what == "come":
                self.come(job, time)
                continue
            machine = self.machines.get(name)
            if machine is None:
                continue
            if what == "end":
                self.end(machine, job, time)
            elif what == "reclaim":
                self.reclaim(machine, time)

    def queue(self, shape: int) -> Queue:
        """Return a queue that is about to get a job, and mark it as busy."""
        return self.busy.setdefault(shape, self.queues[shape])

    @property
    def youngest(self) -> float:
        """The latest arrival among the waiting jobs."""
        return max(self.arrivals[queue.waiting[-1]] for queue in self.busy.values())

    def predicted(self, queue: Queue) -> Prediction:
        """Predict how long the jobs of a queue will run, from the given lengths or the finished jobs."""
        if queue.first in self.lengths:
            known = self.lengths[queue.first]
            return known if isinstance(known, Prediction) else Prediction(known, number=1)
        key = queue.levels, queue.job.time
        if (found := self.predictions.get(key)) is None:
            terms = (ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN) if self.is_workflow else ()
            found = self.predictions[key] = self.history.predict(*key, *terms)
        return found

    def later(self, time: float, what: str, machine: str = "", job: int = -1) -> None:
        heapq.heappush(self.events, (time, next(self.order), what, machine, job))

    def end(self, machine: SimulatedMachine, job: int, time: float) -> None:
        queue = self.queues[machine.jobs.pop(job)]
        del machine.running[job]
        machine.put(-1, queue.need)
        is_short = self.tries is not None and self.tries.end(queue.first)
        self.tally.end(queue, self.durations[job], time - self.conditions.lag_seconds, is_short=is_short)
        if is_short:
            self.come(job, time)
        else:
            self.history.add(queue.levels, self.durations[job], queue.job.time)
            self.predictions.clear()
        for child in () if is_short else self.dependencies.end(job):
            if child < self.next_arrival:
                if latency := self.conditions.latency_seconds:
                    self.later(time + latency, "come", job=child)
                else:
                    self.come(child, time)
        if not machine.jobs:
            self.idle(machine, time)

    def come(self, job: int, time: float) -> None:
        """Queue a job whose parents have all finished."""
        self.arrivals[job] = time
        self.size(job)
        self.queue(self.shape_of[job]).waiting.append(job)

    def idle(self, machine: SimulatedMachine, time: float) -> None:
        """Record that a machine is empty, and when it is due for release."""
        machine.idle_since, machine.location = time, None
        boundary = next_boundary(machine.seen(self.queues, time), self.scale_in, time)
        due = time + self.scale_in.idle_seconds if boundary is None else boundary - self.scale_in.margin_seconds
        self.later(max(due, time), "look")

    def reclaim(self, machine: SimulatedMachine, time: float) -> None:
        self.tally.reclaim(machine, time, self.conditions.boot_seconds)
        for job, shape in machine.jobs.items():
            self.queue(shape).waiting.appendleft(job)
        self.release(machine, time)
        self.later(time, "look")

    def release(self, machine: SimulatedMachine, time: float) -> None:
        """Pay for a machine and remove it."""
        self.tally.pay(machine, time, self.scale_in.billing_seconds)
        del self.machines[machine.name]

    def decide(self, now: float) -> None:
        if self.policy == FORECAST:
            self.decide_ahead(now)
            return
        jobs = [
            replace(
                queue.job,
                count=len(queue.waiting),
                queued_at=self.arrivals[queue.waiting[0]],
                expected=self.predicted(queue),
            )
            for _, queue in sorted(self.busy.items())
            if not queue.refused
        ]
        idle = any(not machine.jobs for machine in self.machines.values())
        if not jobs and not idle:
            return
        machines = self.of_interest([self.queues[int(job.name)].need for job in jobs], now)
        full = len(self.machines) - len(machines)
        limits, scale_in = self.limits, self.scale_in
        if full:
            if limits.instances is not None:
                limits = replace(limits, instances=limits.instances - full)
            scale_in = replace(scale_in, min_instances=max(0, scale_in.min_instances - full))
        there = [machine.seen(self.queues, now) for machine in machines]
        on_sale = self.supply.available(now)
        decision = plan(
            jobs,
            there,
            on_sale,
            limits,
            self.policy,
            now=now,
            effort=self.effort,
            objective=self.objective,
            bound=False,
        )
        filled = {each.location for each in decision.placements}
        self.tally.plans += 1
        decision = replace(decision, releases=releases(there, filled, scale_in, now))
        self.act(decision, {job.name: job for job in jobs}, now)

    def decide_ahead(self, now: float) -> None:
        """Do what a controller does at a site that launches machines by a forecast."""
        there = [machine.seen(self.queues, now) for machine in self.machines.values()]
        jobs = {
            str(job): queue.asked(self.arrivals[job], self.predicted(queue))
            for queue in self.busy.values()
            if not queue.refused
            for job in queue.waiting
        }
        market = MachineMarket(
            self.supply.available(now),
            self.limits,
            idle_seconds=self.scale_in.idle_seconds,
            min_instances=self.scale_in.min_instances,
            boot_seconds=self.conditions.boot_seconds,
            hurry=self.hurry,
        )
        up = [each for each in there if not each.booting]
        site = SiteView(name=SITE, locations=up, market=market, launched=there, launches=True)
        its = self.forecast(now, jobs)
        foreseen = self.plan.next_actions(its, site, market, now, unsure=its.forecast.launched_when_waiting())
        placed = Choice(now, foreseen={SITE: foreseen}).run(site, list(jobs.values()), its.groups)
        left = [job for name, job in jobs.items() if name not in placed]
        live = with_jobs(there, list(jobs.values()), placed)
        provision = decide(left, live, market, None, its.groups, now=now, foreseen=foreseen)
        self.tally.plans = self.plan.planner.plans
        self.provide(provision, now)
        for name, location in placed.items():
            self.start(self.machines[location], int(name), 1, now)
        for name, reason in provision.refused.items():
            queue = self.queues[int(name)]
            queue.refused = True
            self.tally.refusals.append((queue.first, reason))
        if (look := foreseen.actions.look) is not None:
            self.later(look, "look")

    def provide(self, provision: Provision, now: float) -> None:
        """Release and launch machines, and note which of the others are idle or have been promised to a job."""
        for name in provision.releases:
            self.release(self.machines[name], now + self.conditions.lag_seconds)
        promised: dict[str, set[str]] = {}
        for job, name in provision.homes.items():
            promised.setdefault(name, set()).add(job)
        for name, machine in self.machines.items():
            is_spare = name in provision.spare
            if is_spare and machine.idle_since is None:
                self.later(now + self.scale_in.idle_seconds, "look")
            since = (now if machine.idle_since is None else machine.idle_since) if is_spare else None
            machine.note(since, frozenset(promised.get(name, ())))
        for launch in provision.launches:
            price = launch.usd_per_hour or 0.0
            launched = self.launch(PlannedLaunch("", launch.kind, launch.capacity_type, launch.zone, price), now)
            if launched is not None:
                launched.note(None, frozenset(launch.jobs))
                self.later(launched.ready_at, "look")
        self.tally.peak = max(self.tally.peak, len(self.machines))

    def search(self, here: PlanningInput, fleets: Sequence[Fleet]) -> Future[Fleet | None]:
        """Choose a fleet, which is known once the search for it has taken its time."""
        seconds, future = self.conditions.plan_seconds, Future[Fleet | None]()
        begun = time.process_time() if seconds is None else 0.0
        found = chosen(here, fleets, lambda: None)
        if seconds is None:
            seconds = time.process_time() - begun
        if seconds:
            self.searched = future, found
            self.later(here.now + seconds, "plan")
        else:
            future.set_result(found)
        return future

    def forecast(self, now: float, waiting: Collection[str]) -> SiteForecast:
        """Return what all runs that have begun still have to do.

        :param waiting: the jobs that can start
        """
        at = {job: (each.name, its.begun) for each in self.machines.values() for job, its in each.running.items()}
        steps: dict[str, WorkflowStep] = {}
        began: dict[str, float] = {}
        changed = self.tries.take_changed() if self.tries is not None else ()
        while self.next_forecast < len(self.queues) and self.came[self.next_forecast] <= now:
            self.live[self.next_forecast] = None
            self.next_forecast += 1
        for job in [job for job in self.live if job in self.dependencies.ended or self.queues[job].refused]:
            run = self.queues[job].job.run or ""
            self.began[run] = min(self.began.get(run, math.inf), self.came[job])
            del self.live[job]
        for job in self.live:
            queue = self.queues[job]
            run = queue.job.run or ""
            began[run] = min(began.get(run, self.began.get(run, math.inf)), self.came[job])
            if queue.job.task in changed and job in self.dependencies.missing:
                self.size(job)
            made_of = queue.job, self.predicted(queue), at.get(job)
            if (known := self.live[job]) is None or known[0] != made_of:
                known = self.live[job] = made_of, self.step(job, *made_of)
            steps[str(job)] = known[1]
        forecast = Forecast(steps, began)
        begun = (name for name, step in steps.items() if step.begun is not None)
        groups = InstanceLimits(tasks=self.limits.tasks, runs=self.limits.runs)
        ready = frozenset(forecast.ready().difference(waiting))
        return SiteForecast(forecast, {name: name for name in waiting}, frozenset(begun).union(waiting), ready, groups)

    def step(self, job: int, asked: PlannedJob, expected: Prediction, at: tuple[str, float] | None) -> WorkflowStep:
        """Return an unfinished job as a step of a forecast.

        :param at: the machine on which it runs, and since when
        """
        location, begun = at or (None, None)
        return WorkflowStep(
            asked,
            max(0.1, expected.seconds),
            tuple(str(each) for each in self.dependencies.parents[job]),
            begun,
            location,
            expected.spread,
            alike=asked.task,
            measured=expected.number,
        )

    def of_interest(self, needs: list[Vector], now: float) -> list[SimulatedMachine]:
        """Return the machines without those that are too full for any waiting job, which only cost planning time.
        Return all of them if limits depend on their types, tasks, runs or prices.
        """
        machines = list(self.machines.values())
        limits = self.limits
        if limits.types or limits.tasks or limits.runs or limits.usd_per_hour is not None or limits.vcpus:
            return machines
        least = tuple(min(amounts) for amounts in zip(*needs, strict=True)) if needs else (2**62,) * 4
        return [machine for machine in machines if not machine.jobs or machine.takes(least)]

    def act(self, decision: Plan, jobs: Mapping[str, PlannedJob], now: float) -> None:
        for released in decision.releases:
            self.release(self.machines[released.location], now + self.conditions.lag_seconds)
        due = self.due(decision, now)
        started = {launch.name: self.launch(launch, now) for launch in decision.launches if launch.name in due}
        if len(due) < len(decision.launches):
            self.later(now + self.tick, "look")
        self.tally.peak = max(self.tally.peak, len(self.machines))
        awaited: set[str] = set()
        for placement in decision.placements:
            machine = started.get(placement.location) or self.machines.get(placement.location)
            if machine is not None and machine.ready_at > now and is_short(jobs[placement.job]):
                awaited.add(machine.name)
            elif machine is not None:
                self.start(machine, int(placement.job), placement.count, now)
        self.await_short(awaited, now)
        for refused in decision.refusals:
            queue = self.queues[int(refused.job)]
            queue.refused = True
            self.tally.refusals.append((queue.first, refused.reason))

    def await_short(self, awaited: set[str], now: float) -> None:
        """Record the booting machines on which short jobs are planned; those no longer in use are idle."""
        for name in self.awaited - awaited:
            if (machine := self.machines.get(name)) is not None and not machine.jobs:
                self.idle(machine, now)
        for machine in (self.machines[name] for name in awaited):
            machine.idle_since, machine.location = None, None
            self.later(machine.ready_at, "look")
        self.awaited = awaited

    def due(self, decision: Plan, now: float) -> set[str]:
        """Return the launches that are made now: while jobs are arriving, only those whose jobs have waited long enough
        (see :func:`lading.scheduling.provisioning.launch.settled`).
        """
        names = {launch.name for launch in decision.launches}
        youngest = self.youngest if names else now
        if not names or is_due(now, youngest, now):  # whenever their jobs arrived
            return names
        passed, due = Counter[str](), set[str]()
        for placement in sorted(decision.placements, key=lambda each: each.location in names):
            # Sorted by location: jobs placed on existing machines come first and take the head of their queues.
            first = self.queues[int(placement.job)].waiting[passed[placement.job]]
            passed[placement.job] += placement.count
            if placement.location in names and is_due(self.arrivals[first], youngest, now):
                due.add(placement.location)
        return due

    def launch(self, launch: PlannedLaunch, now: float) -> SimulatedMachine | None:
        is_unlucky = self.random.random() < self.conditions.capacity_errors
        if is_unlucky or launch.instance_type in self.conditions.scarce:
            self.tally.errors += 1
            until = now + self.conditions.unavailable_seconds
            self.supply.ran_out(launch, until)
            self.later(now + self.tick, "look")  # to try another offering
            self.later(until, "look")
            return None
        kind = self.catalogue.types[launch.instance_type]
        self.tally.launched[launch.instance_type] += 1
        name, ready_at = f"i-{self.tally.launched.total()}", now + self.conditions.boot_seconds
        machine = SimulatedMachine(
            launch, name, vector(kind.capacity), kind.capacity, kind.arch, kind.features, now, ready_at
        )
        self.machines[machine.name] = machine
        if launch.capacity_type == SPOT and self.conditions.reclaims_per_hour > 0:
            life = self.random.expovariate(self.conditions.reclaims_per_hour) * 3600
            self.later(now + life, "reclaim", machine.name)
        return machine

    def start(self, machine: SimulatedMachine, shape: int, number: int, now: float) -> None:
        queue = self.queues[shape]
        expected, lag = self.predicted(queue), self.conditions.lag_seconds
        for _ in range(number):
            job = queue.waiting.popleft()
            machine.jobs[job] = shape
            machine.put(1, queue.need)
            begin = max(now, machine.ready_at) + lag
            self.waits[job] = begin - self.arrivals[job]
            self.later(begin + self.durations[job] + lag, "end", machine.name, job)
            machine.running[job] = AssignedJob(begin, expected, queue.job.resources)
        if not queue.waiting:
            del self.busy[shape]
        machine.idle_since = None
