"""Arguments of the commands under ``airflow lading``. Every ``airflow`` command loads this, so it imports little."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    GroupCommand,
    lazy_load_command,
)

from lading.plugin.offline.options import COMMANDS, Option
from lading.plugin.subcommands import options
from lading.plugin.subcommands.options import count, day, map_index, utf8_name
from lading.scheduling.text.units import parse_time


def arg(option: Option) -> Arg:
    return Arg(option.flags, **option.settings)


ARG_SITE = Arg(("site",), nargs="*", help="The sites to check (default: all sites)")
ARG_TIMEOUT = Arg(
    ("--timeout",), type=count, help="Seconds to wait for the trial job of each site (default: 60; with --launch: 600)"
)
ARG_LAUNCH = Arg(
    ("--launch",),
    action="store_true",
    help="At sites that launch machines: launch the cheapest machine, run a trial job on it, terminate it, and "
    "report the cost",
)
ARG_POLICY = Arg(
    ("--policy",),
    action="store_true",
    help="Only print the minimum permissions that the account of each site needs (for ec2, an IAM policy)",
)
ARG_STATE = arg(options.STATE)
ARG_RUN = arg(options.RUN_ID)
ARG_LIMIT = arg(options.LIMIT)
ARG_GROUPS = arg(options.GROUPS)
ARG_DAG = Arg(("--dag-id",), type=utf8_name, help="Only jobs of this Dag")
ARG_TEAM = Arg(("--team",), type=utf8_name, help="Only jobs of Dags of this Airflow team")
ARG_BOOTSTRAP_SITE = Arg(("site",), help="A site of kind ec2")
ARG_LADING = Arg(
    ("--lading",),
    required=True,
    metavar="REQUIREMENT",
    help=(
        "The URL of Lading's wheel, or its path in the image; pip installs Lading from there, because no package "
        "index has it"
    ),
)
ARG_INSTANCES_ACTION = Arg(
    ("action",),
    nargs="?",
    choices=("list", "drain", "terminate"),
    default="list",
    help="list (the default): list instances; drain: start no more jobs on an instance, and terminate it when its "
    "running jobs have finished; terminate: terminate an instance now, and kill its jobs",
)
ARG_ENDED = Arg(
    ("--ended",), action="store_true", help="Also list instances that have ended, as long as their records are kept"
)
ARG_INSTANCE = Arg(
    ("instance",), nargs="*", help="The instances to drain or terminate: names, EC2 instance IDs or batch job IDs"
)
ARG_THE_DAG = Arg(("dag_id",), type=utf8_name, help="The Dag")
ARG_WAKE_RUN = Arg(("run_id",), nargs="?", type=utf8_name, help="Only this run of the Dag (default: all runs)")
ARG_GANG = Arg(
    ("--gang",),
    type=utf8_name,
    help="Only the gang with this name, or the gang of the task with this name (default: all gangs)",
)
ARG_EXPLAIN_RUN = Arg(("run_id",), type=utf8_name, help="The run")
ARG_EXPLAIN_TASK = Arg(("task_id",), type=utf8_name, help="The task; for a task in a task group, group.task")
ARG_EXPLAIN_INDEX = Arg(
    ("map_index",), nargs="?", type=map_index, default=-1, help="The map index, if the task is mapped"
)
ARG_HURRY = Arg(
    ("hurry",),
    nargs="?",
    help="How much finishing early is worth: 0 to 100, cheap, balanced or fast (default: as its Dag and sites set)",
)
ARG_FINISH_BY = Arg(
    ("--finish-by",),
    metavar="WHEN",
    help="When the run has to finish: a time after its start (2h), a time of day in the time zone of the Dag "
    "(06:00), or a date and time (2026-11-27T06:00) (default: as its Dag sets)",
)
ARG_WITHDRAW = Arg(("--withdraw",), action="store_true", help="Remove what an earlier `hurry` set for the run")
ARG_LIFT = Arg(
    ("--lift",), metavar="NAME", type=utf8_name, help="Do not enforce this budget until its next period begins"
)
ARG_RESTORE = Arg(("--restore",), metavar="NAME", type=utf8_name, help="Enforce a lifted budget again")
ARG_COST_DAG = Arg(("dag_id",), nargs="?", type=utf8_name, help="The Dag; not with --by, which covers all Dags")
ARG_BY = Arg(
    ("--by",),
    choices=("team", "dag", "owner", "site"),
    help="Show charges by team, Dag, owner or site, instead of the runs of one Dag",
)
ARG_SINCE = Arg(
    ("--from",),
    dest="since",
    type=day,
    help="With --by: the first day of the period, in UTC (default: the first day of this month)",
)
ARG_UNTIL = Arg(
    ("--to",),
    dest="until",
    type=day,
    help="With --by: the day after the last day of the period, in UTC (default: the period ends now)",
)
ARG_COST_OUTPUT = arg(options.OUTPUT)
ARG_RUNS = arg(options.RUNS)
ARG_ONCE = arg(options.ONCE)
ARG_SECONDS = arg(options.SECONDS)
ARG_COST_RUN = Arg(
    ("run_id",), nargs="?", type=utf8_name, help="Show the tasks of this run (default: show the runs of the Dag)"
)


def age(text: str) -> int:
    """Read an age as seconds. At least an hour, because younger files may belong to a submission in progress."""
    try:
        seconds = parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 3600:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too short: such files may still be in use; give an hour or more, such as 30d"
        )
    return seconds


ARG_CLEANED_SITE = Arg(("site",), nargs="*", help="The sites to clean (default: all sites, and this machine)")
ARG_OLDER_THAN = Arg(
    ("--older-than",),
    type=age,
    default="30d",
    help="Remove only files that have not changed for this long, such as 12h, 30d, 8 weeks (default: 30d)",
)
ARG_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Only list the files that would be removed")


# Commands whose module has another name than the command.
MODULES = {
    "bootstrap": "lading.plugin.subcommands.instances",
    "controller": "lading.plugin.service",
}
# The commands that `snakemake-lading` has, too, so they are given their host.
SHARED = ("advice", "cost", "explain", "jobs", "sites", "top")


def command(name: str, help: str, args: tuple[Arg, ...], description: str | None = None) -> ActionCommand:
    load = lazy_load_command(f"{MODULES.get(name, f'lading.plugin.subcommands.{name}')}.{name}")
    func = partial(run_shared, load) if name in SHARED else load
    return ActionCommand(name, help, func, (*args, ARG_VERBOSE), description)


def run_shared(load: Callable[..., None], args: argparse.Namespace) -> None:
    from lading.plugin.host import AirflowHost

    AirflowHost().run(load, args)


def get_commands() -> list[GroupCommand]:
    return [
        GroupCommand(
            name="lading",
            help="Run tasks on the machines that fit them",
            description="Shows and checks what Lading does. The executor is lading.executors.LadingExecutor.",
            subcommands=(
                command(
                    "check",
                    "Validate the configuration and the store, and run a trial job at each site",
                    (ARG_SITE, ARG_TIMEOUT, ARG_LAUNCH, ARG_POLICY, ARG_OUTPUT),
                    "Prints how to fix each problem. Exits with status 1 if there is one.",
                ),
                command(
                    "jobs",
                    "List jobs, newest first",
                    (ARG_STATE, ARG_TEAM, ARG_DAG, ARG_RUN, ARG_LIMIT, ARG_GROUPS, ARG_OUTPUT),
                    "In the column asked, overhead is the memory that a batch site adds to each request "
                    "(memory_overhead).",
                ),
                command(
                    "explain",
                    "Explain step by step where the job of a task runs, and why",
                    (ARG_THE_DAG, ARG_EXPLAIN_RUN, ARG_EXPLAIN_TASK, ARG_EXPLAIN_INDEX),
                    "For a waiting job, shows bindings and filters, matching, ranking, rules and policy, computed from "
                    "the current state of the sites. For any other job, shows the recorded decision, phases and "
                    "reasons. For a finished job, also shows what it used, its cost and its exit code.",
                ),
                command(
                    "wake",
                    "Try to place sleeping jobs now",
                    (ARG_THE_DAG, ARG_WAKE_RUN, ARG_GANG),
                    "Gangs, and jobs with the hint attempts, sleep between their attempts to find room. "
                    "Exits with status 1 if none of the named jobs is sleeping.",
                ),
                command(
                    "hurry",
                    "Set how much finishing a live run early is worth, and when the run has to be finished",
                    (ARG_THE_DAG, ARG_EXPLAIN_RUN, ARG_HURRY, ARG_FINISH_BY, ARG_WITHDRAW),
                    "The setting applies at sites that launch machines by a forecast, and overrides the "
                    "settings of the Dag and the site. Without HURRY and options, prints the current "
                    "settings of the run and when it is expected to finish. Exits with status 1 if there is "
                    "no such live run, or if a value is not valid.",
                ),
                command(
                    "budgets",
                    "List how much of each budget is spent, or lift a budget until its next period begins",
                    (ARG_LIFT, ARG_RESTORE, ARG_OUTPUT),
                    "The amounts are at most half a minute old. The list and Airflow's audit log show who "
                    "lifted a budget. Exits with status 1 if there is no budget with the given name.",
                ),
                command(
                    "sites",
                    "List sites and their locations",
                    (ARG_OUTPUT,),
                    "The column used is the sum of what the running jobs requested; in it, overhead is the memory that "
                    "a batch site adds to each request (memory_overhead).",
                ),
                command(
                    "bootstrap",
                    "Print EC2 user data that prepares a stock image for running jobs",
                    (ARG_BOOTSTRAP_SITE, ARG_LADING),
                    "Prints a cloud-config that installs Python, Lading, and Airflow with its providers, in "
                    "the same versions as on this machine. It installs them in the environment of `python` "
                    "in the table of the site.",
                ),
                command(
                    "instances",
                    "List EC2 instances and batch allocations, or drain or terminate some of them",
                    (ARG_INSTANCES_ACTION, ARG_INSTANCE, ARG_ENDED, ARG_OUTPUT),
                    "Finds EC2 instances by their tags, too, and therefore also lists instances that are "
                    "missing from the store. If no controller is running, this command itself terminates EC2 "
                    "instances. Exits with status 1 if a site could not be queried or an action failed.",
                ),
                command(
                    "cost",
                    "Show the time and cost of the runs of a Dag or the tasks of a run, or charges by team, Dag, "
                    "owner or site",
                    (ARG_COST_DAG, ARG_COST_RUN, ARG_RUNS, ARG_BY, ARG_SINCE, ARG_UNTIL, ARG_COST_OUTPUT),
                    "Counts running and finished jobs at the prices of their sites, or in cpu-hours if a "
                    "site has no price. The column waited is the sum of the waits of all jobs. The column usd_idle is "
                    "a share of the cost of machines while no job used them; it is added once the machines are "
                    "terminated. The column of_which lists how much of usd and "
                    "usd_idle was paid for volumes and public addresses. With --by, shows the charges for jobs "
                    "that finished within a period, rounded to cents so that they add up to the bills. Its "
                    "rows idle and boot are costs that no job was charged for. Exits with status 1 if "
                    "nothing is recorded.",
                ),
                command(
                    "advice",
                    "Show what the tasks of a Dag should request, based on what their tries used",
                    (ARG_THE_DAG, ARG_COST_OUTPUT),
                    "Shows the same as the tab of the Dag, with the largest savings first. The column short counts the "
                    "tries that had too little memory or time. The columns cpus, memory and time are what the next try "
                    "should request. The column wasted is the "
                    "memory that the last tries requested but did not use, in GiB-hours; a try that ran out "
                    "of memory counts with its whole request. The column line is a line to paste into the Dag. "
                    "The column wasted_by_line is the memory that the same tries would have wasted with this line. "
                    "Exits with status 1 if no try of the Dag has finished.",
                ),
                command(
                    "top",
                    "Show what is running, what is waiting and why, until Ctrl-C",
                    (ARG_ONCE, ARG_SECONDS),
                    "If the output is a pipe or a file, the command prints once and exits.",
                ),
                command(
                    "clean",
                    "Remove old leftovers at the sites and on this machine",
                    (ARG_CLEANED_SITE, ARG_OLDER_THAN, ARG_DRY_RUN, ARG_OUTPUT),
                    "Removes old files of jobs, such as logs, submissions and the folders of job scripts, "
                    "but nothing that a live job needs. Run this command on the machine of the controller. "
                    "Exits with status 1 if a site cannot be reached or something cannot be removed.",
                ),
                command(
                    "controller",
                    "Run a controller as a service",
                    (),
                    "The scheduler starts a controller if none is running. Run this command if another "
                    "program, such as systemd, is to supervise the controller instead. If several "
                    "controllers run, one is active and the others stand by.",
                ),
                command(
                    "uninstall",
                    "Drop Lading's tables and remove its state folder",
                    (ARG_YES,),
                    "Asks for confirmation. Refuses to run while a scheduler uses Lading, while a "
                    "controller, a node agent or a job is running, and while a launched machine or "
                    "allocation has not ended. Afterwards, uninstall the package: as long as it is "
                    "installed, `airflow db migrate` creates the tables again.",
                ),
                *(
                    ActionCommand(
                        name,
                        offline.text,
                        lazy_load_command("lading.plugin.offline.command.airflow_command"),
                        tuple(map(arg, offline.options)),
                        "Launches and submits nothing. `lading` has the same command.",
                    )
                    for name, offline in COMMANDS.items()
                ),
            ),
        )
    ]
