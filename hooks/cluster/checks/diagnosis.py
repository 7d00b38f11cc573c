"""Explain why the trial job of ``airflow lading check`` failed or did not end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lading.hooks.cluster.checks.early_request import MARK
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.cluster.jobs.tracker import TrackedBatchJob
from lading.scheduling.text.units import format_time


@dataclass(frozen=True, slots=True)
class TrialSighting:
    """What the login node sees of a batch job of a trial.

    :param id: native ID; None: the batch system has not accepted it
    :param output: what it has printed into ``work_dir``; None: its output file does not exist
    """

    job: TrackedBatchJob
    id: str | None
    output: str | None


def explain(config: ClusterConfig, seen: Sequence[TrialSighting], message: str | None, timeout: float) -> str:
    """Return why the trial jobs failed or did not end.

    :param message: how one of them failed; None: the timeout is over
    :param timeout: seconds
    """
    for sighting in seen:
        if (no_answer := (sighting.output or "").partition(MARK)[2]) != "":
            return f"{_name(sighting)}: {no_answer.strip()[-1000:]}"
        if _has_ended(sighting) and _ran_silently(sighting):
            return f"{_state(sighting)}, and none of its output has arrived at the login node: {_shared(config)}"
    described = "; ".join(_state(each, message or "") for each in seen) or "the batch system has not accepted it"
    if message is not None:
        return f"{message} ({described})"
    reported = f"the trial job did not end within {format_time(int(timeout))}: {described}"
    if any(map(_ran_silently, seen)):
        return f"{reported}; none of its output has arrived at the login node: {_shared(config)}"
    return f"{reported}; give more time: --timeout {max(600, 2 * int(timeout))}"


def _shared(config: ClusterConfig) -> str:
    return (
        f"its node does not share {config.work_dir} with the login node, or is not allowed to use it; give a folder on "
        'a file system of both: work_dir = "/shared/..."'
    )


def _name(each: TrialSighting) -> str:
    where = f" on {each.job.node}" if each.job.node else ""
    return f"batch job {each.id}{where}" if each.id else "a batch job without an ID"


def _has_ended(each: TrialSighting) -> bool:
    return each.job.native is not None and each.job.native.state == "ended"


def _ran_silently(each: TrialSighting) -> bool:
    """Whether it ran, none of its output has arrived, and the batch system reports no other cause."""
    job, native = each.job, each.job.native
    if native is None or native.state == "pending" or each.output is not None:
        return False
    ran = native.state == "running" or job.shown.ran or job.node or native.exit_code is not None
    return bool(ran) and native.cause in (None, "error")


def _state(each: TrialSighting, known: str = "") -> str:
    """Describe its state, with the end of its output unless ``known`` contains that."""
    native = each.job.native
    if native is None:
        state = "is unknown to the batch system" if each.job.gone_since else "has not been polled yet"
    else:
        state = {"pending": "waits in its queue", "running": "is running", "ended": "has ended"}[native.state]
        state += f" with exit code {native.exit_code}" if native.exit_code is not None else ""
        state += f" ({native.reason})" if native.reason else ""
    said = (each.output or "").strip()
    return f"{_name(each)} {state}" + (f", its last output: {said[-1000:]}" if said not in known else "")
