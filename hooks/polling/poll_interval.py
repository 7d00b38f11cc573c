"""How often a site is looked at: often while something changes, ever less when nothing does."""

from __future__ import annotations

import time

# A quiet site is asked again after this share of the time for which it has been quiet.
SHARE_OF_QUIET = 0.1


class PollInterval:
    """When the next look is due.

    :param shortest: seconds between two looks while jobs change
    :param longest: seconds between two looks when nothing has happened for long
    :param share: a quiet site is asked again after this share of the time for which it has been quiet
    """

    def __init__(self, shortest: float, longest: float, share: float = SHARE_OF_QUIET) -> None:
        self.shortest = shortest
        self.longest = longest
        self.share = share
        self._changed_at = time.monotonic()
        self._due = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def changed(self, at: float | None = None) -> None:
        """Something happens, now or at a time on the monotonic clock."""
        self._changed_at = time.monotonic() if at is None else at

    def at_once(self) -> None:
        """Something is to be done at the cluster: the next look is due."""
        self.changed()
        self._due = 0.0

    def soon(self) -> None:
        """Something was done whose effect is seen in a moment."""
        self.changed()
        self._due = time.monotonic() + self.shortest

    def looked(self, *, has_jobs: bool) -> None:
        """A look was made."""
        self._due = time.monotonic() + self.pause(has_jobs=has_jobs)

    def pause(self, *, has_jobs: bool) -> float:
        """Seconds between this look and the next."""
        quiet = (time.monotonic() - self._changed_at) * self.share
        return min(max(quiet, self.shortest), self.longest) if has_jobs else self.longest
