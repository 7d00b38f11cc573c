"""How commands and files reach a site: the interface. A site has one transport, which owns its one connection."""

from __future__ import annotations

import shlex
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lading.hooks.ssh.answer import CommandResult, TransportError
from lading.hooks.ssh.exchange import Exchange
from lading.hooks.ssh.session import Session
from lading.hooks.ssh.steps import Get, Put, RemoteStep, Remove, RunCommand

# Seconds for one exchange, unless the caller says otherwise.
TIMEOUT = 60.0
# Exchanges at once on a connection: sshd allows 10 sessions (MaxSessions), and others may share the connection.
SESSIONS = 4
# Seconds for which a refused session is asked for again.
REFUSAL_TIMEOUT = 15.0
# Seconds before a refused login or a wrong host key is tried again: many failed logins lock an account.
LOGIN_PAUSE = 60.0
# Where tunnels are opened. Not "localhost": sshd would be content with ::1 alone when 127.0.0.1 is taken.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    """Where to log in, and how.

    :param name: what it is called in messages
    :param host: its address
    :param private_key: of the user, as OpenSSH writes it
    :param host_key: the only one that it may have: ``ssh-ed25519 AAAA...``
    :param jump_host: through which it is reached, as one types it after ``ssh``; None: directly
    """

    name: str
    host: str
    port: int
    user: str
    private_key: str = field(repr=False)
    host_key: str
    jump_host: str | None = None

    @property
    def proxy_command(self) -> str | None:
        """The command that leads to it; None: none is needed."""
        if self.jump_host is None:
            return None
        return f"ssh -o BatchMode=yes -W {shlex.quote(self.host)}:{self.port} {self.jump_host}"


class SessionRefused(TransportError):
    """The server does not allow one more session now; nothing has been sent."""


class Unusable(TransportError):
    """The way to a site is not set up: the connection is not defined, or the server is not the one that is known.

    Time does not fix that, so trying again is of no use before it has been fixed.
    """


class Transport(ABC):
    """A way to a site, usable from several threads.

    Every call is one round trip, whatever the number of commands or files. None blocks for longer than its time-out,
    but for a connection to be opened first.

    :param setup: shell text that goes before all commands, such as ``. /opt/sge/default/common/settings.sh``
    """

    unusable = False
    """Whether the last attempt to connect has failed for something that time does not fix."""
    is_here = False
    """Whether it leads to this machine itself."""

    def __init__(self, *, setup: str = "") -> None:
        self.setup = setup
        self._turns = ExchangeSlots(SESSIONS)

    def exchange(self, steps: Sequence[RemoteStep], timeout: float = TIMEOUT) -> list[CommandResult]:
        """Do several steps in one round trip, each whatever the result of the one before.

        An answer without a status was cut off or never came, its standard error says why; the step may have been done.

        :param timeout: seconds for all of them
        """
        if not steps:
            return []
        # A refusal passes: others end their sessions, and one that has ended counts at the server for a moment longer.
        retrying = Retrying(
            retry=retry_if_exception_type(SessionRefused),
            wait=wait_random_exponential(0.02, max=0.5),
            stop=stop_after_delay(min(timeout, REFUSAL_TIMEOUT)),
            reraise=True,
        )
        try:
            return retrying(self._exchange, steps, timeout)
        except SessionRefused as error:
            return [CommandResult(None, "", f"{self}: {error}") for _ in steps]

    def _exchange(self, steps: Sequence[RemoteStep], timeout: float) -> list[CommandResult]:
        exchange = Exchange(steps, setup=self.setup, timeout=timeout)
        try:
            with self._turns.taken(timeout):
                self._converse(exchange, timeout)
        except SessionRefused:
            self._turns.lower()
            raise
        except TransportError as error:
            return exchange.answers(f"{self}: {error}")
        return exchange.answers(f"{self}: {exchange.silence()}")

    def run(
        self, commands: Sequence[str | Sequence[str] | RunCommand], timeout: float = TIMEOUT
    ) -> list[CommandResult]:
        """Run several commands, one after the other; see :meth:`exchange`."""
        return self.exchange([each if isinstance(each, RunCommand) else RunCommand(each) for each in commands], timeout)

    def put(
        self,
        folder: str,
        files: Mapping[str, bytes],
        *,
        executable: Collection[str] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        """Write files; see :class:`lading.hooks.ssh.steps.Put`.

        :raises TransportError: not all of them could be written, or that is not known
        """
        self._do(Put(folder, files, executable), timeout)

    def get(self, folder: str, names: Sequence[str], timeout: float = TIMEOUT) -> dict[str, bytes | None]:
        """Read files by name; None for one that is not there.

        :raises TransportError: that could not be found out
        """
        step = Get(folder, names)
        return step.files(self._do(step, timeout)) if names else {}

    def remove(self, folder: str, names: Sequence[str], timeout: float = TIMEOUT) -> None:
        """Remove files and whole folders.

        :raises TransportError: not all of them could be removed, or that is not known
        """
        if names:
            self._do(Remove(folder, names), timeout)

    @abstractmethod
    def tunnel(self, host: str, port: int, remote_port: int = 0, address: str = LOOPBACK) -> int:
        """Let a port at the site lead to a port that this machine reaches.

        Ask again at every tick: it costs nothing while the tunnel is there, and one that went with its connection is
        built again on the same port.

        :param host: where it leads to, as seen from this machine
        :param remote_port: the port at the site; 0: any that is free
        :param address: where it is opened at the site; a server without GatewayPorts opens it on the loopback address
        :returns: the port at the site
        :raises TransportError: it could not be built
        """

    @abstractmethod
    def untunnel(self, host: str, port: int) -> None:
        """Close the tunnel that leads there and forget its port."""

    @abstractmethod
    def session(self, command: Sequence[str], setup: str = "") -> Session:
        """Start a command to talk with, which ends with the connection; see :mod:`lading.hooks.ssh.session`.

        :param setup: shell text that goes before it, after that of all commands
        :raises TransportError: the site cannot be reached
        """

    def setup_before(self, setup: str) -> str:
        """The shell text before a session: that of all commands, then its own."""
        return "\n".join(filter(None, [self.setup, setup]))

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection; the next call opens it again."""

    @abstractmethod
    def __str__(self) -> str:
        """Where it leads, as text, without secrets."""

    @abstractmethod
    def _converse(self, exchange: Exchange, timeout: float) -> None:
        """Send the script to a shell and hand the exchange what comes back.

        :raises TransportError: it ended early
        :raises Refused: it could not begin, for there are too many at once
        """

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fault(self, answer: CommandResult) -> str:
        """What an answer says that is no good one, with where it comes from."""
        # Without a status it comes from :meth:`exchange`, which has said that already.
        return answer.message if answer.status is None else f"{self}: {answer.message}"

    def _do(self, step: RemoteStep, timeout: float) -> CommandResult:
        (answer,) = self.exchange([step], timeout)
        if answer.status != 0:
            raise TransportError(answer.stderr.strip() or f"{self}: {type(step).__name__} ended with {answer.status}")
        return answer


class ExchangeSlots:
    """At most so many exchanges at once, and fewer where a server has refused more.

    :param most: at first
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._busy = 0
        self._change = threading.Condition()

    @contextmanager
    def taken(self, timeout: float) -> Iterator[None]:
        """:raises TransportError: the others took too long"""
        with self._change:
            if not self._change.wait_for(lambda: self._busy < self.most, timeout):
                raise TransportError(f"{self._busy} other exchanges were still under way after {timeout:g} s")
            self._busy += 1
        try:
            yield
        finally:
            with self._change:
                self._busy -= 1
                self._change.notify()

    def lower(self) -> None:
        """Be content with as many as are under way now: one more has just been refused."""
        with self._change:
            self.most = max(1, min(self.most, self._busy))
