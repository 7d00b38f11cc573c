"""How allocations start: where some have ended before they could run a job, others like them are asked for rarely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from lading.hooks.allocation_ledger import Allocation, Fleet
from lading.hooks.allocation_script import PLAIN
from lading.hooks.cluster_pressure import BackPressure
from lading.scheduling.allocations import Launch

# So many in a row of one kind are a trouble which people are told of.
MOST_FAILURES = 2


class AllocationStarts:
    """What became of the last allocations of each kind: those of a queue may fail while others work."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._failures: Counter[str] = Counter()
        self._pauses: dict[str, BackPressure] = {}
        self._words: dict[str, str] = {}

    def failed(self, kind: str, words: str) -> None:
        """An allocation of this kind has ended before it could run a job."""
        self._failures[kind] += 1
        self._words[kind] = words
        self._pauses.setdefault(kind, BackPressure(1)).hold(words)

    def worked(self, kind: str) -> None:
        """An allocation of this kind runs a job."""
        self._failures.pop(kind, None)
        self._words.pop(kind, None)
        self._pauses.pop(kind, None)

    def stopped(self, kinds: Iterable[str]) -> dict[str, str]:
        """Those of the kinds of which no allocation is asked for now, each with the reason in words."""
        reasons = {kind: self._held(kind) or self._unexplained(kind) or self._on_trial(kind) for kind in kinds}
        return {kind: words for kind, words in reasons.items() if words is not None}

    def singly(self, launches: Sequence[Launch]) -> list[Launch]:
        """Of a kind whose last allocation has run nothing only the first launch, of the others all."""
        found: list[Launch] = []
        for each in launches:
            if each.kind not in self._words or all(other.kind != each.kind for other in found):
                found.append(each)
        return found

    def trouble(self, waiting: Collection[str]) -> str | None:
        """What is wrong with the site, in words: jobs wait that any site could run, and nothing here ever runs one.

        Jobs with directives of their own can go nowhere else. They are told what is wrong, and no other job is.

        :param waiting: the kinds of the jobs that wait
        """
        if PLAIN not in waiting or self._failures[PLAIN] < MOST_FAILURES:
            return None
        working = any(each.worked and each.is_up for each in self.fleet.allocations.values())
        return None if working else self._words[PLAIN]

    def _held(self, kind: str) -> str | None:
        return self._pauses[kind].held() if kind in self._pauses else None

    def _unexplained(self, kind: str) -> str | None:
        """The allocation that has ended before it began, as long as it is being looked into."""
        for each in self._unworked(kind):
            if each.batch.gone_since is not None and each.ends_at is None:
                return f"allocation {each.name} has ended before it could run a job"
        return None

    def _on_trial(self, kind: str) -> str | None:
        """The allocation that shall show whether others like it can work again."""
        failure, tried = self._words.get(kind), next(self._unworked(kind), None)
        return f"{failure}; waits for what becomes of allocation {tried.name}" if failure and tried else None

    def _unworked(self, kind: str) -> Iterator[Allocation]:
        """The allocations of a kind that may still run their first job, as far as is known."""
        for each in self.fleet.allocations.values():
            if each.terms.kind == kind and not (each.worked or each.over or each.draining):
                yield each
