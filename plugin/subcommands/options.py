"""Options of the commands that read the store, whoever runs the workflows, and how what they are given is read.

This is loaded for every ``airflow`` command, so it imports little.
"""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from typing import Any

from lading.plugin.offline.options import Option
from lading.scheduling.text.printable import shortened

STATES = ("queued", "attempted", "placed", "running", "succeeded", "failed", "cancelled")

# The largest number that a column of integers takes in each database.
LARGEST = 2**31 - 1


def whole_number(text: str, least: int) -> int:
    """A whole number that the store can be asked for."""
    try:
        number = int(text)
    except ValueError:  # also of digits that are too many for Python
        number = least - 1
    if not least <= number <= LARGEST:
        raise argparse.ArgumentTypeError(
            f"{shortened(text)} is no whole number from {least} to {LARGEST:_}".replace("_", ",")
        )
    return number


def count(text: str) -> int:
    """How many of something; what is counted is counted from 1."""
    return whole_number(text, 1)


def day(text: str) -> float:
    """The beginning of a day in UTC, epoch seconds: what is kept for long is kept by such days."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is no day; valid: such as 2026-11-01") from None


def map_index(text: str) -> int:
    """Which instance of a mapped task; -1: it is not mapped."""
    return whole_number(text, -1)


def utf8_name(text: str) -> str:
    """A name that the store can be asked for: a shell hands on any bytes, and databases take text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is no text in UTF-8, as names are") from None
    return text


def option(*flags: str, **settings: Any) -> Option:
    """An option as ``add_argument`` takes it."""
    return Option(flags, settings)


STATE = option("--state", nargs="+", choices=STATES, help="Only jobs in these states")
RUN_ID = option("--run-id", type=utf8_name, help="Only jobs of this run")
LIMIT = option(
    "--limit",
    type=count,
    default=50,
    help="At most so many jobs, with --groups so many groups, the youngest (default: 50)",
)
OUTPUT = option(
    "-o",
    "--output",
    choices=("table", "json", "yaml", "plain", "csv"),
    default="table",
    help="How it is printed (default: table)",
)
RUNS = option("--limit", type=count, default=100, help="At most so many runs, the youngest (default: 100)")
ONCE = option("--once", action="store_true", help="Show it once and end")
SECONDS = option("--seconds", type=count, default=3, help="Seconds between two looks (default: 3)")
GROUPS = option(
    "--groups",
    action="store_true",
    help="One line for the jobs of one task and run that ask for the same, with how many are in which state",
)
