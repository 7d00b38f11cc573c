"""What room is asked for ahead of what no plan provides for, and what of that comes free by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, RoomRequest
from lading.scheduling.forecast.forecast import RoomWait
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.prediction import Prediction
from lading.scheduling.provisioning import asked_ahead as asked_ahead_module
from lading.scheduling.provisioning.asked_ahead import asked_ahead
from lading.scheduling.provisioning.inheritance import Inheritance, Spot
from lading.scheduling.resources import Resources

NOW = 1000.0
WAIT = 200.0
MACHINE = Location("m", Resources(4, 4096), Resources(4, 1000), ends_at=NOW + 500.0)


def job(name: str, cpus: float, time: float | None = 60.0) -> PlannedJob:
    return PlannedJob(name, Resources(cpus, 100), time=time)


def running(name: str, seconds: float, cpus: float = 4, **known: Any) -> ComingTask:
    there = ComingJob(name, Prediction(seconds), "hpc", job(name, cpus), begun=NOW, location="m")
    return ComingTask([replace(there, **known)])


def coming(name: str, *after: str, size: int = 0, cpus: float = 4, **known: Any) -> ComingTask:
    """A task that takes 60 s and for which room is asked for."""
    spread = known.pop("spread", 0.0)
    jobs = [
        ComingJob(each, Prediction(60.0, spread), index=index, room_wait=RoomWait(WAIT))
        for index, each in ([(number, f"{name}{number}") for number in range(size)] if size else [(-1, name)])
    ]
    request = RoomRequest("hpc", job("a task", cpus))
    return ComingTask(jobs, after, **{"request": request, **known})


def asked(
    now: float = NOW,
    asked_at: Mapping[str, float] = {},
    sites: Sequence[SiteView] = (),
    most: int | None = None,
    **tasks: ComingTask,
) -> dict[str, float]:
    found = asked_ahead(ComingRun("r", NOW, tasks, most_at_once=most), sites, asked_at, now)
    return {each.name: each.start - NOW for each in found}


def test_it_is_asked_for_at_its_start_less_the_wait() -> None:
    tasks = {"a": running("a", 600.0), "b": coming("b", "a")}
    assert asked(NOW + 399, **tasks) == {}
    assert asked(NOW + 400, **tasks) == {"b": 600.0}
    assert asked(NOW + 550, **tasks) == {"b": 750.0}, "it is late, and starts when there is room"
    assert asked(NOW + 550, {"b": NOW + 410}, **tasks) == {"b": 610.0}, "it was asked for in time"


def test_what_was_asked_for_is_asked_for_until_it_has_come_however_late_the_others_end() -> None:
    tasks = {"a": running("a", 6000.0), "b": coming("b", "a")}
    assert asked(NOW, **tasks) == {}
    assert asked(NOW, {"b": NOW - 100}, **tasks) == {"b": 6000.0}


def test_a_chain_is_asked_for_link_by_link_and_uses_what_is_asked_for() -> None:
    chain = {"a": running("a", 100.0), "b": coming("b", "a"), "c": coming("c", "b", cpus=2), "d": coming("d", "c")}
    assert asked(**chain) == {"b": 200.0}, "c goes where b was, and d is larger than c, but not than b"
    larger = {**chain, "d": coming("d", "b", cpus=5)}
    assert asked(NOW + 60, {"b": NOW}, **larger) == {"b": 200.0, "d": 260.0}


def test_behind_what_takes_an_unknown_time_nothing_is_asked_for() -> None:
    first = running("a", 100.0, expected=Prediction(100.0, 1.2))
    assert asked(a=first, b=coming("b", "a")) == {}
    assert asked(a=running("a", 100.0), b=coming("b", "a", spread=1.2), c=coming("c", "b")) == {"b": 200.0}


def test_a_gang_is_asked_for_when_all_of_it_may_begin() -> None:
    tasks = {
        "a": running("a", 100.0),
        "b": running("b", 300.0),
        "head": coming("head", "a", gang="g"),
        "half": coming("half", "b", size=2, gang="g"),
        "behind": coming("behind", "head", cpus=8),
    }
    assert asked(NOW + 99, **tasks) == {}
    assert asked(NOW + 100, **tasks) == {"head": 300.0, "half0": 300.0, "half1": 300.0}
    assert asked(NOW + 160, dict.fromkeys(("head", "half0", "half1"), NOW + 100), **tasks)["behind"] == 360.0


def test_of_so_many_at_once_the_first_are_asked_for() -> None:
    found = asked(a=running("a", 100.0), b=coming("b", "a", size=5, cpus=8, most=2))
    assert found == {"b0": 200.0, "b1": 200.0}


def test_no_more_is_asked_for_than_its_run_may_have_at_work_at_a_time() -> None:
    tasks = {"a": running("a", 250.0), "b": coming("b", size=5, cpus=8), "c": coming("c", "a", size=2, cpus=8)}
    assert len(asked(**tasks)) == 5
    assert asked(most=3, **tasks) == {"b0": 200.0, "b1": 200.0}, "a is at work until they have begun"
    found = asked(NOW + 50, dict.fromkeys(("b0", "b1"), NOW), most=3, **tasks)
    assert found.keys() == {"b0", "b1", "b2"}, "a ends when what b2 needs is there"
    assert asked(NOW + 1, {"b4": NOW}, most=2, **tasks) == {"b4": 200.0}, "what is asked for already goes first"


def test_what_waits_for_a_retry_is_not_asked_for_nor_what_comes_after_it() -> None:
    b = coming("b", "a", size=2, cpus=8)
    b = replace(b, jobs=[replace(each, retries=each.index == 0) for each in b.jobs])
    group = {"a": running("a", 100.0), "b": b, "c": coming("c", "b", size=2, cpus=16, by_index=frozenset("b"))}
    long_ago = dict.fromkeys(("b0", "b1", "c0", "c1"), NOW - WAIT)
    assert asked(NOW, long_ago, **group) == {"b1": 100.0, "c1": 160.0}
    gang = {"a": running("a", 100.0), "b": replace(b, gang="g"), "d": coming("d", gang="g"), "e": coming("e", "d")}
    assert asked(NOW, {**long_ago, "d": NOW - WAIT, "e": NOW - WAIT}, **gang) == {}, "the others begin with it"


def test_many_jobs_take_no_more_looks_at_the_room_of_each_other_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand jobs of a task may follow ten thousand others."""
    looks = 0

    def left(spot: Spot, before: Collection[str], known: Any = Spot.left) -> Resources:
        nonlocal looks
        looks += 1
        return known(spot, before)

    monkeypatch.setattr(Spot, "left", left)
    number = 100
    long_ago = {f"{task}{index}": NOW - WAIT for task in "bcde" for index in range(number)}
    behind = {"c": coming("c", "b", size=number), "e": coming("e", "d", size=number, by_index=frozenset("d"))}
    tasks = {"a": running("a", 100.0), **{name: coming(name, "a", size=number) for name in "bd"}, **behind}
    assert asked(NOW, long_ago, **tasks).keys() == {f"{task}{index}" for task in "bd" for index in range(number)}
    assert looks <= 10 * number


def test_of_many_jobs_those_are_looked_at_first_for_which_is_asked_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_ahead_module, "MOST_JOBS", 3)
    tasks = {"a": running("a", 100.0), "b": coming("b", "a", size=3, cpus=8), "c": coming("c", size=2, cpus=8)}
    assert asked(NOW + 50, **tasks).keys() == {"b0", "b1", "b2"}
    assert asked(NOW + 50, {"c0": NOW, "c1": NOW}, **tasks).keys() == {"c0", "c1", "b0"}


def test_in_a_mapped_group_each_is_asked_for_when_its_own_may_begin() -> None:
    a = ComingTask(
        [ComingJob(f"a{i}", Prediction(100.0 * (1 + 9 * i)), index=i, begun=NOW, token=f"a{i}") for i in range(2)]
    )
    assert asked(a=a, b=coming("b", "a", size=2, by_index=frozenset("a"))) == {"b0": 200.0}


def test_what_has_come_or_waits_for_nothing_is_not_asked_for() -> None:
    a = running("a", 100.0)
    waiting = ComingTask([ComingJob("b", Prediction(60.0), token="t")], ("a",), request=RoomRequest("hpc", job("b", 4)))
    at_once = coming("b", "a")
    at_once = replace(at_once, jobs=[replace(each, room_wait=None) for each in at_once.jobs])
    assert asked(a=a, b=waiting) == asked(a=a, b=at_once) == asked(a=a, b=coming("b", "a", request=None)) == {}


def test_what_comes_free_at_its_machine_is_not_asked_for() -> None:
    there = SiteView(name="hpc", launched=[MACHINE], locations=[MACHINE])
    tasks = {"a": running("a", 100.0, cpus=3), "b": coming("b", "a", size=2, cpus=2), "c": coming("c", "b", cpus=2)}
    assert asked(sites=[there], **tasks) == {"b1": 200.0}, "one of them has room where a was, and so has c then"


def room(location: Location = MACHINE) -> Inheritance:
    at_work = [("a", ("hpc", "m"), Resources(3, 800)), ("other", ("hpc", "m"), Resources(1, 200))]
    return Inheritance({("hpc", "m"): location}, at_work)


def names(jobs: list[PlannedJob]) -> list[str]:
    return [each.name for each in jobs]


def test_what_those_before_it_leave_is_not_asked_for() -> None:
    here = room()
    assert names(here.missing({"a"}, "hpc", [job("b1", 2), job("b2", 2)], NOW + 60)) == ["b2"]
    assert names(here.missing({"a"}, "hpc", [job("c", 2)], NOW + 60)) == ["c"], "b1 is there then"
    assert names(here.missing({"a", "b1"}, "hpc", [job("d", 2)], NOW + 120)) == [], "b1 has ended then"


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
    assert names(room(location).missing({"a"}, site, [asked], NOW + start)) == ["b"]


def test_what_is_asked_for_is_used_by_those_that_follow() -> None:
    here = Inheritance({}, [])
    assert names(here.missing((), "hpc", [job("b", 2)], NOW)) == ["b"]
    here.asked("hpc", [job("b", 2)])
    assert names(here.missing((), "hpc", [job("beside", 2)], NOW)) == ["beside"]
    assert names(here.missing({"b"}, "hpc", [job("c", 2)], NOW)) == []
