"""The event that tells the controller how a job of a cluster has ended, in words. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lading.hooks.batch.outcome import Evidence, Outcome, Sentinel, decide
from lading.hooks.batch.system import NativeJob

# What a job has said of its end is believed when the batch system has not said more for so long, seconds.
SECONDS_FOR_A_CAUSE = 30.0
WORDS = {
    "out_of_memory": "the batch system has ended the job: it used more memory than it had asked for",
    "time_limit": "the batch system has ended the job: it ran for longer than it had asked for",
    "preempted": "the batch system has ended the job to make room for another",
    "node_failure": "the node on which the job ran has failed",
    "cancelled": "the batch job was cancelled, and not by Lading",
    "error": "the batch job failed",
}


def patience(native: NativeJob | None, own: Mapping[str, Any] | None, shortest: float) -> float:
    """Seconds for which more is waited for when a job of a task is known to have ended.

    :param native: what the batch system or its accounting says; None: nothing
    :param shortest: seconds between two looks at the cluster
    """
    said = sentinel(own)
    if said is not None and said.is_certain:
        return 0.0
    return shortest if native is not None else SECONDS_FOR_A_CAUSE


def sentinel(own: Mapping[str, Any] | None) -> Sentinel | None:
    """What a job has said of its end."""
    return None if own is None else Sentinel(cause=own["cause"], exit_code=own["exit_code"])


def finished(
    token: str,
    outcome: Outcome,
    own: Mapping[str, Any] | None = None,
    output: str = "",
    *,
    started: bool = True,
    cancelled: bool = False,
) -> dict[str, Any]:
    """The event.

    :param own: what the job itself has said: its event, or one made of its sentinel; None: nothing
    :param output: the last words of the batch job
    :param started: whether its task was started, as far as anybody knows
    :param cancelled: whether it was to be cancelled
    :returns: with ``failed`` where a cancellation was nobody's wish in Airflow
    """
    event: dict[str, Any] = {
        "event": "finished",
        "token": token,
        "at": time.time(),
        "peak_memory": None,
        "cpu_seconds": None,
        "message": None,
        **(own or {}),
        "cause": outcome.cause,
        "exit_code": outcome.exit_code,
    }
    if outcome.cause is None or (own is not None and own["cause"] == outcome.cause):
        return event
    event["message"] = _message(outcome, own, started=started, cancelled=cancelled)
    if outcome.cause not in ("error", "lost") and not (outcome.cause == "cancelled" and cancelled):
        event["failed"] = True
    if own is None and output.strip():
        event["message"] += f"; its last words: {output.strip()}"
    return event


def judged(
    token: str, facts: Evidence, own: Mapping[str, Any] | None, output: str = "", *, started: bool = True
) -> dict[str, Any] | None:
    """The event of a job that has gone; None: it is not known yet how it has ended.

    :param facts: all but the sentinel, which is ``own``
    :param output: as in :func:`finished`
    """
    outcome = decide(replace(facts, sentinel=sentinel(own)))
    if outcome is None:
        return None
    return finished(token, outcome, own, output, started=started, cancelled=facts.cancelled)


def of_own(token: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The event of a job whose own word is all that there is, or that somebody else has spoken for it.

    :param own: its cause, exit code and message, and whatever else it has said
    """
    cause = "lost" if own["cause"] == "terminated" else own["cause"]
    return finished(token, Outcome(cause=cause, exit_code=own["exit_code"], by="job"), own)


def for_it(token: str, cause: str, words: str) -> dict[str, Any]:
    """The event of a job that has not begun and never will.

    :param words: why, for people
    """
    return of_own(token, {"cause": cause, "message": words, "exit_code": None})


def _message(outcome: Outcome, own: Mapping[str, Any] | None, *, started: bool, cancelled: bool) -> str:
    when = "its task" if started else "before its task started"
    code = "" if outcome.exit_code is None else f" with exit code {outcome.exit_code}"
    if outcome.cause == "cancelled" and cancelled:
        words = "the batch job was cancelled"
    elif outcome.cause in WORDS and outcome.cause != "error":
        words = WORDS[outcome.cause]
    elif own is not None and own["message"]:
        words = str(own["message"])
    elif own is not None:
        words = f"the batch job ended{code}, although its task has succeeded"
    elif outcome.by == "nobody":
        words = "the batch system does not know the job any more, and the job has not said how it ended"
    else:
        words = f"the batch job ended{code} " + (f"without a word of {when}" if started else when)
    return f"{words} ({outcome.reason})" if outcome.reason else words
