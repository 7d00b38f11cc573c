"""A budget of cpu-hours is spent while forty jobs lie in the spool of a machine: none of them starts.

The controller, the site and its agent are real.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.agent.tasks import probe
from lading.executors.controller import shares
from lading.executors.controller.controller import Controller
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.store import JobRow, State
from lading.hooks.conformance.site_suite import close
from lading.hooks.machines.local import LocalConfig, LocalSite
from tests.clusters.driven import HEALTH, asked
from tests.clusters.sites import StoreHost, make_settings, make_store
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until

PATIENCE = 90.0
BUDGET = '[[budgets]]\nname = "b"\nteam = "b"\ncpu_hours = 10\nper = "month"\n'


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(shares.Budgets, "seconds_between_notes", 0.0)
    monkeypatch.setattr(AirflowOrchestrator, "note", lambda self, session, notes: None)  # the log has no table here
    return make_store(tmp_path)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutionApi]:
    with ExecutionApi() as found:
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", found.url)
        monkeypatch.setenv("AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT", "200")
        yield found


def add(engine: Engine, number: int, **columns: Any) -> None:
    job = {
        "kind": "Probe", "subject": "s", "workload": json.dumps(probe.workload()), "memory": 10, "disk": 0, "gpus": 0.0,
        "priority": 0, "state": State.QUEUED, "queued_at": time.time(), "dag_id": "d", "run_id": "r", "task_id": "t",
        "team": "b", "time_limit": 600,
    }  # fmt: skip
    with Session(engine) as session:
        for index in range(number):
            store.add_job(session, token=str(uuid.uuid4()), map_index=index, **{**job, **columns})
        session.commit()


def states(engine: Engine) -> Counter[tuple[str, str | None]]:
    with Session(engine) as session:
        return Counter(
            (row.state, row.reason_code) for row in session.execute(select(JobRow.state, JobRow.reason_code))
        )


def test_what_has_not_started_when_its_budget_is_spent_does_not_start(
    engine: Engine, api: ExecutionApi, tmp_path: Path
) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(f'[sites.here]\nkind = "local"\n{BUDGET}')
    site = LocalSite("here", LocalConfig(accept_untargeted=True, cpus=1, memory=1000, kill_grace=2), tmp_path / "here")
    settings = make_settings(tmp_path / "state", sites_file=path)
    settings.state_folder.mkdir()
    made = Controller(
        StoreHost(engine), {"here": site}, lambda subject, seconds: "jwt", settings, True, lambda changes: None
    )
    made.parent = 0
    api.gates[HEALTH] = gate = threading.Event()

    def until(there: Any) -> None:
        def ticked() -> bool:
            made.leadership.leads_until = time.monotonic() + 60
            made.tick()
            return bool(there())

        assert wait_until(ticked, PATIENCE, 0.05), (states(engine), site.spool.log.read_text())

    try:
        add(engine, 1, cpus=1.0)  # it fills the machine until the gate is opened
        until(lambda: asked(api) == 1)
        add(engine, 40, cpus=0.02)
        until(lambda: len(list(site.spool.inbox.glob("*.json"))) == 40)
        ended = {"state": State.SUCCEEDED, "started_at": time.time() - 3600, "ended_at": time.time()}
        add(engine, 1, cpus=20.0, task_id="costly", **ended)
        until(lambda: states(engine)[State.QUEUED, "budget_spent_cpu_hours"] == 40)
        gate.set()
        until(lambda: states(engine)[State.SUCCEEDED, None] == 2)
        assert not list(site.spool.inbox.glob("*.json"))
        assert asked(api) == 1, "one that had not started has started"
        for _ in range(20):
            made.tick()
            time.sleep(0.05)
        assert (asked(api), states(engine)[State.QUEUED, "budget_spent_cpu_hours"]) == (1, 40)
    finally:
        gate.set()
        made.threads.end()
        close([site])
