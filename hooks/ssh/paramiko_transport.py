"""The transport over an SSH connection of the deployment, by paramiko."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Sequence

import paramiko
from paramiko.config import SSH_PORT

from lading.hooks.deployment import current
from lading.hooks.deployment.deployment import Login
from lading.hooks.ssh import session
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.exchange import COMMAND, Exchange
from lading.hooks.ssh.session import ChannelSession, Session, close_channel
from lading.hooks.ssh.transport import LOGIN_PAUSE, LOOPBACK, Server, SessionRefused, Transport

log = logging.getLogger(__name__)

READ = 1 << 20
# Seconds between signs of life on an idle connection.
KEEPALIVE = 30
# How often the thread of a connection looks whether a keepalive is due, and where no event says it, whether it is to
# end, seconds. Paramiko's own 0.1 s is half of what idle connections cost.
LOOK_INTERVAL, UNTOLD_LOOK_INTERVAL = 10.0, 0.5


class SSHTransport(Transport):
    """One SSH connection, opened when it is first needed, kept, and opened again when it was lost.

    :param ssh_conn_id: the deployment's SSH connection, such as Airflow's of type ``ssh``; or a server of which all is
        known
    :param setup: see :class:`Transport`
    :param connect_timeout: seconds for each stage of a new connection (TCP, greeting, login) and for a new session
    :param backoff: when a failed connection is tried again
    """

    def __init__(
        self,
        ssh_conn_id: str | Server,
        *,
        setup: str = "",
        connect_timeout: int = 15,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(setup=setup)
        self.server = ssh_conn_id if isinstance(ssh_conn_id, Server) else None
        self.ssh_conn_id = ssh_conn_id.name if isinstance(ssh_conn_id, Server) else ssh_conn_id
        self.connect_timeout = connect_timeout
        self.backoff = backoff or Backoff()
        self._client: paramiko.SSHClient | None = None
        self._opening = threading.Lock()  # others that need the connection while it opens wait for that same one
        self._closing = threading.Lock()  # never held for long: closing does not wait for a server that hangs
        self._closed = 0  # so often
        self._login: Login | None = None  # that connects now
        self._asking = threading.Lock()  # paramiko mixes up the refusals of two who ask at the same time
        self._tunnels: dict[tuple[str, int], ReverseTunnel] = {}

    def tunnel(self, host: str, port: int, remote_port: int = 0, address: str = LOOPBACK) -> int:
        transport = _transport(self._connected())
        with self._opening:
            known = self._tunnels.get((host, port))
            if known is None or address != known.address or remote_port not in {0, known.remote_port}:
                if known is not None:
                    known.cancel()
                known = ReverseTunnel(host, port, remote_port, address)
            found = known.build(transport)
            self._tunnels[host, port] = known
            return found

    def untunnel(self, host: str, port: int) -> None:
        with self._opening:
            if (known := self._tunnels.pop((host, port), None)) is not None:
                known.cancel()

    def session(self, command: Sequence[str], setup: str = "") -> Session:
        _, channel = self._session()
        try:
            return ChannelSession(channel, session.script(command, self.setup_before(setup)), self.connect_timeout)
        except (paramiko.SSHException, EOFError, OSError) as error:
            close_channel(channel)
            raise TransportError(f"{self}: no command can be started: {_message(error)}") from error

    def close(self) -> None:
        with self._closing:
            self._closed += 1
            client, self._client, login = self._client, None, self._login
        if login is not None:
            login.abandon()
        self._drop(client)

    def __str__(self) -> str:
        return f"machine {self.ssh_conn_id}" if self.server is not None else f"SSH connection {self.ssh_conn_id!r}"

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        client, channel = self._session()
        try:
            _transfer(channel, exchange, timeout)
        except TimeoutError as error:
            if not exchange.begun:  # not even the shell has answered: it is the connection that hangs
                self._lost(client)
            raise TransportError(f"no answer within {timeout:g} s") from error
        except TransportError:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise TransportError(f"the connection was lost: {_message(error)}") from error
        finally:
            close_channel(channel)
        if not exchange.complete and not _alive(client):
            raise TransportError("the connection was cut")

    def _session(self) -> tuple[paramiko.SSHClient, paramiko.Channel]:
        """A new session, on a new connection where the old one turns out to be dead."""
        client = self._connected()
        try:
            return client, self._opened(client)
        except SessionRefused:
            raise
        except (paramiko.SSHException, EOFError, OSError):
            self._lost(client)
        client = self._connected()
        try:
            return client, self._opened(client)
        except SessionRefused:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._lost(client)
            raise self.backoff.failed(f"the connection was lost as soon as it was open: {_message(error)}") from error

    def _opened(self, client: paramiko.SSHClient) -> paramiko.Channel:
        try:
            with self._asking:
                return _transport(client).open_session(timeout=self.connect_timeout)
        except paramiko.ChannelException as error:
            raise SessionRefused(f"the SSH server refuses a session, for MaxSessions perhaps: {error}") from error

    def _connected(self) -> paramiko.SSHClient:
        """The living connection; opens it when it is time to.

        :raises TransportError: it is too early, or it failed
        """
        with self._opening:
            if (client := self._client) is not None and _alive(client):
                return client
            self._drop(client)
            self.backoff.check()
            closed, client = self._closed, self._open()
            with self._closing:
                if self._closed == closed:
                    self._client = client
            if self._client is not client:
                self._drop(client)
                raise TransportError("it was closed while it was opened")
            self.unusable = False
            self.backoff.succeeded()
            return client

    def _open(self) -> paramiko.SSHClient:
        where, login = "", None
        try:
            login = current.deployment().ssh_login(
                self.server or self.ssh_conn_id, self.connect_timeout, KEEPALIVE, connected
            )
            where = f" to {login.username}@{login.remote_host}:{login.port}"
            self._login = login
            client = login.open()
            sock = _transport(client).sock
            sock.settimeout(LOOK_INTERVAL if isinstance(sock, UnblockingSocket) else UNTOLD_LOOK_INTERVAL)
            return client
        except Exception as error:  # paramiko, and what the deployment reads connections from, raise whatever they like
            if login is not None:
                login.abandon()
            refused = isinstance(error, (paramiko.AuthenticationException, paramiko.BadHostKeyException))
            if login is not None:
                said, self.unusable = None, _is_lasting(error)
            else:
                said, self.unusable = current.deployment().ssh_fault(self.ssh_conn_id, error)
            message = f"cannot {'log in' if refused else 'connect'}{where}: {said or _message(error)}"
            if self.server is not None and isinstance(error, paramiko.BadHostKeyException):
                message += (
                    "; the server has another key than the one that this machine was given when it was launched: "
                    "either its image does not take keys from user data, as cloud-init does, or another machine "
                    "answers there"
                )
            elif login is not None and isinstance(error, paramiko.BadHostKeyException):
                message += (
                    "; the server has another key than the known one: it was reinstalled, or is another machine."
                    f" Ask who runs it; if the new key is right, {_set_host_key(login)}"
                )
            elif login is not None and "not found in known_hosts" in message:
                message += f"; compare its key with what who runs it says, and {_set_host_key(login)}"
            elif isinstance(error, paramiko.SSHException) and ("banner" in message or "No existing session" in message):
                message += "; the port is open, but no SSH server answers there"
            raise self.backoff.failed(message, at_least=LOGIN_PAUSE if refused else 0.0) from error
        finally:
            self._login = None

    def _lost(self, client: paramiko.SSHClient | None) -> None:
        with self._opening:
            self._drop(client)

    def _drop(self, client: paramiko.SSHClient | None) -> None:
        """Close a connection; another thread may have opened its successor already."""
        if client is not None:
            with contextlib.suppress(Exception):  # what is broken may be broken in any way
                client.close()
        if self._client is client:
            self._client = None


def _transfer(channel: paramiko.Channel, exchange: Exchange, timeout: float) -> None:
    """Send the script and read the answer; raises TimeoutError."""
    deadline = time.monotonic() + timeout
    channel.settimeout(timeout)
    session.begin(channel, COMMAND, timeout)
    try:
        channel.sendall(exchange.script)
        channel.shutdown_write()  # the shell begins when it has read all
    except TimeoutError:
        raise
    except OSError:
        pass  # it is not read any more; what the other side had to say is read below
    # Both streams share a window, so both must be read: waiting for one alone would stop them when the other is full.
    with selectors.DefaultSelector() as selector:
        selector.register(channel.fileno(), selectors.EVENT_READ)
        while not exchange.complete:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            stdout = channel.recv(READ) if channel.recv_ready() else b""
            stderr = channel.recv_stderr(READ) if channel.recv_stderr_ready() else b""
            exchange.receive(stdout, stderr)
            if not stdout and not stderr and (channel.eof_received or channel.closed):
                return


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    """:raises EOFError: the client has been closed"""
    if (transport := client.get_transport()) is None:
        raise EOFError("it has been closed")
    return transport


def _alive(client: paramiko.SSHClient) -> bool:
    transport = client.get_transport()
    return transport is not None and transport.is_active()


def _set_host_key(login: Login) -> str:
    """What to do that a server's key is known."""
    scan = f"ssh-keyscan -p {login.port or SSH_PORT} {login.remote_host}"
    return f"put it (`{scan}` prints it) into {login.where_keys_are()}"


def _is_lasting(error: BaseException) -> bool:
    """Whether time does not fix what a connection has failed for."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    lasting = (paramiko.AuthenticationException, paramiko.BadHostKeyException, FileNotFoundError, PermissionError)
    return isinstance(error, lasting) or "not found in known_hosts" in str(error)


def _message(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


# A port at a site that leads back to this machine.

CONNECT_TIMEOUT = 10.0
TUNNEL_READ = 65536


class ReverseTunnel:
    """A port at a site that leads to ``host:port`` as seen from this machine.

    :param remote_port: the port at the site; 0: any that is free, and the same when it is built again
    :param address: where the server should open it
    """

    def __init__(self, host: str, port: int, remote_port: int, address: str = LOOPBACK) -> None:
        self.host = host
        self.port = port
        self.remote_port = remote_port
        self.address = address
        self._transport: paramiko.Transport | None = None

    def build(self, transport: paramiko.Transport) -> int:
        """Ask for the port, unless this connection has it already, and return it.

        :raises TransportError: the server refuses
        """
        if self._transport is not transport:
            try:
                self.remote_port = transport.request_port_forward(self.address, self.remote_port, self._accept)
            except (paramiko.SSHException, EOFError, OSError) as error:
                wanted = f"port {self.remote_port}" if self.remote_port else "a port"
                raise TransportError(
                    f"the SSH server refuses to open {wanted} that leads to {self.host}:{self.port}: {error}; is it "
                    "taken, or is AllowTcpForwarding off?"
                ) from error
            self._transport = transport
        return self.remote_port

    def cancel(self) -> None:
        """Give the port back, where its connection lives."""
        if self._transport is not None and self._transport.is_active():
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                self._transport.cancel_port_forward(self.address, self.remote_port)
        self._transport = None

    def _accept(self, channel: paramiko.Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
        # paramiko calls this in the one thread that reads the connection: it must not wait for anything.
        threading.Thread(target=self._serve, args=(channel,), name=f"lading-tunnel-{server[1]}", daemon=True).start()

    def _serve(self, channel: paramiko.Channel) -> None:
        try:
            target = socket.create_connection((self.host, self.port), CONNECT_TIMEOUT)
        except OSError as error:
            log.warning("The tunnel to %s:%s leads nowhere: %s", self.host, self.port, error)
            close_channel(channel)
            return
        target.settimeout(None)
        # What the site sends comes in pieces: without this each would wait for the receipt of the one before, 40 ms.
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A thread for each direction, so that two sides that both send before they read do not stop each other.
        forth = threading.Thread(target=_pump, args=(channel, target), daemon=True)
        forth.start()
        _pump(target, channel)
        close_channel(channel)  # also where the client holds its end open, which would keep a thread for ever
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        forth.join()
        target.close()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    """Pass on what comes, and then the end of input."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(TUNNEL_READ):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)


# A TCP connection whose end wakes the thread that reads it, so that this thread need not poll.

# Seconds that sent bytes may stay without an acknowledgement before the kernel gives the connection up.
UNACKNOWLEDGED = 60


class UnblockingSocket(socket.socket):
    """A socket whose ``close`` ends what another thread reads from it, which would else last until its time-out."""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is no longer connected, so no thread waits for it
            self.shutdown(socket.SHUT_RDWR)
        super().close()


def connected(host: str, port: int, timeout: float) -> UnblockingSocket:
    """A connection for paramiko. Its own would wait for 44 ms at each command, for Nagle's algorithm and a delayed
    acknowledgement wait for each other.

    :param timeout: seconds until it stands
    :raises OSError: it cannot be made
    """
    made = UnblockingSocket(fileno=socket.create_connection((host, port), timeout).detach())
    made.settimeout(timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED * 1000)
    return made
