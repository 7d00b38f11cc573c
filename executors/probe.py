"""The probe: the job by which ``airflow lading check`` finds out whether tasks could run where it runs."""

from __future__ import annotations

from typing import Any

PROBE = "Probe"


def workload() -> dict[str, Any]:
    """The workload of a probe, beside those of Airflow."""
    return {"type": PROBE, "token": ""}


def run() -> None:
    """Ask Airflow's execution API for its health, as a task on this machine would reach it.

    :raises ConnectionError: it cannot be reached or is not well; the message names its URL and what to look at
    """
    import httpx
    from airflow.executors.base_executor import get_execution_api_server_url
    from airflow.sdk.api.client import Client

    url = get_execution_api_server_url()
    try:
        with Client(base_url=url, token="") as client:
            # Past the client's own method, which would try again for half a minute.
            answer = httpx.Client.request(client, "GET", "health").json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConnectionError(_unwell(url, str(error) or type(error).__name__)) from error
    if answer.get("status") != "healthy":
        raise ConnectionError(_unwell(url, f"it says {answer!r}"))


def _unwell(url: str, problem: str) -> str:
    return (
        f"tasks cannot reach Airflow's execution API at {url}: {problem}; start the API server, or set "
        "[core] execution_api_server_url to the address at which this machine reaches it"
    )
