"""Jobs that have lost too many spot machines: they go to machines on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from lading.executors.sizing.sizing import Question, SizingNote
from lading.executors.store import Change, State
from lading.scheduling.machine_words import ON_DEMAND

EVENT = "lading leaves spot machines"


def heeded(question: Question, change: Change, limits: Mapping[str, int]) -> tuple[Change, list[SizingNote]]:
    """What was found out about a job, and what follows of its preemptions.

    A job whose author asked for spot stays on spot.

    :param change: what it asks for
    :param limits: after how many preemptions a job goes on demand, by site
    """
    losses = Counter(each.site for each in question.tries if each.cause == "preempted")
    beyond = [site for site, most in limits.items() if losses[site] >= most]
    if not beyond or question.job.hints.get("capacity_type") is not None or change.values.get("state") == State.FAILED:
        return change, []
    words = f"goes to a machine on demand: {losses[beyond[0]]} of its tries were preempted at site {beyond[0]!r}"
    return replace(change, values={**change.values, "capacity_type": ON_DEMAND}), [
        SizingNote(question.job, EVENT, words)
    ]
