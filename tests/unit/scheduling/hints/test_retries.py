from __future__ import annotations

import pytest

from lading.scheduling.hints.hints import JobLimits
from lading.scheduling.hints.retries import EarlierTry, Factors, learn
from lading.scheduling.model.resources import Resources

ASKED = Resources(cpus=1, memory=1024)


def out_of_memory(number: int, memory: int) -> EarlierTry:
    return EarlierTry(number, "out_of_memory", memory, 60.0)


def late(number: int, seconds: float) -> EarlierTry:
    return EarlierTry(number, "time_limit", 1024, seconds)


def test_nothing_to_learn() -> None:
    for tries in (
        [],
        [EarlierTry(1, None, 1024, 10.0)],
        [EarlierTry(1, "error", 1024, 10.0), EarlierTry(2, "lost", 1024, 10.0)],
    ):
        lesson = learn(ASKED, JobLimits(1024, 60), tries, Factors(), 9999)
        assert (lesson.resources, lesson.limits, lesson.changes) == (ASKED, JobLimits(1024, 60), ())


def test_twice_the_memory() -> None:
    lesson = learn(ASKED, JobLimits(1024, 60), [out_of_memory(1, 1024)], Factors(), 9999)
    assert (lesson.resources, lesson.limits) == (Resources(cpus=1, memory=2048), JobLimits(2048, 60))
    assert lesson.changes == ("requests 2 GiB of memory, 2 times as much: try 1 ran out of 1 GiB",)


def test_twice_the_time() -> None:
    lesson = learn(ASKED, JobLimits(None, 60), [late(1, 60.0)], Factors(), 9999)
    assert (lesson.resources, lesson.limits) == (ASKED, JobLimits(None, 120))
    assert lesson.changes == ("requests 2 min, 2 times as much: try 1 did not finish within 1 min",)


def test_what_was_learnt_is_not_forgotten() -> None:
    tries = [out_of_memory(1, 1024), late(2, 60.0), out_of_memory(3, 2048), EarlierTry(4, "error", 4096, 5.0)]
    lesson = learn(ASKED, JobLimits(1024, 60), tries, Factors(), None)
    assert (lesson.resources.memory, lesson.limits) == (4096, JobLimits(4096, 120))
    assert len(lesson.changes) == 2


def test_never_more_than_there_is() -> None:
    lesson = learn(ASKED, JobLimits(1024, None), [out_of_memory(1, 1024)], Factors(), 1500)
    assert (lesson.resources.memory, lesson.limits.memory) == (1500, 1500)
    assert "requests 1500 MiB of memory, all that is available: try 1 ran out of 1 GiB" in lesson.changes
    # What is more than there is already is the author's wish, which fails with the reason.
    assert learn(ASKED, JobLimits(1024, None), [out_of_memory(1, 1024)], Factors(), 500).resources == ASKED


def test_hints_that_grow_by_themselves() -> None:
    grown = Resources(cpus=1, memory=4096)
    lesson = learn(grown, JobLimits(4096, 180), [out_of_memory(1, 1024), late(2, 60.0)], Factors(), 9999)
    assert (lesson.resources, lesson.limits, lesson.changes) == (grown, JobLimits(4096, 180), ())


@pytest.mark.parametrize(("factor", "memory"), [(1.0, 1024), (1.5, 1536), (3.0, 3072)])
def test_factors(factor: float, memory: int) -> None:
    lesson = learn(ASKED, JobLimits(None, None), [out_of_memory(1, 1024)], Factors(memory=factor), 9999)
    assert lesson.resources.memory == memory
    assert lesson.limits.memory == (memory if factor > 1 else None)


def test_of_a_range_of_memory_no_less_is_taken_than_would_do_for_a_try_that_had_too_little() -> None:
    wish = Resources(cpus=1, memory=8192)
    lesson = learn(wish, JobLimits(8192, None), [out_of_memory(1, 2048)], Factors(), 9999, least_memory=2048)
    assert (lesson.resources, lesson.least_memory) == (wish, 4096)
    assert lesson.changes == ("requests at least 4 GiB of memory: try 1 ran out of 2 GiB",)
    lesson = learn(wish, JobLimits(8192, None), [out_of_memory(1, 8192)], Factors(), 9999, least_memory=2048)
    assert (lesson.resources.memory, lesson.least_memory) == (9999, 9999), "no more than there is"
    assert learn(wish, JobLimits(), [], Factors(), 9999, least_memory=2048).least_memory == 2048
