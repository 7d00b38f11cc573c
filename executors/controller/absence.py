"""Since when something has been missing, on a clock that never jumps."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Absence:
    """What is missing now, and since when."""

    since: dict[str, float] = field(default_factory=dict)

    def look(self, missing: Iterable[str], unasked: Container[str] = ()) -> dict[str, float]:
        """For each token that is missing now: for how many seconds it has been. The others are forgotten.

        :param unasked: those of which nothing could be learnt now, which changes nothing for them
        """
        now = time.monotonic()
        kept = {token: at for token, at in self.since.items() if token in unasked}
        found = {token: self.since.get(token, now) for token in missing}
        self.since = kept | found
        return {token: now - at for token, at in found.items()}

    def seconds(self) -> dict[str, float]:
        """For how many seconds what was missing at the last look has been."""
        now = time.monotonic()
        return {token: now - at for token, at in self.since.items()}
