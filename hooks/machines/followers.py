"""One thread that listens to all busy machines of a site, and says which of them has something to tell."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lading.hooks.spool.follow import NEWS
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.session import Session

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

log = logging.getLogger(__name__)

# A session that ends before has not worked, seconds.
LEAST_LIFE = 10.0


class Followers:
    """The sessions in which machines say that there is news.

    :param site: the name of the site
    """

    def __init__(self, site: str) -> None:
        self.site = site
        self._lock = threading.Lock()
        self._sessions: dict[Session, Callable[[], None]] = {}
        self._wakeup = self._wake = -1
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, session: Session, heard: Callable[[], None]) -> None:
        """Listen to a session.

        :param heard: called whenever it has printed something, and when it ends
        """
        with self._lock:
            self._sessions[session] = heard
            if self._thread is None and not self._stopping:
                self._wakeup, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                self._thread = threading.Thread(target=self._run, name=f"lading-followers-{self.site}", daemon=True)
                self._thread.start()
        self._ring()

    def drop(self, session: Session) -> None:
        """Listen no more, and end it."""
        with self._lock:
            self._sessions.pop(session, None)
        self._ring()
        session.close()

    def stop(self) -> None:
        """End all of them."""
        self._stopping = True
        self._ring()
        if self._thread is not None:
            self._thread.join(5.0)
        for session in list(self._sessions):
            self.drop(session)

    def _ring(self) -> None:
        if self._wake >= 0:
            with contextlib.suppress(BlockingIOError):  # it is full of rings
                os.write(self._wake, b".")

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                sessions = dict(self._sessions)
            with selectors.DefaultSelector() as selector:
                selector.register(self._wakeup, selectors.EVENT_READ)
                for session in sessions:
                    try:
                        selector.register(session, selectors.EVENT_READ)
                    except (ValueError, OSError, KeyError):  # it has just been closed
                        self._over(session)
                while not self._stopping:
                    found = [key.fileobj for key, _ in selector.select()]
                    if self._wakeup in found:
                        os.read(self._wakeup, 4096)
                    if not all(self._heard(each) for each in found if isinstance(each, Session)) or (
                        self._wakeup in found
                    ):
                        break

    def _heard(self, session: Session) -> bool:
        """Whether a session that has said something goes on."""
        try:
            said = session.said()
        except (OSError, ValueError):  # it was closed meanwhile
            said = None
        if said is None:
            self._over(session)
        elif NEWS.strip() in said and (heard := self._sessions.get(session)) is not None:
            heard()
        return said is not None

    def _over(self, session: Session) -> None:
        with self._lock:
            heard = self._sessions.pop(session, None)
        if heard is not None:
            heard()


class Follower:
    """The session of one machine, as long as it is busy. It belongs to the machine's thread.

    :param command: that says when there is news
    :param setup: shell text that goes before it
    """

    def __init__(self, followers: Followers, transport: Transport, command: Sequence[str], setup: str) -> None:
        self.followers = followers
        self.transport = transport
        self.command = command
        self.setup = setup
        self.backoff = Backoff()
        self.heard: Callable[[], None] = lambda: None
        """What is done when there is news."""
        self._session: Session | None = None
        self._since = 0.0

    def keep(self, is_busy: bool) -> None:
        """Have a session while the machine is busy; without one it is asked now and then all the same."""
        if self._session is not None and not (is_busy and self._session.alive):
            if is_busy and time.monotonic() - self._since < LEAST_LIFE:
                self.backoff.failed("it ended at once")
            else:
                self.backoff.succeeded()
            self.followers.drop(self._session)
            self._session = None
        if is_busy and self._session is None and self.backoff.left <= 0:
            try:
                self._session = self.transport.session(self.command, self.setup)
            except TransportError as error:
                log.debug("nothing is heard of %s: %s", self.transport, error)
                return
            self._since = time.monotonic()
            self.followers.add(self._session, self.heard)
