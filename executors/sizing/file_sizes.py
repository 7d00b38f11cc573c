"""The sizes of the files among a job's inputs."""

from __future__ import annotations

import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from lading.hooks.files.addresses import normal_path
from lading.hooks.files.xcom_json import Unknown
from lading.scheduling.hints.expressions import ExpressionError

SCHEMES = ("file", "s3")

# How many seconds the size of a folder, or of anything in an object store, is cached. A local file is examined each
# time.
SECONDS_KEPT = 60.0

DECLARE = 'declare its size, as in the CWL File {{"class": "File", "location": "{}", "size": BYTES}}'


def files(value: Any) -> Iterator[str | int]:
    """Yield the address of each file nested in a value, or its size if a CWL File gives it.

    :raises ExpressionError: part of the value may be a file, but only the task can tell
    """
    for address, size in named_files(value):
        yield address if size is None else size


def named_files(value: Any, schemes: Collection[str] | None = SCHEMES) -> Iterator[tuple[str, int | None]]:
    """Yield the address of each file nested in a value, with its size if a CWL File gives it.

    Text is a file if it is an absolute path, or an address that begins with ``file://`` or ``s3://``.

    :param schemes: the schemes of addresses; None: any
    :raises ExpressionError: part of the value may be a file, but only the task can tell
    """
    if isinstance(value, str):
        scheme, separator, _ = value.partition("://")
        if value.startswith("/") or (separator and (schemes is None or scheme in schemes)):
            yield value, None
    elif isinstance(value, Mapping):
        if value.get("class") == "File":
            size = value.get("size")
            yield str(value.get("path") or value.get("location")), size if isinstance(size, int) else None
            yield from named_files(value.get("secondaryFiles"), schemes)
        else:
            for each in value.values():
                yield from named_files(each, schemes)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        for each in value:
            yield from named_files(each, schemes)
    elif isinstance(value, Unknown):
        if value.may_be_file:
            raise ExpressionError(f"the size of an input is unknown: {value.why}")
    elif isinstance(address := getattr(value, "uri", None), str) or "://" in (address := str(value)):  # an asset
        yield from named_files(address, schemes)


def addresses(inputs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the files among inputs, as machines name them, with the bytes that the inputs declare, or 0."""
    sizes_by_path: dict[str, int] = {}
    for value in (value for each in inputs for value in each.values()):
        try:
            named = list(named_files(value))
        except ExpressionError:  # only the task can tell what is in it
            continue
        for address, size in named:
            # No more files of a job are passed to policies.
            if (path := normal_path(address)) is not None and len(sizes_by_path) < 200:
                sizes_by_path[path] = size or 0
    return sizes_by_path


@dataclass(slots=True)
class _Kept:
    """The cached size of one address.

    :param turn: held by the thread that computes the size, while others wait for it
    """

    until: float = 0.0
    found: int | ExpressionError = 0
    turn: threading.Lock = field(default_factory=threading.Lock)


class KnownSizes:
    """The sizes of folders and objects, which may be slow to compute, shared by all jobs for a while."""

    def __init__(self) -> None:
        self.hanging: frozenset[str] = frozenset()
        """The places where threads hang, see :func:`place`; nothing there is accessed."""
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, address: str, find: Callable[[], int], seconds: float, keep_errors: bool) -> int:
        """Return a size, computing it unless it is cached; two threads never compute the same size at once.

        :param seconds: how long to wait for another thread that is computing it
        :param keep_errors: whether an error is cached for other jobs, too
        :raises ExpressionError: the size cannot be determined
        """
        with self._lock:
            self._make_room()
            kept = self._kept.setdefault(address, _Kept())
        if not kept.turn.acquire(timeout=max(seconds, 0.0)):
            raise too_slow(address)
        try:
            if kept.until < time.monotonic():
                try:
                    kept.found = find()
                except ExpressionError as error:
                    if not keep_errors:
                        raise
                    kept.found = error
                kept.until = time.monotonic() + SECONDS_KEPT
        finally:
            kept.turn.release()
        if isinstance(kept.found, ExpressionError):
            raise ExpressionError(str(kept.found))
        return kept.found

    def _make_room(self) -> None:
        if len(self._kept) >= 10_000:
            now = time.monotonic()
            self._kept = {name: kept for name, kept in self._kept.items() if kept.until > now or kept.turn.locked()}
            for name in list(self._kept)[: len(self._kept) - 9_999]:
                del self._kept[name]


class FileSizes:
    """The sizes of the files of one job, each looked up once, within the limits per job.

    :param roots: the folders and address prefixes below which sizes are looked up; empty: everywhere
    :param known: the cache shared with other jobs
    """

    most_entries = 100_000
    """Files and folders that are examined for one job."""
    most_seconds = 20.0
    """For which the files of one job are examined."""

    def __init__(self, roots: Sequence[str] = (), known: KnownSizes | None = None) -> None:
        self.roots = roots
        self.known = known or KnownSizes()
        self.address = "the inputs"
        """The address being examined."""
        self._sizes: dict[str, int] = {}
        self._entries = 0
        self._deadline = time.monotonic() + self.most_seconds

    def total_bytes(self, values: Any) -> int:
        """Return the bytes of all files in a value; a file named twice counts once.

        :raises ExpressionError: a file is missing or cannot be examined
        """
        found = list(files(values))
        addresses = {each for each in found if isinstance(each, str)}
        return sum(each for each in found if isinstance(each, int)) + sum(map(self._size, sorted(addresses)))

    def _size(self, address: str) -> int:
        if address not in self._sizes:
            self.address = address
            if self.known.hanging and place(address) in self.known.hanging:
                raise too_slow(address)
            try:
                self._sizes[address] = self._object(address) if address.startswith("s3://") else self._path(address)
            except FileNotFoundError as error:
                raise ExpressionError(f"there is no file {address} on the machine of Lading's controller") from error
            except ExpressionError:
                raise
            except Exception as error:  # object stores have exceptions of their own
                message = f"{type(error).__name__}: {error}"
                raise ExpressionError(f"the size of {address} cannot be determined: {message}") from error
        return self._sizes[address]

    def _path(self, address: str) -> int:
        """Return the bytes of a file, or of all files in a folder."""
        path = unquote(urlsplit(address).path) if address.startswith("file://") else address
        path = self._allowed(path, address)
        self._count(address)
        status = os.stat(path)
        if not os.path.isdir(path):
            return status.st_size
        return self._known(path, lambda: self._folder(path, address))

    def _known(self, address: str, find: Callable[[], int]) -> int:
        """Look up a size in the cache. An error is cached only if the job had used little of its limits."""
        left = self._deadline - time.monotonic()
        return self.known.get(
            address, find, left, self._entries < self.most_entries / 10 and left > 0.9 * self.most_seconds
        )

    def _folder(self, root: str, address: str) -> int:
        """Return the bytes of all files in a folder, without following links to folders."""
        total = 0
        folders = [root]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    self._count(address)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_symlink():
                        path = self._allowed(entry.path, entry.path)
                        total += os.stat(path).st_size if os.path.isfile(path) else 0
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    def _object(self, address: str) -> int:
        """Return the bytes of an object, or of all objects below an address."""
        if self.roots:
            scheme, netloc, key = urlsplit(address)[:3]
            address = f"{scheme}://{netloc}{posixpath.normpath('/' + key.lstrip('/'))}"
            self._check(address, address)
        self._count(address)
        return self._known(address, lambda: _object_size(address, lambda: self._count(address)))

    def _allowed(self, path: str, address: str) -> str:
        """Return the path to access: without links and dots if sizes are only looked up below some folders.

        :raises ExpressionError: the path leads elsewhere
        """
        if not self.roots:
            return path
        real = os.path.realpath(path)
        self._check(real, address)
        return real

    def _check(self, where: str, address: str) -> None:
        roots = [root if "://" in root else os.path.realpath(root) for root in self.roots]
        if not any(where == root or where.startswith(f"{root.rstrip('/')}/") for root in roots):
            raise ExpressionError(
                f"{address} is not below [lading] input_roots, where sizes are looked up ({', '.join(self.roots)}); "
                f"{DECLARE.format(address)}"
            )

    def _count(self, address: str) -> None:
        """Count one more file or folder.

        :raises ExpressionError: a limit per job is exceeded
        """
        self._entries += 1
        if self._entries > self.most_entries:
            raise ExpressionError(
                f"the inputs exceed the limit of {self.most_entries} files and folders, many of them in {address}; "
                f"{DECLARE.format(address)}"
            )
        if time.monotonic() > self._deadline:
            raise too_slow(address)


def too_slow(address: str) -> ExpressionError:
    return ExpressionError(
        f"the sizes of the inputs could not be determined within the limit of {FileSizes.most_seconds:g} s; the last "
        f"one was that of {address}; {DECLARE.format(address)}"
    )


def place(address: str) -> str:
    """Return what is likely to hang together with a file: its mount, its folder on the root file system, or its bucket.

    The file itself is not accessed.
    """
    scheme, netloc, path = urlsplit(address)[:3]
    if scheme == "s3":
        return f"s3://{netloc}"
    path = posixpath.normpath(unquote(path) if scheme == "file" else address)
    around = (mount for mount in mount_points() if path == mount or path.startswith(f"{mount}/"))
    return max(around, key=len, default=posixpath.dirname(path))


def mount_points() -> list[str]:
    """Return the mounts of this machine except its root (proc_pid_mountinfo(5)); empty if the kernel lists none."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            found = [line.split(" ")[4] for line in lines]
    except OSError:
        return []
    return [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), each) for each in found if each != "/"]


def _object_size(address: str, count: Callable[[], None]) -> int:
    """:param count: called for each object"""
    from airflow.sdk import ObjectStoragePath

    path = ObjectStoragePath(address)
    if not path.is_dir():
        return int(path.stat().st_size)
    total = 0
    for each in path.rglob("*"):
        count()
        if each.is_file():
            total += int(each.stat().st_size)
    return total
