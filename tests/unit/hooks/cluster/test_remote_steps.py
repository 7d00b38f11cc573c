"""A spool on another machine, for which this one stands with a shell of its own."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lading.hooks.cluster.jobs import remote_steps
from lading.hooks.spool.spool import Spool
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.local_transport import ShellTransport
from lading.hooks.ssh.steps import Put, RunCommand


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Spool(tmp_path / "spool").create()
    (tmp_path / "incoming").mkdir()
    return tmp_path


def ask(*steps: RunCommand | Put) -> list[CommandResult]:
    return list(ShellTransport().exchange(list(steps)))


def test_jobs_are_brought_known_and_taken_back(root: Path) -> None:
    a, b, c = (str(uuid.uuid4()) for _ in range(3))
    (root / "spool/jobs" / b).mkdir()
    files = {f"incoming/given/{token}.json": b"{}" for token in (a, b, c)}
    put, placed = ask(Put(str(root), files), remote_steps.place_envelopes(str(root), ["given"]))
    assert (put.status, placed.status) == (0, 0)
    assert sorted(path.stem for path in (root / "spool/inbox").iterdir()) == sorted([a, c]), "b has begun: never twice"
    [answer] = ask(remote_steps.take_envelopes_back(str(root), [a, b, "x"]))
    assert remote_steps.envelopes_taken_back(answer) == {a: "removed", b: "begun", "x": "absent"}


def test_other_output_is_ignored_when_jobs_are_taken_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "bin"
    folder.mkdir()
    (folder / "rm").write_text('#!/bin/sh\necho one; echo two words; echo three whole words\nexec /bin/rm -v "$@"\n')
    (folder / "rm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    a = str(uuid.uuid4())
    (root / f"spool/inbox/{a}.json").touch()
    [answer] = ask(remote_steps.take_envelopes_back(str(root), [a, "x"]))
    assert "three whole words" in answer.stdout
    assert remote_steps.envelopes_taken_back(answer) == {a: "removed", "x": "absent"}
