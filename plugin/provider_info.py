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
            "The absolute path of the TOML file that describes the sites where tasks can run. If it is not "
            "set, there is only the site ``local``, which is the machine of the scheduler.",
            example="/etc/lading/sites.toml",
        ),
        "state_folder": _option(
            "The absolute path of the folder for Lading's own files on this machine. The folder must belong "
            "to Airflow's user, and no other user gets access to it. All Airflow processes on a machine must "
            "use the same folder. It must be on a local disk; do not share it between machines.",
            example="/var/lib/lading",
        ),
        "start_controller": _option(
            "Whether the scheduler starts a controller if none is running. Set this to ``False`` if you run "
            "``airflow lading controller`` as a service. For example, if the controller runs in a container "
            "of its own, the scheduler would otherwise start another controller each time that container "
            "restarts.",
            type="boolean",
            example="False",
        ),
        "default_cpus": _option(
            "The number of cpus that Lading reserves for a task without the hint ``cpus``; can be a "
            "fraction. This does not limit what the task uses. ``auto`` means 0.25. If this machine is the "
            "only one that accepts tasks without the hint ``site``, ``auto`` means the number of its cpus "
            "divided by ``[core] parallelism``, but at most 0.25.",
            example="1",
        ),
        "default_memory": _option(
            "The memory that Lading reserves for a task without the hint ``memory``, with a unit or in MiB. "
            "This does not limit what the task uses.",
            example="2 GiB",
        ),
        "default_disk": _option(
            "The scratch space that Lading reserves for a task without the hint ``disk``, with a unit or in MiB.",
            example="1 GiB",
        ),
        "on_shutdown": _option(
            "What happens to running tasks when Airflow's scheduler shuts down. ``cancel`` kills them, and "
            "Airflow retries them as their Dags define. ``leave`` lets them continue, and the next scheduler "
            "adopts them.",
            example="leave",
        ),
        "shutdown_timeout": _option(
            "How long a shutdown can take, with a unit or in seconds. If jobs are still running after that, "
            "the scheduler exits without waiting for them, and their node agents finish killing them.",
            example="2 min",
        ),
        "job_retention_days": _option(
            "How many days the records of finished jobs are kept in the database: a whole number of at least 1.",
            type="integer",
            example="90",
        ),
        "retry_memory_factor": _option(
            "After a try of a task has run out of memory, the next try requests this many times as much "
            "memory, up to the memory of the largest location. A number of at least 1.",
            example="1.5",
        ),
        "retry_time_factor": _option(
            "After a try of a task has exceeded its time limit, the next try requests this many times as "
            "much time. A number of at least 1.",
            example="3",
        ),
        "infrastructure_retries": _option(
            "How often a task instance is repeated after a node failure or preemption without using up the "
            "retries that its Dag defines.",
            type="integer",
            example="0",
        ),
        "input_roots": _option(
            "The places where the controller looks up the sizes of inputs, for hints like ``2 * "
            "input_size``, and from which it copies files that tasks stage. A comma-separated list of "
            "absolute paths and of address prefixes of object stores; if the addresses name a connection, "
            "the prefix must name it, too. The controller resolves links before it compares paths. If this "
            "is not set, sizes are looked up everywhere, so Dag authors can find out whether any file that "
            "the controller can read exists and how large it is. In that case, no file is copied from the "
            "controller's own machine to another site.",
            example="/data, /scratch, s3://genomes/reads",
        ),
        "sizing": _option(
            "How much memory and how many cpus Lading reserves for tasks that request none. ``auto``: for "
            "the first two tries the defaults, and from the third try on what earlier tries used. ``hints``: "
            "always the defaults. Neither limits what the task uses. An explicit request always takes "
            "precedence.",
            example="hints",
        ),
        "order": _option(
            "The order of waiting jobs with the same priority weight, at sites that launch no machines. "
            "``priority``: the job that arrived first is first. ``critical_path``: the job with the longest "
            "remaining path of its run, as predicted from earlier runs, is first, so that runs finish "
            "earlier. This option matters most with the ``weight_rule`` ``absolute``, which gives many tasks "
            "the same weight.",
            example="critical_path",
        ),
        "fair": _option(
            "Whether shares or Dags take turns when there is not enough room for all jobs. ``True``: the "
            "shares of the sites file take turns in proportion to their weights. If the file has no shares, "
            "Dags with the same priority weight take turns equally. ``False``: only the priority weight and "
            "``order`` decide.",
            type="boolean",
            example="False",
        ),
        "share_half_life": _option(
            "If the sites file has shares: the time after which past usage of a share counts half as much, "
            "with a unit or in seconds.",
            example="7d",
        ),
    }
    return {name: {**each, "default": DEFAULTS[name]} for name, each in declared.items()}


def _option(description: str, *, example: str, type: str = "string") -> dict[str, str | None]:
    return {"description": description, "version_added": "0.1.0", "type": type, "example": example}
