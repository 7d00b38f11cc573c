"""The gate before a tunnel over ``http``: of all that the API server answers, Airflow's execution API passes it alone.

Any user who can connect to the login node's end of a tunnel can send anything, and the API server also answers people:
``/auth/token`` takes passwords. So the tunnel leads to a gate on this machine, which understands what is asked. It
stands behind every way into the tunnel: the relay, sshd's own port with GatewayPorts, and the loopback address of the
login node. What goes through ``https`` cannot be read here; then a server of its own is needed:
docs/how_to/closed_nodes.md.

The gate verifies the token of each request, with the keys that the API server uses. It reads no body without a valid
one: who presents none gets a few seconds and kilobytes, and makes way when others wait.

Each request is read by h11 and written again, over a connection of its own to the API server: what the server reads is
what was looked at, however the client has framed it, and nothing can follow it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import threading
import zlib
from collections.abc import Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit

import h11

from lading.hooks.api_tunnel.address import endpoint
from lading.hooks.deployment import current
from lading.hooks.deployment.deployment import TokenRefusedError, TokenUnverifiedError, TokenVerifier

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
READ = 65536
# A client whose token has not been verified may send so many bytes, in the head or the body of a request, and keep the
# gate waiting for so long, seconds.
UNVERIFIED_BYTES, UNVERIFIED_SECONDS = 8192, 5.0
# A client whose token is good sends its body, and takes its answer, at this rate at least, bytes a second; it may fall
# behind by so much, seconds.
LEAST_RATE, MOST_DELAY = 1024, 10.0
# The head of an answer may have so many bytes.
MOST_HEAD = 65536
CONNECT_TIMEOUT = 10.0
# The most conversations at once: each takes two descriptors of the controller, which has other work. Further
# clients wait in the kernel's queue until one has ended.
MOST_CONVERSATIONS = 200
# The most conversations at once with one token, and with those that it was renewed by.
MOST_OF_A_TOKEN = 20
BACKLOG = 1024
# A client that keeps its connection begins its next request within this; uvicorn itself waits for 5 seconds. Within the
# same time the API server takes the next part of a body.
IDLE_TIMEOUT = 60.0
# A body has arrived within this, and the API server begins its answer within this.
BODY_TIMEOUT = ANSWER_TIMEOUT = 600.0
# Any user of the login node could fill the log, so it is warned so often at most.
WARNING_INTERVAL = 600.0
# Where others wait, a conversation in which no verified request has been under way for so long makes way.
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


T = TypeVar("T")


class GateRefusal(Exception):
    """A request that is not passed on.

    :param status: of the answer
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Pace:
    """How long one side of a conversation may keep the other waiting.

    :param seconds: in all; at most so far behind, where bytes that move make up for time
    :param rate: so many bytes make up for a second; None: nothing does
    """

    def __init__(self, seconds: float, rate: float | None = None) -> None:
        self.seconds, self.rate = seconds, rate
        self._left = seconds

    async def wait(self, what: Awaitable[T]) -> T:
        """:raises asyncio.TimeoutError: it takes longer than is left"""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await asyncio.wait_for(what, self._left)
        finally:
            self._left -= loop.time() - began

    def moved(self, size: int) -> None:
        """Note that so many bytes have moved."""
        if self.rate is not None:
            self._left = min(self.seconds, self._left + size / self.rate)


@dataclass(eq=False)
class Conversation:
    """One client's connection.

    :ivar unserved_since: since when no verified request is under way; None: one is
    :ivar subject: for which job its last token was made; None: it has presented none
    """

    unserved_since: float | None
    subject: str | None = None
    task: asyncio.Task[None] = field(init=False)

    def make_way(self) -> None:
        """End it, to make room for others."""
        self.subject, self.unserved_since = None, math.inf  # nobody asks it again
        self.task.cancel()


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
        self._conversations: dict[asyncio.Task[None], Conversation] = {}
        self._verify: TokenVerifier | None = None
        self._warned_at: dict[str, float] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> tuple[str, int]:
        """Listen, unless that is so already; returns where.

        :raises OSError: this machine has no port
        """
        if self._listener is None:
            self._verify = current.deployment().token_verifier()
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
            conversation = Conversation(unserved_since=loop.time())
            conversation.task = task = loop.create_task(self._serve(connection, conversation))
            self._conversations[task] = conversation
            task.add_done_callback(self._conversations.pop)

    async def _make_room(self) -> None:
        """Wait until another conversation may begin; one in which no verified request is under way makes way for it."""
        while len(self._conversations) >= MOST_CONVERSATIONS:
            message = (
                "%d clients talk to Airflow's API through the tunnel at once, the limit; further ones wait until one "
                "has ended"
            )
            self._warn(message, MOST_CONVERSATIONS)
            self._end_longest_unserved(self._conversations.values(), LEAST_IDLE)
            await asyncio.wait(self._conversations, timeout=LEAST_IDLE, return_when=asyncio.FIRST_COMPLETED)

    def _warn(self, message: str, *values: object) -> None:
        """Warn of something that any user of the login node can bring about, now and then."""
        now = asyncio.get_running_loop().time()
        if now >= self._warned_at.get(message, -math.inf) + WARNING_INTERVAL:
            self._warned_at[message] = now
            log.warning(message, *values)

    def _end_longest_unserved(self, conversations: Iterable[Conversation], least: float) -> bool:
        """End the conversation without a verified request for the longest time, if at least for so many seconds."""
        since = {each: each.unserved_since for each in conversations if each.unserved_since is not None}
        longest = min(since, key=since.__getitem__, default=None)
        if longest is None or asyncio.get_running_loop().time() - since[longest] < least:
            return False
        longest.make_way()
        return True

    async def _serve(self, connection: socket.socket, conversation: Conversation) -> None:
        try:
            streams = await asyncio.open_connection(sock=connection, limit=UNVERIFIED_BYTES)
        except OSError:  # it has gone already
            connection.close()
            return
        near = TunnelSide(h11.Connection(h11.SERVER, UNVERIFIED_BYTES), *streams)
        try:
            while await self._answer(near, conversation):
                conversation.unserved_since = asyncio.get_running_loop().time()
                if not near.http.trailing_data[0]:  # it has not sent its next request with the last one
                    await asyncio.wait_for(near.receive(), IDLE_TIMEOUT)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError, h11.ProtocolError):
            pass  # one of the two sides has gone, is too slow, or does not speak HTTP
        finally:
            await near.close()

    async def _answer(self, near: TunnelSide, conversation: Conversation) -> bool:
        """Answer one request; returns whether another may follow it."""
        near.receiving = near.sending = Pace(UNVERIFIED_SECONDS)
        try:
            request = await near.next_event()
        except h11.RemoteProtocolError as error:
            return await near.refuse(error.error_status_hint, str(error))
        if not isinstance(request, h11.Request):
            return False
        try:
            passed_on = self._checked(request)
            most = await self._admit(request, near, conversation)
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
        far.receiving = Pace(ANSWER_TIMEOUT, LEAST_RATE)
        sending = asyncio.ensure_future(_send(passed_on, near, far, most))
        try:
            # A stranger who asks again stands in line again.
            is_last = conversation.unserved_since is not None
            await _respond(far, near, [(b"Connection", b"close")] if is_last else [])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            far.cut()
        return conversation.unserved_since is None and near.next_cycle()

    async def _admit(self, request: h11.Request, near: TunnelSide, conversation: Conversation) -> float:
        """Let a request have what its token is good for; returns how many bytes its body may have.

        :raises GateRefusal: it has a body and no token that is good, or there are too many with this token
        """
        assert self._verify is not None
        size = body_size(request)
        try:
            subject = await self._verify(bearer(request))
        except TokenRefusedError as error:
            if size:
                raise GateRefusal(403, f"the token of this request is not valid: {error}") from error
            return 0  # the API server has its own words for it, and answers some without
        except TokenUnverifiedError as error:
            message = (
                "A token of a request through the tunnel cannot be verified: %s; bodies of more than %d bytes wait"
            )
            self._warn(message, error, UNVERIFIED_BYTES)
            if size > UNVERIFIED_BYTES:
                raise GateRefusal(
                    503, f"its token cannot be verified now, so its body is too large: {error}"
                ) from error
            return UNVERIFIED_BYTES  # heartbeats are smaller
        alike = [each for each in self._conversations.values() if each.subject == subject and each is not conversation]
        if len(alike) >= MOST_OF_A_TOKEN and not self._end_longest_unserved(alike, 0.0):
            raise GateRefusal(503, f"its job has {MOST_OF_A_TOKEN} conversations at once already, the limit")
        conversation.subject, conversation.unserved_since = subject, None
        near.receiving, near.sending = Pace(MOST_DELAY, LEAST_RATE), Pace(MOST_DELAY, LEAST_RATE)
        return math.inf

    def _checked(self, request: h11.Request) -> h11.Request:
        """The request as it is passed on.

        :raises Refusal: it is none for the execution API
        """
        if request.http_version not in (b"1.0", b"1.1"):
            raise GateRefusal(505, f"HTTP {request.http_version.decode()} is not spoken here")
        if request.method == b"CONNECT" or not is_below(request.target, self.prefix):
            raise GateRefusal(403, f"this tunnel leads to Airflow's execution API at {self.prefix} alone")
        if sum(len(name) + len(value) for name, value in [(request.target, b""), *request.headers]) > UNVERIFIED_BYTES:
            raise GateRefusal(431, f"its first line and headers have more than {UNVERIFIED_BYTES} bytes")
        names = [name for name, _ in request.headers]
        if b"content-length" in names and b"transfer-encoding" in names:
            raise GateRefusal(400, "it has both Content-Length and Transfer-Encoding")
        kept = end_to_end(request.headers)
        headers = [(b"Host", self.authority), *kept, (b"Connection", b"close")]
        return h11.Request(method=request.method, target=request.target, headers=headers)


class TunnelSide:
    """One of the two connections of a request.

    :ivar receiving: how fast the other end sends
    :ivar sending: how fast it takes what is sent
    """

    def __init__(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = http
        self.reader = reader
        self.writer = writer
        self.receiving = Pace(math.inf)
        self.sending = Pace(IDLE_TIMEOUT, LEAST_RATE)
        self._unsent = b""

    async def next_event(self) -> object:
        """What the other end has sent.

        :raises h11.RemoteProtocolError: it is no HTTP
        :raises asyncio.TimeoutError: it is too slow
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            await self.receiving.wait(self.receive())
        return event

    async def receive(self) -> None:
        """Take the next bytes."""
        data = await self.reader.read(READ)
        self.receiving.moved(len(data))
        self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Send this, a head with what follows it: each piece is a packet in the tunnel and wakes both ends."""
        self._unsent += self.http.send(event) or b""
        if self._unsent and not isinstance(event, (h11.Request, h11.Response)):
            unsent, self._unsent = self._unsent, b""
            self.writer.write(unsent)
            await self.sending.wait(self.writer.drain())
            self.sending.moved(len(unsent))

    async def refuse(self, status: int, message: str) -> bool:
        """Answer with an error, after which nothing of this connection is read."""
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = json.dumps({"detail": message}).encode()  # as the API server words what it refuses
            headers = [(b"Content-Type", b"application/json"), (b"Content-Length", str(len(text)).encode())]
            await self.send(h11.Response(status_code=status, headers=[*headers, (b"Connection", b"close")]))
            await self.send(h11.Data(data=text))
            await self.send(h11.EndOfMessage())
        return False

    def cut(self) -> None:
        """End the connection at once, whatever was not taken yet."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """End the connection when the other end has taken what was sent, or is too slow: a closed socket with something
        left to send would stay open for as long as the other end likes."""
        self.writer.close()
        try:
            await self.sending.wait(self.writer.wait_closed())
        except (OSError, TimeoutError, asyncio.TimeoutError):
            pass  # it has gone, or is too slow
        finally:
            self.cut()

    def next_cycle(self) -> bool:
        """Whether both have said all, so that the client may ask again."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


async def _send(request: h11.Request, near: TunnelSide, far: TunnelSide, most: float) -> None:
    """Pass on a request and its body. A server that has read enough may answer before all of it is there.

    :param most: so many bytes of a body
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + BODY_TIMEOUT
    try:
        await far.send(request)
        while True:
            event = await asyncio.wait_for(near.next_event(), until - loop.time())
            if isinstance(event, h11.Data) and (most := most - len(event.data)) >= 0:
                await far.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await far.send(h11.EndOfMessage())
                return
            else:
                break  # the client has gone, or sends too much
    except (TimeoutError, asyncio.TimeoutError, h11.ProtocolError):
        pass  # it is too slow, or has gone in the middle
    except OSError:
        return
    far.cut()


async def _respond(far: TunnelSide, near: TunnelSide, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Pass back an answer, with some headers of ours."""
    while True:
        event = await far.next_event()
        if isinstance(event, h11.Response):
            kept = [*end_to_end(event.headers), *headers]
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


def bearer(request: h11.Request) -> str:
    """The token of a request.

    :raises TokenRefusedError: it has none
    """
    found = [value for name, value in request.headers if name == b"authorization"]
    scheme, _, token = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        raise TokenRefusedError("it has no header Authorization: Bearer")
    return token.strip().decode("latin-1")


def body_size(request: h11.Request) -> float:
    """How many bytes follow a head; infinite: it does not say so."""
    headers = dict(request.headers)
    return math.inf if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))


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
