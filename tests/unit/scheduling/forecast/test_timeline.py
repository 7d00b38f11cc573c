"""A machine over time, beside one that is looked at second by second."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast.timeline import MachineTimeline

BOOT = 60.0
JOBS = st.lists(
    st.tuples(
        st.integers(0, 400).map(float),
        st.sampled_from([1.0, 5.0, 20.0, 100.0]),
        st.integers(1, 4),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=12,
)


def has_room(
    planned: list[tuple[float, float, int, int]], begin: float, seconds: float, cpus: int, memory: int
) -> bool:
    moments = {begin, *(at for at, _, _, _ in planned if begin <= at < begin + seconds)}
    for moment in moments:
        there = [each for each in planned if each[0] <= moment < each[0] + each[1]]
        if sum(each[2] for each in there) + cpus > 4 or sum(each[3] for each in there) + memory > 100:
            return False
    return True


def paid(planned: list[tuple[float, float, int, int]], since: float, *, is_there: bool) -> float:
    """Seconds of a machine that is released in gaps longer than a boot."""
    moments = sorted({*(at for at, _, _, _ in planned), *(at + seconds for at, seconds, _, _ in planned), since})
    busy = [
        any(at <= begin and end <= at + seconds for at, seconds, _, _ in planned)
        for begin, end in itertools.pairwise(moments)
    ]
    total, gap, used = 0.0, 0.0, is_there
    for is_busy, begin, end in zip(busy, moments, moments[1:], strict=False):
        if is_busy:
            # A gap costs as much as it lasts, or a new boot; before the first use there is the first boot.
            total += end - begin + (min(gap, BOOT) if used else BOOT)
            gap, used = 0.0, True
        else:
            gap += end - begin
    return total


@given(JOBS, st.sampled_from([0.0, 5.0]), st.booleans())
def test_room_and_money(jobs: list[tuple[float, float, int, int]], since: float, is_there: bool) -> None:
    timeline = MachineTimeline((4, 100, 0, 0), 1.0, BOOT, since, is_there=is_there)
    planned: list[tuple[float, float, int, int]] = []
    for earliest, seconds, cpus, memory in jobs:
        begin = timeline.earliest(earliest, seconds, (cpus, memory, 0, 0))
        first = max(earliest, since)
        moments = sorted({first, *(at + length for at, length, _, _ in planned if at + length >= first)})
        assert begin == next(at for at in moments if has_room(planned, at, seconds, cpus, memory))
        before, more = timeline.usd(), timeline.more(begin, seconds)
        timeline.add(begin, seconds, (cpus, memory, 0, 0))
        planned.append((begin, seconds, cpus, memory))
        assert abs(timeline.usd() - before - more) < 1e-6
        assert abs(timeline.usd() - paid(planned, since, is_there=is_there)) < 1e-6
