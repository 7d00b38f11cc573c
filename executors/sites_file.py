"""The sites file as a controller has read it, and whether it says something else by now."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lading.hooks import text_file
from lading.scheduling import toml


def edition(path: Path | None) -> str:
    """What identifies what a sites file says; its comments and blanks do not count.

    :param path: None: there is no file
    :raises ValueError: it cannot be read, or is no TOML
    """
    document = toml.parse(text_file.read(path)) if path else {}
    return hashlib.sha256(json.dumps(document, default=str).encode()).hexdigest()


def edition_now(path: Path | None) -> str | None:
    """The same; None where it cannot be told."""
    try:
        return edition(path)
    except ValueError:
        return None


def difference(read: str | None, path: Path | None) -> str | None:
    """In what the sites file differs from the one that a controller has read, in words; None: in nothing.

    :param read: the edition that it has read; None: that is not known
    """
    if read is None:
        return None
    try:
        now = edition(path)
    except ValueError as error:
        return f"{path} cannot be read any more: {error}"
    return None if now == read else f"{path or '[lading] sites_file'} says something else by now"
