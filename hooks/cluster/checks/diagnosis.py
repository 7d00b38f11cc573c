"""What is said of the trial job of ``airflow lading check`` when it has failed or does not end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lading.hooks.cluster.checks.early_request import MARK
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.tracker import TrackedBatchJob
from lading.scheduling.text.units import format_time

MOST_OUTPUT = 1000


@dataclass(frozen=True, slots=True)
class TrialSighting:
    """A batch job of a trial as this side sees it.

    :param id: its native id; None: the batch system has not accepted it
    :param output: what it has printed into ``work_dir``; None: no file of it is there
    """

    job: TrackedBatchJob
    id: str | None
    output: str | None


def explain(config: ClusterConfig, seen: Sequence[TrialSighting], message: str | None, timeout: float) -> str:
    """Why the trial jobs have failed, or have not ended.

    :param message: how one has failed; None: the time is over
    :param timeout: seconds that they had
    """
    for sighting in seen:
        if (no_answer := (sighting.output or "").partition(MARK)[2]) != "":
            return f"{_name(sighting)}: {no_answer.strip()[-MOST_OUTPUT:]}"
        if _has_ended(sighting) and _ran_silently(sighting):
            return f"{_state(sighting)}, and nothing that it writes has come to the login node: {_shared(config)}"
    described = "; ".join(_state(each, message or "") for each in seen) or "the batch system has not accepted it"
    if message is not None:
        return f"{message} ({described})"
    reported = f"the trial job did not end within {format_time(int(timeout))}: {described}"
    if any(map(_ran_silently, seen)):
        return f"{reported}; nothing that it writes has come to the login node: {_shared(config)}"
    return f"{reported}; give more time: --timeout {max(600, 2 * int(timeout))}"


def _shared(config: ClusterConfig) -> str:
    return (
        f"its node does not share {config.work_dir} with the login node, or may not use it; give a folder on a file "
        'system of both: work_dir = "/shared/..."'
    )


def _name(each: TrialSighting) -> str:
    where = f" on {each.job.node}" if each.job.node else ""
    return f"batch job {each.id}{where}" if each.id else "a batch job without an id"


def _has_ended(each: TrialSighting) -> bool:
    return each.job.native is not None and each.job.native.state == "ended"


def _ran_silently(each: TrialSighting) -> bool:
    """Whether it has run, nothing that it wrote is here, and the batch system names no other cause."""
    job, native = each.job, each.job.native
    if native is None or native.state == "pending" or each.output is not None:
        return False
    ran = native.state == "running" or job.shown.ran or job.node or native.exit_code is not None
    return bool(ran) and native.cause in (None, "error")


def _state(each: TrialSighting, known: str = "") -> str:
    """Its state, with the end of its output unless that is known already."""
    native = each.job.native
    if native is None:
        state = "is not known to the batch system, or no longer" if each.job.gone_since else "was not looked at yet"
    else:
        state = {"pending": "waits in its queue", "running": "is running", "ended": "has ended"}[native.state]
        state += f" with exit code {native.exit_code}" if native.exit_code is not None else ""
        state += f" ({native.reason})" if native.reason else ""
    said = (each.output or "").strip()
    return f"{_name(each)} {state}" + (f", its last output: {said[-MOST_OUTPUT:]}" if said not in known else "")
