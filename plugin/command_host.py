"""What the commands that read the store need of the program around them, and which one that is in this process."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from lading.executors.settings import Settings
from lading.scheduling.insight import right_size

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.executors.store import JobRow
    from lading.executors.store.run_rows import RunTerms
    from lading.scheduling.insight.right_size import Sizes

Command = Callable[[Namespace], None]


class CommandHost(ABC):
    """The program whose commands they are.

    :cvar program: what users type before the name of a command
    :cvar starter: what starts controllers
    """

    program: str
    starter: str

    @abstractmethod
    def run(self, command: Command, args: Namespace) -> None:
        """Run a command, without what libraries log meanwhile."""

    @abstractmethod
    def settings(self) -> Settings:
        """What the engine goes by."""

    @abstractmethod
    def option(self, name: str) -> str:
        """How users set an option of the settings, in parentheses after a space; empty: they cannot."""

    @abstractmethod
    def store_fault(self, session: Session) -> str | None:
        """What keeps the tables from being read, and what to do; None: nothing."""

    @abstractmethod
    def terms(self, session: Session, dag_id: str, run_id: str) -> RunTerms | None:
        """What a live run goes by; None: it has ended, or there is none."""

    @abstractmethod
    def notes(self, session: Session, job: JobRow) -> list[tuple[float, str]]:
        """What was noted of a try while it waited and when it failed, oldest first: epoch seconds, and the text."""

    @abstractmethod
    def zone(self) -> tzinfo:
        """The time zone in which users read times."""

    def for_users(self, text: str | None) -> str | None:
        """A reason, or what can be done about it, as far as it is of use to who runs this program, in their words."""
        return text

    def line(self, fitted: Sizes) -> str | None:
        """What a task should request, as its author writes it; None: nothing is known."""
        return right_size.line(fitted)

    @abstractmethod
    def console(self) -> Any:
        """What prints rows: ``print_as_json`` and ``print_as_yaml`` take them as they are, ``print_as`` texts and
        ``table`` or ``plain``."""


class AirflowHost(CommandHost):
    """``airflow lading``."""

    program = "airflow lading"
    starter = "Airflow's scheduler"

    def run(self, command: Command, args: Namespace) -> None:
        from airflow.utils.cli import suppress_logs_and_warning
        from airflow.utils.providers_configuration_loader import providers_configuration_loaded

        suppress_logs_and_warning(providers_configuration_loaded(command))(args)

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

        # What is in square brackets is a section of Airflow's configuration and no colour.
        return AirflowConsole(markup=False, emoji=False)


_named: list[CommandHost] = [AirflowHost()]


def host() -> CommandHost:
    """The program whose commands this process runs: Airflow's, unless another was named."""
    return _named[0]


def use(other: CommandHost) -> None:
    """Name the program whose commands this process runs."""
    _named[0] = other


def as_command(run: Command) -> Command:
    """A function as a command of the host."""

    @functools.wraps(run)
    def command(args: Namespace) -> None:
        host().run(run, args)

    return command
