"""The controller's side of a spool on another machine: a session with the program that serves it there."""

from __future__ import annotations

import binascii
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lading.hooks.files.json_model import JsonModel, ReadWith, Text, checked
from lading.hooks.spool import server
from lading.hooks.spool.tokens import TOKEN
from lading.hooks.spool.values import LATEST, Date, Name
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.session import Session, SessionEnded
from lading.scheduling.model.light_dataclasses import dataclass, field
from lading.scheduling.text.nesting import parse_json

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport


def _tokens(found: Any) -> frozenset[str]:
    if not isinstance(found, list):
        raise ValueError("a list of tokens is expected")
    return frozenset(each for each in found if TOKEN.fullmatch(each))


def _moment(found: Any) -> float | None:
    return found if isinstance(found, float) and 0 <= found <= LATEST else None


def _unpacked(found: Any) -> bytes:
    if not isinstance(found, str):
        raise ValueError("text in Base64 is expected")
    return binascii.a2b_base64(found)


Tokens = Annotated[frozenset[str], ReadWith(_tokens)]
Moment = Annotated[Date | None, ReadWith(_moment)]
Content = Annotated[bytes, ReadWith(_unpacked)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply(JsonModel):
    """A machine's answer, see :mod:`lading.hooks.spool.server`.

    :param boot_id: of the machine now; if it has changed, the machine was restarted and no earlier process runs
    :param now: the machine's clock, seconds since the epoch
    :param lives: whether an agent is running on the machine
    :param known: the tokens of all jobs on the machine
    :param waiting: those of jobs that have not started
    :param returned: those of jobs that were taken back
    :param events: the new files of events, with their content
    :param left_out: files of events that cannot be read, with the fault
    :param more: whether there are further new files of events
    :param logs: the new content of each log; None: the log does not exist
    :param found: the paths of all logs by token, if requested
    :param kept: files that could not be removed
    :param closed: whether its inbox is closed, so that it takes no more jobs
    :param ends_at: when its jobs are told to exit as it is reclaimed, by its clock; None: no such time is known
    :param fault: why something could not be written; None: everything was
    """

    boot_id: Name
    now: Date
    lives: bool
    known: Tokens
    waiting: Tokens
    returned: Tokens
    events: dict[Text, Content]
    left_out: dict[Text, Text]
    more: bool
    logs: list[Content | None]
    found: dict[Text, Text] = field(default_factory=dict)
    kept: list[Text]
    closed: bool = False
    ends_at: Moment = None
    fault: Text | None = None


def program(root: str) -> tuple[list[str], bytes]:
    """Return the arguments of the machine's Python, and the program that it then reads from standard input.

    :param root: the folder of the spool, absolute
    """
    text = Path(server.__file__).read_bytes()
    loader = (
        f"import os, sys\ntext = b''\nwhile len(text) < {len(text)}:\n"
        f"    part = os.read(0, {len(text)} - len(text))\n    if not part: sys.exit()\n    text += part\n"
        "exec(compile(text, 'lading-spool', 'exec'))"
    )
    return ["-I", "-S", "-c", loader, root], text


class SpoolConnection:
    """The session with a machine. It belongs to one thread.

    :param command: the machine's Python
    :param root: the folder of the spool, absolute
    :param setup: shell text before the command
    """

    def __init__(self, transport: Transport, command: str, root: str, setup: str) -> None:
        self.transport = transport
        self.command = command
        self.root = root
        self.setup = setup
        self._session: Session | None = None
        self._since = 0.0

    def ask(
        self, request: Mapping[str, Any], timeout: float = 60.0
    ) -> Reply:  # Python may start from a slow file server
        """Send a request, and once more in a new session if the old one has ended.

        :raises TransportError: there is no answer; the request may have been carried out
        """
        text = json.dumps(request).encode() + b"\n"
        was_open = self._session is not None
        try:
            try:
                line = self._said(text, timeout)
            except SessionEnded:
                if not was_open:
                    raise
                self.close()
                line = self._said(text, timeout)
        except TransportError as error:
            self.close()
            raise TransportError(f"{self.transport}: {error}") from error
        try:
            return _reply(line)
        except ValueError as error:
            self.close()
            raise TransportError(f"{self.transport}: the answer from {self.root} is not valid: {error}") from error

    def begin(self, options: Sequence[str], text: str, mark: str, timeout: float) -> str:
        """Start a new session with another program, which serves the spool after its answer; return that answer.

        :param options: of the machine's Python
        :param text: the line to send to the program
        :param mark: the beginning of the answer's line, which is stripped
        :raises SessionEnded: the program has exited
        :raises TransportError: it does not answer
        """
        self.close()
        try:
            return self._begun(options, text.encode() + b"\n", timeout).wait_for_line(mark, timeout)
        except SessionEnded:
            self.close()
            raise
        except TransportError as error:
            self.close()
            raise TransportError(f"{self.transport}: {error}") from error

    def fileno(self) -> int | None:
        """Return a descriptor for select(2) that is readable when there is news; None: there is no session."""
        return None if self._session is None else self._session.fileno()

    def has_come(self) -> bool:
        """Whether the machine has announced news, or the session has ended."""
        if self._session is None:
            return False
        try:
            said = self._session.read_new()
        except (OSError, ValueError):  # the connection is lost
            said = None
        if said is None:
            self.close()
            # A younger session has not worked.
            return time.monotonic() - self._since >= 10.0
        return server.NEWS.encode() in said

    def close(self) -> None:
        """End the session; the next request starts another one."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _begun(self, options: Sequence[str], text: bytes, timeout: float) -> Session:
        self._session = self.transport.session([self.command, *options], self.setup)
        self._since = time.monotonic()
        self._session.write(text, timeout)
        return self._session

    def _said(self, text: bytes, timeout: float) -> str:
        if self._session is None:
            options, server_text = program(self.root)
            return self._begun(options, server_text + text, timeout).wait_for_line(server.ANSWER, timeout)
        self._session.write(text, timeout)
        return self._session.wait_for_line(server.ANSWER, timeout)


def _reply(line: str) -> Reply:
    """Parse an answer.

    :raises ValueError: it is not valid
    :raises TransportError: a step failed on the machine
    """
    found = parse_json(line.encode())
    if isinstance(found, dict) and (failed := found.get("failed")):
        raise TransportError(f"it could not be asked: {failed}")
    return Reply(**checked(Reply, found))
