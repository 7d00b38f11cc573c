"""The transport for commands that run on this machine, and the exchange with a local process."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from lading.hooks.ssh import session
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.exchange import Exchange
from lading.hooks.ssh.session import ProcessSession, Session
from lading.hooks.ssh.transport import LOOPBACK, Transport

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class ShellTransport(Transport):
    """Runs commands on this machine, without Airflow's environment variables, which hold passwords."""

    is_here = True

    def tunnel(self, host: str, port: int, remote_port: int = 0, address: str = LOOPBACK) -> int:
        if host not in LOCAL or address != LOOPBACK or remote_port not in {0, port}:
            raise TransportError(f"{self}: no tunnel to {host}:{port} is needed here, use the address itself")
        return port

    def untunnel(self, host: str, port: int) -> None:
        """Do nothing: there are no tunnels."""

    def session(self, command: Sequence[str], setup: str = "") -> Session:
        environment = _without_airflow()
        return ProcessSession(
            ["/bin/sh", "-c", session.COMMAND], session.script(command, self.setup_before(setup)), environment
        )

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def __str__(self) -> str:
        return "this machine"

    def _converse(self, exchange: Exchange, timeout: float) -> None:
        converse(["/bin/sh", "-c", 'eval "$(cat)"'], exchange, timeout, _without_airflow())


def _without_airflow() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "AIRFLOW" not in name}


def converse(
    command: Sequence[str], exchange: Exchange, timeout: float, environment: Mapping[str, str] | None = None
) -> None:
    """Make an exchange with a process of this machine that is a shell or leads to one.

    The process and its children are killed if the exchange is cut short. Children that outlive a complete exchange are
    left alone.

    :raises TransportError: the process could not be started, took too long, or printed too much
    """
    process = session.start(command, environment, errors=subprocess.PIPE)
    try:
        _transfer(process, exchange, timeout)
    except BaseException:
        _kill(process)
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    try:
        # All its output has been read, so it exits soon.
        process.wait(2.0)
    except subprocess.TimeoutExpired:  # an ssh client stays while any remote process keeps its output open
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _transfer(process: subprocess.Popen[bytes], exchange: Exchange, timeout: float) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout
    script = memoryview(exchange.script)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        speaking = 2
        while speaking and not exchange.complete:
            if not (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                raise TransportError(f"no answer within {timeout:g} s")
            for key, _ in ready:
                if key.data is None:
                    script = _written(key.fd, script)
                    if not script:
                        selector.unregister(process.stdin)
                        process.stdin.close()  # the shell starts once it has read everything
                elif data := os.read(key.fd, 65536):
                    exchange.receive(**{key.data: data})
                else:
                    selector.unregister(key.fileobj)
                    speaking -= 1


def _written(stdin: int, script: memoryview) -> memoryview:
    """Write a part of the script; return the rest, which is empty if the reader has exited."""
    try:
        return script[os.write(stdin, script[:65536]) :]
    except BrokenPipeError:
        return script[:0]
