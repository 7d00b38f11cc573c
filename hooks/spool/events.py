"""Events: what has happened to jobs, as agents and batch jobs write it and controllers read it.

All that can write at a site can write anything, so each event is checked when it is read. One that is wrong changes
nothing and keeps nothing from being read; one of a kind that is not known here is from a newer agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from lading.hooks.files.json_model import JsonModel, Longest, Matching, ReadWith, Text, Within, checked, parsed
from lading.hooks.spool.tokens import TOKEN
from lading.scheduling.reasons import Reason, because, free_text

# A file of events has at most so many bytes, and so have those of a cluster that travel together; an event has at most
# so many. The batches of an agent are smaller (see the module journal).
MOST_BYTES = 8 * 2**20
MOST_EVENT_BYTES = 2**20
# No writer of ours puts more than a thousand into a file; eight MiB of short lines would take half a minute.
MOST_LINES = 20_000
# The year 3000: what is beyond it is no date, and some databases and calendars refuse it. Seconds since the epoch.
LATEST = 32_503_680_000.0
# What the databases' INTEGER takes.
LARGEST_INTEGER = 2**31 - 1
# Of the wrong events of a file so many are kept and explained.
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
    """A reason as a file or a site has it: as plain data, or the text of a third party; None: nothing is said.

    It may lack parameters, which another version has left out: an end counts for all that.

    :raises ValueError: it is none of these
    """
    if isinstance(reported, str):
        return free_text(reported) if reported.strip() else None
    if reported is None or isinstance(reported, Reason):
        return reported
    return Reason.of_data(cast("dict[str, Any]", reported), is_whole=False)


def asked_reason(text: str) -> Reason:
    """Why a job is to be ended, as the request in its spool says."""
    try:
        return Reason.of_json(text)
    except (ValueError, RecursionError):  # text of a third party
        return reason_of(text) or because("cancelled")


def to_json(event: Mapping[str, Any]) -> str:
    """An event, or another file of a job, as a line of text."""
    return json.dumps(event, default=Reason.to_data)


def _reason(reported: object) -> Reason:
    if isinstance(reported, Mapping):
        return Reason.of_data(reported)
    if (reason := reason_of(reported)) is None:
        raise ValueError("a reason is expected")
    return reason


# With all parameters of its code; and why something has ended, if that is said.
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
# Files by their paths, with their bytes.
Outputs = Annotated[
    dict[Annotated[str, Longest(4096), Matching(re.compile("/.*", re.DOTALL))], Annotated[int, Within(0, 2**62)]],
    Longest(100),
]
Limit = Annotated[int | float, Within(0, LATEST)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Started(JsonModel):
    """A job's task has begun.

    :param nodes: of a batch job that has asked for a range of them: how many it has got
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
    """Why a job waits."""

    event: Literal["waiting"]
    token: Token
    reason: WholeReason
    native_id: Name = ""
    node: Name = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Located(JsonModel):
    """Which batch job a job is, or is in, and on which node, as the batch system calls them."""

    event: Literal["located"]
    token: Token
    native_id: Name = ""
    node: Name = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimated(JsonModel):
    """When its batch system expects a job to start; None: it does not say so any more."""

    event: Literal["estimated"]
    token: Token
    starts_at: Date | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(JsonModel):
    """A job has ended; no cause means success. Memory is MiB.

    ``failed`` says that a cancellation was not requested by Airflow.
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
    """A job has not begun where it was given to, and will not: it waits again."""

    event: Literal["returned"]
    token: Token
    location: Name
    reason: Why = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Released(JsonModel):
    """A location that was launched has ended, or was never there.

    :param native_id: what its seller calls it, and since when it was paid for; None: that is not known
    :param refused: whether the site does not take what it was to be, now or ever
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
    """What a location has cost in all that was launched and has ended."""

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
    """Room is not held for want of any, or is not held any more."""

    event: Literal["refused", "hold_lost"]
    token: Token
    at: Date
    reason: Why = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SentinelFile(JsonModel):
    """How a job has ended, as its supervisor has left it in ``exit.json``."""

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
    """What there is of each resource; memory and disk are MiB."""

    cpus: Amount = 0
    memory: Amount = 0
    disk: Amount = 0
    gpus: Amount = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class InsideFile(JsonModel):
    """The outcome of a job in its container, as its runner there has left it in ``inside.json``; memory is KiB."""

    exit_code: ExitCode
    reason: Why
    cause: Cause
    outputs: Outputs
    cpu_seconds: Seconds
    peak: Memory
    touched: Memory
    is_out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldFile(JsonModel):
    """What room is to be held for, as a controller has left it in a spool."""

    token: Token
    job: Token
    resources: Amounts
    seconds: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisorFile(JsonModel):
    """Who runs a job, as its supervisor has left it in ``supervisor.json``."""

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
    """Why a job was ended, as its agent has left it in ``cause.json``."""

    cause: Cause
    reason: WholeReason


@dataclass(frozen=True, kw_only=True, slots=True)
class UpFile(JsonModel):
    """Where an allocation's agent is, what its clock says, and for how long it takes jobs from now on, as it writes now
    and then into ``up.json``: its readers have another clock."""

    host: Annotated[str, Longest(255)]
    now: Date
    left: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class TermsFile(JsonModel):
    """What an allocation is for, as its controller has left it in ``terms.json``."""

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
# What comes from a site itself, and from no file: a job that runs must not be given back by every process that can
# write one.
OF_SITES: dict[str, type[JsonModel]] = {"returned": Returned, "released": Released, "billed": Billed}


def valid(found: object, kinds: Mapping[str, type[JsonModel]] = KINDS) -> dict[str, Any] | None:
    """An event, if it is of a known kind; None: a newer agent's.

    :param kinds: those that may be
    :raises ValueError: it is wrong; the message says what
    """
    kind = found.get("event") if isinstance(found, dict) else None
    if not isinstance(kind, str) or not 0 < len(kind) <= LONGEST_KIND:
        raise ValueError("it is no event: a JSON object is expected whose 'event' names its kind")
    return checked(kinds[kind], found) if kind in kinds else None


def remains(model: type[JsonModel], content: bytes | None) -> dict[str, Any] | None:
    """What a file of a job says; None: it is not there, or damaged."""
    try:
        return checked(model, parsed(content)) if content else None
    except ValueError:
        return None


def of_sentinel(left: Mapping[str, Any], cause: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the file of a sentinel says, as an event would have.

    :param cause: why the job was ended, if it was
    :returns: with ``started_at`` None where Airflow has refused to start the task: then nothing has failed. What it has
        ended itself while it ran is cancelled with exit code 0
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
    """The events among some values, in order, and what is wrong with the others."""
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
    """The events of a file, one in each line, and its first wrong lines, each with what is wrong."""
    events: list[dict[str, Any]] = []
    faults: list[tuple[bytes, str]] = []
    lines = list(filter(None, content.split(b"\n")))
    if len(lines) > MOST_LINES:
        faults.append((b"", f"it has {len(lines)} lines, at most {MOST_LINES} are read"))
    for line in lines[:MOST_LINES]:
        try:
            if len(line) > MOST_EVENT_BYTES:
                raise ValueError(f"{len(line)} bytes are no event, at most {MOST_EVENT_BYTES} are expected")
            event = valid(parsed(line))
        except ValueError as error:
            if len(faults) < MOST_FAULTS:
                faults.append((line, str(error)))
            continue
        if event is not None:
            events.append(event)
    return events, faults
