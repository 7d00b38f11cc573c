"""Debian's Node.js, in which the page's own modules are tested."""

from __future__ import annotations

import shutil

from tests.services import debian


def node() -> str:
    """The program; its Debian package is installed where it is missing.

    :raises debian.MissingPackagesError: that is not possible
    """
    if not shutil.which("node"):
        debian.install("nodejs")
    found = shutil.which("node")
    if found is None:
        raise debian.MissingPackagesError("nodejs is installed, but there is no program node on the path")
    return found
