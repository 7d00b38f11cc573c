"""A process that has imported a program, and forks from there what it is asked for.

A request comes by a socket of Unix, in JSON, with the files that become standard input, output and error. What is
forked has a session, a command line, an environment, a working folder, signals and an exit code of its own. It may
outlive this process, and who has asked for it; or, where that is ``bound``, it is asked to end by SIGTERM then.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

# The longest request, bytes.
LONGEST_REQUEST = 2**17
# The variable of a request that says, in JSON, which constants of modules are changed in the fork.
CONSTANTS = "LADING_TESTS_CONSTANTS"
# The kernel reads the command and the environment of a process from where they were at its start: what the process
# that forks is started with, in addition, so that there is room for those of the forks.
ROOM_FOR_COMMAND = "-" * 2**13
ROOM_FOR_ENVIRONMENT = {"LADING_TESTS_ROOM": "-" * 2**15}
ROOT = Path(__file__).parents[2]
# What is forked must not look for modules among those of the tests.
START = """\
import sys
from importlib import import_module
sys.path[:0] = sys.argv[2].split(":")
main = import_module(sys.argv[1]).main
del sys.path[: sys.argv[2].count(":") + 1]
main(int(sys.argv[-2]), sys.argv[3:-2])"""


def start(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: int, *more: Path
) -> subprocess.Popen[bytes]:
    """Start a process that forks; it ends when its standard input does.

    :param program: the module whose ``main(arguments)`` it runs
    :param log: what takes its output
    :param more: folders of modules that the program imports
    """
    path = ":".join(map(str, (*more, ROOT)))
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", START, program, path, *arguments, str(writing), ROOM_FOR_COMMAND],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env={**environment, **ROOM_FOR_ENVIRONMENT},
        cwd=folder,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    os.read(reading, 1)  # nothing, as soon as it has a door
    os.close(reading)
    return process


class Forks:
    """What was asked for through the :func:`door`.

    :param opened: is closed when there is one
    """

    def __init__(self, opened: int) -> None:
        self.running: dict[int, int] = {}  # pids, by what can be read when a process has ended
        self.askers: dict[int, socket.socket] = {}  # by the pids of what they have asked for
        self.bound: dict[int, int] = {}  # the pids of what ends with who has asked for it, by that one's socket
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(door(os.getpid()))
        self.door.listen(128)
        os.close(opened)

    def serve(self) -> dict[str, Any] | None:
        """Fork for each request; return the request in the fork, and None at the end of standard input."""
        while True:
            ready, _, _ = select.select([0, self.door, *self.running, *self.bound], [], [])
            for descriptor in self.running.keys() & ready:
                self._note_end(descriptor)
            for descriptor in self.bound.keys() & ready:
                os.kill(self.bound.pop(descriptor), signal.SIGTERM)
            if self.door in ready and (request := self._lend()):
                return request
            if 0 in ready:
                break
        for pid in self.bound.values():
            os.kill(pid, signal.SIGTERM)
        return None

    def _fork(self, request: dict[str, Any]) -> int | None:
        """The pid of the fork, when it has a session, a command and an environment of its own; None in the fork."""
        has_session, tell_session = os.pipe()
        if (pid := os.fork()) == 0:
            os.setsid()
            os.environ.clear()
            os.environ.update(request["environment"])
            write_start(request["command"], request["environment"])
            self.door.close()
            for asker in self.askers.values():
                asker.close()
            for descriptor in (*self.running, has_session, tell_session):
                os.close(descriptor)
            return None
        os.close(tell_session)
        os.read(has_session, 1)  # nothing, as soon as the other end is closed
        os.close(has_session)
        self.running[os.pidfd_open(pid)] = pid
        return pid

    def _lend(self) -> dict[str, Any] | None:
        """Fork for a request; return it in the fork."""
        asker, _ = self.door.accept()
        text, files, _, _ = socket.recv_fds(asker, LONGEST_REQUEST, 3)
        request: dict[str, Any] | None = json.loads(text) if text else None
        if request is not None:
            request["files"] = files
            if (pid := self._fork(request)) is None:
                asker.close()
                return request
            self.askers[pid] = asker
            if request["bound"]:
                self.bound[asker.fileno()] = pid
            with contextlib.suppress(OSError):  # who has asked was killed
                asker.send(str(pid).encode())
        for descriptor in files:
            os.close(descriptor)
        return None

    def _note_end(self, descriptor: int) -> None:
        pid = self.running.pop(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with self.askers.pop(pid) as asker:
            self.bound.pop(asker.fileno(), None)
            with contextlib.suppress(OSError):  # who has asked has ended
                asker.send(str(status).encode())


def door(pid: int) -> str:
    """The address of the socket of the process that forks, which vanishes with it."""
    return f"\0lading-tests-{pid}"


def write_start(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let /proc say that this process was started by a command, and with an environment.

    The process that forks was started with room for both.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    words = [*command], [f"{name}={value}" for name, value in environment.items()]
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for first, part in zip((45, 47), words, strict=True):
            start, end = int(fields[first]), int(fields[first + 1])
            text = os.fsencode("".join(f"{word}\0" for word in part))
            assert len(text) < end - start, f"{len(text)} bytes have no room"
            memory.seek(start)
            memory.write(text.ljust(end - start, b"\0"))


class Lent:
    """A process that the one which forks has started for another one; to be used like a :class:`subprocess.Popen`.

    :param lender: the pid of the process that forks
    :param request: the ``module`` that is run, or none: a script; the ``arguments``, from its name on; the ``command``
        as /proc shows it; the whole ``environment``; the working ``folder``; the numbers of the ``blocked`` signals;
        and whether it is ``bound`` to end with this object
    :param files: its standard input, output and error
    """

    def __init__(self, lender: int, request: dict[str, Any], files: list[int]) -> None:
        self.returncode: int | None = None
        self._lender = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lender.connect(door(lender))
        socket.send_fds(self._lender, [json.dumps(request).encode()], files)
        self.pid = int(self._hear())

    def poll(self, timeout: float | None = 0) -> int | None:
        """How it has ended; None: it has not, after so many seconds."""
        if self.returncode is None and select.select([self._lender], [], [], timeout)[0]:
            if said := self._hear():
                self.returncode = int(said)
            elif not Path("/proc", str(self.pid)).exists():  # the lender has ended, and none can say how this has
                self.returncode = -signal.SIGKILL
        return self.returncode

    def _hear(self) -> bytes:
        return self._lender.recv(64)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def leave(self) -> None:
        """Leave it to itself, or ask it to end where it is bound."""
        self._lender.close()


class Popen(subprocess.Popen[str]):
    """A :class:`subprocess.Popen` whose process is lent.

    :param lender: the pid of the process that forks
    :param arguments: a script of Python and its arguments
    """

    def __init__(self, lender: int, arguments: Sequence[str], **options: Any) -> None:
        self._lender = lender
        super().__init__(arguments, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **options)

    def _execute_child(  # type: ignore[override]
        self, args: Sequence[str], executable: object, preexec_fn: object, close_fds: object, pass_fds: object,
        cwd: Path, env: Mapping[str, str] | None, startupinfo: object, creationflags: object, shell: object,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int, *others: object,
    ) -> None:  # fmt: skip
        request = {
            "command": [sys.executable, *args],
            "arguments": [*args],
            "environment": {**(os.environ if env is None else env)},
            "folder": str(cwd),
            "blocked": [],
            "bound": False,
        }
        try:
            self._lent = Lent(self._lender, request, [p2cread, c2pwrite, errwrite])
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        self.pid = self._lent.pid
        self._child_created = True

    def _internal_poll(self, *_: object, **__: object) -> int | None:  # type: ignore[override]
        self.returncode = self._lent.poll()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if (code := self._lent.poll(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.returncode = code
        return code


def borrow(lender: int, starters: Mapping[str, str]) -> None:
    """Let this process have its controllers and node agents from the process that forks, while that lives.

    :param starters: the modules of both, and those that start them
    """

    def start(
        command: list[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        start_new_session: bool,
        env: dict[str, str] | None = None,
    ) -> Lent | subprocess.Popen[bytes]:
        module = next(each for each in command if each in starters)
        request = {
            "module": module,
            "command": command[command.index(sys.executable) :],
            "arguments": command[command.index(module) :],
            "environment": dict(os.environ if env is None else env),
            "folder": os.getcwd(),
            "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "bound": False,
        }
        with open(os.devnull, "rb") as nothing:
            try:
                return Lent(lender, request, [nothing.fileno(), stdout.fileno(), stderr.fileno()])
            except ConnectionError:  # it was killed
                return subprocess.Popen(
                    command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=start_new_session, env=env
                )

    for module in set(starters.values()):
        import_module(module).subprocess = SimpleNamespace(  # type: ignore[attr-defined]
            Popen=start, DEVNULL=subprocess.DEVNULL
        )


def become(request: dict[str, Any]) -> None:
    """Make this process what the request's command is at its start: its files, its folder and its signals.

    Its environment says which constants are changed.
    """
    for descriptor, opened in enumerate(request["files"]):
        os.dup2(opened, descriptor)
        os.close(opened)
    for name, value in json.loads(os.environ.get(CONSTANTS, "{}")).items():
        module, _, constant = name.rpartition(".")
        found = import_module(module)
        assert hasattr(found, constant), name
        setattr(found, constant, value)
    sys.argv = request["arguments"]
    os.chdir(request["folder"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def run(request: Mapping[str, Any]) -> NoReturn:
    """Run the module or the script of a request as Python does, and end."""
    try:
        if "module" in request:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(request["arguments"][0], run_name="__main__")
    except SystemExit as end:
        leave(end.code)
    leave(0)


def leave(status: object) -> NoReturn:
    """End as Python does, but leave the memory to the kernel: to free all that was imported, which first copies each
    page of it, takes a component half a second of a processor, and an API server more than one.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(int(status or 0))
