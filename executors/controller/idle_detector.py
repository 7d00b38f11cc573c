"""A lull: a time in which no job is there and no site says anything new, so that few ticks look and decide."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lading.executors.controller.site_threads import SiteThreads
from lading.executors.controller.views import SiteAnswer
from lading.executors.decisions import Decision

# It begins when nothing has happened for so long, seconds.
SECONDS_UNTIL_LULL = 5.0
# Sites are looked at so often then. What comes with time alone, as the end of a machine that has long been idle, is
# decided so late at most, seconds.
SECONDS_BETWEEN_DECISIONS = 5.0


class IdleDetector:
    """Whether there is a lull now.

    While jobs are at a site, or a site cannot be asked, there is none: their deadlines are looked after in each tick.
    """

    def __init__(self) -> None:
        self._stirred_at = self._decided_at = time.monotonic()
        self._is_quiet = False

    def lasts(self, threads: SiteThreads) -> bool:
        """Whether nothing is to be decided now, as far as the sites are concerned.

        :param threads: of all sites, with what they have found
        """
        now = time.monotonic()
        if threads.have_news():
            self._stirred_at = now
            self._is_quiet = False
        is_late = now - self._decided_at >= SECONDS_BETWEEN_DECISIONS
        return self._is_quiet and not is_late and now - self._stirred_at >= SECONDS_UNTIL_LULL

    def decided(self, seen: Sequence[SiteAnswer], decision: Decision, *, is_work: bool) -> None:
        """A decision was made.

        :param seen: what the sites have answered
        :param is_work: whether jobs wait, or a site has not answered
        """
        self._decided_at = time.monotonic()
        provides = any(decision.orders.values()) or any(each.releases for each in decision.provisions.values())
        self._is_quiet = not (is_work or provides or decision.changes or any(each.jobs for each in seen))
        if not self._is_quiet:
            self._stirred_at = self._decided_at
