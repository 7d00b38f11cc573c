"""What a task has returned, and its outlets, as they pass its supervisor on their way to Airflow's API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.execution_time.comms import SetXCom, SucceedTask

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
