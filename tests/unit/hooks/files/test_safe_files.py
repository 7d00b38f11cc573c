"""Files that are closed to others, and read with care."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.executors.agent import running
from lading.executors.agent.supervisor import _redirect_output
from lading.executors.orchestrator.presence import Presence
from lading.hooks.api_tunnel.address import Address
from lading.hooks.cluster.allocations.layout import Claim
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.files.safe_files import (
    NotReadable,
    make_private,
    open_regular,
    private_opener,
    read_end,
    read_regular,
)
from lading.hooks.job_scripts.run_store import RunStore
from lading.hooks.polling.task_logs import LogCopies
from lading.hooks.spool.spool import JobFolder
from lading.plugin.serving import PrivateFileHandler
from tests.services import forked

Use = Callable[[Path], object]

USES: dict[str, tuple[str, Use]] = {
    "output of a job": ("output", lambda path: running._tail(JobFolder(path.parent))),
    "output of a job that starts": ("output", _redirect_output),
    "copy of a log": ("a.log", lambda path: LogCopies(path.parent, path.parent / "memory").add("t", "a.log", b"x")),
    "memory of logs": ("memory", lambda path: LogCopies(path.parent, path).tokens),
    "excluded nodes": ("nodes", lambda path: ExcludedNodes(60, path).reasons()),
    "state of a run": ("run.json", lambda path: RunStore(path.parent).load("run")),
    "states of runs": ("run.json", lambda path: RunStore(path.parent).living()),
    "claim that is made": ("t", lambda path: Claim("L1", "").make(path.parent, "t")),
    "claim that is being made": (".t.L1", lambda path: Claim("L1", "").make(path.parent, "t")),
    "claim that is dropped": ("t", lambda path: Claim("L1", "").drop(path.parent, "t")),
    "address of the API": ("address", Address.read),
}


@pytest.fixture(autouse=True)
def open_to_everybody() -> Iterator[None]:
    """The umask of an administrator who shares everything."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_and_those_above_it_that_were_missing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "state" / "spool")
    assert (mode(tmp_path), mode(tmp_path / "state"), mode(tmp_path / "state" / "spool")) == (0o755, 0o700, 0o700)


def test_a_folder_that_is_there_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o777)
    make_private(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700


def test_the_schedulers_folder(tmp_path: Path) -> None:
    presence = Presence(tmp_path / "state" / "schedulers", 7)
    presence.end()
    assert (mode(tmp_path / "state"), mode(tmp_path / "state" / "schedulers")) == (0o700, 0o700)
    assert mode(presence.path) == 0o600


def test_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab", opener=private_opener) as log:
        log.write(b"words")
    assert mode(tmp_path / "log") == 0o600


def test_the_controllers_log_and_those_before_it(tmp_path: Path) -> None:
    handler = PrivateFileHandler(tmp_path / "controller.log", maxBytes=10, backupCount=1)
    for _ in range(3):
        handler.emit(logging.makeLogRecord({"msg": "more than ten bytes"}))
    handler.close()
    assert [mode(path) for path in tmp_path.glob("controller.log*")] == [0o600, 0o600]


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    before = mode(tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(PermissionError, match=r"state belongs to user \w+.*use a folder of user 54321"):
        make_private(tmp_path / "state")
    assert mode(tmp_path / "state") == before


def test_what_a_controller_prints_goes_on_in_its_new_log(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"

    def controller() -> None:
        with path.open("ab") as output:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
        handler = PrivateFileHandler(path, maxBytes=100, backupCount=1)
        for number in range(3):
            os.write(2, b"printed %d\n" % number)
            handler.emit(logging.makeLogRecord({"msg": "x" * 90}))
        os.write(1, b"last words")

    forked.run(controller)
    assert path.read_text().endswith("last words")
    assert path.stat().st_size < 200


def outcome_of(use: Use, path: Path) -> object:
    """What came of using a file, an error too; a use that does not come to its end fails the test."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(use(path))
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    assert results, "it waits for a FIFO"
    return results[0]


@pytest.mark.parametrize("name", USES)
def test_nothing_waits_for_a_fifo(name: str, tmp_path: Path) -> None:
    file, use = USES[name]
    os.mkfifo(tmp_path / file)
    outcome = outcome_of(use, tmp_path / file)
    assert not outcome or isinstance(outcome, NotReadable)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT], ids=["read", "write"])
def test_what_is_no_file_is_not_opened(flags: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("secret")
    (tmp_path / "link").symlink_to("file")
    for name in ("fifo", "folder", "link"):
        with pytest.raises(NotReadable):
            open_regular(tmp_path / name, flags)


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"the beginning and the end")
    assert read_end(path, 3) == b"end"
    assert read_end(path, 100) == path.read_bytes()
    with pytest.raises(NotReadable, match="25 bytes"):
        read_regular(path, 3)
