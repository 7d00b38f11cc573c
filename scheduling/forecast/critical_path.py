"""By what jobs of one priority go where nothing is bought: the longest rest of their run. Pure.

The order is that of list scheduling by critical path (Hu, "Parallel sequencing and assembly line problems", Operations
Research 9, 1961; the upward rank of HEFT). A job that has waited for too long goes before it, so that none is starved
by runs that come later.
"""

from __future__ import annotations

from collections.abc import Mapping

from lading.scheduling.forecast.coming import ComingRun, run_steps
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.queueing import LONGEST_REST, MORE_URGENT

# A job that has waited for so many times the longest rest of all, and for so many seconds, goes before these.
LEAST_PATIENCE = 60.0
# No site is called so: what every job of a run takes is time alone.
NO_SITE = ""


def rests(run: ComingRun) -> dict[str, float]:
    """The seconds of the longest way from the start of each waiting job to the end of its run, by its token.

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
    # Of what runs nothing depends on now: it is before the jobs that wait, or beside them.
    longest = Forecast(run_steps(run, NO_SITE)).rests(run.began)
    return {token: longest[name] for name, token in waiting.items()}


def in_turn(known: Mapping[str, float], queued_at: Mapping[str, float], now: float) -> dict[str, float]:
    """The rests by which jobs go: :data:`~lading.scheduling.queueing.LONGEST_REST` of those that have waited too long.

    :param known: the rest of each, as far as it is known, seconds; of the others nothing comes behind them
    :param queued_at: when each was queued, epoch seconds
    :param now: epoch seconds
    """
    patience = MORE_URGENT * max(LEAST_PATIENCE, max(known.values(), default=0.0))
    return {token: LONGEST_REST if now - at >= patience else known.get(token, 0.0) for token, at in queued_at.items()}
