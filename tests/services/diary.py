"""The folder in which the Dags of the tests note what they did, and read what a test leaves for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import wait_until


@dataclass(frozen=True, slots=True)
class Diary:
    """:param folder: holds a file per page"""

    folder: Path

    def lines(self, page: str) -> list[str]:
        """What has been noted; nothing where there is no such page."""
        try:
            return (self.folder / page).read_text().splitlines()
        except FileNotFoundError:
            return []

    def write(self, page: str) -> None:
        """Let a task go on that waits for this page."""
        (self.folder / page).touch()

    def wait_for(self, page: str, lines: int = 1, timeout: float = 60) -> list[str]:
        """Wait until so many lines have been noted, and return them.

        :raises AssertionError: there were fewer after ``timeout`` seconds
        """
        assert wait_until(lambda: len(self.lines(page)) >= lines, timeout), f"{page}: {self.lines(page)}"
        return self.lines(page)
