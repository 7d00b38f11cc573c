"""The transport over an SSH connection of Airflow's, by paramiko."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

import paramiko
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from lading.hooks.exchange import COMMAND, Exchange, TransportError
from lading.hooks.reverse_tunnel import ReverseTunnel
from lading.hooks.transport import Backoff, Transport

if TYPE_CHECKING:
    from airflow.providers.ssh.hooks.ssh import SSHHook

READ = 1 << 20
# Sessions at once on the connection: sshd allows 10 (MaxSessions), and other people's tools may share the account.
SESSIONS = 4
# Seconds before a refused login or a wrong host key is tried again: many failed logins lock an account.
LOGIN_PAUSE = 60.0
# Seconds that sent bytes may stay without an acknowledgement before the kernel gives the connection up.
UNACKNOWLEDGED = 60


class SSHTransport(Transport):
    """One SSH connection, opened when it is first needed, kept, and opened again when it was lost.

    :param ssh_conn_id: Airflow's connection of type ``ssh``, with all that Airflow takes from it: keys, agents, host
        keys, jump hosts (ProxyCommand in ``~/.ssh/config``)
    :param setup: see :class:`Transport`
    :param connect_timeout: seconds for each stage of a new connection (TCP, greeting, login) and for a new session
    :param keepalive: seconds between signs of life on an idle connection
    :param backoff: when a failed connection is tried again
    """

    def __init__(
        self,
        ssh_conn_id: str,
        *,
        setup: str = "",
        connect_timeout: int = 15,
        keepalive: int = 30,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(setup=setup)
        self.ssh_conn_id = ssh_conn_id
        self.connect_timeout = connect_timeout
        self.keepalive = keepalive
        self.backoff = backoff or Backoff()
        self._client: paramiko.SSHClient | None = None
        self._opening = threading.Lock()  # whoever comes while the connection opens waits for that same connection
        self._sessions = threading.BoundedSemaphore(SESSIONS)
        self._tunnels: dict[tuple[str, int], ReverseTunnel] = {}

    def tunnel(self, host: str, port: int, remote_port: int = 0) -> int:
        transport = _transport(self._connected())
        with self._opening:
            known = self._tunnels.get((host, port))
            if known is None or remote_port not in {0, known.remote_port}:
                known = ReverseTunnel(host, port, remote_port)
            found = known.build(transport)
            self._tunnels[host, port] = known
            return found

    def close(self) -> None:
        with self._opening:
            self._drop(self._client)

    def __str__(self) -> str:
        return f"SSH connection {self.ssh_conn_id!r}"

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        if not self._sessions.acquire(timeout=timeout):
            raise TransportError(f"{SESSIONS} other exchanges were still under way after {timeout:g} s")
        try:
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
                raise TransportError(f"the connection was lost: {_words(error)}") from error
            finally:
                channel.close()
            if not exchange.complete and not _transport(client).is_active():
                raise TransportError("the connection was cut")
        finally:
            self._sessions.release()

    def _session(self) -> tuple[paramiko.SSHClient, paramiko.Channel]:
        """A new session, on a new connection where the old one turns out to be dead."""
        client = self._connected()
        try:
            return client, self._opened(client)
        except (paramiko.SSHException, EOFError, OSError) as error:
            if isinstance(error, paramiko.ChannelException):
                raise TransportError(f"the SSH server refuses a session, for MaxSessions perhaps: {error}") from error
            self._lost(client)
        client = self._connected()
        try:
            return client, self._opened(client)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._lost(client)
            raise self.backoff.failed(f"{self} was lost as soon as it was open: {_words(error)}") from error

    def _opened(self, client: paramiko.SSHClient) -> paramiko.Channel:
        # A refusal passes: a session that was closed counts at the server for a moment longer.
        retrying = Retrying(
            retry=retry_if_exception_type(paramiko.ChannelException),
            wait=wait_random_exponential(0.02, max=0.5),
            stop=stop_after_delay(self.connect_timeout),
            reraise=True,
        )
        return retrying(_transport(client).open_session, timeout=self.connect_timeout)

    def _connected(self) -> paramiko.SSHClient:
        """The living connection; opens it when it is time to.

        :raises TransportError: it is too early, or it failed
        """
        with self._opening:
            if self._client is None or not _transport(self._client).is_active():
                self._drop(self._client)
                self.backoff.check()
                self._client = self._open()
                self.backoff.succeeded()
            return self._client

    def _open(self) -> paramiko.SSHClient:
        where = str(self)
        try:
            hook = self._hook()
            where = f"{hook.username}@{hook.remote_host}:{hook.port}"
            client = hook.get_conn()
            _tune(_transport(client))
        except (paramiko.AuthenticationException, paramiko.BadHostKeyException) as error:
            raise self.backoff.failed(f"cannot log in to {where}: {_words(error)}", at_least=LOGIN_PAUSE) from error
        except Exception as error:  # paramiko, Airflow's hook and its secrets backends raise whatever they like
            raise self.backoff.failed(f"cannot connect to {where}: {_words(error)}") from error
        return client

    def _hook(self) -> SSHHook:
        from airflow.providers.ssh.hooks.ssh import SSHHook

        return SSHHook(
            self.ssh_conn_id,
            conn_timeout=self.connect_timeout,
            banner_timeout=self.connect_timeout,
            auth_timeout=self.connect_timeout,
            keepalive_interval=self.keepalive,
            conn_retry_attempts=1,  # it would sleep between them
        )

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
    """Send the script and hear the answer; raises TimeoutError."""
    deadline = time.monotonic() + timeout
    channel.settimeout(timeout)
    channel.exec_command(COMMAND)
    try:
        channel.sendall(exchange.script)
        channel.shutdown_write()  # the shell begins when it has read all
    except TimeoutError:
        raise
    except OSError:
        pass  # nobody reads it; what the other side had to say is heard below
    # Both streams share a window, so both must be read: waiting for one alone would stop them when the other is full.
    with selectors.DefaultSelector() as selector:
        selector.register(channel.fileno(), selectors.EVENT_READ)
        while not exchange.complete:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            stdout = channel.recv(READ) if channel.recv_ready() else b""
            stderr = channel.recv_stderr(READ) if channel.recv_stderr_ready() else b""
            exchange.hear(stdout, stderr)
            if not stdout and not stderr and (channel.eof_received or channel.closed):
                return


def _transport(client: paramiko.SSHClient) -> paramiko.Transport:
    """:raises EOFError: the client has been closed"""
    if (transport := client.get_transport()) is None:
        raise EOFError("it has been closed")
    return transport


def _tune(transport: paramiko.Transport) -> None:
    """Without TCP_NODELAY a command takes 44 ms, for Nagle's algorithm waits for a delayed acknowledgement."""
    sock = transport.sock
    if isinstance(sock, socket.socket):  # behind a jump host it is a process
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED * 1000)


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
