"""How allocations start: where some have ended before they could run a job, others like them are asked for rarely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from lading.hooks.cluster_pressure import BackPressure

# So many in a row of one kind are a trouble which people are told of.
MOST_FAILURES = 2


class AllocationStarts:
    """What became of the last allocations of each kind: those of a queue may fail while others work."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._pauses: dict[str, BackPressure] = {}

    def failed(self, kind: str, words: str) -> None:
        """An allocation of this kind has ended before it could run a job."""
        self._failures[kind] += 1
        self._pauses.setdefault(kind, BackPressure(1)).hold(words)

    def worked(self, kind: str) -> None:
        """An allocation of this kind has run a job."""
        self._failures.pop(kind, None)
        self._pauses.pop(kind, None)

    def held(self, kind: str) -> str | None:
        """Why no allocation of this kind is asked for now, in words; None: it may be."""
        return self._pauses[kind].held() if kind in self._pauses else None

    def trouble(self, wanted: Collection[str]) -> str | None:
        """What is wrong with the site in words, when all kinds that jobs wait for go on failing; None: one may work."""
        words = [self.held(kind) for kind in wanted if self._failures[kind] >= MOST_FAILURES]
        return words[0] if words and len(words) == len(wanted) and all(words) else None
