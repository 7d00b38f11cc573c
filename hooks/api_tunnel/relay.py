"""The login node's end of a tunnel to Airflow's API: ``python -m lading.hooks.api_tunnel.relay [HOST]``.

The controller starts it over its SSH connection and sends it the port that sshd has opened for the tunnel, one line per
attempt on standard input. If sshd itself accepts connections from compute nodes (GatewayPorts), the relay has nothing
to do. Usually sshd listens only on the loopback address; then the relay listens on the same port of the login node's
own address and forwards connections. It exits when its standard input is closed, that is with the connection. It
imports little besides the standard library, so that it starts fast with each connection.

A port is used only if every socket on it belongs to this user. Otherwise another user of the login node who was faster
would receive the tasks' tokens. Linux lists the owner of each socket in ``/proc/net/tcp``, see proc_net_tcp in the
kernel's manual.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lading.hooks.files.child_processes import raise_open_files_limit

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Starts each line of the relay, because a login shell may print lines, too.
MARK = "lading-api-relay "
# Precedes a port that is only checked, because the tunnel of another connection should be there.
LOOK = "look "
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENING = "0A"
ADVICE = "set tunnel_host to the name or address by which compute nodes reach it"


class RelayError(Exception):
    """A problem that has to be fixed in the site's table or by its administrator; the message describes it."""


class PortTakenError(RelayError):
    """This port cannot be used, but another one may be free."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket.

    :param uid: the user who opened it
    """

    address: IPAddress
    uid: int


def locate(host: str | None) -> tuple[str, IPAddress]:
    """Return this machine's name on compute nodes, and the address on which to listen for them.

    :param host: from the site's table; None: the full name, as ``hostname -f`` prints it
    :raises RelayError: this machine has no such address
    """
    name = host or _full_name()
    here = f"the login node ({socket.gethostname()})"
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RelayError(f"{name!r} cannot be resolved on {here}: {error}; {ADVICE}") from error
    addresses = sorted({ipaddress.ip_address(each[4][0]) for each in found}, key=lambda each: (each.version, each))
    # A name that resolves to loopback is useless to other machines; a loopback address given explicitly is accepted.
    usable = [each for each in addresses if str(each) == name or not each.is_loopback]
    if not usable:
        raise RelayError(f"{name!r} is {addresses[0]} on {here}, which only the login node itself can reach; {ADVICE}")
    for address in usable:
        with contextlib.suppress(OSError):
            listen(address, 0).close()
            return name, address
    raise RelayError(f"{name!r} is {usable[0]}, which is not an address of {here}; {ADVICE}")


def _full_name() -> str:
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        name = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)[0][3] or name
    return name


def listeners(port: int, tables: Sequence[Path] = TABLES) -> list[Listener]:
    """Return the sockets that listen on a port, on any address.

    :raises RelayError: this system does not report them
    """
    found = []
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RelayError(f"{table} cannot be read on the login node: {error}") from error
        for line in lines:
            words = line.split()
            address, _, number = words[1].partition(":")
            if words[3] == LISTENING and int(number, 16) == port:
                found.append(Listener(_address(address), int(words[7])))
    if not any(table.exists() for table in tables):
        raise RelayError(f"the login node has no {tables[0]}: tunnels need Linux there")
    return found


def _address(text: str) -> IPAddress:
    """Parse an address as the kernel prints it: 32-bit numbers in the machine's byte order."""
    packed = b"".join(struct.pack("=I", int(text[start : start + 8], 16)) for start in range(0, len(text), 8))
    found = ipaddress.ip_address(packed)
    return getattr(found, "ipv4_mapped", None) or found


def target(address: IPAddress, port: int, found: Sequence[Listener], uid: int) -> IPAddress | None:
    """Return the loopback address to which connections have to be forwarded; None: sshd accepts them itself.

    :param found: the sockets that listen on the port
    :param uid: the user who must own them
    :raises PortTakenError: the port belongs to another user, or sshd has not opened it
    """
    near = [
        each for each in found if each.address == address or each.address.is_unspecified or each.address.is_loopback
    ]
    if foreign := [each for each in near if each.uid != uid]:
        raise PortTakenError(
            f"port {port} of {foreign[0].address} belongs to another user of the login node (user id {foreign[0].uid})"
        )
    if any(each.address == address or _is_all(each.address, address) for each in near):
        return None
    if loopback := sorted((each.address for each in near if each.address.is_loopback), key=lambda each: each.version):
        return loopback[0]
    raise PortTakenError(f"the SSH server has not opened port {port} on its loopback address; it may be in use there")


def _is_all(wildcard: IPAddress, address: IPAddress) -> bool:
    return wildcard.is_unspecified and wildcard.version == address.version


def listen(address: IPAddress, port: int) -> socket.socket:
    """:raises OSError: the address is not ours, or the port is in use"""
    made = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((str(address), port))
    except OSError:
        made.close()
        raise
    return made


def arrange(address: IPAddress, port: int) -> tuple[socket.socket, IPAddress] | None:
    """Return a socket that accepts connections from compute nodes, and where to forward them; None: sshd accepts them.

    :raises PortTakenError: try another port
    """
    # The relay of a lost connection has exited after a second; any listener left then is sshd.
    deadline = time.monotonic() + 1.0
    while (loopback := target(address, port, listeners(port), os.getuid())) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    try:
        return listen(address, port), loopback
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortTakenError(f"port {port} of {address} is in use on the login node: {error.strerror}") from error
        raise


async def serve(made: socket.socket, loopback: IPAddress, port: int) -> None:
    """Forward connections until standard input is closed."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _pass_on(reader, writer, str(loopback), port)

    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: None if os.read(0, 65536) else over.set())
    async with await asyncio.start_server(take, sock=made, backlog=1024):
        await over.wait()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    near: socket.socket = writer.get_extra_info("socket")
    near.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A node that was switched off closes no connection, so keepalive probes start after an idle minute.
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    sending = asyncio.ensure_future(_pump(reader, far_writer))
    await _pump(far_reader, writer)
    sending.cancel()  # the far end has closed: a client that stays connected would take room from others
    writer.close()
    far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):  # it may be closed already
        writer.write_eof()


def _print_answer(**fields: Any) -> None:
    print(MARK + json.dumps(fields), flush=True)


def _converse(address: IPAddress) -> tuple[tuple[socket.socket, IPAddress] | None, int] | None:
    """Read ports until one can be used; None: the connection was closed."""
    while line := os.read(0, 100).decode():  # one line per read, because the controller waits for each answer
        try:
            port = int(line.removeprefix(LOOK))
            if line.startswith(LOOK):
                stands = target(address, port, listeners(port), os.getuid()) is None
                _print_answer(stands=stands)
                continue
            found = arrange(address, port)
        except PortTakenError as error:
            _print_answer(taken=str(error))
            continue
        return found, port
    return None


def main(arguments: Sequence[str]) -> int:
    try:
        host, address = locate(arguments[0] if arguments else None)
        _print_answer(host=host, address=str(address))
        if (agreed := _converse(address)) is None:
            return 0
    except RelayError as error:
        _print_answer(error=str(error))
        return 1
    found, port = agreed
    if found is None:
        _print_answer(relays=False)
        while os.read(0, 65536):  # keep the connection open
            pass
        return 0
    raise_open_files_limit()  # each running task keeps a connection
    made, loopback = found
    made.listen(1024)
    _print_answer(relays=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads it any more
    asyncio.run(serve(made, loopback, port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
