"""The clocks of a cluster's nodes, which date what jobs and agents say: nothing of it is compared with our clock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lading.hooks.cluster.allocations import mode
from lading.hooks.polling.outside_clock import SECONDS_UNTIL_SEEN
from lading.hooks.spool.spool import Envelope
from lading.scheduling.provisioning import launch
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, envelope, only
from tests.services.outside_clocks import off

AMOUNTS = {"exit_code": 0, "cause": None, "reason": None, "peak_memory": 1, "cpu_seconds": 1.0}
# As long as its node says, however late that is heard of, seconds.
LASTED = 40.0


def runs(paper: Paper, node: float) -> None:
    """A job is submitted, and there is a look before it says anything.

    :param node: what the clock of its node says
    """
    paper.give("a")
    paper.go()
    folder = paper.root / "spool/jobs/a"
    folder.mkdir()
    (paper.root / "spool/inbox/a.json").rename(folder / "workload.json")
    paper.go()
    paper.say("a", {"event": "started", "at": node, "pid": 1})


@off
def test_what_a_job_says_is_dated_by_our_clock_and_lasts_as_long_as_by_its_own(tmp_path: Path, ahead: float) -> None:
    paper, begun = Paper(tmp_path), time.time()
    runs(paper, time.time() + ahead)
    started = only(paper.go(), "started")
    end = time.time() + ahead
    paper.say("a", {"event": "finished", "at": end, "started_at": end - LASTED, **AMOUNTS})
    finished = only(paper.go(), "finished")
    for at in (started["at"], finished["at"]):
        assert begun - SECONDS_UNTIL_SEEN <= at <= time.time()
    assert finished["at"] - finished["started_at"] == pytest.approx(LASTED)


@off
def test_what_a_job_has_left_of_its_end_comes_after_its_start(tmp_path: Path, ahead: float) -> None:
    paper = Paper(tmp_path)
    runs(paper, time.time() + ahead)
    started = only(paper.go(), "started")
    sentinel = {"exit_code": 0, "reason": None, "ended_at": time.time() + ahead, "cpu_seconds": 1.0, "peak_memory": 3}
    (paper.root / "spool/jobs/a/exit.json").write_text(json.dumps(sentinel))
    paper.write("queue", "")
    finished = only([*paper.go(), *paper.go()], "finished")
    assert started["at"] <= finished["at"] <= time.time()


def test_what_was_said_while_no_controller_looked_stays_as_it_was_said(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    runs(paper, at := time.time() - 1800)
    paper.poller = paper.controller()
    assert only(paper.go(), "started")["at"] == at


@off
def test_an_allocation_lasts_as_long_and_takes_jobs_whatever_its_node_has_for_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr(launch, "SECONDS_UNTIL_SETTLED", -1.0)
    fleet = Fleet(tmp_path)
    valid = 1800.0
    fleet.solo.put([envelope("a", expires_at=time.time() + valid)])
    fleet.go()
    [name] = fleet.begin_all()
    up = json.loads(Path(fleet.folder_of(name).up).read_text())
    Path(fleet.folder_of(name).up).write_text(json.dumps({**up, "now": time.time() + ahead}))
    fleet.go()
    [seen] = fleet.poller.seen()
    assert seen.location.ends_at == pytest.approx(time.time() + fleet.terms(name).seconds, abs=60)
    sent = Envelope.read(fleet.spool(name) / "inbox/a.json")
    node = time.time() + ahead
    assert sent.expires_at - node == pytest.approx(valid, abs=mode.LONGEST_REPORTED_AGO + 60)
