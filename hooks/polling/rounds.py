"""The thread that polls a site, or one of its machines, in rounds, and keeps the tunnel to Airflow's API open."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from lading.hooks.files.logs import Trouble
from lading.scheduling.text.units import format_moment

if TYPE_CHECKING:
    from lading.hooks.api_tunnel.tunnel import ApiTunnel

log = logging.getLogger(__name__)

# Seconds until the next round after a failed one; the connection has its own back-off.
PAUSE_AFTER_TROUBLE = 5.0
# A round that takes longer than this is shown to users, because the site may be unreachable, seconds.
SECONDS_UNTIL_SHOWN = 5.0
# A lost tunnel is rebuilt within this time, because running tasks need it, seconds.
TUNNEL_PAUSE = 1.0
READ = 65536


class Poller(Protocol):
    """The work that is done in the rounds.

    :param no_api: why jobs cannot reach Airflow's API now; None: they can
    """

    no_api: str | None

    def round(self) -> None:
        """Poll once.

        :raises OSError: the site could not be polled
        """

    def pause(self) -> float:
        """Return the seconds until the next round."""


class WakeSource(Protocol):
    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable on news, for select(2); None: there is none now."""

    def has_come(self) -> bool:
        """Whether there is news; does not block."""


class Rounds:
    """The rounds of a poller, until they are stopped.

    :param site: the name of the site or machine
    :param tunnel: None: jobs reach Airflow's API without one
    :param news: triggers a round early; None: only :meth:`wake` does
    :param leisure: seconds after a round during which no round starts, so that news is collected
    :param finished: called after each round
    """

    def __init__(
        self,
        site: str,
        poller: Poller,
        tunnel: ApiTunnel | None,
        news: WakeSource | None = None,
        leisure: Callable[[], float] = float,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self.site = site
        self.poller = poller
        self.tunnel = tunnel
        self.news = news
        self.leisure = leisure
        self.finished = finished
        self.trouble: str | None = None
        """Why the last round failed; None: it did not."""
        self.under_way_since: float | None = None
        """When the current round started, on the monotonic clock; None: none is running."""
        self.stopping = False
        self._troubles = Trouble(log)
        self._woken, self._waker = socket.socketpair()
        for each in (self._woken, self._waker):
            each.setblocking(False)
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lading-site-{site}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is still running; after :meth:`stop` that means that a round hangs."""
        return self._thread.is_alive()

    @property
    def silence(self) -> str | None:
        """Since when an answer is pending, as text; None: only for a short time, or no answer is pending."""
        since = self.under_way_since
        if since is None or (seconds := time.monotonic() - since) < SECONDS_UNTIL_SHOWN:
            return None
        return f"no answer since {format_moment(time.time() - seconds)}"

    def start(self) -> None:
        """Start the thread unless it was started or stopped before."""
        if self._thread.ident is None and not self.stopping:
            self._thread.start()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough wake-ups are pending
            self._waker.send(b".")

    def answered_within(self, seconds: float) -> bool:
        """Wait for the first round to finish; return whether it has."""
        return self._answered.wait(seconds)

    def stop(self, timeout: float) -> None:
        """Stop after the current round, and wait for that at most ``timeout`` seconds."""
        self.stopping = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        what = f"Site {self.site!r} could not be polled"
        while not self.stopping:
            self._was_woken()
            self.under_way_since = time.monotonic()
            try:
                self.poller.no_api = self._without_tunnel()
                self.poller.round()
                self.trouble = None
                self._troubles.end(what)
                # A lost connection has been reopened by now, without its tunnel.
                self.poller.no_api = self._without_tunnel()
                pause = self.poller.pause()
            except OSError as error:
                self._troubles.begin(what, error)
                self.trouble, pause = str(error), PAUSE_AFTER_TROUBLE
            except Exception as error:  # a third party's batch system may raise anything
                self._troubles.begin(what, error, traceback=True)
                self.trouble, pause = f"{type(error).__name__}: {error}", PAUSE_AFTER_TROUBLE
            self.under_way_since = None
            self._answered.set()
            self.finished()
            time.sleep(min(self.leisure(), pause))
            self._sleep(pause)

    def _without_tunnel(self) -> str | None:
        """Rebuild a lost tunnel to Airflow's API; return why that failed, or None."""
        if self.tunnel is not None:
            try:
                self.tunnel.keep()
            except OSError:
                return f"no tunnel leads to Airflow's API: {self.tunnel.backoff.message}"
        return None

    def _sleep(self, pause: float) -> None:
        """Wait until the pause is over, :meth:`wake` is called, or a lost tunnel has been rebuilt."""
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            if self._wait(left if self.tunnel is None else min(left, TUNNEL_PAUSE)):
                return
            if self.tunnel is not None and not self.tunnel.stands:
                try:
                    self.poller.no_api = self._without_tunnel()
                except Exception as error:  # the next round reports it
                    self.poller.no_api = f"{type(error).__name__}: {error}"
                if self.poller.no_api is None:
                    return

    def _wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; return whether the next round is to start."""
        if self.news is not None and self.news.has_come():
            return True
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self.news is not None and (descriptor := self.news.fileno()) is not None:
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        return self._was_woken()

    def _was_woken(self) -> bool:
        try:
            return bool(self._woken.recv(READ))
        except BlockingIOError:
            return False


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
