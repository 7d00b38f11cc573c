"""The first step of a trial job on a node: ``python -m lading.hooks.cluster.checks.early_request``.

It requests the health of Airflow's execution API before Airflow is imported, which can take a minute on a slow file
server. With ``https`` it only connects, because Airflow's configuration defines the valid certificates. It uses only
the standard library.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from lading.hooks.api_tunnel.address import NO_TOKEN, VARIABLE, Address, endpoint, line

URL = "AIRFLOW__CORE__EXECUTION_API_SERVER_URL"
# Start of the output line that explains a failure.
MARK = "lading-early-request: "


class NoAnswerError(Exception):
    """The API does not answer this node; the message ends with the remedy, such as the line to change."""


def ask(url: str, tunnel: Path | None, timeout: float = 10.0) -> None:
    """Request the API's health.

    :param tunnel: the file with the address of the tunnel to it; None: there is no tunnel
    :param timeout: seconds to connect, and to answer
    :raises NoAnswerError: the API does not answer
    """
    here, change = f"node {socket.gethostname()}", line(url)
    try:
        host, port = endpoint(url)
        if tunnel is not None:
            address = Address.read(tunnel)
            host, port, change = address.host, address.port, 'tunnel_host = "how nodes call the login node"'
    except (OSError, ValueError) as error:
        raise NoAnswerError(f"{here} does not know where Airflow's API is: {error}; set {change}") from error
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        text = f"{here} cannot resolve the name {host!r}: {error}; give one that nodes can resolve, or an address"
        raise NoAnswerError(f"{text}: {change}") from error
    asked = f"{url} ({host} port {port})"
    try:
        connection = socket.create_connection((host, port), timeout)
    except (OSError, ValueError) as error:
        text = f"{here} gets no answer from Airflow's API at {asked}: {error or type(error).__name__}"
        raise NoAnswerError(f"{text}; start the API server, or set {change}") from error
    with connection:
        try:
            if urlsplit(url).scheme == "http":
                _health(connection, url, timeout)
        except TimeoutError as error:
            text = (
                f"Airflow's API at {asked} is up but slow: it has accepted the connection of {here}, but not answered"
            )
            advice = "check the load and the log of the API server, and give it more processes ([api] workers)"
            raise NoAnswerError(f"{text} within {timeout:g} s; {advice}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = f"{here} gets an answer that is not from Airflow's API at {asked}: {error or type(error).__name__}"
            raise NoAnswerError(f"{text}; set {change}") from error


def _health(connection: socket.socket, url: str, timeout: float) -> None:
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.netloc.rpartition("@")[2], timeout=timeout)
    client.sock = connection
    client.request("GET", f"{parts.path.rstrip('/')}/health", headers={"Connection": "close", **NO_TOKEN})
    answer = client.getresponse()
    body = answer.read(100_000)
    if answer.status != 200 or not isinstance(said := json.loads(body), dict) or said.get("status") != "healthy":
        raise ValueError(f"it is not the execution API: it answers {answer.status} {answer.reason}")


def main() -> int:
    tunnel = os.environ.get(VARIABLE)
    try:
        ask(os.environ[URL], Path(tunnel) if tunnel else None)
    except NoAnswerError as error:
        print(f"{MARK}{error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
