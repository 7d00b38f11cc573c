"""What runs on a machine for commands needs the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lading.executors

MODULES = (
    "lading.executors.agent.agent",
    "lading.executors.agent.allocation_agent",
    "lading.executors.agent.batch_job",
    "lading.executors.agent.tasks.command_runner",
    "lading.executors.agent.tasks.inside",
    "lading.executors.host",
)


def test_a_node_agent_for_commands_is_imported_by_a_python_that_has_nothing_else(tmp_path: Path) -> None:
    [executors] = lading.executors.__path__
    (tmp_path / "lading").symlink_to(Path(executors).parent)
    program = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
for name in {MODULES!r}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
