"""The long history that ``bhist -l`` prints, as jobs, for LSF and OpenLava alike.

A section begins with ``Job <7>`` (OpenLava: ``Job Id <7>``); each event is a line with its time. Long lines go on after
21 blanks: LSF folds between words, OpenLava after 79 bytes, and drops the blanks at which it does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest

from lading.hooks.batch.lsf.messages import end
from lading.hooks.batch.lsf.output import row
from lading.hooks.batch.system import NativeJob

_SECTION = re.compile(r"^Job (?:Id )?<(\d+)(?:\[(\d+)\])?>", re.MULTILINE)
_FOLD = re.compile(r"\n {21}")
# The name may hold anything; a blank between two words may be gone where the line is folded.
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
# The exit codes of jobs that were ended at their run limit: by SIGUSR2, or by what OpenLava has no code for.
_AT_LIMIT = (140, 255)


def jobs(text: str) -> list[NativeJob]:
    """The jobs in it that have ended."""
    folded = text.replace("\r\n", "\n")
    starts = list(_SECTION.finditer(folded))
    found = [
        _ended(start, folded[start.end() : after.start() if after else len(folded)])
        for start, after in zip_longest(starts, starts[1:])
    ]
    return [job for job in found if job is not None]


def has_jobs(text: str) -> bool:
    """Whether it is about any job, also one that has not ended."""
    return _SECTION.search(text) is not None


def _ended(start: re.Match[str], folded: str) -> NativeJob | None:
    """The job of a section, if it has ended; by its events alone, since its command may hold any words."""
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
    # One that is folded may have lost blanks.
    known = _ARRAY.sub("", name[1]) if name and f"<{name[1]}>" in folded else ""
    job = row(start[1], start[2] or "", "DONE" if done else "EXIT", "", known)
    first = max((number for number in ran if not events[number].startswith("Running")), default=last)
    said = " ".join(event for event in events[first:] if event.startswith(_ENDS))
    code = _EXIT_CODE.search(said)
    if done and ran and _reached(section, matches[first][1], matches[ends[-1]][1]):
        return replace(job, cause="time_limit", reason="it has reached its run limit")
    # Where its beginning was in an older file than bhist has read, the code alone says that it ran.
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
    """Whether a job has run for as long as it was allowed to; not where its times or its limit cannot be read."""
    try:
        limit = _limit(section)
        seconds = (_clock(ended) - _clock(began)).total_seconds()
    except ValueError:
        return False
    if seconds < 0:  # from one year into the next
        seconds += 366 * 86400
    spent = _SPENT.search(section)
    # Suspended it does not run; what is summed up has all of its runs.
    return limit is not None and min(seconds, int(spent[1]) if spent else seconds) >= limit


def _limit(section: str) -> float | None:
    """The run limit in seconds; it stands below its name."""
    limits = _LIMITS.search(section)
    minutes = _MINUTES.match(limits[2][len(limits[1]) :]) if limits else None
    return float(minutes[1]) * 60 if minutes else None


def _clock(text: str) -> datetime:
    """A time without its year; a leap year has all days."""
    return datetime.strptime(f"2000 {text}", "%Y %b %d %H:%M:%S")
