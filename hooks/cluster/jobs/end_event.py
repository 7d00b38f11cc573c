"""The event that reports how a job of a cluster ended, and why. Pure.

How incomplete evidence is interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| a cause without a sentence of its own | the job's own report, else its exit code | final |
| nothing but that the job is gone | ``lost`` | final |
| ``terminated``, and no report of the batch system | ``lost`` | final |
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lading.hooks.batch.outcome import REASONS, Evidence, Outcome, Sentinel, decide
from lading.hooks.batch.system import NativeJob
from lading.scheduling.model.reasons import Reason, because

# Seconds until a job's own report of how it ended is final if the batch system reports nothing else.
SECONDS_FOR_A_CAUSE = 30.0

# Printed by Airflow on every start, so it says nothing about how the job ended.
_NOISE = re.compile(r"^.*Reading the config from .*$\n?", re.MULTILINE)


def patience(native: NativeJob | None, own: Mapping[str, Any] | None, shortest: float) -> float:
    """Return for how many seconds to wait for more evidence once a job of a task is known to have ended.

    :param native: the report of the batch system or its accounting; None: there is none
    :param shortest: seconds between two polls of the cluster
    """
    said = sentinel(own)
    if said is not None and said.is_certain:
        return 0.0
    return shortest if native is not None else SECONDS_FOR_A_CAUSE


def sentinel(own: Mapping[str, Any] | None) -> Sentinel | None:
    return None if own is None else Sentinel(cause=own["cause"], exit_code=own["exit_code"])


def finished(
    token: str,
    outcome: Outcome,
    own: Mapping[str, Any] | None = None,
    output: str = "",
    *,
    allocation: str = "",
    started: bool = True,
    cancelled: bool = False,
) -> dict[str, Any]:
    """Return the event of a job that has ended.

    :param own: the job's own report: its event, or one made from its sentinel; None: there is none
    :param output: the end of the output of the batch job
    :param allocation: in which the job ran; empty: it was a batch job of its own
    :param started: whether its task has started, as far as known
    :param cancelled: whether its cancellation was requested
    :returns: with ``failed`` if Airflow did not request the cancellation
    """
    event: dict[str, Any] = {
        "event": "finished",
        "token": token,
        "at": time.time(),
        "peak_memory": None,
        "cpu_seconds": None,
        "reason": None,
        **(own or {}),
        "cause": outcome.cause,
        "exit_code": outcome.exit_code,
    }
    if outcome.cause is None or (own is not None and own["cause"] == outcome.cause):
        return event
    reason = _reason(outcome, own, started=started, cancelled=cancelled)
    if outcome.reason:
        reason = reason.with_also(because("batch_says", text=outcome.reason))
    if outcome.cause not in ("error", "lost") and not (outcome.cause == "cancelled" and cancelled):
        event["failed"] = True
    if allocation:
        reason = reason.with_also(because("in_allocation", allocation=allocation))
    if own is None and (said := _NOISE.sub("", output).strip()):
        reason = reason.with_also(because("last_output", text=said))
    event["reason"] = reason
    return event


def judged(
    token: str,
    facts: Evidence,
    own: Mapping[str, Any] | None,
    output: str = "",
    *,
    allocation: str = "",
    started: bool = True,
) -> dict[str, Any] | None:
    """Return the event of a job that has gone; None: it is not yet decided how it ended.

    :param facts: all evidence except the sentinel, which is ``own``
    :param output: as in :func:`finished`; so is ``allocation``
    """
    outcome = decide(replace(facts, sentinel=sentinel(own)))
    if outcome is None:
        return None
    return finished(token, outcome, own, output, allocation=allocation, started=started, cancelled=facts.cancelled)


def from_report(token: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of a job from its own report alone, or from that of another process on its behalf.

    :param own: its cause, exit code and reason, and further keys of the report
    """
    cause = "lost" if own["cause"] == "terminated" else own["cause"]
    return finished(token, Outcome(cause=cause, exit_code=own["exit_code"], by="job"), own)


def not_begun(token: str, cause: str, reason: Reason) -> dict[str, Any]:
    return from_report(token, {"cause": cause, "reason": reason, "exit_code": None})


def _reason(outcome: Outcome, own: Mapping[str, Any] | None, *, started: bool, cancelled: bool) -> Reason:
    exit_code = outcome.exit_code
    if outcome.cause == "cancelled" and cancelled:
        return because("batch_cancelled")
    if outcome.cause in REASONS:
        return REASONS[outcome.cause]
    if own is not None and own["reason"] is not None:
        reason: Reason = own["reason"]
        return reason
    if own is not None:
        return because("batch_failed_after_task", exit_code=exit_code)
    if outcome.by == "none":
        return because("batch_unknown")
    return because("batch_ended" if started else "batch_ended_early", exit_code=exit_code)
