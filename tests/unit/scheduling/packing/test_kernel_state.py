"""What was compiled for another version of Lading."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lading.scheduling.packing.kernel_state import COMPILED

MODULE = """
from lading.scheduling.packing.kernel_state import loop

@loop
def twice(number):
    return 2 * number
"""


@pytest.mark.skipif(not COMPILED, reason="Numba is not installed: nothing is compiled")
def test_an_index_that_cannot_be_read_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(MODULE)
    command = [sys.executable, "-c", "from twice import twice; print(twice(21), dict(twice.stats.cache_hits))"]

    def run() -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert [run(), run()] == ["42 {}\n", "42 {(int64,): 1}\n"]
    [index] = tmp_path.rglob("*.nbi")
    with index.open("rb") as lines:
        version = pickle.load(lines)
    gone = b"clading.scheduling.packing.kernel_state\nNamedOtherwiseNow\n."
    index.write_bytes(pickle.dumps(version) + gone)
    assert run().startswith("42")
    index.write_bytes(b"half of")
    assert run().startswith("42")
