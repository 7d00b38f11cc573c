"""What a location is given beyond what it can run at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing import backlog

MACHINE = Resources(cpus=4, memory=8192)
NOTHING = Resources()


def location(
    running: Resources = NOTHING,
    prefetched: tuple[Resources, ...] = (),
    name: str = "here",
    capacity: Resources = MACHINE,
    instance_type: str | None = None,
) -> Location:
    empty = Location(name, capacity, running, instance_type=instance_type)
    return empty.given([PlannedJob(f"prefetched {number}", asked) for number, asked in enumerate(prefetched)])


def job(name: str, asked: Resources, instance_type: str | None = None) -> PlannedJob:
    return PlannedJob(name, asked, instance_type=instance_type)


def jobs(count: int, **asked: float) -> list[PlannedJob]:
    return [job(f"job{index}", Resources(**asked)) for index in range(count)]  # type: ignore[arg-type]


def fill(jobs: list[PlannedJob], locations: list[Location]) -> dict[str, str]:
    return backlog.fill(jobs, locations, now=0.0)


def test_an_empty_machine_is_given_its_capacity_twice() -> None:
    assert list(fill(jobs(20, cpus=1, memory=100), [location()])) == [f"job{index}" for index in range(8)]


def test_a_full_machine_is_given_one_more_machine_full() -> None:
    assert len(fill(jobs(20, cpus=1, memory=100), [location(running=Resources(cpus=4, memory=400))])) == 4


def test_a_full_store_takes_nothing() -> None:
    prefetched = (Resources(cpus=4, memory=400),)
    assert fill(jobs(3, cpus=1), [location(running=Resources(cpus=4), prefetched=prefetched)]) == {}


def test_no_job_is_passed_over() -> None:
    waiting = [
        *jobs(1, cpus=3),
        job("large", Resources(cpus=4)),
        job("larger", Resources(cpus=4)),
        job("small", Resources(cpus=1)),
    ]
    assert list(fill(waiting, [location()])) == ["job0", "large"]


def test_an_empty_store_takes_even_a_job_as_large_as_the_machine() -> None:
    assert fill([job("whole", MACHINE)], [location(running=MACHINE)]) == {"whole": "here"}
    assert fill([job("whole", MACHINE)], [location(running=MACHINE + MACHINE)]) == {"whole": "here"}


def test_tiny_jobs_are_counted() -> None:
    assert len(fill(jobs(1000, cpus=0), [location()])) == 128


def test_several_locations_share() -> None:
    placed = fill(jobs(16, cpus=1), [location(name="a"), location(name="b")])
    assert sorted(placed.values()) == ["a"] * 8 + ["b"] * 8


def test_the_last_jobs_are_kept_for_where_there_is_room_first() -> None:
    def machine(name: str, begun: int, prefetched: int) -> Location:
        busy = replace(
            location(Resources(cpus=begun), name=name, capacity=Resources(cpus=begun)), jobs=begun, prefetchable=99
        )
        return busy.given(jobs(prefetched, cpus=1))

    def given_to(waiting: int, *machines: Location) -> Counter[str]:
        return Counter(fill(jobs(waiting, cpus=1), machines).values())

    empty = [machine(name, begun=1, prefetched=0) for name in "abcd"]
    assert given_to(99, *empty) == dict.fromkeys("abcd", 8), "the next ones may be long"
    assert given_to(99, *(replace(each, prefetchable=3) for each in empty)) == dict.fromkeys("abcd", 3)
    assert given_to(12, *empty) == dict.fromkeys("abcd", 2)
    assert given_to(7, *empty) == dict.fromkeys("abcd", 1), "what all of them could begin next waits"
    assert given_to(2, *empty) == {"a": 1, "b": 1}
    stocked = [machine(name, begun=1, prefetched=1) for name in "abcd"]
    assert given_to(3, *stocked) == {}
    assert given_to(4, *stocked) == {"a": 1}
    large, small = machine("large", begun=30, prefetched=0), machine("small", begun=2, prefetched=0)
    assert given_to(20, large, small) == {"large": 16, "small": 2}, "by what each of them runs"
    assert given_to(3, machine("alone", begun=1, prefetched=5)) == {"alone": 3}, "nowhere else there is room first"


@given(
    st.lists(st.builds(Resources, cpus=st.sampled_from([0.1, 0.5, 1, 4]), memory=st.integers(0, 8192)), max_size=40),
    st.lists(st.builds(Resources, cpus=st.sampled_from([0.1, 1, 2]), memory=st.integers(0, 4096)), max_size=4),
)
def test_the_given_jobs_are_the_first_ones_and_stay_within_two_machines(
    asked: list[Resources], prefetched: list[Resources]
) -> None:
    waiting = [job(str(index), resources) for index, resources in enumerate(asked)]
    placed = fill(waiting, [location(prefetched=tuple(prefetched))])
    assert list(placed) == [each.name for each in waiting[: len(placed)]]
    total = sum([asked[int(token)] for token in placed] + prefetched, NOTHING)
    assert not placed or total.fits(MACHINE + MACHINE) or (len(placed) == 1 and not prefetched)


def test_a_full_store_of_one_type_holds_up_no_other_type() -> None:
    full = location(MACHINE, (MACHINE,), "full", instance_type="m7i")
    empty = replace(location(MACHINE, name="empty", instance_type="c7i"), jobs=1, prefetchable=2)
    waiting = [*(job(f"m{number}", MACHINE, "m7i") for number in range(3)), job("c", MACHINE, "c7i")]
    more = [job("any", MACHINE), job("any2", MACHINE)]
    assert fill([*waiting, *more], [full, empty]) == {"c": "empty", "any": "empty"}
    anywhere = [job("any", MACHINE), job("any2", MACHINE), job("any3", MACHINE)]
    assert fill([*anywhere, job("c", NOTHING, "c7i")], [full, empty]) == {"any": "empty", "any2": "empty"}, (
        "but one that any type would do for is not passed over"
    )


def test_a_job_that_is_too_large_for_a_location_does_not_close_it() -> None:
    small = location(name="small", capacity=Resources(cpus=1, memory=8192))
    full = location(MACHINE, (MACHINE,), "full")
    assert fill([job("large", MACHINE), job("tiny", Resources(cpus=1))], [full, small]) == {"tiny": "small"}


shapes = st.tuples(st.sampled_from([0.1, 1, 4, 9]), st.sampled_from([None, "a", "b", "c"]))


@given(st.lists(shapes, max_size=60), st.lists(st.sampled_from(["a", "b"]), max_size=3))
def test_of_no_location_a_job_gets_what_one_before_it_waits_for(
    asked: list[tuple[float, str | None]], types: list[str]
) -> None:
    waiting = [job(str(index), Resources(cpus=cpus), wish) for index, (cpus, wish) in enumerate(asked)]
    locations = [location(name=f"{wish}{number}", instance_type=wish) for number, wish in enumerate(types)]
    placed = fill(waiting, locations)
    by_name = {each.name: each for each in locations}

    for index, each in enumerate(waiting):
        if each.name in placed:
            assert by_name[placed[each.name]].suits(each)
        else:  # it left no location that suits it to those behind it
            closed = {location.name for location in locations if location.suits(each)}
            assert not closed & {placed[later.name] for later in waiting[index + 1 :] if later.name in placed}
