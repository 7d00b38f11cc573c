"""The program of :class:`tests.services.commands.Commands`: it imports Airflow, and forks from there.

A scheduler's controllers, and their node agents, are forked here as well: each would take five seconds of a processor
for its imports.

What is forked has a home and a configuration of its own, as :func:`adopt` says.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

from tests.services import forks

# The modules of controllers and node agents, and those that start them.
STARTERS = {
    "lading.plugin": "lading.executors.controller_process",
    "lading.executors.agent": "lading.hooks.machines.agent_host",
}


def preload() -> None:
    """Import what the commands and the components of Airflow import."""
    import setproctitle
    from airflow import __main__  # noqa: F401
    from airflow.api_fastapi.core_api.routes import public, ui  # noqa: F401
    from airflow.api_fastapi.execution_api import routes  # noqa: F401
    from airflow.cli import cli_parser
    from airflow.dag_processing import manager  # noqa: F401
    from airflow.jobs import scheduler_job_runner, triggerer_job_runner  # noqa: F401
    from airflow.models import import_all_models
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk import configuration  # noqa: F401

    from lading.executors.agent import agent
    from lading.plugin import service  # noqa: F401
    from lading.plugin.subcommands import check, clean, cost, jobs, sites  # noqa: F401

    for module in import_module(agent.RUNNER).MODULES:
        import_module(module)
    setproctitle.getproctitle()  # it finds out where the command is, which it cannot in a fork
    import_all_models()
    ProvidersManager().initialize_providers_configuration()
    cli_parser.get_parser()
    cli_parser.get_parser.cache_clear()


def adopt() -> None:
    """Take Airflow's home and configuration from the environment, in place of those of the process that forks.

    An import of Airflow reads some options; those that are not read again here are the same in both, which
    :func:`tests.services.commands.find_lender` sees to.
    """
    from airflow import configuration, settings
    from airflow.cli import cli_config
    from airflow.sdk import configuration as of_tasks
    from airflow.sdk._shared.observability.metrics import stats
    from airflow.sdk.definitions import asset
    from airflow.sdk.observability.metrics import stats_utils

    before, home = configuration.AIRFLOW_HOME, configuration.get_airflow_home()
    for module in [*sys.modules.values()]:
        if vars(module).get("AIRFLOW_HOME") == before:
            module.AIRFLOW_HOME = home  # type: ignore[attr-defined]
    configuration.AIRFLOW_CONFIG = configuration.get_airflow_config(home)
    for room in (configuration, of_tasks):
        room.conf._default_values = room.create_default_config_parser(room.conf._configuration_description)
        room.conf.invalidate_cache()
        room.conf.read(configuration.AIRFLOW_CONFIG)
    conf = configuration.conf
    # The options of commands have defaults from the configuration.
    for name, option in runpy.run_path(cli_config.__file__).items():
        if name.startswith("ARG_"):
            vars(getattr(cli_config, name)).update(vars(option))
    asset.SQL_ALCHEMY_CONN = conf.get("database", "sql_alchemy_conn")
    settings.initialize()
    stats.initialize(
        factory=stats_utils.get_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on")
    )


def main(opened: int, arguments: list[str]) -> None:
    forking = forks.Forks(opened)
    runpy.run_path(str(Path(__file__).parent / "bin" / "airflow"))["let_signals_end"]()
    gc.disable()  # nothing of what is imported is garbage, and to look for some takes a third of the time
    preload()
    # The forks need not look at it again, also not when they end, which takes an API server two seconds of a processor.
    gc.freeze()
    gc.enable()
    lender = os.getpid()
    request = forking.serve()
    if request is None:
        forks.leave(0)
    forks.become(request)
    forks.borrow(lender, STARTERS)
    adopt()
    forks.run(request)
