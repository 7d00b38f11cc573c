"""A depot: the folder at a site in which files are kept for its jobs, and the way there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport


@dataclass(frozen=True, slots=True)
class StagingArea:
    """Where files are kept for jobs.

    :param name: unlike that of any other depot of the site; locations that share the folder have one depot
    :param transport: the way there, by which other files of the same machines are read as well
    :param root: Lading's own folder there
    """

    name: str
    transport: Transport
    root: str

    @property
    def folder(self) -> str:
        """Made where it is missing."""
        return f"{self.root}/inputs"
