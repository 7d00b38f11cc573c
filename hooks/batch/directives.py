"""Directives as text: quote their values, and detect two directives that set the same thing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lading.scheduling.text.printable import shortened

# Resources that every batch system maps. Any other one is a native directive.
COMMON_RESOURCES = ("jobname", "queue", "time", "nodes", "ppn", "threads", "mem", "stdout", "stderr", "array")
# Attributes with a meaning. Any other one is only a placeholder.
ATTRIBUTES = ("backend", "shell", "rootdir", "workdir", "filename", "prologue", "epilogue")
# Characters without a special meaning to any batch system's directive parser.
_PLAIN = re.compile(r"[\w@%+=:,./~^\[\]{}$*-]+")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ](.*))?", re.DOTALL)


class Unsupported(ValueError):
    """A batch system cannot express a request. The message names the value, the valid values and the remedy."""


def given(value: object) -> bool:
    """Whether a property has a value; None and an empty text remove the value of a lower layer."""
    return value is not None and value != ""


def quoted(value: str) -> str:
    """Return the value as one word of a directive.

    The parsers of PBS, LSF and SGE accept both kinds of quotes but cannot escape one, and they disagree on the meaning
    of a backslash.

    :raises Unsupported: the value has both kinds of quotes, or a backslash
    """
    if "\\" in value:
        raise Unsupported(f"{shortened(value)} has a backslash, which a directive cannot contain; leave it out")
    if _PLAIN.fullmatch(value):
        return value
    for quote in ('"', "'"):
        if quote not in value:
            return f"{quote}{value}{quote}"
    raise Unsupported(f"{shortened(value)} has both kinds of quotes, which a directive cannot contain; use one kind")


def escaped(value: str) -> str:
    """Return the value as one word for sbatch. There, a backslash escapes within quotes, and # starts a comment."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def one_line(directive: str) -> str:
    """Return the directive unchanged if it is a single line.

    :raises Unsupported: it has a control character
    """
    for character in directive:
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            raise Unsupported(f"{shortened(directive)} has the control character {character!r}; write it in one line")
    return directive


def one_word(jobname: str) -> str:
    """Return the job name unchanged, for batch systems that accept no whitespace in it.

    :raises Unsupported: it has whitespace
    """
    if any(character.isspace() for character in jobname):
        shown = shortened(jobname)
        raise Unsupported(f"jobname {shown} has a blank, which this batch system refuses; use for example '_' instead")
    return jobname


def clock(seconds: int) -> str:
    """Format a duration as ``HH:MM:SS``; hours may have more than two digits."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def settings(directive: str) -> list[str]:
    """Return what a directive sets.

    That is ``nodes`` for ``--nodes=2``, ``l mem`` and ``l ncpus`` for ``-l mem=1gb,ncpus=4``, and ``R span`` for
    ``-R "span[ptile=4]"``.
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
    """Refuse native directives that conflict with Lading's directives or with each other.

    :param own: Lading's directives
    :param native: the requested native directives by key
    :param synonyms: for a setting, the one that is equivalent or conflicts with it
    :raises Unsupported: there is a conflict
    """
    taken = {synonyms.get(name, name): directive for directive in own for name in settings(directive)}
    for key, directive in native.items():
        for name in dict.fromkeys(synonyms.get(name, name) for name in settings(directive)):
            if name in taken and name not in ADD_UP:
                raise Unsupported(
                    f"the native directive {key!r} ({directive}) conflicts with {taken[name]}; leave out one of the two"
                )
            taken[name] = directive


def sets_any(directive: str, others: Sequence[str], synonyms: Mapping[str, str]) -> bool:
    """Whether one of the others sets the same as a directive, where only one of them can be given."""
    taken = {synonyms.get(name, name) for other in others for name in settings(other)} - ADD_UP
    return any(synonyms.get(name, name) in taken for name in settings(directive))


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The directive with which a batch system keeps a job away from nodes.

    :param directive: with ``{}`` in place of the nodes
    :param node: template of one node, with ``{}`` in place of its name
    :param separator: text between two nodes
    """

    directive: str
    node: str = "{}"
    separator: str = ","

    def render(self, nodes: Sequence[str]) -> str:
        """Return the directive for at least one node."""
        return self.directive.format(self.separator.join(map(self.node.format, nodes)))


# Settings that can be given more than once because their values add up.
ADD_UP = frozenset({"R select", "R rusage", "R order", "R same", "R cu", "R affinity"})
