"""The client of Airflow's execution API, for nodes that reach it through a tunnel, too.

With a tunnel the connection goes to the login node and nothing else changes: the URL with its path, the Host header and
the name that the certificate must have are those of the API server, so TLS and virtual hosts work as without a tunnel.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from airflow.sdk.api.client import Client

from lading.executors.agent.supervisor import AgentJobFailed
from lading.hooks.api_tunnel.address import VARIABLE, Address
from lading.scheduling.reasons import because

# How a proxy, or the gate of a tunnel, says that the API server does not answer.
OUT_OF_REACH = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


class ApiOutOfReach(AgentJobFailed):
    """A job that could not talk to Airflow's execution API, which it cannot help.

    :param error: the last one of its client
    """

    cause = "node_failure"

    def __init__(self, error: Exception, exit_code: int = 1) -> None:
        # What httpx has below the first line leads to a lexicon of status codes.
        message = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        super().__init__(because("api_out_of_reach", text=message), exit_code)


def is_out_of_reach(error: Exception) -> bool:
    """Whether this is the error of a client that has tried long enough to reach the API server."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in OUT_OF_REACH
    return isinstance(error, httpx.RequestError)


class TunnelClient(Client):
    """Airflow's client, whose connections go where the tunnel is at that moment."""

    def __init__(self, **options: Any) -> None:
        # A proxy for the world outside is none for the login node.
        super().__init__(trust_env=False, **options)
        hooks = self.event_hooks
        self.event_hooks = {**hooks, "request": [*hooks["request"], lead_through]}


def lead_through(request: httpx.Request) -> None:
    """Let a request go through the tunnel.

    :raises httpx.ConnectError: its address is not known; the client tries again, as for other broken connections
    """
    file = Path(os.environ[VARIABLE])
    try:
        address = Address.read(file)
    except (OSError, ValueError) as error:
        message = f"where the tunnel to {request.url.host} is cannot be read from {file}: {error}"
        raise httpx.ConnectError(message, request=request) from error
    request.extensions = {**request.extensions, "sni_hostname": request.url.host}
    request.url = request.url.copy_with(host=address.host, port=address.port)


def client_class() -> type[Client]:
    """The class of clients for this machine."""
    return TunnelClient if VARIABLE in os.environ else Client
