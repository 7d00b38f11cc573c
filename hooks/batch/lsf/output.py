"""Parse the output of bjobs, bhist and bhosts of LSF and OpenLava into jobs and nodes.

bjobs prints selected columns, or its plain table.

States: Administering LSF, "Job states"; causes: bjobs, "exit_reason"; lsbatch.h, TERM_*.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| neither a table nor ``No job found`` | could not ask | a table |
| a row that is truncated or cannot be parsed | could not ask about that ID | the next answer |
| a state in no table | running, ``strange`` | a known state; ``lost_after``, then exit file and bhist |
| ``UNKWN``, ``ZOMBI`` | running: its host does not respond | LSF knows, or the job's own report |
| ``PDONE``, ``PERR`` | ended, result unknown | exit file, bhist |
| ``EXIT`` without host | cancelled: it has never run | final |
| ``EXIT`` without a code or ``TERM_*`` | ``error`` without exit code | exit file, bhist |
| a ``TERM_*`` in no table | ``error``, with LSF's message | final |
| no job in bhist | nothing new | ``lost_after`` |
| hosts without their size | 0 cpus; no host at all: could not ask | the next survey |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import zip_longest

from lading.hooks.batch.inventory import Inventory, Nodes, Survey, mib, one_shell
from lading.hooks.batch.system import Cause, NativeJob, State, unknown
from lading.hooks.ssh.answer import whole_number

SEPARATOR = "^"
FIELDS = ("jobid", "jobindex", "stat", "exit_code", "exec_host", "exit_reason", "pend_reason", "job_name")
# The same fields and the expected start of a job, for versions of LSF that have it.
MORE_FIELDS = (*FIELDS[:-1], "estart_time", "job_name")

_STATES: dict[str, tuple[State, str | None]] = {
    "PEND": ("pending", None),
    "PSUSP": ("pending", "it is held"),
    "WAIT": ("pending", "it waits for the jobs before it in its chunk"),
    "PROV": ("pending", "its host is being prepared"),
    "FWD_PEND": ("pending", "it waits in another cluster"),
    "RUN": ("running", None),
    "USUSP": ("running", "it is suspended by its owner or an administrator"),
    "SSUSP": ("running", "it is suspended by LSF"),
    "UNKWN": ("running", "its host does not respond"),
    "ZOMBI": ("running", "its host does not respond, and it is to be killed"),
    "DONE": ("ended", None),
    "EXIT": ("ended", None),
    # The result of post-processing, which says nothing about the job itself.
    "PDONE": ("ended", "its post-processing has completed"),
    "PERR": ("ended", "its post-processing has failed"),
}
_CUSTOM = re.compile(r"\s*(\d+)\s*\^")
_PLAIN = re.compile(r"(\d+)\s+\S+\s+([A-Z_]+)\s+\S+\s+(\S+)\s+")
_NUMBER = re.compile(r"(\d+)\s")
# Dates as locales write them. A letter at the end marks an estimate or a limit.
_DATE = re.compile(
    r"(?:[^\W\d_]{3,5}\.? \d{1,2}|\d{1,2}\.? [^\W\d_]{3,5}\.?|\d{4}-\d\d-\d\d)"
    r"(?: \d{4}| (?:\d{4} )?\d{1,2}(?::\d\d){1,2}(?: \d{4})?)(?: [ELX])?"
)
_MOMENT = re.compile(r"([A-Z][a-z]{2}) (\d{1,2}) (\d{1,2}):(\d\d)(?::(\d\d))?(?: (\d{4}))?(?: [A-Z])?")
# Columns of the plain table that are found by their position.
_PLACES = ("FROM_HOST", "EXEC_HOST", "JOB_NAME")
_HEADER = re.compile(r"JOBID\s+USER\s+STAT\s")
_INDEX = re.compile(r"(.*)\[(\d+)\]", re.DOTALL)

# The job ID at the start of a row, and its job; None: the row cannot be parsed.
_Row = tuple[str, NativeJob | None]


def jobs(lines: list[str]) -> list[NativeJob] | None:
    """Return the jobs in the output of bjobs; None: it has neither of the two tables, or no row can be parsed."""
    rows = _rows(lines)
    found = [job for _, job in rows or () if job is not None]
    return None if rows is None or (rows and not found) else found


def unread(lines: list[str]) -> set[str]:
    """Return the IDs at the start of rows that cannot be parsed."""
    return {id for id, job in _rows(lines) or () if job is None}


def _rows(lines: list[str]) -> list[_Row] | None:
    for number, line in enumerate(lines):
        if line.replace(" ", "").startswith("JOBID^JOBINDEX^"):
            columns = [name.strip().lower() for name in line.split(SEPARATOR)]
            return _custom(columns, lines[number + 1 :]) if set(FIELDS) <= set(columns) else None
        if _HEADER.match(line) and all(name in line for name in _PLACES):
            return _plain(line, lines[number + 1 :])
    return None


def _custom(columns: list[str], lines: list[str]) -> list[_Row]:
    rows: list[tuple[str, str]] = []
    for line in lines:
        if match := _CUSTOM.match(line):
            rows.append((match[1], line))
        elif rows and line.strip() and rows[-1][1].count(SEPARATOR) < len(columns) - 1:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}"  # a reason that spans several lines
    return [(id, _of_columns(columns, row.split(SEPARATOR, len(columns) - 1))) for id, row in rows]


def _plain(header: str, lines: list[str]) -> list[_Row]:
    """Return the rows of the plain table of ``bjobs`` and ``bjobs -w``."""
    columns = [header.index(name) for name in _PLACES]
    return [(match[1], _of_line(line, *columns)) for line in lines if (match := _NUMBER.match(line))]


def _of_line(line: str, begins: int, hosts: int, names: int) -> NativeJob | None:
    """Return the job in a row of the plain table; None: it cannot be parsed."""
    match, dated = _PLAIN.match(line), _without_date(line)
    if match is None or dated is None or len(dated) < match.end(3):
        return None
    text = dated[match.end() :]
    # Values that are wider than their column shift the rest of the row, so only the blanks show that a column is empty.
    no_host = match.end() - match.end(3) >= max(hosts - begins - len(match[3]), 1) + names - hosts
    host, name = ("", text) if no_host else (*text.split(maxsplit=1), "", "")[:2]
    return row(match[1], "", match[2], "" if host == "-" else host, name)


def _without_date(line: str) -> str | None:
    """Return a row without its last column, the date; None: it has none. The name before it can contain anything."""
    for length in range(5, 1, -1):
        rest, *date = line.rsplit(maxsplit=length)
        if _DATE.fullmatch(" ".join(date)):
            return rest
    return None


def _of_columns(columns: list[str], texts: list[str]) -> NativeJob | None:
    """Return the job in a row of ``bjobs -o``; None: the row is truncated."""
    if len(texts) < len(columns):
        return None
    values = {name: "" if text.strip() == "-" else text for name, text in zip(columns, texts, strict=True)}
    job = row(values["jobid"], values["jobindex"], values["stat"].strip(), values["exec_host"], values["job_name"])
    if job.state == "pending":
        starts_at = moment(values.get("estart_time", ""), datetime.now(timezone.utc))
        return replace(job, reason=" ".join(values["pend_reason"].split()) or job.reason, starts_at=starts_at)
    if values["stat"].strip() != "EXIT":
        return job
    code = whole_number(values["exit_code"].strip())
    cause, reason = end(values["exit_reason"], code)
    if reason in (None, NO_CODE) and job.cause == "cancelled":
        return job
    return replace(job, cause=cause, reason=reason, exit_code=code or None)


def moment(text: str, now: datetime) -> float | None:
    """Parse a time of bjobs, in UTC since TZ is set for the query; None: it is not a time.

    It looks like ``Nov 26 19:40``, optionally with seconds, a year, and a letter at the end. Without a year, the year
    that puts it nearest to ``now`` is assumed.
    """
    if (match := _MOMENT.fullmatch(" ".join(text.split()))) is None:
        return None
    month, day, hour, minute, second, year = match.groups()
    candidates = []
    for number in (int(year),) if year else (now.year - 1, now.year, now.year + 1):
        with suppress(ValueError):
            at = datetime.strptime(f"{number} {month} {day} {hour}:{minute}:{second or 0}", "%Y %b %d %H:%M:%S")
            candidates.append(at.replace(tzinfo=timezone.utc).timestamp())
    return min(candidates, key=lambda at: abs(at - now.timestamp()), default=None)


def row(id: str, index: str, stat: str, host: str, name: str) -> NativeJob:
    """Return a job from the columns that all tables have. They do not show how a job in state ``EXIT`` ended."""
    state, reason = _STATES.get(stat, ("running", unknown("LSF", stat)))
    number = whole_number(index.strip()) or None
    match = _INDEX.fullmatch(name.rstrip())
    if match and (named := whole_number(match[2])) is not None and number in (None, named):
        name, number = match[1], named
    job = NativeJob(id=id.strip(), index=number, state=state, reason=reason, nodes=host.strip() or None)
    job = replace(job, name=None if name.startswith("*") else name.rstrip() or None, strange=stat not in _STATES)
    if stat == "DONE":
        return replace(job, exit_code=0)
    if stat == "EXIT" and job.nodes is None:
        return replace(job, cause="cancelled", reason="it has never run")
    return replace(job, cause="error", reason=NO_CODE) if stat == "EXIT" else job


# How a job ended.

_TERM: Mapping[str, Cause] = {
    **dict.fromkeys(("MEMLIMIT", "SWAP"), "out_of_memory"),
    **dict.fromkeys(("RUNLIMIT", "CPULIMIT", "DEADLINE", "REMOVE_HUNG_JOB"), "time_limit"),
    **dict.fromkeys(("PREEMPT", "LOAD", "WINDOW", "RC_RECLAIM", "CHKPNT", "MC_RECALL"), "preempted"),
    **dict.fromkeys(("REQUEUE_OWNER", "REQUEUE_ADMIN", "REQUEUE_RC"), "preempted"),
    **dict.fromkeys(("OWNER", "FORCE_OWNER", "ADMIN", "FORCE_ADMIN", "BUCKET_KILL", "ORPHAN_SYSTEM"), "cancelled"),
    **dict.fromkeys(("ZOMBIE", "RMS", "SLURM", "CTRL_PID"), "node_failure"),
}
_CODE = re.compile(r"\bTERM_([A-Z_]+)")
NO_CODE = "LSF reports no exit code"


def end(reason: str, exit_code: int | None) -> tuple[Cause, str | None]:
    """Return the cause of a job in state ``EXIT``, and the reason in LSF's own words."""
    match = _CODE.search(reason)
    if match:
        return _TERM.get(match[1], "error"), " ".join(reason[match.start() :].split()).rstrip(".;")
    return "error", None if exit_code else NO_CODE


# The long history of `bhist -l`. A section starts with `Job <7>` (OpenLava: `Job Id <7>`); an event is a line with its
# time. Long lines are continued after 21 blanks: LSF breaks them between words; OpenLava breaks them after 79 bytes and
# drops blanks there.
_SECTION = re.compile(r"^Job (?:Id )?<(\d+)(?:\[(\d+)\])?>", re.MULTILINE)
_FOLD = re.compile(r"\n {21}")
# The name can contain anything; a blank between two words may be missing where the line is broken.
_NAME = re.compile(r", ?Job ?Name ?<(.*?)>, ?User ?<")
_ARRAY = re.compile(r"\[[\d,:-]+\](?:%\d+)?$")
_TIME = r"\w{3} (\w{3} +\d+ \d\d:\d\d:\d\d)(?: [A-Z]{2,5})?(?: \d{4})?"
_EVENT = re.compile(rf"^{_TIME}: *(?:\[\d+\] )?(.*)$", re.MULTILINE)
_BEGINNINGS = ("Dispatched", "Starting", "Started", "Running", "started", "dispatched")
_ENDS = ("Completed <", "Done success", "Exit")
_EXIT_CODE = re.compile(r"with ?exit ?code ?(\d{1,9})(?=[.; ,])|by ?signal ?(\d{1,9})(?=[.; ,])")
_ENDED_BY_USER = re.compile(r"Termination request|Signal <(?:KILL|TERM|INT)> requested")
_LIMITS = re.compile(r"^([A-Z ]*)RUNLIMIT[A-Z ]*\n(.*)$", re.MULTILINE)
_MINUTES = re.compile(r" *([\d.]+) min")
_SPENT = re.compile(r"^ *PEND +PSUSP +RUN .*\n *\d+ +\d+ +(\d{1,9}) ", re.MULTILINE)
# Exit codes of jobs that were killed at their run limit: by SIGUSR2, or in OpenLava, which has no code for it.
_AT_LIMIT = (140, 255)


def ended_jobs(text: str) -> list[NativeJob]:
    folded = text.replace("\r\n", "\n")
    starts = list(_SECTION.finditer(folded))
    found = [
        _ended(start, folded[start.end() : after.start() if after else len(folded)])
        for start, after in zip_longest(starts, starts[1:])
    ]
    return [job for job in found if job is not None]


def has_jobs(text: str) -> bool:
    """Whether the history has any job, including those that have not ended."""
    return _SECTION.search(text) is not None


def _ended(start: re.Match[str], folded: str) -> NativeJob | None:
    """Return the job of a section if it has ended. Only its events count, since its command can contain any text."""
    section = _FOLD.sub("", folded)
    matches = list(_EVENT.finditer(section))
    events = [event[2] for event in matches]
    ran = [number for number, event in enumerate(events) if event.startswith(_BEGINNINGS)]
    ends = [number for number, event in enumerate(events) if event.startswith(_ENDS)]
    last = max(ran, default=0)
    if not ends or ends[-1] < last or any("equeue" in event for event in events[ends[-1] :]):
        return None
    done = any(events[number].startswith(("Completed <done", "Done")) for number in ends if number > last)
    name = _NAME.match(section)
    # A name that spans lines may have lost blanks.
    known = _ARRAY.sub("", name[1]) if name and f"<{name[1]}>" in folded else ""
    job = row(start[1], start[2] or "", "DONE" if done else "EXIT", "", known)
    first = max((number for number in ran if not events[number].startswith("Running")), default=last)
    said = " ".join(event for event in events[first:] if event.startswith(_ENDS))
    code = _EXIT_CODE.search(said)
    if done and ran and _reached(section, matches[first][1], matches[ends[-1]][1]):
        return replace(job, cause="time_limit", reason="it has reached its run limit")
    # If the job started in a file older than those bhist has read, only its exit code shows that it ran.
    if done or not (ran or code):
        return job
    exit_code = None if code is None else int(code[1]) if code[1] else 128 + int(code[2])
    cause, reason = end(said, exit_code)
    if cause == "error" and any(map(_ENDED_BY_USER.match, events[first:])):
        cause, reason = "cancelled", "its termination was requested"
    elif cause == "error" and exit_code in _AT_LIMIT and _reached(section, matches[first][1], matches[ends[-1]][1]):
        cause, reason = "time_limit", "it has reached its run limit"
    return replace(job, cause=cause, reason=reason, exit_code=exit_code)


def _reached(section: str, began: str, ended: str) -> bool:
    """Whether a job ran for its whole run limit; False if its times or its limit cannot be parsed."""
    try:
        limit = _limit(section)
        seconds = (_clock(ended) - _clock(began)).total_seconds()
    except ValueError:
        return False
    if seconds < 0:  # the year changed in between
        seconds += 366 * 86400
    spent = _SPENT.search(section)
    # While suspended, a job does not run; the summary covers all of its runs.
    return limit is not None and min(seconds, int(spent[1]) if spent else seconds) >= limit


def _limit(section: str) -> float | None:
    """Return the run limit in seconds; it is printed below its name."""
    limits = _LIMITS.search(section)
    minutes = _MINUTES.match(limits[2][len(limits[1]) :]) if limits else None
    return float(minutes[1]) * 60 if minutes else None


def _clock(text: str) -> datetime:
    """Parse a time without a year; a leap year accepts every date."""
    return datetime.strptime(f"2000 {text}", "%Y %b %d %H:%M:%S")


# Parsers of hosts and queues: bqueues, bhosts, lshosts and bparams.


def lsf_inventory(text: str) -> Inventory:
    """Parse bqueues, bhosts, lshosts and bparams, each with its heading (IBM Spectrum LSF Command Reference)."""
    queues, machines, default = [], dict[str, tuple[str, str]](), None
    slots = dict[str, tuple[str, bool]]()
    section = ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("Default Queue"):
            default = next(iter(line.partition(":")[2].split()), None)
        elif words[:1] == ["QUEUE_NAME"] or words[:1] == ["HOST_NAME"]:
            section = " ".join(words[:2])
        elif section.startswith("QUEUE_NAME") and words:
            queues.append(words[0])
        elif section == "HOST_NAME STATUS" and len(words) > 4:
            slots[words[0]] = words[3], words[1] == "ok" and words[4] == "0"
        elif section == "HOST_NAME type" and len(words) > 5:
            machines[words[0]] = words[4], words[5]
    nodes = []
    for name, (most, is_idle) in slots.items():
        cpus, memory = machines.get(name, ("-", "-"))
        # A host that is down may not report its size, but it counts as a node.
        known = [number for each in (most, cpus) if (number := whole_number(each)) is not None]
        nodes.append(Nodes(next(iter(known), 0), mib(memory), idle=int(is_idle)))
    return Inventory(nodes, queues, default, dict.fromkeys(queues, len(nodes)))


LSF_SURVEY = Survey(one_shell("bqueues -w", "bhosts -w", "lshosts -w", "bparams"), lsf_inventory)
