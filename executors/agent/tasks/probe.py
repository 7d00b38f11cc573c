"""The probe: a job with which ``airflow lading check`` finds out whether tasks can run where it runs.

``python -m lading.executors.agent.tasks.probe`` runs it at once, without a job. With ``--shown`` it also prints which
APIs the server offers: ``execution``, or ``all``.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lading.hooks.api_tunnel.address import NO_TOKEN, VARIABLE, Address, line

if TYPE_CHECKING:
    import httpx

    from lading.executors.agent.tasks.api_client import JobClient

PROBE = "Probe"
SHOWN = "--shown"
# The tunnel's end on a machine that also runs the jobs.
HERE = "127.0.0.1"
START = "start the API server, or "


def workload(subject: str = "", token: str = "") -> dict[str, Any]:
    """Return the workload of a probe, which is not one of Airflow's.

    :param subject: the id of a nonexistent task that the probe claims to be; empty: only check the API server's health
    :param token: the JWT of that task
    """
    return {"type": PROBE, "subject": subject, "token": token}


def run(subject: str = "", token: str = "") -> None:
    """Check the health of Airflow's execution API as a task on this machine would reach it, and try to start a task.

    :raises ConnectionError: the API cannot be reached, is slow, or is not the execution API; the message names its URL
        and what to do in each case
    :raises ApiRefused: the API does not accept the token
    """
    import httpx
    from airflow.configuration import conf
    from airflow.executors.base_executor import get_execution_api_server_url

    from lading.executors.agent.tasks.api_client import JobClient

    url, seconds = get_execution_api_server_url(), conf.getfloat("workers", "execution_api_timeout")
    try:
        with JobClient(base_url=url, token=token, timeout=seconds) as client:
            # Bypass the client's own method, which would retry for half a minute.
            answer = httpx.Client.request(client, "GET", "health", headers={} if token else NO_TOKEN)
            problem = f"the server that answers is not the execution API (status {answer.status_code})"
            if not is_healthy(answer):
                raise ConnectionError(_unwell(url, problem, ""))
            if subject:
                _present(client, subject)
    except httpx.ConnectTimeout as error:
        raise ConnectionError(_unwell(url, "nothing accepts the connection in time", START)) from error
    except httpx.TimeoutException as error:
        raise ConnectionError(_slow(url, seconds)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionError(_unwell(url, str(error) or type(error).__name__, START)) from error


def is_healthy(answer: httpx.Response) -> bool:
    try:
        said = answer.json()
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("status") == "healthy"


def _present(client: JobClient, subject: str) -> None:
    """Present the token as a starting task does.

    :raises ApiRefused: the token is not accepted
    """
    from airflow.sdk.api.client import ServerResponseError

    from lading.executors.agent.tasks.api_client import ApiRefused

    try:
        client.task_instances.start(uuid.UUID(subject), os.getpid(), datetime.now(timezone.utc))
    except ServerResponseError as error:
        if error.response.status_code != HTTPStatus.NOT_FOUND:  # 404 means that the token was accepted
            raise ApiRefused(error) from error


def shows_more() -> bool:
    """Return whether the same server also offers other APIs, for example those for users with passwords."""
    import httpx
    from airflow.executors.base_executor import get_execution_api_server_url

    from lading.executors.agent.tasks.api_client import JobClient

    try:
        with JobClient(base_url=get_execution_api_server_url(), token="") as client:
            answer = httpx.Client.request(client, "GET", "../api/v2/monitor/health")
    except httpx.HTTPError:  # this client also raises it for a refusal
        return False
    return bool(answer.status_code == 200)


def _slow(url: str, seconds: float) -> str:
    """Return the message for a server that is up but slow: starting it, or another address, would not help."""
    return (
        f"Airflow's execution API at {url} is up but slow: it accepted the connection and did not answer within "
        f"{seconds:g} s; check the load and the log of the API server, give it more processes ([api] workers), or "
        "its clients more time ([workers] execution_api_timeout)"
    )


def _unwell(url: str, problem: str, remedy: str) -> str:
    message = f"tasks cannot reach Airflow's execution API at {url}: {problem}; {remedy}set "
    if VARIABLE in os.environ:
        return (
            f"{message}api_url to the address at which the controller's machine reaches it; "
            f"{_other_end()}else {line(url)}"
        )
    return f"{message}where this machine reaches it: {line(url)}"


def _other_end() -> str:
    """Return what to do if the tunnel's end cannot be reached; empty if it is on this machine."""
    file = Path(os.environ[VARIABLE])
    try:
        address = Address.read(file)
        if address.host == HERE:
            return ""
        where = str(address)
    except (OSError, ValueError):
        where = f"the address in {file}"
    return f"if this machine does not reach the login node at {where}, set tunnel_host or tunnel_port; "


def main(arguments: Sequence[str]) -> int:
    try:
        run()
        if SHOWN in arguments:
            print("all" if shows_more() else "execution")
    except ConnectionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
