"""Where the members of a partition find room together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.gangs.gang import NO_RULE
from lading.scheduling.gangs.room import GangRoom, Ways, most_fitting, options
from lading.scheduling.matching.rules import Soft
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from tests.reasons import trouble


def members(count: int, cpus: float = 1.0, first: int = 0, **more: object) -> list[WaitingJob]:
    return [
        WaitingJob(name=f"job{number}", resources=Resources(cpus, 100), **more)  # type: ignore[arg-type]
        for number in range(first, first + count)
    ]


def site(name: str, *free: float, holds: bool = True, why: Reason | None = None) -> SiteView:
    locations = [Location(f"{name}{number}", Resources(cpus, 10_000), site=name) for number, cpus in enumerate(free)]
    return SiteView(name=name, locations=locations, possible=locations, holds=holds, trouble=why)


def found(room: GangRoom, jobs: Sequence[WaitingJob], match: str) -> dict[str, int] | None:
    """How many jobs each location has got; None: there is no room for all."""
    places = options(jobs, list(room.sites.values())).stops[NO_RULE, match]
    placed, left = room.find(jobs, places, 0.0)
    return None if left else dict(Counter(each.location for each in placed.values()))


def test_each_site_is_a_match_and_so_are_all_together() -> None:
    jobs = members(2)
    sites = [site("a", 4), site("queue", 4, holds=False), site("b", 4)]
    assert options(jobs, sites).matches == ("a", "b", "a + b")
    assert options(jobs, sites[:2]).matches == ("a",)
    assert options(members(1, cpus=8), sites).matches == ()
    mixed = [*members(1, site="b"), *members(1, first=1)]
    assert options(mixed, sites).matches == ("b",)


def test_members_are_as_near_to_each_other_as_may_be() -> None:
    assert found(GangRoom([site("a", 1, 4, 2)], {}), members(4), "a") == {"a1": 4}
    assert found(GangRoom([site("a", 1, 4, 2)], {}), members(6), "a") == {"a1": 4, "a2": 2}
    assert found(GangRoom([site("a", 1, 4, 2)], {}), members(8), "a") is None
    assert found(GangRoom([site("a", 1, 4, 2), site("b", 1)], {}), members(8), "a + b") == {
        "a1": 4,
        "a2": 2,
        "a0": 1,
        "b0": 1,
    }


def test_what_is_held_is_taken_and_what_is_prefetched_is_not() -> None:
    there = site("a", 4)
    assert found(GangRoom([there], {("a", "a0"): Resources(3, 100)}), members(2), "a") is None
    prefetched = there.locations[0].given([PlannedJob("prefetched", Resources(4, 100))])
    assert found(
        GangRoom([SiteView(name="a", locations=[prefetched], possible=[prefetched], holds=True)], {}), members(4), "a"
    )
    [taken] = GangRoom([there], {("a", "a0"): Resources(3, 100)}).with_held()
    assert taken.locations[0].used == taken.locations[0].held == Resources(3, 100)


def test_a_site_in_trouble_has_no_room() -> None:
    assert found(GangRoom([site("a", 4, why=trouble("it is away"))], {}), members(1), "a") is None


def test_a_rule_is_tried_at_every_place() -> None:
    jobs = members(2, cpus=4, soft=Soft({"cpus": 1.0}).as_text())
    known = options(jobs, [site("a", 8), site("b", 8)])
    assert known.rules[:3] == ("", "less", "less, step 2")
    assert [known.stops["less, step 2", "b"][0][job.name].asked(job).resources.cpus for job in jobs] == [1.0, 1.0]
    assert options(jobs, [site("a", 8)], Ways(rules=())).rules == ("",)


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_no_location_is_given_more_than_it_has(free: list[int], gangs: list[tuple[int, int]]) -> None:
    room, used = GangRoom([site("a", *map(float, free))], {}), Counter[str]()
    for number, (count, cpus) in enumerate(gangs):
        jobs = members(count, float(cpus), first=10 * number)
        places = options(jobs, list(room.sites.values())).stops.get((NO_RULE, "a"), ())
        placed, left = room.find(jobs, places, 0.0)
        if not left:
            assert placed.keys() == {job.name for job in jobs}
            used.update({each.location: 0 for each in placed.values()})
            for each in placed.values():
                used[each.location] += cpus
        elif places:  # there is really too little
            assert sum((amount - used[f"a{index}"]) // cpus for index, amount in enumerate(free)) < count
    assert all(used[f"a{index}"] <= amount for index, amount in enumerate(free))


def test_how_many_fit() -> None:
    assert most_fitting(Resources(0.1, 10), Resources(0.3, 1000)) == 3
    assert most_fitting(Resources(1, 10, 0, 0.5), Resources(8, 25, 0, 4)) == 2
    assert most_fitting(Resources(2, 10), Resources(1, 1000)) == 0


def test_members_that_are_spread_have_a_location_each() -> None:
    jobs, room = members(3), GangRoom([site("a", 8, 2), site("b", 8)], {})
    places = options(jobs, list(room.sites.values())).stops[NO_RULE, "a + b"]
    placed, left = room.find(jobs, places, 0.0, apart=())
    assert not left
    assert {each.location for each in placed.values()} == {"a0", "a1", "b0"}
    _, left = room.find(jobs, places, 0.0, apart={("a", "a0")})
    assert len(left) == 1
    mixed = [*members(1), *members(1, cpus=2, first=1)]
    places = options(mixed, list(room.sites.values())).stops[NO_RULE, "a"]
    assert (
        Counter(each.location for each in room.find(mixed, places, 0.0, apart=())[0].values()).most_common(1)[0][1] == 1
    )


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_what_would_fit_is_what_a_pass_finds_and_nothing_is_taken(
    free: list[int], first: int, second: int, spread: bool
) -> None:
    sites = [site("a", *map(float, free))]
    partitions = [members(first), members(second, first=first)]
    room, other = GangRoom(sites, {}), GangRoom(sites, {})
    asked = [(jobs, options(jobs, sites).in_order()) for jobs in partitions]
    said = [room.would_fit(asked, 0.0, spread=spread) for _ in range(2)]
    assert said[0] == said[1]
    taken: set[tuple[str, str]] = set()
    finds = True
    for jobs, matches in asked:
        places, left = other.find(jobs, matches[0], 0.0, taken if spread else None) if matches else ({}, jobs)
        finds = finds and not left
        taken |= {("a", each.location) for each in places.values()}
    assert said[0] == finds
    if said[0]:
        assert room.may_fit([job for jobs in partitions for job in jobs])
