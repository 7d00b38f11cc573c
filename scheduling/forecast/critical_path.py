"""The order of jobs of one priority where no machines are launched: by the longest remaining path of their run. Pure.

This is list scheduling by critical path (Hu, "Parallel sequencing and assembly line problems", Operations Research 9,
1961; the upward rank of HEFT). A job that has waited for too long goes first, so that later runs cannot starve it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lading.scheduling.forecast.coming import ComingRun, run_steps
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.starts.queueing import LONGEST_REST, MORE_URGENT

# The shortest time that counts as the longest remaining path, seconds: jobs that have waited for ``MORE_URGENT`` times
# that path go first.
LEAST_PATIENCE = 60.0
# No site has this name, so that every job of a run only takes time.
NO_SITE = ""


def rests(run: ComingRun) -> dict[str, float]:
    """The longest path from the start of each waiting job to the end of its run, in seconds, by token.

    :raises CycleError: tasks of the run wait for each other
    """
    waiting = {
        job.name: job.token
        for task in run.tasks.values()
        for job in task.jobs
        if job.token is not None and job.begun is None
    }
    if not waiting:
        return {}
    # Running jobs can be ignored: they come before the waiting jobs, or next to them.
    longest = Forecast(run_steps(run, NO_SITE)).rests(run.began)
    return {token: longest[name] for name, token in waiting.items()}


def in_turn(known: Mapping[str, float], queued_at: Mapping[str, float], now: float) -> dict[str, float]:
    """The remaining paths that determine the order; jobs that have waited too long get
    :data:`~lading.scheduling.starts.queueing.LONGEST_REST`.

    :param known: the remaining path of each job, seconds; a missing job has nothing behind it
    :param queued_at: when each was queued, epoch seconds
    :param now: epoch seconds
    """
    patience = MORE_URGENT * max(LEAST_PATIENCE, max(known.values(), default=0.0))
    return {token: LONGEST_REST if now - at >= patience else known.get(token, 0.0) for token, at in queued_at.items()}
