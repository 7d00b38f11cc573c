from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from airflow.cli import cli_parser
from sqlalchemy import text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.agent.tasks.api_client import ApiOutOfReach
from lading.executors.migrations.db_manager import LadingDBManager
from lading.executors.store import JobRow, State
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.console import complain, show
from lading.plugin.subcommands.jobs import group_rows, job_row, short_job_row


def job(task_id: str | None, map_index: int, state: State, memory: int = 512) -> JobRow:
    names = {"dag_id": "d", "run_id": "r", "task_id": task_id} if task_id else {}
    asked = {"cpus": 1.0, "memory": memory, "disk": 0, "gpus": 0.0}
    return JobRow(
        kind="ExecuteTask" if task_id else "ExecuteCallback", map_index=map_index, state=state, **names, **asked
    )


def test_jobs_of_one_task_run_and_shape_are_one_group() -> None:
    jobs = [job("align", number, State.RUNNING if number < 2 else State.QUEUED) for number in range(5)]
    jobs += [job("align", 5, State.QUEUED, memory=1024), job(None, -1, State.SUCCEEDED)]
    rows = group_rows(jobs)
    assert [
        (row["task_id"], row["asked"], row["jobs"], row["queued"], row["running"], row["succeeded"]) for row in rows
    ] == [
        ("align", "1 cpu, 512 MiB memory", 5, 3, 2, 0),
        ("align", "1 cpu, 1 GiB memory", 1, 1, 0, 0),
        ("ExecuteCallback", "1 cpu, 512 MiB memory", 1, 0, 0, 1),
    ]


def test_a_callback_of_a_dag_is_no_task() -> None:
    one = job(None, -1, State.RUNNING)
    one.dag_id, one.queued_at, one.try_number = "d", 5.0, 0
    assert (job_row(one)["dag_id"], short_job_row(one)["task"]) == ("d", "d.ExecuteCallback")
    assert [row["task_id"] for row in group_rows([one])] == ["ExecuteCallback"]


def test_the_batch_job_and_its_node() -> None:
    one = job("align", -1, State.RUNNING)
    one.native_id, one.node, one.queued_at, one.try_number = "17[3].pbs", "n1", 5.0, 1
    assert (job_row(one)["batch_job"], job_row(one)["node"]) == ("17[3].pbs", "n1")
    assert (short_job_row(one)["batch job"], short_job_row(one)["node"]) == ("17[3].pbs", "n1")


def test_what_its_site_adds_to_the_request() -> None:
    one = job("align", -1, State.RUNNING)
    one.queued_at, one.try_number = 5.0, 1
    assert short_job_row(one)["asked"] == "1 cpu, 512 MiB memory"
    assert short_job_row(one, overhead=384)["asked"] == "1 cpu, 512 MiB memory + 384 MiB overhead"
    one.nodes = 4
    assert short_job_row(one, overhead=384)["asked"] == "4 × (1 cpu, 512 MiB memory + 384 MiB overhead)"
    assert "384" not in json.dumps(job_row(one))
    one.kind = "JobScript"
    assert short_job_row(one, overhead=384)["asked"] == "4 × (1 cpu, 512 MiB memory)"


def test_amounts_have_units_in_a_table_and_none_for_programs() -> None:
    one = job("align", -1, State.SUCCEEDED)
    one.try_number, one.queued_at, one.started_at, one.ended_at = 1, 100.0, 102.5, 202.0
    one.peak_memory, one.cpu_seconds = 1536, 31.4
    row, short = job_row(one), short_job_row(one)
    assert [row[name] for name in ("wait_seconds", "duration_seconds", "peak_memory_mib", "cpu_seconds")] == [
        2.5, 99.5, 1536, 31.4,
    ]  # fmt: skip
    assert [short[name] for name in ("waited", "ran", "peak memory", "cpu time")] == [
        "2.5 s", "1 min 40 s", "1.5 GiB", "31 s",
    ]  # fmt: skip
    one.started_at = one.peak_memory = one.cpu_seconds = None
    assert [short_job_row(one)[name] for name in ("ran", "peak memory", "cpu time")] == [None, None, None]


@pytest.fixture
def lading(airflow_database: Engine, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a command as ``airflow`` would; the standard output and the standard error."""
    with Session(airflow_database) as session:
        table = LadingDBManager.version_table_name
        session.execute(text(f"CREATE TABLE {table} (version_num VARCHAR(32))"))
        [head] = LadingDBManager(session).get_script_object().get_heads()
        session.execute(text(f"INSERT INTO {table} VALUES (:head)"), {"head": head})
        asked = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0, "priority": 0, "map_index": -1, "try_number": 1}
        for number in range(60):
            names = {"dag_id": "d", "run_id": f"r{number // 2:02}", "task_id": "t", "subject": str(number)}
            state = State.QUEUED if number % 2 else State.FAILED
            rest = {"kind": "ExecuteTask", "workload": "{}", "queued_at": 1000.0 + number, "state": state}
            store.add_job(session, token=f"job{number}", **{**asked, **names, **rest})
        session.commit()

    def run(*arguments: str) -> tuple[str, str]:
        capsys.readouterr()
        args = cli_parser.get_parser().parse_args(["lading", *arguments])
        args.func(args)
        out, err = capsys.readouterr()
        return out, err

    return run


def test_groups_are_made_of_all_jobs(lading: Callable[..., tuple[str, str]]) -> None:
    """Not of the youngest 50, of which the last groups would have some alone."""
    out, err = lading("jobs", "--groups", "-o", "plain")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [row[1] for row in rows] == [f"r{number:02}" for number in reversed(range(30))]
    assert {tuple(row[8:10]) for row in rows} == {("2", "1")}
    assert err == ""
    out, err = lading("jobs", "--groups", "--limit", "10", "-o", "plain")
    assert len(out.splitlines()) == 1 + 10
    assert err == "and 20 older groups: --limit 30 shows all\n"
    out, err = lading("jobs", "--groups", "--state", "failed", "--run-id", "r03", "-o", "plain")
    assert len(out.splitlines()) == 1 + 1
    out, err = lading("jobs", "-o", "plain")
    assert len(out.splitlines()) == 1 + 50
    assert err == "and 10 older: --limit 60 shows all\n"


def test_a_misspelt_dag_or_run_is_answered_with_those_that_exist(lading: Callable[..., tuple[str, str]]) -> None:
    for options in ((), ("--groups",)):
        _, err = lading("jobs", "--dag-id", "typo", *options)
        assert "There is no record of a job of Dag 'typo'; Dags with jobs: d. " in err
        _, err = lading("jobs", "--dag-id", "d", "--run-id", "r99", *options)
        assert "There is no record of run 'r99' of Dag 'd'; its newest runs: r29, r28, " in err
    _, err = lading("jobs", "--dag-id", "d", "--state", "failed", "--run-id", "r03")
    assert "no record" not in err


@pytest.mark.parametrize("output", ["table", "plain"])
def test_a_table_has_no_none(
    lading: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    out, _ = lading("jobs", "--limit", "1", "-o", output)
    assert "None" not in out
    assert "d.t" in out


def test_nobody_can_be_asked(
    lading: Callable[..., tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("AIRFLOW__LADING__STATE_FOLDER", str(tmp_path / "state"))
    with pytest.raises(SystemExit) as caught:
        lading("uninstall")
    assert "there was no answer; to remove without asking, use --yes" in str(caught.value)


def test_errors_of_several_lines_are_one(
    lading: Callable[..., tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """httpx words the errors of HTTP so."""
    request = httpx.Request("GET", "http://127.0.0.1/x")
    with pytest.raises(httpx.HTTPStatusError) as caught:
        httpx.Response(503, request=request).raise_for_status()
    assert "\n" in str(caught.value)
    for output in ("table", "plain", "csv"):
        show(AirflowHost(), [{"reason": str(caught.value)}], output)
    complain(str(caught.value))
    out, err = capsys.readouterr()
    assert "\\n" not in out + err
    assert "for url 'http://127.0.0.1/x' For more information" in err
    assert str(ApiOutOfReach(caught.value)).endswith("'503 Service Unavailable' for url 'http://127.0.0.1/x'")
