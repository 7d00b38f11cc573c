"""Which allocations are asked for, how large they are, and where jobs go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.scheduling.plan import Job, Location
from lading.scheduling.provisioning import SECONDS_TO_BEGIN, Node, misplaced, needed, place, shaped
from lading.scheduling.resources import Resources

KIND = "k"
NODE = Node(Resources(8, 15616, 800, 4.0), overhead=384, seconds=14000, unlimited=7000, most=4)


def jobs(
    count: int, cpus: float = 1, memory: int = 1000, time: float = 7000, kind: str = KIND, at: int = 0
) -> list[Job]:
    return [
        Job(f"{kind}{at + number}", Resources(cpus, memory), queued_at=at + number, time=time, instance_type=kind)
        for number in range(count)
    ]


def live(
    name: str = "a", cpus: float = 8, left: float = 14000.0, stored: tuple[Job, ...] = (), **options: object
) -> Location:
    empty = Location(name, Resources(cpus, 15616), instance_type=KIND, ends_at=left, **options)  # type: ignore[arg-type]
    return empty.given(stored)


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
    ],
)
def test_an_allocation_is_the_smallest_part_of_a_node_that_holds_its_jobs(
    packed: Resources, cpus: float, memory: int
) -> None:
    found = shaped(packed, NODE)
    assert (found.cpus, found.memory, found.gpus) == (cpus, memory, 0.0)


def test_gpus_are_asked_for_only_when_they_are_used() -> None:
    assert shaped(Resources(1, 100, 0, 0.5), NODE).gpus == 1.0
    assert shaped(Resources(8, 100, 0, 3.0), NODE).gpus == 4.0


def test_nodes_that_cannot_be_parted() -> None:
    assert shaped(Resources(1, 1), replace(NODE, whole=True)) == NODE.capacity
    assert shaped(Resources(0.5, 1), replace(NODE, capacity=Resources(1, 1000))).cpus == 1
    assert shaped(Resources(1, 1), replace(NODE, capacity=Resources(6, 15616))).cpus == 2, (
        "of three cpus two are a half"
    )


def test_as_many_are_asked_for_as_the_work_needs_at_once() -> None:
    assert [each.capacity.cpus for each in needed(jobs(19), [], NODE).launches] == [8, 8, 4]
    assert [each.capacity.cpus for each in needed(jobs(100), [], NODE).launches] == [8, 8, 8, 8], "max_allocations"
    [launch] = needed(jobs(3), [], NODE).launches
    assert set(launch.jobs) == {"k0", "k1", "k2"}


def test_those_that_are_there_are_counted_and_used_first() -> None:
    free, full = live("a"), live("b", used=Resources(8, 8000))
    assert needed(jobs(8), [free, full], NODE).launches == ()
    assert len(needed(jobs(9), [free, full], NODE).launches) == 1
    assert len(needed(jobs(100), [free, full], NODE).launches) == 2
    pending = live("c", booting=True)
    assert needed(jobs(16), [free, full, pending], NODE).launches == ()
    assert len(needed(jobs(1), [free, pending], NODE).spare) == 1
    assert needed([], [pending], NODE).spare == {"c"}


def test_what_is_in_store_counts_as_work() -> None:
    assert len(needed([], [live(used=Resources(8, 8000), stored=tuple(jobs(8)))], NODE).launches) == 1


def test_a_long_job_gets_an_allocation_of_its_length() -> None:
    [launch] = needed(jobs(1, time=20000), [live()], NODE).launches
    assert launch.seconds == 20000 + SECONDS_TO_BEGIN
    [launch] = needed(jobs(1, time=100), [], NODE).launches
    assert launch.seconds == NODE.seconds


def test_a_job_goes_where_enough_time_is_left() -> None:
    ends, stays = live("a", left=100.0), live("b", left=9000.0)
    assert set(place(jobs(8), [ends, stays]).values()) == {"b"}
    assert place(jobs(1, time=50), [ends, stays]) == {"k0": "a"}, "the one that ends first"
    assert place(jobs(1, time=10000), [ends, stays]) == {}
    assert len(needed(jobs(1), [ends], NODE).launches) == 1


def test_jobs_go_to_where_there_is_room_then_into_store() -> None:
    placed = place(jobs(100), [live("a"), live("b")])
    assert [list(placed.values()).count(name) for name in "ab"] == [16, 16]
    assert set(placed) == {f"k{number}" for number in range(32)}, "who came first"
    assert len(place(jobs(100), [live("a", ahead=50)])) == 50
    assert place(jobs(8), [live("a", booting=True), live("b", draining=True)]) == {}


def test_kinds_share_no_allocation() -> None:
    both = [*jobs(1), *jobs(1, kind="other")]
    assert len(needed(both, [], NODE).launches) == 2
    assert place(both, [live()]) == {"k0": "a"}


def test_what_another_allocation_can_run_now_is_misplaced() -> None:
    stored = tuple(jobs(2))
    full = live("a", used=Resources(8, 8000), stored=stored)
    names = frozenset(job.name for job in stored)
    assert set(misplaced([full, live("b")], names)) == names
    assert misplaced([full, live("b")], frozenset()) == [], "it may begin at any moment"
    assert misplaced([full, live("b", used=Resources(8, 8000))], names) == []
    assert set(misplaced([replace(full, ends_at=10.0)], frozenset())) == names, "it has too little time left"
    assert set(misplaced([replace(full, draining=True)], frozenset())) == names


def test_a_small_one_makes_way_for_a_large_one() -> None:
    only = replace(NODE, most=1)
    small = live("a", cpus=1)
    assert needed(jobs(1, cpus=4), [small], only).drain == "a", "it can never run the job"
    assert needed(jobs(20), [replace(small, used=Resources(1, 1000))], only).drain == "a"
    assert needed(jobs(20), [live("a", used=Resources(8, 8000))], only).drain is None
    assert needed(jobs(1), [replace(small, used=Resources(1, 1000))], only).drain is None, "no larger one is needed"
    assert needed(jobs(1), [live("a", left=10.0)], only).drain == "a", "it has too little time left"
    assert needed(jobs(20), [replace(small, draining=True)], only).drain is None


def test_none_makes_way_before_it_has_begun_its_work() -> None:
    only = replace(NODE, most=1)
    [common], [odd] = jobs(1), jobs(1, kind="other", at=1)
    for asked_for in (live(booting=True), live(stored=(common,))):
        waiting = [odd] if asked_for.stored else [common, odd]
        assert needed(waiting, [asked_for], only).drain is None
        assert needed([*waiting, *jobs(1, time=20000, at=2)], [asked_for], only).drain is None
    assert needed([odd], [live(used=common.resources)], only).drain == "a"
    assert needed([odd], [live()], only).drain == "a", "nothing waits that could use it"
    two = [live("a", stored=(common,)), live("b", used=common.resources)]
    assert needed([odd], two, replace(NODE, most=2)).drain == "a", "the other one has room for its job"


@pytest.mark.parametrize("odd", [jobs(1, kind="other", at=9), jobs(1, time=20000, at=9), jobs(1, memory=9000, at=9)])
def test_allocations_are_launched_and_make_way_in_turn(odd: list[Job]) -> None:
    only = replace(NODE, most=1)
    half = replace(live(cpus=4, used=Resources(4, 4000)), capacity=Resources(4, 7616))
    later = jobs(100, cpus=2, at=10)
    [launch] = needed([*later, *odd], [], only).launches
    assert odd[0].name in launch.jobs
    assert needed([*later, *odd], [half], only).drain == "a"


def test_who_came_first_or_is_urgent_is_launched_for_first() -> None:
    only, busy = replace(NODE, most=1), live(used=Resources(8, 8000))
    earlier, odd = jobs(9, cpus=2), jobs(1, kind="other", at=9)
    [launch] = needed([*earlier, *odd], [], only).launches
    assert odd[0].name not in launch.jobs
    assert needed([*earlier, *odd], [busy], only).drain is None, "one of the same kind would follow"
    odd = [replace(odd[0], priority=1)]
    assert needed([*earlier, *odd], [busy], only).drain == "a"


def test_what_is_too_large_for_a_node_is_told() -> None:
    assert "too large" in needed(jobs(1, cpus=9), [], NODE).refused["k0"]
