"""The gate before a tunnel: whatever is sent to it, the API server gets requests to its execution API alone."""

from __future__ import annotations

import contextlib
import gc
import os
import posixpath
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lading.hooks.api_tunnel import gate as gate_module
from lading.hooks.api_tunnel.gate import ApiGate, is_below, prefix
from lading.plugin.service import mint
from tests.services.execution_api import ExecutionApi


class Listener(socketserver.ThreadingTCPServer):
    """An API server that records, byte by byte, what it receives on each connection; it has one answer for all."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.heard: list[bytearray] = []
        self.delay = 0.0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/execution/"


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        said = bytearray()
        self.server.heard.append(said)  # type: ignore[attr-defined]
        self.request.settimeout(60.0)
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in said and (data := self.request.recv(65536)):
                said += data
            self.request.settimeout(0.5)
            time.sleep(self.server.delay)  # type: ignore[attr-defined]
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")
            while data := self.request.recv(65536):
                said += data


@pytest.fixture(scope="module", autouse=True)
def secret() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
        yield


def token(job: str = "job") -> str:
    """What a task presents, as Airflow makes it."""
    return mint()(job, 600.0)


def signed(said: bytes, job: str = "job") -> bytes:
    """Put the token of a job where one belongs."""
    return said.replace(b"<token>", token(job).encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Listener]:
    with Listener() as made:
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def gate(server: Listener) -> Iterator[tuple[str, int]]:
    made = ApiGate(server.url, "test")
    yield made.open()
    made.close()


def talk(gate: tuple[str, int], said: bytes) -> bytes:
    """Send all of it, and read until the gate closes the connection."""
    heard = b""
    with socket.create_connection(gate, 120) as client, contextlib.suppress(OSError):
        client.sendall(signed(said))
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(65536):
            heard += data
    return heard


STRANGE_GET = b"GET /execution/health HTTP/1.1\r\nHost: a\r\n\r\n"
GET = b"GET /execution/health HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer <token>\r\n\r\n"
EVIL = b"POST /auth/token HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
STRANGE_UP = b"POST /execution/x HTTP/1.1\r\nHost: a\r\n"
UP = STRANGE_UP + b"Authorization: Bearer <token>\r\n"


@pytest.mark.parametrize(
    ("said", "statuses"),
    [
        (EVIL, [403]),
        (GET, [200]),
        (GET + EVIL, [200, 403]),
        (STRANGE_GET + EVIL, [200]),
        (STRANGE_UP + b"Content-Length: 5\r\n\r\nhello", [403]),
        (STRANGE_UP + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", [403]),
        (STRANGE_UP + b"Content-Length: 0\r\n\r\n", [200]),
        (UP.replace(b"<token>", b"<token>x") + b"Content-Length: 5\r\n\r\nhello", [403]),
        (UP.replace(b"Bearer", b"Basic") + b"Content-Length: 5\r\n\r\nhello", [403]),
        (UP.replace(b"<token>", b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.") + b"Content-Length: 5\r\n\r\nhello", [403]),
        (UP + b"Authorization: Bearer <token>\r\nContent-Length: 5\r\n\r\nhello", [403]),
        (UP + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", [400]),
        (UP + b"X: " + b"x" * 9000 + b"\r\n\r\n", [431]),
        (GET + GET + EVIL + GET, [200, 200, 403]),
        (UP + b"Content-Length: 5\r\n\r\nhello" + EVIL, [200, 403]),
        (UP + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + EVIL, [200, 403]),
        (UP + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + EVIL, [400]),
        (UP + b"Content-Length: 3\r\nContent-Length: 99\r\n\r\nabc", [400]),
        (UP + b"Content-Length: +3\r\n\r\nabc", [400]),
        (UP + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", [501]),
        (UP + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", [400]),
        (UP + b"X: a\rb\r\n\r\n", [400]),
        (b"GET /execution/x\rHTTP/1.1\r\nHost: a\r\n\r\n", [400]),
        (b"GET /execution/x\nX: y HTTP/1.1\r\nHost: a\r\n\r\n", [400]),
        (b"GET http://a/auth/token HTTP/1.1\r\nHost: a\r\n\r\n", [403]),
        (b"GET http://a/execution/health HTTP/1.1\r\nHost: a\r\n\r\n", [403]),
        (b"CONNECT /execution/x HTTP/1.1\r\nHost: a\r\n\r\n" + EVIL, [403]),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", [403]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505]),
        (b"GET /execution/../auth/token HTTP/1.1\r\nHost: a\r\n\r\n", [403]),
        (b"GET /execution/%2e%2E/auth/token HTTP/1.1\r\nHost: a\r\n\r\n", [403]),
        (b"GET /execution HTTP/1.1\r\nHost: a\r\n\r\n", [403]),
        (b"GET\r\n\r\n", [400]),
        (b"\x16\x03\x01\x02\x00\x01\x00", [400]),
        (b"", []),
    ],
)
def test_what_is_passed_on(server: Listener, gate: tuple[str, int], said: bytes, statuses: list[int]) -> None:
    server.heard.clear()
    heard = talk(gate, said)
    assert [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+)", heard)] == statuses
    assert [request.split(b" ")[1].startswith(b"/execution/") for request in server.heard] == [True] * statuses.count(
        200
    )


def test_a_conversation_outlives_the_collection_of_garbage(
    server: Listener, gate: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has said all, and its task waits for the API server alone: nothing but the gate holds it then."""
    monkeypatch.setattr(server, "delay", 0.5)
    gc.freeze()  # what is there before the conversation, all of Airflow, need not be searched each time
    try:
        with socket.create_connection(gate, 120) as client:
            client.sendall(signed(GET))
            client.shutdown(socket.SHUT_WR)
            for _ in range(5):
                time.sleep(0.05)
                gc.collect()
            heard = b"".join(iter(lambda: client.recv(65536), b""))
    finally:
        gc.unfreeze()
    assert re.findall(rb"HTTP/1\.1 (\d+)", heard) == [b"200"]


def test_no_other_protocol_follows(server: Listener, gate: tuple[str, int]) -> None:
    """A server that takes up `Upgrade` would speak on as the client likes."""
    server.heard.clear()
    upgrade = b"Connection: Upgrade, X-Own\r\nUpgrade: websocket\r\nX-Own: 1\r\nX-Kept: 2\r\n\r\n"
    heard = talk(
        gate,
        GET.replace(b"Host: a\r\n\r\n", b"").replace(b"Host: a", b"Host: evil").removesuffix(b"\r\n") + upgrade + EVIL,
    )
    assert (heard.count(b"200 OK"), heard.count(b"403 ")) == (1, 1)
    (request,) = (bytes(each).lower() for each in server.heard)
    assert b"upgrade" not in request
    assert b"x-own" not in request
    assert b"x-kept: 2" in request
    assert b"evil" not in request
    assert b"connection: close" in request


LINES = [
    b"GET /execution/a HTTP/1.1\r\n",
    b"POST /execution/b HTTP/1.1\r\n",
    b"HEAD /execution/c HTTP/1.1\r\n",
    b"POST /auth/token HTTP/1.1\r\n",
    b"GET /api/v2/x HTTP/1.0\r\n",
    b"GET /execution/..;/auth HTTP/1.1\r\n",
    b"Host: a\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 7\r\n",
    b"Content-Length: 41\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:\tchunked\r\n",
    b"transfer-encoding: identity\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    b"Connection: Content-Length, Transfer-Encoding\r\n",
    b"Connection: keep-alive\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n",
    b" folded: x\r\n",
    b"X: y\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b"0\r\n\r\n",
    b"5;x=\ny\r\nhello\r\n",
    b"29\r\n",
    b"POST /auth/token HTTP/1.1\r\nHost: a\r\n\r\n",
    b"Authorization: Bearer <token>\r\n",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=20)), max_size=14))
@example([LINES[1], LINES[6], LINES[8], LINES[10], LINES[20], LINES[24], LINES[27]])
def test_any_bytes(server: Listener, gate: tuple[str, int], parts: list[bytes]) -> None:
    """Each connection to the server has one request, for the execution API, whose length is unambiguous."""
    server.heard.clear()
    talk(gate, b"".join(parts))
    for said in [bytes(each) for each in server.heard]:
        head, end, body = said.partition(b"\r\n\r\n")
        assert end
        lines = head.split(b"\r\n")
        assert re.fullmatch(rb"[A-Z]+ /execution/[!-~]* HTTP/1\.1", lines[0])
        assert all(re.fullmatch(rb"[!-9;-~]+: [^\r\n\x00]*", line) for line in lines[1:])
        names = [line.partition(b":")[0].lower() for line in lines[1:]]
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        if b"content-length" in names:
            number = next(int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length"))
            assert len(body) <= number
        elif b"transfer-encoding" in names:
            while body:
                size, newline, rest = body.partition(b"\r\n")
                if not newline:
                    break
                assert re.fullmatch(rb"[0-9a-fA-F]+", size)
                body = rest[int(size, 16) + 2 :] if int(size, 16) else b""
        else:
            assert body == b""


TRICKS = [
    "execution",
    "auth",
    "..",
    ".",
    "",
    "%2e%2e",
    "%2E.",
    "%252e%252e",
    "..;",
    "..;a=b",
    "..%2f",
    "%5c..",
    "\\..",
    "a%0d%0ab",
    "%00",
    "..%00",
    "%c0%ae%c0%ae",
    "%25252525252e%25252525252e",
    "a;b",
    "?",
    "#",
    "x?..",
    "%",
    "%zz",
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(TRICKS), max_size=8), st.sampled_from(["/execution/", "/my%20air/execution/"]))
def test_no_path_leads_out(parts: list[str], path: str) -> None:
    """However often a proxy or the server decodes it, resolves it, or takes a backslash for a slash."""
    below = prefix(f"http://a:1{path}")
    target = path + "/".join(parts)
    if is_below(target.encode(), below):
        read = target.partition("?")[0]
        for _ in range(12):
            for seen in (read, read.replace("\\", "/"), re.sub(r";[^/]*", "", read.replace("\\", "/"))):
                assert posixpath.normpath(seen).startswith((below[:-1], path[:-1])), seen
            read = unquote(read, errors="strict")


def test_paths_of_the_execution_api() -> None:
    for path in (
        "health",
        "xcoms/d/manual__2026-01-01T00%3A00%3A00%2B00%3A00/t/return_value",
        "variables/a/b",
        "x?a=..",
        "variables/100%25",
        "variables/%C3%BC",
    ):
        assert is_below(f"/execution/{path}".encode(), "/execution/"), path
        assert is_below(f"/a%20b/execution/{path}".encode(), prefix("http://h/a b/execution"))
    assert not is_below(b"/Execution/x", "/execution/")
    assert not is_below(b"//execution/x", "/execution/")


def test_a_whole_server_is_no_execution_api() -> None:
    for url in ("http://airflow:8080", "http://airflow:8080/", "http://airflow:8080//"):
        with pytest.raises(ValueError, match="ends in /execution/"):
            ApiGate(url, "test")


def test_the_conversation_of_a_client() -> None:
    """One connection, many requests, bodies of all framings, and answers as they are."""
    with ExecutionApi() as api:
        made = ApiGate(api.url, "test")
        try:
            host, port = made.open()
            assert made.open() == (host, port), "the second time it is there"
            with httpx.Client(base_url=f"http://{host}:{port}/execution/", trust_env=False) as client:
                assert client.get("health").json() == {"status": "healthy"}
                client.headers["Authorization"] = f"Bearer {token()}"
                assert (
                    client.post(
                        "a",
                        json={"x": 1},
                    ).status_code
                    == 200
                )
                assert (
                    client.patch("a/state", json={"state": "success"}, headers={"Expect": "100-continue"}).json() == {}
                )
                assert client.head("health").status_code in (200, 501)
                refused = client.post(f"http://{host}:{port}/auth/token", json={})
                assert (refused.status_code, refused.json()["detail"]) == (
                    403,
                    "this tunnel leads only to Airflow's execution API at /execution/",
                )
                assert client.get("health").status_code == 200
            assert [path for _, path, _ in api.requests] == [
                "/execution/health",
                "/execution/a",
                "/execution/a/state",
                "/execution/health",
            ]
        finally:
            made.close()
    assert made.open() == (host, port), "the next controller's gate has the same port"
    with httpx.Client(base_url=f"http://{host}:{port}/execution/", trust_env=False) as client:
        assert client.get("health").status_code == 502
    made.close()
    made.close()


def test_large_bodies_in_both_directions(tmp_path: object) -> None:
    """They are passed on as they come, and a slow reader is waited for."""
    size = 3_000_000

    class Echo(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline() != b"\r\n":
                pass
            body = self.rfile.read(size)
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (size, body)
            )

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        made = ApiGate(f"http://127.0.0.1:{server.server_address[1]}/execution/", "large")
        host, port = made.open()
        try:
            answer = httpx.post(
                f"http://{host}:{port}/execution/x",
                content=b"z" * size,
                headers={"Authorization": f"Bearer {token()}"},
                trust_env=False,
                timeout=120,
            )
            assert answer.content == b"z" * size
        finally:
            made.close()
            server.shutdown()


def test_a_head_travels_with_what_follows_it() -> None:
    """Each piece is a packet of the tunnel, so what comes in two goes on as one."""
    with socket.create_server(("127.0.0.1", 0)) as api:
        gate = ApiGate(f"http://127.0.0.1:{api.getsockname()[1]}/execution/", "pieces")
        try:
            with socket.create_connection(gate.open(), 120) as client:
                client.sendall(signed(UP) + b"Content-Length: 5\r\n\r\n")
                time.sleep(0.1)
                client.sendall(b"hello")
                server, _ = api.accept()
                with server:
                    assert server.recv(65536).endswith(b"\r\n\r\nhello")
                    server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
                    time.sleep(0.1)
                    server.sendall(b"fine")
                    assert client.recv(65536).endswith(b"\r\n\r\nfine")
        finally:
            gate.close()


def begin(gate: tuple[str, int], count: int) -> list[socket.socket]:
    """Conversations that have begun a request and do not end it."""
    clients = [socket.create_connection(gate, 120) for _ in range(count)]
    for client in clients:
        client.sendall(b"GET /execution/health HTTP/1.1\r\n")
    return clients


def wait(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_half_open_conversations_take_no_more_than_their_share(
    server: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = ApiGate(server.url, "crowded")
    made.most_conversations, made.least_idle = 20, 600.0
    monkeypatch.setattr(gate_module, "UNVERIFIED_SECONDS", 600.0)
    clients = begin(made.open(), 150)
    try:
        wait(lambda: len(made._conversations) == 20 and len(caplog.records) > 0)
        there = len(os.listdir("/proc/self/fd")) - before - len(clients)
        assert there <= 20 + 8, "a loop, a listener and what the test has"
        for client in clients[20:]:
            client.close()
        for client in clients[:20]:
            client.sendall(b"Host: a\r\n\r\n")
        assert b"200 OK" in talk(made.open(), GET), "the one that waits has its turn"
        said = [each.getMessage() for each in caplog.records if "through the tunnel at once" in each.getMessage()]
        assert len(said) == 1
    finally:
        for client in clients:
            client.close()
        made.close()


def test_a_head_that_does_not_come_ends_its_conversation(server: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "UNVERIFIED_SECONDS", 1.5)
    made = ApiGate(server.url, "slow")
    try:
        (client,) = begin(made.open(), 1)
        with client:
            assert client.recv(1) == b""
        with socket.create_connection(made.open(), 120) as client:
            client.sendall(signed(GET))
            assert b"200" in client.recv(65536)
            time.sleep(2.0)
            client.sendall(signed(GET))  # between two requests it may be silent for longer
            wait(lambda: b"200" in client.recv(65536))
    finally:
        made.close()


def test_what_is_idle_makes_way(server: Listener) -> None:
    made = ApiGate(server.url, "idle")
    made.most_conversations, made.least_idle = 2, 0.05
    idle = []
    try:
        for _ in range(6):
            idle.append(socket.create_connection(made.open(), 120))
            idle[-1].sendall(signed(GET))
            wait(lambda: b"200" in idle[-1].recv(65536))
    finally:
        for client in idle:
            client.close()
        made.close()


class Patient(socketserver.StreamRequestHandler):
    """An API server that waits for as much as it is sent, and has no answer."""

    def handle(self) -> None:
        while self.rfile.readline():
            pass


@contextlib.contextmanager
def leading_to(handler: type[socketserver.BaseRequestHandler]) -> Iterator[tuple[str, int]]:
    """A gate before such a server."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as api:
        api.daemon_threads = True
        threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        made = ApiGate(f"http://127.0.0.1:{api.server_address[1]}/execution/", "body")
        try:
            yield made.open()
        finally:
            made.close()
            api.shutdown()


def test_a_body_that_does_not_come_ends_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MOST_DELAY", 0.2)
    with leading_to(Patient) as gate, socket.create_connection(gate, 120) as client:
        client.sendall(signed(UP) + b"Content-Length: 5\r\n\r\n")
        assert client.recv(65536) == b""


def test_a_body_that_trickles_ends_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and all of them would take weeks."""
    monkeypatch.setattr(gate_module, "MOST_DELAY", 1.0)
    with leading_to(Patient) as gate, socket.create_connection(gate, 120) as client:
        client.sendall(signed(UP) + b"Content-Length: 100000000\r\n\r\n")
        client.settimeout(0.05)
        end = time.monotonic() + 60
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                client.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    assert client.recv(1) == b""
                    break
        assert time.monotonic() < end


def test_an_answer_that_is_not_read_ends_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stranger after some seconds, however large it is."""
    monkeypatch.setattr(gate_module, "UNVERIFIED_SECONDS", 0.5)
    over = threading.Event()

    class Large(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"z" * 1_000_000)
            over.set()

    with leading_to(Large) as gate, socket.create_connection(gate, 120) as client:
        client.sendall(STRANGE_GET)
        assert over.wait(60)


def test_an_answer_that_is_not_read_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client does not take of an answer would keep the gate's descriptor, for as long as the client likes."""
    monkeypatch.setattr(gate_module, "UNVERIFIED_SECONDS", 0.5)
    size = 6_000_000  # more than the kernel keeps

    class Finite(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (size, b"z" * size))

    def sockets() -> int:
        return len(os.listdir("/proc/self/fd"))

    with leading_to(Finite) as gate, contextlib.ExitStack() as stack:
        before = sockets()
        for _ in range(10):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(gate)
            client.sendall(STRANGE_GET)
            assert client.recv(1) == b"H"
        wait(lambda: sockets() == before + 10)


def test_an_answer_that_does_not_come_ends_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose machine has gone says nothing, not even that."""
    monkeypatch.setattr(gate_module, "ANSWER_TIMEOUT", 0.5)
    over = threading.Event()

    class Silent(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            over.wait(120)

    with leading_to(Silent) as gate, socket.create_connection(gate, 60) as client:
        client.sendall(signed(GET))
        try:
            assert client.recv(1) == b""
        finally:
            over.set()


HEAVY = b"Content-Length: 1000000\r\n\r\nx"
ATTACKS = {
    "a head that does not end": [b"POST /execution/x HTTP/1.1\r\nHost: a\r\n"],
    "a body without a token": [STRANGE_UP + HEAVY],
    "a body with a forged token": [UP.replace(b"<token>", b"<token>x") + HEAVY],
    "a body in chunks": [STRANGE_UP + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"],
    "one request after the other": [STRANGE_GET] * 20,
    "one token for all": [UP + HEAVY],
    "one token for all, one request after the other": [GET] * 20,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_heartbeats_pass_beside_an_attack(attack: str) -> None:
    """As many connections as the gate takes at once are held open by somebody who sends a byte now and then."""
    with ExecutionApi() as api, contextlib.ExitStack() as stack:
        made = ApiGate(api.url, "attacked")
        host, port = made.open()
        stack.callback(made.close)
        clients = [
            stack.enter_context(socket.create_connection((host, port), 120))
            for _ in range(gate_module.ApiGate.most_conversations)
        ]
        parts = [signed(part, "attacker") for part in ATTACKS[attack]]
        kept = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        url = f"http://{host}:{port}/execution/task-instances/1/heartbeat"
        for number in range(10):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(parts[number] if number < len(parts) else b"x")
            # A task that runs keeps its connection; one that starts has none.
            with httpx.Client(trust_env=False, timeout=30) as fresh:
                for honest in (kept, fresh):
                    answer = honest.put(url, json={}, headers={"Authorization": f"Bearer {token('honest')}"})
                    assert answer.status_code == 200


def test_a_token_has_its_share_of_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further requests of a job are to be repeated, until one of its conversations has ended."""
    monkeypatch.setattr(gate_module, "MOST_DELAY", 600.0)
    with leading_to(Patient) as gate, contextlib.ExitStack() as stack:

        def begin_one(job: str) -> socket.socket:
            client = stack.enter_context(socket.create_connection(gate, 120))
            client.sendall(signed(UP, job) + b"Content-Length: 5\r\n\r\nh")
            return client

        first = [begin_one("a") for _ in range(gate_module.MOST_OF_A_TOKEN)]
        wait(lambda: b" 503 " in answer_of(begin_one("a")))
        assert b" 503 " not in answer_of(begin_one("b"))
        first[0].close()
        wait(lambda: b" 503 " not in answer_of(begin_one("a")))


def answer_of(client: socket.socket) -> bytes:
    """What a client is answered at once; nothing where its request is passed on."""
    client.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        return client.recv(65536)
    return b""
