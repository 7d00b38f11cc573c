"""What `lading plan` prints: the machines of a plan, what waits, and what it costs, as JSON or as tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat, starmap
from json.encoder import encode_basestring_ascii
from typing import IO, TYPE_CHECKING

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.location import Location
from lading.scheduling.plan import FilledMachines, Plan, Wait
from lading.scheduling.simulation.trace import TraceJobs
from lading.scheduling.text.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# A table shows so many lines, and so many jobs in each.
MOST_LINES = 1000
MOST_NAMES = 50
# Lines of JSON that are written at once: where the output has no buffer each write is a call.
AT_ONCE = 10_000


# A million jobs that wait have few reasons.
text_of = lru_cache(1000)(str)


def filled(result: Plan, running: Sequence[Location]) -> dict[FilledMachines, int]:
    """The instances that get jobs, running ones first in their order, and how many are filled alike."""
    order = {location.name: number for number, location in enumerate(running)}
    there = sorted(
        (each for each in result.filled if each.location in order), key=lambda each: order[each.location or ""]
    )
    alike: dict[FilledMachines, int] = {}
    for each in chain(there, (each for each in result.filled if each.location is None)):
        one = each._replace(number=1)
        alike[one] = alike.get(one, 0) + each.number
    return alike


class Names:
    """Deals the names of rows out that were planned as one job, each of them once."""

    def __init__(self, jobs: TraceJobs) -> None:
        self.left = {job: iter(names) for job, names in jobs.names.items()}

    def machines(self, alike: Mapping[FilledMachines, int]) -> Iterator[tuple[FilledMachines, int]]:
        """Machines with the names of their jobs, and how many there are of each."""
        for each, number in alike.items():
            if self.left.keys().isdisjoint(job for job, _ in each.jobs):
                yield each, number
            else:
                for _ in range(number):
                    yield each._replace(jobs=tuple(chain.from_iterable(starmap(self.of, each.jobs)))), 1

    def of(self, job: str, count: int) -> Iterator[tuple[str, int]]:
        """The names of the next ``count`` jobs of those that were planned as one, and how many there are of each."""
        return islice(zip(self.left[job], repeat(1)), count) if job in self.left else iter([(job, count)])

    def json(self, alike: Mapping[FilledMachines, int]) -> Iterator[str]:
        """The same in JSON, for which a million names take a second."""
        for each, number in alike.items():
            columns = []
            jobs = []
            for job, count in each.jobs:
                if job in self.left:
                    columns += [map(encode_basestring_ascii, self.left[job])] * count
                    jobs += ["%s: 1"] * count
                else:
                    jobs.append(f"{json.dumps(job)}: {count}".replace("%", "%%"))
            machine = {
                "count": 1 if columns else number,
                "instance_type": each.instance_type,
                "usd_per_hour": each.usd_per_hour,
                "instance": each.location,
            }
            line = f'{json.dumps(machine)[:-1].replace("%", "%%")}, "jobs": {{{", ".join(jobs)}}}}}'
            yield from map(line.__mod__, islice(zip(*columns, strict=False), number) if columns else [()])

    def waits(self, waits: Iterable[Wait]) -> Iterator[Wait]:
        """What waits, by name; to be asked for when all machines have their jobs."""
        for wait in waits:
            for name, count in self.of(wait.job, wait.count):
                yield Wait(name, count, wait.reason)


def print_json(
    result: Plan, running: Sequence[Location], jobs: TraceJobs, seconds: float, offered: Catalogue, out: IO[str]
) -> None:
    answer: dict[str, object] = {
        "policy": result.policy,
        "effort": result.effort,
        "cost_usd_per_hour": result.cost,
        "objective_usd_per_hour": result.objective,
        "lower_bound_usd_per_hour": result.bound,
        "gap": result.gap,
        "plan_seconds": seconds,
    }
    if result.why:
        answer["why"] = result.why
    names = Names(jobs)
    waiting = (
        json.dumps({"job": each.job, "count": each.count, "reason": text_of(each.reason), "code": each.reason.code})
        for each in names.waits(result.waits)
    )
    lines = chain(
        [f'{json.dumps(answer)[:-1]}, "instances": ['],
        separated(names.json(filled(result, running))),
        ['\n], "waiting": ['],
        separated(waiting),
        ["\n]}\n"],
    )
    while text := "".join(islice(lines, AT_ONCE)):
        out.write(text)
    print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)


def separated(items: Iterator[str]) -> Iterator[str]:
    """The items of a list in JSON, one a line."""
    yield f"\n {next(items, '')}"
    yield from map(",\n {}".format, items)


def print_plan(
    result: Plan, running: Sequence[Location], jobs: TraceJobs, seconds: float, offered: Catalogue, out: IO[str]
) -> None:
    """A table of the instances, those that are filled alike on one line."""
    from rich.console import Console
    from rich.table import Table

    console, names = Console(file=out, highlight=False, markup=False, emoji=False), Names(jobs)
    table = Table("Instances", "Instance", "Type", "USD/h each", "Jobs on each")
    machines = names.machines(filled(result, running))
    for (name, kind, price, contents, _), number in islice(machines, MOST_LINES):
        table.add_row(str(number), printable(name or "new"), printable(kind), f"{price:.4f}", contents_text(contents))
    print_table(console, table, machines)
    table = Table("Waiting", "Jobs", "Reason")
    waits = names.waits(result.waits)
    for wait in islice(waits, MOST_LINES):
        table.add_row(printable(wait.job), str(wait.count), printable(text_of(wait.reason)))
    print_table(console, table, waits)
    for line in summary(result, seconds, offered):
        console.print(printable(line), soft_wrap=True)


def contents_text(contents: Sequence[tuple[str, int]]) -> str:
    """The jobs on a machine, by name."""
    named = [f"{job} × {count}" if count > 1 else job for job, count in contents[:MOST_NAMES]]
    more = f" and {len(contents) - MOST_NAMES:,} more" if len(contents) > MOST_NAMES else ""
    return printable(", ".join(named) + more)


def print_table(console: Console, table: Table, rest: Iterator[object]) -> None:
    """Print a table that has rows, and how many it leaves out: a terminal is no place for thousands of lines."""
    if table.row_count:
        console.print(table)
    if more := sum(1 for _ in rest):
        console.print(f"and {more:,} more lines; --output json has all of them", soft_wrap=True)


def summary(result: Plan, seconds: float, offered: Catalogue) -> list[str]:
    gap = "" if result.gap is None else f", gap {result.gap:.2%}"
    once = "" if result.objective == result.cost else f" ({result.objective:.4f} with what launches cost once)"
    effort = f", {result.effort}" if result.policy != "greedy" else ""
    why = [f"Why: {result.why}."] if result.why else []
    number = len(result.launches)
    return [
        f"{number} instance{'s' * (number != 1)} to launch, {result.cost:.4f} USD/h{once}",
        f"No plan costs less than {result.bound or 0.0:.4f} USD/h{gap}.",
        *why,
        f"Planned by {result.policy}{effort} in {seconds:.2f} s. Prices: {'; '.join(offered.sources)}",
    ]
