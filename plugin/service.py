"""The controller as a process: made from the configuration, and run until a signal ends it.

An executor starts it by ``python -m lading.plugin``, an administrator by ``airflow lading controller``.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

import httpx
from airflow.configuration import conf
from airflow.executors.base_executor import get_execution_api_server_url
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from lading.executors.migrations.db_manager import ensure_tables
from lading.executors.settings import Settings
from lading.hooks.api_tunnel.address import NO_TOKEN
from lading.hooks.files.child_processes import raise_open_files_limit
from lading.hooks.files.safe_files import make_private
from lading.hooks.files.version import MixedVersions, check_versions
from lading.plugin.serving import log_to, serve_until_signal
from lading.plugin.sites import SitesError, load_sites

log = logging.getLogger(__name__)

SECONDS_UNTIL_AWAKE = 120.0


@providers_configuration_loaded
def controller(args: argparse.Namespace) -> None:
    """The command ``airflow lading controller``: run a controller as a service."""
    serve(managed=False)


def serve(managed: bool) -> None:
    """Run a controller in this process until SIGTERM or SIGINT.

    :param managed: an executor started it: it logs to a file of its own and ends when Airflow has gone
    :raises SystemExit: the sites file or what is installed is wrong, which the log says, or the state folder cannot be
        used
    """
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # it may read the database, as the scheduler does
    settings = Settings.load()
    try:
        make_private(settings.state_folder)
    except OSError as error:
        sys.exit(f"[lading] state_folder cannot be used: {error}")
    log_to(settings, managed, conf.get("logging", "logging_level", fallback="INFO"))
    raise_open_files_limit()
    try:
        check_versions()
        ensure_tables()
        sites = load_sites(settings)
    except (MixedVersions, SitesError) as error:
        log.critical("%s", error)  # the last line, which the executor quotes
        sys.exit(1)
    serve_until_signal(
        sites, mint(), settings, managed, start=threading.Thread(target=wake_api_server, daemon=True).start
    )


def wake_api_server() -> None:
    """Ask the execution API for its health once it is up: its first answer takes seconds, and a task waits for five."""
    url = f"{get_execution_api_server_url().rstrip('/')}/health"
    deadline = time.monotonic() + SECONDS_UNTIL_AWAKE
    # One client for all attempts: each new one reads all certificates of the machine.
    with httpx.Client(headers=NO_TOKEN, timeout=SECONDS_UNTIL_AWAKE) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                client.get(url)
                return
            time.sleep(1)


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
