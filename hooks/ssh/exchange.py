"""One exchange with a site: several steps in one shell script, their answers told apart by a random marker.

The script reaches ``/bin/sh`` on standard input, whatever the user's login shell is (:data:`COMMAND` means the same to
all of them). So nothing that a step carries is ever on a command line, but for the words of a command to run. The
script is one function that its last line calls: one that is cut short is a syntax error and does nothing at all.

Each step's output stands between two marks, on standard output and on standard error, so banners, the noise of a
``.bashrc`` and translated line ends do no harm. Contents of files travel as tar in base64: one process for a thousand
files, names and bytes exact, and no SFTP subsystem is needed. What the other side needs is a POSIX shell and utilities,
tar, base64 and, to end a command that hangs, timeout.
"""

from __future__ import annotations

import base64
import io
import secrets
import shlex
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from lading.hooks.files import tar_files
from lading.hooks.ssh.answer import Answer

# All shells, csh and fish too, read this alike. The whole script is read before any of it runs; bash would otherwise
# fetch it byte by byte.
COMMAND = "exec /bin/sh -c 'eval \"$(cat)\"'"
# What timeout(1) ends with when it had to end the command.
TIMED_OUT = 124
# More output than this is a command run wild: the exchange is given up.
MOST_BYTES = 64 * 1024 * 1024
# How a file is named that is left out.
LEFT_OUT = "lading-left "
# Names on one command line, well below what any kernel allows.
CHUNK = 500

FUNCTIONS = """\
lading_mark() { printf '%s\\n' "$1" >&2; printf '%s\\n' "$1"; }
lading_run() {
  lading_limit=$1; shift
  if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$lading_limit" "$@"; else "$@"; fi
}
# Renames what is in folder $1 into folder $2; a folder that is there already is filled, anything else replaced.
lading_place() (
  from=$1 to=$2
  cd -- "$from" || exit
  set --
  for each in * .[!.]* ..?*; do
    if [ -d "$each" ] && [ ! -L "$each" ] && [ -d "$to/$each" ]; then
      lading_place "$from/$each" "$to/$each" || exit
    elif [ -e "$each" ] || [ -L "$each" ]; then
      set -- "$@" "$each"
    fi
    if [ $# -ge 500 ]; then mv -f -- "$@" "$to/" || exit; set --; fi
  done
  if [ $# -gt 0 ]; then mv -f -- "$@" "$to/"; fi
)
# Unpacks the tar on standard input into folder $1; $2 is its last member, which proves that it is whole.
lading_put() (
  umask 077
  mkdir -p -- "$1" && chmod 700 -- "$1" && cd -- "$1" || exit
  to=$(pwd) stage=$(pwd)/.put-$2
  mkdir -- "$stage" || exit
  (cd -- "$stage" && base64 -d | tar -xof - && [ -f "$2" ] && rm -f -- "$2" && lading_place "$stage" "$to")
  status=$?
  rm -rf -- "$stage"
  exit $status
)
# Notes which files in the current folder are larger than $1 bytes, and which are not small: of those few are read.
lading_weigh() {
  lading_tell=yes
  lading_large=$(find -L . ! -name . -prune -type f -size "+$1c" 2>/dev/null)
  lading_heavy=$(find -L . ! -name . -prune -type f -size +16384c 2>/dev/null)
}
lading_is_in() { case "$lading_line$1$lading_line" in *"$lading_line$2$lading_line"*) return 0;; esac; return 1; }
lading_line='
'
# Tells of each file whether it is there (p), absent (a), unreadable (u), too large (l) or no file (n), then packs those
# that are there, at most $1 of them.
lading_get() {
  lading_most=$1 lading_few=2; shift
  for each in "$@"; do
    if [ -f "$each" ]; then
      if lading_is_in "$lading_large" "$each"; then lading_leave l; continue; fi
      [ "$lading_most" -gt 0 ] || break
      lading_most=$((lading_most - 1))
      if [ ! -r "$each" ]; then lading_leave u; continue; fi
      if lading_is_in "$lading_heavy" "$each"; then
        [ "$lading_few" -gt 0 ] || break
        lading_few=$((lading_few - 1))
      fi
      printf p
    elif [ -e "$each" ] || [ -L "$each" ]; then lading_leave n
    else printf a
    fi
  done
  echo :
}
lading_leave() {
  printf %s "$1"
  if [ -n "$lading_tell" ]; then printf 'lading-left %s %s\\n' "$1" "$each" >&2; fi
}
lading_pack() {
  lading_most=$1 lading_few=2 lading_first=yes; shift
  for each in "$@"; do
    if [ -n "$lading_first" ]; then set --; lading_first=; fi
    if [ -f "$each" ] && ! lading_is_in "$lading_large" "$each"; then
      [ "$lading_most" -gt 0 ] || break
      lading_most=$((lading_most - 1))
      [ -r "$each" ] || continue
      if lading_is_in "$lading_heavy" "$each"; then
        [ "$lading_few" -gt 0 ] || break
        lading_few=$((lading_few - 1))
      fi
      set -- "$@" "$each"
    fi
    if [ $# -ge 500 ]; then tar -chf - "$@"; set --; fi
  done
  if [ $# -gt 0 ]; then tar -chf - "$@"; fi
}
"""


class TransportError(OSError):
    """A site could not be asked, or did not do what it was asked; nothing else is concluded from it."""


class Step(ABC):
    """One thing to do at a site."""

    @abstractmethod
    def text(self, marker: str, timeout: int) -> str:
        """The shell text that does it and leaves its exit status.

        :param marker: unlike anything else in the script
        :param timeout: seconds that a command has which sets no limit itself
        """


@dataclass(frozen=True)
class Run(Step):
    """Run a command.

    :param command: its words, or text for ``/bin/sh -c``
    :param stdin: what it reads; nothing when None
    :param folder: where it runs; the user's home when None
    :param limit: seconds after which it is ended, where the site has timeout(1); the exchange's time-out when None
    """

    command: str | Sequence[str]
    stdin: bytes | None = field(default=None, repr=False)
    folder: str | None = None
    limit: int | None = None

    def text(self, marker: str, timeout: int) -> str:
        words = ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)
        if not words or any("\0" in word for word in words):
            raise ValueError(f"{self.command!r} is no command: give words, or a text, without NUL characters")
        run = f"lading_run {self.limit or timeout} {shlex.join(words)}"
        run = f"{run} </dev/null" if self.stdin is None else f"base64 -d {_heredoc(self.stdin, marker, run)}"
        return f"(cd -- {_path(self.folder)} && {{\n{run}\n}})" if self.folder else run


@dataclass(frozen=True)
class Put(Step):
    """Write files, 0600 in 0700 folders, each renamed into its place when all of them have arrived.

    :param folder: absolute, or below the home as ``~/...``; made where it is missing, and closed to other users
    :param files: contents by name relative to the folder; folders in between are made
    :param executable: the names of those to be 0700
    """

    folder: str
    files: Mapping[str, bytes] = field(repr=False)
    executable: Collection[str] = ()

    def text(self, marker: str, timeout: int) -> str:
        if not self.files:
            return ":"
        end = f"end-{marker}"
        return f"lading_put {_path(self.folder)} {end} {_heredoc(self._packed(end), marker)}"

    def _packed(self, end: str) -> bytes:
        packed = io.BytesIO()
        names = [_name(name) for name in self.files]
        nearest = {PurePosixPath(parent) for name in names if (parent := name.rpartition("/")[0])}
        folders = {str(each) for folder in nearest for each in (folder, *folder.parents) if str(each) != "."}
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for folder in sorted(folders):
                archive.addfile(_member(folder, 0o700, kind=tarfile.DIRTYPE))
            for name, content in [*zip(names, self.files.values(), strict=True), (end, b"")]:
                mode = 0o700 if name in self.executable else 0o600
                archive.addfile(_member(name, mode, len(content)), io.BytesIO(content))
        return packed.getvalue()


@dataclass(frozen=True)
class Get(Step):
    """Read files.

    :param folder: absolute, or below the home as ``~/...``
    :param names: relative to the folder
    """

    folder: str
    names: Sequence[str]

    def text(self, marker: str, timeout: int) -> str:
        return _get(self.folder, len(self.names), " ".join(shlex.quote(f"./{_name(name)}") for name in self.names))

    def files(self, answer: Answer) -> dict[str, bytes | None]:
        """The contents by name; None for what is not there.

        :raises TransportError: that could not be found out, or a file could not be read
        """
        found, contents = _unpacked(self.folder, answer)
        names = [_name(name) for name in self.names]
        for name, state in zip(names, found, strict=True):
            if state in "un" or (state == "p" and name not in contents):
                why = "is no file" if state == "n" else "cannot be read"
                raise TransportError(f"{name!r} in {self.folder} {why}: {answer.stderr.strip()}")
        return {asked: contents.get(name) for asked, name in zip(self.names, names, strict=True)}


@dataclass(frozen=True)
class GetAll(Step):
    """Read the files of one folder whose names do not begin with a dot, in the order of their names.

    :param folder: absolute, or below the home as ``~/...``
    :param most: files to read; what is left is for the next time
    :param largest: bytes of a file; larger ones and unreadable ones are left out (see :meth:`left_out`), and of large
        ones few are read at a time; None: there is no limit, and each has to be readable
    """

    folder: str
    most: int = 1000
    largest: int | None = None

    def text(self, marker: str, timeout: int) -> str:
        weigh = "" if self.largest is None else f"lading_weigh {self.largest}; "
        return _get(self.folder, self.most, "./*", weigh)

    def left_out(self, answer: Answer) -> dict[str, str]:
        """What is wrong with the files that were left out, by name."""
        lines = (line.removeprefix(LEFT_OUT) for line in answer.stderr.splitlines() if line.startswith(LEFT_OUT))
        why = {"u": "it cannot be read", "n": "it is no regular file", "l": f"it has more than {self.largest} bytes"}
        return {line[2:].removeprefix("./"): why[line[0]] for line in lines if line[:1] in why}

    def files(self, answer: Answer) -> dict[str, bytes]:
        """The contents by name.

        :raises TransportError: they could not be read, or not all of them
        """
        found, contents = _unpacked(self.folder, answer)
        if ("u" in found and self.largest is None) or found.count("p") != len(contents):
            raise TransportError(f"a file in {self.folder} cannot be read: {answer.stderr.strip()}")
        if strange := [name for name in contents if "/" in name or "\0" in name or name.startswith(".")]:
            raise TransportError(f"{strange[0]!r} is no name of a file in {self.folder}")
        return contents


@dataclass(frozen=True)
class Remove(Step):
    """Remove files, and folders with all that is in them; what is not there already is as good as removed.

    :param folder: absolute, or below the home as ``~/...``; it must be there
    :param names: relative to the folder
    """

    folder: str
    names: Sequence[str]

    def text(self, marker: str, timeout: int) -> str:
        names = [shlex.quote(f"./{_name(name)}") for name in self.names]
        chunks = [" ".join(names[start : start + CHUNK]) for start in range(0, len(names), CHUNK)]
        removals = "".join(f"rm -rf -- {chunk} || exit\n" for chunk in chunks)
        return f"(cd -- {_path(self.folder)} || exit\n{removals})"


class Exchange:
    """The script for some steps, and what has come back of it so far.

    :param steps: done in this order, each whatever became of the one before it
    :param setup: shell text that goes before them and may set variables, as a site's settings file does
    :param timeout: seconds that a command has which sets no limit itself
    :param most: bytes of output that are taken
    """

    def __init__(self, steps: Sequence[Step], *, setup: str = "", timeout: float = 60, most: int = MOST_BYTES) -> None:
        self.steps = steps
        self.most = most
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._ended: set[int] = set()
        self.marker = secrets.token_hex(16)
        self.script = self._script(setup, max(1, round(timeout))).encode(errors="surrogateescape")

    @property
    def begun(self) -> bool:
        """Whether the other side has begun with the steps: it is there, and what we wait for is a step."""
        return self._mark("begin").encode() in self.stdout

    @property
    def complete(self) -> bool:
        """Whether all has arrived; what else may come is not ours."""
        return len(self._ended) == 2

    def hear(self, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """Take what has come back.

        :raises TransportError: it is too much
        """
        end = self._mark("end").encode()
        for stream, data in ((self.stdout, stdout), (self.stderr, stderr)):
            stream.extend(data)
            if data and stream.find(end, max(0, len(stream) - len(data) - len(end))) >= 0:
                self._ended.add(id(stream))
        if len(self.stdout) + len(self.stderr) > self.most:
            raise TransportError(f"more than {self.most} bytes of output")

    def answers(self, trouble: str) -> list[Answer]:
        """One answer for each step, as far as they have arrived.

        The standard error of a step without an answer says why there is none.

        :param trouble: what cut the exchange short, in words, if anything did
        """
        return [self._answer(number, step, trouble) for number, step in enumerate(self.steps)]

    def silence(self) -> str:
        """What may explain that the shell ended without all answers: its last words."""
        words = bytes(self.stderr[-2000:] or self.stdout[-2000:]).decode(errors="replace").splitlines()
        said = "\n".join(line for line in words if self.marker not in line).strip()
        return f"{'cut off' if self.begun else 'no answer'}; the last words were: {said or 'none'}"

    def _script(self, setup: str, timeout: int) -> str:
        lines = ["lading() {", "CDPATH=", FUNCTIONS]
        if setup:
            # What it may have changed of the shell's ways is undone, for the lines below count on them.
            lines += ["{", setup, "} </dev/null", "set +e +f +u +C", "unset IFS"]
        lines.append(f"lading_mark {self._mark('begin')}")
        for number, step in enumerate(self.steps):
            lines += [f"lading_mark {self._mark(number)}", step.text(self.marker, timeout)]
            lines.append(f"lading_mark {self._mark(number)}:$?")
        return "\n".join([*lines, f"lading_mark {self._mark('end')}", "}", "lading"])

    def _mark(self, what: object) -> str:
        return f"{self.marker}:{what}"

    def _answer(self, number: int, step: Step, trouble: str) -> Answer:
        status, stdout = self._between(self.stdout, number)
        _, stderr = self._between(self.stderr, number)
        if status is None:
            return Answer(None, "", trouble)
        if status == TIMED_OUT and isinstance(step, Run):
            return Answer(None, "", f"{_named(step)} was ended: it took too long. {stderr}".strip())
        return Answer(status, stdout, stderr)

    def _between(self, stream: bytearray, number: int) -> tuple[int | None, str]:
        """The exit status and the text of a step; no status where the second mark has not arrived."""
        mark = self._mark(number).encode()
        start = stream.find(mark + b"\n"), stream.find(mark + b"\r\n")
        begin = max(start)
        if begin < 0:
            return None, ""
        translated = start[0] < 0
        begin += len(mark) + (2 if translated else 1)
        end = stream.find(mark + b":", begin)
        text = bytes(stream[begin : end if end >= 0 else None])
        if translated:
            text = text.replace(b"\r\n", b"\n")
        line_end = stream.find(b"\n", end)
        whole = end >= 0 and line_end >= 0
        return int(stream[end + len(mark) + 1 : line_end]) if whole else None, text.decode(errors="replace")


def _get(folder: str, most: int, names: str, weigh: str = "") -> str:
    # The names are found once: a file that comes in between must not be packed without being told of.
    text = f'set -- {names}; lading_get {most} "$@" && lading_pack {most} "$@" | base64'
    return f"(cd -- {_path(folder)} && {{ lading_large= lading_heavy= lading_tell=; {weigh}{text}; }})"


def _unpacked(folder: str, answer: Answer) -> tuple[str, dict[str, bytes]]:
    """How each file was found (a letter each), and the contents by name."""
    found, colon, packed = answer.stdout.partition(":")
    if answer.status != 0 or not colon:
        raise TransportError(f"cannot read in {folder}: {answer.stderr.strip() or 'no answer'}")
    if not packed.strip():
        return found, {}
    try:
        return found, tar_files.read(base64.b64decode(packed))
    except Exception as error:  # tarfile raises all sorts of things at what is no tar
        raise TransportError(f"what came of {folder} is damaged: {error}; {answer.stderr.strip()}") from error


def _member(name: str, mode: int, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.size, member.type = mode, size, kind
    return member


def _heredoc(content: bytes, marker: str, pipe: str = "") -> str:
    text = base64.encodebytes(content).decode()
    return f"<<'{marker}'{' | ' + pipe if pipe else ''}\n{text}{marker}"


def _path(folder: str) -> str:
    """The folder for a shell.

    :raises ValueError: it is neither absolute nor below the home
    """
    if "\0" in folder or not folder.startswith(("/", "~/")):
        raise ValueError(f"folder {folder!r}: give an absolute path, or one that begins with ~/")
    return f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)


def _name(name: str) -> str:
    """The name as it is used: relative, and going nowhere else than down.

    :raises ValueError: it is not
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file in a folder: give a relative path without '..'")
    return "/".join(parts)


def _named(step: Run) -> str:
    return step.command.split("\n")[0] if isinstance(step.command, str) else step.command[0]


def as_runs(commands: Iterable[str | Sequence[str] | Run]) -> list[Run]:
    """Commands as steps."""
    return [command if isinstance(command, Run) else Run(command) for command in commands]
