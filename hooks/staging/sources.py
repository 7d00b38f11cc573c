"""Where a file is read that is brought to another place: a machine behind a transport, or an object store."""

from __future__ import annotations

import base64
import binascii
import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lading.hooks.files.addresses import LOCAL
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.steps import RunCommand, quoted

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

# Bytes that are read and written at once; more would keep a site's other news waiting.
PART = 8 * 2**20
# Seconds in which the version must have come, and one part.
VERSION_TIMEOUT = 60.0
PART_TIMEOUT = 180.0

# A store that lies in so many others is not looked through.
MOST_STORES = 8

# By exit status, those of errno(3).
_ERRORS = {errno.ENOENT: FileNotFoundError, errno.EISDIR: IsADirectoryError}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What a file holds now.

    :param size: bytes
    :param mark: which changes when the file does: of a machine's file the time of its last change
    """

    size: int
    mark: str


class FileSource(ABC):
    """A file, as it can be read in one place."""

    may_hang: ClassVar[bool]
    """Whether a read may take forever: what reads it has no time limit that Lading sets."""

    @property
    @abstractmethod
    def host(self) -> str:
        """What is likely to be slow, or to hang, together with it: the machine, or the bucket."""

    @abstractmethod
    def version(self) -> FileVersion:
        """What it holds now.

        :raises FileNotFoundError: it is not there, or neither a file nor a folder
        :raises IsADirectoryError: it is a folder
        :raises PermissionError: it may not be read from here, as text
        :raises OSError: that could not be found out
        """

    @abstractmethod
    def parts(self, size: int) -> Iterator[bytes]:
        """Its content, in parts of :data:`PART` bytes, the last one of what is left.

        :param size: of it all
        :raises OSError: it could not be read
        """


@dataclass(frozen=True, slots=True)
class MachineFile(FileSource):
    """A file of a machine.

    :param path: absolute
    :param roots: the folders below which it has to be when links are followed there; none: anywhere
    """

    transport: Transport
    path: str
    roots: Sequence[str] = ()
    may_hang: ClassVar[bool] = False

    @property
    def host(self) -> str:
        return str(self.transport)

    def version(self) -> FileVersion:
        path = quoted(self.path)
        look = f"[ ! -d {path} ] || exit {errno.EISDIR}; [ -f {path} ] || exit {errno.ENOENT}; {self._is_below(path)}"
        answer = self._ask(f"{look}stat -Lc '%s %Y' -- {path}", VERSION_TIMEOUT)
        if not (reported := re.fullmatch(r"(\d{1,18}) (-?\d{1,18})\s*", answer)):
            raise TransportError(f"{self.transport}: {answer[:200]!r} is not the size of {self.path}")
        return FileVersion(int(reported[1]), reported[2])

    def parts(self, size: int) -> Iterator[bytes]:
        # What is read is what was looked at: a link could lead elsewhere by now.
        opened = f"exec 3< {quoted(self.path)} || exit {errno.ENOENT}\n{self._is_below('/proc/self/fd/3')}"
        for number in range(-(-size // PART)):
            blocks = PART // 2**20
            text = f"{opened}dd bs=1048576 skip={number * blocks} count={blocks} status=none <&3 | base64"
            try:
                data = base64.b64decode(self._ask(text, PART_TIMEOUT))
            except binascii.Error as error:
                raise TransportError(f"what was received of {self.path} is damaged: {error}") from error
            if len(data) != (expected := min(PART, size - number * PART)):
                raise OSError(f"{self.path} has changed while it was read: {len(data)} bytes in place of {expected}")
            yield data

    def _is_below(self, path: str) -> str:
        """Shell text that ends where a path, links followed, is below none of the roots."""
        if not self.roots:
            return ""
        roots = " ".join(quoted(root) for root in self.roots)
        return (
            f"real=$(readlink -f -- {path}) || exit {errno.ENOENT}; below=\n"
            f"for root in {roots}; do\n"
            'root=$(readlink -f -- "$root") || continue\n'
            'case "$real" in "$root" | "${root%/}"/*) below=yes;; esac\n'
            f'done; [ -n "$below" ] || exit {errno.EACCES}\n'
        )

    def _ask(self, text: str, timeout: float) -> str:
        (answer,) = self.transport.exchange([RunCommand(text)], timeout)
        if answer.status == errno.EACCES:
            raise PermissionError(
                f"{self.path} leads out of [lading] input_roots there, from which files are staged "
                f"({', '.join(self.roots)})"
            )
        if answer.status in _ERRORS:
            raise _ERRORS[answer.status](self.path)
        if answer.status is None:
            raise TransportError(answer.message)
        if answer.status != 0:
            raise OSError(self.transport.fault(answer))
        return answer.stdout


@dataclass(frozen=True, slots=True)
class StoredObject(FileSource):
    """What Airflow's ObjectStoragePath reads on this machine, by the connection that its address names.

    Its scheme was one that the site takes; what is found by it is looked at again, as anything may be attached to it.
    """

    address: str
    may_hang: ClassVar[bool] = True

    @property
    def host(self) -> str:
        scheme, _, rest = self.address.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"

    def version(self) -> FileVersion:
        path = self._path
        if not path.is_file():
            raise (IsADirectoryError if path.is_dir() else FileNotFoundError)(self.address)
        return FileVersion(int(path.stat().st_size), f"{path.checksum():x}")

    def parts(self, size: int) -> Iterator[bytes]:
        left = size
        with self._path.open("rb") as file:
            while left:
                data = bytes(file.read(min(PART, left)))
                if not data:
                    raise OSError(f"{self.address} has changed while it was read: {left} bytes are missing")
                left -= len(data)
                yield data

    @property
    def _path(self) -> Any:
        from airflow.sdk import ObjectStoragePath

        path = ObjectStoragePath(self.address)
        # Looking up goes by the store of fsspec, reading by that of Airflow.
        for store in (path.__wrapped__.fs, path.fs):
            refuse_local(self.address, store)
        return path


def refuse_local(address: str, store: Any) -> None:
    """Refuse a store that reads the disk of this machine, itself or as the store behind it.

    :raises PermissionError: it does, or that cannot be said
    """
    from fsspec.implementations.local import LocalFileSystem

    for file_system in _stores(address, store):
        protocols = {file_system.protocol} if isinstance(file_system.protocol, str) else {*file_system.protocol}
        if isinstance(file_system, LocalFileSystem) or not LOCAL.isdisjoint(protocols):
            raise PermissionError(
                f"{address} is not staged, for its store ({type(file_system).__name__}) reads the disk of the "
                "controller's machine; valid: a store of objects"
            )


def _stores(address: str, store: Any) -> Iterator[Any]:
    """A store of fsspec, and those that it reads from: ``fs`` of a cache or a folder, ``fo`` of an archive, ``fss``."""
    from fsspec import AbstractFileSystem

    left, seen = [store], 0
    while left:
        each = left.pop()
        if isinstance(each, AbstractFileSystem):
            if (seen := seen + 1) > MOST_STORES:
                raise PermissionError(f"{address} is not staged, for its store lies in more than {MOST_STORES} others")
            yield each
            inner = object.__getattribute__(each, "__dict__")  # a cache shows that of the store behind it
            several = inner.get("fss")
            left += [inner.get("fs"), getattr(inner.get("fo"), "fs", None)]
            left += several.values() if isinstance(several, dict) else []
