"""Scratch space: what is left for jobs on a disk that others fill as well."""

from __future__ import annotations

import shutil
from pathlib import Path

MIB = 2**20


class Scratch:
    """The file system of a folder.

    What a job was promised is free until the job writes it, so what is free now does not tell what may be promised.
    It does while nothing is promised; that is remembered, less what is promised since then.

    :param folder: any folder in it
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole = 0

    def look(self, promised: int) -> int:
        """Measure what may be promised to further jobs, in MiB.

        :param promised: MiB that running jobs have been promised, used by now or not
        """
        free = shutil.disk_usage(self.folder).free // MIB
        self.whole = max(self.whole, free) if promised else free
        return max(min(self.whole - promised, free), 0)
