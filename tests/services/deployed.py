"""What is tried of each deployment that was started: log in, and run a Dag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.services.processes import wait_until

DAG = """\
from pathlib import Path

from airflow.sdk import dag, task


@dag(schedule=None, is_paused_upon_creation=False)
def deployed():
    @task
    def works(folder="{folder}"):
        import time

        while not Path(folder, "go").exists():
            time.sleep(1)
        return "here"

    works()


deployed()
"""


class Deployed:
    """The API of a deployment, as the user ``admin``.

    :param tails: the ends of the logs, for the messages of what fails
    """

    def __init__(self, url: str, tails: Callable[[], str]) -> None:
        self.url, self.tails = url, tails
        self.api = httpx.Client(base_url=f"{url}/api/v2/", timeout=120)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        assert wait_until(is_so, 300, 1), self.tails()

    def wait_for_health(self) -> None:
        def is_healthy() -> bool:
            try:
                return self.api.get("monitor/health").is_success
            except httpx.TransportError:
                return False

        self.wait_until(is_healthy)

    def log_in(self, password: str) -> None:
        login = {"username": "admin", "password": password}
        answer = httpx.post(f"{self.url}/auth/token", json=login, timeout=120)
        assert answer.is_success, answer.text
        assert httpx.get(f"{self.url}/auth/token", timeout=120).is_error, "nobody comes in without a password"
        self.api.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def trigger(self) -> str:
        """Start a run of the Dag once it is known; return its id."""
        self.wait_until(lambda: self.api.get("dags/deployed").is_success)
        answer = self.api.post("dags/deployed/dagRuns", json={"logical_date": None})
        assert answer.is_success, answer.text
        run: str = answer.json()["dag_run_id"]
        return run

    def task(self, run: str) -> dict[str, Any]:
        """The only task instance of a run; empty until the scheduler has made it."""
        found = self.api.get(f"dags/deployed/dagRuns/{run}/taskInstances").json()["task_instances"]
        return found[0] if found else {}

    def wait_for_task(self, run: str, *states: str) -> None:
        self.wait_until(lambda: self.task(run).get("state") in states)

    def wait_for_success(self, run: str) -> None:
        self.wait_until(lambda: self.api.get(f"dags/deployed/dagRuns/{run}").json()["state"] in ("success", "failed"))
        assert self.api.get(f"dags/deployed/dagRuns/{run}").json()["state"] == "success", self.tails()
        assert self.task(run)["try_number"] == 1
