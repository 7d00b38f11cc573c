"""``airflow lading hurry`` on a real database."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.utils import cli_action_loggers
from airflow.utils.types import DagRunType
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.orchestrator import airflow_run_requests
from lading.executors.store import run_rows
from lading.executors.store.run_rows import RunForecast, RunRequest
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.hurry import hurry
from lading.scheduling.hints.finish_by import parse_finish_by
from tests.unit.plugin.subcommands.test_cli import parsed


@pytest.fixture
def session(airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("AIRFLOW__LADING__STATE_FOLDER", str(tmp_path))
    # The tables are there, made without a migration.
    monkeypatch.setattr(AirflowHost, "store_fault", lambda self, session: None)
    session = Session(airflow_database)
    session.add(DagBundleModel(name="b"))
    session.flush()
    session.add(DagModel(dag_id="d", bundle_name="b"))
    session.flush()
    session.add(DagRun(dag_id="d", run_id="r", run_type=DagRunType.MANUAL, state="running"))
    run_rows.note(session, {("d", "r"): RunForecast(0.5, None, 1_800_000_000.0)})
    session.commit()
    return session


def test_a_run_is_hurried_and_that_is_taken_back(
    session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[str, str]] = []
    monkeypatch.setattr(
        cli_action_loggers,
        "on_pre_execution",
        lambda *, sub_command, dag_id, **_: logged.append((sub_command, dag_id)),
    )

    def said(*arguments: str) -> str:
        hurry(parsed("hurry", ["d", "r", *arguments]))
        session.expire_all()
        session.rollback()
        return capsys.readouterr().out

    assert said() == "hurry 0.5, as its Dag says\nplanned to finish at about 2027-01-15 08:00:00 UTC\n"
    assert f"hurry 10, requested by {getpass.getuser()}\nfinish_by 06:00" in said("fast", "--finish-by", "06:00")
    assert airflow_run_requests.asked(session) == {("d", "r"): RunRequest(10.0, parse_finish_by("06:00"))}
    assert "finish_by 2 h" in said("--finish-by", "2h")
    assert airflow_run_requests.asked(session) == {("d", "r"): RunRequest(None, parse_finish_by("2h"))}
    run_rows.note(session, {("d", "r"): RunForecast(10.0, 1_800_000_900.0, 1_800_000_000.0)})
    session.commit()
    withdrawn = "the request was withdrawn: a plan without it is made within seconds\n"
    assert said("--withdraw") == withdrawn, "and nothing of what was forecast by it"
    assert said("--withdraw") == withdrawn
    assert airflow_run_requests.asked(session) == {}
    run_rows.note(session, {("d", "r"): RunForecast()})
    session.commit()
    assert said() == "hurry as set for each site\n"
    assert logged == [("hurry", "d")] * 6, "what Airflow's audit log gets"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["d", "gone", "fast"], "Dag 'd' has no live run 'gone'; valid: "),
        (["d", "gone"], "Dag d has no unfinished run gone"),
        (["d", "r", "soon"], "'soon' is not a value of hurry; valid: 0 to 100, or one of cheap, balanced, fast"),
        (["d", "r", "--finish-by", "soon"], "'soon' is not a deadline for a run; valid: "),
        (["d", "r", "fast", "--withdraw"], "--withdraw removes what was set before; give it alone"),
    ],
)
def test_what_cannot_be_asked_ends_with_status_1(
    session: Session, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        hurry(parsed("hurry", arguments))
    assert ended.value.code == 1
    assert complaint in capsys.readouterr().err
    assert airflow_run_requests.asked(session) == {}
