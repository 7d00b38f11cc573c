"""Repeat cancellations until the batch system no longer lists the jobs; shared by tasks and job scripts.

A cancel command that succeeds only proves that the batch system received it: ``qdel`` for an array whose node does not
respond exits with 0, and its elements continue to run.

How answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| a cancellation was received | the job is being cancelled | it is no longer listed; repeated until then |
| a job is not listed, and the answer says nothing about it | unchanged | the next answer |
| an unreadable note | ignored, other notes are unaffected | it is removed |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lading.hooks.batch.status_query import is_called
from lading.hooks.batch.system import BatchSystem, NativeJob
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.steps import Put, RunCommand, quoted

# Folder in work_dir that notes which batch jobs of job scripts were cancelled: one file for each, until the job is
# gone.
NOTES = "cancelled_scripts"
_NAME = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A cancelled batch job of a job script. The process that cancelled it, a worker or a notebook, may have exited.

    :param id: native ID of the submission
    :param index: its array element; None: all of it
    :param name: name of the batch job; None: unknown
    """

    id: str
    index: int | None = None
    name: str | None = None

    def native_id(self, system: BatchSystem) -> str:
        return self.id if self.index is None else system.element(self.id, self.index)

    def is_shown(self, jobs: Iterable[NativeJob]) -> bool:
        """Whether it is listed among these jobs and has not ended."""
        return any(
            job.id == self.id
            and (None in (self.index, job.index) or job.index == self.index)
            and job.state != "ended"
            and is_called(job, self.name)
            for job in jobs
        )


def note(work_dir: str, cancelled: Mapping[str, Cancellation]) -> Put:
    """Write notes about cancelled jobs, for the next poll of the batch system.

    :param work_dir: Lading's folder at the site, absolute
    :param cancelled: by the token of the run
    """
    lines = {
        noted_as(token): f"{each.id}\t{'-' if each.index is None else each.index}\t{each.name or ''}\n"
        for token, each in cancelled.items()
    }
    return Put(f"{work_dir}/{NOTES}", {name: line.encode() for name, line in lines.items()})


def noted_as(token: str) -> str:
    """Return the file name of a run's note; the token of an array element has two parts."""
    return token.replace("/", ".")


def read_notes(work_dir: str) -> RunCommand:
    return RunCommand(
        f"cd -- {quoted(f'{work_dir}/{NOTES}')} 2>/dev/null || {{ echo .; exit 0; }}\n"
        'for each in *; do [ -f "$each" ] && IFS= read -r line <"$each" && printf \'%s\\t%s\\n\' "$each" "$line"\n'
        f"done | head -n 1000; echo ."
    )


def parse_notes(answer: CommandResult) -> dict[str, Cancellation]:
    """Parse the notes, by file name; unreadable ones are left out.

    :raises TransportError: the folder could not be read
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or lines[-1:] != ["."]:
        raise TransportError(f"the cancelled job scripts could not be read: {answer.message}")
    found = {}
    for line in lines[:-1]:
        name, _, rest = line.partition("\t")
        id, index, job = [*rest.split("\t", 2), "", ""][:3]
        if _NAME.fullmatch(name) and id and (index == "-" or index.isdecimal()):
            found[name] = Cancellation(id, None if index == "-" else int(index), job or None)
    return found


class Canceller:
    """The cancelled jobs of a site by native ID, on the monotonic clock."""

    repeated_after = (60.0, 600.0)
    """Seconds after which the cancellation of a job that is still listed is repeated: the first interval, which
    doubles up to the second. This leaves time for a job to shut down properly."""

    def __init__(self) -> None:
        self._asked: dict[str, Backoff] = {}

    def ask(self, ids: Iterable[str]) -> None:
        """Note that a cancellation of these jobs is sent now."""
        for id in ids:
            self._asked.setdefault(id, Backoff(*self.repeated_after)).failed("it is still listed")

    def press(self, ids: Sequence[str], *, at_once: bool) -> list[str]:
        """Return the jobs whose cancellation must be sent now, and note it.

        :param ids: jobs that were cancelled but are still listed
        :param at_once: whether to send it now for jobs that this process has not cancelled yet; otherwise another
            process has cancelled them, or their array, and their time starts now
        """
        if not at_once:
            self.ask(id for id in ids if id not in self._asked)
        due = [id for id in ids if id not in self._asked or self._asked[id].left <= 0]
        self.ask(due)
        return due

    def forget(self, id: str) -> None:
        self._asked.pop(id, None)
