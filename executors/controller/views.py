"""What sites have answered, as placement sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lading.executors.store import queue
from lading.executors.store.queue import Given
from lading.hooks.site import LocationState, Seen, Site, join
from lading.scheduling.plan import Location


@dataclass(frozen=True, slots=True)
class Answer:
    """What a site answered last, and the jobs that the store thinks it has.

    :param is_new: whether nothing was concluded from the answer yet
    """

    site: Site[Any]
    locations: Sequence[Seen]
    jobs: Sequence[Given]
    is_new: bool


def silent(name: str, why: str) -> str:
    """What is said of a site that could not be asked, in words."""
    return f"site {name!r} could not be asked: {why}"


def trouble(answer: Answer) -> str | None:
    """Why a site that has answered takes no jobs at all now, in words; None: it does."""
    if any(each.state == LocationState.UP for each in answer.locations):
        return None
    words = join(*(each.note or f"{each.name} is {each.state.value}" for each in answer.locations))
    return f"site {answer.site.name!r} takes no jobs now: {words or 'it has no locations'}"


def loaded(answer: Answer, ahead: Mapping[str, int]) -> list[Location]:
    """The locations of a site that take jobs now, with what is on them.

    :param ahead: how many jobs a location may have in store, by its name, where its jobs are short
    """
    here = queue.by_location(answer.jobs)
    up = (each.location for each in answer.locations if each.state == LocationState.UP)
    return [queue.loaded(each, here.get(each.name, ()), ahead.get(each.name, 0)) for each in up]
