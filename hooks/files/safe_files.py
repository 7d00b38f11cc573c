"""Local files: written atomically, private to this user, and read defensively, no matter who has written them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def make_private(folder: Path) -> None:
    """Create a folder for this user only, with its missing parents; an existing folder is made private.

    :raises OSError: it cannot be created, or belongs to another user
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"folder {folder} belongs to user {user_name(found.st_uid)}, but Lading has to trust its content: "
            f"use a folder of user {user_name(os.geteuid())}, or change the owner of this one with chown"
        )
    if stat.S_IMODE(found.st_mode) != PRIVATE_FOLDER:
        folder.chmod(PRIVATE_FOLDER)


def own_folder(parent: Path, name: str) -> Path:
    """Return a private folder inside one where other users can create folders too, such as the temporary folder.

    If another user has taken the name, a random suffix is added.

    :raises OSError: none can be created
    """
    expected = parent / name
    if _is_own(expected):
        return expected
    try:
        expected.mkdir(mode=PRIVATE_FOLDER)
    except FileExistsError:
        if found := own_folders(parent, name):
            return found[0]
        import tempfile  # this module is imported by each batch job, which hardly ever comes here

        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
        if (first := own_folders(parent, name)[0]) != made:  # another process of this user was faster
            made.rmdir()
        return first
    return expected


def own_folders(parent: Path, name: str) -> list[Path]:
    """Return all folders that :func:`own_folder` has ever created for this name."""
    others: list[str] = []
    with contextlib.suppress(PermissionError):  # the folder lets users create files in it but not list them
        others = sorted(each for each in os.listdir(parent) if each.startswith(f"{name}-"))
    return [parent / each for each in (name, *others) if _is_own(parent / each)]


def _is_own(folder: Path) -> bool:
    """Check that it is a folder, not a link, that only this user can access."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def private_opener(path: str, flags: int) -> int:
    """Opener for ``open`` that creates files for this user only."""
    return os.open(path, flags, PRIVATE_FILE)


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` (mode 0600) so that a reader sees either all of it or nothing."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(hidden, flags, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        os.rename(hidden, path)
    except BaseException:  # including KeyboardInterrupt
        with contextlib.suppress(OSError):  # it may never have been created
            os.unlink(hidden)  # frees the space if the disk is full
        import shutil

        shutil.rmtree(hidden, ignore_errors=True)  # a folder of that name would block every later write
        raise


def visible(folder: Path) -> list[Path]:
    """Return the finished files of a folder, sorted by name; a leading dot marks unfinished ones."""
    return sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith("."))


# Files that others may have left. Whatever is at the path, it must neither block this process nor exhaust its memory.


class NotReadable(OSError):
    """The path is not a regular file, or the file is too large; a retry will not help."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor. Links are not followed, and a FIFO does not block.

    :param flags: as for ``os.open``
    :param mode: the mode of a newly created file
    :raises NotReadable: it is not a regular file
    :raises OSError: it does not exist, or cannot be opened now
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link; a socket, or a FIFO without a reader
            raise NotReadable("it is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotReadable("it is not a regular file")
    os.set_blocking(descriptor, True)
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file.

    :param most: the largest accepted size in bytes
    :raises NotReadable: it is not a regular file, or is larger
    :raises OSError: it does not exist, or cannot be read now
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise NotReadable(f"it has {max(size, len(content))} bytes; at most {most} are read")
    return content


def read_end(path: Path, most: int) -> bytes:
    """Return the last ``most`` bytes of a regular file.

    :raises NotReadable: it is not a regular file
    :raises OSError: it does not exist, or cannot be read now
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        stream.seek(max(os.fstat(stream.fileno()).st_size - most, 0))
        return stream.read(most)


# Text files that people write: tables of jobs, the sites file, profiles.


class FileError(ValueError):
    """A file that cannot be read as text. The message is one line and does not name the file."""


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark; line endings are kept.

    :raises FileError: it cannot be read, is not UTF-8, or is larger than 64 MiB
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise FileError(f"is not UTF-8: {wrong}; valid: text in UTF-8, not compressed") from None


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file.

    :raises FileError: it cannot be read, or is larger than 64 MiB
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


def read_limited(file: BinaryIO, most: int = 2**26) -> bytes:
    """Return the rest of an open file.

    :param most: far more bytes than people write, so a device or a wrong file is rejected
    :raises FileError: it is larger
    """
    content = file.read(most + 1)
    if len(content) > most:
        raise FileError(f"has more than {most:,} bytes; valid: a smaller file")
    return content
