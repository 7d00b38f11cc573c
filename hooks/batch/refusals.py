"""What the messages mean by which a batch system refuses something.

Each system has a table of such messages of its own.

| read | concluded | until |
|---|---|---|
| submission: one id, exit status 0 | accepted | for good |
| several ids; an id and a failure; exit status 0 or silence without an id | ``transient`` | its name is looked up |
| a failure whose message is in no table | ``permanent``: the user reads it | for good |
| question: exit status 0 | it is for the translator to find that it was asked | the next answer |
| a failure of which each line says that a job is gone | asked | the next answer |
| any other failure | could not ask | the next answer |
| order to cancel: exit status 0 | received, no more | the job is gone; repeated till then |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lading.hooks.ssh.answer import CommandResult

Kind = Literal["transient", "limit", "permanent"]

# What any network and any system says in passing.
_TRANSIENT = re.compile(
    r"timed? ?out|time-out|temporar|try(?:ing)? again|connection (?:refused|reset|closed|lost)|unreachable|broken pipe|"
    r"no route to host|cannot allocate memory|resource busy|stale (?:nfs )?file handle|name or service not known|"
    r"input/output error|no space left|disk quota|too many open files",
    re.IGNORECASE,
)
_FAULT = re.compile(
    r"error|fail|denied|permi(?:ssion|tted)|unauthori[sz]ed|not allowed|unable|can(?:no|')t", re.IGNORECASE
)
# Of an array that would never be taken, although a smaller one, or a job, may be.
_ABOUT_ARRAYS = re.compile(r"array|subjob|max_aj_tasks|more than \d+ tasks", re.IGNORECASE)
# Of a limit on the number of jobs: what names it.
_LIMIT_ON_JOBS = re.compile(
    r"\b(?:(?:QOS|Assoc)\w*(?:Submit|Jobs)\w*|MaxJobCount|max_\w*(?:jobs|queue|queuable|submit|run)\w*"
    r"|only \d+ jobs?[\w ]*|limit (?:on|of) (?:\w+ )*jobs[\w ]*|(?:maximum )?number of (?:\w+ )?jobs(?: (?!MSG)\w+)*"
    r"|jobs? limit|pending job (?:slot )?(?:limit|threshold))\b",
    re.IGNORECASE,
)
# A command that a signal has ended, as its shell says it. Others above 128 are numbers of the schedulers' own.
_BY_SIGNAL = (129, 130, 137, 141, 143)


class SubmitError(RuntimeError):
    """A submission was not accepted, or it is not known whether it was.

    :ivar kind: ``transient``: it is not known; look the job up by its name before it is submitted again. ``limit``: not
        now; it is accepted once other jobs have ended. ``permanent``: never
    :ivar message: what the batch system said
    :ivar of_account: whether it would refuse any job of this account in that queue
    """

    def __init__(self, kind: Kind, message: str, *, of_account: bool = False) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.of_account = of_account

    @property
    def is_too_large(self) -> bool:
        """Whether a part of what was submitted may be taken, if that was an array."""
        return self.kind == "limit" or (self.kind == "permanent" and self.is_of_arrays)

    @property
    def is_of_arrays(self) -> bool:
        """Whether it is an array that is refused, which waiting does not make smaller."""
        return bool(_ABOUT_ARRAYS.search(self.message)) and limit_on_jobs(self.message) is None


class CouldNotAsk(RuntimeError):
    """The batch system did not answer, or its answer is cut or makes no sense. Nothing is known, nothing has changed.

    :ivar message: what was said instead
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CancelError(RuntimeError):
    """Jobs were not cancelled, or it is not known whether they were; to cancel them again does no harm.

    :ivar message: what the batch system said
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Wording:
    """The messages of one batch system.

    :param permanent: a permanent refusal, although the message would also match one of the others
    :param limit: not now: a limit is reached, or a queue is closed for a while
    :param transient: it was not reached, or it is not known whether it has understood
    :param gone: a job that was named is not there, or not there any more
    :param ending: what an order to cancel fails with that is carried out all the same; None: nothing
    :param account: of what is refused permanently: the account, or the user, is not admitted, or not to that queue;
        None: it says no such thing
    :param memory: what it writes into the output of a job that it ends for its memory; None: nothing, or it says why it
        was ended elsewhere
    :param server: of an id, the name of a server, which commands write in full or in short; None: ids have none
    """

    permanent: re.Pattern[str]
    limit: re.Pattern[str]
    transient: re.Pattern[str]
    gone: re.Pattern[str]
    ending: re.Pattern[str] | None = None
    account: re.Pattern[str] | None = None
    server: re.Pattern[str] | None = None
    memory: re.Pattern[str] | None = None

    def submitted(self, answer: CommandResult, line: re.Pattern[str]) -> str:
        """The native id in the answer to a submission.

        :param line: the whole of the line that has it, as its only group
        :raises SubmitError: there is none; or there are several, one of which may be a number that the site prints, and
            the job is to be looked up by its name
        """
        found = {match[1] for each in answer.lines if (match := line.fullmatch(each.strip()))}
        if answer.status == 0 and len(found) == 1:
            return found.pop()
        if len(found) > 1:
            raise SubmitError("transient", f"it names several jobs, {' and '.join(sorted(found))}: {answer.message}")
        if found:  # a command that fails although it says an id may have submitted the job
            raise SubmitError("transient", answer.message)
        raise self.submit_error(answer)

    def submit_error(self, answer: CommandResult) -> SubmitError:
        """Why a submission was refused, for an answer without an id.

        What no table knows is permanent if the command has failed with a message of its own: the user reads it. A
        command that claims to have succeeded may have submitted the job, so that is transient.
        """
        text = f"{answer.stderr}\n{answer.stdout}"
        of_account = self.account is not None and self.account.search(text) is not None
        for_good = SubmitError("permanent", answer.message, of_account=of_account)
        if answer.status is None or answer.status in _BY_SIGNAL or answer.status < 0:
            return SubmitError("transient", answer.message)
        if self.permanent.search(text):
            return for_good
        if self.limit.search(text):
            return SubmitError("limit", answer.message)
        if answer.status == 0 or self._transient(text) or not text.strip():
            return SubmitError("transient", answer.message)
        return for_good

    def check_asked(self, answer: CommandResult) -> None:
        """Check that a question was answered. Jobs that are not there are an answer, too.

        :raises CouldNotAsk: it was not
        """
        if answer.status == 0:
            return
        if answer.status is None or self._fault(answer, self.gone):
            raise CouldNotAsk(answer.message)

    def declared_gone(self, answer: CommandResult, ids: Sequence[str]) -> tuple[set[str], bool]:
        """The ids that an answer declares gone, and whether it says that without naming a job."""
        # What it prints about the jobs that are there may contain any text.
        said = answer.stderr if answer.stderr.strip() or answer.status == 0 else answer.stdout
        lines = [line for line in said.splitlines() if self.gone.search(line)]
        known = _by_bare(ids, self._of_any_server)
        named = {known[each] for each in _named(list(map(self._of_any_server, lines)), list(known))}
        return named | _named(lines, ids), any(not re.search(r"\d", line) for line in lines)

    def asked_as(self, ids: Sequence[str]) -> Callable[[str], str]:
        """What gives an id in an answer as it was asked for, where that names the server in another way."""

        def bare(id: str) -> str:
            return id if self.server is None else self.server.sub("", id)

        known, named = _by_bare(ids, bare), set(ids)
        return lambda id: id if id in named else known.get(bare(id), id)

    def _of_any_server(self, text: str) -> str:
        return text if self.server is None else self.server.sub(".server", text)

    def says_memory(self, output: str) -> bool:
        """Whether a batch system has written into the output of a job that it ends it for its memory."""
        return self.memory is not None and self.memory.search(output) is not None

    def check_cancelled(self, answer: CommandResult) -> None:
        """Check that jobs were cancelled. Jobs that are not there any more, or are being ended, are no fault.

        :raises CancelError: they were not, or that is not known
        """
        harmless = (self.gone,) if self.ending is None else (self.gone, self.ending)
        if answer.status != 0 and (answer.status is None or self._fault(answer, *harmless)):
            raise CancelError(answer.message)

    def _fault(self, answer: CommandResult, *harmless: re.Pattern[str]) -> bool:
        """Whether a command that has failed says anything else than what does no harm."""
        # The standard output may be about the jobs that are there, with any text in it.
        said = answer.stderr if answer.stderr.strip() else answer.stdout
        lines = [line for line in said.splitlines() if line.strip()]
        others = [line for line in lines if not any(each.search(line) for each in harmless)]
        return len(others) == len(lines) or any(self._transient(line) or _FAULT.search(line) for line in others)

    def _transient(self, text: str) -> bool:
        return bool(self.transient.search(text) or _TRANSIENT.search(text))


def _by_bare(ids: Sequence[str], bare: Callable[[str], str]) -> dict[str, str]:
    """The ids by what is left of each; two of which the same is left are those of different servers."""
    found: dict[str, list[str]] = {}
    for id in dict.fromkeys(ids):
        found.setdefault(bare(id), []).append(id)
    return {each: alike[0] for each, alike in found.items() if len(alike) == 1}


def _named(lines: Sequence[str], ids: Sequence[str]) -> set[str]:
    """The ids that stand in lines as whole words, of the characters that ids have: ``1`` does not in ``1.pbs1``."""
    marks = "." + "".join(set(re.findall(r"[^\w\s.\[\]]", "".join(ids))))
    word = re.compile(rf"[\w\[\]{re.escape(marks)}]+")
    # What ends a sentence, or goes before what is said of a job, is no part of its id.
    return set(ids) & {text.rstrip(marks) for line in lines for text in word.findall(line)}


def limit_on_jobs(message: str) -> str | None:
    """How a refusal names the limit on the number of jobs that is reached; None: it is of something else."""
    found = _LIMIT_ON_JOBS.search(message)
    return None if found is None else found[0].strip()


def any_of(*patterns: str) -> re.Pattern[str]:
    """A pattern that finds any of these, upper or lower case."""
    return re.compile("|".join(patterns), re.IGNORECASE)
