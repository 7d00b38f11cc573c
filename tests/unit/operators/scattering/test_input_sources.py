"""Where the inputs of a task come from, and their values in the controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.xcom import XComModel
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, task, task_group
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from lading.executors.sizing.inputs import Inputs
from lading.hooks.files.xcom_json import Unknown
from lading.operators import scatter
from lading.operators.scattering import input_sources
from lading.scheduling.hints.expressions import ExpressionError


@task
def found() -> list[str]:
    return ["/a", "/b"]


@task
def use(path: str, number: int = 0, other: Any = None) -> str:
    return path


def described(build: Callable[[], Any], task_id: str = "use", used: set[str] | None = None) -> dict[str, Any]:
    with DAG("d") as dag:
        build()
    spec = input_sources.of_task(dag.get_task(task_id), used)
    return json.loads(json.dumps(spec))


def test_an_ordinary_task() -> None:
    spec = described(lambda: use(found(), number=3, other=Asset(name="x", uri="s3://b/x")))
    assert spec == {
        "fixed": {
            "path": {"xcom": ["found", "return_value"], "mapped": False},
            "number": {"value": 3},
            "other": {"value": "s3://b/x"},
        }
    }
    assert described(lambda: use(found(), number=3), used={"number"}) == {"fixed": {"number": {"value": 3}}}
    assert described(lambda: use(found()), used={"number"}) == {"fixed": {"number": {"value": 0}}}, "its default"


def test_what_a_task_leaves_out_is_an_input_that_it_can_be_given() -> None:
    @task
    def many(path: str, *more: str, other: Any = None, ti: Any = None, **rest: Any) -> None: ...

    with DAG("d") as dag:
        many("/a", also=1)
        many.override(task_id="mapped").expand(path=["/a"])
        BashOperator.partial(task_id="classic", bash_command="true").expand(cwd=["/a"])
    found = {each.task_id: input_sources.declared(each) for each in dag.tasks}
    assert found == {
        "many": {"path", "other", "also"}, "mapped": {"path", "other"}, "classic": {"bash_command", "cwd", "env"},
    }  # fmt: skip
    assert "other" not in input_sources.names(dag.get_task("many"))


def test_a_classic_operator() -> None:
    def build() -> None:
        BashOperator(task_id="use", bash_command="sort {{ ds }}", env={"A": "/a"})

    fixed = described(build)["fixed"]
    assert fixed["env"] == {"value": {"A": "/a"}}
    assert fixed["bash_command"] == {"unknown": "it is a template, which is rendered within the task itself"}


def test_mapped_tasks() -> None:
    spec = described(lambda: use.partial(number=1).expand(path=found(), other=[1, 2]))
    assert spec["fixed"] == {"number": {"value": 1}}
    assert spec["method"] == "flat_crossproduct"
    assert spec["mapped"] == {"path": {"xcom": ["found", "return_value"], "mapped": False}, "other": {"value": [1, 2]}}
    assert described(lambda: use.expand_kwargs([{"path": "/a"}]))["rows"] == {"value": [{"path": "/a"}]}
    upstream = described(lambda: use.override(task_id="last").expand(path=use.expand(path=["/a"])), "last")
    assert upstream["mapped"]["path"] == {"xcom": ["use", "return_value"], "mapped": True}


def test_scatters() -> None:
    def build() -> None:
        first = scatter(use.override(task_id="first"), path=found())
        scatter(use.partial(number=1), path=first, other=[1], method="dotproduct")

    assert described(build) == {
        "fixed": {"number": {"value": 1}},
        "method": "dotproduct",
        "mapped": {"path": {"outputs": ["gather_first", "outputs"]}, "other": {"value": [1]}},
        "plan": "plan_use",
    }


def test_what_only_the_task_knows() -> None:
    def build() -> None:
        @task_group
        def group(x: str) -> None:
            use(use.override(task_id="inner")(x))  # type: ignore[arg-type]

        group.expand(x=["/a"])

    assert described(build, "group.use")["fixed"]["path"] == {"unknown": "task group.inner is in a mapped task group"}
    zipped = described(lambda: use(found().zip(found.override(task_id="more")())))
    assert "map, zip or concat" in zipped["fixed"]["path"]["unknown"]
    assert "of type object" in described(lambda: use("/a", other=object()))["fixed"]["other"]["unknown"]


@pytest.fixture
def session(tmp_path: Path) -> Any:
    import_all_models()  # its foreign keys lead to other tables
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    XComModel.__table__.create(engine)
    pushed = [
        ("found", "return_value", -1, ["/a", "/b"]),
        ("plan_use", "shape", -1, {"method": "dotproduct", "lengths": {"path": 5}, "chunk_size": 2}),
        ("gather_first", "outputs", -1,
         {"task_id": "first", "shape": {"method": None, "lengths": {"x": 3}, "chunk_size": 1}, "missing": [1]}),
        ("first", "return_value", 0, "/f0"),
        ("first", "return_value", 2, {"lading": "None"}),
    ]  # fmt: skip
    rows = [
        {
            "dag_run_id": 1,
            "dag_id": "d",
            "run_id": "r",
            "task_id": task_id,
            "key": key,
            "map_index": index,
            "value": value,
        }
        for task_id, key, index, value in pushed
    ]
    with Session(engine) as session:
        session.execute(insert(XComModel), rows)
        yield session


def inputs(session: Session, **spec: Any) -> Inputs:
    return Inputs(session, "d", "r", spec)


FOUND = {"xcom": ["found", "return_value"], "mapped": False}


def test_inputs_of_an_ordinary_job(session: Session) -> None:
    assert inputs(session, fixed={"path": FOUND, "n": {"value": 1}, "t": {"unknown": "why"}}).for_job(-1) == [
        {"path": ["/a", "/b"], "n": 1, "t": Unknown("why")}
    ]
    assert inputs(session, fixed={"path": {"xcom": ["first", "return_value"], "mapped": True}}).for_job(-1) == [
        {"path": ["/f0", {"lading": "None"}]}
    ]


def test_inputs_of_mapped_jobs(session: Session) -> None:
    crossed = inputs(session, fixed={"n": {"value": 1}}, method="flat_crossproduct",
                     mapped={"path": FOUND, "k": {"value": [7, 8, 9]}})  # fmt: skip
    assert crossed.for_job(4) == [{"n": 1, "path": "/b", "k": 8}]
    rows = inputs(session, rows={"value": [{"a": 1}, {"a": 2}]}, fixed={"b": {"value": 0}})
    assert rows.for_job(1) == [{"a": 2, "b": 0}]
    pairs = inputs(session, method=None, mapped={"pair": {"value": {"k": 1, "l": 2}}})
    assert pairs.for_job(1) == [{"pair": ("l", 2)}]


def test_inputs_of_a_chunk(session: Session) -> None:
    chunked = inputs(session, plan="plan_use", method="dotproduct", mapped={"path": {"value": list("abcde")}})
    assert [job["path"] for job in chunked.for_job(1)] == ["c", "d"]
    assert [job["path"] for job in chunked.for_job(2)] == ["e"]


def test_outputs_of_a_scatter_as_inputs(session: Session) -> None:
    after = inputs(session, method="dotproduct", mapped={"x": {"outputs": ["gather_first", "outputs"]}})
    assert [after.for_job(index) for index in range(3)] == [[{"x": "/f0"}], [{"x": None}], [{"x": None}]]


def test_inputs_that_are_not_known(session: Session) -> None:
    with pytest.raises(ExpressionError, match="the inputs are unknown: x: why"):
        inputs(session, method=None, mapped={"x": {"unknown": "why"}}).for_job(0)
    with pytest.raises(ExpressionError, match="input x is None"):
        inputs(session, method=None, mapped={"x": {"xcom": ["none", "return_value"], "mapped": False}}).for_job(0)
