"""The tunnel to Airflow's execution API for compute nodes that can reach only the login node.

It is a reverse tunnel over the site's SSH connection to this machine, which can reach the API. On the login node a
relay (:mod:`lading.hooks.api_tunnel.relay`) lets compute nodes connect to it. Bytes are forwarded unchanged: TLS is
between node and API server, and nodes address the API's own URL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any

from lading.hooks.api_tunnel import relay
from lading.hooks.api_tunnel.address import HOST, Address, endpoint
from lading.hooks.api_tunnel.gate import ApiGate
from lading.hooks.files.child_processes import raise_open_files_limit
from lading.hooks.files.json_model import JsonModel, Matching, Text, checked
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.backoff import Backoff
from lading.hooks.ssh.session import Session
from lading.hooks.ssh.steps import RunCommand
from lading.hooks.ssh.transport import LOOPBACK, Transport
from lading.scheduling.model.light_dataclasses import dataclass
from lading.scheduling.text.nesting import parse_json

log = logging.getLogger(__name__)

# Seconds within which the relay answers, including the time for an earlier relay to exit.
ANSWER_TIMEOUT = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayMessage(JsonModel):
    host: Annotated[str, Matching(HOST)] = ""
    address: Annotated[str, Matching(re.compile(r"\S{1,100}"))] = ""
    stands: bool = False
    taken: Text = ""
    error: Text = ""


class ApiTunnel:
    """The tunnel of one site. Its methods are to be called from one thread.

    :param python: the site's Python, which runs the relay
    :param url: the API's URL on this machine
    :param host: the name of the login node on compute nodes; None: its full name
    :param port: on the login node; None: any free one, and the same again when the tunnel is rebuilt
    :param file: where compute nodes read the address of the tunnel
    :param shared: that file of another tunnel of this user, which is used if it works
    """

    def __init__(
        self,
        transport: Transport,
        python: str,
        url: str,
        *,
        host: str | None,
        port: int | None,
        file: str,
        shared: str | None = None,
    ) -> None:
        self.transport = transport
        self.python = python
        self.url = url
        self.host = host
        self.port = port
        self.file = file
        self.shared = shared
        self.address: Address | None = None
        self.backoff = Backoff(first=1.0, longest=15.0)
        self._session: Session | None = None
        self._gate: ApiGate | None = None
        self._leads_to: tuple[str, int] | None = None
        self._known: dict[str, Address | None] = {}

    @property
    def stands(self) -> bool:
        """Whether the tunnel is up, as far as this machine can tell without asking the site."""
        return self._session is not None and self._session.alive

    def keep(self) -> None:
        """Build the tunnel, unless it is up, and publish its address to the nodes.

        :raises TransportError: it could not be built, or the next attempt is not due yet
        """
        if not self.stands:
            self._keep()

    def _keep(self) -> None:
        self.backoff.check()
        try:
            self._build()
        except TransportError as error:
            self.close()
            raise self.backoff.failed(str(error)) from error
        self.backoff.succeeded()

    def close(self) -> None:
        """Let the relay exit, and release the port if the connection stays open."""
        self._take_down()
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    def _take_down(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._leads_to is not None:
            with contextlib.suppress(TransportError):
                self.transport.untunnel(*self._leads_to)
            self._leads_to = None

    def _end(self) -> tuple[str, int]:
        """Return where the tunnel ends on this machine's side: the API server or the gate.

        :raises TransportError: the URL is not valid, or no port is available for a gate
        """
        try:
            if not self.url.lower().startswith("http:"):
                return endpoint(self.url)
            if self._gate is None:
                self._gate = ApiGate(self.url, f"{os.getuid()} {self.transport} {self.file}")
            return self._gate.open()
        except (ValueError, OSError) as error:
            raise TransportError(f"a tunnel to {self.url!r} is not possible: {error}") from error

    def _build(self) -> None:
        there = self._end()
        raise_open_files_limit()
        before = self._read(self.file)
        shared = self._read(self.shared) if self.shared else None
        self._take_down()
        self._leads_to = there
        self._session = session = self.transport.session(
            [self.python, "-m", relay.__name__, *([self.host] if self.host else [])]
        )
        # Python starts within this time even from a slow file server.
        hello = self._read_answer(session, 60.0)
        if not {"host", "address"} <= hello.keys():
            raise TransportError(f"{self.transport}: the relay of the tunnel did not report its address")
        if shared is not None and shared.host == hello["host"] and self._is_there(session, shared):
            address = shared
        else:
            port = self._open(session, there, hello["address"], before.port if before else 0)
            address = Address(hello["host"], port)
        self._publish(address, before)
        log.info("Compute nodes reach %s through %s", self.url, address)

    def _publish(self, address: Address, before: Address | None) -> None:
        if address != before:
            folder, _, name = self.file.rpartition("/")
            self.transport.put(folder, {name: address.to_text().encode()})
            self._known[self.file] = address
        self.address = address

    def _open(self, session: Session, there: tuple[str, int], address: str, before: int) -> int:
        """Open a port that compute nodes can reach, and return it."""
        trouble: TransportError | None = None
        for port in self._ports(before):
            self.transport.untunnel(*there)
            try:
                found = self.transport.tunnel(*there, port, address)
            except TransportError as error:
                trouble = error
                continue
            session.write(f"{found}\n".encode(), ANSWER_TIMEOUT)
            answer = self._read_answer(session, ANSWER_TIMEOUT)
            if "taken" not in answer:
                return found
            trouble = TransportError(answer["taken"])
        assert trouble is not None
        raise trouble

    def _ports(self, before: int) -> Iterator[int]:
        """Yield the ports to request from the server, in order; 0: any port."""
        if self.port is not None:
            yield self.port
            return
        if before:
            yield before
        # If the server can choose, a few ports are tried.
        yield from [0] * 4

    def _is_there(self, session: Session, address: Address) -> bool:
        session.write(f"{relay.LOOK}{address.port}\n".encode(), ANSWER_TIMEOUT)
        return bool(self._read_answer(session, ANSWER_TIMEOUT).get("stands"))

    def _read_answer(self, session: Session, timeout: float) -> dict[str, Any]:
        try:
            heard = session.wait_for_line(relay.MARK, timeout)
            answer = checked(RelayMessage, parse_json(heard.encode()))
        except (TransportError, ValueError) as error:
            raise TransportError(f"{self.transport}: the relay of the tunnel is not running: {error}") from error
        if "error" in answer:
            raise TransportError(answer["error"])
        return answer

    def _read(self, file: str) -> Address | None:
        """Return the address in a file. Each file is read once, because only this object changes it."""
        if file not in self._known:
            (answer,) = self.transport.exchange([RunCommand(f"cat -- {shlex.quote(file)} 2>/dev/null || echo none")])
            if answer.status != 0:
                raise TransportError(self.transport.fault(answer))
            try:
                self._known[file] = Address.from_text(answer.stdout)
            except ValueError:
                self._known[file] = None
        return self._known[file]


class DirectTunnel(ApiTunnel):
    """The tunnel of one machine. Its methods are to be called from one thread.

    :param url: the API's URL on this machine
    :param file: where jobs read its port
    """

    def __init__(self, transport: Transport, url: str, *, file: str) -> None:
        super().__init__(transport, "", url, host=None, port=None, file=file)

    @property
    def stands(self) -> bool:
        """Whether it was built. One lost with its connection is rebuilt when the connection is used again."""
        return self.address is not None

    def keep(self) -> None:
        self._keep()  # cheap while it is up

    def close(self) -> None:
        super().close()
        self.address = None

    def _build(self) -> None:
        there = self._end()
        before = self.address or self._read(self.file)
        if self._leads_to not in (None, there):
            self._take_down()
        self._leads_to = there
        try:
            port = self.transport.tunnel(*there, before.port if before else 0)
        except TransportError:
            if before is None:
                raise
            self.transport.untunnel(*there)
            port = self.transport.tunnel(*there)  # another process has taken the former port
        self._publish(Address(LOOPBACK, port), before)
