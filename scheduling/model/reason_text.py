"""How reasons are rendered as sentences for people: the writers of the parameters of a sentence. Pure."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lading.scheduling.model.reason_codes import Code
from lading.scheduling.model.resources import Resources, format_resources
from lading.scheduling.text.units import format_count, format_memory, format_moment, format_time, format_usd

# How many names of a list are shown.
MOST_NAMES = 3
MOST_KINDS = 5


class _Sentence(string.Formatter):
    """Formats the parameters of a sentence for people; the text after the colon selects the writer.

    A reason that another version stored or sent may lack parameters; these are shown as ``?``.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        write = _WRITERS.get(format_spec)
        try:
            return str(super().format_field(value, format_spec)) if write is None else write(value)
        except (TypeError, ValueError, LookupError, OverflowError):
            return str(value)


def _some(names: tuple[str, ...], most: int = MOST_NAMES) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _amount(resource: str, value: float) -> str:
    return f"{value:.0f} MiB {resource}" if resource in ("memory", "disk") else f"{value:g} {resource}"


# The verb for each requirement on a machine other than amounts.
_WISHES = {
    "instance_type": "is a",
    "arch": "is",
    "os": "runs",
    "features": "has",
    "capacity_type": "is",
    "hints": "supports the hints",
}


def _wish(wish: tuple[Any, ...]) -> str:
    return " and ".join(f"{_WISHES[name]} {value}" for name, value in zip(wish[::2], wish[1::2], strict=True))


def _lacks(amounts: tuple[Any, ...]) -> str:
    each = zip(amounts[::3], amounts[1::3], amounts[2::3], strict=True)
    return ", ".join(f"{_amount(name, need)} needed but {_amount(name, have)} available" for name, need, have in each)


def _sites(names: tuple[str, ...]) -> str:
    listed = ", ".join(names)
    return f"site {listed!r}" if len(names) == 1 else f"sites {listed} together" if names else "no site"


def _sizes(amounts: tuple[Any, ...], *, are_counted: bool = True) -> str:
    """Sizes of machines.

    :param amounts: for each size five numbers: how many machines have it, then its resources
    """
    each = [(amounts[at], format_resources(Resources(*amounts[at + 1 : at + 5]))) for at in range(0, len(amounts), 5)]
    return "; ".join(size if number == 1 or not are_counted else f"{number} × {size}" for number, size in each)


# The names of periods that have a word of their own, by their seconds.
_SPANS = {3600: "hour", 86400: "day", 604800: "week"}

_WRITERS: dict[str, Callable[[Any], str]] = {
    "time": lambda seconds: format_time(int(seconds)),
    "length": lambda seconds: "of unknown length" if seconds is None else f"of {seconds:g} s",
    "moment": format_moment,
    "usd": format_usd,
    "count": format_count,
    "resources": lambda amounts: format_resources(Resources(*amounts)),
    "some": _some,
    "names": lambda names: _some(names, MOST_KINDS),
    "wish": _wish,
    "that": lambda wish: f" that {_wish(wish)}" if wish else "",
    "lacks": _lacks,
    "are_busy": lambda names: f"{_some(names)} {'is' if len(names) == 1 else 'are'} busy",
    "are_taken": lambda names: f"{' and '.join(names)} {'is' if names in (('memory',), ('disk',)) else 'are'} taken",
    "place": lambda name: "every location" if name is None else name,
    "jobs_wait": lambda number: "1 job waits" if number == 1 else f"{number} jobs wait",
    "machines": lambda number: "1 machine" if number == 1 else f"{number} machines",
    "memory": format_memory,
    "and": " and ".join,
    "unsupported": lambda model: "" if model is None else f" (its {model} is not supported: only NVIDIA GPUs are)",
    "of_one_node": lambda nodes: f" (a task there gets 1 node, and it requests {nodes})" if nodes > 1 else "",
    "last_time": lambda text: f"; the last time: {text}" if text else "",
    "in_queue": lambda queue: "" if queue is None else f" in queue {queue!r}",
    "within": lambda text: f" ({text})" if text else "",
    "after_or_lost": lambda text: f": {text}" if text else " no longer holds room for it",
    "after": lambda text: f": {text}" if text else "",
    "exit": lambda exit_code: "" if exit_code is None else f" with exit code {exit_code}",
    "code": lambda code: f"{code}: " if code else "",
    "sites": _sites,
    "sizes": _sizes,
    "sizes_alone": lambda amounts: _sizes(amounts, are_counted=False),
    "more_sizes": lambda number: f" and {number} other sizes" if number else "",
    "up_to": lambda number: "machines of" if number is None else f"up to {number:g} ×",
    "last": lambda seconds: _SPANS.get(seconds) or format_time(seconds),
    "times": lambda number: "once" if number == 1 else f"{number} times",
}
SENTENCE = _Sentence()


def parameters(code: Code) -> set[str]:
    """Return the names of the parameters of a code."""
    fields = (*SENTENCE.parse(code.sentence), *SENTENCE.parse(code.limit))
    return {name for _, name, _, _ in fields if name}
