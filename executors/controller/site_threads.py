"""The threads of all sites of a controller: which of them answer, and how all are let go of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lading.executors.controller.site_thread import NOT_YET, SILENT, SiteThread
from lading.hooks.files.logs import Trouble
from lading.hooks.site import Site
from lading.scheduling.reasons import Reason

log = logging.getLogger(__name__)

# What is decided first waits so long, or until all sites have answered, so that jobs are not told that a site cannot
# be asked which answers at once; nothing waits later, seconds.
FIRST_LOOK_SECONDS = 0.5
# The last news of sites that were let go of in time are acknowledged within this, seconds.
LAST_NEWS_SECONDS = 2.0


class SiteThreads:
    """The threads of all sites of a controller.

    :param sites: by name
    :param beat: called in between where something is waited for
    """

    def __init__(
        self,
        sites: Mapping[str, Site[Any]],
        ring: Callable[[], None],
        may_act: Callable[[], bool],
        beat: Callable[[], None],
    ) -> None:
        self.threads = {name: SiteThread(site, ring, may_act, Trouble(log)) for name, site in sites.items()}
        self.beat = beat
        self.silent: dict[str, str] = {}
        """Why sites are to be taken for such that could not be asked, in words."""
        self._has_looked = False

    def __iter__(self) -> Iterator[SiteThread]:
        """All of them, with a beat for each."""
        for thread in self.threads.values():
            self.beat()
            yield thread

    def answering(self) -> Iterator[SiteThread]:
        """Those of sites that answer. At the first time the sites are looked at, and given a moment for that."""
        if not self._has_looked:
            self._has_looked = True
            self.look()
            self._wait_for_the_first_answers()
        for thread in self:
            if not self._is_silent(thread):
                yield thread

    def look(self) -> None:
        """Have all sites looked at again."""
        for thread in self:
            thread.look()

    def meet(self, seconds: float) -> None:
        """Have sites looked at that were not yet, within so many seconds: only what is known there can be ended."""
        deadline = time.monotonic() + seconds
        for thread in self:
            if not thread.answers_within(0.0):
                thread.look()
        for thread in self:
            while not thread.answers_within(min(1.0, left := deadline - time.monotonic())) and left > 0:
                self.beat()

    def have_news(self) -> bool:
        """Whether one of them has found something that is not stored yet."""
        return any(thread.has_news or thread.has_more for thread in self)

    def exhaust(self, take: Callable[[], object], seconds: float) -> None:
        """Have all stored that they have to tell, as far as there is time.

        :param take: stores a part of it
        """
        deadline = time.monotonic() + seconds
        take()
        while any(thread.has_more for thread in self.answering()) and time.monotonic() < deadline:
            take()

    def release(self, site: str, reasons: Mapping[str, Reason]) -> None:
        """Have locations of a site let go; what launches nothing (any more) is not asked.

        :param reasons: by the name of the location, why
        """
        if site in self.threads and self.threads[site].site.launches:
            self.threads[site].provide((), reasons)

    def close(self, how: str, seconds: float) -> None:
        """Let go of all sites at the same time, within so many seconds; one that hangs is left as it is."""
        deadline = time.monotonic() + seconds
        for thread in self:
            thread.close(how, seconds)
        for thread in self:
            while not thread.closes_within(min(1.0, left := deadline - time.monotonic())) and left > 0:
                self.beat()
        for thread in self:
            if not thread.closes_within(0):
                log.warning("Site %r could not be let go of in %g s", thread.site.name, seconds)

    def end(self) -> None:
        """Let the sites know what was stored of their last news, and end the threads."""
        deadline = time.monotonic() + LAST_NEWS_SECONDS
        for thread in self:
            thread.end(deadline - time.monotonic())

    def silence(self, name: str) -> str:
        """Why a site is silent, in words."""
        return self.threads[name].silence() or self.silent.get(name, NOT_YET)

    def troubles(self) -> dict[str, str | None]:
        """Of each site why it does not answer, in words; None: it does."""
        return {name: None if self.threads[name].silence() is None else self.silence(name) for name in self.threads}

    def is_new(self, name: str) -> bool:
        """Whether a site has not answered yet, and is not taken for silent either."""
        return self.silent.get(name) == NOT_YET

    def _wait_for_the_first_answers(self) -> None:
        deadline = time.monotonic() + FIRST_LOOK_SECONDS
        for thread in self:
            thread.answers_within(deadline - time.monotonic())

    def _is_silent(self, thread: SiteThread) -> bool:
        name, why = thread.site.name, thread.silence()
        if why is None:
            self.silent.pop(name, None)
            return False
        if why == SILENT:  # nothing has failed that the thread could have logged
            thread.trouble.begin(thread.failure, OSError(why))
        self.silent[name] = why
        return True
