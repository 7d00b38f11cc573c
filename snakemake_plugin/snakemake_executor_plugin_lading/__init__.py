"""The Snakemake executor ``lading``, which packs jobs onto machines that fit them.

Every ``snakemake`` imports this, including the one in each job, so the engine is imported only when it is started.
"""

# Snakemake reads the annotations of the settings as types, so their evaluation must not be postponed here.
from dataclasses import dataclass, field

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from snakemake_executor_plugin_lading.executor import Executor

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=True,  # has an effect only if sources are not shared
    pass_envvar_declarations_to_cmd=False,  # passed in the environment of jobs, not on their command lines
    auto_deploy_default_storage_provider=False,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """The options ``--lading-NAME``."""

    sites_file: str | None = field(
        default=None,
        metadata={
            "help": "The TOML file that describes the sites where jobs run. Default: this machine is the only site.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    state_folder: str | None = field(
        default=None,
        metadata={
            "help": "The folder for the store, logs and the controller's files, on a local disk, or on a shared one "
            "that supports file locks. Workflows with the same folder share a controller. Default: "
            ".snakemake/lading in the working directory.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    site: str | None = field(
        default=None,
        metadata={
            "help": "The site of jobs without the resource lading_site. Default: any site that accepts such jobs.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    hurry: str | None = field(
        default=None,
        metadata={
            "help": "How much finishing early is worth to this run at sites that launch machines: a number, or cheap, "
            "balanced or fast. Default: the setting of each site.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    finish_by: str | None = field(
        default=None,
        metadata={
            "help": "When this run has to finish, for sites that launch machines: a duration such as 8h, or a date "
            "and time.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    limits: str = field(
        default="rules",
        metadata={
            "help": "Which values of memory and runtime are limits; jobs that exceed a limit are killed. rules: "
            "values that rules set; all: also Snakemake's default resources; none: no value.",
            "env_var": False,
            "required": False,
            "type": str,
        },
    )
    auto: bool = field(
        default=False,
        metadata={
            "help": "Choose memory and runtime from what earlier jobs of the same rule used. This applies to rules "
            "that do not set them, and to rules with the resource lading_auto=1.",
            "env_var": False,
            "required": False,
        },
    )
    infrastructure_retries: int = field(
        default=3,
        metadata={
            "help": "How often a job is resubmitted without using up its retries. This happens if its machine was "
            "reclaimed or failed, or if it exceeded an amount that Lading chose.",
            "env_var": False,
            "required": False,
            "type": int,
        },
    )
    always_snakemake: bool = field(
        default=False,
        metadata={
            "help": "Start Snakemake in each job, even in jobs that do not need it: jobs whose rule is a shell "
            "command without an environment, container, storage, shadow folder or benchmark.",
            "env_var": False,
            "required": False,
        },
    )
