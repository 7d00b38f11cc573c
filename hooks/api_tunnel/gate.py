"""The gate in front of a tunnel over ``http``: it passes requests to Airflow's execution API and to nothing else.

Any user who can connect to the login node's end of a tunnel can send anything, and the API server also serves people:
``/auth/token`` accepts passwords. So the tunnel leads to a gate on this machine, which parses each request. It covers
all entrances of the tunnel: the relay, sshd's own port with GatewayPorts, and the loopback address of the login node.
A request over ``https`` cannot be read here and needs an API server of its own: docs/how_to/closed_nodes.md.

The gate verifies the token of each request with the API server's keys, and reads no body without a valid token. A
client without one is limited to a few seconds and kilobytes, and is disconnected if others wait.

h11 parses each request and writes it again, over a separate connection to the API server. So the server reads exactly
what was checked, however the client framed it, and nothing can follow it.
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
from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.deployment.deployment import TokenRefusedError, TokenUnverifiedError, TokenVerifier

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# The limits of a client whose token is not verified: bytes in the head and in the body of a request, and the seconds
# for which the gate waits for it.
UNVERIFIED_BYTES, UNVERIFIED_SECONDS = 8192, 5.0
# A client with a valid token has to send its body and read its answer at LEAST_RATE bytes a second or faster, and can
# fall behind by MOST_DELAY seconds.
LEAST_RATE, MOST_DELAY = 1024, 10.0
# The most conversations at once for one job, whether with the same token or with renewed ones.
MOST_OF_A_TOKEN = 20
# Seconds within which a client that keeps its connection open has to start its next request; uvicorn itself waits for
# 5. Also the time within which the API server has to accept the next part of a body.
IDLE_TIMEOUT = 60.0
# Seconds within which a body has to arrive, and within which the API server has to start its answer.
BODY_TIMEOUT = ANSWER_TIMEOUT = 600.0
# The first of the ports among which a gate has its own, below the range that systems assign to clients, and their
# number.
FIRST_PORT, PORTS = 16384, 16384
# Headers that belong to one connection (RFC 9110, section 7.6.1), or describe it.
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

    :param status: the HTTP status of the answer
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Pace:
    """How long one side of a conversation can keep the other waiting.

    :param seconds: the total; with a rate, the time by which it can fall behind, since bytes that arrive earn time back
    :param rate: bytes that earn back one second; None: time is not earned back
    """

    def __init__(self, seconds: float, rate: float | None = None) -> None:
        self.seconds, self.rate = seconds, rate
        self._left = seconds

    async def wait(self, what: Awaitable[T]) -> T:
        """:raises asyncio.TimeoutError: the remaining time has passed"""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await asyncio.wait_for(what, self._left)
        finally:
            self._left -= loop.time() - began

    def moved(self, size: int) -> None:
        """Record that bytes have arrived or were sent."""
        if self.rate is not None:
            self._left = min(self.seconds, self._left + size / self.rate)


@dataclass(eq=False)
class Conversation:
    """One client's connection.

    :ivar unserved_since: when its last verified request finished; None: one is in progress
    :ivar subject: the job that its last token was issued for; None: it has presented no valid token
    """

    unserved_since: float | None
    subject: str | None = None
    task: asyncio.Task[None] = field(init=False)

    def make_way(self) -> None:
        self.subject, self.unserved_since = None, math.inf  # so that it is not chosen again
        self.task.cancel()


class ApiGate:
    """A port on this machine's loopback address that leads only to the execution API.

    :param url: that of the execution API, with ``http``
    :param name: identifies the gate. The same name gets the same port if it is free, so that a forwarding which has
        outlived its controller leads to the gate of the next one
    :raises ValueError: the URL has no path that distinguishes the execution API from the rest of the server
    """

    most_conversations = 200
    """Each takes two descriptors of the controller, which needs others for its own work. Further clients wait in
    the kernel's queue until one has finished."""
    least_idle = 1.0
    """Seconds without a verified request after which a conversation is closed if others wait."""

    def __init__(self, url: str, name: str) -> None:
        self.host, self.port = endpoint(url)
        self.prefix = prefix(url)
        self.authority = urlsplit(url).netloc.rpartition("@")[2].encode()
        self._preferred = FIRST_PORT + zlib.crc32(f"{name} {url}".encode()) % PORTS
        # An event loop holds only weak references to tasks (asyncio.create_task), so a waiting one could be collected.
        self._conversations: dict[asyncio.Task[None], Conversation] = {}
        self._verify: TokenVerifier | None = None
        self._warned_at: dict[str, float] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> tuple[str, int]:
        """Start to listen, unless it does already, and return host and port.

        :raises OSError: no port is available
        """
        if self._listener is None:
            self._verify = AIRFLOW.token_verifier()  # only Airflow has an API for jobs
            self._listener = self._listen()
            self._loop = asyncio.new_event_loop()
            self._accepting = self._loop.create_task(self._accept(self._listener))
            self._thread = threading.Thread(target=self._loop.run_forever, name="lading-api-gate", daemon=True)
            self._thread.start()
        return LOOPBACK, self._listener.getsockname()[1]

    def close(self) -> None:
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
            listener = socket.create_server((LOOPBACK, self._preferred), backlog=1024)
        except OSError:
            listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        listener.setblocking(False)
        return listener

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # the process or the machine is out of descriptors
                log.warning("The tunnel's gate cannot accept a connection: %s", error)
                await asyncio.sleep(1.0)
                continue
            conversation = Conversation(unserved_since=loop.time())
            conversation.task = task = loop.create_task(self._serve(connection, conversation))
            self._conversations[task] = conversation
            task.add_done_callback(self._conversations.pop)

    async def _make_room(self) -> None:
        """Wait until another conversation can start; if necessary, close one without a verified request in progress."""
        while len(self._conversations) >= self.most_conversations:
            message = (
                "%d clients use Airflow's API through the tunnel at once, which is the limit; further ones wait until "
                "one has finished"
            )
            self._warn(message, self.most_conversations)
            self._end_longest_unserved(self._conversations.values(), self.least_idle)
            await asyncio.wait(self._conversations, timeout=self.least_idle, return_when=asyncio.FIRST_COMPLETED)

    def _warn(self, message: str, *values: object) -> None:
        """Log a warning that any user of the login node can provoke, at most once per interval."""
        now = asyncio.get_running_loop().time()
        # Any user of the login node could otherwise fill the log.
        if now >= self._warned_at.get(message, -math.inf) + 600.0:
            self._warned_at[message] = now
            log.warning(message, *values)

    def _end_longest_unserved(self, conversations: Iterable[Conversation], least: float) -> bool:
        """Close the conversation that has been without a verified request longest, if for at least ``least``
        seconds."""
        since = {each: each.unserved_since for each in conversations if each.unserved_since is not None}
        longest = min(since, key=since.__getitem__, default=None)
        if longest is None or asyncio.get_running_loop().time() - since[longest] < least:
            return False
        longest.make_way()
        return True

    async def _serve(self, connection: socket.socket, conversation: Conversation) -> None:
        try:
            streams = await asyncio.open_connection(sock=connection, limit=UNVERIFIED_BYTES)
        except OSError:  # the client has disconnected
            connection.close()
            return
        near = TunnelSide(h11.Connection(h11.SERVER, UNVERIFIED_BYTES), *streams)
        try:
            while await self._answer(near, conversation):
                conversation.unserved_since = asyncio.get_running_loop().time()
                if not near.http.trailing_data[0]:  # its next request did not arrive together with this one
                    await asyncio.wait_for(near.receive(), IDLE_TIMEOUT)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError, h11.ProtocolError):
            pass  # one side has disconnected, is too slow, or does not speak HTTP
        finally:
            await near.close()

    async def _answer(self, near: TunnelSide, conversation: Conversation) -> bool:
        """Answer one request; return whether another can follow on this connection."""
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
            # Logged at debug level, because any user of the login node could fill the log.
            log.debug("%s is not passed on to the API server: %s", ascii(request.target.decode("latin-1")), refusal)
            return await near.refuse(refusal.status, str(refusal))
        try:
            streams = await asyncio.wait_for(asyncio.open_connection(self.host, self.port), 10.0)
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("The tunnel cannot reach the API server %s:%s: %s", self.host, self.port, error or "no answer")
            return await near.refuse(502, f"the API server cannot be reached: {error or 'no answer'}")
        far = TunnelSide(h11.Connection(h11.CLIENT, max_incomplete_event_size=65536), *streams)
        far.receiving = Pace(ANSWER_TIMEOUT, LEAST_RATE)
        sending = asyncio.ensure_future(_send(passed_on, near, far, most))
        try:
            # A client that is not verified has to connect again for each request, so that others get their turn.
            is_last = conversation.unserved_since is not None
            await _respond(far, near, [(b"Connection", b"close")] if is_last else [])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            far.cut()
        return conversation.unserved_since is None and near.next_cycle()

    async def _admit(self, request: h11.Request, near: TunnelSide, conversation: Conversation) -> float:
        """Raise the limits of a request with a valid token; return the largest accepted body in bytes.

        :raises GateRefusal: it has a body but no valid token, or its job has too many conversations
        """
        assert self._verify is not None
        size = body_size(request)
        try:
            subject = await self._verify(bearer(request))
        except TokenRefusedError as error:
            if size:
                raise GateRefusal(403, f"the token of this request is not valid: {error}") from error
            return 0  # the API server answers it, because some of its routes need no token
        except TokenUnverifiedError as error:
            message = (
                "The token of a request through the tunnel cannot be verified: %s; bodies over %d bytes have to wait"
            )
            self._warn(message, error, UNVERIFIED_BYTES)
            if size > UNVERIFIED_BYTES:
                raise GateRefusal(
                    503, f"its token cannot be verified now, and without that its body is too large: {error}"
                ) from error
            return UNVERIFIED_BYTES  # heartbeats are smaller
        alike = [each for each in self._conversations.values() if each.subject == subject and each is not conversation]
        if len(alike) >= MOST_OF_A_TOKEN and not self._end_longest_unserved(alike, 0.0):
            raise GateRefusal(503, f"its job already has {MOST_OF_A_TOKEN} connections, which is the limit")
        conversation.subject, conversation.unserved_since = subject, None
        near.receiving, near.sending = Pace(MOST_DELAY, LEAST_RATE), Pace(MOST_DELAY, LEAST_RATE)
        return math.inf

    def _checked(self, request: h11.Request) -> h11.Request:
        """Return the request in the form in which it is passed on.

        :raises GateRefusal: it is not valid for the execution API
        """
        if request.http_version not in (b"1.0", b"1.1"):
            raise GateRefusal(505, f"HTTP {request.http_version.decode()} is not supported")
        if request.method == b"CONNECT" or not is_below(request.target, self.prefix):
            raise GateRefusal(403, f"this tunnel leads only to Airflow's execution API at {self.prefix}")
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

    :ivar receiving: limits how slowly the other end can send
    :ivar sending: limits how slowly it can read
    """

    def __init__(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = http
        self.reader = reader
        self.writer = writer
        self.receiving = Pace(math.inf)
        self.sending = Pace(IDLE_TIMEOUT, LEAST_RATE)
        self._unsent = b""

    async def next_event(self) -> object:
        """Return the next event from the other end.

        :raises h11.RemoteProtocolError: it is not HTTP
        :raises asyncio.TimeoutError: it is too slow
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            await self.receiving.wait(self.receive())
        return event

    async def receive(self) -> None:
        data = await self.reader.read(65536)
        self.receiving.moved(len(data))
        self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Send an event, a head together with what follows it: each write is a packet in the tunnel and wakes both
        ends."""
        self._unsent += self.http.send(event) or b""
        if self._unsent and not isinstance(event, (h11.Request, h11.Response)):
            unsent, self._unsent = self._unsent, b""
            self.writer.write(unsent)
            await self.sending.wait(self.writer.drain())
            self.sending.moved(len(unsent))

    async def refuse(self, status: int, message: str) -> bool:
        """Answer with an error, after which nothing more is read from this connection."""
        if self.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = json.dumps({"detail": message}).encode()  # the API server's format for errors
            headers = [(b"Content-Type", b"application/json"), (b"Content-Length", str(len(text)).encode())]
            await self.send(h11.Response(status_code=status, headers=[*headers, (b"Connection", b"close")]))
            await self.send(h11.Data(data=text))
            await self.send(h11.EndOfMessage())
        return False

    def cut(self) -> None:
        """Close the connection at once and discard unsent data."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection once the other end has read everything, or is too slow. A closed socket with unsent
        data would otherwise stay open for as long as the other end likes."""
        self.writer.close()
        try:
            await self.sending.wait(self.writer.wait_closed())
        except (OSError, TimeoutError, asyncio.TimeoutError):
            pass  # it has disconnected, or is too slow
        finally:
            self.cut()

    def next_cycle(self) -> bool:
        """Check whether both sides have finished; then prepare for the client's next request."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


async def _send(request: h11.Request, near: TunnelSide, far: TunnelSide, most: float) -> None:
    """Pass on a request and its body. The server can answer before the whole body has arrived.

    :param most: the largest accepted body in bytes
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
                break  # the client has disconnected, or sends too much
    except (TimeoutError, asyncio.TimeoutError, h11.ProtocolError):
        pass  # it is too slow, or has disconnected during the body
    except OSError:
        return
    far.cut()


async def _respond(far: TunnelSide, near: TunnelSide, headers: Sequence[tuple[bytes, bytes]]) -> None:
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
            raise EOFError("the API server has closed the connection")


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # lets the loop close the connections


def bearer(request: h11.Request) -> str:
    """Return the token of a request.

    :raises TokenRefusedError: it has none
    """
    found = [value for name, value in request.headers if name == b"authorization"]
    scheme, _, token = found[0].partition(b" ") if len(found) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        raise TokenRefusedError("it has no header Authorization: Bearer")
    return token.strip().decode("latin-1")


def body_size(request: h11.Request) -> float:
    """Return the size of a request's body in bytes; infinite if its head does not state it."""
    headers = dict(request.headers)
    return math.inf if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))


def prefix(url: str) -> str:
    """Return the path of the execution API, decoded, with a trailing slash.

    :raises ValueError: the URL is that of the whole server
    """
    path = urlsplit(url).path.rstrip("/")
    if not path:
        raise ValueError(
            f"{url!r} names a whole server, but a tunnel has to expose only the execution API; its URL ends in "
            "/execution/, unless a proxy changes the path"
        )
    return unquote_to_bytes(path).decode("latin-1") + "/"


def is_below(target: bytes, prefix: str) -> bool:
    """Check whether a request's target is a path below a prefix, whichever way a server or proxy decodes it.

    :param target: as sent: a path with a query (RFC 9112, section 3.2.1); any other form is rejected
    :param prefix: decoded, with a trailing slash
    """
    path, _, _ = target.partition(b"?")
    if b"#" in path or not path.startswith((prefix.encode("latin-1"), quote(prefix, encoding="latin-1").encode())):
        return False
    # A path encoded more often tries to evade the gate.
    for _ in range(4):
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
    """Check whether it is UTF-8, where dots and slashes have only one encoding."""
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers to pass on: all except those of the connection, including those that "Connection" names."""
    listed = list(headers)
    own = {word.strip().lower() for name, value in listed if name == b"connection" for word in value.split(b",")}
    own -= {b"content-length", b"transfer-encoding", b"authorization"}
    return [(name, value) for name, value in listed if name not in HOP_BY_HOP | own]
