"""A controller's side of a spool on another machine: a conversation with the program that serves it there."""

from __future__ import annotations

import binascii
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lading.hooks.files.json_model import JsonModel, ReadWith, Text, checked, parsed
from lading.hooks.spool import server
from lading.hooks.spool.events import LATEST, Date, Name
from lading.hooks.spool.tokens import TOKEN
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.session import Session, SessionEnded

if TYPE_CHECKING:
    from lading.hooks.ssh.transport import Transport

# The answer comes within this, a start of Python on a slow file server included, seconds.
TIMEOUT = 60.0
# A session that ends before has not worked: it is no reason to ask again at once, seconds.
LEAST_LIFE = 10.0


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
    """What a machine answers, see :mod:`lading.hooks.spool.server`.

    :param boot_id: of the machine now; another one than before: it was restarted, and nothing from before runs
    :param now: what its clock says, seconds since the epoch
    :param lives: whether an agent lives there
    :param known: the tokens of all jobs there
    :param waiting: of those that have not begun
    :param returned: of those that were taken back
    :param events: the files of events that are new
    :param left_out: what is wrong with those that cannot be read
    :param more: whether there are further ones
    :param logs: what is new in each; None: there is no such log
    :param found: the paths of all logs, by token, where that was asked
    :param kept: what could not be removed
    :param closed: whether its inbox is closed: nothing comes in any more
    :param ends_at: when its jobs are asked to end because it goes, by its clock; None: that is not known
    :param fault: why something could not be written; None: all was
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
    """What is run on a machine after its Python, and what that reads first.

    :param root: the folder that has the spool, absolute
    """
    text = Path(server.__file__).read_bytes()
    loader = (
        f"import os, sys\ntext = b''\nwhile len(text) < {len(text)}:\n"
        f"    part = os.read(0, {len(text)} - len(text))\n    if not part: sys.exit()\n    text += part\n"
        "exec(compile(text, 'lading-spool', 'exec'))"
    )
    return ["-I", "-S", "-c", loader, root], text


class SpoolConnection:
    """The conversation. It belongs to one thread.

    :param command: the Python there
    :param root: the folder that has the spool, absolute
    :param setup: shell text before the command
    """

    def __init__(self, transport: Transport, command: str, root: str, setup: str) -> None:
        self.transport = transport
        self.command = command
        self.root = root
        self.setup = setup
        self._session: Session | None = None
        self._since = 0.0

    def ask(self, request: Mapping[str, Any], timeout: float = TIMEOUT) -> Reply:
        """Have done what a request says, once more on a new session where the last one turns out to be over.

        :raises TransportError: there is no answer; it may have been done
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
            raise TransportError(
                f"{self.transport}: what is answered in {self.root} makes no sense: {error}"
            ) from error

    def begin(self, options: Sequence[str], text: str, mark: str, timeout: float) -> str:
        """Begin a new session by another program, which serves the spool when it has answered; its answer.

        :param options: of the Python there
        :param text: the line that is said to the program
        :param mark: what the line of its answer begins with, which is left out
        :raises Ended: the program has ended
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
        """What select(2) takes, readable when there is news; None: there is no session."""
        return None if self._session is None else self._session.fileno()

    def has_come(self) -> bool:
        """Whether it has said that there is news, or has ended."""
        if self._session is None:
            return False
        try:
            said = self._session.read_new()
        except (OSError, ValueError):  # the connection is gone
            said = None
        if said is None:
            self.close()
            return time.monotonic() - self._since >= LEAST_LIFE
        return server.NEWS.encode() in said

    def close(self) -> None:
        """End the session; the next request begins another one."""
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
    """:raises ValueError: it makes no sense
    :raises TransportError: something could not be done there
    """
    found = parsed(line.encode())
    if isinstance(found, dict) and (failed := found.get("failed")):
        raise TransportError(f"it could not be asked: {failed}")
    return Reply(**checked(Reply, found))
