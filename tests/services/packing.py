"""Small packing problems, what every plan must obey, and slow ways to find what the planner should have found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from hypothesis import strategies as st

from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import Plan
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import vector


def catalogue(**types: tuple[float, int, float]) -> Catalogue:
    """Types by name: cpus, memory in MiB, USD per hour."""
    return Catalogue(
        {
            name: InstanceType(name, Resources(cpus, memory), (Offering(price),))
            for name, (cpus, memory, price) in types.items()
        }
    )


# One of them is large enough for every job below, so that nothing is refused.
LARGE = ("large", (16.0, 64, 4.0))
TYPE = st.tuples(
    st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.sampled_from([4, 8, 16, 32]), st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0])
)
catalogues = st.lists(TYPE, max_size=4).map(
    lambda types: catalogue(**dict([LARGE]), **{f"t{i}": each for i, each in enumerate(types)})
)
AMOUNTS = st.builds(
    Resources, st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0]), st.sampled_from([0, 1, 3, 4, 9, 16, 30])
)


@st.composite
def workloads(draw: st.DrawFn, goods: Catalogue, size: int = 12, count: int = 6) -> list[PlannedJob]:
    """Jobs that fit the catalogue, some of them with a type as a hint."""
    jobs = []
    for i, resources in enumerate(draw(st.lists(AMOUNTS, min_size=1, max_size=size))):
        large = [name for name, kind in goods.types.items() if resources.fits(kind.capacity)]
        hint = draw(st.sampled_from([None, None, None, *sorted(large)]))
        number = draw(st.integers(1, count))
        name = f"{draw(st.sampled_from('abc'))}{i}"
        jobs.append(
            PlannedJob(name, resources, number, instance_type=hint, time=draw(st.sampled_from([None, 60.0, 600.0])))
        )
    return jobs


@st.composite
def running(draw: st.DrawFn, goods: Catalogue, size: int = 4) -> list[Location]:
    """Instances that are there, partly used."""
    found = []
    for i, name in enumerate(draw(st.lists(st.sampled_from(sorted(goods.types)), max_size=size))):
        kind = goods.types[name]
        share = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
        used = Resources(kind.capacity.cpus * share, int(kind.capacity.memory * draw(st.sampled_from([0.0, 0.5, 1.0]))))
        found.append(Location(f"i{i}", kind.capacity, used, name, "on-demand", 1.0, kind.arch))
    return found


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[PlannedJob], list[Location], Catalogue]:
    goods = draw(catalogues)
    return draw(workloads(goods)), draw(running(goods)), goods


def check(plan: Plan, jobs: Sequence[PlannedJob], locations: Sequence[Location], goods: Catalogue) -> None:
    """What holds for every plan: no machine over its capacity, every job exactly once, hints kept, costs right."""
    by_name = {job.name: job for job in jobs}
    capacity = {launch.name: goods.types[launch.instance_type].capacity for launch in plan.launches}
    kind: dict[str, str | None] = {launch.name: launch.instance_type for launch in plan.launches}
    load: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in capacity}
    for location in locations:
        capacity[location.name], kind[location.name] = location.capacity, location.instance_type
        load[location.name] = list(vector(location.used))
    dealt: Counter[str] = Counter()
    filled: defaultdict[str, int] = defaultdict(int)
    for placement in plan.placements:
        job = by_name[placement.job]
        assert placement.count >= 1
        assert job.instance_type in (None, kind[placement.location])
        dealt[job.name] += placement.count
        filled[placement.location] += placement.count
        for i, amount in enumerate(vector(job.resources)):
            load[placement.location][i] += amount * placement.count
    for name in filled:
        assert all(used <= most for used, most in zip(load[name], vector(capacity[name]), strict=True)), name
    assert all(filled[launch.name] for launch in plan.launches)
    for wait in plan.waits:
        assert str(wait.reason).startswith("waits: ")
        dealt[wait.job] += wait.count
    for refusal in plan.refusals:
        assert refusal.reason
        dealt[refusal.job] += by_name[refusal.job].count
    assert dealt == Counter({job.name: job.count for job in jobs})
    assert abs(plan.cost - sum(launch.usd_per_hour for launch in plan.launches)) < 1e-9
    if plan.bound is not None:
        assert plan.bound <= plan.cost


def contents(plan: Plan, locations: Sequence[Location] = ()) -> list[tuple[str | None, str | None, dict[str, int]]]:
    """Every machine that gets jobs, oldest first: its name if it is there, its type, how many of which job."""
    jobs: dict[str, Counter[str]] = defaultdict(Counter)
    for placement in plan.placements:
        jobs[placement.location][placement.job] += placement.count
    there = [(location.name, location.instance_type, location.name) for location in locations if location.name in jobs]
    new = [(None, launch.instance_type, launch.name) for launch in plan.launches]
    return [(shown, kind, dict(jobs[name])) for shown, kind, name in (*there, *new)]


def seven_bridges(
    jobs: Sequence[PlannedJob], locations: Sequence[Location], goods: Catalogue
) -> list[tuple[str | None, str | None, dict[str, int]]]:
    """The pseudo-code of Seven Bridges' documentation, job by job and instance by instance."""
    types = {name: (kind.capacity, kind.offerings[0].usd_per_hour) for name, kind in goods.types.items()}

    def cheapest(job: PlannedJob) -> tuple[float, float, int, str]:
        return min(
            (price, -capacity.cpus, -capacity.memory, name)
            for name, (capacity, price) in types.items()
            if job.resources.fits(capacity) and job.instance_type in (None, name)
        )

    def order(job: PlannedJob) -> tuple[float, float, int, float, str]:
        return -cheapest(job)[0], -job.resources.cpus, -job.resources.memory, -(job.time or 0.0), job.name

    machines: list[tuple[list[Fraction], str | None, str | None, Counter[str]]] = [
        (remaining(location.capacity - location.used), location.name, location.instance_type, Counter())
        for location in locations
    ]

    def fit(unscheduled: list[PlannedJob]) -> list[PlannedJob]:
        left = []
        for job in unscheduled:
            need = remaining(job.resources)
            fitting = [
                (room, age)
                for age, (room, _, kind, _) in enumerate(machines)
                if room[0] >= need[0] and room[1] >= need[1] and job.instance_type in (None, kind)
            ]
            if not fitting:
                left.append(job)
                continue
            room, age = min(fitting)
            room[0] -= need[0]
            room[1] -= need[1]
            machines[age][3][job.name] += 1
        return left

    unscheduled = [job for job in sorted(jobs, key=order) for _ in range(job.count)]
    while unscheduled := fit(unscheduled):
        name = cheapest(unscheduled[0])[-1]
        machines.append((remaining(types[name][0]), None, name, Counter()))
    return [(name, kind, dict(held)) for _, name, kind, held in machines if held]


def remaining(amount: Resources) -> list[Fraction]:
    """Exactly what is written, in decimal."""
    return [Fraction(str(round(amount.cpus, 9))), Fraction(amount.memory)]


def optimum(jobs: Sequence[PlannedJob], goods: Catalogue) -> float:
    """The least USD per hour for a few jobs, by trying every way to divide them."""
    singles = tuple(job for job in jobs for _ in range(job.count))
    kinds = [(vector(kind.capacity), name, kind.offerings[0].usd_per_hour) for name, kind in goods.types.items()]

    @cache
    def alone(members: int) -> float:
        """The cheapest type for these jobs together."""
        chosen = [job for i, job in enumerate(singles) if members >> i & 1]
        need = [sum(amounts) for amounts in zip(*(vector(job.resources) for job in chosen), strict=True)]
        return min(
            (
                price
                for capacity, name, price in kinds
                if all(n <= c for n, c in zip(need, capacity, strict=True))
                and all(job.instance_type in (None, name) for job in chosen)
            ),
            default=float("inf"),
        )

    @cache
    def best(members: int) -> float:
        if not members:
            return 0.0
        first = members & -members
        rest = members ^ first
        least, part = float("inf"), rest
        while True:
            together = alone(part | first)
            if together < least:
                least = min(least, together + best(rest ^ part))
            if not part:
                return least
            part = (part - 1) & rest

    return best((1 << len(singles)) - 1)
