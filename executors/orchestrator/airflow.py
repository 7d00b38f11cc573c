"""Airflow as the orchestrator. Its modules are imported on first use, because importing Airflow takes seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lading.executors.orchestrator.orchestrator import (
    ExpectedGang,
    Forecaster,
    MetricsBackend,
    Orchestrator,
    OrderedScript,
    Roster,
    ScriptEnd,
    TaskNote,
)
from lading.executors.store.gangs.runs import DagRunKey
from lading.executors.store.run_rows import RunKey, RunRequest
from lading.hooks.files import child_processes

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.executors.orchestrator.airflow_scripts import Orders


class AirflowOrchestrator(Orchestrator):
    def __init__(self) -> None:
        self._script_orders: Orders | None = None

    def session(self) -> AbstractContextManager[Session]:
        from airflow.utils.session import create_session

        return create_session(scoped=False)

    def unwanted(self, session: Session, tokens: Sequence[str], seconds: float) -> Sequence[str]:
        from lading.executors.orchestrator import airflow_jobs

        return airflow_jobs.unwanted(session, tokens, seconds)

    def disowned(self, session: Session, seconds: float, most: int) -> Sequence[tuple[str, str]]:
        from lading.executors.orchestrator import airflow_jobs

        return airflow_jobs.disowned(session, seconds, most)

    def still_at_work(self, session: Session, tokens: Sequence[str], now: float) -> set[str]:
        from lading.executors.orchestrator import airflow_jobs

        return airflow_jobs.still_at_work(session, tokens, now)

    def forget_ended(self, session: Session) -> None:
        """Do nothing: Airflow cleans up its own tables."""

    def is_attended(self, schedulers_folder: Path, except_for: int | None) -> bool:
        from lading.executors.orchestrator import airflow_schedulers

        with self.session() as session:
            return bool(airflow_schedulers.living(session, schedulers_folder) - {except_for})

    def controller_command(self) -> list[str]:
        return child_processes.python_command("lading.plugin", "controller", "--managed")

    def ordered_scripts(self, session: Session, jobs: Sequence[str] | None) -> Sequence[OrderedScript]:
        from lading.executors.orchestrator import airflow_scripts

        if self._script_orders is None:
            self._script_orders = airflow_scripts.Orders()
        return self._script_orders.read(session, jobs)

    def refuse_script(self, session: Session, order: OrderedScript, error: Exception) -> None:
        from lading.executors.orchestrator import airflow_scripts

        airflow_scripts.refuse(session, order.subject, error)

    def ended_scripts(self, session: Session, tokens: Sequence[str]) -> Sequence[ScriptEnd]:
        from lading.executors.orchestrator import airflow_scripts

        return airflow_scripts.ended(session, tokens)

    def forecaster(self) -> Forecaster:
        from lading.executors.orchestrator.airflow_dags import Dags

        return Dags()

    def unfinished(self, session: Session, runs: Iterable[DagRunKey]) -> Mapping[DagRunKey, Sequence[Any]]:
        from lading.executors.orchestrator import airflow_runs

        return airflow_runs.unfinished(session, runs)

    def hints(self, session: Session, run: DagRunKey) -> Mapping[str, Any]:
        from lading.executors.orchestrator import airflow_runs

        return airflow_runs.configs(session, run)

    def pools(self, session: Session) -> Mapping[str, int]:
        from lading.executors.orchestrator import airflow_runs

        return airflow_runs.pools(session)

    def rosters(self, session: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
        from lading.executors.orchestrator import airflow_roster

        return airflow_roster.read(session, wanted)

    def run_requests(self, session: Session) -> Mapping[RunKey, RunRequest]:
        from lading.executors.orchestrator import airflow_run_requests

        return airflow_run_requests.asked(session)

    def reporting(self, session: Session, dag_id: str, run_id: str, tasks: Iterable[str]) -> str | None:
        from lading.executors.orchestrator import airflow_jobs

        return airflow_jobs.reporting(session, dag_id, run_id, tasks)

    def note(self, session: Session, notes: Iterable[TaskNote]) -> None:
        from lading.executors.orchestrator import airflow_jobs

        session.add_all(map(airflow_jobs.log_row, notes))

    def metrics(self) -> MetricsBackend:
        from airflow.providers.common.compat.sdk import Stats

        backend: MetricsBackend = Stats
        return backend
