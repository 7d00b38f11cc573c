"""Files that tasks and accounts at sites can replace by something else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lading.executors.agent import running
from lading.executors.agent.supervisor import _redirect_output
from lading.hooks.api_tunnel.address import Address
from lading.hooks.cluster.allocations.layout import Claim
from lading.hooks.cluster.jobs.excluded_nodes import ExcludedNodes
from lading.hooks.files.regular_file import NotReadable, open_regular, read_end, read_regular
from lading.hooks.job_scripts.run_store import RunStore
from lading.hooks.spool.log_mirror import LogCopies
from lading.hooks.spool.spool import JobFolder

Use = Callable[[Path], object]


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


@pytest.mark.parametrize("name", USES)
def test_nobody_waits_for_a_fifo(name: str, tmp_path: Path) -> None:
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
