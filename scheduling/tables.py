"""Reading tables that people write: CSV with a header, every fault named by file, line and value."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
T = TypeVar("T")


class TableError(ValueError):
    """A fault in a table, as one line: file, line, and what is wrong with which value.

    :param source: the file's name as the user gave it
    :param line: the line, counted from 1; faults of the header and of the whole file are on line 1
    """

    def __init__(self, source: str, line: int, message: str) -> None:
        super().__init__(f"{source}:{line}: {message}")
        self.source = source
        self.line = line


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table, whose cells are read by the methods; each raises :class:`TableError`."""

    source: str
    line: int
    cells: Mapping[str, str]

    def fault(self, message: str) -> TableError:
        return TableError(self.source, self.line, message)

    def text(self, column: str, default: str | None = None) -> str:
        """The cell's text; ``default`` where it is empty or the column is absent, an error without a default."""
        value = self.cells.get(column, "")
        if value:
            return value
        if default is None:
            raise self.fault(f"{column} is empty")
        return default

    def number(self, column: str, default: float | None = None) -> float:
        """The cell as a finite number of at least 0."""
        value = self.cells.get(column, "")
        if not value and default is not None:
            return default
        if value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise self.fault(f"{column} {value!r} is not a finite number")
        if not NUMBER.fullmatch(value):
            raise self.fault(f"{column} {value!r} is not a number")
        number = float(value)
        if not math.isfinite(number):
            raise self.fault(f"{column} {value!r} is too large")
        if number < 0:
            raise self.fault(f"{column} {value!r} is negative")
        return number

    def whole(self, column: str, default: int) -> int:
        """The cell as a whole number of at least 1."""
        number = self.number(column, float(default))
        if number < 1 or number != int(number):
            raise self.fault(f"{column} {self.cells[column]!r} is not a whole number of at least 1")
        return int(number)


def read(lines: Iterable[str], source: str, required: Iterable[str]) -> Iterator[Row]:
    """The rows of a CSV table with a header; blank lines are skipped.

    :param lines: the file's lines
    :param source: the file's name, for messages
    :param required: columns that must be there; other columns are carried along
    :raises TableError: for a missing or doubled column, a row of another length, broken quoting, a table without rows
    """
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    empty = True
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise TableError(source, line, f"not CSV: {error}") from None
        cells = [cell.strip() for cell in record]
        if not any(cells):
            continue
        if header is None:
            header = cells
            check_header(header, source, required)
            continue
        if len(cells) != len(header):
            raise TableError(source, line, f"{','.join(record)!r} has {len(cells)} values for {len(header)} columns")
        empty = False
        yield Row(source, line, dict(zip(header, cells, strict=True)))
    if header is None:
        raise TableError(source, 1, f"the file is empty; its first line must name the columns {','.join(required)}")
    if empty:
        raise TableError(source, 1, "the file has a header and no rows")


def check_header(header: list[str], source: str, required: Iterable[str]) -> None:
    for column in required:
        if column not in header:
            raise TableError(source, 1, f"column {column!r} is missing; the header is {','.join(header)!r}")
    for column in header:
        if header.count(column) > 1:
            raise TableError(source, 1, f"column {column!r} is there twice")


def unique(rows: Iterable[Row], column: str, build: Callable[[Row], T]) -> Iterator[T]:
    """What ``build`` makes of each row, where no two rows may have the same text in ``column``."""
    first: dict[str, int] = {}
    for row in rows:
        name = row.text(column)
        if name in first:
            raise row.fault(f"{column} {name!r} is on line {first[name]} already")
        first[name] = row.line
        yield build(row)
