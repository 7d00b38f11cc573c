"""What `lading plan`, `lading simulate` and `lading script` can be given as options; `airflow lading` offers the same.

This is loaded for every `airflow` command, so it imports little.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from lading.scheduling.hints.values import parse_hurry
from lading.scheduling.plan import AUTO, EFFORTS, FORECAST, HURRIES, LENGTHS, POLICY_NAMES, SIZES
from lading.scheduling.simulation.trace import MOST_DISK_GIB, OPTIONAL, REQUESTS, REQUIRED, RUNNING, TRACE
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import UnitError


class UsageError(ValueError):
    """Something the user gave cannot be used; the message is one line."""


class Option(NamedTuple):
    """One command-line option: its flags, and what ``add_argument`` takes besides."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


# Earlier runs from which the last one has learnt: sizes hardly change after a few.
MOST_RUNS = 100
# Where nothing else is said: larger numbers are slips.
MOST = 2**31 - 1
MOST_USD = 1_000_000


def number(least: float = 0, most: float = MOST, *, zero: bool = True) -> Callable[[str], float]:
    """A reader of numbers up to ``most``.

    :param least: the smallest but 0
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
            raise argparse.ArgumentTypeError(f"{shortened(text)} is not above 0; valid: {valid}")
        if value > most or 0 < value < least:
            what = "large" if value > most else "small"
            raise argparse.ArgumentTypeError(f"{shortened(text)} is too {what}; valid: {valid}")
        return value

    return read


def whole(most: int = MOST) -> Callable[[str], int]:
    """A reader of whole numbers from 0 to ``most``."""
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
    """A reader of what tasks request, one or several of :data:`SIZES`."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SIZES:
            raise argparse.ArgumentTypeError(f"{shortened(name)} is not one of {', '.join(SIZES)}")
    return tuple(dict.fromkeys(names))


def hurry(text: str) -> float:
    """A reader of what the end of a run is worth: a number or a word for one."""
    try:
        return parse_hurry(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def option(*flags: str, **settings: Any) -> Option:
    return Option(flags, settings)


SITE_OPTIONS = (
    option("--catalogue", metavar="FILE", help="instance types and prices, CSV or TOML (default: the bundled ones)"),
    option(
        "--types",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only types that match, such as 'c7i.*'; burstable ones only by their family, such as 't3.*'",
    ),
    option("--exclude-types", nargs="+", default=[], metavar="PATTERN", help="no types that match"),
    option("--max-instances", type=whole(), metavar="N", help="so many instances at most, running ones included"),
    option(
        "--per-instance-cost",
        type=number(most=MOST_USD),
        default=0.0,
        metavar="USD",
        help="what every launch costs once (0)",
    ),
    option(
        "--horizon-hours",
        type=number(0.001, 1_000_000, zero=False),
        default=1.0,
        metavar="H",
        help="hours that is spread over (1)",
    ),
    option("--overhead-memory", type=whole(), default=0, metavar="MIB", help="what system and agent take (0)"),
    option(
        "--ebs-gib",
        type=number(most=MOST_DISK_GIB),
        default=0.0,
        metavar="N",
        help="disk of types that have none of their own (0)",
    ),
    option("--progress", action="store_true", help="after 2 s show on stderr how far it is"),
    option("--output", choices=("table", "json"), default="table", help="how to print (table)"),
)
PLAN_OPTIONS = (
    option("--jobs", metavar="FILE", help=f"CSV: {','.join(REQUIRED)}[,{','.join(OPTIONAL)}]"),
    option("--dag", metavar="DAG", help="in place of jobs: what a run of this Dag will cost, before it begins"),
    option("--workflow", metavar="FILE", help="with --frontier: a recorded run in WfFormat 1.4 or 1.5 (WfCommons)"),
    option(
        "--frontier",
        action="store_true",
        help="of a workflow or a Dag: USD against the time of the end, by hurry and on equal machines",
    ),
    option("--plot", metavar="FILE", help="draw the frontier, as .svg or .html"),
    option("--conf", metavar="JSON", help="with --dag: the conf of that run, by which earlier runs are chosen"),
    option("--running", metavar="FILE", help=f"CSV: {','.join(RUNNING)}; filled first, not in the cost"),
    option("--policy", choices=POLICY_NAMES, default="priced", help="how to pack (priced)"),
    option("--effort", choices=EFFORTS, default="best", help="how hard the policy priced tries (best)"),
    *SITE_OPTIONS,
)
SIMULATE_OPTIONS = (
    option("--jobs", metavar="FILE", help=f"CSV: {','.join((*REQUIRED, *TRACE))}[,{','.join(OPTIONAL)}]"),
    option(
        "--shares",
        metavar="FILE",
        help="a sites file with [[shares]]: what they get of --max-instances machines, beside the same without shares",
    ),
    option(
        "--workflow",
        nargs="+",
        metavar="FILE",
        help="in place of jobs: recorded runs in WfFormat 1.4 or 1.5 (WfCommons), whose tasks wait for their parents",
    ),
    option(
        "--dag",
        metavar="DAG",
        help="in place of jobs: a run of this Dag as its last runs were, at each site that buys machines, with the "
        "types and prices of that",
    ),
    option(
        "--starts",
        nargs="+",
        type=number(),
        metavar="S",
        help="with --workflow or --dag: each is run at these seconds (0)",
    ),
    option(
        "--scale",
        type=number(0.001, 10_000, zero=False),
        metavar="X",
        help="with --workflow or --dag: lengths times X (1)",
    ),
    option(
        "--lengths",
        choices=LENGTHS,
        help="with --workflow or --dag: what is known of lengths: each task's, the median of its name as in a "
        "second run, or what has ended in this one (task)",
    ),
    option(
        "--sizes",
        type=sizes,
        metavar="SIZES",
        help="with --workflow: what tasks request, such as asked,auto,exact: their authors' amounts, what "
        f"memory={AUTO!r} and cpus={AUTO!r} would choose, or just what each used",
    ),
    option(
        "--runs",
        nargs="+",
        type=whole(MOST_RUNS),
        metavar="N",
        help=f"with --sizes {AUTO}: which runs of the workflow are simulated, 1 the first; each learns from "
        "the tries of those before it, which are drawn from the recorded ones, and from its own (1 2 10)",
    ),
    option(
        "--requests",
        metavar="FILE",
        help=f"with --workflow: what the authors' tasks request, CSV: {','.join(REQUESTS)}; a task is the name or a "
        "pattern such as '*.STAR_ALIGN', of which the first that matches counts",
    ),
    option(
        "--hurry",
        type=hurry,
        metavar="H",
        help=f"with the policy {FORECAST}: what the end of a run is worth: 0 only money counts; 1 ten per cent longer "
        f"for ten per cent less is a draw; {', '.join(f'{name} is {value:g}' for name, value in HURRIES.items())} (1)",
    ),
    option(
        "--compare",
        type=policies,
        metavar="POLICIES",
        help=f"such as alone,greedy,{FORECAST} ({FORECAST}; with --workflow or --dag greedy,{FORECAST}, with --sizes "
        f"{FORECAST})",
    ),
    option("--effort", choices=EFFORTS, default="fast", help="how hard the policy priced tries at every tick (fast)"),
    *SITE_OPTIONS,
    option(
        "--boot-seconds", type=number(), metavar="S", help="from a launch to its first job (60; with --dag its site's)"
    ),
    option("--idle-seconds", type=number(), default=0.0, metavar="S", help="empty instances are kept so long (0)"),
    option(
        "--billing-seconds",
        type=number(0.001, zero=False),
        default=1.0,
        metavar="S",
        help="whole periods are billed (1)",
    ),
    option("--min-instances", type=whole(), default=0, metavar="N", help="so many are kept warm (0)"),
    option(
        "--capacity-errors",
        type=number(most=0.95),
        default=0.0,
        metavar="P",
        help="probability that a launch fails (0)",
    ),
    option(
        "--reclaims-per-hour", type=number(most=60), default=0.0, metavar="N", help="of a spot instance, on average (0)"
    ),
    option(
        "--tick-seconds",
        type=number(0.001, zero=False),
        metavar="S",
        help="between plans (1; with over 10,000 jobs a 10,000th of the trace; with --workflow or --dag 0.1)",
    ),
    option("--seed", type=whole(), default=0, metavar="N", help="of all chance (0)"),
    option("--plot", metavar="FILE", help="draw what was paid for and used over time, as .svg or .html"),
)

SCRIPT_OPTIONS = (
    option("--body", metavar="FILE", help="the script without directives; - is the standard input"),
    option("--dag", metavar="DAG", help="in place of a body: the Dag of a task"),
    option("--task", metavar="TASK", help="that task: what it would submit at its site"),
    option("--scheduler", metavar="NAME", help="slurm, pbspro, torque, lsf, sge or what a plugin has added"),
    option("--profile", metavar="FILE", help="TOML: the scheduler's kind, what is special there, and defaults"),
    option("--site", metavar="NAME", help="a site of the sites file, instead of a profile"),
    option("--ini", metavar="FILE", help="properties in the form of clusterjob: [Attributes] and [Resources]"),
    option(
        "-r",
        "--resource",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="nodes=2, time=2h, mem=8GiB, or a directive of the scheduler: account=x; may be repeated",
    ),
)


class Command(NamedTuple):
    """One command: what it does, and its options."""

    text: str
    options: tuple[Option, ...]


COMMANDS = {
    "plan": Command("Plan on paper which machines jobs need, and what they cost", PLAN_OPTIONS),
    "simulate": Command("Simulate what a trace of jobs costs and how long it takes", SIMULATE_OPTIONS),
    "script": Command(
        "Print a job script for a batch system, or what a task would submit; nothing is submitted",
        SCRIPT_OPTIONS,
    ),
}
