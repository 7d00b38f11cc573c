"""The transport over an SSH connection of Airflow's, by paramiko."""

from __future__ import annotations

import binascii
import contextlib
import io
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.config import SSH_PORT

from lading.hooks.ssh import session
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.exchange import COMMAND, Exchange
from lading.hooks.ssh.session import ChannelSession, Session, close_channel
from lading.hooks.ssh.transport import LOGIN_PAUSE, LOOPBACK, Server, SessionRefused, Transport

if TYPE_CHECKING:
    from airflow.providers.ssh.hooks.ssh import SSHHook

log = logging.getLogger(__name__)

READ = 1 << 20
# Seconds between signs of life on an idle connection.
KEEPALIVE = 30
# How often the thread of a connection looks whether a keepalive is due, and where no event says it, whether it is to
# end, seconds. Paramiko's own 0.1 s is half of what idle connections cost.
LOOK_INTERVAL, UNTOLD_LOOK_INTERVAL = 10.0, 0.5


class SSHTransport(Transport):
    """One SSH connection, opened when it is first needed, kept, and opened again when it was lost.

    :param ssh_conn_id: Airflow's connection of type ``ssh``, with all that Airflow takes from it: keys, agents, host
        keys, jump hosts (ProxyCommand in ``~/.ssh/config``); or a server of which all is known
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
        self._hook: SSHHook | None = None  # that connects now
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
            client, self._client, hook = self._client, None, self._hook
        if hook is not None:
            _abandon(hook)
        self._drop(client)

    def __str__(self) -> str:
        return f"machine {self.ssh_conn_id}" if self.server is not None else f"SSH connection {self.ssh_conn_id!r}"

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        client, channel = self._session()
        try:
            _talk(channel, exchange, timeout)
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
        where, hook = "", None
        try:
            hook = _hook(self.server or self.ssh_conn_id, self.connect_timeout)
            where = f" to {hook.username}@{hook.remote_host}:{hook.port}"
            self._hook = hook
            client = hook.get_conn()
            sock = _transport(client).sock
            sock.settimeout(LOOK_INTERVAL if isinstance(sock, UnblockingSocket) else UNTOLD_LOOK_INTERVAL)
            return client
        except Exception as error:  # paramiko, Airflow's hook and its secrets backends raise whatever they like
            if hook is not None:
                _abandon(hook)
            refused = isinstance(error, (paramiko.AuthenticationException, paramiko.BadHostKeyException))
            self.unusable = _is_lasting(error) if hook is not None else _is_wrong(error)
            undefined = hook is None and _is_undefined(error)
            said = _undefined(self.ssh_conn_id, error) if undefined else _message(error)
            message = f"cannot {'log in' if refused else 'connect'}{where}: {said}"
            if self.server is not None and isinstance(error, paramiko.BadHostKeyException):
                message += (
                    "; the server has another key than the one that this machine was given when it was launched: "
                    "either its image does not take keys from user data, as cloud-init does, or another machine "
                    "answers there"
                )
            elif hook is not None and isinstance(error, paramiko.BadHostKeyException):
                message += (
                    "; the server has another key than the known one: it was reinstalled, or is another machine."
                    f" Ask who runs it; if the new key is right, {_set_host_key(hook)}"
                )
            elif hook is not None and "not found in known_hosts" in message:
                message += f"; compare its key with what who runs it says, and {_set_host_key(hook)}"
            elif isinstance(error, paramiko.SSHException) and ("banner" in message or "No existing session" in message):
                message += "; the port is open, but no SSH server answers there"
            raise self.backoff.failed(message, at_least=LOGIN_PAUSE if refused else 0.0) from error
        finally:
            self._hook = None

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


def _talk(channel: paramiko.Channel, exchange: Exchange, timeout: float) -> None:
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


def _hook(to: str | Server, timeout: int) -> SSHHook:
    """Airflow's hook, on a socket of ours.

    :param to: a connection of Airflow's, or a server of which all is known
    """
    from airflow.providers.ssh.hooks.ssh import SSHHook

    class SiteHook(SSHHook):
        @cached_property
        def host_proxy(self) -> Any:
            made = super().host_proxy or connected(self.remote_host, self.port or SSH_PORT, timeout)
            vars(self)["made"] = made
            if "is_abandoned" in vars(self):  # since this began, perhaps before this was made
                made.close()
                raise OSError("it was closed while it was opened")
            return made

    # Once: it would sleep between attempts.
    options: dict[str, Any] = {"keepalive_interval": KEEPALIVE, "conn_retry_attempts": 1}
    options |= dict.fromkeys(("conn_timeout", "banner_timeout", "auth_timeout"), timeout)
    if isinstance(to, str):
        return SiteHook(to, **options)
    hook = SiteHook(None, to.host, to.user, port=to.port, host_proxy_cmd=to.proxy_command, **options)
    hook.key_file, hook.look_for_keys = None, False  # whatever ~/.ssh/config says
    hook.compress = False  # it takes 0.3 MiB at both ends of each connection, and archives are small as they are
    hook.pkey = paramiko.Ed25519Key.from_private_key(io.StringIO(to.private_key))
    hook.host_key = paramiko.Ed25519Key(data=binascii.a2b_base64(to.host_key.split()[1]))
    return hook


def _set_host_key(hook: SSHHook) -> str:
    """What to do that a server's key is known."""
    scan = f"ssh-keyscan -p {hook.port or SSH_PORT} {hook.remote_host}"
    return (
        f"put it (`{scan}` prints it) into known_hosts, or into the extra fields of the connection "
        f'{hook.ssh_conn_id!r}: "host_key": "ssh-ed25519 AAAA..."'
    )


def _abandon(hook: SSHHook) -> None:
    """Close what a failed login has left open: it would hold one of the server's MaxStartups for minutes."""
    vars(hook)["is_abandoned"] = True
    if (made := vars(hook).get("made")) is not None:
        with contextlib.suppress(Exception):  # what is broken may be broken in any way
            made.close()


def _is_undefined(error: BaseException) -> bool:
    """Whether the connection is not defined; Airflow has one such error for its core and one for tasks."""
    return type(error).__name__ == "AirflowNotFoundException"


def _undefined(ssh_conn_id: str, error: BaseException) -> str:
    """What to do about a connection that is not defined, as Airflow says also of one that it cannot read."""
    variable = f"AIRFLOW_CONN_{ssh_conn_id.upper()}"
    example = "'ssh://user@login.example.org?key_file=/home/user/.ssh/id_ed25519'"
    if os.environ.get(variable):  # its value may have a password
        return f"{variable} is set, but cannot be read as a connection; valid: JSON, or a URI such as {example}"
    return (
        f"{_message(error)}; set {variable}, for example to {example}. In Airflow's own processes it may also be in "
        f"the database: `airflow connections add {ssh_conn_id} --conn-type ssh --conn-host ...`"
    )


def _is_wrong(error: BaseException) -> bool:
    """Whether what the connection says is missing or makes no sense; a secrets backend that is away is neither."""
    from airflow.exceptions import AirflowException

    return _is_undefined(error) or isinstance(error, (AirflowException, ValueError, TypeError, ImportError))


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
        back = threading.Thread(target=_pump, args=(target, channel), daemon=True)
        back.start()
        _pump(channel, target)
        back.join()
        target.close()
        close_channel(channel)


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
