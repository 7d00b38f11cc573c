"""What machines really have for jobs: seen at a boot, it replaces the specification of the type from then on.

A kernel keeps memory for itself, how much depends on the type and the image. Where a launch counted on more than there
is, the job that it was for would never start there, and one machine after the other would be launched.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from lading.hooks.files.atomic import write_atomically
from lading.hooks.files.regular_file import NotReadable, read_regular
from lading.scheduling.catalogue import Catalogue
from lading.scheduling.resources import Resources
from lading.scheduling.text.tables import MOST

MOST_BYTES = 2**22
Amount = Annotated[float, Field(strict=True, ge=0, le=MOST, allow_inf_nan=False)]
Mib = Annotated[int, Field(strict=True, ge=0, le=MOST)]
# Type, image, and what resources have.
ROW = TypeAdapter(tuple[str, str, Amount, Mib, Mib, Amount])


class Measured:
    """What jobs have of each type with each image, in a file. Several threads may use it.

    :param file: outlives this process
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._found = load(file)

    def note(self, instance_type: str, image: str, capacity: Resources) -> None:
        """Keep what a machine has that has booted.

        :param capacity: what jobs can use of it
        :raises OSError: it cannot be written; it counts all the same
        """
        key = instance_type, image
        with self._lock:
            if self._found.get(key) == capacity:
                return
            self._found[key] = capacity
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            rows = [[*key, *astuple(each)] for key, each in sorted(self._found.items())]
            write_atomically(self.file, json.dumps(rows))

    def of(self, instance_type: str, image: str) -> Resources | None:
        """What jobs have; None: none has booted yet."""
        with self._lock:
            return self._found.get((instance_type, image))

    def applied(self, catalogue: Catalogue, images: Mapping[str, str]) -> Catalogue:
        """The catalogue with what was measured in the place of what is specified.

        :param images: the image of each architecture
        """
        types = {}
        for name, kind in catalogue.types.items():
            found = self.of(name, images.get(kind.arch, ""))
            types[name] = kind if found is None else replace(kind, capacity=found)
        return Catalogue(types)


def load(file: Path) -> dict[tuple[str, str], Resources]:
    """What was kept; a row that makes no sense is left out."""
    try:
        rows = json.loads(read_regular(file, MOST_BYTES))
    except (OSError, NotReadable, ValueError, RecursionError):
        return {}
    found = {}
    for row in rows if isinstance(rows, list) else ():
        with suppress(ValueError):
            name, image, cpus, memory, disk, gpus = ROW.validate_python(row)
            found[name, image] = Resources(cpus, memory, disk, gpus)
    return found
