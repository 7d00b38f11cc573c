"""The interface for sending commands and files to a site. A site has one transport, which owns its only connection."""

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
# Seconds until a refused login or a wrong host key is tried again: many failed logins lock an account.
LOGIN_PAUSE = 60.0
# The address of tunnels. Not "localhost", because sshd would silently use only ::1 if 127.0.0.1 is taken.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    """The server to log in to, and its credentials.

    :param name: its name in messages
    :param host: its address
    :param private_key: the user's key, in OpenSSH's format
    :param host_key: its only valid host key: ``ssh-ed25519 AAAA...``
    :param jump_host: the host that leads to it, as an argument of ``ssh``; None: it is reached directly
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
        """The command that connects to it; None: it is reached directly."""
        if self.jump_host is None:
            return None
        return f"ssh -o BatchMode=yes -W {shlex.quote(self.host)}:{self.port} {self.jump_host}"


class SessionRefused(TransportError):
    """The server does not allow another session now; nothing has been sent."""


class Unusable(TransportError):
    """The connection to a site is not set up: it is not defined, or the server has another host key than the known one.

    Retrying is of no use before that has been fixed.
    """


class Transport(ABC):
    """A connection to a site, usable from several threads.

    Every call is one round trip, whatever the number of commands or files. No call blocks for longer than its time-out,
    except to open a connection first.

    :param setup: shell text that goes before all commands, such as ``. /opt/sge/default/common/settings.sh``
    """

    unusable = False
    """Whether the last attempt to connect has failed in a way that retrying does not fix."""
    is_here = False
    """Whether it runs commands on this machine."""

    def __init__(self, *, setup: str = "") -> None:
        self.setup = setup
        # sshd allows 10 concurrent sessions on a connection (MaxSessions), and the connection may be shared.
        self._turns = ExchangeSlots(4)

    def exchange(self, steps: Sequence[RemoteStep], timeout: float = TIMEOUT) -> list[CommandResult]:
        """Do several steps in one round trip; each step runs even if the one before it has failed.

        An answer without a status was cut off or never came, and its standard error explains why; the step may have
        been done.

        :param timeout: seconds for all of them
        """
        if not steps:
            return []
        # A refusal is temporary: other sessions end, though the server counts an ended one for a moment longer.
        retrying = Retrying(
            retry=retry_if_exception_type(SessionRefused),
            wait=wait_random_exponential(0.02, max=0.5),
            stop=stop_after_delay(min(timeout, 15.0)),
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

        :raises TransportError: not all of them could be written, or that is unknown
        """
        self._do(Put(folder, files, executable), timeout)

    def get(self, folder: str, names: Sequence[str], timeout: float = TIMEOUT) -> dict[str, bytes | None]:
        """Read files by name; None for a file that does not exist.

        :raises TransportError: that could not be determined
        """
        step = Get(folder, names)
        return step.files(self._do(step, timeout)) if names else {}

    def remove(self, folder: str, names: Sequence[str], timeout: float = TIMEOUT) -> None:
        """Remove files and whole folders.

        :raises TransportError: not all of them could be removed, or that is unknown
        """
        if names:
            self._do(Remove(folder, names), timeout)

    @abstractmethod
    def tunnel(self, host: str, port: int, remote_port: int = 0, address: str = LOOPBACK) -> int:
        """Make a port at the site lead to a port that this machine can reach.

        Call it again at every tick: it costs nothing while the tunnel exists, and rebuilds on the same port one that
        was lost with its connection.

        :param host: the target, as seen from this machine
        :param remote_port: the port at the site; 0: any free one
        :param address: on which it is opened at the site; a server without GatewayPorts uses the loopback address
        :returns: the port at the site
        :raises TransportError: it could not be built
        """

    @abstractmethod
    def untunnel(self, host: str, port: int) -> None:
        """Close the tunnel to this target and forget its port."""

    @abstractmethod
    def session(self, command: Sequence[str], setup: str = "") -> Session:
        """Start a command for line-based requests, which exits with the connection.

        See :mod:`lading.hooks.ssh.session`.

        :param setup: shell text that goes before it, after that of all commands
        :raises TransportError: the site cannot be reached
        """

    def setup_before(self, setup: str) -> str:
        """Return the shell text before a session: that of all commands, then its own."""
        return "\n".join(filter(None, [self.setup, setup]))

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the next call opens it again."""

    @abstractmethod
    def __str__(self) -> str:
        """Its target, as text without secrets."""

    @abstractmethod
    def _converse(self, exchange: Exchange, timeout: float) -> None:
        """Send the script to a shell, and pass the output to the exchange.

        :raises TransportError: it was cut short
        :raises SessionRefused: it could not start, because there are too many sessions
        """

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fault(self, answer: CommandResult) -> str:
        """Return the message of a failed answer, prefixed with its origin."""
        # Without a status, the message comes from :meth:`exchange`, which has added the origin.
        return answer.message if answer.status is None else f"{self}: {answer.message}"

    def _do(self, step: RemoteStep, timeout: float) -> CommandResult:
        (answer,) = self.exchange([step], timeout)
        if answer.status != 0:
            raise TransportError(answer.stderr.strip() or f"{self}: {type(step).__name__} failed with {answer.status}")
        return answer


class ExchangeSlots:
    """Limits the number of concurrent exchanges, and lowers the limit when a server refuses more.

    :param most: the initial limit
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._busy = 0
        self._change = threading.Condition()

    @contextmanager
    def taken(self, timeout: float) -> Iterator[None]:
        """Hold a slot.

        :raises TransportError: none became free in time
        """
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
        """Lower the limit to the current number of exchanges, because one more has just been refused."""
        with self._change:
            self.most = max(1, min(self.most, self._busy))
