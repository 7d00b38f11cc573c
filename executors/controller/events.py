"""News: what the events of a site mean for the rows of the store. Pure.

The events are valid ones (see :mod:`lading.hooks.spool.events`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lading.executors.store import ENDED, Change, State
from lading.executors.store.tables import as_name
from lading.hooks.spool import hold
from lading.scheduling.reasons import Reason

# Two causes are nobody's failure of the job itself.
STATE_OF_CAUSE = {None: State.SUCCEEDED, "cancelled": State.CANCELLED}


def changes(events: Iterable[dict[str, Any]]) -> list[Change]:
    """The changes that events make, those of each job in order: at most one for each state that it had.

    An unknown kind of event is from a newer agent and changes nothing.
    """
    found: dict[str, list[Change]] = {}
    for event in events:
        if (change := of_event(event)) is not None:
            _add(found.setdefault(change.token, []), change)
    return [change for steps in found.values() for change in steps]


def _add(steps: list[Change], change: Change) -> None:
    """Add a change of a job to those before it; what is told a thousand times is stored once."""
    before = steps[-1] if steps else None
    if before is not None and before.values.get("state") in ENDED:
        return
    alike = before is not None and not (before.only_if or change.only_if)
    if before is not None and alike and before.values.get("state") in (None, change.values.get("state")):
        steps[-1] = Change(change.token, {**before.values, **change.values}, before.report or change.report)
    else:
        steps.append(change)


def of_event(event: dict[str, Any]) -> Change | None:
    """The change that one event of the journal makes."""
    if event["event"] == "started":
        values = {"state": State.RUNNING, "started_at": event["at"], "reason": None, **batch_job(event)}
        if event.get("nodes"):
            values["nodes"] = event["nodes"]
        return Change(event["token"], values, report=True)
    if event["event"] == "waiting":
        return Change(event["token"], {"reason": event["reason"], **batch_job(event)}, report=True)
    if event["event"] == "located" and (found := batch_job(event)):
        return Change(event["token"], found)
    if event["event"] == "returned":
        placed = {"state": State.PLACED, "location": event["location"]}
        nowhere = dict.fromkeys(
            ("site", "location", "placed_at", "submitted_at", "expires_at", "native_id", "node", "queue")
        )
        queued = {"state": State.QUEUED, "reason": event.get("reason")}
        return Change(event["token"], nowhere | queued, only_if=placed)
    if event["event"] == "finished":
        values = {
            "state": State.FAILED if event.get("failed") else STATE_OF_CAUSE.get(event["cause"], State.FAILED),
            "cause": event["cause"],
            "reason": event["reason"],
            "ended_at": event["at"],
            "exit_code": event["exit_code"],
            "peak_memory": event["peak_memory"],
            "cpu_seconds": event["cpu_seconds"],
            # A batch system does not say it of a job that has not; what is known stays.
            **({"started_at": event["started_at"]} if "started_at" in event else {}),
            **batch_job(event),
        }
        return Change(event["token"], values, report=True)
    return None


def of_holds(events: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str, Reason | None]]:
    """What events say of holds: the token of each, what it is now, and why."""
    for event in events:
        if event["event"] in hold.EVENTS:
            yield event["token"], event["event"], event.get("reason")


def batch_job(event: dict[str, Any]) -> dict[str, Any]:
    """Which batch job it is and on which node, as far as the event says so; what is known stays."""
    return {key: as_name(event[key]) for key in ("native_id", "node") if event.get(key)}
