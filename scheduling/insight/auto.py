"""``auto``: hints whose value is what earlier tries of the task needed. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lading.scheduling.hints.hints import Hints
from lading.scheduling.insight.right_size import Sizes, measure
from lading.scheduling.resources import Resources
from lading.scheduling.text.units import format_count, format_memory, format_time

# How an amount that a task requests is written.
AMOUNTS: Mapping[str, Callable[[Any], str]] = {
    "cpus": lambda cpus: f"{format_count(cpus)} cpus",
    "memory": lambda mib: f"{format_memory(mib)} of memory",
    "time": format_time,
}


def sized(
    hints: Hints, fitted: Sizes, largest: Resources | None, input_size: int | None = None
) -> tuple[Hints, tuple[str, ...]]:
    """Return the hints with what earlier tries needed in the place of ``auto``, and what was decided, as text.

    Until something is known, it is the author's amount, as in ``auto(8 GiB)``, or the default.

    :param fitted: to earlier tries
    :param largest: the most of everything that a location has where it may run; None: that is not known
    :param input_size: of its inputs, as :class:`lading.scheduling.insight.usage.Use` has it
    """
    values: dict[str, Any] = {}
    decisions = []
    for name, of_author in sorted(hints.auto.items()):
        amount = fitted.amount(name, input_size)
        tries = f"{fitted.tries} tries" if fitted.tries != 1 else "1 try"
        if amount is None:
            values[name] = of_author
            whose = f"the default for {name}" if of_author is None else AMOUNTS[name](of_author)
            why = f"{tries} did not show what it needs" if fitted.tries else "no try has ended yet"
            decisions.append(f"requests {whose}: {why} (auto)")
            continue
        most = getattr(largest, name, None)
        is_cut = most is not None and amount > most
        values[name] = most if is_cut else float(amount) if name == "cpus" else int(amount)
        size = measure(input_size, by_length=fitted.by_length)
        by_input = getattr(fitted, name).slope and size is not None
        basis = f"{tries} and {_inputs(size or 0, fitted.by_length)}" if by_input else tries
        limit = ", the largest there is" if is_cut else ""
        decisions.append(f"requests {AMOUNTS[name](values[name])}{limit}: sized by {basis} (auto)")
    return replace(hints, **values, auto={}), tuple(decisions)


def _inputs(size: float, by_length: bool) -> str:
    if by_length:
        return f"its lists of {size:,.0f} elements"
    return f"its input of {format_memory(math.ceil(size / 2**20))}"
