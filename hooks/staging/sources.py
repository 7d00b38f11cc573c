"""Where a file is read that is brought to another place: a machine behind a transport, or an object store."""

from __future__ import annotations

import base64
import binascii
import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.steps import Run, quoted

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

# Bytes that are read and written at once; more would keep a site's other news waiting.
PART = 8 * 2**20
# Seconds in which one part must have come.
PART_TIMEOUT = 180.0

# By exit status, those of errno(3).
_ERRORS = {errno.ENOENT: FileNotFoundError, errno.EISDIR: IsADirectoryError}


@dataclass(frozen=True, slots=True)
class Version:
    """What a file holds now.

    :param size: bytes
    :param mark: which changes when the file does: of a machine's file the time of its last change
    """

    size: int
    mark: str


class Source(ABC):
    """A file, as it can be read in one place."""

    @abstractmethod
    def version(self) -> Version:
        """What it holds now.

        :raises FileNotFoundError: it is not there, or neither a file nor a folder
        :raises IsADirectoryError: it is a folder
        :raises OSError: that could not be found out
        """

    @abstractmethod
    def parts(self, size: int) -> Iterator[bytes]:
        """Its content, in parts of :data:`PART` bytes, the last one of what is left.

        :param size: of it all
        :raises OSError: it could not be read
        """


@dataclass(frozen=True, slots=True)
class MachineFile(Source):
    """A file of a machine.

    :param path: absolute
    """

    transport: Transport
    path: str

    def version(self) -> Version:
        path = quoted(self.path)
        answer = self._ask(f"[ ! -d {path} ] || exit 21; [ -f {path} ] || exit 2; stat -Lc '%s %Y' -- {path}", 60.0)
        if not (told := re.fullmatch(r"(\d{1,18}) (-?\d{1,18})\s*", answer)):
            raise TransportError(f"{self.transport}: {answer[:200]!r} is not the size of {self.path}")
        return Version(int(told[1]), told[2])

    def parts(self, size: int) -> Iterator[bytes]:
        for number in range(-(-size // PART)):
            blocks = PART // 2**20
            text = f"dd if={quoted(self.path)} bs=1048576 skip={number * blocks} count={blocks} status=none | base64"
            try:
                data = base64.b64decode(self._ask(text, PART_TIMEOUT))
            except binascii.Error as error:
                raise TransportError(f"what came of {self.path} is damaged: {error}") from error
            if len(data) != (expected := min(PART, size - number * PART)):
                raise OSError(f"{self.path} has changed while it was read: {len(data)} bytes in place of {expected}")
            yield data

    def _ask(self, text: str, timeout: float) -> str:
        (answer,) = self.transport.exchange([Run(text)], timeout)
        if answer.status in _ERRORS:
            raise _ERRORS[answer.status](self.path)
        if answer.status is None:
            raise TransportError(answer.words)
        if answer.status != 0:
            raise OSError(self.transport.fault(answer))
        return answer.stdout


@dataclass(frozen=True, slots=True)
class StoredObject(Source):
    """What Airflow's ObjectStoragePath reads on this machine, by the connection that its address names."""

    address: str

    def version(self) -> Version:
        path = self._path
        if not path.is_file():
            raise (IsADirectoryError if path.is_dir() else FileNotFoundError)(self.address)
        return Version(int(path.stat().st_size), f"{path.checksum():x}")

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

        return ObjectStoragePath(self.address)
