"""What the engine needs of what runs workflows, besides the rows of the jobs: the orchestrator.

A job comes as a row (:func:`lading.executors.store.add_job`) with its needs and its work; its states and causes go back
in the same row, which the orchestrator reads when it is ``unreported``. What is here is the rest: a session of the
database, whether jobs are still wanted, what is to come of runs, where events and metrics go.

Each method is called in the controller's transaction, and waits for nothing but the database.
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
from lading.scheduling.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# A member of a gang: its task and map index.
MemberKey: TypeAlias = tuple[str, int]


class TaskState(str, enum.Enum):
    """The states of a task instance that the engine asks for, as Airflow spells them; None there: it has none yet."""

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
    """One try of a task instance."""

    dag_id: str
    task_id: str
    run_id: str
    try_number: int
    map_index: int


@dataclass(frozen=True, slots=True)
class TaskNote:
    """What the event log of a task says, or that of all things.

    :param event: the kind of event
    :param task: None: it is about none
    :param text: in words
    """

    event: str
    task: TaskTry | None
    text: str


@dataclass(frozen=True, slots=True)
class DagTask:
    """A task as the Dag has it.

    :param upstream: the tasks that come right before it
    :param by_index: those of them that are in the same mapped task group: each of its jobs waits for one of theirs
    :param is_mapped: whether how many jobs it becomes is known in a run only
    :param is_empty: whether Airflow ends it without a job
    :param needs_success: whether it does not run when one before it has failed
    :param executor: that it names; None: the first one of Airflow's configuration
    :param most: how many of its jobs Airflow lets be at work at a time; None: any number
    :param priority: the weight that its author gave it, without those of the tasks around it
    :param before: by map index: the upstream tasks of which not all jobs come before that job, and the map
        indices of those that do
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

    :param most_at_once: how many of its jobs Airflow lets be at work at a time in a run
    :param zone: its time zone
    """

    tasks: Mapping[str, DagTask]
    most_at_once: int | None = None
    zone: tzinfo = timezone.utc


@dataclass(frozen=True, slots=True)
class DagPast:
    """How earlier runs of a Dag went.

    :param lengths: how many jobs its tasks became in the last run that has ended
    :param skipped: the tasks that most of the last runs have skipped
    """

    lengths: Mapping[str, int] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()


class ExpectedGang(NamedTuple):
    """A gang: its Dag, its run, its tasks, and how many jobs of these may run at once, with the name of the limit."""

    dag_id: str
    run_id: str
    tasks: Collection[str]
    limits: Mapping[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Roster:
    """The task instances of a gang, by task and map index.

    :param to_come: those that have not ended, but for those that are deferred
    :param failed: those that have failed for good
    :param hindrances: what in Airflow is too small for all of them
    """

    to_come: frozenset[MemberKey]
    failed: frozenset[MemberKey] = frozenset()
    hindrances: tuple[Reason, ...] = ()


class MetricsBackend(Protocol):
    """Where metrics go, as Airflow's ``Stats`` takes them."""

    def incr(self, stat: str, *, tags: dict[str, Any] | None = None) -> object: ...

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> object: ...

    def timing(self, stat: str, dt: float, *, tags: dict[str, Any] | None = None) -> object: ...

    def timer(self, stat: str) -> AbstractContextManager[Any]: ...


class Forecaster(ABC):
    """What is to come of runs: what depends on what, and what of it has not ended.

    It is made once for a controller, and remembers what it has read.
    """

    @abstractmethod
    def read_structures(self, session: Session, runs: Iterable[DagRunKey]) -> Mapping[DagRunKey, DagStructure | None]:
        """The Dags of those runs that there are; None: it cannot be read, so it is not known what is to come."""

    def changed(self, session: Session, runs: Iterable[DagRunKey]) -> Sequence[DagRunKey]:
        """Those of these runs whose Dag is another one than when it was read."""
        return ()

    @abstractmethod
    def past(self, session: Session, dag_id: str) -> DagPast:
        """How earlier runs of a Dag went."""

    @abstractmethod
    def facts(self, session: Session, dag_id: str) -> Mapping[str, Any]:
        """The columns of a job that say whose its Dag is: ``team``, ``dag_owner``, ``dag_tags``."""

    @abstractmethod
    def is_ours(self, executor: str | None, team: str | None) -> bool:
        """Whether a task becomes a job.

        :param executor: that it names; None: it names none
        :param team: that of its Dag; None: it has none
        """

    @property
    @abstractmethod
    def zone(self) -> tzinfo:
        """The time zone of Dags that cannot be read."""


class Orchestrator(ABC):
    """What runs workflows: it makes the jobs, and takes their states and causes back."""

    # The database.

    @abstractmethod
    def session(self) -> AbstractContextManager[Session]:
        """A session that is committed when it ends well, and rolled back when it does not."""

    def has_lost_store(self) -> bool:
        """Whether the store was removed, or another one has its name: what this process knows is of no use then."""
        return False

    # The jobs.

    @abstractmethod
    def unwanted(self, session: Session, tokens: Sequence[str], seconds: float) -> Sequence[str]:
        """Those of these jobs that wait and that it does not want any more, or does not know.

        :param seconds: none that it does not know and that was queued later than so many seconds ago
        """

    @abstractmethod
    def disowned(self, session: Session, seconds: float, most: int) -> Sequence[tuple[str, str]]:
        """Jobs that have a place but have not begun, or that sleep, and that it does not want any more, or does not
        know: each token with the state.

        :param seconds: none that was queued later than so many seconds ago
        :param most: no more than so many
        """

    @abstractmethod
    def still_at_work(self, session: Session, tokens: Sequence[str], now: float) -> set[str]:
        """Those of these jobs from which it has heard itself of late: they run, also where no location has them.

        :param now: epoch seconds
        """

    @abstractmethod
    def forget_ended(self, session: Session) -> None:
        """Remove what it keeps itself of runs whose jobs have ended. It is called every few seconds."""

    @abstractmethod
    def is_attended(self, schedulers_folder: Path, except_for: int | None) -> bool:
        """Whether anything lives that takes the ends of jobs, besides the one with this number.

        :param schedulers_folder: see :class:`lading.executors.settings.Settings`
        """

    @abstractmethod
    def controller_command(self) -> list[str]:
        """The command that runs a controller which ends when nothing needs it; it has the argument ``controller``."""

    # What is to come.

    @abstractmethod
    def forecaster(self) -> Forecaster:
        """What says what depends on what; a new one."""

    @abstractmethod
    def unfinished(self, session: Session, runs: Iterable[DagRunKey]) -> Mapping[DagRunKey, Sequence[Any]]:
        """The task instances of runs that have not ended, or have failed, as rows.

        Each has ``dag_id``, ``run_id``, ``task_id``, ``map_index``, ``state``, ``start_date``, ``try_number``,
        ``executor``, ``pool`` and ``pool_slots``.
        """

    @abstractmethod
    def hints(self, session: Session, run: DagRunKey) -> Mapping[str, Any]:
        """What each task of a run asks for, as its ``executor_config``."""

    def hints_of_jobs(self, session: Session, run: DagRunKey) -> Mapping[str, Mapping[int, Any]]:
        """The same of the jobs that ask for something else than their task says, by task and map index."""
        return {}

    @abstractmethod
    def pools(self, session: Session) -> Mapping[str, int]:
        """How many slots each pool has; those without a limit are left out."""

    @abstractmethod
    def rosters(self, session: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
        """Which members of gangs are still to come, by the tokens of these."""

    @abstractmethod
    def run_requests(self, session: Session) -> Mapping[RunKey, RunRequest]:
        """What people ask of the runs that have not ended."""

    @abstractmethod
    def reporting(self, session: Session, dag_id: str, run_id: str, tasks: Iterable[str]) -> str | None:
        """The token of a job whose task has succeeded and of which it is not known yet which files it has left; None:
        there is none.

        :param tasks: those of the run of which one is asked for
        """

    # What is said.

    @abstractmethod
    def note(self, session: Session, notes: Iterable[TaskNote]) -> None:
        """Add to the event logs of tasks."""

    @abstractmethod
    def metrics(self) -> MetricsBackend:
        """Where the metrics of the controller go."""
