"""The process that a batch system starts for an allocation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent.allocation_agent import AllocationAgent
from lading.hooks.cluster.allocations.layout import AllocationFolder, AllocationTerms, Claim
from lading.hooks.cluster.jobs.layout import ClusterFolder
from lading.hooks.files.safe_files import visible, write_atomically
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.model.resources import Resources
from tests.reasons import message_in
from tests.services.forked import Forked
from tests.services.processes import lives, wait_until

ROOT = Path(__file__).parents[4]
RUNNER: Any = None  # nothing is run
TERMS = AllocationTerms(Resources(2, 1000), seconds=600, unlimited=300, idle=60, kill_grace=1)


class Cluster:
    """The folder of a cluster with an allocation."""

    def __init__(self, root: Path, terms: AllocationTerms = TERMS) -> None:
        self.cluster = ClusterFolder(str(root))
        self.folder = AllocationFolder(self.cluster, "L1")
        self.spool = Spool(Path(self.folder.spool))
        Path(self.folder.root).mkdir(parents=True)
        self.claims = Path(self.folder.claims)
        self.claims.mkdir()
        self.started: list[Forked] = []
        self.set(terms)

    def set(self, terms: AllocationTerms) -> None:
        Path(self.folder.terms).write_text(terms.to_json())

    def put(
        self,
        token: str,
        function: str = "succeed",
        time_limit: int | None = None,
        memory_limit: int | None = None,
        **more: Any,
    ) -> None:
        """Give a job to the agent, or to one that is to begin where there is a spool."""
        workload = {"function": function, "arguments": more, "token": "secret", "log_path": f"{token}.log"}
        envelope = Envelope(
            token, workload, Resources(0.1 if memory_limit else 1, 100), memory_limit, time_limit, 0, 0.0, 2e9
        )
        write_atomically(self.spool.envelope(token), envelope.to_json())

    def start(self) -> Forked:
        arguments = [self.cluster.root, "L1", "--runner", "tests.clusters.agent_runner"]
        self.started.append(Forked("lading.executors.agent.allocation_agent", arguments, cwd=ROOT))
        assert wait_until(Path(self.folder.up).exists, 30, 0.05)
        return self.started[-1]

    def events(self) -> list[dict[str, Any]]:
        if not self.spool.events.exists():
            return []
        return [json.loads(line) for path in visible(self.spool.events) for line in path.read_text().splitlines()]

    def event_of(self, token: str, kind: str = "finished") -> dict[str, Any] | None:
        return next((each for each in self.events() if each["token"] == token and each["event"] == kind), None)

    def wait_for(self, token: str, kind: str = "finished", seconds: float = 30) -> dict[str, Any]:
        assert wait_until(lambda: self.event_of(token, kind) is not None, seconds, 0.05), self.events()
        found = self.event_of(token, kind)
        assert found is not None
        return found

    def waits(self) -> list[str]:
        folder = self.spool.inbox if self.spool.inbox.exists() else Path(self.folder.closed)
        return [path.stem for path in visible(folder)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_jobs_run_each_with_its_own_logs_and_threads(cluster: Cluster, tmp_path: Path) -> None:
    process = cluster.start()
    cluster.put("a", "surroundings", path=str(tmp_path / "a"))
    cluster.put("b", "fail")
    assert cluster.wait_for("a")["cause"] is None
    assert (cluster.wait_for("b")["cause"], cluster.wait_for("b")["exit_code"]) == ("error", 3)
    logs, threads, ends_at = (tmp_path / "a").read_text().split()
    assert (logs, threads) == (cluster.cluster.logs("a"), "1")
    assert Claim.from_line((cluster.claims / "a").read_text()) == Claim("L1", "a.log")
    assert process.poll() is None
    left = json.loads(Path(cluster.folder.up).read_text())["left"]
    assert left > 500
    assert float(ends_at) - time.time() > 500


def test_a_job_is_kept_to_its_memory_and_pages_of_files_are_none(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start()
    for number in range(5):  # others with limits, which are measured too
        cluster.put(f"b{number}", "share", memory_limit=300, mebibytes=150, processes=4, seconds=5)
    cluster.put("maps", "map_file", memory_limit=300, mebibytes=256, seconds=4, path=str(tmp_path / "array"))
    cluster.put("grows", "grow", memory_limit=300, mebibytes=3000, per_second=50)
    grown = cluster.wait_for("grows", seconds=180)
    assert grown["cause"] == "out_of_memory"
    assert 300 < grown["peak_memory"] < 500, "by what it can grow until it is looked at again, on a busy machine too"
    assert cluster.wait_for("maps")["cause"] is None
    assert [cluster.wait_for(f"b{number}")["cause"] for number in range(5)] == [None] * 5


def test_it_ends_when_nothing_runs(cluster: Cluster) -> None:
    cluster.set(replace(TERMS, idle=1))
    cluster.spool.create()
    cluster.put("a", "sleep", seconds=1)  # before it may end by itself
    process = cluster.start()
    assert cluster.wait_for("a")["cause"] is None
    assert process.wait(120) == 0
    assert not cluster.spool.inbox.exists(), "the one that puts a job there notices it"
    with pytest.raises(FileNotFoundError):
        cluster.put("b")


def test_a_job_that_comes_as_it_ends_is_run_or_refused(cluster: Cluster) -> None:
    """Envelopes are thrown at an agent that ends as soon as it may: each either runs or is left where it is found."""
    cluster.set(replace(TERMS, idle=0.3))
    process = cluster.start()
    placed: list[str] = []

    def throw() -> None:
        for number in range(60):
            try:
                cluster.put(f"t{number}")
            except OSError:
                if process.poll() is not None:
                    return
            else:
                placed.append(f"t{number}")
            time.sleep(0.02 if number % 10 else 0.4)

    thread = threading.Thread(target=throw)
    thread.start()
    thread.join(300)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    over = {event["token"] for event in cluster.events() if event["event"] == "finished"}
    assert over | set(cluster.waits()) == set(placed)
    assert not over & set(cluster.waits())


def test_a_second_process_of_an_allocation_does_nothing(cluster: Cluster) -> None:
    cluster.start()
    cluster.put("a", "sleep", seconds=1)
    second = subprocess.run(
        [sys.executable, "-m", "lading.executors.agent.allocation_agent", cluster.cluster.root, "L1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (second.returncode, "it is not started again" in second.stdout) == (0, True)
    cluster.wait_for("a")


def test_a_job_that_has_begun_elsewhere_is_not_run(cluster: Cluster, tmp_path: Path) -> None:
    assert Claim("L0", "").make(cluster.claims, "a")
    cluster.start()
    cluster.put("a", "note", path=str(tmp_path / "notes"))
    cluster.put("b", "note", path=str(tmp_path / "notes"))
    cluster.wait_for("b")
    assert (tmp_path / "notes").read_text() == "b\n"
    assert wait_until(lambda: cluster.waits() == [], 10, 0.05)


def test_a_claim_is_abandoned_when_the_job_does_not_begin(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.spool.create()
    agent = AllocationAgent(cluster.folder, TERMS, RUNNER, began=time.monotonic())
    try:
        cluster.put("a")
        agent.inbox.refresh()

        def full(*_: Any, **__: Any) -> None:
            assert (cluster.claims / "a").exists()
            raise OSError("no room for one more process")

        monkeypatch.setattr(agent.running, "start", full)
        agent._start("a", {})
        assert (cluster.waits(), visible(cluster.claims)) == (["a"], [])
        take = agent.inbox.take
        monkeypatch.setattr(agent.inbox, "take", lambda token: (cluster.spool.envelope(token).unlink(), take(token))[1])
        agent._start("a", {})
        assert (agent.inbox.entries, visible(cluster.claims)) == ({}, [])
        assert Claim("L2", "").make(cluster.claims, "a")
        agent._unclaim("a")
        assert visible(cluster.claims) == [cluster.claims / "a"], "it is another's"
    finally:
        for descriptor in (agent.bell, *agent.end_signals.descriptors):
            os.close(descriptor)


def test_what_would_outlast_it_is_not_started(cluster: Cluster) -> None:
    process = cluster.start()
    cluster.put("long", time_limit=700)
    cluster.put("short", time_limit=500)
    cluster.wait_for("short")
    assert cluster.waits() == ["long"]
    assert process.poll() is None


def test_its_end_ends_what_has_no_limit(cluster: Cluster) -> None:
    cluster.set(replace(TERMS, seconds=8, unlimited=1))
    cluster.spool.create()
    cluster.put("a", "sleep", seconds=600)  # it has no later time to begin than that of the agent
    process = cluster.start()
    cluster.wait_for("a", "started")
    event = cluster.wait_for("a")
    assert event["cause"] == "time_limit"
    assert "its allocation reached its time limit" in message_in(event)
    assert process.wait(120) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGXCPU])
def test_the_batch_system_ends_it(cluster: Cluster, number: signal.Signals) -> None:
    process = cluster.start()
    for token in ("a", "b", "c"):
        cluster.put(token, "sleep", seconds=60)
    assert wait_until(lambda: all(cluster.spool.job(token).supervisor.exists() for token in ("a", "b")), 30, 0.05)
    process.send_signal(number)
    assert process.wait(120) == 0
    assert {cluster.wait_for(token)["cause"] for token in ("a", "b")} == {"terminated"}
    assert cluster.waits() == ["c"]


def test_it_drains(cluster: Cluster) -> None:
    process = cluster.start()
    cluster.put("a", "sleep", seconds=1)
    cluster.wait_for("a", "started")
    cluster.spool.shutdown.write_text("drain")
    assert process.wait(120) == 0
    assert cluster.wait_for("a")["cause"] is None


def test_nothing_goes_on_when_it_is_killed(cluster: Cluster) -> None:
    process = cluster.start()
    cluster.put("a", "sleep", seconds=60)
    cluster.put("b", "sleep", seconds=60)
    pids = [int(cluster.wait_for(token, "started")["pid"]) for token in ("a", "b")]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: not any(map(lives, pids)), 30, 0.2)
