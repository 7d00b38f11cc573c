"""The planner: turns jobs, locations and a catalogue into a plan. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TypeAlias

from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import EFFORTS, InstanceLimits, Objective, Placement, Plan, Wait
from lading.scheduling.packing import greedy
from lading.scheduling.packing.answer import MachineGroup, Packing, take
from lading.scheduling.packing.dealing import LazySequence, NamedMachines, ShapeJobs
from lading.scheduling.packing.limits import too_many
from lading.scheduling.packing.problem import Going, Problem, always, fits, pose
from lading.scheduling.provisioning.scale_in import ScaleIn, releases

# The packages that the extra ``planning`` installs, by module name.
PLANNING = {"numpy": "NumPy", "highspy": "HiGHS"}

# A policy maps a problem and an effort to a packing.
Policy: TypeAlias = Callable[[Problem, str], Packing]


def planning_missing() -> str | None:
    """Describe which packages the policies with NumPy and HiGHS lack, and how to install them; None: none."""
    missing = [name for module, name in PLANNING.items() if find_spec(module) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"needs {' and '.join(missing)}, which {verb} not installed: pip install 'airflow-lading[planning]'"


def priced(problem: Problem, effort: str) -> Packing:
    """Pack by the priced policy. It is imported on first use because it needs NumPy and HiGHS."""
    from lading.scheduling.packing.priced import pack

    return pack(problem, effort)


def alone(problem: Problem, effort: str) -> Packing:
    """Give each job an instance of its own; existing empty ones come before new ones."""
    base = greedy.pack(problem)
    if base.left or any(problem.labels(shape) for shape in problem.shapes):
        return base
    empty = [room for room in problem.rooms if room.free == room.capacity and room.location.ends_at is None]
    groups: list[MachineGroup] = []
    for number, (shape, count) in enumerate(zip(problem.shapes, problem.counts(), strict=True)):
        new = problem.on_sale.granting(shape.wish).cheapest(shape.need)
        able = [room for room in empty if room.kind.grants(shape.wish) and fits(shape.need, room.free)]
        able = [room for room in able if new is None or room.location.usd_per_hour <= new.price][:count]
        empty = [room for room in empty if room not in able]
        for place, room in enumerate(able):
            groups.append(MachineGroup(None, room, 1, take(room.free, shape.need, 1), [(number, 1, place)]))
        if (left := count - len(able)) and new is None:
            return base
        if left and new is not None:
            free = take(new.capacity, shape.need, 1)
            groups.append(MachineGroup(new, None, left, free, [(number, 1, len(able))]))
    found = Packing(groups, [])
    return base if too_many(problem, found) is not None else found


def lower_bound(problem: Problem, counts: list[int]) -> float:
    """Return the least USD per hour for these jobs. Needs NumPy and HiGHS if something can be launched."""
    if not problem.bins or not any(counts):
        return 0.0
    from lading.scheduling.packing import bound

    return bound.lower_bound(problem, counts)


POLICIES: dict[str, Policy] = {"greedy": greedy.pack, "priced": priced, "alone": alone}


def plan(
    jobs: Iterable[PlannedJob],
    locations: Sequence[Location] = (),
    catalogue: Catalogue | None = None,
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    policy: str = "greedy",
    *,
    now: float = 0.0,
    effort: str = "fast",
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    patience: float | None = None,
    scale_in: ScaleIn | None = None,
    policies: dict[str, Policy] = POLICIES,
    bound: bool = True,
    going: Going = always,
) -> Plan:
    """Decide where jobs go, which instances to launch and which to release.

    :param locations: the existing machines, oldest first; they are filled before anything is launched
    :param catalogue: what can be launched, less overheads; None: nothing, jobs go to locations or wait
    :param policy: a key of ``policies``
    :param now: epoch seconds
    :param effort: ``fast`` for every tick of a controller, ``best`` for offline planning and for large launches
    :param patience: seconds after which room is kept free for a job that others overtake; None: never
    :param scale_in: when empty instances are released; None: at once
    :param bound: whether to compute the lower bound
    :param going: called between rounds with the name of the current step and the fraction done (0 to 1); if it returns
        False, the best plan so far is returned
    :raises ValueError: an unknown policy or effort
    """
    if policy not in policies:
        raise ValueError(f"policy {policy!r} is not one of {', '.join(policies)}")
    if effort not in EFFORTS:
        raise ValueError(f"effort {effort!r} is not one of {', '.join(EFFORTS)}")
    problem = pose(jobs, locations, catalogue, limits, objective, now, patience)
    problem.going = going
    packing = policies[policy](problem, effort)
    deal = NamedMachines(problem, packing)
    filled = {group.room.location.name for group in packing.groups if group.room is not None}
    placed = placed_counts(problem, packing)
    cost = packing.cost
    least = min(lower_bound(problem, placed), cost) if bound else None
    return Plan(
        policy=policy,
        effort=effort,
        placements=LazySequence(deal.placements),
        launches=LazySequence(deal.launches),
        filled=LazySequence(deal.filled),
        releases=releases(locations, filled, scale_in or ScaleIn(), now),
        waits=tuple(waits(problem, packing)),
        refusals=tuple(problem.refusals),
        cost=cost,
        objective=packing.objective(problem),
        bound=least,
        gap=gap(cost, least, any(placed)),
    )


def placements(
    jobs: Iterable[PlannedJob],
    locations: Sequence[Location],
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    policy: str = "greedy",
    prices: Catalogue | None = None,
    now: float,
) -> tuple[Placement, ...]:
    """Return where a policy puts jobs on existing machines.

    These are the placements of :func:`plan` with nothing to launch, and nothing else: a controller that places
    thousands of jobs in every tick does not need a reason for each that waits.

    :param limits: only those of tasks and runs matter
    :param prices: order jobs of one priority by the price of the cheapest type that fits each; None: by their arrival
    :param policy: a key of :data:`POLICIES`
    :param now: epoch seconds
    """
    problem = pose(jobs, locations, prices, replace(limits, instances=0), Objective(), now, None)
    problem.explains = False
    return tuple(NamedMachines(problem, POLICIES[policy](problem, "fast")).placements())


def gap(cost: float, bound: float | None, placed: bool) -> float | None:
    """cost / bound - 1; None if no job is placed or no bound is known."""
    if not placed or bound is None:
        return None
    if cost == 0:
        return 0.0
    return cost / bound - 1 if bound > 0 else None


def placed_counts(problem: Problem, packing: Packing) -> list[int]:
    counts = [0] * len(problem.shapes)
    for group in packing.groups:
        for number, each, _ in group.fills:
            counts[number] += each * group.size
    return counts


def waits(problem: Problem, packing: Packing) -> Iterator[Wait]:
    members = {number: ShapeJobs(problem.members[number]) for number in {number for number, _, _, _ in packing.left}}
    for number, start, count, reason in packing.left:
        for job, waiting in members[number].between(start, count):
            yield Wait(job, waiting, reason)
