"""Jobs that were asked to end, and when each is asked again; one for tasks and for job scripts.

That a command has succeeded says that the batch system has received it, and no more: ``qdel`` of an array whose node
does not answer exits with 0, and its elements run on.

| read | concluded | until |
|---|---|---|
| an order that was received | the job is being ended | it is not shown any more; asked again meanwhile |
| a job that is not shown, of which the answer says nothing | as it was | the next answer |
| a note that makes no sense | costs itself alone | it is removed |
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

# A job that is still shown is asked to end again after so many seconds at most, doubled up to the second number: what
# is being ended properly is left that time.
REPEATED_AFTER = (60.0, 600.0)
# Where it is noted below work_dir that batch jobs of job scripts were asked to end: a file for each, until it is gone.
NOTES = "cancelled_scripts"
# How many are looked up together.
MOST_NOTES = 1000
_NAME = re.compile(r"[\w-][\w.-]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A batch job of a job script that was asked to end by a process which may be gone: a worker, a notebook.

    :param id: the native id of what was submitted
    :param index: its element of that; None: all of it
    :param name: of the batch job; None: not known
    """

    id: str
    index: int | None = None
    name: str | None = None

    def native_id(self, system: BatchSystem) -> str:
        return self.id if self.index is None else system.element(self.id, self.index)

    def is_shown(self, jobs: Iterable[NativeJob]) -> bool:
        """Whether it is among the jobs that a batch system shows, and has not ended."""
        return any(
            job.id == self.id
            and (None in (self.index, job.index) or job.index == self.index)
            and job.state != "ended"
            and is_called(job, self.name)
            for job in jobs
        )


def note(work_dir: str, cancelled: Mapping[str, Cancellation]) -> Put:
    """Note that jobs are asked to end, for the next look at the batch system.

    :param work_dir: Lading's folder at the site, absolute
    :param cancelled: by the token of the run
    """
    lines = {
        noted_as(token): f"{each.id}\t{'-' if each.index is None else each.index}\t{each.name or ''}\n"
        for token, each in cancelled.items()
    }
    return Put(f"{work_dir}/{NOTES}", {name: line.encode() for name, line in lines.items()})


def noted_as(token: str) -> str:
    """What the note of a run is called; an element of an array has a token of two parts."""
    return token.replace("/", ".")


def read_notes(work_dir: str) -> RunCommand:
    """Read what is noted."""
    return RunCommand(
        f"cd -- {quoted(f'{work_dir}/{NOTES}')} 2>/dev/null || {{ echo .; exit 0; }}\n"
        'for each in *; do [ -f "$each" ] && IFS= read -r line <"$each" && printf \'%s\\t%s\\n\' "$each" "$line"\n'
        f"done | head -n {MOST_NOTES}; echo ."
    )


def parse_notes(answer: CommandResult) -> dict[str, Cancellation]:
    """What is noted, by the name of the note; one that makes no sense is left out.

    :raises TransportError: it could not be read
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or lines[-1:] != ["."]:
        raise TransportError(f"which job scripts were cancelled could not be read: {answer.message}")
    found = {}
    for line in lines[:-1]:
        name, _, rest = line.partition("\t")
        id, index, job = [*rest.split("\t", 2), "", ""][:3]
        if _NAME.fullmatch(name) and id and (index == "-" or index.isdecimal()):
            found[name] = Cancellation(id, None if index == "-" else int(index), job or None)
    return found


class Canceller:
    """The jobs of a site that were asked to end, by their native ids; on the monotonic clock."""

    def __init__(self) -> None:
        self._asked: dict[str, Backoff] = {}

    def ask(self, ids: Iterable[str]) -> None:
        """Note that jobs are asked to end now."""
        for id in ids:
            self._asked.setdefault(id, Backoff(*REPEATED_AFTER)).failed("it is still there")

    def press(self, ids: Sequence[str], *, at_once: bool) -> list[str]:
        """Those of the jobs, which are shown although they are to end, that are to be asked now; that is noted.

        :param at_once: whether one that was not asked from here is asked now; else it was asked by another process, or
            as part of an array, and has its time from now on
        """
        if not at_once:
            self.ask(id for id in ids if id not in self._asked)
        due = [id for id in ids if id not in self._asked or self._asked[id].left <= 0]
        self.ask(due)
        return due

    def forget(self, id: str) -> None:
        """A job is over."""
        self._asked.pop(id, None)
