"""What bjobs prints, as jobs: columns of one's own choice, and the plain table.

States: Administering LSF, "Job states".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from lading.hooks.batch.lsf.messages import NO_CODE, end
from lading.hooks.batch.system import NativeJob, State, unknown
from lading.hooks.ssh.answer import whole_number

SEPARATOR = "^"
FIELDS = ("jobid", "jobindex", "stat", "exit_code", "exec_host", "exit_reason", "pend_reason", "job_name")

_STATES: dict[str, tuple[State, str | None]] = {
    "PEND": ("pending", None),
    "PSUSP": ("pending", "it is held"),
    "WAIT": ("pending", "it waits for the jobs before it in its chunk"),
    "PROV": ("pending", "its host is being made ready"),
    "FWD_PEND": ("pending", "it waits in another cluster"),
    "RUN": ("running", None),
    "USUSP": ("running", "it is suspended by its owner or an administrator"),
    "SSUSP": ("running", "it is suspended by LSF"),
    "UNKWN": ("running", "its host does not answer"),
    "ZOMBI": ("running", "its host does not answer, and it is to be ended"),
    "DONE": ("ended", None),
    "EXIT": ("ended", None),
}
_CUSTOM = re.compile(r"\s*(\d+)\s*\^")
_PLAIN = re.compile(r"(\d+)\s+\S+\s+([A-Z_]+)\s+\S+\s+(\S+)\s+")
_NUMBER = re.compile(r"(\d+)\s")
# As locales write it; what is estimated or at a limit has a letter behind it.
_DATE = re.compile(
    r"(?:[^\W\d_]{3,5}\.? \d{1,2}|\d{1,2}\.? [^\W\d_]{3,5}\.?|\d{4}-\d\d-\d\d)"
    r"(?: \d{4}| (?:\d{4} )?\d{1,2}(?::\d\d){1,2}(?: \d{4})?)(?: [ELX])?"
)
# Columns whose places tell what is in them.
_PLACES = ("FROM_HOST", "EXEC_HOST", "JOB_NAME")
_HEADER = re.compile(r"JOBID\s+USER\s+STAT\s")
_INDEX = re.compile(r"(.*)\[(\d+)\]", re.DOTALL)

# The number that begins a row, and its job; None: the row cannot be read.
_Row = tuple[str, NativeJob | None]


def jobs(lines: list[str]) -> list[NativeJob] | None:
    """The jobs in what bjobs has printed; None: it is neither of the tables, or no row of it can be read."""
    rows = _rows(lines)
    found = [job for _, job in rows or () if job is not None]
    return None if rows is None or (rows and not found) else found


def unread(lines: list[str], ids: Iterable[str]) -> set[str]:
    """Those of the ids that begin rows which cannot be read. The last line may be cut, and within its number."""
    begun = {id for id, job in _rows(lines) or () if job is None}
    last = lines[-1].strip()
    return {id for id in ids if id in begun or (last.isdecimal() and id.startswith(last))}


def _rows(lines: list[str]) -> list[_Row] | None:
    """The rows of either table; None: it is none."""
    for number, line in enumerate(lines):
        if line.replace(" ", "").startswith("JOBID^JOBINDEX^"):
            columns = [name.strip().lower() for name in line.split(SEPARATOR)]
            return _custom(columns, lines[number + 1 :]) if set(FIELDS) <= set(columns) else None
        if _HEADER.match(line) and all(name in line for name in _PLACES):
            return _plain(line, lines[number + 1 :])
    return None


def _custom(columns: list[str], lines: list[str]) -> list[_Row]:
    """The rows in columns that ``bjobs -o`` was asked for."""
    rows: list[tuple[str, str]] = []
    for line in lines:
        if match := _CUSTOM.match(line):
            rows.append((match[1], line))
        elif rows and line.strip() and rows[-1][1].count(SEPARATOR) < len(columns) - 1:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}"  # a reason of several lines
    return [(id, _of_columns(columns, row.split(SEPARATOR, len(columns) - 1))) for id, row in rows]


def _plain(header: str, lines: list[str]) -> list[_Row]:
    """The rows in the table of ``bjobs`` and ``bjobs -w``."""
    columns = [header.index(name) for name in _PLACES]
    return [(match[1], _of_line(line, *columns)) for line in lines if (match := _NUMBER.match(line))]


def _of_line(line: str, begins: int, hosts: int, names: int) -> NativeJob | None:
    """The job in a row of the plain table; None: it cannot be read."""
    match, dated = _PLAIN.match(line), _without_date(line)
    if match is None or dated is None or len(dated) < match.end(3):
        return None
    text = dated[match.end() :]
    # What is longer than its column moves the rest of the row, so that blanks alone tell of a column without a word.
    no_host = match.end() - match.end(3) >= max(hosts - begins - len(match[3]), 1) + names - hosts
    host, name = ("", text) if no_host else (*text.split(maxsplit=1), "", "")[:2]
    return row(match[1], "", match[2], "" if host == "-" else host, name)


def _without_date(line: str) -> str | None:
    """A row without its last column, the date; None: there is none. The name before it may hold anything."""
    for length in range(5, 1, -1):
        rest, *date = line.rsplit(maxsplit=length)
        if _DATE.fullmatch(" ".join(date)):
            return rest
    return None


def _of_columns(columns: list[str], texts: list[str]) -> NativeJob | None:
    """The job in a row in columns; None: it is cut."""
    if len(texts) < len(columns):
        return None
    values = {name: "" if text.strip() == "-" else text for name, text in zip(columns, texts, strict=True)}
    job = row(values["jobid"], values["jobindex"], values["stat"].strip(), values["exec_host"], values["job_name"])
    if job.state == "pending":
        return replace(job, reason=" ".join(values["pend_reason"].split()) or job.reason)
    if values["stat"].strip() != "EXIT":
        return job
    code = whole_number(values["exit_code"].strip())
    cause, reason = end(values["exit_reason"], code)
    if reason in (None, NO_CODE) and job.cause == "cancelled":
        return job
    return replace(job, cause=cause, reason=reason, exit_code=code or None)


def row(id: str, index: str, stat: str, host: str, name: str) -> NativeJob:
    """A job, from what all tables show of it. How one has ended that LSF calls ``EXIT`` they do not say."""
    state, reason = _STATES.get(stat, ("running", unknown("LSF", stat)))
    number = whole_number(index.strip()) or None
    match = _INDEX.fullmatch(name.rstrip())
    if match and (named := whole_number(match[2])) is not None and number in (None, named):
        name, number = match[1], named
    job = NativeJob(id=id.strip(), index=number, state=state, reason=reason, nodes=host.strip() or None)
    job = replace(job, name=None if name.startswith("*") else name.rstrip() or None)
    if stat == "DONE":
        return replace(job, exit_code=0)
    if stat == "EXIT" and job.nodes is None:
        return replace(job, cause="cancelled", reason="it has never run")
    return replace(job, cause="error", reason=NO_CODE) if stat == "EXIT" else job
