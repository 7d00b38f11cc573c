"""What a job asks for, by its inputs and its earlier tries."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.columns import sizing_columns
from lading.executors.settings import Settings
from lading.executors.sizing import sizing
from lading.executors.sizing.file_sizes import FileSizes
from lading.executors.sizing.inputs import Inputs
from lading.executors.sizing.sizing import JobFacts, SizingQuestion, UnsizedJob, size_job
from lading.executors.store import Change, JobRow, State
from lading.hooks.ec2.config import EC2Config
from lading.plugin.host import AirflowHost
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints, largest_of
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing import auto
from lading.scheduling.sizing.right_size import sizes
from lading.scheduling.sizing.usage import Usage, Use


class Conf:
    def get(self, section: str, key: str, *, fallback: Any) -> Any:
        return fallback


# Whatever machine runs the tests.
SETTINGS = replace(Settings.load(Conf()), default_resources=Resources(0.25, 512), shares_machine=False)


def job(try_number: int = 1, sources: dict[str, Any] | None = None, map_index: int = -1, **hints: Any) -> UnsizedJob:
    left = SETTINGS.choices(Hints.parse(hints))
    return UnsizedJob(
        "token", ("d", "r", "t"), map_index, try_number, None, hints, sources or {}, chosen=auto.as_text(left)
    )


def earlier(try_number: int, cause: str | None, memory: int = 512, **values: Any) -> JobRow:
    ended = {"state": State.FAILED, "started_at": 100.0, "ended_at": 160.0}
    return JobRow(try_number=try_number, cause=cause, memory=memory, **{**ended, **values})


def size(
    each: UnsizedJob, *tries: JobRow, largest: int | None = None, known: Usage | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    inputs = Inputs(None, "d", "r", each.sources)  # type: ignore[arg-type]  # literals need no session
    most = None if largest is None else Resources(4, largest)
    values, sized_by, learnt = size_job(
        each, tries, inputs.for_job(each.map_index), FileSizes(), SETTINGS, most, sizes(known or Usage())
    )
    return values, (*sized_by, *learnt)


def test_only_jobs_that_need_it_wait_for_it() -> None:
    assert sizing_columns(Hints(), {}, {}, 1) == {}
    assert sizing_columns(Hints.parse({"memory": "1 GiB"}), {"memory": "1 GiB"}, {}, 1) == {}
    assert "auto" in sizing_columns(Hints.parse({"cpus": "auto"}), {"cpus": "auto"}, {}, 1)["sizing"]
    assert sizing_columns(Hints(), {}, {}, 2) == {"sizing": '{"hints": {}, "sources": {}}'}
    assert (
        "input_size" in sizing_columns(Hints.parse({"memory": "input_size"}), {"memory": "input_size"}, {}, 1)["sizing"]
    )


def test_a_first_try_without_a_lesson() -> None:
    values, words = size(job(2, memory="1 GiB", cpus=2), earlier(1, "error"))
    assert values == {"cpus": 2, "memory": 1024, "disk": 0, "gpus": 0.0, "memory_limit": 1024, "time_limit": None}
    assert words == ()


def usage(count: int, **values: Any) -> Usage:
    found = Usage()
    for _ in range(count):
        found.add(Use(**{"cpus": 1.0, "memory": 4096, "seconds": 100.0, "peak_memory": 1000, **values}))
    return found


def test_auto_is_what_earlier_tries_needed() -> None:
    asked = job(memory="auto", cpus=" Auto", time="auto(2h)")
    values, words = size(asked, known=usage(30, cpu_seconds=200.0), largest=2**20)
    assert (values["cpus"], values["memory"], values["memory_limit"], values["time_limit"]) == (2.0, 1020, 1020, 180)
    assert words == (
        "requests 2 cpus: sized by 30 tries (auto)",
        "requests 1020 MiB of memory: sized by 30 tries (auto)",
        "requests 3 min: sized by 30 tries (auto)",
    )


def test_auto_follows_the_size_of_inputs(tmp_path: Path) -> None:
    known = usage(0)
    for mib in (100, 200, 300, 400, 500, 600):
        known.add(Use(1.0, 4096, 100.0, 200 + 2 * mib, None, None, 0.0, mib * 2**20))
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 150 * 2**20)
    fixed = {"fixed": {"path": {"value": str(tmp_path / "a")}}}
    values, [words] = size(job(1, fixed, memory="auto"), known=known)
    assert 500 < values["memory"] < 550
    assert values["input_size"] == 150 * 2**20, "so this try teaches the next one"
    assert words.endswith("sized by 6 tries and its input of 150 MiB (auto)")
    gone = {"fixed": {"path": {"value": str(tmp_path / "b")}}}
    assert size(job(1, gone, memory="auto"), known=known)[0]["memory"] > 1400, "without a size, what suffices for all"


def test_auto_follows_the_lengths_of_lists_where_inputs_have_no_files(tmp_path: Path) -> None:
    known = usage(0)
    for length in (10, 20, 30, 40, 50, 60) * 3:
        known.add(Use(1.0, 65536, 100.0, peak_memory=500 + 20 * length, input_size=-length))
    (tmp_path / "empty").touch()

    def sized(*inputs: object) -> tuple[dict[str, Any], tuple[str, ...]]:
        sources = {"fixed": {f"x{number}": {"value": value} for number, value in enumerate(inputs)}}
        return size(job(sources=sources, memory="auto"), known=known)

    values, [said] = sized(list(range(20)), "text", 7, {"a": 1})
    assert values["input_size"] == -20
    assert 900 < values["memory"] < 950
    assert said.endswith("sized by 18 tries and its lists of 20 elements (auto)")
    assert sized([1] * 15, [str(tmp_path / "empty")] * 5)[0]["input_size"] == -20
    assert sized("text")[0]["input_size"] == 0
    file = tmp_path / "full"
    file.write_bytes(b"12345")
    assert sized([1] * 15, str(file))[0]["input_size"] == 5


def test_expressions_know_the_lengths_of_lists() -> None:
    sources = {"fixed": {"x": {"value": [1, 2, 3]}, "y": {"value": [4]}}}
    values, _ = size(job(sources=sources, memory="100 MiB * input_length + 1 GiB"))
    assert values["memory"] == 1424
    unknown = {"fixed": {"x": {"unknown": "a template"}}}
    with pytest.raises(HintError, match="input 'x' is unknown: a template"):
        size(job(sources=unknown, memory="100 MiB * input_length"))


def test_auto_never_asks_for_more_than_there_is() -> None:
    values, words = size(job(memory="auto", cpus="auto"), known=usage(30, cpu_seconds=900.0), largest=1008)
    assert (values["cpus"], values["memory"]) == (4, 1008)
    assert words[1] == "requests 1008 MiB of memory, the largest available: sized by 30 tries (auto)"


def test_auto_without_history_is_the_authors_amount_or_the_default() -> None:
    values, words = size(job(memory="auto"))
    assert (values["memory"], values["memory_limit"]) == (512, None)
    assert words == ("requests the default for memory: no try has finished yet (auto)",)
    values, words = size(job(memory="auto(8 GiB)"))
    assert (values["memory"], values["memory_limit"]) == (8192, 8192)
    assert words == ("requests 8 GiB of memory: no try has finished yet (auto)",)
    short = usage(3, seconds=2.0, cpu_seconds=1.0)
    values, words = size(job(cpus="auto", memory="auto"), known=short)
    assert words[0] == "requests the default for cpus: 3 tries did not show what it needs (auto)"
    assert words[1].endswith("of memory: sized by 3 tries (auto)")


def test_a_wrong_amount_for_the_beginning_is_an_error() -> None:
    with pytest.raises(HintError, match=r"hint memory: .*'8 GiBs'"):
        Hints.parse({"memory": "auto(8 GiBs)"})


def test_after_a_size_of_ours_that_was_too_little_the_largest_that_was_seen_is_next_then_twice_as_much() -> None:
    known = usage(0)
    known.add(Use(1.0, 4096, 100.0, 3000))
    for _ in range(99):
        known.add(Use(1.0, 4096, 100.0, 1000))
    assert size(job(memory="auto"), known=known)[0]["memory"] == 1020
    retry = job(2, memory="auto")
    values, words = size(retry, earlier(1, "out_of_memory", memory_limit=1020), known=known, largest=2**20)
    assert (values["memory"], values["memory_limit"]) == (3157, 3157), "and some more"
    values, words = size(job(3, memory="auto"), earlier(2, "out_of_memory", memory_limit=3157), known=known)
    assert values["memory"] == 6314
    assert words[1].startswith("requests 6314 MiB of memory, 2 times as much: try 2 ran out of 3157 MiB")


def test_auto_is_read_from_all_runs(airflow_database: Engine) -> None:
    with Session(airflow_database) as session:
        for number in range(20):
            amounts = {"cpus": 1.0, "memory": 1024, "disk": 0, "gpus": 0.0, "peak_memory": 100}
            times = {"queued_at": 1.0, "started_at": 2.0, "ended_at": 50.0}
            names = {"dag_id": "d", "run_id": f"r{number}", "task_id": "t"}
            store.add_job(
                session, token=str(number), kind="", subject="", workload="", priority=0, state=State.SUCCEEDED,
                **amounts, **times, **names,
            )  # fmt: skip
        session.commit()
    [question] = sizing.read(AirflowHost(), [job(memory="auto")]).questions
    assert question.needs.tries == 20
    change, [lesson] = sizing.answer(question, FileSizes(), SETTINGS, None)
    assert (change.values["memory"], lesson.entry().event) == (107, "lading sizes the task")
    assert sizing.read(AirflowHost(), [job(memory="1 GiB", cpus=1)]).questions[0].needs.tries == 0, "no job asks for it"


def test_what_was_found_of_inputs_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    fixed = {"fixed": {"path": {"value": str(tmp_path / "a")}}}
    assert size(job(1, fixed, memory="input_size"))[0]["input_size"] == 1000
    assert "input_size" not in size(job(1, fixed, memory="1 GiB * attempt"))[0]


def test_a_layout_has_the_memory_of_each_node() -> None:
    asked = job(2, nodes=2, ppn=2, threads=4, memory="1 GiB * attempt")
    values, _ = size(asked, earlier(1, "out_of_memory", memory=4096))
    assert (values["cpus"], values["memory"], values["memory_limit"]) == (8, 8192, 8192)
    assert largest_of([Hints.parse({"nodes": 2, "ppn": 2})] * 2).layout == Hints.parse({"nodes": 2, "ppn": 2}).layout


def test_inputs_and_the_attempt(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3 * 2**20)
    fixed = {"path": {"value": str(tmp_path / "a")}, "many": {"value": [1, 2, 3]}}
    asked = job(
        2, {"fixed": fixed}, memory="2 * input_size + 1 GiB", cpus="len(many)", time="10 min * attempt + runtime"
    )
    values, _ = size(asked, earlier(1, "error"))
    assert (values["memory"], values["memory_limit"], values["cpus"], values["time_limit"]) == (1030, 1030, 3, 1260)


def test_what_a_try_had_without_a_hint() -> None:
    short = earlier(1, "out_of_memory", peak_memory=700, reason_code="over_memory")
    for asked in (job(2), replace(job(2), chosen=None)):
        values, words = size(asked, short, largest=8192)
        assert (values["memory"], values["memory_limit"]) == (1400, 1400), "its site has a limit"
        assert len(words) == 1
    full = earlier(1, "out_of_memory", peak_memory=700, reason_code="machine_out_of_memory")
    values, words = size(job(2), full, largest=8192)
    assert (values["memory"], values["memory_limit"]) == (1400, None)
    assert len(words) == 1
    assert size(replace(job(2), chosen=None), full, largest=8192)[0]["memory_limit"] == 1400, "sizing = hints"
    values, _ = size(job(2), earlier(1, "time_limit"), largest=8192)
    assert (values["memory_limit"], values["time_limit"]) == (None, 120)


def test_of_a_chunk_the_largest_value_counts() -> None:
    sources = {"method": None, "mapped": {"n": {"value": [1, 7, 3]}}}
    inputs = [{"n": number} for number in (1, 7, 3)]
    facts = [JobFacts(1, 0, 0.0, each, FileSizes()) for each in inputs]
    hints = Hints.parse({"memory": "n * 1 GiB", "cpus": "8 - n", "time": "1h"})
    assert largest_of([hints.evaluated(each) for each in facts]) == Hints(memory=7168, cpus=7, time=3600)
    values, _ = size(job(1, sources, map_index=1, memory="n * 1 GiB"))
    assert values["memory"] == 7168


@pytest.mark.parametrize(
    ("hints", "sources", "error", "words"),
    [
        ({"memory": "input_size"}, {"fixed": {"p": {"value": "/no/such"}}}, HintError, "there is no file /no/such"),
        ({"memory": "x * 2"}, {"fixed": {"y": {"value": 1}}}, HintError, "there is no input 'x'; valid: y"),
        ({"memory": "len(x)"}, {"fixed": {"x": {"unknown": "why"}}}, HintError, "input 'x' is unknown: why"),
        ({"cpus": "x * 1"}, {"method": None, "mapped": {"x": {"unknown": "why"}}}, ExpressionError, "x: why"),
    ],
)
def test_what_fails_one_job(hints: Any, sources: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        size(job(1, sources, 0 if "mapped" in sources else -1, **hints))


def test_runtime_of_a_try_that_never_started() -> None:
    assert sizing.seconds(earlier(1, "error", started_at=None)) == 0.0


def question(*tries: tuple[str, str | None], **hints: Any) -> SizingQuestion:
    """A job whose earlier tries ran at a site and ended with a cause."""
    job = UnsizedJob("t", ("d", "r", "t"), -1, len(tries) + 1, None, hints, {})
    return SizingQuestion(
        job, [JobRow(try_number=n, site=site, cause=cause) for n, (site, cause) in enumerate(tries, 1)], ()
    )


LOST = "cloud", "preempted"


def test_after_two_preemptions_a_job_goes_on_demand_and_says_why() -> None:
    asked = question(LOST, ("cloud", "error"), LOST)
    change, [lesson] = sizing.after_preemptions(asked, Change("t", {"cpus": 1}), {"cloud": 2, "hpc": 1})
    assert change.values == {"cpus": 1, "capacity_type": "on-demand"}
    assert lesson.message == "goes to an on-demand machine: 2 of its tries were preempted at site 'cloud'"
    assert lesson.entry().event == "lading leaves spot machines"


@pytest.mark.parametrize(
    "asked",
    [
        question(LOST),
        question(LOST, ("hpc", "preempted")),
        question(LOST, ("cloud", "node_failure")),
        question(LOST, LOST, capacity_type="spot"),
        question(LOST, LOST, capacity_type="on-demand"),
    ],
    ids=["one", "elsewhere", "of another cause", "spot is wanted", "on demand already"],
)
def test_else_nothing_changes(asked: SizingQuestion) -> None:
    before = Change("t", {"cpus": 1})
    assert sizing.after_preemptions(asked, before, {"cloud": 2}) == (before, [])


def test_of_a_job_that_fails_nothing_more_is_said() -> None:
    before = Change("t", {"state": State.FAILED})
    assert sizing.after_preemptions(question(LOST, LOST), before, {"cloud": 2}) == (before, [])


@pytest.mark.parametrize(
    ("capacity_type", "after", "most"),
    [("spot-with-fallback", 2, 2), ("spot-with-fallback", 0, None), ("spot", 2, None), ("on-demand", 2, None)],
)
def test_only_a_site_that_has_machines_on_demand_sends_jobs_to_them(
    capacity_type: Any, after: int, most: int | None
) -> None:
    config = EC2Config(
        kind="ec2", subnets=("subnet-0a1b2c3d",), ami={"x86_64": "ami-0a1b2c3d"}, work_dir="/w", python="/p",
        capacity_type=capacity_type, on_demand_after=after,
    )  # fmt: skip
    assert config.most_preemptions == most


def test_a_retry_of_a_task_without_hints_is_packed_by_what_is_known_and_by_what_has_failed() -> None:
    known = usage(9, peak_memory=100, cpu_seconds=10.0)
    values, words = size(job(2), earlier(1, "error"), known=known)
    assert (values["memory"], values["memory_limit"], values["cpus"]) == (102, None, 0.1015625)
    assert words == ()
    short = earlier(1, "out_of_memory", memory=104, reason_code="machine_out_of_memory")
    values, words = size(job(2), short, known=known)
    assert (values["memory"], values["memory_limit"]) == (208, None)
    assert words == ("requests 208 MiB of memory, 2 times as much: try 1 ran out of 104 MiB",)
    again = auto.from_text(values["chosen"])["memory"]
    assert again.amount("memory", sizes(known), None, None) == 208, "no resize while it waits takes that back"
    cut, words = size(job(2), short, known=known, largest=150)
    assert cut["memory"] == 150
    assert words[0].endswith("all that is available: try 1 ran out of 104 MiB")


def test_what_an_author_wrote_is_not_overruled_by_what_a_task_used() -> None:
    known = usage(9, peak_memory=100, cpu_seconds=300.0)
    values, _ = size(job(2, memory="1 GiB"), earlier(1, "error"), known=known)
    assert (values["memory"], values["memory_limit"], values["cpus"]) == (1024, 1024, 3.0)
    values, _ = size(job(2, cpus=2), earlier(1, "error"), known=known)
    assert (values["memory"], values["memory_limit"], values["cpus"]) == (102, None, 2)
