"""Reads the inputs of the commands: tables, catalogues and recorded workflows."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lading.hooks.files import safe_files
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.trace import LEAST_CPUS, MOST_CPUS, REQUESTS, Arrival
from lading.scheduling.model import catalogue
from lading.scheduling.model.catalogue import Catalogue, Overhead
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import pose
from lading.scheduling.text import csv_tables
from lading.scheduling.text.csv_tables import TableError
from lading.scheduling.text.printable import printable, shortened

# How much of a file is split into lines at once, in characters.
PART = 2**16


def read_text(path: str) -> str:
    try:
        return safe_files.read_text(path)
    except safe_files.FileError as error:
        raise TableError(path, 1, str(error)) from None


def read_table(path: str, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[str]:
    """Return the lines of a table. Unknown columns are reported on stderr, because one of them may be misspelt."""
    text = read_text(path)
    if others := csv_tables.unread(split(text), path, required, optional):
        valid = ", ".join(dict.fromkeys((*required, *optional)))
        print(
            printable(f"{path}:1: unknown columns, ignored: {shortened(', '.join(others))}; valid: {valid}"),
            file=sys.stderr,
        )
    return split(text)


def split(text: str) -> Iterator[str]:
    """Split a text into lines, lazily: a list of a million lines takes more memory than a plan for them."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + PART) + 1 or len(text)
        yield from text[begin:end].splitlines(keepends=True)
        begin = end


@dataclass(frozen=True, slots=True)
class OfflineMarket:
    """The instance types.

    :param offered: those that can be launched
    :param known: all types of the catalogue, including those that the options leave out
    """

    offered: Catalogue
    known: Catalogue


def market(args: argparse.Namespace) -> OfflineMarket:
    """Build the catalogue that the options describe: add EBS volumes, subtract overheads, select types."""
    if args.catalogue is None:
        types = catalogue.bundled()
    elif args.catalogue.endswith(".toml"):
        types = catalogue.parse_toml(read_text(args.catalogue), args.catalogue)
    else:
        lines = read_table(args.catalogue, catalogue.REQUIRED, catalogue.COLUMNS)
        types = catalogue.parse_csv(lines, args.catalogue)
    types = types.with_ebs(int(args.ebs_gib * catalogue.GIB)).without_overhead(Overhead(memory=args.overhead_memory))
    try:
        return OfflineMarket(types.select(args.types, args.exclude_types), types)
    except ValueError as error:
        raise UsageError(f"--types, --exclude-types: {error}") from None


def read_workflow(path: str, offered: Catalogue, scale: float = 1.0) -> list[Arrival]:
    """Read the tasks of a recorded run.

    :param scale: a factor for all durations
    :raises UsageError: the file is not a recorded run, or a task fits none of the offered types
    """
    try:
        workflow = wfformat.read(read_text(path), path, scale=scale)
    except wfformat.WorkflowError as error:
        raise UsageError(str(error)) from None
    check_sizes(workflow, path, offered)
    return workflow


def with_requests(
    workflows: Mapping[str, Sequence[Arrival]], path: str, offered: Catalogue
) -> dict[str, list[Arrival]]:
    """Replace the requests of the tasks by those of a table. The first row whose name or pattern matches counts.

    Rows that match no task are reported on stderr, because one of them may be misspelt.

    :raises TableError: the table cannot be read, or none of its rows matches a task
    :raises UsageError: a task with its new requests fits none of the offered types
    """
    table = csv_tables.read(read_table(path, REQUESTS), path, REQUESTS)
    rows = list(csv_tables.unique(table, "task", requested))
    names = {each.job.task or each.job.name for workflow in workflows.values() for each in workflow}
    rule = {name: next((each for each in rows if fnmatchcase(name, each[0])), None) for name in names}
    unused = [pattern for pattern, _ in rows if not any(fnmatchcase(name, pattern) for name in names)]
    if len(unused) == len(rows):
        raise TableError(path, 1, f"no row matches a task; the tasks are {shortened(', '.join(sorted(names)))}")
    if unused:
        print(printable(f"{path}: these rows match no task: {shortened(', '.join(unused))}"), file=sys.stderr)
    found = {}
    for source, workflow in workflows.items():
        found[source] = [
            each if (row := rule[each.job.task or each.job.name]) is None else requesting(each, row[1])
            for each in workflow
        ]
        check_sizes(found[source], source, offered)
    return found


def requested(row: csv_tables.Row) -> tuple[str, Resources]:
    cpus, memory = (
        row.number("cpus", least=LEAST_CPUS, most=MOST_CPUS, zero=False),
        row.number("memory_mib", zero=False),
    )
    return row.text("task"), Resources(cpus, math.ceil(memory))


def requesting(arrival: Arrival, asked: Resources) -> Arrival:
    used = None if arrival.used is None else replace(arrival.used, cpus=asked.cpus, memory=asked.memory)
    return replace(arrival, job=replace(arrival.job, resources=asked), used=used)


def check_sizes(workflow: Sequence[Arrival], source: str, offered: Catalogue) -> None:
    """Check that each task of a workflow fits an offered type.

    :param source: the file of the workflow, for the error
    :raises UsageError: a task fits none
    """
    asked = [each.job for each in workflow]
    for refused in pose(asked, [], offered, InstanceLimits(), Objective(), 0.0, None).refusals:
        raise UsageError(f"{source}: task {shortened(refused.job)} {refused.reason}")
