"""The steps of an exchange: the shell text of each one, and the parsing of its answer.

The shell functions that the text calls are in :mod:`lading.hooks.ssh.exchange`.
"""

from __future__ import annotations

import base64
import binascii
import io
import shlex
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from lading.hooks.ssh.answer import CommandResult, TransportError

# The beginning of a line that names a skipped file.
LEFT_OUT = "lading-left "

# Limits for a tar from a site, which may be malicious.


class RemoteStep(ABC):
    @abstractmethod
    def text(self, marker: str, timeout: int) -> str:
        """Return the shell text that does it and leaves its exit status.

        :param marker: does not occur anywhere else in the script
        :param timeout: seconds for commands without a limit of their own
        """


@dataclass(frozen=True)
class RunCommand(RemoteStep):
    """Run a command.

    :param command: its arguments, or text for ``/bin/sh -c``
    :param stdin: its input; None: empty
    :param folder: its working directory; None: the user's home
    :param limit: seconds after which it is killed, if the site has timeout(1); None: the exchange's time-out
    """

    command: str | Sequence[str]
    stdin: bytes | None = field(default=None, repr=False)
    folder: str | None = None
    limit: int | None = None

    def text(self, marker: str, timeout: int) -> str:
        words = ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)
        if not words or any("\0" in word for word in words):
            raise ValueError(f"{self.command!r} is not a command: give arguments, or a text, without NUL characters")
        run = f"lading_run {self.limit or timeout} {shlex.join(words)}"
        run = f"{run} </dev/null" if self.stdin is None else f"base64 -d {_heredoc(self.stdin, marker, run)}"
        return f"(cd -- {quoted(self.folder)} && {{\n{run}\n}})" if self.folder else run


@dataclass(frozen=True)
class Put(RemoteStep):
    """Write files with mode 0600 in folders with mode 0700; they are renamed into place once all have arrived.

    :param folder: absolute, or below the home as ``~/...``; created if missing, and closed to other users
    :param files: contents by name relative to the folder; folders in between are created
    :param executable: the names of files that get mode 0700
    """

    folder: str
    files: Mapping[str, bytes] = field(repr=False)
    executable: Collection[str] = ()

    def text(self, marker: str, timeout: int) -> str:
        if not self.files:
            return ":"
        end = f"end-{marker}"
        return f"lading_put {quoted(self.folder)} {end} {_heredoc(self._packed(end), marker)}"

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
class Get(RemoteStep):
    """Read files.

    :param folder: absolute, or below the home as ``~/...``
    :param names: relative to the folder
    """

    folder: str
    names: Sequence[str]

    def text(self, marker: str, timeout: int) -> str:
        return _get(self.folder, len(self.names), " ".join(shlex.quote(f"./{_name(name)}") for name in self.names))

    def files(self, answer: CommandResult) -> dict[str, bytes | None]:
        """Return the contents by name; None for a file that does not exist.

        :raises TransportError: that could not be determined, or a file could not be read
        """
        contents, unreadable = self.readable_files(answer)
        if unreadable:
            raise next(iter(unreadable.values()))
        return contents

    def readable_files(self, answer: CommandResult) -> tuple[dict[str, bytes | None], dict[str, TransportError]]:
        """Return the same without the files that could not be read, and these by name with the reason.

        :raises TransportError: nothing could be read
        """
        found, contents = _unpacked(self.folder, answer)
        if len(found) != len(self.names) or not {*found} <= {*"paun"}:
            raise TransportError(
                f"the states of {len(self.names)} files in {self.folder} are not valid: {found[:200]!r}"
            )
        readable: dict[str, bytes | None] = {}
        unreadable: dict[str, TransportError] = {}
        for asked, state in zip(self.names, found, strict=True):
            if state in "un" or (state == "p" and _name(asked) not in contents):
                why = "is not a file" if state == "n" else "cannot be read"
                unreadable[asked] = TransportError(f"{asked!r} in {self.folder} {why}: {answer.stderr.strip()}")
            else:
                readable[asked] = contents.get(_name(asked))
        return readable, unreadable


@dataclass(frozen=True)
class GetAll(RemoteStep):
    """Read the files of one folder whose names do not begin with a dot, in the order of their names.

    :param folder: absolute, or below the home as ``~/...``
    :param most: files to read; the rest is left for the next call
    :param largest: bytes of a file; larger and unreadable files are skipped (see :meth:`left_out`), and only a few
        large ones are read at a time; None: there is no limit, and all files must be readable
    """

    folder: str
    most: int = 1000
    largest: int | None = None

    def text(self, marker: str, timeout: int) -> str:
        weigh = "" if self.largest is None else f"lading_weigh {self.largest}; "
        return _get(self.folder, self.most, "./*", weigh)

    def left_out(self, answer: CommandResult) -> dict[str, str]:
        """Return the skipped files by name, each with its fault."""
        lines = (line.removeprefix(LEFT_OUT) for line in answer.stderr.splitlines() if line.startswith(LEFT_OUT))
        why = {"u": "it cannot be read", "n": "it is not a regular file", "l": f"it has more than {self.largest} bytes"}
        return {line[2:].removeprefix("./"): why[line[0]] for line in lines if line[:1] in why}

    def files(self, answer: CommandResult) -> dict[str, bytes]:
        """Return the contents by name.

        :raises TransportError: not all of the files could be read
        """
        found, contents = _unpacked(self.folder, answer)
        if ("u" in found and self.largest is None) or found.count("p") != len(contents):
            raise TransportError(f"a file in {self.folder} cannot be read: {answer.stderr.strip()}")
        if strange := [name for name in contents if "/" in name or "\0" in name or name.startswith(".")]:
            raise TransportError(f"{strange[0]!r} is not the name of a file in {self.folder}")
        return contents


@dataclass(frozen=True)
class Remove(RemoteStep):
    """Remove files, and folders recursively; missing ones are ignored.

    :param folder: absolute, or below the home as ``~/...``; it must exist
    :param names: relative to the folder
    """

    folder: str
    names: Sequence[str]

    def text(self, marker: str, timeout: int) -> str:
        names = [shlex.quote(f"./{_name(name)}") for name in self.names]
        # This many names on one command line are well below the limit of any kernel.
        chunks = [" ".join(names[start : start + 500]) for start in range(0, len(names), 500)]
        removals = "".join(f"rm -rf -- {chunk} || exit\n" for chunk in chunks)
        return f"(cd -- {quoted(self.folder)} || exit\n{removals})"


def _get(folder: str, most: int, names: str, weigh: str = "") -> str:
    # The names are expanded once: a file that appears in between must not be packed without being listed.
    text = f'set -- {names}; lading_get {most} "$@" && lading_pack {most} "$@" | base64'
    return f"(cd -- {quoted(folder)} && {{ lading_large= lading_heavy= lading_report=; {weigh}{text}; }})"


def _unpacked(folder: str, answer: CommandResult) -> tuple[str, dict[str, bytes]]:
    """Return a letter for the state of each file, and the contents by name."""
    found, colon, packed = answer.stdout.partition(":")
    if answer.status != 0 or not colon:
        raise TransportError(f"cannot read in {folder}: {answer.stderr.strip() or 'no answer'}")
    if not packed.strip():
        return found, {}
    try:
        return found, read_tar(base64.b64decode(packed))
    except Exception as error:  # tarfile raises errors of many types for invalid data
        raise TransportError(
            f"the files received from {folder} are damaged: {error}; {answer.stderr.strip()}"
        ) from error


def _member(name: str, mode: int, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.size, member.type = mode, size, kind
    return member


def _heredoc(content: bytes, marker: str, pipe: str = "") -> str:
    text = base64.encodebytes(content).decode()
    return f"<<'{marker}'{' | ' + pipe if pipe else ''}\n{text}{marker}"


def quoted(folder: str) -> str:
    """Quote the folder for a shell.

    :raises ValueError: it is neither absolute nor below the home
    """
    if "\0" in folder or not folder.startswith(("/", "~/")):
        raise ValueError(f"folder {folder!r}: give an absolute path, or one that begins with ~/")
    return f'"$HOME"/{shlex.quote(folder[2:])}' if folder.startswith("~/") else shlex.quote(folder)


def _name(name: str) -> str:
    """Normalize a name relative to a folder.

    :raises ValueError: it is not relative, or leads out of the folder
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file in a folder: give a relative path without '..'")
    return "/".join(parts)


class _Member(tarfile.TarInfo):
    """A member of an untrusted tar."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        # Extended headers apply to the next member, or to all of them, and each member would keep a copy.
        extended = self.type not in tarfile.SUPPORTED_TYPES or self.type in (*tarfile.GNU_TYPES, tarfile.XHDTYPE)
        # An extended header of a tar member holds its name and little more.
        if self.type == tarfile.XGLTYPE or (extended and self.size > 2**16 and not self.isreg()):
            raise tarfile.ReadError("its headers are too large")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


def read_tar(packed: bytes) -> dict[str, bytes]:
    """Return the files in a tar, by name.

    A site may send anything: a sparse file of two thousand bytes could expand to gigabytes here. So only regular files
    are read, no more bytes than were received, and only a few hard links to large files.

    :raises ValueError: it has other members, or is too large
    """
    try:
        return _files(packed)
    except (tarfile.TarError, OSError, LookupError, OverflowError, EOFError) as error:
        raise ValueError(f"it is not a tar, or is damaged: {error}") from error


def _files(packed: bytes) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    # A hard link is small in the tar, but as large as its target to read.
    left, linked = len(packed), 2**26
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:", ignore_zeros=True, tarinfo=_Member) as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isdir():
                continue
            if member.islnk():  # a hard link to an earlier member
                contents[name] = contents[member.linkname.removeprefix("./")]
                linked -= len(contents[name])
                if linked < 0:
                    raise ValueError("its hard links refer to more than 64 MiB")
                continue
            if not member.isreg() or member.issparse():
                raise ValueError(f"{name!r} is not a regular file")
            if not 0 <= member.size <= left:
                raise ValueError(f"{name!r} has {member.size} bytes, but only {left} were received")
            left -= member.size
            content = archive.extractfile(member)
            assert content is not None
            contents[name] = content.read()
    return contents


# Parts of many files at a site, such as the new ends of logs.

# Prints for each file, given as an offset and a path, whether it exists (=) or not (-), and its content beyond the
# offset, $1 bytes at most. One process finds all files that have grown: most have not, and starting three processes for
# each file would keep a login node busy.
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


@dataclass(frozen=True)
class FilePart:
    """A part of a file.

    :param path: absolute
    :param offset: bytes to skip at its beginning; negative: only that many bytes at its end
    """

    path: str
    offset: int = 0


@dataclass(frozen=True)
class Parts(RemoteStep):
    """Read parts of many files.

    :param most: the most bytes of each
    """

    parts: Sequence[FilePart]
    most: int = 2**18

    def text(self, marker: str, timeout: int) -> str:
        parts = [f"{part.offset} {shlex.quote(part.path)}" for part in self.parts]
        # Few files in one call: a shell copies all its arguments whenever one is added.
        chunks = [" ".join(parts[start : start + 100]) for start in range(0, len(parts), 100)]
        return "(" + "\n".join([PARTS, *(f"lading_parts {self.most} {chunk}" for chunk in chunks), ":)"])

    def contents(self, answer: CommandResult) -> list[bytes | None]:
        """Return the content of each part; None: the file does not exist.

        :raises TransportError: the answer is incomplete or not valid
        """
        found: list[list[str] | None] = []
        for line in answer.lines:
            if line.strip() in ("=", "-"):
                found.append([] if line.strip() == "=" else None)
            elif line.strip() and found and (last := found[-1]) is not None:
                last.append(line.strip())
        if answer.status != 0 or len(found) != len(self.parts):
            raise TransportError(f"files could not be read: {answer.message}")
        try:
            return [None if lines is None else base64.b64decode("".join(lines)) for lines in found]
        except binascii.Error as error:
            raise TransportError(f"the received files are damaged: {error}") from error
