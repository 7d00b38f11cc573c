"""What the subcommands print, and how: tables for people, JSON, YAML and CSV for programs."""

from __future__ import annotations

import csv
import sys
from typing import Any

from lading.plugin.command_host import host
from lading.scheduling.text.printable import one_line
from lading.scheduling.text.units import in_zone


def show(rows: list[dict[str, Any]], output: str) -> None:
    """Print rows as a table, or for programs: numbers as numbers, which Airflow's console would make into text.

    In a table what Dag authors and sites wrote is text and nothing else; JSON and YAML have escapes of their own.
    """
    data: Any = rows  # what its printers take, whatever they say
    if output == "csv":
        # None is an empty cell; what a spreadsheet would take for a formula is its text.
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    elif output == "json":
        host().console().print_as_json(data)
    elif output == "yaml":
        # YAML has no word for half a character (YAML 1.2, "Character Set"), and its emitter raises.
        host().console().print_as_yaml([{name: without_surrogates(each) for name, each in row.items()} for row in rows])
    else:
        names = dict.fromkeys(name for row in rows for name in row)  # not every row has all of them
        texts = [{name: "" if row.get(name) is None else readable(row[name]) for name in names} for row in rows]
        host().console().print_as(texts, output)


def as_cell(value: object) -> object:
    """A value as a cell of a CSV file; what begins like a formula has a quote before it, as spreadsheets ask."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def readable(value: object) -> str:
    """What users read of a value: printable, and its times in the zone of ``[core] default_timezone``."""
    return one_line(in_zone(value, host().zone()) if isinstance(value, str) else value)


def without_surrogates(value: Any) -> Any:
    """Text without lone surrogates, which are written as escapes; anything else as it is."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def complain(message: str) -> None:
    """Print a line to the standard error."""
    print(one_line(message), file=sys.stderr)
