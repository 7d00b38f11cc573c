"""Rules: what a job requests instead if no place has room for its full request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.rules import RULES, Rule, Soft, describe_changes, minimum, variants
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import NATIVE, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import Assignment, assign
from tests.reasons import clauses, told

NODE = Resources(cpus=16, memory=65536)
LESS = Rule("less", amounts=("cpus", "memory"))


def wants(name: str, least: float = 4, wish: float = 16, **others: Any) -> WaitingJob:
    soft = Soft({"cpus": least}, frozenset(others.pop("preferred", ()))).as_text()
    return WaitingJob(name=name, resources=Resources(wish, 1000), soft=soft, **others)


def site(name: str, *free: float, features: Sequence[str] = (), **options: Any) -> SiteView:
    """A site whose machines of 16 cpus have so many free."""
    there = [
        Location(f"{name}{number}", NODE, used=Resources(16 - each), features=frozenset(features))
        for number, each in enumerate(free)
    ]
    return SiteView(name=name, locations=there, possible=there, **options)


def place(job: WaitingJob, *sites: SiteView, rules: Sequence[Rule] = RULES) -> Assignment:
    return assign([job], sites, now=100.0, rules=rules)


def got(found: Assignment, job: WaitingJob) -> tuple[str | None, WaitingJob]:
    stop = found.stops.get(job.name)
    return (None, job) if stop is None else (stop.rule, stop.asked(job))


def test_an_unmodified_match_on_the_last_place_beats_a_modified_one_on_the_first() -> None:
    job = wants("a")
    found = place(job, site("first", 8), site("second", 8), site("last", 16))
    assert (found.placed, got(found, job)) == ({"a": ("last", "last0")}, (None, job))
    assert clauses(found.passed) == {"a": "site 'first' has no room; site 'second' has no room"}


def test_each_rule_is_tried_at_all_places_before_the_next_one() -> None:
    job = wants("a")
    found = place(job, site("first", 4), site("last", 8))
    assert found.placed == {"a": ("last", "last0")}, "8 of 16 at the last one before 4 of 16 at the first"
    assert got(found, job) == ("less", replace(job, resources=Resources(8, 1000)))
    found = place(job, site("first", 4), site("last", 7))
    assert (found.placed, got(found, job)[1].resources.cpus) == ({"a": ("first", "first0")}, 4)


def test_what_must_be_is_under_no_rule_less() -> None:
    job = wants("a", least=4)
    found = place(job, site("first", 3), site("last", 3))
    assert got(found, job)[1].resources.cpus == 4, "it is prefetched until there is room for that"
    assert told(place(wants("a", least=17, wish=32), site("only", 16)).refused["a"]).startswith("requests 17 cpus")
    gpus = replace(wants("a"), features=frozenset(["gpu"]))
    assert place(gpus, site("plain", 16), site("gpus", 4, features=["gpu"])).placed == {"a": ("gpus", "gpus0")}


def test_a_site_that_is_named_is_kept_and_asks_no_other() -> None:
    job = wants("a", site="first")
    found = place(job, site("first", 8, burst_after=600.0), site("last", 16))
    assert (found.placed, got(found, job)[0]) == ({"a": ("first", "first0")}, "less"), "it does not wait for another"
    typed = replace(wants("b"), instance_type="large")
    assert "hint instance_type" in told(place(typed, site("first", 16)).refused["b"])


def test_a_wish_that_nothing_can_ever_grant_is_no_reason_to_refuse() -> None:
    job = wants("a", wish=64)
    assert got(place(job, site("only", 16)), job)[1].resources.cpus == 16
    assert "no rule of the sites file allows that" in told(place(job, site("only", 16), rules=()).refused["a"])


def test_a_job_stays_where_something_is_launched_for_all_that_it_wishes() -> None:
    """What can be bought is a match as well: all of it there is better than less of it here."""
    kinds = {"large": InstanceType("large", NODE, (Offering(1.0),))}
    cloud = site("cloud", market=MachineMarket(Catalogue(kinds)), turned_away={"a": 60.0})
    cloud = replace(cloud, possible=[Location("large", NODE, instance_type="large")])
    found = place(wants("a"), site("first", 8), cloud)
    assert (found.placed, list(told(found.waits)), len(found.provisions["cloud"].launches)) == ({}, ["a"], 1)


def test_who_asks_for_spot_gets_a_machine_on_demand_only_by_a_rule_and_where_no_spot_is_to_be_had() -> None:
    job = WaitingJob(name="a", resources=Resources(4, 1000), capacity_type="spot")
    kinds = {"m": InstanceType("m", NODE, (Offering(0.4, capacity_type="spot"), Offering(1.0)))}
    possible = [Location("m", NODE, instance_type="m", capacity_type=each) for each in ("spot", "on-demand")]

    def cloud(kinds: Mapping[str, InstanceType]) -> SiteView:
        market = MachineMarket(Catalogue(kinds))
        return SiteView(name="cloud", possible=possible, market=market, turned_away={"a": 60.0})

    rule = Rule("on demand for spot", on_demand=True)
    bought = place(job, cloud(kinds), rules=[rule]).provisions["cloud"].launches
    assert [each.capacity_type for each in bought] == ["spot"]
    dear = cloud({"m": InstanceType("m", NODE, (Offering(1.0),))})
    assert place(job, dear, rules=()).provisions["cloud"].launches == ()
    bought = place(job, dear, rules=[rule]).provisions["cloud"].launches
    assert [each.capacity_type for each in bought] == ["on-demand"]


def test_a_v100_if_there_is_no_a100() -> None:
    """What is preferred may be missing, what is among the features may not."""
    job = wants("a", 4, 4, preferred=["a100"], features=frozenset(["gpu", "a100"]))
    sites = site("old", 16, features=["gpu", "v100"]), site("new", 4, features=["gpu", "a100"])
    assert place(job, *sites).placed == {"a": ("new", "new0")}
    busy = sites[0], site("new", 3, features=["gpu", "a100"])
    found = place(job, *busy)
    assert found.placed == {"a": ("old", "old0")}
    assert describe_changes(job, found.stops["a"].relaxed) == "without a100"
    assert place(job, *busy, rules=[LESS]).placed == {"a": ("new", "new0")}, "without such a rule it waits there"


def test_a_longer_queue_for_the_one_that_is_named() -> None:
    queue = Location("hpc", NODE, hints=frozenset([NATIVE]), max_jobs=1)
    names = {"queue": "short", "hints": frozenset([NATIVE])}
    job = WaitingJob(name="a", resources=Resources(1, 100), **names)  # type: ignore[arg-type]
    rule = Rule("a longer queue", queues={"short": "long"})
    assert variants(job, [rule]) == [(None, ()), ("a longer queue", (("queue", "long"),))]
    full = SiteView(name="hpc", locations=[replace(queue, jobs=1)], possible=[queue])
    assert told(place(job, full, rules=[rule]).waits).keys() == {"a"}
    assert variants(WaitingJob(name="b", resources=Resources(1, 100)), [rule]) == [(None, ())]


def test_filters_choose_the_places_and_rules_stay_outside() -> None:
    targets = as_text(["first", "second", "last"], ["turned"])
    job = replace(wants("a"), targets=targets)
    sites = [site("first", 8), site("second", 16), site("last", 8)]
    turned = {"turned": lambda job, targets: list(reversed(targets))[:2]}
    found = assign([job], sites, now=100.0, filters=turned)
    assert (found.placed, clauses(found.passed)) == ({"a": ("second", "second0")}, {"a": "site 'last' has no room"})
    sites[1] = site("second", 8)
    found = assign([job], sites, now=100.0, filters=turned)
    assert (found.placed, got(found, job)[0]) == ({"a": ("last", "last0")}, "less")


AMOUNTS = st.tuples(st.integers(1, 200), st.integers(1, 200)).map(sorted)


@given(AMOUNTS, AMOUNTS)
def test_amounts_go_down_in_few_steps_to_the_least_that_will_do(cpus: list[int], memory: list[int]) -> None:
    soft = Soft({"cpus": cpus[0], "memory": memory[0]}).as_text()
    job = WaitingJob(name="a", resources=Resources(cpus[1], memory[1]), memory_limit=memory[1], soft=soft)
    found = [replace(job, **dict(changes)) for _, changes in variants(job, [LESS])]
    assert (found[0], found[-1].resources) == (job, minimum(job).resources)
    assert len(found) <= 4 + 1
    for before, after in pairwise(found):
        assert after.resources.fits(before.resources)
        assert after.resources != before.resources
        assert after.memory_limit == after.resources.memory, "it is ended above what it has got"


def test_less_than_one_is_halved_as_well() -> None:
    job = WaitingJob(name="a", resources=Resources(1.0, 5), soft=Soft({"cpus": 0.25}).as_text())
    assert [dict(changes)["resources"].cpus for _, changes in variants(job, [LESS])[1:]] == [0.5, 0.25]


def half(job: PlannedJob) -> Sequence[Mapping[str, object]]:
    return [{"cpus": job.resources.cpus / 2}]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([{"cpus": 3}], "relaxes 'cpus' to 3; valid: amounts within the requested range"),
        ([{"cpus": 17}], "relaxes 'cpus' to 17"),
        ([{"memory": 1}], "relaxes 'memory' to 1"),
        ([{"site": "cloud"}], "relaxes 'site' to 'cloud'"),
        ([{"instance_type": "large"}], "relaxes 'instance_type'"),
        ([{"features": frozenset()}], "relaxes 'features'"),
        ([{"capacity_type": "on-demand"}], "relaxes 'capacity_type'"),
        (["cpus"], "returned 'cpus'; valid: mappings"),
        (None, "failed: TypeError"),
    ],
)
def test_a_plugins_rule_relaxes_wishes_alone_and_what_it_gets_wrong_costs_its_jobs(answer: Any, words: str) -> None:
    job = replace(wants("a"), features=frozenset(["gpu"]))
    there = site("only", 8, features=["gpu"])
    assert words in told(place(job, there, rules=[Rule("odd", relax=lambda job: answer)]).refused["a"])
    found = place(job, there, rules=[Rule("half", relax=half)])
    assert got(found, job) == ("half", replace(job, resources=Resources(8, 1000)))
    plain = replace(wants("b"), soft=None, features=frozenset())
    fine = assign([job, plain], [there], now=1.0, rules=[Rule("odd", relax=lambda job: [] if job.name == "b" else 5)])  # type: ignore[return-value,arg-type]
    assert list(told(fine.refused)) == ["a"]
