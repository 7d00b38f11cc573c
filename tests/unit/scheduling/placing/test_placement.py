"""Which job goes to which location of which site."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.executors.controller.sites_file import possible
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.market import Market, kind, need
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import LAYOUT, NATIVE, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing import placement
from lading.scheduling.placing.assignment import Assignment
from tests.reasons import clauses, told, trouble

NOW = 1000.0
MACHINE = Location("node1", Resources(cpus=4, memory=8192))
DOWN = "site 'local' could not be queried: a hiccup"


def waits(token: str, cpus: float = 1, site: str | None = None, at: float = NOW) -> WaitingJob:
    return WaitingJob(name=token, resources=Resources(cpus=cpus, memory=100), queued_at=at, site=site)


def view(name: str, *locations: Location, **options: object) -> SiteView:
    return SiteView(**{"name": name, "locations": locations, "possible": locations, **options})  # type: ignore[arg-type]


def full(machine: Location = MACHINE) -> Location:
    """A machine that has all that it can run, and as much prefetched."""
    return replace(machine, used=machine.capacity).given([PlannedJob("x", machine.capacity)])


def assign(jobs: list[WaitingJob], *sites: SiteView) -> Assignment:
    return placement.assign(jobs, sites, now=NOW)


def sites_of(found: Assignment) -> dict[str, str]:
    return {token: site for token, (site, _) in found.placed.items()}


def test_a_job_is_placed_at_the_first_site_unless_it_names_another() -> None:
    found = assign([waits("a"), waits("b", site="lab")], view("local", MACHINE), view("lab", MACHINE))
    assert found.placed == {"a": ("local", "node1"), "b": ("lab", "node1")}
    assert found == Assignment(placed=found.placed)


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.sampled_from([0.0, 10.0, 500.0]), st.integers(0, 5)), min_size=1, max_size=12
    ),
    st.booleans(),
)
def test_what_begins_first_has_priority_then_the_longest_rest_then_arrived_first(
    waiting: list[tuple[int, float, int]], is_queue: bool
) -> None:
    jobs = [
        WaitingJob(name=f"{number:02}", resources=Resources(1, 100), priority=priority, rest=rest, queued_at=NOW - at)
        for number, (priority, rest, at) in enumerate(waiting)
    ]
    jobs.sort(key=lambda job: job.rank)
    place = replace(MACHINE, max_jobs=4) if is_queue else MACHINE
    found = placement.assign(jobs, [view("site", place)], now=NOW)
    assert list(found.placed)[:4] == [job.name for job in jobs[:4]]
    assert [job.rank for job in jobs] == sorted(
        (-job.priority, 0.0, -job.rest, job.queued_at, job.name) for job in jobs
    )


def test_an_allocation_is_for_the_longest_rest_first() -> None:
    market = Market(Resources(4, 8192), overhead=0, seconds=7200.0, unlimited=3600.0, most=1, whole=True)
    short, long = waits("short", 4, at=NOW - 60), replace(waits("long", 4, at=NOW - 50), rest=500.0)
    for jobs, first in (([long, short], "long"), ([replace(long, rest=0.0), short], "short")):
        site = SiteView(name="hpc", possible=[Location("node", Resources(4, 8192))], market=market, launches=True)
        [provision] = placement.assign(jobs, [site], now=NOW).provisions.values()
        assert [launch.jobs for launch in provision.launches] == [(first,)]


def test_a_job_without_a_site_goes_to_the_first_that_can_run_it() -> None:
    small = view("local", Location("node0", Resources(cpus=1, memory=8192)))
    found = assign([waits("a", cpus=2)], small, view("lab", MACHINE))
    assert (found.placed, clauses(found.passed)) == ({"a": ("lab", "node1")}, {})


def test_what_finds_no_room_goes_to_the_next_site_and_says_so() -> None:
    """Each site gets what it can run at once, then the first ones what is prefetched to them."""
    jobs = [waits(f"job{number:02}") for number in range(12)]
    found = assign(jobs, view("local", MACHINE), view("lab", MACHINE))
    assert list(sites_of(found).values()) == ["local"] * 4 + ["lab"] * 4 + ["local"] * 4
    assert clauses(found.passed) == dict.fromkeys(
        [f"job{number:02}" for number in range(4, 8)], "site 'local' has no room"
    )


def test_no_job_lies_behind_others_while_another_site_is_idle() -> None:
    busy = replace(MACHINE, used=MACHINE.capacity)
    assert sites_of(assign([waits("a")], view("local", busy), view("lab", MACHINE))) == {"a": "lab"}
    waiting = view("local", busy, burst_after=60.0)
    assert sites_of(assign([waits("a")], waiting, view("lab", MACHINE))) == {"a": "local"}


def test_a_job_waits_at_the_first_site_until_burst_after_is_over() -> None:
    """It counts from when it found no room there, whenever it was queued."""
    first = view("local", full(), burst_after=60.0, turned_away={"old": 60.0, "told": 59.0})
    jobs = [waits("old", at=0.0), waits("told", at=0.0), waits("young")]
    found = assign(jobs, first, view("lab", MACHINE))
    assert sites_of(found) == {"old": "lab"}
    assert told(found.waits) == {
        "young": None,
        "told": "waits: site 'local' has no room; after 1 min it can move to site 'lab' (burst_after)",
    }
    assert found.turned_away == {"local": ["told", "young"]}


def test_burst_after_counts_for_each_site_on_its_own() -> None:
    middle = view("middle", full(), burst_after=60.0)
    found = assign([waits("a", at=0.0)], view("local", full()), middle, view("lab", MACHINE))
    assert told(found.waits["a"]) == (
        "waits: site 'local' has no room; site 'middle' has no room; after 1 min it can move to site 'lab' "
        "(burst_after)"
    )
    assert found.turned_away == {"local": ["a"], "middle": ["a"]}


def test_a_job_that_names_a_site_never_goes_to_another_and_says_so() -> None:
    found = assign([waits("a", site="local", at=0.0)], view("local", full()), view("lab", MACHINE))
    assert told(found.waits) == {"a": "waits: site 'local' has no room; its hint site allows no other site"}
    assert assign([waits("a", site="local", at=0.0)], view("local", full())).waits == {"a": None}, "there is no other"


def test_a_job_waits_for_room_anywhere_and_says_where() -> None:
    found = assign([waits("a", at=0.0)], view("local", full()), view("lab", full()))
    assert told(found.waits) == {"a": "waits: site 'local' has no room; site 'lab' has no room"}
    assert assign([waits("a", at=0.0)], view("local", full())).waits == {"a": None}, "for its turn"


def test_a_job_that_is_held_back_for_others_goes_nowhere_else() -> None:
    """Of the shape of ``a`` more wait than were looked at; ``b`` and ``c`` come behind all of them, at any site."""
    queue = Location("queue", MACHINE.capacity, max_jobs=9)
    jobs = [replace(waits("a"), hidden=1), *(replace(waits(name), may_overtake=True) for name in "bc")]
    found = assign(jobs, view("local", queue), view("lab", MACHINE))
    assert (sites_of(found), told(found.waits)) == ({"a": "local"}, {"b": None, "c": None})
    only_lab = replace(jobs[1], site="lab")
    assert sites_of(assign([jobs[0], only_lab], view("local", queue), view("lab", MACHINE))) == {"a": "local"}
    elsewhere = view("lab", MACHINE, accept_untargeted=False)
    assert sites_of(assign([jobs[0], only_lab], view("local", queue), elsewhere)) == {"a": "local", "b": "lab"}


def test_those_that_come_from_another_site_are_placed_in_turn_with_those_that_name_it() -> None:
    jobs = [waits(f"job{number:02}", site=None if number % 2 else "lab") for number in range(24)]
    found = assign(jobs, view("local", full()), view("lab", MACHINE))
    assert list(found.placed) == [f"job{number:02}" for number in range(8)]


def test_a_site_that_has_no_location_yet_blocks_no_other() -> None:
    """What it could have counts: a job that only it could hold waits, the others go on."""
    large = Location("large", Resources(cpus=64, memory=8192))
    cloud = view("cloud", possible=(large,), trouble=trouble("site 'cloud' accepts no jobs now: it has no locations"))
    found = assign([waits("huge", cpus=65), waits("large", cpus=9), waits("a")], cloud, view("lab", MACHINE))
    assert sites_of(found) == {"a": "lab"}
    assert told(found.waits["large"]) == "waits: site 'cloud' accepts no jobs now: it has no locations"
    assert list(told(found.refused)) == ["huge"]
    assert "'large' of site 'cloud', has 64 cpus" in told(found.refused["huge"])


def test_a_job_that_fits_nowhere_waits_where_it_is_not_known_what_there_is() -> None:
    lab = SiteView(name="lab", trouble=trouble("site 'lab' could not be queried: down"))
    found = assign([waits("a", cpus=64)], view("local", MACHINE), lab)
    assert told(found.waits) == {"a": "waits: site 'lab' could not be queried: down"}


def test_a_job_larger_than_what_is_up_waits_when_the_site_could_hold_it() -> None:
    larger = Location("node9", Resources(cpus=64, memory=8192))
    found = assign([waits("a", cpus=9, site="lab", at=0.0)], view("lab", MACHINE, possible=(MACHINE, larger)))
    assert told(found.waits) == {"a": "waits: no running machine of site 'lab' is large enough for it"}


def typed(token: str, instance_type: str, cpus: float = 1) -> WaitingJob:
    return replace(waits(token, cpus), instance_type=instance_type)


TYPED = (replace(MACHINE, instance_type="m7i.xlarge"), replace(MACHINE, name="node2", instance_type="c7i.xlarge"))


def test_an_instance_type_is_the_only_one_that_the_job_uses() -> None:
    """Also when its machines have all that they can run at once and prefetched, and the other type has room."""
    tokens = [f"job{number:02}" for number in range(12)]
    found = assign([typed(token, "c7i.xlarge") for token in tokens], view("lab", *TYPED))
    assert found.placed == dict.fromkeys(tokens[:8], ("lab", "node2"))


def test_a_job_with_an_instance_type_goes_to_the_site_that_has_it() -> None:
    assert sites_of(assign([typed("a", "m7i.xlarge")], view("local", MACHINE), view("lab", *TYPED))) == {"a": "lab"}


def test_an_instance_type_that_no_machine_has_fails_the_job() -> None:
    words = "hint instance_type: 'c5.large' is not available, valid: c7i.xlarge, m7i.xlarge"
    assert told(assign([typed("a", "c5.large")], view("lab", *TYPED)).refused) == {"a": words}
    refused = told(assign([typed("a", "c5.large")], view("local", MACHINE)).refused["a"])
    assert refused.endswith("because no machine has been given an instance_type")


def test_a_job_that_is_too_large_for_its_instance_type_fails() -> None:
    large = replace(MACHINE, name="node3", capacity=Resources(cpus=64, memory=8192))
    refused = told(assign([typed("a", "c7i.xlarge", cpus=9)], view("lab", *TYPED, large)).refused["a"])
    assert "'node2' of site 'lab'" in refused


def test_an_unknown_site_fails_the_job_and_names_the_sites() -> None:
    found = assign([waits("a", site="hpc")], view("local", MACHINE))
    assert told(found.refused) == {"a": "there is no site 'hpc'; the sites are: local"}


def test_a_job_that_never_fits_fails_with_what_is_lacking_and_delays_no_other() -> None:
    found = assign([waits("huge", cpus=64), waits("a")], view("local", MACHINE))
    assert sites_of(found) == {"a": "local"}
    assert "64 cpus" in told(found.refused["huge"])
    assert told(found.refused["huge"]).endswith("not enough cpus")


@pytest.mark.parametrize("possible", [(), (MACHINE,)])
def test_a_site_in_trouble_is_waited_for_until_its_time_is_over(possible: tuple[Location, ...]) -> None:
    local = SiteView(name="local", possible=possible, trouble=trouble(DOWN), burst_after=300.0, in_trouble=299.0)
    jobs = [waits("a"), waits("b", site="local")]
    found = assign(jobs, local, view("lab", MACHINE))
    assert told(found.waits) == {
        "a": f"waits: {DOWN}; after 5 min it can move to site 'lab' (burst_after)",
        "b": f"waits: {DOWN}",
    }
    late = assign(jobs, replace(local, in_trouble=300.0), view("lab", MACHINE))
    assert (sites_of(late), list(told(late.waits))) == ({"a": "lab"}, ["b"]), "a job that names it waits for it"


def test_a_site_that_has_not_answered_yet_is_given_time_for_that() -> None:
    new = SiteView(name="local", trouble=trouble(DOWN), is_new=True, in_trouble=1.0)
    assert told(assign([waits("a")], new, view("lab", MACHINE)).waits) == {"a": f"waits: {DOWN}"}


def test_where_all_that_can_run_a_job_are_in_trouble_it_waits_for_all() -> None:
    lab = view("lab", possible=(MACHINE,), trouble=trouble("site 'lab' accepts no jobs now: broken"))
    found = assign([waits("a")], view("local", possible=(MACHINE,), trouble=trouble(DOWN)), lab)
    assert told(found.waits) == {"a": f"waits: {DOWN}; site 'lab' accepts no jobs now: broken"}


def test_a_job_without_a_site_goes_to_those_alone_that_take_it() -> None:
    local = view("local", MACHINE, accept_untargeted=False)
    hpc = view("hpc", replace(MACHINE, capacity=Resources(64, 9999)))
    assert sites_of(assign([waits("a"), waits("b", site="local")], local, hpc)) == {"a": "hpc", "b": "local"}
    refused = told(
        assign([waits("a", cpus=9)], view("local", MACHINE), replace(hpc, accept_untargeted=False)).refused["a"]
    )
    assert refused.endswith("tasks that name no site can only run at local: name one of hpc with the hint site")
    assert told(assign([waits("a")], local, replace(hpc, accept_untargeted=False)).refused) == {
        "a": "it names no site; no site accepts tasks that name no site: name one of local, hpc with the hint site"
    }


QUEUE = Location("hpc", Resources(cpus=8, memory=8192), max_jobs=3, jobs=1)


def test_a_queue_takes_its_number_of_jobs_however_large_in_sum() -> None:
    found = assign([waits(name, cpus=8) for name in "abc"], view("hpc", QUEUE))
    assert list(found.placed) == ["a", "b"]
    assert told(found.waits) == {"c": "waits: site 'hpc' already has 3 jobs (max_jobs)"}
    assert list(told(assign([waits("a", cpus=9)], view("hpc", QUEUE)).refused)) == ["a"], "it must fit a node"


def test_of_several_queues_those_count_that_could_take_the_job() -> None:
    short = replace(QUEUE, name="short", jobs=0)
    full_one = Location("gpu", Resources(cpus=8, memory=8192, gpus=1), max_jobs=2, jobs=2)
    gpu = replace(waits("a"), resources=Resources(cpus=1, memory=100, gpus=1))
    assert told(assign([gpu], view("hpc", short, full_one)).waits) == {
        "a": "waits: site 'hpc' already has 2 jobs (max_jobs)"
    }
    ends = replace(QUEUE, ends_at=NOW + 60)
    [long, short_one] = [replace(waits(name), time=time) for name, time in (("long", 61), ("short", 60))]
    assert list(assign([long, short_one], view("hpc", ends)).placed) == ["short"]


def test_only_a_batch_site_takes_a_job_with_hints_for_a_batch_system() -> None:
    local, hpc = view("local", MACHINE), view("hpc", replace(QUEUE, hints=frozenset([NATIVE])))
    native = replace(waits("a"), hints=frozenset([NATIVE]))
    assert sites_of(assign([native], local, hpc)) == {"a": "hpc"}
    found = assign([native, replace(native, name="b", site="local")], local)
    assert set(told(found.refused)) == {"a", "b"}
    assert "require a batch system, which 'local' is not" in told(found.refused["a"])


def test_only_a_site_of_batch_jobs_takes_a_job_with_nodes() -> None:
    packed = view("packed", replace(QUEUE, hints=frozenset([NATIVE])))
    hpc = view("hpc", replace(QUEUE, jobs=0, hints=frozenset([NATIVE, LAYOUT])))
    wide = [replace(waits(name, cpus=8), hints=frozenset([LAYOUT])) for name in "abcd"]
    found = assign(wide, view("local", MACHINE), packed, hpc)
    assert sites_of(found) == dict.fromkeys("abc", "hpc"), "each counts as one of max_jobs"
    refused = told(assign(wide[:1], view("local", MACHINE), packed).refused["a"])
    assert "nodes, ppn and threads require a batch site with mode = 'job'" in refused
    assert list(told(assign([replace(wide[0], site="packed")], packed, hpc).refused)) == ["a"]


def test_a_location_of_short_jobs_has_many_prefetched() -> None:
    jobs = [waits(f"job{number:02}", cpus=4) for number in range(20)]
    busy = replace(MACHINE, used=Resources(2, 200))
    assert [
        len(assign(jobs, view("lab", replace(busy, prefetchable=prefetchable))).placed) for prefetchable in (0, 2, 3)
    ] == [1, 2, 3]


def test_what_was_not_looked_at_is_not_overtaken() -> None:
    """Of the shape of ``a`` more wait than were looked at, and ``b`` would come behind all of them."""
    two = (replace(MACHINE, instance_type="m"), replace(MACHINE, name="node2", instance_type="c"))
    first = replace(waits("a"), priority=2, hidden=1, instance_type="m")
    jobs = [first, replace(waits("b"), may_overtake=True), replace(waits("c"), may_overtake=True, instance_type="c")]

    def placed(*jobs: WaitingJob) -> list[str]:
        return list(assign(list(jobs), view("lab", *two)).placed)

    large = Location("node3", Resources(cpus=4, memory=9000))
    assert placed(*jobs[::2]) == ["a", "c"], "on a location that is not for the others"
    assert placed(replace(first, instance_type=None), *jobs[1:]) == ["a"]
    assert placed(replace(first, hidden=0), *jobs[1:]) == ["a", "b", "c"]
    hidden = replace(first, resources=Resources(cpus=4, memory=9000), instance_type=None)
    found = assign([hidden, *jobs[1:]], view("lab", *two, possible=(*two, large)))
    assert list(found.placed) == ["b", "c"]


def test_a_site_takes_only_the_dags_that_its_table_names() -> None:
    hpc, lab = view("hpc", MACHINE, admission=Admission(("etl_*",))), view("lab", MACHINE)
    named = [
        ("a", "etl_x", None),
        ("b", "other", None),
        ("c", "other", "hpc"),
        ("d", "etl_x", "hpc"),
        ("e", None, None),
    ]
    jobs = [replace(waits(token, site=site), dag_id=dag, dag_of_shape=dag) for token, dag, site in named]
    found = assign(jobs, hpc, lab)
    assert sites_of(found) == {"a": "hpc", "d": "hpc", "e": "hpc", "b": "lab"}
    assert told(found.refused["c"]).startswith("Dag 'other' is not allowed there: site 'hpc' has allowed_dags = [")


# -- sites that launch what they need

KIND = kind(None, {})
GPU = kind("gpu", {})
MARKET = Market(MACHINE.capacity, overhead=0, seconds=7200.0, unlimited=3600.0, most=2)


def up(name: str, *running: Resources, left: float = 7200.0, **options: object) -> Location:
    used = sum(running, Resources())
    return Location(name, MACHINE.capacity, used, KIND, ends_at=NOW + left, **options)  # type: ignore[arg-type]


def busy(name: str) -> Location:
    return up(name, MACHINE.capacity)


def laden(name: str) -> Location:
    """An allocation that has all that it can run, and as much prefetched."""
    return busy(name).given([need(waits("x", cpus=4, at=0.0), MARKET)])


def elastic(*launched: Location, most: int = 2, held: str | None = None, **options: object) -> SiteView:
    locations = [each for each in launched if not (each.booting or each.draining)]
    market = replace(MARKET, most=most, held=None if held is None else trouble(held))
    waited = {"b": 60.0, **{f"a{number:04}": 60.0 for number in range(1000)}}
    there = {"locations": locations, "possible": [MACHINE], "launched": launched, "market": market}
    there["turned_away"] = waited  # but for those that are young
    return view("hpc", **{**there, **options})


def old(count: int, cpus: float = 1, prefix: str = "a") -> list[WaitingJob]:
    return [waits(f"{prefix}{number:04}", cpus, at=float(number) / 100) for number in range(count)]


def test_a_job_is_awaited_where_something_is_launched_for_it() -> None:
    """It may go to the next site at once, which has room; but it would leave an empty allocation behind."""
    [job] = old(1)
    found = assign([job], elastic(), view("lab", MACHINE))
    assert [each.jobs for each in found.provisions["hpc"].launches] == [(job.name,)]
    assert (found.placed, told(found.waits)) == ({}, {job.name: None})
    young = assign([waits("young")], elastic(), view("lab", MACHINE))
    assert (young.placed, told(young.waits)) == ({}, {"young": None})
    assert young.provisions["hpc"].launches == (), "not as long as more may come"


def test_a_job_that_is_awaited_says_what_that_waits_for() -> None:
    words = "allocation L1 waits in the queue of the batch system"
    site = elastic(up("L1", booting=True), booting={KIND: trouble(words)})
    found = assign([*old(1), waits("young"), replace(waits("b", at=0.0), queue="gpu")], site, view("lab", MACHINE))
    assert told(found.waits) == {"a0000": f"waits: {words}", "young": None, "b": None}, (
        "the other one is of another kind"
    )
    assert [each.kind for each in found.provisions["hpc"].launches] == [GPU]
    full_one = elastic(up("L1", booting=True), booting={KIND: trouble(words)}, most=1)
    assert told(assign(old(1), full_one, view("lab", MACHINE)).waits) == {"a0000": f"waits: {words}"}, (
        "it has its place"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"most": 1}, "site 'hpc': 1 of 1 allocations are busy (max_allocations)"),
        ({"held": "the batch system takes no more jobs now"}, "site 'hpc': the batch system takes no more jobs now"),
    ],
)
def test_where_nothing_can_be_launched_a_job_may_go_to_the_next_site(options: dict[str, object], words: str) -> None:
    site = elastic(laden("L1"), burst_after=60.0, turned_away={"a0000": 60.0}, **options)  # type: ignore[arg-type]
    found = assign(old(2), site, view("lab", MACHINE))
    assert (found.placed, clauses(found.passed)) == ({"a0000": ("lab", "node1")}, {"a0000": words})
    assert told(found.waits) == {"a0001": f"waits: {words}; after 1 min it can move to site 'lab' (burst_after)"}
    assert found.provisions["hpc"].launches == ()
    both = assign(old(1), site, view("lab", full()))
    assert told(both.waits) == {"a0000": f"waits: {words}; site 'lab' has no room"}


def test_of_many_jobs_those_go_on_for_which_nothing_more_can_be_launched() -> None:
    found = assign(old(12), elastic(), view("lab", MACHINE))
    assert len(found.provisions["hpc"].launches) == 2
    assert sites_of(found) == {f"a{number:04}": "lab" for number in range(8, 12)}
    assert set(told(found.waits)) == {f"a{number:04}" for number in range(8)}


def test_what_can_run_at_once_goes_to_what_is_up() -> None:
    found = assign(old(4), elastic(up("L1"), up("L2", booting=True)), view("lab", MACHINE))
    assert found.placed == {f"a{number:04}": ("hpc", "L1") for number in range(4)}
    assert (found.provisions["hpc"].launches, found.provisions["hpc"].spare) == ((), {"L2"})
    ends = elastic(up("L1", left=100.0), up("L2", left=9000.0))
    [job] = old(1)
    assert assign([job], ends).placed == {"a0000": ("hpc", "L2")}, "where enough time is left"
    assert assign([replace(job, time=50)], ends).placed == {"a0000": ("hpc", "L1")}, "the one that ends first"
    assert assign([replace(job, time=10000)], ends).placed == {}


def test_what_is_up_is_given_a_store_while_more_is_launched() -> None:
    found = assign(old(8), elastic(busy("L1"), most=3))
    assert found.placed == {f"a{number:04}": ("hpc", "L1") for number in range(4)}, "the one that came first"
    assert len(found.provisions["hpc"].launches) == 2, "as if those that are prefetched had no place"
    assert set(told(found.waits)) == {f"a{number:04}" for number in range(4, 8)}
    two = assign(old(100), elastic(up("L1"), up("L2"), up("L3", draining=True)))
    assert [list(two.placed.values()).count(("hpc", name)) for name in ("L1", "L2", "L3")] == [8, 8, 0]
    assert set(two.placed) == {f"a{number:04}" for number in range(16)}, "the one that came first"
    short = assign(old(100), elastic(replace(up("L1"), prefetchable=20)))
    assert len(short.placed) == 20


def test_kinds_share_no_allocation() -> None:
    found = assign([*old(1), replace(waits("b", at=0.0), queue="gpu")], elastic(up("L1")))
    assert found.placed == {"a0000": ("hpc", "L1")}
    assert [(each.kind, each.jobs) for each in found.provisions["hpc"].launches] == [(GPU, ("b",))]


def test_a_job_with_native_directives_is_launched_for() -> None:
    [job] = [replace(each, queue="gpu", hints=frozenset([NATIVE])) for each in old(1)]
    site = elastic(possible=[replace(MACHINE, hints=frozenset([NATIVE]))])
    assert [each.kind for each in assign([job], site).provisions["hpc"].launches] == [GPU]


def test_nothing_is_launched_or_let_go_where_there_is_trouble() -> None:
    booting = up("L1", booting=True, idle_since=0.0)
    found = assign(old(1), elastic(booting, trouble=trouble(DOWN), burst_after=61.0), view("lab", MACHINE))
    assert (found.placed, found.provisions) == ({}, {})
    assert told(found.waits) == {"a0000": f"waits: {DOWN}; after 1 min 1 s it can move to site 'lab' (burst_after)"}


def test_a_thousand_jobs_of_one_shape_hide_no_other() -> None:
    """Also not those that were not looked at; they are launched for, too."""
    many = old(1000)
    many[-1] = replace(many[-1], hidden=9000)
    other = replace(waits("b", at=11.0), queue="gpu", may_overtake=True)
    found = assign([*many, other], elastic(most=4000))
    kinds = [each.kind for each in found.provisions["hpc"].launches]
    assert (kinds.count(KIND), kinds.count(GPU)) == (2500, 1)
    assert (found.placed, set(told(found.waits).values())) == ({}, {None})


def test_what_a_site_can_never_launch_goes_on_or_is_reported_so() -> None:
    """What the site could have is unknown, so this is not certain, and the job does not fail."""
    large = old(1, cpus=5)
    site = elastic(possible=())
    lab = view("lab", replace(MACHINE, capacity=Resources(cpus=64, memory=8192)))
    assert sites_of(assign(large, site, lab)) == {"a0000": "lab"}
    [words] = told(assign(large, site).waits).values()
    assert words is not None
    assert words.startswith("waits: site 'hpc': it is too large for every machine")


def test_a_job_for_which_something_is_launched_goes_into_no_other_store() -> None:
    """The next site can have it prefetched now; but it would leave an empty allocation behind."""
    lab = view("lab", replace(MACHINE, used=MACHINE.capacity, jobs=4))
    jobs = old(8)
    found = assign(jobs, lab, elastic(most=4))
    assert sum(len(each.jobs) for each in found.provisions["hpc"].launches) == 8
    assert found.placed == {}


def test_what_makes_way_is_given_nothing_more() -> None:
    small = replace(up("L1", Resources(cpus=1)), capacity=Resources(cpus=1, memory=1000))
    found = assign([waits("wide", cpus=4, at=0.0), *old(3)], elastic(small, most=1))
    assert list(found.provisions["hpc"].releases) == ["L1"]
    assert found.placed == {}


def of_group(token: str, most: int | None = None, of_run: int | None = None, task: str = "align") -> WaitingJob:
    """A job of a task whose machines are limited, of a run that may have a limit as well."""
    names = {"task": None if most is None else f"d r {task}", "run": None if of_run is None else "d r"}
    return replace(waits(token, at=0.0), max_instances=most, run_max_instances=of_run, **names)


def hosts(count: int, first: int = 1) -> list[Location]:
    return [replace(MACHINE, name=f"node{number}") for number in range(first, first + count)]


WORDS = "waits: jobs of task 'align' can use at most 2 machines at once, and these have no room left (max_instances)"


def test_max_instances_counts_machines_and_fills_those_that_are_used() -> None:
    jobs = [of_group(f"a{number:02}", 2) for number in range(9)]
    jobs = [replace(job, resources=Resources(cpus=2, memory=1)) for job in jobs]
    found = assign(jobs, view("lab", *hosts(5)))
    at = Counter(location for _, location in found.placed.values())
    assert sorted(at.values()) == [4, 4], "what two machines can run at once, and have prefetched"
    assert list(told(found.waits).values()) == [WORDS]


def test_jobs_at_work_count_wherever_they_are() -> None:
    at_work = [(of_group("old1", 2), "lab", "node1"), (of_group("old2", 2), "other", "host7")]
    used = MACHINE.given([at_work[0][0]])
    sites = [view("lab", used, *hosts(3, 2)), view("other", Location("host7", Resources(cpus=1, memory=1)))]
    found = placement.assign([of_group(f"a{number}", 2) for number in range(3)], sites, at_work, now=NOW)
    assert set(found.placed.values()) == {("lab", "node1")}, "host7 is as small as it is unreachable"


def test_what_is_full_at_one_site_goes_to_its_machines_at_the_next_at_once() -> None:
    first = view("local", *hosts(2), burst_after=600.0)
    at_work = [(of_group("old", 1), "lab", "host1")]
    second = view("lab", replace(MACHINE, name="host1").given([at_work[0][0]]))
    found = placement.assign([of_group("a", 1)], [first, second], at_work, now=NOW)
    assert found.placed == {"a": ("lab", "host1")}


def test_a_limit_of_the_run_is_for_all_its_tasks() -> None:
    jobs = [replace(of_group(f"{task}{number}", None, 1, task), resources=Resources(cpus=2, memory=1))
            for number in range(2) for task in ("align", "sort")]  # fmt: skip
    found = assign([*jobs, of_group("other", 1, task="merge")], view("lab", *hosts(3)))
    placed = {location for token, (_, location) in found.placed.items() if token != "other"}
    assert len(placed) == 1
    late = replace(jobs[0], name="late", resources=MACHINE.capacity)
    found = assign([*jobs, late, replace(late, name="later")], view("lab", *hosts(3)))
    assert told(found.waits["later"]) == (
        "waits: jobs of this run can use at most 1 machine at once, and these have no room left "
        "(max_instances of the Dag)"
    )


def test_a_group_that_may_use_no_further_machine_delays_no_other() -> None:
    busy = replace(MACHINE, used=MACHINE.capacity)
    at_work = [(of_group("old", 1), "lab", "node1")]
    there = [full(busy).with_labels([at_work[0][0]]), *hosts(1, 2)]
    jobs = [of_group("a", 1), waits("b", at=0.0)]
    found = placement.assign(jobs, [view("lab", *there)], at_work, now=NOW)
    assert found.placed == {"b": ("lab", "node2")}
    assert told(found.waits["a"]) is not None
    assert told(found.waits["a"]).endswith("(max_instances)")


def test_each_batch_job_is_a_machine_or_as_many_as_it_has_nodes() -> None:
    queue = Location("hpc", MACHINE.capacity, hints=frozenset([LAYOUT]), max_jobs=100)
    jobs = [of_group(f"a{number}", 3) for number in range(5)]
    assert list(assign(jobs, view("hpc", queue)).placed) == ["a0", "a1", "a2"]
    wide = [replace(job, nodes=2, hints=frozenset([LAYOUT])) for job in jobs]
    assert list(assign([*wide, jobs[4]], view("hpc", queue)).placed) == ["a0", "a4"]
    at_work = [(wide[0], "hpc", "hpc"), (jobs[1], "hpc", "hpc")]
    found = placement.assign(jobs[2:], [view("hpc", queue)], at_work, now=NOW)
    assert (found.placed, set(told(found.waits).values())) == ({}, {WORDS.replace("2 machines", "3 machines")})


def test_no_more_is_launched_than_a_group_may_use() -> None:
    market = Market(MACHINE.capacity, 0, 3600.0, 60.0, 9, whole=True)
    jobs = [of_group(f"a{number:02}", 2) for number in range(40)]
    elastic = replace(view("hpc", market=market), possible=[MACHINE])
    found = assign(jobs, elastic)
    assert len(found.provisions["hpc"].launches) == 2
    assert len(assign([waits(f"b{n:02}", at=0.0) for n in range(40)], elastic).provisions["hpc"].launches) == 9


def test_a_job_without_arch_goes_to_the_default_of_its_site() -> None:
    arm = replace(MACHINE, name="arm", arch="aarch64")
    intel = replace(MACHINE, name="intel", arch="x86_64", features=frozenset(["avx512"]))
    mixed = view("lab", arm, intel, arch="x86_64")
    jobs = [waits("plain"), replace(waits("on_arm"), arch="aarch64"), replace(waits("avx"), features=intel.features)]
    assert {name: location for name, (_, location) in assign(jobs, mixed).placed.items()} == {
        "plain": "intel", "on_arm": "arm", "avx": "intel",
    }  # fmt: skip
    assert told(assign(jobs[:1], view("lab", arm, arch="x86_64")).refused) == {
        "plain": "no machine has arch x86_64 (that of tasks without the hint arch); available: aarch64 linux "
        "on-demand at site 'lab'"
    }
    full = replace(intel, used=intel.capacity)
    anywhere = replace(waits("anywhere"), arch="any")
    assert assign([anywhere], view("lab", arm, full, arch="x86_64")).placed == {"anywhere": ("lab", "arm")}
    assert assign(jobs[:1], view("pi", arm)).placed == {"plain": ("pi", "arm")}, "its default is what all of it are"


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"arch": "ppc64le"}, "hint arch: 'ppc64le' is not available, valid: x86_64"),
        ({"os": "windows"}, "hint os: 'windows' is not available, valid: linux"),
        ({"capacity_type": "spot"}, "hint capacity_type: 'spot' is not available, valid: on-demand"),
        ({"features": frozenset(["tpu"])}, "hint features: 'tpu' is not available, valid: avx512"),
        (
            {"features": frozenset(["license=other"])},
            "hint properties: 'license=other' is not available, valid: license=matlab",
        ),
    ],
)
def test_nothing_is_launched_that_is_not_what_a_job_asks_for(wish: dict[str, Any], words: str) -> None:
    node = replace(MACHINE, arch="x86_64", features=frozenset(["avx512", "license=matlab"]))
    market = Market(MACHINE.capacity, 0, 3600.0, 60.0, 9, whole=True)
    found = assign([replace(waits("a", at=0.0), **wish)], view("hpc", market=market, possible=[node]))
    assert (told(found.refused), found.provisions["hpc"].launches) == ({"a": words}, ())


def test_the_closest_machine_is_the_one_that_lacks_the_smallest_share() -> None:
    small, large = replace(MACHINE, name="small"), replace(MACHINE, name="large", capacity=Resources(64, 4096))
    assert "'large' of site 'lab', has 64 cpus" in told(
        assign([waits("a", 100)], view("lab", small, large)).refused["a"]
    )


def test_a_job_larger_than_what_its_stacked_location_lies_in_is_refused() -> None:
    host, box = Location("host", Resources(4, 4000)), Location("box", Resources(8, 8000), wraps="host", stacked=True)
    site = SiteView(name="lab", locations=[box, host], possible=possible([box, host], []), accept_untargeted=True)
    jobs = [WaitingJob(name=name, resources=Resources(cpus, 100)) for name, cpus in (("small", 4), ("large", 6))]
    found = placement.assign(jobs, [site], now=0.0)
    assert (list(found.refused), list(found.placed)) == (["large"], ["small"])
