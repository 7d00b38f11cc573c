"""What is asked of a cluster beside the batch system's own commands: the shell texts, and what they answer. Pure."""

from __future__ import annotations

import base64
import binascii
import logging
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lading.hooks.batch import Answer
from lading.hooks.cluster_folder import SPOOL_FOLDERS, ClusterFolder, Task, read_tokens
from lading.hooks.exchange import Run, Step, TransportError
from lading.hooks.spool import checked

log = logging.getLogger(__name__)

# The exit status of a submission that was not tried, for its files are not there.
NOT_TRIED = 97
# Tells of each file, named by pairs of an offset and a path, whether it is there (=) or not (-), and what is in it
# beyond the offset, $1 bytes at most. One process finds all that have grown: most have not, and a look that started
# three for each file would keep a login node busy.
PARTS = """\
lading_sizes() {
  lading_left=$#
  while [ "$lading_left" -gt 0 ]; do
    if [ -f "$2" ]; then set -- "$@" "$2"; fi
    shift 2
    lading_left=$((lading_left - 2))
  done
  if [ $# -gt 0 ]; then wc -c -- "$@" 2>/dev/null; fi
}
lading_parts() {
  lading_most=$1; shift
  lading_sizes "$@" | {
    name=
    while [ $# -gt 0 ]; do
      if [ -z "$name" ]; then read -r size name || name=; fi
      if [ "$name" != "$2" ]; then echo -
      else
        echo =; name=
        if [ "$size" -eq 0 ] || [ "$size" -le "$1" ]; then :
        elif [ "$1" -lt 0 ]; then tail -c "$1" -- "$2" | base64
        elif [ "$1" -eq 0 ] && [ "$size" -le "$lading_most" ]; then base64 < "$2"
        else tail -c "+$(($1 + 1))" -- "$2" | head -c "$lading_most" | base64
        fi
      fi
      shift 2
    done
  }
}
"""
# Files in one of those calls: a shell copies all its arguments whenever one is added.
CHUNK = 100


@dataclass(frozen=True)
class Part:
    """A part of a file.

    :param path: absolute
    :param offset: bytes to leave out at its beginning; negative: only so many at its end
    """

    path: str
    offset: int = 0


@dataclass(frozen=True)
class Parts(Step):
    """Read parts of many files.

    :param most: bytes of each
    """

    parts: Sequence[Part]
    most: int = 2**18

    def text(self, marker: str, timeout: int) -> str:
        words = [f"{part.offset} {shlex.quote(part.path)}" for part in self.parts]
        chunks = [" ".join(words[start : start + CHUNK]) for start in range(0, len(words), CHUNK)]
        return "(" + "\n".join([PARTS, *(f"lading_parts {self.most} {chunk}" for chunk in chunks), ":)"])

    def contents(self, answer: Answer) -> list[bytes | None]:
        """What was read of each; None: there is no such file.

        :raises TransportError: the answer is cut or makes no sense
        """
        found: list[list[str] | None] = []
        for line in answer.lines:
            if line.strip() in ("=", "-"):
                found.append([] if line.strip() == "=" else None)
            elif line.strip() and found and (last := found[-1]) is not None:
                last.append(line.strip())
        if answer.status != 0 or len(found) != len(self.parts):
            raise TransportError(f"files could not be read: {answer.words}")
        try:
            return [None if lines is None else base64.b64decode("".join(lines)) for lines in found]
        except binascii.Error as error:
            raise TransportError(f"files came damaged: {error}") from error


@dataclass(frozen=True)
class Found:
    """A submission as it lies on the cluster.

    :param answer: what the batch system said; None: it was not accepted, or nobody knows
    """

    name: str
    tasks: Sequence[Task]
    answer: str | None
    withdrawn: frozenset[str] = field(default_factory=frozenset)


def load(folder: ClusterFolder) -> Run:
    """Make the folders where they are missing, and tell the user's name and the submissions that are there."""
    names = " ".join(["submissions", "logs", "incoming", *(f"spool/{name}" for name in SPOOL_FOLDERS)])
    root = shlex.quote(folder.root)
    return Run(
        f"umask 077; mkdir -p -- {root} && chmod 700 {root} && cd {root} && mkdir -p {names} || exit\n"
        'for each in allocations/*/terms.json; do [ -f "$each" ] && echo "it holds allocations: let them end with '
        "mode = 'allocation' first, or give another work_dir\" >&2 && exit 1; done\n"
        "id -un || exit\n"
        'for each in submissions/*/; do [ -f "$each/tasks" ] || continue\n'
        '  printf "=\\t%s\\n" "$each"; cat "$each/tasks"\n'
        '  if [ -f "$each/answer" ]; then echo "-"; cat "$each/answer"; fi\n'
        '  if [ -f "$each/withdrawn" ]; then echo "/"; cat "$each/withdrawn"; fi\n'
        "done; echo .; ls spool/jobs || exit; echo ."
    )


def loaded(answer: Answer) -> tuple[str, list[Found], frozenset[str]]:
    """The user's name, the submissions, and the tokens of the jobs that have begun.

    :raises TransportError: the folders could not be made, or the answer is cut
    """
    lines = [line for line in answer.lines if line]
    if answer.status != 0 or lines.count(".") != 2 or lines[-1] != ".":
        raise TransportError(f"work_dir cannot be used: {answer.words}")
    sections: list[dict[str, list[str]]] = []
    names: list[str] = []
    key = "="
    end = lines.index(".")
    for line in lines[1:end]:
        if line.startswith("=\t"):
            names.append(line[2:].rstrip("/").rpartition("/")[2])
            sections.append({"=": []})
            key = "="
        elif line in ("-", "/"):
            key = line
            sections[-1][key] = []
        else:
            sections[-1][key].append(line)
    found = []
    for name, section in zip(names, sections, strict=True):
        try:
            tasks = read_tokens("\n".join(section["="]))
        except ValueError as error:
            log.error("which jobs submission %s has cannot be read, it is left alone: %s", name, error)
            continue
        answered = "\n".join(section["-"]) if "-" in section else None
        found.append(Found(name, tasks, answered, frozenset(section.get("/", ()))))
    return lines[0].strip(), found, frozenset(lines[end + 1 : -1])


def place(folder: ClusterFolder, names: Sequence[str]) -> Run:
    """Move envelopes into the inbox, but not those of jobs that have begun: they must not run twice.

    What holds them is removed when all of them are there.

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
    return Run(f"cd -- {shlex.quote(folder.root)} || exit\n" + "\n".join(texts))


def submit(folder: ClusterFolder, name: str, command: Sequence[str], bundles: Iterable[str] = ()) -> Run:
    """Submit a script, and keep the answer beside it: whoever comes after a crash finds it there.

    :param bundles: the hashes of what its jobs read their Dags from; where one is not there nothing is submitted
    """
    needed = [folder.bundle(each) for each in sorted(set(bundles))]
    return submit_in(folder.submission(name), command, needed, f"{folder.root}/incoming/{name}")


def submit_in(path: str, command: Sequence[str], needed: Iterable[str] = (), unplaced: str | None = None) -> Run:
    """Submit the script in a folder, and keep the answer beside it.

    :param needed: folders without which nothing is submitted; they are used from now on
    :param unplaced: what :func:`place` leaves there when it has failed: then nothing is submitted
    """
    present = "".join(f" && touch -- {shlex.quote(each)}/." for each in needed)
    if unplaced is not None:
        present = f" && [ ! -e {shlex.quote(unplaced)} ]{present}"
    return Run(
        f"cd -- {shlex.quote(path)} && [ -f script ]{present} || exit {NOT_TRIED}\n"
        f"{shlex.join(command)} > answer.part; status=$?; cat answer.part\n"
        "if [ $status -eq 0 ]; then mv answer.part answer; fi; exit $status"
    )


def cancel(folder: ClusterFolder, tokens: Iterable[str]) -> Run:
    """Take jobs back that nobody has begun; tell of each whether that is so, or it has begun, or is not there."""
    words = " ".join(map(checked, tokens))
    return Run(
        f"cd -- {shlex.quote(folder.spool)} || exit\nfor each in {words}; do\n"
        'if rm -- "inbox/$each.json" 2>/dev/null; then echo "removed $each"\n'
        'elif [ -e "jobs/$each" ]; then echo "begun $each"; else echo "absent $each"; fi; done'
    )


def cancelled(answer: Answer) -> dict[str, str]:
    """By token, ``removed``, ``begun`` or ``absent``.

    :raises TransportError: it is not known
    """
    if answer.status != 0:
        raise TransportError(f"jobs could not be cancelled: {answer.words}")
    pairs = (line.split() for line in answer.lines if line.strip())
    return {token: what for what, token in pairs}


def withdraw(folder: ClusterFolder, tokens: Sequence[tuple[str, str]]) -> Run:
    """Note that tasks do not belong to their submission any more.

    :param tokens: submission and token of each
    """
    lines = [f"echo {checked(token)} >> {shlex.quote(folder.submission(name))}/withdrawn" for name, token in tokens]
    return Run("\n".join(["umask 077", *lines]))
