"""By which policy the locations of a site take jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing import placement
from lading.scheduling.placing.assignment import Assignment
from lading.scheduling.placing.choosing import Choice
from lading.scheduling.placing.policies import Allocations, Files, JobAllocation, PolicyContext
from tests.reasons import told

NOW = 1000.0
GIB = 2**30
ROOM = Resources(cpus=4, memory=4096)
X, Y, Z, W = (Location(name, ROOM) for name in "XYZW")
# The inputs of the documents' example: a file of 10 GiB, which X has, and one of 1 GiB, which Y has.
FILES = Files(
    {"job": {"file:///large": 10 * GIB, "file:///small": GIB}},
    {"file:///large": frozenset({("lab", "X"), ("elsewhere", "Z")}), "file:///small": frozenset({("lab", "Y")})},
)


def waits(name: str, cpus: float = 1, at: float = NOW) -> WaitingJob:
    return WaitingJob(name=name, resources=Resources(cpus=cpus, memory=64), queued_at=at)


def lab(*locations: Location, **options: Any) -> SiteView:
    return SiteView(**{"name": "lab", "locations": locations, "possible": locations, **options})


def full(location: Location) -> Location:
    return replace(location, used=ROOM)


def assign(jobs: list[WaitingJob], *sites: SiteView, **options: Any) -> Assignment:
    return placement.assign(jobs, sites, now=NOW, choice=Choice(NOW, **options))


def place(*locations: Location, **options: Any) -> str | None:
    """Where the job of the example goes."""
    site = lab(*locations, policy="data_locality", **options)
    return assign([waits("job")], site, files=FILES).placed.get("job", (None, None))[1]


def test_a_job_goes_where_its_heaviest_input_is() -> None:
    assert place(Z, Y, X) == "X"


@pytest.mark.parametrize(
    ("policy", "priced", "begins"),
    [("greedy", True, "dear"), ("greedy", False, "cheap"), ("first_come", True, "cheap")],
)
def test_where_machines_have_prices_greedy_fills_them_in_their_order(policy: str, priced: bool, begins: str) -> None:
    """What needs the dearer machine comes first, however late it has arrived; its priority comes before that."""
    types = {
        name: InstanceType(name, Resources(cpus, 4096), (Offering(price),))
        for name, cpus, price in (("small", 1, 0.1), ("large", 4, 0.4))
    }
    market = MachineMarket(Catalogue(types), policy="greedy", held=because("settles")) if priced else None
    room = replace(X, instance_type="large", used=Resources(cpus=1))
    site = lab(room, policy=policy, market=market, launched=[room] if priced else [])
    early = PlannedJob("cheap", Resources(1, 64), queued_at=NOW - 60)
    late = PlannedJob("dear", Resources(3, 64), queued_at=NOW)
    assert Choice(NOW).run(site, [early, late], InstanceLimits()) == {begins: "X"}
    assert Choice(NOW).run(site, [replace(early, priority=2), late], InstanceLimits()) == {"cheap": "X"}


def test_where_that_has_no_room_it_goes_where_the_next_one_is() -> None:
    assert place(Z, Y, full(X)) == "Y"


def test_where_none_has_room_it_goes_to_one_of_the_others_by_chance() -> None:
    rest = [full(X), full(Y), Z, W]
    assert place(*rest) == place(*rest), "the same each time"
    jobs = [waits(f"job{number}", cpus=0.01) for number in range(100)]
    placed = assign(jobs, lab(*rest, policy="data_locality")).placed
    assert 30 < sum(location == "Z" for _, location in placed.values()) < 70
    assert {location for _, location in placed.values()} == {"Z", "W"}


def test_where_nothing_has_room_it_waits() -> None:
    assert place(full(X), full(Y), full(Z)) is None


def test_the_rest_may_be_the_cheapest() -> None:
    priced = [replace(full(X), usd_per_hour=0.1), replace(Z, usd_per_hour=2.0), replace(W, usd_per_hour=1.0)]
    assert place(*priced, locality_fallback="cheapest") == "W"


def test_a_job_may_wait_for_its_data() -> None:
    site = lab(full(X), full(Y), Z, policy="data_locality", locality_wait=60)
    late, early = waits("job"), waits("job", at=NOW - 60)
    assert assign([late], site, files=FILES).placed == {}
    assert assign([early], site, files=FILES).placed == {"job": ("lab", "Z")}
    assert assign([waits("other")], site, files=FILES).placed == {"other": ("lab", "Z")}, "no data to wait for"


def test_data_on_a_machine_that_is_too_small_do_not_hold_a_job() -> None:
    small = Location("X", Resources(0.5, 64))
    site = lab(small, Z, policy="data_locality", locality_wait=60)
    assert assign([waits("job")], site, files=FILES).placed == {"job": ("lab", "Z")}


def test_first_come_takes_jobs_in_their_order_and_passes_over_what_does_not_fit() -> None:
    jobs = [waits("a", 3), waits("b", 4), waits("c", 2), waits("d", 1)]
    placed = assign(jobs, lab(X, Y, policy="first_come")).placed
    assert placed == {"a": ("lab", "X"), "b": ("lab", "Y"), "d": ("lab", "X")}, "c would have to be prefetched"


def test_priced_fills_machines_as_well() -> None:
    jobs = [waits(f"job{number}") for number in range(8)]
    assert len(assign(jobs, lab(X, Y, policy="priced")).placed) == 8


def container(name: str, wraps: str, **options: Any) -> Location:
    return Location(name, ROOM, wraps=wraps, stacked=True, **options)


@pytest.mark.parametrize("policy", ["greedy", "priced", "first_come", "data_locality"])
def test_a_stacked_location_has_what_the_level_beneath_it_has(policy: str) -> None:
    beneath = replace(X, used=Resources(2, 0))
    upper = container("upper", "inner")
    site = lab(container("inner", "X"), upper, beneath, policy=policy)
    assert assign([waits("a", 3)], site).placed == {}, "X has 2 cpus left"
    assert len(assign([waits("a", 2), waits("b", 2)], site).placed) == 1, "what one takes is taken of all levels"
    alone = replace(upper, stacked=False)
    assert assign([waits("a", 3)], lab(full(X), alone, policy=policy)).placed == {"a": ("lab", "upper")}
    assert assign([waits("a")], lab(container("inner", "X"), policy=policy)).placed == {}, "X takes no jobs now"


def test_what_lies_on_a_location_is_counted_in_what_it_has_left() -> None:
    site = lab(X, replace(container("inner", "X"), used=Resources(3, 0)), policy="first_come")
    assert assign([waits("a", 2)], site).placed == {}


class Recorder:
    """A policy of a third party that takes the last location, and records what it was given."""

    def __init__(self, answer: Any = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answer = answer

    def get_location(
        self,
        context: PolicyContext,
        job: WaitingJob,
        requirement: Resources,
        available: Mapping[str, Location],
        jobs: Mapping[str, JobAllocation],
        locations: Mapping[str, Mapping[str, Any]],
    ) -> Any:
        there = {site: {name: [*each.jobs] for name, each in these.items()} for site, these in locations.items()}
        used = {name: each.used.cpus for name, each in available.items()}
        self.calls.append({"job": job.name, "used": used, "jobs": dict(jobs), "there": there, "context": context})
        if isinstance(self.answer, Exception):
            raise self.answer
        return [*available][-1] if self.answer is None else self.answer


def test_a_policy_of_a_third_party_is_asked_for_one_job_after_the_other() -> None:
    policy = Recorder()
    before = {"old": JobAllocation("lab/long", ("Y",), "succeeded", Resources(1, 64))}
    jobs = [waits("a", 3), waits("b", 3), waits("c", 3)]
    options = {"policies": {"mine": policy}, "allocations": Allocations(before), "files": FILES}
    placed = assign(jobs, lab(X, Y, full(Z), policy="mine"), **options).placed
    assert placed == {"a": ("lab", "Y"), "b": ("lab", "X")}
    assert [call["job"] for call in policy.calls] == ["a", "b"], "for c there is nothing to choose"
    assert [call["used"] for call in policy.calls] == [{"X": 0, "Y": 0}, {"X": 0}]
    assert policy.calls[1]["jobs"] == {
        **before,
        "a": JobAllocation("lab", ("Y",), "placed", Resources(3, 64)),
    }
    assert policy.calls[1]["there"] == {"lab": {"Y": ["old", "a"]}}
    assert policy.calls[0]["context"] == PolicyContext("lab", NOW, FILES)


def test_jobs_are_where_they_were_put_and_count_for_all_levels_beneath() -> None:
    policy = Recorder()
    stacked = {("lab", "inner"): ("X",)}
    before = {"old": JobAllocation("lab", ("inner",), "running", Resources(1, 64))}
    options = {"policies": {"mine": policy}, "allocations": Allocations(before, stacked)}
    assign([waits("a"), waits("b")], lab(X, container("inner", "X"), policy="mine"), **options)
    assert policy.calls[1]["jobs"]["a"].locations == ("inner",)
    assert policy.calls[1]["there"] == {"lab": {"inner": ["old", "a"], "X": ["old", "a"]}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ValueError("no map"), "its policy failed: ValueError: no map"),
        ("Q", "its policy returned 'Q'; valid: X, or None"),
        (7, "its policy returned 7; valid: X, or None"),
        (["X"], "its policy returned ['X']; valid: X, or None"),
    ],
)
def test_what_a_policy_gets_wrong_is_said_and_holds_up_no_other_site(answer: Any, words: str) -> None:
    site = lab(X, policy="mine")
    found = assign([waits("a")], replace(site, burst_after=60), policies={"mine": Recorder(answer)})
    assert words in str(told(found.waits["a"]))
    other = replace(site, name="other", policy="greedy")
    assert assign([waits("a")], site, other, policies={"mine": Recorder(answer)}).placed == {"a": ("other", "X")}


@pytest.mark.parametrize("change", ["available.update(Q=available['X'])", "jobs.clear()", "locations.clear()"])
def test_a_policy_cannot_change_what_the_next_jobs_are_placed_by(change: str) -> None:
    class Meddler:
        def get_location(
            self, context: Any, job: Any, requirement: Any, available: Any, jobs: Any, locations: Any
        ) -> str:
            exec(change)
            return "Q"

    found = assign([waits("a")], lab(X, policy="mine"), policies={"mine": Meddler()})
    assert "its policy failed: AttributeError: 'mappingproxy'" in str(told(found.waits["a"]))


def test_what_was_tried_in_vain_is_not_tried_again() -> None:
    policy = Recorder()
    site = lab(X, policy="mine", tried=frozenset({"a"}))
    assert assign([waits("a"), waits("b")], site, policies={"mine": policy}).placed == {"b": ("lab", "X")}


def test_a_policy_of_a_third_party_costs_less_than_a_millisecond_a_job() -> None:
    class First:
        def get_location(
            self, context: PolicyContext, job: Any, requirement: Any, available: Any, jobs: Any, there: Any
        ) -> str:
            return str(next(iter(available)))

    there = [Location(f"machine{number}", Resources(8, 32768)) for number in range(200)]
    jobs = [waits(f"job{number}", 1 + number % 4) for number in range(500)]
    begun = time.process_time()
    placed = assign(jobs, lab(*there, policy="mine"), policies={"mine": First()}).placed
    assert len(placed) == 500
    assert time.process_time() - begun < 0.5


def test_a_policy_that_fails_at_one_site_is_said_of_no_other() -> None:
    class Broken:
        def get_location(self, *_: object) -> str:
            raise ValueError("no map")

    there = lab(X, policy="broken"), replace(lab(full(Y), policy="first_come"), name="other")
    found = assign([waits("a", at=0.0)], *there, policies={"broken": Broken()})
    words = "site 'lab': its policy failed: ValueError: no map; site 'other' has no room"
    assert told(found.waits) == {"a": f"waits: {words}"}
