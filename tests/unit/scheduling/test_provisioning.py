"""What is launched at a site, how large it is, what makes way for it, and what waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.matching.market import Market, kind, need, readable_kind
from lading.scheduling.matching.waiting import Apart, WaitingJob
from lading.scheduling.model.job import LAYOUT, NATIVE, NOTHING, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import fits, vector
from lading.scheduling.provisioning import (
    LONGEST_ARRIVAL,
    SECONDS_TO_BEGIN,
    SECONDS_UNTIL_SETTLED,
    Provision,
    decide,
    decide_apart,
    recalls,
    shaped,
    suits,
)
from lading.scheduling.provisioning.allocations import abandoned
from tests.reasons import clauses, trouble
from tests.services.examples import part

NOW = 100_000.0
KIND = "k"
MARKET = Market(Resources(8, 15616, 800, 4.0), overhead=384, seconds=14000, unlimited=7000, most=4)
ONE = replace(MARKET, most=1)
MAKES_WAY = (because("makes_way"), because("makes_way_for_larger"))
UNUSED = because("not_wanted")


def jobs(
    count: int, cpus: float = 1, memory: int = 1000, time: float = 7000, kind: str = KIND, at: float = 0
) -> list[PlannedJob]:
    return [
        PlannedJob(
            f"{kind}{at + number}", Resources(cpus, memory), queued_at=at + number, time=time, instance_type=kind
        )
        for number in range(count)
    ]


def live(
    name: str = "a", cpus: float = 8, left: float = 14000.0, prefetched: tuple[PlannedJob, ...] = (), **options: object
) -> Location:
    empty = Location(name, Resources(cpus, 15616), instance_type=KIND, ends_at=NOW + left, **options)  # type: ignore[arg-type]
    return empty.given(prefetched)


def provide(waiting: Sequence[PlannedJob], there: Sequence[Location] = (), market: Market = MARKET) -> Provision:
    return decide(waiting, there, market, now=NOW)


def cpus_of(found: Provision) -> list[float]:
    return [each.capacity.cpus for each in found.launches]


def makes_way(waiting: Sequence[PlannedJob], there: Sequence[Location], market: Market = ONE) -> str | None:
    """The only allocation that is let go, if there is one."""
    found = provide(waiting, there, market).releases
    assert len(found) < 2
    assert set(found.values()) <= {*MAKES_WAY}
    return next(iter(found), None)


@pytest.mark.parametrize(
    ("packed", "cpus", "memory"),
    [
        (Resources(8, 8000), 8, 15616),
        (Resources(5, 1000), 8, 15616),
        (Resources(4, 1000), 4, 8000 - 384),
        (Resources(3, 1000), 4, 8000 - 384),
        (Resources(1, 1000), 1, 2000 - 384),
        (Resources(0, 100), 1, 2000 - 384),
        (Resources(1, 5000), 4, 8000 - 384),
        (Resources(1.0000005, 1000), 2, 4000 - 384),
    ],
)
def test_an_allocation_is_the_smallest_part_of_a_node_that_holds_its_jobs(
    packed: Resources, cpus: float, memory: int
) -> None:
    found = shaped(packed, MARKET)
    assert (found.cpus, found.memory, found.gpus) == (cpus, memory, 0.0)


def test_gpus_are_asked_for_only_when_they_are_used() -> None:
    assert shaped(Resources(1, 100, 0, 0.5), MARKET).gpus == 1.0
    assert shaped(Resources(8, 100, 0, 3.0), MARKET).gpus == 4.0


def test_nodes_that_cannot_be_parted() -> None:
    assert shaped(Resources(1, 1), replace(MARKET, whole=True)) == MARKET.capacity
    assert shaped(Resources(0.5, 1), replace(MARKET, capacity=Resources(1, 1000))).cpus == 1
    assert shaped(Resources(1, 1), replace(MARKET, capacity=Resources(6, 15616))).cpus == 2, (
        "of three cpus two are a half"
    )


def test_as_many_are_launched_as_the_work_needs_at_once() -> None:
    assert cpus_of(provide(jobs(19))) == [8, 8, 4]
    assert cpus_of(provide(jobs(100))) == [8, 8, 8, 8], "max_allocations"
    [launch] = provide(jobs(3)).launches
    assert (launch.kind, set(launch.jobs)) == (KIND, {"k0", "k1", "k2"})


def test_a_job_that_counts_for_others_is_launched_for_like_them() -> None:
    [many] = jobs(1)
    found = provide([replace(many, count=19)])
    assert (cpus_of(found), [each.jobs for each in found.launches]) == ([8, 8, 4], [("k0",)] * 3)
    assert cpus_of(provide([replace(many, count=19)], [live()])) == [8, 4]
    [first, *rest] = jobs(3)
    [launch] = provide([first, *rest[:1], replace(rest[1], count=3)]).launches
    assert (launch.jobs, launch.capacity.cpus) == (("k0", "k1", "k2"), 8)


def test_those_that_are_there_are_counted_and_used_first() -> None:
    free, full = live("a"), live("b", used=Resources(8, 8000))
    assert provide(jobs(8), [free, full]).launches == ()
    assert len(provide(jobs(9), [free, full]).launches) == 1
    assert len(provide(jobs(100), [free, full]).launches) == 2
    pending = live("c", booting=True)
    assert provide(jobs(16), [free, full, pending]).launches == ()
    assert len(provide(jobs(1), [free, pending]).spare) == 1


def test_one_that_drains_is_counted_and_not_used() -> None:
    ends = live("a", draining=True)
    assert len(provide(jobs(100), [ends]).launches) == 3
    assert provide(jobs(100), [ends], ONE).launches == ()
    assert provide(jobs(1), [ends]).spare == {"a"}
    assert len(provide([], [replace(ends, prefetched=tuple(jobs(1)))]).launches) == 1, "its jobs come back"
    assert provide(jobs(1), [ends, replace(ends, name="b")], ONE).launches == (), "of one that may be there are two"


def test_when_nothing_waits_all_are_spare() -> None:
    there = [live("a"), live("b", used=Resources(8, 8000)), live("c", booting=True)]
    assert provide([], there) == Provision(spare=frozenset("abc"))


def test_what_is_prefetched_counts_as_work() -> None:
    assert len(provide([], [live(used=Resources(8, 8000), prefetched=tuple(jobs(8)))]).launches) == 1


def test_a_long_job_gets_an_allocation_of_its_length() -> None:
    [launch] = provide(jobs(1, time=20000), [live()]).launches
    assert launch.seconds == 20000 + SECONDS_TO_BEGIN
    [launch] = provide(jobs(1, time=100)).launches
    assert launch.seconds == MARKET.seconds


def test_where_too_little_time_is_left_counts_for_no_job() -> None:
    ends = live(left=100.0)
    assert len(provide(jobs(1), [ends]).launches) == 1
    assert provide(jobs(1, time=50), [ends]).launches == ()


def test_kinds_share_no_allocation() -> None:
    both = [*jobs(1), *jobs(1, kind="other")]
    assert sorted(each.kind for each in provide(both).launches) == [KIND, "other"]
    assert [each.kind for each in provide(both, [live()]).launches] == ["other"]


def test_a_job_with_native_directives_is_launched_for() -> None:
    """What these are is its kind, so that it needs no hint of what it uses."""
    asked = WaitingJob(
        name="a", resources=Resources(1, 1000), queue="long", native="{}", hints=frozenset([NATIVE, LAYOUT])
    )
    native = replace(need(asked, MARKET), hints=need(asked, MARKET).hints - {LAYOUT})
    assert need(asked, MARKET).hints == {LAYOUT}
    found = provide([native])
    assert ([each.kind for each in found.launches], clauses(found.refused)) == ([kind("long", {})], {})
    there = replace(live(booting=True), instance_type=kind("long", {}))
    assert provide([native], [there]).launches == ()


def test_who_came_first_or_is_urgent_is_launched_for_first() -> None:
    busy = live(used=Resources(8, 8000))
    earlier, odd = jobs(9, cpus=2), jobs(1, kind="other", at=9)
    [launch] = provide([*earlier, *odd], (), ONE).launches
    assert odd[0].name not in launch.jobs
    assert makes_way([*earlier, *odd], [busy]) is None, "one of the same kind would follow"
    odd = [replace(odd[0], priority=1)]
    assert makes_way([*earlier, *odd], [busy]) == "a"
    alike = jobs(12)
    [launch] = provide(alike, (), ONE).launches
    assert set(launch.jobs) == {job.name for job in alike[:8]}


# -- what waits


def test_a_job_waits_only_where_as_many_are_there_as_may_be() -> None:
    full = "1 of 1 allocations are busy (max_allocations)"
    busy = live(used=Resources(8, 8000))
    assert clauses(provide(jobs(2), [busy], ONE).waits) == {"k0": full, "k1": full}
    assert clauses(provide(jobs(2), [busy]).waits) == {}
    assert clauses(provide(jobs(9), (), ONE).waits) == {"k8": full}, "one that is launched now counts"
    assert clauses(provide(jobs(9), [live(booting=True)], ONE).waits) == {"k8": full}, "the others have a place in it"
    [many] = jobs(1)
    assert clauses(provide([replace(many, count=100)], (), ONE).waits) == {}, (
        "of those for which it counts only some wait"
    )
    assert provide([], [replace(busy, prefetched=tuple(jobs(2)))], ONE).waits == {}, "what is prefetched does not"


def test_while_nothing_may_be_launched_what_needs_it_waits_with_the_reason() -> None:
    held = replace(MARKET, held=trouble("the batch system takes no more jobs now"))
    found = provide(jobs(9), (), held)
    assert (found.launches, found.waits) == ((), dict.fromkeys((job.name for job in jobs(9)), held.held))
    assert set(clauses(provide(jobs(9), [live(booting=True)], held).waits)) == {"k8"}, "the others have a place already"
    busy = live(used=Resources(8, 8000))
    assert provide(jobs(1), [busy], replace(held, most=1)).waits == {"k0": held.held}


def test_nothing_makes_way_while_nothing_may_be_launched() -> None:
    busy, [odd] = live(used=Resources(8, 8000)), jobs(1, kind="other")
    assert makes_way([odd], [busy]) == "a"
    assert makes_way([odd], [busy], replace(ONE, held=trouble("no"))) is None


def test_what_is_too_large_for_a_node_is_refused_and_its_neighbours_are_launched_for() -> None:
    [large] = jobs(1, cpus=9, kind="large")
    found = provide([*jobs(2), large, *jobs(2, kind="other")])
    assert list(clauses(found.refused)) == [large.name]
    assert "too large" in clauses(found.refused[large.name])
    assert sorted(name for each in found.launches for name in each.jobs) == ["k0", "k1", "other0", "other1"]
    assert provide([large], [live()], ONE).releases == {}, "nothing makes way for it"


def test_what_only_one_that_is_there_could_hold_waits_for_that() -> None:
    """The site's nodes were larger when it was launched."""
    [wide] = jobs(1, cpus=16)
    assert clauses(provide([wide], [live(cpus=16, used=Resources(8, 8000))]).waits) == {"k0": "a is busy"}


# -- arrivals


def arriving(count: int, age: float, kind: str = KIND) -> list[PlannedJob]:
    """Jobs of which the last one came so many seconds ago, and the others at the same time."""
    return [replace(job, queued_at=NOW - age) for job in jobs(count, kind=kind)]


def test_a_part_of_a_node_is_not_launched_while_jobs_arrive() -> None:
    burst = arriving(12, SECONDS_UNTIL_SETTLED - 0.1)
    found = provide(burst)
    assert (cpus_of(found), clauses(found.waits)) == ([8], {})
    assert cpus_of(provide(burst, (), replace(MARKET, whole=True))) == [8, 8]
    assert cpus_of(provide(arriving(12, SECONDS_UNTIL_SETTLED + 0.1))) == [8, 4]
    assert cpus_of(provide([*arriving(3, 60.0), *arriving(1, 0.1, "other")])) == [4], "the other one is new"


def test_a_part_of_a_node_is_launched_in_the_end_though_jobs_arrive() -> None:
    newest = arriving(2, 0.0)
    oldest = [replace(job, name=f"old{job.name}") for job in arriving(1, LONGEST_ARRIVAL - 0.1)]
    assert cpus_of(provide([*oldest, *newest])) == []
    oldest = [replace(job, queued_at=NOW - LONGEST_ARRIVAL - 0.1) for job in oldest]
    assert cpus_of(provide([*oldest, *newest])) == [4]


def test_of_jobs_that_were_not_looked_at_more_may_arrive() -> None:
    [first] = arriving(1, LONGEST_ARRIVAL - 0.1)
    assert cpus_of(provide([replace(first, count=12)])) == [8]
    assert cpus_of(provide([replace(first, count=12, queued_at=NOW - LONGEST_ARRIVAL - 0.1)])) == [8, 4]


# -- what is let go


def test_one_that_still_waits_in_its_queue_is_let_go_when_nothing_needed_it_for_a_while() -> None:
    market = replace(MARKET, idle_seconds=60.0)
    idle = live(booting=True, idle_since=NOW - 61)
    assert provide([], [idle], market).releases == {"a": UNUSED}
    assert provide(jobs(1, kind="other"), [idle], market).releases == {"a": UNUSED}
    assert provide(jobs(1), [idle], market).releases == {}, "something needs it"
    assert provide([], [replace(idle, idle_since=NOW - 59)], market).releases == {}
    assert provide([], [replace(idle, idle_since=None)], market).releases == {}
    assert provide([], [replace(idle, booting=False)], market).releases == {}, "it ends by itself"
    assert provide([], [idle], replace(market, held=trouble("no"))).releases == {"a": UNUSED}


def test_none_makes_way_beside_one_that_nothing_needs() -> None:
    market = replace(MARKET, most=2, idle_seconds=60.0)
    there = [live("a", left=100.0, used=Resources(1, 1000)), live("b", booting=True, idle_since=NOW - 61)]
    assert provide(jobs(1, kind="other"), there, market).releases == {"b": UNUSED}


def test_a_small_one_makes_way_for_a_large_one() -> None:
    small = live("a", cpus=1)
    assert makes_way(jobs(1, cpus=4), [small]) == "a", "it can never run the job"
    assert makes_way(jobs(20), [replace(small, used=Resources(1, 1000))]) == "a"
    assert makes_way(jobs(20), [live("a", used=Resources(8, 8000))]) is None
    assert makes_way(jobs(1), [replace(small, used=Resources(1, 1000))]) is None, "no larger one is needed"
    assert makes_way(jobs(1), [live("a", left=10.0)]) == "a", "it has too little time left"
    assert makes_way(jobs(20), [replace(small, draining=True)]) is None
    assert makes_way(jobs(20), [replace(small, used=Resources(1, 1000))], MARKET) is None, "there may be more"
    one = Resources(1, 1000)
    assert makes_way(jobs(20), [replace(small, used=one, held=one)]) is None, "a gang is to start there"
    assert makes_way(jobs(1, cpus=4), [replace(small, used=one, held=one)]) is None


def test_a_small_one_makes_way_for_jobs_that_were_not_looked_at() -> None:
    small, [first] = live("a", cpus=1, used=Resources(1, 1000)), jobs(1)
    assert makes_way([first], [small]) is None
    assert makes_way([replace(first, count=20)], [small]) == "a"


def test_none_makes_way_before_it_has_begun_its_work() -> None:
    [common], [odd] = jobs(1), jobs(1, kind="other", at=1)
    for asked_for in (live(booting=True), live(prefetched=(common,))):
        waiting = [odd] if asked_for.prefetched else [common, odd]
        assert makes_way(waiting, [asked_for]) is None
        assert makes_way([*waiting, *jobs(1, time=20000, at=2)], [asked_for]) is None
        assert makes_way([*waiting, replace(odd, name="many", count=1000)], [asked_for]) is None
    assert makes_way([odd], [live(used=common.resources)]) == "a"
    assert makes_way([odd], [live()]) == "a", "nothing waits that could use it"
    two = [live("a", prefetched=(common,)), live("b", used=common.resources)]
    assert makes_way([odd], two, replace(MARKET, most=2)) == "a", "the other one has room for its job"


@pytest.mark.parametrize("odd", [jobs(1, kind="other", at=9), jobs(1, time=20000, at=9), jobs(1, memory=9000, at=9)])
def test_allocations_are_launched_and_make_way_in_turn(odd: list[PlannedJob]) -> None:
    half = replace(live(cpus=4, used=Resources(4, 4000)), capacity=Resources(4, 7616))
    later = jobs(100, cpus=2, at=10)
    [launch] = provide([*later, *odd], (), ONE).launches
    assert odd[0].name in launch.jobs
    assert makes_way([*later, *odd], [half]) == "a"


def test_the_one_that_could_run_the_job_the_longest_keeps_others_from_making_way() -> None:
    there = [live("a", left=20500.0, used=Resources(8, 8000)), live("b", left=100.0, used=Resources(8, 8000))]
    two = replace(MARKET, most=2)
    assert makes_way(jobs(1, time=20000), there, two) is None
    assert makes_way(jobs(1, time=21000), there, two) == "b", "it ends soonest"


# -- what comes back


def test_what_another_one_can_run_at_once_comes_back() -> None:
    prefetched = tuple(jobs(2))
    full = live("a", used=Resources(8, 8000), prefetched=prefetched)
    names = [job.name for job in prefetched]
    settled = frozenset(names)

    def back(*there: Location, settled: frozenset[str] = settled) -> dict[str, list[str]]:
        return recalls(there, settled, now=NOW)

    assert back(full, live("b")) == {"a": names}
    assert back(full, live("b"), settled=frozenset()) == {}, "it may begin at any moment"
    assert back(full, live("b"), settled=frozenset(names[:1])) == {"a": names[:1]}
    assert back(full) == {}
    for no_place in (live("b", used=Resources(8, 8000)), live("b", booting=True), live("b", left=10.0)):
        assert back(full, no_place) == {}


def test_what_its_own_one_cannot_run_any_more_comes_back_at_once() -> None:
    prefetched = tuple(jobs(2))
    full = live("a", used=Resources(8, 8000), prefetched=prefetched)
    names = [job.name for job in prefetched]
    for over in (replace(full, ends_at=NOW + 10), replace(full, draining=True), replace(full, instance_type="other")):
        assert recalls([over], frozenset(), now=NOW) == {"a": names}
    soon = live("c", prefetched=tuple(jobs(1, time=50, at=5)), left=100.0)
    assert recalls([replace(full, draining=True), soon], frozenset(), now=NOW) == {"a": names}


# -- what holds in any case

AMOUNTS = st.builds(
    Resources,
    st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 1.0, 1.0000005, 1.5, 2.0, 3.0, 7.0, 8.0, 9.0]),
    st.sampled_from([100, 1000, 1616, 5000, 15616]),
    st.sampled_from([0, 0, 400]),
    st.sampled_from([0.0, 0.0, 0.5, 3.0]),
)
PARTS = [Resources(8, 15616, 800, 4.0), Resources(4, 7616, 400), Resources(1, 1616, 100), Resources(16, 32000)]
KINDS = st.sampled_from([KIND, "other"])


@st.composite
def some_jobs(draw: st.DrawFn, prefix: str, most: int = 12) -> list[PlannedJob]:
    return [
        PlannedJob(
            f"{prefix}{number}",
            resources,
            draw(st.sampled_from([1, 1, 1, 30])),
            draw(st.integers(0, 1)),
            NOW - draw(st.sampled_from([0, 1, 5, 60, 600])),
            draw(st.sampled_from([50.0, 7000.0, 20000.0])),
            instance_type=draw(KINDS),
        )
        for number, resources in enumerate(draw(st.lists(AMOUNTS, max_size=most)))
    ]


@st.composite
def some_live(draw: st.DrawFn) -> list[Location]:
    found = []
    for number, capacity in enumerate(draw(st.lists(st.sampled_from(PARTS), max_size=5))):
        state = draw(st.sampled_from(["booting", "draining", "up", "up"]))
        running = Resources(draw(st.sampled_from([0, 1, capacity.cpus])), 100) if state != "booting" else NOTHING
        location = Location(
            f"L{number}",
            capacity,
            running if running.cpus else NOTHING,
            instance_type=draw(KINDS),
            ends_at=NOW + draw(st.sampled_from([10.0, 8000.0, 14000.0])),
            idle_since=draw(st.sampled_from([None, NOW - 10, NOW - 100])),
            booting=state == "booting",
            draining=state == "draining",
        )
        prefetched = draw(some_jobs(f"s{number}-", 4)) if state != "booting" else []
        found.append(location.given([replace(job, count=1) for job in prefetched if location.suits(job)]))
    return found


def test_jobs_that_are_alike_are_named_once_also_where_they_are_packed_by_length() -> None:
    short, long = jobs(1, cpus=0.1, time=50), replace(jobs(1, cpus=0.1, at=1)[0], count=30)
    found = provide([*short, long], market=replace(MARKET, idle_seconds=60.0))
    assert found.launches
    assert all(len(set(each.jobs)) == len(each.jobs) for each in found.launches)


MARKETS = st.builds(
    replace,
    st.just(replace(MARKET, idle_seconds=60.0)),
    most=st.integers(1, 8),
    whole=st.booleans(),
    held=st.sampled_from([None, None, trouble("held")]),
)


@part(0.5)
@given(some_jobs("j"), some_live(), MARKETS)
def test_a_job_is_launched_for_or_waits_or_is_refused_or_has_a_place(
    waiting: list[PlannedJob], there: list[Location], market: Market
) -> None:
    later = NOW + LONGEST_ARRIVAL + 1
    found = decide(waiting, there, market, now=later)
    launched_for = {name for each in found.launches for name in each.jobs}
    mine = launched_for & {job.name for job in waiting}
    assert len(mine | clauses(found.waits).keys()) == len(mine) + len(clauses(found.waits))
    assert not (mine | clauses(found.waits).keys()) & clauses(found.refused).keys()
    for job in waiting:
        if job.name not in mine and job.name not in clauses(found.waits) and job.name not in clauses(found.refused):
            assert any(suits(each, job, later) and each.name not in found.spare for each in there), job
    assert market.held is None or not found.launches


@part(0.5)
@given(some_jobs("j"), some_live(), MARKETS)
def test_a_launch_holds_its_jobs_and_is_for_them(
    waiting: list[PlannedJob], there: list[Location], market: Market
) -> None:
    by_name = {job.name: job for job in [*waiting, *(job for each in there for job in each.prefetched)]}
    found = provide(waiting, there, market)
    assert len(found.launches) <= max(0, market.most - len(there))
    for each in found.launches:
        here = [by_name[name] for name in each.jobs]
        assert here
        assert len(set(each.jobs)) == len(each.jobs)
        assert {job.instance_type for job in here} == {each.kind}
        assert all(fits(vector(job.resources), vector(each.capacity)) for job in here)
        assert sum((job.resources for job in here), NOTHING).fits(each.capacity)
        assert each.capacity.fits(market.capacity)
        assert each.seconds >= max(market.seconds, *((job.time or 0.0) + SECONDS_TO_BEGIN for job in here))


@part(0.5)
@given(some_jobs("j"), some_live(), MARKETS)
def test_where_jobs_run_only_one_is_let_go_at_a_time_and_makes_way(
    waiting: list[PlannedJob], there: list[Location], market: Market
) -> None:
    found = provide(waiting, there, market)
    assert found.spare <= {each.name for each in there}
    for each in there:
        reason = found.releases.get(each.name)
        if each.running != NOTHING or each.prefetched:
            assert reason in (None, *MAKES_WAY)
        if reason == UNUSED:
            assert each.booting
            assert each.name in found.spare
        if reason in MAKES_WAY:
            assert list(found.releases) == [each.name]
            assert not found.launches
            assert market.held is None
            assert each.running != NOTHING or each.name in found.spare, "or nothing would ever be done"


@part(0.5)
@given(some_jobs("j"), some_live(), MARKETS)
def test_the_same_is_decided_of_the_same(waiting: list[PlannedJob], there: list[Location], market: Market) -> None:
    assert provide(waiting, there, market) == provide(list(waiting), list(there), replace(market))


def test_the_order_of_texts_in_memory_decides_nothing() -> None:
    code = (
        "from lading.scheduling.model.job import PlannedJob\n"
        "from lading.scheduling.matching.market import Market\n"
        "from lading.scheduling.provisioning import decide\n"
        "from lading.scheduling.model.resources import Resources\n"
        "needs = [Resources(1 + n % 9, 100) for n in range(40)]\n"
        "jobs = [PlannedJob(f'j{n}', each, instance_type=f'k{n % 5}', time=1.0) for n, each in enumerate(needs)]\n"
        "print(decide(jobs, [], Market(Resources(8, 8000), 100, 9.0, 9.0, 9), now=99.0))"
    )
    found = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


@given(AMOUNTS, st.integers(1, 200), MARKETS)
def test_when_equal_jobs_have_got_what_they_need_no_more_is_launched(
    resources: Resources, count: int, market: Market
) -> None:
    wanted = [PlannedJob("j", resources, count, time=7000.0, instance_type=KIND)]
    market = replace(market, held=None)
    found = provide(wanted, (), market)
    there = [
        Location(f"L{number}", each.capacity, instance_type=KIND, ends_at=NOW + each.seconds, booting=True)
        for number, each in enumerate(found.launches)
    ]
    again = provide(wanted, there, market)
    assert (again.launches, again.spare) == ((), frozenset())
    assert len(there) == market.most or "j" not in clauses(again.waits)


def test_jobs_that_may_be_placed_only_now_are_new_however_long_they_have_waited() -> None:
    """Of 500 jobs whose inputs are looked at one after the other each would get an allocation of its own."""
    [late] = [replace(each, queued_at=0.0) for each in jobs(1)]
    assert provide([late]).launches
    assert decide([late], (), ONE, {late.name: NOW - 0.5}, now=NOW).launches == ()
    assert decide([late], (), ONE, {late.name: NOW - 2.5}, now=NOW).launches


@pytest.mark.parametrize(
    ("text", "words"),
    [('[null, []]', None), ('["long", [["account", "me"], ["exclusive", true]]]', "queue long, account=me, exclusive"),
     ("", None), ("c7i.large", "c7i.large"), ("[1]", "[1]"), ("[1, 2]", "[1, 2]")],
)  # fmt: skip
def test_a_kind_is_reported_as_text(text: str, words: str | None) -> None:
    assert readable_kind(text) == words


def apart(
    count: int, there: Sequence[Location] = (), market: Market = MARKET, *taken: str, gang: str = "g"
) -> Provision:
    waiting = [(job, Apart(gang, frozenset(taken))) for job in jobs(count)]
    return decide_apart(waiting, there, market, {}, InstanceLimits(), now=NOW)[0]


def test_members_that_are_spread_are_launched_for_one_by_one() -> None:
    assert len(provide(jobs(3)).launches) == 1, "all three go into one"
    assert [each.jobs for each in apart(3).launches] == [("k0",), ("k1",), ("k2",)]
    assert len(apart(3, [live(booting=True)]).launches) == 2, "one has its place in what boots"
    assert len(apart(3, [live("a"), live("b"), live("c")]).launches) == 0
    assert len(apart(3, [live("a")], MARKET, "a").launches) == 3, "another member of theirs is there"
    assert len(apart(6, [live("a")]).launches) == MARKET.most - 1
    assert "4 of 4 allocations are busy (max_allocations)" in clauses(apart(6, [live("a")]).waits).values()


def test_members_of_two_gangs_may_share_what_is_launched() -> None:
    waiting = [(job, Apart(gang)) for gang in "gh" for job in jobs(2, at=0 if gang == "g" else 10)]
    whole = replace(MARKET, whole=True)
    assert len(decide_apart(waiting, [], whole, {}, InstanceLimits(), now=NOW)[0].launches) == 2


def test_what_is_launched_for_them_counts_against_limits_and_takes_no_others() -> None:
    waiting = [(job, Apart("g")) for job in jobs(3)]
    first, there, kept = decide_apart(waiting, [live("a")], MARKET, {}, InstanceLimits(), now=NOW)
    assert (len(first.launches), len(there), len(kept)) == (2, 3, 3)
    found = decide(jobs(3, cpus=7.5, at=10), there, MARKET, now=NOW)
    assert len(found.launches) == MARKET.most - 3
    assert [*clauses(found.waits).values()] == ["4 of 4 allocations are busy (max_allocations)"] * 2


def test_where_they_are_counts_as_used() -> None:
    waiting = [(job, Apart("g")) for job in jobs(1, cpus=8)]
    _, there, kept = decide_apart(waiting, [live("a"), live("b")], MARKET, {}, InstanceLimits(), now=NOW)
    assert kept == {"a"}
    assert [each.used.cpus for each in there] == [8, 0]


def test_what_was_asked_for_for_a_gang_that_looks_for_no_room_is_abandoned() -> None:
    there = [live("queues", booting=True), live("up"), live("others", booting=True)]
    ordered_for = {"queues": ("a", "b"), "up": ("a",)}
    spare = frozenset(("queues", "up", "others"))
    assert abandoned(there, ordered_for, {"b"}, spare) == {}
    assert [*abandoned(there, ordered_for, (), spare)] == ["queues"]
    assert abandoned(there, ordered_for, (), spare - {"queues"}) == {}, "something else that waits has a place in it"
