"""The runs of job scripts that a controller admits at a cluster, with mocks of SLURM's commands."""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.batch import script_jobs
from lading.hooks.batch.script_jobs import JOB_SCRIPT, STARTED_AT
from lading.hooks.spool.spool import Envelope
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from tests.clusters.paper import Paper

ONE, TWO, THREE = (f"{number}b8c6a52-3c43-4f0e-9d0b-6f0c8f6a9a1e" for number in range(3))


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path)


def script(token: str, started_at: float | None = None) -> Envelope:
    return Envelope(token, {"type": JOB_SCRIPT, STARTED_AT: started_at}, Resources(4, 0), None, None, 0, 1.0, 2000.0)


def test_a_run_is_granted_and_seen_to_start_and_never_submitted(paper: Paper) -> None:
    runs = paper.root / "scripts"
    paper.give("task")
    paper.poller.give([script(ONE), script(TWO)])
    assert paper.go() == []
    assert {path.name for path in runs.iterdir()} == {ONE, TWO}
    assert (runs / ONE / "granted").exists()
    assert paper.read("submissions").split() == ["x"], "only the task is submitted here"
    assert paper.poller.known() == {"task", ONE, TWO}
    (runs / ONE / "job").write_text("17 3\n")
    [event] = paper.go()
    assert (event["event"], event["token"], event["native_id"]) == ("started", ONE, "17")
    assert paper.go() == []


def test_a_running_run_is_followed_again_by_the_next_controller(paper: Paper) -> None:
    paper.poller.give([script(ONE)])
    paper.go()
    (paper.root / "scripts" / ONE / "job").write_text("17")
    assert [event["event"] for event in paper.go()] == ["started"]
    paper.poller = paper.controller()
    paper.poller.give([script(ONE, started_at=5.0)])
    assert (paper.go(), paper.poller.known()) == ([], {ONE})


def test_a_cancelled_run_is_marked_unless_it_has_ended(paper: Paper) -> None:
    runs, why = paper.root / "scripts", because("unwanted")
    paper.poller.give([script(ONE), script(TWO)])
    paper.go()
    (runs / TWO / "exit").write_text("0 1700000000 1700000001")
    assert paper.poller.ask_to_cancel({ONE: why, TWO: why})
    assert not paper.poller.ask_to_cancel({ONE: why})
    events = paper.go()
    assert [(event["event"], event["token"], event["reason"]) for event in events] == [
        ("finished", ONE, why),
        ("finished", TWO, why),
    ]
    assert ((runs / ONE / "cancelled").exists(), (runs / TWO / "cancelled").exists()) == (True, False)
    assert paper.poller.known() == frozenset()


def test_what_a_site_has_not_done_is_repeated(paper: Paper) -> None:
    runs = paper.root / "scripts"
    paper.go()
    runs.write_text("not a folder")
    paper.poller.give([script(ONE)])
    assert paper.go() == []
    runs.unlink()
    assert paper.go() == []
    assert (runs / ONE / "granted").exists()


def test_a_run_that_cannot_be_marked_keeps_no_other_run_from_it(paper: Paper, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    paper.go()
    runs, why = paper.root / "scripts", because("unwanted")
    runs.mkdir()
    (runs / ONE).write_text("not a folder")
    paper.poller.give([script(ONE), script(TWO)])
    assert paper.go() == []
    assert (runs / TWO / "granted").exists()
    (runs / TWO / "job").write_text("17")
    assert [event["event"] for event in paper.go()] == ["started"]
    [message] = [each for each in caplog.messages if "could not be marked" in each]
    assert message.startswith("the runs of job scripts: 1 of 2 runs could not be marked: ")
    assert ONE in message
    paper.poller.ask_to_cancel({ONE: why, TWO: why})
    assert [event["token"] for event in paper.go()] == [TWO]
    (runs / ONE).unlink()
    assert [event["token"] for event in paper.go()] == [ONE]
    assert (runs / ONE / "cancelled").exists()
    assert "the runs of job scripts: resolved" in caplog.messages


def test_a_run_that_cannot_be_marked_is_no_reason_to_poll_often(paper: Paper) -> None:
    paper.go()
    runs, poller = paper.root / "scripts", paper.poller
    runs.mkdir()
    (runs / ONE).write_text("not a folder")
    poller.give([script(ONE)])
    assert poller._has_errands()
    poller.round()
    assert not poller._has_errands()
    poller.interval.changed(time.monotonic() - 1e6)
    poller.interval._due = 0.0
    poller.round()
    assert poller.pause() == poller.interval.longest
    assert poller.ask_to_cancel({ONE: because("unwanted")})
    assert poller._has_errands(), "a cancellation is tried at once"


def test_a_start_that_cannot_be_read_keeps_no_other_news_from_being_reported(
    paper: Paper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    paper.poller.give([script(ONE), script(TWO), script(THREE)])
    paper.go()
    job = paper.root / "scripts" / TWO / "job"
    job.mkdir()
    (paper.root / "scripts" / THREE / "job").write_text("17")
    paper.poller.ask_to_cancel({ONE: because("unwanted")})
    assert {(event["event"], event["token"]) for event in paper.go()} == {("finished", ONE), ("started", THREE)}
    assert f"{TWO}/job' in" in caplog.text
    job.rmdir()
    job.write_text("18")
    assert [(event["event"], event["native_id"]) for event in paper.go()] == [("started", "18")]
    assert "the runs of job scripts: resolved" in caplog.messages


@pytest.mark.parametrize(("mark", "name"), [(script_jobs.grant, "granted"), (script_jobs.forbid, "cancelled")])
def test_thousands_of_runs_are_marked_at_once(tmp_path: Path, mark: Any, name: str) -> None:
    tokens = [str(uuid.uuid4()) for _ in range(5000)]
    for token in tokens[:4900]:
        (tmp_path / "scripts" / token).mkdir(parents=True)
    [answer] = ShellTransport().exchange([mark(str(tmp_path / "scripts"), tokens)])
    assert script_jobs.unmarked(tokens, answer) == (frozenset(), None)
    assert len([*(tmp_path / "scripts").glob(f"*/{name}")]) == 5000
