"""What Airflow's providers manager learns of Lading: its executor, tables, commands and options.

Airflow reads this in every process while it is still importing its own configuration, so it must stay light.
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
    """Return the declaration of every option of the section, by name."""
    declared = {
        "sites_file": _option(
            "The TOML file that describes the places where tasks can run, as an absolute path. "
            "Without it there is one site, ``local``: the machine that the scheduler runs on.",
            example="/etc/lading/sites.toml",
        ),
        "state_folder": _option(
            "The folder for Lading's own files on this machine, as an absolute path. Only Airflow's user may read it; "
            "one that belongs to another user is refused. All of Airflow's processes on one machine need the same one, "
            "on a local disk; no other machine may share it.",
            example="/var/lib/lading",
        ),
        "start_controller": _option(
            "Whether the scheduler starts a controller where none runs. ``False`` leaves that to a service, ``airflow "
            "lading controller``. One in a container of its own would otherwise be replaced by the scheduler's at "
            "every restart.",
            type="boolean",
            example="False",
        ),
        "default_cpus": _option(
            "How many processors a task without a ``cpus`` hint is packed by, also a fraction; it does not limit what "
            "the task uses. ``auto`` is 0.25; if only this machine takes tasks that name no site, its processors "
            "divided by ``[core] parallelism`` if that is less.",
            example="1",
        ),
        "default_memory": _option(
            "How much memory a task without a ``memory`` hint is packed by, with a unit or in MiB. It does not limit "
            "what the task uses.",
            example="2 GiB",
        ),
        "default_disk": _option(
            "How much scratch space a task without a ``disk`` hint is packed by, with a unit or in MiB.",
            example="1 GiB",
        ),
        "on_shutdown": _option(
            "What happens to running tasks when Airflow's scheduler stops in order: ``cancel`` ends them, and Airflow "
            "retries them as their Dags say; ``leave`` lets them run on, and the next scheduler takes them over.",
            example="leave",
        ),
        "shutdown_timeout": _option(
            "How long stopping may take, with a unit or in seconds. Jobs that have not ended by then are left to their "
            "node agents, which keep ending them.",
            example="2 min",
        ),
        "job_retention_days": _option(
            "How many days the records of ended jobs are kept in the database: a whole number of at least 1.",
            type="integer",
            example="90",
        ),
        "retry_memory_factor": _option(
            "How many times as much memory a task asks for after a try that ran out of memory, at most what the "
            "largest location has: a number from 1.",
            example="1.5",
        ),
        "retry_time_factor": _option(
            "How many times as much time a task asks for after a try that was ended by its time limit: a number from "
            "1.",
            example="3",
        ),
        "infrastructure_retries": _option(
            "How many tries of one task instance, ended by a failed machine or by preemption, use up none of the Dag's "
            "retries.",
            type="integer",
            example="0",
        ),
        "input_roots": _option(
            "Where the controller looks up the sizes of inputs, for hints like ``2 * input_size``, and reads files "
            "that tasks stage: absolute paths and beginnings of addresses of object stores (with the connection where "
            "addresses name one), with commas between them; links are followed first. Without it, authors of Dags can "
            "find out about any file of the controller's user whether it exists and how large it is, and no file is "
            "brought from the controller's own machine to another site.",
            example="/data, /scratch, s3://genomes/reads",
        ),
        "sizing": _option(
            "How tasks are packed whose authors request no memory or no cpus. ``auto``: from the third try on by what "
            "earlier tries used, without a limit, and before that by the defaults; ``hints``: always by the defaults. "
            "What an author has written always counts.",
            example="hints",
        ),
        "order": _option(
            "In which order jobs of one priority weight wait at sites that buy no machines. ``priority``: by arrival; "
            "``critical_path``: by the longest rest of their run, as earlier runs predict it, so runs end earlier. It "
            "matters most with the ``weight_rule`` ``absolute``, which gives many tasks one weight.",
            example="critical_path",
        ),
        "fair": _option(
            "Whether shares, or Dags of equal priority, take turns where more waits than there is room for. "
            "``True``: shares of the sites file by their weights; without shares, Dags equally "
            "within one priority weight. ``False``: by priority weight and ``order`` alone.",
            type="boolean",
            example="False",
        ),
        "share_half_life": _option(
            "With shares in the sites file: after which time what a share has used counts half, with a unit or in "
            "seconds.",
            example="7d",
        ),
    }
    return {name: {**each, "default": DEFAULTS[name]} for name, each in declared.items()}


def _option(description: str, *, example: str, type: str = "string") -> dict[str, str | None]:
    return {"description": description, "version_added": "0.1.0", "type": type, "example": example}
