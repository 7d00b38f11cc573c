"""A plugin of pytest: what Snakemake's tests run with its local executor or cluster-generic runs with Lading's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from snakemake.api import DAGApi, SnakemakeApi

VARIABLE = "LADING_UPSTREAM_EXECUTOR"
# Those whose jobs Lading runs in their place. Others run nothing, such as dryrun and touch.
REPLACED = ("local", "cluster-generic")
# Snakemake's local executor has as many cores as --cores says, and any number of GPUs.
SITES = """
[sites.local]
cpus = {cores}
gpus = 8
"""


def pytest_configure() -> None:
    """Replace the executor where the variable says so."""
    if os.environ.get(VARIABLE) != "lading":
        return
    from snakemake_executor_plugin_lading import ExecutorSettings, direct

    read, execute = SnakemakeApi.workflow, DAGApi.execute_workflow
    before: dict[bytes, bytes] = {}

    def changed_variables() -> list[str]:
        """Return the variables that the Snakefile has changed: all tests are one process, and change some as well."""
        now = dict(os.environb)
        return sorted(os.fsdecode(name) for name in {*before, *now} if before.get(name) != now.get(name))

    def read_workflow(*given: Any, **options: Any) -> Any:
        before.clear()
        before.update(os.environb)
        return read(*given, **options)

    def execute_with_lading(self: Any, executor: str = "local", *given: Any, **options: Any) -> Any:
        settings = self.workflow_api.resource_settings
        if executor not in REPLACED:
            return execute(self, executor, *given, **options)
        settings.nodes = settings.nodes or settings.cores
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as sites_file:
            Path(sites_file.name).write_text(SITES.format(cores=settings.cores or os.cpu_count()))
            options["executor_settings"] = ExecutorSettings(sites_file=sites_file.name)
            return execute(self, "lading", *given, **options)

    direct.changed_variables = changed_variables
    SnakemakeApi.workflow, DAGApi.execute_workflow = read_workflow, execute_with_lading
