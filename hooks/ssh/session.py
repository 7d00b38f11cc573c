"""A command at a site that runs for as long as its input is open, and is used line by line.

An exchange ends and is forgotten; a session lives as long as the connection, unless one of the two sides ends it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lading.hooks.files.child_processes import with_first_open_files_limit, without_secrets
from lading.hooks.ssh.answer import TransportError

if TYPE_CHECKING:
    import paramiko

# All shells read this alike. The text to run comes first, up to a line of its own; what follows is for the command.
END = "lading-end"
READ_AND_RUN = f'eval "$(while IFS= read -r line; do case $line in ({END}) break;; esac; printf "%s\\n" "$line"; done)"'
COMMAND = f"exec /bin/sh -c '{READ_AND_RUN}'"
READ = 65536
# How much of its output is kept for the message when it ends, bytes.
MOST_LAST_OUTPUT = 2000
# Seconds that a client of ours has to end when its input is closed.
END_TIMEOUT = 2.0


def script(command: Sequence[str], setup: str) -> bytes:
    """What is sent first: the command with its errors among its output, after the site's own lines."""
    lines = ["exec 2>&1", "cd /"]
    if setup:
        lines += ["{", setup, "} </dev/null", "set +e +f +u +C", "unset IFS"]
    return "\n".join([*lines, f"exec {shlex.join(command)}", END, ""]).encode(errors="surrogateescape")


class SessionEnded(TransportError):
    """The command has ended, or the connection has."""


class Session(ABC):
    """A command under way."""

    def __init__(self) -> None:
        self._unread = b""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still runs, as far as this machine knows, without asking the site."""

    @abstractmethod
    def write(self, text: bytes, timeout: float) -> None:
        """Send something to its input.

        :raises TransportError: it cannot be sent
        """

    @abstractmethod
    def close(self) -> None:
        """Close its input."""

    @abstractmethod
    def fileno(self) -> int:
        """What select(2) takes: readable when it has printed something, or has ended."""

    def read_new(self) -> bytes | None:
        """What it has printed since it was asked last, without waiting; None: it has ended."""
        before, self._unread = self._unread, b""
        try:
            return before + self._receive(0.0) or None
        except TimeoutError:
            return before

    @abstractmethod
    def _receive(self, timeout: float) -> bytes:
        """What it has printed; nothing when there will be no more.

        :raises TimeoutError: it prints nothing
        """

    def wait_for_line(self, mark: str, timeout: float) -> str:
        """The next line that begins with a mark, without it; other lines are left out.

        :raises TransportError: it has ended, with its last output, or does not answer in time
        """
        deadline = time.monotonic() + timeout
        others: list[str] = []
        parts = [self._unread]  # of a line that may be long
        self._unread = b""
        while True:
            if b"\n" in parts[-1]:
                line, _, rest = b"".join(parts).partition(b"\n")
                parts = [rest]
                text = line.decode(errors="replace").rstrip("\r")
                if text.startswith(mark):
                    self._unread = rest
                    return text[len(mark) :]
                others.append(text)
                continue
            if (left := deadline - time.monotonic()) <= 0:
                self._unread = b"".join(parts)
                raise TransportError(f"no answer within {timeout:g} s")
            try:
                data = self._receive(left)
            except TimeoutError:
                continue
            if not data:
                raise _ended("\n".join([*others, b"".join(parts).decode(errors="replace")]))
            parts.append(data)

    def _write_failure(self, error: Exception) -> SessionEnded:
        """Why its input cannot be written to: what it printed before it ended, which says more than the error.

        :param error: what the write has raised
        """
        deadline = time.monotonic() + END_TIMEOUT
        said, self._unread = self._unread, b""
        try:
            while (left := deadline - time.monotonic()) > 0 and (data := self._receive(left)):
                said = (said + data)[-4 * MOST_LAST_OUTPUT :]
        except (OSError, ValueError):  # time is up, or its output is closed as well
            pass
        if not said.strip():
            return SessionEnded(f"it does not listen: {error or type(error).__name__}")
        return _ended(said.decode(errors="replace"))


def _ended(said: str) -> SessionEnded:
    return SessionEnded(f"it ended; its last output: {said.strip()[-MOST_LAST_OUTPUT:] or 'none'}")


def begin(channel: paramiko.Channel, command: str, timeout: float) -> None:
    """Start a command at the other end of a channel. Paramiko would wait forever for a server that hangs.

    :raises TimeoutError: it has not begun within so many seconds
    """
    deadline = time.monotonic() + timeout
    timer = threading.Timer(timeout, channel.close)
    timer.start()
    try:
        channel.exec_command(command)
    except Exception as error:  # paramiko's
        if time.monotonic() < deadline:
            raise
        raise TimeoutError(f"no command begins within {timeout:g} s") from error
    finally:
        timer.cancel()


class ChannelSession(Session):
    """A session on a new channel of paramiko's.

    :param text: of :func:`script`
    """

    def __init__(self, channel: paramiko.Channel, text: bytes, timeout: float) -> None:
        super().__init__()
        self.channel = channel
        channel.settimeout(timeout)
        channel.set_combine_stderr(True)  # what is not read there would keep the channel readable forever
        begin(channel, COMMAND, timeout)
        self.write(text, timeout)

    @property
    def alive(self) -> bool:
        return not (self.channel.closed or self.channel.eof_received)

    def write(self, text: bytes, timeout: float) -> None:
        self.channel.settimeout(timeout)
        try:
            self.channel.sendall(text)
        except (EOFError, OSError) as error:
            raise self._write_failure(error) from error

    def close(self) -> None:
        close_channel(self.channel)

    def fileno(self) -> int:
        return int(self.channel.fileno())

    def _receive(self, timeout: float) -> bytes:
        self.channel.settimeout(timeout)
        try:
            return self.channel.recv(READ)  # which sends, too: that there is room for more
        except TimeoutError:
            raise
        except (EOFError, OSError):
            return b""


def close_channel(channel: paramiko.Channel) -> None:
    """Close a channel, also one whose connection is gone."""
    with contextlib.suppress(EOFError, OSError):
        channel.close()


def start(command: Sequence[str], environment: Mapping[str, str] | None, *, errors: int) -> subprocess.Popen[bytes]:
    """Start a process of this machine, with pipes to it and no tie to our own terminal.

    It leads to where tasks run, so it has none of the secrets of Airflow's servers; bsub hands its environment on.

    :param environment: None: that of this process
    :param errors: where its standard error goes, as ``subprocess`` names them
    :raises TransportError: it cannot be started
    """
    try:
        return subprocess.Popen(
            with_first_open_files_limit(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=without_secrets(os.environ if environment is None else environment),
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise TransportError(f"cannot start {command[0]}: {error.strerror}") from error


class ProcessSession(Session):
    """A session that a process of this machine leads to.

    :param text: of :func:`script`
    :raises TransportError: it cannot be started
    """

    def __init__(self, command: Sequence[str], text: bytes, environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.process = start(command, environment, errors=subprocess.STDOUT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        self.write(text, END_TIMEOUT)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def write(self, text: bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pipe, left = self._input, memoryview(text)
        try:
            os.set_blocking(pipe.fileno(), False)
            while left and _ready(pipe.fileno(), select.POLLOUT, deadline - time.monotonic()):
                left = left[os.write(pipe.fileno(), left[:READ]) :]
        except (OSError, ValueError) as error:
            raise self._write_failure(error) from error
        if left:
            raise TransportError(f"it has not listened for {timeout:g} s")

    def close(self) -> None:
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self.process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fileno(self) -> int:
        return self._output.fileno()

    def _receive(self, timeout: float) -> bytes:
        if not _ready(self._output.fileno(), select.POLLIN, timeout):
            raise TimeoutError
        return os.read(self._output.fileno(), READ)


def _ready(descriptor: int, event: int, timeout: float) -> bool:
    poll = select.poll()  # select(2) takes no large descriptors
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, timeout) * 1000))
