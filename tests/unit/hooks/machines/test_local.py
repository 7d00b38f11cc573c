"""The site of kind local: whether its node agent lives."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lading.hooks.files import host
from lading.hooks.files.bell import Bell
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.spool import server


@pytest.mark.parametrize("name", ["config.json", "shutdown", "agent.log"])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "fifo"])
def test_what_lies_in_the_place_of_a_file_is_out_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None]
) -> None:
    site = LocalSite("local", LocalConfig(), tmp_path / "spools" / "local")
    site.spool.create()
    make(site.folder / name)
    with subprocess.Popen(["sleep", "60"]) as agent:
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: agent)
        try:
            site.observe()
        finally:
            agent.kill()
    assert site.spool.config.is_file()
    assert not site.spool.shutdown.exists()
    assert site.spool.log.is_file()


@pytest.mark.parametrize(
    ("changed", "lives"),
    [({}, True), ({"boot_id": "of-another-machine"}, False), ({"started": 1}, False), ({"pid": 2**22 + 1}, False)],
    ids=str,
)
def test_an_agent_lives_that_is_a_process_of_this_machine(
    tmp_path: Path, changed: dict[str, object], lives: bool
) -> None:
    """Another machine that shares the folder has processes of the same numbers."""
    site = LocalSite("local", LocalConfig(), tmp_path)
    site.spool.create()
    me = {"pid": os.getpid(), "started": host.started(os.getpid()), "boot_id": host.boot_id()}
    site.spool.identity.write_text(json.dumps({**me, **changed}))
    assert site.agent_host.lives() is lives


def test_the_folder_of_another_deployment_is_left_alone(tmp_path: Path) -> None:
    site = LocalSite("local", LocalConfig(), tmp_path / "spools" / "local")
    assert list(site.checks()) == []
    assert not site.folder.exists(), "a look marks nothing"
    site.spool.create()
    server.claim(str(site.folder), ["0123456789ab"], "https://airflow.example.org")
    with pytest.raises(OSError, match="another deployment of Lading") as caught:
        site.observe()
    for words in ("https://airflow.example.org (0123456789ab)", site._owner.name, "a [lading] state_folder of its own"):
        assert words in str(caught.value)
    [found] = site.checks()
    assert (found.good, str(caught.value) in found.message) == (False, True)
    site.close("cancel", 1.0)
    assert not site.spool.shutdown.exists(), "its agent goes on"
    assert not site.spool.config.exists()


def test_an_agent_ends_within_a_minute_after_its_controller_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = LocalSite("local", LocalConfig(), tmp_path / "spools" / "local")
    monkeypatch.setattr(site.agent_host, "lives", lambda: True)
    site.observe()
    assert 0 < json.loads(site.spool.config.read_text())["idle_seconds"] < 60
    bell = Bell(site.spool.bell).open()
    try:
        site.next_ring = 0.0  # the time has come
        site.observe()
        assert os.read(bell, 10), "a controller that lives keeps it"
    finally:
        os.close(bell)
