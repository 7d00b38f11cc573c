"""A spool on another machine: what is asked and done there, as shell texts, and what they answer. Pure.

Beside the spool, in the same folder, envelopes lie in ``incoming`` on their way into its inbox.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lading.hooks.spool import events
from lading.hooks.spool.tokens import TOKEN, checked
from lading.hooks.ssh.answer import Answer, TransportError
from lading.hooks.ssh.steps import GetAll, Run

# The last line of an answer that is whole.
END = "."
# So many logs of an earlier controller's jobs are looked for.
MOST_LOGS = 20_000


def place(root: str, names: Sequence[str]) -> Run:
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
    return Run(f"cd -- {shlex.quote(root)} || exit\n" + "\n".join(texts))


def ring(root: str) -> Run:
    """Wake the agent, where there is one."""
    # Opened for both, a FIFO lets nobody wait.
    return Run(f"cd -- {shlex.quote(root)}/spool || exit\n[ ! -p bell ] || printf . 1<>bell")


def take_back(root: str, tokens: Iterable[str]) -> Run:
    """Take jobs back that nobody has begun; tell of each whether that is so, or it has begun, or is not there."""
    words = " ".join(map(checked, tokens))
    return Run(
        f"cd -- {shlex.quote(root)}/spool || exit\nfor each in {words}; do\n"
        'if rm -- "inbox/$each.json" 2>/dev/null; then echo "removed $each"\n'
        'elif [ -e "jobs/$each" ]; then echo "begun $each"; else echo "absent $each"; fi; done'
    )


def taken_back(answer: Answer) -> dict[str, str]:
    """By token, ``removed``, ``begun`` or ``absent``.

    :raises TransportError: it is not known
    """
    if answer.status != 0:
        raise TransportError(f"jobs could not be taken back: {answer.words}")
    pairs = (line.split() for line in answer.lines if line.strip())
    return {token: what for what, token in pairs}


def known(root: str) -> Run:
    """Name the jobs that wait and those that have begun.

    In this order, and before the events are read: a job on its way from one to the next is found at least once, and
    its end is told last.
    """
    return Run(f"cd -- {shlex.quote(root)}/spool || exit\nls inbox && ls jobs && echo {END}")


def read_known(answer: Answer) -> frozenset[str]:
    """The tokens of all jobs that are there.

    :raises TransportError: it is not known
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or not lines or lines[-1] != END:
        raise TransportError(f"the jobs there are not known: {answer.words}")
    names = (line.removesuffix(".json") for line in lines[:-1])
    return frozenset(name for name in names if TOKEN.fullmatch(name))


def count(root: str) -> Run:
    """Count the files of events, before they are read."""
    return Run(f"cd -- {shlex.quote(root)}/spool/events || exit\nls | wc -l")


def read_count(answer: Answer) -> int:
    """How many there are.

    :raises TransportError: it is not known
    """
    text = answer.stdout.strip()
    if answer.status != 0 or not text.isdecimal():
        raise TransportError(f"how many events there are is not known: {answer.words}")
    return int(text)


def events_of(root: str) -> GetAll:
    """Read the events, at most so many that a reader need not wait for long."""
    return GetAll(f"{root}/spool/events", largest=events.MOST_BYTES)


def logs_of(root: str) -> Run:
    """Name the logs that there are, each below a folder of its job's token."""
    place = shlex.quote(f"{root}/logs")
    return Run(f"cd -- {place} 2>/dev/null && find . -type f -name '*.log' | head -n {MOST_LOGS}; :")


@dataclass(frozen=True, slots=True)
class Pulse:
    """Whether an agent lives on a machine.

    :param boot_id: of the machine now; another one than before: it was started anew, and nothing from before runs
    :param lives: whether the process that has written ``agent.json`` last is still there
    :param now: what its clock says, seconds since the epoch
    """

    boot_id: str
    lives: bool
    now: float


def pulse(root: str) -> Run:
    """Ask for what tells whether an agent lives: what it has written of itself, and what the machine says."""
    identity = f"{shlex.quote(root)}/spool/agent.json"
    return Run(
        "cat /proc/sys/kernel/random/boot_id && date +%s || exit\n"
        f"[ -f {identity} ] && tr -d '\\n' <{identity} && echo\n"
        f"pid=$(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' {identity} 2>/dev/null)\n"
        f'[ -n "$pid" ] && cat "/proc/$pid/stat" 2>/dev/null; echo {END}'
    )


def read_pulse(answer: Answer) -> Pulse:
    """What that says; see proc_pid_stat(5).

    :raises TransportError: it is not known
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or len(lines) < 3 or lines[-1] != END or not lines[1].strip().isdecimal():
        raise TransportError(f"whether its agent lives is not known: {answer.words}")
    boot_id, now, *rest = lines[:-1]
    try:
        written, stat = json.loads(rest[0]), rest[1]
        state, *fields = stat[stat.rindex(")") + 2 :].split()
        is_same = written["boot_id"] == boot_id.strip() and written["started"] == int(fields[18])
        lives = is_same and state != "Z"
    except (IndexError, ValueError, TypeError, LookupError, RecursionError):
        lives = False  # no agent has written it, or it is no more
    return Pulse(boot_id.strip(), lives, float(now))
