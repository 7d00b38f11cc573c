"""Directives as text: quoting their values, and whether two of them say the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lading.scheduling.text.printable import shortened

# What every batch system maps; any other resource is a directive of the scheduler.
COMMON_RESOURCES = ("jobname", "queue", "time", "nodes", "ppn", "threads", "mem", "stdout", "stderr", "array")
# The attributes that mean something; any other one is a placeholder and nothing else.
ATTRIBUTES = ("backend", "shell", "rootdir", "workdir", "filename", "prologue", "epilogue")
# What no batch system's own reader of directives treats in a special way.
_PLAIN = re.compile(r"[\w@%+=:,./~^\[\]{}$*-]+")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ](.*))?", re.DOTALL)


class Unsupported(ValueError):
    """A batch system cannot express a request. The message names the value, what is valid and what to do."""


def given(value: object) -> bool:
    """Whether a property has a value; None and an empty text take away what a lower layer has."""
    return value is not None and value != ""


def quoted(value: str) -> str:
    """The value as one word of a directive.

    The readers of PBS, LSF and SGE know both kinds of quotes, but have no way to escape one, and do not agree on what a
    backslash is: before a quote it may take its meaning away.

    :raises Unsupported: it has quotes of both kinds, or a backslash
    """
    if "\\" in value:
        raise Unsupported(f"{shortened(value)} has a backslash, which a directive cannot; leave it out")
    if _PLAIN.fullmatch(value):
        return value
    for quote in ('"', "'"):
        if quote not in value:
            return f"{quote}{value}{quote}"
    raise Unsupported(f"{shortened(value)} has both kinds of quotes, which a directive cannot; use one kind")


def escaped(value: str) -> str:
    """The value as one word where a backslash escapes within quotes, as sbatch reads it; # begins a comment there."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def one_line(directive: str) -> str:
    """The directive, if it cannot end the line that it stands in.

    :raises Unsupported: it has a control character
    """
    for character in directive:
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            raise Unsupported(f"{shortened(directive)} has the control character {character!r}; write it in one line")
    return directive


def one_word(jobname: str) -> str:
    """The name of a job, for a batch system that takes no blanks in it.

    :raises Unsupported: it has one
    """
    if any(character.isspace() for character in jobname):
        shown = shortened(jobname)
        raise Unsupported(f"jobname {shown} has a blank, which is refused here; write for example '_' instead")
    return jobname


def clock(seconds: int) -> str:
    """A length of time as ``HH:MM:SS``, with as many hours as it takes."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def settings(directive: str) -> list[str]:
    """What a directive sets: ``nodes`` for ``--nodes=2``, ``l mem`` and ``l ncpus`` for ``-l mem=1gb,ncpus=4``,
    ``R span`` for ``-R "span[ptile=4]"``.
    """
    match = _OPTION.match(directive)
    if match is None:
        return [directive]
    key, value = match[1], (match[2] or "").strip()
    if key in ("l", "W"):
        return [f"{key} {name}" for name in re.findall(r"(?:^|,)\s*\"?([A-Za-z][\w.-]*)\s*(?==|,|$)", value)] or [key]
    if key == "R":
        return [f"R {name}" for name in re.findall(r"([a-z]+)\[", value)] or ["R select"]
    return [key]


def refuse_conflicts(own: Sequence[str], native: Mapping[str, str], synonyms: Mapping[str, str]) -> None:
    """Refuse native directives that say what Lading's directives or other native ones say.

    :param own: Lading's directives
    :param native: the scheduler's directives that were asked for, by their key
    :param synonyms: for a setting, another one that it is the same as, or that it cannot be given with
    :raises Unsupported: there is one
    """
    taken = {synonyms.get(name, name): directive for directive in own for name in settings(directive)}
    for key, directive in native.items():
        for name in dict.fromkeys(synonyms.get(name, name) for name in settings(directive)):
            if name in taken and name not in ADD_UP:
                raise Unsupported(
                    f"the native directive {key!r} ({directive}) is in conflict with {taken[name]}; "
                    "leave it out, or leave out what the other one comes from"
                )
            taken[name] = directive


def sets_any(directive: str, others: Sequence[str], synonyms: Mapping[str, str]) -> bool:
    """Whether one of the others sets what a directive sets, and only one of them can."""
    taken = {synonyms.get(name, name) for other in others for name in settings(other)} - ADD_UP
    return any(synonyms.get(name, name) in taken for name in settings(directive))


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The one directive with which a batch system keeps a job away from nodes.

    :param directive: with ``{}`` for the nodes
    :param node: one of them, with ``{}`` for its name
    :param separator: what stands between two
    """

    directive: str
    node: str = "{}"
    separator: str = ","

    def render(self, nodes: Sequence[str]) -> str:
        """The directive, for at least one node."""
        return self.directive.format(self.separator.join(map(self.node.format, nodes)))


# Settings that may be given more than once, because they add up.
ADD_UP = frozenset({"R select", "R rusage", "R order", "R same", "R cu", "R affinity"})
