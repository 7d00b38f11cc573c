"""How large the files among a job's inputs are."""

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

from lading.executors.sizing.xcom_json import Unknown
from lading.hooks.files.addresses import normal_path
from lading.scheduling.hints.expressions import ExpressionError

SCHEMES = ("file", "s3")

# For one job so many files and folders are looked at, and for so many seconds, at most.
MOST_ENTRIES = 100_000
MOST_SECONDS = 20.0
# What has been found out about a folder, or about what is in an object store, holds for so long, seconds. A file of
# this machine is looked at each time.
SECONDS_KEPT = 60.0
MOST_KEPT = 10_000
# Policies get so many input files of a job.
MOST_INPUTS = 200

DECLARE = 'give its size with it, as the CWL File {{"class": "File", "location": "{}", "size": BYTES}}'


def files(value: Any) -> Iterator[str | int]:
    """The files in a value, however deep: their addresses, or their sizes where a CWL File says them.

    :raises ExpressionError: something in it may be a file, but only the task can know
    """
    for address, size in named_files(value):
        yield address if size is None else size


def named_files(value: Any, schemes: Collection[str] | None = SCHEMES) -> Iterator[tuple[str, int | None]]:
    """The addresses of the files in a value, however deep, with their sizes where a CWL File says them.

    Text is a file when it is an absolute path, or an address that begins with ``file://`` or ``s3://``.

    :param schemes: what addresses may begin with; None: anything
    :raises ExpressionError: something in it may be a file, but only the task can know
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
            raise ExpressionError(f"the size of an input is not known: {value.why}")
    elif isinstance(address := getattr(value, "uri", None), str) or "://" in (address := str(value)):  # an asset
        yield from named_files(address, schemes)


def addresses(inputs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The files among inputs, as machines name them, with their bytes as far as the inputs say so, else 0."""
    sizes_by_path: dict[str, int] = {}
    for value in (value for each in inputs for value in each.values()):
        try:
            named = list(named_files(value))
        except ExpressionError:  # only the task can know what is in it
            continue
        for address, size in named:
            if (path := normal_path(address)) is not None and len(sizes_by_path) < MOST_INPUTS:
                sizes_by_path[path] = size or 0
    return sizes_by_path


@dataclass(slots=True)
class _Kept:
    """What is known of one address.

    :param turn: held by the thread that finds it out; the others wait for that
    """

    until: float = 0.0
    found: int | ExpressionError = 0
    turn: threading.Lock = field(default_factory=threading.Lock)


class KnownSizes:
    """Sizes of folders and objects, which may take long to find out, shared by all jobs for a while."""

    def __init__(self) -> None:
        self.hanging: frozenset[str] = frozenset()
        """Where looks hang, see :func:`place`; what is there is not looked at."""
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, address: str, find: Callable[[], int], seconds: float, keep_errors: bool) -> int:
        """The size, found out unless it is known; two threads never find out the same at the same time.

        :param seconds: how long another thread that finds it out is waited for
        :param keep_errors: whether an error holds for other jobs, too
        :raises ExpressionError: it cannot be found out
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
        if len(self._kept) >= MOST_KEPT:
            now = time.monotonic()
            self._kept = {name: kept for name, kept in self._kept.items() if kept.until > now or kept.turn.locked()}
            for name in list(self._kept)[: len(self._kept) - MOST_KEPT + 1]:
                del self._kept[name]


class FileSizes:
    """The sizes of the files of one job, each looked up once, within the limits for a job.

    :param roots: the folders and beginnings of addresses below which sizes are looked up; none: everywhere
    :param known: what other jobs have found out
    """

    def __init__(self, roots: Sequence[str] = (), known: KnownSizes | None = None) -> None:
        self.roots = roots
        self.known = known or KnownSizes()
        self.address = "the inputs"
        """What is looked at now."""
        self._sizes: dict[str, int] = {}
        self._entries = 0
        self._deadline = time.monotonic() + MOST_SECONDS

    def total_bytes(self, values: Any) -> int:
        """Bytes of all files in a value; one that is named twice counts once.

        :raises ExpressionError: one is missing or cannot be looked at
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
                raise ExpressionError(f"there is no file {address} where Lading's controller runs") from error
            except ExpressionError:
                raise
            except Exception as error:  # object stores have exceptions of their own
                message = f"{type(error).__name__}: {error}"
                raise ExpressionError(f"the size of {address} cannot be found out: {message}") from error
        return self._sizes[address]

    def _path(self, address: str) -> int:
        """Bytes of a file, or of all files in a folder."""
        path = unquote(urlsplit(address).path) if address.startswith("file://") else address
        path = self._allowed(path, address)
        self._count(address)
        status = os.stat(path)
        if not os.path.isdir(path):
            return status.st_size
        return self._known(path, lambda: self._folder(path, address))

    def _known(self, address: str, find: Callable[[], int]) -> int:
        """What has been found out about an address; errors of a job that has used up little of its limits are kept."""
        left = self._deadline - time.monotonic()
        return self.known.get(address, find, left, self._entries < MOST_ENTRIES / 10 and left > 0.9 * MOST_SECONDS)

    def _folder(self, root: str, address: str) -> int:
        """Bytes of all files in a folder. Links to folders are not followed."""
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
        """Bytes of an object, or of all objects below an address."""
        if self.roots:
            scheme, netloc, key = urlsplit(address)[:3]
            address = f"{scheme}://{netloc}{posixpath.normpath('/' + key.lstrip('/'))}"
            self._check(address, address)
        self._count(address)
        return self._known(address, lambda: _object_size(address, lambda: self._count(address)))

    def _allowed(self, path: str, address: str) -> str:
        """The path without links and dots, where sizes are looked up only below some folders.

        :raises ExpressionError: it leads elsewhere
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
        """One more is looked at.

        :raises ExpressionError: that is beyond what is looked at for one job
        """
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise ExpressionError(
                f"the inputs are more than {MOST_ENTRIES} files and folders, the limit, many of them in {address}; "
                f"{DECLARE.format(address)}"
            )
        if time.monotonic() > self._deadline:
            raise too_slow(address)


def too_slow(address: str) -> ExpressionError:
    """What is said of a job whose inputs take too long to look at."""
    return ExpressionError(
        f"the sizes of the inputs could not be found out in {MOST_SECONDS:g} s, the limit, the last one that of "
        f"{address}; {DECLARE.format(address)}"
    )


def place(address: str) -> str:
    """What is likely to hang together with a file: its mount, or its folder where that is the machine's own; a bucket.

    That is found out without a look at the file.
    """
    scheme, netloc, path = urlsplit(address)[:3]
    if scheme == "s3":
        return f"s3://{netloc}"
    path = posixpath.normpath(unquote(path) if scheme == "file" else address)
    around = (mount for mount in mount_points() if path == mount or path.startswith(f"{mount}/"))
    return max(around, key=len, default=posixpath.dirname(path))


def mount_points() -> list[str]:
    """The mounts of this machine but for its root (proc_pid_mountinfo(5)); none where the kernel does not list them."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            found = [line.split(" ")[4] for line in lines]
    except OSError:
        return []
    return [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), each) for each in found if each != "/"]


def _object_size(address: str, count: Callable[[], None]) -> int:
    """
    :param count: called for each object
    """
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
