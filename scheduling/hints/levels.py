"""The levels of hints (Dag, task groups, operator, task), and how they become the hints of one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lading.scheduling.hints.hints import ALIASES, LAYOUT_HINTS, Hints
from lading.scheduling.hints.values import OF_THE_RUN


def merge(*levels: Mapping[str, object]) -> dict[str, object]:
    """Return the hints of several levels as one: key by key, the later level wins.

    Native directives are merged one by one.
    """
    merged: dict[str, object] = {}
    for level in levels:
        for written, value in level.items():
            name, below = ALIASES.get(written, written), merged.get(ALIASES.get(written, written))
            if name == "native" and isinstance(value, Mapping) and isinstance(below, Mapping):
                merged[name] = {**_bare(below), **_bare(value)}
            else:
                merged[name] = value
    return merged


def without_replaced(*levels: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the levels of :func:`merge` without what a later level says with another hint.

    A layout and ``cpus`` both say how many cpus there are on a node, so a Dag's ``cpus`` do not stand in the way of a
    task with ``nodes``. A site and targets both say where a task runs.
    """
    kept: list[dict[str, object]] = []
    later: set[str] = set()
    for level in reversed(levels):
        kept.insert(0, {name: value for name, value in level.items() if name not in later})
        names = {name for name, value in level.items() if value is not None}
        later |= {"cpus"} if names.intersection(LAYOUT_HINTS) else set()
        later |= set(LAYOUT_HINTS) if "cpus" in names else set()
        later |= {"targets", "filters"} if "site" in names else set()
        later |= {"site", "queue"} if "targets" in names else set()
    return kept


def of_the_run(hints: Mapping[str, object]) -> dict[str, object]:
    """Return a Dag's hints as its tasks get them: its ``max_instances`` is that of all its tasks together.

    So is its ``max_jobs``.
    """
    return {OF_THE_RUN.get(name, name): value for name, value in merge(hints).items()}


def _bare(directives: Mapping[Any, object]) -> dict[Any, object]:
    """Native directives by their keys without the dashes that may be before them."""
    return {key.lstrip("-") if isinstance(key, str) else key: value for key, value in directives.items()}


def largest_of(hints: Sequence[Hints]) -> Hints:
    """The hints that suffice for each of several jobs, which run in one task instance."""
    values = {
        name: max((amount for each in hints if (amount := getattr(each, name)) is not None), default=None)
        for name in ("cpus", "memory", "disk", "gpus", "time")
    }
    return replace(hints[0] if hints else Hints(), **values)  # type: ignore[arg-type]
