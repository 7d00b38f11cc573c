"""The host of this installation of Lading, Airflow or Snakemake, as one object.

Each room declares the part that it needs: sites need a :class:`Deployment`, the engine an :class:`Orchestrator`, and
commands a :class:`Host`, which includes both. Whoever starts a process creates its host and passes it on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from datetime import tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.orchestrator import Orchestrator
from lading.executors.settings import Settings
from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.deployment.deployment import Deployment
from lading.scheduling.sizing import right_size

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.executors.store import JobRow
    from lading.executors.store.run_rows import RunTerms
    from lading.scheduling.sizing.right_size import Sizes

Command: TypeAlias = "Callable[[Host, Namespace], None]"


class Host(Deployment, Orchestrator, ABC):
    """The system that users run workflows with, and its program for Lading's commands.

    :cvar program: what users type before the name of a command
    :cvar starter: the program that starts controllers, for messages
    """

    program: str
    starter: str

    @abstractmethod
    def run(self, command: Command, args: Namespace) -> None:
        """Run a command without the log output of libraries."""

    @abstractmethod
    def settings(self) -> Settings: ...

    @abstractmethod
    def option(self, name: str) -> str:
        """Return how users set an option, as a space and a text in parentheses; empty if they cannot."""

    @abstractmethod
    def store_fault(self, session: Session) -> str | None:
        """Return why the tables cannot be read, and what to do; None: they can be read."""

    @abstractmethod
    def terms(self, session: Session, dag_id: str, run_id: str) -> RunTerms | None:
        """Return the requests and the forecast of a live run; None: there is no such live run."""

    @abstractmethod
    def notes(self, session: Session, job: JobRow) -> list[tuple[float, str]]:
        """Return the notes about a try while it waited and when it failed, oldest first: epoch seconds and text."""

    @abstractmethod
    def zone(self) -> tzinfo: ...

    def for_users(self, text: str | None) -> str | None:
        """Return a reason or a remedy in the words of the users of this program; None: it does not concern them."""
        return text

    def line(self, fitted: Sizes) -> str | None:
        """Return what a task should request, as a line for its author to paste; None: unknown."""
        return right_size.line(fitted)

    @abstractmethod
    def console(self) -> Any:
        """Return a printer of rows: ``print_as_json``, ``print_as_yaml`` take any values; ``print_as`` takes text and
        ``table`` or ``plain``."""


class AirflowHost(AirflowDeployment, AirflowOrchestrator, Host):
    program = "airflow lading"
    starter = "Airflow's scheduler"

    def run(self, command: Command, args: Namespace) -> None:
        from airflow.utils.cli import suppress_logs_and_warning
        from airflow.utils.providers_configuration_loader import providers_configuration_loaded

        suppress_logs_and_warning(providers_configuration_loaded(partial(command, self)))(args)

    def settings(self) -> Settings:
        return Settings.load()

    def option(self, name: str) -> str:
        return f" ([lading] {name})"

    def store_fault(self, session: Session) -> str | None:
        from airflow.exceptions import AirflowException
        from sqlalchemy.exc import SQLAlchemyError

        from lading.executors.migrations.db_manager import LadingDBManager

        manager = LadingDBManager(session)
        try:
            if manager.check_migration():
                return None
            manager.refuse_unknown_revision()
        except SQLAlchemyError as error:
            return f"the database cannot be read: {error}"
        except AirflowException as error:
            return str(error)
        return "the tables are missing or old; run `airflow db migrate`"

    def terms(self, session: Session, dag_id: str, run_id: str) -> RunTerms | None:
        from lading.executors.orchestrator import airflow_run_requests

        return airflow_run_requests.terms(session, dag_id, run_id).get(run_id)

    def notes(self, session: Session, job: JobRow) -> list[tuple[float, str]]:
        from lading.executors.orchestrator import airflow_jobs

        return airflow_jobs.notes(session, job)

    def zone(self) -> tzinfo:
        from airflow import settings

        return settings.TIMEZONE

    def console(self) -> Any:
        from airflow.cli.simple_table import AirflowConsole

        # Text in square brackets is a section of Airflow's configuration, not markup.
        return AirflowConsole(markup=False, emoji=False)
