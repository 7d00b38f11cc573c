"""Process trees, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.executors.agent import process_tree
from lading.executors.agent.process_tree import Process
from lading.hooks.files import host
from lading.hooks.spool.tokens import JOB_VARIABLE

PYTHON = sys.executable


def wait_until(happened: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start Python code in a session of its own and wait until it calls ``ready()``; all is killed in the end."""
    started: list[tuple[subprocess.Popen[bytes], int]] = []

    def start(code: str, **environment: str) -> subprocess.Popen[bytes]:
        ready = tmp_path / f"ready{len(started)}"
        prologue = f"import os, signal, sys, time\nready = lambda: open({str(ready)!r}, 'w').close()\n"
        process = subprocess.Popen(
            [PYTHON, "-c", prologue + code], start_new_session=True, env={**os.environ, **environment}
        )
        started.append((process, host.started(process.pid)))
        wait_until(ready.exists)
        return process

    yield start
    for process, ticks in started:
        process_tree.send(process_tree.tree(process.pid), signal.SIGKILL)
        process.wait()
        process_tree.kill_leftovers(process.pid, ticks, "no-token")


def test_a_process_is_read_whatever_its_name(run: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = run("import ctypes; ctypes.CDLL(None).prctl(15, b'a) R (b', 0, 0, 0); ready(); time.sleep(60)")
    found = Process.read(process.pid)
    assert found is not None
    assert (found.parent, found.session) == (os.getpid(), process.pid)
    assert found.alive


def test_the_dead_are_not_alive(run: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = run("ready()")
    started = host.started(process.pid)
    wait_until(lambda: not host.is_alive(process.pid, started))  # a zombie, which has not been waited for
    process.wait()
    assert Process.read(process.pid) is None
    with pytest.raises(ProcessLookupError):
        host.started(process.pid)


def test_a_pid_that_was_used_again_is_left_alone(run: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = run("ready(); time.sleep(60)")
    found = Process.read(process.pid)
    assert found is not None
    other = Process(found.pid, found.parent, found.session, "S", 0, found.started - 1, 0)
    process_tree.send([other], signal.SIGKILL)
    assert host.is_alive(process.pid, found.started)
    process_tree.send([found], signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_the_tree_holds_children_of_all_threads(run: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = run(
        "import subprocess, threading\n"
        "def work():\n"
        "    subprocess.Popen(['sleep', '60'])\n"
        "    ready()\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=work).start()"
    )
    assert len(process_tree.tree(process.pid)) == 2
    process_tree.kill_descendants(process.pid)
    assert [found.pid for found in process_tree.tree(process.pid)] == [process.pid]


def test_without_the_kernels_list_of_children_all_processes_are_searched(
    run: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run("os.fork() and ready(); time.sleep(60)")
    listdir = os.listdir

    def without_tasks(path: str) -> list[str]:
        if path.endswith("/task"):
            raise FileNotFoundError(path)
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(process_tree.os, "listdir", without_tasks)
        patch.setattr(process_tree.os.path, "exists", lambda path: False)
        assert len(process_tree.tree(process.pid)) == 2


def test_a_tree_that_forks_all_the_time_is_killed(run: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = run(
        "from lading.executors.agent import process_tree; process_tree.adopt_orphans()\n"
        "if os.fork() == 0:\n"
        "    for _ in range(200):\n"
        "        if os.fork(): os._exit(0)\n"  # each generation is an orphan at once
        "        time.sleep(0.002)\n"
        "    time.sleep(60)\n"
        "ready(); time.sleep(60)"
    )
    process_tree.kill_descendants(process.pid)
    assert process_tree.descendants(process.pid) == []


def test_leftovers_are_found_by_session_and_by_mark(
    run: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    process = run(
        "import subprocess\n"
        "same = subprocess.Popen(['sleep', '60'])\n"
        "other = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{same.pid}} {{other.pid}}')\n"
        "ready(); time.sleep(60)",
        **{JOB_VARIABLE: "some-token"},
    )
    started = host.started(process.pid)
    process.kill()
    process.wait()
    left = {found.pid for found in process_tree.leftovers(process.pid, started, "some-token")}
    assert left == set(map(int, pids.read_text().split()))
    assert len(process_tree.leftovers(process.pid, started, "another-token")) == 1
    process_tree.kill_leftovers(process.pid, started, "some-token")
    assert process_tree.leftovers(process.pid, started, "some-token") == []


def test_a_session_with_a_new_leader_of_the_same_pid_is_none_of_ours(
    run: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = run("ready(); time.sleep(60)")
    started = host.started(process.pid)
    assert process_tree.leftovers(process.pid, started - 1, "no-token") == []
