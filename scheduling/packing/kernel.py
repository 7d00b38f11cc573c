"""The inner loop of insertion: repeatedly take jobs off some machines and place them where the price grows least.

It is written as plain loops over numbers, to run with Numba or, where that is not installed, in Python; see
:mod:`kernel_state`.
"""

from __future__ import annotations

from lading.scheduling.packing.kernel_state import (
    EPSILON,
    WORD,
    KernelJobs,
    KernelMachines,
    KernelOffers,
    Numbers,
    Progress,
    RoundState,
    SearchTerms,
    drawn,
    looked_at,
    loop,
    sort,
)


@loop
def keep(
    machines: KernelMachines, round_state: RoundState, machine: int, turn: int, changed: int, resources: int
) -> int:
    """Save a machine's state before this round changes it; return how many machines are saved."""
    if machines.marked[machine] == turn:
        return changed
    machines.marked[machine] = turn
    for r in range(machine * resources, (machine + 1) * resources):
        machines.load_before[r] = machines.load[r]
    machines.kind_before[machine] = machines.kind[machine]
    machines.type_before[machine] = machines.type[machine]
    machines.held_before[machine] = machines.held[machine]
    round_state.changed[changed] = machine
    return changed + 1


@loop
def waste(price: float, held: float) -> float:
    """Return the unused part of a machine's price, weighted so that large waste counts more than proportionally."""
    lost = price - held
    return lost * lost / price if lost > 0 else 0.0


@loop
def type_of(offers: KernelOffers, load: Numbers, at: int, need: Numbers, more: int, kind: int, start: int) -> int:
    """Return the cheapest type from ``start`` on that holds a load and one more job, or the number of types."""
    resources, types = offers.resources, offers.types
    for type_ in range(start, types):
        if offers.granted[kind * types + type_]:
            fits = True
            for r in range(resources):
                if load[at + r] + need[more + r] > offers.capacity[type_ * resources + r]:
                    fits = False
                    break
            if fits:
                return type_
    return types


@loop
def push(jobs: KernelJobs, machines: KernelMachines, job: int, machine: int) -> None:
    jobs.home[job] = machine
    jobs.after[job] = machines.first[machine]
    machines.first[machine] = job


@loop
def put(offers: KernelOffers, jobs: KernelJobs, machines: KernelMachines, job: int, machine: int, type_: int) -> None:
    resources = offers.resources
    machines.kind[machine] = offers.both[machines.kind[machine] * offers.kinds + jobs.kind[job]]
    machines.type[machine] = type_
    machines.held[machine] += jobs.worth[job]
    for r in range(resources):
        machines.load[machine * resources + r] += jobs.need[job * resources + r]
    push(jobs, machines, job, machine)


@loop
def add(offers: KernelOffers, jobs: KernelJobs, machines: KernelMachines, job: int, machine: int) -> None:
    """Put a job on a machine, which becomes the cheapest type that holds its jobs."""
    together = offers.both[machines.kind[machine] * offers.kinds + jobs.kind[job]]
    now = machines.type[machine]
    at, start = machine * offers.resources, now if now > 0 else offers.nothing
    type_ = type_of(offers, machines.load, at, jobs.need, job * offers.resources, together, start)
    put(offers, jobs, machines, job, machine, type_)


@loop
def insert(
    offers: KernelOffers,
    jobs: KernelJobs,
    machines: KernelMachines,
    round_state: RoundState,
    job: int,
    number: int,
    empty: int,
    gathered: float,
) -> tuple[int, int]:
    """Return the machine and type where the rated price grows least.

    :param number: how many machines are tried, in addition to the one that is ``empty``
    """
    resources, types = offers.resources, offers.types
    best, best_type, least = offers.none, offers.none, 1e300
    kind, worth = jobs.kind[job], jobs.worth[job]
    for i in range(number + 1):
        machine = round_state.among[i] if i < number else empty
        together = offers.both[machines.kind[machine] * offers.kinds + kind]
        if together < 0:
            continue
        now = machines.type[machine]
        type_ = type_of(
            offers,
            machines.load,
            machine * resources,
            jobs.need,
            job * resources,
            together,
            now if now > 0 else offers.nothing,
        )
        if type_ == types:
            continue
        price = offers.price[type_]
        cost = offers.price[now] if now >= 0 else 0.0
        more = price - cost
        if gathered > 0:
            lost = waste(cost, machines.held[machine]) if now >= 0 else 0.0
            more -= gathered * (waste(price, machines.held[machine] + worth) - lost)
        if more < least:
            best, best_type, least = machine, type_, more
    return best, best_type


@loop
def empty_from(machines: KernelMachines, machine: int) -> int:
    while machines.type[machine] >= 0:
        machine += 1
    return machine


@loop
def take_off(
    offers: KernelOffers,
    jobs: KernelJobs,
    machines: KernelMachines,
    round_state: RoundState,
    machine: int,
    off: int,
    chance: int,
    noise: float,
    some: float,
) -> tuple[int, int]:
    """Take jobs off a machine; return the number of jobs taken off so far, and the new random state.

    :param some: a job stays if its random number is below this
    """
    resources = offers.resources
    job = machines.first[machine]
    machines.first[machine] = -1
    machines.type[machine] = -1
    machines.kind[machine] = 0
    machines.held[machine] = 0.0
    for r in range(machine * resources, (machine + 1) * resources):
        machines.load[r] = 0.0
    while job >= 0:
        after = jobs.after[job]
        chance = drawn(chance)
        if chance < some:
            add(offers, jobs, machines, job, machine)
        else:
            chance = drawn(chance)
            round_state.off[off] = job
            round_state.origin[off] = machine
            round_state.key[off] = jobs.worth[job] * (1 - noise + 2 * noise * (chance / WORD))
            off += 1
        job = after
    return off, chance


@loop
def undo(
    jobs: KernelJobs, machines: KernelMachines, round_state: RoundState, off: int, changed: int, resources: int
) -> None:
    for i in range(off - 1, -1, -1):  # last in, first out
        job = round_state.off[i]
        machines.first[jobs.home[job]] = jobs.after[job]
    for i in range(off):
        push(jobs, machines, round_state.off[i], round_state.origin[i])
    for i in range(changed):
        machine = round_state.changed[i]
        for r in range(machine * resources, (machine + 1) * resources):
            machines.load[r] = machines.load_before[r]
        machines.kind[machine] = machines.kind_before[machine]
        machines.type[machine] = machines.type_before[machine]
        machines.held[machine] = machines.held_before[machine]


@loop
def ruin(
    offers: KernelOffers,
    jobs: KernelJobs,
    machines: KernelMachines,
    round_state: RoundState,
    way: SearchTerms,
    up: int,
    turn: int,
    chance: int,
) -> tuple[int, int, int]:
    """Empty some machines, preferably those that waste most.

    Return the number of jobs taken off, the number of machines changed, and the new random state.

    :param up: how many machines are not empty; they come first in ``round_state.among``
    """
    chance = drawn(chance)
    several = 1 + chance % way.most
    chance = drawn(chance)
    stay = way.some * WORD if chance % 2 == 0 else 0.0
    off = changed = offers.nothing
    for _ in range(several):
        chosen, worst = offers.none, -1.0
        for _ in range(way.choice):
            chance = drawn(chance)
            machine = round_state.among[chance % up]
            if machines.marked[machine] != turn:
                lost = offers.price[machines.type[machine]] - machines.held[machine]
                if lost > worst:
                    chosen, worst = machine, lost
        if chosen >= 0:
            changed = keep(machines, round_state, chosen, turn, changed, offers.resources)
            off, chance = take_off(offers, jobs, machines, round_state, chosen, off, chance, way.noise, stay)
    return off, changed, chance


@loop
def put_back(
    offers: KernelOffers,
    jobs: KernelJobs,
    machines: KernelMachines,
    round_state: RoundState,
    off: int,
    few: int,
    turn: int,
    changed: int,
    empty: int,
    gathered: float,
) -> int:
    """Place the jobs taken off on the tried machines or on empty ones; return how many machines were changed.

    :param few: how many machines are tried; they come first in ``round_state.among``
    :param empty: no machine before this one is empty
    """
    sort(round_state, off)
    empty = empty_from(machines, empty)
    for i in range(off):
        job = round_state.off[i]
        home, type_ = insert(offers, jobs, machines, round_state, job, few, empty, gathered)
        changed = keep(machines, round_state, home, turn, changed, offers.resources)
        put(offers, jobs, machines, job, home, type_)
        if home == empty:
            round_state.among[few] = home
            few += 1
            empty = empty_from(machines, empty)
    return changed


@loop
def rating(
    offers: KernelOffers, types: Numbers, held: Numbers, round_state: RoundState, changed: int, gathered: float
) -> tuple[float, float]:
    """Return the cost of the changed machines, and that cost less the value of gathering waste on few of them."""
    cost = rated = 0.0
    for i in range(changed):
        machine = round_state.changed[i]
        if types[machine] >= 0:
            price = offers.price[types[machine]]
            cost += price
            rated += price - gathered * waste(price, held[machine])
    return cost, rated


@loop
def build(
    offers: KernelOffers, jobs: KernelJobs, machines: KernelMachines, round_state: RoundState, number: int
) -> tuple[float, int]:
    """Place the first ``number`` jobs taken off, each where it adds the least cost.

    Return USD per hour, and how many machines are used; they come first.
    """
    few = empty = offers.nothing
    cost = 0.0
    for i in range(number):
        job = round_state.off[i]
        home, type_ = insert(offers, jobs, machines, round_state, job, few, empty, 0.0)
        cost -= offers.price[machines.type[home]] if machines.type[home] >= 0 else 0.0
        cost += offers.price[type_]
        put(offers, jobs, machines, job, home, type_)
        if home == empty:
            round_state.among[few] = home
            few += 1
            empty = empty_from(machines, empty)
    return cost, few


@loop
def settle(
    offers: KernelOffers, jobs: KernelJobs, machines: KernelMachines, round_state: RoundState, number: int, top: int
) -> float:
    """Put the first ``number`` removed jobs back on their machines; return the USD per hour of the first ``top``."""
    cost = 0.0
    for i in range(number):
        add(offers, jobs, machines, round_state.off[i], round_state.origin[i])
    for machine in range(top):
        cost += offers.price[machines.type[machine]]
    return cost


@loop
def search(
    offers: KernelOffers,
    jobs: KernelJobs,
    machines: KernelMachines,
    round_state: RoundState,
    best: Numbers,
    way: SearchTerms,
    progress: Progress,
    until: int,
    total: int,
) -> Progress:
    """Ruin and recreate until ``until`` jobs have been placed in total.

    :param best: output: the machine of each job in the cheapest packing
    :param total: how many jobs the whole search will place
    """
    chance, turn, done, top, cost, least = progress
    while done < until:
        turn += 1
        gathered = way.gathered * max(0.0, 1 - done / total / way.gathered_until)
        threshold = way.threshold * max(0.0, 1 - done / total / way.threshold_until)
        up, empty = offers.nothing, top
        for machine in range(top):
            if machines.type[machine] >= 0:
                round_state.among[up] = machine
                up += 1
            elif machine < empty:
                empty = machine
        off, changed, chance = ruin(offers, jobs, machines, round_state, way, up, turn, chance)
        for i in range(changed):
            empty = min(empty, round_state.changed[i])
        few, chance = looked_at(machines, round_state, way, up, changed, turn, chance)
        changed = put_back(offers, jobs, machines, round_state, off, few, turn, changed, empty, gathered)
        done += max(1, off)
        for i in range(changed):
            top = max(top, round_state.changed[i] + 1)
        before, rated_before = rating(
            offers, machines.type_before, machines.held_before, round_state, changed, gathered
        )
        after, rated = rating(offers, machines.type, machines.held, round_state, changed, gathered)
        chance = drawn(chance)
        if rated - rated_before > threshold * cost / up * (chance / WORD) + EPSILON:
            undo(jobs, machines, round_state, off, changed, offers.resources)
            continue
        cost += after - before
        if cost < least - EPSILON:
            least = cost
            for job in range(len(best)):
                best[job] = jobs.home[job]
    return Progress(chance, turn, done, top, cost, least)
