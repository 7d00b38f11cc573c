"""The exchanges of a controller and a cluster, with mocks of SLURM's commands."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.executors.controller.answers import change_by_event
from lading.hooks.batch import canceller, status_query
from lading.hooks.batch.canceller import Cancellation
from lading.hooks.batch.slurm.system import SLURM
from lading.hooks.cluster.jobs import end_event, job_mode, poller, submitter
from lading.hooks.cluster.jobs.job_mode import JobMode
from lading.hooks.deployment.airflow import AirflowDeployment
from lading.hooks.polling import rounds, task_logs
from lading.hooks.polling.job_life import JobPhase
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.spool import agent_archive, job_files
from lading.hooks.spool.values import asked_reason
from lading.hooks.ssh.steps import RemoteStep, RunCommand
from lading.scheduling.model.reasons import free_text
from tests.clusters.paper import Paper, envelope, only
from tests.reasons import message_in
from tests.recordings import FOLDER
from tests.services.agent_zip import sources_in, sources_of


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path)


def test_jobs_of_one_shape_are_one_array(paper: Paper) -> None:
    paper.give("a", "b", "c")
    paper.give("wide", cpus=2.5)
    paper.go()
    assert len(paper.read("submissions").split()) == 2
    script, other = sorted((paper.read(f"script.{number}") for number in (1, 2)), key=len, reverse=True)
    for line in (
        "--array=1-3",
        "--cpus-per-task=1",
        "--mem=1384",
        "--export=NONE",
        "--no-requeue",
        "--time=1-00:00:00",
    ):
        assert f"#SBATCH {line}\n" in script
    assert "--cpus-per-task=3\n" in other
    assert "array" not in other
    assert "secret" not in script
    inbox = paper.root / "spool/inbox"
    assert sorted(path.stem for path in inbox.iterdir()) == ["a", "b", "c", "wide"]
    assert {path.stat().st_mode & 0o777 for path in inbox.iterdir()} == {0o600}
    assert paper.poller.known() == {"a", "b", "c", "wide"}


def test_its_nodes_are_asked_for_once_a_minute(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    paper.write("nodes", "batch*|8|16000|2|alloc\nbatch*|8|16000|1|idle\nbatch*|8|16000|1|drain\n")
    paper.go()
    paper.go()
    there = paper.poller.submitter.inventory
    assert there is not None
    assert (there.count_nodes([]), paper.read("surveys").split()) == ((4, 1), ["x"])
    monkeypatch.setattr(poller.ClusterPoller, "seconds_between_surveys", 0.0)
    paper.write("nodes", "batch*|8|16000|two|alloc\n")
    paper.go()
    assert (paper.poller.submitter.inventory, len(paper.read("surveys").split())) == (there, 2), "it could not be asked"


def test_the_batch_system_is_asked_for_states_once_in_five_seconds(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(poller, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))

    def looks(seconds: float) -> list[str]:
        """By which commands it was asked in looks of so many seconds, one each."""
        nonlocal now
        paper.write("asked_states", "")
        for _ in range(int(seconds)):
            now += 1.0
            paper.poller.interval.at_once()
            paper.poller.round()
        return paper.read("asked_states").split()

    paper.give("a", "b")
    assert looks(21) == ["squeue"] * 4, "it has nothing to be asked for in the first one"
    paper.begin("a")
    paper.finish("a")
    assert "a" in paper.poller.known()
    looks(1)
    assert only(paper.poller.unread(), "finished")["token"] == "a", "what jobs say is read in each look"
    paper.write("queue", "")  # b has ended without a word
    assert len(asked := looks(30)) <= 30 / 5 + 1, "an accounting counts as a question"
    assert set(asked) == {"squeue", "sacct"}


def test_a_job_runs_and_nothing_is_left(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    log = paper.root / "logs/a/dag/a.log"
    log.parent.mkdir(parents=True)
    log.write_text("first\n")
    assert only(paper.go(), "started")["token"] == "a"
    paper.go()
    assert paper.read("logs/dag/a.log") == "first\n"
    log.write_text("first\nlast\n")
    paper.finish("a")
    paper.write("queue", "")
    assert only(paper.go(), "finished")["cause"] is None
    for _ in range(3):
        assert paper.go() == []
    assert paper.read("logs/dag/a.log") == "first\nlast\n"
    assert paper.poller.known() == frozenset()
    left = [
        path
        for name in ("spool/inbox", "spool/events", "spool/jobs", "logs", "submissions", "incoming")
        for path in (paper.root / name).iterdir()
    ]
    assert left == []


def where(event: dict[str, Any]) -> tuple[str | None, str | None]:
    return event.get("native_id"), event.get("node")


def test_the_batch_job_and_its_node_are_reported(paper: Paper) -> None:
    paper.give("a", "b")
    paper.go()
    paper.begin("b")
    assert where(only(paper.go(), "started")) == ("1_2", None)
    paper.write("queue", paper.read("queue").replace("1_2|PENDING|", "1_2|RUNNING|n7"))
    assert where(only(paper.go(), "located")) == ("1_2", "n7")
    assert paper.go() == [], "once"
    paper.finish("b")
    assert where(only(paper.go(), "finished")) == ("1_2", "n7")


ODD = [
    {"event": "located", "native_id": "7"},
    {"event": "waiting", "reason": "for a while"},
    {"event": "started", "at": 5.0, "pid": 1},
]


@pytest.mark.parametrize("event", ODD)
@pytest.mark.parametrize("token", ["a", "nobody"])
def test_an_event_of_any_kind_stops_no_other_job(paper: Paper, event: dict[str, Any], token: str) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    paper.go()
    paper.say(token, event)
    paper.go()
    paper.give("b")
    paper.go()
    assert len(paper.read("submissions").split()) == 2
    paper.finish("a")
    assert only(paper.go(), "finished")["token"] == "a"
    paper.go()
    assert not list((paper.root / "spool/events").iterdir())


def test_a_second_controller_finds_everything(paper: Paper) -> None:
    paper.give("a", "b")
    paper.go()
    paper.begin("b")
    paper.poller = paper.controller()
    assert only(paper.go(), "started")["token"] == "b"
    assert paper.poller.known() == {"a", "b"}
    paper.poller.ask_to_cancel({"a": free_text("enough")})
    assert str(only(paper.go(), "finished")["reason"]) == "enough"
    paper.go()
    assert paper.read("cancelled") == "1_1\n"
    assert len(paper.read("submissions").split()) == 1


def test_a_submission_without_an_answer_is_found_by_its_name(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mode.JobMode, "seconds_until_repeated", 0.0)
    paper.write("mode", "mute")
    paper.give("a")
    paper.go()
    for _ in range(2):
        paper.go()
    assert len(paper.read("submissions").split()) == 1
    [job] = paper.poller.tracker.jobs.values()
    assert job.native_id(SLURM()) == "1"


def test_a_submission_that_never_arrived_is_made_again(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mode.JobMode, "seconds_until_repeated", 0.0)
    paper.poller.submitter.pressure.backoff.first = 0.0
    paper.write("mode", "away")
    paper.give("a")
    paper.go()
    assert paper.poller.known() == {"a"}
    paper.write("mode", "accept")
    paper.go()
    paper.go()
    assert len(paper.read("submissions").split()) == 2
    assert "|" in paper.read("queue")


def test_nothing_is_concluded_while_the_batch_system_is_away(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.write("queue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    paper.write("status", "1")
    time.sleep(1.1)
    assert [event["event"] for event in paper.go()] == []
    assert "could not be queried" in str(paper.poller.unasked)
    assert paper.poller.known() == {"a"}
    paper.give("b")
    assert "could not be queried" in message_in(only(paper.go(), "waiting"))
    paper.begin("a")
    paper.finish("a")
    paper.go()
    assert not list(paper.poller.tracker.live())
    paper.write("queue", "")
    paper.write("status", "0")
    paper.go()
    assert paper.poller.unasked is None
    assert [job.token for job in paper.poller.tracker.live()] == ["b"]


def test_events_of_jobs_are_read_while_the_commands_of_the_batch_system_hang(
    paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of LSF do while it is down."""
    paper.give("a")
    paper.go()
    paper.begin("a")
    only(paper.go(), "started")
    monkeypatch.setattr(status_query, "QUESTION_LIMIT", 1)
    for name in ("squeue", "sinfo"):
        (paper.folder / "bin" / name).write_text("#!/bin/sh\nexec sleep 600\n")
    paper.finish("a")
    began = time.monotonic()
    assert only(paper.go(), "finished")["exit_code"] == 0
    assert time.monotonic() - began < 300
    assert "took too long" in str(paper.poller.unasked)


def test_a_limit_makes_arrays_smaller(paper: Paper) -> None:
    paper.write("mode", "few")
    paper.give(*"abcdef")
    for _ in range(4):
        paper.go()
    assert not list(paper.poller.tracker.waiting())
    assert all(len(each.tokens) <= 2 for each in paper.poller.tracker.submissions.values())


def test_arrays_that_are_never_taken_are_smaller_from_then_on(paper: Paper) -> None:
    paper.write("mode", "small")
    paper.give(*"abcdef")
    events = [event for _ in range(4) for event in paper.go()]
    assert not [event for event in events if event["event"] == "finished"], "the jobs are not to blame"
    assert not list(paper.poller.tracker.waiting())
    before = paper.read("submissions").count("x")
    paper.give(*"ghijkl")
    for _ in range(4):
        paper.go()
    assert not list(paper.poller.tracker.waiting())
    assert paper.read("submissions").count("x") == before + 6, "each was taken at once"


def test_max_submitted_holds_jobs_back(tmp_path: Path) -> None:
    paper = Paper(tmp_path, max_submitted=2)
    paper.give(*"abc")
    reasons = [message_in(event) for event in paper.go()]
    assert reasons == ["waits: 2 jobs are already submitted (max_submitted)"]
    assert paper.poller.known() == {"a", "b", "c"}
    paper.begin("a")
    paper.finish("a")
    paper.go()
    paper.go()
    assert not list(paper.poller.tracker.waiting())


def test_a_refusal_fails_the_job_with_the_site_s_message(paper: Paper) -> None:
    paper.write("mode", "refuse")
    paper.give("a")
    event = only(paper.go(), "finished")
    assert event["cause"] == "submit_rejected"
    assert "invalid partition specified: batch" in str(event["reason"])


def test_what_a_batch_system_cannot_say_is_a_refusal(tmp_path: Path) -> None:
    paper = Paper(tmp_path, resources={"job-name": "mine"})
    paper.give("a")
    assert only(paper.go(), "finished")["cause"] == "submit_rejected"


def test_the_reason_for_waiting_is_reported(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mode.JobMode, "seconds_until_reported", 0.0)
    paper.give("a")
    paper.go()
    assert message_in(only(paper.go(), "waiting")).startswith("waits in the queue of the batch system: ")
    assert paper.go() == [], "once"


@pytest.mark.parametrize(
    ("state", "cause"),
    [("TIMEOUT", "time_limit"), ("PREEMPTED", "preempted"), ("NODE_FAIL", "node_failure"), ("CANCELLED", "cancelled")],
)
def test_the_batch_system_knows_why_a_job_was_ended(paper: Paper, state: str, cause: str) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    name = paper.read("queue").strip().rpartition("|")[2]
    paper.go()
    paper.finish("a", "terminated", None, "told to end")
    paper.write("queue", f"1|RUNNING|n1|None|{name}\n")
    assert paper.go() == []
    paper.write("queue", f"1|{state}|n1|None|{name}\n")
    event = only([*paper.go(), *paper.go()], "finished")
    assert event["cause"] == cause
    change = change_by_event(event)
    assert change is not None
    assert change.values["state"] == "failed", "it was not requested in Airflow"


def test_a_job_that_died_before_its_task_shows_its_last_output(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    [submission] = paper.poller.tracker.submissions
    (paper.root / "submissions" / submission / "output.1").write_text("python: not found\n")
    paper.write("queue", "")
    paper.write("accounts", f"1|FAILED|127:0|{datetime.now().isoformat()}|n1|{submission}\n")
    paper.go()
    time.sleep(2.1)
    event = only(paper.go(), "finished")
    assert (event["cause"], event["exit_code"]) == ("error", 127)
    assert str(event["reason"]).endswith("its last output: python: not found")


@pytest.mark.parametrize(
    ("code", "words", "own", "cause"),
    [
        ("0:9", True, False, "out_of_memory"),
        ("0:9", False, False, "error"),
        ("1:0", True, False, "error"),
        ("0:9", True, True, "time_limit"),
    ],
)
def test_a_job_whose_output_says_that_it_was_killed_for_its_memory(
    paper: Paper, monkeypatch: pytest.MonkeyPatch, code: str, words: bool, own: bool, cause: str
) -> None:
    """As slurmstepd writes it without cgroups, where accounting has no record of memory."""
    monkeypatch.setattr(end_event, "patience", lambda *_: 0.0)
    paper.give("a")
    paper.go()
    [submission] = paper.poller.tracker.submissions
    log = (FOLDER / "slurm/overmemorykill-25.11.7.txt").read_text().partition("batch.log of the job:\n")[2]
    assert "Exceeded job memory limit" in log
    (paper.root / "submissions" / submission / "output.1").write_text(log if words else "Killed\n")
    paper.begin("a")
    paper.go()
    if own:
        paper.finish("a", "time_limit", None, "it ran for longer than it may")
    paper.write("queue", "")
    paper.write("accounts", f"1|FAILED|{code}|{datetime.now().isoformat()}|n1|{submission}\n")
    found: list[dict[str, Any]] = []
    while not any(event["event"] == "finished" for event in found):
        found += paper.go()
    event = only(found, "finished")
    assert event["cause"] == cause
    if cause == "out_of_memory":
        assert event["exit_code"] == 137
        assert "it used more memory than it had requested" in str(event["reason"])


@pytest.mark.parametrize(
    ("reason", "deadline", "ends"),
    [("DependencyNeverSatisfied", 900, True), ("PartitionTimeLimit", 900, False), ("PartitionTimeLimit", 1, True)],
)
def test_what_can_never_start_is_cancelled(tmp_path: Path, reason: str, deadline: int, ends: bool) -> None:
    paper = Paper(tmp_path, cancel_unrunnable_after=deadline)
    paper.give("a")
    paper.go()
    paper.write("queue", paper.read("queue").replace("|Priority|", f"|{reason}|"))
    found: list[dict[str, Any]] = []
    for _ in range(3):
        found += paper.go()
    while ends and not any(event["event"] == "finished" for event in found):
        found += paper.go()
    assert paper.read("cancelled") == ("1\n" if ends else "")
    if ends:
        event = only(found, "finished")
        assert (event["cause"], reason in str(event["reason"])) == ("error", True)
    else:
        assert [event["event"] for event in found] == []


def test_a_job_that_has_said_how_it_ended_is_not_taken_back(paper: Paper) -> None:
    """Not even where what it said of its beginning was lost: the store would give it again, and it would run twice."""
    paper.give("a")
    paper.go()
    paper.finish("a", "terminated", None)
    paper.go()
    [job] = paper.poller.tracker.live()
    paper.poller.withdraw_waiting()
    assert (job.phase, paper.poller.tracker.pending.withdrawals) == (JobPhase.CLOSING, [])


def test_a_job_script_that_was_cancelled_in_vain_is_cancelled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has cancelled it, a worker that was killed for instance, asks no more."""
    monkeypatch.setattr(canceller.Canceller, "repeated_after", (0.0, 0.0))
    monkeypatch.setattr(poller.ClusterPoller, "seconds_between_surveys", 0.0)
    paper, notes = Paper(tmp_path), tmp_path / "work/cancelled_scripts"
    paper.go()
    paper.write(
        "queue", "50|RUNNING|n1|None|mine\n51_2|RUNNING|n1|None|x\n51_3|RUNNING|n1|None|x\n52|RUNNING|n1|None|x\n"
    )
    cancelled = {
        "a": Cancellation("50", None, "mine"),
        "b/2": Cancellation("51", 2),
        "c": Cancellation("52", None, "another"),
        "d": Cancellation("53"),
    }
    [answer] = paper.poller.transport.exchange([canceller.note(str(paper.root), cancelled)])
    assert answer.status == 0
    (notes / "odd").write_text("no note\n")
    for _ in range(4):
        paper.go()
    asked = [set(line.split()) for line in paper.read("cancelled").splitlines()]
    assert len(asked) > 1
    assert asked == [{"50", "51_2"}] * len(asked), "again and again, each that is shown and no other"
    assert sorted(path.name for path in notes.iterdir()) == ["a", "b.2", "odd"]
    paper.write("queue", "51_3|RUNNING|n1|None|x\n52|RUNNING|n1|None|x\n")
    for _ in range(3):
        paper.go()
    assert [path.name for path in notes.iterdir()] == ["odd"]
    before = paper.read("cancelled")
    paper.go()
    assert paper.read("cancelled") == before


def test_another_job_of_the_same_id_is_not_this_one(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    paper.go()
    paper.write("queue", "1|CANCELLED|n1|None|L0123456789abcd\n")
    paper.write("accounts", f"1|TIMEOUT|0:0|{datetime.now().isoformat()}|n1|somebody_else\n")
    assert paper.go() == []
    time.sleep(1.1)
    assert only(paper.go(), "finished")["cause"] == "lost"


def test_a_limit_is_reported_to_those_that_wait_for_it(paper: Paper) -> None:
    paper.write("mode", "full")
    paper.give("a")
    assert "AssocMaxSubmitJobLimit" in message_in(only(paper.go(), "waiting"))


def test_a_job_that_is_unknown_is_lost_after_a_while(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.write("queue", "")
    assert paper.go() == []
    time.sleep(1.1)
    assert only(paper.go(), "finished")["cause"] == "lost"


def test_the_sentinel_says_the_end_of_a_job_whose_events_are_lost(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    paper.go()
    sentinel = {"exit_code": 0, "reason": None, "ended_at": 7.0, "cpu_seconds": 1.0, "peak_memory": 3}
    (paper.root / "spool/jobs/a/exit.json").write_text(json.dumps(sentinel))
    paper.write("queue", "")
    event = only([*paper.go(), *paper.go()], "finished")
    assert (event["cause"], event["exit_code"], event["peak_memory"]) == (None, 0, 3)


def test_a_job_that_has_begun_is_asked_to_end(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    paper.poller.ask_to_cancel({"a": free_text("marked failed")})
    assert only(paper.go(), "started")
    assert asked_reason((paper.root / "spool/cancel/a").read_text()) == free_text("marked failed")
    assert paper.read("cancelled") == ""
    assert not paper.poller.ask_to_cancel({"a": free_text("marked failed")}), "once is enough"


def test_a_job_is_asked_to_end_again_after_any_error(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    paper.give("a")
    paper.go()
    paper.begin("a")
    paper.poller.ask_to_cancel({"a": free_text("marked failed")})
    with monkeypatch.context() as patch:
        patch.setattr(job_mode.remote_steps, "envelopes_taken_back", dict.__getitem__)  # a fault of our own, say
        with pytest.raises(TypeError):
            paper.go()
    (paper.root / "spool/cancel/a").unlink()
    paper.go()
    assert asked_reason((paper.root / "spool/cancel/a").read_text()) == free_text("marked failed")


def test_a_job_that_does_not_end_is_ended(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mode.JobMode, "seconds_until_forced", -100.0)
    paper.give("a")
    paper.go()
    paper.begin("a")
    paper.poller.ask_to_cancel({"a": free_text("marked failed")})
    for _ in range(3):
        paper.go()
    assert paper.read("cancelled").startswith("1\n")


def test_a_job_is_not_given_twice(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.poller.give([envelope("a", expires_at=9000.0)])
    paper.go()
    assert len(paper.read("submissions").split()) == 1
    assert json.loads((paper.root / "spool/inbox/a.json").read_text())["expires_at"] == 9000.0
    paper.begin("a")
    paper.poller.give([envelope("a", expires_at=9500.0)])
    paper.go()
    assert not (paper.root / "spool/inbox/a.json").exists(), "it has begun"


def test_what_waits_can_be_withdrawn_and_is_submitted_anew(paper: Paper) -> None:
    paper.give("a", "b")
    paper.go()
    paper.begin("b")
    paper.go()
    paper.poller.withdraw_waiting()
    paper.go()
    assert paper.read("cancelled") == "1_1\n"
    paper.poller = paper.controller()
    paper.go()
    assert paper.poller.known() == {"b"}
    paper.give("a")
    paper.go()
    assert len(paper.read("submissions").split()) == 2


def test_what_is_recalled_comes_back_unless_it_has_begun(paper: Paper) -> None:
    paper.give("a", "b", "c")
    paper.go()
    paper.begin("b")
    assert paper.poller.ask_back({"hpc": ["a", "b"]})
    paper.poller.interval.at_once()
    paper.poller.round()
    assert [event["token"] for event in paper.poller.unread() if event["event"] == "returned"] == ["a"]
    # Who does not know yet that it has come back may give it again: it is not submitted.
    paper.give("a")
    assert "a" in paper.poller.known()
    paper.go()
    assert paper.read("cancelled") == "1_1\n"
    assert sorted(path.stem for path in (paper.root / "spool/inbox").iterdir()) == ["c"]
    assert paper.poller.known() == {"b", "c"}
    paper.give("a")
    paper.go()
    assert len(paper.read("submissions").split()) == 2, "it is given again by the store"


def test_a_job_whose_node_failed_before_its_task_began_is_submitted_again(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    causes = []
    for number in range(1, 5):
        name = paper.read("queue").strip().rpartition("|")[2]
        paper.write("queue", f"{number}|NODE_FAIL|n1|None|{name}\n")
        for _ in range(2):
            event_buffer = paper.go()
            causes += [event.get("cause", event["event"]) for event in event_buffer]
    assert causes == ["waiting", "node_failure"], "the reason is reported once, the end after four attempts"
    assert len(paper.read("submissions").split()) == 4


def test_a_preempted_job_of_an_earlier_controller_is_given_again_by_the_store(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    name = paper.read("queue").strip().rpartition("|")[2]
    paper.poller = paper.controller()
    paper.write("queue", f"1|PREEMPTED|n1|None|{name}\n")
    paper.go()
    paper.go()
    assert paper.poller.known() == frozenset()
    paper.go()
    paper.poller = paper.controller()
    paper.go()
    assert paper.poller.known() == frozenset(), "it does not belong to its submission any more"


def test_a_job_that_began_while_it_was_withdrawn_is_reported_and_cleaned_up(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    paper.poller.withdraw_waiting()
    paper.begin("a")
    paper.finish("a", "terminated", None, "told to end")
    events = [*paper.go(), *paper.go()]
    assert (only(events, "started")["token"], only(events, "finished")["cause"]) == ("a", "lost")
    paper.go()
    paper.go()
    assert not list((paper.root / "spool/jobs").iterdir())


def test_a_thousand_live_jobs_cost_few_exchanges(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanges: list[list[RemoteStep]] = []
    exchange = paper.poller.transport.exchange

    def count(steps: Any, *rest: Any) -> Any:
        exchanges.append(list(steps))
        return exchange(steps, *rest)

    def asked(command: str) -> int:
        """How often a command was run since the list was cleared."""
        runs = [step.command for steps in exchanges for step in steps if isinstance(step, RunCommand)]
        return sum(command in text for text in runs)

    monkeypatch.setattr(paper.poller.transport, "exchange", count)
    tokens = [f"job{number}" for number in range(1000)]
    paper.give(*tokens)
    paper.go()
    assert (len(exchanges), asked("sbatch")) == (2 + 1, 1), "the folder is read, there is a look, all are submitted"

    now = time.monotonic()
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: now))  # however long a round takes
    exchanges.clear()
    paper.go()
    assert (len(exchanges), asked("squeue")) == (1, 1)

    exchanges.clear()
    for _ in range(5):
        paper.poller.round()
    assert exchanges == [], "before the next look is due nothing is asked"

    paper.begin("job0")
    paper.begin("job1")
    paper.finish("job1")
    paper.poller.ask_to_cancel(dict.fromkeys(tokens[500:], free_text("enough")))
    paper.poller.give([envelope(tokens[2], expires_at=9000.0)])
    paper.give("late", cpus=2)
    events = paper.go()
    assert (len(exchanges), asked("squeue"), asked("sbatch")) == (3, 1, 1), "all that there can be in one round"
    assert sum(event["event"] == "finished" for event in events) == 1 + 500
    exchanges.clear()
    paper.go()
    assert (len(exchanges), asked("squeue"), asked("scancel")) == (1, 1, 1)
    assert len(paper.read("cancelled").split()) == 500


def test_events_that_cannot_be_read_delay_no_other(paper: Paper) -> None:
    paper.give("a")
    paper.go()
    (paper.root / "spool/events/0.jsonl").write_text("{")
    paper.begin("a")
    assert only(paper.go(), "started")


@given(
    st.lists(
        max_size=5,
        elements=st.binary(max_size=20) | st.sampled_from([b"[" * 10**5, b"{}", b'{"event":"finished","token":"a"}']),
    )
)
def test_whatever_lies_among_the_events_those_that_are_right_count(junk: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        poller = JobMode(Paper(Path(folder)).config, SLURM(), None, "", LogCopies(Path(folder), Path(folder) / "x"))  # type: ignore[arg-type]
        right = json.dumps({"event": "started", "token": "a", "at": 5.0}).encode()
        files = {"1.jsonl": b"\n".join([*junk, right, *junk]), "2.jsonl": b"\n".join(junk)}
        poller._read_events(files)
        assert [event["token"] for event in poller.unread() if event["event"] == "started"] == ["a"]
        poller.acknowledge(len(poller.unread()))
        assert poller.event_buffer.done() == ["1.jsonl", "2.jsonl"]


def test_what_is_no_event_is_kept_and_said_in_the_note(paper: Paper, tmp_path: Path) -> None:
    paper.poller.rejected.folder = tmp_path / "rejected"
    paper.go()
    (paper.root / "spool/events/7.jsonl").write_text('{"event": "finished", "token": ["a"]}\n')
    paper.go()
    assert "7.jsonl" in (paper.poller.rejected.note or "")
    assert "token" in (tmp_path / "rejected" / "7.jsonl").read_text()
    paper.go()
    assert not list((paper.root / "spool/events").iterdir())


@pytest.mark.parametrize("wrong", ["exit_code", "ended_at", "peak_memory"])
def test_a_sentinel_that_makes_no_sense_is_none(paper: Paper, wrong: str) -> None:
    sentinel = {"exit_code": 0, "reason": None, "ended_at": 5.0, "cpu_seconds": 1.0, "peak_memory": 3}
    assert job_files.remains(job_files.SentinelFile, json.dumps(sentinel).encode()) == sentinel
    for value in ("text", [], -(10**30), float("nan")):
        assert job_files.remains(job_files.SentinelFile, json.dumps({**sentinel, wrong: value}).encode()) is None


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    with pytest.raises(OSError, match="work_dir cannot be used"):
        Paper(tmp_path).go()


def test_a_large_log_comes_in_parts(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_logs, "MOST_LOG_BYTES", 10)
    paper.give("a")
    paper.go()
    paper.begin("a")
    text = "".join(f"line {number}\n" for number in range(10))
    log = paper.root / "logs/a/dag/a.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    paper.finish("a")
    for _ in range(10):
        paper.go()
    assert paper.read("logs/dag/a.log") == text
    assert paper.poller.tracker.jobs == {}


def test_jobs_of_many_shapes_are_submitted_in_several_rounds(tmp_path: Path) -> None:
    paper = Paper(tmp_path, max_array_size=1)
    paper.give(*(f"job{number}" for number in range(60)))
    paper.go()
    assert len(paper.read("submissions").split()) == submitter.MOST_SUBMISSIONS
    paper.go()
    assert len(paper.read("submissions").split()) == 60


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Paper:
    """A cluster whose jobs are commands, so that it gets the node agent."""
    monkeypatch.setattr(AirflowDeployment, "brings_agent", lambda _: True)
    return Paper(tmp_path)


def test_where_jobs_are_commands_the_agent_is_brought_while_none_waits_yet(commands: Paper) -> None:
    commands.go()
    path = Path(agent_archive.archive().path(str(commands.root)))
    assert sources_in(path) == sources_of(agent_archive.archive())
    commands.give("a")
    commands.go()
    script = commands.read("script.1")
    assert f"exec /usr/bin/python3 -S {path} lading.executors.agent.batch_job {commands.root} " in script
    assert " -m lading" not in script
    path.unlink()
    commands.give("b")
    commands.go()
    assert len(commands.read("submissions").split()) == 1, "its agent is gone, so the script was not submitted"
    commands.poller.submitter.pressure.backoff.succeeded()
    commands.go()
    assert path.exists()
    assert len(commands.read("submissions").split()) == 2


def test_jobs_wait_where_the_agent_cannot_be_brought_and_say_why(commands: Paper) -> None:
    old = commands.folder / "python2"
    old.write_text("#!/bin/sh\necho 'python2 is Python 2.7, and the node agent needs 3.10 or newer' >&2; exit 1\n")
    old.chmod(0o755)
    commands.config = commands.config.model_copy(update={"python": str(old)})
    commands.poller = commands.controller()
    commands.give("a")
    reason = only(commands.go(), "waiting")["reason"]
    assert reason.code == "agent_not_brought"
    assert "copied to" in str(reason)
    assert "needs 3.10 or newer" in str(reason)
    assert commands.read("submissions") == ""
    assert list((commands.root / "agents").iterdir()) == []
