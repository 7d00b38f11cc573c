"""The sources that files are staged from: a machine behind a transport, or an object store."""

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

# Bytes that are read and written at once; more would delay other work at the site.
PART = 8 * 2**20
# Seconds within which the version, and each part, must arrive.
VERSION_TIMEOUT = 60.0
PART_TIMEOUT = 180.0


# Exit statuses with the meaning of errno(3).
_ERRORS = {errno.ENOENT: FileNotFoundError, errno.EISDIR: IsADirectoryError}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The version of a file's content.

    :param size: bytes
    :param mark: changes with the content; for a machine's file its modification time
    """

    size: int
    mark: str


class FileSource(ABC):
    """A file that can be read at one source."""

    may_hang: ClassVar[bool]
    """Whether a read can block forever, because Lading cannot set a time limit for it."""

    @property
    @abstractmethod
    def host(self) -> str:
        """The machine or the bucket. Files with the same host are likely to be slow, or to hang, together."""

    @abstractmethod
    def version(self) -> FileVersion:
        """Return the current version.

        :raises FileNotFoundError: it does not exist, or is neither a file nor a folder
        :raises IsADirectoryError: it is a folder
        :raises PermissionError: files there cannot be staged; the message says why
        :raises OSError: the source could not be asked
        """

    @abstractmethod
    def parts(self, size: int) -> Iterator[bytes]:
        """Yield the content in parts of :data:`PART` bytes; the last one can be shorter.

        :param size: the size of the file in bytes
        :raises OSError: it could not be read
        """


@dataclass(frozen=True, slots=True)
class MachineFile(FileSource):
    """A file on a machine.

    :param path: absolute
    :param roots: the file must be below one of these folders after its links are resolved; empty: no restriction
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
        # The check applies to the opened file, because a link could be changed between check and read.
        opened = f"exec 3< {quoted(self.path)} || exit {errno.ENOENT}\n{self._is_below('/proc/self/fd/3')}"
        for number in range(-(-size // PART)):
            blocks = PART // 2**20
            text = f"{opened}dd bs=1048576 skip={number * blocks} count={blocks} status=none <&3 | base64"
            try:
                data = base64.b64decode(self._ask(text, PART_TIMEOUT))
            except binascii.Error as error:
                raise TransportError(f"the received content of {self.path} is damaged: {error}") from error
            if len(data) != (expected := min(PART, size - number * PART)):
                raise OSError(f"{self.path} has changed while it was read: {len(data)} bytes instead of {expected}")
            yield data

    def _is_below(self, path: str) -> str:
        """Return shell text that exits with EACCES if a path, with links resolved, is below none of the roots."""
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
                f"{self.path} leads out of [lading] input_roots on that machine, the folders that files can be staged "
                f"from ({', '.join(self.roots)})"
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
    """An object that this machine reads through Airflow's ObjectStoragePath, with the connection in its address.

    The scheme was checked before. The store is checked again when it is opened, because any store can be attached to a
    scheme.
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
        # Airflow looks an object up through fsspec's store, but reads it through its own.
        for store in (path.__wrapped__.fs, path.fs):
            refuse_local(self.address, store)
        return path


def refuse_local(address: str, store: Any) -> None:
    """Reject a store that reads this machine's disk, directly or through a store that it wraps.

    :raises PermissionError: it does, or it wraps too many stores to check
    """
    from fsspec.implementations.local import LocalFileSystem

    for file_system in _stores(address, store):
        protocols = {file_system.protocol} if isinstance(file_system.protocol, str) else {*file_system.protocol}
        if isinstance(file_system, LocalFileSystem) or not LOCAL.isdisjoint(protocols):
            raise PermissionError(
                f"{address} is not staged because its store ({type(file_system).__name__}) reads the disk of the "
                "controller's machine; valid: an object store"
            )


def _stores(address: str, store: Any) -> Iterator[Any]:
    """Yield a fsspec store and those it wraps: ``fs`` of a cache or a folder, ``fo`` of an archive, ``fss``."""
    from fsspec import AbstractFileSystem

    left, seen = [store], 0
    while left:
        each = left.pop()
        if isinstance(each, AbstractFileSystem):
            # A store that wraps more stores than this is rejected.
            if (seen := seen + 1) > 8:
                raise PermissionError(f"{address} is not staged because its store wraps more than 8 other stores")
            yield each
            inner = object.__getattribute__(each, "__dict__")  # a cache would return that of the store it wraps
            several = inner.get("fss")
            left += [inner.get("fs"), getattr(inner.get("fo"), "fs", None)]
            left += several.values() if isinstance(several, dict) else []
