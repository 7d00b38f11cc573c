"""The threads that talk to a controller's sites, one per site: their tasks, which sites answer, and how they close."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from lading.hooks.polling.rounds import Poller, Rounds
from lading.hooks.site import ElasticSite, Holding, Observation, Order, Site
from lading.hooks.spool import events
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.reasons import Reason

log = logging.getLogger(__name__)

# The first decision waits this long, in seconds, or until all sites have answered. Otherwise jobs would be told that a
# site does not answer when it does at once. Later decisions wait for no site.
FIRST_LOOK_SECONDS = 0.5
# At the shutdown, the last events of closed sites are acknowledged within this, seconds.
LAST_NEWS_SECONDS = 2.0

# A site that is busy with one call for longer than this counts as not answering, seconds.
SECONDS_UNTIL_SILENT = 10.0
# Least time between two observations of a site, however often events ring the controller's bell, seconds.
SECONDS_BETWEEN_LOOKS = 0.1
# The most events of a site that one tick stores, so that a site with many does not delay the others.
MOST_EVENTS = 500

NOT_YET = "it has not answered yet"
SILENT = f"it has not answered for more than {SECONDS_UNTIL_SILENT:g} s"


class SiteThreads:
    """The threads of all sites of a controller.

    :param sites: by name
    :param ring: called when an observation has found something new
    :param may_act: whether the controller holds its lease
    :param beat: called between the steps of loops and waits, to show that the controller does not hang
    """

    def __init__(
        self,
        sites: Mapping[str, Site[Any]],
        ring: Callable[[], None],
        may_act: Callable[[], bool],
        beat: Callable[[], None],
    ) -> None:
        self.threads = {name: SiteThread(site, ring, may_act) for name, site in sites.items()}
        self.beat = beat
        self.silent: dict[str, str] = {}
        """Why sites count as not answering, as text, by name."""
        self._has_looked = False

    def __iter__(self) -> Iterator[SiteThread]:
        """Iterate over all threads, with a beat before each."""
        for thread in self.threads.values():
            self.beat()
            yield thread

    def answering(self) -> Iterator[SiteThread]:
        """Iterate over the threads of sites that answer. The first call requests observations and waits briefly."""
        if not self._has_looked:
            self._has_looked = True
            self.request_observations()
            self._wait_for_the_first_answers()
        for thread in self:
            if not self._is_silent(thread):
                yield thread

    def request_observations(self, pause: float = 0.0) -> None:
        """Have all sites observed again.

        :param pause: least number of seconds from now
        """
        for thread in self:
            thread.request_observation(pause)

    def await_first_answers(self, seconds: float) -> None:
        """Wait up to ``seconds`` for sites that have not answered yet, since only known jobs can be cancelled."""
        deadline = time.monotonic() + seconds
        for thread in self:
            if not thread.answers_within(0.0):
                thread.request_observation()
        for thread in self:
            while not thread.answers_within(min(1.0, left := deadline - time.monotonic())) and left > 0:
                self.beat()

    def have_news(self) -> bool:
        return any(thread.has_news or thread.has_more for thread in self)

    def exhaust(self, take: Callable[[], object], seconds: float) -> None:
        """Store all events that the sites still report, as far as time allows.

        :param take: stores some of them
        """
        deadline = time.monotonic() + seconds
        take()
        while any(thread.has_more for thread in self.answering()) and time.monotonic() < deadline:
            take()

    def release(self, site: str, reasons: Mapping[str, Reason]) -> None:
        """Release locations of a site, if it still exists and launches locations.

        :param reasons: by location
        """
        if site in self.threads and self.threads[site].site.launches:
            self.threads[site].provide((), reasons)

    def close(self, how: str, seconds: float) -> None:
        """Close all sites at the same time, within this many seconds; a site that hangs is left as it is."""
        deadline = time.monotonic() + seconds
        for thread in self:
            thread.close(how, seconds)
        for thread in self:
            while not thread.closes_within(min(1.0, left := deadline - time.monotonic())) and left > 0:
                self.beat()
        for thread in self:
            if not thread.closes_within(0):
                log.warning("Site %r did not close within %g s", thread.site.name, seconds)

    def end(self) -> None:
        """Acknowledge the last events that were stored, and stop the threads."""
        deadline = time.monotonic() + LAST_NEWS_SECONDS
        for thread in self:
            thread.end(deadline - time.monotonic())

    def silence(self, name: str) -> str:
        """Return why a site does not answer, as text."""
        return self.threads[name].silence() or self.silent.get(name, NOT_YET)

    def troubles(self) -> dict[str, str | None]:
        """Return why each site does not answer, as text; None: it answers."""
        return {name: None if self.threads[name].silence() is None else self.silence(name) for name in self.threads}

    def is_new(self, name: str) -> bool:
        """Return whether a site has not answered yet and does not count as silent either."""
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
        if why == SILENT:  # the call still hangs, so the thread has not logged a failure
            thread.rounds.troubles.begin(thread.rounds.failure, OSError(why))
        self.silent[name] = why
        return True


class SiteThread(Poller):
    """Observes one site and runs the controller's tasks on it, one at a time.

    Tasks run before the next observation. Events are read again only after the controller has acknowledged those that
    it took, because an acknowledgement may say only how many events it covers.

    :param ring: called when an observation has found something that the controller does not know
    :param may_act: whether the controller holds its lease; without it, the site is not called
    """

    def __init__(self, site: Site[Any], ring: Callable[[], None], may_act: Callable[[], bool]) -> None:
        self.site = site
        self.ring = ring
        self.last: Observation | None = None
        """The observation that was taken last."""
        self.has_news = False
        """Whether the latest observation differs from the one before and was not taken yet."""
        self.rounds = Rounds(
            site.name,
            self,
            leisure=self.pause,
            finished=self._note_round,
            on_request=True,
            is_ready=self._can_observe,
            may_act=may_act,
        )
        self._lock = threading.Lock()  # of all below
        self._found: Observation | None = None
        self._events: list[dict[str, Any]] = []
        self._trouble: str | None = NOT_YET
        """The trouble after the round before."""
        self._is_new = False
        self._is_taken = False
        self._is_outdated = False
        """Whether events were taken since the current observation began."""
        self._is_closing = False
        self._is_closed = threading.Event()
        site.on_news = self.request_observation

    # -- called by the controller; only methods with a time limit wait for the site

    def request_observation(self, pause: float = 0.0) -> None:
        """Have the site observed; the first call starts the thread.

        :param pause: least number of seconds from now
        """
        self.rounds.wake(pause)
        self.rounds.start()

    def answers_within(self, seconds: float) -> bool:
        """Wait for the first answer or failure of the site; returns whether either has arrived."""
        return self.rounds.answered_within(seconds)

    def silence(self) -> str | None:
        """Return why the site counts as not answering, as text; None: it answers."""
        if self.rounds.seconds_under_way > SECONDS_UNTIL_SILENT:
            return SILENT
        return self.rounds.trouble if self.answers_within(0.0) else NOT_YET

    def take(self) -> Sequence[dict[str, Any]] | None:
        """Return the next events to store; None: no new observation since the last call.

        Returns the same events until :meth:`settle` is called.
        """
        with self._lock:
            self.has_news = False
            if self._is_new:
                self._is_new, self._is_taken, self._is_outdated, self.last = False, True, True, self._found
            return self._events[:MOST_EVENTS] if self._is_taken else None

    @property
    def has_more(self) -> bool:
        """Whether events of the last observation are not stored yet."""
        return self._is_taken

    def settle(self, error: Exception | None = None) -> bool:
        """Note whether the events that were taken have been stored.

        :param error: why they could not be stored; the next observation finds them again
        :returns: whether all events of the observation are stored
        """
        failure = f"What site {self.site.name!r} reported could not be stored"
        with self._lock:
            if error is not None:
                self.rounds.note_failure(failure, error)
                self.last, self._trouble = None, self.rounds.trouble
            elif self._is_taken:
                del self._events[:MOST_EVENTS]
                if self._events:
                    return False
                if self.last is not None:
                    self._add("acknowledge its events", self.last.acknowledge)
            self._is_taken = False
        if error is None:
            self.rounds.troubles.end(failure)
        return error is None

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        """Have jobs given to locations of the site. A later observation reveals failures."""
        if envelopes:
            self._add("be given its jobs", lambda: self.site.put(envelopes))

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        """Have jobs at locations of the site cancelled. A later observation reveals failures."""
        if reasons:
            self._add("cancel jobs", lambda: self.site.cancel(reasons))

    def provide(self, orders: Sequence[Order], releases: Mapping[str, Reason]) -> None:
        """Have locations launched and released. An order that no later observation shows was not launched."""
        site = self.site
        assert isinstance(site, ElasticSite)
        if orders:
            self._add("launch its orders", lambda: site.launch(orders))
        if releases:
            self._add("release locations", lambda: site.release(releases))

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        """Have jobs returned that have not started."""
        if tokens:
            self._add("return jobs", lambda: self.site.recall(tokens))

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        """Have room held at locations of the site. Events report whether it is."""
        site = self.site
        if holds and isinstance(site, Holding):
            self._add("hold room", lambda: site.hold(holds))

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        """Have held room given up; a hold that could not be dropped expires."""
        site = self.site
        if tokens and isinstance(site, Holding):
            self._add("release the room that it holds", lambda: site.drop(tokens))

    def close(self, how: str, seconds: float) -> None:
        """Have the site closed (see :meth:`Site.close`), and observed once more after that."""
        self._add("be closed", lambda: self._close(how, seconds))

    def closes_within(self, seconds: float) -> bool:
        """Wait until the site has been closed and observed once more; returns whether that is done."""
        return self._is_closed.wait(max(seconds, 0.0))

    def end(self, seconds: float) -> None:
        """Have the thread run its remaining tasks and stop; wait up to this many seconds for that."""
        self.rounds.stop(seconds)

    def _add(self, what: str, do: Callable[[], None]) -> None:
        self.rounds.add(f"Site {self.site.name!r} could not {what}", do)

    # -- the thread

    def round(self) -> None:
        """Observe the site.

        :raises Exception: it could not be observed; a third party's site can return or raise anything
        """
        found = self.site.observe()
        sifted, faults = events.sift(found.events)
        what = f"Site {self.site.name!r} reported something that is not an event"
        self.rounds.troubles.note(what, ValueError(faults[0]) if faults else None)
        with self._lock:
            if self._is_outdated:  # it may have the events that were taken meanwhile, and would acknowledge others
                return
            if found.events or self._found is None or not found.looks_like(self._found):
                self.has_news = True
            self._found, self._events, self._is_new = found, sifted, True

    def pause(self) -> float:
        return SECONDS_BETWEEN_LOOKS

    def _can_observe(self) -> bool:
        with self._lock:
            self._is_outdated = False
            return not (self._is_taken or self._is_closed.is_set())

    def _note_round(self) -> None:
        """Tell the controller if an observation has found something new; repeat one that is outdated."""
        with self._lock:
            if self._is_outdated:
                self.rounds.wake()
                return
            if self.rounds.trouble != self._trouble:
                self.has_news = True
            self._trouble = self.rounds.trouble
            is_news = self.has_news
        if self._is_closing:
            self._is_closed.set()
        if is_news:
            self.ring()

    def _close(self, how: str, seconds: float) -> None:
        try:
            self.site.close(how, seconds)
        finally:
            self._is_closing = True
            self.rounds.wake(None)
