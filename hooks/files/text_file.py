"""Files that people write, as text: the tables of jobs, the sites file, profiles."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

# Far more than anybody writes; a device or a wrong file is given up there.
MOST_BYTES = 2**26


class FileError(ValueError):
    """A file that cannot be read as text. The message is one line; the file is not named in it."""


def read(path: str | Path) -> str:
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
            return limited(file)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}") from None
    except FileError:
        raise
    except ValueError as error:  # a path with a NUL character
        raise FileError(f"cannot be read: {error}") from None


def limited(file: BinaryIO) -> bytes:
    """What is left in an open file.

    :raises FileError: it has more than 64 MiB
    """
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise FileError(f"has more than {MOST_BYTES:,} bytes; valid: a smaller file")
    return content
