"""The files that a task leaves on its machine, as its result and its outlets name them, measured when it has succeeded.

They tell the controller where the jobs that read them go best. What cannot be measured is left out: it fails nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from lading.executors.sizing.file_sizes import FileSizes, named_files
from lading.executors.sizing.xcom_json import plain
from lading.hooks.files.addresses import normal_path
from lading.scheduling.hints.expressions import ExpressionError

log = logging.getLogger(__name__)

# Of more files the largest are told.
MOST_FILES = 100
# What is looked at so far counts when the time is up, for a file system may hang, seconds.
PATIENCE = 5.0


def measured(values: Iterable[Any]) -> dict[str, int]:
    """The files in some values by their paths, each with its bytes, the largest first.

    :param values: as Airflow keeps them
    """
    paths = dict.fromkeys(path for value in values for path in _paths(value))
    found: dict[str, int] = {}

    def look() -> None:
        sizes = FileSizes()
        for path in paths:
            try:
                found[path] = sizes.of(path)
            except ExpressionError as error:
                log.info("%s is not remembered as an output: %s", path, error)

    if paths:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(PATIENCE)
    return dict(sorted(found.copy().items(), key=lambda each: (-each[1], each[0]))[:MOST_FILES])


def _paths(value: Any) -> list[str]:
    try:
        found = [path for address, _ in named_files(plain(value)) if (path := normal_path(address)) is not None]
        return [path for path in found if path.encode()]
    except (ExpressionError, RecursionError, UnicodeEncodeError):
        return []
