"""The targets of a job that its inputs match, where its hint ``matching`` has patterns for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lading.executors.sizing.xcom_json import Unknown
from lading.scheduling.hints.expressions import ExpressionError
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.patterns import MOST_SEARCHES, input_names, matching_targets, searches
from lading.scheduling.matching.stops import as_text


def matched(hints: Hints, inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a job with those of its targets alone that its inputs match.

    :param inputs: by name; of several jobs where it is a chunk of a scatter, which all have to match
    :raises HintError: they match none, or there are too many
    :raises ExpressionError: one of them is not known
    """
    if (number := len(inputs) * searches(hints.matching)) > MOST_SEARCHES:
        raise HintError(
            f"hint matching: {searches(hints.matching)} patterns are to be sought in the inputs of {len(inputs)} jobs, "
            f"which is {number:,} times; valid: at most {MOST_SEARCHES:,} times for a chunk: give the scatter smaller "
            "chunks, or the task fewer patterns"
        )
    left, names = hints.targets, {name for name, _ in input_names(hints.matching)}
    for values in inputs:
        if unknown := [each for name, each in values.items() if name in names and isinstance(each, Unknown)]:
            raise ExpressionError(f"an input that is to be matched is not known: {unknown[0].why}")
        left = matching_targets(left, hints.matching, values)
    if not left:
        raise HintError(f"hint matching: its inputs match none of its targets {', '.join(hints.targets)}")
    return {"targets": as_text(left, hints.filters)}
