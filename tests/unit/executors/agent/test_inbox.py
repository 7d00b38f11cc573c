"""The agent's inbox by itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lading.executors.agent.inbox import CANNOT_START, SECONDS_UNTIL_TOLD, Inbox
from lading.executors.agent.journal import AgentJournal
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.resources import Resources


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    spool = Spool(tmp_path)
    spool.create()
    return Inbox(spool, AgentJournal(spool), lambda token: False)


def put(inbox: Inbox, token: str) -> float:
    """Leave a job; returns when it was queued."""
    now = time.time()
    inbox.spool.put([Envelope(token, {}, Resources(1, 64), None, None, 1, now, now + 600)])
    inbox.look()
    return now


def test_there_is_nothing_to_tell_of_short_waits_nor_twice(inbox: Inbox) -> None:
    queued_at = put(inbox, "job")
    assert not inbox.has_untold(queued_at + SECONDS_UNTIL_TOLD - 0.1)
    later = queued_at + SECONDS_UNTIL_TOLD + 0.1
    assert inbox.has_untold(later)
    inbox.tell_reasons({"job": "waits for room"}, later)
    assert not inbox.has_untold(later + 1)


def test_a_job_is_left_alone_for_a_while_whatever_the_clock_says(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    now = put(inbox, "job")
    inbox.hold("job", "no room on the disk")
    assert inbox.ready(now + 300) == [], "the clock was set forward"
    inbox.tell_reasons({}, now + 300)
    assert inbox.entries["job"].told == CANNOT_START
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert [job.token for job in inbox.ready(now - 300)] == ["job"], "the clock was set back"
