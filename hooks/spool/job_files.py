"""The files that describe a job or an allocation, as the processes of a machine write and read them.

Any program at a site can write anything, so each file is checked when it is read. This module does without events,
whose models take long to define: each batch job imports it when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from lading.hooks.files.json_model import JsonModel, Longest, ReadWith, Text, Within, checked
from lading.hooks.spool.values import (
    LARGEST_INTEGER,
    Amount,
    Cause,
    Date,
    ExitCode,
    Limit,
    Memory,
    Name,
    Outputs,
    Seconds,
    Token,
    WholeReason,
    Why,
)
from lading.scheduling.model.light_dataclasses import dataclass, field
from lading.scheduling.text.nesting import parse_json


def _kind(found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError(f"text is expected, not {type(found).__name__}")
    if found:
        queue, native = json.loads(found)
        pairs = [(name, value) for name, value in native if isinstance(name, str) and isinstance(value, (str, bool))]
        if not (queue is None or isinstance(queue, str)) or not isinstance(native, list) or len(pairs) < len(native):
            raise ValueError("a queue and the directives of jobs are expected")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class SentinelFile(JsonModel):
    """The outcome of a job, written by its supervisor to ``exit.json``."""

    exit_code: ExitCode
    reason: Why
    ended_at: Date
    cpu_seconds: Seconds
    peak_memory: Memory | None
    touched_memory: Memory = 0
    cause: Cause = "error"
    outputs: Outputs = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Amounts(JsonModel):
    """An amount of each resource; memory and disk are MiB."""

    cpus: Amount = 0
    memory: Amount = 0
    disk: Amount = 0
    gpus: Amount = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideFile(JsonModel):
    """The outcome of a job in its container, written by the runner inside to ``inside.json``; memory is KiB."""

    exit_code: ExitCode
    reason: Why
    cause: Cause
    outputs: Outputs
    cpu_seconds: Seconds
    peak: Memory
    is_out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldFile(JsonModel):
    token: Token
    job: Token
    resources: Amounts
    seconds: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorFile(JsonModel):
    """The process that runs a job, written by the supervisor to ``supervisor.json``."""

    pid: Annotated[int, Within(1, LARGEST_INTEGER)]
    started: Annotated[int, Within(0)]
    boot_id: Name
    at: Date
    began: Seconds
    resources: Amounts
    memory_limit: Limit | None
    time_limit: Limit | None
    devices: dict[Text, Annotated[float, Within(0, 1)]] = field(default_factory=dict)
    dags: Text | None = None
    container: Text | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CauseFile(JsonModel):
    """Why a job was killed, written by its agent to ``cause.json``."""

    cause: Cause
    reason: WholeReason


@dataclass(frozen=True, kw_only=True, slots=True)
class UpFile(JsonModel):
    """An allocation agent's host, its clock, and the seconds for which it takes jobs from now on.

    The agent writes it to ``up.json`` from time to time, with its clock because that of the readers may differ.
    """

    host: Annotated[str, Longest(255)]
    now: Date
    left: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class TermsFile(JsonModel):
    """The terms of an allocation, written by its controller to ``terms.json``."""

    capacity: Amounts
    seconds: Seconds
    unlimited: Seconds
    idle: Seconds
    kill_grace: Seconds
    kind: Annotated[str, ReadWith(_kind)] = ""
    scratch: Text = ""
    keep_failed: Seconds = 0.0


def remains(model: type[JsonModel], content: bytes | None) -> dict[str, Any] | None:
    """Read a file of a job; None: it does not exist, or is damaged."""
    try:
        return checked(model, parse_json(content)) if content else None
    except ValueError:
        return None


def of_sentinel(left: Mapping[str, Any], cause: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the content of a sentinel with the fields of an event.

    :param cause: why the job was killed, if it was
    :returns: with ``started_at`` None if Airflow refused to start the task, because then nothing has failed. A running
        task that Airflow stopped is cancelled with exit code 0
    """
    reason = left["reason"]
    reported = {"cause": left.get("cause", "error") if reason is not None else None, "reason": reason}
    if cause is not None:
        reported = {"cause": cause["cause"], "reason": cause["reason"]}
    return {
        **reported,
        "at": left["ended_at"],
        "exit_code": left["exit_code"],
        "peak_memory": left["peak_memory"],
        "cpu_seconds": left["cpu_seconds"],
        **({"started_at": None} if left.get("cause") == "cancelled" and left["exit_code"] != 0 else {}),
        **({"outputs": outputs} if reported["cause"] is None and (outputs := left.get("outputs")) else {}),
    }
