"""The output of the subcommands: tables for people, and JSON, YAML and CSV for programs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lading.plugin.host import Host
from lading.scheduling.text.printable import one_line
from lading.scheduling.text.units import format_time, in_zone


def show(host: Host, rows: list[dict[str, Any]], output: str) -> None:
    """Print rows as a table, or as CSV, JSON or YAML with numbers as numbers (Airflow's console makes them text).

    In a table, text from Dag authors and sites is printed without control characters; JSON and YAML escape it anyway.
    """
    data: Any = rows  # its printers accept any rows, regardless of their annotations
    if output == "csv":
        # None becomes an empty cell, and text that looks like a formula is quoted.
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    elif output == "json":
        host.console().print_as_json(data)
    elif output == "yaml":
        # YAML cannot contain lone surrogates (YAML 1.2, "Character Set"); its emitter would raise an error.
        host.console().print_as_yaml([{name: without_surrogates(each) for name, each in row.items()} for row in rows])
    else:
        names = dict.fromkeys(name for row in rows for name in row)  # rows can lack some of them
        texts = [{name: "" if row.get(name) is None else readable(host, row[name]) for name in names} for row in rows]
        host.console().print_as(texts, output)


def with_unit(value: float | None, form: Callable[[Any], str]) -> str | None:
    """Format an amount for a table; programs get the bare number. None leaves the cell empty."""
    return None if value is None else form(value)


def format_length(seconds: float) -> str:
    """Format a length of time for a table, to a tenth of a second."""
    return format_time(round(seconds, 1))


def without_empty(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the columns of a table that are empty in all rows, because terminals are narrow."""
    names = dict.fromkeys(name for row in rows for name in row)
    empty = {name for name in names if all(row.get(name) is None for row in rows)}
    return [{name: value for name, value in row.items() if name not in empty} for row in rows]


def as_cell(value: object) -> object:
    """Convert a value to a CSV cell. Text that a spreadsheet would take for a formula gets a leading quote."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def readable(host: Host, value: object) -> str:
    """Convert a value to printable text, with times in the time zone of the host."""
    return one_line(in_zone(value, host.zone()) if isinstance(value, str) else value)


def without_surrogates(value: Any) -> Any:
    """Replace lone surrogates in a text by escapes; other values are returned unchanged."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def complain(message: str) -> None:
    """Print a line to stderr."""
    print(one_line(message), file=sys.stderr)
