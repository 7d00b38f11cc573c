"""Where compute nodes find Airflow's execution API when a tunnel leads to it: its address is in a file of the site's
folder.

The tunnel may come back on another port, or on another login node, while jobs wait and run: they read the file again
for each request. Nodes import this module, so it imports little.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lading.hooks.deployment import current
from lading.hooks.files.safe_files import read_regular
from lading.scheduling.text.printable import shortened

# The environment variable that names the file to the processes of a job.
VARIABLE = "LADING_API_TUNNEL"
# The one that names the option which says where the API is, for messages; without it that of Airflow.
OPTION = "LADING_API_OPTION"
# A host name or an address: what can stand in a URL.
HOST = re.compile(r"[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
# What is larger is no address.
MOST_BYTES = 2**12
# The headers of a request without a token: Airflow's server for a single admin (simple_auth_manager_all_admins) adds
# one to those without this header, and then logs a traceback, because its execution API does not take that token.
NO_TOKEN = {"Authorization": "none"}
# How long Airflow's scheduler can be without a task's heartbeat: by this, jobs know how long they may wait for the API.
HEARTBEAT_TIMEOUT = "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A port that leads to the API.

    :param host: as compute nodes call the login node
    """

    host: str
    port: int

    def to_text(self) -> str:
        return f"{self.host} {self.port}\n"

    @classmethod
    def from_text(cls, text: str) -> Address:
        """:raises ValueError: the text is none of :meth:`to_text`"""
        host, port = text.split()
        if not HOST.fullmatch(host) or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is no host and port")
        return cls(host, int(port))

    @classmethod
    def read(cls, path: Path) -> Address:
        """:raises OSError: the file is not there or cannot be read
        :raises ValueError: nothing of use is in it"""
        return cls.from_text(read_regular(path, MOST_BYTES).decode())

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def environment(setup: str, url: str, file: str | None) -> list[str]:
    """The shell lines that lead the processes of jobs to Airflow's API, the site's own lines before them.

    :param url: of the API; empty: there is none
    :param file: that says where a tunnel is; None: there is none
    """
    lines = [setup, *([f"export AIRFLOW__CORE__EXECUTION_API_SERVER_URL={shlex.quote(url)}"] if url else ())]
    if file is not None:
        lines.append(f"export {VARIABLE}={shlex.quote(file)}")
    if (timeout := current.deployment().heartbeat_timeout()) is not None:
        lines.append(f'export {HEARTBEAT_TIMEOUT}="${{{HEARTBEAT_TIMEOUT}:-{timeout}}}"')  # `setup` may say otherwise
    return lines


def line(url: str) -> str:
    """The line of the configuration that says where the API is, as it should most likely be."""
    path = urlsplit(url).path.rstrip("/")
    meant = url if path.endswith("/execution") else f"{url.rstrip('/')}/execution/"
    option = os.environ.get(OPTION, "execution_api_server_url")
    return f'{option} = "{meant if meant != url else "http://ADDRESS:PORT/execution/"}"' + (
        "" if OPTION in os.environ else " in [core]"
    )


def execution_api(configured: str | None) -> str:
    """The URL of the API that jobs report to, such as Airflow's execution API; empty: they report to none.

    :param configured: what the table of a site says; None: the configuration of the deployment counts
    """
    own = current.deployment().api_url()
    return (configured or own) if own else ""


def endpoint(url: str) -> tuple[str, int]:
    """The host and the port of an API.

    :raises ValueError: the text is no URL of HTTP
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(
            f"{shortened(url)} is no URL of an API; one such as https://airflow.example.org/execution/ is expected"
        )
    return parts.hostname, parts.port or PORTS[parts.scheme]
