"""The transport over one of the deployment's SSH connections, using paramiko."""

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

from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.deployment.deployment import Deployment, Login
from lading.hooks.ssh import session
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.exchange import COMMAND, Exchange
from lading.hooks.ssh.session import ChannelSession, Session, close_channel
from lading.hooks.ssh.transport import LOGIN_PAUSE, LOOPBACK, Server, SessionRefused, Transport

log = logging.getLogger(__name__)

# Seconds between checks of a connection's thread whether a keepalive is due and, if no event tells it, whether to exit.
# Paramiko's default of 0.1 s causes half of the load of idle connections.
LOOK_INTERVAL, UNTOLD_LOOK_INTERVAL = 10.0, 0.5


class SSHTransport(Transport):
    """One SSH connection, opened on first use, kept open, and reopened when it is lost.

    :param ssh_conn_id: the deployment's SSH connection, such as Airflow's of type ``ssh``; or a complete description of
        a server
    :param setup: see :class:`Transport`
    :param connect_timeout: seconds for each stage of a new connection (TCP, greeting, login) and for a new session
    :param backoff: decides when a failed connection is tried again
    :param deployment: the one that has the connection
    """

    def __init__(
        self,
        ssh_conn_id: str | Server,
        *,
        setup: str = "",
        connect_timeout: int = 15,
        backoff: Backoff | None = None,
        deployment: Deployment = AIRFLOW,
    ) -> None:
        super().__init__(setup=setup)
        self.deployment = deployment
        self.server = ssh_conn_id if isinstance(ssh_conn_id, Server) else None
        self.ssh_conn_id = ssh_conn_id.name if isinstance(ssh_conn_id, Server) else ssh_conn_id
        self.connect_timeout = connect_timeout
        self.backoff = backoff or Backoff()
        self._client: paramiko.SSHClient | None = None
        self._opening = threading.Lock()  # threads that need the connection while it opens wait for that one
        self._closing = threading.Lock()  # never held for long, so that closing does not wait for a server that hangs
        self._closed = 0  # how often
        self._login: Login | None = None  # the one under way
        self._asking = threading.Lock()  # paramiko mixes up the refusals of concurrent requests
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
            raise TransportError(f"{self}: the command cannot be started: {_message(error)}") from error

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
            if not exchange.begun:  # the shell has not answered, so the connection hangs
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
        """Open a new session, on a new connection if the old one turns out to be dead."""
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
            raise SessionRefused(
                f"the SSH server refuses a session, perhaps because of MaxSessions: {error}"
            ) from error

    def _connected(self) -> paramiko.SSHClient:
        """Return the open connection; open it if that is due.

        :raises TransportError: it is too early, or opening failed
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
                raise TransportError("it was closed while it was being opened")
            self.unusable = False
            self.backoff.succeeded()
            return client

    def _open(self) -> paramiko.SSHClient:
        where, login = "", None
        try:
            login = self.deployment.ssh_login(
                self.server or self.ssh_conn_id, self.connect_timeout, keepalive=30, open_socket=connected
            )
            where = f" to {login.username}@{login.remote_host}:{login.port}"
            self._login = login
            client = login.open()
            sock = _transport(client).sock
            sock.settimeout(LOOK_INTERVAL if isinstance(sock, UnblockingSocket) else UNTOLD_LOOK_INTERVAL)
            return client
        except Exception as error:  # paramiko and the sources of connections raise errors of any type
            if login is not None:
                login.abandon()
            refused = isinstance(error, (paramiko.AuthenticationException, paramiko.BadHostKeyException))
            if login is not None:
                said, self.unusable = None, _is_lasting(error)
            else:
                said, self.unusable = self.deployment.ssh_fault(self.ssh_conn_id, error)
            message = f"cannot {'log in' if refused else 'connect'}{where}: {said or _message(error)}"
            if self.server is not None and isinstance(error, paramiko.BadHostKeyException):
                message += (
                    "; the server's key is not the one that the machine was given at launch: either its image does "
                    "not take keys from user data, as cloud-init does, or another machine answers at this address"
                )
            elif login is not None and isinstance(error, paramiko.BadHostKeyException):
                message += (
                    "; the server's key has changed: the server was reinstalled, or another machine has its address."
                    f" Ask its administrator; if the new key is right, {_set_host_key(login)}"
                )
            elif login is not None and "not found in known_hosts" in message:
                message += f"; compare its key with the one that its administrator names, and {_set_host_key(login)}"
            elif isinstance(error, paramiko.SSHException) and ("banner" in message or "No existing session" in message):
                message += "; the port is open, but no SSH server answers on it"
            raise self.backoff.failed(message, at_least=LOGIN_PAUSE if refused else 0.0) from error
        finally:
            self._login = None

    def _lost(self, client: paramiko.SSHClient | None) -> None:
        with self._opening:
            self._drop(client)

    def _drop(self, client: paramiko.SSHClient | None) -> None:
        """Close a connection; another thread may already have opened the next one."""
        if client is not None:
            with contextlib.suppress(Exception):  # a broken connection may raise anything
                client.close()
        if self._client is client:
            self._client = None


def _transfer(channel: paramiko.Channel, exchange: Exchange, timeout: float) -> None:
    """Send the script and read the answer.

    :raises TimeoutError: the answer is not complete in time
    """
    deadline = time.monotonic() + timeout
    channel.settimeout(timeout)
    session.begin(channel, COMMAND, timeout)
    try:
        channel.sendall(exchange.script)
        channel.shutdown_write()  # the shell starts once it has read everything
    except TimeoutError:
        raise
    except OSError:
        pass  # the other side has stopped reading; its output is read below
    # Both streams share a window, so both must be read: waiting for one would block if the other is full.
    with selectors.DefaultSelector() as selector:
        selector.register(channel.fileno(), selectors.EVENT_READ)
        while not exchange.complete:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            stdout = channel.recv(1 << 20) if channel.recv_ready() else b""
            stderr = channel.recv_stderr(1 << 20) if channel.recv_stderr_ready() else b""
            exchange.receive(stdout, stderr)
            if not stdout and not stderr and (channel.eof_received or channel.closed):
                return


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    """Return the client's connection.

    :raises EOFError: the client has been closed
    """
    if (transport := client.get_transport()) is None:
        raise EOFError("the client has been closed")
    return transport


def _alive(client: paramiko.SSHClient) -> bool:
    transport = client.get_transport()
    return transport is not None and transport.is_active()


def _set_host_key(login: Login) -> str:
    """Return an instruction for adding a server's key."""
    scan = f"ssh-keyscan -p {login.port or SSH_PORT} {login.remote_host}"
    return f"put it (`{scan}` prints it) into {login.where_keys_are()}"


def _is_lasting(error: BaseException) -> bool:
    """Whether retrying cannot fix this error of a connection."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    lasting = (paramiko.AuthenticationException, paramiko.BadHostKeyException, FileNotFoundError, PermissionError)
    return isinstance(error, lasting) or "not found in known_hosts" in str(error)


def _message(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


# A port at a site that leads back to this machine.


class ReverseTunnel:
    """A port at a site that leads to ``host:port`` as seen from this machine.

    :param remote_port: the port at the site; 0: any free one, which is kept when the tunnel is rebuilt
    :param address: on which the server should open it
    """

    def __init__(self, host: str, port: int, remote_port: int, address: str = LOOPBACK) -> None:
        self.host = host
        self.port = port
        self.remote_port = remote_port
        self.address = address
        self._transport: paramiko.Transport | None = None

    def build(self, transport: paramiko.Transport) -> int:
        """Request the port, unless this connection has it already, and return it.

        :raises TransportError: the server refuses
        """
        if self._transport is not transport:
            try:
                self.remote_port = transport.request_port_forward(self.address, self.remote_port, self._accept)
            except (paramiko.SSHException, EOFError, OSError) as error:
                wanted = f"port {self.remote_port}" if self.remote_port else "a port"
                raise TransportError(
                    f"the SSH server refuses to open {wanted} that leads to {self.host}:{self.port}: {error}; "
                    "is the port taken, or is AllowTcpForwarding off?"
                ) from error
            self._transport = transport
        return self.remote_port

    def cancel(self) -> None:
        """Release the port if its connection is still open."""
        if self._transport is not None and self._transport.is_active():
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                self._transport.cancel_port_forward(self.address, self.remote_port)
        self._transport = None

    def _accept(self, channel: paramiko.Channel, origin: tuple[str, int], server: tuple[str, int]) -> None:
        # paramiko calls this in the only thread that reads the connection, so it must not block.
        threading.Thread(target=self._serve, args=(channel,), name=f"lading-tunnel-{server[1]}", daemon=True).start()

    def _serve(self, channel: paramiko.Channel) -> None:
        try:
            target = socket.create_connection((self.host, self.port), 10.0)
        except OSError as error:
            log.warning("The tunnel to %s:%s leads nowhere: %s", self.host, self.port, error)
            close_channel(channel)
            return
        target.settimeout(None)
        # The site sends data in pieces: without this option each would wait 40 ms for the acknowledgement of the one
        # before.
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # One thread per direction, so that two sides that both send before they read do not block each other.
        forth = threading.Thread(target=_pump, args=(channel, target), daemon=True)
        forth.start()
        _pump(target, channel)
        close_channel(channel)  # even if the client keeps its end open, which would keep a thread forever
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        forth.join()
        target.close()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)


# A TCP connection whose close wakes the thread that reads it, so that this thread need not poll.


class UnblockingSocket(socket.socket):
    """A socket whose ``close`` unblocks other threads that read it; they would otherwise wait until their time-out."""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # not connected, so no thread waits for it
            self.shutdown(socket.SHUT_RDWR)
        super().close()


def connected(host: str, port: int, timeout: float) -> UnblockingSocket:
    """Open a connection for paramiko.

    Paramiko's own would delay each command by 44 ms, because Nagle's algorithm and delayed acknowledgements wait for
    each other.

    :param timeout: seconds for connecting, and then for each operation
    :raises OSError: it cannot be opened
    """
    made = UnblockingSocket(fileno=socket.create_connection((host, port), timeout).detach())
    made.settimeout(timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel drops a connection on which sent bytes stay unacknowledged for a minute (the option is in
        # milliseconds).
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60 * 1000)
    return made
