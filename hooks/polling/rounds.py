"""The threads that talk to sites and to their machines: rounds of polling, and tasks between them.

Every thread between a controller and the outside world is a :class:`Rounds`: that of each site, in which the controller
has it observed and given jobs; those in which a site polls its login node, its provider or each of its machines. So one
that hangs holds up no other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lading.hooks.files.logs import Trouble
from lading.hooks.ssh.answer import TransportError
from lading.scheduling.text.printable import storable
from lading.scheduling.text.units import format_moment

if TYPE_CHECKING:
    from lading.hooks.api_tunnel.tunnel import ApiTunnel

log = logging.getLogger(__name__)

# The shortest pause after a failed round, seconds. While a connection backs off, no round starts.
PAUSE_AFTER_TROUBLE = 2.0
# A round that takes longer than this is shown to users, because the site may be unreachable, seconds.
SECONDS_UNTIL_SHOWN = 5.0
# A lost tunnel is rebuilt within this time, because running tasks need it, seconds.
TUNNEL_PAUSE = 1.0
READ = 65536


class KnownTrouble(OSError):
    """Why the rounds of another thread fail, which has logged that."""


class Poller(Protocol):
    """The work that is done in the rounds.

    :param no_api: why jobs cannot reach Airflow's API now; None: they can
    """

    no_api: str | None = None

    def round(self) -> None:
        """Poll once.

        :raises OSError: the site could not be polled
        """

    def pause(self) -> float:
        """Return the seconds until the next round, unless it is requested earlier."""


class WakeSource(Protocol):
    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable on news, for select(2); None: there is none now."""

    def has_come(self) -> bool:
        """Whether there is news; does not block."""


class Rounds:
    """The rounds of a poller, and tasks between them, in one thread until they are stopped.

    :param site: the name of the site or machine
    :param tunnel: None: jobs reach Airflow's API without one
    :param news: triggers a round early; None: only :meth:`wake` does
    :param leisure: seconds after a round during which no round starts, so that news is collected
    :param finished: called after each round
    :param on_request: whether a round starts only when it is requested
    :param is_ready: whether a round can start; once it is ready again, a task has to be added or a round requested
    :param may_act: whether the site may be contacted; rounds and tasks that are due while it may not are left out
    """

    def __init__(
        self,
        site: str,
        poller: Poller,
        tunnel: ApiTunnel | None = None,
        news: WakeSource | None = None,
        leisure: Callable[[], float] = float,
        finished: Callable[[], None] = lambda: None,
        *,
        on_request: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self.site = site
        self.poller = poller
        self.tunnel = tunnel
        self.news = news
        self.leisure = leisure
        self.finished = finished
        self.on_request = on_request
        self.is_ready = is_ready
        self.may_act = may_act
        self.trouble: str | None = None
        """Why the last round failed; None: it did not."""
        self.under_way_since: float | None = None
        """When the current round or task started, on the monotonic clock; None: none is running."""
        self.stopping = False
        self.troubles = Trouble(log)
        self.failure = f"Site {site!r} could not be polled"
        """The log message while rounds fail."""
        self._tasks: deque[tuple[str, Callable[[], None]]] = deque()
        self._next_at = math.inf if on_request else 0.0  # when the next round starts without a request
        self._change = threading.Condition()  # of the following three
        self._is_requested = False
        self._not_before = 0.0  # when the next round can start
        self._sleeps = False
        # A thread that waits for news waits for descriptors; any other for the condition, which costs less.
        self._pair = socket.socketpair() if news is not None else None
        for each in self._pair or ():
            each.setblocking(False)
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lading-site-{site}", daemon=True)

    # -- called by other threads; only methods with a time limit wait

    @property
    def is_alive(self) -> bool:
        """Whether the thread is still running; after :meth:`stop` that means that a round hangs."""
        return self._thread.is_alive()

    @property
    def seconds_under_way(self) -> float:
        """For how long the current round or task has been running; 0: none is."""
        since = self.under_way_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def silence(self) -> str | None:
        """Since when an answer is pending, as text; None: only for a short time, or no answer is pending."""
        seconds = self.seconds_under_way
        return None if seconds < SECONDS_UNTIL_SHOWN else f"no answer since {format_moment(time.time() - seconds)}"

    def error(self, otherwise: str) -> OSError:
        """Return why there is no answer, for the thread that observes the site.

        :param otherwise: the message if no round has failed
        """
        return OSError(otherwise) if self.trouble is None else KnownTrouble(self.trouble)

    def start(self) -> None:
        """Start the thread unless it was started or stopped before; the first round starts at once."""
        if self._thread.ident is None and not self.stopping:
            self._thread.start()

    def wake(self, pause: float | None = 0.0) -> None:
        """Request a round.

        :param pause: seconds until it can start; a round that is requested already is not put off. None: it can start
            even during the pause after the last round
        """
        with self._change:
            if pause is None:
                self._not_before = 0.0
            elif not self._is_requested:
                self._not_before = max(self._not_before, time.monotonic() + pause)
            self._is_requested = True
        self._nudge()

    def add(self, failure: str, task: Callable[[], None]) -> None:
        """Have a task done before the next round; :meth:`stop` waits for it.

        :param failure: the log message if it fails
        """
        self._tasks.append((failure, task))
        self._nudge()

    def note_failure(self, failure: str, error: Exception) -> float:
        """Note why a round failed, or why its result is of no use.

        :param failure: the log message
        :returns: seconds during which no round starts
        """
        self._complain(failure, error)
        self.trouble = storable(str(error)) or type(error).__name__
        pause = max(PAUSE_AFTER_TROUBLE, error.retry_in if isinstance(error, TransportError) else 0.0)
        self._rest(pause)
        return pause

    def answered_within(self, seconds: float) -> bool:
        """Wait for the first round to finish; return whether it has."""
        return self._answered.wait(max(seconds, 0.0))

    def stop(self, timeout: float) -> None:
        """Stop after the current round and all tasks, and wait for that at most ``timeout`` seconds."""
        self.stopping = True
        self._nudge()
        if self._thread.ident is not None:
            self._thread.join(max(timeout, 0.0))

    # -- the thread

    def _run(self) -> None:
        while (work := self._next()) is not None:
            self._sleeps = False
            if self.may_act():
                work()
            self.under_way_since = None

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next task or round; None: the thread is to stop."""
        while True:
            self._sleeps = True  # before it looks for work: what comes later wakes it
            is_ready = self.is_ready()
            has_news = self.news is not None and self._listens and self.news.has_come()
            with self._change:
                self._is_requested = self._is_requested or has_news
                self.under_way_since = now = time.monotonic()
                if self._tasks:
                    return partial(self._do, *self._tasks.popleft())
                if self.stopping:
                    self.under_way_since = None
                    return None
                due_at = max(self._not_before, now if self._is_requested else self._next_at)
                if is_ready and due_at <= now:
                    self._is_requested = False
                    return self._poll
                self.under_way_since = None
                if not is_ready:
                    due_at = math.inf
                elif self.news is not None and now < self._not_before:
                    due_at = self._not_before  # from then on it listens
            self._sleep(due_at - now)

    def _do(self, failure: str, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # a third party's site can raise anything
            self._complain(failure, error)
        else:
            self.troubles.end(failure)

    def _poll(self) -> None:
        try:
            self._keep_tunnel()
            self.poller.round()
            # A lost connection has been reopened by now, without its tunnel.
            self._keep_tunnel()
            pause = self.poller.pause()
        except Exception as error:  # a third party's site or batch system can raise anything
            pause = self.note_failure(self.failure, error)
        else:
            self.trouble = None
            self.troubles.end(self.failure)
        self._next_at = math.inf if self.on_request else time.monotonic() + pause
        self.under_way_since = None
        self._answered.set()
        self._do(f"The end of a round of site {self.site!r} could not be reported", self.finished)
        self._rest(min(self.leisure(), pause))

    def _rest(self, seconds: float) -> None:
        """Let no round start for so long; one may have been requested for later."""
        with self._change:
            self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _complain(self, failure: str, error: Exception) -> None:
        """Log a failure, with its traceback unless it is an OSError: any other error may be a bug."""
        if not isinstance(error, KnownTrouble):
            self.troubles.begin(failure, error, traceback=not isinstance(error, OSError))

    def _keep_tunnel(self) -> None:
        """Rebuild a lost tunnel to Airflow's API, and tell the poller why that failed."""
        if self.tunnel is not None:
            try:
                self.tunnel.keep()
                self.poller.no_api = None
            except OSError:
                self.poller.no_api = f"no tunnel leads to Airflow's API: {self.tunnel.backoff.message}"

    def _sleep(self, seconds: float) -> None:
        """Wait until a round can start, or something happens that may be a reason for one."""
        if self.tunnel is not None:
            seconds = min(seconds, TUNNEL_PAUSE)
        timeout = None if seconds == math.inf else seconds
        if self.news is None or self._pair is None:
            with self._change:
                if self._sleeps:
                    self._change.wait(timeout)
        else:
            self._await_news(self.news, self._pair[0], timeout)
        if self.tunnel is not None and not self.tunnel.stands:
            try:
                self._keep_tunnel()
            except Exception as error:  # the next round reports it
                self.poller.no_api = f"{type(error).__name__}: {error}"
            if self.poller.no_api is None:
                self.wake()

    def _await_news(self, news: WakeSource, woken: socket.socket, timeout: float | None) -> None:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if self._listens and (descriptor := news.fileno()) is not None:
            poll.register(descriptor, select.POLLIN)
        poll.poll(None if timeout is None else timeout * 1000)
        with contextlib.suppress(BlockingIOError):
            woken.recv(READ)

    @property
    def _listens(self) -> bool:
        """Whether news are awaited: those that come during the pause after a round are read after it."""
        return not self._is_requested and time.monotonic() >= self._not_before

    def _nudge(self) -> None:
        """End the sleep of the thread."""
        with self._change:
            is_asleep, self._sleeps = self._sleeps, False
            self._change.notify()
        if is_asleep and self._pair is not None:
            with contextlib.suppress(BlockingIOError):  # enough wake-ups are pending
                self._pair[1].send(b".")


# How often a site is polled: often while something changes, and ever less when nothing does.

# A quiet site is polled again after this share of the time for which it has been quiet.
SHARE_OF_QUIET = 0.1


class PollInterval:
    """When the next look is due.

    :param shortest: seconds between two looks while jobs change
    :param longest: the most seconds between two looks
    :param share: a quiet site is polled again after this share of the time for which it has been quiet
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
        """Note a change, now or at a time on the monotonic clock."""
        self._changed_at = time.monotonic() if at is None else at

    def at_once(self) -> None:
        """Make the next look due now, because there is something to do at the site."""
        self.changed()
        self._due = 0.0

    def soon(self) -> None:
        """Make the next look due after the shortest pause, because the effect of an action will soon be visible."""
        self.changed()
        self._due = time.monotonic() + self.shortest

    def looked(self, *, has_jobs: bool) -> None:
        self._due = time.monotonic() + self.pause(has_jobs=has_jobs)

    def pause(self, *, has_jobs: bool) -> float:
        """Return the seconds between this look and the next."""
        quiet = (time.monotonic() - self._changed_at) * self.share
        return min(max(quiet, self.shortest), self.longest) if has_jobs else self.longest
