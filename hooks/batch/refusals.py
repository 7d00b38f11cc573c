"""Classify the messages of a batch system: refused submissions, failed queries and failed cancellations.

Each batch system has its own table of messages. How answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| submission: one ID, exit status 0 | accepted | final |
| several IDs; an ID and a failure; exit status 0 or no output, without an ID | ``transient`` | lookup by name |
| a failure with a message in no table | ``permanent``: the user reads it | final |
| query: exit status 0 | the parser decides whether the batch system was asked | the next answer |
| a failure in which each line says that a job is gone | a valid answer | the next answer |
| any other failure | could not ask | the next answer |
| cancellation: exit status 0 | received, which proves nothing more | the job is gone; repeated until then |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lading.hooks.ssh.answer import CommandResult

Kind = Literal["transient", "limit", "permanent"]

# Messages of networks and operating systems about temporary failures.
_TRANSIENT = re.compile(
    r"timed? ?out|time-out|temporar|try(?:ing)? again|connection (?:refused|reset|closed|lost)|unreachable|broken pipe|"
    r"no route to host|cannot allocate memory|resource busy|stale (?:nfs )?file handle|name or service not known|"
    r"input/output error|no space left|disk quota|too many open files",
    re.IGNORECASE,
)
_FAULT = re.compile(
    r"error|fail|denied|permi(?:ssion|tted)|unauthori[sz]ed|not allowed|unable|can(?:no|')t", re.IGNORECASE
)
# Refusals of an array that will never be accepted, although a smaller one, or a single job, may be.
_ABOUT_ARRAYS = re.compile(r"array|subjob|max_aj_tasks|more than \d+ tasks", re.IGNORECASE)
# Refusals by a limit on the number of jobs; the match is the name of the limit.
_LIMIT_ON_JOBS = re.compile(
    r"\b(?:(?:QOS|Assoc)\w*(?:Submit|Jobs)\w*|MaxJobCount|max_\w*(?:jobs|queue|queuable|submit|run)\w*"
    r"|only \d+ jobs?[\w ]*|limit (?:on|of) (?:\w+ )*jobs[\w ]*|(?:maximum )?number of (?:\w+ )?jobs(?: (?!MSG)\w+)*"
    r"|jobs? limit|pending job (?:slot )?(?:limit|threshold))\b",
    re.IGNORECASE,
)
# Exit statuses of a command that a signal killed, as a shell reports them. Schedulers use other numbers above 128.
_BY_SIGNAL = (129, 130, 137, 141, 143)


class SubmitError(RuntimeError):
    """A submission was not accepted, or its outcome is unknown.

    :ivar kind: ``transient``: unknown; look the job up by its name before submitting it again. ``limit``: not now; it
        can be accepted once other jobs have ended. ``permanent``: never
    :ivar message: the batch system's message
    :ivar of_account: whether the queue would refuse any job of this account
    """

    def __init__(self, kind: Kind, message: str, *, of_account: bool = False) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.of_account = of_account

    @property
    def is_of_arrays(self) -> bool:
        """Whether the array itself is refused, so that waiting does not help."""
        return bool(_ABOUT_ARRAYS.search(self.message)) and limit_on_jobs(self.message) is None


class CouldNotAsk(RuntimeError):
    """The batch system did not answer, or its answer is truncated or unreadable. Nothing may be concluded from it.

    :ivar message: the answer, or the fault in it
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CancelError(RuntimeError):
    """Jobs were not cancelled, or the result is unknown. Cancelling them again is harmless.

    :ivar message: the batch system's message
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Wording:
    """Patterns of the messages of one batch system.

    :param permanent: permanent refusals; takes precedence over the other patterns
    :param limit: temporary refusals: a limit is reached, or a queue is closed for a while
    :param transient: the batch system was not reached, or may not have understood the request
    :param gone: a named job does not exist, or no longer exists
    :param ending: failures of a cancellation that takes effect nevertheless; None: there are none
    :param account: permanent refusals of the account or the user, in general or by a queue; None: there are none
    :param memory: what it writes into the output of a job that it kills for its memory; None: nothing, or it reports
        the cause elsewhere
    :param server: the name of a server within an ID, which commands write in full or abbreviated; None: IDs have none
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
        """Return the native ID in the answer to a submission.

        :param line: matches the whole line with the ID, which is its only group
        :raises SubmitError: there is no ID, or there are several, one of which may be a number that the site prints;
            the job must then be looked up by its name
        """
        found = {match[1] for each in answer.lines if (match := line.fullmatch(each.strip()))}
        if answer.status == 0 and len(found) == 1:
            return found.pop()
        if len(found) > 1:
            raise SubmitError(
                "transient", f"the answer names several jobs, {' and '.join(sorted(found))}: {answer.message}"
            )
        if found:  # a command that fails although it prints an ID may have submitted the job
            raise SubmitError("transient", answer.message)
        raise self.submit_error(answer)

    def submit_error(self, answer: CommandResult) -> SubmitError:
        """Return why a submission was refused, for an answer without an ID.

        A failure with an unknown message is permanent, so that the user reads it. A command that exits with status 0
        may have submitted the job, so its outcome is transient.
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
        """Check that a query was answered. That jobs do not exist is an answer, too.

        :raises CouldNotAsk: it was not
        """
        if answer.status == 0:
            return
        if answer.status is None or self._fault(answer, self.gone):
            raise CouldNotAsk(answer.message)

    def declared_gone(self, answer: CommandResult, ids: Sequence[str]) -> tuple[set[str], bool]:
        """Return the IDs that an answer declares gone, and whether it declares a job gone without naming it."""
        # What it prints about existing jobs may contain any text.
        said = answer.stderr if answer.stderr.strip() or answer.status == 0 else answer.stdout
        lines = [line for line in said.splitlines() if self.gone.search(line)]
        known = _by_bare(ids, self._of_any_server)
        named = {known[each] for each in _named(list(map(self._of_any_server, lines)), list(known))}
        return named | _named(lines, ids), any(not re.search(r"\d", line) for line in lines)

    def asked_as(self, ids: Sequence[str]) -> Callable[[str], str]:
        """Return a function that maps an ID in an answer to the queried ID, which may write the server differently."""

        def bare(id: str) -> str:
            return id if self.server is None else self.server.sub("", id)

        known, named = _by_bare(ids, bare), set(ids)
        return lambda id: id if id in named else known.get(bare(id), id)

    def _of_any_server(self, text: str) -> str:
        return text if self.server is None else self.server.sub(".server", text)

    def says_memory(self, output: str) -> bool:
        """Whether the batch system wrote into a job's output that it killed the job for its memory."""
        return self.memory is not None and self.memory.search(output) is not None

    def check_cancelled(self, answer: CommandResult) -> None:
        """Check that jobs were cancelled. Jobs that no longer exist or are being cancelled already are not an error.

        :raises CancelError: they were not, or the result is unknown
        """
        harmless = (self.gone,) if self.ending is None else (self.gone, self.ending)
        if answer.status != 0 and (answer.status is None or self._fault(answer, *harmless)):
            raise CancelError(answer.message)

    def _fault(self, answer: CommandResult, *harmless: re.Pattern[str]) -> bool:
        """Whether a failed command prints anything else than harmless messages."""
        # The standard output may describe existing jobs and contain any text.
        said = answer.stderr if answer.stderr.strip() else answer.stdout
        lines = [line for line in said.splitlines() if line.strip()]
        others = [line for line in lines if not any(each.search(line) for each in harmless)]
        return len(others) == len(lines) or any(self._transient(line) or _FAULT.search(line) for line in others)

    def _transient(self, text: str) -> bool:
        return bool(self.transient.search(text) or _TRANSIENT.search(text))


def _by_bare(ids: Sequence[str], bare: Callable[[str], str]) -> dict[str, str]:
    """Map the bare form of each ID to the ID. Bare forms shared by several IDs, of different servers, are left out."""
    found: dict[str, list[str]] = {}
    for id in dict.fromkeys(ids):
        found.setdefault(bare(id), []).append(id)
    return {each: alike[0] for each, alike in found.items() if len(alike) == 1}


def _named(lines: Sequence[str], ids: Sequence[str]) -> set[str]:
    """Return the IDs that occur in the lines as whole words of ID characters: ``1.pbs1`` does not contain ``1``."""
    marks = "." + "".join(set(re.findall(r"[^\w\s.\[\]]", "".join(ids))))
    word = re.compile(rf"[\w\[\]{re.escape(marks)}]+")
    # Punctuation at the end of a sentence or before a message about a job is not part of its ID.
    return set(ids) & {text.rstrip(marks) for line in lines for text in word.findall(line)}


def limit_on_jobs(message: str) -> str | None:
    """Return how a refusal names the limit on the number of jobs; None: it is about something else."""
    found = _LIMIT_ON_JOBS.search(message)
    return None if found is None else found[0].strip()


def any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)
