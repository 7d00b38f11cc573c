"""Jobs packed into allocations of real batch systems. The jobs only ask an API server for its health."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from lading.hooks.spool.command import CommandWork
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.clusters.driven import ASK, HEALTH, asked
from tests.integration.clusters.test_cluster_faults import Site, fragile, make, python
from tests.services.execution_api import ExecutionApi
from tests.services.gridengine import GridEngine
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

__all__ = ["fragile", "make", "python"]

OPTIONS = {"mode": "allocation", "max_allocations": 2, "idle_seconds": 5, "node_cpus": 4, "node_memory": 4000}


# SLURM ends the processes of a job and its agent one after another: this job lives on until its agent knows.
SLOW_TO_END = CommandWork(
    ["/bin/bash", "-c", f"trap 'sleep 20; exit 1' TERM\n{ASK.strip()} || {{ sleep 20; exit 1; }}"]
).to_workload()


def trial(token: str) -> Envelope:
    """The job that was given before, with a new JWT as it were."""
    now = time.time()
    return Envelope(token, SLOW_TO_END, Resources(1, 300), None, None, 0, now, now + 3600)


def poller(site: Site):  # type: ignore[no-untyped-def]
    return site.site.poller


def names(site: Site) -> set[str]:
    return set(poller(site).fleet.allocations)


def test_many_jobs_are_few_batch_jobs(
    make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi
) -> None:
    slurm, login = fragile
    site = make("slurm", login, **OPTIONS)
    tokens = site.put(40)
    assert {event["cause"] for event in site.wait_for("finished", tokens)} == {None}
    assert asked(api) == len(tokens), "each ran once"
    assert len(names(site)) <= 2
    slurm.wait_until_free(60)  # they end by themselves
    root = poller(site).folder.root

    def clean() -> bool:
        site.look()
        return not names(site)

    assert wait_until(clean, 90, 0.2), root


def test_a_controller_is_killed_and_an_allocation_is_cancelled(
    make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi
) -> None:
    slurm, login = fragile
    api.delays[HEALTH] = 600
    options = {**OPTIONS, "max_allocations": 1, "node_cpus": 2}
    first = make("slurm", login, **options)
    first.workload = SLOW_TO_END
    tokens = first.put(4)
    first.wait_for("started", sorted(tokens)[:1])  # jobs that came at the same time are started in this order
    first.forget()
    second = make("slurm", login, **options)
    second.take_over(first)
    second.look()
    assert (
        set(tokens) <= {token for each in second.solo.seen for token in each.known or ()} | second.solo.waiting.keys()
    )
    second.solo.put(replace(envelope, expires_at=envelope.expires_at + 60) for envelope in map(trial, tokens))
    assert wait_until(lambda: bool(names(second)), 30, 0.1)
    [allocation] = names(second)
    api.delays[HEALTH] = 0
    slurm.command("scancel", f"--name={allocation}")
    causes = [event["cause"] for event in second.wait_for("finished", tokens)]
    assert causes.count("cancelled") in (1, 2), "these had begun"
    assert causes.count(None) == 4 - causes.count("cancelled"), "the others ran in another allocation"


def test_grid_engine(
    make: Callable[..., Site], gridengine: GridEngine, gridengine_login: Sshd, api: ExecutionApi
) -> None:
    site = make("sge", gridengine_login, **{**OPTIONS, "node_cpus": 1})
    tokens = site.put(6)
    assert {event["cause"] for event in site.wait_for("finished", tokens)} == {None}
    api.delays[HEALTH] = 600
    running, waiting = sorted(site.put(2))
    site.wait_for("started", [running])
    site.solo.cancel({running: free_text("marked failed"), waiting: free_text("enough")})
    causes = [(event["cause"], str(event["reason"])) for event in site.wait_for("finished", [running, waiting])]
    assert causes == [("cancelled", "marked failed"), ("cancelled", "enough")]
