"""What a batch system is asked about jobs, and what is known once it has answered.

There are three answers for each job, never two: a state, "no such job", or "could not ask". A job that an answer
neither lists nor declares unknown has the third, for that job alone.

| read | concluded | until |
|---|---|---|
| nothing at all, with exit status 0 | could not ask: a wrapper that fails silently says the same | the next answer |
| a translator raises | could not ask | the next answer |
| an id neither listed nor declared gone | could not ask for that job | the next answer |
| a job of the id with another name | another job: the id was given again | ``lost_after`` |
| no job of a name, in an answer that may lack some | could not ask; else not submitted | a whole answer |
| no accounting, or none of a job | nothing more is known | exit file, ``lost_after`` |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lading.hooks.batch.outcome import has_ended
from lading.hooks.batch.request import untitled
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, NativeJob
from lading.hooks.files.logs import Trouble
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import RunCommand

T = TypeVar("T")
# What Lading's own translators read has whole names. Of one that another translator has from a table, so much must be
# there: the narrowest known column is squeue's ("%.8j"); those of qstat and bjobs have 10 characters and more.
SHORTEST_BEGINNING = 8
# Seconds for one question to a batch system. LSF's commands, and at times others', hang while it is away: what comes
# after them in an exchange has its time all the same.
QUESTION_LIMIT = 30
Key = tuple[str, int | None]
"""The native id of a submission, and the index of an element of an array; None: no array."""


@dataclass(frozen=True)
class Statuses:
    """What the batch system says now.

    :param jobs: all in its answer, which may be more than it was asked for
    :param asked: the native ids that it was asked for
    :param unknown: those of them of which it knows no more than ``jobs``
    :param is_whole: whether ``jobs`` are all jobs of the user, so that a name that is not among them is no job's
    """

    jobs: Sequence[NativeJob]
    asked: Collection[str] = ()
    unknown: Collection[str] = ()
    is_whole: bool = True
    _by_key: dict[Key, NativeJob] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {(job.id, job.index): job for job in self.jobs})

    def get(self, key: Key, name: str | None) -> NativeJob | None:
        """A job; None: it is not known there, or could not be asked for: see :meth:`is_silent`.

        :param name: as it was submitted; another job of the same id is not this one
        """
        job = self._by_key.get(key)
        return job if job is not None and is_called(job, name) else None

    def is_silent(self, key: Key) -> bool:
        """Whether nothing was said of a job: neither its state, nor that there is no such job."""
        if key in self._by_key:
            return False
        whole = self._by_key.get((key[0], None))
        if whole is not None and whole.state != "ended":
            return True  # the array lives, and its elements were not listed one by one
        return key[0] not in self.unknown

    @property
    def gap(self) -> CouldNotAsk | None:
        """What is missing in the answer, as text; None: nothing is."""
        if not (silent := self.silent):
            return None
        return CouldNotAsk(f"the batch system has said nothing of {len(silent)} jobs, such as {', '.join(silent[:5])}")

    @property
    def silent(self) -> list[str]:
        """The ids that were asked for and of which nothing was said."""
        reported = {job.id for job in self.jobs}
        return sorted(id for id in self.asked if id not in reported and id not in self.unknown)


@dataclass(frozen=True)
class StatusQuery:
    """A question for the states of jobs.

    :param user: whose jobs they are
    :param ids: as :meth:`BatchSystem.submitted` has given them
    :param by_name: whether all jobs of the user are asked for, to find some of which only the name is known
    """

    system: BatchSystem
    user: str
    ids: Sequence[str] = ()
    by_name: bool = False

    @property
    def command(self) -> list[str]:
        return self.system.lookup(self.user, self.ids) if self.by_name else self.system.status(self.user, self.ids)

    @property
    def step(self) -> RunCommand:
        return ask(self.command)

    def read(self, answer: CommandResult) -> Statuses:
        """What the answer says.

        :raises CouldNotAsk: it is no answer, or its translator fails at it
        """
        if answer.status == 0 and not f"{answer.stdout}{answer.stderr}".strip():
            # A wrapper or a login shell that fails silently says the same.
            raise CouldNotAsk("the command has printed nothing, which does not prove that it has asked")
        jobs = self._as_asked(_translated(self.system.statuses, answer))
        listed = self.command == self.system.status(self.user)
        unknown = set(_translated(lambda said: self.system.unknown(said, self.ids, listed=listed), answer))
        if not listed:  # what is there of a job that was named is all of it
            unknown |= {job.id for job in jobs}
        return Statuses(jobs, self.ids, unknown, self.system.lists_all(answer))

    def _as_asked(self, jobs: list[NativeJob]) -> list[NativeJob]:
        """The jobs with the ids that they were asked for by, where these name the server in another way."""
        asked_as = self.system.wording.asked_as(self.ids)
        return [job if (id := asked_as(job.id)) == job.id else replace(job, id=id) for job in jobs]


def ask(command: Sequence[str]) -> RunCommand:
    """Run a command of a batch system, which may hang."""
    return RunCommand(command, limit=QUESTION_LIMIT)


def plain_name(job: NativeJob) -> str | None:
    """The name of a job without the index that TORQUE adds to those of elements, and without what it is for."""
    name = None if job.name is None else untitled(job.name)
    return name if name is None or job.index is None else name.removesuffix(f"-{job.index}")


def is_called(job: NativeJob, name: str | None) -> bool:
    """Whether a job of the batch system can be the one that was submitted by this name, and not another of the same id.

    Ids are reused: a scheduler that crashes may forget the last one that it gave, and all begin again one day. Some
    add the index to the names of elements, and a translator that others have written may know only the beginning.

    :param name: None: not known
    """
    if name is None or not job.name:
        return True
    shown, name = untitled(job.name.strip()), name.strip()
    of_index = () if job.index is None else (f"{name}-{job.index}", f"{name}[{job.index}]")
    return shown in (name, *of_index) or (len(shown) >= SHORTEST_BEGINNING and name.startswith(shown))


def accounted(system: BatchSystem, answer: CommandResult) -> list[NativeJob]:
    """The jobs in the answer of the accounting.

    :raises CouldNotAsk: it is no answer, there are no accounts, or the translator fails at it
    """
    return _translated(system.accounted, answer)


def accounts(
    system: BatchSystem, answer: CommandResult | None, trouble: Trouble, what: str = "the accounting"
) -> Statuses:
    """What the accounting says of jobs that have ended.

    Many sites have none, and the job's own files say the same: that is noted, and no fault.

    :param answer: None: it was not asked
    """
    if answer is None:
        return Statuses(())
    try:
        found = [job for job in accounted(system, answer) if has_ended(job)]
    except CouldNotAsk as error:
        trouble.begin(what, error, level=logging.INFO)
        return Statuses(())
    trouble.end(what)
    return Statuses(found)


def _translated(translate: Callable[[CommandResult], Collection[T]], answer: CommandResult) -> list[T]:
    """What a translator makes of an answer. Any fault of its own costs this answer alone, not the round."""
    try:
        return list(translate(answer))
    except CouldNotAsk:
        raise
    except Exception as error:
        fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CouldNotAsk(f"the answer makes no sense: {fault}; {answer.message}") from error
