"""A plugin of pytest: what Snakemake's tests run with its local executor runs with Lading's."""

from __future__ import annotations

import os
from typing import Any

from snakemake.api import DAGApi

VARIABLE = "LADING_UPSTREAM_EXECUTOR"


def pytest_configure() -> None:
    """Replace the executor where the variable says so."""
    if os.environ.get(VARIABLE) != "lading":
        return
    from snakemake_executor_plugin_lading import ExecutorSettings

    execute = DAGApi.execute_workflow

    def execute_with_lading(self: Any, executor: str = "local", *given: Any, **options: Any) -> Any:
        settings = self.workflow_api.resource_settings
        if executor == "local" and settings.nodes is None:
            executor, settings.nodes = "lading", settings.cores
            options["executor_settings"] = ExecutorSettings()
        return execute(self, executor, *given, **options)

    DAGApi.execute_workflow = execute_with_lading
