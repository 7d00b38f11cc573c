"""The pass: which places are tried and which rooms are given back, in which order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from lading.scheduling.gangs.gang import (
    Alone,
    Choices,
    Effect,
    Event,
    Fail,
    Freed,
    Gang,
    Gathered,
    Lost,
    NoRoomFound,
    Partition,
    RoomAttempt,
    RoomFound,
    Sleep,
    Stage,
    Start,
    step,
)
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.model.reasons import because
from tests.services.outside_clocks import OFFSETS

MINUTE = 60.0
A, B, C = (Partition(name) for name in "ABC")
EXACTLY = ("",)
FULL = because("site_full", site="lab")


class GivenBack(NamedTuple):
    """Room that the gang had, or that was sought for it, and that is not its own any more."""

    room: RoomAttempt


def stepped(
    gang: Gang, events: Sequence[Event], now: float, choices: Callable[[str], Choices]
) -> tuple[Gang, list[Effect | GivenBack]]:
    """A step: the gang after it, what it gives back that no site has refused or lost, and the effects."""
    refused = {each.partition for each in events if isinstance(each, (NoRoomFound, Lost))}
    had = [each for each in (*gang.held, gang.trying) if each is not None and each.partition not in refused]
    gang, effects = step(gang, events, now, choices)
    return gang, [*(GivenBack(each) for each in had if each not in (*gang.held, gang.trying)), *effects]


def run(
    gang: Gang, choices: Mapping[str, Choices], good: Collection[tuple[str, str, str]], now: float = 0.0
) -> tuple[Gang, list[Effect | GivenBack]]:
    """A whole pass, where what is good is held at once and all else refused."""
    done: list[Effect | GivenBack] = []
    gang, effects = stepped(gang, [Gathered()], now, choices.__getitem__)
    while effects:
        done += effects
        last = effects[-1]
        if not isinstance(last, RoomAttempt):
            break
        answer = RoomFound(last.partition) if tuple(last) in good else NoRoomFound(last.partition, FULL)
        gang, effects = stepped(gang, [answer], now, choices.__getitem__)
    return gang, done


def words(effects: Sequence[Effect | GivenBack]) -> list[str]:
    """Effects as the table has them."""
    found = []
    for each in effects:
        if isinstance(each, RoomAttempt):
            found.append(f"try {each.partition} {each.rule or '-'} {each.match}")
        elif isinstance(each, GivenBack):
            found.append(f"cancel {each.room.partition} {each.room.match}")
        else:
            found.append(f"{type(each).__name__.lower()} {' '.join(each.partitions)}")
    return found


TWO = Choices(["x", "y"], ["", "less"])
ONE = Choices(["x"])
NONE = Choices([])


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("choices", "good", "expected"),
    [
        # The first match of the first partition, then of the next.
        ((ONE, ONE), {("A", "", "x"), ("B", "", "x")}, ["try A - x", "try B - x", "start A B"]),
        # An unmodified match anywhere comes before a modified one in the better place.
        (
            (TWO, ONE),
            {("A", "", "y"), ("A", "less", "x"), ("B", "", "x")},
            ["try A - x", "try A - y", "try B - x", "start A B"],
        ),
        (
            (TWO, ONE),
            {("A", "less", "y"), ("B", "", "x")},
            ["try A - x", "try A - y", "try A less x", "try A less y", "try B - x", "start A B"],
        ),
        # No match at all: all that is held is given back, whether partial scheduling is allowed or not.
        ((ONE, NONE), {("A", "", "x")}, ["try A - x", "cancel A x", "sleep A B"]),
        ((NONE, ONE), {("B", "", "x")}, ["sleep A B"]),
    ],
)
def test_the_listing(
    choices: tuple[Choices, Choices], good: set[tuple[str, str, str]], expected: list[str], partial: bool
) -> None:
    _, done = run(Gang((A, B), partial), dict(zip("AB", choices, strict=True)), good)
    assert words(done) == expected


@pytest.mark.parametrize(
    ("partial", "choices_of_b", "expected"),
    [
        (False, TWO, ["cancel A x", "sleep A B C"]),
        (True, TWO, ["start A", "sleep B", "alone C"]),
        (False, NONE, ["cancel A x", "sleep A B C"]),
        (True, NONE, ["cancel A x", "sleep A B C"]),
    ],
)
def test_the_pass_ends_at_the_first_failure(partial: bool, choices_of_b: Choices, expected: list[str]) -> None:
    choices = {"A": ONE, "B": choices_of_b, "C": ONE}
    gang, done = run(Gang((A, B, C), partial), choices, {("A", "", "x"), ("C", "", "x")})
    tries = [f"try B {rule or '-'} {match}" for rule in choices_of_b.rules for match in choices_of_b.matches]
    assert words(done) == ["try A - x", *tries, *expected]
    assert gang.stage is (Stage.STARTED if expected[0] == "start A" else Stage.ATTEMPTED)
    assert [each.partition for each in gang.held] == (["A"] if expected[0] == "start A" else [])


def listing(
    partitions: str, choices: Mapping[str, Choices], good: Collection[tuple[str, str, str]], partial: bool
) -> list[str]:
    """The listing by which gangs were asked for, word by word: what is tried and what is given back, in order."""
    done: list[str] = []
    reserved: list[str] = []
    for partition in partitions:
        if not choices[partition].matches:
            return done + reserved
        for rule, match in itertools.product(choices[partition].rules, choices[partition].matches):
            done.append(f"try {partition} {rule or '-'} {match}")
            if (partition, rule, match) in good:
                reserved.append(f"cancel {partition} {match}")
                break
        else:
            return done if partial else done + reserved
    return done


def outcomes(partition: str) -> Iterator[tuple[Choices, tuple[str, str, str] | None]]:
    """What may come of a partition with up to two matches and two rules: which try is the first good one, if any."""
    for matches, rules in itertools.product(([], ["x"], ["x", "y"]), (["", "less"], [""])):
        tries = [(partition, rule, match) for rule, match in itertools.product(rules, matches)]
        for first in (None, *tries):
            yield Choices(matches, rules), first


@pytest.mark.parametrize("partial", [False, True])
def test_every_pass_of_three_partitions_is_that_of_the_listing(partial: bool) -> None:
    number = 0
    for found in itertools.product(*map(list, map(outcomes, "ABC"))):
        choices = {name: choices for name, (choices, _) in zip("ABC", found, strict=True)}
        good = {first for _, first in found if first is not None}
        _, done = run(Gang((A, B, C), partial), choices, good)
        tries_and_cancels = [each for each in words(done) if each.startswith(("try ", "cancel "))]
        assert tries_and_cancels == listing("ABC", choices, good, partial), found
        assert (words(done)[-1] == "start A B C") == (len(good) == len(found))
        number += 1
    assert number == 15**3


def test_only_roots_become_attempted() -> None:
    gang = Gang((A, Partition("B", frozenset("A")), Partition("C", frozenset("B"))))
    assert gang.roots == ("A",)
    _, done = run(gang, dict.fromkeys("ABC", ONE), {("A", "", "x")})
    assert done[-1] == Sleep(("A",), 900.0)


def test_attempts_at_0_15_30_60_and_120_minutes_and_then_it_fails() -> None:
    choices = {"A": ONE, "B": ONE}
    gang, done = run(Gang((A, B)), choices, {("A", "", "x")})
    begun, now = [0.0], 0.0
    while gang.stage is Stage.ATTEMPTED:
        assert gang.wake_at is not None
        assert step(gang, [], gang.wake_at - 1, choices.__getitem__) == (gang, [])  # it sleeps
        now = gang.wake_at
        gang, effects = step(gang, [], now, choices.__getitem__)
        assert effects == [RoomAttempt("A", "", "x")]
        begun.append(now / MINUTE)
        gang, effects = step(gang, [RoomFound("A")], now, choices.__getitem__)
        gang, done = stepped(gang, [NoRoomFound("B", FULL)], now, choices.__getitem__)
    assert begun == [0, 15, 30, 60, 120]
    assert done == [
        GivenBack(RoomAttempt("A", "", "x")),
        Fail(("A", "B"), because("gang_out_of_attempts", attempts=5).with_also(FULL)),
    ]
    assert gang.stage is Stage.FAILED


def test_it_is_woken_by_hand_and_by_nothing_else() -> None:
    gang, _ = run(Gang((A,)), {"A": ONE}, ())
    assert step(gang, [Gathered(), RoomFound("A"), NoRoomFound("A"), Lost("A")], 1.0, {"A": ONE}.__getitem__) == (
        gang,
        [],
    )
    woken, effects = step(replace(gang, wake_at=1.0), [], 1.0, {"A": ONE}.__getitem__)
    assert (woken.attempt, effects) == (2, [RoomAttempt("A", "", "x")])
    assert step(replace(woken, wake_at=2.0), [], 2.0, {"A": ONE}.__getitem__) == (replace(woken, wake_at=2.0), [])


def test_what_was_lost_is_tried_again_before_the_gang_starts() -> None:
    choices = {"A": TWO, "B": ONE}
    gang, _ = step(Gang((A, B)), [Gathered()], 0.0, choices.__getitem__)
    gang, effects = step(gang, [RoomFound("A")], 0.0, choices.__getitem__)
    assert effects == [RoomAttempt("B", "", "x")]
    gang, effects = step(gang, [Lost("A"), RoomFound("B")], 1.0, choices.__getitem__)
    assert effects == [RoomAttempt("A", "", "x")]
    gang, effects = step(gang, [RoomFound("A")], 1.0, choices.__getitem__)
    assert effects == [Start(("B", "A"))]


def test_a_site_that_does_not_answer_costs_the_time_of_an_attempt() -> None:
    choices = {"A": ONE, "B": TWO}
    gang, _ = step(Gang((A, B), attempts=AttemptSchedule(timeout=60)), [Gathered()], 0.0, choices.__getitem__)
    gang, _ = step(gang, [RoomFound("A")], 0.0, choices.__getitem__)
    assert step(gang, [], 59.0, choices.__getitem__) == (gang, [])
    gang, effects = stepped(gang, [], 60.0, choices.__getitem__)
    assert words(effects) == ["cancel A x", "cancel B x", "sleep A B"]


def test_those_that_a_partial_gang_leaves_are_tried_alone() -> None:
    _, done = run(Gang((A, B, C), partial=True), dict.fromkeys("ABC", ONE), {("C", "", "x")})
    assert done == [RoomAttempt("A", "", "x"), Sleep(("A",), 900.0), Alone(("B", "C"))]
    _, done = run(
        Gang((A, B), partial=True, attempts=AttemptSchedule(count=1)), dict.fromkeys("AB", ONE), {("A", "", "x")}
    )
    assert done[2:] == [Start(("A",)), Fail(("B",), because("gang_out_of_attempts", attempts=1).with_also(FULL))]


def asleep(gang: Gang, refuse: NoRoomFound | Lost, now: float = 0.0) -> Gang:
    """A gang whose first pass has failed."""
    gang, _ = step(gang, [Gathered()], now, {"A": ONE}.__getitem__)
    gang, _ = step(gang, [refuse], now, {"A": ONE}.__getitem__)
    assert gang.stage is Stage.ATTEMPTED
    return gang


@pytest.mark.parametrize("ahead", OFFSETS)
def test_it_sleeps_and_waits_no_longer_by_the_clock_of_another_controller(ahead: float) -> None:
    """The one before was on another machine, whose clock was ahead of this one's, or behind."""
    sleeping = asleep(Gang((A,)), NoRoomFound("A"), now=ahead)
    now = 0.0
    while sleeping.stage is Stage.ATTEMPTED and now <= 2 * 15 * MINUTE:
        now += MINUTE
        sleeping, _ = step(sleeping, [], now, {"A": ONE}.__getitem__)
    assert now <= 16 * MINUTE
    trying, _ = step(Gang((A,)), [Gathered()], ahead, {"A": ONE}.__getitem__)
    trying, _ = step(trying, [], 1.0, {"A": ONE}.__getitem__)
    if trying.stage is Stage.TRYING:
        trying, _ = step(trying, [], 1.0 + trying.attempts.timeout, {"A": ONE}.__getitem__)
    assert trying.stage is Stage.ATTEMPTED


def test_room_wakes_a_gang_that_found_none_and_its_next_attempt_stays_when_it_was() -> None:
    sleeping = asleep(Gang((A,)), NoRoomFound("A"))
    trying, effects = step(sleeping, [Freed()], 10.0, {"A": ONE}.__getitem__)
    assert (words(effects), trying.attempt) == (["try A - x"], 1)
    again, effects = step(trying, [NoRoomFound("A")], 11.0, {"A": ONE}.__getitem__)
    assert effects == [Sleep(("A",), 15 * MINUTE)]
    assert (again.wake_at, again.attempt) == (15 * MINUTE, 1)
    started, effects = step(again, [Freed()], 12.0, {"A": ONE}.__getitem__)
    started, effects = step(started, [RoomFound("A")], 12.0, {"A": ONE}.__getitem__)
    assert (started.stage, words(effects)) == (Stage.STARTED, ["start A"])


def test_a_gang_whose_room_was_refused_looks_again_after_each_minute() -> None:
    sleeping = asleep(Gang((A,)), Lost("A", "the machine is full"))
    assert not sleeping.wakes_by_room(59.0)
    assert step(sleeping, [Freed()], 59.0, {"A": ONE}.__getitem__) == (sleeping, [])
    trying, effects = step(sleeping, [Freed()], 60.0, {"A": ONE}.__getitem__)
    assert words(effects) == ["try A - x"]
    again, _ = step(trying, [Lost("A", "the machine is full")], 61.0, {"A": ONE}.__getitem__)
    assert [again.wakes_by_room(now) for now in (62.0, 120.0, 121.0, 899.0)] == [False, False, True, True]
    assert again.wake_at == 15 * MINUTE
    attempt, _ = step(again, [], 15 * MINUTE, {"A": ONE}.__getitem__)
    assert (attempt.stage, attempt.attempt) == (Stage.TRYING, 2)


@pytest.mark.parametrize("is_costly", [False, True])
def test_what_can_never_have_room_fails_at_once_and_where_a_try_launches_without_one(*, is_costly: bool) -> None:
    never = Choices(["x"], never=lambda: "30 of 16 cpus", is_costly=is_costly)
    _, effects = run(Gang((A, B)), {"A": ONE, "B": never}, {("A", "", "x")})
    tries = ["try A - x"] if is_costly else ["try A - x", "try B - x"]
    assert words(effects) == [*tries, "cancel A x", "fail A B"]
    assert effects[-1] == Fail(("A", "B"), "30 of 16 cpus")
    _, effects = run(Gang((A, B, C), partial=True), {"A": ONE, "B": never, "C": ONE}, {("A", "", "x")})
    assert words(effects) == [*tries, "start A", "fail B", "alone C"]


def test_it_is_not_asked_where_there_is_room() -> None:
    def never() -> str:
        raise AssertionError("it costs time")

    gang, _ = run(Gang((A,)), {"A": Choices(["x"], never=never)}, {("A", "", "x")})
    assert gang.stage is Stage.STARTED
