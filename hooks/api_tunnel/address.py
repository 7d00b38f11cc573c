"""How compute nodes find Airflow's execution API through a tunnel: a file in the site's folder has its address.

The tunnel can come back on another port, or on another login node, while jobs wait and run, so they read the file again
for each request. Nodes import this module, so it has few imports.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lading.hooks.files.safe_files import read_regular
from lading.scheduling.text.printable import shortened

# The environment variable that tells a job's processes the path of the file.
VARIABLE = "LADING_API_TUNNEL"
# The environment variable with the option that configures the API's URL, for messages; if unset, Airflow's option.
OPTION = "LADING_API_OPTION"
# A host name or address, as allowed in a URL.
HOST = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
# The headers of a request without a token. To a request without this header, Airflow's server for a single admin
# (simple_auth_manager_all_admins) adds a token that its execution API rejects, and logs a traceback.
NO_TOKEN = {"Authorization": "none"}
# How long Airflow's scheduler waits for a task's heartbeat, which tells jobs how long they can wait for the API.
HEARTBEAT_TIMEOUT = "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A port that leads to the API.

    :param host: the name of the login node on compute nodes
    """

    host: str
    port: int

    def to_text(self) -> str:
        return f"{self.host} {self.port}\n"

    @classmethod
    def from_text(cls, text: str) -> Address:
        """:raises ValueError: the text does not come from :meth:`to_text`"""
        host, port = text.split()
        if not HOST.fullmatch(host) or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not a host and a port")
        return cls(host, int(port))

    @classmethod
    def read(cls, path: Path) -> Address:
        """:raises OSError: the file does not exist or cannot be read
        :raises ValueError: it does not hold an address"""
        # A larger file does not hold an address.
        return cls.from_text(read_regular(path, 2**12).decode())

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def environment(setup: str, url: str, file: str | None, heartbeat_timeout: int | None) -> list[str]:
    """Return the shell lines that point the processes of jobs to Airflow's API, after the site's own lines.

    :param url: of the API; empty: there is none
    :param file: the file with the tunnel's address; None: there is no tunnel
    :param heartbeat_timeout: how many seconds a job can go without a heartbeat; None: no limit
    """
    lines = [setup, *([f"export AIRFLOW__CORE__EXECUTION_API_SERVER_URL={shlex.quote(url)}"] if url else ())]
    if file is not None:
        lines.append(f"export {VARIABLE}={shlex.quote(file)}")
    if heartbeat_timeout is not None:
        lines.append(
            f'export {HEARTBEAT_TIMEOUT}="${{{HEARTBEAT_TIMEOUT}:-{heartbeat_timeout}}}"'
        )  # `setup` can override it
    return lines


def line(url: str) -> str:
    """Return the most likely correct line of the configuration for the URL of the API."""
    path = urlsplit(url).path.rstrip("/")
    meant = url if path.endswith("/execution") else f"{url.rstrip('/')}/execution/"
    option = os.environ.get(OPTION, "execution_api_server_url")
    return f'{option} = "{meant if meant != url else "http://ADDRESS:PORT/execution/"}"' + (
        "" if OPTION in os.environ else " in [core]"
    )


def endpoint(url: str) -> tuple[str, int]:
    """Return the host and the port of an API.

    :raises ValueError: the text is not an HTTP URL
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(
            f"{shortened(url)} is not the URL of an API; valid: a URL such as https://airflow.example.org/execution/"
        )
    return parts.hostname, parts.port or PORTS[parts.scheme]
