"""Files of this machine: written whole, closed to other users, and read with care, whatever has written them."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def make_private(folder: Path) -> None:
    """Make a folder for this user only, and those above it that are missing; one that is there is closed to others.

    :raises OSError: it cannot be made, or belongs to another user
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"folder {folder} belongs to user {user_name(found.st_uid)}, and what lies in it is trusted: as user "
            f"{user_name(os.geteuid())} use a folder of your own, or change its owner by chown"
        )
    if stat.S_IMODE(found.st_mode) != PRIVATE_FOLDER:
        folder.chmod(PRIVATE_FOLDER)


def own_folder(parent: Path, name: str) -> Path:
    """A folder for this user only, in one in which other users may make some too, such as that for temporary files.

    Where another user has made something of this name, it is one whose name goes on at random.

    :raises OSError: none can be made
    """
    expected = parent / name
    if _is_own(expected):
        return expected
    try:
        expected.mkdir(mode=PRIVATE_FOLDER)
    except FileExistsError:
        if found := own_folders(parent, name):
            return found[0]
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        if (first := own_folders(parent, name)[0]) != made:  # another process of this user was faster
            made.rmdir()
        return first
    return expected


def own_folders(parent: Path, name: str) -> list[Path]:
    """All that :func:`own_folder` has ever made of this name."""
    return [each for each in (parent / name, *sorted(parent.glob(f"{glob.escape(name)}-*"))) if _is_own(each)]


def _is_own(folder: Path) -> bool:
    """Whether this user alone may write there, and the path leads nowhere else."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def user_name(uid: int) -> str:
    """What a user is called."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def private_opener(path: str, flags: int) -> int:
    """For ``open``: a new file is for this user only."""
    return os.open(path, flags, PRIVATE_FILE)


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` (mode 0600) so that a reader sees all of it or nothing."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(hidden, flags, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        os.rename(hidden, path)
    except BaseException:  # an interrupt as well
        with contextlib.suppress(OSError):  # on a full disk nothing is left that takes room
            os.unlink(hidden)
        shutil.rmtree(hidden, ignore_errors=True)  # else a folder of that name would be in the way forever
        raise


def visible(folder: Path) -> list[Path]:
    """The finished files of a folder, by name."""
    return sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith("."))


# Files that others may have left: whatever lies there, it neither holds this process up nor fills its memory.


class NotReadable(OSError):
    """What lies there is no regular file, or too large: it will never be read, however often it is tried."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file. A link is not followed, a FIFO is not waited for.

    :param flags: as those of ``os.open``
    :param mode: of a file that is made
    :raises NotReadable: it is something else
    :raises OSError: it is not there, or cannot be opened now
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link; a socket, or a FIFO without a reader
            raise NotReadable("it is no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotReadable("it is no regular file")
    os.set_blocking(descriptor, True)
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file.

    :param most: bytes that are read; a larger file is refused
    :raises NotReadable: it is something else, or larger
    :raises OSError: it is not there, or cannot be read now
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise NotReadable(f"it has {max(size, len(content))} bytes, at most {most} are read")
    return content


def read_end(path: Path, most: int) -> bytes:
    """The last bytes of a regular file.

    :param most: so many
    :raises NotReadable: it is something else
    :raises OSError: it is not there, or cannot be read now
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        stream.seek(max(os.fstat(stream.fileno()).st_size - most, 0))
        return stream.read(most)


# Files that people write, as text: tables of jobs, the sites file, profiles.

# Far more than people write; a device or a wrong file is refused there.
MOST_BYTES = 2**26


class FileError(ValueError):
    """A file that cannot be read as text. The message is one line; the file is not named in it."""


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark; line ends stay as they are.

    :raises FileError: it cannot be read, is no UTF-8, or has more than 64 MiB
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise FileError(f"is not UTF-8: {wrong}; valid: text in UTF-8, not compressed") from None


def read_bytes(path: str | Path) -> bytes:
    """The content of a file.

    :raises FileError: it cannot be read, or has more than 64 MiB
    """
    try:
        with open(path, "rb") as file:
            return read_limited(file)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}") from None
    except FileError:
        raise
    except ValueError as error:  # a path with a NUL character
        raise FileError(f"cannot be read: {error}") from None


def read_limited(file: BinaryIO) -> bytes:
    """What is left in an open file.

    :raises FileError: it has more than 64 MiB
    """
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise FileError(f"has more than {MOST_BYTES:,} bytes; valid: a smaller file")
    return content
