"""The controller as a process: made from the configuration, and run until a signal ends it.

An executor starts it by ``python -m lading.plugin``, an administrator by ``airflow lading controller``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import logging.handlers
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import httpx
from airflow.configuration import conf
from airflow.executors.base_executor import get_execution_api_server_url
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.controller.controller import Controller
from lading.executors.controller.placing import Extensions
from lading.executors.controller.sites_file import rules_of
from lading.executors.migrations.db_manager import ensure_tables
from lading.executors.settings import Settings
from lading.executors.store import Change
from lading.hooks.files.child_processes import raise_open_files_limit
from lading.hooks.files.logs import PlainFormatter
from lading.hooks.files.safe_files import make_private, private_opener
from lading.plugin.manager import binding_filters, implemented, plugin_manager, policies, rules
from lading.plugin.sites import SitesError, load_sites
from lading.scheduling.reasons import Reason

log = logging.getLogger(__name__)

LOG_BYTES = 10 * 2**20
LOG_FILES = 3
SECONDS_UNTIL_AWAKE = 120.0


@providers_configuration_loaded
def controller(args: argparse.Namespace) -> None:
    """The command ``airflow lading controller``: run a controller as a service."""
    serve(managed=False)


def serve(managed: bool) -> None:
    """Run a controller in this process until SIGTERM or SIGINT.

    :param managed: an executor started it: it logs to a file of its own and ends when Airflow has gone
    :raises SystemExit: the sites file is wrong, which the log says, or the state folder cannot be used
    """
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # it may read the database, as the scheduler does
    settings = Settings.load()
    try:
        make_private(settings.state_folder)
    except OSError as error:
        sys.exit(f"[lading] state_folder cannot be used: {error}")
    log_to(settings, managed)
    raise_open_files_limit()
    ensure_tables()
    try:
        sites = load_sites(settings)
    except SitesError as error:
        log.critical("%s", error)  # the last line, which the executor quotes
        sys.exit(1)
    acting = Controller(sites, mint(), settings, managed, notify_listeners, extensions(settings))

    def stop(signum: int, frame: FrameType | None) -> None:
        acting.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # Blocked by the process that started it until now, and before anything is started that would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # Airflow's modules live forever: a plan's many small objects must not make the collector look at them again.
    gc.collect()
    gc.freeze()
    threading.Thread(target=wake_api_server, daemon=True).start()
    acting.leadership.clock.end_process = lambda: end_at_once(1)
    acting.run()
    end_in_spite_of_threads()


def extensions(settings: Settings) -> Extensions:
    """What plugins and the sites file add to the choice of places."""
    found = rules_of(settings.sites_file, rules())
    return Extensions(binding_filters(), policies(), found, implemented("rank_matches"), implemented("assign_jobs"))


def end_in_spite_of_threads() -> None:
    """End the process where a thread that hangs would keep it alive, such as one of a third party's site."""
    kept = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    if kept:
        log.info("The threads %s are not waited for", ", ".join(kept))
        end_at_once(0)


def end_at_once(status: int) -> None:
    """End the process without waiting for anything but its log."""
    logging.shutdown()
    os._exit(status)


def wake_api_server() -> None:
    """Ask the execution API for its health once it is up: its first answer takes seconds, and a task waits for five."""
    url = f"{get_execution_api_server_url().rstrip('/')}/health"
    deadline = time.monotonic() + SECONDS_UNTIL_AWAKE
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(url, timeout=SECONDS_UNTIL_AWAKE)
            return
        time.sleep(1)


def notify_listeners(changes: Sequence[Change]) -> None:
    """Call the plugins' ``job_changed``; what one of them gets wrong must not hold up the jobs."""
    for change in changes:
        state = change.values.get("state")
        if state is not None:
            reason: Reason | None = change.values.get("reason")
            try:
                plugin_manager().hook.job_changed(
                    token=change.token,
                    state=state.value,
                    cause=change.values.get("cause"),
                    reason=None if reason is None else str(reason),
                    reason_code=None if reason is None else reason.code,
                    reason_params={} if reason is None else dict(reason.params),
                )
            except Exception:
                log.exception("A listener of job_changed failed")


class PrivateFileHandler(logging.handlers.RotatingFileHandler):
    """A log that only Airflow's user may read. What this process prints also continues in the new file."""

    def _open(self) -> io.TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=private_opener)

    def doRollover(self) -> None:
        with open(self.baseFilename, "rb") as full:
            before = os.fstat(full.fileno())
        ours = [output for output in (1, 2) if os.path.samestat(os.fstat(output), before)]
        super().doRollover()
        if self.stream is not None:
            for output in ours:
                os.dup2(self.stream.fileno(), output)


def log_to(settings: Settings, managed: bool) -> None:
    """Send the log to a file that is kept small, or to standard error where another program keeps it."""
    handler: logging.Handler = logging.StreamHandler()
    if managed:
        handler = PrivateFileHandler(settings.controller_log, maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(conf.get("logging", "logging_level", fallback="INFO").upper())


def mint() -> Callable[[str, float], str]:
    """Makes the JWT with which a workload introduces itself to the API server, for a subject and so many seconds."""
    from airflow.api_fastapi.auth.tokens import JWTGenerator, get_signing_args

    generator = JWTGenerator(
        valid_for=conf.getint("execution_api", "jwt_expiration_time"),
        audience=conf.get_mandatory_list_value("execution_api", "jwt_audience")[0],
        issuer=conf.get("api_auth", "jwt_issuer", fallback=None),
        **get_signing_args(make_secret_key_if_needed=False),
    )

    def make(subject: str, valid_for: float) -> str:
        return generator.generate(extras={"sub": subject, "scope": "workload"}, valid_for=valid_for)

    return make
