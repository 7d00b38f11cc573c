"""The orchestrator this process works for: Airflow, unless another one is set."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.orchestrator import Orchestrator

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_named: list[Orchestrator] = [AirflowOrchestrator()]


def orchestrator() -> Orchestrator:
    return _named[0]


def use(other: Orchestrator) -> None:
    """Set the orchestrator this process works for; call it before creating a controller."""
    _named[0] = other


def open_session() -> AbstractContextManager[Session]:
    """Open a session of the orchestrator's database, see :meth:`Orchestrator.session`."""
    return _named[0].session()
