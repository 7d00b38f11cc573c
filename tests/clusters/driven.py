"""A site as tests drive it: a controller's side without a database, and the events of the site.

Where it is not of interest how Airflow's tasks run, node agents run commands: such an agent begins in half a second of
a processor, one for Airflow's tasks takes ten times as much.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.site import Site
from lading.hooks.site import config as site_config
from lading.hooks.spool.command import COMMAND_RUNNER, CommandWork
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.resources import Layout, Resources
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until

# What the jobs ask Airflow's execution API, and nothing else.
HEALTH = "/execution/health"
NO_DIRECTIVES: Mapping[str, str | bool] = {}
ASK = """
url=${AIRFLOW__CORE__EXECUTION_API_SERVER_URL#http://}
server=${url%%/*}
exec 3<>"/dev/tcp/${server%:*}/${server#*:}"
printf 'GET /%shealth HTTP/1.0\\r\\n\\r\\n' "${url#*/}" >&3
[[ $(cat <&3) == *healthy* ]]
"""

S = TypeVar("S", bound="Site[Any]")


class OfCommands(AirflowDeployment):
    """Airflow's deployment, but for its node agents, which run commands."""

    def runner_options(self) -> list[str]:
        return ["--runner", COMMAND_RUNNER]


def asking() -> dict[str, Any]:
    """The workload of a job that asks the execution API for its health, which takes as long as the job is to take."""
    return CommandWork(["/bin/bash", "-c", ASK]).to_workload()


def run_commands(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let sites that are made from now on have node agents that run commands; the workload of :func:`asking`."""
    patch.setattr(site_config, "AIRFLOW", OfCommands())
    return asking()


class Driven(Generic[S]):
    """A site, and the events that it has reported.

    :param workload: of its jobs; None: that of :func:`asking`
    """

    patience: ClassVar[float] = 60.0
    """Seconds for which events are waited for."""
    pause: ClassVar[float] = 0.05
    """Seconds between two looks."""

    def __init__(self, site: S, workload: Mapping[str, Any] | None = None) -> None:
        self.site = site
        self.workload = dict(workload or asking())
        self.solo = SiteDriver(site)
        self.events: list[dict[str, Any]] = []

    def put(
        self,
        count: int,
        cpus: float = 1,
        layout: Layout | None = None,
        native: Mapping[str, str | bool] = NO_DIRECTIVES,
    ) -> list[str]:
        tokens = [str(uuid.uuid4()) for _ in range(count)]
        now, asked = time.time(), Resources(cpus, 300)
        jobs = (Envelope(each, self.workload, asked, None, None, 0, now, now + 3600) for each in tokens)
        self.solo.put(replace(each, layout=layout, native=native) for each in jobs)
        return tokens

    def look(self) -> None:
        self.events += self.solo.tick()

    def events_of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {event["token"]: event for event in self.events if event["event"] == kind}

    def wait_for(self, kind: str, tokens: list[str], seconds: float | None = None) -> list[dict[str, Any]]:
        def there() -> bool:
            self.look()
            return set(tokens) <= self.events_of(kind).keys()

        assert wait_until(there, seconds or self.patience, self.pause), (self.events, self.solo.seen)
        return [self.events_of(kind)[token] for token in tokens]

    def take_over(self, other: Driven[S]) -> None:
        """Take over what the other site's controller had in its store."""
        for name in ("envelopes", "waiting", "given", "instances", "ordered_for"):
            setattr(self.solo, name, getattr(other.solo, name))


def asked(api: ExecutionApi) -> int:
    """How many jobs have run."""
    return sum(path == HEALTH for _, path, _ in api.requests)
