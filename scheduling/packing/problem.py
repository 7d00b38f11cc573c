"""A planning problem in the form that the policies use: shapes of equal jobs, bins to launch, and existing rooms.

Amounts are integers here (cpus and GPUs in units of 10**-12), so that rounding errors never decide whether a machine is
full.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeAlias

from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.gpus import not_supported
from lading.scheduling.model.job import PlannedJob, Wish, asks
from lading.scheduling.model.location import Location, MachineKind
from lading.scheduling.model.plan import InstanceLimits, Objective, Refusal
from lading.scheduling.model.reason_text import MOST_KINDS
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources

# cpus, memory, disk, gpus
Vector: TypeAlias = tuple[int, int, int, int]
UNIT = 10**12


def vector(resources: Resources) -> Vector:
    return round(resources.cpus * UNIT), resources.memory, resources.disk, round(resources.gpus * UNIT)


def fits(need: Vector, room: Vector) -> bool:
    return need[0] <= room[0] and need[1] <= room[1] and need[2] <= room[2] and need[3] <= room[3]


def copies(need: Vector, room: Vector, wanted: int) -> int:
    """Return how many of ``wanted`` jobs fit into ``room`` together."""
    return min([wanted, *(room[i] // need[i] for i in range(4) if need[i])])


@lru_cache(maxsize=1000)
def canonical_wish(wish: Wish) -> tuple[list[list[str]], list[str]]:
    fields = wish.instance_type, wish.capacity_type, wish.arch, wish.os
    return [sorted(each) for each in (wish.features, wish.hints, wish.types or ())], [word or "" for word in fields]


class Shape(NamedTuple):
    """The properties that make jobs interchangeable. ``time`` is None unless some location has an end time."""

    need: Vector
    wish: Wish
    task: str | None
    run: str | None
    time: float | None

    @property
    def canonical(self) -> tuple[object, ...]:
        """A sort key for shapes that does not depend on the order of the jobs."""
        lists, fields = canonical_wish(self.wish)
        return self.need, lists, fields, self.task or "", self.run or "", -1.0 if self.time is None else self.time


# Called with the name of the current step and the fraction of it that is done; returns whether to continue.
Going: TypeAlias = Callable[[str, float], bool]


def always(what: str, part: float) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Bin:
    """An instance that can be launched, as often as the limits allow."""

    type: InstanceType
    offering: Offering
    capacity: Vector
    kind: MachineKind

    @property
    def price(self) -> float:
        return self.offering.usd_per_hour


@dataclass(frozen=True, slots=True)
class Room:
    location: Location
    capacity: Vector
    free: Vector
    kind: MachineKind


@dataclass(slots=True)
class GrantingBins:
    """The bins that grant one wish, in greedy's order of preference."""

    bins: list[Bin]
    # Only bins that can be the first to fit some need: no bin before them is at least as large in every resource.
    first: list[Bin] = field(init=False)

    def __post_init__(self) -> None:
        self.first = []
        for candidate in self.bins:
            if not any(fits(candidate.capacity, better.capacity) for better in self.first):
                self.first.append(candidate)

    def cheapest(self, need: Vector) -> Bin | None:
        """Return the bin that greedy prefers among those that are large enough."""
        return next((candidate for candidate in self.first if fits(need, candidate.capacity)), None)


@dataclass(slots=True)
class OnSale:
    """What can be launched now.

    :param bins: the most preferred first: cheapest, then more cpus, more memory, name
    """

    bins: Sequence[Bin]
    _granting: dict[Wish, GrantingBins] = field(default_factory=dict)

    def granting(self, wish: Wish) -> GrantingBins:
        if wish not in self._granting:
            self._granting[wish] = GrantingBins([candidate for candidate in self.bins if candidate.kind.grants(wish)])
        return self._granting[wish]


@dataclass(slots=True)
class Problem:
    """A planning problem; see the module.

    :param members: the jobs of each shape, in the order in which they are placed
    :param order: runs of equal jobs, each with its shape's index, in the order in which they are placed
    :param blocked: instances that cannot be launched before their offering's ``unavailable_until``
    :param now: epoch seconds
    :param patience: seconds after which room is kept free for a job that others overtake; None: never
    :param going: see :func:`lading.scheduling.provisioning.planner.plan`
    :param explains: whether to find out what jobs wait for if nothing can be launched for them
    """

    shapes: list[Shape]
    members: list[list[PlannedJob]]
    order: list[tuple[int, list[PlannedJob]]]
    on_sale: OnSale
    blocked: Sequence[Bin]
    rooms: list[Room]
    limits: InstanceLimits
    objective: Objective
    now: float
    patience: float | None
    refusals: list[Refusal]
    going: Going = always
    explains: bool = True

    @property
    def bins(self) -> Sequence[Bin]:
        return self.on_sale.bins

    def counts(self) -> list[int]:
        return [sum(job.count for job in jobs) for jobs in self.members]

    def labels(self, shape: Shape) -> list[tuple[str, str, int]]:
        """Return the instance limits of a shape's task and run: (``task`` or ``run``, name, limit)."""
        labels = []
        if shape.task is not None and shape.task in self.limits.tasks:
            labels.append(("task", shape.task, self.limits.tasks[shape.task]))
        if shape.run is not None and shape.run in self.limits.runs:
            labels.append(("run", shape.run, self.limits.runs[shape.run]))
        return labels


def pose(
    jobs: Iterable[PlannedJob],
    locations: Sequence[Location],
    catalogue: Catalogue | None,
    limits: InstanceLimits,
    objective: Objective,
    now: float,
    patience: float | None,
) -> Problem:
    """Build the problem: group the jobs, refuse those that fit nowhere, and order the rest as greedy places them.

    With a catalogue the order is priority, then that of Seven Bridges' algorithm (the price of the cheapest type that
    fits, more cpus, more memory, name). Jobs that differ only by name are ordered by known time, so that those that
    finish together share an instance, and then by arrival. Without a catalogue there are no prices, and the order is
    priority, then the turn among shares, then the rest of the run, then arrival.
    """
    on_sale, blocked = offered(catalogue, now)
    rooms = [room(location) for location in locations if not location.draining]
    problem = Problem([], [], [], on_sale, blocked, rooms, limits, objective, now, patience, [])
    numbers: dict[tuple[object, ...], int] = {}
    ends = any(room.location.ends_at is not None for room in rooms)
    has_more = ends or bool(limits.tasks or limits.runs)
    task = run = time = None
    in_order: list[tuple[int, PlannedJob]] = []
    keyed: list[tuple[tuple[object, ...], int, PlannedJob]] = []
    ranks: list[tuple[float, int, int] | None] = []
    why_none: dict[int, Reason] = {}
    if catalogue is None:
        jobs = sorted(jobs, key=attrgetter("queued_at"))
        jobs.sort(key=attrgetter("rest"), reverse=True)
        jobs.sort(key=attrgetter("turn"))
        jobs.sort(key=attrgetter("priority"), reverse=True)
    for job in jobs:  # up to ten thousand, so each iteration builds only what it needs
        key = asks(job)
        if has_more:
            task = job.task if job.task in limits.tasks else None
            run = job.run if job.run in limits.runs else None
            time = job.time if ends else None
            key = *key, task, run, time
        number = numbers.get(key)
        if number is None:
            shape = Shape(vector(job.resources), job.wish, task, run, time)
            number = numbers[key] = len(problem.shapes)
            problem.shapes.append(shape)
            ranks.append(rank(problem, shape))
        place = ranks[number]
        if place is None:
            if number not in why_none:
                why_none[number] = refusal(problem, job, problem.shapes[number])
            problem.refusals.append(Refusal(job.name, why_none[number]))
        elif catalogue is None:
            in_order.append((number, job))
        else:
            known = -job.time if job.time is not None else 0.0
            keyed.append(((-job.priority, *place, known, job.queued_at, job.name), number, job))
    if keyed:
        keyed.sort(key=itemgetter(0))
        in_order = [(number, job) for _, number, job in keyed]
    put_in_runs(problem, in_order)
    return problem


def put_in_runs(problem: Problem, jobs: Iterable[tuple[int, PlannedJob]]) -> None:
    """Renumber the shapes independently of the order of the jobs, and record the jobs as runs of equal ones.

    :param jobs: in the order in which they are placed, each with the current number of its shape
    """
    by_shape = sorted(range(len(problem.shapes)), key=lambda number: problem.shapes[number].canonical)
    renumbered = {old: new for new, old in enumerate(by_shape)}
    problem.shapes = [problem.shapes[old] for old in by_shape]
    problem.members = [[] for _ in problem.shapes]
    order, last = problem.order, None
    for old, job in jobs:
        if old != last:
            equals, last, number = [job], old, renumbered[old]
            members = problem.members[number]
            order.append((number, equals))
        else:
            equals.append(job)
        members.append(job)


def offered(catalogue: Catalogue | None, now: float) -> tuple[OnSale, Sequence[Bin]]:
    """Return what of a catalogue can be launched now, and the other bins, both in order of preference.

    For each type and capacity type only the cheapest available zone is used.
    """
    if catalogue is None:
        return OnSale(()), ()
    key = CatalogueKey(catalogue)
    return _offered(key, bisect_right(_ends_of_shortages(key), now))


@dataclass(frozen=True, slots=True)
class CatalogueKey:
    """A catalogue as a cache key, compared by identity: a catalogue is never changed."""

    catalogue: Catalogue

    def __hash__(self) -> int:
        return id(self.catalogue)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CatalogueKey) and other.catalogue is self.catalogue


@lru_cache(maxsize=16)
def _ends_of_shortages(of: CatalogueKey) -> Sequence[float]:
    """Return when offerings become available, epoch seconds, in order."""
    offerings = (offering for kind in of.catalogue.types.values() for offering in kind.offerings)
    return sorted(each.unavailable_until for each in offerings if each.unavailable_until is not None)


# Cached, because a planner asks for the same catalogue at every decision.
@lru_cache(maxsize=16)
def _offered(of: CatalogueKey, over: int) -> tuple[OnSale, Sequence[Bin]]:
    """See :func:`offered`.

    :param over: how many shortages are over
    """
    short = set(_ends_of_shortages(of)[over:])
    soon: dict[tuple[str, str], Bin] = {}
    later: dict[tuple[str, str], Bin] = {}
    for candidate in _in_order(of):
        offering = candidate.offering
        found = later if offering.unavailable_until in short else soon
        found.setdefault((candidate.type.name, offering.capacity_type), candidate)
    return OnSale([*soon.values()]), [*later.values()]


def _in_order(of: CatalogueKey) -> Sequence[Bin]:
    """Return the bins of all zones in order of preference."""
    bins = []
    for kind in of.catalogue.types.values():
        capacity = vector(kind.capacity)
        for offering in sorted(kind.offerings, key=lambda offering: (offering.usd_per_hour, offering.zone or "")):
            description = MachineKind(kind.arch, kind.features, kind.name, offering.capacity_type)
            bins.append(Bin(kind, offering, capacity, description))
    return sorted(bins, key=preference)


def preference(candidate: Bin) -> tuple[float, int, int, str, str]:
    cpus, memory, _, _ = candidate.capacity
    return candidate.price, -cpus, -memory, candidate.type.name, candidate.offering.capacity_type


def room(location: Location) -> Room:
    capacity, used = vector(location.capacity), vector(location.used)
    free = tuple(max(0, have - taken) for have, taken in zip(capacity, used, strict=True))
    return Room(location, capacity, free, location.kind)  # type: ignore[arg-type]


def rank(problem: Problem, shape: Shape) -> tuple[float, int, int] | None:
    """Return the shape's sort key, most expensive first; None if no existing or launchable machine is large enough."""
    cheapest = problem.on_sale.granting(shape.wish).cheapest(shape.need)
    if cheapest is None:
        cheapest = next(
            (b for b in problem.blocked if b.kind.grants(shape.wish) and fits(shape.need, b.capacity)), None
        )
    if cheapest is None and not any(r.kind.grants(shape.wish) and fits(shape.need, r.capacity) for r in problem.rooms):
        return None
    # Shapes that no launchable type fits come first.
    price = cheapest.price if cheapest is not None else math.inf
    return -price, -shape.need[0], -shape.need[1]


def refusal(problem: Problem, job: PlannedJob, shape: Shape) -> Reason:
    """Return why nothing fits: the closest machine and the resources it lacks."""
    wish, need = shape.wish, shape.need
    machines = [(b.type.name, b.kind, b.capacity, b.type.capacity) for b in (*problem.bins, *problem.blocked)]
    machines += [(r.location.name, r.kind, r.capacity, r.location.capacity) for r in problem.rooms]
    if not machines:
        return because("no_machines")
    granting = [machine for machine in machines if machine[1].grants(wish)]
    if not granting:
        names = sorted({name if wish.arch is None else f"{name} ({kind.arch})" for name, kind, _, _ in machines})
        return because("no_such_machine", wish=wished(wish), names=names[: MOST_KINDS + 1])

    def shortfall(machine: tuple[str, MachineKind, Vector, Resources]) -> float:
        return sum(max(0, n - have) / n for n, have in zip(need, machine[2], strict=True) if n)

    name, its_kind, _, capacity = min(granting, key=shortfall)
    lacks: list[str | float] = []
    for resource in job.resources.lacking(capacity):
        lacks += [resource, getattr(job.resources, resource), getattr(capacity, resource)]
    found = because("too_large", wish=wished(wish), closest=name, lacks=lacks)
    model = not_supported(its_kind.features) if job.resources.gpus else None
    return found if model is None else found.with_also(because("gpu_unsupported", model=model))


def wished(wish: Wish) -> list[str]:
    """List what a job requires of a machine in addition to amounts: each name followed by its value."""
    named = {
        "instance_type": wish.instance_type,
        "arch": wish.arch,
        "os": wish.os,
        "features": ", ".join(sorted(wish.features)),
        "capacity_type": wish.capacity_type,
        "hints": " and ".join(sorted(wish.hints)),
    }
    return [part for name, value in named.items() if value for part in (name, value)]
