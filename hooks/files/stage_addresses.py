"""From which addresses files are staged: those of object stores that a site lists, never this machine's own files.

What a Dag's author writes as an address is read by the controller, with its rights and from its place in the network.
So a scheme that the site does not list is refused when the Dag is parsed, and again before anything is opened.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence

from lading.hooks.files.file_names import normal
from lading.scheduling.text.printable import shortened

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


def refusal(address: str, schemes: Collection[str], roots: Sequence[str] = ()) -> str | None:
    """Why a file is not staged; None: it may be.

    :param schemes: from which the site takes files, see :func:`checked_scheme`
    :param roots: ``[lading] input_roots``: folders, and beginnings of addresses; none: everywhere
    """
    if (path := normal(address)) is not None:
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
