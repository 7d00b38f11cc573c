"""Shares on real databases: whose tasks end when, where a controller leads a machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.dag import DagModel
from sqlalchemy import create_engine, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows
from lading.executors.controller.controller import Controller
from lading.executors.store import JobRow, State
from tests.clusters.agents import AgentSite
from tests.clusters.bought import Clock
from tests.clusters.sites import StoreHost, make_settings, rest
from tests.conftest import DATABASES

TWO_TEAMS = """
[sites.lab]
kind = "fake"

[[shares]]
team = "a"
weight = 2

[[shares]]
team = "b"
"""
TASKS = 500
# What passes between two ticks, seconds: shares count time, and how long a tick really takes is no matter of theirs.
TICK = 1.0


@pytest.fixture(params=DATABASES)
def engine(
    request: pytest.FixtureRequest,
    database_url: Callable[[str], str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Engine]:
    """A database with all tables, which the controller takes for Airflow's."""
    import_all_models()
    engine = create_engine(database_url(request.param) or f"sqlite:///{tmp_path}/store.db")
    DagModel.metadata.create_all(engine)
    store.metadata.create_all(engine)

    monkeypatch.setattr(time, "time", Clock(time.time()))
    yield engine
    engine.dispose()


def queue(engine: Engine, dags: dict[str, str | None], number: int = TASKS, **columns: Any) -> None:
    """Queue tasks, all of one Dag before those of the next.

    :param dags: the team of each
    """
    known = {"kind": "Test", "subject": "s", "workload": "{}", "priority": 1, "try_number": 1, "news": 0}
    known |= {"map_index": -1, "unreported": False, "state": State.QUEUED, "cpus": 1.0, "memory": 512, "disk": 0}
    known |= {"gpus": 0.0, "run_id": "run", "task_id": "task", **columns}
    begin = time.time() - 1000
    rows = [
        {**known, "token": f"{dag}-{n:04}", "dag_id": dag, "team": team, "queued_at": begin + TASKS * order + n}
        for order, (dag, team) in enumerate(dags.items())
        for n in range(number)
    ]
    with Session(engine) as session:
        session.execute(insert(JobRow), rows)
        session.commit()


class Machine:
    """A controller that leads one machine of eight cpus."""

    def __init__(self, engine: Engine, folder: Path, file: str | None, **options: Any) -> None:
        self.site = AgentSite("lab", folder)
        path = None if file is None else folder / "sites.toml"
        if path is not None and file is not None:
            path.write_text(file)
        settings = make_settings(folder / "state", sites_file=path, **options)
        settings.state_folder.mkdir(exist_ok=True)
        self.controller = Controller(
            StoreHost(engine), {"lab": self.site}, lambda subject, seconds: "", settings, True, lambda some: None
        )

    def tick(self) -> None:
        """One tick, when the thread of the site has done what it has to."""
        assert isinstance(time.time, Clock)
        time.time.now += TICK
        made = self.controller
        made.leadership.leads_until = time.monotonic() + 60
        rest(made.threads)
        made.threads.request_observations()
        rest(made.threads)
        seen = made.observe()
        any_wait = made.any_wait()
        decision = made.decide(seen, any_wait)
        made.record(decision, any_wait, time.time())
        made.act(decision)
        rest(made.threads)

    def run_until(self, number: int) -> list[str]:
        """The Dags of the tasks that have ended, in that order, when so many have."""
        for _ in range(number):
            if len(self.site.ended) >= number:
                break
            self.tick()
            self.site.advance()
        return [token.partition("-")[0] for token in self.site.ended]


def test_the_tasks_of_two_teams_end_interleaved_by_weight(engine: Engine, tmp_path: Path) -> None:
    dags = {"a1": "a", "a2": "a", "b1": "b"}
    queue(engine, dags)
    machine = Machine(engine, tmp_path, TWO_TEAMS)
    machine.run_until(3 * TASKS - 60)
    machine.controller.shares._next_note = 0.0  # what has been used is stored once in a while: in the next tick
    ended = machine.run_until(3 * TASKS)
    machine.tick()
    assert Counter(ended) == dict.fromkeys(dags, TASKS)
    # As long as both have work: of any sixty that end one after the other two thirds are of team a, within what two
    # rounds of the machine hold.
    for start in range(0, 3 * TASKS - 120, 60):
        of_b = sum(dag == "b1" for dag in ended[start : start + 60])
        assert 20 - 6 <= of_b <= 20 + 6, (start, of_b)
    with Session(engine) as session:
        means, _ = share_rows.means(session)
        assert means.keys() >= {"team a", "team b"}
        assert set(session.scalars(select(JobRow.state))) == {State.SUCCEEDED}


@pytest.mark.parametrize("fair", [True, False])
def test_without_a_table_dags_take_turns_unless_that_is_turned_off(engine: Engine, tmp_path: Path, fair: bool) -> None:
    queue(engine, {"one": None, "two": None, "three": None})
    ended = Machine(engine, tmp_path, None, fair=fair).run_until(240)
    counts = Counter(ended[:240])
    if fair:
        assert all(abs(counts[dag] - 80) <= 8 for dag in ("one", "two", "three")), counts
    else:
        assert counts == {"one": 240}


def test_a_priority_comes_before_all_dags_where_no_share_is_declared(engine: Engine, tmp_path: Path) -> None:
    queue(engine, {"one": None}, 100)
    queue(engine, {"urgent": None}, 40, priority=5)
    assert set(Machine(engine, tmp_path, None).run_until(40)[:40]) == {"urgent"}
