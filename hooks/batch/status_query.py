"""Query the states of jobs, and tell what an answer says about each job.

There are three results for a job, never two: a state, "no such job", or "could not ask". A job that an answer neither
lists nor declares gone has the third result; the other jobs of that answer are unaffected.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| no output at all, with exit status 0 | could not ask: a wrapper that fails silently looks the same | the next answer |
| a parser raises | could not ask | the next answer |
| an ID that is neither listed nor declared gone | could not ask about that job | the next answer |
| a job with the ID but another name | a different job: the ID was reused | ``lost_after`` |
| a name is missing in an incomplete answer | could not ask; in a complete one: not submitted | a complete answer |
| no accounting, or no record of a job | nothing new | exit file, ``lost_after`` |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lading.hooks.batch.outcome import has_ended
from lading.hooks.batch.request import untitled
from lading.hooks.batch.system import BatchSystem, CouldNotAsk, NativeJob
from lading.hooks.files.logs import Trouble
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import RunCommand

T = TypeVar("T")
# Lading's own parsers return full names. A third-party parser may read names from a table that truncates them; at least
# this many characters must match. The narrowest column is squeue's ("%.8j"); those of qstat and bjobs have 10 or more.
SHORTEST_BEGINNING = 8
# Time limit for one query, in seconds. Commands of a batch system can hang while it is down; those of LSF always do.
# The limit leaves time for the later steps of an exchange.
QUESTION_LIMIT = 30
Key = tuple[str, int | None]
"""The native ID of a submission, and the index of an array element; None: not an array."""


@dataclass(frozen=True)
class Statuses:
    """The answer to a query for the states of jobs.

    :param jobs: all jobs in the answer, which can include jobs that were not queried
    :param asked: the queried native IDs
    :param unknown: the queried IDs for which the batch system knows no jobs beyond ``jobs``
    :param is_whole: whether ``jobs`` are all jobs of the user, so that no job has a name that is missing there
    :param clusters: the other clusters of which that is true as well
    """

    jobs: Sequence[NativeJob]
    asked: Collection[str] = ()
    unknown: Collection[str] = ()
    is_whole: bool = True
    clusters: Collection[str] = ()
    _by_key: dict[Key, NativeJob] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {(job.id, job.index): job for job in self.jobs})

    def get(self, key: Key, name: str | None) -> NativeJob | None:
        """Return a job; None: the batch system does not know it, or could not be asked; see :meth:`is_silent`.

        :param name: as submitted; a job with the same ID but another name is a different job
        """
        job = self._by_key.get(key)
        return job if job is not None and is_called(job, name) else None

    def is_silent(self, key: Key) -> bool:
        """Whether the answer says nothing about a job: neither its state nor that there is no such job."""
        if key in self._by_key:
            return False
        whole = self._by_key.get((key[0], None))
        if whole is not None and whole.state != "ended":
            return True  # the array has not ended, and its elements are not listed one by one
        return key[0] not in self.unknown

    def are_whole(self, clusters: Collection[str]) -> bool:
        """Whether no job has a name that is missing here.

        :param clusters: those that its directives name; empty: it is in the cluster of the host that submits it
        """
        return self.is_whole and set(clusters) <= set(self.clusters)

    @property
    def gap(self) -> CouldNotAsk | None:
        """An error that names the jobs missing in the answer; None: it is complete."""
        if not (silent := self.silent):
            return None
        return CouldNotAsk(f"the batch system did not report {len(silent)} jobs, such as {', '.join(silent[:5])}")

    @property
    def silent(self) -> list[str]:
        reported = {job.id for job in self.jobs}
        return sorted(id for id in self.asked if id not in reported and id not in self.unknown)


@dataclass(frozen=True)
class StatusQuery:
    """A query for the states of jobs.

    :param user: owner of the jobs
    :param ids: as :meth:`BatchSystem.submitted` returned them
    :param by_name: whether to list all jobs of the user, to find those of which only the name is known
    :param clusters: other clusters in which those can be
    """

    system: BatchSystem
    user: str
    ids: Sequence[str] = ()
    by_name: bool = False
    clusters: Collection[str] = ()

    @property
    def command(self) -> list[str]:
        if not self.by_name:
            return self.system.status(self.user, self.ids)
        return self.system.lookup(self.user, self.ids, sorted(self.clusters))

    @property
    def step(self) -> RunCommand:
        return ask(self.command)

    def read(self, answer: CommandResult) -> Statuses:
        """Return the result of the query.

        :raises CouldNotAsk: it is not a valid answer, or its parser fails
        """
        if answer.status == 0 and not f"{answer.stdout}{answer.stderr}".strip():
            # A wrapper or login shell that fails silently looks the same.
            raise CouldNotAsk("the command printed nothing, so it may not have reached the batch system")
        jobs = self._as_asked(_translated(self.system.statuses, answer), answer)
        listed = self.command == self.system.status(self.user)
        unknown = set(_translated(lambda said: self.system.unknown(said, self.ids, listed=listed), answer))
        if not listed:  # an answer about a named job lists all of that job
            unknown |= {job.id for job in jobs}
        clusters = [each for each in self.clusters if self.system.lists_all(answer, [each])]
        return Statuses(jobs, self.ids, unknown, self.system.lists_all(answer), clusters)

    def _as_asked(self, jobs: list[NativeJob], answer: CommandResult) -> list[NativeJob]:
        """Return the jobs with the IDs of the query, even if the answer writes the server in another way."""
        asked_as = self.system.asked_as(answer, self.ids)
        return [job if (id := asked_as(job.id)) == job.id else replace(job, id=id) for job in jobs]


def ask(command: Sequence[str]) -> RunCommand:
    """Return a step that runs a command of a batch system with a time limit, since it may hang."""
    return RunCommand(command, limit=QUESTION_LIMIT)


def plain_name(job: NativeJob) -> str | None:
    """Return the submitted name of a job: without its title, and without the index that TORQUE adds for elements."""
    name = None if job.name is None else untitled(job.name)
    return name if name is None or job.index is None else name.removesuffix(f"-{job.index}")


def submitted_as(jobs: Iterable[NativeJob], name: str | None) -> str | None:
    """Return the native ID of the submission with a name that no other submission has; None: it is not listed.

    Any element of a job array shows that the array was accepted: some batch systems do not list the elements one by
    one, and others omit those that have ended.

    :param name: None: unknown, so the submission cannot be found
    """
    return None if name is None else next((job.id for job in jobs if plain_name(job) == name), None)


def is_called(job: NativeJob, name: str | None) -> bool:
    """Whether a listed job can be the one with this name, and not a different job with the same ID.

    IDs are reused: a scheduler that crashes may forget the last ones, and every counter wraps around one day. Some
    batch systems add the index to the names of elements, and a third-party parser may return truncated names.

    :param name: None: unknown
    """
    if name is None or not job.name:
        return True
    shown, name = untitled(job.name.strip()), name.strip()
    of_index = () if job.index is None else (f"{name}-{job.index}", f"{name}[{job.index}]")
    return shown in (name, *of_index) or (len(shown) >= SHORTEST_BEGINNING and name.startswith(shown))


def accounted(system: BatchSystem, answer: CommandResult) -> list[NativeJob]:
    """Return the jobs in an answer of the accounting.

    :raises CouldNotAsk: it is not a valid answer, the site has no accounting, or the parser fails
    """
    return _translated(system.accounted, answer)


def accounts(
    system: BatchSystem, answer: CommandResult | None, trouble: Trouble, what: str = "the accounting"
) -> Statuses:
    """Return what the accounting says about jobs that have ended.

    Many sites have no accounting, and a job's own files give the same information. So a failure is only logged.

    :param answer: None: the accounting was not queried
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
    """Run a parser on an answer. A bug in the parser invalidates this answer only, not the whole round."""
    try:
        return list(translate(answer))
    except CouldNotAsk:
        raise
    except Exception as error:
        fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CouldNotAsk(f"the answer cannot be parsed: {fault}; {answer.message}") from error
