"""What a task can tell about its job script, and the marks in the folders of runs, with a real shell."""

from __future__ import annotations

from typing import Any

import pytest

from lading.hooks.batch.script_jobs import ScriptRequest
from lading.scheduling.hints.native import is_one_line


@pytest.mark.parametrize(
    "found",
    [
        {"site": "a\0b"},
        {"site": ""},
        {"site": "hpc\n"},
        {"site": "h" * 65},
        {"site": "../hpc"},
        {"site": 1},
        {"site": "hpc", "queue": "a\0b"},
        {"site": "hpc", "queue": ""},
        {"site": "hpc", "queue": "q" * 251},
        {"site": "hpc", "queue": "\ud800"},
        {"site": "hpc", "nodes": 0},
        {"site": "hpc", "ppn": 2**31},
        {"site": "hpc", "threads": True},
        {"site": "hpc", "mem": float("inf")},
        {"site": "hpc", "mem": float("nan")},
        {"site": "hpc", "time": 1.0},
        {},
        None,
    ],
)
def test_a_request_that_no_script_can_have_is_refused(found: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|missing|characters|surrogates|have"):
        ScriptRequest.from_json(found)


def test_a_request_is_read_as_it_was_written() -> None:
    asked = ScriptRequest(site="hpc@hpc_genomics", nodes=2**31 - 1, queue="short,workq@server é")
    assert ScriptRequest.from_json(asked.to_json()) == asked


def test_a_queue_is_one_line_as_in_a_hint() -> None:
    for character in map(chr, range(0x3000)):
        try:
            ScriptRequest.from_json({"site": "hpc", "queue": character})
        except ValueError:
            assert not is_one_line(character)
        else:
            assert is_one_line(character)
