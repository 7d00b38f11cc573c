"""When what later partitions need is asked for."""

from __future__ import annotations

from graphlib import CycleError

import pytest

from lading.scheduling.gangs.ahead_times import Expected, before, start_times
from lading.scheduling.gangs.inheritance import Inheritance
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.resources import Resources

NOW = 1000.0


def starts(*partitions: Expected, latency: float = 0.0) -> dict[str, float]:
    return {name: each.start for name, each in start_times(partitions, NOW, latency).items()}


def test_a_start_is_the_latest_end_before_it() -> None:
    found = starts(
        Expected("join", 10.0, frozenset(("left", "right"))),
        Expected("left", 60.0),
        Expected("right", 90.0),
        Expected("end", None, frozenset(("join", "ended long ago"))),
        latency=2.0,
    )
    assert found == {"left": 1002.0, "right": 1002.0, "join": 1092.0, "end": 1102.0}


def test_what_has_begun_ends_by_its_clock_or_at_any_moment() -> None:
    chain = [Expected("a", 60.0, begun_at=970.0), Expected("b", 5.0, frozenset("a"))]
    assert starts(*chain, latency=2.0) == {"a": 970.0, "b": 1030.0}
    late = [Expected("a", 60.0, begun_at=100.0), Expected("b", 5.0, frozenset("a"))]
    assert starts(*late, latency=2.0) == {"a": 100.0, "b": 1002.0}


@pytest.mark.parametrize(
    ("first", "start"),
    [
        (Expected("a", 60.0, wait=300.0, asked_at=1500.0), 1800.0),
        (Expected("a", 60.0, wait=300.0, asked_at=900.0), 1200.0),
        (Expected("a", 60.0, wait=300.0), 1302.0),
        (Expected("a", 60.0, wait=300.0, may_ask=True), 1300.0),
    ],
    ids=["it sleeps", "it is in a queue", "it will come to a queue", "room is asked for now"],
)
def test_a_start_that_has_moved_is_what_later_ones_reckon_with(first: Expected, start: float) -> None:
    found = starts(first, Expected("b", 60.0, frozenset("a")), Expected("c", 60.0, frozenset("b")), latency=2.0)
    assert found == {"a": start, "b": start + 60.0, "c": start + 120.0}


def test_behind_what_takes_an_unknown_time_nothing_is_asked_for() -> None:
    chain = [Expected("a", None), Expected("b", 60.0, frozenset("a")), Expected("c", 60.0, frozenset("b"))]
    assert starts(*chain) == {"a": NOW}
    assert starts(Expected("a", 0.0), Expected("b", 1.0, frozenset("a"))) == {"a": NOW, "b": NOW}


def test_it_is_asked_for_at_its_start_less_the_predicted_wait() -> None:
    later = Expected("b", 60.0, frozenset("a"), wait=200.0, may_ask=True)
    assert start_times([Expected("a", 600.0, begun_at=NOW), later], NOW, 1.0)["b"] == (1600.0, 1400.0)
    [_, asked] = start_times([Expected("a", 100.0, begun_at=NOW), later], NOW, 1.0).values()
    assert asked == (1200.0, 900.0), "it is late, and starts when there is room"


def test_partitions_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(CycleError):
        starts(Expected("a", 1.0, frozenset("b")), Expected("b", 1.0, frozenset("a")))


def test_all_that_comes_before() -> None:
    chain = {"a": Expected("a", 1.0), "b": Expected("b", 1.0, frozenset("a")), "c": Expected("c", 1.0, frozenset("b"))}
    assert before("c", chain) == {"a", "b"}
    assert before("b", {"b": chain["b"]}) == frozenset()


MACHINE = Location("m", Resources(4, 4096), Resources(4, 1000), ends_at=NOW + 500.0)


def job(name: str, cpus: float, time: float | None = 60.0) -> PlannedJob:
    return PlannedJob(name, Resources(cpus, 100), time=time)


def room(location: Location = MACHINE) -> Inheritance:
    at_work = [("a", ("hpc", "m"), Resources(3, 800)), ("other", ("hpc", "m"), Resources(1, 200))]
    return Inheritance({("hpc", "m"): location}, at_work)


def names(jobs: list[PlannedJob]) -> list[str]:
    return [each.name for each in jobs]


def test_what_those_before_it_leave_is_not_asked_for() -> None:
    here = room()
    assert names(here.missing("b", {"a"}, "hpc", [job("b1", 2), job("b2", 2)], NOW + 60)) == ["b2"]
    assert names(here.missing("c", {"a"}, "hpc", [job("c", 2)], NOW + 60)) == ["c"], "b is there then"
    assert names(here.missing("d", {"a", "b"}, "hpc", [job("d", 2)], NOW + 120)) == [], "b has ended then"


@pytest.mark.parametrize(
    ("site", "asked", "start", "location"),
    [
        ("hpc", job("b", 5), 60.0, MACHINE),
        ("lab", job("b", 1), 60.0, MACHINE),
        ("hpc", job("b", 1, 600.0), 60.0, MACHINE),
        ("hpc", job("b", 1), 60.0, Location("m", Resources(4, 4096), Resources(4, 1000), draining=True)),
    ],
    ids=["too large", "another site", "it ends before", "it takes no more"],
)
def test_what_it_cannot_use_does_not_count(site: str, asked: PlannedJob, start: float, location: Location) -> None:
    assert names(room(location).missing("b", {"a"}, site, [asked], NOW + start)) == ["b"]


def test_what_is_asked_for_is_used_by_those_that_follow() -> None:
    here = Inheritance({}, [])
    assert names(here.missing("b", (), "hpc", [job("b", 2)], NOW)) == ["b"]
    here.asked("b", "hpc", [job("b", 2)])
    assert names(here.missing("beside", (), "hpc", [job("beside", 2)], NOW)) == ["beside"]
    assert names(here.missing("c", {"b"}, "hpc", [job("c", 2)], NOW)) == []
