"""How large the files among a job's inputs are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lading.scheduling.expressions import ExpressionError

SCHEMES = ("file", "s3")


def files(value: Any) -> Iterator[str | int]:
    """The files in a value, however deep: their addresses, or their sizes where a CWL File says them.

    Text is a file when it is an absolute path, or an address that begins with ``file://`` or ``s3://``.
    """
    if isinstance(value, str):
        if value.startswith("/") or value.partition("://")[0] in SCHEMES:
            yield value
    elif isinstance(value, Mapping):
        if value.get("class") == "File":
            size = value.get("size")
            yield size if isinstance(size, int) else str(value.get("path") or value.get("location"))
            yield from files(value.get("secondaryFiles"))
        else:
            for each in value.values():
                yield from files(each)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        for each in value:
            yield from files(each)
    elif isinstance(address := getattr(value, "uri", None), str) or "://" in (address := str(value)):  # an asset
        yield from files(address)


class FileSizes:
    """Sizes of files, each looked up once."""

    def __init__(self) -> None:
        self._size = cache(file_size)

    def of(self, values: Any) -> int:
        """Bytes of all files in a value; one that is named twice counts once.

        :raises ExpressionError: one is missing or cannot be looked at
        """
        found = list(files(values))
        addresses = {each for each in found if isinstance(each, str)}
        return sum(each for each in found if isinstance(each, int)) + sum(map(self._size, sorted(addresses)))


def file_size(address: str) -> int:
    """Bytes of a file, or of all files in a folder.

    :raises ExpressionError: it is missing or cannot be looked at
    """
    try:
        if address.startswith("s3://"):
            return _object_size(address)
        path = Path(unquote(urlsplit(address).path) if address.startswith("file://") else address)
        if path.is_dir():
            return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        return os.stat(path).st_size
    except FileNotFoundError as error:
        raise ExpressionError(f"there is no file {address} where Lading's controller runs") from error
    except ExpressionError:
        raise
    except Exception as error:  # object stores have exceptions of their own
        raise ExpressionError(f"the size of {address} cannot be found out: {type(error).__name__}: {error}") from error


def _object_size(address: str) -> int:
    from airflow.sdk import ObjectStoragePath

    path = ObjectStoragePath(address)
    if path.is_dir():
        return sum(int(each.stat().st_size) for each in path.rglob("*") if each.is_file())
    return int(path.stat().st_size)
