"""The threads of the sites of a controller: what each does, which sites answer, and how all are let go of."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from lading.hooks.files.logs import Trouble
from lading.hooks.site import ElasticSite, Holding, Observation, Order, Site
from lading.hooks.spool import events
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.reasons import Reason
from lading.scheduling.text.printable import storable

log = logging.getLogger(__name__)

# What is decided first waits so long, or until all sites have answered, so that no job waits with
# the reason that a site cannot be asked which answers at once; nothing waits later, seconds.
FIRST_LOOK_SECONDS = 0.5
# The last news of sites that were let go of in time are acknowledged within this, seconds.
LAST_NEWS_SECONDS = 2.0

# A site that is at one thing for longer than this is taken for one that could not be asked, seconds.
SECONDS_UNTIL_SILENT = 10.0
# Two looks are so far apart at least, however often events ring for the controller, seconds.
SECONDS_BETWEEN_LOOKS = 0.1
# What has failed is tried again after this, seconds.
SECONDS_AFTER_TROUBLE = 2.0
# The most events of a site that one tick stores: a site with many must not keep the others waiting.
MOST_EVENTS = 1000

NOT_YET = "it has not answered yet"
SILENT = f"it has not answered for more than {SECONDS_UNTIL_SILENT:g} s"


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
        """Why sites are to be taken for such that could not be asked, as text."""
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
            self.request_observations()
            self._wait_for_the_first_answers()
        for thread in self:
            if not self._is_silent(thread):
                yield thread

    def request_observations(self, pause: float = 0.0) -> None:
        """Have all sites looked at again.

        :param pause: not before so many seconds have passed
        """
        for thread in self:
            thread.request_observation(pause)

    def await_first_answers(self, seconds: float) -> None:
        """Have sites looked at that were not yet, within so many seconds: only what is known there can be ended."""
        deadline = time.monotonic() + seconds
        for thread in self:
            if not thread.answers_within(0.0):
                thread.request_observation()
        for thread in self:
            while not thread.answers_within(min(1.0, left := deadline - time.monotonic())) and left > 0:
                self.beat()

    def have_news(self) -> bool:
        """Whether one of them has found something that is not stored yet."""
        return any(thread.has_news or thread.has_more for thread in self)

    def exhaust(self, take: Callable[[], object], seconds: float) -> None:
        """Have all stored that they have to report, as far as there is time.

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
        """Why a site is silent, as text."""
        return self.threads[name].silence() or self.silent.get(name, NOT_YET)

    def troubles(self) -> dict[str, str | None]:
        """Of each site why it does not answer, as text; None: it does."""
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


class SiteThread:
    """Asks one site, and does at it what the controller requests, one after the other.

    What is to be done comes before the next look. Events are read again only when the controller has acknowledged
    those that it took: their acknowledgement may be a number of them.

    :param ring: called when a look has found something that the controller does not know
    :param may_act: whether the controller holds its lease; without it nothing is asked of the site
    :param trouble: what is logged once, not each time
    """

    def __init__(
        self, site: Site[Any], ring: Callable[[], None], may_act: Callable[[], bool], trouble: Trouble
    ) -> None:
        self.site = site
        self.ring = ring
        self.may_act = may_act
        self.trouble = trouble
        self.failure = f"Site {site.name!r} could not be asked"
        """What is said of it when it is silent."""
        self.last: Observation | None = None
        """What was taken last."""
        self.has_news = False
        """Whether a look has found something else than the one before, and that was not taken yet."""
        self._found: Observation | None = None
        self._events: list[dict[str, Any]] = []
        self._trouble: str | None = NOT_YET
        self._change = threading.Condition()
        self._tasks: deque[tuple[str, Callable[[], None]]] = deque()
        self._is_new = False
        self._is_taken = False
        self._is_wanted = False
        self._next_look = 0.0
        self._busy_since: float | None = None
        self._phase = "open"
        self._thread = threading.Thread(target=self._run, name=f"site-{site.name}", daemon=True)

    # -- what the controller calls; none of it waits for the site, but where it says for how long

    def request_observation(self, pause: float = 0.0) -> None:
        """Have the site looked at; the thread begins with the first call.

        :param pause: not before so many seconds have passed
        """
        with self._change:
            # Ticks may follow each other faster than that: each of them would put off the look again.
            if not self._is_wanted:
                self._next_look = max(self._next_look, time.monotonic() + pause)
            self._is_wanted = True
            self._change.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    def answers_within(self, seconds: float) -> bool:
        """Wait for the first answer, or for the trouble that keeps it away; returns whether it is there."""
        with self._change:
            return self._change.wait_for(lambda: self._trouble != NOT_YET, max(seconds, 0.0))

    def silence(self) -> str | None:
        """Why the site is to be taken for one that could not be asked, as text; None: it answers."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > SECONDS_UNTIL_SILENT:
            return SILENT
        return self._trouble

    def take(self) -> Sequence[dict[str, Any]] | None:
        """The first events of those that are not stored yet; None: nothing has been found since the last time.

        They are the same until :meth:`settle` says whether they were stored.
        """
        with self._change:
            self.has_news = False
            if self._is_new:
                self._is_new, self._is_taken, self.last = False, True, self._found
            return self._events[:MOST_EVENTS] if self._is_taken else None

    @property
    def has_more(self) -> bool:
        """Whether events of the last look are not stored yet."""
        return self._is_taken

    def settle(self, error: Exception | None = None) -> bool:
        """Say whether the events that were taken have been stored.

        :param error: what kept them from being stored; the next look finds them again
        :returns: whether all that the look has found is stored
        """
        with self._change:
            if self._is_taken and error is None:
                del self._events[:MOST_EVENTS]
                if self._events:
                    return False
            if self._is_taken and error is None and self.last is not None:
                self._tasks.append(("acknowledge its events", self.last.acknowledge))
            self._is_taken = False
            if error is None:
                self.trouble.end(self.failure)
            else:
                self.last, self._trouble = None, self._log_trouble(error)
                self._next_look = time.monotonic() + SECONDS_AFTER_TROUBLE
            self._change.notify_all()
            return error is None

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        """Have jobs given to locations of the site. What fails is seen in a later look."""
        if envelopes:
            self._add("be given its jobs", lambda: self.site.put(envelopes))

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        """Have jobs at locations of the site ended. What fails is seen in a later look."""
        if reasons:
            self._add("be asked to end jobs", lambda: self.site.cancel(reasons))

    def provide(self, orders: Sequence[Order], releases: Mapping[str, Reason]) -> None:
        """Have locations launched and released. What was ordered and is not seen later was not launched."""
        site = self.site
        assert isinstance(site, ElasticSite)
        if orders:
            self._add("launch what was ordered", lambda: site.launch(orders))
        if releases:
            self._add("release what is not needed", lambda: site.release(releases))

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        """Have jobs taken back that have not begun."""
        if tokens:
            self._add("give jobs back", lambda: self.site.recall(tokens))

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        """Have room held at locations of the site. Whether it is, events report."""
        site = self.site
        if holds and isinstance(site, Holding):
            self._add("hold room", lambda: site.hold(holds))

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        """Have room given back; what is not runs out."""
        site = self.site
        if tokens and isinstance(site, Holding):
            self._add("give room back", lambda: site.drop(tokens))

    def close(self, how: str, seconds: float) -> None:
        """Have the site let go of (see :meth:`Site.close`), and looked at once more after that."""
        self._add("be let go of in order", lambda: self._close(how, seconds))

    def closes_within(self, seconds: float) -> bool:
        """Wait until the site has been let go of and looked at; returns whether that is so."""
        with self._change:
            return self._change.wait_for(lambda: self._phase == "closed", max(seconds, 0.0))

    def end(self, seconds: float) -> None:
        """Have what is left done within so many seconds, and the thread ended."""
        with self._change:
            self._phase = "ended"
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join(max(seconds, 0.0))

    # -- the thread

    def _add(self, what: str, do: Callable[[], None]) -> None:
        with self._change:
            self._tasks.append((what, do))
            self._change.notify_all()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            what, do = task
            failure = f"Site {self.site.name!r} could not {what}"
            try:
                if self.may_act():
                    do()
            except Exception as error:  # a third party's site may raise anything
                self._log(failure, error)
            else:
                self.trouble.end(failure)

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        """Wait for what is to be done next; None: nothing more."""
        with self._change:
            self._busy_since = None
            while not self._tasks:
                if self._phase == "ended":
                    return None
                pause = self._next_look - time.monotonic()
                can_look = self._is_wanted and not self._is_taken and self._phase != "closed"
                if can_look and pause <= 0:
                    self._is_wanted = False
                    self._busy_since = time.monotonic()
                    return "be looked at", self._observe
                self._change.wait(pause if can_look else None)
            self._busy_since = time.monotonic()
            return self._tasks.popleft()

    def _observe(self) -> None:
        observation, trouble = None, None
        sifted: list[dict[str, Any]] = []
        try:
            observation = self.site.observe()
            sifted, faults = events.sift(observation.events)
            self._complain(faults)
        except Exception as error:  # a third party's site may say anything
            observation, trouble = None, self._log_trouble(error)
        pause = SECONDS_BETWEEN_LOOKS if trouble is None else SECONDS_AFTER_TROUBLE
        with self._change:
            is_news = trouble != self._trouble or (observation is not None and self._has_news(observation))
            self._trouble = trouble
            self.has_news = self.has_news or is_news
            if observation is not None:
                self._found, self._events, self._is_new = observation, sifted, True
            if self._phase == "closing":
                self._phase = "closed"
            # A tick may have asked for the next one meanwhile.
            self._next_look = max(self._next_look, time.monotonic() + pause)
            self._change.notify_all()
        if is_news:
            self.ring()

    def _log_trouble(self, error: Exception) -> str:
        """Why the site could not be asked, as text, once that is logged."""
        self._log(self.failure, error)
        return storable(str(error)) or type(error).__name__

    def _log(self, what: str, error: Exception) -> None:
        """Log what has failed: what is no OSError may be a fault of ours, or of who wrote the site."""
        self.trouble.begin(what, error, traceback=not isinstance(error, OSError))

    def _complain(self, faults: Sequence[str]) -> None:
        what = f"Site {self.site.name!r} reported something that is not an event"
        if faults:
            self.trouble.begin(what, ValueError(faults[0]))
        else:
            self.trouble.end(what)

    def _has_news(self, found: Observation) -> bool:
        return bool(found.events) or self._found is None or not found.looks_like(self._found)

    def _close(self, how: str, seconds: float) -> None:
        try:
            self.site.close(how, seconds)
        finally:
            with self._change:
                if self._phase == "open":
                    self._phase, self._is_wanted, self._next_look = "closing", True, 0.0
