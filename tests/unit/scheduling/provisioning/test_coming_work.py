"""Allocations for upcoming work: their walltimes, which idle ones stay, and which end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market, kind
from lading.scheduling.matching.ranking import FEWEST_WAITS, QueueWaits
from lading.scheduling.provisioning import SECONDS_TO_BEGIN, Provision, coming_work, decide
from lading.scheduling.provisioning.coming_work import (
    MINUTE,
    NOT_MEASURED,
    SECONDS_BETWEEN_STEPS,
    SLOWER,
    UNKNOWN_SPREAD,
    ComingWork,
)
from lading.scheduling.resources import Resources

NOW = 100_000.0
KIND = kind(None, {})
MARKET = Market(
    Resources(8, 16000), overhead=384, seconds=14000, unlimited=7000, most=4, idle_seconds=300, queue_seconds=600
)
SIZE = Resources(8, 16000)


def step(
    name: str, *parents: str, seconds: float = 100, time: float = 200, cpus: float = 4, **known: Any
) -> WorkflowStep:
    run = known.pop("run", "r")
    job = PlannedJob(name, Resources(cpus, 1000), time=time, instance_type=KIND, run=run, queued_at=NOW - 100)
    return WorkflowStep(job, seconds, parents, **known)


def work(*steps: WorkflowStep, **known: Any) -> ComingWork:
    forecast = Forecast({each.job.name: each for each in steps})
    runs, seen = frozenset(["r"]), frozenset(["a", "b"])
    return ComingWork(forecast, **{"known": runs, "foreseen": seen, "begins_in": 0.0, **known})


def there(name: str = "a", left: float = 14000, **known: Any) -> Location:
    return Location(name, SIZE, instance_type=KIND, ends_at=NOW + left, **known)


def decided(
    coming: ComingWork | None,
    *waiting: str,
    live: Sequence[Location] = (),
    market: Market = MARKET,
    now: float = NOW,
) -> Provision:
    steps = {} if coming is None else coming.forecast.steps
    return decide([steps[name].job for name in waiting], live, market, now=now, coming=coming)


def minutes(seconds: float) -> float:
    return math.ceil(seconds / MINUTE) * MINUTE


def test_a_walltime_covers_what_comes_after_and_no_more() -> None:
    chain = work(step("a"), step("b", "a"), step("c", "b", time=500))
    [launch] = decided(chain, "a").launches
    assert launch.seconds == minutes(SECONDS_TO_BEGIN + 2 * (100 + SECONDS_BETWEEN_STEPS) + 500)
    assert launch.idle_seconds == 600, "for as long as another one would wait"
    [today] = decide([step("a").job], (), MARKET, now=NOW).launches
    assert (today.seconds, today.idle_seconds) == (14000, None)


def test_what_has_no_limit_has_as_much_as_it_is_promised() -> None:
    chain = work(step("a", time=MARKET.unlimited), step("b", "a", time=MARKET.unlimited))
    [launch] = decided(chain, "a").launches
    assert launch.seconds == minutes(SECONDS_TO_BEGIN + 100 + SECONDS_BETWEEN_STEPS + 7000)


def test_uncertain_lengths_count_as_longer_but_not_beyond_their_limits() -> None:
    def seconds(**known: Any) -> float:
        [launch] = decided(work(step("a", **known), step("b", "a")), "a").launches
        return launch.seconds

    assert seconds(spread=0.5) == minutes(SECONDS_TO_BEGIN + 100 * math.exp(0.5) + SECONDS_BETWEEN_STEPS + 200)
    assert seconds(spread=0.9, time=110) == minutes(SECONDS_TO_BEGIN + 110 + SECONDS_BETWEEN_STEPS + 200)


@pytest.mark.parametrize(
    "coming",
    [
        work(step("a", spread=UNKNOWN_SPREAD), step("b", "a")),
        work(step("a"), step("x", seconds=500, spread=1.2, elsewhere=True), step("b", "a", "x")),
        work(step("a"), step("b", "a"), known=frozenset()),
        work(step("a", run=None), step("b")),
    ],
    ids=["its own length", "a length elsewhere", "a run without a Dag", "a job of no run"],
)
def test_where_something_is_not_known_a_walltime_is_as_without_a_forecast(coming: ComingWork) -> None:
    [launch] = decided(coming, "a").launches
    assert launch.seconds == 14000


def test_lengths_behind_which_nothing_comes_need_not_be_known() -> None:
    [launch] = decided(work(step("a"), step("b", "a", spread=1.2)), "a").launches
    assert launch.seconds < 1000


def test_no_walltime_is_longer_than_the_site_has_it() -> None:
    after = (step(str(number), str(number - 1), seconds=2000, time=2500) for number in range(1, 20))
    chain = [step("0"), *after]
    [launch] = decided(work(*chain), "0").launches
    assert launch.seconds == minutes(SECONDS_TO_BEGIN + 105 + 5 * 2005 + 2500), "the next one would not end there"
    [long] = decided(work(step("a", time=20000), step("b", "a", time=20000)), "a").launches
    assert long.seconds == 20000 + SECONDS_TO_BEGIN


def test_what_runs_elsewhere_first_counts_and_what_comes_after_a_long_pause_does_not() -> None:
    """The allocation would have ended before: another one is asked for then."""
    near = work(step("a"), step("x", "a", seconds=300, elsewhere=True), step("b", "x"))
    far = work(step("a"), step("x", "a", seconds=3000, elsewhere=True), step("b", "x"))
    [first], [second] = decided(near, "a").launches, decided(far, "a").launches
    assert first.seconds == minutes(SECONDS_TO_BEGIN + 100 + 300 + 2 * SECONDS_BETWEEN_STEPS + 200)
    assert second.seconds == minutes(SECONDS_TO_BEGIN + 200)


def test_an_idle_allocation_stays_while_something_comes_sooner_than_another_one() -> None:
    def ends(comes_in: float, **known: Any) -> list[tuple[str, dict[str, Any]]]:
        first = step("x", seconds=comes_in, begun=NOW, elsewhere=True)
        found = decided(work(first, step("b", "x"), **known), live=[there(idle_since=NOW - 400)])
        return [(reason.code, dict(reason.params)) for reason in found.releases.values()]

    assert ends(500) == []
    assert ends(700) == [("allocation_not_needed_for", {"seconds": 700})]
    assert ends(700, foreseen=frozenset()) == [("idle", {"seconds": 400})], "jobs of which nothing is known were there"
    waits = QueueWaits()
    for _ in range(FEWEST_WAITS):
        waits.add("", None, 8, 3600.0)
    assert ends(700, waits=waits) == [], "it is known that others wait for longer"


def test_what_nothing_needs_ends_at_once_but_where_something_may_come_that_is_not_known() -> None:
    idle = there(idle_since=NOW - 1)
    assert [each.code for each in decided(work(), live=[idle]).releases.values()] == ["not_needed"]
    assert decided(work(is_blind=True), live=[idle]).releases == {}
    assert decided(work(foreseen=frozenset()), live=[idle]).releases == {}
    assert decided(None, live=[idle]).releases == {}, "it ends by itself"
    late = replace(idle, idle_since=NOW - 301)
    assert [each.code for each in decided(work(is_blind=True), live=[late]).releases.values()] == ["idle"]


def test_while_not_all_steps_are_looked_at_idle_seconds_bound_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coming_work, "MOST_LOOKS", 1)
    later = [step("x", seconds=900, begun=NOW, elsewhere=True), step("b", "x"), step("c", "x")]
    assert decided(work(*later), live=[there(idle_since=NOW - 1)]).releases == {}
    late = decided(work(*later), live=[there(idle_since=NOW - 301)])
    assert [each.code for each in late.releases.values()] == ["idle"]


def test_of_two_idle_ones_that_stays_which_is_needed() -> None:
    both = [there("a", idle_since=NOW), there("b", idle_since=NOW)]
    soon = work(step("x", seconds=10, begun=NOW, elsewhere=True), step("s", "x"))
    assert decided(soon, live=both).releases.keys() == {"b"}
    ending = [replace(both[0], ends_at=NOW + 100), both[1]]
    assert decided(soon, live=ending).releases.keys() == {"a"}, "it is over before the step could reach its limit"


def test_what_waits_in_its_queue_stays_for_what_is_to_come() -> None:
    queued = there(booting=True, idle_since=NOW - 301)
    coming = work(step("x", seconds=10, begun=NOW, elsewhere=True), step("s", "x"))
    assert decided(coming, live=[queued]).releases == {}
    assert [each.code for each in decided(work(), live=[queued]).releases.values()] == ["not_wanted"]


def test_busy_allocations_and_held_ones_never_end() -> None:
    busy = there("a", used=Resources(1, 100), jobs=1)
    assert decided(work(), live=[busy]).releases == {}


@st.composite
def works(draw: st.DrawFn) -> tuple[ComingWork, list[str]]:
    """A workflow, and which of its steps wait."""
    count = draw(st.integers(1, 8))
    steps, waiting = [], []
    for number in range(count):
        parents = [str(each) for each in range(number) if draw(st.booleans())]
        known = {
            "seconds": draw(st.sampled_from([1.0, 60.0, 3000.0])),
            "time": draw(st.sampled_from([60.0, 3000.0, MARKET.unlimited, 20000.0])),
            "cpus": draw(st.sampled_from([1, 3, 8])),
            "spread": draw(st.sampled_from([0.0, 0.4, 1.2])),
            "elsewhere": bool(parents) and draw(st.booleans()),
        }
        steps.append(step(str(number), *parents, **known))
        if not parents:
            waiting.append(str(number))
    return work(*steps), waiting


@settings(max_examples=60, deadline=None)
@given(works(), st.integers(0, 3))
def test_the_forecast_changes_no_number_and_no_size_and_makes_no_walltime_longer(
    drawn: tuple[ComingWork, list[str]], number: int
) -> None:
    coming, waiting = drawn
    live = [there(f"busy{each}", used=Resources(8, 1000), jobs=1) for each in range(number)]
    found, before = (
        decided(coming, *waiting, live=live),
        decide([coming.forecast.steps[name].job for name in waiting], live, MARKET, now=NOW),
    )
    assert [(each.kind, each.capacity, each.jobs) for each in found.launches] == [
        (each.kind, each.capacity, each.jobs) for each in before.launches
    ]
    for its, was in zip(found.launches, before.launches, strict=True):
        longest = max(coming.forecast.steps[name].job.time or 0.0 for name in its.jobs)
        assert longest + SECONDS_TO_BEGIN <= its.seconds <= was.seconds
    assert (found.waits, found.refused) == (before.waits, before.refused)


@settings(max_examples=60, deadline=None)
@given(works(), st.lists(st.floats(0, 10_000), max_size=3))
def test_without_a_run_that_is_known_everything_is_as_before(
    drawn: tuple[ComingWork, list[str]], ends: list[float]
) -> None:
    coming, waiting = drawn
    unknown = replace(coming, known=frozenset(), foreseen=frozenset(), is_blind=True)
    live = [there(f"l{each}", left=left, idle_since=NOW - 10) for each, left in enumerate(ends)]
    jobs = [coming.forecast.steps[name].job for name in waiting]
    assert decide(jobs, live, MARKET, now=NOW, coming=unknown) == decide(jobs, live, MARKET, now=NOW)


def busy(left: float = 500, **known: Any) -> WorkflowStep:
    """What fills the allocation ``a`` for so long."""
    return step("x", seconds=left + 100, begun=NOW - 100, location="a", cpus=8, **known)


FULL = [there("a", used=Resources(8, 1000), jobs=1)]


def test_a_walltime_covers_what_nodes_have_taken_to_begin() -> None:
    [first] = decided(work(step("a"), begins_in=None), "a").launches
    assert first.seconds == minutes(NOT_MEASURED + 200)
    [launch] = decided(work(step("a"), begins_in=400.0), "a").launches
    assert launch.seconds == minutes(SLOWER * 400 + 200)
    [long] = decided(work(step("a", time=20000), begins_in=400.0), "a").launches
    assert long.seconds == 20000 + SLOWER * 400


def test_nothing_is_asked_for_that_has_room_sooner_than_a_new_allocation_would_come() -> None:
    def asked(left: float, **known: Any) -> list[str]:
        waits = step("b", cpus=8, spread=known.pop("spread", 0.0))
        launches = decided(work(busy(left, **known), waits), "b", live=FULL).launches
        return [name for each in launches for name in each.jobs]

    assert asked(500) == []
    reason = decided(work(busy(500), step("b", cpus=8)), "b", live=FULL).awaits["b"]
    assert str(reason) == (
        "waits: a will have room in about 600 s: waiting for that room does not delay the run, or is cheaper "
        "than a new machine"
    )
    assert asked(700) == ["b"]
    unknown = busy(500, spread=UNKNOWN_SPREAD, time=5000)
    assert [each.jobs for each in decided(work(unknown, step("b", cpus=8)), "b", live=FULL).launches] == [("b",)]
    both = work(busy(500), step("b", cpus=8, seconds=400), step("c", cpus=8, seconds=400))
    assert len(decided(both, "b", "c", live=FULL).launches) == 1, "the other one would wait for longer"
    strange = decided(work(busy(500), step("b", cpus=8), known=frozenset()), "b", live=FULL)
    assert len(strange.launches) == 1
