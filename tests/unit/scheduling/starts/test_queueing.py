"""The rule by which a location starts its waiting jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model import gpus
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.queueing import KEPT_FREE, MORE_URGENT, QueuedJob, QueueRoom, next_starts, reasons
from tests.reasons import told
from tests.services.examples import part

MACHINE = Resources(cpus=4, memory=8192, disk=0, gpus=0)


def job(
    token: str, cpus: float = 1, memory: int = 512, *, priority: int = 1, at: float = 0, rest: float = 0, **more: float
) -> QueuedJob:
    overtaken = more.pop("overtaken_since", None)
    return QueuedJob(token, Resources(cpus, memory, **more), priority, at, overtaken, rest)  # type: ignore[arg-type]


def in_order(*jobs: QueuedJob) -> list[QueuedJob]:
    return sorted(jobs, key=lambda job: job.rank)


def starts(*jobs: QueuedJob, free: Resources = MACHINE, now: float = 0.0, **devices: float) -> tuple[str, ...]:
    return next_starts(in_order(*jobs), free, replace(MACHINE, gpus=8), now=now, patience=60, devices=devices).starts


def test_priority_goes_first_then_arrival() -> None:
    late, early, urgent = job("late", 2, at=2), job("early", 2, at=1), job("urgent", 2, at=3, priority=9)
    assert starts(late, early, urgent) == ("urgent", "early")


def test_of_one_priority_the_longest_rest_of_a_run_goes_first() -> None:
    short, long = job("short", 2, at=1, rest=10), job("long", 2, at=3, rest=500)
    unknown, urgent = job("unknown", 2, at=0), job("urgent", 2, at=9, priority=9)
    assert starts(short, long, unknown, urgent) == ("urgent", "long")
    assert starts(short, unknown) == ("short", "unknown")


def test_a_later_job_with_a_longer_rest_overtakes_and_patience_ends_that() -> None:
    here, comes = job("here", 2, at=1, rest=10), job("comes", 2, at=2, rest=500)
    decision = next_starts(in_order(here, comes), replace(MACHINE, cpus=2), MACHINE, now=5, patience=60)
    assert (decision.starts, decision.overtaken) == (("comes",), {"here"})
    overtaken = replace(here, overtaken_since=5.0)
    for now, first in ((5 + MORE_URGENT * 60 - 1, "comes"), (5 + MORE_URGENT * 60, "here")):
        assert starts(overtaken, comes, free=replace(MACHINE, cpus=2), now=now) == (first,)


@pytest.mark.parametrize(
    "need", [{"cpus": 5}, {"memory": 9000}, {"cpus": 1, "disk": 1}, {"cpus": 1, "gpus": 1}], ids=str
)
def test_every_resource_must_fit(need: dict[str, float]) -> None:
    assert starts(job("a", **need)) == ()  # type: ignore[arg-type]


def test_fractions_fill_a_machine_to_the_brim() -> None:
    jobs = [job(f"{n:02}", cpus=0.1, memory=1) for n in range(41)]
    assert len(starts(*jobs)) == 40


def test_a_small_job_overtakes_and_that_is_noted() -> None:
    decision = next_starts(
        in_order(job("large", 4, at=1), job("small", 1, at=2)), replace(MACHINE, cpus=2), MACHINE, now=5, patience=60
    )
    assert decision.starts == ("small",)
    assert decision.overtaken == {"large"}


def test_waiting_without_being_overtaken_is_not_noted() -> None:
    decision = next_starts(in_order(job("large", 4)), replace(MACHINE, cpus=2), MACHINE, now=5, patience=60)
    assert decision.overtaken == frozenset()


def test_after_its_patience_the_room_of_a_large_job_is_kept_free() -> None:
    large, small = job("large", 4, at=1, overtaken_since=100), job("small", 1, at=2)
    free = replace(MACHINE, cpus=3)
    assert starts(large, small, free=free, now=159) == ("small",)
    assert starts(large, small, free=free, now=160) == ()
    assert starts(large, small, now=160) == ("large",)


def test_room_that_is_kept_free_is_only_what_the_large_job_needs() -> None:
    waits_for_gpu = job("gpu", 1, 1024, at=1, gpus=1, overtaken_since=0)
    assert starts(waits_for_gpu, job("b", 3, at=2), job("c", 1, at=3), now=100) == ("b",)


def test_a_more_urgent_job_may_use_the_room_that_is_kept_free_for_longer_but_not_for_ever() -> None:
    large, urgent = job("large", 4, overtaken_since=0), job("urgent", 1, priority=9, at=50)
    free = replace(MACHINE, cpus=3)
    assert starts(large, urgent, free=free, now=MORE_URGENT * 60 - 1) == ("urgent",)
    assert starts(large, urgent, free=free, now=MORE_URGENT * 60) == ()
    assert starts(large, urgent, now=MORE_URGENT * 60) == ("large",)
    found = reasons(in_order(large, urgent), free, now=MORE_URGENT * 60, patience=60)
    assert found["urgent"] == KEPT_FREE


def test_of_several_that_were_overtaken_for_too_long_the_longest_goes_first() -> None:
    first, second = job("first", 3, at=9, overtaken_since=10), job("second", 3, priority=5, overtaken_since=20)
    assert starts(second, first, job("urgent", 1, priority=9), now=900) == ("first",)


@pytest.mark.parametrize(
    ("cpus", "memory", "at", "overtaken"),
    [
        (1, 512, 2, {"large"}),
        (1, 2048, 2, {"large"}),  # smaller in what the large one waits for
        (1, 512, 0, set()),  # it was there before
        (4, 1024, 2, set()),  # the large one waits for its turn, not because it is large
    ],
)
def test_a_more_urgent_job_that_arrives_later_and_needs_less_overtakes(
    cpus: float, memory: int, at: float, overtaken: set[str]
) -> None:
    large, urgent = job("large", 4, 1024, at=1), job("urgent", cpus, memory, priority=9, at=at)
    decision = next_starts(in_order(large, urgent), MACHINE, MACHINE, now=5, patience=60)
    assert decision.starts == ("urgent",)
    assert decision.overtaken == overtaken


def test_a_job_that_never_fits_is_named_and_blocks_no_other() -> None:
    huge = job("huge", 64, 512, overtaken_since=0)
    decision = next_starts(in_order(huge, job("b", at=1)), MACHINE, MACHINE, now=100, patience=60)
    assert decision.starts == ("b",)
    assert "64 cpus" in told(decision.impossible["huge"])
    assert "4 cpus" in told(decision.impossible["huge"])


def test_a_whole_gpu_is_not_put_together_from_two_halves() -> None:
    free = replace(MACHINE, gpus=1)
    assert starts(job("a", gpus=1), free=free, first=0.5, second=0.5) == ()
    assert starts(job("a", gpus=1), free=free, first=1.0, second=0.0) == ("a",)


def test_reasons_name_what_is_taken_and_stay_the_same() -> None:
    waiting = in_order(job("a", 4, 1024))
    found = [
        reasons(waiting, replace(MACHINE, cpus=cpus), now=now, patience=60)["a"] for cpus, now in ((1, 0), (3.5, 900))
    ]
    assert (
        told(found[0]) == told(found[1]) == "waits for room on this machine: needs 4 cpus, 1 GiB memory; cpus are taken"
    )


def test_reasons_tell_that_room_is_kept_free() -> None:
    waiting = in_order(job("large", 4, at=1, overtaken_since=0), job("small", 1, at=2), job("same", 4, at=3))
    found = reasons(waiting, replace(MACHINE, cpus=3), now=100, patience=60)
    assert found["small"] == KEPT_FREE
    assert found["large"] == found["same"]
    assert "cpus are taken" in told(found["large"])


def test_reasons_tell_that_no_whole_gpu_is_free() -> None:
    waiting = in_order(job("a", gpus=1))
    found = reasons(waiting, replace(MACHINE, gpus=1), now=0, patience=60, devices={"0": 0.5, "1": 0.5})
    assert "no whole GPU is free" in told(found["a"])


def test_a_full_machine_is_not_looked_through_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    takes = QueueRoom.takes
    monkeypatch.setattr(QueueRoom, "takes", lambda room, need: tried.append(need) or takes(room, need))
    waiting = in_order(*(job(f"{n}", 0.25 * (n % 9 + 1), 512 * (n % 5 + 1), at=n) for n in range(1_000)))
    decision = next_starts(waiting, MACHINE, MACHINE, now=0, patience=60)
    assert decision.starts
    assert len(tried) <= len(decision.starts) + 9 * 5, "what did not fit is tried again"


needs = st.builds(
    Resources,
    st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 8.0]),
    st.integers(1, 10_000),
    st.integers(0, 10),
    st.just(0.0),
)
jobs = st.lists(
    st.builds(
        QueuedJob,
        st.uuids().map(str),
        needs,
        st.integers(1, 3),
        st.floats(0, 100),
        st.none() | st.floats(0, 100),
        st.sampled_from([0.0, 10.0, 500.0]),
    ),
    max_size=30,
    unique_by=lambda job: job.token,
).map(lambda found: in_order(*found))
rooms = st.builds(Resources, st.floats(0, 8), st.integers(0, 20_000), st.integers(0, 20), st.just(0.0))


@given(jobs, rooms, rooms, st.floats(0, 300))
def test_what_starts_fits_together(waiting: list[QueuedJob], free: Resources, more: Resources, now: float) -> None:
    decision = next_starts(waiting, free, free + more, now=now, patience=60)
    by_token = {job.token: job for job in waiting}
    total = sum((by_token[token].resources for token in decision.starts), Resources())
    assert total.fits(free)
    assert not set(decision.starts) & set(told(decision.impossible))


@given(jobs, rooms, rooms, st.floats(0, 300))
def test_nothing_is_left_waiting_that_fits_unless_room_is_kept_free(
    waiting: list[QueuedJob], free: Resources, more: Resources, now: float
) -> None:
    decision = next_starts(waiting, free, free + more, now=now, patience=60)
    started = {job.token: job.resources for job in waiting if job.token in decision.starts}
    left = free - sum(started.values(), Resources())
    rest = [job for job in waiting if job.token not in started and job.token not in told(decision.impossible)]
    impatient = [job for job in rest if job.overtaken_since is not None and now - job.overtaken_since >= 60]
    if not impatient:
        assert not [job.token for job in rest if job.resources.fits(left)]
    found = reasons(rest, left, now=now, patience=60)
    assert set(found) == {job.token for job in rest}


@given(jobs, rooms, st.floats(0, 300))
def test_overtaken_are_those_before_a_start(waiting: list[QueuedJob], free: Resources, now: float) -> None:
    decision = next_starts(waiting, free, Resources(8, 20_000, 20), now=now, patience=60)
    order, by_token = [job.token for job in waiting], {job.token: job for job in waiting}
    for token in decision.overtaken:
        assert token not in decision.starts
        late = [start for start in decision.starts if by_token[start].queued_at > by_token[token].queued_at]
        assert late or any(order.index(start) > order.index(token) for start in decision.starts)


@part(0.3)
@given(jobs, st.integers(0, 1000), st.integers(1, 9), st.sampled_from([0.0, 100.0, 1e6]))
def test_no_job_starves(waiting: list[QueuedJob], salt: int, priority: int, rest: float) -> None:
    """However many small jobs keep coming, however urgent and however long the rest of their runs, each job starts once
    those that were running have ended."""
    capacity = Resources(8, 20_000, 20)
    now, running, started = 100.0, [Resources(0.25, 100)] * 8, set[str]()
    queue = list(waiting)
    for number in range(40 + 70 * len(waiting)):
        now += 10
        running = running[1:]  # the oldest job ends
        queue = in_order(*queue, job(f"small-{salt}-{number}", 0.25, 100, priority=priority, at=now, rest=rest))
        free = capacity - sum(running, Resources())
        decision = next_starts(queue, free, capacity, now=now, patience=60)
        by_token = {job.token: job for job in queue}
        running = running + [by_token[token].resources for token in decision.starts]
        started.update(decision.starts)
        queue = [
            replace(job, overtaken_since=now) if job.token in decision.overtaken else job
            for job in queue
            if job.token not in decision.starts
        ]
    assert {job.token for job in waiting} <= started


shares = st.dictionaries(
    st.text("0123456789", min_size=1, max_size=2), st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=6
)


@given(shares, st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0]))
def test_gpus_are_picked_within_what_is_free(free: dict[str, float], wanted: float) -> None:
    picked = gpus.pick(free, wanted)
    if picked is None:
        whole = sum(share == 1.0 for share in free.values())
        assert whole < int(wanted) or (wanted % 1 and whole <= int(wanted))
    else:
        assert sum(picked.values()) == pytest.approx(wanted)
        assert all(share <= free[device] for device, share in picked.items())


def test_a_share_goes_to_the_fullest_device() -> None:
    assert gpus.pick({"0": 1.0, "1": 0.5}, 0.5) == {"1": 0.5}
    assert gpus.pick({"0": 0.5, "1": 1.0, "2": 1.0}, 1.5) == {"1": 1.0, "0": 0.5}
