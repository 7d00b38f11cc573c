"""Whether gangs can ever have room together."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.gangs.room import GangRoom, options
from lading.scheduling.gangs.supply import Demand, SiteSupply, demand, shortage
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from tests.reasons import clauses, trouble
from tests.unit.scheduling.gangs.test_room import members, site


def supply(*cpus: float, most: float | None = None, name: str = "lab") -> SiteSupply:
    return SiteSupply(name, {number: Location("", Resources(each, 10_000)) for number, each in enumerate(cpus)}, most)


def wants(name: str, count: int, cpus: float, *supplies: SiteSupply) -> Demand:
    return Demand(name, [Resources(cpus, 100)] * count, supplies)


def test_the_sums_are_reported() -> None:
    there = supply(16)
    assert shortage([wants("head", 1, 2, there), wants("worker", 3, 4, there)]) is None
    assert clauses(shortage([wants("head", 1, 6, there), wants("worker", 3, 4, there)])) == (
        "its 4 jobs request 18 cpus in total, and site 'lab' can never provide more than 16 cpus"
    )
    assert shortage([wants("head", 1, 6, there), wants("worker", 3, 4, there)], together=False) is None
    assert clauses(shortage([wants("worker", 3, 6, supply(10, 8))])).startswith(
        "the 3 jobs of task 'worker' request 18 cpus, 300 MiB memory in total (6 cpus, 100 MiB memory each), and "
        "site 'lab' can never hold more than 2 of them: lab has "
    )


def test_what_is_launched_is_bounded_by_how_many_there_may_be() -> None:
    assert shortage([wants("worker", 100, 4, supply(16, most=math.inf))]) is None
    assert "can never hold more than 8 of them: lab can launch up to 2 × 16 cpus" in clauses(
        shortage([wants("worker", 9, 4, supply(16, 4, most=2.0))])
    )
    two = [wants("a", 2, 16, supply(16, most=3)), wants("b", 2, 16, supply(16, most=3))]
    assert "request 64 cpus in total, and site 'lab' can never provide more than 48 cpus" in clauses(shortage(two))


def test_a_shortage_has_its_numbers_as_parameters() -> None:
    many = shortage([wants("worker", 9, 4, supply(16, 4, most=2.0))])
    assert many is not None
    assert (many.code, dict(many.params)["jobs"], dict(many.params)["most"]) == ("gang_too_many", 9, 8.0)
    assert [each.code for each in many.also] == ["site_launches"]
    assert Reason.of_json(many.to_json()) == many
    none = shortage([wants("worker", 1, 32, supply(16, most=math.inf))])
    assert clauses(none).startswith(
        "the job of task 'worker' requests 32 cpus, 100 MiB memory, more than site 'lab' can ever hold: lab can "
        "launch machines of 16 cpus, "
    )


def test_what_is_not_known_is_no_shortage() -> None:
    jobs, there = members(9), [site("a", 4)]
    by_name = {each.name: each for each in there}
    assert demand("t", jobs, options(jobs, there), by_name) is not None
    for unknown in (
        SiteView(name="a", possible=there[0].possible, holds=True, is_new=True),
        SiteView(name="a", possible=there[0].possible, holds=True, trouble=trouble("it is away")),
        SiteView(name="a", holds=True),
    ):
        assert demand("t", jobs, options(jobs, [unknown]), {"a": unknown}) is None


def test_a_site_that_takes_no_jobs_for_now_may_have_enough_later() -> None:
    jobs, small, large = members(9), site("a", 4), site("b", 16)
    closed = replace(large, barred={"": trouble("the account has no budget")})
    assert options(jobs, [small, closed]).matches == ("a",)
    assert demand("t", jobs, options(jobs, [small, closed]), {"a": small, "b": closed}) is None
    known = demand("t", jobs, options(jobs, [small, large]), {"a": small, "b": large})
    assert known is not None
    assert shortage([known]) is None


def test_binding_filters_may_leave_other_places_the_next_time() -> None:
    jobs, there = members(9, targets=as_text(["a"], ["shuffle"])), [site("a", 4)]
    assert demand("t", jobs, options(jobs, there), {"a": there[0]}) is None


def test_jobs_that_ask_for_nothing_have_room_anywhere() -> None:
    nothing = Demand("t", [Resources()] * 9, [supply(1)])
    assert shortage([nothing]) is None
    assert "can never hold more than 1 of them" in clauses(shortage([nothing], spread=True))


def test_a_market_says_how_many_it_has() -> None:
    node = Market(Resources(4, 10_000), 0, 3600.0, 600.0, 2)
    there = SiteView(name="a", possible=[Location("n", node.capacity)], holds=True, launches=True, market=node)
    found = demand("t", members(9), options(members(9), [there]), {"a": there})
    assert found is not None
    assert "can never hold more than 8 of them" in clauses(shortage([found]))


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=3),
    st.booleans(),
)
def test_nothing_that_fits_is_said_never_to(free: list[int], asked: list[tuple[int, int]], spread: bool) -> None:
    """On empty machines, where a pass finds room."""
    there = [site("a", *map(float, free))]
    partitions = [members(count, float(cpus), 10 * number) for number, (count, cpus) in enumerate(asked)]
    found = [options(jobs, there) for jobs in partitions]
    pairs = list(zip(partitions, found, strict=True))
    if GangRoom(there, {}).would_fit([(jobs, each.in_order()) for jobs, each in pairs], 0.0, spread=spread):
        demands = [demand(str(each), jobs, each, {"a": there[0]}) for jobs, each in pairs]
        assert None not in demands
        assert shortage([each for each in demands if each is not None], spread=spread) is None
