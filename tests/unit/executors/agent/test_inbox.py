"""The agent's inbox by itself."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lading.executors.agent.inbox import CANNOT_START, SECONDS_UNTIL_REPORTED, Inbox
from lading.executors.agent.journal import AgentJournal
from lading.hooks.spool.spool import Envelope, Spool
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.queueing import KEPT_FREE
from tests.services.outside_clocks import off


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    spool = Spool(tmp_path)
    spool.create()
    return Inbox(spool, AgentJournal(spool), lambda token: False)


def put(inbox: Inbox, token: str) -> float:
    """Leave a job; returns when it was queued."""
    now = time.time()
    inbox.spool.put([Envelope(token, {}, Resources(1, 64), None, None, 1, now, now + 600)])
    inbox.refresh()
    return now


def test_there_is_nothing_to_tell_of_short_waits_nor_twice(inbox: Inbox) -> None:
    queued_at = put(inbox, "job")
    assert not inbox.has_unreported(queued_at + SECONDS_UNTIL_REPORTED - 0.1)
    later = queued_at + SECONDS_UNTIL_REPORTED + 0.1
    assert inbox.has_unreported(later)
    inbox.report_reasons({"job": KEPT_FREE}, later)
    assert not inbox.has_unreported(later + 1)


def test_a_new_jwt_leaves_a_job_its_turn(inbox: Inbox) -> None:
    now = time.time()
    given = Envelope("job", {}, Resources(1, 64), None, None, 1, now, now + 600, turn=3.0)
    other = replace(given, token="other", turn=4.0)
    inbox.spool.put([given, other])
    inbox.refresh()
    inbox.spool.put([replace(given, expires_at=now + 1200, turn=5.0)])
    inbox.refresh()
    assert inbox.entries["job"].expires_at == now + 1200
    assert [job.token for job in inbox.ready(now)] == ["job", "other"]


def test_a_job_is_left_alone_for_a_while_whatever_the_clock_says(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    now = put(inbox, "job")
    inbox.hold("job", "no room on the disk")
    assert inbox.ready(now + 300) == [], "the clock was set forward"
    inbox.report_reasons({}, now + 300)
    assert inbox.entries["job"].reported == CANNOT_START
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert [job.token for job in inbox.ready(now - 300)] == ["job"], "the clock was set back"


@off
def test_what_comes_within_a_tick_of_a_file_servers_clock_is_seen(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """It dates the folder, and two changes may have one date; a folder that rests is not read again and again."""
    now, reads = [1000.0], []
    find = inbox._found

    def found() -> dict[str, int]:
        reads.append(now[0])
        return find()

    monkeypatch.setattr(inbox, "_found", found)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stamp = time.time_ns() + int(ahead * 1e9)
    for token in ("a", "b"):
        inbox.spool.put([Envelope(token, {}, Resources(1, 64), None, None, 1, 5.0, 2e9)])
        os.utime(inbox.spool.inbox, ns=(stamp, stamp))
        inbox.refresh()
        assert token in inbox.entries
    now[0] += 2 * 0.1
    for _ in range(9):
        inbox.refresh()
    assert len(reads) == 3
