"""Reasons as they are shown, for tests that compare sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lading.scheduling.model.reasons import Reason, because


def told(found: Any) -> Any:
    """The sentence of a reason, or of all those in a mapping or a sequence; anything else stays."""
    if isinstance(found, Reason):
        return str(found)
    if isinstance(found, Mapping):
        return {name: told(each) for name, each in found.items()}
    if type(found) in (list, tuple):
        return type(found)(map(told, found))
    return found


def clauses(found: Any) -> Any:
    """The same as parts of other sentences."""
    if isinstance(found, Reason):
        return found.sentence
    if isinstance(found, Mapping):
        return {name: clauses(each) for name, each in found.items()}
    if type(found) in (list, tuple):
        return type(found)(map(clauses, found))
    return found


def trouble(words: str) -> Reason:
    """Why a site takes no jobs."""
    return because("location_note", text=words)


def message_in(event: Mapping[str, Any]) -> str:
    """The reason in an event, as text."""
    found = event["reason"]
    return str(found if isinstance(found, (str, Reason)) else Reason.of_data(found))
