"""The content of a folder: its files, one hash over all of them, and an archive.

The hash covers names, contents and whether a file is executable, but neither times nor owners, so equal folders have
equal hashes on every machine. ``.git``, ``__pycache__``, ``*.pyc`` and everything that is not a file are left out;
links are followed.
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
# Hexadecimal digits of a hash: 160 bits.
HASH_DIGITS = 40


class TooManyFiles(ValueError):
    """A folder has too many files to hash."""


class FolderChanged(OSError):
    """A file changed while its folder was being read."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file in the folder.

    :param name: relative to the folder, with ``/``
    :param path: where to read it
    :param size: bytes
    :param executable: whether its owner can execute it
    :param identity: inode, modification time and change time in ns; any change to the file alters it
    """

    name: str
    path: str
    size: int
    executable: bool
    identity: tuple[int, int, int]

    @property
    def changed_at(self) -> int:
        """When it last changed by its file system's clock, ns since the epoch."""
        return max(self.identity[1:])


def members(folder: str, most: int = 100_000) -> list[SnapshotFile]:
    """Return the files of a folder, sorted by name.

    :param most: files of a folder of Dags; more are a link to elsewhere, or a virtual environment
    :raises OSError: the folder or a subfolder cannot be read
    :raises TooManyFiles: there are more
    """
    found: list[SnapshotFile] = []
    for member in _walk(folder, "", ()):
        found.append(member)
        if len(found) > most:
            raise TooManyFiles(f"{folder} has more than {most} files")
    return sorted(found, key=lambda member: member.name)


def _walk(path: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[SnapshotFile]:
    status = os.stat(path)
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link to one of its own parent folders
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in LEFT_OUT or entry.name.endswith(LEFT_OUT_SUFFIX):
                continue
            try:
                found = entry.stat()
            except OSError as error:
                # A dangling link, or a file that has just been deleted.
                if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
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
    """Hashes one folder repeatedly. A file is read again only when its size, times or inode have changed."""

    young = 2.0
    """A file can change twice within one tick of the clock that dates it. So a file is read again until it has
    looked the same for this many seconds. A file changed more than a day ago is exempt, because clocks differ by
    less."""

    def __init__(self) -> None:
        self._known: dict[SnapshotFile, bytes] = {}
        self._since: dict[SnapshotFile, float] = {}

    def hash_folder(self, found: Sequence[SnapshotFile]) -> str:
        """Return the hash of the folder with these files, sorted by name.

        :raises OSError: a file cannot be read
        """
        began = time.monotonic()
        digests = {member: self._known.get(member) or _digest(member) for member in found}
        self._since = {member: self._since.get(member, began) for member in found}
        old = time.time_ns() - 86400 * 10**9
        self._known = {
            member: digest
            for member, digest in digests.items()
            if member.changed_at < old or self._since[member] < began - self.young
        }
        whole = hashlib.sha256()
        for member in found:
            whole.update(_line(member, digests[member]))
        return whole.hexdigest()[:HASH_DIGITS]


def packed(found: Sequence[SnapshotFile]) -> tuple[bytes, str]:
    """Return the files as a compressed tar, dated now, and the hash of its content.

    Comparing the hash with that of the folder shows whether files changed in between.

    :raises FolderChanged: the size of a file changed
    :raises OSError: a file cannot be read
    """
    whole = hashlib.sha256()
    archived = io.BytesIO()
    # Not the files' own dates, because some clusters delete files that have not been written for long.
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
    name = os.fsencode(member.name)
    return b"%d %d " % (member.executable, len(name)) + name + digest
