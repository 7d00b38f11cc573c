"""What is in the archive of the node agent."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import IO

from lading.hooks.spool.agent_archive import AgentArchive


def sources_in(archive: Path | IO[bytes]) -> dict[str, bytes]:
    """The sources of an archive at a site, by their paths in it."""
    with zipfile.ZipFile(archive) as packed:
        return {name: packed.read(name) for name in packed.namelist() if name.endswith(".py")}


def sources_of(archive: AgentArchive) -> dict[str, bytes]:
    """The sources of an archive as it is sent, by their paths in it."""
    return sources_in(io.BytesIO(archive.content))
