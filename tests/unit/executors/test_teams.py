"""Airflow's teams: several Lading executors in one scheduler, and the options of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowConfigException
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import LadingExecutor, scheduler_parts
from lading.executors.orchestrator.executor_names import executor_of, goes_to_lading
from lading.executors.orchestrator.presence import has_ended
from lading.executors.settings import Settings
from lading.executors.store import JobRow, State, figures
from lading.executors.store.queued import QueuedJobs
from lading.hooks.files import version
from lading.plugin.host import AirflowHost
from tests.clusters.sites import make_settings
from tests.unit.executors.test_executor import ENDED, OTHER, OWNER, change, engine, job, key, queue, sync

__all__ = ["engine"]
LADING = "lading.executors.LadingExecutor"


@pytest.fixture(autouse=True)
def with_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")


class Controller:
    """Takes the place of the controller's process."""

    def __init__(self, settings: Settings, job_id: int | None) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1

    def ensure(self) -> None:
        """It is always there."""


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch) -> list[Controller]:
    """All that were made."""
    made: list[Controller] = []

    def make(host: AirflowHost, settings: Settings, job_id: int | None) -> Controller:
        made.append(Controller(settings, job_id))
        return made[-1]

    monkeypatch.setattr(scheduler_parts, "ControllerProcess", make)
    monkeypatch.setattr("lading.executors.executor.ensure_tables", lambda: None)
    return made


def executors(folder: Path, *teams: str | None, owner: int = OWNER) -> list[LadingExecutor]:
    """Those of one scheduler, which have started."""
    made = [LadingExecutor(team_name=team) for team in teams]
    for each in made:
        each._settings, each.job_id = make_settings(folder), owner
        each.start()
    return made


def test_each_reports_what_it_was_given_once(engine: Engine, tmp_path: Path, controllers: list[Controller]) -> None:
    everybody, genes, loads = executors(tmp_path, None, "genes", "loads")
    for executor, token in ((everybody, "x"), (genes, "g"), (loads, "l")):
        queue(engine, executor, token)
        change(engine, token, **ENDED)
    found = [sync(each).keys() for _ in range(3) for each in (loads, everybody, genes)]
    assert [*map(set, found[:3])] == [{key("l")}, {key("x")}, {key("g")}]
    assert not any(found[3:])
    assert len(controllers) == 1


def test_a_job_has_the_team_of_its_dag_also_under_the_executor_for_all(
    engine: Engine, tmp_path: Path, controllers: list[Controller]
) -> None:
    everybody, genes = executors(tmp_path, None, "genes")
    queue(engine, everybody, "before")
    with Session(engine) as session:
        bundle = session.get_one(DagBundleModel, "bundle")
        bundle.teams.append(Team(name="loads"))
        session.commit()
    everybody.dag_facts._known.clear()
    queue(engine, everybody, "after")
    queue(engine, genes, "own")
    rows = {token: (job(engine, token).team, job(engine, token).executor_team) for token in ("before", "after", "own")}
    assert rows == {"before": (None, None), "after": ("loads", None), "own": ("genes", "genes")}


def test_who_takes_over_the_id_of_a_dag_does_not_get_its_team(
    engine: Engine, tmp_path: Path, controllers: list[Controller]
) -> None:
    """The last file that has a Dag of an id is the Dag for Airflow, in whichever team's bundle it is."""
    (everybody,) = executors(tmp_path, None)
    with Session(engine) as session:
        own, hostile = session.get_one(DagBundleModel, "bundle"), DagBundleModel(name="hostile")
        own.teams.append(Team(name="genes"))
        hostile.teams.append(Team(name="loads"))
        session.add(hostile)
        session.commit()
    queue(engine, everybody, "own")
    with Session(engine) as session:
        session.get_one(DagModel, "dag").bundle_name = "hostile"
        session.commit()
    queue(engine, everybody, "theft", bundle="hostile")
    assert (job(engine, "own").team, job(engine, "theft").team) == ("genes", "loads")


def test_the_last_that_ends_stops_the_controller(engine: Engine, tmp_path: Path, controllers: list[Controller]) -> None:
    first, second = executors(tmp_path, None, "genes")
    presence = tmp_path / "schedulers" / str(OWNER)
    first.end()
    assert (controllers[0].stops, has_ended(presence)) == (0, False)
    second.end()
    assert (controllers[0].stops, has_ended(presence)) == (1, True)
    (again,) = executors(tmp_path, None)
    assert len(controllers) == 2
    again.end()


def test_the_jobs_of_a_dead_scheduler_go_to_the_executors_of_their_teams(
    engine: Engine, tmp_path: Path, controllers: list[Controller]
) -> None:
    dead = {each.team_name: each for each in executors(tmp_path, None, "genes", "gone")}
    tokens: dict[str | None, str] = {None: "x", "genes": "g", "gone": "o"}
    for team, executor in dead.items():
        queue(engine, executor, tokens[team])
    with Session(engine) as session:
        session.execute(update(JobRow).values(owner=OTHER))
        session.commit()
    for executor in dead.values():
        executor.end()
    everybody, genes = executors(tmp_path, None, "genes")
    genes.sync()
    everybody.sync()
    with Session(engine) as session:
        rows = session.execute(select(JobRow.token, JobRow.owner, JobRow.executor_team)).all()
    # What its team has no executor for any more is the first one's.
    assert {tuple(row) for row in rows} == {("x", OWNER, None), ("g", OWNER, "genes"), ("o", OWNER, None)}
    assert (genes.live, everybody.live) == ({"g": State.QUEUED}, {"x": State.QUEUED, "o": State.QUEUED})


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = f"LocalExecutor,mine:{LADING};genes={LADING};loads=LocalExecutor,fast:{LADING}"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)


@pytest.mark.parametrize(
    ("executor", "team", "expected"),
    [
        (None, None, False),
        (None, "genes", True),
        (None, "loads", False),
        (None, "others", False),
        ("mine", "genes", True),
        ("LadingExecutor", "loads", True),
        ("fast", "loads", True),
        ("fast", "genes", False),
        ("fast", None, False),
        ("LocalExecutor", "genes", False),
        (LADING, None, True),
    ],
)
def test_tasks_go_where_airflow_sends_them(
    configured: None, executor: str | None, team: str | None, expected: bool
) -> None:
    assert goes_to_lading(executor, team) is expected


def test_without_teams_their_executors_are_none(configured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "False")
    assert not goes_to_lading(None, "genes")
    found = executor_of("LadingExecutor", "genes")
    assert found is not None
    assert found.team is None


def test_a_team_has_options_of_its_own_and_else_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AIRFLOW__LADING__DEFAULT_MEMORY": "1 GiB",
        "AIRFLOW__LADING__INFRASTRUCTURE_RETRIES": "7",
        "AIRFLOW__GENES___LADING__DEFAULT_MEMORY": "512 MiB",  # the default, which is not what counts for all
        "AIRFLOW__GENES___LADING__DEFAULT_CPUS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    genes, loads = LadingExecutor(team_name="genes").settings, LadingExecutor(team_name="loads").settings
    assert (genes.default_resources.memory, genes.default_resources.cpus, genes.infrastructure_retries) == (512, 2, 7)
    assert (loads.default_resources.memory, loads.infrastructure_retries) == (1024, 7)


def test_an_option_of_the_controller_is_refused_of_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__GENES___LADING__SITES_FILE", "/etc/sites.toml")
    with pytest.raises(AirflowConfigException, match="one controller works for all teams; valid: default_cpus"):
        Settings.of_team("genes")


def test_counts_are_by_team(engine: Engine, tmp_path: Path, controllers: list[Controller]) -> None:
    everybody, genes = executors(tmp_path, None, "genes")
    queue(engine, everybody, "x")
    queue(engine, genes, "g", "h")
    change(engine, "g", state=State.RUNNING, started_at=1.0, site="local", location="here")
    with Session(engine) as session:
        assert figures.count_live(session, QueuedJobs().read(session)) == {
            (None, "queued", None, None): 1,
            (None, "queued", "genes", None): 1,
            ("local", "running", "genes", None): 1,
        }
        assert figures.teams(session) == [
            figures.TeamFigures("genes", 1, 1, 0.25),
            figures.TeamFigures(None, 0, 1, 0.0),
        ]


def test_what_is_not_of_a_team_is_as_before(engine: Engine, tmp_path: Path, controllers: list[Controller]) -> None:
    """The rows of older versions have no executor's team."""
    (everybody,) = executors(tmp_path, None)
    queue(engine, everybody, "x")
    found: Any = job(engine, "x")
    assert found.executor_team is None


def test_no_executor_starts_with_files_of_two_versions(
    engine: Engine, tmp_path: Path, controllers: list[Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "installed_versions", lambda: {"airflow-lading": "9.9"})
    with pytest.raises(version.MixedVersions, match=r"airflow-lading 9\.9 is installed"):
        executors(tmp_path, None)
    assert controllers == []
