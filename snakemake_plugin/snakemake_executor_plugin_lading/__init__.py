"""The Snakemake executor ``lading``: jobs are packed onto the machines that fit them.

Every ``snakemake`` imports this, also the one in each job, so the engine is imported when it is started.
"""

# Snakemake reads the annotations of the settings as types: they are not postponed here.
from dataclasses import dataclass, field

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from snakemake_executor_plugin_lading.executor import Executor

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=True,  # where sources are not shared; where they are, nothing is deployed
    pass_envvar_declarations_to_cmd=False,  # they travel in the job's environment, not in its command line
    auto_deploy_default_storage_provider=False,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """The options, each as ``--lading-NAME``."""

    sites_file: str | None = field(
        default=None,
        metadata={
            "help": "The TOML file of the sites on which jobs run; without it one site, this machine.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    state_folder: str | None = field(
        default=None,
        metadata={
            "help": "The folder of the store, of logs and of the controller's files, on a disk of this machine or a "
            "shared one that can lock files; workflows that name the same folder share a controller. Without it "
            ".snakemake/lading beside the workflow.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    site: str | None = field(
        default=None,
        metadata={
            "help": "The site of jobs that name none by the resource lading_site; without it any that takes them.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    hurry: str | None = field(
        default=None,
        metadata={
            "help": "What time is worth to this run at sites that buy machines: a number, or cheap, balanced, fast; "
            "without it what each site says.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    finish_by: str | None = field(
        default=None,
        metadata={
            "help": "When this run shall have ended, for sites that buy machines: a length of time such as 8h, or a "
            "moment.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    limits: str = field(
        default="rules",
        metadata={
            "help": "Whose memory and runtime end a job that exceeds them: of rules that give them (rules), also "
            "Snakemake's default resources (all), of none (none).",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    auto: bool = field(
        default=False,
        metadata={
            "help": "Choose memory and runtime of rules that give none by what their jobs have used, and of rules with "
            "the resource lading_auto=1 in any case.",
            "env_var": False,
            "required": False,
        },
    )
    infrastructure_retries: int = field(
        default=3,
        metadata={
            "help": "How often a job is submitted again whose machine was taken away or has failed, or that had too "
            "little of what Lading has chosen; that uses up none of its retries.",
            "env_var": False,
            "required": False,
            "type": int,
        },
    )
    always_snakemake: bool = field(
        default=False,
        metadata={
            "help": "Start Snakemake in each job, also where a rule is a shell command that needs nothing of it: no "
            "environment, container, storage, shadow folder or benchmark.",
            "env_var": False,
            "required": False,
        },
    )
