"""Reads CSV tables with a header that people write; every error names file, line and value."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lading.scheduling.text.printable import shortened

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# The default upper bound: larger numbers are mistakes.
MOST = 2**31 - 1
T = TypeVar("T")


class TableError(ValueError):
    """An error in a table, as one line: file, line, and what is wrong with which value.

    :param source: the file's name as the user gave it
    :param line: the line, counted from 1; errors of the header and of the whole file are on line 1
    """

    def __init__(self, source: str, line: int, message: str) -> None:
        super().__init__(f"{source}:{line}: {message}")
        self.source = source
        self.line = line


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table. The methods read its cells; each raises :class:`TableError`."""

    source: str
    line: int
    cells: Mapping[str, str]

    def fault(self, message: str) -> TableError:
        return TableError(self.source, self.line, message)

    def text(self, column: str, default: str | None = None) -> str:
        """The cell's text, or ``default`` if it is empty or the column is missing; without a default, that is an
        error."""
        value = self.cells.get(column, "")
        if value:
            return value
        if default is None:
            raise self.fault(f"{column} is empty")
        return default

    def number(
        self,
        column: str,
        default: float | None = None,
        *,
        least: float = 0.0,
        most: float = MOST,
        zero: bool = True,
    ) -> float:
        """The cell as a number from ``least`` to ``most``, or 0.

        :param default: the value of an empty cell or a missing column
        :param zero: whether 0 is valid
        """
        value = self.cells.get(column, "")
        if not value and default is not None:
            return default
        if value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            wrong = "is not a finite number"
        elif not NUMBER.fullmatch(value):
            wrong = "is not a number"
        elif (number := float(value)) < 0:
            wrong = "is negative"
        elif number > most:
            wrong = "is too large"
        elif number == 0 and not zero:
            wrong = "is not above zero"
        elif 0 < number < least:
            wrong = "is too small"
        else:
            return number
        valid = f"{least:g} to {most:,}" if not (least and zero) else f"0, or {least:g} to {most:,}"
        raise self.fault(f"{column} {shortened(value)} {wrong}; valid: {valid}")

    def whole(self, column: str, default: int, *, most: int = MOST) -> int:
        """The cell as a whole number from 1 to ``most``."""
        number = self.number(column, float(default), least=1, most=most, zero=False)
        if number != int(number):
            raise self.fault(f"{column} {shortened(self.cells[column])} is not a whole number; valid: 1 to {most:,}")
        return int(number)


def read(
    lines: Iterable[str], source: str, required: Sequence[str], most: int = 100_000, least: int = 1
) -> Iterator[Row]:
    """The rows of a CSV table with a header; blank lines are skipped.

    :param lines: the file's lines
    :param source: the file's name, for messages
    :param required: the columns that must exist; other columns are included, too
    :param most: the largest number of rows
    :param least: 0 if a table without rows is valid, too
    :raises TableError: a missing or duplicate column, a row of another length, broken quoting, no rows, or too many
    """
    found = records(lines, source, required, most, least)
    _, header = next(found)
    for line, record in found:
        yield Row(source, line, cells(header, record))


def unread(lines: Iterable[str], source: str, required: Sequence[str], optional: Sequence[str]) -> list[str]:
    """The columns of such a table that are neither required nor optional: one may be misspelt."""
    _, header = next(records(lines, source, required, 0))
    return [column for column in header if column not in (*required, *optional)]


def records(
    lines: Iterable[str], source: str, required: Sequence[str], most: int, least: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """The header of such a table, then its raw rows, each with its line."""
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    rows = 0
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise TableError(source, line, f"not CSV: {error}") from None
        if not (record and record[0].strip()) and not "".join(record).strip():
            continue
        if header is None:
            header = [cell.strip() for cell in record]
            check_header(header, source, required)
            yield line, header
            continue
        if len(record) != len(header):
            shown = shortened(",".join(record))
            raise TableError(source, line, f"{shown} has {len(record)} values for {len(header)} columns")
        rows += 1
        if rows > most:
            raise TableError(source, line, f"this is row {rows:,}; valid: at most {most:,}; combine equal rows")
        yield line, record
    if header is None:
        raise TableError(source, 1, f"the file is empty; its first line must name the columns {','.join(required)}")
    if rows < least:
        raise TableError(source, 1, "the file has a header and no rows")


def cells(header: list[str], record: list[str]) -> dict[str, str]:
    return dict(zip(header, map(str.strip, record), strict=True))


def check_header(header: list[str], source: str, required: Sequence[str]) -> None:
    if len(header) > 100:
        raise TableError(source, 1, f"the header has {len(header):,} columns; valid: at most 100")
    for column in required:
        if column not in header:
            have = f"column {column!r} is missing; the header is {shortened(','.join(header))}"
            raise TableError(source, 1, f"{have}; it needs {', '.join(required)}, with commas between them")
    for column in header:
        if header.count(column) > 1:
            raise TableError(source, 1, f"column {shortened(column)} occurs twice")


def unique(rows: Iterable[Row], column: str, build: Callable[[Row], T]) -> Iterator[T]:
    """The result of ``build`` for each row; no two rows can have the same text in ``column``."""
    first: dict[str, int] = {}
    for row in rows:
        first[new(row, column, first)] = row.line
        yield build(row)


def new(row: Row, column: str, first: Mapping[str, int]) -> str:
    """The text of a row in ``column``, which no earlier row has.

    :param first: by text, the line of the earlier row that has it
    """
    name = row.text(column)
    if len(name) > 250:
        raise row.fault(f"{column} {shortened(name)} is too long; valid: at most 250 characters")
    if name in first:
        raise row.fault(f"{column} {name!r} is already on line {first[name]}")
    return name


def alike(
    lines: Iterable[str], source: str, required: Sequence[str], column: str, build: Callable[[Row], T], most: int
) -> Iterator[tuple[int, str, T]]:
    """The line of every row, its text in ``column``, and the result of ``build`` for the first row that is otherwise
    equal.

    So a million rows with a few hundred different contents are read in seconds. The parameters and errors are those of
    :func:`read` and :func:`unique`.
    """
    numbered = records(lines, source, required, most)
    _, header = next(numbered)
    at = header.index(column)
    first: dict[str, int] = {}
    sorts: dict[tuple[str, ...], T] = {}
    for line, record in numbered:
        written = record.pop(at)
        name, rest = written.strip(), tuple(record)
        if rest not in sorts or name in first or not 0 < len(name) <= 250:
            row = Row(source, line, cells(header, [*rest[:at], written, *rest[at:]]))
            new(row, column, first)
            sorts[rest] = build(row)
        first[name] = line
        yield line, name, sorts[rest]
