"""The decision of a tick as data: what is recorded, and what is then requested from sites."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lading.executors.orchestrator.orchestrator import TaskNote
from lading.executors.store import Change, State
from lading.executors.store.gangs.rows import GangChanges
from lading.hooks.site import Order
from lading.hooks.spool.hold import Hold
from lading.scheduling.matching.rules import NODES, describe_changes
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import LAYOUT
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.provisioning import Provision


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything to do in this tick.

    :param changes: of jobs, recorded before anything is done
    :param placed: by site and location, the tokens of jobs to send, for the first time or again
    :param cancels: by site and location, the tokens of jobs to cancel, each with the reason
    :param recalls: by site and location, the tokens of jobs to return unless they have started
    :param orders: by site, the instances to launch
    :param provisions: by site, the whole decision about launches and releases
    :param reasons: by reason, the tokens of the jobs whose stored reason differs from it
    :param holds: by site and location, the room to hold
    :param drops: by site and location, the tokens of holds to drop
    :param gangs: changes of gangs and holds to record
    :param notes: entries for the event logs of tasks
    :param more_waiting: whether there may be waiting jobs that this tick did not consider
    """

    changes: tuple[Change, ...] = ()
    placed: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    cancels: Mapping[str, Mapping[str, Mapping[str, Reason]]] = field(default_factory=dict)
    recalls: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    orders: Mapping[str, Sequence[Order]] = field(default_factory=dict)
    provisions: Mapping[str, Provision] = field(default_factory=dict)
    reasons: Mapping[Reason, Sequence[str]] = field(default_factory=dict)
    holds: Mapping[str, Mapping[str, Sequence[Hold]]] = field(default_factory=dict)
    drops: Mapping[str, Mapping[str, Collection[str]]] = field(default_factory=dict)
    gangs: GangChanges = field(default_factory=GangChanges)
    notes: Sequence[TaskNote] = ()
    more_waiting: bool = False

    def with_changes(self, changes: Iterable[Change]) -> Decision:
        return replace(self, changes=(*self.changes, *changes))

    def with_repeats(self, site: str, location: str, tokens: Iterable[str]) -> Decision:
        if not (tokens := list(tokens)):
            return self
        its_own = self.placed.get(site, {})
        repeated = {**its_own, location: [*its_own.get(location, ()), *tokens]}
        return replace(self, placed={**self.placed, site: repeated})

    def with_cancels(self, site: str, location: str, reasons: Mapping[str, Reason]) -> Decision:
        if not reasons:
            return self
        return replace(self, cancels={**self.cancels, site: {**self.cancels.get(site, {}), location: reasons}})

    def with_reasons(self, reasons: Mapping[Reason, Sequence[str]]) -> Decision:
        return replace(self, reasons={**self.reasons, **reasons}) if reasons else self

    def with_recalls(self, site: str, tokens: Mapping[str, Sequence[str]]) -> Decision:
        its_own = {name: [*some] for name, some in self.recalls.get(site, {}).items()}
        for name, some in tokens.items():
            its_own[name] = [*dict.fromkeys([*its_own.get(name, ()), *some])]
        return replace(self, recalls={**self.recalls, site: its_own}) if tokens else self


def refused(token: str, reason: Reason, now: float) -> Change:
    """Return the change that fails a job which can never run, or whose requests cannot be determined.

    :param now: epoch seconds
    """
    values = {"state": State.FAILED, "cause": "error", "reason": reason, "ended_at": now}
    return Change(token, values, report=True)


def placement(
    token: str, site: str, location: str, reason: Reason | None, now: float, stop: Stop | None = None
) -> Change:
    """Return the change that records the intent to run a job at a location.

    :param reason: why it does not run at a site that comes earlier in the order; None: there is none
    :param now: epoch seconds
    :param stop: what it requests there, if that differs from its hints; None: it does not
    """
    its_queue = None if stop is None else dict(stop.relaxed + stop.changes).get("queue")
    values = {"state": State.PLACED, "site": site, "location": location, "placed_at": now, "queue": its_queue}
    values["reason"] = values["placed_because"] = reason
    return Change(token, values)


def relaxed(change: Change, job: WaitingJob, stop: Stop) -> Change:
    """Extend a placement in which a rule, or a lack of nodes, gives the job less than its full request.

    The row gets what the job requests there; the full request is kept for when the job is queued again.
    """
    asks = describe_changes(job, tuple((dict(stop.relaxed) | _nodes(stop)).items()))
    less = because("most_there", asks=asks) if stop.rule is None else because("by_rule", rule=stop.rule, asks=asks)
    passed = change.values["reason"]
    reason = less if passed is None else passed.with_also(less)
    values = {"rule": stop.rule, "asked": json.dumps(columns(job)), "reason": reason, "placed_because": reason}
    return replace(change, values=change.values | columns(stop.asked(job)) | values)


def is_relaxed(stop: Stop) -> bool:
    """Return whether a job gets less at a stop than its full request."""
    return stop.rule is not None or bool(_nodes(stop))


def _nodes(stop: Stop) -> dict[str, Any]:
    return {name: value for name, value in stop.changes if name == NODES}


def columns(job: WaitingJob) -> dict[str, Any]:
    """Return the columns of a job that a rule can change, without its queue, which has a column of its own."""
    features = ",".join(sorted(job.features)) or None
    limit = {"memory_limit": job.memory_limit, "features": features, "capacity_type": job.capacity_type}
    return {**asdict(job.resources), **limit, NODES: job.nodes if LAYOUT in job.hints else None}
