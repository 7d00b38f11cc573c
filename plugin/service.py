"""The controller as a process: created from Airflow's configuration, it runs until SIGTERM or SIGINT.

An executor starts it with ``python -m lading.plugin``, an administrator with ``airflow lading controller``.
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
from lading.plugin.host import AirflowHost
from lading.plugin.serving import log_to, serve_until_signal
from lading.plugin.sites import SitesError, load_sites

log = logging.getLogger(__name__)


@providers_configuration_loaded
def controller(args: argparse.Namespace) -> None:
    serve(managed=False)


def serve(managed: bool) -> None:
    """Run a controller in this process until SIGTERM or SIGINT.

    :param managed: whether an executor started it; if so, it logs to its own file and exits when Airflow has stopped
    :raises SystemExit: the sites file or the installation is faulty (logged), or the state folder cannot be used
    """
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # allows access to the database, like in the scheduler
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
        log.critical("%s", error)  # has to be the last line, because the executor quotes it
        sys.exit(1)
    wake = threading.Thread(target=wake_api_server, daemon=True)
    serve_until_signal(AirflowHost(), sites, mint(), settings, managed, start=wake.start)


def wake_api_server() -> None:
    """Warm up the execution API once it is running: its first answer takes seconds, and tasks wait only five."""
    url = f"{get_execution_api_server_url().rstrip('/')}/health"
    deadline = time.monotonic() + 120.0
    # One client for all attempts, because each new one loads all certificates of the machine.
    with httpx.Client(headers=NO_TOKEN, timeout=120.0) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                client.get(url)
                return
            time.sleep(1)


def mint() -> Callable[[str, float], str]:
    """Return a function that creates the JWT of a workload from its subject and its seconds of validity."""
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
