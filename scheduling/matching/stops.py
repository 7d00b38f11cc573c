"""Stops: the places to which a job goes one after the other, and what it asks for at each of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from lading.scheduling.hints.places import Target
from lading.scheduling.job import NATIVE
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.site_names import is_named

# What a job asks for in place of what its hints say, by the fields of a job.
Changes: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A site at which a job asks for room.

    :param site: its name
    :param target: of a job that has targets: this one, as its hint names it; None: the job has none
    :param changes: what it asks for there because of its target, by the fields of a job
    :param rule: the name of the rule by which it asks for something else than its hints say; None: it does not
    :param relaxed: what it asks for by that rule, by the fields of a job
    """

    site: str
    target: str | None = None
    changes: Changes = ()
    rule: str | None = None
    relaxed: Changes = ()

    @property
    def is_plain(self) -> bool:
        """Whether a job asks for what its hints say there."""
        return not (self.relaxed or self.changes)

    def asked(self, job: WaitingJob) -> WaitingJob:
        """The job as it asks for room there."""
        return replace(job, **dict(self.relaxed + self.changes)) if not self.is_plain else job


# The stops of a job, in the order in which it goes to them.
Route: TypeAlias = tuple[Stop, ...]
# Some of them in an order of its own, each by its number in the route.
Order: TypeAlias = tuple[int, ...]


def in_queue(job: WaitingJob, queue: str) -> Changes:
    """What makes a job one of a queue of a batch site."""
    return ("queue", queue), ("hints", job.hints | {NATIVE})


def as_text(targets: Sequence[str], filters: Sequence[str]) -> str | None:
    """Targets and filters as a job carries them; None: it has none."""
    return json.dumps([list(targets), list(filters)]) if targets else None


@lru_cache(maxsize=1024)
def of_text(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The targets, and the filters, that a job carries."""
    targets, filters = json.loads(text)
    return tuple(targets), tuple(filters)


@lru_cache(maxsize=1024)
def parts_of(text: str, site: str) -> frozenset[str | None]:
    """What the targets that a job carries name of a site; None among them: all of it."""
    return frozenset(each.within for each in map(Target.parse, of_text(text)[0]) if is_named(site, each.site))
