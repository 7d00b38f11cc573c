"""Events: what happens to jobs, written by agents and batch jobs and read by controllers.

Any program at a site can write anything, so each event is checked when it is read. A faulty event changes nothing and
does not keep others from being read; an event of an unknown kind is from a newer agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from lading.hooks.files.json_model import JsonModel, Within, checked
from lading.hooks.spool.values import (
    LARGEST_INTEGER,
    Cause,
    Date,
    ExitCode,
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

# The most bytes of a file of events, and of all files of a cluster that travel together; and the most bytes of one
# event. The batches of an agent are smaller (see the module journal).
MOST_BYTES = 8 * 2**20


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
    if not isinstance(kind, str) or not 0 < len(kind) <= 40:
        raise ValueError("it is not an event: a JSON object is expected whose 'event' names its kind")
    return checked(kinds[kind], found) if kind in kinds else None


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
    # Our writers put at most a thousand lines into a file; parsing eight MiB of short lines would take half a minute.
    if len(lines) > 20_000:
        faults.append((b"", f"it has {len(lines)} lines, but at most 20000 are read"))
    for line in lines[:20_000]:
        try:
            if len(line) > 2**20:
                raise ValueError(f"the line has {len(line)} bytes, but an event has at most 1048576")
            event = valid(parse_json(line))
        except ValueError as error:
            # The first 20 faulty events of a file are kept and explained.
            if len(faults) < 20:
                faults.append((line, str(error)))
            continue
        if event is not None:
            events.append(event)
    return events, faults
