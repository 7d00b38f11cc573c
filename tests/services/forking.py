"""The program of :class:`tests.services.commands.Commands`: it imports Airflow, and forks from there.

Each line on standard input is a request, in JSON: the ``arguments`` of ``airflow``, its whole ``environment``, the
files that take its ``output`` and its ``errors``, and a ``number``. Each line of the answer says that a request has
begun (``number``, ``pid``), or that a process has ended (``pid``, ``status``). Nothing here waits for a process to end.
At the end of the input, also where its writer was killed, what still runs is asked to end by SIGTERM.

A scheduler's controllers, and their node agents, are forked here as well: each would take five seconds of a processor
for its imports. They outlive this process, as they outlive who has started them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

# The modules of controllers and node agents, those that start them, and the longest request for one, bytes.
STARTERS = {
    "lading.plugin": "lading.executors.controller_process",
    "lading.executors.agent": "lading.hooks.machines.agent_host",
}
LONGEST_REQUEST = 2**17
# The variable of a request that says, in JSON, which constants of modules are changed in the fork.
CONSTANTS = "LADING_TESTS_CONSTANTS"


def preload(components: list[str]) -> None:
    """Import what the commands and these components of Airflow import."""
    from airflow.cli import cli_parser
    from airflow.dag_processing import manager  # noqa: F401
    from airflow.jobs import scheduler_job_runner, triggerer_job_runner  # noqa: F401
    from airflow.models import import_all_models
    from airflow.providers_manager import ProvidersManager

    from lading.plugin.subcommands import check, clean, cost, jobs, sites  # noqa: F401

    if "api-server" in components:
        from airflow.api_fastapi.core_api.routes import public, ui  # noqa: F401
        from airflow.api_fastapi.execution_api import routes  # noqa: F401
    if "scheduler" in components:
        from lading.executors.agent import agent
        from lading.plugin import service  # noqa: F401

        for module in import_module(agent.RUNNER).MODULES:
            import_module(module)
    import_all_models()
    ProvidersManager().initialize_providers_configuration()
    cli_parser.get_parser()


class Forks:
    """What was asked for on standard input, and through the :func:`door`."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.running: dict[int, int] = {}  # pids, by what can be read when a process has ended
        self.askers: dict[int, socket.socket] = {}  # by the pids of what they have asked for
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(door(os.getpid()))
        self.door.listen(16)

    def tell(self, **answer: int) -> None:
        with contextlib.suppress(OSError):  # nothing listens any more
            os.write(self.answers, json.dumps(answer).encode() + b"\n")

    def serve(self) -> dict[str, Any] | None:
        """Fork for each request; return the request in the fork, and None at the end of the input."""
        with open(0, "rb", buffering=0, closefd=False) as requests:  # what was taken in ahead could not be waited for
            while True:
                ready, _, _ = select.select([0, self.door, *self.running], [], [])
                for descriptor in self.running.keys() & ready:
                    self._note_end(descriptor)
                if self.door in ready and (lent := self._lend()):
                    return lent
                if 0 not in ready:
                    continue
                if not (line := requests.readline()):
                    break
                request: dict[str, Any] = json.loads(line)
                if (pid := self._fork(request)) is None:
                    return request
                self.tell(number=request["number"], pid=pid)
        for pid in set(self.running.values()) - self.askers.keys():
            os.kill(pid, signal.SIGTERM)
        return None

    def _fork(self, request: dict[str, Any]) -> int | None:
        """The pid of the fork, when it has a session and a command line of its own; None in the fork."""
        has_session, tell_session = os.pipe()
        if (pid := os.fork()) == 0:
            os.setsid()
            if "module" in request:
                write_command_line([sys.executable, "-c", *request["arguments"]])
            self.door.close()
            for asker in self.askers.values():
                asker.close()
            for descriptor in (*self.running, has_session, tell_session, self.answers):
                os.close(descriptor)
            return None
        os.close(tell_session)
        os.read(has_session, 1)  # nothing, as soon as the other end is closed
        os.close(has_session)
        self.running[os.pidfd_open(pid)] = pid
        return pid

    def _lend(self) -> dict[str, Any] | None:
        """Fork for a request that has come by the socket; return it in the fork."""
        asker, _ = self.door.accept()
        text, files, _, _ = socket.recv_fds(asker, LONGEST_REQUEST, 3)
        request: dict[str, Any] | None = json.loads(text) if text else None
        if request is not None:
            request["files"] = files
            if (pid := self._fork(request)) is None:
                asker.close()
                return request
            self.askers[pid] = asker
            with contextlib.suppress(OSError):  # who has asked was killed
                asker.send(str(pid).encode())
        for descriptor in files:
            os.close(descriptor)
        return None

    def _note_end(self, descriptor: int) -> None:
        pid = self.running.pop(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if asker := self.askers.pop(pid, None):
            with contextlib.suppress(OSError):  # who has asked has ended
                asker.send(str(status).encode())
            asker.close()
        else:
            self.tell(pid=pid, status=status)


def door(pid: int) -> str:
    """The address of the socket of the process that forks, which vanishes with it."""
    return f"\0lading-tests-{pid}"


def write_command_line(words: list[str]) -> None:
    """Let /proc say that this process was started by a command."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write("\0".join(words).encode()[: end - start - 1].ljust(end - start, b"\0"))


class Lent:
    """A controller or a node agent that the process which forks has started for another one; to be used like a
    :class:`subprocess.Popen`.
    """

    def __init__(self, lender: int, request: dict[str, Any], files: list[int]) -> None:
        self.returncode: int | None = None
        self._lender = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lender.connect(door(lender))
        socket.send_fds(self._lender, [json.dumps(request).encode()], files)
        self.pid = int(self._lender.recv(64))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._lender], [], [], 0)[0]:
            if said := self._lender.recv(64):
                self.returncode = int(said)
            elif not Path("/proc", str(self.pid)).exists():  # the lender has ended, and none can say how this has
                self.returncode = -signal.SIGKILL
        return self.returncode


def borrow(lender: int) -> None:
    """Let this process have its controllers and node agents from the process that forks, while that lives."""

    def start(
        command: list[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        start_new_session: bool,
        env: dict[str, str] | None = None,
    ) -> Lent | subprocess.Popen[bytes]:
        module = next(each for each in command if each in STARTERS)
        request = {
            "module": module,
            "arguments": command[command.index(module) :],
            "environment": dict(os.environ if env is None else env),
            "folder": os.getcwd(),
            "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        }
        with open(os.devnull, "rb") as nothing:
            try:
                return Lent(lender, request, [nothing.fileno(), stdout.fileno(), stderr.fileno()])
            except ConnectionError:  # it was killed
                return subprocess.Popen(
                    command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=start_new_session, env=env
                )

    for module in STARTERS.values():
        import_module(module).subprocess = SimpleNamespace(  # type: ignore[attr-defined]
            Popen=start, DEVNULL=subprocess.DEVNULL
        )


def become(request: dict[str, Any]) -> None:
    """Make this process what ``airflow``, or a module, is when it has been started with a request's values."""
    if "files" not in request:
        paths = [(os.devnull, os.O_RDONLY)]
        paths += [(request[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("output", "errors")]
        request["files"] = [os.open(path, flags, 0o644) for path, flags in paths]
    for descriptor, opened in enumerate(request["files"]):
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, value in json.loads(os.environ.get(CONSTANTS, "{}")).items():
        module, _, constant = name.rpartition(".")
        found = import_module(module)
        assert hasattr(found, constant), name
        setattr(found, constant, value)
    sys.argv = ["airflow", *request["arguments"]]
    if "module" in request:
        sys.argv = request["arguments"]
        os.chdir(request["folder"])
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


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


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what is printed by an import is no answer
    runpy.run_path(str(Path(sys.argv[1]).parent / "bin" / "airflow"))["let_signals_end"]()
    gc.disable()  # nothing of what is imported is garbage, and to look for some takes a third of the time
    components = sys.argv[2:]
    preload(components)
    from airflow import settings
    from airflow.__main__ import main as airflow
    from airflow._shared.observability.traces import configure_otel
    from airflow.configuration import conf
    from airflow.sdk._shared.observability.metrics import stats
    from airflow.sdk.observability.metrics import stats_utils

    database = settings.SQL_ALCHEMY_CONN
    # The forks need not look at it again, also not when they end, which takes an API server two seconds of a processor.
    gc.freeze()
    gc.enable()
    lender = os.getpid()
    request = Forks(answers).serve()
    if request is None:
        leave(0)
    become(request)
    if "scheduler" in components:
        borrow(lender)
    # The rest of the configuration is read where it is asked for.
    settings.configure_vars()
    if database != settings.SQL_ALCHEMY_CONN:
        settings.reconfigure_orm()
    configure_otel(conf)
    # What was imported has taken these for the values of this process, not for those of the request.
    stats.initialize(
        factory=stats_utils.get_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on")
    )
    try:
        if "module" in request:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            airflow()
    except SystemExit as end:
        leave(end.code)
    leave(0)


if __name__ == "__main__":
    main()
