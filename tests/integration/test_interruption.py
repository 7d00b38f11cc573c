"""Tests that are interrupted leave no service behind, however long its end takes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.services import processes

ROOT = Path(__file__).resolve().parents[2]
# The services are stopped after more time than pytest-xdist and what it rests on allow.
TESTS = """
import subprocess, time
from pathlib import Path

import pytest

from tests.services.postgres import Postgres

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def slow():
    process = subprocess.Popen(["sleep", "600"], cwd=HERE, start_new_session=True)
    yield
    time.sleep(17)
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def postgres():
    with Postgres() as server:
        yield server


@pytest.mark.parametrize("number", [1, 2, 3])
def test_something(slow, postgres, number):
    (HERE / f"folder{number}").write_text(str(postgres.folder))
    (HERE / f"begun{number}").touch()
    time.sleep(600)
"""


@contextlib.contextmanager
def interrupted(folder: Path, sent: signal.Signals, *, whole_group: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Tests in three processes, which are sent a signal when all their services run."""
    folder.mkdir()
    (folder / "test_services.py").write_text(TESTS)
    options = ["-n", "3", "--dist", "load", "-p", "tests.services.workers", "-p", "no:cacheprovider", "-c", os.devnull]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert processes.wait_until(lambda: len(list(folder.glob("begun*"))) == 3, 120), "the tests have begun"
        if whole_group:
            os.killpg(process.pid, sent)  # as a terminal does
        else:
            process.send_signal(sent)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        processes.kill(left_of(folder))


def left_of(folder: Path) -> list[processes.Process]:
    """What runs in the folder, or in that of one of its servers."""
    servers = [Path(path.read_text()) for path in folder.glob("folder*")]
    return [process for each in (folder, *servers) for process in processes.belonging(each, ())]


def test_ctrl_c_and_a_signal_to_the_main_process_alone_leave_no_service_behind(tmp_path: Path) -> None:
    alone, together, ended = (tmp_path / name for name in ("alone", "together", "ended"))
    with (
        interrupted(alone, signal.SIGINT) as first,
        interrupted(together, signal.SIGINT, whole_group=True) as second,
        interrupted(ended, signal.SIGTERM) as third,
    ):
        for process in (first, second, third):
            printed, _ = process.communicate(timeout=600)
            assert process.returncode == 2, printed
        for each in (alone, together, ended):
            assert left_of(each) == []
            assert not any(Path(path.read_text()).exists() for path in each.glob("folder*"))
