"""Where files are, and which of them waiting jobs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.agent.tasks import outputs
from lading.executors.store import JobRow, State, data
from lading.executors.store.data import Data
from lading.scheduling.placing.policies import Files


@pytest.fixture
def session(tmp_path: Path) -> Session:
    engine = create_engine(f"sqlite:///{tmp_path}/store.db")
    store.metadata.create_all(engine)
    return Session(engine)


def add(session: Session, token: str, state: State, run: str = "r", **columns: Any) -> None:
    amounts = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0}
    named = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "dag_id": "d", "run_id": run, "task_id": "t"}
    numbers = {"priority": 1, "queued_at": 1.0, "map_index": -1, "try_number": 1, "news": 0, "unreported": False}
    session.add(JobRow(token=token, state=state, **amounts, **named, **numbers, **columns))
    session.flush()


def finished(token: str, *outputs: tuple[str, int]) -> dict[str, Any]:
    return {"event": "finished", "token": token, "outputs": dict(outputs)}


def test_what_jobs_leave_is_found_by_those_that_read_it(session: Session) -> None:
    for token, location in (("a", "X"), ("b", "Y"), ("c", "X")):
        add(session, token, State.SUCCEEDED, site="lab", location=location)
    data.note(session, "lab", [finished("a", ("/large", 10), ("/both", 1)), finished("b", ("/both", 3)), finished("c")])
    data.note(session, "other", [finished("a", ("/forged", 10))])
    add(session, "reads", State.QUEUED, inputs=json.dumps({"/large": 0, "/both": 7, "/nowhere": 5}))
    assert data.read(session, ["reads", "unknown"]) == Files(
        {"reads": {"/large": 10, "/both": 3, "/nowhere": 5}},
        {"/large": frozenset({("lab", "X")}), "/both": frozenset({("lab", "X"), ("lab", "Y")})},
    )
    data.note(session, "lab", [finished("c", ("/large", 11))])
    assert data.read(session, ["reads"]).inputs["reads"]["/large"] == 11, "it was written anew"
    assert session.scalar(select(func.count()).select_from(Data)) == 3


def test_jobs_may_leave_the_same_file(session: Session) -> None:
    for token in ("a", "b"):
        add(session, token, State.SUCCEEDED, site="lab", location="X")
    session.autoflush = False  # as Airflow has it
    for size in (1, 2):
        data.note(session, "lab", [finished("a", ("/same", 5)), finished("b", ("/same", size))])
        session.commit()
        assert [(row.location, row.bytes) for row in session.scalars(select(Data))] == [("X", size)]


def test_a_file_whose_name_no_database_takes_costs_itself_alone(session: Session) -> None:
    """Else no event of its site would ever be stored."""
    add(session, "a", State.SUCCEEDED, site="lab", location="X")
    data.note(session, "lab", [finished("a", ("/nul\0", 1), ("/half \ud800", 1), ("/well \xe9", 2))])
    session.flush()
    assert [row.uri for row in session.scalars(select(Data))] == ["/well \xe9"]


def test_what_live_runs_have_left_is_needed(session: Session) -> None:
    add(session, "a", State.SUCCEEDED, "over", site="lab", location="X")
    add(session, "b", State.SUCCEEDED, "live", site="lab", location="Y")
    add(session, "c", State.SUCCEEDED, "live", site="lab", location="Y")
    for _ in range(2):
        add(session, f"waits{_}", State.QUEUED, "live")
    data.note(session, "lab", [finished("a", ("/a", 10)), finished("b", ("/b", 5)), finished("c", ("/c", 6))])
    assert data.needed(session, "lab") == {"Y": 11}
    data.forget(session, 2e9)
    assert data.needed(session, "lab") == {}


def test_what_a_result_names_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "one").write_text("12345")
    (folder / "two").write_text("123")
    file = tmp_path / "a file"
    file.write_text("1234")
    asset = {
        "__classname__": "airflow.sdk.definitions.asset.Asset",
        "__version__": 1,
        "__data__": {"uri": f"file://{folder}"},
    }
    values = [{"file": str(file), "more": [f"file://{tmp_path}/a%20file", 5]}, asset, f"{tmp_path}/missing", "s3://b/k"]
    assert outputs.measured(values) == {str(folder): 8, str(file): 4}
    assert outputs.measured(["plain text", None, 5]) == {}


def test_of_many_files_the_largest_are_reported(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_text("x" * number)
    assert outputs.measured([[f"{tmp_path}/{number}" for number in range(4)]], most=2) == {
        f"{tmp_path}/3": 3,
        f"{tmp_path}/2": 2,
    }
