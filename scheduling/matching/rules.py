"""Rules: what a job asks for instead where nothing has room for all that it wishes. Pure.

Only wishes are relaxed: amounts that are ranges, features that are preferred, spot, and a queue for which the operator
names another one. What a job must have, its site and its instance type are the same under every rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypeAlias

from lading.scheduling.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.matching.stops import Changes
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.resources import TOLERANCE, Resources
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import format_count, format_memory

AMOUNTS = tuple(each.name for each in fields(Resources))
# What a job may have as a range.
NODES = "nodes"
RANGES = (*AMOUNTS, NODES)
# From the wish to the least that will do it takes so many steps at most, each about half of the one before.
MOST_STEPS = 4

# From a job to what it may ask for instead, by the name of an amount or of another field of a job, best first.
Relax: TypeAlias = Callable[[WaitingJob], Sequence[Mapping[str, object]]]


@dataclass(frozen=True, slots=True)
class Soft:
    """What of that which a job asks for it can do without.

    :param least: by amount, or ``nodes``, the least that will do
    :param preferred: the features without which it can do
    """

    least: Mapping[str, float] = field(default_factory=dict)
    preferred: frozenset[str] = frozenset()

    def as_text(self) -> str | None:
        """The same as a job carries it; None: it needs all."""
        return json.dumps([dict(self.least), sorted(self.preferred)]) if self.least or self.preferred else None


@lru_cache(maxsize=1024)
def soft(text: str | None) -> Soft:
    """What a job carries in its field ``soft``."""
    least, preferred = json.loads(text) if text else ({}, ())
    return Soft(least, frozenset(preferred))


def minimum(job: WaitingJob) -> WaitingJob:
    """The job with the least that will do for it."""
    if job.soft is None:
        return job
    its_own = soft(job.soft)
    least: dict[str, Any] = dict(its_own.least)
    nodes = least.pop(NODES, job.nodes)
    resources = replace(job.resources, **least)
    return replace(job, resources=resources, nodes=nodes, features=job.features - its_own.preferred)


def within(job: WaitingJob, most: int | None) -> Changes:
    """What a job asks for whose nodes are a range, where it can never have as many as it wishes; empty: its wish.

    :param most: how many it can have; None: that is not known
    """
    least = soft(job.soft).least.get(NODES)
    return ((NODES, most),) if least is not None and most is not None and least <= most < job.nodes else ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A step by which jobs ask for less, or for something else. What does not fit a job leaves it as it is.

    :param name: is stored with each job that was placed by it
    :param amounts: ``cpus``, ``memory``, ``disk``, ``gpus``, ``nodes``: those that are ranges are halved, step by step
    :param features: patterns (``*``, ``?``, ``[...]``) of features that may be missing, if they are only preferred
    :param on_demand: whether who asks for spot may get a machine on demand
    :param queues: by queue, the one to which a job that names it may go
    :param relax: what a plugin's rule answers; None: it is none
    """

    name: str
    amounts: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    on_demand: bool = False
    queues: Mapping[str, str] = field(default_factory=dict)
    relax: Relax | None = None

    def relaxed(self, job: WaitingJob) -> list[Changes]:
        """What a job asks for in place of what its hints say, best first; empty: nothing else.

        :raises ValueError: a plugin's rule has failed, or relaxes what is no wish
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


# What is tried where the sites file has no rules: a range and a preference say themselves that less will do.
RULES: Sequence[Rule] = (
    Rule("without what is preferred", features=("*",)),
    Rule("less", amounts=RANGES),
    Rule("less, and without what is preferred", amounts=RANGES, features=("*",)),
)


def variants(job: WaitingJob, rules: Sequence[Rule]) -> list[tuple[str | None, Changes]]:
    """What a job asks for, and what instead by each rule in their order, with its name; the first is the empty rule.

    :raises ValueError: see :meth:`Rule.relaxed`
    """
    found: dict[Changes, str | None] = {(): None}
    for rule in rules:
        for changes in rule.relaxed(job):
            found.setdefault(changes, rule.name)
    return [(name, changes) for changes, name in found.items()]


def describe_changes(job: WaitingJob, changes: Changes) -> str:
    """What a rule has changed of what a job asks for."""
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
    """The amounts that a job has as ranges, less and less of them all, down to the least that will do."""
    least = {name: float(each) for name, each in soft(job.soft).least.items() if name in names}
    wish = {name: float(_wish(job, name)) for name in least}
    wide = {name for name in least if wish[name] > least[name]}
    if not wide:
        return
    halvings = max(math.log2(wish[name] / max(least[name], wish[name] / 2**MOST_STEPS)) for name in wide)
    steps = math.ceil(halvings - TOLERANCE)
    for step in range(1, steps + 1):
        is_last = step == steps
        yield {name: least[name] if is_last else max(least[name], _whole(wish[name], step)) for name in sorted(wide)}


def _wish(job: WaitingJob, name: str) -> float:
    amount: float = job.nodes if name == NODES else getattr(job.resources, name)
    return amount


def _whole(wish: float, step: int) -> float:
    """A wish halved so many times; what was a whole number stays one, down to 1."""
    return float(int(wish) >> step) if wish.is_integer() and wish >= 2**step else wish / 2**step


def _amounts(job: WaitingJob, amounts: Mapping[str, float]) -> dict[str, Any]:
    """The fields of a job with other amounts; its limit is the memory that it has got."""
    its_own: Any = {name: int(each) if name in ("memory", "disk", NODES) else each for name, each in amounts.items()}
    nodes = {NODES: its_own.pop(NODES)} if NODES in its_own else {}
    if not its_own:
        return nodes
    limit = {"memory_limit": its_own["memory"]} if "memory" in its_own and job.memory_limit is not None else {}
    return {"resources": replace(job.resources, **its_own), **limit, **nodes}


def _answers(name: str, relax: Relax, job: WaitingJob) -> list[Mapping[str, object]]:
    try:
        answers = list(relax(job))
    except Exception as error:  # a third party's may raise anything
        raise ValueError(f"the rule {name!r} has failed: {type(error).__name__}: {error}") from error
    if strange := [each for each in answers if not isinstance(each, Mapping)]:
        raise ValueError(f"the rule {name!r} answers {shortened(strange[0])}; valid: mappings such as {{'cpus': 4}}")
    return answers


def _checked(name: str, job: WaitingJob, answer: Mapping[str, object]) -> Changes:
    """The answer of a plugin's rule, which may relax wishes alone.

    :raises ValueError: it has something else
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
                f"the rule {name!r} relaxes {shortened(key)} to {shortened(value)}; valid: amounts within a range, "
                "features without some that are preferred, capacity_type on-demand for spot, a queue for another"
            )
    return tuple((changes | (_amounts(job, amounts) if amounts else {})).items())


def _may_have(job: WaitingJob, its_own: Soft, features: Collection[object]) -> bool:
    return job.features - its_own.preferred <= set(features) <= job.features
