"""Tables of jobs, of running instances and of traces, as `lading plan` and `lading simulate` read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from lading.scheduling.model.catalogue import GIB, Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import DEFAULT_ARCH, parse_wanted_arch, valid_types
from lading.scheduling.model.plan import InstanceLimits, Refusal
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.usage import Use
from lading.scheduling.text import csv_tables
from lading.scheduling.text.printable import shortened

REQUIRED = ("name", "cpus", "memory_mib")
OPTIONAL = (
    "gpus",
    "disk_gib",
    "arch",
    "instance_type",
    "time_seconds",
    "count",
    "task",
    "max_instances",
    "team",
    "dag",
)
TRACE = ("arrival_seconds", "duration_seconds")
# What the tasks of a workflow request.
REQUESTS = ("task", "cpus", "memory_mib")
RUNNING = ("instance", "instance_type", "cpus_used", "memory_mib_used")
# Limits that only mistakes reach. Even if one row stands for a million jobs, a plan places each of them on a named
# machine. A simulation also starts and finishes each of them, which takes ten times the time and memory.
MOST_JOBS, MOST_SIMULATED = 1_000_000, 100_000
MOST_KINDS = 20_000
MOST_CPUS = 999_999
LEAST_CPUS = 0.001
MOST_DISK_GIB = csv_tables.MOST // GIB
# Tolerance for sizes whose decimal notation slightly exceeds a whole number of MiB.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Arrival:
    """One line of a trace: a job, when it arrives, and how long it will run (which is hidden from the planner).

    :param arrival: seconds after the start of the trace
    :param duration: seconds
    :param parents: the names of the jobs that must have finished before it arrives
    :param used: what it requested and used when it was recorded; None: unknown
    """

    job: PlannedJob
    arrival: float
    duration: float
    parents: tuple[str, ...] = ()
    used: Use | None = None


@dataclass(slots=True)
class EqualRows:
    """Rows of a table that are equal except for their names.

    :param first: the first of them
    :param job: what each of them requests, with the count of one row
    :param names: of all of them
    """

    first: csv_tables.Row
    job: PlannedJob
    names: list[str] = field(default_factory=list)

    def jobs(self) -> list[PlannedJob]:
        """Return one job for all rows, under the first of their sorted names, or one per row if rows have counts."""
        if len(self.names) == 1:
            return [self.job]
        if self.job.count > 1:
            return [replace(self.job, name=name) for name in self.names]
        self.names.sort()
        return [replace(self.job, name=self.names[0], count=len(self.names))]


@dataclass(frozen=True, slots=True)
class TraceJobs:
    """The jobs of a table.

    :param first: the first of the equal rows of each job, by job name
    :param max_instances: on how many instances jobs of a task can be at once, by task
    :param names: the names of the rows that a job stands for, by job name, if there are several
    """

    jobs: list[PlannedJob]
    first: dict[str, csv_tables.Row]
    max_instances: dict[str, int]
    names: dict[str, list[str]] = field(default_factory=dict)

    def limits(self, instances: int | None) -> InstanceLimits:
        """Return the limits on instances.

        :param instances: of all jobs together; None: no limit
        """
        return InstanceLimits(instances=instances, tasks=self.max_instances)

    def fault(self, refused: Refusal) -> csv_tables.TableError:
        """Return the error at the first row of a job that can never run."""
        row = self.first[refused.job]
        return row.fault(f"job {shortened(row.text('name'))} {refused.reason}")


def parse_jobs(lines: Iterable[str], source: str, catalogue: Catalogue) -> TraceJobs:
    """Read a table with the columns :data:`REQUIRED` and, if present, :data:`OPTIONAL`.

    :raises csv_tables.TableError: naming file, line and value, also for an instance type that the catalogue lacks, and
        for more jobs than can be planned in a reasonable time
    """
    bounds = Bounds(MOST_JOBS)
    sorts: list[EqualRows] = []

    def build(row: csv_tables.Row) -> EqualRows:
        sorts.append(EqualRows(row, bounds.checked(row, job(row, catalogue))))
        return sorts[-1]

    for line, name, sort in csv_tables.alike(lines, source, REQUIRED, "name", build, MOST_JOBS):
        sort.names.append(name)
        bounds.jobs += sort.job.count
        if bounds.jobs > MOST_JOBS:
            raise csv_tables.TableError(source, line, bounds.too_many(sort.job.count))
    by_sort = [(sort, sort.jobs()) for sort in sorts]
    return TraceJobs(
        [job for _, jobs in by_sort for job in jobs],
        {job.name: sort.first for sort, jobs in by_sort for job in jobs},
        bounds.max_instances,
        {jobs[0].name: sort.names for sort, jobs in by_sort if len(jobs) < len(sort.names)},
    )


def parse_trace(lines: Iterable[str], source: str, catalogue: Catalogue) -> tuple[TraceJobs, list[Arrival]]:
    """Read a table of jobs that also has the columns :data:`TRACE`; jobs of a row with a count arrive together.

    :raises csv_tables.TableError: like :func:`parse_jobs`, with a lower limit on jobs, because each is simulated
    """
    bounds = Bounds(MOST_SIMULATED)
    first: dict[str, csv_tables.Row] = {}

    def build(row: csv_tables.Row) -> Arrival:
        found = bounds.checked(row, job(row, catalogue))
        first[found.name] = row
        bounds.jobs += found.count
        if bounds.jobs > MOST_SIMULATED:
            raise row.fault(bounds.too_many(found.count))
        return Arrival(found, row.number("arrival_seconds"), row.number("duration_seconds"))

    arrivals = list(csv_tables.unique(csv_tables.read(lines, source, (*REQUIRED, *TRACE)), "name", build))
    return TraceJobs([arrival.job for arrival in arrivals], first, bounds.max_instances), arrivals


@dataclass(slots=True)
class Bounds:
    """The limits on all rows of a table together, and the totals of those read so far.

    :param most: limit on the number of jobs, with their counts
    :param jobs: the number of jobs
    :param kinds: their different requests
    :param max_instances: on how many instances jobs of a task can be at once, by task
    """

    most: int
    jobs: int = 0
    kinds: set[tuple[object, ...]] = field(default_factory=set)
    max_instances: dict[str, int] = field(default_factory=dict)

    def checked(self, row: csv_tables.Row, job: PlannedJob) -> PlannedJob:
        """Return the job of a row after checking it against the limits.

        :raises csv_tables.TableError: there are too many different requests, or its ``max_instances`` is wrong
        """
        limit(row, self.max_instances)
        self.kinds.add((job.resources, job.arch, job.instance_type, job.task))
        if len(self.kinds) > MOST_KINDS:
            raise row.fault(
                f"job {shortened(job.name)} raises the number of different requests to {len(self.kinds):,}; "
                f"valid: at most {MOST_KINDS:,}; round the amounts up so that more jobs are equal"
            )
        return job

    def too_many(self, count: int) -> str:
        """Return the message for a row whose count makes more than ``most`` jobs."""
        return (
            f"with count '{count}' there are {self.jobs:,} jobs; valid: at most {self.most:,}; lower the counts, or "
            "leave rows out"
        )


def job(row: csv_tables.Row, catalogue: Catalogue) -> PlannedJob:
    kind = row.text("instance_type", "") or None
    if kind is not None:
        known(row, kind, catalogue)
    job = PlannedJob(
        name=row.text("name"),
        resources=Resources(
            cpus=row.number("cpus", least=LEAST_CPUS, most=MOST_CPUS),
            memory=math.ceil(row.number("memory_mib") - ROUNDING),
            disk=math.ceil(row.number("disk_gib", 0.0, most=MOST_DISK_GIB) * GIB - ROUNDING),
            gpus=row.number("gpus", 0.0, least=LEAST_CPUS, most=MOST_CPUS),
        ),
        count=row.whole("count", 1, most=MOST_JOBS),
        time=row.number("time_seconds") if row.cells.get("time_seconds") else None,
        # A type implies its architecture.
        arch=_arch(row) if row.cells.get("arch") else (None if kind else DEFAULT_ARCH),
        instance_type=kind,
        task=row.text("task", "") or None,
        team=row.text("team", "") or None,
        dag_id=row.text("dag", "") or None,
    )
    if job.resources == Resources():
        raise row.fault(
            f"cpus {shortened(row.cells['cpus'])} and memory_mib {shortened(row.cells['memory_mib'])} request nothing; "
            "valid: at least one of the two above 0"
        )
    return job


def limit(row: csv_tables.Row, most: dict[str, int]) -> None:
    """Record the limit on a task's instances from a row, which has the meaning of the hint ``max_instances``.

    :param most: the limits of earlier rows, by task
    """
    if not row.cells.get("max_instances"):
        return
    task, number = row.text("task", ""), row.whole("max_instances", 1, most=MOST_JOBS)
    if not task:
        raise row.fault(
            "max_instances limits the jobs of a task, but the column task is empty; valid: the name of a task"
        )
    if most.setdefault(task, number) != number:
        raise row.fault(
            f"max_instances '{number}' of task {shortened(task)} was {most[task]} in an earlier row; "
            "valid: the same number"
        )


def _arch(row: csv_tables.Row) -> str:
    try:
        return parse_wanted_arch(row.text("arch"))
    except ValueError as error:
        raise row.fault(f"arch {error}") from None


def known(row: csv_tables.Row, kind: str, catalogue: Catalogue) -> None:
    if kind not in catalogue.types:
        valid = valid_types(kind, catalogue.types)
        raise row.fault(f"instance_type {shortened(kind)} is not in the catalogue, or has no price there; {valid}")


def parse_running(lines: Iterable[str], source: str, catalogue: Catalogue) -> list[Location]:
    """Read a table with the columns :data:`RUNNING`, the oldest instance first.

    :param catalogue: the types and their prices, less overheads
    :raises csv_tables.TableError: naming file, line and value
    """

    def build(row: csv_tables.Row) -> Location:
        known(row, row.text("instance_type"), catalogue)
        kind = catalogue.types[row.text("instance_type")]
        offering = min(kind.offerings, key=lambda offering: offering.usd_per_hour)
        return Location(
            name=row.text("instance"),
            capacity=kind.capacity,
            used=Resources(
                cpus=row.number("cpus_used", most=MOST_CPUS),
                memory=math.ceil(row.number("memory_mib_used") - ROUNDING),
            ),
            instance_type=kind.name,
            capacity_type=offering.capacity_type,
            usd_per_hour=offering.usd_per_hour,
            arch=kind.arch,
            features=kind.features,
        )

    return list(csv_tables.unique(csv_tables.read(lines, source, RUNNING, least=0), "instance", build))
