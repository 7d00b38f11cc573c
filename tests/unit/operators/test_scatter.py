"""What ``scatter`` adds to a Dag, and what it refuses; values are checked by the integration tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator, TaskGroup, task
from airflow.serialization.serialized_objects import DagSerialization

from lading.operators import ScatterError, resources, scatter
from lading.operators.scattering.jobs import label
from lading.operators.scattering.outputs import NOTHING, OutputsReference, Pages, restored, stored
from lading.operators.scattering.shape import ScatterShape


@task
def align(sample: str, region: str, ref: str = "hg38") -> str:
    return f"{sample} {region} {ref}"


@task
def samples() -> list[str]:
    return ["A1", "A2"]


def bash(**kwargs: Any) -> Any:
    return BashOperator.partial(task_id="echo", **kwargs)


def test_three_tasks_in_a_group() -> None:
    with DAG("d") as dag:
        found = samples()
        outputs = scatter(align.partial(ref="x"), sample=found, region=["1", "2"], method="flat_crossproduct")
        found >> outputs
    assert list(dag.task_group.children) == ["samples", "scatter_align"]
    assert list(dag.task_group.children["scatter_align"].children) == ["plan_align", "align", "gather_align"]
    assert {each.task_id: each.upstream_task_ids for each in dag.tasks} == {
        "samples": set(),
        "plan_align": {"samples"},
        "align": {"plan_align"},
        "gather_align": {"align"},
    }
    assert dag.get_task("align").task_type == "_PythonDecoratedOperator"
    with dag:
        outputs >> BashOperator(task_id="after", bash_command="true")
    assert dag.get_task("after").upstream_task_ids == {"gather_align"}
    with dag:
        BashOperator(task_id="before", bash_command="true") >> outputs
    assert dag.get_task("plan_align").upstream_task_ids == {"samples", "before"}


def test_names_in_groups_and_for_repeated_use() -> None:
    with DAG("d") as dag:
        with TaskGroup("outer"), TaskGroup("inner"):
            scatter(align, sample=["a"], region=["b"], method="dotproduct")
            scatter(bash(), bash_command=["true"])
        scatter(align, sample=["a"], region=["b"], method="dotproduct")
        scatter(align, sample=["a"], region=["b"], method="dotproduct")
    inner = [
        f"outer.inner.{name}" for name in ("plan_align", "align", "gather_align", "plan_echo", "echo", "gather_echo")
    ]
    outer = ["plan_align", "align", "gather_align", "plan_align__1", "align__1", "gather_align__1"]
    assert [each.task_id for each in dag.tasks] == inner + outer


def test_the_scheduler_sees_an_ordinary_mapped_task() -> None:
    with DAG("d") as dag:
        scatter(bash(retries=3), bash_command=samples(), max_instances=2, resources=resources(memory="input_size * 2"))
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    mapped = read.get_task("echo")
    assert mapped.is_mapped
    assert mapped.task_type == "BashOperator"
    assert mapped.retries == 3
    assert mapped.partial_kwargs["executor_config"] == {"lading": {"max_instances": 2, "memory": "input_size * 2"}}
    assert [each.task_id for each in mapped.iter_mapped_dependencies()] == ["plan_echo"]
    assert read.get_task("gather_echo").trigger_rule == "none_failed"


def test_hints_go_over_those_of_the_task() -> None:
    own = resources(cpus=2, memory="1 GiB")
    with DAG("d") as dag:
        scatter(align.override(executor_config={**own, "other": 1}), sample=["a"], region=[1], method="dotproduct",
                resources=resources(cpus=4), max_instances=3)  # fmt: skip
    assert dag.get_task("align").executor_config == {
        "lading": {"cpus": 4, "memory": "1 GiB", "max_instances": 3},
        "other": 1,
    }


WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("nothing to scatter over", lambda: scatter(align.partial(ref="x"))),
    ("needs a method; valid: dotproduct", lambda: scatter(align, sample=["a"], region=["b"])),
    ("method 'zip' is unknown", lambda: scatter(align, sample=["a"], method="zip")),
    (
        "equal length, but sample has 2 elements, region has 1",
        lambda: scatter(align, sample=["a", "b"], region=["c"], method="dotproduct"),
    ),
    ("input sample is 'abc', of type str; valid: a list", lambda: scatter(align, sample="abc")),
    ("input sample is 3, of type int", lambda: scatter(align, sample=3)),
    ("input sample is range(0, 3), of type range", lambda: scatter(align, sample=range(3))),
    (
        "input region is {1, 2}, of type set",
        lambda: scatter(align, sample=samples(), region={1, 2}, method="flat_crossproduct"),
    ),
    ("cannot be scattered over nope", lambda: scatter(align, nope=["a"])),
    ("cannot be scattered over nope", lambda: scatter(bash(), nope=["a"])),
    ("cannot be scattered over ti", lambda: scatter(align, ti=["a"])),
    ("ref: cannot be both scattered over and given in partial", lambda: scatter(align.partial(ref="x"), ref=["a"])),
    ("env: cannot be both scattered over and given in partial", lambda: scatter(bash(env={}), env=[{}])),
    ("cannot be scattered; valid: a function with @task", lambda: scatter(print, sample=["a"])),
    ("cannot be scattered; valid: a function with @task", lambda: scatter(samples(), sample=["a"])),
    ("max_instances is 0", lambda: scatter(align, sample=["a"], max_instances=0)),
    ("chunk_size is '10'", lambda: scatter(align, sample=["a"], chunk_size="10")),  # type: ignore[arg-type]
    ("resources is {'cpus': 2}", lambda: scatter(align, sample=["a"], resources={"cpus": 2})),
    ("do_xcom_push=False leaves no outputs", lambda: scatter(bash(do_xcom_push=False), bash_command=["true"])),
]


@pytest.mark.parametrize(("words", "use"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_use(words: str, use: Callable[[], Any]) -> None:
    with DAG("d") as dag, pytest.raises(ScatterError, match=re.escape(words)):
        use()
    assert all(each.task_id == "samples" for each in dag.tasks)


def test_outside_of_a_dag() -> None:
    with pytest.raises(ScatterError, match="align is scattered outside of a Dag"):
        scatter(align, sample=["a"])


def test_a_plain_expand_over_the_outputs_is_refused() -> None:
    with DAG("d"):
        outputs = scatter(align, sample=["a"])
        with pytest.raises(ValueError, match="cannot map over XCom with custom key 'outputs'"):
            align.expand(sample=outputs)


@pytest.mark.parametrize(
    ("count", "wanted", "size", "instances"),
    [(0, None, 1, 0), (0, 5, 5, 0), (1024, None, 1, 1024), (1025, None, 2, 513), (10_000, None, 10, 1000),
     (10, 4, 4, 3), (10_000, 3, 10, 1000), (10_000, 500, 500, 20)],
)  # fmt: skip
def test_chunks(count: int, wanted: int | None, size: int, instances: int) -> None:
    shape = ScatterShape.plan(None, {"x": count}, wanted, 1024)
    assert (shape.chunk_size, shape.instances) == (size, instances)
    assert [job for instance in range(instances) for job in shape.jobs_of(instance)] == list(range(count))
    assert ScatterShape.from_json(shape.to_json()) == shape


class Stored(Sequence[Any]):
    """What a mapped task has pushed; counts how often it is read."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.reads = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, slice)
        self.reads += 1
        return self.values[index]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("missing", [(), (0,), (1,), (0, 2)])
def test_outputs_are_where_they_belong(size: int, missing: tuple[int, ...]) -> None:
    shape = ScatterShape("nested_crossproduct", {"a": 3, "b": 4}, size)
    missing = tuple(each for each in missing if each < shape.instances)
    expected: list[Any] = [None if job % 5 == 0 else job for job in range(12)]
    for instance in missing:
        for job in shape.jobs_of(instance):
            expected[job] = None
    pushed = [
        [expected[job] for job in shape.jobs_of(instance)] if shape.chunked else stored(expected[instance])
        for instance in range(shape.instances)
        if instance not in missing
    ]
    reference = OutputsReference.from_json(OutputsReference("align", shape, missing).to_json())
    outputs = reference.open(Stored(pushed))
    assert [list(row) for row in outputs] == [expected[0:4], expected[4:8], expected[8:12]]
    assert outputs[1] == expected[4:8]
    assert outputs[-1][-1] == expected[11]
    assert list(outputs[2][1:3]) == expected[9:11]


def test_outputs_are_read_when_they_are_asked_for() -> None:
    source = Stored(list(range(1000)))
    outputs = OutputsReference("align", ScatterShape(None, {"x": 1000}, 1)).open(source)
    assert (len(outputs), source.reads) == (1000, 0)
    assert (outputs[500], source.reads) == (500, 1)
    assert list(outputs) == list(range(1000))
    assert source.reads < 15
    with pytest.raises(IndexError, match="there is no output 1000: there are 1000"):
        outputs[1000]
    assert outputs == tuple(range(1000))
    assert outputs != list(range(999))
    assert repr(outputs) == "<1000 outputs>"


def test_an_elements_reader_reads_one() -> None:
    reads: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> range:
        reads.append((start, stop))
        return range(start, stop)

    assert Pages(1000, read)[7] == 7
    assert reads == [(7, 8)]


def test_none_is_stored() -> None:
    assert restored(stored(None)) is None
    assert stored(None) == NOTHING
    for value in ("", 0, [], {}, {"lading": 1}):
        assert restored(stored(value)) == value


def test_labels() -> None:
    assert label({"sample": "A1", "region": 2}) == "sample=A1, region=2"
    assert label({"x": {"a": [1, None]}}) == 'x={"a": [1, null]}'
    assert label({"file": "/very" * 30 + "/long/name.bam"}).endswith("/long/name.bam")
    assert len(label({str(number): "x" * 100 for number in range(20)})) == 250


def test_a_dag_file_that_imports_it_loads_little() -> None:
    code = "import sys, lading.operators; print([name for name in ('airflow', 'simpleeval') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_it_is_a_subclass_still() -> None:
    with DAG("d") as dag:
        scatter(bash(), bash_command=["true"])
    operator_class = dag.get_task("echo").operator_class
    assert issubclass(operator_class, BashOperator)
    assert issubclass(operator_class, BaseOperator)
    assert (operator_class.__name__, operator_class.__module__) == (BashOperator.__name__, BashOperator.__module__)
