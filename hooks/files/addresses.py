"""How files are named: names that a file system takes, paths in one way of writing, and from where files are staged."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Collection, Sequence
from urllib.parse import unquote

from lading.scheduling.text.printable import shortened

# In a job's environment: where the files that were brought for it lie, by their addresses, as JSON.
INPUTS_VARIABLE = "LADING_INPUTS"
# What Linux's file systems take (limits.h, NAME_MAX).
LONGEST = 255


def fitting(name: str, longest: int = LONGEST) -> str:
    """The name, or where it is too long its beginning and a hash of it; another name for every name.

    :param longest: bytes in UTF-8
    """
    content = name.encode(errors="surrogateescape")
    if len(content) <= longest:
        return name
    digest = hashlib.sha256(content).hexdigest()[:32]
    return f"{content[: longest - len(digest) - 1].decode(errors='ignore')}-{digest}"


def fitting_path(path: str) -> str:
    """A path whose names all fit."""
    return "/".join(map(fitting, path.split("/")))


def normal_path(address: str) -> str | None:
    """A file's path on the machine that has it, the same however it is written; None: no machine has it as its own."""
    if address[:7].lower() == "file://":
        # Not urlsplit, which refuses some hosts and strips what a path may have.
        path = re.split("[?#]", address[7:])[0]
        address = unquote(path[path.find("/") :] if "/" in path else "")
    return posixpath.normpath(address) if address.startswith("/") else None


# From which addresses files are staged: those of object stores that a site lists, never this machine's own files. What
# a Dag's author writes as an address is read by the controller, with its rights and from its place in the network. So a
# scheme that the site does not list is refused when the Dag is parsed, and again before anything is opened.

# One store under several names: s3fs.S3FileSystem, gcsfs.GCSFileSystem and adlfs.AzureBlobFileSystem each register
# theirs with fsspec, and Airflow's providers of Amazon, Google and Azure likewise (``schemes`` of each ``fs`` module).
SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
# Protocols of fsspec by which files of this machine are read.
LOCAL = frozenset(("file", "local", "git"))
# Those whose store is another one, named in the address or within a file.
WRAPPING = frozenset(
    ("dir", "blockcache", "filecache", "simplecache", "cached", "reference", "generic", "zip", "tar", "libarchive")
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(address: str) -> str | None:
    """The scheme of an address, lower-cased (RFC 3986, section 3.1), by its store's one name; None: it has none."""
    match = _SCHEME.match(address)
    return None if match is None else one_name(match[1])


def one_name(scheme: str) -> str:
    """The one name of those by which a store is known."""
    return SAME_STORE.get(scheme.lower(), scheme.lower())


def checked_scheme(scheme: str) -> str:
    """A scheme from which files may be staged, by the one name of its store.

    :raises ValueError: it is none, or one by which this machine's own files are read
    """
    if not _SCHEME.fullmatch(f"{scheme}://"):
        raise ValueError(
            f"{shortened(scheme)} is no scheme; valid: the beginning of an address, such as s3, gs or abfs"
        )
    if scheme.lower() in LOCAL | WRAPPING:
        raise ValueError(
            f"{shortened(scheme)} reads files of the controller's machine, or another store that the address names, "
            "which is never staged from; valid: schemes of object stores, such as s3, gs or abfs"
        )
    return one_name(scheme)


def staging_refusal(address: str, schemes: Collection[str], roots: Sequence[str] = ()) -> str | None:
    """Why a file is not staged; None: it may be.

    :param schemes: from which the site takes files, see :func:`checked_scheme`
    :param roots: ``[lading] input_roots``: folders, and beginnings of addresses; none: everywhere
    """
    if (path := normal_path(address)) is not None:
        return _beyond(address, path, roots)
    if (scheme := scheme_of(address)) is None or "::" in address:
        why = "is an address within another one" if scheme is not None else "has no scheme"
        return f"{shortened(address)} is not staged, for it {why}; valid: absolute paths, {_valid(schemes)}"
    if scheme not in schemes:
        return (
            f"{shortened(address)} is not staged, for the site takes no files from {scheme}://; valid: absolute paths, "
            f"{_valid(schemes)}; stage_schemes of the site says which"
        )
    return _beyond(address, f"{scheme}://{address.partition('://')[2]}", roots)


def _beyond(address: str, where: str, roots: Sequence[str]) -> str | None:
    """Why a file is not below one of the roots; None: it is, or there are none."""
    if not roots or any(is_below(where, root) for root in roots):
        return None
    return (
        f"{shortened(address)} is not below [lading] input_roots, from which files are staged ({', '.join(roots)}); "
        "valid: a file below one of them"
    )


def is_below(where: str, root: str) -> bool:
    """Whether a path or an address is a root, or below it; one with dots for folders is below none."""
    scheme, separator, rest = root.partition("://")
    root = f"{one_name(scheme)}://{rest}" if separator else posixpath.normpath(root)
    if any(part in (".", "..") for part in where.split("/")):
        return False
    return where == root or where.startswith(f"{root.rstrip('/')}/")


def _valid(schemes: Collection[str]) -> str:
    return ", ".join(f"{scheme}://" for scheme in sorted(schemes)) or "no addresses"
