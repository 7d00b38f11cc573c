"""The provider info: Lading's executor, tables, commands and options, for Airflow's providers manager.

Every Airflow process reads this while it imports its own configuration, so it imports little.
"""

from __future__ import annotations

from typing import Any

from lading.executors.settings import DEFAULTS, SECTION


def get_provider_info() -> dict[str, Any]:
    """Return the provider info, in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-lading",
        "name": "Lading",
        "description": "Packs tasks onto machines by what they need: this one, others behind SSH, batch clusters, EC2.",
        "executors": ["lading.executors.LadingExecutor"],
        "db-managers": ["lading.executors.migrations.db_manager.LadingDBManager"],
        "plugins": [{"name": "lading", "plugin-class": "lading.plugin.ui.airflow_plugin.LadingPlugin"}],
        "cli": ["lading.plugin.subcommands.cli.get_commands"],
        "config": {SECTION: {"description": "Options of the executor ``LadingExecutor``.", "options": options()}},
    }


def options() -> dict[str, dict[str, str | None]]:
    declared = {
        "sites_file": _option(
            "The TOML file that describes the places where tasks can run, as an absolute path. "
            "Without it, there is one site, ``local``: the machine of the scheduler.",
            example="/etc/lading/sites.toml",
        ),
        "state_folder": _option(
            "The folder for Lading's own files on this machine, as an absolute path. Only Airflow's user has access; "
            "a folder of another user is refused. All Airflow processes on a machine need the same folder, on a local "
            "disk; do not share it between machines.",
            example="/var/lib/lading",
        ),
        "start_controller": _option(
            "Whether the scheduler starts a controller if none is running. ``False`` leaves that to a service, "
            "``airflow lading controller``. Otherwise, the scheduler would replace a controller in a separate "
            "container each time that container restarts.",
            type="boolean",
            example="False",
        ),
        "default_cpus": _option(
            "The cpus that a task without the hint ``cpus`` is packed by; can be a fraction. This does not limit what "
            "the task uses. ``auto`` is 0.25, or if only this machine takes tasks that name no site, its cpus divided "
            "by ``[core] parallelism`` if that is less.",
            example="1",
        ),
        "default_memory": _option(
            "The memory that a task without the hint ``memory`` is packed by, with a unit or in MiB. This does not "
            "limit what the task uses.",
            example="2 GiB",
        ),
        "default_disk": _option(
            "The scratch space that a task without the hint ``disk`` is packed by, with a unit or in MiB.",
            example="1 GiB",
        ),
        "on_shutdown": _option(
            "What happens to running tasks when Airflow's scheduler shuts down: ``cancel`` kills them, and Airflow "
            "retries them as their Dags define; ``leave`` lets them continue, and the next scheduler adopts them.",
            example="leave",
        ),
        "shutdown_timeout": _option(
            "How long a shutdown can take, with a unit or in seconds. Jobs that are still running after that are left "
            "to their node agents, which continue to kill them.",
            example="2 min",
        ),
        "job_retention_days": _option(
            "How many days the records of finished jobs are kept in the database: a whole number of at least 1.",
            type="integer",
            example="90",
        ),
        "retry_memory_factor": _option(
            "The factor by which a task requests more memory after a try that ran out of memory, up to the memory of "
            "the largest location: a number of at least 1.",
            example="1.5",
        ),
        "retry_time_factor": _option(
            "The factor by which a task requests more time after a try that exceeded its time limit: a number of at "
            "least 1.",
            example="3",
        ),
        "infrastructure_retries": _option(
            "How many tries of a task instance that failed by a node failure or preemption are repeated without using "
            "up the retries of the Dag.",
            type="integer",
            example="0",
        ),
        "input_roots": _option(
            "Where the controller looks up the sizes of inputs, for hints like ``2 * input_size``, and reads files "
            "that tasks stage: a comma-separated list of absolute paths and address prefixes of object stores (with "
            "the connection if the addresses name one). Links are resolved first. Without it, Dag authors can find out "
            "whether any file that the controller can read exists and how large it is, and no file is staged from the "
            "controller's own machine to another site.",
            example="/data, /scratch, s3://genomes/reads",
        ),
        "sizing": _option(
            "How tasks without a request for memory or cpus are packed. ``auto``: from the third try on, by what "
            "earlier tries used, without a limit, and before that, by the defaults. ``hints``: always by the defaults. "
            "An explicit request always takes precedence.",
            example="hints",
        ),
        "order": _option(
            "The order of waiting jobs with the same priority weight at sites that launch no machines. ``priority``: "
            "by arrival; ``critical_path``: by the longest remaining path of their run, as predicted from earlier "
            "runs, so that runs finish earlier. It matters most with the ``weight_rule`` ``absolute``, which gives "
            "many tasks the same weight.",
            example="critical_path",
        ),
        "fair": _option(
            "Whether shares, or Dags of equal priority, take turns when there is not enough room for all jobs. "
            "``True``: shares of the sites file by their weights, or without shares, Dags equally within the same "
            "priority weight. ``False``: by priority weight and ``order`` alone.",
            type="boolean",
            example="False",
        ),
        "share_half_life": _option(
            "With shares in the sites file: the half-life with which past usage of a share loses weight, with a "
            "unit or in seconds.",
            example="7d",
        ),
    }
    return {name: {**each, "default": DEFAULTS[name]} for name, each in declared.items()}


def _option(description: str, *, example: str, type: str = "string") -> dict[str, str | None]:
    return {"description": description, "version_added": "0.1.0", "type": type, "example": example}
