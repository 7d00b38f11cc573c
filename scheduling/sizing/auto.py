"""The amounts that an author leaves to Lading: the hint ``auto``, and cpus and memory without a hint. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from lading.scheduling.hints.hints import Hints
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.right_size import Sizes, measure
from lading.scheduling.text.units import format_count, format_memory, format_time

# How messages write the amounts of a request.
AMOUNTS: Mapping[str, Callable[[Any], str]] = {
    "cpus": lambda cpus: f"{format_count(cpus)} cpus",
    "memory": lambda mib: f"{format_memory(mib)} of memory",
    "time": format_time,
}


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """An amount of ``cpus`` or ``memory`` that an author leaves to Lading.

    :param until_known: the request until tries have shown what is needed: the author's amount, or the default
    :param is_asked: whether the author wrote ``auto``: then the amount is also the job's limit; otherwise a job is only
        packed by it and can use more
    :param least: the smallest request, because an earlier try of the same job had too little
    :param most: the largest amount it is packed by, because only few machines suit it, which may not have more; None:
        unlimited
    """

    until_known: float
    is_asked: bool = False
    least: float = 0
    most: float | None = None

    def amount(self, name: str, fitted: Sizes, largest: Resources | None, input_size: float | None) -> float:
        """The request of a job.

        :param fitted: the sizes fitted to earlier tries
        :param largest: the largest amount of each resource among locations where it can run; None: unknown
        :param input_size: bytes; None: unknown
        """
        known = fitted.amount(name, input_size) if self.is_asked else fitted.packed(name, input_size, self.until_known)
        # An amount from the author or the administrator counts, whatever locations have.
        found = self.until_known if known is None else _cut(name, known, largest)
        found = max(found if self.most is None else min(found, self.most), self.least)
        return float(found) if name == "cpus" else int(found)


Choices = Mapping[str, SizeChoice]


def choices(hints: Hints, defaults: Resources, *, is_auto: bool, shares_machine: bool = False) -> Choices:
    """The amounts of a job that its author leaves to Lading, by name.

    For members of a gang, only those with ``auto``: the usage of one member does not show what it needs of the others.

    :param defaults: the requests of a task without hints
    :param is_auto: whether tasks without hints are packed by what they use
    :param shares_machine: whether the default cpus let as many tasks share a machine as Airflow allows; then no task is
        packed by more, so that two tasks that run for hours do not keep all others from starting
    """
    asked = {name: amount for name, amount in hints.auto.items() if name != "time"}
    found = {
        name: SizeChoice(getattr(defaults, name) if amount is None else amount, is_asked=True)
        for name, amount in asked.items()
    }
    if is_auto and hints.gang is None and hints.attempts is None:
        said = {"cpus"} if hints.layout is not None else set()
        said |= {name for name in ("cpus", "memory") if getattr(hints, name) is not None}
        said |= hints.expressions.keys() | hints.auto.keys()
        is_picky = hints.instance_type or hints.targets or hints.features or hints.arch or hints.os
        for name in {"cpus", "memory"} - said:
            default = getattr(defaults, name)
            least = default if is_limit(hints.container) else 0
            is_most = is_picky or (shares_machine and name == "cpus")
            found[name] = SizeChoice(default, least=least, most=default if is_most else None)
    return found


def is_limit(container: str | None) -> bool:
    """Whether the cpus that a job in a container is packed by also limit it, as in Docker."""
    return (container or "").startswith("docker:")


def as_text(some: Choices) -> str | None:
    """Choices as text for the store; None: there are none."""
    return json.dumps({name: astuple(each) for name, each in sorted(some.items())}) if some else None


def from_text(text: str | None) -> Choices:
    """Choices from the store. Unreadable text means no choices: the job keeps its request."""
    try:
        return {name: SizeChoice(*values) for name, values in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def resized(
    asked: Resources, some: Choices, fitted: Sizes, largest: Resources | None, input_size: float | None
) -> Resources:
    """The request of a waiting job with what is known about its task now; unchanged if that is almost the same."""
    found: dict[str, Any] = {name: each.amount(name, fitted, largest, input_size) for name, each in some.items()}
    for name, amount in found.items():
        before = getattr(asked, name)
        # The request of a waiting job is changed if it needs more, or less by at least five percent.
        if before * 0.95 < amount <= before:
            found[name] = before
    return replace(asked, **found)


def at_least_default(asked: Resources, some: Choices) -> Resources:
    """The request of a job where requests are limits: amounts without a hint are never below the default."""
    unsaid = {name: max(getattr(asked, name), each.until_known) for name, each in some.items() if not each.is_asked}
    return replace(asked, **unsaid)


def sized(
    hints: Hints, fitted: Sizes, largest: Resources | None, input_size: int | None = None
) -> tuple[Hints, tuple[str, ...]]:
    """Return the hints with learned amounts in place of ``auto``, and the decisions as text.

    Until tries have finished, the amount is the author's, as in ``auto(8 GiB)``, or the default.

    :param fitted: the sizes fitted to earlier tries
    :param largest: the largest amount of each resource among locations where it can run; None: unknown
    :param input_size: as in :class:`lading.scheduling.sizing.usage.Use`
    """
    values: dict[str, Any] = {}
    decisions = []
    for name, of_author in sorted(hints.auto.items()):
        amount = fitted.amount(name, input_size)
        tries = f"{fitted.tries} tries" if fitted.tries != 1 else "1 try"
        if amount is None:
            values[name] = of_author
            whose = f"the default for {name}" if of_author is None else AMOUNTS[name](of_author)
            why = f"{tries} did not show what it needs" if fitted.tries else "no try has finished yet"
            decisions.append(f"requests {whose}: {why} (auto)")
            continue
        values[name] = _cut(name, amount, largest)
        decisions.append(decision(name, values[name], fitted, input_size))
    return replace(hints, **values, auto={}), tuple(decisions)


def decision(name: str, value: float, fitted: Sizes, input_size: int | None) -> str:
    """The text about an amount that earlier tries have shown."""
    tries = f"{fitted.tries} tries" if fitted.tries != 1 else "1 try"
    size = measure(input_size, by_length=fitted.by_length)
    by_input = getattr(fitted, name).slope and size is not None
    basis = f"{tries} and {_inputs(size or 0, by_length=fitted.by_length)}" if by_input else tries
    limit = ", the largest available" if value < (fitted.amount(name, input_size) or 0.0) else ""
    return f"requests {AMOUNTS[name](value)}{limit}: sized by {basis} (auto)"


def _cut(name: str, amount: float, largest: Resources | None) -> float:
    """The amount, but no more than the largest location has."""
    most = getattr(largest, name, None)
    found = amount if most is None else min(amount, most)
    return float(found) if name == "cpus" else int(found)


def _inputs(size: float, *, by_length: bool) -> str:
    if by_length:
        return f"its lists of {size:,.0f} elements"
    return f"its input of {format_memory(math.ceil(size / 2**20))}"
