"""The agent's journal by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.executors import journal
from lading.executors.journal import Journal
from lading.hooks.spool import Spool

MOST = 50


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    monkeypatch.setattr(journal, "REMEMBERED", MOST)
    spool = Spool(tmp_path)
    spool.create()
    return spool


def finish(each: Journal, token: str) -> None:
    each.finished(token, at=1.0, cause=None, message=None, cleanup=lambda: None)


def test_only_the_last_jobs_that_have_finished_are_remembered_on_disk_too(spool: Spool) -> None:
    written, longest = Journal(spool), 0
    for number in range(5 * MOST):
        finish(written, str(number))
        written.flush()
        longest = max(longest, len((spool.root / "finished").read_text().split()))
        if number % 70 == 0:
            written = Journal(spool)  # another agent
    assert longest <= 2 * MOST
    for each in (written, Journal(spool)):
        assert [each.has_finished(str(number)) for number in (4 * MOST - 1, 4 * MOST, 5 * MOST - 1)] == [
            False,
            True,
            True,
        ]
