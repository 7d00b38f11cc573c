"""The gate before a tunnel over ``http``: of all that the API server answers, Airflow's execution API passes it alone.

Any user who can connect to the login node's end of a tunnel can send anything, and the API server also answers people:
``/auth/token`` takes passwords. So the tunnel leads to a gate on this machine, which understands what is asked. It
stands behind every way into the tunnel: the relay, sshd's own port with GatewayPorts, and the loopback address of the
login node. What goes through ``https`` cannot be read here; then a server of its own is needed:
docs/how_to/closed_nodes.md.

Each request is read by h11 and written again, over a connection of its own to the API server: what the server reads is
what was looked at, however the client has framed it, and nothing can follow it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import zlib
from collections.abc import Collection, Iterable
from urllib.parse import quote, unquote_to_bytes, urlsplit

import h11

from lading.hooks.api_tunnel.address import endpoint

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
READ = 65536
# A request's first line and headers may have so many bytes.
MOST_HEAD = 65536
CONNECT_TIMEOUT = 10.0
# The most conversations at once: each takes two descriptors of the controller, which has other work. Further
# clients wait in the kernel's queue until one has ended.
MOST_CONVERSATIONS = 200
BACKLOG = 1024
# A request's first line and headers arrive within this, of a new connection also the first byte of them, seconds.
HEAD_TIMEOUT = 10.0
# A client that keeps its connection begins its next request within this; uvicorn itself waits for 5 seconds. Within the
# same time the next part of a body comes, or what was sent is taken.
IDLE_TIMEOUT = 60.0
# A body has arrived within this.
BODY_TIMEOUT = 600.0
# Where others wait, a conversation in which nothing was asked for so long makes way.
LEAST_IDLE = 1.0
# The first of the ports among which a gate has its own, below those that systems give to clients, and how many.
FIRST_PORT, PORTS = 16384, 16384
# How often a path may be percent-encoded; one that is encoded more often is an attempt to evade the gate.
MOST_DECODINGS = 4
# What belongs to one connection (RFC 9110, section 7.6.1), and what is said of that connection alone.
HOP_BY_HOP = {
    b"connection",
    b"expect",
    b"host",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
}


class GateRefusal(Exception):
    """A request that is not passed on.

    :param status: of the answer
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiGate:
    """A port of this machine's loopback address that leads to the execution API alone.

    :param url: of the execution API, with ``http``
    :param name: what it is for: the same name gets the same port where that is free, so that a forwarding which has
        outlived a controller leads to the gate of its successor
    :raises ValueError: the URL has no path by which the execution API can be distinguished from the rest
    """

    def __init__(self, url: str, name: str) -> None:
        self.host, self.port = endpoint(url)
        self.prefix = prefix(url)
        self.authority = urlsplit(url).netloc.rpartition("@")[2].encode()
        self._preferred = FIRST_PORT + zlib.crc32(f"{name} {url}".encode()) % PORTS
        # Event loops hold their tasks weakly (Python documentation, asyncio.create_task): one that only waits could go.
        self._conversations: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], float] = {}
        """The conversations in which no request is under way, the longest idle first, each since when."""
        self._is_full = False
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> tuple[str, int]:
        """Listen, unless that is so already; returns where.

        :raises OSError: this machine has no port
        """
        if self._listener is None:
            self._listener = self._listen()
            self._loop = asyncio.new_event_loop()
            self._accepting = self._loop.create_task(self._accept(self._listener))
            self._thread = threading.Thread(target=self._loop.run_forever, name="lading-api-gate", daemon=True)
            self._thread.start()
        return LOOPBACK, self._listener.getsockname()[1]

    def close(self) -> None:
        """Stop listening, and cut the connections."""
        if self._listener is None or self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(_end(asyncio.all_tasks(self._loop)))
        self._listener.close()
        self._loop.close()
        self._listener = self._loop = self._thread = None

    def _listen(self) -> socket.socket:
        try:
            listener = socket.create_server((LOOPBACK, self._preferred), backlog=BACKLOG)
        except OSError:
            listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        listener.setblocking(False)
        return listener

    async def _accept(self, listener: socket.socket) -> None:
        """Begin conversations, as far as there is room for them."""
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # this process, or the machine, has no descriptor left
                log.warning("The tunnel's gate cannot accept a connection: %s", error)
                await asyncio.sleep(1.0)
                continue
            conversation = loop.create_task(self._serve(connection))
            self._conversations.add(conversation)
            conversation.add_done_callback(self._conversations.discard)

    async def _make_room(self) -> None:
        """Wait until another conversation may begin; one in which nothing is asked makes way for it."""
        while len(self._conversations) >= MOST_CONVERSATIONS:
            if not self._is_full:  # once: any user of the login node could fill the log
                log.warning(
                    "%d clients talk to Airflow's API through the tunnel at once, the limit; further ones wait until "
                    "one has ended",
                    MOST_CONVERSATIONS,
                )
                self._is_full = True
            idle, since = next(iter(self._idle.items()), (None, 0.0))
            if idle is not None and asyncio.get_running_loop().time() - since >= LEAST_IDLE:
                del self._idle[idle]
                idle.cancel()
            await asyncio.wait(self._conversations, timeout=LEAST_IDLE, return_when=asyncio.FIRST_COMPLETED)
        if len(self._conversations) < MOST_CONVERSATIONS / 2:
            self._is_full = False

    async def _serve(self, connection: socket.socket) -> None:
        try:
            near = TunnelSide(h11.Connection(h11.SERVER, MOST_HEAD), *await asyncio.open_connection(sock=connection))
        except OSError:  # it has gone already
            connection.close()
            return
        try:
            while await self._answer(near):
                await self._wait_for_more(near)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError, h11.ProtocolError):
            pass  # one of the two sides has gone, is too slow, or does not speak HTTP
        finally:
            near.writer.close()

    async def _wait_for_more(self, near: TunnelSide) -> None:
        """Wait until the next request begins.

        :raises asyncio.TimeoutError: it does not
        """
        task = asyncio.current_task()
        assert task is not None
        self._idle[task] = asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(near.receive(), IDLE_TIMEOUT)
        finally:
            self._idle.pop(task, None)

    async def _answer(self, near: TunnelSide) -> bool:
        """Answer one request; returns whether another may follow it."""
        try:
            request = await asyncio.wait_for(near.next_event(), HEAD_TIMEOUT)
        except h11.RemoteProtocolError as error:
            return await near.refuse(error.error_status_hint, str(error))
        if not isinstance(request, h11.Request):
            return False
        try:
            passed_on = self._checked(request)
        except GateRefusal as refusal:
            # Not louder: any user of the login node could fill the log.
            log.debug("%s is not passed on to the API server: %s", ascii(request.target.decode("latin-1")), refusal)
            return await near.refuse(refusal.status, str(refusal))
        try:
            streams = await asyncio.wait_for(asyncio.open_connection(self.host, self.port), CONNECT_TIMEOUT)
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("The tunnel to %s:%s leads nowhere: %s", self.host, self.port, error or "no answer")
            return await near.refuse(502, f"the API server cannot be reached: {error or 'no answer'}")
        far = TunnelSide(h11.Connection(h11.CLIENT, MOST_HEAD), *streams)
        sending = asyncio.ensure_future(_send(passed_on, near, far))
        try:
            await _respond(far, near)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            far.writer.close()
        return near.next_cycle()

    def _checked(self, request: h11.Request) -> h11.Request:
        """The request as it is passed on.

        :raises Refusal: it is none for the execution API
        """
        if request.http_version not in (b"1.0", b"1.1"):
            raise GateRefusal(505, f"HTTP {request.http_version.decode()} is not spoken here")
        if request.method == b"CONNECT" or not is_below(request.target, self.prefix):
            raise GateRefusal(403, f"this tunnel leads to Airflow's execution API at {self.prefix} alone")
        names = [name for name, _ in request.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise GateRefusal(400, "it has both Content-Length and Transfer-Encoding")
        kept = end_to_end(request.headers)
        headers = [(b"Host", self.authority), *kept, (b"Connection", b"close")]
        return h11.Request(method=request.method, target=request.target, headers=headers)


class TunnelSide:
    """One of the two connections of a request."""

    def __init__(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = http
        self.reader = reader
        self.writer = writer
        self._unsent = b""

    async def next_event(self) -> object:
        """What the other end has sent; :raises h11.RemoteProtocolError: it is no HTTP"""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.reader.read(READ))
        return event

    async def receive(self) -> None:
        """Take the next bytes, unless some are there that no event was made of."""
        if not self.http.trailing_data[0]:
            self.http.receive_data(await self.reader.read(READ))

    async def send(self, event: h11.Event) -> None:
        """Send this, a head with what follows it: each piece is a packet in the tunnel and wakes both ends."""
        self._unsent += self.http.send(event) or b""
        if self._unsent and not isinstance(event, (h11.Request, h11.Response)):
            self.writer.write(self._unsent)
            self._unsent = b""
            await asyncio.wait_for(self.writer.drain(), IDLE_TIMEOUT)

    async def refuse(self, status: int, message: str) -> bool:
        """Answer with an error, after which nothing of this connection is read."""
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"{message}\n".encode()
            size = str(len(text)).encode()
            headers = [(b"Content-Type", b"text/plain; charset=utf-8"), (b"Content-Length", size)]
            await self.send(h11.Response(status_code=status, headers=[*headers, (b"Connection", b"close")]))
            await self.send(h11.Data(data=text))
            await self.send(h11.EndOfMessage())
        return False

    def next_cycle(self) -> bool:
        """Whether both have said all, so that the client may ask again."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


async def _send(request: h11.Request, near: TunnelSide, far: TunnelSide) -> None:
    """Pass on a request and its body. A server that has read enough may answer before all of it is there."""
    loop = asyncio.get_running_loop()
    until = loop.time() + BODY_TIMEOUT
    try:
        await far.send(request)
        while True:
            event = await asyncio.wait_for(near.next_event(), min(IDLE_TIMEOUT, until - loop.time()))
            if not isinstance(event, (h11.Data, h11.EndOfMessage)):
                break  # the client has gone
            await far.send(h11.Data(data=event.data) if isinstance(event, h11.Data) else h11.EndOfMessage())
            if isinstance(event, h11.EndOfMessage):
                return
    except (TimeoutError, asyncio.TimeoutError):
        pass  # it is too slow
    except OSError:
        return
    far.writer.close()


async def _respond(far: TunnelSide, near: TunnelSide) -> None:
    """Pass back an answer."""
    while True:
        event = await far.next_event()
        if isinstance(event, h11.Response):
            kept = end_to_end(event.headers)
            await near.send(h11.Response(status_code=event.status_code, headers=kept, reason=event.reason))
        elif isinstance(event, h11.Data):
            await near.send(h11.Data(data=event.data))
        elif isinstance(event, h11.EndOfMessage):
            await near.send(h11.EndOfMessage())
            return
        elif not isinstance(event, h11.InformationalResponse):
            raise EOFError("the API server has gone")


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # in which the connections are closed


def prefix(url: str) -> str:
    """The path below which the execution API is, decoded, with a slash at its end.

    :raises ValueError: it is that of the whole server
    """
    path = urlsplit(url).path.rstrip("/")
    if not path:
        raise ValueError(
            f"{url!r} names a whole server, of which a tunnel is to expose the execution API alone; that of the API "
            "ends in /execution/, unless a proxy gives it another path"
        )
    return unquote_to_bytes(path).decode("latin-1") + "/"


def is_below(target: bytes, prefix: str) -> bool:
    """Whether the target of a request is a path below a prefix, however a server or a proxy before it reads it.

    :param target: as it was sent: a path with a query (RFC 9112, section 3.2.1); any other form is not below
    :param prefix: decoded, with a slash at its end
    """
    path, _, _ = target.partition(b"?")
    if b"#" in path or not path.startswith((prefix.encode("latin-1"), quote(prefix, encoding="latin-1").encode())):
        return False
    for _ in range(MOST_DECODINGS):
        segments = path.replace(b"\\", b"/").split(b"/")
        if any(segment.partition(b";")[0] in (b".", b"..") for segment in segments):
            return False
        if any(byte < 32 or byte == 127 for byte in path):
            return False
        before, path = path, unquote_to_bytes(path)
        if path == before:
            return _is_text(path)
    return False


def _is_text(path: bytes) -> bool:
    """Whether it is UTF-8, which has one way alone to write a dot or a slash."""
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are passed on: not those of the connection itself, nor what it declares to be its own."""
    listed = list(headers)
    own = {word.strip().lower() for name, value in listed if name == b"connection" for word in value.split(b",")}
    own -= {b"content-length", b"transfer-encoding", b"authorization"}
    return [(name, value) for name, value in listed if name not in HOP_BY_HOP | own]
