"""The exchanges of a controller and a cluster about allocations, with mocks of SLURM's commands."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lading.hooks.batch import canceller
from lading.hooks.cluster.allocations import mode
from lading.hooks.cluster.allocations.layout import Claim
from lading.hooks.cluster.allocations.script import market
from lading.hooks.cluster.jobs.config import ClusterConfig
from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.polling.job_life import ShownLife, ShownPhase
from lading.hooks.site import LocationState
from lading.hooks.spool import agent_archive
from lading.hooks.spool.values import asked_reason
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import Put
from lading.scheduling.model.reasons import free_text
from lading.scheduling.provisioning import launch
from tests.clusters.fleet import Fleet
from tests.clusters.paper import Paper, envelope, only
from tests.recordings import FOLDER
from tests.services.agent_zip import sources_in, sources_of
from tests.services.processes import wait_until


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_UNTIL_SETTLED", -1.0)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_many_jobs_are_few_batch_jobs(fleet: Fleet) -> None:
    fleet.give(*(f"t{number}" for number in range(100)))
    fleet.go()
    assert len(fleet.names) == 4, "max_allocations"
    script = fleet.read("script.1")
    for line in ("--cpus-per-task=8", "--mem=16384", "--export=NONE", "--time=04:00:00"):
        assert f"#SBATCH {line}\n" in script
    assert f"-m lading.executors.agent.allocation_agent {fleet.root} {fleet.names[0]}" in script
    assert "OMP_NUM_THREADS" not in script, "each job has its own"
    assert fleet.root.stat().st_mode & 0o777 == 0o700
    for name in fleet.begin_all():
        assert fleet.inbox(name) == []
    fleet.go()
    given = [fleet.inbox(name) for name in fleet.names]
    assert len({token for each in given for token in each}) == 64, "none twice"
    assert all(len(each) == 16 for each in given), "what runs at once, and as much again prefetched"
    assert len(fleet.poller.known()) == 64
    assert len(fleet.solo.waiting) == 36, "the others may go where there is room first"


def test_where_jobs_are_commands_the_agent_is_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AirflowDeployment, "brings_agent", lambda _: True)
    fleet = Fleet(tmp_path)
    fleet.give("a")
    fleet.go()
    path = Path(agent_archive.archive().path(str(fleet.root)))
    assert sources_in(path) == sources_of(agent_archive.archive())
    agent = f"exec /usr/bin/python3 {path} lading.executors.agent.allocation_agent {fleet.root} {fleet.names[0]}"
    assert agent in fleet.read("script.1")


def test_the_last_allocation_is_as_large_as_its_jobs(fleet: Fleet) -> None:
    fleet.give("a", "b", "wide", cpus=1)
    fleet.go()
    [name] = fleet.names
    assert (fleet.terms(name).capacity.cpus, fleet.terms(name).capacity.memory) == (4, 8192 // 1 - 384)
    assert "#SBATCH --cpus-per-task=4\n" in fleet.read("script.1")
    assert "#SBATCH --mem=8192\n" in fleet.read("script.1")


def test_whole_nodes_are_not_parted(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, whole_node={"cpus": 8, "memory": 16384})
    fleet.give("a")
    fleet.go()
    assert fleet.terms(fleet.names[0]).capacity.cpus == 8
    assert "#SBATCH --exclusive\n" in fleet.read("script.1")


def test_a_job_runs_and_nothing_is_left(fleet: Fleet) -> None:
    name = fleet.running("a")
    log = fleet.root / "logs/a/dag/a.log"
    log.parent.mkdir(parents=True)
    log.write_text("first\n")
    fleet.go()
    assert fleet.read("logs/dag/a.log") == "first\n"
    log.write_text("first\nlast\n")
    fleet.end(name, "a")
    assert only(fleet.go(), "finished")["cause"] is None
    for _ in range(3):
        assert fleet.go() == []
    assert fleet.read("logs/dag/a.log") == "first\nlast\n"
    assert fleet.poller.known() == frozenset()
    assert list((fleet.root / "logs").iterdir()) == list((fleet.root / "claims").iterdir()) == []
    fleet.state("COMPLETED", name)
    for _ in range(5):
        fleet.go()
    assert list((fleet.root / "allocations").iterdir()) == []
    assert len(fleet.read("submissions").split()) == 1, "no other is asked for"


def test_allocations_and_the_nodes_of_jobs_are_reported(fleet: Fleet) -> None:
    fleet.give("a")
    fleet.go()
    [waiting] = fleet.poller.seen()
    assert (waiting.native_id, waiting.state, waiting.node, waiting.known) == (
        "1", LocationState.BOOTING, None, frozenset()
    )  # fmt: skip
    [name] = fleet.begin_all()
    fleet.go()
    fleet.start(name, "a")
    [started] = fleet.go()
    assert (started["native_id"], started["node"]) == ("1", "n1")
    [running] = fleet.poller.seen()
    assert (running.native_id, running.state, running.node, running.known) == ("1", LocationState.UP, "n1", {"a"})
    fleet.end(name, "a")
    [ended] = fleet.go()
    assert (ended["event"], ended["native_id"], ended["node"]) == ("finished", "1", "n1")


def test_a_second_controller_finds_everything(fleet: Fleet) -> None:
    name = fleet.running("a", "b")
    fleet.give("c")
    fleet.go()
    assert fleet.inbox(name) == ["c"]
    assert len(fleet.names) == 2, "for c"
    fleet.poller = fleet.controller()
    assert fleet.go() == []
    assert fleet.poller.known() == {"a", "b", "c"}
    assert fleet.poller.tracker.jobs["a"].log_path == "dag/a.log"
    assert fleet.poller.tracker.jobs["c"].log_path == "dag/c.log"
    fleet.end(name, "a")
    assert only(fleet.go(), "finished")["token"] == "a"
    assert len(fleet.read("submissions").split()) == 2
    fleet.poller.ask_to_cancel({"c": free_text("enough")})
    fleet.go()
    assert asked_reason((fleet.spool(name) / "cancel/c").read_text()) == free_text("enough")
    assert not fleet.poller.ask_to_cancel({"c": free_text("enough")}), "once is enough"


def test_an_allocation_that_takes_nothing_more_gives_the_job_back(fleet: Fleet) -> None:
    name = fleet.running("a")
    fleet.end(name, "a")
    fleet.go()
    (fleet.spool(name) / "inbox").rename(fleet.folder_of(name).closed)
    fleet.give("b")
    fleet.go()
    assert len(fleet.names) == 1
    fleet.go()
    assert len(fleet.names) == 2, "another is asked for"
    fleet.begin_all()
    fleet.go()
    assert fleet.inbox(fleet.names[1]) == ["b"]


@pytest.mark.parametrize(
    ("state", "cause"),
    [("PREEMPTED", "preempted"), ("NODE_FAIL", "node_failure"), ("CANCELLED", "cancelled"), ("TIMEOUT", "time_limit")],
)
def test_an_allocation_is_ended_with_jobs_running_and_waiting(fleet: Fleet, state: str, cause: str) -> None:
    name = fleet.running("runs")
    fleet.give("waits")
    fleet.go()
    assert fleet.inbox(name) == ["waits"]
    fleet.state(state, name)
    events = fleet.go() + fleet.go() + fleet.go()
    event = only(events, "finished")
    assert (event["token"], event["cause"]) == ("runs", cause)
    assert name in str(event["reason"])
    assert set(fleet.solo.waiting) == {"waits"}
    fleet.begin_all()
    for _ in range(2):
        fleet.go()
    assert fleet.inbox(fleet.names[1]) == ["waits"], "the job that had not begun uses up no try"


def test_an_allocation_whose_output_says_that_it_was_killed_for_its_memory(fleet: Fleet) -> None:
    """As slurmstepd writes it without cgroups, where accounting has no record of memory."""
    name = fleet.running("runs")
    log = (FOLDER / "slurm/overmemorykill-25.11.7.txt").read_text().partition("batch.log of the job:\n")[2]
    Path(fleet.folder_of(name).output).write_text(log)
    fleet.state("FAILED", name)
    events: list[dict[str, Any]] = []
    assert wait_until(lambda: events.extend(fleet.go()) or any(each["event"] == "finished" for each in events), 120)
    assert only(events, "finished")["cause"] == "out_of_memory"


def test_what_an_agent_was_about_to_start_is_taken_back(fleet: Fleet) -> None:
    name = fleet.running("runs")
    fleet.give("a")
    fleet.go()
    assert Claim(name, "").make(fleet.root / "claims", "a")
    folder = fleet.spool(name) / "jobs/a"
    folder.mkdir()
    (fleet.spool(name) / "inbox/a.json").rename(folder / "workload.json")
    fleet.state("NODE_FAIL", name)
    fleet.begin_all()
    for _ in range(3):
        fleet.go()
    assert fleet.inbox(fleet.names[1]) == ["a"]
    assert not (fleet.root / "claims/a").exists()


def long_gone() -> ShownLife:
    return ShownLife(ShownPhase.GONE, time.monotonic() - 100)


def test_allocations_that_end_before_they_begin_are_reported(fleet: Fleet) -> None:
    fleet.give("a")
    fleet.go()
    for number in range(2):
        name = fleet.names[-1]
        Path(fleet.folder_of(name).output).write_text("python: not found\n")
        fleet.state("FAILED", name)
        fleet.go()
        fleet.poller.fleet.allocations[name].batch.shown = long_gone()
        fleet.go()
        assert len(fleet.names) == number + 1, "not at once"
        fleet.poller.submitter._starts.not_before = 0.0
        fleet.go()
        assert len(fleet.names) == number + 2
    assert "python: not found" in (fleet.poller.failing or "")
    [name] = fleet.begin_all()[-1:]
    fleet.go()
    fleet.start(name, "a")
    fleet.end(name, "a")
    fleet.go()
    fleet.go()
    assert fleet.poller.failing is None


def test_a_site_in_trouble_is_tried_again_when_new_jobs_come(fleet: Fleet) -> None:
    """Those for which it failed were cancelled; while it is said to be in trouble it gets no others."""
    fleet.give("a")
    fleet.go()
    for _ in range(2):
        [*_, name] = fleet.names
        fleet.state("FAILED", name)
        fleet.go()
        fleet.poller.fleet.allocations[name].batch.shown = long_gone()
        fleet.go()
        fleet.poller.submitter._starts.not_before = 0.0
        fleet.go()
    assert fleet.poller.failing is not None
    fleet.solo.cancel({"a": free_text("not wanted")})
    fleet.poller.submitter._starts.not_before = 0.0
    fleet.go()
    fleet.give("b")
    fleet.go()
    fleet.begin_all()
    fleet.go()
    assert [fleet.inbox(name) for name in fleet.names[2:]] == [["b"]], "the one that was tried last is there for it"


def test_a_refusal_fails_the_job_with_the_site_s_message(fleet: Fleet) -> None:
    fleet.write("mode", "refuse")
    fleet.give("a")
    fleet.go()
    event = only(fleet.go(), "finished")
    assert event["cause"] == "submit_rejected"
    assert "invalid partition specified: batch" in str(event["reason"])
    fleet.go()
    fleet.go()
    assert list((fleet.root / "allocations").iterdir()) == []


def test_an_account_that_is_not_admitted_is_not_asked_for_again_and_again(fleet: Fleet) -> None:
    fleet.write("mode", "account")
    fleet.give("a")
    events = [each for _ in range(4) for each in fleet.go()]
    assert [each["refused"] for each in events if each["event"] == "released"] == [False]
    assert [each for each in events if each["event"] == "finished"] == [], "another site may run it"
    assert fleet.read("asked").split() == ["x"]
    held = fleet.poller.submitter.market().held
    assert held is not None
    assert held.sentence.startswith("slurm does not allow its account: ")


def test_a_submission_without_an_answer_is_found_by_its_name(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode.AllocationMode, "seconds_until_repeated", 0.0)
    fleet.write("mode", "mute")
    fleet.give("a")
    for _ in range(3):
        fleet.go()
    assert len(fleet.read("submissions").split()) == 1
    [allocation] = fleet.poller.fleet.allocations.values()
    assert allocation.submission.id == "1"


def test_a_job_that_may_not_have_arrived_is_looked_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fleet.running("a")
    exchange = fleet.poller.transport.exchange
    fleet.give("b")
    monkeypatch.setattr(fleet.poller.transport, "exchange", _cut(exchange))
    with pytest.raises(OSError, match="cut"):
        fleet.go()
    monkeypatch.setattr(fleet.poller.transport, "exchange", exchange)
    fleet.go()
    fleet.go()
    assert fleet.inbox(name) == ["b"], "it was taken out, and given again"
    assert fleet.poller.fleet.doubtful == set()


def _cut(exchange: Any, word: str = "incoming", *, whole: bool = True) -> Any:
    """An exchange that is done and whose answer is lost, or the answer to the step in which the word occurs."""

    def cut(steps: Any, *args: Any) -> Any:
        answers = exchange(steps, *args)
        found = [word in getattr(step, "text", lambda *_: "")("m", 1) for step in steps]
        if whole and any(found):
            raise OSError("cut")
        return [CommandResult(None) if lost else answer for lost, answer in zip(found, answers, strict=True)]

    return cut


@pytest.mark.parametrize("whole", [True, False])
def test_jobs_that_were_taken_back_without_an_answer_are_given_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(mode.AllocationMode, "seconds_until_repeated", 0.0)
    name = fleet.running("runs")
    fleet.give("a")
    fleet.go()
    fleet.state("PREEMPTED", name)
    exchange = fleet.poller.transport.exchange
    monkeypatch.setattr(fleet.poller.transport, "exchange", _cut(exchange, "removed $token", whole=whole))
    for _ in range(2):
        try:
            fleet.go()
        except OSError:
            assert whole
    assert fleet.inbox(name) == []
    assert fleet.poller.fleet.doubtful == {"a"}
    monkeypatch.setattr(fleet.poller.transport, "exchange", exchange)
    fleet.go()
    fleet.begin_all()
    fleet.go()
    assert fleet.inbox(fleet.names[1]) == ["a"]
    assert fleet.poller.fleet.doubtful == set()


@pytest.mark.parametrize("own", [True, False])
def test_a_claim_of_what_has_not_begun_goes_with_the_job(fleet: Fleet, own: bool) -> None:
    name = fleet.running("runs")
    fleet.give("a")
    fleet.go()
    assert Claim(name if own else f"{name}x", "").make(fleet.root / "claims", "a")
    fleet.state("NODE_FAIL", name)
    for _ in range(2):
        fleet.go()
    assert fleet.inbox(name) == []
    assert (fleet.root / "claims/a").exists() != own


def test_an_agent_packs_by_the_numbers_of_the_planner(fleet: Fleet) -> None:
    name = fleet.running("a", cpus=4)
    limited = replace(envelope("b"), memory_limit=3000)
    fleet.solo.put([limited])
    fleet.go()
    path = fleet.spool(name) / "inbox/b.json"
    found = json.loads(path.read_text())
    assert found["resources"]["memory"] == 3000 + 384
    assert found["memory_limit"] == 3000
    path.unlink()
    path.touch()
    fleet.poller = fleet.controller()
    fleet.go()
    fleet.solo.put([limited])
    fleet.go()
    assert json.loads(path.read_text())["resources"] == found["resources"], "renewed"


def test_an_allocation_begins_its_work_before_it_makes_way(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, max_allocations=1)
    fleet.solo.put([envelope("a"), replace(envelope("b"), queue="long", queued_at=2.0)])
    for _ in range(4):
        fleet.go()
    [name] = fleet.begin_all()
    fleet.go()
    assert fleet.inbox(name) == ["a"]
    assert fleet.read("cancelled") == ""
    fleet.start(name, "a")
    fleet.go()
    assert (fleet.spool(name) / "shutdown").read_text() == "drain", "a runs, and b is the next"
    fleet.end(name, "a")
    fleet.state("COMPLETED", name)
    for _ in range(4):
        fleet.go()
    assert "#SBATCH --partition=long\n" in fleet.read("script.2")


def test_an_allocation_is_cancelled_until_it_is_gone(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canceller.Canceller, "repeated_after", (0.0, 0.0))
    fleet.give("a")
    fleet.go()
    [allocation] = fleet.poller.fleet.allocations.values()
    fleet.poller.withdraw_waiting()
    exchange = fleet.poller.transport.exchange
    monkeypatch.setattr(fleet.poller.transport, "exchange", lambda *_: _raise(OSError("cut")))
    with pytest.raises(OSError, match="cut"):
        fleet.look()
    monkeypatch.setattr(fleet.poller.transport, "exchange", exchange)
    for times in (1, 2, 3):
        fleet.look()
        assert fleet.read("cancelled") == "1\n" * times, "it is still there"
    fleet.state("CANCELLED", allocation.name)
    fleet.look()
    fleet.look()
    assert fleet.read("cancelled") == "1\n" * 4


def test_an_allocation_that_could_not_be_cancelled_is_cancelled_again_and_it_is_said(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.give("a")
    fleet.go()
    fleet.poller.withdraw_waiting()
    scancel = fleet.folder / "bin/scancel"
    works = scancel.read_text()
    scancel.write_text(f"{works}\necho 'scancel: error: Unable to contact slurm controller' >&2; exit 1\n")
    for _ in range(3):
        fleet.look()
    assert fleet.read("cancelled") == "1\n" * 3, "once in each look"
    assert "could not be cancelled: scancel: error: Unable to contact" in caplog.text


@pytest.mark.parametrize(("reason", "deadline"), [("DependencyNeverSatisfied", 900), ("PartitionTimeLimit", 1)])
def test_an_allocation_that_can_never_start_is_cancelled(tmp_path: Path, reason: str, deadline: int) -> None:
    fleet = Fleet(tmp_path, cancel_unrunnable_after=deadline)
    fleet.give("a")
    fleet.go()
    fleet.write("queue", fleet.read("queue").replace("|Priority|", f"|{reason}|"))
    while not fleet.read("cancelled"):
        fleet.look()
    assert fleet.read("cancelled") == "1\n"


def _raise(error: Exception) -> Any:
    raise error


def test_a_reason_that_comes_late_makes_no_job(fleet: Fleet) -> None:
    name = fleet.running("a")
    fleet.tell(name, {"event": "waiting", "token": "b", "reason": "waits for 1 cpu"})
    assert fleet.go() == []
    assert fleet.poller.known() == {"a"}
    fleet.go()
    assert list((fleet.spool(name) / "events").iterdir()) == []


def test_jobs_that_are_cancelled(fleet: Fleet) -> None:
    name = fleet.running("runs", cpus=8)
    fleet.give("a")
    fleet.go()
    assert fleet.inbox(name) == ["a"]
    fleet.solo.cancel({"a": free_text("enough"), "runs": free_text("marked failed")})
    fleet.go()
    assert asked_reason((fleet.spool(name) / "cancel/a").read_text()) == free_text("enough")
    assert (fleet.spool(name) / "cancel/runs").read_text() == free_text("marked failed").to_json()


def test_the_reason_for_waiting_is_reported(fleet: Fleet) -> None:
    fleet.give("a")
    fleet.go()
    fleet.go()
    fleet.go()
    name = fleet.names[0]
    assert fleet.solo.reasons["a"].startswith(f"waits: allocation {name} waits in the queue of the batch system: ")
    fleet.poller.fleet.allocations[name].submission.excluded = ("n7",)
    fleet.go()
    assert fleet.solo.reasons["a"].endswith("; nodes where jobs failed are avoided: n7")


def test_full_allocations_are_a_reason(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, max_allocations=1)
    fleet.running(*(f"t{number}" for number in range(8)))
    fleet.give(*(f"u{number}" for number in range(10)))
    fleet.go()
    assert fleet.solo.reasons["u9"] == "waits: site 'hpc': 1 of 1 allocations are busy (max_allocations)"


def test_what_is_not_needed_any_more_is_cancelled(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, idle_seconds=1)
    fleet.give("a")
    fleet.go()
    fleet.solo.cancel({"a": free_text("enough")})
    fleet.go()
    time.sleep(1.1)
    fleet.go()
    assert fleet.read("cancelled") == "1\n"


def test_a_small_allocation_makes_way(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, max_allocations=1)
    name = fleet.running("a")
    assert fleet.terms(name).capacity.cpus == 1
    fleet.give("wide", cpus=4)
    fleet.go()
    assert (fleet.spool(name) / "shutdown").read_text() == "drain"
    fleet.poller = fleet.controller()
    fleet.poller.round()
    assert not (fleet.spool(name) / "shutdown").exists(), "the next controller decides anew"


def test_what_waits_is_given_back(fleet: Fleet) -> None:
    name = fleet.running("a")
    fleet.give("b")
    fleet.go()
    assert fleet.inbox(name) == ["b"]
    fleet.poller.withdraw_waiting()
    fleet.go()
    assert fleet.inbox(name) == []
    assert (fleet.spool(name) / "shutdown").read_text() == "drain"
    assert fleet.poller.known() == {"a"}


def test_jobs_with_other_directives_share_no_allocation(fleet: Fleet) -> None:
    fleet.solo.put([envelope("a"), replace(envelope("b"), queue="long", native={"account": "astro"})])
    fleet.go()
    scripts = [fleet.read("script.1"), fleet.read("script.2")]
    assert sum("--partition=long" in each and "--account=astro" in each for each in scripts) == 1


def test_a_round_is_three_exchanges_at_most(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, run_round, rounds = fleet.poller.transport.exchange, fleet.poller.round, list[list[Sequence[Any]]]()

    def counted(steps: Sequence[Any], *rest: Any) -> Any:
        rounds[-1].append(steps)
        return exchange(steps, *rest)

    def counted_round() -> None:
        rounds.append([])
        run_round()

    fleet.give(*(f"t{number}" for number in range(100)))
    fleet.go()
    fleet.begin_all()
    monkeypatch.setattr(fleet.poller.transport, "exchange", counted)
    monkeypatch.setattr(fleet.poller, "round", counted_round)
    fleet.go()
    puts = [steps for exchanges in rounds for steps in exchanges if any(isinstance(each, Put) for each in steps)]
    assert len(puts) == 1, "all inboxes are filled in one"
    assert all(len(fleet.inbox(name)) == 16 for name in fleet.names)
    for name in fleet.names:
        for token in fleet.inbox(name)[:8]:
            fleet.start(name, token)
    fleet.give(*(f"u{number}" for number in range(10)))
    fleet.poller.ask_to_cancel({f"t{number}": free_text("enough") for number in range(50)})
    fleet.go()
    assert [len(each) for each in rounds if len(each) > 3] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_allocations": 2}, "max_allocations cannot be used without mode = 'allocation'"),
        ({"idle_seconds": 60, "allocation_time": "1h"}, "allocation_time and idle_seconds cannot be used"),
        ({"hurry": "fast"}, "hurry cannot be used without mode = 'allocation'"),
        ({"mode": "allocation", "hurry": "soon"}, "soon"),
        ({"mode": "allocation", "allocation_time": "5 min"}, "allocation_time = 300 is too short; give 370 seconds"),
        ({"mode": "allocation", "memory_overhead": "8 GiB"}, "node_memory must be more than memory_overhead"),
    ],
)
def test_keys_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    table = {"kind": "slurm", "work_dir": "/w", "python": "/p", "node_cpus": 8, "node_memory": "16 GiB"}
    with pytest.raises(ValidationError, match=words):
        ClusterConfig(**{**table, **options})


def test_what_an_early_end_is_worth_is_known_to_who_plans() -> None:
    table: dict[str, Any] = {"kind": "slurm", "work_dir": "/w", "python": "/p", "node_cpus": 8, "node_memory": "16 GiB"}
    config = ClusterConfig(**table, mode="allocation", hurry="fast", expected_queue_time="10 min")
    asked = market(config)
    assert (asked.hurry, asked.queue_seconds) == (10, 600)
    assert market(ClusterConfig(**table, mode="allocation")).hurry == 1


def test_the_modes_share_no_folder(fleet: Fleet, tmp_path: Path) -> None:
    fleet.give("a")
    fleet.go()
    (tmp_path / "other").mkdir()
    paper = Paper(tmp_path / "other")
    paper.config = paper.config.model_copy(update={"work_dir": str(fleet.root)})
    paper.poller = paper.controller()
    with pytest.raises(OSError, match="it holds allocations"):
        paper.poller.round()
