"""Names of files: those that are made of others' names, and paths in one way of writing."""

from __future__ import annotations

import hashlib
import posixpath
import re
from urllib.parse import unquote

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


def normal(address: str) -> str | None:
    """A file's path on the machine that has it, the same however it is written; None: no machine has it as its own."""
    if address[:7].lower() == "file://":
        # Not urlsplit, which refuses some hosts and strips what a path may have.
        path = re.split("[?#]", address[7:])[0]
        address = unquote(path[path.find("/") :] if "/" in path else "")
    return posixpath.normpath(address) if address.startswith("/") else None
