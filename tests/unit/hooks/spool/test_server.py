"""The program that serves a spool on another machine, here without a connection."""

from __future__ import annotations

import binascii
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lading.hooks.files import host
from lading.hooks.files.bell import Bell
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool import connection, server
from lading.hooks.spool.spool import Spool
from tests.services.outside_clocks import off


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Spool(tmp_path / "spool").create()
    return tmp_path


def ask(root: Path, **request: Any) -> dict[str, Any]:
    return server.exchange(str(root), {"most": 100, **request}, server.STEPS)


def some(count: int) -> list[str]:
    return sorted(str(uuid.uuid4()) for _ in range(count))


def test_jobs_are_brought_and_none_that_has_begun(root: Path) -> None:
    waits, begun, new = some(3)
    (root / "spool/jobs" / begun).mkdir()
    (root / "spool/inbox" / f"{waits}.json").write_text("old")
    found = ask(
        root,
        give={new: ["{}", "dag/1.log"], begun: ["{}", ""]},
        renew={waits: "fresh", begun: "fresh", str(uuid.uuid4()): "came too late"},
        cancel={begun: "over"},
    )
    assert sorted(path.stem for path in (root / "spool/inbox").iterdir()) == sorted([waits, new])
    assert (root / "spool/inbox" / f"{waits}.json").read_text() == "fresh"
    assert found["known"] == sorted([waits, begun, new])
    assert set(found["waiting"]) == {waits, new}
    assert (root / "spool/cancel" / begun).read_text() == "over"
    assert (root / "spool/inbox" / f"{new}.json").stat().st_mode & 0o777 == 0o600
    assert ask(root, found=True)["found"] == {new: "dag/1.log"}


def test_what_does_not_begin_is_taken_back_and_reported_until_that_is_stored(root: Path) -> None:
    waits, begun = some(2)
    (root / "spool/inbox" / f"{waits}.json").write_text("{}")
    (root / "spool/jobs" / begun).mkdir()
    for request in ({"recall": [waits, begun, "x"]}, {}):
        found = ask(root, **request)
        assert (found["returned"], found["waiting"]) == ([waits], [])
        assert set(found["known"]) == {waits, begun}, "it is known until then"
    assert ask(root, remove=[f"spool/returned/{waits}.json"])["known"] == [begun]


def test_events_come_once_in_order_and_no_more_than_can_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_FILES", 2)
    monkeypatch.setattr(server, "LARGEST", 5)
    events = root / "spool/events"
    for name, content in {"1": "a", "2": "b", "3": "c", "4": "larger", ".5": "half"}.items():
        (events / name).write_text(content)
    os.mkfifo(events / "0")
    first = ask(root)
    assert {name: binascii.a2b_base64(text) for name, text in first["events"].items()} == {"1": b"a", "2": b"b"}
    assert (list(first["left_out"]), first["more"]) == (["0"], True)
    second = ask(root, seen=["1", "2"], remove=["spool/events/1"])
    assert (list(second["events"]), list(second["left_out"]), second["more"]) == (["3"], ["0", "4"], False)
    assert not (events / "1").exists()


def test_logs_are_read_from_an_offset(root: Path) -> None:
    (root / "logs/a").mkdir(parents=True)
    (root / "logs/a/1.log").write_bytes(b"hello\xff" * 100)
    os.mkfifo(root / "logs/a/2.log")
    found = ask(root, logs=[["logs/a/1.log", 5], ["logs/a/2.log", 0], ["logs/a/3.log", 0]], most=7)["logs"]
    assert (binascii.a2b_base64(found[0]), found[1:]) == (b"\xffhello\xff", [None, None])


def test_what_cannot_be_written_is_said_and_the_rest_is_done(root: Path) -> None:
    """A folder in the place of a file is what stops root, too."""
    [token] = some(1)
    (root / "spool/shutdown").mkdir()
    (root / "spool/shutdown/full").touch()
    found = ask(root, give={token: ["{}", ""]}, shutdown="cancel")
    assert "shutdown" in found["fault"]
    assert found["known"] == [token]
    assert [path.name for path in (root / "spool").glob(".*")] == [], "nothing half written stays"


def test_a_spool_that_is_gone_is_no_spool_without_jobs(tmp_path: Path) -> None:
    found = ask(tmp_path)
    assert "No such file" in found["failed"]
    assert "known" not in found


def test_whether_an_agent_lives(root: Path) -> None:
    def lives(**identity: object) -> bool:
        (root / "spool/agent.json").write_text(json.dumps(identity, indent=1))
        found = ask(root)
        assert found["boot_id"] == host.boot_id()
        return bool(found["lives"])

    assert not ask(root)["lives"], "none has begun"
    me = {"pid": os.getpid(), "started": host.started(os.getpid()), "boot_id": host.boot_id()}
    assert lives(**me)
    assert not lives(**{**me, "started": 1}), "another process has its number by now"
    assert not lives(**{**me, "boot_id": "before"})
    assert not lives(**{**me, "pid": 2**22 + 1})
    assert not lives(pid="x")
    dead = subprocess.Popen(["true"])
    started = host.started(dead.pid)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(**{**me, "pid": dead.pid, "started": started}), "a zombie"
    dead.wait()


def test_an_agent_is_woken_for_what_it_has_to_do_or_to_know_that_it_is_needed(root: Path) -> None:
    def rings(**request: object) -> bool:
        ask(root, **request)
        try:
            return os.read(bell, 10) == b"!"
        except BlockingIOError:
            return False

    bell = Bell(root / "spool/bell").open()
    try:
        assert rings(), "without jobs it ends when there are no requests"
        (token,) = some(1)
        assert rings(give={token: ["{}", ""]})
        assert not rings(seen=["1"], remove=["spool/events/1"])
        assert all(rings(**{name: asked}) for name, asked in (("cancel", {token: ""}), ("drops", True)))
    finally:
        os.close(bell)


def test_it_is_sent_as_it_is_says_when_there_is_news_and_ends_with_its_input(root: Path) -> None:
    options, program = connection.program(str(root))
    (root / "spool/jobs" / some(1)[0]).mkdir()
    (root / "spool/inbox/.torn").touch()
    os.utime(root / "spool/inbox/.torn", (1, 1))
    with subprocess.Popen([sys.executable, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(program + b'{"most": 1}\n')
        process.stdin.flush()
        answer = json.loads(process.stdout.readline().removeprefix(server.ANSWER.encode()))
        assert (answer["events"], answer["kept"], answer.get("failed")) == ({}, [], None)
        assert not (root / "spool/inbox/.torn").exists()
        (root / "spool/events/.1").write_text("half")
        os.rename(root / "spool/events/.1", root / "spool/events/1")
        assert process.stdout.readline() == server.NEWS.encode() + b"\n"
        write_atomically(root / "spool/events/2", "{}")
        time.sleep(3 * server.INTERVAL)
        process.stdin.write(b'{"most": 1}\n')
        process.stdin.flush()
        line = process.stdout.readline()
        assert line.startswith(server.ANSWER.encode()), "news is announced once, until it is read"
        assert json.loads(line.removeprefix(server.ANSWER.encode()))["events"].keys() == {"1", "2"}
        write_atomically(root / "spool/ends_at", "1700000000\n")
        assert process.stdout.readline() == server.NEWS.encode() + b"\n"
        process.stdin.write(b'{"most": 1}\n')
        process.stdin.flush()
        answer = json.loads(process.stdout.readline().removeprefix(server.ANSWER.encode()))
        assert answer["ends_at"] == 1_700_000_000
        process.stdin.close()
        assert process.wait(120) == 0


@off
def test_news_of_the_moment_of_the_last_look_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """A folder that changes twice within a tick of the clock that dates it, a file server's, changes its time once."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: clock.now))
    seen, events = server._Seen(str(root)), root / "spool/events"
    stamp = time.time_ns() + int(ahead * 1e9)
    (events / "1").write_text("{}")
    os.utime(events, ns=(stamp, stamp))
    assert seen.may_have_changed()
    (events / "2").write_text("{}")
    os.utime(events, ns=(stamp, stamp))
    clock.now += 2 * server.INTERVAL + server.CLOCK_TICK
    assert seen.may_have_changed(), "it has looked within that tick"
    clock.now += server.INTERVAL
    assert not seen.may_have_changed(), "it has looked since, and nothing has changed"
    os.utime(events, ns=(stamp + 1, stamp + 1))
    assert seen.may_have_changed()


@off
def test_what_is_being_written_is_not_torn_whatever_clock_dates_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda: time.time() - ahead, monotonic=time.monotonic))
    young, old = root / "spool/events/.1", root / "spool/events/.2"
    stamp = time.time()
    for path, age in ((young, 3600.0 - 60), (old, 3600.0 + 60)):
        path.write_text("{}")
        os.utime(path, (stamp - age, stamp - age))
    server._remove_torn(str(root))
    assert (young.exists(), old.exists()) == (True, False)
    assert not [name for name in os.listdir(root / "spool") if name.startswith(".now")]


def test_a_request_may_be_cut_after_any_step_and_repeated(root: Path) -> None:
    """What was given is there once, what was taken back is known, and no event is gone, whatever was done of it."""
    for cut in range(len(server.STEPS) + 1):
        given, stuck = some(2)
        (root / "spool/inbox" / f"{stuck}.json").write_text("{}")
        (root / "spool/events" / f"{cut}").write_text(f"{time.time()}\n")
        request = {"most": 1, "give": {given: ["{}", ""]}, "recall": [stuck], "remove": ["spool/events/no"]}
        server.exchange(str(root), request, server.STEPS[:cut])
        if cut % 2:  # the agent may have begun it meanwhile
            os.makedirs(root / "spool/jobs" / given)
            (root / "spool/inbox" / f"{given}.json").unlink(missing_ok=True)
        found = server.exchange(str(root), request, server.STEPS)
        assert {given, stuck} <= set(found["known"])
        assert (given in found["waiting"]) == (not cut % 2)
        assert stuck in found["returned"]
        assert f"{cut}" in found["events"]


@pytest.mark.parametrize("said", ["", "soon", "nan", "-1", "1e300", "1" * 200])
def test_an_end_that_makes_no_sense_is_none_and_spoils_nothing(root: Path, said: str) -> None:
    """Any task can write the file."""
    (root / "spool/ends_at").write_text(said)
    reply = connection._reply(json.dumps(ask(root)))
    assert reply.ends_at is None
