"""A machine behind SSH, for which a folder of this one stands: what its answers lead to."""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.files.owner import Owner
from lading.hooks.machines import introduction, tracker
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.introduction import Introduction, MachineFacts, Residents
from lading.hooks.machines.machine import Machine
from lading.hooks.spool import server
from lading.hooks.spool.connection import Reply, _reply
from lading.hooks.spool.spool import Envelope, Spool
from lading.hooks.spool.values import asked_reason
from lading.hooks.ssh.answer import TransportError
from lading.hooks.ssh.local_transport import ShellTransport
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources
from tests.reasons import message_in

FACTS = MachineFacts("big", "first", "x86_64", "linux", Resources(8, 16000, 100))


class Here:
    """The machine's side: its folder is served in this process, without logging in.

    :param cut: after so many steps the connection is cut
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.boot_id = "first"
        self.lives = True
        self.cut: int | None = None

    def close(self) -> None:
        """There is nothing to close."""

    def ask(self, request: dict[str, Any]) -> Reply:
        steps: Sequence[Any] = server.STEPS[: self.cut]
        answer = server.exchange(self.root, json.loads(json.dumps(request)), steps)
        if self.cut is not None:
            self.cut = None
            raise TransportError("cut")
        return _reply(json.dumps({**answer, "boot_id": self.boot_id, "lives": self.lives}))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    config = SSHConfig(kind="ssh", hosts=({"ssh_conn_id": "lab1"},), work_dir=str(tmp_path), python="/p")  # type: ignore[arg-type]
    found = Machine("lab", config, config.hosts[0], ShellTransport(), "http://a/", tmp_path / "own", tmp_path / "logs")
    Spool(Path(found.root) / "spool").create()
    here: Any = Here(found.root)
    found.spool = here

    def introduce(*_: object) -> Introduction:
        return Introduction(replace(FACTS, boot_id=here.boot_id), 0.0, here.lives, False, None)

    monkeypatch.setattr(introduction, "introduce", introduce)
    yield found
    found.leave()


def give(machine: Machine, count: int = 1) -> list[str]:
    now = time.time()
    jobs = [Envelope(str(uuid.uuid4()), {}, Resources(1, 100), None, None, 0, now, now + 600) for _ in range(count)]
    machine.tracker.give(jobs)
    return [job.token for job in jobs]


def heard(machine: Machine) -> list[tuple[str, str, str | None]]:
    events = machine.event_buffer.unread()
    machine.acknowledge(len(events))
    return [(event["event"], event["token"], event.get("cause")) for event in events]


def inbox(machine: Machine) -> list[str]:
    return sorted(path.stem for path in (Path(machine.root) / "spool/inbox").iterdir())


@pytest.mark.parametrize("cut", range(len(server.STEPS) + 1))
def test_a_connection_that_is_cut_in_any_step_loses_nothing_and_repeats_nothing(machine: Machine, cut: int) -> None:
    machine.round()
    root = Path(machine.root)
    ended, begun = give(machine, 2)
    machine.round()
    for token in (ended, begun):
        (root / "spool/inbox" / f"{token}.json").rename(root / "spool/jobs" / token)
    end = {"event": "finished", "token": ended, "at": 1.0, "cause": None, "reason": None, "exit_code": 0}
    end |= {"peak_memory": None, "cpu_seconds": None}
    (root / "spool/events/1.jsonl").write_text(json.dumps(end))
    (root / "spool/jobs" / ended).unlink()
    [new] = give(machine)
    machine.tracker.ask_to_cancel({begun: free_text("not wanted")})
    here: Any = machine.spool
    here.cut = cut
    with pytest.raises(OSError, match="cut"):
        machine.round()
    assert machine.tracker.known() >= {new, begun}
    machine.round()
    assert heard(machine) == [("finished", ended, None)]
    assert inbox(machine) == [new]
    assert asked_reason((root / "spool/cancel" / begun).read_text()) == free_text("not wanted")
    machine.round()
    assert not list((root / "spool/events").iterdir()), "what is stored goes"
    assert machine.tracker.known() == {new, begun}
    assert heard(machine) == []


def test_a_machine_that_was_started_anew_without_its_folder(machine: Machine) -> None:
    machine.round()
    waits, runs = give(machine, 2)
    machine.round()
    machine.tracker.read({"event": "started", "token": runs})
    for path in (Path(machine.root) / "spool/inbox").iterdir():
        path.unlink()
    here: Any = machine.spool
    here.boot_id = "second"
    machine.round()  # in which that is noticed
    machine.round()
    assert heard(machine) == [("returned", waits, None), ("finished", runs, "node_failure")]
    machine.round()
    assert machine.tracker.known() == frozenset()


def test_jobs_of_an_agent_that_does_not_come_up_wait_elsewhere(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.round()
    [token] = give(machine)
    here: Any = machine.spool
    here.lives = False
    machine.round()
    machine.round()
    assert inbox(machine) == [token]
    monkeypatch.setattr(tracker, "SECONDS_UNTIL_RETURNED", -1.0)
    machine.round()
    assert inbox(machine) == []
    assert heard(machine) == [("returned", token, None)]
    assert machine.tracker.known() == frozenset()
    machine.round()
    assert not list((Path(machine.root) / "spool/returned").iterdir())


def test_one_machine_is_not_filled_twice() -> None:
    residents = Residents()
    assert residents.enter("a", "x", is_bounded=False) is None
    assert residents.enter("b", "y", is_bounded=False) is None
    assert "it is the same machine as a" in str(residents.enter("c", "x", is_bounded=True))
    assert residents.enter("a", "x", is_bounded=True) is None, "its table was changed"
    assert residents.enter("c", "x", is_bounded=True) is None
    residents.leave("a")
    assert "the same machine as c" in str(residents.enter("a", "x", is_bounded=False))


def test_a_folder_that_becomes_read_only_holds_jobs_up_and_loses_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.round()
    with monkeypatch.context() as patch:

        def fail(path: str, text: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

        patch.setattr(server, "_write", fail)
        [token] = give(machine)
        machine.tracker.ask_to_cancel({"a": free_text("not wanted")})
        machine.round()
        assert "could not be written" in str(machine.note)
        assert "Read-only" in str(machine.note)
        assert machine.tracker.known() == {token, "a"}
    machine.round()
    assert (machine.note, inbox(machine)) == (None, [token])
    assert (Path(machine.root) / "spool/cancel/a").exists()


def test_a_machine_that_is_abandoned_takes_nothing_more_and_is_empty_in_the_end(machine: Machine) -> None:
    machine.round()
    runs, waits = give(machine, 2)
    machine.round()
    root = Path(machine.root) / "spool"
    (root / f"inbox/{runs}.json").rename(root / "jobs" / runs)
    machine.is_closing = True
    [late] = give(machine)
    machine.round()
    assert not (root / "inbox").exists()
    assert not machine.is_empty
    assert heard(machine) == [("returned", late, None), ("returned", waits, None)]
    with pytest.raises(FileNotFoundError):
        server._write(f"{root}/inbox/{late}.json", "of a controller that hung")
    end = {"event": "finished", "token": runs, "at": 1.0, "cause": None, "reason": None, "exit_code": 0}
    (root / "events/1.jsonl").write_text(json.dumps({**end, "peak_memory": None, "cpu_seconds": None}))
    (root / "jobs" / runs).unlink()
    machine.round()
    assert not machine.is_empty, "its end is not stored"
    assert heard(machine) == [("finished", runs, None)]
    machine.round()
    machine.round()
    assert machine.is_empty


def test_jobs_that_cannot_begin_on_a_full_disk_say_so_and_wait_elsewhere_in_the_end(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.round()
    [token] = give(machine)
    machine.round()
    assert (inbox(machine), machine.note) == ([token], None)
    written = server._write

    def fail(path: str, text: str) -> None:
        if text:  # an empty file takes no room
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        written(path, text)

    monkeypatch.setattr(server, "_write", fail)
    machine.round()
    assert "No space left" in str(machine.note)
    [said] = machine.event_buffer.unread()
    assert (said["event"], said["token"]) == ("waiting", token)
    assert "No space left" in message_in(said)
    machine.acknowledge(1)
    machine.round()
    assert heard(machine) == [], "it is said once"
    monkeypatch.setattr(tracker, "SECONDS_UNTIL_RETURNED", 0.0)
    machine.round()
    assert heard(machine) == [("returned", token, None)]
    assert "No space left" in str(machine.note), "it is tried until it works again"
    monkeypatch.setattr(server, "_write", written)
    machine.round()
    assert machine.note is None


def test_a_disk_is_tried_only_where_jobs_wait_and_none_begins(machine: Machine) -> None:
    asked: list[bool] = []
    ask = machine.spool.ask

    def note(request: dict[str, Any]) -> Reply:
        asked.append(request["probe"])
        return ask(request)

    machine.spool.ask = note  # type: ignore[method-assign, assignment]
    machine.round()
    tokens = give(machine, 2)
    for begins in (None, None, tokens[0], None, None, tokens[1], None):
        if begins is not None:
            root = Path(machine.root) / "spool"
            (root / f"inbox/{begins}.json").rename(root / "jobs" / begins)
        machine.round()
    assert asked == [False, False, True, True, False, True, True, False]


def test_a_machine_s_folder_of_another_deployment_is_left_alone(machine: Machine) -> None:
    spool = Spool(Path(machine.root) / "spool")
    (spool.events / "1.jsonl").write_text("{}\n")
    server.claim(machine.root, ["0123456789ab"], "https://airflow.example.org")
    machine.owner = Owner(["ba9876543210"], "http://laptop:8080")
    give(machine)
    for shut_down in (False, True):
        if shut_down:
            machine.shut_down("cancel")
        with pytest.raises(
            OSError, match=r"another deployment of Lading, https://airflow\.example\.org .*http://laptop:8080"
        ):
            machine.round()
    assert (heard(machine), inbox(machine)) == ([], [])
    assert (spool.events / "1.jsonl").exists()
    assert not spool.shutdown.exists()
