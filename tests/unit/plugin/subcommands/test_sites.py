from __future__ import annotations

import json

import pytest

from lading.executors.store import Location
from lading.plugin.subcommands.console import show
from lading.plugin.subcommands.sites import in_it, location_row
from lading.scheduling.resources import Resources


def test_allocations_are_rows_beside_that_of_their_site(capsys: pytest.CaptureFixture[str]) -> None:
    amounts = {"cpus": 8.0, "memory": 15232, "disk": 0, "gpus": 0.0}
    found = [
        Location(site="hpc", name="hpc", kind="slurm", state="up", **amounts),
        Location(site="hpc", name="La", kind="slurm", state="up", native_id="17", node="n1", **amounts),
        Location(site="hpc", name="Lb", kind="slurm", state="booting", note="it waits in queue batch", **amounts),
    ]
    used = {("hpc", "La"): (3, Resources(1.5, 1000)), ("lab", "lab"): (1, Resources())}
    show([location_row(each, in_it(each, used), None) for each in found], "json")
    site, running, waiting = json.loads(capsys.readouterr().out)
    assert (site["location"], site["batch_job"], site["running_jobs"], site["cpus_used"]) == ("hpc", None, 3, 1.5)
    assert (running["state"], running["batch_job"], running["node"]) == ("up", "17", "n1")
    assert (running["running_jobs"], running["cpus"], running["memory_mib"]) == (3, 8.0, 15232)
    assert (waiting["state"], waiting["batch_job"], waiting["note"]) == ("booting", None, "it waits in queue batch")
    assert waiting["running_jobs"] == 0
