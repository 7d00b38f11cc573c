"""The program of :class:`tests.services.commands.Commands`: it imports Airflow, and forks from there.

Each line on standard input is a request, in JSON: the ``arguments`` of ``airflow``, its whole ``environment``, the
files that take its ``output`` and its ``errors``, and a ``number``. Each line of the answer says that a request has
begun (``number``, ``pid``), or that a process has ended (``pid``, ``status``). Nothing here waits for a process to end.
At the end of the input, also where its writer was killed, what still runs is asked to end by SIGTERM.
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
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn


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
    import_all_models()
    ProvidersManager().initialize_providers_configuration()
    cli_parser.get_parser()


def serve(answers: int) -> dict[str, Any] | None:
    """Fork for each request; return the request in the fork, and None at the end of the input."""

    def tell(**answer: int) -> None:
        with contextlib.suppress(OSError):  # nothing listens any more
            os.write(answers, json.dumps(answer).encode() + b"\n")

    running: dict[int, int] = {}  # pids, by what can be read when a process has ended
    with open(0, "rb", buffering=0, closefd=False) as requests:  # what was taken in ahead could not be waited for
        while True:
            ready, _, _ = select.select([0, *running], [], [])
            for descriptor in running.keys() & ready:
                pid = running.pop(descriptor)
                os.close(descriptor)
                tell(pid=pid, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            if 0 not in ready:
                continue
            if not (line := requests.readline()):
                break
            request: dict[str, Any] = json.loads(line)
            has_session, tell_session = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                for descriptor in (*running, has_session, tell_session, answers):
                    os.close(descriptor)
                return request
            os.close(tell_session)
            os.read(has_session, 1)  # nothing, as soon as the other end is closed
            os.close(has_session)
            running[os.pidfd_open(pid)] = pid
            tell(number=request["number"], pid=pid)
    for pid in running.values():
        os.kill(pid, signal.SIGTERM)
    return None


def become(request: dict[str, Any]) -> None:
    """Make this process what ``airflow`` is when it has been started with a request's values."""
    files = [(os.devnull, os.O_RDONLY)]
    files += [(request[name], os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("output", "errors")]
    for descriptor, (path, flags) in enumerate(files):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["airflow", *request["arguments"]]


def insist(ignored: sys.UnraisableHookArgs) -> None:
    """Be sent SIGTERM again, as by the service manager of Airflow, where it came at a moment in which it does nothing.

    Airflow's components end by an exception in the handler of the signal, and Python ignores that in the callback of a
    weak reference.
    """
    sys.__unraisablehook__(ignored)
    if isinstance(ignored.exc_value, SystemExit):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()


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
    runpy.run_path(str(Path(sys.argv[1]).parent / "bin" / "airflow"))["let_signal_handlers_log"]()
    gc.disable()  # nothing of what is imported is garbage, and to look for some takes a third of the time
    preload(sys.argv[2:])
    from airflow import settings
    from airflow.__main__ import main as airflow
    from airflow._shared.observability.traces import configure_otel
    from airflow.configuration import conf

    database = settings.SQL_ALCHEMY_CONN
    # The forks need not look at it again, also not when they end, which takes an API server two seconds of a processor.
    gc.freeze()
    gc.enable()
    request = serve(answers)
    if request is None:
        leave(0)
    become(request)
    sys.unraisablehook = insist
    # The rest of the configuration is read where it is asked for.
    settings.configure_vars()
    if database != settings.SQL_ALCHEMY_CONN:
        settings.reconfigure_orm()
    configure_otel(conf)
    try:
        airflow()
    except SystemExit as end:
        leave(end.code)
    leave(0)


if __name__ == "__main__":
    main()
