"""The inbox of a spool on a cluster, where only a shell is counted on: shell texts, and what they answer. Pure.

Beside the spool, in the same folder, envelopes lie in ``incoming`` on their way into its inbox.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from lading.hooks.spool.tokens import TOKEN, checked
from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.steps import RunCommand

# What can be said of a job that is to be taken back: it is out, it has begun, it is not there.
FATES = "removed", "begun", "absent"


def place(root: str, names: Sequence[str]) -> RunCommand:
    """Move envelopes into the inbox, but not those of jobs that have begun: they must not run twice.

    What holds them is removed when all of them are there.

    :param root: the folder that has the spool, absolute
    :param names: what holds them in ``incoming``; ``renewed`` holds those of jobs whose envelope is replaced
    """
    texts = []
    for name in names:
        renewed = name.startswith("renewed")
        # What may be taken away at any moment is looked at one by one, what is new is moved many at a time.
        keep, most = ('[ -f "../../spool/inbox/$each" ]', 1) if renewed else ("true", 200)
        texts.append(
            f"(cd incoming/{name} || exit; set --; for each in *.json; do "
            f'if {keep} && [ ! -e "../../spool/jobs/${{each%.json}}" ]; then set -- "$@" "$each"; '
            f'else rm -f -- "$each" || exit; fi; '
            f'if [ $# -ge {most} ]; then mv -f -- "$@" ../../spool/inbox/ || exit; set --; fi; done; '
            f'if [ $# -gt 0 ]; then mv -f -- "$@" ../../spool/inbox/ || exit; fi; cd .. && rmdir {name}) || exit'
        )
    return RunCommand(f"cd -- {shlex.quote(root)} || exit\n" + "\n".join(texts))


def take_back(root: str, tokens: Iterable[str]) -> RunCommand:
    """Take jobs back that nobody has begun; tell of each whether that is so, or it has begun, or is not there."""
    words = " ".join(map(checked, tokens))
    return RunCommand(
        f"cd -- {shlex.quote(root)}/spool || exit\nfor each in {words}; do\n"
        'if rm -- "inbox/$each.json" 2>/dev/null; then echo "removed $each"\n'
        'elif [ -e "jobs/$each" ]; then echo "begun $each"; else echo "absent $each"; fi; done'
    )


def taken_back(answer: CommandResult) -> dict[str, str]:
    """By token, ``removed``, ``begun`` or ``absent``.

    :raises TransportError: it is not known
    """
    if answer.status != 0:
        raise TransportError(f"jobs could not be taken back: {answer.words}")
    return fates(answer.lines)


def fates(lines: Iterable[str]) -> dict[str, str]:
    """What such lines say of jobs, by token; other lines, of an ``rm`` that talks for instance, say nothing."""
    pairs = (line.split() for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and pair[0] in FATES and TOKEN.fullmatch(pair[1])}
