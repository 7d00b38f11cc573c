"""Snakemake's own tests of executors."""

from __future__ import annotations

import snakemake.common.tests
from snakemake_executor_plugin_lading import ExecutorSettings


class TestWorkflows(snakemake.common.tests.TestWorkflowsLocalStorageBase):
    __test__ = True

    def get_executor(self) -> str:
        return "lading"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings()
