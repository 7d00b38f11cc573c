"""The team of a Dag by the bundle of its file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lading.hooks.dags.teams import VARIABLE, UnknownTeam, team_of_file, team_of_process, team_of_triggerer

LOCAL = "airflow.dag_processing.bundles.local.LocalDagBundle"


@pytest.fixture(autouse=True)
def bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured = [
        {"name": "all", "classpath": LOCAL, "kwargs": {}},
        {"name": "genes", "classpath": LOCAL, "kwargs": {"path": f"{tmp_path}/genes"}, "team_name": "genes"},
        {"name": "inner", "classpath": LOCAL, "kwargs": {"path": f"{tmp_path}/genes/inner"}, "team_name": "inner"},
        {"name": "git", "classpath": "some.GitDagBundle", "kwargs": {"repo": "x"}, "team_name": "loads"},
    ]
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", f"{tmp_path}/dags")
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", f"{tmp_path}/bundles")
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(configured))


@pytest.mark.parametrize(
    ("file", "team"),
    [
        ("dags/a.py", None),
        ("genes/a.py", "genes"),
        ("genes/deep/a.py", "genes"),
        ("genes/inner/a.py", "inner"),
        ("genes2/a.py", None),
        ("bundles/git/tracking_repo/a.py", "loads"),
        ("bundles/git/versions/abc/a.py", "loads"),
    ],
)
def test_a_file_is_of_the_innermost_bundle(tmp_path: Path, file: str, team: str | None) -> None:
    assert team_of_file(f"{tmp_path}/{file}") == team


def test_a_job_has_the_team_that_the_controller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "loads")
    assert team_of_process() == "loads"


def test_a_task_has_the_team_that_the_api_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert team_of_process() is None, "no task runs here"
    context = {"dag_run": SimpleNamespace(team_name="genes")}
    monkeypatch.setattr("airflow.sdk.get_current_context", lambda: context)
    assert team_of_process() == "genes"


def test_at_dag_parse_the_environment_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "loads")
    assert team_of_file(f"{tmp_path}/genes/a.py") == "genes"


@pytest.mark.parametrize(
    ("arguments", "team"),
    [
        (["triggerer", "--team-name", "genes"], "genes"),
        (["triggerer", "--skip-serve-logs", "--team-name=genes"], "genes"),
        (["triggerer"], None),
    ],
)
def test_the_triggers_of_a_triggerer_are_of_its_team(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], team: str | None
) -> None:
    monkeypatch.setenv(VARIABLE, "loads")
    monkeypatch.setattr("sys.argv", ["airflow", *arguments])
    assert team_of_triggerer() == team


@pytest.mark.parametrize("arguments", [[], ["scheduler"], ["--nonsense"]])
def test_what_runs_in_no_triggerer_is_of_no_known_team(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["pytest", *arguments])
    with pytest.raises(UnknownTeam, match="run only in `airflow triggerer`"):
        team_of_triggerer()
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "False")
    assert team_of_triggerer() is None


def test_without_teams_no_dag_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "False")
    assert team_of_file(f"{tmp_path}/genes/a.py") is None
    assert team_of_file(None) is None
