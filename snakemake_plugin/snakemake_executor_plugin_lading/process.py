"""Sets up a process for the workflows of a state folder, both in Snakemake and in the controller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from lading.executors.settings import Settings
from lading.hooks.deployment import current as deployment
from snakemake_executor_plugin_lading.needs import DEFAULT_RESOURCES
from snakemake_executor_plugin_lading.orchestrator import SnakemakeDeployment, make_orchestrator

if TYPE_CHECKING:
    from snakemake_executor_plugin_lading.state_folder import ControllerOptions, StateFolder

SECONDS_TO_SHUT_DOWN = 30
DAYS_KEPT = 30


def make_settings(state: StateFolder, options: ControllerOptions) -> Settings:
    return Settings(
        sites_file=None if options.sites_file is None else Path(options.sites_file),
        state_folder=state.root,
        default_resources=DEFAULT_RESOURCES,
        on_shutdown="cancel",
        shutdown_seconds=SECONDS_TO_SHUT_DOWN,
        job_retention_days=DAYS_KEPT,
    )


def connect_process(state: StateFolder, *, only_reads: bool = False) -> Engine:
    """Set the deployment and the orchestrator of this process, and open the store.

    :param only_reads: whether to leave the store as it is, without creating or migrating tables
    :raises lading.executors.migrations.own_database.AnotherVersion: a newer version of Lading created the store
    """
    deployment.use(SnakemakeDeployment(state))
    engine = state.open() if only_reads else state.connect()
    from lading.executors.orchestrator import current as orchestrator

    orchestrator.use(make_orchestrator(engine, state))
    return engine
