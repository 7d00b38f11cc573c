"""The interface of the orchestrator: what the engine needs from the system that runs workflows.

A job is submitted as a row (:func:`lading.executors.store.add_job`) with its resources and its workload. Its states and
causes are returned in the same row, which the orchestrator reads when it is ``unreported``. This interface covers the
rest: a database session, which jobs are still wanted, the upcoming tasks of runs, and the destinations of events and
metrics.

Each method is called within the controller's transaction and waits for nothing but the database.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from lading.executors.store.gangs.runs import DagRunKey
from lading.executors.store.run_rows import RunKey, RunRequest
from lading.hooks.batch.script_jobs import ScriptRequest
from lading.scheduling.model.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A member of a gang: its task and map index.
MemberKey: TypeAlias = tuple[str, int]


class TaskState(str, enum.Enum):
    """The states of a task instance that the engine uses, spelled as in Airflow. A new instance has None instead."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    RESTARTING = "restarting"
    DEFERRED = "deferred"
    UP_FOR_RESCHEDULE = "up_for_reschedule"
    UP_FOR_RETRY = "up_for_retry"
    SUCCESS = "success"
    SKIPPED = "skipped"
    REMOVED = "removed"
    FAILED = "failed"
    UPSTREAM_FAILED = "upstream_failed"


class TaskTry(NamedTuple):
    dag_id: str
    task_id: str
    run_id: str
    try_number: int
    map_index: int


@dataclass(frozen=True, slots=True)
class TaskNote:
    """An entry for the event log of a task, or for the general one.

    :param event: the kind of event
    :param task: None: it concerns no single task
    :param text: the message
    """

    event: str
    task: TaskTry | None
    text: str


@dataclass(frozen=True, slots=True)
class DagTask:
    """A task as declared in its Dag.

    :param upstream: the tasks directly before it
    :param by_index: those of them in the same mapped task group: each of its jobs waits for the one with the same index
    :param is_mapped: whether the number of its jobs is only known within a run
    :param is_empty: whether Airflow finishes it without a job
    :param needs_success: whether it no longer runs once an upstream task has failed
    :param executor: the executor it names; None: Airflow's default
    :param most: how many of its jobs Airflow runs at once; None: any number
    :param priority: the weight given by its author, without those of the tasks around it
    :param before: by map index: the upstream tasks of which only some jobs come before that job, and the map indexes of
        those
    """

    upstream: tuple[str, ...] = ()
    by_index: frozenset[str] = frozenset()
    is_mapped: bool = False
    is_empty: bool = False
    needs_success: bool = True
    executor: str | None = None
    most: int | None = None
    priority: int = 1
    before: Mapping[int, Mapping[str, Sequence[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DagStructure:
    """The tasks of a Dag.

    :param most_at_once: how many of its jobs Airflow runs at once within a run
    :param zone: its time zone
    """

    tasks: Mapping[str, DagTask]
    most_at_once: int | None = None
    zone: tzinfo = timezone.utc


@dataclass(frozen=True, slots=True)
class DagPast:
    """How earlier runs of a Dag went.

    :param lengths: how many jobs each task had in the last ended run
    :param skipped: the tasks that were skipped in most of the latest runs
    """

    lengths: Mapping[str, int] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()


class ExpectedGang(NamedTuple):
    """A gang: its Dag, run and tasks, and by task the name of its limit and how many of its jobs can run at once."""

    dag_id: str
    run_id: str
    tasks: Collection[str]
    limits: Mapping[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Roster:
    """The task instances of a gang, by task and map index.

    :param to_come: those that have not ended, without the deferred ones
    :param failed: those that have failed for good
    :param hindrances: limits of Airflow that are too small for the whole gang
    """

    to_come: frozenset[MemberKey]
    failed: frozenset[MemberKey] = frozenset()
    hindrances: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderedScript:
    """A deferred job script, which the triggerer submits once the controller admits it.

    :param token: of its run
    :param subject: the id of the task instance
    :param job: the token of the job that has left it there
    :param request: what it requests
    """

    token: str
    subject: str
    job: str
    request: ScriptRequest


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How a job script has ended.

    :param cause: None: it has succeeded
    :param text: why it ended, from its run; None: the orchestrator no longer wants it
    :param started_at: epoch seconds; so is ``ended_at``; None: unknown
    """

    token: str
    cause: str | None
    text: str | None = None
    exit_code: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    native_id: str | None = None
    node: str | None = None


class MetricsBackend(Protocol):
    """A destination for metrics, with the interface of Airflow's ``Stats``."""

    def incr(self, stat: str, *, tags: dict[str, Any] | None = None) -> object: ...

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> object: ...

    def timing(self, stat: str, dt: float, *, tags: dict[str, Any] | None = None) -> object: ...

    def timer(self, stat: str) -> AbstractContextManager[Any]: ...


class Forecaster(ABC):
    """What is known about the upcoming tasks of runs and their dependencies.

    One instance is created per controller, and it caches what it has read.
    """

    @abstractmethod
    def read_structures(self, session: Session, runs: Iterable[DagRunKey]) -> Mapping[DagRunKey, DagStructure | None]:
        """Return the Dag structure of each run that exists; None: it is unreadable, so upcoming tasks are unknown."""

    def changed(self, session: Session, runs: Iterable[DagRunKey]) -> Sequence[DagRunKey]:
        """Return the runs whose Dag has changed since it was read."""
        return ()

    @abstractmethod
    def past(self, session: Session, dag_id: str) -> DagPast: ...

    @abstractmethod
    def facts(self, session: Session, dag_id: str) -> Mapping[str, Any]:
        """Return the columns of a job that identify its tenant: ``team``, ``dag_owner``, ``dag_tags``."""

    @abstractmethod
    def is_ours(self, executor: str | None, team: str | None) -> bool:
        """Whether a task becomes a job of Lading's.

        :param executor: the executor it names; None: none
        :param team: the team of its Dag; None: none
        """

    @property
    @abstractmethod
    def zone(self) -> tzinfo:
        """The time zone assumed for Dags that cannot be read."""


class Orchestrator(ABC):
    """A system that runs workflows: it creates the jobs, and takes back their states and causes."""

    # The database.

    @abstractmethod
    def session(self) -> AbstractContextManager[Session]:
        """Return a session that commits on success and rolls back on an exception."""

    def has_lost_store(self) -> bool:
        """Whether the store was removed or replaced, so that everything this process remembers is invalid."""
        return False

    # The jobs.

    @abstractmethod
    def unwanted(self, session: Session, tokens: Sequence[str], seconds: float) -> Sequence[str]:
        """Return those of the waiting jobs that the orchestrator no longer wants, or does not know.

        :param seconds: jobs queued within this time are not reported as unknown
        """

    @abstractmethod
    def disowned(self, session: Session, seconds: float, most: int) -> Sequence[tuple[str, str]]:
        """Return the token and state of placed or sleeping jobs that are no longer wanted, or unknown.

        :param seconds: jobs queued within this time are left out
        :param most: the maximum number of jobs
        """

    @abstractmethod
    def still_at_work(self, session: Session, tokens: Sequence[str], now: float) -> set[str]:
        """Return the jobs that the orchestrator itself has recently heard from: they run even if no location has them.

        :param now: epoch seconds
        """

    @abstractmethod
    def forget_ended(self, session: Session) -> None:
        """Remove the orchestrator's own data on runs whose jobs have ended. Called every few seconds."""

    @abstractmethod
    def is_attended(self, schedulers_folder: Path, except_for: int | None) -> bool:
        """Whether any process is alive that collects the results of jobs.

        :param schedulers_folder: see :class:`lading.executors.settings.Settings`
        :param except_for: the number of a process to ignore
        """

    @abstractmethod
    def controller_command(self) -> list[str]:
        """Return the command of a controller that exits once nothing needs it; it has the argument ``controller``."""

    # Job scripts that the orchestrator submits itself, once the controller admits them.

    def ordered_scripts(self, session: Session, jobs: Sequence[str] | None) -> Sequence[OrderedScript]:
        """Return the job scripts that wait for the controller and are not in the store.

        :param jobs: only those that these jobs have left; None: all
        """
        return ()

    def refuse_script(self, session: Session, order: OrderedScript, error: Exception) -> None:
        """Fail the task that waits for a job script which cannot be stored."""
        raise NotImplementedError  # an orchestrator that orders none is never asked

    def ended_scripts(self, session: Session, tokens: Sequence[str]) -> Sequence[ScriptEnd]:
        """Return those of these job scripts that have ended, or are no longer wanted."""
        return ()

    # Upcoming tasks.

    @abstractmethod
    def forecaster(self) -> Forecaster: ...

    @abstractmethod
    def unfinished(self, session: Session, runs: Iterable[DagRunKey]) -> Mapping[DagRunKey, Sequence[Any]]:
        """Return the task instances of runs that have not ended or have failed, as rows.

        Each row has ``dag_id``, ``run_id``, ``task_id``, ``map_index``, ``state``, ``start_date``, ``try_number``,
        ``executor``, ``pool`` and ``pool_slots``.
        """

    @abstractmethod
    def hints(self, session: Session, run: DagRunKey) -> Mapping[str, Any]:
        """Return the ``executor_config`` of each task of a run."""

    def hints_of_jobs(self, session: Session, run: DagRunKey) -> Mapping[str, Mapping[int, Any]]:
        """Return, by task and map index, the ``executor_config`` of jobs for which it differs from their task's."""
        return {}

    @abstractmethod
    def pools(self, session: Session) -> Mapping[str, int]:
        """Return the number of slots of each pool with a limit."""

    @abstractmethod
    def rosters(self, session: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
        """Return the rosters of gangs, by gang token."""

    @abstractmethod
    def run_requests(self, session: Session) -> Mapping[RunKey, RunRequest]:
        """Return users' requests for the runs that have not ended."""

    @abstractmethod
    def reporting(self, session: Session, dag_id: str, run_id: str, tasks: Iterable[str]) -> str | None:
        """Return the token of a job whose task has succeeded but whose output files are not reported yet, or None.

        :param tasks: the tasks of the run to check
        """

    # Events and metrics.

    @abstractmethod
    def note(self, session: Session, notes: Iterable[TaskNote]) -> None:
        """Add entries to the event logs of tasks."""

    @abstractmethod
    def metrics(self) -> MetricsBackend: ...
