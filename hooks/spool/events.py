"""Events: what happens to jobs, written by agents and batch jobs and read by controllers.

Any program at a site can write anything, so each event is checked when it is read. A faulty event changes nothing and
does not keep others from being read; an event of an unknown kind is from a newer agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from lading.hooks.files.json_model import JsonModel, Longest, Matching, ReadWith, Text, Within, checked
from lading.hooks.spool.tokens import TOKEN
from lading.scheduling.reasons import Reason, because, free_text
from lading.scheduling.text.nesting import parse_json

# The most bytes of a file of events, and of all files of a cluster that travel together; and the most bytes of one
# event. The batches of an agent are smaller (see the module journal).
MOST_BYTES = 8 * 2**20
MOST_EVENT_BYTES = 2**20
# Our writers put at most a thousand lines into a file; parsing eight MiB of short lines would take half a minute.
MOST_LINES = 20_000
# The year 3000, in seconds since the epoch: some databases and calendars refuse later dates.
LATEST = 32_503_680_000.0
# The maximum of the databases' INTEGER.
LARGEST_INTEGER = 2**31 - 1
# The most faulty events of a file that are kept and explained.
MOST_FAULTS = 20
LONGEST_KIND = 40


def _kind(found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError(f"text is expected, not {type(found).__name__}")
    if found:
        queue, native = json.loads(found)
        pairs = [(name, value) for name, value in native if isinstance(name, str) and isinstance(value, (str, bool))]
        if not (queue is None or isinstance(queue, str)) or not isinstance(native, list) or len(pairs) < len(native):
            raise ValueError("a queue and the directives of jobs are expected")
    return found


def reason_of(reported: object) -> Reason | None:
    """Read a reason from plain data, or from a third party's text; None: none is given.

    It may lack parameters that another version does not write, so that the end of a job is never lost over them.

    :raises ValueError: it is neither
    """
    if isinstance(reported, str):
        return free_text(reported) if reported.strip() else None
    if reported is None or isinstance(reported, Reason):
        return reported
    return Reason.of_data(cast("dict[str, Any]", reported), is_whole=False)


def asked_reason(text: str) -> Reason:
    """Read the reason for a cancellation from the request in the spool."""
    try:
        return Reason.of_json(text)
    except (ValueError, RecursionError):  # text of a third party
        return reason_of(text) or because("cancelled")


def to_json(event: Mapping[str, Any]) -> str:
    """Return an event, or the content of another file of a job, as a line of JSON."""
    return json.dumps(event, default=Reason.to_data)


def _reason(reported: object) -> Reason:
    if isinstance(reported, Mapping):
        return Reason.of_data(reported)
    if (reason := reason_of(reported)) is None:
        raise ValueError("a reason is expected")
    return reason


# A reason with all parameters of its code; and an optional reason for an end.
WholeReason = Annotated[Reason, ReadWith(_reason)]
Why = Annotated[Reason | None, ReadWith(reason_of)]
Token = Annotated[str, Matching(TOKEN)]
Name = Annotated[str, Longest(1000)]
Date = Annotated[float, Within(0, LATEST)]
Cause = Annotated[str, Matching(re.compile("[a-z_]{1,20}"))]
ExitCode = Annotated[int, Within(-LARGEST_INTEGER, LARGEST_INTEGER)]
Memory = Annotated[int, Within(0, LARGEST_INTEGER)]
Amount = Annotated[int | float, Within(0, LARGEST_INTEGER)]
Seconds = Annotated[float, Within(0, LATEST)]
# Sizes of files in bytes, by path.
Outputs = Annotated[
    dict[Annotated[str, Longest(4096), Matching(re.compile("/.*", re.DOTALL))], Annotated[int, Within(0, 2**62)]],
    Longest(100),
]
Limit = Annotated[int | float, Within(0, LATEST)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Started(JsonModel):
    """A job's task has started.

    :param nodes: for a batch job that requested a range of nodes: how many it has received
    """

    event: Literal["started"]
    token: Token
    at: Date
    pid: int = 0
    nodes: Annotated[int, Within(1, LARGEST_INTEGER)] | None = None
    native_id: Name = ""
    node: Name = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobWaiting(JsonModel):
    event: Literal["waiting"]
    token: Token
    reason: WholeReason
    native_id: Name = ""
    node: Name = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Located(JsonModel):
    """The batch job that a job is, or is in, and its node, by the batch system's names."""

    event: Literal["located"]
    token: Token
    native_id: Name = ""
    node: Name = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimated(JsonModel):
    """When the batch system expects a job to start; None: it no longer has an estimate."""

    event: Literal["estimated"]
    token: Token
    starts_at: Date | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(JsonModel):
    """A job has finished; no cause means success. Memory is MiB.

    ``failed`` marks a cancellation that Airflow did not request.
    """

    event: Literal["finished"]
    token: Token
    at: Date
    started_at: Date | None = None
    exit_code: ExitCode | None
    cause: Cause | None
    reason: Why
    peak_memory: Memory | None
    cpu_seconds: Seconds | None
    failed: bool = False
    native_id: Name = ""
    node: Name = ""
    outputs: Outputs = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured(JsonModel):
    """The most memory that a running job has used so far, MiB."""

    event: Literal["measured"]
    token: Token
    peak_memory: Memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned(JsonModel):
    """A job has not started at the location that it was given to, and will not: it waits again."""

    event: Literal["returned"]
    token: Token
    location: Name
    reason: Why = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Released(JsonModel):
    """A launched location has ended, or its launch has failed.

    :param native_id: its id at the provider; None: unknown
    :param launched_at: since when it was billed; None: unknown
    :param refused: whether the site rejects what was ordered, now or for good
    """

    event: Literal["released"]
    token: Token
    at: Date
    native_id: Name | None = None
    launched_at: Date | None = None
    cause: Cause | None = None
    reason: Why = None
    refused: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Billed(JsonModel):
    """The cost of everything that was launched for a location and has ended."""

    event: Literal["billed"]
    token: Token
    usd: Annotated[float, Within(0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held(JsonModel):
    """Room is held; the token is that of the hold."""

    event: Literal["held"]
    token: Token
    at: Date


@dataclass(frozen=True, kw_only=True, slots=True)
class NotHeld(JsonModel):
    """Room is refused because there is none, or a hold was lost."""

    event: Literal["refused", "hold_lost"]
    token: Token
    at: Date
    reason: Why = None


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


KINDS: dict[str, type[JsonModel]] = {
    "started": Started,
    "waiting": JobWaiting,
    "located": Located,
    "estimated": Estimated,
    "measured": Measured,
    "finished": Finished,
}
KINDS |= {"held": Held, "refused": NotHeld, "hold_lost": NotHeld}
# Kinds that only the site itself reports, never a file: a process that can write files must not be able to give back a
# running job.
OF_SITES: dict[str, type[JsonModel]] = {"returned": Returned, "released": Released, "billed": Billed}


def valid(found: object, kinds: Mapping[str, type[JsonModel]] = KINDS) -> dict[str, Any] | None:
    """Check an event; None: it is of an unknown kind, from a newer agent.

    :param kinds: the valid kinds
    :raises ValueError: it is faulty; the message says why
    """
    kind = found.get("event") if isinstance(found, dict) else None
    if not isinstance(kind, str) or not 0 < len(kind) <= LONGEST_KIND:
        raise ValueError("it is not an event: a JSON object is expected whose 'event' names its kind")
    return checked(kinds[kind], found) if kind in kinds else None


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


def sift(found: Iterable[object]) -> tuple[list[dict[str, Any]], list[str]]:
    """Separate valid events, in order, from faults; return both."""
    events: list[dict[str, Any]] = []
    faults: list[str] = []
    for value in found:
        try:
            event = valid(value, {**KINDS, **OF_SITES})
        except ValueError as error:
            faults.append(str(error))
            continue
        if event is not None:
            events.append(event)
    return events, faults


def read(content: bytes) -> tuple[list[dict[str, Any]], list[tuple[bytes, str]]]:
    """Return the events of a file, one per line, and its first faulty lines, each with its fault."""
    events: list[dict[str, Any]] = []
    faults: list[tuple[bytes, str]] = []
    lines = list(filter(None, content.split(b"\n")))
    if len(lines) > MOST_LINES:
        faults.append((b"", f"it has {len(lines)} lines, but at most {MOST_LINES} are read"))
    for line in lines[:MOST_LINES]:
        try:
            if len(line) > MOST_EVENT_BYTES:
                raise ValueError(f"the line has {len(line)} bytes, but an event has at most {MOST_EVENT_BYTES}")
            event = valid(parse_json(line))
        except ValueError as error:
            if len(faults) < MOST_FAULTS:
                faults.append((line, str(error)))
            continue
        if event is not None:
            events.append(event)
    return events, faults
