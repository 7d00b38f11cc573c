"""Command-line options of the commands that read the store, and the parsers of their values.

Airflow and Snakemake both use them. Every ``airflow`` command loads this, so it imports little.
"""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from typing import Any

from lading.plugin.offline.options import Option
from lading.scheduling.text.printable import shortened

STATES = ("queued", "attempted", "placed", "running", "succeeded", "failed", "cancelled")

# The largest value of an integer column in every database that Airflow supports.
LARGEST = 2**31 - 1


def whole_number(text: str, least: int) -> int:
    """Read a whole number that fits into an integer column of the store."""
    try:
        number = int(text)
    except ValueError:  # also raised for more digits than Python converts
        number = least - 1
    if not least <= number <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"{shortened(text)} is not a whole number from {least} to {LARGEST:_}".replace("_", ",")
        )
    return number


def count(text: str) -> int:
    return whole_number(text, 1)


def day(text: str) -> float:
    """Read a day as the epoch seconds at which it begins in UTC, because old records are summed up by UTC days."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not a date; write it as 2026-11-01") from None


def map_index(text: str) -> int:
    """Read a map index; -1 stands for a task that is not mapped."""
    return whole_number(text, -1)


def utf8_name(text: str) -> str:
    """Read a name for a query. A shell passes on any bytes, but databases take valid text only."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not valid UTF-8") from None
    return text


def option(*flags: str, **settings: Any) -> Option:
    return Option(flags, settings)


STATE = option(
    "--state", nargs="+", choices=STATES, help="Only jobs in these states; separate several states with spaces"
)
RUN_ID = option("--run-id", type=utf8_name, help="Only jobs of this run")
LIMIT = option(
    "--limit",
    type=count,
    default=50,
    help="Show the newest N jobs, or with --groups the newest N groups (default: 50)",
)
OUTPUT = option(
    "-o",
    "--output",
    choices=("table", "json", "yaml", "plain", "csv"),
    default="table",
    help="The output format (default: table)",
)
RUNS = option("--limit", type=count, default=100, help="Show the newest N runs (default: 100)")
ONCE = option("--once", action="store_true", help="Print once and exit")
SECONDS = option("--seconds", type=count, default=3, help="Seconds between updates (default: 3)")
GROUPS = option(
    "--groups",
    action="store_true",
    help=(
        "Print one line for each group of jobs that belong to the same task and run and have equal requests, "
        "with the number of jobs in each state"
    ),
)
