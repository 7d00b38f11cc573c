"""Names that a file system accepts, normalised paths, and the addresses from which files may be staged."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from urllib.parse import unquote

from lading.scheduling.text.printable import shortened

# Environment variable of a job: the paths of its staged inputs by their addresses, as JSON.
INPUTS_VARIABLE = "LADING_INPUTS"


def fitting(name: str, longest: int = 255) -> str:  # NAME_MAX of Linux, limits.h
    """Return the name, or its beginning and a hash if it is too long. Different names stay different.

    :param longest: bytes in UTF-8
    """
    content = name.encode(errors="surrogateescape")
    if len(content) <= longest:
        return name
    import hashlib  # imported late, because each batch job imports this module and hardly any has such a name

    digest = hashlib.sha256(content).hexdigest()[:32]
    return f"{content[: longest - len(digest) - 1].decode(errors='ignore')}-{digest}"


def fitting_path(path: str) -> str:
    """Shorten each name in a path that is too long."""
    return "/".join(map(fitting, path.split("/")))


def normal_path(address: str) -> str | None:
    """Normalise the path of a local file, so that equal files compare equal; None if the address is not local."""
    if address[:7].lower() == "file://":
        # Not urlsplit: it rejects some hosts and strips characters that a path can contain.
        path = re.split("[?#]", address[7:])[0]
        address = unquote(path[path.find("/") :] if "/" in path else "")
    return posixpath.normpath(address) if address.startswith("/") else None


# Files are staged from the object stores that a site lists, and never from the controller's own disk. The controller
# opens an address that a Dag author wrote with its own rights and from its own network. So an unlisted scheme is
# rejected when the Dag is parsed, and again before anything is opened.

# Different names of one store: s3fs.S3FileSystem, gcsfs.GCSFileSystem and adlfs.AzureBlobFileSystem each register
# several with fsspec, and so do Airflow's Amazon, Google and Azure providers (``schemes`` of each ``fs`` module).
SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
# fsspec protocols that read files of this machine.
LOCAL = frozenset(("file", "local", "git"))
# fsspec protocols that wrap another store, named in the address or in a file.
WRAPPING = frozenset(
    ("dir", "blockcache", "filecache", "simplecache", "cached", "reference", "generic", "zip", "tar", "libarchive")
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(address: str) -> str | None:
    """Return the canonical scheme of an address (RFC 3986, section 3.1), in lower case; None if it has none."""
    match = _SCHEME.match(address)
    return None if match is None else one_name(match[1])


def one_name(scheme: str) -> str:
    return SAME_STORE.get(scheme.lower(), scheme.lower())


def checked_scheme(scheme: str) -> str:
    """Return the canonical name of a scheme that files can be staged from.

    :raises ValueError: it is not a scheme, or one that reads this machine's own files
    """
    if not _SCHEME.fullmatch(f"{scheme}://"):
        raise ValueError(
            f"{shortened(scheme)} is not a scheme; valid: the beginning of an address, such as s3, gs or abfs"
        )
    if scheme.lower() in LOCAL | WRAPPING:
        raise ValueError(
            f"{shortened(scheme)} is refused, because it reads files of the controller's machine or wraps another "
            "store; valid: schemes of object stores, such as s3, gs or abfs"
        )
    return one_name(scheme)


def staging_refusal(address: str, schemes: Collection[str], roots: Sequence[str] = ()) -> str | None:
    """Explain why a file is not staged; None if it can be.

    :param schemes: the schemes that the site accepts, see :func:`checked_scheme`
    :param roots: ``[lading] input_roots``: folders and address prefixes; empty: no restriction
    """
    if (path := normal_path(address)) is not None:
        return _beyond(address, path, roots)
    if (scheme := scheme_of(address)) is None or "::" in address:
        why = "is an address within another one" if scheme is not None else "has no scheme"
        return f"{shortened(address)} is not staged because it {why}; valid: absolute paths, {_valid(schemes)}"
    if scheme not in schemes:
        return (
            f"{shortened(address)} is not staged because the site accepts no files from {scheme}://; valid: absolute "
            f"paths, {_valid(schemes)}; to accept more, add them to stage_schemes of the site"
        )
    return _beyond(address, f"{scheme}://{address.partition('://')[2]}", roots)


def _beyond(address: str, where: str, roots: Sequence[str]) -> str | None:
    """Explain that a file is below none of the roots; None if it is below one, or there are no roots."""
    if not roots or any(is_below(where, root) for root in roots):
        return None
    return (
        f"{shortened(address)} is not below [lading] input_roots ({', '.join(roots)}), so it is not staged; "
        "valid: a file below one of them"
    )


def is_below(where: str, root: str) -> bool:
    """Check whether a path or address is the root or below it; False if it contains ``.`` or ``..`` as a folder."""
    scheme, separator, rest = root.partition("://")
    root = f"{one_name(scheme)}://{rest}" if separator else posixpath.normpath(root)
    if any(part in (".", "..") for part in where.split("/")):
        return False
    return where == root or where.startswith(f"{root.rstrip('/')}/")


def _valid(schemes: Collection[str]) -> str:
    return ", ".join(f"{scheme}://" for scheme in sorted(schemes)) or "no addresses"
