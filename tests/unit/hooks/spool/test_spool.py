"""The folder through which a controller drives a node agent."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from lading.hooks.files.bell import Bell
from lading.hooks.files.safe_files import visible, write_atomically
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Envelope, Spool, lock_spool
from lading.hooks.spool.values import asked_reason
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Resources


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(tmp_path / "spool")
    spool.create()
    return spool


def envelope(token: str = "t-1") -> Envelope:
    return Envelope(token, {"token": "secret"}, Resources(cpus=0.5, memory=10), 20, None, 3, 1.5, 2.5)


def waiting(token: str) -> bytes:
    return json.dumps({"event": "waiting", "token": token, "reason": "in words"}).encode() + b"\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_envelope_arrives_as_it_was_sent_and_only_its_owner_can_read_it(spool: Spool) -> None:
    spool.put([envelope()])
    path = spool.envelope("t-1")
    assert Envelope.from_json(path.read_text()) == envelope()
    assert (mode(path), mode(spool.root), mode(spool.inbox)) == (0o600, 0o700, 0o700)


def test_an_existing_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir(mode=0o755)
    Spool(tmp_path / "spool").create()
    assert mode(tmp_path / "spool") == 0o700


def test_an_inbox_that_was_closed_is_opened_again_on_request_alone(spool: Spool) -> None:
    os.rename(spool.inbox, spool.closed)
    spool.create()
    assert not spool.inbox.exists()
    spool.create(reopens=True)
    assert spool.inbox.is_dir()


def test_nothing_half_written_is_left_or_seen(spool: Spool) -> None:
    write_atomically(spool.envelope("t-1"), "text")
    assert os.listdir(spool.inbox) == ["t-1.json"]


def test_whatever_is_in_the_way_of_a_write_is_there_once(tmp_path: Path) -> None:
    hidden = tmp_path / f".file.{os.getpid()}"
    (hidden / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "file", "text")
    os.mkfifo(hidden)
    with pytest.raises(OSError, match=r"device|reader"):
        write_atomically(tmp_path / "file", "text")
    hidden.symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        write_atomically(tmp_path / "file", "text")
    write_atomically(tmp_path / "file", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("text", ["a" * 2**24, "\ud800"], ids=["interrupted", "not encodable"])
def test_a_write_that_fails_halfway_leaves_nothing(tmp_path: Path, text: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises((KeyboardInterrupt, UnicodeEncodeError)):  # noqa: PT012 - the alarm may come between two
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while True:
                write_atomically(tmp_path / "file", text)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert {each.name for each in tmp_path.iterdir()} <= {"file"}


def test_the_journal_is_read_in_order_and_hidden_files_are_left_alone(spool: Spool) -> None:
    for number, token in ((2, "b"), (1, "a")):
        (spool.events / f"{number:012d}.jsonl").write_bytes(waiting(token))
    (spool.events / ".000000000003.jsonl.1").write_text("half")
    assert [event["token"] for _, events in spool.journal() for event in events] == ["a", "b"]


@pytest.mark.parametrize("torn", [b'{"token": "b"}\n{"tok', b"\0\0\0\0", b"\xff\xfe"])
def test_a_batch_that_a_power_cut_has_torn_is_set_aside(
    spool: Spool, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for number, content in enumerate([waiting("a"), torn, waiting("c")]):
        (spool.events / f"{number:012d}.jsonl").write_bytes(content)
    assert [event["token"] for _, events in spool.journal() for event in events] == ["a", "c"]
    assert [path.name for path in spool.rejected.iterdir()] == ["000000000001.jsonl"]
    assert "000000000001.jsonl" in caplog.text
    assert [path.name for path in visible(spool.events)] == ["000000000000.jsonl", "000000000002.jsonl"]


def test_what_is_set_aside_holds_no_secret(spool: Spool) -> None:
    jwt = "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJ0LTEifQ.c2lnbmF0dXJl_-x"
    for number, text in enumerate([f'{{"workload": {{"token": "{jwt}"}}, "bad"', f'{{"token": "{jwt[:30]}']):
        path = spool.envelope(f"t-{number}")
        write_atomically(path, text)
        RejectedFiles(spool.rejected).move(path, "it is damaged")
        kept = spool.rejected / path.name
        assert kept.read_text() == text.replace(jwt, "(a JWT)").replace(jwt[:30], "(a JWT)")
        assert (mode(kept), mode(spool.rejected)) == (0o600, 0o700)
        assert not path.exists()


def test_only_the_latest_of_what_was_set_aside_is_kept(spool: Spool) -> None:
    spool.rejected.mkdir()
    for number in range(100):
        (spool.rejected / f"old-{number}.json").touch()
        os.utime(spool.rejected / f"old-{number}.json", (number, number))
    spool.envelope("new").touch()
    RejectedFiles(spool.rejected).move(spool.envelope("new"), "it is damaged")
    names = {path.name for path in spool.rejected.iterdir()}
    assert len(names) == 100
    assert {"new.json", "old-1.json"} <= names
    assert "old-0.json" not in names


def test_ringing_without_an_agent_does_nothing_and_with_one_wakes_it(spool: Spool) -> None:
    spool.ring()
    bell = Bell(spool.bell).open()
    try:
        spool.ask_to_cancel({"t-1": free_text("because")})
        assert os.read(bell, 10) == b"!"
    finally:
        os.close(bell)
    assert asked_reason(spool.cancel("t-1").read_text()) == free_text("because")
    assert asked_reason("enough") == free_text("enough"), "text of a third party"
    assert asked_reason("") == because("cancelled")


@pytest.mark.parametrize("make", ["fifo", "folder", "link"])
def test_what_lies_where_the_lock_is_to_be_keeps_no_agent_from_beginning(
    spool: Spool, tmp_path: Path, make: str
) -> None:
    other = tmp_path / "other"
    {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(other, path)}[make](spool.lock)
    held = lock_spool(spool)
    assert held is not None
    assert os.path.samestat(os.fstat(held), spool.lock.lstat())
    os.close(held)
    assert not other.exists(), "no link is followed"
    assert len(list(spool.rejected.iterdir())) == 1


@pytest.mark.parametrize("token", ["../x", "a/b", "", ".hidden", "a" * 65, "a\n"])
def test_a_token_cannot_leave_the_folder(spool: Spool, token: str) -> None:
    with pytest.raises(ValueError, match="is not a token"):
        spool.envelope(token)
