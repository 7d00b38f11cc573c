"""A site with ``dags = "sync"``: jobs, and the Dags to which they are bound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.cluster.checks import checks
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import launch
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, only
from tests.reasons import message_in

NAMES = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"


class Site(Paper):
    """A simulated cluster, and a folder of Dags on this machine."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, dags="sync", **options)
        self.dags = folder / "dags"
        self.dags.mkdir()
        self.dag("1")

    def dag(self, text: str) -> None:
        (self.dags / "dag.py").write_text(text)

    def give_task(self, token: str, bundle: str = "mine") -> None:
        self.poller.give([task(token, bundle)])

    def dag_of(self, token: str) -> str:
        """What a job would read."""
        found = json.loads((self.root / "spool/inbox" / f"{token}.json").read_text())
        return (Path(found["dags"]) / "dag.py").read_text()


class Allocations(Fleet):
    """The same with allocations."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        super().__init__(folder, dags="sync")
        self.expires_at = 2000.0

    def give_task(self, token: str) -> None:
        self.expires_at += 500
        self.solo.put([task(token, "mine", self.expires_at)])

    def dag_of(self, name: str, token: str) -> str:
        found = json.loads((self.spool(name) / "inbox" / f"{token}.json").read_text())
        return (Path(found["dags"]) / "dag.py").read_text()


def task(token: str, bundle: str, expires_at: float = 2000.0) -> Envelope:
    workload = {"bundle_info": {"name": bundle, "version": None}, "dag_rel_path": "dag.py", "log_path": "x.log"}
    return Envelope(token, workload, Resources(1, 1000), None, None, 0, 1.0, expires_at)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    tables = [
        {"name": "mine", "classpath": local, "kwargs": {"path": str(made.dags)}},
        {"name": "away", "classpath": local, "kwargs": {"path": str(tmp_path / "away")}},
    ]
    monkeypatch.setenv(NAMES, json.dumps(tables))
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    return made


def test_a_job_reads_what_its_bundle_held_when_it_was_submitted(site: Site) -> None:
    site.give_task("a")
    site.go()
    site.dag("2")
    site.give_task("b")
    site.go()
    assert [site.dag_of(token) for token in "ab"] == ["1", "2"]
    site.give_task("a")  # its JWT is new
    site.go()
    assert site.dag_of("a") == "1"
    site.poller = site.controller()
    site.go()
    site.give_task("a")
    site.go()
    assert site.dag_of("a") == "1", "a controller that begins knows it, too"


def test_a_job_that_waits_for_an_allocation_is_bound_likewise(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_UNTIL_SETTLED", -1.0)
    fleet = Allocations(site.folder / "fleet")
    fleet.give_task("a")
    fleet.go()
    [name] = fleet.begin_all()
    fleet.go()
    assert fleet.dag_of(name, "a") == "1"
    site.dag("2")
    fleet.poller = fleet.controller()
    fleet.go()
    fleet.give_task("a")
    fleet.give_task("b")
    fleet.go()
    assert [fleet.dag_of(name, token) for token in "ab"] == ["1", "2"]
    assert json.loads((fleet.spool(name) / "inbox/a.json").read_text())["expires_at"] == 3000.0, "its JWT is new"


def test_one_array_may_have_jobs_of_several_bundles(site: Site) -> None:
    site.poller.give([Envelope("p", {}, Resources(1, 1000), None, None, 0, 1.0, 2000.0)])
    site.give_task("a")
    site.go()
    assert site.read("submissions").count("x") == 1
    assert json.loads((site.root / "spool/inbox/p.json").read_text())["dags"] is None


def test_a_job_waits_for_its_bundle_with_a_reason(site: Site) -> None:
    site.give_task("a", bundle="away")
    site.give_task("b")
    reason = only(site.go(), "waiting")
    assert reason["token"] == "a"
    assert message_in(reason).startswith("waits: Dag bundle 'away' cannot be read: ")
    assert site.dag_of("b") == "1", "others do not wait for it"
    (site.dags.parent / "away").mkdir()
    site.go()
    assert (site.root / "spool/inbox/a.json").exists()


def test_a_job_of_no_bundle_fails(site: Site) -> None:
    site.give_task("a", bundle="typo")
    event = only(site.go(), "finished")
    assert event["cause"] == "submit_rejected"
    assert "'typo' is not in [dag_processor] dag_bundle_config_list" in str(event["reason"])
    assert "mine, away" in str(event["reason"])


def test_nothing_is_submitted_without_its_bundle(site: Site) -> None:
    site.give_task("a")
    site.go()
    for path in (site.root / "bundles").iterdir():
        path.rename(site.root / "elsewhere")
    site.give_task("b")
    reason = only(site.go(), "waiting")
    assert "its files are not in" in message_in(reason)
    assert site.read("submissions").count("x") == 1
    site.poller.submitter.pressure.backoff.not_before = 0.0
    site.go()
    assert site.dag_of("b") == "1", "it was sent again"


def test_renewals_are_not_lost_with_the_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.give_task("a")
    site.go()
    site.give_task("a")
    site.give_task("b")
    site.dag("2")
    exchange, cuts = site.poller.transport.exchange, [1]

    def cut(steps: Any, *more: Any, **others: Any) -> Any:
        if any("content." in step.text("m", 1) for step in steps) and cuts:
            cuts.pop()
            raise OSError("the connection is cut")
        return exchange(steps, *more, **others)

    monkeypatch.setattr(site.poller.transport, "exchange", cut)
    with pytest.raises(OSError, match="cut"):
        site.go()
    path = site.root / "spool/inbox/a.json"
    before = path.stat().st_ino
    site.go()
    assert path.stat().st_ino != before
    assert [site.dag_of(token) for token in "ab"] == ["1", "2"]


def test_rounds_cost_no_more_when_nothing_is_new(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.give_task("a")
    site.go()
    exchange, count = site.poller.transport.exchange, []

    def counted(steps: Any, *more: Any) -> Any:
        count.append(len(steps))
        return exchange(steps, *more)

    monkeypatch.setattr(site.poller.transport, "exchange", counted)
    site.give_task("b")
    site.go()
    assert len(count) == 2, "a look, and the submission"


def test_the_check_says_what_is_in_the_bundles(site: Site) -> None:
    found = {check.message: check.good for check in checks._bundles(site.config)}
    assert found["bundle 'mine' can be read: 1 files, 0.0 KiB"]
    [bad] = [words for words, good in found.items() if not good]
    assert bad.startswith("Dag bundle 'away' cannot be read: ")
    small = site.config.model_copy(update={"max_bundle_size": 1})
    (site.dags / "large").write_bytes(bytes(2**21))
    assert any("more than max_bundle_size = 1 MiB" in check.message for check in checks._bundles(small))


def test_a_limit_without_sync_means_nothing(site: Site) -> None:
    table = {**site.config.model_dump(exclude_unset=True), "dags": "shared", "max_bundle_size": "1 GiB"}
    with pytest.raises(ValueError, match="max_bundle_size cannot be used without dags = 'sync'"):
        ClusterConfig.model_validate(table)
    assert ClusterConfig.model_validate({**table, "dags": "sync"}).max_bundle_size == 1024


def test_an_envelope_of_an_older_controller_can_be_read(site: Site) -> None:
    envelope = Envelope("a", {}, Resources(), None, None, 0, 0.0, 0.0)
    fields = json.loads(replace(envelope, dags="/x").to_json())
    del fields["dags"]
    assert Envelope.from_json(json.dumps(fields)) == envelope
