"""What a job asks for, by its inputs and its earlier tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lading.executors.estimation import estimation
from lading.executors.estimation.estimation import Facts, Unappraised, appraised, columns, largest_of
from lading.executors.estimation.file_sizes import FileSizes
from lading.executors.estimation.inputs import Inputs
from lading.executors.settings import Settings
from lading.executors.store import Job, State
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints


class Conf:
    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        return fallback


SETTINGS = Settings.load(Conf())


def job(try_number: int = 1, sources: dict[str, Any] | None = None, map_index: int = -1, **hints: Any) -> Unappraised:
    return Unappraised("token", ("d", "r", "t"), map_index, try_number, None, hints, sources or {})


def earlier(try_number: int, cause: str | None, memory: int = 512, **values: Any) -> Job:
    ended = {"state": State.FAILED, "started_at": 100.0, "ended_at": 160.0}
    return Job(try_number=try_number, cause=cause, memory=memory, **{**ended, **values})


def appraise(each: Unappraised, *tries: Job, largest: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    inputs = Inputs(None, "d", "r", each.sources)  # type: ignore[arg-type]  # literals need no session
    return appraised(each, tries, inputs.of(each.map_index), FileSizes(), SETTINGS, largest)


def test_only_jobs_that_need_it_wait_for_it() -> None:
    assert columns(Hints(), {}, {}, 1) == {}
    assert columns(Hints.parse({"memory": "1 GiB"}), {"memory": "1 GiB"}, {}, 1) == {}
    assert columns(Hints(), {}, {}, 2) == {"appraisal": '{"hints": {}, "sources": {}}'}
    assert "input_size" in columns(Hints.parse({"memory": "input_size"}), {"memory": "input_size"}, {}, 1)["appraisal"]


def test_a_first_try_without_a_lesson() -> None:
    values, words = appraise(job(2, memory="1 GiB", cpus=2), earlier(1, "error"))
    assert values == {"cpus": 2, "memory": 1024, "disk": 0, "gpus": 0.0, "memory_limit": 1024, "time_limit": None}
    assert words == ()


def test_a_layout_has_the_memory_of_each_node() -> None:
    asked = job(2, nodes=2, ppn=2, threads=4, memory="1 GiB * attempt")
    values, _ = appraise(asked, earlier(1, "out_of_memory", memory=4096))
    assert (values["cpus"], values["memory"], values["memory_limit"]) == (8, 8192, 8192)
    assert largest_of([Hints.parse({"nodes": 2, "ppn": 2})] * 2).layout == Hints.parse({"nodes": 2, "ppn": 2}).layout


def test_inputs_and_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3 * 2**20)
    fixed = {"path": {"value": str(tmp_path / "a")}, "many": {"value": [1, 2, 3]}}
    asked = job(
        2, {"fixed": fixed}, memory="2 * input_size + 1 GiB", cpus="len(many)", time="10 min * attempt + runtime"
    )
    values, _ = appraise(asked, earlier(1, "error"))
    assert (values["memory"], values["memory_limit"], values["cpus"], values["time_limit"]) == (1030, 1030, 3, 1260)


def test_what_a_try_had_without_a_hint() -> None:
    values, words = appraise(job(2), earlier(1, "out_of_memory", peak_memory=700), largest=8192)
    assert (values["memory"], values["memory_limit"]) == (1400, 1400)
    assert len(words) == 1
    values, _ = appraise(job(2), earlier(1, "time_limit"), largest=8192)
    assert (values["memory_limit"], values["time_limit"]) == (None, 120)


def test_of_a_chunk_the_largest_value_counts() -> None:
    sources = {"method": None, "mapped": {"n": {"value": [1, 7, 3]}}}
    inputs = [{"n": number} for number in (1, 7, 3)]
    facts = [Facts(1, 0, 0.0, each, FileSizes()) for each in inputs]
    hints = Hints.parse({"memory": "n * 1 GiB", "cpus": "8 - n", "time": "1h"})
    assert largest_of([hints.evaluated(each) for each in facts]) == Hints(memory=7168, cpus=7, time=3600)
    values, _ = appraise(job(1, sources, map_index=1, memory="n * 1 GiB"))
    assert values["memory"] == 7168


@pytest.mark.parametrize(
    ("hints", "sources", "error", "words"),
    [
        ({"memory": "input_size"}, {"fixed": {"p": {"value": "/no/such"}}}, HintError, "there is no file /no/such"),
        ({"memory": "x * 2"}, {"fixed": {"y": {"value": 1}}}, HintError, "there is no input 'x'; valid: y"),
        ({"memory": "len(x)"}, {"fixed": {"x": {"unknown": "why"}}}, HintError, "input 'x' is not known: why"),
        ({"cpus": "x * 1"}, {"method": None, "mapped": {"x": {"unknown": "why"}}}, ExpressionError, "x: why"),
    ],
)
def test_what_fails_one_job(hints: Any, sources: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        appraise(job(1, sources, 0 if "mapped" in sources else -1, **hints))


def test_runtime_of_a_try_that_never_started() -> None:
    assert estimation.seconds(earlier(1, "error", started_at=None)) == 0.0
