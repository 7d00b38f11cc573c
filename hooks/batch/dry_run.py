"""Dry runs: ask a batch system whether it would accept a script, without submitting it.

How answers are interpreted:

| read | concluded |
|---|---|
| exit status 0 | accepted |
| a refusal that is final at submission, see :mod:`lading.hooks.batch.refusals`, and known or about an option | final |
| another message | refused for now: submission decides |
| such a refusal that can also mean that nodes are down | final if no node has what is requested; otherwise for now |
| a limit that is reached, or a closed queue | refused for now |
| no answer, a temporary failure, or a command that has no dry run | could not ask |
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lading.hooks.batch.refusals import CouldNotAsk, SubmitError, Wording
from lading.hooks.ssh.answer import CommandResult

# Exit statuses of a shell that could not run a command.
NOT_RUN = (126, 127)


@dataclass(frozen=True, slots=True)
class DryRun:
    """How to ask whether a script would be accepted.

    :param command: asks; the path of the script is its last argument
    :param noise: what precedes the sentences of an answer
    :param queue: the option that names the queue
    :param unsure: refusals that are final at submission, but that a dry run also gives while nodes are down
    :param about: for an option, the refusals that are about it
    :param names: for an option, the command that lists its valid values; the survey lists the queues
    :param of_nodes: options whose values are properties of nodes, and are listed even if the nodes are down
    """

    command: Sequence[str]
    noise: re.Pattern[str]
    queue: str
    unsure: re.Pattern[str]
    about: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    of_nodes: Collection[str] = ()

    def refusal(self, answer: CommandResult, wording: Wording) -> SubmitError | None:
        """Return why a script would be refused now; None: it would be accepted.

        :raises CouldNotAsk: it is not a valid answer
        """
        if answer.status == 0:
            return None
        if answer.status in NOT_RUN or self.command[-1].lstrip("-") in answer.message:
            raise CouldNotAsk(answer.message)
        refusal = wording.submit_error(answer)
        if refusal.kind == "transient":
            raise CouldNotAsk(answer.message)
        return SubmitError(refusal.kind, self._sentences(answer), of_account=refusal.of_account)

    def option(self, message: str, given: Collection[str]) -> str | None:
        """Return the option that a refusal is about; None: unknown.

        :param given: the options of the script
        """
        found = next((option for option, pattern in self.about.items() if pattern.search(message)), None)
        named = re.findall(r"--([a-z][\w-]*)", message) if found is None else [found]
        return next((option for option in named if option in given), None)

    def _sentences(self, answer: CommandResult) -> str:
        said = answer.stderr if answer.stderr.strip() else answer.stdout
        lines = (self.noise.sub("", line.strip()).rstrip(".") for line in said.splitlines())
        return "; ".join(dict.fromkeys(line for line in lines if line)) or answer.message


def parse_names(text: str) -> list[str]:
    """Parse valid values, separated by line ends or commas: ``gpu:a100`` and ``gpu`` for ``gpu:a100:4(S:0,1)``."""
    values = re.split(r"[,\n]", re.sub(r"\([^()\n]*\)", "", text))
    named = list(filter(None, (without_amount(each.strip()) for each in values)))
    return list(dict.fromkeys([*named, *(each.partition(":")[0] for each in named)]))


def without_amount(value: str) -> str:
    return re.sub(r":\d+[KMGTP]?$", "", value)
