"""A spool on another machine, for which this one stands with a shell of its own."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from lading.hooks.files import host
from lading.hooks.spool import remote
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh.answer import Answer, TransportError
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.ssh.steps import Put, Run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Spool(tmp_path / "spool").create()
    (tmp_path / "incoming").mkdir()
    return tmp_path


def ask(*steps: Run | Put) -> list[Answer]:
    return list(ShellTransport().exchange(list(steps)))


def test_jobs_are_brought_known_and_taken_back(root: Path) -> None:
    a, b, c = (str(uuid.uuid4()) for _ in range(3))
    (root / "spool/jobs" / b).mkdir()
    files = {f"incoming/given/{token}.json": b"{}" for token in (a, b, c)}
    put, placed, found = ask(Put(str(root), files), remote.place(str(root), ["given"]), remote.known(str(root)))
    assert (put.status, placed.status) == (0, 0)
    assert remote.read_known(found) == {a, b, c}
    assert sorted(path.stem for path in (root / "spool/inbox").iterdir()) == sorted([a, c]), "b has begun: never twice"
    [answer] = ask(remote.take_back(str(root), [a, b, "x"]))
    assert remote.taken_back(answer) == {a: "removed", b: "begun", "x": "absent"}
    (root / "spool/inbox/no token.json").touch()
    [found] = ask(remote.known(str(root)))
    assert remote.read_known(found) == {b, c}


@pytest.mark.parametrize("answer", [Answer(None), Answer(1, "a\n."), Answer(0, ""), Answer(0, "a.json\n")])
def test_an_answer_that_is_cut_says_nothing(answer: Answer) -> None:
    with pytest.raises(TransportError, match="not known"):
        remote.read_known(answer)
    with pytest.raises(TransportError, match="not known"):
        remote.read_pulse(answer)


def test_whether_an_agent_lives(root: Path) -> None:
    def lives(**identity: object) -> bool:
        (root / "spool/agent.json").write_text(json.dumps(identity, indent=1))
        [answer] = ask(remote.pulse(str(root)))
        found = remote.read_pulse(answer)
        assert found.boot_id == host.boot_id()
        return found.lives

    [answer] = ask(remote.pulse(str(root)))
    assert not remote.read_pulse(answer).lives, "none has begun"
    me = {"pid": os.getpid(), "started": host.started(os.getpid()), "boot_id": host.boot_id()}
    assert lives(**me)
    assert not lives(**{**me, "started": 1}), "another process has its number by now"
    assert not lives(**{**me, "boot_id": "before"})
    assert not lives(**{**me, "pid": 2**22 + 1})
    assert not lives(pid="x; touch /tmp/x")
    dead = subprocess.Popen(["true"])
    started = host.started(dead.pid)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(**{**me, "pid": dead.pid, "started": started}), "a zombie"
    dead.wait()
