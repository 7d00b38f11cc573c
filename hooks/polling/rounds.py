"""The thread that looks at a site, or at one of its machines, round by round, and keeps the tunnel to Airflow's API."""

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

# What could not be asked is asked again after this, seconds; the connection has a back-off of its own.
PAUSE_AFTER_TROUBLE = 5.0
# A round that takes longer than this, seconds, is shown: the site may be about to be found away.
SECONDS_UNTIL_SHOWN = 5.0
# A tunnel that is lost is built again within this: tasks that run need it, seconds.
TUNNEL_PAUSE = 1.0
READ = 65536


class Poller(Protocol):
    """What is done in the rounds.

    :param no_api: why jobs cannot reach Airflow's API now; None: they can
    """

    no_api: str | None

    def round(self) -> None:
        """:raises OSError: it could not be asked"""

    def pause(self) -> float:
        """Seconds until the next round."""


class WakeSource(Protocol):
    """A source of the news that there is something to look at."""

    def fileno(self) -> int | None:
        """What select(2) takes, readable when it has something to say; None: it says nothing now."""

    def has_come(self) -> bool:
        """Whether there is something to look at; does not wait."""


class Rounds:
    """The rounds of a poller, until they are stopped.

    :param site: what is looked at, by name
    :param tunnel: None: jobs reach Airflow's API without one
    :param news: what begins a round before its time; None: nothing but :meth:`wake`
    :param leisure: for how many seconds after a round nothing begins the next one, so that what comes meanwhile comes
        together
    """

    def __init__(
        self,
        site: str,
        poller: Poller,
        tunnel: ApiTunnel | None,
        news: WakeSource | None = None,
        leisure: Callable[[], float] = float,
    ) -> None:
        self.site = site
        self.poller = poller
        self.tunnel = tunnel
        self.news = news
        self.leisure = leisure
        self.trouble: str | None = None
        """Why the site could not be asked in the last round; None: it could."""
        self.under_way_since: float | None = None
        """When the round began that is under way, on the monotonic clock."""
        self.stopping = False
        self._troubles = Trouble(log)
        self._woken, self._waker = socket.socketpair()
        for each in (self._woken, self._waker):
            each.setblocking(False)
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lading-site-{site}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs; after :meth:`stop`: a round hangs."""
        return self._thread.is_alive()

    @property
    def silence(self) -> str | None:
        """Since when an answer is waited for, as text; None: for no long time."""
        since = self.under_way_since
        if since is None or (seconds := time.monotonic() - since) < SECONDS_UNTIL_SHOWN:
            return None
        return f"no answer since {format_moment(time.time() - seconds)}"

    def start(self) -> None:
        """Begin, unless that was done or is too late."""
        if self._thread.ident is None and not self.stopping:
            self._thread.start()

    def wake(self) -> None:
        """Begin the next round at once."""
        with contextlib.suppress(BlockingIOError):  # it has been woken often enough
            self._waker.send(b".")

    def answered_within(self, seconds: float) -> bool:
        """Wait for the end of the first round; returns whether there was one."""
        return self._answered.wait(seconds)

    def stop(self, timeout: float) -> None:
        """End after this round, which is waited for."""
        self.stopping = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        what = f"Site {self.site!r} could not be asked"
        while not self.stopping:
            self._was_woken()
            self.under_way_since = time.monotonic()
            try:
                self.poller.no_api = self._without_tunnel()
                self.poller.round()
                self.trouble = None
                self._troubles.end(what)
                # A connection that was lost is there again by now, and the tunnel was lost with it.
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
            time.sleep(min(self.leisure(), pause))
            self._sleep(pause)

    def _without_tunnel(self) -> str | None:
        """Build the tunnel to Airflow's API where it is lost; what keeps it from being built."""
        if self.tunnel is not None:
            try:
                self.tunnel.keep()
            except OSError:
                return f"no tunnel leads to Airflow's API: {self.tunnel.backoff.message}"
        return None

    def _sleep(self, pause: float) -> None:
        """Wait until it is time, or :meth:`wake` is called, or a tunnel that was lost stands again."""
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            if self._wait(left if self.tunnel is None else min(left, TUNNEL_PAUSE)):
                return
            if self.tunnel is not None and not self.tunnel.stands:
                try:
                    self.poller.no_api = self._without_tunnel()
                except Exception as error:  # the next round says what it is
                    self.poller.no_api = f"{type(error).__name__}: {error}"
                if self.poller.no_api is None:
                    return

    def _wait(self, seconds: float) -> bool:
        """Whether the next round is to begin; waits for that."""
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


# How often a site is looked at: often while something changes, ever less when nothing does.

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
