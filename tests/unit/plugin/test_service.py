"""The controller as a process that fails to start."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.executors.controller_process import last_line
from lading.plugin import service, serving


@pytest.fixture
def own_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ``serve`` does to its process is undone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", os.environ.get("_AIRFLOW_PROCESS_CONTEXT", ""))
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_log")
def test_of_a_wrong_sites_file_the_last_lines_say_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sites.toml").write_text('[sites.a]\nkind = "cloud9"\n')
    monkeypatch.setenv("AIRFLOW__LADING__SITES_FILE", str(tmp_path / "sites.toml"))
    monkeypatch.setenv("AIRFLOW__LADING__STATE_FOLDER", str(tmp_path / "state"))
    monkeypatch.setattr(service, "ensure_tables", lambda: None)
    with pytest.raises(SystemExit) as ended:
        service.serve(managed=True)
    assert ended.value.code == 1
    last = last_line(tmp_path / "state/controller.log")
    assert "[sites.a] kind = 'cloud9' is unknown; the kinds are: ec2, local" in last
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize("daemon", [False, True])
def test_a_thread_that_hangs_does_not_keep_the_process(daemon: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(serving, "end_at_once", ended.append)
    goes_on = threading.Event()
    others = [each for each in threading.enumerate() if not each.daemon]
    monkeypatch.setattr(threading, "main_thread", lambda: others[0])
    thread = threading.Thread(target=goes_on.wait, daemon=daemon)
    thread.start()
    serving.end_in_spite_of_threads()
    goes_on.set()
    thread.join()
    assert ended == ([] if daemon and len(others) == 1 else [0])
