"""Jobs packed into allocations of real batch systems. The jobs only ask an API server for its health."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.test_cluster_faults import HEALTH, Site, api, asked, fragile, make, python
from tests.services.execution_api import ExecutionApi
from tests.services.gridengine import GridEngine
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

__all__ = ["api", "fragile", "make", "python"]

OPTIONS = {"mode": "allocation", "max_allocations": 2, "idle_seconds": 5, "node_cpus": 4, "node_memory": 4000}


def rounds(site: Site):  # type: ignore[no-untyped-def]
    return site.site.rounds


def names(site: Site) -> set[str]:
    return set(rounds(site).fleet.allocations)


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
    root = rounds(site).folder.root

    def clean() -> bool:
        site.look()
        return not names(site)

    assert wait_until(clean, 90, 0.2), root


def test_a_controller_is_killed_and_an_allocation_is_cancelled(
    make: Callable[..., Site], fragile: tuple[Slurm, Sshd], api: ExecutionApi
) -> None:
    slurm, login = fragile
    api.delays[HEALTH] = 6
    options = {**OPTIONS, "max_allocations": 1, "node_cpus": 2}
    first = make("slurm", login, **options)
    tokens = first.put(6)
    begun = first.wait_for("started", tokens[:1])
    assert begun
    first.forget()
    second = make("slurm", login, **options)
    second.look()
    over = first.of("finished").keys() | second.of("finished").keys()
    assert set(tokens) - over <= second.site.observe().known
    assert wait_until(lambda: bool(names(second)), 30, 0.1)
    [allocation] = names(second)
    slurm.command("scancel", f"--name={allocation}")
    events = second.wait_for("finished", [token for token in tokens if token not in first.of("finished")])
    causes = [event["cause"] for event in events]
    assert "cancelled" in causes, causes
    assert causes.count(None) >= 2, causes
