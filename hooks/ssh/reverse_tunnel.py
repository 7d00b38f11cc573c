"""A port at a site that leads back to this machine, over an SSH connection of paramiko's."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

import paramiko

from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.transport import LOOPBACK

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
READ = 65536


class ReverseTunnel:
    """A port at a site that leads to ``host:port`` as seen from this machine.

    :param remote_port: the port at the site; 0: any that is free, and the same when it is built again
    :param address: where the server shall open it
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
            channel.close()
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
        channel.close()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    """Pass on what comes, and then that no more comes."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(READ):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
