"""The probe: the job by which ``airflow lading check`` finds out whether tasks could run where it runs.

``python -m lading.executors.agent.tasks.probe`` asks at once, without a job; with ``--shown`` it also prints what the
server shows: ``execution``, or ``all``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lading.hooks.api_tunnel.address import VARIABLE, Address, line

PROBE = "Probe"
SHOWN = "--shown"
# Where the tunnel to a machine ends on which the jobs themselves run.
HERE = "127.0.0.1"
START = "start the API server, or "


def workload() -> dict[str, Any]:
    """The workload of a probe, beside those of Airflow."""
    return {"type": PROBE, "token": ""}


def run() -> None:
    """Ask Airflow's execution API for its health, as a task on this machine would reach it.

    :raises ConnectionError: it cannot be reached, is slow, or is something else; the message names its URL and what to
        do, which is not the same in these cases
    """
    import httpx
    from airflow.configuration import conf
    from airflow.executors.base_executor import get_execution_api_server_url

    from lading.executors.agent.tasks.api_client import client_class

    url, seconds = get_execution_api_server_url(), conf.getfloat("workers", "execution_api_timeout")
    try:
        with client_class()(base_url=url, token="") as client:
            # Past the client's own method, which would try again for half a minute.
            answer = httpx.Client.request(client, "GET", "health", timeout=seconds)
    except httpx.ConnectTimeout as error:
        raise ConnectionError(_unwell(url, "nothing takes the connection in time", START)) from error
    except httpx.TimeoutException as error:
        raise ConnectionError(_slow(url, seconds)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionError(_unwell(url, str(error) or type(error).__name__, START)) from error
    try:
        said = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict) or said.get("status") != "healthy":
        problem = f"what answers there is not the execution API (status {answer.status_code})"
        raise ConnectionError(_unwell(url, problem, ""))


def shows_more() -> bool:
    """Whether the same server answers more than the execution API: people and their passwords, say."""
    import httpx
    from airflow.executors.base_executor import get_execution_api_server_url

    from lading.executors.agent.tasks.api_client import client_class

    try:
        with client_class()(base_url=get_execution_api_server_url(), token="") as client:
            answer = httpx.Client.request(client, "GET", "../api/v2/monitor/health")
    except httpx.HTTPError:  # which a refusal is to this client, too
        return False
    return bool(answer.status_code == 200)


def _slow(url: str, seconds: float) -> str:
    """What to do where it is up: to start it, or to look for it elsewhere, would not help."""
    return (
        f"Airflow's execution API at {url} is up and slow: it has taken the connection and not answered within "
        f"{seconds:g} s; look at the load and the log of the API server, give it more processes ([api] workers), or "
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
    """What to do where the end of the tunnel is not reached, unless that is on this machine."""
    file = Path(os.environ[VARIABLE])
    try:
        address = Address.read(file)
        if address.host == HERE:
            return ""
        where = str(address)
    except (OSError, ValueError):
        where = f"what {file} should say"
    return f"should this machine not reach the login node at {where}, set tunnel_host or tunnel_port; "


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
