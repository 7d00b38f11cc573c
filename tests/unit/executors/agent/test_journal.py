"""The journals by themselves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lading.executors.agent import journal
from lading.executors.agent.journal import AgentJournal, JobJournal
from lading.hooks.spool.events import MOST_BYTES
from lading.hooks.spool.spool import Spool
from lading.scheduling.model.reasons import free_text

MOST = 50


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    monkeypatch.setattr(journal.AgentJournal, "most_remembered", MOST)
    spool = Spool(tmp_path)
    spool.create()
    return spool


def finish(each: AgentJournal, token: str) -> None:
    each.finished(token, at=1.0, cause=None, reason=None, cleanup=lambda: None)


def test_only_the_last_jobs_that_have_finished_are_kept_on_disk_too(spool: Spool) -> None:
    written, longest = AgentJournal(spool), 0
    for number in range(5 * MOST):
        finish(written, str(number))
        written.flush()
        longest = max(longest, len((spool.root / "finished").read_text().split()))
        if number % 70 == 0:
            written = AgentJournal(spool)  # another agent
    assert longest <= 2 * MOST
    for each in (written, AgentJournal(spool)):
        assert [each.has_finished(str(number)) for number in (4 * MOST - 1, 4 * MOST, 5 * MOST - 1)] == [
            False,
            True,
            True,
        ]


def test_the_journals_of_jobs_do_not_meet_and_lose_nothing_on_a_full_disk(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = JobJournal(spool, "a"), JobJournal(spool, "b")
    one.started("a", at=1.0, pid=1)
    with monkeypatch.context() as full:
        full.setattr(journal, "write_atomically", raising(OSError("no space left")))
        one.flush()
        assert one.pending
    other.started("b", at=1.0, pid=2)
    one.finished("a", at=2.0, cause=None, reason=None, cleanup=raising(AssertionError("the controller does")))
    for each in (one, other):
        each.flush()
        assert not each.pending
    told = [(event["event"], event["token"]) for _, events in spool.journal() for event in events]
    assert sorted(told) == [("finished", "a"), ("started", "a"), ("started", "b")]
    assert told.index(("started", "a")) < told.index(("finished", "a"))


def test_what_was_collected_for_long_comes_in_batches_that_can_be_read(spool: Spool) -> None:
    told = AgentJournal(spool)
    for number in range(2500):
        told.finished(str(number), at=1.0, cause="error", reason=free_text("x" * 10**5), cleanup=lambda: None)
    told.flush()
    batches = [[event["token"] for event in events] for _, events in spool.journal()]
    assert [len(batch) for batch in batches] == [1000, 1000, 500]
    assert list(itertools.chain(*batches)) == [str(number) for number in range(2500)]
    assert max(path.stat().st_size for path in spool.events.iterdir()) < MOST_BYTES


def test_a_name_that_is_none_of_ours_does_not_keep_a_journal_from_being_written(spool: Spool) -> None:
    (spool.events / ("9" * 200 + ".jsonl")).touch()
    (spool.root / "finished").symlink_to("/dev/zero")
    told = AgentJournal(spool)
    told.started("a", at=1.0, pid=1)
    told.flush()
    assert not told.pending
    [written] = [path.stem for path in spool.events.iterdir() if len(path.stem) == 12]
    told.started("b", at=1.0, pid=1)
    told.flush()
    assert (spool.events / f"{int(written) + 1:012}.jsonl").exists()


def test_no_name_of_a_batch_comes_back(spool: Spool) -> None:
    names = []
    for _ in range(2):
        told = AgentJournal(spool)
        told.started("a", at=1.0, pid=1)
        told.flush()
        [batch] = spool.events.iterdir()
        names.append(batch.name)
        batch.unlink()  # its reader has stored it
        time.sleep(0.02)
    assert names[0] < names[1]


def raising(error: Exception) -> Callable[..., None]:
    def fail(*args: object) -> None:
        raise error

    return fail
