from __future__ import annotations

import json

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import LocationRow, State
from lading.plugin.host import AirflowHost
from lading.plugin.published import PublishedSite
from lading.plugin.subcommands.console import show
from lading.plugin.subcommands.sites import InUse, in_it, in_use, location_row, short_row, short_rows
from lading.scheduling.model.resources import Resources


def test_allocations_are_rows_beside_that_of_their_site(capsys: pytest.CaptureFixture[str]) -> None:
    amounts = {"cpus": 8.0, "memory": 15232, "disk": 0, "gpus": 0.0}
    found = [
        LocationRow(site="hpc", name="hpc", kind="slurm", state="up", **amounts),
        LocationRow(site="hpc", name="La", kind="slurm", state="up", native_id="17", node="n1", **amounts),
        LocationRow(site="hpc", name="Lb", kind="slurm", state="booting", note="it waits in queue batch", **amounts),
    ]
    used = {("hpc", "La"): InUse(3, 3, Resources(1.5, 1000)), ("lab", "lab"): InUse(1, 1)}
    show(AirflowHost(), [location_row(each, in_it(each, used), None, None) for each in found], "json")
    site, running, waiting = json.loads(capsys.readouterr().out)
    assert (site["location"], site["batch_job"], site["running_jobs"], site["cpus_used"]) == ("hpc", None, 3, 1.5)
    assert (running["state"], running["batch_job"], running["node"]) == ("up", "17", "n1")
    assert (running["running_jobs"], running["cpus"], running["memory_mib"]) == (3, 8.0, 15232)
    assert (waiting["state"], waiting["batch_job"], waiting["note"]) == ("booting", None, "it waits in queue batch")
    assert waiting["running_jobs"] == 0


def test_a_table_has_what_people_ask_for_and_no_empty_columns() -> None:
    amounts = {"cpus": 8.0, "memory": 15360, "disk": 0, "gpus": 1.0}
    found = [
        LocationRow(site="lab", name="lab1", kind="ssh", state="up", node="n1", instance_type="big", **amounts),
        LocationRow(site="lab", name="lab2", kind="ssh", state="unreachable", note="no answer", **amounts),
    ]
    used = {("lab", "lab1"): InUse(3, 3, Resources(1.5, 1024))}
    first, second = short_rows([(each, in_it(each, used), None, None) for each in found])
    assert first == {
        "site": "lab",
        "kind": "ssh",
        "location": "lab1",
        "state": "up",
        "node": "n1",
        "type": "big",
        "jobs": 3,
        "used": "1.5 cpus, 1 GiB memory",
        "of": "8 cpus, 15 GiB memory, 1 gpu",
        "note": None,
    }
    assert (second["state"], second["jobs"], second["note"]) == ("unreachable", 0, "no answer")
    assert short_rows([]) == []


def test_what_each_job_takes_in_addition_and_how_many_nodes_there_are() -> None:
    amounts = {"cpus": 16.0, "memory": 65152, "disk": 0, "gpus": 0.0}
    queue = LocationRow(site="hpc", name="hpc", kind="slurm", state="up", nodes=10, **amounts)
    allocation = LocationRow(site="hpc", name="La", kind="slurm", state="up", **amounts)
    used = {("hpc", "La"): InUse(3, 3, Resources(1.5, 3072))}
    slurm = PublishedSite(dialect={}, memory_overhead=384)
    first, second = short_rows([(each, in_it(each, used), slurm, None) for each in (queue, allocation)])
    assert (first["used"], second["used"]) == ("1.5 cpus, 3 GiB memory + 1152 MiB overhead",) * 2
    assert (first["of"], second["of"]) == ("10 × (16 cpus, 65152 MiB memory)", "16 cpus, 65152 MiB memory")
    queue.nodes = None
    assert short_row(queue, InUse(), slurm)["of"] == "16 cpus, 65152 MiB memory per node"
    assert short_row(queue, InUse(), slurm)["used"] == "nothing"


def test_a_paused_site_has_a_note() -> None:
    amounts = {"cpus": 16.0, "memory": 65152, "disk": 0, "gpus": 0.0}
    queue = LocationRow(site="hpc", name="hpc", kind="slurm", state="up", note="no answer", **amounts)
    assert short_row(queue, InUse(), None, "ann")["note"] == "its site is paused by ann; no answer"
    assert location_row(queue, InUse(), None, "ann")["paused_by"] == "ann"


def test_a_job_of_several_nodes_counts_on_each() -> None:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        for token, nodes, kind in (("a", 4, "ExecuteTask"), ("b", None, "JobScript")):
            store.add_job(
                session, token=token, kind=kind, subject="s", workload="{}", cpus=2.0, memory=100, disk=0,
                gpus=0.0, priority=0, state=State.RUNNING, queued_at=1.0, site="hpc", location="hpc", nodes=nodes,
            )  # fmt: skip
        session.flush()
        assert in_use(session) == {("hpc", "hpc"): InUse(2, 4, Resources(10.0, 500))}
