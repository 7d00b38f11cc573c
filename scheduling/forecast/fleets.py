"""Schedules for a fleet: steps start in the order of their longest remaining path, as soon as a machine has room. Pure.

This is list scheduling (Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17,
1969) in the order of HEFT, simulated event by event. Steps with equal requests and lengths are handled together: n of
them on m machines cost about as much time as m. So one fleet takes milliseconds, and hundreds of fleets can be
compared.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import ge

from lading.scheduling.forecast.fleet_work import BegunStep, Draw, Fleet, FleetWork, StepClass
from lading.scheduling.forecast.schedule import PlannedMachine, Schedule
from lading.scheduling.model.location import Location
from lading.scheduling.model.quotas import quota, vcpus
from lading.scheduling.packing.problem import Bin

# Events closer together than this are handled as one, seconds.
MOMENT = 1e-6
# After how many events ``pause`` is called, so that other threads can run.
EVENTS_PER_PAUSE = 50
# In place of a machine's number, for events of: steps at other sites, a step that had started before, no step at all.
ELSEWHERE, BEGUN, WAKE = -1, -2, -3


@dataclass(slots=True)
class FleetMachine:
    """A machine in the simulation of a fleet.

    :param suits: for each class of steps, whether it can ever run there
    :param up: from when on it accepts steps, epoch seconds
    :param until: when its last step should finish, epoch seconds
    :param idle_since: when its last step finished; None: it is new and has had none
    :param paid: how many seconds it has cost so far
    :param location: the existing machine; None: ``bin`` is launched
    :param spare: whether it only takes steps that fit no machine of the fleet
    :param shared: whether it has jobs that are not steps, so that it never makes way for another machine
    """

    free: list[int]
    suits: Sequence[bool]
    price: float
    boot: float
    up: float
    location: Location | None = None
    bin: Bin | None = None
    idle_since: float | None = None
    paid: float = 0.0
    running: int = 0
    since: float = 0.0
    closes: float = math.inf
    until: float = 0.0
    spare: bool = False
    shared: bool = False
    number: int = 0
    is_open: bool = True
    labels: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def kind(self) -> str | None:
        if self.bin is not None:
            return self.bin.type.name
        return None if self.location is None else self.location.instance_type

    @property
    def cpus(self) -> float:
        """Its vCPUs, as quotas count them."""
        if self.bin is not None:
            return vcpus(self.bin.type.name, self.bin.type.capacity.cpus)
        return 0.0 if self.location is None else vcpus(str(self.kind), self.location.capacity.cpus)

    @property
    def quota(self) -> str:
        its = self.bin.offering.capacity_type if self.bin is not None else None
        return quota(str(self.kind), its if self.location is None else self.location.capacity_type)


@dataclass(slots=True)
class Reach:
    """The other fleets for which a simulation is valid: fleets of the same instance types whose size and stretch change
    nothing in it.

    :param least: a smaller size would have prevented a launch, or the use of an existing machine
    :param most: a larger size would have allowed one; infinite: the size has prevented nothing
    :param by: by run, the latest deadline that delays no launch, epoch seconds; minus infinity: the deadline of this
        fleet has delayed one
    """

    least: float = 0.0
    most: float = math.inf
    by: dict[str | None, float] = field(default_factory=dict)

    def covers(self, size: float, deadlines: Mapping[str | None, float] | None) -> bool:
        """Return whether the simulation is valid for a fleet of this size.

        :param deadlines: see :meth:`FleetWork.deadlines`
        """
        if not self.least <= size <= self.most:
            return False
        if deadlines is None:
            return -math.inf not in self.by.values()
        return all(deadlines[run] <= by - MOMENT for run, by in self.by.items())


class FleetRun:
    """The simulation of a forecast on one fleet.

    :param fleet: None: nothing is launched
    :param draw: the lengths of steps; None: those of the forecast
    :param pause: called regularly, so that other threads can run
    :ivar usd: the remaining cost
    :ivar ends: when each run ends, epoch seconds
    :ivar reach: the other fleets for which the result is the same
    """

    def __init__(
        self,
        work: FleetWork,
        fleet: Fleet | None,
        draw: Draw | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self.work, self.draw = work, draw
        self.menu = work.menu(fleet)
        self.is_mixed = fleet is not None and fleet.bin is None
        self.size = math.inf if fleet is None else fleet.size
        self.deadlines = work.deadlines(fleet.stretch) if fleet is not None and fleet.stretch else None
        self.reach = Reach()
        self.lengths = None if draw is None else draw.seconds
        self.pause = pause
        self.missing = work.missing[:]
        self.events: list[tuple[float, int, int, int, Sequence[int]]] = []
        """Time, order, machine, class, steps; of a step that had started, its number instead of a class."""
        self.count = 0
        self.ready: dict[int, deque[int]] = {}
        self.waiting: list[list[int]] = [[] for _ in work.classes]  # by class, a heap of groups with waiting steps
        self.fresh: set[int] = set()
        self.blocked: set[int] = set()
        self.changed: list[FleetMachine] = []
        self.slots: dict[tuple[str, str], int] = dict.fromkeys(work.most, 0)
        self.labelled: dict[tuple[str, str], int] = dict.fromkeys(work.most_machines, 0)
        self.machines: list[FleetMachine] = []
        self.at: dict[str | None, FleetMachine] = {}
        """The existing machines by name."""
        self.ends: dict[str | None, float] = {}
        self.starts: list[float] = [math.nan] * len(work.names)
        self.homes: list[int] = [ELSEWHERE] * len(work.names)
        self.wakes: set[float] = set()
        self.first = [0] * len(work.classes)
        """By class, the number of the first machine that may have room for its steps."""
        needs = [each.need for each in work.classes if not each.elsewhere]
        self.least_need = tuple(min(amounts) for amounts in zip(*needs, strict=True)) if needs else (0, 0, 0, 0)
        self.with_room: dict[int, FleetMachine] = {}
        """The machines of a fleet of several types that have room for the smallest needs, by number."""
        self.home_of: dict[int, FleetMachine] = {}
        """By class, a machine of the fleet that suits it."""
        self.open, self.has_spares = 0, False
        self.is_starved = self.is_limited = False
        self._begin()
        self._run()
        self.usd = math.fsum(each.paid * each.price for each in self.machines)
        self.is_whole = not any(self.waiting)

    def _begin(self) -> None:
        work, now, draw = self.work, self.work.now, self.draw
        lefts = [each.left for each in work.begun] if draw is None else [draw.left[each.name] for each in work.begun]
        stays: dict[str | None, float] = {}  # by machine, when the last of its started steps ends
        for step, left in zip(work.begun, lefts, strict=True):
            self.ends[step.run] = max(self.ends.get(step.run, now), now + left)
            stays[step.location] = max(stays.get(step.location, now), now + left)
        self._put_there(stays)
        for number, (step, left) in enumerate(zip(work.begun, lefts, strict=True)):
            self._count(step.its_class, self.at.get(step.location), 1)
            self._push(now + left, BEGUN, number, ())
        for number, missing in enumerate(self.missing):
            if not missing:
                self._come(number, now)

    def _put_there(self, stays: Mapping[str | None, float]) -> None:
        """Add the existing machines, those that must stay longest first.

        :param stays: when the last started step ends on each of them, epoch seconds, by name
        """
        there = sorted(self.work.there, key=lambda each: -stays.get(each.location.name, each.up))
        for number, each in enumerate(there):
            location = each.location
            machine = FleetMachine(
                list(each.free),
                each.suits,
                location.usd_per_hour / 3600,
                each.boot,
                each.up,
                location,
                idle_since=each.up,
                running=each.running,
                since=each.up,
                closes=math.inf if location.ends_at is None else location.ends_at,
                until=each.until,
                spare=number >= self.size,
                shared=each.shared,
                number=number,
            )
            self._add(machine)
            self.at[location.name] = machine
            if each.up > self.work.now:
                self._wake(each.up)
        self.open, self.has_spares = len(there), len(there) > self.size

    def _add(self, machine: FleetMachine) -> None:
        self.machines.append(machine)
        if self.is_mixed:
            self.with_room[machine.number] = machine

    def _count(self, its_class: StepClass, machine: FleetMachine | None, number: int) -> None:
        """Count steps as active (or, with a negative number, as finished) against limits."""
        for limit, slots in its_class.slots:
            self.slots[limit] += slots * number
            if number < 0:
                self._unblock(limit)
        if machine is None:
            return
        for label in its_class.labels:
            before = machine.labels.get(label, 0)
            machine.labels[label] = before + number
            if not before:
                self.labelled[label] += 1
            elif not machine.labels[label]:
                self.labelled[label] -= 1
                self._unblock(label)

    def _push(self, time: float, machine: int, its_class: int, steps: Sequence[int]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, machine, its_class, steps))

    def _wake(self, time: float) -> None:
        if time not in self.wakes and time < math.inf:
            self.wakes.add(time)
            self._push(time, WAKE, 0, ())

    def _come(self, number: int, time: float) -> None:
        """A step can start, because everything it waited for has finished."""
        work = self.work
        further = [number]
        while further:
            number = further.pop()
            its_class = work.class_of[number]
            each = work.classes[its_class]
            if each.elsewhere:
                step = work.forecast.steps[work.names[number]]
                start = step.start(time)
                if not each.slots or start > time + MOMENT:
                    seconds = self.lengths[number] if self.lengths is not None else work.seconds[number]
                    self.starts[number] = start
                    if seconds <= 0.0 and start <= time:
                        self._note_end(number, time)
                        for child in work.children[number]:
                            self.missing[child] -= 1
                            if not self.missing[child]:
                                further.append(child)
                    else:
                        self._push(start + seconds, ELSEWHERE, its_class, (number,))
                    continue
            bucket = work.bucket_of[number]
            queue = self.ready.get(bucket)
            if queue is None:
                queue = self.ready[bucket] = deque()
            if not queue:
                heapq.heappush(self.waiting[its_class], bucket)
                if self.waiting[its_class][0] == bucket or its_class not in self.blocked:
                    self.fresh.add(its_class)
            queue.append(number)

    def _note_end(self, number: int, time: float) -> None:
        run = self.work.runs[number]
        if time > self.ends.get(run, 0.0):
            self.ends[run] = time

    def _run(self) -> None:
        work, events = self.work, self.events
        self._dispatch(work.now)
        looks = 0
        while events:
            time = events[0][0]
            until = time + MOMENT
            while events and events[0][0] <= until:
                at, _, machine, its_class, steps = heapq.heappop(events)
                if machine >= ELSEWHERE:
                    self._end(machine, its_class, steps, time)
                elif machine == BEGUN:
                    self._end_begun(work.begun[its_class], time)
                else:
                    self.wakes.discard(at)
                    self.fresh |= self.blocked
                    self.blocked.clear()
                    self.first = [0] * len(self.first)
            self._dispatch(time)
            looks += 1
            if looks % EVENTS_PER_PAUSE == 0:
                self.pause()

    def _end_begun(self, step: BegunStep, time: float) -> None:
        home = self.at.get(step.location)
        if home is not None:
            self._free(home, step.its_class, 1, time)
        self._count(step.its_class, home, -1)
        for child in step.children:
            self.missing[child] -= 1
            if not self.missing[child]:
                self._come(child, time)

    def _end(self, number: int, its_class: int, steps: Sequence[int], time: float) -> None:
        each, home = self.work.classes[its_class], None if number == ELSEWHERE else self.machines[number]
        if home is not None:
            self._free(home, each, len(steps), time)
        if each.slots or each.labels:
            self._count(each, home, -len(steps))
        missing, children = self.missing, self.work.children
        for step in steps:
            self._note_end(step, time)
            for child in children[step]:
                missing[child] -= 1
                if not missing[child]:
                    self._come(child, time)

    def _free(self, machine: FleetMachine, its_class: StepClass, number: int, time: float) -> None:
        free, need = machine.free, its_class.need
        free[0] += need[0] * number
        free[1] += need[1] * number
        free[2] += need[2] * number
        free[3] += need[3] * number
        machine.running -= number
        if not machine.running:
            machine.paid += time - machine.since
            machine.idle_since = time
            if self.is_starved:
                self._wake(time + machine.boot)
        self.changed.append(machine)
        if self.is_mixed:
            self.with_room[machine.number] = machine

    def _unblock(self, limit: tuple[str, str]) -> None:
        """Let steps that count against a limit try all machines again."""
        for each in list(self.blocked):
            its_class = self.work.classes[each]
            if limit in its_class.labels or any(limit == other for other, _ in its_class.slots):
                self.blocked.discard(each)
                self.fresh.add(each)
                self.first[each] = 0

    def _due(self) -> list[tuple[int, int, bool]]:
        """The classes with steps that can start now: (first group, class, whether all machines are tried).

        Otherwise only machines on which steps have finished are tried, because nothing has changed on the others.
        """
        waiting = self.waiting
        todo = [(waiting[each][0], each, True) for each in self.fresh if waiting[each]]
        for each in self.blocked if self.changed else ():
            if waiting[each] and each not in self.fresh:
                n0, n1, n2, n3 = self.work.classes[each].need
                for machine in self.changed:
                    free = machine.free
                    if machine.suits[each] and n0 <= free[0] and n1 <= free[1] and n2 <= free[2] and n3 <= free[3]:
                        todo.append((waiting[each][0], each, False))
                        break
        self.fresh.clear()
        heapq.heapify(todo)
        return todo

    def _dispatch(self, time: float) -> None:
        """Start the steps that have room now, those with the longest remaining paths first."""
        if not (self.fresh or self.blocked):
            return
        classes, waiting, opened = self.work.classes, self.waiting, len(self.machines)
        todo = self._due()
        changed, self.changed = self.changed, []
        if len(changed) > 1:
            by_number = {machine.number: machine for machine in changed}
            changed = [by_number[number] for number in sorted(by_number)]
        if changed:
            low = changed[0].number
            self.first = [low if each > low else each for each in self.first]
        while todo:
            bucket, its_class, is_fresh = heapq.heappop(todo)
            heap = waiting[its_class]
            queue = self.ready[bucket]
            each = classes[its_class]
            if each.elsewhere:
                self._place_elsewhere(its_class, queue, time)
            elif is_fresh or its_class not in self.blocked:
                some = self.with_room.values() if self.is_mixed else islice(self.machines, self.first[its_class], None)
                last = self._place(its_class, bucket, queue, some, time)
                if not (each.slots or each.labels or self.is_mixed):
                    self.first[its_class] = len(self.machines) if last is None else last
            else:
                self._place(its_class, bucket, queue, [*changed, *self.machines[opened:]], time)
            if queue and not each.elsewhere:
                self._launch(its_class, bucket, queue, time)
            if queue:
                self.blocked.add(its_class)
                continue
            heapq.heappop(heap)
            if heap:
                heapq.heappush(todo, (heap[0], its_class, is_fresh))
            else:
                self.blocked.discard(its_class)

    def _allowed(self, its_class: StepClass, number: int) -> int:
        """How many more steps of a class the limits allow to be active now, up to ``number``."""
        for limit, slots in its_class.slots:
            number = min(number, (self.work.most[limit] - self.slots[limit]) // slots if slots else number)
        return max(0, number)

    def _place_elsewhere(self, its_class: int, queue: deque[int], time: float) -> None:
        each = self.work.classes[its_class]
        for _ in range(self._allowed(each, len(queue))):
            number = queue.popleft()
            seconds = self.lengths[number] if self.lengths is not None else self.work.seconds[number]
            self.starts[number] = time
            self._count(each, None, 1)
            self._push(time + seconds, ELSEWHERE, its_class, (number,))

    def _by_growth(
        self, its_class: int, bucket: int, machines: Iterable[FleetMachine], time: float
    ) -> list[FleetMachine]:
        """The machines on which equal steps add no more to the bill than on a new one, cheapest first."""
        seconds, launched = self.work.bucket_seconds[bucket], self.menu[its_class]
        n0, n1, n2, n3 = self.work.classes[its_class].need
        most, until = math.inf, time + seconds
        if launched is not None:
            most = launched.price / 3600 * (self.work.boot_of(launched.type.name) + seconds)
        found = []
        for machine in machines:
            free = machine.free
            if free[0] < n0 or free[1] < n1 or free[2] < n2 or free[3] < n3:
                continue
            usd = machine.price * (until - max(time, machine.until)) if machine.until < until else 0.0
            if usd <= most:
                found.append((usd, free[0], machine.number, machine))
        found.sort(key=lambda each: each[:3])
        return [machine for *_, machine in found]

    def _place(
        self,
        its_class: int,
        bucket: int,
        queue: deque[int],
        machines: Iterable[FleetMachine],
        time: float,
        *,
        anywhere: bool = False,
    ) -> int | None:
        """Start steps on machines. Returns the number of the last machine used, or None if there is no room for all
        steps.

        :param anywhere: place them however much the bill grows
        """
        each = self.work.classes[its_class]
        number = self._allowed(each, len(queue)) if each.slots else len(queue)
        if not number:
            return None
        n0, n1, n2, n3 = each.need
        seconds = self.work.bucket_seconds[bucket]
        lasts = max(each.lasts, seconds)
        may_use_spare = each.at_once or self.menu[its_class] is None
        may_use_spare = may_use_spare or (self.has_spares and self._home(its_class, time) is None)
        if self.is_mixed and not anywhere:
            machines = self._by_growth(its_class, bucket, machines, time)
        for machine in machines:
            free = machine.free
            if free[0] < n0 or free[1] < n1 or free[2] < n2 or free[3] < n3 or not machine.suits[its_class]:
                continue
            if machine.up > time + MOMENT or time + lasts > machine.closes:
                continue
            if each.labels and not self._grants(machine, each):
                continue
            if not self._may_use(machine, may_use_spare=may_use_spare):
                continue
            count = min(
                number,
                free[0] // n0 if n0 else number,
                free[1] // n1 if n1 else number,
                free[2] // n2 if n2 else number,
                free[3] // n3 if n3 else number,
            )
            self._start(machine, its_class, queue, count, time, seconds)
            number -= count
            if not number:
                return machine.number
        return None

    def _grants(self, machine: FleetMachine, its_class: StepClass) -> bool:
        """Whether the limits allow the steps on one more machine, or some of them are on this one already."""
        return all(
            machine.labels.get(label) or self.labelled[label] < self.work.most_machines[label]
            for label in its_class.labels
        )

    def _start(
        self, machine: FleetMachine, its_class: int, queue: deque[int], count: int, time: float, seconds: float
    ) -> None:
        each = self.work.classes[its_class]
        free, need = machine.free, each.need
        free[0] -= need[0] * count
        free[1] -= need[1] * count
        free[2] -= need[2] * count
        free[3] -= need[3] * count
        if self.is_mixed and not all(map(ge, free, self.least_need)):
            self.with_room.pop(machine.number, None)
        if not machine.running:
            if machine.idle_since is None:
                machine.paid += min(machine.boot, self.work.most_boot_paid)
            else:
                machine.paid += min(time - machine.idle_since, machine.boot)
            machine.since = time
        machine.running += count
        machine.until = max(machine.until, time + seconds)
        if each.slots or each.labels:
            self._count(each, machine, count)
        steps = [queue.popleft() for _ in range(count)]
        starts, homes = self.starts, self.homes
        for step in steps:
            starts[step], homes[step] = time, machine.number
        if self.lengths is None:
            self._push(time + self.work.seconds[steps[0]], machine.number, its_class, steps)
        else:
            for step in steps:
                self._push(time + self.lengths[step], machine.number, its_class, (step,))

    def _home(self, its_class: int, time: float) -> FleetMachine | None:
        """A machine of the fleet that suits a class, or None."""
        home = self.home_of.get(its_class)
        if home is None or home.closes <= time:
            able = (each for each in self.machines if not each.spare and each.suits[its_class] and each.closes > time)
            if (home := next(able, None)) is not None:
                self.home_of[its_class] = home
                self._need(home)
            elif self.has_spares:
                self.reach.most = min(self.reach.most, self.size)
        return home

    def _may_use(self, machine: FleetMachine, *, may_use_spare: bool) -> bool:
        if machine.spare and not may_use_spare:
            self.reach.most = min(self.reach.most, machine.number)
            return False
        self._need(machine)
        return True

    def _need(self, machine: FleetMachine) -> None:
        """Note that the simulation depends on a machine, which is a spare one in a smaller fleet."""
        if machine.location is not None and not machine.spare and machine.number >= self.reach.least:
            self.reach.least = machine.number + 1

    def _launch(self, its_class: int, bucket: int, queue: deque[int], time: float) -> None:
        launched = self.menu[its_class]
        if launched is None:
            return
        work, each = self.work, self.work.classes[its_class]
        boot = work.boot_of(launched.type.name)
        has_home = self._home(its_class, time) is not None
        begin = work.now + boot
        if has_home and not each.at_once:
            run, latest = work.bucket_run[bucket], work.bucket_latest[bucket]
            by = max(begin, time) + latest
            if self.deadlines is not None and self.deadlines[run] - latest > begin:
                begin = self.deadlines[run] - latest
                by = -math.inf if time + MOMENT < begin else by
            if by < self.reach.by.get(run, math.inf):
                self.reach.by[run] = by
        if time + MOMENT < begin:
            self._wake(begin)
            return
        while queue and self._may_begin_elsewhere(each):
            if has_home and not each.at_once:
                if self.open >= self.size:
                    # Where the limits of the site do not allow the machine either, a larger size would change nothing.
                    is_allowed = self._is_within(launched)
                    self.is_limited |= not is_allowed
                    self.reach.most = min(self.reach.most, self.open if is_allowed else math.inf)
                    break
                self.reach.least = max(self.reach.least, self.open + 1)
            if not self._may_open(launched, time, boot, has_home=has_home):
                break
            machine = FleetMachine(
                list(launched.capacity),
                work.suits(launched.capacity, launched.kind),
                launched.price / 3600,
                boot,
                time,
                bin=launched,
                number=len(self.machines),
            )
            self._add(machine)
            self.open += 1
            has_home = True
            if self._place(its_class, bucket, queue, (machine,), time, anywhere=True) is None and not machine.running:
                return
        if queue and self.is_mixed:
            self._place(its_class, bucket, queue, self.machines, time, anywhere=True)

    def _may_begin_elsewhere(self, its_class: StepClass) -> bool:
        """Whether the limits allow a step to start on a machine without steps of its class."""
        return self._allowed(its_class, 1) > 0 and all(
            self.labelled[label] < self.work.most_machines[label] for label in its_class.labels
        )

    def _may_open(self, launched: Bin, time: float, boot: float, *, has_home: bool) -> bool:
        """Whether the limits of the site allow one more machine, if necessary in place of an idle one."""
        if self._is_within(launched):
            return True
        self.is_limited = True
        if has_home:
            return False
        self.is_starved = True
        idle = [each for each in self.machines if each.is_open and not (each.running or each.shared)]
        for machine in idle:
            since = machine.idle_since if machine.idle_since is not None else math.inf
            if max(since, machine.up) <= time - boot + MOMENT:
                machine.is_open, machine.closes = False, time - boot
                self.open -= 1
                if self._is_within(launched):
                    return True
        for machine in idle:
            if machine.is_open and machine.idle_since is not None:
                self._wake(max(machine.idle_since, machine.up) + boot)
        return False

    def _is_within(self, launched: Bin) -> bool:
        limits = self.work.limits
        if limits.instances is not None and self.open >= limits.instances:
            return False
        if not (limits.types or limits.vcpus or limits.usd_per_hour is not None):
            return True
        there = [each for each in self.machines if each.is_open]
        most = limits.types.get(launched.type.name)
        if most is not None and sum(each.kind == launched.type.name for each in there) >= most:
            return False
        if limits.usd_per_hour is not None:
            usd = sum(each.price for each in there) * 3600 + launched.price
            if usd > limits.usd_per_hour + 1e-9:
                return False
        its = quota(launched.type.name, launched.offering.capacity_type)
        if its in limits.vcpus:
            used = sum(each.cpus for each in there if each.quota == its)
            if used + vcpus(launched.type.name, launched.type.capacity.cpus) > limits.vcpus[its]:
                return False
        return True

    def schedule(self) -> Schedule:
        work, steps = self.work, self.work.forecast.steps
        planned = [
            PlannedMachine(each.boot, each.up, each.location, each.bin, closes=each.closes) for each in self.machines
        ]
        # Leave out machines that were launched in vain, because limits keep all steps away from them.
        used = [it for it, each in zip(planned, self.machines, strict=True) if each.location or each.idle_since]
        schedule = Schedule(used)
        for each_begun in work.begun:
            name, begun = each_begun.name, steps[each_begun.name].begun
            assert begun is not None
            schedule.starts[name], schedule.until[name] = begun, work.now + each_begun.left
        order = sorted(
            (number for number in range(len(work.names)) if not math.isnan(self.starts[number])),
            key=self.starts.__getitem__,
        )
        for number in order:
            name = work.names[number]
            schedule.starts[name] = self.starts[number]
            schedule.until[name] = self.starts[number] + work.seconds[number]
            if (home := self.homes[number]) != ELSEWHERE:
                its = planned[home]
                its.steps.append(name)
                schedule.homes[name] = its
        schedule.ends = dict(self.ends)
        schedule.usd = self.usd
        return schedule
