"""The engine where Airflow is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Airflow's alone: its task runner, and what reads its tables.
PROGRAM = """
import importlib, pkgutil, sys

class NoAirflow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "airflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoAirflow())
AIRFLOWS = ("lading.executors.agent.tasks.", "lading.executors.orchestrator.airflow_")
ROOMS = ("agent", "controller", "forecast", "gangs", "locality", "orchestrator", "sizing", "store")
roots = ["lading.hooks", "lading.operators.staged", *(f"lading.executors.{room}" for room in ROOMS)]
roots.append("lading.executors.migrations.versions")
modules = ["lading.executors.host", "lading.executors.columns", "lading.executors.settings", "lading.plugin.serving"]
modules += [f"lading.plugin.subcommands.{each}" for each in ("jobs", "sites", "cost", "explain", "top")]
for root in roots:
    path = getattr(importlib.import_module(root), "__path__", ())
    modules += [each.name for each in pkgutil.walk_packages(path, f"{root}.")]
for module in modules:
    if not module.startswith(AIRFLOWS):
        importlib.import_module(module)
print(len(modules))
"""


def test_controller_store_agent_and_hooks_are_imported_without_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 250, "all rooms were looked through"
