"""The options of `lading plan`, `lading simulate` and `lading script`, which `airflow lading` has, too.

Every `airflow` command loads this, so it imports little.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from lading.plugin.offline.simulation.trace import MOST_DISK_GIB, OPTIONAL, REQUESTS, REQUIRED, RUNNING, TRACE
from lading.scheduling.hints.values import parse_hurry
from lading.scheduling.model.plan import AUTO, EFFORTS, FORECAST, HURRIES, LENGTHS, POLICY_NAMES, SIZES
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError


class UsageError(ValueError):
    """An option or an input of the user is not valid; the message is one line."""


class Option(NamedTuple):
    """One command-line option: its flags, and the keyword arguments for ``add_argument``."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


# The largest valid --runs. Sizes hardly change after a few runs.
MOST_RUNS = 100
# Default upper bounds: larger numbers are typing errors.
MOST = 2**31 - 1
MOST_USD = 1_000_000


def number(least: float = 0, most: float = MOST, *, zero: bool = True) -> Callable[[str], float]:
    """Return a parser of numbers up to ``most``.

    :param least: the smallest valid number other than 0
    :param zero: whether 0 is valid, too
    """
    valid = f"{least:,} to {most:,}" if least == 0 or not zero else f"0, or {least:,} to {most:,}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shortened(text)} is not a number; valid: {valid}") from None
        if not math.isfinite(value) or value < 0:
            raise argparse.ArgumentTypeError(f"{shortened(text)} is not a finite number of at least 0; valid: {valid}")
        if value == 0 and not zero:
            raise argparse.ArgumentTypeError(f"{shortened(text)} is not greater than 0; valid: {valid}")
        if value > most or 0 < value < least:
            what = "large" if value > most else "small"
            raise argparse.ArgumentTypeError(f"{shortened(text)} is too {what}; valid: {valid}")
        return value

    return read


def whole(most: int = MOST) -> Callable[[str], int]:
    """Return a parser of whole numbers from 0 to ``most``."""
    value_of = number(most=most)

    def read(text: str) -> int:
        value = value_of(text)
        if value != int(value):
            raise argparse.ArgumentTypeError(f"{shortened(text)} is not a whole number; valid: 0 to {most:,}")
        return int(value)

    return read


def policies(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in (*POLICY_NAMES, FORECAST):
            raise argparse.ArgumentTypeError(f"{shortened(name)} is not one of {', '.join((*POLICY_NAMES, FORECAST))}")
    return names


def sizes(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of :data:`SIZES`."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SIZES:
            raise argparse.ArgumentTypeError(f"{shortened(name)} is not one of {', '.join(SIZES)}")
    return tuple(dict.fromkeys(names))


def hurry(text: str) -> float:
    """Read a hurry: a number, or a word for one."""
    try:
        return parse_hurry(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def option(*flags: str, **settings: Any) -> Option:
    return Option(flags, settings)


SITE_OPTIONS = (
    option(
        "--catalogue",
        metavar="FILE",
        help="a file of instance types and prices, CSV or TOML (default: the bundled snapshot of EC2's prices)",
    ),
    option(
        "--types",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help=(
            "use only types that match a pattern, such as 'c7i.*'; burstable types need a pattern that starts "
            "with their family, such as 't3.*'"
        ),
    ),
    option("--exclude-types", nargs="+", default=[], metavar="PATTERN", help="leave out types that match a pattern"),
    option("--max-instances", type=whole(), metavar="N", help="plan at most N instances, including running ones"),
    option(
        "--per-instance-cost",
        type=number(most=MOST_USD),
        default=0.0,
        metavar="USD",
        help="a fixed cost in USD that is added for each launch, to avoid many small instances (0)",
    ),
    option(
        "--horizon-hours",
        type=number(0.001, 1_000_000, zero=False),
        default=1.0,
        metavar="H",
        help="number of hours over which --per-instance-cost is spread (1)",
    ),
    option(
        "--overhead-memory",
        type=whole(),
        default=0,
        metavar="MIB",
        help="memory that the operating system and the agent use on each instance (0)",
    ),
    option(
        "--ebs-gib",
        type=number(most=MOST_DISK_GIB),
        default=0.0,
        metavar="N",
        help="size of the EBS volume, for instance types without disks of their own (0)",
    ),
    option("--progress", action="store_true", help="show progress on stderr if the command takes more than 2 s"),
    option("--output", choices=("table", "json"), default="table", help="output format (table)"),
)
PLAN_OPTIONS = (
    option("--jobs", metavar="FILE", help=f"CSV: {','.join(REQUIRED)}[,{','.join(OPTIONAL)}]"),
    option("--dag", metavar="DAG", help="instead of --jobs: predict what a run of this Dag will cost"),
    option(
        "--workflow",
        metavar="FILE",
        help="with --frontier: a file with a recorded run in WfFormat 1.4 or 1.5 (WfCommons)",
    ),
    option(
        "--frontier",
        action="store_true",
        help="with --workflow or --dag: compare the cost and the duration of the run for several values of hurry, "
        "and for machines of a single type",
    ),
    option("--plot", metavar="FILE", help="draw the frontier into a file whose name ends in .svg or .html"),
    option(
        "--conf",
        metavar="JSON",
        help="with --dag: the conf of the run; the prediction uses an earlier run with the same conf, if there is one",
    ),
    option(
        "--running",
        metavar="FILE",
        help=f"CSV: {','.join(RUNNING)}; jobs fill these running instances first, and their cost is not counted",
    ),
    option("--policy", choices=POLICY_NAMES, default="priced", help="the packing policy (priced)"),
    option("--effort", choices=EFFORTS, default="best", help="how thoroughly the policy priced searches (best)"),
    *SITE_OPTIONS,
)
SIMULATE_OPTIONS = (
    option("--jobs", metavar="FILE", help=f"CSV: {','.join((*REQUIRED, *TRACE))}[,{','.join(OPTIONAL)}]"),
    option(
        "--shares",
        metavar="FILE",
        help="a sites file with [[shares]]: show how much of --max-instances machines each share gets, with the "
        "shares and without them",
    ),
    option(
        "--workflow",
        nargs="+",
        metavar="FILE",
        help=(
            "instead of --jobs: files with recorded runs in WfFormat 1.4 or 1.5 (WfCommons); tasks wait for "
            "their parents"
        ),
    ),
    option(
        "--dag",
        metavar="DAG",
        help="instead of --jobs: simulate a run of this Dag that resembles its last runs, at each site that "
        "launches machines, with the types and prices of that site",
    ),
    option(
        "--starts",
        nargs="+",
        type=number(),
        metavar="S",
        help="with --workflow or --dag: start a run of each workflow or Dag at each of these times, in seconds (0)",
    ),
    option(
        "--scale",
        type=number(0.001, 10_000, zero=False),
        metavar="X",
        help="with --workflow or --dag: multiply the durations of tasks by X (1)",
    ),
    option(
        "--lengths",
        choices=LENGTHS,
        help="with --workflow or --dag: what the forecast knows about the durations of tasks (task): known means "
        "every duration; task means the median of all tasks with the same name, as in a second run; unknown "
        "means only tasks of this run that have finished",
    ),
    option(
        "--sizes",
        type=sizes,
        metavar="SIZES",
        help="with --workflow: which amounts tasks request, one or several separated by commas: asked means the "
        f"amounts that their authors requested; auto means the amounts that memory={AUTO!r} and cpus={AUTO!r} "
        "would choose; exact means the amounts that each task used",
    ),
    option(
        "--runs",
        nargs="+",
        type=whole(MOST_RUNS),
        metavar="N",
        help=f"with --sizes {AUTO}: which runs of the workflow to simulate, counted from 1 (1 2 10); each run "
        "learns from its own tries and from the tries of the runs before it, which are drawn from the "
        "recording",
    ),
    option(
        "--requests",
        metavar="FILE",
        help=f"with --workflow: a file with the amounts that tasks request, CSV: {','.join(REQUESTS)}; task is a "
        "name, or a pattern such as '*.STAR_ALIGN'; the first row that matches a task applies",
    ),
    option(
        "--hurry",
        type=hurry,
        metavar="H",
        help=f"with the policy {FORECAST}: how much finishing early is worth (1): with 0, only cost counts; with "
        "1, saving ten per cent of the cost is worth taking ten per cent longer; "
        f"{', '.join(f'{name} is {value:g}' for name, value in HURRIES.items())}",
    ),
    option(
        "--compare",
        type=policies,
        metavar="POLICIES",
        help=f"policies to compare, such as alone,greedy,{FORECAST} (default: {FORECAST}; with --workflow or "
        f"--dag: greedy,{FORECAST}; with --sizes: {FORECAST})",
    ),
    option(
        "--effort",
        choices=EFFORTS,
        default="fast",
        help="how thoroughly the policy priced searches at every tick (fast)",
    ),
    *SITE_OPTIONS,
    option(
        "--boot-seconds",
        type=number(),
        metavar="S",
        help=(
            "seconds from the launch of an instance until its first job starts (60; with --dag: the boot time of "
            "the site)"
        ),
    ),
    option(
        "--idle-seconds", type=number(), default=0.0, metavar="S", help="seconds for which an idle instance is kept (0)"
    ),
    option(
        "--billing-seconds",
        type=number(0.001, zero=False),
        default=1.0,
        metavar="S",
        help="length of a billing period; each one is billed in full (1)",
    ),
    option(
        "--min-instances",
        type=whole(),
        default=0,
        metavar="N",
        help="instances to keep running even if they are idle (0)",
    ),
    option(
        "--capacity-errors",
        type=number(most=0.95),
        default=0.0,
        metavar="P",
        help="probability that a launch fails (0)",
    ),
    option(
        "--reclaims-per-hour",
        type=number(most=60),
        default=0.0,
        metavar="N",
        help="how many times per hour a spot instance is reclaimed, on average (0)",
    ),
    option(
        "--tick-seconds",
        type=number(0.001, zero=False),
        metavar="S",
        help="seconds between plans (1; for more than 10,000 jobs: a 10,000th of the length of the trace; with "
        "--workflow or --dag: 0.1)",
    ),
    option(
        "--plan-seconds",
        type=number(),
        metavar="S",
        help=f"with the policy {FORECAST}: seconds from the start of a search for the best machines until its result "
        "is used (as long as the search takes on this machine; give a number to get the same result each time)",
    ),
    option("--seed", type=whole(), default=0, metavar="N", help="seed of the random numbers (0)"),
    option(
        "--plot",
        metavar="FILE",
        help="draw paid and used capacity over time, into a file whose name ends in .svg or .html",
    ),
)

SCRIPT_OPTIONS = (
    option("--body", metavar="FILE", help="a file with the script, without directives; - for standard input"),
    option("--dag", metavar="DAG", help="instead of --body: print what a task of this Dag would submit"),
    option("--task", metavar="TASK", help="with --dag: the task"),
    option(
        "--scheduler",
        metavar="NAME",
        help="the batch system: slurm, pbspro, torque, lsf, sge, or one that a plugin adds",
    ),
    option(
        "--profile",
        metavar="FILE",
        help="a TOML file with the kind of the batch system, the peculiarities of the site, and defaults",
    ),
    option("--site", metavar="NAME", help="a site of the sites file, instead of --profile"),
    option(
        "--ini",
        metavar="FILE",
        help="a file with job properties in the format of clusterjob: [Attributes] and [Resources]",
    ),
    option(
        "-r",
        "--resource",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=(
            "a resource, such as nodes=2, time=2h or mem=8GiB, or a directive of the batch system, such as "
            "account=x; can be repeated"
        ),
    ),
)


class Command(NamedTuple):
    """One command.

    :param text: its help text
    """

    text: str
    options: tuple[Option, ...]


COMMANDS = {
    "plan": Command("Plan which machines jobs need and what they cost, without launching any", PLAN_OPTIONS),
    "simulate": Command("Simulate how long a trace of jobs takes and what it costs", SIMULATE_OPTIONS),
    "script": Command(
        "Print a job script for a batch system, or the script that a task would submit, without submitting it",
        SCRIPT_OPTIONS,
    ),
}
