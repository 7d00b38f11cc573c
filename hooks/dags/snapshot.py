"""A folder's content: what is in it, one hash for all of it, and the whole as one archive.

What counts are names, contents, and whether a file can be executed; not when it was written, nor by whom. Two folders
of the same content have the same hash on every machine. Left out are ``.git``, ``__pycache__``, ``*.pyc`` and whatever
is no file; links are followed.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEFT_OUT = frozenset({".git", "__pycache__"})
LEFT_OUT_SUFFIX = ".pyc"
# More files than this are no folder of Dags: one has a link to somewhere else, or an environment in it.
MOST_FILES = 100_000
# A file may change twice within one tick of the clock that dates it, so what has not been seen the same for so long is
# read, seconds. What was changed longer ago than clocks differ needs no second look, ns.
YOUNG = 2.0
OLD = 86400 * 10**9
# Hexadecimal digits of a hash: 160 bits.
HASH_DIGITS = 40
# What is said of a link that leads nowhere, and of a file that has just gone.
NOWHERE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR)


class TooManyFiles(ValueError):
    """A folder has too many files to be compared."""


class FolderChanged(OSError):
    """A file is not any more what it was when the folder was looked at."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file in the folder.

    :param name: relative to the folder, with ``/``
    :param path: where it can be read
    :param size: bytes
    :param executable: whether its owner may execute it
    :param identity: what changes when the file does: inode, and times of its content and of its entry in ns
    """

    name: str
    path: str
    size: int
    executable: bool
    identity: tuple[int, int, int]

    @property
    def changed_at(self) -> int:
        """When it was changed last, ns since the epoch by its file system's clock."""
        return max(self.identity[1:])


def members(folder: str) -> list[SnapshotFile]:
    """The files of a folder, by name.

    :raises OSError: a folder in it, or it itself, cannot be read
    :raises TooManyFiles: there are more than :data:`MOST_FILES`
    """
    found: list[SnapshotFile] = []
    for member in _walk(folder, "", ()):
        found.append(member)
        if len(found) > MOST_FILES:
            raise TooManyFiles(f"{folder} has more than {MOST_FILES} files")
    return sorted(found, key=lambda member: member.name)


def _walk(path: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[SnapshotFile]:
    status = os.stat(path)
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link that leads to a folder which it is in
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in LEFT_OUT or entry.name.endswith(LEFT_OUT_SUFFIX):
                continue
            try:
                found = entry.stat()
            except OSError as error:
                if error.errno in NOWHERE:
                    continue
                raise
            if stat.S_ISDIR(found.st_mode):
                yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, here))
            elif stat.S_ISREG(found.st_mode):
                yield SnapshotFile(
                    f"{prefix}{entry.name}",
                    entry.path,
                    found.st_size,
                    bool(found.st_mode & stat.S_IXUSR),
                    (found.st_ino, found.st_mtime_ns, found.st_ctime_ns),
                )


class Hashes:
    """The hashes of one folder as it changes: a file is read again only when its size, times or inode are others."""

    def __init__(self) -> None:
        self._known: dict[SnapshotFile, bytes] = {}
        self._since: dict[SnapshotFile, float] = {}

    def hash_folder(self, found: Sequence[SnapshotFile]) -> str:
        """The hash of the folder with these files, in the order of their names.

        :raises OSError: a file cannot be read
        """
        began = time.monotonic()
        digests = {member: self._known.get(member) or _digest(member) for member in found}
        self._since = {member: self._since.get(member, began) for member in found}
        old = time.time_ns() - OLD
        self._known = {
            member: digest
            for member, digest in digests.items()
            if member.changed_at < old or self._since[member] < began - YOUNG
        }
        whole = hashlib.sha256()
        for member in found:
            whole.update(_line(member, digests[member]))
        return whole.hexdigest()[:HASH_DIGITS]


def packed(found: Sequence[SnapshotFile]) -> tuple[bytes, str]:
    """The files as a compressed tar, dated now, and the hash of what is in it.

    The hash shows whether the files are still those that were looked at.

    :raises FolderChanged: a file has another size than it had
    :raises OSError: a file cannot be read
    """
    whole = hashlib.sha256()
    archived = io.BytesIO()
    # Not the dates of the files: some clusters remove what has not been written to for long.
    now = int(time.time())
    with (
        gzip.GzipFile(fileobj=archived, mode="wb", mtime=now) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for member in found:
            with open(member.path, "rb") as stream:
                content = stream.read(member.size + 1)
            if len(content) != member.size:
                raise FolderChanged(f"{member.path} has changed while it was read")
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mtime, entry.mode = len(content), now, 0o700 if member.executable else 0o600
            archive.addfile(entry, io.BytesIO(content))
            whole.update(_line(member, hashlib.sha256(content).digest()))
    return archived.getvalue(), whole.hexdigest()[:HASH_DIGITS]


def _digest(member: SnapshotFile) -> bytes:
    with open(member.path, "rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(2**20):
            digest.update(block)
    return digest.digest()


def _line(member: SnapshotFile, digest: bytes) -> bytes:
    """What a file adds to the hash of its folder."""
    name = os.fsencode(member.name)
    return b"%d %d " % (member.executable, len(name)) + name + digest
