"""A command at a site that runs while its input is open, with line-based requests and answers.

Unlike an exchange, a session lives as long as the connection, unless one of the two sides ends it.
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

# All shells parse this alike. The text to run comes first and ends with a line ``lading-end``; the rest is the
# command's input.
END = "lading-end"
READ_AND_RUN = f'eval "$(while IFS= read -r line; do case $line in ({END}) break;; esac; printf "%s\\n" "$line"; done)"'
COMMAND = f"exec /bin/sh -c '{READ_AND_RUN}'"
# Seconds for our client process to exit after its input is closed.
END_TIMEOUT = 2.0


def script(command: Sequence[str], setup: str) -> bytes:
    """Return the text to send first: the command, after the site's own lines, with its errors on standard output."""
    lines = ["exec 2>&1", "cd /"]
    if setup:
        lines += ["{", setup, "} </dev/null", "set +e +f +u +C", "unset IFS"]
    return "\n".join([*lines, f"exec {shlex.join(command)}", END, ""]).encode(errors="surrogateescape")


class SessionEnded(TransportError):
    """The command has exited, or the connection was lost."""


class Session(ABC):
    """A running command."""

    def __init__(self) -> None:
        self._unread = b""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still runs, as far as this machine has noticed, without asking the site."""

    @abstractmethod
    def write(self, text: bytes, timeout: float) -> None:
        """Write to its input.

        :raises TransportError: that failed
        """

    @abstractmethod
    def close(self) -> None:
        """Close its input, on which it exits."""

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor for select(2), readable when it has printed something or exited."""

    def read_new(self) -> bytes | None:
        """Return its new output without blocking; None: it has exited."""
        before, self._unread = self._unread, b""
        try:
            return before + self._receive(0.0) or None
        except TimeoutError:
            return before

    @abstractmethod
    def _receive(self, timeout: float) -> bytes:
        """Return new output; empty at its end.

        :raises TimeoutError: there is none in time
        """

    def wait_for_line(self, mark: str, timeout: float) -> str:
        """Return the next line that begins with a mark, without the mark; other lines are skipped.

        :raises SessionEnded: it has exited; with its last output
        :raises TransportError: it does not answer in time
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
        """Return the error for a failed write, with the last output of the command, which says more than ``error``."""
        deadline = time.monotonic() + END_TIMEOUT
        said, self._unread = self._unread, b""
        try:
            while (left := deadline - time.monotonic()) > 0 and (data := self._receive(left)):
                said = (said + data)[-4 * 2000 :]
        except (OSError, ValueError):  # time-out, or its output is closed as well
            pass
        if not said.strip():
            return SessionEnded(f"it does not read its input: {error or type(error).__name__}")
        return _ended(said.decode(errors="replace"))


def _ended(said: str) -> SessionEnded:
    return SessionEnded(f"it exited; its last output: {said.strip()[-2000:] or 'none'}")


def begin(channel: paramiko.Channel, command: str, timeout: float) -> None:
    """Start a command at the other end of a channel. Paramiko itself would wait forever for a server that hangs.

    :raises TimeoutError: it has not started after ``timeout`` seconds
    """
    deadline = time.monotonic() + timeout
    timer = threading.Timer(timeout, channel.close)
    timer.start()
    try:
        channel.exec_command(command)
    except Exception as error:  # paramiko raises various types
        if time.monotonic() < deadline:
            raise
        raise TimeoutError(f"the command did not start within {timeout:g} s") from error
    finally:
        timer.cancel()


class ChannelSession(Session):
    """A session on a new channel of paramiko.

    :param text: of :func:`script`
    """

    def __init__(self, channel: paramiko.Channel, text: bytes, timeout: float) -> None:
        super().__init__()
        self.channel = channel
        channel.settimeout(timeout)
        channel.set_combine_stderr(True)  # unread errors would keep the channel readable forever
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
            return self.channel.recv(65536)  # also sends a window update, so it may fail
        except TimeoutError:
            raise
        except (EOFError, OSError):
            return b""


def close_channel(channel: paramiko.Channel) -> None:
    """Close a channel, even if its connection is lost."""
    with contextlib.suppress(EOFError, OSError):
        channel.close()


def start(command: Sequence[str], environment: Mapping[str, str] | None, *, errors: int) -> subprocess.Popen[bytes]:
    """Start a process of this machine with pipes, detached from our own terminal.

    Its environment is stripped of the secrets of Airflow's servers, because it may reach tasks: bsub, for example,
    passes its environment on.

    :param environment: None: that of this process
    :param errors: where its standard error goes, as for ``subprocess.Popen``
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
    """A session through a process of this machine.

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
                left = left[os.write(pipe.fileno(), left[:65536]) :]
        except (OSError, ValueError) as error:
            raise self._write_failure(error) from error
        if left:
            raise TransportError(f"it has not read its input for {timeout:g} s")

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
        return os.read(self._output.fileno(), 65536)


def _ready(descriptor: int, event: int, timeout: float) -> bool:
    poll = select.poll()  # select(2) does not support large descriptors
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, timeout) * 1000))
