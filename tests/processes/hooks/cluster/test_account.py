"""Accounts of a cluster: those that a batch system does not admit, with commands of paper in the place of SLURM's, and
those whose connection fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from lading.executors.controller import answers
from lading.executors.controller.answers import change_by_event
from lading.executors.controller.site_driver import SiteDriver
from lading.executors.store import State
from lading.hooks.batch import submit_limits
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.site import ClusterSite, cluster_kind
from lading.plugin.sites import load_sites
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import as_text
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.placement import assign
from tests.clusters.paper import Paper, envelope, only
from tests.clusters.sites import make_settings
from tests.reasons import message_in
from tests.services.ports import free_ports
from tests.services.processes import wait_until

WORDS = "slurm does not allow its account: sbatch: error: Batch job submission failed: Invalid account"


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    paper = Paper(tmp_path)
    paper.poller.submitter.site = "hpc"
    return paper


def test_jobs_go_back_until_it_may_be_admitted(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    paper.write("mode", "account")
    paper.give("a", "b")
    returned = [each for _ in range(3) for each in paper.go() if each["event"] == "returned"]
    assert [(each["token"], each["location"]) for each in returned] == [("a", "hpc"), ("b", "hpc")]
    assert all(message_in(each).startswith(WORDS) for each in returned)
    change = change_by_event(returned[0])
    assert change is not None
    assert (change.values["state"], change.values["location"], change.only_if["location"]) == (
        State.QUEUED,
        None,
        "hpc",
    )
    assert paper.poller.known() == set()
    assert list((paper.root / "spool/inbox").iterdir()) == []
    assert list((paper.root / "submissions").iterdir()) == []
    paper.give("late")
    assert only(paper.go(), "returned")["token"] == "late"
    assert paper.read("asked").split() == ["x"], "it is not asked again for each job"

    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + submit_limits.FIRST_BAR)
    assert paper.poller.submitter.barred.reasons() == {}
    paper.write("mode", "accept")
    paper.give("a")
    paper.go()
    assert paper.poller.known() == {"a"}


def test_jobs_that_name_an_account_or_are_a_trial_fail_with_the_message_of_the_batch_system(paper: Paper) -> None:
    paper.write("mode", "account")
    paper.poller.give([replace(envelope("own"), native={"account": "theirs"})])
    assert only([*paper.go(), *paper.go()], "finished")["cause"] == "submit_rejected"
    assert paper.poller.submitter.barred.reasons() == {}
    paper.poller.submitter.is_trial = True
    paper.give("trial")
    assert only([*paper.go(), *paper.go()], "finished")["cause"] == "submit_rejected"


def test_each_queue_is_barred_by_itself(paper: Paper) -> None:
    paper.write("mode", "account")
    paper.poller.give([replace(envelope("long"), queue="long")])
    paper.go()
    assert only(paper.go(), "returned")["token"] == "long"
    paper.write("mode", "accept")
    paper.give("plain")
    paper.go()
    assert paper.poller.known() == {"plain"}
    assert list(paper.poller.submitter.barred.reasons()) == ["long"]


@pytest.mark.parametrize("mode", ["job", "allocation"])
def test_no_job_comes_to_a_site_that_does_not_admit_its_account(tmp_path: Path, mode: str) -> None:
    paper = Paper(tmp_path, api_url="http://api/execution/", mode=mode)
    paper.write("mode", "account")
    site = cluster_kind(SLURM())("hpc", paper.config, tmp_path / "state")
    solo = SiteDriver(site)
    solo.put([envelope("a")])
    try:
        assert wait_until(lambda: solo.tick() is not None and bool(site.observe().barred), 30, 0.05)
        observation = site.observe()
    finally:
        site.close("leave", 10.0)
    notes = [observation.note, *(each.note for each in observation.locations)]
    assert any(note and note.startswith(WORDS) for note in notes), "it is shown by `airflow lading sites`"
    seen = answers.view(site, answers.SiteAnswer(site, observation), "", site.potential())
    other = SiteView(name="other", locations=(there := [Location("m", Resources(4, 8000))]), possible=there)
    job = WaitingJob(name="b", resources=Resources(1, 100))
    assert assign([job], [seen, other], now=1.0).placed == {"b": ("other", "m")}
    assert str(assign([job], [seen], now=1.0).refused["b"]).startswith(f"site 'hpc': {WORDS}")
    named = replace(job, targets=as_text(["hpc", "other"], []))
    assert assign([named], [seen, other], now=1.0).placed == {"b": ("other", "m")}


TABLE = """
[sites.hpc]
kind = "slurm"
work_dir = "/scratch/{account}"
python = "/usr/bin/python3"
node_cpus = 4
node_memory = "8 GiB"
api_url = "http://airflow/execution/"

[sites.hpc.accounts]
"team:genes" = "hpc_genes"
"team:loads" = "hpc_loads"
"""


@pytest.fixture
def failing(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> Iterator[dict[str, ClusterSite]]:
    """A cluster by its accounts: at the port of the one nothing listens, and the other has no connection in Airflow."""
    values = {"conn_type": "ssh", "host": "127.0.0.1", "port": free_ports(1)[0], "login": "genes"}
    monkeypatch.setenv("AIRFLOW_CONN_HPC_GENES", json.dumps({**values, "extra": {"no_host_key_check": True}}))
    path = tmp_path / "sites.toml"
    path.write_text(TABLE.replace("api_url", f'mode = "{mode}"\napi_url') + "[sites.local]\nenabled = false\n")
    sites = load_sites(make_settings(tmp_path, sites_file=path))
    yield sites  # type: ignore[misc]
    for site in sites.values():
        site.close("hand_over", 10.0)


SAID = {
    "hpc@hpc_genes": "SSH connection 'hpc_genes': cannot connect to genes@127.0.0.1",
    "hpc@hpc_loads": "SSH connection 'hpc_loads': cannot connect: The conn_id `hpc_loads` isn't defined",
}


@pytest.mark.parametrize("mode", ["job", "allocation"])
def test_a_connection_that_fails_is_said_and_tried_again_ever_more_rarely(failing: dict[str, ClusterSite]) -> None:
    for name, site in failing.items():
        [check] = site.checks()
        assert (check.what, check.good) == ("connection", False)
        assert check.message.startswith(SAID[name])
        backoff = site.poller.transport.backoff  # type: ignore[attr-defined]
        backoff.first = backoff.longest = 1000.0
        for _ in range(3):
            with pytest.raises(OSError, match=SAID[name].replace("(", r"\(")) as raised:
                site.poller.round()
            assert str(raised.value).startswith(SAID[name]), "it is not the folder that cannot be used"
        assert backoff.failures == 1, "it is not tried before its time"
        backoff.not_before = 0.0
        with pytest.raises(OSError, match=SAID[name]):
            site.poller.round()
        assert backoff.failures == 2


@pytest.mark.parametrize("mode", ["job"])
def test_jobs_wait_for_their_own_account_and_no_other(failing: dict[str, ClusterSite]) -> None:
    seen = []
    for name, site in failing.items():
        with pytest.raises(OSError, match="cannot connect") as raised:
            site.poller.round()
        silent = answers.view(site, None, str(raised.value), site.potential())
        # The other account can be reached.
        seen.append(silent if name == "hpc@hpc_genes" else replace(silent, trouble=None, locations=site.potential()))
    jobs = [
        WaitingJob(
            name=team,
            resources=Resources(1, 100),
            dag_id="reads",
            dag_of_shape="reads",
            team=team,
            team_of_shape=team,
            site="hpc",
        )
        for team in ("genes", "loads")
    ]
    found = assign(jobs, seen, now=1.0)
    assert found.placed == {"loads": ("hpc@hpc_loads", "hpc@hpc_loads")}
    assert str(found.waits["genes"]).startswith(
        f"waits: site 'hpc@hpc_genes' could not be queried: {SAID['hpc@hpc_genes']}"
    )
