"""Tables of jobs, of running instances and of traces, as `lading plan` and `lading simulate` read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from lading.scheduling.catalogue import GIB, Catalogue
from lading.scheduling.catalogue import arch as arch_of
from lading.scheduling.hints.machine_words import DEFAULT_ARCH
from lading.scheduling.job import Job
from lading.scheduling.location import Location
from lading.scheduling.plan import Limits
from lading.scheduling.resources import Resources
from lading.scheduling.text import tables
from lading.scheduling.text.printable import shortened

REQUIRED = ("name", "cpus", "memory_mib")
OPTIONAL = ("gpus", "disk_gib", "arch", "instance_type", "time_seconds", "count", "task", "max_instances")
TRACE = ("arrival_seconds", "duration_seconds")
RUNNING = ("instance", "instance_type", "cpus_used", "memory_mib_used")
# Limits that only slips meet. Of one row with a count of a million each job is placed on a machine with a name; in a
# simulation each of them begins and ends by itself, too, which takes ten times as long and as much memory.
MOST_JOBS, MOST_SIMULATED = 1_000_000, 100_000
MOST_KINDS = 20_000
MOST_CPUS = 999_999
LEAST_CPUS = 0.001
MOST_DISK_GIB = tables.MOST // GIB
# A size that was written in decimal may exceed its whole MiB by less than this.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Arrival:
    """One line of a trace: a job, when it arrives, and for how long it will run (which the planner is not told).

    :param arrival: seconds after the start of the trace
    :param duration: seconds
    """

    job: Job
    arrival: float
    duration: float


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs and on which line of which file each is.

    :param max_instances: on how many instances jobs of a task may be at once, by the task
    """

    source: str
    jobs: list[Job]
    lines: dict[str, int]
    max_instances: dict[str, int] = field(default_factory=dict)

    def limits(self, instances: int | None) -> Limits:
        """How many instances there may be.

        :param instances: of all jobs together; None: as many as it takes
        """
        return Limits(instances=instances, tasks=self.max_instances)

    def fault(self, name: str, message: str) -> tables.TableError:
        return tables.TableError(self.source, self.lines[name], message)


def parse_jobs(lines: Iterable[str], source: str, catalogue: Catalogue) -> Jobs:
    """Read a table with the columns :data:`REQUIRED` and, if it has them, :data:`OPTIONAL`.

    :raises tables.TableError: naming file, line and value, also for an instance type that the catalogue lacks, and for
        more jobs than can be planned in a sensible time
    """
    numbers: dict[str, int] = {}
    most: dict[str, int] = {}

    def build(row: tables.Row) -> Job:
        numbers[row.text("name")] = row.line
        limit(row, most)
        return job(row, catalogue)

    jobs = list(tables.unique(tables.read(lines, source, REQUIRED), "name", build))
    return sensible(Jobs(source, jobs, numbers, most))


def parse_trace(lines: Iterable[str], source: str, catalogue: Catalogue) -> tuple[Jobs, list[Arrival]]:
    """Read a table of jobs that has the columns :data:`TRACE` as well; of ``count`` jobs all arrive together.

    :raises tables.TableError: as :func:`parse_jobs`; there may be fewer jobs, for each is simulated
    """
    numbers: dict[str, int] = {}
    most: dict[str, int] = {}

    def build(row: tables.Row) -> Arrival:
        numbers[row.text("name")] = row.line
        limit(row, most)
        return Arrival(job(row, catalogue), row.number("arrival_seconds"), row.number("duration_seconds"))

    arrivals = list(tables.unique(tables.read(lines, source, (*REQUIRED, *TRACE)), "name", build))
    return sensible(Jobs(source, [arrival.job for arrival in arrivals], numbers, most), MOST_SIMULATED), arrivals


def sensible(jobs: Jobs, most: int = MOST_JOBS) -> Jobs:
    """The jobs, if they are not too many.

    :param most: so many there may be, with their counts
    :raises tables.TableError: naming the line from which on they are
    """
    total = 0
    kinds: set[tuple[object, ...]] = set()
    for job in jobs.jobs:
        total += job.count
        kinds.add((job.resources, job.arch, job.instance_type, job.task))
        if total > most:
            raise jobs.fault(
                job.name,
                f"with count '{job.count}' there are {total:,} jobs; valid: at most {most:,}; lower the counts, or "
                "leave rows out",
            )
        if len(kinds) > MOST_KINDS:
            raise jobs.fault(
                job.name,
                f"job {shortened(job.name)} is the {len(kinds):,}th that asks for something else than all before; "
                f"valid: at most {MOST_KINDS:,} different ones; round the amounts up",
            )
    return jobs


def job(row: tables.Row, catalogue: Catalogue) -> Job:
    kind = row.text("instance_type", "") or None
    if kind is not None:
        known(row, kind, catalogue)
    found = Job(
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
        arch=arch_of(row) if row.cells.get("arch") else (None if kind else DEFAULT_ARCH),
        instance_type=kind,
        task=row.text("task", "") or None,
    )
    if found.resources == Resources():
        raise row.fault(
            f"cpus {shortened(row.cells['cpus'])} and memory_mib {shortened(row.cells['memory_mib'])} ask for nothing; "
            "valid: more than 0 of one of them"
        )
    return found


def limit(row: tables.Row, most: dict[str, int]) -> None:
    """Note on how many instances jobs of the task of a row may be at once, as the hint ``max_instances`` says it.

    :param most: what the rows before have said, by the task
    """
    if not row.cells.get("max_instances"):
        return
    task, number = row.text("task", ""), row.whole("max_instances", 1, most=MOST_JOBS)
    if not task:
        raise row.fault("max_instances is for the jobs of a task together, and the column task is empty")
    if most.setdefault(task, number) != number:
        raise row.fault(
            f"max_instances '{number}' of task {shortened(task)} is {most[task]} in a row before; valid: one number"
        )


def known(row: tables.Row, kind: str, catalogue: Catalogue) -> None:
    if kind not in catalogue.types:
        raise row.fault(f"instance_type {shortened(kind)} is not in the catalogue, or has no price there")


def parse_running(lines: Iterable[str], source: str, catalogue: Catalogue) -> list[Location]:
    """Read a table with the columns :data:`RUNNING`, the oldest instance first.

    :param catalogue: has the types and their prices, overheads taken off
    :raises tables.TableError: naming file, line and value
    """

    def build(row: tables.Row) -> Location:
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

    return list(tables.unique(tables.read(lines, source, RUNNING), "instance", build))
