"""By what jobs of one priority go: the longest rest of their run, and none waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, alone
from lading.scheduling.forecast.critical_path import LEAST_PATIENCE, in_turn, rests
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.starts.queueing import LONGEST_REST, MORE_URGENT


def task(name: str, seconds: float, *after: str, number: int = 1, waits: bool = False) -> ComingTask:
    tokens = [f"t-{name}-{index}" if waits else None for index in range(number)]
    jobs = [
        ComingJob(f"{name}-{index}", Prediction(seconds), index=index if number > 1 else -1, token=token)
        for index, token in enumerate(tokens)
    ]
    return ComingTask(jobs, after)


def test_the_rest_is_the_longest_way_to_the_end_of_the_run() -> None:
    run = ComingRun(
        "r",
        0.0,
        {
            "a": task("a", 10, waits=True),
            "b": task("b", 30, waits=True),
            "many": task("many", 100, "a", number=3),
            "last": task("last", 5, "many", "b"),
        },
    )
    assert rests(run) == {"t-a-0": 115.0, "t-b-0": 35.0}


def test_what_runs_and_what_is_alone() -> None:
    begun = ComingJob("a", Prediction(10), token="ta", begun=5.0)
    assert rests(ComingRun("r", 0.0, {"a": ComingTask([begun]), "b": task("b", 7, "a")})) == {}
    assert rests(alone(ComingJob("x", Prediction(7), token="x"), 0.0)) == {"x": 7.0}


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(0, 1e5), max_size=20),
    st.lists(st.tuples(st.text("abcd", min_size=1, max_size=3), st.floats(0, 1e6)), max_size=20),
    st.floats(0, 1e6),
)
def test_one_that_has_waited_too_long_goes_before_all_whose_rest_is_longer(
    known: dict[str, float], queued: list[tuple[str, float]], now: float
) -> None:
    queued_at = {**dict(queued), "old": now - 1e7}
    found = in_turn(known, queued_at, now)
    assert found.keys() == queued_at.keys()
    assert found["old"] == LONGEST_REST, "also where its rest is not known"
    longest = max(LEAST_PATIENCE, max(known.values(), default=0.0))
    for token, at in queued_at.items():
        is_late = now - at >= MORE_URGENT * longest
        assert found[token] == (LONGEST_REST if is_late else known.get(token, 0.0))
