"""The files that a successful task leaves on its machine, with their sizes.

The files are named by the task's result and outlets, which are noted when they pass its supervisor on their way to
Airflow's API server. Jobs that read the files can then be placed near them. A file that cannot be measured is left out
and fails no job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.execution_time.comms import SetXCom, SucceedTask

from lading.executors.sizing.file_sizes import FileSizes, named_files
from lading.hooks.files.addresses import normal_path
from lading.hooks.files.xcom_json import plain
from lading.scheduling.hints.expressions import ExpressionError

log = logging.getLogger(__name__)


def measured(values: Iterable[Any], most: int = 100) -> dict[str, int]:
    """Return the sizes in bytes of the files that values name, by path, the largest first.

    :param values: as Airflow stores them
    :param most: files that are reported
    """
    paths = dict.fromkeys(path for value in values for path in _paths(value))
    sizes_by_path: dict[str, int] = {}

    def measure() -> None:
        sizes = FileSizes()
        for path in paths:
            try:
                sizes_by_path[path] = sizes.total_bytes(path)
            except ExpressionError as error:
                log.info("%s is not recorded as an output: %s", path, error)

    if paths:
        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        # A file system can hang; files measured until then are reported.
        thread.join(5.0)
    return dict(sorted(sizes_by_path.copy().items(), key=lambda each: (-each[1], each[0]))[:most])


def _paths(value: Any) -> list[str]:
    try:
        found = [path for address, _ in named_files(plain(value)) if (path := normal_path(address)) is not None]
        return [path for path in found if path.encode()]
    except (ExpressionError, RecursionError, UnicodeEncodeError):
        return []


if TYPE_CHECKING:
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess as _Supervisor
else:
    _Supervisor = object  # the class that the mix-in is added to

# Airflow's key of a task's result.
RESULT = "return_value"


class NotesResults(_Supervisor):
    """Mix-in for Airflow's supervisor of a task: it notes the task's result and outlets."""

    __slots__ = ()

    results: ClassVar[list[Any]] = []
    """Results and outlets of the one task that runs at a time."""

    def _handle_request(self, msg: Any, log: Any, req_id: int) -> None:
        super()._handle_request(msg, log, req_id)
        if isinstance(msg, SetXCom) and msg.key == RESULT:
            NotesResults.results.append(msg.value)
        elif isinstance(msg, SucceedTask):
            NotesResults.results.append([each.uri for each in msg.task_outlets or ()])
