"""What ``airflow lading advice`` shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import State
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.advice import remarks, row, short_row
from lading.plugin.ui.queries.advice import advice, advised

COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0}


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as found:
        yield found


def add(session: Session, token: str, task_id: str, **values: object) -> None:
    times = {"queued_at": 0.0, "started_at": 60.0, "ended_at": 3660.0}
    asked = {"cpus": 4.0, "memory": 8192, "memory_limit": 8192, "state": State.SUCCEEDED, "cpu_seconds": 5400.0}
    given = {**asked, **times, "peak_memory": 1600, **values}
    store.add_job(session, token=token, dag_id="d", run_id="r", task_id=task_id, **COMMON, **given)


def test_it_says_what_the_page_says_and_what_the_line_would_have_wasted(session: Session) -> None:
    for number in range(20):
        add(session, f"a{number}", "align")
    add(session, "b", "call", state=State.FAILED, cause="out_of_memory", memory=1024, memory_limit=1024)
    session.flush()
    align, call = (row(AirflowHost(), task) for task in advised(session, "d"))
    assert align == {
        "task_id": "align", "tries": 20, "short": 0, "cpus_asked": 4.0, "cpus": 1.5, "memory_asked": 8192,
        "memory": 1624, "time": 4380, "wasted": 128.75, "wasted_by_line": 0.469,
        "line": 'executor_config=resources(cpus=1.5, memory="1624 MiB", time="1 h 13 min")',
    }  # fmt: skip
    assert (call["tries"], call["short"], call["line"], call["wasted"]) == (1, 1, None, None)
    short = short_row(AirflowHost(), advised(session, "d")[0])
    assert (short["memory_asked"], short["memory"], short["time"]) == ("8 GiB", "1624 MiB", "1 h 13 min")
    assert (short["wasted"], short["wasted_by_line"]) == ("128.75 GiB-hours", "0.469 GiB-hours")
    assert short_row(AirflowHost(), advised(session, "d")[1])["wasted"] is None
    on_page = advice(session, "d").tasks
    assert [(task.task_id, task.line, task.memory.nearly_all) for task in on_page] == [
        (each["task_id"], each["line"], each["memory"]) for each in (align, call)
    ]
    assert advised(session, "other") == []


def test_each_missing_amount_is_explained(session: Session) -> None:
    for number in range(3):
        add(session, f"a{number}", "fine")
    session.flush()
    assert list(remarks([task.size for task in advised(session, "d")])) == []
    add(session, "b", "new")
    for number in range(4):
        add(session, f"c{number}", "brief", ended_at=61.0, memory_limit=None)
    session.flush()
    assert list(remarks([task.size for task in advised(session, "d")])) == [
        "Tasks with fewer than 3 tries get no advice.",
        "Other tasks without memory: no try of at least 2 s has a measured peak.",
        "Other tasks without cpus: no try of at least 10 s has measured cpu seconds.",
    ]
