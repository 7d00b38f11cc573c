"""``auto``: hints whose value is what earlier tries of the task needed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lading.scheduling.hints.hints import Hints
from lading.scheduling.insight.right_size import FEWEST_TRIES, HEADROOM, right_size
from lading.scheduling.insight.usage import Usage
from lading.scheduling.resources import Resources
from lading.scheduling.text.units import format_count, format_memory, format_time

# How an amount that a task asks for is written.
AMOUNTS: Mapping[str, Callable[[Any], str]] = {
    "cpus": lambda cpus: f"{format_count(cpus)} cpus",
    "memory": lambda mib: f"{format_memory(mib)} of memory",
    "time": format_time,
}
ADDED = dict.fromkeys(("memory", "time"), f", to which {round(100 * (HEADROOM - 1))} % were added")


def sized(hints: Hints, usage: Usage, largest: Resources | None) -> tuple[Hints, tuple[str, ...]]:
    """The hints with what sufficed for 99 of a hundred tries in the place of ``auto``, and what was decided, as text.

    What is not known, for there were too few tries or too many had too little, is as if it had not been given.

    :param usage: of earlier tries
    :param largest: the most of everything that a location has where it may run; None: that is not known
    """
    found = right_size(usage)
    values: dict[str, Any] = {}
    parts = []
    for name in sorted(hints.auto):
        if (size := getattr(found, name).nearly_all) is None:
            few = f"fewer than {FEWEST_TRIES}" if usage.tries < FEWEST_TRIES else "which do not show what it needs"
            parts.append(f"{name} is the default: of {usage.tries} tries something is known, {few} (auto)")
            continue
        most = getattr(largest, name, None)
        is_cut = most is not None and size > most
        values[name] = most if is_cut else float(size) if name == "cpus" else int(size)
        why = "more, but it is all that there is" if is_cut else f"no more{ADDED.get(name, '')}"
        parts.append(f"asks for {AMOUNTS[name](values[name])}: 99 of 100 of {usage.tries} tries needed {why} (auto)")
    return replace(hints, **values, auto=frozenset()), tuple(parts)
