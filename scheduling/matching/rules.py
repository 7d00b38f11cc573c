"""Rules: what a job requests instead if no place has room for its full request. Pure.

Only preferences are relaxed: amounts that are ranges, preferred features, spot, and a queue for which the operator
names an alternative. Hard requirements, the site and the instance type are the same under every rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypeAlias

from lading.scheduling.matching.stops import Changes
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.model.resources import TOLERANCE, Resources
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import format_count, format_memory

AMOUNTS = tuple(each.name for each in fields(Resources))
# The requests that can be ranges.
NODES = "nodes"
RANGES = (*AMOUNTS, NODES)

# Takes a job and returns alternatives, best first, each by the name of an amount or of another field of a job.
Relax: TypeAlias = Callable[[WaitingJob], Sequence[Mapping[str, object]]]


@dataclass(frozen=True, slots=True)
class Soft:
    """The part of a job's requests that it can do without.

    :param least: the minimum, by name of an amount or ``nodes``
    :param preferred: the features that are only preferred
    """

    least: Mapping[str, float] = field(default_factory=dict)
    preferred: frozenset[str] = frozenset()

    def as_text(self) -> str | None:
        """The text that a job carries in its field ``soft``; None: it needs everything."""
        return json.dumps([dict(self.least), sorted(self.preferred)]) if self.least or self.preferred else None


@lru_cache(maxsize=1024)
def soft(text: str | None) -> Soft:
    least, preferred = json.loads(text) if text else ({}, ())
    return Soft(least, frozenset(preferred))


def minimum(job: WaitingJob) -> WaitingJob:
    if job.soft is None:
        return job
    its_own = soft(job.soft)
    least: dict[str, Any] = dict(its_own.least)
    nodes = least.pop(NODES, job.nodes)
    resources = replace(job.resources, **least)
    return replace(job, resources=resources, nodes=nodes, features=job.features - its_own.preferred)


def within(job: WaitingJob, most: int | None) -> Changes:
    """The changes for a job with a range of nodes that can never get as many as it prefers; empty: no change.

    :param most: how many it can get; None: unknown
    """
    least = soft(job.soft).least.get(NODES)
    return ((NODES, most),) if least is not None and most is not None and least <= most < job.nodes else ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A step by which jobs request less, or something else. It does not change jobs to which it does not apply.

    :param name: stored with each job that was placed by it
    :param amounts: ``cpus``, ``memory``, ``disk``, ``gpus``, ``nodes``: ranges among these are halved, step by step
    :param features: patterns (``*``, ``?``, ``[...]``) of features that can be missing, if they are only preferred
    :param on_demand: whether a job that requests spot can get an on-demand machine
    :param queues: by queue, the alternative for jobs that name it
    :param relax: a plugin's rule; None: this is not one
    """

    name: str
    amounts: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    on_demand: bool = False
    queues: Mapping[str, str] = field(default_factory=dict)
    relax: Relax | None = None

    def relaxed(self, job: WaitingJob) -> list[Changes]:
        """What a job requests instead of its hints, best first; empty: nothing else.

        :raises ValueError: a plugin's rule failed, or relaxes a hard requirement
        """
        if self.relax is not None:
            return [_checked(self.name, job, each) for each in _answers(self.name, self.relax, job)]
        changes: dict[str, Any] = {}
        preferred = soft(job.soft).preferred
        if dropped := {each for each in preferred if any(fnmatchcase(each, pattern) for pattern in self.features)}:
            changes["features"] = job.features - dropped
        if self.on_demand and job.capacity_type == SPOT:
            changes["capacity_type"] = ON_DEMAND
        if job.queue is not None and (queue := self.queues.get(job.queue)) is not None:
            changes["queue"] = queue
        steps = [_amounts(job, each) for each in _halved(job, self.amounts)] or [{}]
        return [tuple((changes | each).items()) for each in steps if changes or each]


# The default rules, because a range or a preference already says that less suffices.
RULES: Sequence[Rule] = (
    Rule("without what is preferred", features=("*",)),
    Rule("less", amounts=RANGES),
    Rule("less, and without what is preferred", amounts=RANGES, features=("*",)),
)


def variants(job: WaitingJob, rules: Sequence[Rule]) -> list[tuple[str | None, Changes]]:
    """A job's request, and the alternatives by each rule in order, each with the rule's name; the first has no rule.

    :raises ValueError: see :meth:`Rule.relaxed`
    """
    found: dict[Changes, str | None] = {(): None}
    for rule in rules:
        for changes in rule.relaxed(job):
            found.setdefault(changes, rule.name)
    return [(name, changes) for changes, name in found.items()]


def describe_changes(job: WaitingJob, changes: Changes) -> str:
    parts = []
    for name, value in sorted(changes, key=lambda each: each[0] != "resources"):
        if name == "resources":
            parts += [
                f"{_amount(each, less)} of {_amount(each, wish)} {each}"
                for each in AMOUNTS
                if (less := getattr(value, each)) != (wish := getattr(job.resources, each))
            ]
        elif name == NODES:
            parts.append(f"{value} of {job.nodes} nodes")
        elif name == "features":
            parts.append(f"without {', '.join(sorted(job.features - value))}")
        elif name in ("capacity_type", "queue"):
            parts.append(f"{name.replace('_', ' ')} {value} instead of {getattr(job, name)}")
    return ", ".join(parts)


def _amount(name: str, amount: float) -> str:
    return format_memory(int(amount)) if name in ("memory", "disk") else format_count(amount)


def _halved(job: WaitingJob, names: Sequence[str]) -> Iterator[dict[str, float]]:
    """The ranges of a job, reduced together step by step down to the minimum."""
    least = {name: float(each) for name, each in soft(job.soft).least.items() if name in names}
    wish = {name: float(_wish(job, name)) for name in least}
    wide = {name for name in least if wish[name] > least[name]}
    if not wide:
        return
    # At most four steps lead from the preferred amount to the minimum; each about halves it.
    halvings = max(math.log2(wish[name] / max(least[name], wish[name] / 16)) for name in wide)
    steps = math.ceil(halvings - TOLERANCE)
    for step in range(1, steps + 1):
        is_last = step == steps
        yield {name: least[name] if is_last else max(least[name], _whole(wish[name], step)) for name in sorted(wide)}


def _wish(job: WaitingJob, name: str) -> float:
    amount: float = job.nodes if name == NODES else getattr(job.resources, name)
    return amount


def _whole(wish: float, step: int) -> float:
    """A preferred amount halved ``step`` times; a whole number stays whole, down to 1."""
    return float(int(wish) >> step) if wish.is_integer() and wish >= 2**step else wish / 2**step


def _amounts(job: WaitingJob, amounts: Mapping[str, float]) -> dict[str, Any]:
    """The changed fields of a job with other amounts; its memory limit is the memory that it gets."""
    its_own: Any = {name: int(each) if name in ("memory", "disk", NODES) else each for name, each in amounts.items()}
    nodes = {NODES: its_own.pop(NODES)} if NODES in its_own else {}
    if not its_own:
        return nodes
    limit = {"memory_limit": its_own["memory"]} if "memory" in its_own and job.memory_limit is not None else {}
    return {"resources": replace(job.resources, **its_own), **limit, **nodes}


def _answers(name: str, relax: Relax, job: WaitingJob) -> list[Mapping[str, object]]:
    try:
        answers = list(relax(job))
    except Exception as error:  # a third party's rule can raise anything
        raise ValueError(f"the rule {name!r} failed: {type(error).__name__}: {error}") from error
    if strange := [each for each in answers if not isinstance(each, Mapping)]:
        raise ValueError(f"the rule {name!r} returned {shortened(strange[0])}; valid: mappings such as {{'cpus': 4}}")
    return answers


def _checked(name: str, job: WaitingJob, answer: Mapping[str, object]) -> Changes:
    """Check the answer of a plugin's rule, which can only relax preferences.

    :raises ValueError: it relaxes something else
    """
    its_own, amounts, changes = soft(job.soft), dict[str, float](), dict[str, Any]()
    for key, value in answer.items():
        least = None if isinstance(value, bool) else its_own.least.get(key)
        if least is not None and isinstance(value, (int, float)) and least <= value <= _wish(job, key):
            amounts[key] = value
        elif key == "features" and isinstance(value, (set, frozenset)) and _may_have(job, its_own, value):
            changes[key] = frozenset(value)
        elif (key, value, job.capacity_type) == ("capacity_type", ON_DEMAND, SPOT) or (
            key == "queue" and isinstance(value, str) and value and job.queue is not None
        ):
            changes[key] = value
        else:
            raise ValueError(
                f"the rule {name!r} relaxes {shortened(key)} to {shortened(value)}; valid: amounts within the "
                "requested range, features without some of the preferred ones, on-demand instead of spot, or another "
                "queue"
            )
    return tuple((changes | (_amounts(job, amounts) if amounts else {})).items())


def _may_have(job: WaitingJob, its_own: Soft, features: Collection[object]) -> bool:
    return job.features - its_own.preferred <= set(features) <= job.features
