"""The site of kind local: whether its node agent lives."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lading.hooks import machine
from lading.hooks.local import LocalConfig, LocalSite


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
    me = {"pid": os.getpid(), "started": machine.started(os.getpid()), "boot_id": machine.boot_id()}
    site.spool.identity.write_text(json.dumps({**me, **changed}))
    assert site._agent_lives() is lives
