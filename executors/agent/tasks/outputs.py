"""What a task has returned, and the files that it leaves on its machine, measured when it has succeeded.

Its result and its outlets name the files, and are noted as they pass its supervisor on their way to Airflow's API
server. From them it follows where the jobs that read the files go best. What cannot be measured is left out: it fails
no job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.execution_time.comms import SetXCom, SucceedTask

from lading.executors.sizing.file_sizes import FileSizes, named_files
from lading.executors.sizing.xcom_json import plain
from lading.hooks.files.addresses import normal_path
from lading.scheduling.hints.expressions import ExpressionError

log = logging.getLogger(__name__)

# Of more files the largest are reported.
MOST_FILES = 100
# What is looked at so far counts when the time is up, for a file system may hang, seconds.
PATIENCE = 5.0


def measured(values: Iterable[Any]) -> dict[str, int]:
    """The files in some values by their paths, each with its bytes, the largest first.

    :param values: as Airflow keeps them
    """
    paths = dict.fromkeys(path for value in values for path in _paths(value))
    sizes_by_path: dict[str, int] = {}

    def measure() -> None:
        sizes = FileSizes()
        for path in paths:
            try:
                sizes_by_path[path] = sizes.total_bytes(path)
            except ExpressionError as error:
                log.info("%s is not remembered as an output: %s", path, error)

    if paths:
        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        thread.join(PATIENCE)
    return dict(sorted(sizes_by_path.copy().items(), key=lambda each: (-each[1], each[0]))[:MOST_FILES])


def _paths(value: Any) -> list[str]:
    try:
        found = [path for address, _ in named_files(plain(value)) if (path := normal_path(address)) is not None]
        return [path for path in found if path.encode()]
    except (ExpressionError, RecursionError, UnicodeEncodeError):
        return []


if TYPE_CHECKING:
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess as _Supervisor
else:
    _Supervisor = object  # what it is added to

# What Airflow calls it.
RESULT = "return_value"


class NotesResults(_Supervisor):
    """Added to Airflow's supervisor of a task."""

    __slots__ = ()

    results: ClassVar[list[Any]] = []
    """Of the one task that there is at a time."""

    def _handle_request(self, msg: Any, log: Any, req_id: int) -> None:
        super()._handle_request(msg, log, req_id)
        if isinstance(msg, SetXCom) and msg.key == RESULT:
            NotesResults.results.append(msg.value)
        elif isinstance(msg, SucceedTask):
            NotesResults.results.append([each.uri for each in msg.task_outlets or ()])
