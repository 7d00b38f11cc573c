"""How the end of a job is judged that an agent has run. Only the time of an end that nobody noted is taken here.

Its supervisor says so in an exit file. Where it could leave none, its exit status says what is known, and where that
went with an agent before this one, only that the job is gone.
"""

from __future__ import annotations

import time
from typing import Any

from lading.executors.agent import supervisor
from lading.executors.agent.job_folder import EndCause, ExitFile, as_written
from lading.hooks.spool.events import of_sentinel
from lading.scheduling.reasons import because


def judge(
    left: ExitFile | None, told: EndCause | None, exit_status: int | None, peak_memory: int, *, was_rebooted: bool
) -> dict[str, Any]:
    """The event of a job's end, without when it began.

    :param left: by its supervisor; None: it is gone without
    :param told: why the agent has ended it; None: it has not
    :param exit_status: of its supervisor; None: nobody has heard of it
    :param peak_memory: the most that the agent has measured, MiB
    :param was_rebooted: whether the machine was started anew since the job began
    """
    file = as_written(left or _without_file(exit_status, was_rebooted=was_rebooted))
    end = of_sentinel(file, as_written(told) if told else None)
    end["peak_memory"] = max(peak_memory or file["touched_memory"], file["peak_memory"] or 0) or None
    return end


def _without_file(status: int | None, *, was_rebooted: bool) -> ExitFile:
    """What a supervisor would have left that has left nothing but its exit status."""
    if was_rebooted:
        cause, reason = "node_failure", because("machine_rebooted")
    elif status == supervisor.SUCCEEDED:
        return ExitFile(None, None, time.time(), None, None)
    elif status == supervisor.FAILED:
        cause, reason = "error", because("details_lost")
    elif status is None:
        cause, reason = "lost", because("supervisor_gone")
    elif status < 0:
        cause, reason = "lost", because("supervisor_killed", signal=-status)
    else:
        cause, reason = "lost", because("supervisor_exited", exit_code=status)
    return ExitFile(None, reason, time.time(), None, None, cause=cause)
