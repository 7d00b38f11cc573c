"""How a job of a cluster has ended, from all that is known of it. Pure.

Who is trusted, in this order: the batch system's state and its accounting, which know who was killed and why; the
sentinel that the job's supervisor has left; then nothing is known, and missing is never success.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lading.hooks.batch import NativeJob

# What a job has said of its end is believed when the batch system has not said more for so long, seconds.
SECONDS_FOR_A_CAUSE = 30.0
# Causes that a job's own supervisor cannot know for sure: something has killed it, or its task.
UNCERTAIN = frozenset({"lost", "terminated"})
WORDS = {
    "out_of_memory": "the batch system has ended the job: it used more memory than it had asked for",
    "time_limit": "the batch system has ended the job: it ran for longer than it had asked for",
    "preempted": "the batch system has ended the job to make room for another",
    "node_failure": "the node on which the job ran has failed",
    "cancelled": "the batch job was cancelled, and not by Lading",
    "error": "the batch job failed",
}


def is_certain(event: Mapping[str, Any]) -> bool:
    """Whether a job's own account of its end needs no word from the batch system.

    A success has been told to Airflow by the task itself; so has a failure with an exit code. What we have ended was
    ended for our cause. What a signal of somebody else has ended may have been ended by the batch system for a cause.
    """
    if event["cause"] == "error":
        return (event["exit_code"] or 0) >= 0
    return event["cause"] not in UNCERTAIN


def finished(
    token: str,
    native: NativeJob | None,
    own: Mapping[str, Any] | None,
    output: str = "",
    *,
    at: float | None = None,
    started: bool = True,
) -> dict[str, Any]:
    """The event that tells the end of a job.

    :param native: what the batch system or its accounting says; None: it knows nothing
    :param own: what the job itself has left: its event, or one made of its sentinel; None: nothing
    :param output: the last words of the batch job
    :param started: whether its task was started, as far as anybody knows
    :returns: with ``failed`` where a cancellation was nobody's wish in Airflow
    """
    event: dict[str, Any] = {
        "event": "finished",
        "token": token,
        "at": at if at is not None else time.time(),
        "exit_code": None,
        "cause": None,
        "message": None,
        "peak_memory": None,
        "cpu_seconds": None,
        **(own or {}),
    }
    if own is not None and own["cause"] not in {"error", *UNCERTAIN}:
        return event
    cause = native.cause if native else None
    if cause is not None and cause != "error":
        event |= {"cause": cause, "message": _with(WORDS[cause], native.reason if native else None), "failed": True}
    elif own is not None and own["cause"] == "error":
        return event
    elif native is None:
        words = "the batch system does not know the job any more, and the job has not said how it ended"
        event |= {"cause": "lost", "message": words if own is None else own["message"]}
    elif own is not None:
        event |= {"cause": "error", "message": _with(str(own["message"]), native.reason)}
    else:
        code = "" if native.exit_code is None else f" with exit code {native.exit_code}"
        when = "its task" if started else "before its task started"
        words = f"the batch job ended{code} " + (f"without a word of {when}" if started else when)
        event |= {"cause": "error", "message": _with(words, native.reason), "exit_code": native.exit_code}
    if own is None and output.strip():
        event["message"] = f"{event['message']}; its last words: {output.strip()}"
    return event


def is_vague(native: NativeJob) -> bool:
    """Whether the accounting may know more."""
    return native.cause in (None, "error")


def is_decided(
    native: NativeJob | None, own: Mapping[str, Any] | None, gone: float, *, shortest: float, deadline: float
) -> bool:
    """Whether enough is known, or has been waited for, to tell the end of a job.

    :param gone: seconds since it was found to be gone
    :param shortest: seconds between two looks at the cluster
    :param deadline: seconds for which nothing may be known of a job
    """
    if own is not None and is_certain(own):
        return True
    if native is not None and native.state == "ended" and not is_vague(native):
        return True
    failed = native is not None and (native.cause is not None or bool(native.exit_code))
    if failed or (native is not None and native.exit_code is not None and own is not None):
        return gone > shortest
    # That of a file server's other machines is seen some seconds later here.
    ended = own is not None or (native is not None and native.state == "ended")
    return gone > (SECONDS_FOR_A_CAUSE if ended else deadline)


def of_sentinel(sentinel: Mapping[str, Any], cause: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a sentinel says, as an event would have.

    :param cause: why the job was ended, if it was
    :returns: with ``started_at`` None where Airflow has refused to start the task: then nothing has failed
    """
    error = sentinel["error"]
    told = {"cause": sentinel.get("cause", "error") if error is not None else None, "message": error}
    if cause is not None:
        told = {"cause": cause["cause"], "message": cause["message"]}
    return {
        **told,
        "at": sentinel["ended_at"],
        "exit_code": sentinel["exit_code"],
        "peak_memory": sentinel["peak_memory"],
        "cpu_seconds": sentinel["cpu_seconds"],
        **({"started_at": None} if sentinel.get("cause") == "cancelled" else {}),
    }


def _with(words: str, reason: str | None) -> str:
    return f"{words} ({reason})" if reason else words
