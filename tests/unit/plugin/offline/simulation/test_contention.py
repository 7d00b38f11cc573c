"""What shares get of machines for which they contend, over hours of simulated time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lading.plugin.offline.simulation.contention import ContendingJob, contend, jain
from lading.scheduling.accounting.share_table import Kept, Share, Shares
from lading.scheduling.accounting.who import Who
from lading.scheduling.model.resources import Resources

MACHINES = [Resources(8, 32_000, 0, 1) for _ in range(4)]
HOUR = 3600.0


def shares(**weights: float) -> Shares:
    return Shares(tuple(Share(name, Who(team=name), weight) for name, weight in weights.items()))


def backlog(name: str, number: int, cpus: float = 1, duration: float = 60.0, **columns: object) -> list[ContendingJob]:
    resources = Resources(cpus, 1000)
    return [
        ContendingJob(f"{name}{n:05}", name, resources, 0.0, duration, **columns)  # type: ignore[arg-type]
        for n in range(number)
    ]


def cpu_seconds(jobs: list[ContendingJob], begun: dict[str, float], until: float) -> Counter[str]:
    """What each share had until a time."""
    had: Counter[str] = Counter()
    for job in jobs:
        begin = begun[job.name]
        had[job.share] += max(0.0, min(begin + job.duration, until) - begin) * job.resources.cpus  # type: ignore[assignment]
    return had


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([40.0, 90.0, 180.0])), min_size=4, max_size=4),
)
def test_weights_are_met_within_five_percent_over_an_hour(weights: list[int], kinds: list[tuple[int, float]]) -> None:
    names = [f"s{n}" for n in range(len(weights))]
    table = shares(**dict(zip(names, weights, strict=True)))
    # The largest jobs are a sixteenth of the machines: no order meets weights closer than by the size of a job.
    machines, jobs = MACHINES * 2, []
    for name, (cpus, duration) in zip(names, kinds, strict=False):
        jobs += backlog(name, int(1.2 * HOUR * 64 / cpus / duration), cpus, duration)
    had = cpu_seconds(jobs, contend(jobs, machines, table).begun, HOUR)
    for name, weight in zip(names, weights, strict=True):
        assert had[name] / had.total() == pytest.approx(weight / sum(weights), abs=0.05)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 16), st.integers(10, 200), st.sampled_from([30.0, 300.0]))
def test_a_share_with_work_gets_what_is_kept_for_it_as_jobs_end(kept: int, late: int, duration: float) -> None:
    """Others have everything when it comes; from when as many of their jobs have ended it never has less."""
    table = Shares((Share("a", Who(team="a"), 0.01, (Kept(None, {"cpus": kept}),)), Share("b", Who(team="b"), 100)))
    jobs = backlog("b", 600, 1, duration)
    mine = [job._replace(arrival=float(late)) for job in backlog("a", 200, 1, 50.0)]
    begun = contend([*jobs, *mine], MACHINES, table).begun
    full = late + duration
    ends = sorted(begun[job.name] + 50.0 for job in mine)
    starts = sorted(begun[job.name] for job in mine)
    for now in range(int(full) + 1, int(full) + 300, 7):
        running = sum(each <= now for each in starts) - sum(each <= now for each in ends)
        left = len(mine) - sum(each <= now for each in starts)
        assert running >= min(kept, running + left)


def test_what_is_lent_comes_back_as_jobs_end_and_nothing_that_runs_is_ended() -> None:
    table = Shares((Share("a", Who(team="a"), 1, (Kept(None, {"cpus": 16}),)), Share("b", Who(team="b"))))
    jobs = [*backlog("b", 300, 1, 100.0), *(job._replace(arrival=50.0) for job in backlog("a", 40, 1, 100.0))]
    begun = contend(jobs, MACHINES, table).begun
    assert sum(begun[job.name] == 0.0 for job in jobs if job.share == "b") == 32, "all that is free is lent"
    assert sorted(begun[job.name] for job in jobs if job.share == "a")[:16] == [100.0] * 16


def test_what_does_not_lend_stays_free_and_what_does_not_borrow_stays_within() -> None:
    kept = (Kept(None, {"cpus": 12}),)
    closed = Shares((Share("a", Who(team="a"), 1, kept, lends=False), Share("b", Who(team="b"))))
    begun = contend(backlog("b", 100), MACHINES, closed).begun
    assert sum(at == 0.0 for at in begun.values()) == 20
    bound = Shares((Share("a", Who(team="a"), 1, kept, borrows=False), Share("b", Who(team="b"))))
    begun = contend(backlog("a", 100), MACHINES, bound).begun
    assert sum(at == 0.0 for at in begun.values()) == 12
    by_weight = Shares((Share("a", Who(team="a"), 1, (), borrows=False), Share("b", Who(team="b"), 3)))
    begun = contend(backlog("a", 100), MACHINES, by_weight).begun
    assert sum(at == 0.0 for at in begun.values()) == 8


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**16))
def test_none_is_starved(seed: int) -> None:
    """Whatever the others have: each share begins jobs all the time. Jobs that need a whole machine are left to the
    ``patience`` of a site, which the simulation of shares does not have."""
    chance = random.Random(seed)
    jobs = []
    for name in "abcd":
        cpus, duration = chance.choice([1, 2, 4]), chance.choice([10.0, 60.0])
        jobs += backlog(name, int(2 * HOUR * 32 / cpus / duration / 4), cpus, duration)
    begun = contend(jobs, MACHINES, shares(a=1, b=1, c=chance.choice([1, 4]), d=1)).begun
    for name in "abcd":
        mine = sorted(begun[job.name] for job in jobs if job.share == name)
        times = [0.0, *(at for at in mine if at <= HOUR)]
        assert max(after - before for before, after in zip(times, [*times[1:], HOUR], strict=True)) <= 900


def a_day(seed: int, scale: float) -> list[ContendingJob]:
    """A day of four teams: one that computes at night, two by day, and one with a large Dag every six hours."""
    chance, jobs = random.Random(seed), []
    for team, hours in (("night", (0, 8)), ("day1", (7, 19)), ("day2", (8, 20)), ("burst", (0, 24))):
        number = int(2200 * scale)
        for n in range(number):
            hour = chance.uniform(*hours) if team != "burst" else 6.0 * (n * 4 // number)
            size = Resources(chance.choice([1, 1, 2, 4]), chance.choice([1000, 4000, 8000]))
            jobs.append(ContendingJob(f"{team}{n:05}", team, size, hour * HOUR, chance.uniform(60, 1800)))
    return jobs


def test_a_day_of_four_equal_teams_is_fair_and_wastes_nothing() -> None:
    jobs = a_day(1, 0.35)
    table = shares(night=1, day1=1, day2=1, burst=1)
    machines = [Resources(8, 32_000)] * 4
    fair, without = contend(jobs, machines, table), contend(jobs, machines, None)
    assert fair.contended > HOUR
    assert fair.jain(table) >= 0.98
    assert fair.utilization >= 0.99 * without.utilization


def test_jain_is_one_where_all_have_the_same() -> None:
    assert (jain([3, 3, 3]), jain([1, 0, 0, 0]), jain([])) == (1.0, 0.25, 1.0)
