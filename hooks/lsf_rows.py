"""What bjobs prints, as jobs: columns of one's own choice, and the plain table.

States: Administering LSF, "Job states".
"""

from __future__ import annotations

import re
from dataclasses import replace

from lading.hooks.batch import NativeJob, State, unknown
from lading.hooks.lsf_words import NO_CODE, end

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
_CUSTOM = re.compile(r"\s*\d+\s*\^")
# The date is the last column; the name before it may hold anything.
_PLAIN = re.compile(
    r"(\d+)\s+(\S+)\s+([A-Z_]+)\s+(\S+)\s+(\S+)\s+(.*?)\s+[A-Z][a-z]{2}\s+\d{1,2}\s+\d{1,4}(?::\d\d){0,2}(?:\s+\d{4})?"
)
_INDEX = re.compile(r"(.*)\[(\d+)\]", re.DOTALL)


def custom(lines: list[str]) -> list[NativeJob] | None:
    """The jobs in columns that ``bjobs -o`` was asked for; None: it is no such answer."""
    header = next((n for n, line in enumerate(lines) if line.replace(" ", "").startswith("JOBID^JOBINDEX^")), None)
    if header is None:
        return None
    columns = [name.strip().lower() for name in lines[header].split(SEPARATOR)]
    rows: list[str] = []
    for line in lines[header + 1 :]:
        if _CUSTOM.match(line):
            rows.append(line)
        elif rows and line.strip() and rows[-1].count(SEPARATOR) < len(columns) - 1:
            rows[-1] += f" {line.strip()}"  # a reason of several lines
    jobs = []
    for row in rows:
        values = dict(zip(columns, row.split(SEPARATOR, len(columns) - 1), strict=False))
        if len(values) == len(columns):
            jobs.append(_of_columns({name: "" if value.strip() == "-" else value for name, value in values.items()}))
    return jobs


def plain(lines: list[str]) -> list[NativeJob] | None:
    """The jobs in the table of ``bjobs`` and ``bjobs -w``; None: it is no such table."""
    header = next((line for line in lines if re.match(r"JOBID\s+USER\s+STAT\s", line)), None)
    if header is None or "EXEC_HOST" not in header or "JOB_NAME" not in header:
        return None
    hosts, names = header.index("EXEC_HOST"), header.index("JOB_NAME")
    jobs = []
    for line in lines:
        if match := _PLAIN.fullmatch(line.rstrip()):
            waiting = not line[hosts:names].strip() and match.start(6) >= names
            host, name = ("", match[6]) if waiting else (*match[6].split(maxsplit=1), "")[:2]
            jobs.append(row(match[1], "", match[3], "" if host == "-" else host, name))
    return jobs


def _of_columns(values: dict[str, str]) -> NativeJob:
    job = row(values["jobid"], values["jobindex"], values["stat"].strip(), values["exec_host"], values["job_name"])
    if job.state == "pending":
        return replace(job, reason=" ".join(values["pend_reason"].split()) or job.reason)
    if values["stat"].strip() != "EXIT":
        return job
    code = int(values["exit_code"]) if values["exit_code"].strip().isdigit() else None
    cause, reason = end(values["exit_reason"], code)
    if cause == "error" and job.cause == "cancelled":
        return job
    return replace(job, cause=cause, reason=reason, exit_code=code or None)


def row(id: str, index: str, stat: str, host: str, name: str) -> NativeJob:
    """A job, from what all tables show of it. How one has ended that LSF calls ``EXIT`` they do not say."""
    state, reason = _STATES.get(stat, ("running", unknown("LSF", stat)))
    number = int(index) if index.strip().isdigit() and int(index) else None
    match = _INDEX.fullmatch(name.rstrip())
    if match and number in (None, int(match[2])):
        name, number = match[1], int(match[2])
    job = NativeJob(id=id.strip(), index=number, state=state, reason=reason, nodes=host.strip() or None)
    job = replace(job, name=None if name.startswith("*") else name.rstrip() or None)
    if stat == "DONE":
        return replace(job, exit_code=0)
    if stat == "EXIT" and job.nodes is None:
        return replace(job, cause="cancelled", reason="it has never run")
    return replace(job, cause="error", reason=NO_CODE) if stat == "EXIT" else job
