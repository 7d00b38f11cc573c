"""The planner: from jobs, locations and a catalogue to a plan. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TypeAlias

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.packing import greedy
from lading.scheduling.packing.answer import MachineGroup, Packing, take
from lading.scheduling.packing.dealing import LazySequence, NamedMachines, ShapeJobs
from lading.scheduling.packing.limits import too_many
from lading.scheduling.packing.problem import Going, Problem, always, fits, pose
from lading.scheduling.plan import EFFORTS, InstanceLimits, Objective, Placement, Plan, Wait
from lading.scheduling.scale_in import ScaleIn, releases

# What the extra ``planning`` installs, by the module that is imported.
PLANNING = {"numpy": "NumPy", "highspy": "HiGHS"}

# A policy gets a problem and an effort and answers with a packing.
Policy: TypeAlias = Callable[[Problem, str], Packing]


def planning_missing() -> str | None:
    """What is missing for the policies that need NumPy and HiGHS, and what installs it, as text; None: nothing is."""
    missing = [name for module, name in PLANNING.items() if find_spec(module) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"needs {' and '.join(missing)}, which {verb} not installed: pip install 'airflow-lading[planning]'"


def priced(problem: Problem, effort: str) -> Packing:
    """Pack by the priced policy, which is imported when it is used: it needs NumPy and HiGHS."""
    from lading.scheduling.packing.priced import pack

    return pack(problem, effort)


def alone(problem: Problem, effort: str) -> Packing:
    """Give each job an instance of its own, an empty one that is there before a new one."""
    base = greedy.pack(problem)
    if base.left or any(problem.labels(shape) for shape in problem.shapes):
        return base
    empty = [room for room in problem.rooms if room.free == room.capacity and room.location.ends_at is None]
    groups: list[MachineGroup] = []
    for number, (shape, count) in enumerate(zip(problem.shapes, problem.counts(), strict=True)):
        new = problem.bins_granting(shape.wish).cheapest(shape.need)
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
    """The least USD per hour for so many jobs of each shape; needs NumPy and HiGHS where something can be launched."""
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

    :param locations: the machines that are there, oldest first; they are filled before anything is launched
    :param catalogue: what can be launched, overheads taken off; None: nothing can, jobs go to locations or wait
    :param policy: a key of ``policies``
    :param now: epoch seconds
    :param effort: ``fast`` for every tick of a controller, ``best`` for paper and for large launches
    :param patience: seconds that a job may be overtaken before room is kept free for it; None: forever
    :param scale_in: when empty instances are released; None: at once
    :param bound: whether to compute the lower bound
    :param going: called between two rounds with what is improved and which part of it is done (0 to 1); when it answers
        False, nothing more is tried, and the best plan so far is the answer
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
    """Where a policy puts jobs on the machines that are there.

    The placements of :func:`plan` where nothing is launched, and nothing else of it: a controller that places thousands
    of jobs in every tick needs no reason for each that waits.

    :param limits: those of tasks and runs count
    :param prices: jobs of one priority come in the order of what the cheapest type that fits each costs; None: of their
        arrival
    :param policy: a key of :data:`POLICIES`
    :param now: epoch seconds
    """
    problem = pose(jobs, locations, prices, replace(limits, instances=0), Objective(), now, None)
    problem.explains = False
    return tuple(NamedMachines(problem, POLICIES[policy](problem, "fast")).placements())


def gap(cost: float, bound: float | None, placed: bool) -> float | None:
    """cost / bound - 1; None where it says nothing."""
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
    """Every job that waits, with its reason."""
    members = {number: ShapeJobs(problem.members[number]) for number in {number for number, _, _, _ in packing.left}}
    for number, start, count, reason in packing.left:
        for job, waiting in members[number].between(start, count):
            yield Wait(job, waiting, reason)
