"""The attributes of a job, as PBS Pro and TORQUE show them, as a job.

States: PBS Professional Reference Guide, "Job States"; exit codes: "Job Exit Codes" there, and TORQUE Administrator
Guide, "Job Exit Status"; substates: job.h of OpenPBS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lading.hooks.batch.system import Cause, NativeJob, State, unknown

Codes = Mapping[int, tuple[Cause, str]]
_ID = re.compile(r"(\d+)(?:\[(\d{0,18})\])?((?:\.[\w.-]+)?)")
_STATES: dict[str, State] = {
    **dict.fromkeys("QHWT", "pending"),
    **dict.fromkeys("BRESU", "running"),
    **dict.fromkeys("FXC", "ended"),
}
_HOLDS = {"u": "the user holds it", "o": "an operator holds it", "s": "the system holds it", "p": "its password is bad"}
_TERMINATED = "91"
# An element of TORQUE's is held by "l" while as many of its array run as may.
_HOLDS |= {"l": "as many elements of its array run as may at once"}

# Exit codes below 0: PBS itself has given up. The same numbers mean other things with TORQUE.
PBSPRO: Codes = {
    -3: ("node_failure", "PBS could not run it, and was to try again"),
    -4: ("node_failure", "MoM was started anew while it ran"),
    -5: ("node_failure", "MoM was started anew while it ran"),
    -6: ("node_failure", "MoM was started anew while it ran"),
    -11: ("preempted", "it was ended to be run again"),
    -12: ("preempted", "it was checkpointed and ended"),
    -14: ("node_failure", "a sister MoM failed"),
    -16: ("node_failure", "a hook has failed, and it was to be run again"),
    -18: ("preempted", "a hook ended it to be run again"),
    -19: ("cancelled", "a hook deleted it"),
    -20: ("node_failure", "the node that led it was lost"),
    -24: ("error", "it used more cpus than it had asked for"),
    -25: ("error", "it used more cpus than it had asked for"),
    -26: ("out_of_memory", "it used more virtual memory than it had asked for"),
    -27: ("out_of_memory", "it used more memory than it had asked for"),
    -28: ("time_limit", "it used more cpu time than it had asked for"),
    -29: ("time_limit", "it ran longer than it had asked for"),
    -30: ("node_failure", "its nodes could not be joined"),
    -31: ("out_of_memory", "it used more memory in huge pages than it had asked for"),
    -32: ("node_failure", "its node did not know it any more, and it was to be run again"),
}
TORQUE: Codes = {
    -3: ("node_failure", "TORQUE could not run it, and was to try again"),
    -4: ("node_failure", "MOM was started anew while it ran"),
    -5: ("node_failure", "MOM was started anew while it ran"),
    -6: ("node_failure", "MOM was started anew while it ran"),
    -10: ("out_of_memory", "it used more memory than it had asked for"),
    -11: ("time_limit", "it ran longer than it had asked for"),
    -12: ("time_limit", "it used more cpu time than it had asked for"),
    -13: ("node_failure", "its cgroup could not be made, and TORQUE was to try again"),
    -14: ("node_failure", "its prologue has failed, and TORQUE was to try again"),
}
# Held by the server, for good: no node could start it.
_GIVEN_UP = re.compile("too many failed attempts to run", re.IGNORECASE)
# The comment of PBS Pro's scheduler about a request that no node or queue can ever meet.
_NEVER = re.compile("can never run", re.IGNORECASE)
_SIGTERM, _SIGKILL, _SIGXCPU = 15, 9, 24


def split(id: str) -> tuple[str, int | None]:
    """The id of the submission, and the index of an element: ``8[].pbs1`` and 3 for ``8[3].pbs1``.

    :raises ValueError: it is no id
    """
    match = _ID.fullmatch(id.strip())
    if match is None:
        raise ValueError(f"{id!r} is no id of a PBS job")
    number, index, server = match.groups()
    if index is None:
        return f"{number}{server}", None
    return f"{number}[]{server}", int(index) if index else None


def element(id: str, index: int) -> str:
    """The opposite of :func:`split`."""
    return id.replace("[]", f"[{index}]", 1)


def jobs(found: Iterable[tuple[str, Mapping[str, Any]]], codes: Codes) -> list[NativeJob]:
    """The jobs with these ids and attributes. What has no id of a job costs itself alone.

    An array is told by its elements; by itself where it has ended and none is there. One that lives has some, so that
    without them nothing is known of it.
    """
    every: dict[tuple[str, int | None], Mapping[str, Any]] = {}
    for id, attributes in found:
        with suppress(ValueError):
            every[split(id)] = attributes
    arrays = {id for id, index in every if index is not None}
    told = [
        _job(id, index, attributes, every.get((id, None), {}), codes)
        for (id, index), attributes in every.items()
        if index is not None or id not in arrays
    ]
    return [job for job in told if job.index is not None or "[]" not in job.id or job.state == "ended"]


def _job(
    id: str, index: int | None, attributes: Mapping[str, Any], array: Mapping[str, Any], codes: Codes
) -> NativeJob:
    """A job, or an element of an array, which is empty where the array itself is not shown."""
    word = _text(attributes, "job_state")
    state = _STATES.get(word, "running")
    common: dict[str, Any] = {
        "id": id,
        "index": index,
        "name": _text(attributes, "Job_Name") or None,
        "nodes": _text(attributes, "exec_host") or None,
    }
    comment = _text(attributes, "comment") or None
    if word not in _STATES:
        return NativeJob(**common, state=state, reason=unknown("PBS", word))
    if state == "pending":
        reason = None if index is not None and _is_of_array(comment, array) else comment
        cause: Cause | None = "error" if reason and _GIVEN_UP.search(reason) else None
        never = bool(reason and _NEVER.search(reason))
        return NativeJob(**common, state=state, cause=cause, reason=reason or _held(attributes), never=never)
    if state == "running":
        return NativeJob(**common, state=state, reason="it is suspended" if word in "SU" else None)
    cause, exit_code, reason = (
        ("cancelled", None, "it was deleted before it started")
        if index is not None and _never_ran(attributes)
        else _end(attributes, codes, array="[]" in id and index is None)
    )
    return NativeJob(
        **common,
        state=state,
        cause=cause,
        exit_code=exit_code,
        reason=reason or comment,
    )


def _is_of_array(comment: str | None, array: Mapping[str, Any]) -> bool:
    """Whether a comment is about an array, which its waiting elements show as theirs. While the array itself waits,
    they wait for the same.
    """
    if comment is None or comment.startswith("Job Array"):
        return True
    return comment == _text(array, "comment") and _STATES.get(_text(array, "job_state")) != "pending"


def _never_ran(attributes: Mapping[str, Any]) -> bool:
    """Whether an element of PBS Pro's was deleted while it waited. It shows its array's attributes as its own then,
    among them an exit status, which says that another element has failed.
    """
    if any(_text(attributes, key) for key in ("exec_host", "session_id", "history_timestamp", "obittime")):
        return False
    comment, status = _text(attributes, "comment"), _text(attributes, "Exit_status")
    if comment == "Subjob failed" or status == "0":  # older versions keep the exit status of an element, and no more
        return False
    return status != "" or comment.startswith("Subjob")


def _end(attributes: Mapping[str, Any], codes: Codes, *, array: bool) -> tuple[Cause | None, int | None, str | None]:
    """The cause, the exit code and the reason of a job that has ended."""
    status = _number(_text(attributes, "Exit_status") or _text(attributes, "exit_status"))
    cancelled = _text(attributes, "substate") == _TERMINATED
    if array:
        # Its own says whether an element has failed; it is no exit code of any.
        return "cancelled" if cancelled else None, None, None
    if status is None:
        started = any(_text(attributes, key) for key in ("stime", "start_time", "exec_host"))
        # What has never run cannot have succeeded: it was deleted, or what it depends on has failed. An element
        # that has ended before its array (X) may have been stripped of all that it had.
        never = not started and _text(attributes, "job_state") != "X"
        return ("cancelled", None, None) if cancelled or never else (None, None, None)
    if status < 0:
        cause, reason = codes.get(status, ("error", f"it could not be run (exit status {status})"))
        return cause, None, reason
    signal = status - 256 if status > 256 else 0
    exit_code = 128 + signal if signal else status
    if status == 0 and not cancelled:
        return None, 0, None
    limit = _limit_reached(attributes, exit_code)
    if limit is None and (cancelled or signal == _SIGTERM):
        limit = "cancelled", "it was deleted"
    return ("error", exit_code, None) if limit is None else (limit[0], exit_code, limit[1])


def _limit_reached(attributes: Mapping[str, Any], exit_code: int) -> tuple[Cause, str] | None:
    """The limit that a job was killed for, by what it has used; None: by nothing that can be seen."""
    comment = _text(attributes, "comment").lower()
    if "walltime" in comment and "exceed" in comment:
        return "time_limit", "it ran longer than it had asked for"
    if exit_code not in (128 + _SIGTERM, 128 + _SIGKILL, 128 + _SIGXCPU):
        return None
    used, asked = (attributes.get(key) for key in ("resources_used", "Resource_List"))
    if not isinstance(used, Mapping) or not isinstance(asked, Mapping):
        return None
    for name, parse, cause, reason, share in (
        ("walltime", _seconds, "time_limit", "it ran longer than it had asked for", 1.0),
        ("mem", _kib, "out_of_memory", "it used as much memory as it had asked for", 0.98),
        ("vmem", _kib, "out_of_memory", "it used as much virtual memory as it had asked for", 0.98),
        ("cput", _seconds, "time_limit", "it used as much cpu time as it had asked for", 1.0),
    ):
        most, taken = parse(_text(asked, name)), parse(_text(used, name))
        if most and taken is not None and taken >= share * most:
            return cause, reason  # type: ignore[return-value]
    return None


def _held(attributes: Mapping[str, Any]) -> str | None:
    reasons = [_HOLDS[letter] for letter in _text(attributes, "Hold_Types") if letter in _HOLDS]
    return " and ".join(reasons) or ("it depends on other jobs" if _text(attributes, "depend") else None)


def _text(attributes: Mapping[str, Any], key: str) -> str:
    value = attributes.get(key)
    return value.strip() if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


def _seconds(text: str) -> int | None:
    match = re.fullmatch(r"(?:(\d{1,9}):)?(?:(\d{1,9}):)?(\d{1,9})", text)
    if match is None:
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def _kib(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,18})([kmgtp]?)[bw]?", text.lower())
    return int(match[1]) * 1024 ** " kmgtp".index(match[2] or " ") // 1024 if match else None
