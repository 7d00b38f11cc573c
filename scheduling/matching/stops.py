"""Stops: the places to which a job goes one after the other, and what it asks for at each of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lading.scheduling.job import NATIVE
from lading.scheduling.matching.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Stop:
    """A site at which a job asks for room.

    :param site: its name
    :param target: of a job that has targets: the one that it is, in words; None: it has none
    :param changes: what it asks for there in place of what its hints say, by the fields of a job
    """

    site: str
    target: str | None = None
    changes: tuple[tuple[str, Any], ...] = ()

    def asked(self, job: Waiting) -> Waiting:
        """The job as it asks for room there."""
        return replace(job, **dict(self.changes)) if self.changes else job


def in_queue(job: Waiting, queue: str) -> tuple[tuple[str, Any], ...]:
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
