"""Stops: the places that a job tries one after the other, and its requests at each of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from lading.scheduling.hints.places import Target
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import NATIVE
from lading.scheduling.model.site_names import is_named

# Changes to the requests in a job's hints: (field of a job, value).
Changes: TypeAlias = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A site at which a job requests room.

    :param site: its name
    :param target: the target of the job that led here, as its hint names it; None: the job has no targets
    :param changes: the fields of the job that change there because of the target
    :param rule: the rule by which it requests something else than its hints; None: none
    :param relaxed: the fields of the job that change by that rule
    """

    site: str
    target: str | None = None
    changes: Changes = ()
    rule: str | None = None
    relaxed: Changes = ()

    @property
    def is_plain(self) -> bool:
        """Whether the job requests exactly what its hints state."""
        return not (self.relaxed or self.changes)

    def asked(self, job: WaitingJob) -> WaitingJob:
        """The job with its requests at this stop."""
        return replace(job, **dict(self.relaxed + self.changes)) if not self.is_plain else job


# The stops of a job, in the order in which it tries them.
Route: TypeAlias = tuple[Stop, ...]
# Some stops in another order, by index in the route.
Order: TypeAlias = tuple[int, ...]


def in_queue(job: WaitingJob, queue: str) -> Changes:
    return ("queue", queue), ("hints", job.hints | {NATIVE})


def as_text(targets: Sequence[str], filters: Sequence[str]) -> str | None:
    """Targets and filters as text for a job; None: it has none."""
    return json.dumps([list(targets), list(filters)]) if targets else None


@lru_cache(maxsize=1024)
def of_text(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    targets, filters = json.loads(text)
    return tuple(targets), tuple(filters)


@lru_cache(maxsize=1024)
def parts_of(text: str, site: str) -> frozenset[str | None]:
    """The parts of a site that a job's targets name; None among them means the whole site."""
    return frozenset(each.within for each in map(Target.parse, of_text(text)[0]) if is_named(site, each.site))
